//! Tokens of PTX text.

use crate::Error;

/// A token and the line it is on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) line: u32,
    pub(super) kind: Kind<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind<'a> {
    /// A name: directive, opcode with its modifiers, register, symbol, label.
    Word(&'a str),
    /// A number as it is written.
    Number(&'a str),
    /// A quoted string.
    Text,
    /// A punctuation character.
    Punct(char),
}

/// An error at a line of the text.
pub(super) fn error(line: u32, reason: impl Into<String>) -> Error {
    Error::Load { place: format!("line {line}"), reason: reason.into() }
}

/// Splits the text into tokens; comments vanish.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Error> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let start = at;
        let kind = match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            c if c.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = bytes[at..].iter().position(|&c| c == b'\n').map_or(bytes.len(), |n| at + n);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let length = text[at..].find("*/").ok_or_else(|| error(line, "a comment that never ends"))?;
                line += text[at..at + length].matches('\n').count() as u32;
                at += length + 2;
                continue;
            }
            b'"' => {
                let length = text[at + 1..].find('"').ok_or_else(|| error(line, "a string that never ends"))?;
                at += length + 2;
                Kind::Text
            }
            c if c.is_ascii_digit() => {
                at = end_of(bytes, at, |c| c.is_ascii_alphanumeric() || c == b'.');
                Kind::Number(&text[start..at])
            }
            c if is_word(c) => {
                at = end_of_word(bytes, at);
                Kind::Word(&text[start..at])
            }
            c if c.is_ascii_punctuation() => {
                at += 1;
                Kind::Punct(c as char)
            }
            _ => return Err(error(line, "a character that PTX does not have")),
        };
        tokens.push(Token { line, kind });
    }
    Ok(tokens)
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn end_of(bytes: &[u8], start: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[start..].iter().position(|&c| !belongs(c)).map_or(bytes.len(), |n| start + n)
}

/// Words may hold `::` (`shared::cta`), while a single colon ends a label.
fn end_of_word(bytes: &[u8], start: usize) -> usize {
    let mut at = end_of(bytes, start, is_word);
    while bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|&c| is_word(c)) {
        at = end_of(bytes, at + 2, is_word);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_comments() {
        let kinds = |text| tokens(text).unwrap().into_iter().map(|t| t.kind).collect::<Vec<_>>();
        assert_eq!(
            kinds("$L1: @!%p1 cp.async.shared::cta.b32 [%rd1+-8], 0x1f; // tail\n/* a\nb */ 0fFF800000"),
            [
                Kind::Word("$L1"),
                Kind::Punct(':'),
                Kind::Punct('@'),
                Kind::Punct('!'),
                Kind::Word("%p1"),
                Kind::Word("cp.async.shared::cta.b32"),
                Kind::Punct('['),
                Kind::Word("%rd1"),
                Kind::Punct('+'),
                Kind::Punct('-'),
                Kind::Number("8"),
                Kind::Punct(']'),
                Kind::Punct(','),
                Kind::Number("0x1f"),
                Kind::Punct(';'),
                Kind::Number("0fFF800000"),
            ]
        );
        assert_eq!(tokens("\n\n/*\n*/x").unwrap()[0].line, 4);
        assert!(tokens("/* open").is_err());
    }
}
