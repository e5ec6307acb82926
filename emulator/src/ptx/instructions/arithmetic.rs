//! Arithmetic, comparisons, selections.

use super::{Decoded, Modifiers, Operands, any, need_ty, typed_destination, typed_source, width};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;

/// add, sub, mul, fma of two f32 in a 64-bit register.
fn packed_floats(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let mode = m.float_mode();
    let (a, b) = (d.source64(o.get(d, 1)?, Ty::B64)?, d.source64(o.get(d, 2)?, Ty::B64)?);
    let to = d.destination64(o.get(d, 0)?)?;
    let op = match name {
        "add" => FloatOp::Add,
        "sub" => FloatOp::Sub,
        "mul" => FloatOp::Mul,
        "fma" => {
            let c = d.source64(o.get(d, 3)?, Ty::B64)?;
            return Ok(any(Op::Fma32x2 { mode, d: to, a, b, c }, Class::Float));
        }
        _ => return Err(d.error(format!("{name} of f32x2 is not supported"))),
    };
    Ok(any(Op::F32x2 { op, mode, d: to, a, b }, Class::Float))
}

pub(super) fn binary(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
    if m.flag("f32x2") {
        return packed_floats(d, name, m, o);
    }
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
    if o.len() > 3 {
        let of_three = matches!(op, FloatOp::Min | FloatOp::Max | FloatOp::MinNan | FloatOp::MaxNan);
        if !of_three || ty != Ty::F32 || o.len() > 4 {
            return Err(d.error(format!("{name} of {ty:?} with {} operands is not supported", o.len())));
        }
        d.need_target(&["sm_100", "sm_100a", "sm_100f"])?;
        let c = typed_source(d, o.get(d, 3)?, ty)?;
        return Ok(any(Op::F32Three { op, mode, d: to, a, b, c }, Class::Float));
    }
    match ty {
        Ty::F32 if op != FloatOp::Div || mode.round == Round::Nearest => {
            Ok(any(Op::F32 { op, mode, d: to, a, b }, Class::Float))
        }
        Ty::F64 if mode.round == Round::Nearest => Ok(any(Op::F64 { op, d: to, a, b }, Class::Float)),
        _ => Err(d.error(format!("{name} of {ty:?} with this rounding is not supported"))),
    }
}

pub(super) fn mad(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    if m.flag("f32x2") {
        return packed_floats(d, name, m, o);
    }
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

pub(super) fn shift(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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

pub(super) fn unary(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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

pub(super) fn function(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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

pub(super) fn count(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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

pub(super) fn bits(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
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

pub(super) fn setp(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
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

pub(super) fn selp(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let (a, b) = (typed_source(d, o.get(d, 1)?, ty)?, typed_source(d, o.get(d, 2)?, ty)?);
    let p = d.source_predicate(o.get(d, 3)?)?;
    let (a, b) = if p.negate { (b, a) } else { (a, b) };
    let to = typed_destination(d, o.get(d, 0)?, ty)?;
    let p = p.reg;
    let op = if ty.bytes() == 8 { Op::Select64 { d: to, a, b, p } } else { Op::Select32 { d: to, a, b, p } };
    Ok(any(op, Class::Integer))
}
