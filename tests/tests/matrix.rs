//! The shapes that attention libraries are usually tested on, as tables: FlashAttention's forward and combine matrices,
//! here with every LSE checked, automatic splits, and a group beyond 6.
//!
//! Left out until the product has them: a local window, softcap, a sink; and the KV-cache matrix with its page tables.
//!
//! In full on a GPU. Where kernels are interpreted, a part of what is small enough, picked by its place in the table, so
//! that it is the same each time.

use splitkv_tests::case::{Case, Lengths, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::run;
use splitkv_tests::numeric::Format::{self, Bf16, F16, F32};
use splitkv_tests::site::{Site, suite};

/// Head dims of Q and K, and of V.
const DIMS: [(usize, usize); 5] = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)];

/// Queries and keys of the forward matrix.
const FORWARD: [(usize, usize); 26] = [
    (1, 1),
    (3, 3),
    (64, 32),
    (64, 128),
    (64, 1),
    (128, 128),
    (128, 192),
    (256, 256),
    (255, 256),
    (239, 1),
    (799, 3),
    (113, 203),
    (113, 128),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (384, 256),
    (640, 128),
    (512, 256),
    (1024, 1024),
    (1023, 1024),
    (1024, 1023),
    (2048, 2048),
    (4096, 4096),
    (4224, 4224),
];
/// KV heads, and query heads of each.
const HEADS: [(usize, usize); 4] = [(6, 1), (3, 2), (1, 6), (1, 12)];
/// With so many queries or more there is one head, for the reference's sake.
const LONG: usize = 2048;
const FORWARD_SPLITS: [Splits; 3] = [Splits::Auto, Splits::Exact(1), Splits::Exact(3)];

/// Queries and splits of the combine matrix.
const COMBINE_QUERIES: [usize; 10] = [1, 2, 3, 32, 64, 113, 108, 256, 640, 1024];
const COMBINE_SPLITS: [u32; 9] = [1, 2, 3, 5, 17, 32, 55, 97, 133];
/// Formats of the inputs and of O.
const COMBINE_FORMATS: [(Format, Format); 3] = [(Bf16, F32), (F16, F16), (Bf16, Bf16)];

/// What a case may cost where kernels are interpreted: rows times keys times head dims.
const SMALL: usize = 4 << 20;

fn forward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (sq, sk) in FORWARD {
        for (head_dim_qk, head_dim_v) in DIMS {
            for (kv_heads, group) in if sq < LONG { &HEADS[..] } else { &[(1, 1)] } {
                for causal in [false, true] {
                    // Formats alternate along the table, and so do batches of one and two sequences.
                    let index = cases.len();
                    let format = [Bf16, F16][index / 8 % 2];
                    let batch = if sq < LONG { 1 + index / 16 % 2 } else { 1 };
                    let plain = Case::new(batch, sq, sk, *kv_heads, *group);
                    let seed = index as u64;
                    cases.push(Case { head_dim_qk, head_dim_v, causal, format, output: format, seed, ..plain });
                }
            }
        }
    }
    cases
}

/// Two sequences, one of them shorter, so that many of its splits are empty; the other has a key or so for each.
fn combine() -> Vec<Case> {
    let mut cases = Vec::new();
    for sq in COMBINE_QUERIES {
        for (head_dim_qk, head_dim_v) in DIMS {
            for splits in COMBINE_SPLITS {
                for (format, output) in COMBINE_FORMATS {
                    let sk = 32 * splits + 7;
                    let (lengths, splits) = (Lengths::Device(vec![sk, sk / 5]), Splits::Exact(splits));
                    let plain = Case::new(2, sq, sk as usize, 1, 1);
                    let seed = cases.len() as u64;
                    cases.push(Case { head_dim_qk, head_dim_v, lengths, splits, format, output, seed, ..plain });
                }
            }
        }
    }
    cases
}

fn cost(case: &Case) -> usize {
    case.batch * case.heads() * case.sq * case.sk * (case.head_dim_qk + case.head_dim_v)
}

/// Every `step`th of the small cases.
fn thinned(cases: Vec<Case>, step: usize) -> Vec<Case> {
    cases.into_iter().filter(|case| cost(case) <= SMALL).step_by(step).collect()
}

/// Runs a case with each of `splits` and compares with the reference.
fn right(site: &Site, case: &Case, splits: &[Splits]) -> usize {
    let tensors = Tensors::new(case);
    let expected = tensors.expected(case);
    for splits in splits {
        let case = Case { splits: *splits, ..case.clone() };
        let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
        compare(&case, &expected, &bits.output(&case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    }
    splits.len()
}

/// Steps through the small cases of the tables, prime to the number of values of each axis.
const FORWARD_STEP: usize = 7;
const COMBINE_STEP: usize = 17;

#[test]
fn the_forward_matrix() {
    suite("matrix::the_forward_matrix", |site| {
        if !site.is_emulated() {
            return forward().iter().map(|case| right(site, case, &FORWARD_SPLITS)).sum();
        }
        let one = |(index, case)| right(site, case, &FORWARD_SPLITS[index % FORWARD_SPLITS.len()..][..1]);
        thinned(forward(), FORWARD_STEP).iter().enumerate().map(one).sum()
    });
}

#[test]
fn the_combine_matrix() {
    suite("matrix::the_combine_matrix", |site| {
        let cases = if site.is_emulated() { thinned(combine(), COMBINE_STEP) } else { combine() };
        cases.iter().map(|case| right(site, case, &[case.splits])).sum()
    });
}

/// What is left for an emulator still has each value of every axis but the lengths.
#[test]
fn the_thinned_matrices_turn_every_axis() {
    let forward = thinned(forward(), FORWARD_STEP);
    let combine = thinned(combine(), COMBINE_STEP);
    println!("{} of the forward matrix, {} of the combine matrix", forward.len(), combine.len());
    for dims in DIMS {
        for cases in [&forward, &combine] {
            assert!(cases.iter().any(|case| (case.head_dim_qk, case.head_dim_v) == dims), "{dims:?}");
        }
    }
    for heads in HEADS {
        assert!(forward.iter().any(|case| (case.kv_heads, case.group) == heads), "{heads:?}");
    }
    for (causal, format) in [(false, Bf16), (false, F16), (true, Bf16), (true, F16)] {
        let is = |case: &Case| (case.causal, case.format) == (causal, format);
        assert!(forward.iter().any(is), "causal {causal}, {format:?}");
    }
    for splits in COMBINE_SPLITS {
        assert!(combine.iter().any(|case| case.splits == Splits::Exact(splits)), "{splits}");
    }
    for formats in COMBINE_FORMATS {
        assert!(combine.iter().any(|case| (case.format, case.output) == formats), "{formats:?}");
    }
}
