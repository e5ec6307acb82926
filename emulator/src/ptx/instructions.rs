//! Opcodes and their modifiers. Every modifier is either understood or an error.

use super::decode::{Decoder, Place};
use super::ops::*;
use super::parser::{Operand, Statement};
use crate::Error;
use crate::counters::Class;
use crate::races::Access;

type Decoded = (Op, Class, Together);

/// The parts of an opcode after its name.
struct Modifiers<'a> {
    parts: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Removes a part if it is there.
    fn flag(&mut self, name: &str) -> bool {
        let found = self.parts.iter().position(|part| *part == name);
        found.map(|index| self.parts.remove(index)).is_some()
    }

    /// Removes the first of these parts that is there.
    fn one_of(&mut self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.flag(name))
    }

    /// Removes the last part that names a type.
    fn ty(&mut self) -> Option<Ty> {
        let index = self.parts.iter().rposition(|part| Ty::parse(part).is_some())?;
        Ty::parse(self.parts.remove(index))
    }

    /// Removes the rounding of a float operation.
    fn float_mode(&mut self) -> FloatMode {
        let round = match self.one_of(&["rn", "rz", "rm", "rp"]) {
            Some("rz") => Round::Zero,
            Some("rm") => Round::Down,
            Some("rp") => Round::Up,
            _ => Round::Nearest,
        };
        FloatMode { round, ftz: self.flag("ftz"), sat: self.flag("sat") }
    }

    /// Removes the order and scope of a memory operation or fence: whether it is one that others may meet, and
    /// what it orders for other blocks.
    fn access(&mut self, plain: Access) -> (Access, Order) {
        let kind = self.one_of(&["volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"]);
        let _weak = self.flag("weak");
        let inside = self.one_of(&["cta", "cluster", "gpu", "gl", "sys"]) == Some("cta");
        let of = |kinds: [&str; 3]| !inside && kind.is_some_and(|kind| kinds.contains(&kind));
        let order = Order { acquire: of(["acquire", "acq_rel", "sc"]), release: of(["release", "acq_rel", "sc"]) };
        (if kind.is_some() { Access::Atomic } else { plain }, order)
    }

    /// Removes hints that change no value.
    fn cache_hints(&mut self) {
        self.parts.retain(|part| {
            !part.starts_with("L1::")
                && !matches!(*part, "L2::64B" | "L2::128B" | "L2::256B" | "L2::evict_first" | "L2::evict_last")
                && !matches!(*part, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc")
        });
    }

    fn space(&mut self) -> Space {
        match self.one_of(&["global", "shared", "shared::cta", "local", "param", "param::entry"]) {
            Some("global") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some("param" | "param::entry") => Space::Param,
            _ => Space::Generic,
        }
    }

    fn vector_count(&mut self) -> u8 {
        match self.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some("v8") => 8,
            _ => 1,
        }
    }
}

fn any(op: Op, class: Class) -> Decoded {
    (op, class, Together::Any)
}

/// Decodes one instruction.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement<'_>) -> Result<Decoded, Error> {
    let mut parts = s.opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let mut m = Modifiers { parts: parts.collect() };
    let o = Operands { list: &s.operands };
    let decoded = match name {
        "add" | "sub" | "mul" | "fma" if m.flag("f32x2") => packed(d, name, &mut m, &o)?,
        "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" => binary(d, name, &mut m, &o)?,
        "mad" | "fma" => mad(d, name, &mut m, &o)?,
        "shl" | "shr" => shift(d, name, &mut m, &o)?,
        "neg" | "abs" | "not" | "brev" => unary(d, name, &mut m, &o)?,
        "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => function(d, name, &mut m, &o)?,
        "popc" | "clz" | "bfind" => count(d, name, &mut m, &o)?,
        "bfe" | "bfi" | "prmt" | "lop3" | "shf" => bits(d, name, &mut m, &o)?,
        "mov" => mov(d, &mut m, &o)?,
        "setp" => setp(d, &mut m, &o)?,
        "selp" => selp(d, &mut m, &o)?,
        "cvt" => cvt(d, &mut m, &o)?,
        "cvta" => cvta(d, &mut m, &o)?,
        "ld" | "ldu" => load(d, &mut m, &o)?,
        "st" => store(d, &mut m, &o)?,
        "atom" | "red" => atomic(d, name, &mut m, &o)?,
        "cp" => copy(d, &mut m, &o)?,
        "ldmatrix" | "stmatrix" => matrix_access(d, name, &mut m, &o)?,
        "mma" => mma(d, &mut m, &o)?,
        "shfl" | "vote" | "redux" | "elect" | "activemask" => lanes(d, name, &mut m, &o)?,
        "bar" | "barrier" | "fence" | "membar" => sync(d, name, &mut m, &o)?,
        "createpolicy" => {
            // A cache policy is an opaque value that only hints use.
            m.parts.clear();
            let a = d.constant64(0)?;
            any(Op::Mov64 { d: d.destination64(o.get(d, 0)?)?, a }, Class::Integer)
        }
        "prefetch" | "prefetchu" | "applypriority" | "discard" | "nanosleep" => {
            m.parts.clear();
            any(Op::Nothing, Class::Memory)
        }
        "bra" => {
            m.flag("uni");
            let Operand::Symbol(label) = o.get(d, 0)? else { return Err(d.error("expected a label")) };
            any(Op::Branch { target: d.label(label)? }, Class::Control)
        }
        "brx" => {
            m.flag("idx");
            m.flag("uni");
            let index = d.source32(o.get(d, 0)?, Ty::U32)?;
            let Operand::Symbol(table) = o.get(d, 1)? else { return Err(d.error("expected a table of labels")) };
            any(Op::BranchIndexed { index, targets: d.table(table)? }, Class::Control)
        }
        "ret" | "exit" => {
            m.flag("uni");
            any(Op::Exit, Class::Control)
        }
        "trap" => any(Op::Trap, Class::Control),
        _ => return Err(d.error(format!("instruction {} is unknown", s.opcode))),
    };
    if let Some(rest) = m.parts.first() {
        return Err(d.error(format!("instruction {} is unknown: .{rest} is not supported", s.opcode)));
    }
    Ok(decoded)
}

