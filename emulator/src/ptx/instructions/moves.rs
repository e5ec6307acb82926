//! Moves and conversions.

use super::{Decoded, Modifiers, Operands, any, need_ty, reg};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::{Decoder, Place};
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;

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

pub(super) fn mov(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let ty = need_ty(d, m)?;
    let (to, from) = (o.get(d, 0)?, o.get(d, 1)?);
    if ty == Ty::Pred {
        let Operand::Register(to) = to else { return Err(d.error("expected a predicate")) };
        let to = d.destination_predicate(to)?;
        let op = match from {
            Operand::Number(text) => {
                let truth = crate::ptx::parser::integer(text).ok_or_else(|| d.error("expected a truth value"))? != 0;
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

pub(super) fn cvt(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
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

pub(super) fn cvta(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let to_generic = !m.flag("to");
    let space = m.space();
    if need_ty(d, m)?.bytes() != 8 || matches!(space, Space::Generic) {
        return Err(d.error("cvta needs a space and 64 bits"));
    }
    let a = d.source64(o.get(d, 1)?, Ty::U64)?;
    Ok(any(Op::Window { to_generic, space, d: d.destination64(o.get(d, 0)?)?, a }, Class::Integer))
}
