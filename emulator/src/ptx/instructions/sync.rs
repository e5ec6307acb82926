//! Fences and barriers.

use super::{Decoded, Modifiers, Operands, any};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;
use crate::races::Access;

pub(super) fn fence(d: &mut Decoder<'_>, m: &mut Modifiers<'_>) -> Result<Decoded, Error> {
    if m.flag("proxy") {
        // A tensor map is read as it is in memory when a copy begins.
        if m.flag("tensormap::generic") {
            m.access(Access::Read);
            return Ok(any(Op::Nothing, Class::Sync));
        }
        if !m.flag("async") {
            return Err(d.error("the proxy is not supported"));
        }
        let global = m.flag("global");
        m.one_of(&["shared::cta", "shared::cluster"]);
        return Ok(any(if global { Op::Nothing } else { Op::FenceProxy }, Class::Sync));
    }
    if m.flag("mbarrier_init") {
        m.access(Access::Read);
        return Ok(any(Op::Nothing, Class::Sync));
    }
    let inside = m.parts.contains(&"cta");
    let (access, mut order) = m.access(Access::Read);
    // A fence without a kind, and membar, is both.
    if access == Access::Read && !inside {
        order = Order { acquire: true, release: true };
    }
    Ok(any(Op::Fence { order }, Class::Sync))
}

/// bar and barrier.
pub(super) fn barrier(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
    let _aligned = m.flag("aligned");
    let warp = m.flag("warp");
    let _block = m.flag("cta");
    if m.flag("arrive") && !warp {
        let [id, threads] = [0, 1].map(|i| o.get(d, i).and_then(|x| d.source32(x, Ty::U32)));
        return Ok((Op::BarrierArrive { id: id?, threads: threads? }, Class::Sync, Together::All));
    }
    let reduces = m.flag("red");
    if !m.flag("sync") && !reduces {
        return Err(d.error(format!("{name} without .sync is not supported")));
    }
    if warp {
        let members = d.source32(o.get(d, 0)?, Ty::B32)?;
        return Ok((Op::BarrierWarp, Class::Sync, Together::Members(members)));
    }
    let first = usize::from(reduces);
    let reduction = if reduces { Some(reduction(d, m, o)?) } else { None };
    let id = d.source32(o.get(d, first)?, Ty::U32)?;
    let count = o.len() > 1 + 2 * first;
    let threads = if count { Some(d.source32(o.get(d, first + 1)?, Ty::U32)?) } else { None };
    Ok((Op::BarrierBlock { id, threads, reduction }, Class::Sync, Together::All))
}

fn reduction(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Reduction, Error> {
    let a = d.source_predicate(o.get(d, o.len() - 1)?)?;
    let what = match (m.one_of(&["and", "or", "popc"]), o.get(d, 0)?) {
        (Some("popc"), to) if m.flag("u32") => ReductionOp::Count(d.destination32(to)?),
        (Some("and"), Operand::Register(to)) if m.flag("pred") => ReductionOp::And(d.destination_predicate(to)?),
        (Some("or"), Operand::Register(to)) if m.flag("pred") => ReductionOp::Or(d.destination_predicate(to)?),
        _ => return Err(d.error("expected .and.pred, .or.pred or .popc.u32")),
    };
    Ok(Reduction { what, a })
}

/// mbarrier, and the arrival of cp.async at one (`copies`).
pub(super) fn mbarrier(
    d: &mut Decoder<'_>,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
    copies: bool,
) -> Result<Decoded, Error> {
    const KINDS: [&str; 6] = ["init", "inval", "arrive", "expect_tx", "test_wait", "try_wait"];
    d.uses_units();
    let kind = m.one_of(&KINDS);
    let space = m.space();
    let space = if m.flag("shared::cluster") { Space::Shared } else { space };
    let relaxed = m.parts.contains(&"relaxed");
    m.access(Access::Atomic);
    m.flag("b64");
    // The address comes first, or behind what is written.
    let written = matches!(kind, Some("arrive" | "test_wait" | "try_wait")) && !copies;
    let address = d.address(o.get(d, usize::from(written))?, space)?;
    let op = match kind {
        Some("arrive") if copies => BarrierOp::ArriveCopies { counted: m.flag("noinc") },
        Some("init") => BarrierOp::Init { count: d.source32(o.get(d, 1)?, Ty::U32)? },
        Some("inval") => BarrierOp::Invalidate,
        Some("arrive") => {
            let token = match d.maybe_destination(o.get(d, 0)?)? {
                Some(AnyReg::R64(token)) => Some(token),
                Some(AnyReg::R32(_)) => return Err(d.error("the token must have 64 bits")),
                None => None,
            };
            let number = if o.len() > 2 { Some(d.source32(o.get(d, 2)?, Ty::U32)?) } else { None };
            let one = d.constant32(1)?;
            if m.flag("expect_tx") {
                let expect = Some(number.ok_or_else(|| d.error("the bytes to expect are missing"))?);
                BarrierOp::Arrive { d: token, count: one, expect, release: !relaxed }
            } else {
                BarrierOp::Arrive { d: token, count: number.unwrap_or(one), expect: None, release: !relaxed }
            }
        }
        Some("expect_tx") => BarrierOp::Expect { bytes: d.source32(o.get(d, 1)?, Ty::U32)? },
        Some(test) => {
            let Operand::Register(to) = o.get(d, 0)? else { return Err(d.error("expected a predicate")) };
            let to = d.destination_predicate(to)?;
            let phase = if m.flag("parity") {
                PhaseSource::Parity(d.source32(o.get(d, 2)?, Ty::U32)?)
            } else {
                PhaseSource::Token(d.source64(o.get(d, 2)?, Ty::B64)?)
            };
            BarrierOp::Test { d: to, phase, waits: test == "try_wait", acquire: !relaxed }
        }
        None => return Err(d.error("the operation on an mbarrier is not supported")),
    };
    Ok(any(Op::Barrier { address, op }, Class::Sync))
}