struct Operands<'a> {
    list: &'a [Operand<'a>],
}

impl<'a> Operands<'a> {
    fn get(&self, d: &Decoder<'_>, index: usize) -> Result<&'a Operand<'a>, Error> {
        self.list.get(index).ok_or_else(|| d.error(format!("operand {} is missing", index + 1)))
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

fn need_ty(d: &Decoder<'_>, m: &mut Modifiers<'_>) -> Result<Ty, Error> {
    m.ty().ok_or_else(|| d.error("the instruction has no type that is known"))
}

fn width(d: &Decoder<'_>, ty: Ty) -> Result<Width, Error> {
    match ty.bytes() {
        2 => Ok(Width::W16),
        4 => Ok(Width::W32),
        8 => Ok(Width::W64),
        _ => Err(d.error(format!("type {ty:?} is not supported here"))),
    }
}

fn reg(any: AnyReg) -> Reg {
    match any {
        AnyReg::R32(reg) | AnyReg::R64(reg) => reg,
    }
}

/// A destination that can hold `ty`.
fn typed_destination(d: &mut Decoder<'_>, operand: &Operand<'_>, ty: Ty) -> Result<Reg, Error> {
    if ty.bytes() == 8 { d.destination64(operand) } else { d.destination32(operand) }
}

fn typed_source(d: &mut Decoder<'_>, operand: &Operand<'_>, ty: Ty) -> Result<Reg, Error> {
    d.source(operand, ty).map(reg)
}

fn binary(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    if ty == Ty::Pred {
        let Operand::Register(to) = o.get(d, 0)? else { return Err(d.error("expected a predicate")) };
        let (a, b) = (d.source_predicate(o.get(d, 1)?)?, d.source_predicate(o.get(d, 2)?)?);
        let op = match name {
            "and" => Logic::And,
            "or" => Logic::Or,
            "xor" => Logic::Xor,
            _ => return Err(d.error(format!("{name} of predicates is not supported"))),
        };
        return Ok(any(Op::PredLogic { op, d: d.destination_predicate(to)?, a, b }, Class::Integer));
    }
    if ty.float() {
        return float_binary(d, name, ty, m, o);
    }
    let signed = ty.signed();
    if name == "mul" && m.flag("wide") {
        let (a, b) = (d.source32(o.get(d, 1)?, ty)?, d.source32(o.get(d, 2)?, ty)?);
        let width = width(d, ty)?;
        let to = if width == Width::W16 { d.destination32(o.get(d, 0)?)? } else { d.destination64(o.get(d, 0)?)? };
        return Ok(any(Op::MulWide { signed, width, d: to, a, b }, Class::Integer));
    }
    let op = match (name, signed) {
        ("add", _) => IntOp::Add,
        ("sub", _) => IntOp::Sub,
        ("mul", _) if m.flag("lo") => IntOp::MulLo,
        ("mul", false) if m.flag("hi") => IntOp::MulHiU,
        ("mul", true) if m.flag("hi") => IntOp::MulHiS,
        ("div", false) => IntOp::DivU,
        ("div", true) => IntOp::DivS,
        ("rem", false) => IntOp::RemU,
        ("rem", true) => IntOp::RemS,
        ("min", false) => IntOp::MinU,
        ("min", true) => IntOp::MinS,
        ("max", false) => IntOp::MaxU,
        ("max", true) => IntOp::MaxS,
        ("and", _) => IntOp::And,
        ("or", _) => IntOp::Or,
        ("xor", _) => IntOp::Xor,
        _ => return Err(d.error(format!("{name} needs .lo, .hi or .wide"))),
    };
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, typed_source(d, o.get(d, 2)?, ty)?);
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    Ok(any(Op::Int { op, width: width(d, ty)?, d: to, a, b }, Class::Integer))
}

fn float_binary(
    d: &mut Decoder<'_>,
    name: &str,
    ty: Ty,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
    let nan = m.flag("NaN");
    let op = match name {
        "add" => FloatOp::Add,
        "sub" => FloatOp::Sub,
        "mul" => FloatOp::Mul,
        // Both are allowed an error of 2 ulp; the exact quotient is within it.
        "div" if m.flag("full") || m.flag("approx") => FloatOp::Div,
        "div" => FloatOp::Div,
        "min" if nan => FloatOp::MinNan,
        "min" => FloatOp::Min,
        "max" if nan => FloatOp::MaxNan,
        "max" => FloatOp::Max,
        _ => return Err(d.error(format!("{name} of floats is not supported"))),
    };
    let mode = m.float_mode();
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, typed_source(d, o.get(d, 2)?, ty)?);
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    match ty {
        Ty::F32 if op != FloatOp::Div || mode.round == Round::Nearest => {
            Ok(any(Op::F32 { op, mode, d: to, a, b }, Class::Float))
        }
        Ty::F64 if mode.round == Round::Nearest => Ok(any(Op::F64 { op, d: to, a, b }, Class::Float)),
        _ => Err(d.error(format!("{name} of {ty:?} with this rounding is not supported"))),
    }
}

