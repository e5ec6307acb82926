//! Merges a caller's partial results of each row, over disjoint sets of keys: weights exp(lse - max), normalised.

use super::output::Final;
use super::softmax::finite;
use crate::abi::{MERGE_WORDS, MergeArguments, Output, STATUS_BAD_LSE};
use crate::gpu::{Float4, divide, f16_to_f32, math, thread, warp};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// Elements that a lane holds at once.
const WIDTH: u32 = 4;

/// Body of the merge kernel: one warp a row.
///
/// # Safety
/// The launch is as the ABI table says.
#[inline(always)]
pub(crate) unsafe fn merge_partials(a: MergeArguments) {
    let (lane, warp) = (warp::lane_id(), warp::warp_id());
    let row = warp::per_lane(thread::block_idx_x() * (thread::block_dim_x() / warp::SIZE) + warp);
    if row >= a.rows {
        return;
    }
    // SAFETY: there is a row, so no count is 0.
    let (batch, query, head) = unsafe {
        let (rest, head) = divide(row, a.heads);
        let (batch, query) = divide(rest, a.sq);
        (batch, query, head)
    };
    let (batch_index, head_index, query_index) = (batch, head, query);
    let (batch, query, head) = (u64::from(batch), u64::from(query), u64::from(head));
    let (words, per_octave) = (a.partials.cast::<u64>(), a.lse_per_octave);
    let word = |partial: u32, index: usize| -> u64 {
        // SAFETY: the table has the partial.
        unsafe { words.add(partial as usize * MERGE_WORDS + index).read() }
    };
    // The row's element in the tensor whose words begin at `first`.
    let element = |partial: u32, first: usize| -> u64 {
        batch * word(partial, first + 1) + query * word(partial, first + 2) + head * word(partial, first + 3)
    };
    let lse = |partial: u32| -> f32 {
        // SAFETY: the table's tensors have the row.
        unsafe { (word(partial, 4) as *const f32).add(element(partial, 4) as usize).read() }
    };

    let (mut max, mut bad) = (f32::NEG_INFINITY, false);
    let mut partial = 0;
    while partial < a.count {
        let lse = lse(partial);
        bad |= lse.is_nan() || lse == f32::INFINITY;
        max = math::max(max, lse);
        partial += 1;
    }
    let (dim_end, mut dim, mut sum) = (a.head_dim_v, lane * WIDTH, 0.0);
    let target = Final {
        o: a.o,
        lse: a.lse,
        sink: ptr::null(),
        o_stride_batch: a.o_stride_batch,
        o_stride_seq: a.o_stride_seq,
        o_stride_head: a.o_stride_head,
        sq: a.sq,
        heads: a.heads,
        o_dtype: a.o_dtype,
    };
    let target = target.row(batch_index, query_index, head_index, dim_end);
    // The first lane, which writes the LSE, goes through at least once.
    while dim < dim_end {
        let mut out = [0.0; WIDTH as usize];
        sum = 0.0;
        let mut partial = 0;
        while partial < a.count {
            let weight = math::exp2((lse(partial) - finite(max)) / per_octave);
            sum += weight;
            // A partial without weight may have left its O unwritten.
            if weight != 0.0 {
                // SAFETY: the table's tensors have the row and the dims; rows are aligned to 16 bytes.
                let part = unsafe { load(word(partial, 0), element(partial, 0) + u64::from(dim), a.partial_dtype) };
                for i in 0..WIDTH as usize {
                    out[i] = math::fma(weight, part[i], out[i]);
                }
            }
            partial += 1;
        }
        let inverse = if bad {
            f32::NAN
        } else if max == f32::NEG_INFINITY {
            0.0
        } else {
            1.0 / sum
        };
        for x in &mut out {
            *x *= inverse;
        }
        // SAFETY: the row exists.
        unsafe { target.store::<4, 1>(|_| dim, |_| out) };
        dim += warp::SIZE * WIDTH;
    }
    if lane == 0 {
        let lse = if bad {
            f32::NAN
        } else if max == f32::NEG_INFINITY {
            max
        } else {
            max + math::log2(sum) * per_octave
        };
        // SAFETY: the row exists; the status word is an aligned u32 that all blocks may set bits in.
        unsafe {
            target.store_lse(lse);
            if bad {
                AtomicU32::from_ptr(a.status.cast()).fetch_or(STATUS_BAD_LSE, Ordering::Relaxed);
            }
        }
    }
}

/// Four elements of type `dtype` from element `element` on.
///
/// # Safety
/// They can be read, at a multiple of their size.
#[inline(always)]
unsafe fn load(base: u64, element: u64, dtype: u32) -> [f32; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        if dtype == Output::F32 as u32 {
            return ((base + element * 4) as *const Float4).read().0;
        }
        let halves = ((base + element * 2) as *const u64).read();
        let half = |i: u32| (halves >> (16 * i)) as u32 & 0xffff;
        let mut floats = [0.0; 4];
        for i in 0..4 {
            let bits = half(i as u32);
            floats[i] = if dtype == Output::Bf16 as u32 { f32::from_bits(bits << 16) } else { f16_to_f32(bits) };
        }
        floats
    }
}
