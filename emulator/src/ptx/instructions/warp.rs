//! What the lanes of a warp do together: products, exchanges, barriers.

use super::{Decoded, Modifiers, Operands, any, need_ty};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;

pub(super) fn mma(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    let form = m.flag("sync") && m.flag("aligned") && m.flag("row") && m.flag("col");
    let [shape, "f32", a_name, b_name, "f32"] = m.parts[..] else {
        return Err(d.error("mma of this form is not supported"));
    };
    // Elements summed, and registers of A and of B.
    let (Some(a_ty), Some(b_ty), true) = (MatrixTy::parse(a_name), MatrixTy::parse(b_name), form) else {
        return Err(d.error(format!("mma of {a_name} and {b_name} is not supported")));
    };
    let (k, a_count, b_count) = match (shape, a_ty.bytes(), b_ty.bytes()) {
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

pub(super) fn lanes(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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
