//! The structure of PTX text: kernels, variables, labels and instructions, not yet decoded.

use super::lexer::{Kind, Token, error, tokens};
use crate::Error;
use std::collections::HashMap;

/// A module as it is written.
#[derive(Debug, Default)]
pub(super) struct Module<'a> {
    /// What `.target` names first.
    pub(super) target: &'a str,
    /// Shared variables outside kernels.
    pub(super) shared: Vec<Variable<'a>>,
    pub(super) kernels: Vec<Kernel<'a>>,
}

/// A variable of shared or local memory.
#[derive(Clone, Debug)]
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) align: u32,
    /// Size in bytes; `None`: the launch gives it (`.extern`, `[]`).
    pub(super) bytes: Option<u32>,
}

/// An `.entry` as it is written.
#[derive(Debug, Default)]
pub(super) struct Kernel<'a> {
    pub(super) name: &'a str,
    pub(super) line: u32,
    pub(super) parameters: Vec<Parameter<'a>>,
    /// Product of `.maxntid` or `.reqntid`.
    pub(super) max_threads: Option<u32>,
    pub(super) shared: Vec<Variable<'a>>,
    pub(super) local: Vec<Variable<'a>>,
    /// Registers with their types (`b32`, `pred` ...); registers of inner scopes have unique names here.
    pub(super) registers: Vec<(String, &'a str)>,
    pub(super) labels: HashMap<&'a str, usize>,
    /// Label lists of indexed branches.
    pub(super) tables: HashMap<&'a str, Vec<&'a str>>,
    pub(super) instructions: Vec<Statement<'a>>,
}

#[derive(Clone, Debug)]
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: u32,
    pub(super) align: u32,
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(super) struct Statement<'a> {
    pub(super) line: u32,
    /// Predicate register and whether it is negated.
    pub(super) guard: Option<(String, bool)>,
    pub(super) opcode: &'a str,
    pub(super) operands: Vec<Operand<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'a> {
    /// A register, a special register, or `_`.
    Register(String),
    /// A negated predicate.
    Not(String),
    /// A number as it is written, sign included.
    Number(String),
    /// A variable, a parameter, a label.
    Symbol(&'a str),
    /// `[base + offset]`.
    Address(Box<Operand<'a>>, i64),
    /// `[base, {x, y}]`.
    Tensor(Box<Operand<'a>>, Vec<Operand<'a>>),
    /// `{a, b}`.
    Vector(Vec<Operand<'a>>),
    /// `a|b`.
    Pair(String, String),
}

/// Bytes of a fundamental type.
pub(super) fn type_bytes(ty: &str) -> Option<u32> {
    Some(match ty {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        "b128" => 16,
        _ => return None,
    })
}

/// Value of an integer literal.
pub(super) fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let digits = digits.trim_end_matches('U');
    let value = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        i128::from_str_radix(hex, 16)
    } else {
        digits.parse()
    };
    value.ok().map(|v| if negative { -v } else { v })
}

/// Parses a module.
pub(super) fn parse(text: &str) -> Result<Module<'_>, Error> {
    let tokens = tokens(text)?;
    Parser { tokens, at: 0, scopes: Vec::new(), renamed: 0 }.module()
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    /// For each open `{` of the body: registers declared in it, by their written name.
    scopes: Vec<HashMap<&'a str, String>>,
    renamed: usize,
}

