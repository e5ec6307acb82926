//! Copies of whole pieces and boxes between global and shared memory (cp.async.bulk, with or without a tensor map).
//!
//! A copy to shared memory signals an mbarrier; one to global memory belongs to a group of its thread. What is copied
//! moves when somebody waits for it. From the start on, nobody may touch where it goes, nor overwrite where it comes
//! from.

use super::access::{addresses, resolve, shared_address};
use super::mbarrier;
use super::ops::{Address, Bulk, BulkEnd, Reg, Space};
use super::units::{Key, Units, trap};
use super::warp::{Context, lanes_of};
use crate::FaultKind;
use crate::engine::{Block, Left};
use crate::fault::Trap;
use crate::memory::Data;
use crate::races::{Access, Site};
use crate::shared::{Agent, CHUNK};
use crate::tensor_map::{ALIGN, BYTES, RANK, TensorMap};

/// 16 bytes of a copy.
#[derive(Clone, Copy)]
struct Piece {
    shared: u32,
    /// Address of the first byte that is inside the tensor.
    global: u64,
    /// Bytes inside the tensor, and before them in the piece. The others are read as zeros, and not written.
    inside: u32,
    before: u32,
}

/// A copy in flight.
pub(super) struct Copy {
    pub(super) site: Site,
    pieces: Vec<Piece>,
    pub(super) end: End,
}

/// Whom a copy tells that it is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// An mbarrier; the agent that does the copy.
    Barrier { address: u32, agent: u32 },
    /// The thread's group of this number, once it is committed.
    Group(u32),
}

/// A rule that is broken.
fn illegal(what: String) -> FaultKind {
    FaultKind::Illegal { what }
}

/// Begins a copy for each executing lane.
pub(super) fn start(cx: &mut Context<'_, '_>, op: &Bulk) -> Result<(), Trap> {
    let shared = addresses(cx, op.shared)?;
    let global = addresses(cx, op.global.address())?;
    let barrier = match op.barrier {
        Some(address) => Some((address.space, addresses(cx, address)?)),
        None => None,
    };
    for lane in lanes_of(cx.mask) {
        let to = (resolve(op.shared.space, shared[lane]), global[lane]);
        let barrier = barrier.as_ref().map(|(space, addresses)| (*space, addresses[lane]));
        start_lane(cx, lane, op, to, barrier).map_err(|kind| cx.trap(kind, lane, Some(shared[lane])))?;
    }
    cx.block.made_progress();
    Ok(())
}

fn start_lane(
    cx: &mut Context<'_, '_>,
    lane: usize,
    op: &Bulk,
    (shared, global): ((Space, u64), u64),
    barrier: Option<(Space, u64)>,
) -> Result<(), FaultKind> {
    let (Space::Shared, shared) = shared else {
        return Err(illegal("a copy whose shared side is not in shared memory".into()));
    };
    let shared = shared_address(shared);
    let pieces = match op.global {
        BulkEnd::Plain { bytes, .. } => plain(cx, lane, shared, global, bytes)?,
        BulkEnd::Tensor { coordinates, rank, .. } => boxed(cx, lane, shared, global, &coordinates[..rank])?,
    };
    let thread = cx.thread(lane);
    let end = match barrier {
        Some((space, address)) => {
            let address = mbarrier::place(cx, space, address)?;
            cx.block.shared.use_barrier(thread, address)?;
            cx.units.need_barrier(address)?;
            let agent = cx.units.agent(Key::Barrier(address));
            for piece in &pieces {
                cx.block.shared.begin_write(Agent { agent: Some(agent), cause: thread }, piece.shared)?;
            }
            End::Barrier { address, agent }
        }
        None => {
            for piece in &pieces {
                cx.block.shared.begin_read(Agent { agent: None, cause: thread }, piece.shared)?;
            }
            End::Group(cx.units.open_group(thread))
        }
    };
    cx.units.copies.push(Copy { site: cx.site(lane), pieces, end });
    Ok(())
}

/// The pieces of a copy of consecutive bytes.
fn plain(cx: &Context<'_, '_>, lane: usize, shared: u32, global: u64, bytes: Reg) -> Result<Vec<Piece>, FaultKind> {
    let bytes: u32 = cx.value(lane, bytes, "a copy")?;
    if !bytes.is_multiple_of(CHUNK) {
        return Err(illegal(format!("a copy of {bytes} bytes; it must be a multiple of 16")));
    }
    if !global.is_multiple_of(CHUNK.into()) || !shared.is_multiple_of(CHUNK) {
        return Err(FaultKind::Misaligned { align: CHUNK });
    }
    let piece = |at| Piece { shared: shared + at, global: global + u64::from(at), inside: CHUNK, before: 0 };
    Ok((0..bytes).step_by(CHUNK as usize).map(piece).collect())
}

