//! A stream's softmax: a row a thread, no lane needs another one's.

use super::super::descale;
use super::super::softmax::{Mask, Scaling, finite};
use super::{Block, Kernel, Units, anew, arrive, wait};
use crate::abi::AttentionArguments;
use crate::abi::tcgen05::{ROWS, SCORES, STREAMS, TOKENS, barrier};
use crate::gpu::tcgen05::{self, Operand};
use crate::gpu::tile::Element;
use crate::gpu::{Float2, math, thread, warp};

/// Columns of a load, and loads that make a row of scores.
const LOAD: usize = 32;
const LOADS: usize = TOKENS as usize / LOAD;

/// How far the maximum may rise before outputs are rescaled to it, as a logarithm to base 2: weights stay far within the
/// range of 16-bit types until then. 8-bit ones have no room to spare.
const fn slack<K: Kernel>() -> f32 {
    if K::E::OPERAND.bytes() == 1 { 0.0 } else { 8.0 }
}

/// Turns the scores of a stream into weights, and tells correction how the maximum went.
///
/// # Safety
/// The four warps of the stream call it; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<K: Kernel>(a: &AttentionArguments, block: &Block, stream: u32) {
    let row = thread::thread_idx_x() % ROWS;
    let lanes = (row / warp::SIZE * warp::SIZE) << 16;
    let columns = block.columns + lanes + SCORES[0] + stream * (SCORES[1] - SCORES[0]);
    let message = block.message::<K>(stream, row);
    let tell = |parity: &mut u32, words: [f32; 2]| {
        // SAFETY: the message before has been read.
        unsafe {
            wait(block.barrier::<K>(barrier::MESSAGE_EMPTY + stream), *parity ^ 1);
            message.write(Float2(words));
            // Correction touches what products are known here to have left.
            tcgen05::fence_before();
            arrive(block.barrier::<K>(barrier::MESSAGE_FULL + stream));
        }
        *parity ^= 1;
    };
    let (mut scores_parity, mut message_parity) = (0, 0);
    let mut units = Units::new();
    // SAFETY: the caller's promise.
    while let Some((unit, tiles)) = unsafe { units.next::<K>(a) } {
        if tiles == 0 {
            continue;
        }
        let a = &anew(a);
        // SAFETY: as above.
        let scaling = Scaling::new(a, unsafe { descale::of_scores::<K::E>(a, &unit) });
        let (first, mut token, step) = if K::Q_TILES == 1 {
            (unit.first_row, unit.begin + stream * TOKENS, STREAMS * TOKENS)
        } else {
            (unit.first_row + stream * ROWS, unit.begin, TOKENS)
        };
        let mask = Mask::new(a, unit.sequence, first, first + ROWS - 1);
        let (begin, end) = mask.keys(a, row);
        // What weights are relative to, at most `slack` below the largest score; their sum.
        let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
        while token < unit.end {
            let mut scores = [[0.0; LOAD]; LOADS];
            // SAFETY: all lanes are here; the scores have come.
            unsafe {
                wait(block.barrier::<K>(barrier::SCORES_FULL + stream), scores_parity);
                scores_parity ^= 1;
                tcgen05::fence_after();
                for i in 0..LOADS {
                    scores[i] = tcgen05::load_32(columns + (i * LOAD) as u32);
                }
                for i in 0..LOADS {
                    tcgen05::wait_loads_32(&mut scores[i]);
                }
            }
            scaling.apply(&mut scores);
            if mask.hides(token, TOKENS) {
                let (begin, end) = (begin.saturating_sub(token), end.saturating_sub(token));
                for i in 0..LOADS {
                    for j in 0..LOAD {
                        let key = (i * LOAD + j) as u32;
                        if key < begin || key >= end {
                            scores[i][j] = f32::NEG_INFINITY;
                        }
                    }
                }
            }
            let mut largest = max;
            for i in 0..LOADS {
                for j in 0..LOAD {
                    largest = math::max(largest, scores[i][j]);
                }
            }
            // Not so where no key has been seen: the difference is NaN.
            let rises = largest - max > slack::<K>();
            let factor = if rises { math::exp2(max - largest) } else { 1.0 };
            if rises {
                max = largest;
            }
            tell(&mut message_parity, [factor, 0.0]);
            sum *= factor;
            let below = finite(max);
            for i in 0..LOADS {
                for j in 0..LOAD {
                    let x = scores[i][j] - below;
                    // Apart, so that no rounding of the maximum lets a weight exceed the headroom.
                    scores[i][j] = math::exp2(if K::E::HEADROOM == 0.0 { x } else { x + K::E::HEADROOM });
                    // They are rounded to the element's type later: the sum is of what they were.
                    sum += scores[i][j];
                }
                // SAFETY: all lanes are here; all scores have been loaded.
                unsafe { K::E::store_packed(columns + i as u32 * K::E::PACKED, &scores[i]) };
            }
            // SAFETY: all lanes are here.
            unsafe {
                tcgen05::wait_stores();
                tcgen05::fence_before();
                arrive(block.barrier::<K>(barrier::WEIGHTS_FULL + stream));
            }
            token += step;
        }
        tell(&mut message_parity, [max, sum]);
    }
}
