//! Cuts one PTX module into one module a kernel, so that a driver compiles only what is used.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

/// A statement at the top level of a PTX module.
#[derive(Debug)]
struct Item<'a> {
    text: &'a str,
    kind: Kind,
    /// What it declares; empty for the header.
    name: &'a str,
}

#[derive(Debug, PartialEq)]
enum Kind {
    /// `.version`, `.target`, `.address_size`.
    Header,
    /// `.entry`, a kernel.
    Entry,
    /// A function or variable.
    Declaration,
}

/// A module with one kernel.
#[derive(Debug)]
pub(crate) struct Module {
    /// The PTX text.
    pub(crate) text: String,
    /// Bytes of shared memory declared in it; dynamic shared memory is not.
    pub(crate) static_shared_bytes: u32,
}

/// One module for each kernel of `ptx`, by the kernel's name: the header, whatever the kernel refers to
/// (directly or not), and the kernel.
pub(crate) fn split(ptx: &str) -> Result<BTreeMap<String, Module>> {
    let items = items(ptx)?;
    let mut modules = BTreeMap::new();
    for entry in items.iter().filter(|item| item.kind == Kind::Entry) {
        let needed = needed(entry, &items);
        let mut text = String::new();
        for item in &items {
            let keep = match item.kind {
                Kind::Header => true,
                Kind::Entry => std::ptr::eq(item, entry),
                Kind::Declaration => needed.contains(item.name),
            };
            if keep {
                text.push_str(item.text);
                text.push('\n');
            }
        }
        let static_shared_bytes = static_shared_bytes(&text)?;
        modules.insert(entry.name.to_owned(), Module { text, static_shared_bytes });
    }
    Ok(modules)
}

/// Names that `entry` refers to, and that those refer to.
fn needed<'a>(entry: &Item<'a>, items: &[Item<'a>]) -> BTreeSet<&'a str> {
    let mut needed = BTreeSet::new();
    let mut open = vec![entry.text];
    while let Some(text) = open.pop() {
        let words: BTreeSet<_> = words(text).collect();
        for item in items {
            if item.kind == Kind::Declaration && words.contains(item.name) && needed.insert(item.name) {
                // A function may be declared first and defined later: follow both.
                open.extend(items.iter().filter(|other| other.name == item.name).map(|other| other.text));
            }
        }
    }
    needed
}

/// The module's top-level statements.
fn items(ptx: &str) -> Result<Vec<Item<'_>>> {
    let mut items = Vec::new();
    let mut rest = skip_blank(ptx);
    while !rest.is_empty() {
        let end = statement_end(rest);
        let Some(end) = end else { bail!("PTX statement without an end: {:.60}", rest) };
        items.push(item(&rest[..end])?);
        rest = skip_blank(&rest[end..]);
    }
    Ok(items)
}

fn item(text: &str) -> Result<Item<'_>> {
    let directive = text.split_whitespace().next().unwrap_or_default();
    if [".version", ".target", ".address_size"].contains(&directive) {
        return Ok(Item { text, kind: Kind::Header, name: "" });
    }
    // The part before a body, a parameter list or an initial value holds the name.
    let head = &text[..text.find(['{', '=', ';']).unwrap_or(text.len())];
    let (kind, name) = if let Some((_, tail)) = head.split_once(".entry") {
        (Kind::Entry, words(tail).next())
    } else if let Some((_, tail)) = head.split_once(".func") {
        let tail = tail.trim_start();
        // A result comes before the name, in parentheses.
        let tail = if tail.starts_with('(') { tail.split_once(')').map_or(tail, |(_, tail)| tail) } else { tail };
        (Kind::Declaration, words(tail).next())
    } else {
        (Kind::Declaration, words(head.split('[').next().unwrap_or_default()).last())
    };
    match name {
        Some(name) => Ok(Item { text, kind, name }),
        None => bail!("PTX statement that declares nothing: {text:.60}"),
    }
}