fn mad(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    if ty.float() {
        let mode = m.float_mode();
        let [a, b, c] = [1, 2, 3].map(|i| o.get(d, i).and_then(|x| typed_source(d, x, ty)));
        let (a, b, c) = (a?, b?, c?);
        let to = typed_destination(d, o.get(d, 0)?, ty)?;
        return match ty {
            Ty::F32 => Ok(any(Op::Fma32 { mode, d: to, a, b, c }, Class::Float)),
            Ty::F64 if mode.round == Round::Nearest => Ok(any(Op::Fma64 { d: to, a, b, c }, Class::Float)),
            _ => Err(d.error(format!("{name} of {ty:?} with this rounding is not supported"))),
        };
    }
    let width = width(d, ty)?;
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, typed_source(d, o.get(d, 2)?, ty)?);
    if m.flag("lo") {
        let c = typed_source(d, o.get(d, 3)?, ty)?;
        let to = typed_destination(d, o.get(d, 0)?, ty)?;
        return Ok(any(Op::MadLo { width, d: to, a, b, c }, Class::Integer));
    }
    if m.flag("wide") && width == Width::W32 {
        let c = d.source64(o.get(d, 3)?, Ty::B64)?;
        let to = d.destination64(o.get(d, 0)?)?;
        return Ok(any(Op::MadWide { signed: ty.signed(), width, d: to, a, b, c }, Class::Integer));
    }
    Err(d.error(format!("{name} of {ty:?} needs .lo or .wide of 32 bits")))
}

/// `.f32x2` of sm_100: two f32 in a 64-bit register, each by itself.
fn packed(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let mode = m.float_mode();
    let (a, b) = (d.source64(o.get(d, 1)?, Ty::B64)?, d.source64(o.get(d, 2)?, Ty::B64)?);
    let c = if name == "fma" { Some(d.source64(o.get(d, 3)?, Ty::B64)?) } else { None };
    let to = d.destination64(o.get(d, 0)?)?;
    let op = match (name, c) {
        ("fma", Some(c)) => Op::PackedFma32 { mode, d: to, a, b, c },
        ("add", _) => Op::Packed32 { op: FloatOp::Add, mode, d: to, a, b },
        ("sub", _) => Op::Packed32 { op: FloatOp::Sub, mode, d: to, a, b },
        _ => Op::Packed32 { op: FloatOp::Mul, mode, d: to, a, b },
    };
    Ok(any(op, Class::Float))
}

fn shift(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let op = match (name, ty.signed()) {
        ("shl", _) => ShiftOp::Left,
        (_, false) => ShiftOp::RightU,
        (_, true) => ShiftOp::RightS,
    };
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, d.source32(o.get(d, 2)?, Ty::U32)?);
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    Ok(any(Op::Shift { op, width: width(d, ty)?, d: to, a, b }, Class::Integer))
}

fn unary(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    if ty == Ty::Pred && name == "not" {
        let Operand::Register(to) = o.get(d, 0)? else { return Err(d.error("expected a predicate")) };
        let mut a = d.source_predicate(o.get(d, 1)?)?;
        a.negate = !a.negate;
        return Ok(any(Op::PredMov { d: d.destination_predicate(to)?, a }, Class::Integer));
    }
    if ty.float() {
        return function(d, name, &mut Modifiers { parts: restore(m, ty) }, o).inspect(|_| m.parts.clear());
    }
    let op = match name {
        "neg" => IntUnary::Neg,
        "abs" => IntUnary::Abs,
        "not" => IntUnary::Not,
        _ => IntUnary::Brev,
    };
    let a = typed_source(d, o.get(d, 1)?, ty)?;
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    Ok(any(Op::IntUnary { op, width: width(d, ty)?, d: to, a }, Class::Integer))
}

/// The modifiers with the type put back.
fn restore<'a>(m: &Modifiers<'a>, ty: Ty) -> Vec<&'a str> {
    let mut parts = m.parts.clone();
    parts.push(if ty == Ty::F64 { "f64" } else { "f32" });
    parts
}

