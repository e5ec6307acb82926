//! Memory accesses.

use super::{Decoded, Modifiers, Operands, any, need_ty};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::ops::*;
use crate::races::Access;

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

pub(super) fn load(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
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

pub(super) fn store(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
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

pub(super) fn atomic(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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

pub(super) fn copy(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    if !m.flag("async") {
        return Err(d.error("the copy is not supported"));
    }
    if m.flag("bulk") {
        return super::bulk::copy(d, m, o);
    }
    if m.flag("commit_group") {
        return Ok(any(Op::CommitCopies, Class::Sync));
    }
    if m.flag("mbarrier") {
        return super::sync::mbarrier(d, m, o, true);
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

pub(super) fn matrix_access(
    d: &mut Decoder<'_>,
    name: &str,
    m: &mut Modifiers<'_>,
    o: &Operands<'_>,
) -> Result<Decoded, Error> {
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
