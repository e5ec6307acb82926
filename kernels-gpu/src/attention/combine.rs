//! Merges the splits' parts of each row: weights exp(lse_s - max), normalised (Flash-Decoding).

use super::merge::with_sink;
use super::output::{Final, LN_2, LOG2_E};
use super::parts::{Parts, Table};
use super::softmax::finite;
use crate::abi::{COMBINE_THREADS, COMBINE_WIDTH, CombineArguments, MAX_SPLITS};
use crate::gpu::{Float4, divide, math, shared, thread, warp};

/// Parts whose loads are under way at once.
const UNROLL: usize = 4;

/// Body of the combine kernel: one block a row. The threads form teams; a team holds the whole row,
/// [`COMBINE_WIDTH`] dims a thread, and takes every `teams`-th split.
///
/// # Safety
/// The launch is as the ABI table says.
#[inline(always)]
pub(crate) unsafe fn combine(a: CombineArguments) {
    let (thread, lane) = (thread::thread_idx_x(), warp::lane_id());
    let row = thread::block_idx_x();
    // SAFETY: the row is one of the launch's; the caller's promise.
    let Some(parts) = (unsafe { parts_of(&a, row) }) else { return };
    let num_splits = parts.count;
    let lse = |split: u32| -> f32 {
        let place = parts.first + u64::from(split) * parts.step;
        // SAFETY: split and row are in range.
        unsafe { a.partial_lse.cast::<f32>().add(place as usize).read() }
    };
    let weights = shared::dynamic_shared_mem().cast::<f32>();
    // SAFETY: the launch has shared memory for both.
    let teams_out = unsafe { weights.add(MAX_SPLITS as usize) }.cast::<Float4>();

    // Every warp computes the maximum and the sum by itself, in the same order.
    let mut max = f32::NEG_INFINITY;
    let mut split = lane;
    while split < num_splits {
        max = math::max(max, lse(split));
        split += warp::SIZE;
    }
    // SAFETY: all lanes are here.
    let max = unsafe { warp::reduce(max, math::max) };
    let weight = |split: u32| math::exp2((lse(split) - finite(max)) * LOG2_E);
    let mut sum = 0.0;
    let mut split = lane;
    while split < num_splits {
        sum += weight(split);
        split += warp::SIZE;
    }
    // SAFETY: all lanes are here.
    let sum = unsafe { warp::reduce(sum, |x, y| x + y) };
    let mut split = thread;
    while split < num_splits {
        // SAFETY: split is below MAX_SPLITS.
        unsafe { weights.add(split as usize).write(weight(split)) };
        split += COMBINE_THREADS;
    }
    // SAFETY: all threads are here.
    unsafe { thread::sync_threads() };

    let pieces = a.head_dim_v / COMBINE_WIDTH;
    // SAFETY: the head dim is a multiple of the width, at least one.
    let ((team, piece), (teams, _)) = unsafe { (divide(thread, pieces), divide(COMBINE_THREADS, pieces)) };
    let dim = piece * COMBINE_WIDTH;
    let mut out = [0.0; 4];
    if team < teams {
        let mut split = team;
        while split < num_splits {
            let mut values = [Float4([0.0; 4]); UNROLL];
            let mut part_weights = [0.0; UNROLL];
            for u in 0..UNROLL {
                let split = split + u as u32 * teams;
                if split < num_splits {
                    // SAFETY: split is in range.
                    let weight = unsafe { weights.add(split as usize).read() };
                    // A split without weight may have left its part unwritten.
                    if weight != 0.0 {
                        let place = (parts.first + u64::from(split) * parts.step) * u64::from(a.head_dim_v);
                        // SAFETY: split, row and dim are in range; parts are aligned to 16 bytes.
                        values[u] = unsafe {
                            a.partial_o.cast::<f32>().add(place as usize + dim as usize).cast::<Float4>().read()
                        };
                        part_weights[u] = weight;
                    }
                }
            }
            for u in 0..UNROLL {
                for i in 0..4 {
                    out[i] = math::fma(part_weights[u], values[u].0[i], out[i]);
                }
            }
            split += UNROLL as u32 * teams;
        }
        // SAFETY: one place a thread.
        unsafe { teams_out.add(thread as usize).write(Float4(out)) };
    }
    // SAFETY: all threads are here.
    unsafe { thread::sync_threads() };

    if team == 0 {
        for other in 1..teams {
            // SAFETY: written before the barrier by the thread of that team with the same piece.
            let part = unsafe { teams_out.add((other * pieces + piece) as usize).read() };
            for i in 0..4 {
                out[i] += part.0[i];
            }
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
    }
}

/// Where the parts of row `row` are, in rows; `None` if there is nothing to merge: it belongs to no sequence, or its
/// sequence has one split.
///
/// # Safety
/// There is such a row; the pointers of `a` are as its documentation says.
#[inline(always)]
unsafe fn parts_of(a: &CombineArguments, row: u32) -> Option<Parts> {
    let table = Table::new(a.schedule, a.batch);
    // SAFETY: there is a row, so there is a head and a query. The offsets are one more than the sequences, and the table
    // has all of them.
    unsafe {
        let (query, head) = divide(row, a.heads);
        if table.is_null() {
            let (offsets, place) = (a.cu_seqlens_q.cast::<i32>(), query as i32);
            if !offsets.is_null() {
                let (first, last) = (offsets.read(), offsets.add(a.batch as usize).read());
                // A last offset that cannot be, which is flagged elsewhere, hides no other sequence's queries.
                if place < first || (0..=place).contains(&last) {
                    return None;
                }
            }
            return Some(Parts::even(a.num_splits, a.rows, u64::from(row)));
        }
        let sequence = if a.cu_seqlens_q.is_null() { divide(query, a.sq).0 } else { table.sequence_of(query) };
        let record = table.record(sequence).read();
        let query = query.wrapping_sub(record.first_query);
        let merged = query < record.queries && record.splits > 1;
        merged.then(|| Parts::of(record, query).of_head(a.heads, head))
    }
}
