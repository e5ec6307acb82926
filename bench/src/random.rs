//! Decodes drawn at random.

use std::ops::RangeInclusive;

use splitkv::{DType, KvLens, Problem};

/// Sequences.
const BATCH: RangeInclusive<usize> = 1..=256;
/// Tokens of the longest sequence.
const TOKENS: RangeInclusive<usize> = 128..=131_072;
/// KV heads.
const KV_HEADS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Query heads that share a KV head.
const GROUP: RangeInclusive<usize> = 1..=16;
const DIM: usize = 128;
/// Most bytes of K and V, room beyond the lengths included.
const MOST_BYTES: usize = 16 << 30;

/// `count` decodes, always the same ones for a seed: one query a sequence, head dim 128, sizes spread evenly over
/// their orders of magnitude; in every other one lengths are ragged: at random up to the longest.
pub(crate) fn shapes(count: usize, seed: u64, dtype: DType) -> Vec<Problem> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|index| shape(&mut rng, index % 2 == 1, dtype)).collect()
}

fn shape(rng: &mut fastrand::Rng, ragged: bool, dtype: DType) -> Problem {
    loop {
        let (batch, tokens) = (log_uniform(rng, BATCH), log_uniform(rng, TOKENS));
        let kv_heads = KV_HEADS[rng.usize(..KV_HEADS.len())];
        let group = rng.usize(GROUP);
        if batch * tokens * kv_heads * 2 * DIM * dtype.size_of() > MOST_BYTES {
            continue;
        }
        let problem = Problem::new(batch, kv_heads * group, kv_heads, 1, tokens, DIM, dtype);
        if !ragged {
            return problem;
        }
        let mut lens: Vec<u32> = (0..batch).map(|_| rng.u32(1..=tokens as u32)).collect();
        lens[rng.usize(..batch)] = tokens as u32;
        return problem.kv_lens(KvLens::Host(lens));
    }
}

/// A number whose logarithm is spread evenly.
fn log_uniform(rng: &mut fastrand::Rng, range: RangeInclusive<usize>) -> usize {
    let (low, high) = (*range.start() as f64, *range.end() as f64);
    ((low * (high / low).powf(rng.f64())).round() as usize).clamp(*range.start(), *range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_shapes() {
        assert_eq!(shapes(30, 7, DType::Bf16), shapes(30, 7, DType::Bf16));
        assert_eq!(shapes(30, 7, DType::Bf16)[..10], shapes(10, 7, DType::Bf16));
        assert_ne!(shapes(30, 7, DType::Bf16), shapes(30, 8, DType::Bf16));
    }

    #[test]
    fn shapes_are_valid_and_within_limits() {
        let drawn = shapes(600, 1, DType::Bf16);
        for problem in &drawn {
            problem.validate().unwrap();
            assert!((1..=256).contains(&problem.batch) && (128..=131_072).contains(&problem.sk), "{problem}");
            assert!((1..=16).contains(&problem.group()) && problem.sq == 1, "{problem}");
            let bytes = problem.batch * problem.sk * problem.kv_heads * 128 * 2 * 2;
            assert!(bytes <= 16 << 30, "{problem}");
            if let KvLens::Host(lens) = &problem.kv_lens {
                assert_eq!(lens.iter().max(), Some(&(problem.sk as u32)));
                assert!(lens.iter().all(|&len| len >= 1));
            }
        }
        // The whole range is drawn from.
        assert_eq!(drawn.iter().filter(|problem| problem.kv_lens != KvLens::Full).count(), 300);
        assert!(drawn.iter().any(|problem| problem.batch == 1) && drawn.iter().any(|problem| problem.batch > 200));
        assert!(drawn.iter().any(|problem| problem.sk < 200) && drawn.iter().any(|problem| problem.sk > 100_000));
        for group in 1..=16 {
            assert!(drawn.iter().any(|problem| problem.group() == group), "no group {group}");
        }
    }
}