/// Length of the statement that `text` begins with: up to the end of line for the header's directives, of
/// the body for functions, and to the semicolon for others.
fn statement_end(text: &str) -> Option<usize> {
    let first = text.split_whitespace().next()?;
    if [".version", ".target", ".address_size"].contains(&first) {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    let (mut depth, mut function) = (0_i32, false);
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        if let Some(string) = rest.strip_prefix('"') {
            at += string.find('"')? + 2;
            continue;
        }
        if depth == 0 && (rest.starts_with(".entry") || rest.starts_with(".func")) {
            function = true;
        }
        match rest.as_bytes()[0] {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 && function {
                    return Some(at + 1);
                }
            }
            b';' if depth == 0 => return Some(at + 1),
            _ => {}
        }
        at += rest.chars().next().map_or(1, char::len_utf8);
    }
    None
}

/// Drops blanks and comments.
fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        if !text.starts_with("//") {
            return text;
        }
        text = &text[text.find('\n').unwrap_or(text.len())..];
    }
}

/// The identifiers in `text`; directives and instructions come out in pieces, which name nothing declared.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    text.split(move |c| !inside(c)).filter(|word| !word.is_empty() && !word.as_bytes()[0].is_ascii_digit())
}

/// Bytes of the shared variables that `ptx` declares with a size.
fn static_shared_bytes(ptx: &str) -> Result<u32> {
    let mut bytes = 0;
    for line in ptx.lines().map(str::trim) {
        let mut tokens = line.split_whitespace();
        if tokens.find(|token| !matches!(*token, ".visible" | ".weak" | ".common")) != Some(".shared") {
            continue;
        }
        let bits =
            tokens.find_map(|token| token.strip_prefix(['.']).and_then(|t| t.strip_prefix(['b', 'u', 's', 'f'])));
        let size = line.split('[').skip(1).map(|dim| dim.split(']').next().unwrap_or_default().trim().parse::<u32>());
        let elements = size.product::<Result<u32, _>>();
        match (bits.map(str::parse::<u32>), elements) {
            (Some(Ok(bits)), Ok(elements)) => bytes += bits / 8 * elements,
            _ => bail!("cannot read the size of a shared variable in PTX: {line}"),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = r#"// Generated
.version 7.8
.target sm_90
.address_size 64

	// .globl	first
.extern .shared .align 256 .b8 dynamic[];
.shared .align 16 .b8 fixed[1024];
.shared .align 4 .f32 grid[2][8];
.global .align 4 .b8 table[4] = {1, 2, 3, 4};
.func (.param .b32 result) helper (.param .b32 x) ;
.func leaf() { .reg .b32 a; mov.u32 a, table; ret; }

.visible .entry first(
	.param .u64 first_param_0
)
.maxntid 128
{
	{ st.shared.b32 [dynamic], 0; }
	mov.b64 x, fixed; // } not an end
	ret;
}
.func (.param .b32 result) helper (.param .b32 x)
{
	call leaf;
	ret;
}
	// .globl	second
.visible .entry second() { call (r), helper, (x); ld.shared.b32 y, [grid]; ret; }
"#;

    #[test]
    fn each_kernel_gets_what_it_refers_to_and_no_more() {
        let modules = split(PTX).unwrap();
        assert_eq!(modules.keys().collect::<Vec<_>>(), ["first", "second"]);
        let (first, second) = (&modules["first"], &modules["second"]);
        for module in [first, second] {
            assert!(module.text.starts_with(".version 7.8\n.target sm_90\n.address_size 64\n"));
            assert_eq!(module.text.matches(".entry").count(), 1);
        }
        assert!(first.text.contains("dynamic[]") && first.text.contains(".maxntid 128"));
        assert!(!first.text.contains("helper") && !first.text.contains("table"));
        assert!(second.text.contains("helper (.param .b32 x) ;"), "the prototype stays before its use");
        assert!(second.text.contains("leaf()") && second.text.contains("table[4] = {1, 2, 3, 4};"));
        assert!(!second.text.contains("dynamic"));
        assert_eq!((first.static_shared_bytes, second.static_shared_bytes), (1024, 64));
    }

    #[test]
    fn a_cut_off_module_is_refused() {
        let error = split(".version 7.8\n.visible .entry k() { ret;").unwrap_err();
        assert!(error.to_string().contains("without an end"), "{error}");
    }
}
