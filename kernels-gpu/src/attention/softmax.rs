//! Online softmax in the exp2 domain (Milakov and Gimelshein, "Online normalizer calculation for softmax").

use super::sequence::{Sequence, sight};
use crate::abi::AttentionArguments;
use crate::gpu::arguments::Arguments;
use crate::gpu::tile::{self, Element, Fragment, ROWS};
use crate::gpu::{divide, math, warp};

/// What is done to raw scores before the mask.
#[derive(Clone, Copy)]
pub(super) struct Scaling {
    /// Softmax scale times log2(e); with a softcap, times 2 log2(e) / cap. Of 8-bit values with their factors.
    scale_log2: f32,
    /// Softcap times log2(e), or 0: none.
    softcap_log2: f32,
}

impl Scaling {
    #[inline(always)]
    pub(super) fn new(a: &AttentionArguments, scale_log2: f32) -> Self {
        Self { scale_log2, softcap_log2: a.softcap_log2 }
    }

    /// Scores in the exp2 domain, in `SF` fragments of `N`.
    #[inline(always)]
    pub(super) fn apply<const SF: usize, const N: usize>(self, scores: &mut [[f32; N]; SF]) {
        for f in 0..SF {
            for i in 0..N {
                scores[f][i] *= self.scale_log2;
            }
        }
        if self.softcap_log2 != 0.0 {
            for f in 0..SF {
                for i in 0..N {
                    // tanh(x) = 1 - 2 / (exp(2 x) + 1).
                    let part = math::reciprocal(math::exp2(scores[f][i]) + 1.0);
                    scores[f][i] = math::fma(-2.0 * part, self.softcap_log2, self.softcap_log2);
                }
            }
        }
    }
}

/// Scales the raw scores of the keys from `token` on by `scale_log2` and masks them, of the product whose rows begin `offset` behind the
/// warp's.
#[inline(always)]
pub(super) fn prepare<E: Element, const SF: usize>(
    a: &Arguments,
    scale_log2: f32,
    mask: &Mask,
    scores: &mut [Fragment; SF],
    offset: u32,
    token: u32,
    lane: u32,
) {
    Scaling::new(a.hot(), scale_log2).apply(scores);
    mask.apply::<E, SF>(a, scores, offset, token, lane);
}

/// Which keys a warp's rows see.
#[derive(Clone, Copy)]
pub(super) struct Mask {
    sequence: Sequence,
    /// Packed row that is the warp's first one.
    first_row: u32,
    /// All its rows see the keys from `begin` to `end`: a chunk between them needs no mask.
    begin: u32,
    end: u32,
}

impl Mask {
    /// That of the packed rows from `first_row` to `last_row`.
    #[inline(always)]
    pub(super) fn new(a: &AttentionArguments, sequence: Sequence, first_row: u32, last_row: u32) -> Self {
        let sight = sight(a, &sequence);
        let query = |row| query(row, &sequence, a.group);
        // Both ends rise with the row.
        let (begin, end) = (sight.begin(query(last_row)), sight.end(query(first_row)));
        Self { sequence, first_row, begin: warp::uniform(begin), end: warp::uniform(end) }
    }

    /// Whether some row does not see one of the `tokens` keys from `token` on.
    #[inline(always)]
    pub(super) fn hides(&self, token: u32, tokens: u32) -> bool {
        token < self.begin || token + tokens > self.end
    }

    /// Begin and end of the keys that a row sees, `offset` behind the first one.
    #[cfg(splitkv_target = "sm_100f")]
    #[inline(always)]
    pub(super) fn keys(&self, a: &AttentionArguments, offset: u32) -> (u32, u32) {
        let sight = sight(a, &self.sequence);
        let query = query(self.first_row + offset, &self.sequence, a.group);
        (sight.begin(query), sight.end(query))
    }

    /// Hides the scores of the keys from `token` on that a row does not see, of the product whose rows begin `offset`
    /// behind the warp's. What it needs is found anew: few chunks lie at an edge, and registers are full.
    #[inline(always)]
    fn apply<E: Element, const SF: usize>(
        &self,
        a: &Arguments,
        scores: &mut [Fragment; SF],
        offset: u32,
        token: u32,
        lane: u32,
    ) {
        if !self.hides(token, (SF * E::COLUMNS) as u32) {
            return;
        }
        let a = a.all();
        let sight = sight(&a, &self.sequence);
        let mut position = [0; ROWS];
        for slot in 0..ROWS {
            let row = self.first_row + offset + E::row(lane, slot);
            position[slot] = sight.position(query(row, &self.sequence, a.group));
        }
        for f in 0..SF {
            for i in 0..4 {
                if !sight.sees(position[tile::slot(i)], token + E::column(lane, f, i)) {
                    scores[f][i] = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Query of packed row `row`. Rows beyond the last one compute on zeros and are not written; they see what that one sees.
#[inline(always)]
fn query(row: u32, sequence: &Sequence, group: u32) -> u32 {
    let last = (sequence.queries * group).saturating_sub(1);
    // SAFETY: group is not 0.
    unsafe { divide(row.min(last), group) }.0
}

/// Running state of each row that the lane holds a part of in one product.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Largest score so far, times log2(e); minus infinity at first.
    pub(super) max: [f32; ROWS],
    /// This lane's part of the sum of exp2(score - max), scaled by the element's headroom.
    pub(super) sum: [f32; ROWS],
}

impl Rows {
    /// State before the first key.
    pub(super) const NONE: Self = Self { max: [f32::NEG_INFINITY; ROWS], sum: [0.0; ROWS] };

    /// Takes scores, scaled and masked, into the maximum, and rescales `out` to it.
    ///
    /// # Safety
    /// Every lane of the warp reaches this call.
    #[inline(always)]
    pub(super) unsafe fn update<E: Element, const SF: usize, const OF: usize>(
        &mut self,
        scores: &[Fragment; SF],
        out: &mut [Fragment; OF],
    ) {
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

/// What to subtract from scores whose maximum is `max`: itself, or 0 where no key was seen, so that minus
/// infinity less the maximum stays minus infinity.
#[inline(always)]
pub(super) fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}
