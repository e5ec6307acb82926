//! What a problem needs: bytes and operations, and its sizes for reports.

use serde::Serialize;
use splitkv::{KvLens, Problem};

use crate::reference::lengths;

/// The sizes of a problem, for reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Sizes {
    batch: usize,
    sq: usize,
    sk: usize,
    heads: usize,
    kv_heads: usize,
    head_dim_qk: usize,
    head_dim_v: usize,
    dtype: String,
    causal: bool,
    /// KV length of each sequence, where they differ.
    kv_lens: Option<Vec<u32>>,
}

impl Sizes {
    pub(crate) fn of(problem: &Problem) -> Self {
        Self {
            batch: problem.batch,
            sq: problem.sq,
            sk: problem.sk,
            heads: problem.heads,
            kv_heads: problem.kv_heads,
            head_dim_qk: problem.head_dim_qk,
            head_dim_v: problem.head_dim_v,
            dtype: problem.dtype.to_string(),
            causal: problem.causal,
            kv_lens: match &problem.kv_lens {
                KvLens::Host(lens) => Some(lens.clone()),
                KvLens::Full | KvLens::Device => None,
            },
        }
    }
}

/// A problem in a few characters: `B1 Q70 K16384 H12/12 D192/128`; `~` where lengths are ragged, the longest given.
pub(crate) fn describe(problem: &Problem) -> String {
    let Problem { batch, sq, sk, heads, kv_heads, head_dim_qk, head_dim_v, .. } = problem;
    let ragged = if problem.kv_lens == KvLens::Full { "" } else { "~" };
    let dim_v = if head_dim_v == head_dim_qk { String::new() } else { format!("/{head_dim_v}") };
    format!("B{batch} Q{sq} K{ragged}{sk} H{heads}/{kv_heads} D{head_dim_qk}{dim_v}")
}

/// The least that a problem moves and computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Work {
    /// Bytes of K and V, up to each sequence's length.
    pub(crate) kv_bytes: f64,
    /// Bytes of Q, K, V and O.
    pub(crate) bytes: f64,
    /// Two for each multiply-add of `Q K^T` and `P V`, hidden keys left out: 4 B Q K H D without a mask.
    pub(crate) flops: f64,
}

impl Work {
    pub(crate) fn of(problem: &Problem) -> Self {
        let lengths = lengths(problem);
        let visible = |len: usize, query: usize| {
            if problem.causal { (query + 1 + len).saturating_sub(problem.sq) } else { len }
        };
        let pairs: usize =
            lengths.iter().map(|&len| (0..problem.sq).map(|query| visible(len, query)).sum::<usize>()).sum();
        let (dims, element) = (problem.head_dim_qk + problem.head_dim_v, problem.dtype.size_of());
        let rows = problem.batch * problem.sq * problem.heads;
        let kv_bytes = (lengths.iter().sum::<usize>() * problem.kv_heads * dims * element) as f64;
        let row_bytes = problem.head_dim_qk * element + problem.head_dim_v * problem.o_dtype.size_of();
        Self {
            kv_bytes,
            bytes: kv_bytes + (rows * row_bytes) as f64,
            flops: 2.0 * (pairs * problem.heads * dims) as f64,
        }
    }

    /// Operations for each byte.
    pub(crate) fn arithmetic_intensity(&self) -> f64 {
        self.flops / self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use splitkv::DType;

    #[test]
    fn the_default_sweep_has_the_published_intensity() {
        let work = Work::of(&Problem::new(1, 32, 32, 1, 131_072, 128, DType::Bf16));
        assert_eq!(work.flops, 4.0 * 131_072.0 * 32.0 * 128.0);
        assert_eq!(work.kv_bytes, 2.0 * 2.0 * 131_072.0 * 32.0 * 128.0);
        assert_eq!(format!("{:.15}", work.arithmetic_intensity()), "0.999992370663676");
    }

    #[test]
    fn lengths_masks_and_head_dims_count() {
        let problem = Problem::new(2, 6, 3, 4, 100, 192, DType::F16).head_dim_v(128);
        let full = Work::of(&problem);
        assert_eq!(full.kv_bytes, 2.0 * 100.0 * 3.0 * 320.0 * 2.0);
        assert_eq!(full.bytes - full.kv_bytes, 2.0 * 4.0 * 6.0 * 320.0 * 2.0);
        assert_eq!(full.flops, 2.0 * (2 * 4 * 100 * 6 * 320) as f64);
        let ragged = Work::of(&problem.clone().kv_lens(KvLens::Host(vec![100, 2])));
        assert_eq!(ragged.kv_bytes, 102.0 * 3.0 * 320.0 * 2.0);
        // Of 4 queries and 2 keys, 0, 0, 1 and 2 are visible; of 100, 97 to 100.
        let causal = Work::of(&problem.causal(true).kv_lens(KvLens::Host(vec![100, 2])));
        assert_eq!(causal.flops, 2.0 * f64::from((97 + 98 + 99 + 100 + 3) * 6 * 320));
    }

    #[test]
    fn problems_are_short_to_read() {
        let problem = Problem::new(1, 12, 12, 70, 16_384, 192, DType::Bf16).head_dim_v(128);
        assert_eq!(describe(&problem), "B1 Q70 K16384 H12/12 D192/128");
        let ragged = Problem::new(2, 8, 2, 1, 50, 128, DType::Bf16).kv_lens(KvLens::Host(vec![1, 50]));
        assert_eq!(describe(&ragged), "B2 Q1 K~50 H8/2 D128");
    }
}
