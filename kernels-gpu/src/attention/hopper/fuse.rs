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
use crate::gpu::{Float4, copy, named_barrier, rendezvous, thread, warp};

/// What the word counts: blocks that have come, those that do not need it any more, and a bit of each share that was
/// left to the last block.
const COME: u64 = 1;
const GONE: u64 = 1 << 8;
const LEFT: u64 = 1 << 16;
const _: () = assert!(16 + MAX_MERGED_SPLITS <= 64 && MAX_MERGED_SPLITS < 256);

/// How often the word is looked at before a share is left to the last block: some 50 us.
const PATIENCE: u32 = 64;

/// Parts of a row whose copies are under way together, and bytes of one.
const PARTS: u32 = warp::SIZE;
const PART_BYTES: u32 = WIDE * 4;
const _: () = assert!(COMPUTE_THREADS / warp::SIZE * PARTS * PART_BYTES <= at::QUERY);

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
                merge_row(&(*notes.row(row)).parts, a.num_splits, block, thread / warp::SIZE);
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

/// Merges the parts of a row: each lane four dims of each, and the LSE of one. They go through the warp's part of the
/// empty ring, so that loops need not be unrolled.
///
/// # Safety
/// Every lane of warp `warp` calls it with the same row, whose parts, `splits` of them, are known to them.
#[inline(always)]
unsafe fn merge_row(parts: &RowParts, splits: u32, block: &Block, warp: u32) {
    const { assert!(WIDE == warp::SIZE * 4) };
    let lane = warp::lane_id();
    let dim = lane * 4;
    let place = warp * PARTS * PART_BYTES + lane * 16;
    let wanted = if dim < parts.dims { 16 } else { 0 };
    let (mut max, mut sum, mut out) = (f32::NEG_INFINITY, 0.0, [0.0; 4]);
    let mut first = 0;
    let (mut next_lse, mut next_o) =
        (parts.lse.wrapping_add((u64::from(lane) * parts.lse_step) as usize), parts.o.wrapping_add(dim as usize));
    while first < splits {
        let count = (splits - first).min(PARTS);
        // SAFETY: a part that exists is one of the row's, the dims are in it; every lane of the warp is here, and reads
        // what it has copied itself.
        unsafe {
            let lse = rendezvous::load_if(lane < count, next_lse, f32::NEG_INFINITY);
            let mut part = 0;
            while part < count {
                math::roll();
                copy::copy_16_zero_fill(block.shared + place + part * PART_BYTES, next_o.cast(), wanted);
                next_o = next_o.wrapping_add(parts.o_step as usize);
                part = opaque(part + 1);
            }
            copy::commit_group();
            let most = math::max(max, warp::reduce(lse, math::max));
            let weight = math::exp2((lse - finite(most)) * LOG2_E);
            let factor = math::exp2((max - finite(most)) * LOG2_E);
            sum = sum * factor + warp::reduce(weight, |a, b| a + b);
            for i in 0..4 {
                out[i] *= factor;
            }
            max = most;
            copy::wait_for_oldest::<2>();
            let mut part = 0;
            while part < count {
                math::roll();
                let weight = f32::from_bits(warp::warp_shuffle(weight.to_bits(), part));
                let at = block.memory.wrapping_add((place + part * PART_BYTES) as usize);
                let Float4(x) = at.cast::<Float4>().read();
                // A part without weight may not have been written.
                if weight != 0.0 {
                    for i in 0..4 {
                        out[i] = math::fma(weight, x[i], out[i]);
                    }
                }
                part = opaque(part + 1);
            }
        }
        first += PARTS;
        next_lse = next_lse.wrapping_add((u64::from(PARTS) * parts.lse_step) as usize);
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