fn function(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let approximate = m.flag("approx");
    let mode = m.float_mode();
    let (op, class) = match name {
        "neg" => (FloatUnary::Neg, Class::Float),
        "abs" => (FloatUnary::Abs, Class::Float),
        "sqrt" => (FloatUnary::Sqrt, if approximate { Class::Special } else { Class::Float }),
        "rcp" => (FloatUnary::Rcp, if approximate { Class::Special } else { Class::Float }),
        "rsqrt" => (FloatUnary::Rsqrt, Class::Special),
        "ex2" => (FloatUnary::Ex2, Class::Special),
        "lg2" => (FloatUnary::Lg2, Class::Special),
        "sin" => (FloatUnary::Sin, Class::Special),
        "cos" => (FloatUnary::Cos, Class::Special),
        _ => (FloatUnary::Tanh, Class::Special),
    };
    let a = typed_source(d, o.get(d, 1)?, ty)?;
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    match ty {
        _ if mode.round != Round::Nearest => Err(d.error(format!("{name} with this rounding is not supported"))),
        Ty::F32 => Ok(any(Op::Unary32 { op, mode, d: to, a }, class)),
        Ty::F64 if class == Class::Float => Ok(any(Op::Unary64 { op, d: to, a }, class)),
        _ => Err(d.error(format!("{name} of {ty:?} is not supported"))),
    }
}

fn count(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let op = match name {
        "popc" => CountOp::Ones,
        "clz" => CountOp::LeadingZeros,
        _ => CountOp::HighestOne,
    };
    let a = typed_source(d, o.get(d, 1)?, ty)?;
    let to = d.destination32(o.get(d, 0)?)?;
    Ok(any(Op::Count { op, signed: ty.signed(), wide: ty.bytes() == 8, d: to, a }, Class::Integer))
}

fn bits(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let (left, right) = (m.flag("l"), m.flag("r"));
    let (clamp, wrap) = (m.flag("clamp"), m.flag("wrap"));
    let ty = need_ty(d, m)?;
    let (wide, signed) = (ty.bytes() == 8, ty.signed());
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    let a = typed_source(d, o.get(d, 1)?, ty)?;
    let b32 = |d: &mut Decoder<'_>, index| o.get(d, index).and_then(|x| d.source32(x, Ty::U32));
    let op = match name {
        "bfe" => Op::BitExtract { signed, wide, d: to, a, position: b32(d, 2)?, length: b32(d, 3)? },
        "bfi" => {
            let b = typed_source(d, o.get(d, 2)?, ty)?;
            Op::BitInsert { wide, d: to, a, b, position: b32(d, 3)?, length: b32(d, 4)? }
        }
        "prmt" if !wide => Op::Permute { d: to, a, b: b32(d, 2)?, selector: b32(d, 3)? },
        "lop3" if !wide => {
            let table = d.immediate(o.get(d, 4)?)? as u8;
            Op::Logic3 { table, d: to, a, b: b32(d, 2)?, c: b32(d, 3)? }
        }
        "shf" if !wide && left != right && clamp != wrap => {
            Op::FunnelShift { left, clamp, d: to, a, b: b32(d, 2)?, amount: b32(d, 3)? }
        }
        _ => return Err(d.error(format!("{name} of this form is not supported"))),
    };
    Ok(any(op, Class::Integer))
}

fn special(d: &Decoder<'_>, name: &str) -> Result<Special, Error> {
    let axis = || match name.rsplit('.').next() {
        Some("x") => 0,
        Some("y") => 1,
        _ => 2,
    };
    Ok(match name {
        "%tid.x" | "%tid.y" | "%tid.z" => Special::Tid(axis()),
        "%ntid.x" | "%ntid.y" | "%ntid.z" => Special::Ntid(axis()),
        "%ctaid.x" | "%ctaid.y" | "%ctaid.z" => Special::Ctaid(axis()),
        "%nctaid.x" | "%nctaid.y" | "%nctaid.z" => Special::Nctaid(axis()),
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NumWarps,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NumSms,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
        _ => return Err(d.error(format!("register {name} is not declared, and no special register that is known"))),
    })
}

