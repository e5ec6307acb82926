//! Attention over a part of the KV, in the block shape in which the warps share out the KV.

use super::merge::Merge;
use super::output::Final;
use super::schedule::{Sizes, Unit, Walk, units};
use super::softmax::Rows;
use crate::abi::{AttentionArguments, Geometry};
use crate::gpu::ring::Ring;
use crate::gpu::tile::{self, Element, Fragment, Query, ROWS};
use crate::gpu::{Float4, VENDOR, divide, shared, thread, warp};

/// Body of an attention kernel. `QF`, `SF`, `OF`: fragments of a query row, of a chunk's scores and of an
/// output row.
///
/// # Safety
/// The launch is as the ABI table says: threads, shared memory, and what the arguments point to.
#[inline(always)]
pub(crate) unsafe fn forward<
    E: Element,
    const QF: usize,
    const SF: usize,
    const OF: usize,
    const WARPS: usize,
    const STAGES: usize,
>(
    a: AttentionArguments,
) {
    let a = with_strides_per_lane(a);
    let chunk = (SF * tile::COLUMNS) as u32;
    let (head_dim_qk, head_dim_v) = ((QF * tile::DEPTH) as u32, (OF * tile::COLUMNS) as u32);
    let sizes = Sizes { tile_rows: tile::M, tile_n: WARPS as u32 * chunk, chunk };
    let ring_bytes = Geometry::ring_bytes(VENDOR, head_dim_qk, head_dim_v, chunk, STAGES as u32);
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let memory = shared::dynamic_shared_mem();
    // SAFETY: the launch has WARPS rings and a merge buffer of shared memory; sizes are multiples of 128 bytes.
    let (mut ring, merge) = unsafe {
        (
            Ring::<E, QF, SF, OF, STAGES>::new(memory.add((warp * ring_bytes) as usize)),
            Merge::<WARPS, OF>::new(memory.add(WARPS * ring_bytes as usize)),
        )
    };

    // SAFETY: the caller's promise.
    let mut ahead = unsafe { Walk::new(&a, warp, sizes) };
    for _ in 0..STAGES - 1 {
        // SAFETY: the ring is empty; the walk's chunks exist.
        unsafe { ring.issue(ahead.next(&a)) };
    }

    let mut index = thread::block_idx_x();
    while index < units(&a) {
        // SAFETY: the index is in range; the caller's promise.
        let unit = unsafe { Unit::new(&a, index, sizes) };
        // SAFETY: the unit exists.
        let query = unsafe { load_query::<QF>(&a, &unit, lane) };
        let mut rows = Rows::new(&a, unit.len, unit.first_row, lane);
        let mut out: [Fragment; OF] = [[0.0; 4]; OF];

        let mut token = unit.begin + warp * chunk;
        while token < unit.end {
            // SAFETY: the walk issues this warp's chunks in the order of this loop; all lanes are here, since
            // `token` is the same in all of them.
            unsafe {
                ring.wait();
                ring.issue(ahead.next(&a));
                let mut scores = ring.scores(&query);
                rows.update(&mut scores, &mut out, token, lane, a.scale_log2);
                ring.accumulate(&scores, &mut out);
            }
            ring.advance();
            token += sizes.tile_n;
        }

        // SAFETY: all threads of the block walk the same units; the barriers separate writes from reads.
        unsafe {
            merge.write(warp, lane, &rows, &out);
            thread::sync_threads();
            write_unit::<WARPS, OF>(&a, &unit, &merge);
            thread::sync_threads();
        }
        index = index.saturating_add(thread::grid_dim_x());
    }
}

/// The arguments, with the strides that are needed once a unit out of the registers that all lanes share.
#[inline(always)]
fn with_strides_per_lane(a: AttentionArguments) -> AttentionArguments {
    let per_lane =
        |stride: u64| u64::from(warp::per_lane(stride as u32)) | u64::from(warp::per_lane((stride >> 32) as u32)) << 32;
    AttentionArguments {
        q_stride_batch: per_lane(a.q_stride_batch),
        q_stride_seq: per_lane(a.q_stride_seq),
        q_stride_head: per_lane(a.q_stride_head),
        o_stride_batch: per_lane(a.o_stride_batch),
        o_stride_seq: per_lane(a.o_stride_seq),
        o_stride_head: per_lane(a.o_stride_head),
        ..a
    }
}

/// The lane's part of the unit's query rows; zeros beyond the last row.
///
/// # Safety
/// The unit is one of the launch.
#[inline(always)]
unsafe fn load_query<const QF: usize>(a: &AttentionArguments, unit: &Unit, lane: u32) -> Query<QF> {
    let mut rows = [None; ROWS];
    for slot in 0..ROWS {
        let row = unit.first_row + tile::row(lane, slot);
        if row < Unit::rows(a) {
            // SAFETY: group is not 0.
            let (query, member) = unsafe { divide(row, a.group) };
            let head = u64::from(unit.kv_head) * u64::from(a.group) + u64::from(member);
            let element =
                u64::from(unit.batch) * a.q_stride_batch + u64::from(query) * a.q_stride_seq + head * a.q_stride_head;
            rows[slot] = Some(a.q.wrapping_add((2 * element) as usize).cast_const());
        }
    }
    // SAFETY: the rows exist and are aligned to 16 bytes.
    unsafe { Query::load(rows, lane) }
}

/// Writes the block's rows: the final result of an unsplit plan, or the split's part.
///
/// # Safety
/// All warps have written to `merge`, and a barrier came after.
#[inline(always)]
unsafe fn write_unit<const WARPS: usize, const OF: usize>(
    a: &AttentionArguments,
    unit: &Unit,
    merge: &Merge<WARPS, OF>,
) {
    let dims = (OF * tile::COLUMNS) as u32;
    let pieces = dims / 4;
    let rows = (Unit::rows(a) - unit.first_row).min(tile::M);
    let heads = u64::from(a.batch) * u64::from(a.kv_heads);
    let head = u64::from(unit.batch) * u64::from(a.kv_heads) + u64::from(unit.kv_head);
    let first_partial = (u64::from(unit.split) * heads + head) * u64::from(Unit::rows(a)) + u64::from(unit.first_row);
    let target = Final {
        o: a.o,
        lse: a.lse,
        o_stride_batch: a.o_stride_batch,
        o_stride_seq: a.o_stride_seq,
        o_stride_head: a.o_stride_head,
        sq: a.sq,
        kv_heads: a.kv_heads,
        group: a.group,
        o_dtype: a.o_dtype,
    };
    let mut item = thread::thread_idx_x();
    while item < rows * pieces {
        let (row, dim) = (item / pieces, item % pieces * 4);
        // SAFETY: row and dim are in range; partials and outputs are as the ABI says.
        unsafe {
            let (x, lse) = merge.read(row, dim);
            if a.num_splits == 1 {
                let place = target.place(unit.batch, unit.kv_head, unit.first_row + row);
                target.store(place, dim, x);
                if dim == 0 {
                    target.store_lse(place, lse);
                }
            } else {
                let partial = (first_partial + u64::from(row)) as usize;
                if unit.begin < unit.end {
                    let o = a.partial_o.cast::<f32>().add(partial * dims as usize + dim as usize);
                    o.cast::<Float4>().write(Float4(x));
                }
                if dim == 0 {
                    a.partial_lse.cast::<f32>().add(partial).write(lse);
                }
            }
        }
        item += WARPS as u32 * warp::SIZE;
    }
}
