//! The merge of the splits by the blocks that computed them.
//!
//! The blocks of a unit's splits meet at a word in global memory, and each merges its share of the rows. A block that has
//! waited long for the others, which may not run yet, leaves its share to the last one that comes: nobody waits for a
//! block that waits.

use super::super::merge::with_sink;
use super::super::output::{LN_2, LOG2_E, RowParts};
use super::super::softmax::finite;
use super::notes::{Notes, Numbers};
use super::{BOTH_BARRIER, Block};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{COMPUTE_THREADS, MAX_MERGED_SPLITS, WIDE, WORD_BYTES, at, map};
use crate::gpu::math::{self, opaque};
use crate::gpu::shared::{load_f32, store};
use crate::gpu::{Float4, named_barrier, rendezvous, thread, warp};

/// What the word counts: blocks that have come, those that do not need it any more, and a bit of each share that was
/// left to the last block.
const COME: u64 = 1;
const GONE: u64 = 1 << 8;
const LEFT: u64 = 1 << 16;
const _: () = assert!(16 + MAX_MERGED_SPLITS <= 64 && MAX_MERGED_SPLITS < 256);

/// How often the word is looked at before a share is left to the last block: some 50 us.
const PATIENCE: u32 = 64;

/// Parts whose loads are under way together.
const UNROLL: u32 = 12;

/// Merges this block's share of its unit, and those that were left to it.
///
/// # Safety
/// All threads that compute reach this call after writing their rows; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn merge(a: &AttentionArguments, block: &Block, numbers: &Numbers, notes: Notes) {
    let place = block.shared + at::STEP;
    let words = map::COUNT * map::BYTES + numbers.word * WORD_BYTES;
    let word = a.page_table.wrapping_add(words as usize).cast::<u64>();
    let (thread, mut gone) = (opaque(thread::thread_idx_x()), 0);
    // SAFETY: the caller's promise. Barriers lie between what threads write and others read.
    unsafe {
        named_barrier::sync(BOTH_BARRIER, COMPUTE_THREADS);
        if thread == 0 {
            let shares = meet(word, numbers.split, a.num_splits);
            // What it was is needed at the end alone.
            gone = rendezvous::count(word, GONE);
            store(place, shares as u32);
            store(place + 4, (shares >> 32) as u32);
        }
        named_barrier::sync(BOTH_BARRIER, COMPUTE_THREADS);
        let mut shares = u64::from(load_f32(place).to_bits()) | u64::from(load_f32(place + 4).to_bits()) << 32;
        while shares != 0 {
            let first = shares.trailing_zeros() * numbers.share;
            shares &= shares - 1;
            let mut row = first + thread / warp::SIZE;
            while row < (first + numbers.share).min(numbers.rows) {
                merge_row(&(*notes.row(row)).parts, a.num_splits);
                row = opaque(row + COMPUTE_THREADS / warp::SIZE);
            }
        }
        if thread == 0 && (gone / GONE) as u32 % 256 + 1 == a.num_splits {
            rendezvous::clear(word);
        }
    }
}

/// Meets the blocks of the other splits: the shares, a bit each, that are this block's. Its rows are known to all who come
/// later, and theirs to it if it has a share.
///
/// # Safety
/// One thread of each block calls it, `word` being zero before the launch.
#[inline(always)]
unsafe fn meet(word: *mut u64, split: u32, splits: u32) -> u64 {
    let come = |word: u64| word as u32 % 256;
    // SAFETY: the caller's promise.
    unsafe {
        let before = rendezvous::add(word, COME);
        let (mut now, mut looks) = (before + COME, 0);
        while come(now) < splits && looks < PATIENCE {
            now = rendezvous::read(word);
            looks += 1;
        }
        if come(now) == splits {
            let left = if come(before) + 1 == splits { before / LEFT } else { 0 };
            left | 1 << split
        } else {
            let before = rendezvous::add(word, LEFT << split);
            // The last block came in the meantime, and knows nothing of it.
            if come(before) == splits { 1 << split } else { 0 }
        }
    }
}

/// Merges the parts of a row: each lane four dims of each, and the LSE of one.
///
/// # Safety
/// Every lane of the warp calls it with the same row, whose parts, `splits` of them, are known to them.
#[inline(always)]
unsafe fn merge_row(parts: &RowParts, splits: u32) {
    const { assert!(UNROLL <= warp::SIZE && WIDE == warp::SIZE * 4) };
    let lane = warp::lane_id();
    let dim = lane * 4;
    let (mut max, mut sum, mut out) = (f32::NEG_INFINITY, 0.0, [0.0; 4]);
    let mut first = 0;
    let (mut next_lse, mut next_o) =
        (parts.lse.wrapping_add((u64::from(lane) * parts.lse_step) as usize), parts.o.wrapping_add(dim as usize));
    while first < splits {
        let left = splits - first;
        let mut o = [Float4([0.0; 4]); UNROLL as usize];
        // SAFETY: a part that exists is one of the row's, the dims are in it; every lane of the warp is here.
        let (most, weight) = unsafe {
            let lse = rendezvous::load_if(lane < left.min(UNROLL), next_lse, f32::NEG_INFINITY);
            for u in 0..UNROLL {
                o[u as usize] = rendezvous::load_four_if(u < left && dim < parts.dims, next_o);
                next_o = next_o.wrapping_add(parts.o_step as usize);
            }
            let most = math::max(max, warp::reduce(lse, math::max));
            (most, math::exp2((lse - finite(most)) * LOG2_E))
        };
        let factor = math::exp2((max - finite(most)) * LOG2_E);
        // SAFETY: as above.
        sum = sum * factor + unsafe { warp::reduce(weight, |a, b| a + b) };
        for i in 0..4 {
            out[i] *= factor;
        }
        for u in 0..UNROLL {
            // SAFETY: as above.
            let weight = f32::from_bits(unsafe { warp::warp_shuffle(weight.to_bits(), u) });
            // A part without weight may not have been written.
            if weight != 0.0 {
                for i in 0..4 {
                    out[i] = math::fma(weight, o[u as usize].0[i], out[i]);
                }
            }
        }
        max = most;
        first += UNROLL;
        next_lse = next_lse.wrapping_add((u64::from(UNROLL) * parts.lse_step) as usize);
    }
    // The sum tells, for NaN passes the maximum by.
    let (lse, inverse) = if sum == 0.0 { (max, 0.0) } else { (max + math::log2(sum) * LN_2, 1.0 / sum) };
    let (lse, factor) = with_sink(lse, parts.target.sink);
    for i in 0..4 {
        out[i] = out[i] * inverse * factor;
    }
    // SAFETY: the row exists.
    unsafe {
        parts.target.store::<4, 1>(|_| dim, |_| out);
        if lane == 0 {
            parts.target.store_lse(lse);
        }
    }
}