fn mov(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let (to, from) = (o.get(d, 0)?, o.get(d, 1)?);
    if ty == Ty::Pred {
        let Operand::Register(to) = to else { return Err(d.error("expected a predicate")) };
        let to = d.destination_predicate(to)?;
        let op = match from {
            Operand::Number(text) => {
                let truth = super::parser::integer(text).ok_or_else(|| d.error("expected a truth value"))? != 0;
                let zero = d.constant32(0)?;
                let compare = if truth { Compare::Eq } else { Compare::Ne };
                Op::SetP { compare, ty: CompareTy::U32, d: to, not_d: None, a: zero, b: zero, with: None }
            }
            from => Op::PredMov { d: to, a: d.source_predicate(from)? },
        };
        return Ok(any(op, Class::Integer));
    }
    let half = if ty.bytes() == 8 { Ty::B32 } else { Ty::B16 };
    let op = match (to, from) {
        (to, Operand::Vector(_)) => {
            let [low, high] = d.source_vector(from, 2, half)?[..2] else { unreachable!("a slice of two") };
            let (Some(AnyReg::R32(low)), Some(AnyReg::R32(high))) = (low, high) else {
                return Err(d.error("the halves must have at most 32 bits"));
            };
            match d.destination(to)? {
                AnyReg::R64(d) => Op::Pack64 { d, low, high },
                AnyReg::R32(d) => Op::Pack32 { d, low, high },
            }
        }
        (Operand::Vector(_), from) => {
            let vector = d.destination_vector(to, 2)?;
            let [low, high] = [0, 1].map(|i| vector[i].map(reg));
            match d.source(from, ty)? {
                AnyReg::R64(a) => Op::Unpack64 { low, high, a },
                AnyReg::R32(a) => Op::Unpack32 { low, high, a },
            }
        }
        (to, Operand::Register(name)) if d.place(name).is_err() => {
            Op::Special { d: d.destination(to)?, what: special(d, name)? }
        }
        (to, from) => match d.source(from, ty)? {
            AnyReg::R64(a) => Op::Mov64 { d: d.destination64(to)?, a },
            AnyReg::R32(a) => Op::Mov32 { d: d.destination32(to)?, a },
        },
    };
    Ok(any(op, Class::Integer))
}

fn setp(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let ftz = m.flag("ftz");
    let logic = match m.one_of(&["and", "or", "xor"]) {
        Some("and") => Some(Logic::And),
        Some("or") => Some(Logic::Or),
        Some(_) => Some(Logic::Xor),
        None => None,
    };
    let names = [
        "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi",
        "hs",
    ];
    let compare = match m.one_of(&names) {
        Some("eq") => Compare::Eq,
        Some("ne") => Compare::Ne,
        Some("lt" | "lo") => Compare::Lt,
        Some("le" | "ls") => Compare::Le,
        Some("gt" | "hi") => Compare::Gt,
        Some("ge" | "hs") => Compare::Ge,
        Some("equ") => Compare::Equ,
        Some("neu") => Compare::Neu,
        Some("ltu") => Compare::Ltu,
        Some("leu") => Compare::Leu,
        Some("gtu") => Compare::Gtu,
        Some("geu") => Compare::Geu,
        Some("num") => Compare::Num,
        Some("nan") => Compare::Nan,
        _ => return Err(d.error("the comparison is not known")),
    };
    let compare_ty = match ty {
        Ty::U16 | Ty::B16 => CompareTy::U16,
        Ty::S16 => CompareTy::S16,
        Ty::U32 | Ty::B32 => CompareTy::U32,
        Ty::S32 => CompareTy::S32,
        Ty::U64 | Ty::B64 => CompareTy::U64,
        Ty::S64 => CompareTy::S64,
        Ty::F32 => CompareTy::F32 { ftz },
        Ty::F64 => CompareTy::F64,
        _ => return Err(d.error(format!("setp of {ty:?} is not supported"))),
    };
    let (to, not_to) = match o.get(d, 0)? {
        Operand::Register(p) => (d.destination_predicate(p)?, None),
        Operand::Pair(p, q) if q == "_" => (d.destination_predicate(p)?, None),
        Operand::Pair(p, q) => (d.destination_predicate(p)?, Some(d.destination_predicate(q)?)),
        other => return Err(d.error(format!("{other:?} is not a predicate"))),
    };
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, typed_source(d, o.get(d, 2)?, ty)?);
    let with = match logic {
        Some(logic) => Some((logic, d.source_predicate(o.get(d, 3)?)?)),
        None => None,
    };
    let class = if ty.float() { Class::Float } else { Class::Integer };
    Ok(any(Op::SetP { compare, ty: compare_ty, d: to, not_d: not_to, a, b, with }, class))
}

fn selp(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, typed_source(d, o.get(d, 2)?, ty)?);
    let p = d.source_predicate(o.get(d, 3)?)?;
    let (a, b) = if p.negate { (b, a) } else { (a, b) };
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    let p = p.reg;
    let op = if ty.bytes() == 8 { Op::Select64 { d: to, a, b, p } } else { Op::Select32 { d: to, a, b, p } };
    Ok(any(op, Class::Integer))
}