/// The tensor map at an address.
fn tensor_map(cx: &mut Context<'_, '_>, lane: usize, address: u64) -> Result<TensorMap, FaultKind> {
    if !address.is_multiple_of(ALIGN) {
        return Err(FaultKind::Misaligned { align: ALIGN as u32 });
    }
    let (Space::Global, address) = resolve(Space::Generic, address) else {
        return Err(illegal("a tensor map that is not in global memory".into()));
    };
    let mut bytes = [0; BYTES];
    for (at, bytes) in bytes.chunks_mut(CHUNK as usize).enumerate() {
        let at = address + at as u64 * u64::from(CHUNK);
        let data = cx.block.global_read(cx.site(lane), Access::Read, at, CHUNK, CHUNK)?;
        if data.undefined != 0 {
            return Err(FaultKind::Undefined { sink: "a tensor map" });
        }
        bytes.copy_from_slice(data.words.map(u32::to_le_bytes).as_flattened());
    }
    TensorMap::decode(&bytes).ok_or_else(|| illegal("there is no tensor map at the address".into()))
}

/// The pieces of the box at these coordinates.
fn boxed(
    cx: &mut Context<'_, '_>,
    lane: usize,
    shared: u32,
    map: u64,
    coordinates: &[Reg],
) -> Result<Vec<Piece>, FaultKind> {
    let map = tensor_map(cx, lane, map)?;
    if map.dims.len() != coordinates.len() {
        let what = format!("{} coordinates for a tensor of {} dimensions", coordinates.len(), map.dims.len());
        return Err(illegal(what));
    }
    if !shared.is_multiple_of(128) {
        return Err(FaultKind::Misaligned { align: 128 });
    }
    let mut start = [0; RANK];
    for (start, &reg) in start.iter_mut().zip(coordinates) {
        *start = i64::from(cx.value::<u32>(lane, reg, "a copy")? as i32);
    }
    Ok(pieces_of(&map, &start, shared))
}

/// The pieces of a box that starts at coordinates.
fn pieces_of(map: &TensorMap, start: &[i64; RANK], shared: u32) -> Vec<Piece> {
    let rank = map.dims.len();
    let element = i64::from(map.element_bytes);
    // Bytes of a row that lie in the tensor, counted from its coordinate 0.
    let (first, length) = (start[0] * element, map.dims[0] as i64 * element);
    let row_bytes = map.box_dims[0] * map.element_bytes;
    let rows: u32 = map.box_dims[1..].iter().product();
    let mut pieces = Vec::with_capacity((rows * row_bytes / CHUNK) as usize);
    for row in 0..rows {
        let (mut rest, mut offset, mut inside) = (row, 0i64, true);
        for d in 1..rank {
            let at = start[d] + i64::from(rest % map.box_dims[d]);
            rest /= map.box_dims[d];
            inside &= (0..map.dims[d] as i64).contains(&at);
            offset += at * map.strides[d - 1] as i64;
        }
        for column in (0..row_bytes).step_by(CHUNK as usize) {
            let at = first + i64::from(column);
            let (low, high) = (at.clamp(0, length), (at + i64::from(CHUNK)).clamp(0, length));
            let bytes = if inside { (high - low) as u32 } else { 0 };
            pieces.push(Piece {
                shared: map.swizzle.apply(shared + row * row_bytes + column),
                global: map.address.wrapping_add((offset + low) as u64),
                inside: bytes,
                before: if bytes == 0 { 0 } else { (low - at) as u32 },
            });
        }
    }
    pieces
}

/// 32-byte sectors of global memory that pieces touch, each once a run of neighbours.
fn sectors(pieces: &[Piece]) -> u64 {
    let mut last = u64::MAX;
    let mut count = 0;
    for piece in pieces.iter().filter(|piece| piece.inside > 0) {
        for sector in piece.global / 32..(piece.global + u64::from(piece.inside)).div_ceil(32) {
            count += u64::from(sector != last);
            last = sector;
        }
    }
    count
}

