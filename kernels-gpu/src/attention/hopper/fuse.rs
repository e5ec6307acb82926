//! The merge of the splits by the blocks that computed them.
//!
//! The blocks of a unit's splits meet at a word in global memory, and each merges its share of the rows. A block that has
//! waited long for the others, which may not run yet, leaves its share to the last one that comes: nobody waits for a
//! block that waits.

use super::super::merge::with_sink;
use super::super::output::{LN_2, LOG2_E, RowParts};
use super::super::schedule::units;
use super::super::softmax::finite;
use super::compute::BOTH_BARRIER;
use super::notes::{Notes, Numbers};
use super::operands::Operands;
use super::{Block, sizes};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{COMPUTE_THREADS, HEAD_DIM_V, MAX_MERGED_SPLITS, map};
use crate::gpu::shared::{load_f32, store};
use crate::gpu::{Float4, divide, math, named_barrier, rendezvous, thread};

/// What the word counts: blocks that have come, those that do not need it any more, and a bit of each share that was
/// left to the last block.
const COME: u64 = 1;
const GONE: u64 = 1 << 8;
const LEFT: u64 = 1 << 16;
const _: () = assert!(16 + MAX_MERGED_SPLITS <= 64 && MAX_MERGED_SPLITS < 256);

/// How often the word is looked at before a share is left to the last block: some 50 us.
const PATIENCE: u32 = 64;

/// Output elements that a thread merges at once, and parts whose loads are under way together.
const PIECE: u32 = 4;
const UNROLL: usize = 12;

/// Merges this block's share of unit `index`, and those that were left to it.
///
/// # Safety
/// All threads that compute reach this call after writing their rows; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn merge<E: Operands>(
    a: &AttentionArguments,
    block: &Block<E>,
    numbers: &Numbers,
    notes: Notes,
    index: u32,
) {
    let place = block.shared + E::LAYOUT.steps_at;
    // SAFETY: the caller's promise. Barriers lie between what threads write and others read.
    unsafe {
        let (per_split, _) = divide(units(a, sizes::<E>()), a.num_splits);
        let words = a.page_table.wrapping_add((map::COUNT * map::BYTES) as usize).cast::<u64>();
        let word = words.add(divide(index, per_split).1 as usize);
        named_barrier::sync(BOTH_BARRIER, COMPUTE_THREADS);
        if thread::thread_idx_x() == 0 {
            let shares = meet(word, numbers.split, a.num_splits);
            store(place, shares as u32);
            store(place + 4, (shares >> 32) as u32);
        }
        named_barrier::sync(BOTH_BARRIER, COMPUTE_THREADS);
        let mut shares = u64::from(load_f32(place).to_bits()) | u64::from(load_f32(place + 4).to_bits()) << 32;
        let items = numbers.rows * (HEAD_DIM_V / PIECE);
        let size = divide(items + a.num_splits - 1, a.num_splits).0;
        while shares != 0 {
            let share = shares.trailing_zeros();
            shares &= shares - 1;
            let mut item = share * size + thread::thread_idx_x();
            while item < ((share + 1) * size).min(items) {
                let row = notes.row(item / (HEAD_DIM_V / PIECE));
                merge_piece(&(*row).parts, a.num_splits, item % (HEAD_DIM_V / PIECE) * PIECE);
                item += COMPUTE_THREADS;
            }
        }
        if thread::thread_idx_x() == 0 {
            leave(word, a.num_splits);
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

/// Leaves the word, and clears it after the last block.
///
/// # Safety
/// As for [`meet`], which comes before it.
#[inline(always)]
unsafe fn leave(word: *mut u64, splits: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let before = rendezvous::count(word, GONE);
        if (before / GONE) as u32 % 256 + 1 == splits {
            rendezvous::clear(word);
        }
    }
}

/// Merges the parts of four dims of a row from `dim` on.
///
/// # Safety
/// The parts are a row's, and known to this thread.
#[inline(always)]
unsafe fn merge_piece(parts: &RowParts, splits: u32, dim: u32) {
    if dim >= parts.dims {
        return;
    }
    let (mut max, mut sum, mut out) = (f32::NEG_INFINITY, 0.0, [0.0; 4]);
    let mut first = 0;
    while first < splits {
        let mut lse = [f32::NEG_INFINITY; UNROLL];
        let mut o = [Float4([0.0; 4]); UNROLL];
        for u in 0..UNROLL {
            let part = u64::from(first + u as u32);
            if first + (u as u32) < splits {
                // SAFETY: the part is one of the row's, the dims are in it.
                unsafe {
                    lse[u] = parts.lse.add((part * parts.lse_step) as usize).read();
                    o[u] = parts.o.add((part * parts.o_step) as usize + dim as usize).cast::<Float4>().read();
                }
            }
        }
        let mut most = max;
        for u in 0..UNROLL {
            most = math::max(most, lse[u]);
        }
        let factor = math::exp2((max - finite(most)) * LOG2_E);
        sum *= factor;
        for i in 0..4 {
            out[i] *= factor;
        }
        for u in 0..UNROLL {
            let weight = math::exp2((lse[u] - finite(most)) * LOG2_E);
            sum += weight;
            // A part without weight may not have been written.
            if weight != 0.0 {
                for i in 0..4 {
                    out[i] = math::fma(weight, o[u].0[i], out[i]);
                }
            }
        }
        max = most;
        first += UNROLL as u32;
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
        if dim == 0 {
            parts.target.store_lse(lse);
        }
    }
}