fn cvt(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    if m.parts.iter().any(|p| matches!(*p, "e4m3x2" | "e5m2x2")) {
        return cvt_fp8(d, m, o);
    }
    for (pair, to) in [("bf16x2", Ty::Bf16), ("f16x2", Ty::F16)] {
        if m.flag(pair) {
            if !m.flag("f32") {
                return Err(d.error("the conversion is not supported"));
            }
            let relu = m.flag("relu");
            let mode = m.float_mode();
            let (a, b) = (d.source32(o.get(d, 1)?, Ty::F32)?, d.source32(o.get(d, 2)?, Ty::F32)?);
            let op = Op::PackFloats { to, mode, relu, d: d.destination32(o.get(d, 0)?)?, a, b };
            return Ok(any(op, Class::Float));
        }
    }
    let from = need_ty(d, m)?;
    let to = need_ty(d, m)?;
    let integral = match m.one_of(&["rni", "rzi", "rmi", "rpi"]) {
        Some("rni") => Some(Round::Nearest),
        Some("rzi") => Some(Round::Zero),
        Some("rmi") => Some(Round::Down),
        Some(_) => Some(Round::Up),
        None => None,
    };
    let mut mode = m.float_mode();
    if let Some(round) = integral {
        mode.round = round;
    }
    let a = match o.get(d, 1)? {
        // The source may be narrower than its register.
        Operand::Register(name) => match d.place(name)? {
            Place::R32(_) => d.source(o.get(d, 1)?, Ty::B32)?,
            _ => d.source(o.get(d, 1)?, Ty::B64)?,
        },
        other => d.source(other, from)?,
    };
    let to_reg = d.destination(o.get(d, 0)?)?;
    let class = if from.float() || to.float() { Class::Float } else { Class::Integer };
    Ok(any(Op::Convert { from, to, mode, to_integral: integral.is_some(), d: to_reg, a }, class))
}

fn cvt_fp8(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = if m.flag("e4m3x2") { MatrixTy::E4m3 } else { MatrixTy::E5m2 };
    m.flag("e5m2x2");
    if !m.flag("rn") {
        return Err(d.error("conversions of 8-bit floats need .rn"));
    }
    let to = d.destination32(o.get(d, 0)?)?;
    let op = if m.flag("satfinite") && m.flag("f32") {
        let (a, b) = (d.source32(o.get(d, 1)?, Ty::F32)?, d.source32(o.get(d, 2)?, Ty::F32)?);
        Op::PackFp8 { to: ty, d: to, a, b }
    } else if m.flag("f16x2") {
        Op::UnpackFp8 { from: ty, d: to, a: d.source32(o.get(d, 1)?, Ty::B16)? }
    } else {
        return Err(d.error("the conversion is not supported"));
    };
    Ok(any(op, Class::Float))
}

fn cvta(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let to_generic = !m.flag("to");
    let space = m.space();
    if need_ty(d, m)?.bytes() != 8 || matches!(space, Space::Generic) {
        return Err(d.error("cvta needs a space and 64 bits"));
    }
    let a = d.source64(o.get(d, 1)?, Ty::U64)?;
    Ok(any(Op::Window { to_generic, space, d: d.destination64(o.get(d, 0)?)?, a }, Class::Integer))
}

fn memory_class(space: Space) -> Class {
    match space {
        Space::Shared => Class::Shared,
        Space::Param => Class::Integer,
        _ => Class::Memory,
    }
}

/// Notes the width of shared accesses, which decides how finely races are seen.
fn note_granule(d: &mut Decoder<'_>, space: Space, ty: Ty) {
    if matches!(space, Space::Shared | Space::Generic) {
        d.granule = d.granule.min(ty.bytes());
    }
}

fn load(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let (space, count) = (m.space(), m.vector_count());
    let (access, order) = m.access(Access::Read);
    let _policy = m.flag("L2::cache_hint");
    m.cache_hints();
    let ty = need_ty(d, m)?;
    note_granule(d, space, ty);
    let address = d.address(o.get(d, 1)?, space)?;
    let to = d.destination_vector(o.get(d, 0)?, count)?;
    Ok(any(Op::Load { address, access, order, ty, count, d: to }, memory_class(space)))
}

fn store(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let (space, count) = (m.space(), m.vector_count());
    let (access, order) = m.access(Access::Write);
    let _policy = m.flag("L2::cache_hint");
    m.cache_hints();
    let ty = need_ty(d, m)?;
    note_granule(d, space, ty);
    let address = d.address(o.get(d, 0)?, space)?;
    // Narrow values may come from wider registers.
    let stored = if ty.bytes() < 4 { Ty::B32 } else { ty };
    let a = d.source_vector(o.get(d, 1)?, count, stored)?;
    Ok(any(Op::Store { address, access, order, ty, count, a }, memory_class(space)))
}

