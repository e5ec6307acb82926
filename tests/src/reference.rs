//! Attention, naively, in f64. **This is the specification**: what a kernel computes is right when it agrees
//! with this file up to rounding ([`crate::tolerance`] says how much rounding).
//!
//! ```text
//! score_j = scale * (q . k_j)                       j < visible(sequence, query)
//! LSE     = ln(sum_j exp(score_j))                  natural logarithm
//! O       = sum_j exp(score_j) * v_j / sum_j exp(score_j)
//! visible = length                                  not causal
//! visible = max(0, query + 1 + length - sq)         causal: aligned at the bottom right, so that the last
//!                                                   query sees every key of its sequence
//! ```
//! A query that sees no key has O = 0 and LSE = -inf. Query head `h` reads KV head `h / (heads / kv_heads)`.

/// A tensor `[batch, seq, heads, dim]` in memory, the last dimension contiguous.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The memory that the tensor lies in, with whatever else lies there.
    pub values: &'a [f64],
    /// Element at which the tensor begins.
    pub offset: usize,
    /// Distance in elements between batches, sequence positions and heads.
    pub strides: [usize; 3],
    /// Head dim.
    pub dim: usize,
}

impl View<'_> {
    /// The vector of one head at one position.
    pub fn vector(&self, batch: usize, position: usize, head: usize) -> &[f64] {
        let [b, s, h] = self.strides;
        let start = self.offset + batch * b + position * s + head * h;
        &self.values[start..start + self.dim]
    }
}

/// A problem with its data.
#[derive(Clone, Debug)]
pub struct Attention<'a> {
    /// Q `[batch, sq, heads, head_dim_qk]`.
    pub q: View<'a>,
    /// K `[batch, sk, kv_heads, head_dim_qk]`.
    pub k: View<'a>,
    /// V `[batch, sk, kv_heads, head_dim_v]`.
    pub v: View<'a>,
    /// Queries of each sequence.
    pub sq: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// KV length of each sequence.
    pub lengths: &'a [usize],
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// Softmax scale.
    pub scale: f64,
}

impl Attention<'_> {
    /// Keys that a query sees: the first ones of its sequence, this many.
    pub fn visible(&self, batch: usize, query: usize) -> usize {
        let length = self.lengths[batch];
        if self.causal { (query + 1 + length).saturating_sub(self.sq) } else { length }
    }

    /// The KV head that a query head reads.
    pub fn kv_head(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// The score of each visible key.
    pub fn scores(&self, batch: usize, query: usize, head: usize) -> Vec<f64> {
        let q = self.q.vector(batch, query, head);
        (0..self.visible(batch, query))
            .map(|j| self.scale * dot(q, self.k.vector(batch, j, self.kv_head(head))))
            .collect()
    }

    /// O and LSE of a row with these scores.
    pub fn row(&self, batch: usize, head: usize, scores: &[f64]) -> (Vec<f64>, f64) {
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut o = vec![0.0; self.v.dim];
        if scores.is_empty() {
            return (o, max);
        }
        let exponentials: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        for (j, exponential) in exponentials.iter().enumerate() {
            for (o, v) in o.iter_mut().zip(self.v.vector(batch, j, self.kv_head(head))) {
                *o += exponential / sum * v;
            }
        }
        (o, max + sum.ln())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