impl Copy {
    /// Moves the data, and tells whom it concerns.
    pub(super) fn finish(self, units: &mut Units, block: &mut Block<'_>) -> Result<(), Trap> {
        let Self { site, pieces, end } = self;
        let inside: u64 = pieces.iter().map(|piece| u64::from(piece.inside)).sum();
        let all = pieces.len() as u32 * CHUNK;
        match end {
            End::Barrier { address, agent } => {
                block.counters.global_load_bytes += inside;
                block.counters.global_load_sectors += sectors(&pieces);
                block.counters.shared_store_bytes += u64::from(all);
                for piece in &pieces {
                    let data = read(block, site, piece).map_err(|kind| at_global(site, kind, piece))?;
                    block.shared.land(piece.shared, data);
                }
                let mut left = Left::default();
                block.shared.release_agent(agent, &mut left.threads);
                units.signal(address, &left, all, 0).map_err(|kind| trap(site, kind))
            }
            End::Group(_) => {
                block.counters.global_store_bytes += inside;
                block.counters.global_store_sectors += sectors(&pieces);
                block.counters.shared_load_bytes += u64::from(all);
                for piece in &pieces {
                    block.shared.end_read(piece.shared);
                    block.shared.has_read(site.thread, piece.shared, false);
                    write(block, site, piece).map_err(|kind| at_global(site, kind, piece))?;
                }
                Ok(())
            }
        }
    }
}

fn at_global(site: Site, kind: FaultKind, piece: &Piece) -> Trap {
    Trap { address: Some(piece.global), ..trap(site, kind) }
}

/// A piece's data from global memory, zeros where it is outside.
fn read(block: &mut Block<'_>, site: Site, piece: &Piece) -> Result<Data, FaultKind> {
    if piece.inside == CHUNK && piece.global.is_multiple_of(4) {
        return block.global_read(site, Access::Read, piece.global, CHUNK, 4);
    }
    let mut data = Data::default();
    for i in 0..piece.inside {
        let byte = block.global_read(site, Access::Read, piece.global + u64::from(i), 1, 1)?;
        let to = (piece.before + i) as usize;
        data.words[to / 4] |= byte.words[0] << (to % 4 * 8);
        data.undefined |= byte.undefined << (to / 4);
    }
    Ok(data)
}

/// Writes a piece to global memory, where it is inside.
fn write(block: &mut Block<'_>, site: Site, piece: &Piece) -> Result<(), FaultKind> {
    let data = block.shared.peek(piece.shared);
    if piece.inside == CHUNK && piece.global.is_multiple_of(4) {
        return block.global_write(site, Access::Write, piece.global, CHUNK, 4, data);
    }
    for i in 0..piece.inside {
        let from = (piece.before + i) as usize;
        let words = [data.words[from / 4] >> (from % 4 * 8) & 0xff, 0, 0, 0];
        let byte = Data { words, undefined: data.undefined >> (from / 4) & 1 };
        block.global_write(site, Access::Write, piece.global + u64::from(i), 1, 1, byte)?;
    }
    Ok(())
}

/// cp.async.bulk.commit_group.
pub(super) fn commit(cx: &mut Context<'_, '_>) {
    for lane in lanes_of(cx.mask) {
        cx.units.commit_group(cx.thread(lane));
    }
}

/// cp.async.bulk.wait_group: all groups of the thread but the last `pending` are done.
pub(super) fn wait(cx: &mut Context<'_, '_>, pending: u32) -> Result<(), Trap> {
    for lane in lanes_of(cx.mask) {
        cx.units.finish_groups(cx.thread(lane), pending, cx.block)?;
    }
    cx.block.made_progress();
    Ok(())
}

impl BulkEnd {
    fn address(&self) -> Address {
        match self {
            Self::Plain { address, .. } | Self::Tensor { map: address, .. } => *address,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Swizzle;

    #[test]
    fn a_box_at_the_edges() {
        let map = TensorMap {
            address: 0x1000,
            element_bytes: 2,
            dims: vec![20, 3],
            strides: vec![64],
            box_dims: vec![16, 2],
            swizzle: Swizzle::None,
        };
        let of = |x: i64, y: i64| {
            let pieces = pieces_of(&map, &[x, y, 0, 0, 0], 0x400);
            pieces.iter().map(|p| (p.shared, p.global, p.before, p.inside)).collect::<Vec<_>>()
        };
        assert_eq!(
            of(0, 1),
            [(0x400, 0x1040, 0, 16), (0x410, 0x1050, 0, 16), (0x420, 0x1080, 0, 16), (0x430, 0x1090, 0, 16)]
        );
        // Eight elements on, four of the second piece are left; the row behind the last one is outside.
        assert_eq!(of(8, 2)[..2], [(0x400, 0x1090, 0, 16), (0x410, 0x10a0, 0, 8)]);
        assert!(of(8, 2)[2..].iter().all(|piece| piece.3 == 0));
        // Before the first element, and before the first row.
        assert_eq!(of(-3, 0)[0], (0x400, 0x1000, 6, 10));
        assert_eq!(of(-8, -1).iter().map(|piece| piece.3).collect::<Vec<_>>(), [0, 0, 0, 16]);
    }
}