fn atomic(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let space = m.space();
    let (_, order) = m.access(Access::Atomic);
    let _policy = m.flag("L2::cache_hint");
    let ty = need_ty(d, m)?;
    let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
    let op = match (m.one_of(&names), ty) {
        (Some("add"), Ty::F32) => AtomicOp::AddF32,
        (Some("add"), Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) => AtomicOp::Add,
        (Some("min"), Ty::U32 | Ty::U64) => AtomicOp::MinU,
        (Some("min"), Ty::S32 | Ty::S64) => AtomicOp::MinS,
        (Some("max"), Ty::U32 | Ty::U64) => AtomicOp::MaxU,
        (Some("max"), Ty::S32 | Ty::S64) => AtomicOp::MaxS,
        (Some("and"), Ty::B32 | Ty::B64) => AtomicOp::And,
        (Some("or"), Ty::B32 | Ty::B64) => AtomicOp::Or,
        (Some("xor"), Ty::B32 | Ty::B64) => AtomicOp::Xor,
        (Some("exch"), Ty::B32 | Ty::B64 | Ty::U32 | Ty::U64) => AtomicOp::Exchange,
        (Some("cas"), Ty::B32 | Ty::B64 | Ty::U32 | Ty::U64) => AtomicOp::CompareExchange,
        (Some("inc"), Ty::U32) => AtomicOp::Increment,
        (Some("dec"), Ty::U32) => AtomicOp::Decrement,
        (op, ty) => return Err(d.error(format!("atomic {op:?} of {ty:?} is not supported"))),
    };
    if !matches!(space, Space::Global | Space::Shared | Space::Generic) {
        return Err(d.error("atomics need global, shared or generic memory"));
    }
    let first = usize::from(name == "atom");
    let to = if name == "atom" { d.maybe_destination(o.get(d, 0)?)? } else { None };
    let address = d.address(o.get(d, first)?, space)?;
    let b = d.source(o.get(d, first + 1)?, ty)?;
    let c = match op {
        AtomicOp::CompareExchange => Some(d.source(o.get(d, first + 2)?, ty)?),
        _ => None,
    };
    Ok(any(Op::Atomic { address, order, op, bytes: ty.bytes(), d: to, b, c }, Class::Atomic))
}

fn copy(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    if !m.flag("async") {
        return Err(d.error("the copy is not supported"));
    }
    if m.flag("commit_group") {
        return Ok(any(Op::CommitCopies, Class::Sync));
    }
    if m.flag("wait_all") {
        return Ok(any(Op::WaitCopies { pending: None }, Class::Sync));
    }
    if m.flag("wait_group") {
        return Ok(any(Op::WaitCopies { pending: Some(d.immediate(o.get(d, 0)?)?) }, Class::Sync));
    }
    let whole_line = m.flag("cg");
    let hinted = m.flag("L2::cache_hint");
    m.cache_hints();
    if !(m.flag("shared") || m.flag("shared::cta")) || !m.flag("global") {
        return Err(d.error("the copy is not supported"));
    }
    let bytes = d.immediate(o.get(d, 2)?)?;
    if !(matches!(bytes, 4 | 8) && !whole_line || bytes == 16) {
        return Err(d.error(format!("a copy of {bytes} bytes is not allowed")));
    }
    let to = d.address(o.get(d, 0)?, Space::Shared)?;
    let from = d.address(o.get(d, 1)?, Space::Global)?;
    // Operands after the size: bytes to read, then the policy of a cache hint.
    let used = if o.len() > 3 + usize::from(hinted) { Some(d.source32(o.get(d, 3)?, Ty::U32)?) } else { None };
    Ok(any(Op::CopyAsync { to, from, bytes, used }, Class::Memory))
}

fn matrix_access(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let aligned = m.flag("sync") && m.flag("aligned");
    let count = match m.one_of(&["x1", "x2", "x4"]) {
        Some("x1") => 1,
        Some("x2") => 2,
        Some("x4") => 4,
        _ => return Err(d.error("expected .x1, .x2 or .x4")),
    };
    let transpose = m.flag("trans");
    if !aligned || !m.flag("m8n8") || m.space() != Space::Shared || !m.flag("b16") {
        return Err(d.error(format!("{name} of this form is not supported")));
    }
    let op = if name == "ldmatrix" {
        let address = d.address(o.get(d, 1)?, Space::Shared)?;
        Op::MatrixLoad { address, count, transpose, d: d.destinations32(o.get(d, 0)?, count)? }
    } else {
        let address = d.address(o.get(d, 0)?, Space::Shared)?;
        Op::MatrixStore { address, count, transpose, a: d.sources32(o.get(d, 1)?, count)? }
    };
    Ok((op, Class::Shared, Together::All))
}

fn mma(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let form = m.flag("sync") && m.flag("aligned") && m.flag("row") && m.flag("col");
    let [shape, "f32", a_name, b_name, "f32"] = m.parts[..] else {
        return Err(d.error("mma of this form is not supported"));
    };
    let element = |name: &str| match name {
        "bf16" => Some(MatrixTy::Bf16),
        "f16" => Some(MatrixTy::F16),
        "e4m3" => Some(MatrixTy::E4m3),
        "e5m2" => Some(MatrixTy::E5m2),
        _ => None,
    };
    // Elements summed, and registers of A and of B.
    let (Some(a_ty), Some(b_ty), true) = (element(a_name), element(b_name), form) else {
        return Err(d.error(format!("mma of {a_name} and {b_name} is not supported")));
    };
    let bytes = |ty| if matches!(ty, MatrixTy::E4m3 | MatrixTy::E5m2) { 1 } else { 2 };
    let (k, a_count, b_count) = match (shape, bytes(a_ty), bytes(b_ty)) {
        ("m16n8k16", 2, 2) if a_ty == b_ty => (16, 4, 2),
        ("m16n8k8", 2, 2) if a_ty == b_ty => (8, 2, 1),
        ("m16n8k32", 1, 1) => (32, 4, 2),
        ("m16n8k16", 1, 1) => (16, 2, 1),
        _ => return Err(d.error(format!("mma {shape} of {a_name} and {b_name} is not supported"))),
    };
    m.parts.clear();
    let mma = Mma {
        a_ty,
        b_ty,
        k,
        d: d.destinations32(o.get(d, 0)?, 4)?,
        a: d.sources32(o.get(d, 1)?, a_count)?,
        b: d.sources32(o.get(d, 2)?, b_count)?,
        c: d.sources32(o.get(d, 3)?, 4)?,
    };
    Ok((Op::Mma(Box::new(mma)), Class::Matrix, Together::All))
}

