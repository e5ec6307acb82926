//! Online softmax in the exp2 domain (Milakov and Gimelshein, "Online normalizer calculation for softmax").

use super::schedule::key_limit;
use crate::abi::AttentionArguments;
use crate::gpu::tile::{self, Element, Fragment, ROWS};
use crate::gpu::{divide, math};

/// Of each row that the lane holds a part of in one product: the keys it sees, and the running state.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Keys that the row sees: those below.
    limit: [u32; ROWS],
    /// The smallest limit: a chunk that ends at or before it needs no mask.
    lowest_limit: u32,
    /// Largest score so far, times log2(e); minus infinity at first.
    pub(super) max: [f32; ROWS],
    /// This lane's part of the sum of exp2(score - max), scaled by the element's headroom.
    pub(super) sum: [f32; ROWS],
}

impl Rows {
    /// State before the first key, for the packed rows from `first_row` on.
    #[inline(always)]
    pub(super) fn new<E: Element>(a: &AttentionArguments, len: u32, first_row: u32, lane: u32) -> Self {
        let mut limit = [0; ROWS];
        for slot in 0..ROWS {
            limit[slot] = row_limit(a, len, first_row + E::row(lane, slot));
        }
        // Limits rise with the row.
        let lowest_limit = row_limit(a, len, first_row);
        Self { limit, lowest_limit, max: [f32::NEG_INFINITY; ROWS], sum: [0.0; ROWS] }
    }

    /// Scales and masks the raw scores of the keys from `token` on, takes them into the maximum, and rescales `out`
    /// to it.
    ///
    /// # Safety
    /// Every lane of the warp reaches this call.
    #[inline(always)]
    pub(super) unsafe fn update<E: Element, const SF: usize, const OF: usize>(
        &mut self,
        scores: &mut [Fragment; SF],
        out: &mut [Fragment; OF],
        token: u32,
        lane: u32,
        scale_log2: f32,
    ) {
        for f in 0..SF {
            for i in 0..4 {
                scores[f][i] *= scale_log2;
            }
        }
        if token + (SF * E::COLUMNS) as u32 > self.lowest_limit {
            for f in 0..SF {
                for i in 0..4 {
                    if token + E::column(lane, f, i) >= self.limit[tile::slot(i)] {
                        scores[f][i] = f32::NEG_INFINITY;
                    }
                }
            }
        }

        let mut max = self.max;
        for f in 0..SF {
            for i in 0..4 {
                max[tile::slot(i)] = math::max(max[tile::slot(i)], scores[f][i]);
            }
        }
        let mut rescale = [0.0; ROWS];
        for slot in 0..ROWS {
            // SAFETY: the caller's promise.
            max[slot] = unsafe { tile::row_max::<E>(max[slot]) };
            rescale[slot] = math::exp2(self.max[slot] - finite(max[slot]));
            self.sum[slot] *= rescale[slot];
        }
        self.max = max;
        for f in 0..OF {
            for i in 0..4 {
                out[f][i] *= rescale[tile::slot(i)];
            }
        }
    }

    /// The weights of fragments of scores that [`Self::update`] has seen, scaled by the element's headroom, and takes
    /// them into the sum. They are rounded to the element's type later: the sum is of what they were.
    #[inline(always)]
    pub(super) fn weights<E: Element, const W: usize>(&mut self, scores: [Fragment; W]) -> [Fragment; W] {
        let mut weights = scores;
        for f in 0..W {
            for i in 0..4 {
                let below = weights[f][i] - finite(self.max[tile::slot(i)]);
                // Apart, so that no rounding of the maximum lets a weight exceed the headroom.
                weights[f][i] = math::exp2(if E::HEADROOM == 0.0 { below } else { below + E::HEADROOM });
                self.sum[tile::slot(i)] += weights[f][i];
            }
        }
        weights
    }
}

/// Keys that packed row `row` sees. Rows beyond the last one compute on zeros and are not written; they keep the last
/// one's limit. (Not a closure: LLVM would keep the arguments that it refers to in memory, on AMD.)
#[inline(always)]
fn row_limit(a: &AttentionArguments, len: u32, row: u32) -> u32 {
    // SAFETY: group is not 0.
    let (query, _) = unsafe { divide(row.min(a.sq * a.group - 1), a.group) };
    key_limit(a, len, query)
}

/// What to subtract from scores whose maximum is `max`: itself, or 0 where no key was seen, so that minus
/// infinity less the maximum stays minus infinity.
#[inline(always)]
pub(super) fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}
