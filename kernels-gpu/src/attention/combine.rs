//! Merges the splits' parts of each row: weights exp(lse_s - max), normalised (Flash-Decoding).
//!
//! One warp merges a row, in the order of the splits. Who does it changes nothing: a warp of the kernel [`combine`], or one
//! of the attention kernel's block that finished last.

use super::merge::with_sink;
use super::output::{Final, LN_2, LOG2_E, RowOutput};
use super::parts::{Parts, Table};
use super::softmax::finite;
use crate::abi::{COMBINE_WIDTH, CombineArguments, MAX_SPLITS, MERGE_UNROLL};
use crate::gpu::{Float4, divide, math, thread, warp};

/// Parts whose loads are under way at once. Whole runs of them make a warp's lanes.
const UNROLL: usize = MERGE_UNROLL as usize;

/// Body of the combine kernel: one warp, and so one block, a row.
///
/// # Safety
/// The launch is as the ABI table says.
#[inline(always)]
pub(crate) unsafe fn combine(a: CombineArguments) {
    let row = thread::block_idx_x();
    // SAFETY: the row is one of the launch's; the caller's promise.
    let parts = unsafe { parts_of(&a, row) };
    if parts.count < 2 {
        return;
    }
    let target = Final {
        o: a.o,
        lse: a.lse,
        sink: a.sink,
        o_stride_batch: a.o_stride_batch,
        o_stride_seq: a.o_stride_seq,
        o_stride_head: a.o_stride_head,
        sq: a.sq,
        heads: a.heads,
        o_dtype: a.o_dtype,
    };
    // SAFETY: there is a row, so no count is 0.
    let ((batch, query), head) = unsafe {
        let (query, head) = divide(row, a.heads);
        (divide(query, a.sq), head)
    };
    let target = target.row(batch, query, head, a.head_dim_v);
    // SAFETY: all lanes are here, the parts and the row are the arguments'.
    unsafe { merge_parts(a.partial_o, a.partial_lse, parts, a.head_dim_v, &target) }
}

/// Merges the parts of a row of `head_dim_v` dims and writes it to `target`.
///
/// # Safety
/// Every lane of the warp reaches this call with the same values. The parts are at `partial_o` and `partial_lse`, written
/// before; there are [`MAX_SPLITS`] at most. `target` is a row that exists.
#[inline(always)]
pub(super) unsafe fn merge_parts(
    partial_o: *mut u8,
    partial_lse: *mut u8,
    parts: Parts,
    head_dim_v: u32,
    target: &RowOutput,
) {
    const { assert!(warp::SIZE.is_multiple_of(MERGE_UNROLL) && MAX_SPLITS.is_multiple_of(warp::SIZE)) };
    let lane = warp::lane_id();
    let Parts { first, step, count } = parts;
    let lse = |split: u32| -> f32 {
        let place = first + u64::from(split) * step;
        // SAFETY: the split is one of the row's.
        if split < count { unsafe { partial_lse.cast::<f32>().add(place as usize).read() } } else { f32::NEG_INFINITY }
    };
    // What places are computed from: else those of all parts are kept once for the warp, where there is no room for them.
    let (dims, parts_in_lane) = (warp::per_lane(head_dim_v), warp::per_lane(count));
    let load = |split: u32, dim: u32| -> [Float4; UNROLL] {
        let mut values = [Float4([0.0; 4]); UNROLL];
        for u in 0..UNROLL {
            let split = split + u as u32;
            if split < parts_in_lane && dim < dims {
                let place = (first + u64::from(split) * step) * u64::from(dims) + u64::from(dim);
                // SAFETY: split and dim are the row's; parts are aligned to 16 bytes.
                values[u] = unsafe { partial_o.cast::<f32>().add(place as usize).cast::<Float4>().read() };
            }
        }
        values
    };

    let mut dim = lane * COMBINE_WIDTH;
    // Ahead of the LSEs, which say what of it counts.
    let mut values = load(0, dim);
    let nearest = lse(lane);
    let mut max = nearest;
    let mut split = lane + warp::SIZE;
    while split < count {
        max = math::max(max, lse(split));
        split += warp::SIZE;
    }
    // SAFETY: all lanes are here.
    let max = unsafe { warp::reduce(max, math::max) };
    let weight = |lse: f32| math::exp2((lse - finite(max)) * LOG2_E);

    let mut ahead = true;
    let mut begin = 0;
    while begin < head_dim_v {
        let (mut out, mut sum) = ([0.0; 4], 0.0);
        let mut weights = weight(nearest);
        let mut split = 0;
        while split < count {
            if split > 0 && split % warp::SIZE == 0 {
                weights = weight(lse(split + lane));
            }
            if !ahead {
                values = load(split, dim);
            }
            ahead = false;
            for u in 0..UNROLL {
                // SAFETY: all lanes are here.
                let weight =
                    f32::from_bits(unsafe { warp::warp_shuffle(weights.to_bits(), (split + u as u32) % warp::SIZE) });
                sum += weight;
                for i in 0..4 {
                    // A split without weight may have left its part unwritten.
                    let value = if weight == 0.0 { 0.0 } else { values[u].0[i] };
                    out[i] = math::fma(weight, value, out[i]);
                }
            }
            split += UNROLL as u32;
        }
        // NaN passes the maximum by, but not the sum.
        let empty = sum == 0.0;
        let (lse, inverse) = if empty { (max, 0.0) } else { (max + math::log2(sum) * LN_2, 1.0 / sum) };
        let (lse, factor) = with_sink(lse, target.sink);
        for x in &mut out {
            *x = *x * inverse * factor;
        }
        // SAFETY: the row exists.
        unsafe {
            target.store::<4, 1>(|_| dim, |_| out);
            if dim == 0 {
                target.store_lse(lse);
            }
        }
        dim += warp::SIZE * COMBINE_WIDTH;
        begin += warp::SIZE * COMBINE_WIDTH;
    }
}

/// Where the parts of row `row` are, in rows. There is nothing to merge, and the count is below 2, if it belongs to no
/// sequence, or its sequence has one split.
///
/// # Safety
/// There is such a row; the pointers of `a` are as its documentation says.
#[inline(always)]
unsafe fn parts_of(a: &CombineArguments, row: u32) -> Parts {
    let table = Table::new(a.schedule, a.batch);
    // SAFETY: there is a row, so there is a head and a query. The offsets are one more than the sequences, and the table
    // has all of them.
    unsafe {
        let (query, head) = divide(row, a.heads);
        if table.is_null() {
            let parts = Parts::even(a.num_splits, a.rows, u64::from(row));
            let (offsets, place) = (a.cu_seqlens_q.cast::<i32>(), query as i32);
            if offsets.is_null() {
                return parts;
            }
            let (first, last) = (offsets.read(), offsets.add(a.batch as usize).read());
            // A last offset that cannot be, which is flagged elsewhere, hides no other sequence's queries.
            let has_sequence = place >= first && !(0..=place).contains(&last);
            return Parts { count: if has_sequence { parts.count } else { 0 }, ..parts };
        }
        let sequence = if a.cu_seqlens_q.is_null() { divide(query, a.sq).0 } else { table.sequence_of(query) };
        let record = table.record(sequence).read();
        let query = query.wrapping_sub(record.first_query);
        let parts = Parts::of(record, query).of_head(a.heads, head);
        Parts { count: if query < record.queries { parts.count } else { 0 }, ..parts }
    }
}