impl<'a> Parser<'a> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    fn peek(&self) -> Option<Kind<'a>> {
        self.tokens.get(self.at).map(|t| t.kind)
    }

    fn next(&mut self) -> Result<Kind<'a>, Error> {
        let kind = self.peek().ok_or_else(|| error(self.line(), "the text ends too early"))?;
        self.at += 1;
        Ok(kind)
    }

    fn eat(&mut self, punct: char) -> bool {
        let found = self.peek() == Some(Kind::Punct(punct));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: char) -> Result<(), Error> {
        if self.eat(punct) {
            return Ok(());
        }
        Err(error(self.line(), format!("expected {punct:?}, found {:?}", self.peek())))
    }

    fn word(&mut self) -> Result<&'a str, Error> {
        let line = self.line();
        match self.next()? {
            Kind::Word(word) => Ok(word),
            other => Err(error(line, format!("expected a name, found {other:?}"))),
        }
    }

    fn count(&mut self) -> Result<u32, Error> {
        let line = self.line();
        match self.next()? {
            Kind::Number(text) => integer(text).and_then(|v| u32::try_from(v).ok()),
            _ => None,
        }
        .ok_or_else(|| error(line, "expected a count"))
    }

    fn module(mut self) -> Result<Module<'a>, Error> {
        let mut module = Module::default();
        while self.peek().is_some() {
            let line = self.line();
            match self.word()? {
                ".version" | ".address_size" => {
                    self.next()?;
                }
                ".target" => {
                    module.target = self.word()?;
                    while self.eat(',') {
                        self.word()?;
                    }
                }
                ".visible" | ".weak" => {}
                ".extern" => match self.word()? {
                    ".shared" => module.shared.push(self.variable()?),
                    other => return Err(error(line, format!(".extern {other} is not supported"))),
                },
                ".shared" => module.shared.push(self.variable()?),
                ".entry" => {
                    let kernel = self.kernel()?;
                    module.kernels.push(kernel);
                }
                other => return Err(error(line, format!("{other} is not supported outside kernels"))),
            }
        }
        Ok(module)
    }

    /// After the state space: `.align 16 .b8 name[1024];`
    fn variable(&mut self) -> Result<Variable<'a>, Error> {
        let line = self.line();
        let (mut align, mut word) = (None, self.word()?);
        if word == ".align" {
            align = Some(self.count()?);
            word = self.word()?;
        }
        let element = type_bytes(word.trim_start_matches('.'))
            .ok_or_else(|| error(line, format!("{word} is not a type of variables")))?;
        let name = self.word()?;
        let mut bytes = Some(element);
        while self.eat('[') {
            bytes = if self.eat(']') {
                None
            } else {
                let count = self.count()?;
                self.expect(']')?;
                bytes.and_then(|b| b.checked_mul(count))
            };
        }
        self.expect(';')?;
        Ok(Variable { name, align: align.unwrap_or(element), bytes })
    }

    fn kernel(&mut self) -> Result<Kernel<'a>, Error> {
        let line = self.line();
        let mut kernel = Kernel { name: self.word()?, line, ..Kernel::default() };
        if self.eat('(') && !self.eat(')') {
            loop {
                kernel.parameters.push(self.parameter()?);
                if self.eat(')') {
                    break;
                }
                self.expect(',')?;
            }
        }
        while !self.eat('{') {
            let line = self.line();
            match self.word()? {
                ".maxntid" | ".reqntid" => {
                    let mut threads = self.count()?;
                    while self.eat(',') {
                        threads = threads.saturating_mul(self.count()?);
                    }
                    kernel.max_threads = Some(threads);
                }
                ".minnctapersm" | ".maxnreg" => {
                    self.count()?;
                }
                other => return Err(error(line, format!("{other} is not supported at a kernel"))),
            }
        }
        self.scopes.push(HashMap::new());
        while !self.scopes.is_empty() {
            self.statement(&mut kernel)?;
        }
        Ok(kernel)
    }

    /// `.param .u64 .ptr .align 1 name`, `.param .align 8 .b8 name[16]`
    fn parameter(&mut self) -> Result<Parameter<'a>, Error> {
        let line = self.line();
        if self.word()? != ".param" {
            return Err(error(line, "expected .param"));
        }
        let (mut align, mut bytes) = (None, None);
        loop {
            match self.word()? {
                ".ptr" => {
                    // What the pointer points to is not the parameter's own alignment.
                    while matches!(self.peek(), Some(Kind::Word(".global" | ".shared" | ".const" | ".local"))) {
                        self.at += 1;
                    }
                    if self.peek() == Some(Kind::Word(".align")) {
                        self.at += 1;
                        self.count()?;
                    }
                }
                ".align" => align = Some(self.count()?),
                word if word.starts_with('.') => {
                    let size = type_bytes(&word[1..]);
                    bytes = Some(size.ok_or_else(|| error(line, format!("{word} is not a type of parameters")))?);
                }
                name => {
                    let element = bytes.ok_or_else(|| error(line, format!("parameter {name} has no type")))?;
                    let mut total = element;
                    if self.eat('[') {
                        total = element * self.count()?;
                        self.expect(']')?;
                    }
                    return Ok(Parameter { name, bytes: total, align: align.unwrap_or(element) });
                }
            }
        }
    }

    fn statement(&mut self, kernel: &mut Kernel<'a>) -> Result<(), Error> {
        let line = self.line();
        if self.eat('{') {
            self.scopes.push(HashMap::new());
            return Ok(());
        }
        if self.eat('}') {
            self.scopes.pop();
            return Ok(());
        }
        if self.eat(';') {
            return Ok(());
        }
        let mut guard = None;
        if self.eat('@') {
            let negated = self.eat('!');
            guard = Some((self.word()?, negated));
        }
        let word = self.word()?;
        match word {
            ".reg" => return self.registers(kernel),
            ".shared" => {
                let variable = self.variable()?;
                kernel.shared.push(variable);
                return Ok(());
            }
            ".local" => {
                let variable = self.variable()?;
                kernel.local.push(variable);
                return Ok(());
            }
            ".pragma" => {
                self.next()?;
                return self.expect(';');
            }
            _ => {}
        }
        if guard.is_none() && self.eat(':') {
            if self.peek() == Some(Kind::Word(".branchtargets")) {
                self.at += 1;
                let mut targets = vec![self.word()?];
                while self.eat(',') {
                    targets.push(self.word()?);
                }
                kernel.tables.insert(word, targets);
                return self.expect(';');
            }
            if kernel.labels.insert(word, kernel.instructions.len()).is_some() {
                return Err(error(line, format!("label {word} is there twice")));
            }
            return Ok(());
        }
        if word.starts_with('.') {
            return Err(error(line, format!("{word} is not supported in a kernel")));
        }
        let guard = guard.map(|(name, negated)| (self.resolve(name), negated));
        let mut operands = Vec::new();
        if !self.eat(';') {
            loop {
                operands.push(self.operand()?);
                if self.eat(';') {
                    break;
                }
                self.expect(',')?;
            }
        }
        kernel.instructions.push(Statement { line, guard, opcode: word, operands });
        Ok(())
    }

    /// `.reg .b32 %r<10>;`, `.reg .pred p, q;`
    fn registers(&mut self, kernel: &mut Kernel<'a>) -> Result<(), Error> {
        let ty = self.word()?.trim_start_matches('.');
        loop {
            let name = self.word()?;
            if self.eat('<') {
                let count = self.count()?;
                self.expect('>')?;
                kernel.registers.extend((0..count).map(|i| (format!("{name}{i}"), ty)));
            } else {
                // Inline assembly declares the same names again and again, each in a scope of its own.
                let unique = if self.scopes.len() == 1 {
                    name.to_owned()
                } else {
                    self.renamed += 1;
                    format!("{name}#{}", self.renamed)
                };
                self.scopes.last_mut().expect("statements are in a scope").insert(name, unique.clone());
                kernel.registers.push((unique, ty));
            }
            if !self.eat(',') {
                return self.expect(';');
            }
        }
    }

    /// The unique name of a register.
    fn resolve(&self, name: &str) -> String {
        let declared = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        declared.cloned().unwrap_or_else(|| name.to_owned())
    }

    fn is_register(&self, name: &str) -> bool {
        name == "_" || name.starts_with('%') || self.scopes.iter().any(|scope| scope.contains_key(name))
    }

    fn operand(&mut self) -> Result<Operand<'a>, Error> {
        let line = self.line();
        Ok(match self.next()? {
            Kind::Punct('[') => {
                let base = self.operand()?;
                if self.eat(',') {
                    let Operand::Vector(coordinates) = self.operand()? else {
                        return Err(error(line, "expected coordinates"));
                    };
                    self.expect(']')?;
                    return Ok(Operand::Tensor(Box::new(base), coordinates));
                }
                let mut offset = 0;
                if self.eat('+') {
                    let negative = self.eat('-');
                    offset = i64::from(self.count()?) * if negative { -1 } else { 1 };
                } else if self.eat('-') {
                    offset = -i64::from(self.count()?);
                }
                self.expect(']')?;
                Operand::Address(Box::new(base), offset)
            }
            Kind::Punct('{') => {
                let mut parts = vec![self.operand()?];
                while self.eat(',') {
                    parts.push(self.operand()?);
                }
                self.expect('}')?;
                Operand::Vector(parts)
            }
            Kind::Punct('!') => {
                let name = self.word()?;
                Operand::Not(self.resolve(name))
            }
            Kind::Punct('-') => match self.next()? {
                Kind::Number(text) => Operand::Number(format!("-{text}")),
                other => return Err(error(line, format!("expected a number after '-', found {other:?}"))),
            },
            Kind::Number(text) => Operand::Number(text.to_owned()),
            Kind::Word(name) if self.is_register(name) => {
                let first = self.resolve(name);
                if self.eat('|') {
                    let second = self.word()?;
                    Operand::Pair(first, self.resolve(second))
                } else {
                    Operand::Register(first)
                }
            }
            Kind::Word(name) => Operand::Symbol(name),
            other => return Err(error(line, format!("expected an operand, found {other:?}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_rename_registers() {
        let text = ".version 7.8 .target sm_90, debug .address_size 64
            .extern .shared .align 256 .b8 dyn[];
            .visible .entry k(.param .u64 .ptr .global .align 4 k_0, .param .align 8 .b8 k_1[16]) .maxntid 64, 2 {
            .reg .b32 %r<3>;
            { .reg .pred p; setp.ne.b32 p, %r1, -1; @!p bra $L1; }
            { .reg .pred p; setp.ne.b32 p|%r0, %r1, 0x10; }
            $L1: ld.shared.v2.b32 {%r1, %r2}, [dyn+8];
            ret; }";
        let module = parse(text).unwrap();
        assert_eq!(module.target, "sm_90");
        assert_eq!((module.shared[0].name, module.shared[0].align, module.shared[0].bytes), ("dyn", 256, None));
        let kernel = &module.kernels[0];
        assert_eq!((kernel.name, kernel.max_threads), ("k", Some(128)));
        let sizes: Vec<_> = kernel.parameters.iter().map(|p| (p.bytes, p.align)).collect();
        assert_eq!(sizes, [(8, 8), (16, 8)]);
        assert_eq!(kernel.registers.len(), 5);
        assert_eq!(kernel.labels["$L1"], 3);
        assert_eq!(kernel.instructions[1].guard, Some(("p#1".into(), true)));
        assert_eq!(kernel.instructions[2].operands[0], Operand::Pair("p#2".into(), "%r0".into()));
        assert_eq!(kernel.instructions[3].operands[1], Operand::Address(Box::new(Operand::Symbol("dyn")), 8));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let reason = |text| match parse(text) {
            Err(Error::Load { place, reason }) => format!("{place}: {reason}"),
            other => panic!("expected an error, got {other:?}"),
        };
        assert!(reason(".target sm_90\n.func f { }").starts_with("line 2: .func"));
        assert!(reason(".entry k() {\n ret;").starts_with("line 2: the text ends"));
        assert!(reason(".entry k() {\n .loc 1 2 3;\n}").starts_with("line 2: .loc"));
    }
}
