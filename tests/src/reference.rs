//! Attention, naively, in f64. **This is the specification**: what a kernel computes is right when it agrees
//! with this file up to rounding ([`crate::tolerance`] says how much rounding).
//!
//! ```text
//! raw_j   = scale * (q . k_j)
//! score_j = raw_j                                   no softcap
//! score_j = softcap * tanh(raw_j / softcap)         softcap
//! own     = query + length - queries                the query's own key: aligned at the bottom right, so that
//!                                                   the last query's is the last key of its sequence
//! visible = { j < length : own - left <= j <= own + right }, and j <= own if causal
//! LSE     = ln(sum_(j visible) exp(score_j) + exp(sink))            natural logarithm
//! O       = sum_(j visible) exp(score_j) * v_j / exp(LSE)
//! ```
//! Without a window `left` and `right` are unbounded; without a sink its logit is -inf. A query that sees no key has
//! O = 0 and LSE = sink. Query head `h` reads KV head `h / (heads / kv_heads)`. Where the vectors of a sequence lie,
//! in rows of a batch, packed or in pages, is [`Place::start`]'s to say.

use std::ops::Range;

use crate::places::Place;

/// A tensor in memory.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The memory that the tensor lies in, with whatever else lies there.
    pub values: &'a [f64],
    /// Where its vectors are.
    pub place: &'a Place,
}

impl<'a> View<'a> {
    /// The vector of one head at one position of a sequence.
    pub fn vector(&self, sequence: usize, position: usize, head: usize) -> &'a [f64] {
        &self.values[self.place.start(sequence, position, head)..][..self.place.shape[3]]
    }
}

/// Which keys queries see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    /// No key behind the query's own.
    pub causal: bool,
    /// At most so many keys before the query's own.
    pub left: Option<usize>,
    /// At most so many keys behind it.
    pub right: Option<usize>,
}

impl Mask {
    /// The keys that query `query` of `queries` sees of `length`.
    pub fn keys(&self, query: usize, queries: usize, length: usize) -> Range<usize> {
        let own = query as i64 + length as i64 - queries as i64;
        let right = if self.causal { Some(0) } else { self.right };
        let first = self.left.map_or(0, |left| own - left as i64).max(0);
        let end = right.map_or(length as i64, |right| own + right as i64 + 1).min(length as i64);
        first as usize..end.max(first) as usize
    }
}

/// A problem with its data.
#[derive(Clone, Debug)]
pub struct Attention<'a> {
    /// Q: `heads` vectors of `head_dim_qk` at each position.
    pub q: View<'a>,
    /// K: `kv_heads` vectors of `head_dim_qk`.
    pub k: View<'a>,
    /// V: `kv_heads` vectors of `head_dim_v`.
    pub v: View<'a>,
    /// Queries of each sequence.
    pub queries: &'a [usize],
    /// KV length of each sequence.
    pub lengths: &'a [usize],
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Which keys queries see.
    pub mask: Mask,
    /// Softmax scale.
    pub scale: f64,
    /// Cap of the scores.
    pub softcap: Option<f64>,
    /// Each query head's sink, a logit.
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Keys that a query sees.
    pub fn keys(&self, sequence: usize, query: usize) -> Range<usize> {
        self.mask.keys(query, self.queries[sequence], self.lengths[sequence])
    }

    /// The KV head that a query head reads.
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// The logit of a query head's sink; -inf: none.
    pub fn sink(&self, head: usize) -> f64 {
        self.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]))
    }

    /// The score of each visible key.
    #[inline(always)]
    pub fn scores(&self, [sequence, query, head]: [usize; 3]) -> Vec<f64> {
        let q = self.q.vector(sequence, query, head);
        let score = |key| {
            let raw = self.scale * dot(q, self.k.vector(sequence, key, self.kv_head(head)));
            self.softcap.map_or(raw, |cap| cap * (raw / cap).tanh())
        };
        let mut scores = Vec::new();
        for key in self.keys(sequence, query) {
            scores.push(score(key));
        }
        scores
    }

    /// O and LSE of a row with these scores.
    #[inline(always)]
    pub fn row(&self, [sequence, query, head]: [usize; 3], scores: &[f64]) -> (Vec<f64>, f64) {
        let max = scores.iter().copied().fold(self.sink(head), f64::max);
        let zero = vec![0.0; self.v.place.shape[3]];
        if max == f64::NEG_INFINITY {
            return (zero, max);
        }
        let exponentials: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum = exponentials.iter().sum::<f64>() + (self.sink(head) - max).exp();
        let weights: Vec<f64> = exponentials.iter().map(|exponential| exponential / sum).collect();
        let o = sum_over_keys(&weights, &self.values([sequence, query, head]), &zero, |term| term);
        (o, max + sum.ln())
    }

    /// The value of each visible key.
    pub fn values(&self, [sequence, query, head]: [usize; 3]) -> Vec<&[f64]> {
        self.keys(sequence, query).map(|key| self.v.vector(sequence, key, self.kv_head(head))).collect()
    }
}

#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    sum_of(a, b, |a, b| a * b)
}

/// Sums that a CPU computes side by side: one alone would wait for itself at each term.
const LANES: usize = 8;

/// Of each element, the sum of `term(weight * (value - centre))` over the keys.
#[inline(always)]
pub fn sum_over_keys(weights: &[f64], values: &[&[f64]], centres: &[f64], term: impl Fn(f64) -> f64) -> Vec<f64> {
    let dim = centres.len();
    let mut sums = vec![0.0; dim];
    // Four keys at a time: the sums are loaded and stored once for them.
    for (weights, values) in weights.chunks(4).zip(values.chunks(4)) {
        if let ([wa, wb, wc, wd], [a, b, c, d]) = (weights, values) {
            let (a, b, c, d) = (&a[..dim], &b[..dim], &c[..dim], &d[..dim]);
            for i in 0..dim {
                let at = |weight: f64, value: &[f64]| term(weight * (value[i] - centres[i]));
                sums[i] += (at(*wa, a) + at(*wb, b)) + (at(*wc, c) + at(*wd, d));
            }
        } else {
            for (weight, values) in weights.iter().zip(values) {
                for ((sum, value), centre) in sums.iter_mut().zip(*values).zip(centres) {
                    *sum += term(weight * (value - centre));
                }
            }
        }
    }
    sums
}

/// The sum of `term` over the elements of two vectors.
#[inline(always)]
pub fn sum_of(a: &[f64], b: &[f64], term: impl Fn(f64, f64) -> f64) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += term(a[lane], b[lane]);
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| term(*a, *b));
    sums.into_iter().chain(rest).sum()
}
