//! Copies of whole pieces: cp.async.bulk.

use super::{Decoded, Modifiers, Operands, any};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;

/// After `cp.async.bulk`.
pub(super) fn copy(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    d.uses_units();
    if m.flag("commit_group") {
        return Ok(any(Op::CommitBulk, Class::Sync));
    }
    if m.flag("wait_group") {
        // What was read is free again no sooner than all is done.
        m.flag("read");
        return Ok(any(Op::WaitBulk { pending: d.immediate(o.get(d, 0)?)? }, Class::Sync));
    }
    if m.flag("prefetch") {
        m.parts.clear();
        return Ok(any(Op::Nothing, Class::Memory));
    }
    let tensor = m.flag("tensor");
    let rank = match m.one_of(&["1d", "2d", "3d", "4d", "5d"]) {
        Some(rank) if tensor => usize::from(rank.as_bytes()[0] - b'0'),
        None if !tensor => 0,
        _ => return Err(d.error("the copy is not supported")),
    };
    m.flag("tile");
    let _policy = m.flag("L2::cache_hint");
    m.cache_hints();
    let [to, from] = [0, 1].map(|i| m.parts.get(i).copied().unwrap_or_default());
    m.parts.drain(..m.parts.len().min(2));
    let loads = match (to, from) {
        ("shared::cluster" | "shared::cta", "global") if m.flag("mbarrier::complete_tx::bytes") => true,
        ("global", "shared::cta") if m.flag("bulk_group") => false,
        _ => return Err(d.error(format!("a copy from {from} to {to} is not supported"))),
    };
    let (shared, global) = if loads { (0, 1) } else { (1, 0) };
    let shared = d.address(o.get(d, shared)?, Space::Shared)?;
    let global = o.get(d, global)?;
    let global = match global {
        Operand::Tensor(map, coordinates) if rank > 0 => {
            if coordinates.len() != rank {
                return Err(d.error(format!("expected {rank} coordinates, found {}", coordinates.len())));
            }
            let map = d.address(&Operand::Address(map.clone(), 0), Space::Generic)?;
            let mut registers = [0; 5];
            for (register, coordinate) in registers.iter_mut().zip(coordinates) {
                *register = d.source32(coordinate, Ty::S32)?;
            }
            BulkEnd::Tensor { map, coordinates: registers, rank }
        }
        address if rank == 0 => {
            let address = d.address(address, Space::Global)?;
            BulkEnd::Plain { address, bytes: d.source32(o.get(d, 2)?, Ty::U32)? }
        }
        _ => return Err(d.error("expected a tensor map with coordinates")),
    };
    let last = if rank > 0 { 2 } else { 3 };
    let barrier = if loads { Some(d.address(o.get(d, last)?, Space::Shared)?) } else { None };
    Ok(any(Op::Bulk(Box::new(Bulk { shared, global, barrier })), Class::Memory))
}
