//! Attention over a part of the KV, in both block shapes.

use super::descale;
use super::merge::{Merge, write_rows};
use super::output::UnitOutput;
use super::schedule::{QueryRows, Sizes, Unit, Walk, units};
use super::softmax::{Mask, Rows, prepare};
use crate::abi::{AttentionArguments, BlockShape, Geometry, MERGE_LAST};
use crate::gpu::arguments::Arguments;
use crate::gpu::query::Query;
use crate::gpu::ring::Ring;
use crate::gpu::tile::{Element, Fragment};
use crate::gpu::{VENDOR, math::opaque, shared, thread, warp};

/// Body of an attention kernel. `QF`, `SF`, `OF`: fragments of a query row, of a chunk's scores and of an
/// output row. `W`: fragments of weights that make one operand. `QT`: products' rows that a warp owns. `MEMBERS`: threads that share a ring, and so the KV
/// tokens; a warp's in the shape `SplitKv`, the block's in `SharedKv`. `PAGED`: whether K and V lie in pages.
///
/// # Safety
/// The launch is as the ABI table says: threads, shared memory, and what the arguments point to.
#[inline(always)]
pub(crate) unsafe fn forward<
    E: Element,
    const QF: usize,
    const SF: usize,
    const OF: usize,
    const W: usize,
    const QT: usize,
    const WARPS: usize,
    const STAGES: usize,
    const MEMBERS: u32,
    const QUERY_IN_SHARED: bool,
    const PAGED: bool,
>(
    a: AttentionArguments,
) {
    let a = Arguments::new(a);
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let warps = WARPS as u32;
    let splits_kv = MEMBERS == warp::SIZE;
    let chunk = (SF * E::COLUMNS) as u32;
    // Rows of one query tile, this warp's first one of them, and where its KV tokens start.
    let (tile_m, warp_row, warp_token, tile_n) =
        if splits_kv { (E::M, 0, warp * chunk, warps * chunk) } else { (warps * E::M, warp * E::M, 0, chunk) };
    let q_tiles = QT as u32;
    let sizes = Sizes { q_tiles, tile_rows: q_tiles * tile_m, tile_n, warp_token, element: E::OPERAND.bytes() };

    let (head_dim_qk, head_dim_v) = ((QF * E::DEPTH) as u32, (OF * E::COLUMNS) as u32);
    let shape = if splits_kv { BlockShape::SplitKv } else { BlockShape::SharedKv };
    let ring_bytes = STAGES as u32 * Geometry::stage_bytes(VENDOR, E::OPERAND, head_dim_qk, head_dim_v, shape, chunk);
    let rings = if splits_kv { warps } else { 1 };
    let query_bytes = if QUERY_IN_SHARED { sizes.tile_rows * Geometry::row_bytes(E::OPERAND, head_dim_qk) } else { 0 };
    let memory = shared::dynamic_shared_mem();
    let ring_start = if splits_kv { warp * ring_bytes } else { 0 };
    // SAFETY: the launch has this much shared memory, in this order; all sizes are multiples of 16 bytes.
    let (mut ring, query_memory, merge) = unsafe {
        let query_memory = memory.add((rings * ring_bytes) as usize);
        (
            Ring::<E, QF, SF, OF, STAGES, MEMBERS, PAGED>::new(memory.add(ring_start as usize)),
            query_memory,
            Merge::<E, WARPS, OF>::new(query_memory.add(query_bytes as usize), sizes.tile_rows),
        )
    };

    // SAFETY: the caller's promise.
    let mut ahead = unsafe { Walk::<PAGED>::new(&a, sizes) };
    // Rolled: its copies are long, and unrolled they would be most of the kernel.
    for _ in 0..opaque(STAGES as u32 - 1) {
        // SAFETY: the ring is empty; the walk's chunks exist.
        unsafe { ring.issue(ahead.next(&a)) };
    }

    let mut index = thread::block_idx_x();
    // SAFETY: the caller's promise.
    while index < unsafe { units(&a.all(), sizes) } {
        let once = a.all();
        // SAFETY: the index is in range; the caller's promise.
        let unit = unsafe { Unit::new(&once, index, sizes) };
        let source = QueryRows { a: once, unit, element: E::OPERAND.bytes() };
        // SAFETY: all threads of the block walk the same units; a barrier ended the last one.
        let (query, scale_log2) = unsafe {
            let query =
                Query::<E, QF, QT, QUERY_IN_SHARED>::load(&source, warp_row, tile_m, sizes.tile_rows, query_memory);
            (query, descale::of_scores::<E>(&once, &unit))
        };
        let first = unit.first_row + warp_row;
        let last = first + (QT as u32 - 1) * tile_m + E::M - 1;
        let mask = Mask::new(&once, unit.sequence, first, last);
        let mut rows = [Rows::NONE; QT];
        let mut out: [[Fragment; OF]; QT] = [[[0.0; 4]; OF]; QT];
        // A warp all of whose rows lie beyond the last one only copies. Where all hold the same rows there is none.
        let busy = splits_kv || warp::uniform(first) < warp::uniform(unit.rows(&once));

        let mut token = unit.begin + warp_token;
        while token < unit.end {
            // SAFETY: the walk issues the chunks in the order of this loop; all members are here, since `token` is
            // the same in all of them.
            unsafe {
                ring.wait();
                ring.issue(ahead.next(&a));
                if busy {
                    let mut scores = ring.scores(&query);
                    for t in 0..QT {
                        prepare::<E, SF>(
                            &a,
                            descale::scale::<E>(&a, scale_log2),
                            &mask,
                            &mut scores[t],
                            t as u32 * tile_m,
                            token,
                            lane,
                        );
                        rows[t].update::<E, SF, OF>(&scores[t], &mut out[t]);
                    }
                    // The exponentials of the next step need nothing of the products of this one: they overlap.
                    for step in 0..SF / W {
                        let mut weights = [[[0.0; 4]; W]; QT];
                        for t in 0..QT {
                            weights[t] = rows[t].weights::<E, W>(core::array::from_fn(|f| scores[t][step * W + f]));
                        }
                        ring.accumulate(step, &weights, &mut out);
                    }
                }
            }
            ring.advance();
            token += sizes.tile_n;
        }

        let once = a.all();
        // Where registers are full, the unit is found anew in place of being kept.
        // SAFETY: as above.
        let unit = if QUERY_IN_SHARED { unsafe { Unit::new(&once, opaque(index), sizes) } } else { unit };
        // SAFETY: the caller's promise.
        let output = unsafe { UnitOutput::new(once, unit, sizes.table(&once), descale::of_v::<E>(&once, &unit)) };
        let lane = warp::per_lane(lane);
        for t in 0..QT {
            let first = t as u32 * tile_m + warp_row;
            // SAFETY: all lanes are here; a barrier ended the last unit's reading.
            unsafe {
                if splits_kv {
                    merge.write(warp, first, lane, &rows[t], &out[t]);
                } else {
                    write_rows::<E, OF>(&output, first, lane, &rows[t], &out[t]);
                }
            }
        }
        // SAFETY: all threads of the block walk the same units.
        unsafe {
            if splits_kv {
                thread::sync_threads();
                merge.write_rows(&output, thread::block_dim_x());
            }
            if splits_kv || QUERY_IN_SHARED {
                thread::sync_threads();
            }
            if thread::TICKETS && splits_kv && QT == 1 && once.flags & MERGE_LAST != 0 && output.splits() > 1 {
                merge.merge_last(&output, sizes.ticket(&once, &unit));
            }
        }
        index = index.saturating_add(thread::grid_dim_x());
    }
}