fn lanes(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    if name == "activemask" {
        m.flag("b32");
        return Ok(any(Op::ActiveMask { d: d.destination32(o.get(d, 0)?)? }, Class::Lane));
    }
    if !m.flag("sync") {
        return Err(d.error(format!("{name} without .sync is not supported")));
    }
    let last = o.len().checked_sub(1).ok_or_else(|| d.error("operands are missing"))?;
    let members = d.source32(o.get(d, last)?, Ty::B32)?;
    let op = match name {
        "shfl" => {
            let mode = match m.one_of(&["up", "down", "bfly", "idx"]) {
                Some("up") => ShuffleMode::Up,
                Some("down") => ShuffleMode::Down,
                Some("bfly") => ShuffleMode::Butterfly,
                Some("idx") => ShuffleMode::Index,
                _ => return Err(d.error("expected .up, .down, .bfly or .idx")),
            };
            m.flag("b32");
            let (to, in_range) = match o.get(d, 0)? {
                Operand::Pair(to, p) => {
                    let to = Operand::Register(to.clone());
                    (d.destination32(&to)?, Some(d.destination_predicate(p)?))
                }
                to => (d.destination32(to)?, None),
            };
            let [a, b, c] = [1, 2, 3].map(|i| o.get(d, i).and_then(|x| d.source32(x, Ty::B32)));
            Op::Shuffle { mode, d: to, in_range, a: a?, b: b?, c: c? }
        }
        "vote" => {
            let a = d.source_predicate(o.get(d, 1)?)?;
            let ballot = m.flag("ballot");
            let mode = match m.one_of(&["all", "any", "uni"]) {
                _ if ballot => VoteMode::Ballot(d.destination32(o.get(d, 0)?)?),
                Some("all") => VoteMode::All,
                Some("any") => VoteMode::Any,
                _ => VoteMode::Uniform,
            };
            m.flag(if ballot { "b32" } else { "pred" });
            let to = match (o.get(d, 0)?, ballot) {
                (Operand::Register(to), false) => d.destination_predicate(to)?,
                _ => 0,
            };
            Op::Vote { mode, d: to, a }
        }
        "redux" => {
            let ty = need_ty(d, m)?;
            let op = match (m.one_of(&["add", "min", "max", "and", "or", "xor"]), ty.signed()) {
                (Some("add"), _) => IntOp::Add,
                (Some("min"), false) => IntOp::MinU,
                (Some("min"), true) => IntOp::MinS,
                (Some("max"), false) => IntOp::MaxU,
                (Some("max"), true) => IntOp::MaxS,
                (Some("and"), _) => IntOp::And,
                (Some("or"), _) => IntOp::Or,
                (Some("xor"), _) => IntOp::Xor,
                _ => return Err(d.error("the reduction is not supported")),
            };
            Op::Reduce { op, d: d.destination32(o.get(d, 0)?)?, a: d.source32(o.get(d, 1)?, Ty::B32)? }
        }
        _ => {
            let Operand::Pair(to, leader) = o.get(d, 0)? else { return Err(d.error("expected register|predicate")) };
            let leader = d.destination_predicate(leader)?;
            let to = match d.maybe_destination(&Operand::Register(to.clone()))? {
                Some(AnyReg::R32(to)) => Some(to),
                None => None,
                Some(AnyReg::R64(_)) => return Err(d.error("the leader's lane must have 32 bits")),
            };
            Op::Elect { d: to, leader }
        }
    };
    Ok((op, Class::Lane, Together::Members(members)))
}

fn sync(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    if matches!(name, "fence" | "membar") {
        let inside = m.parts.contains(&"cta");
        let (access, mut order) = m.access(Access::Read);
        // A fence without a kind, and membar, is both.
        if access == Access::Read && !inside {
            order = Order { acquire: true, release: true };
        }
        return Ok(any(Op::Fence { order }, Class::Sync));
    }
    let _aligned = m.flag("aligned");
    let warp = m.flag("warp");
    let _block = m.flag("cta");
    if !m.flag("sync") {
        return Err(d.error(format!("{name} without .sync is not supported")));
    }
    if warp {
        let members = d.source32(o.get(d, 0)?, Ty::B32)?;
        return Ok((Op::BarrierWarp, Class::Sync, Together::Members(members)));
    }
    let id = d.source32(o.get(d, 0)?, Ty::U32)?;
    let threads = if o.len() > 1 { Some(d.source32(o.get(d, 1)?, Ty::U32)?) } else { None };
    Ok((Op::BarrierBlock { id, threads }, Class::Sync, Together::All))
}
