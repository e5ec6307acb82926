//! The shapes that attention libraries are usually tested on, as tables: FlashAttention's forward, KV-cache and combine
//! matrices, here with every LSE checked, automatic splits, and a group beyond 6.
//!
//! In full on a GPU. Where kernels are interpreted, a part of what is small enough, picked by its place in the table, so
//! that it is the same each time.

use fastrand::Rng;
use rayon::prelude::*;
use splitkv_tests::case::{Case, Known, Kv, Layout, Lengths, Splits, Window};
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
const MASKS: [Mask; 3] = [Mask::None, Mask::Causal, Mask::Local];
const SOFTCAPS: [Option<f32>; 2] = [None, Some(15.0)];
const SINKS: [bool; 2] = [false, true];
const FORWARD_SPLITS: [Splits; 3] = [Splits::Auto, Splits::Exact(1), Splits::Exact(3)];

/// Queries and keys of the KV-cache matrix.
const CACHE: [(usize, usize); 8] =
    [(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 20_000)];
const CACHE_BATCH: usize = 5;
const CACHE_DIMS: [usize; 2] = [64, 128];
/// Tokens of a page; without one the cache is a row of the batch.
const PAGE_SIZES: [Option<usize>; 4] = [None, Some(1), Some(4), Some(128)];
const CACHE_SPLITS: [Splits; 3] = [Splits::Auto, Splits::Exact(1), Splits::Exact(3)];

/// Queries and splits of the combine matrix.
const COMBINE_QUERIES: [usize; 10] = [1, 2, 3, 32, 64, 113, 108, 256, 640, 1024];
const COMBINE_SPLITS: [u32; 9] = [1, 2, 3, 5, 17, 32, 55, 97, 133];
/// Formats of the inputs and of O.
const COMBINE_FORMATS: [(Format, Format); 3] = [(Bf16, F32), (F16, F16), (Bf16, Bf16)];

/// What a case may cost where kernels are interpreted: rows times keys times head dims.
const SMALL: usize = 4 << 20;
/// The same of the KV-cache matrix, which has long KV.
const SMALL_CACHE: usize = 40 << 20;

/// A mask of the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mask {
    None,
    Causal,
    /// A window of random size.
    Local,
}

impl Mask {
    fn apply(self, case: &mut Case) {
        case.causal = self == Self::Causal;
        if self == Self::Local {
            let mut rng = Rng::with_seed(case.seed);
            let mut bound = || Some(rng.u32(..case.sk as u32));
            case.window = Some(Window { left: bound(), right: bound() });
        }
    }
}

fn forward() -> Vec<Case> {
    let mut cases = Vec::new();
    for (sq, sk) in FORWARD {
        for (head_dim_qk, head_dim_v) in DIMS {
            for (kv_heads, group) in if sq < LONG { &HEADS[..] } else { &[(1, 1)] } {
                for (mask, softcap, with_sink) in scores() {
                    // Formats alternate along the table, and so do batches of one and two sequences.
                    let index = cases.len();
                    let format = [Bf16, F16][index / 8 % 2];
                    let batch = if sq < LONG { 1 + index / 16 % 2 } else { 1 };
                    let plain = Case::new(batch, sq, sk, *kv_heads, *group);
                    let sink = with_sink.then(|| vec![Some(1.0), Some(-0.5), None, Some(4.0)]);
                    let seed = index as u64;
                    let mut case =
                        Case { head_dim_qk, head_dim_v, softcap, sink, format, output: format, seed, ..plain };
                    mask.apply(&mut case);
                    cases.push(case);
                }
            }
        }
    }
    cases
}

/// What is done to scores, each with each.
fn scores() -> impl Iterator<Item = (Mask, Option<f32>, bool)> {
    let capped = |mask| SOFTCAPS.into_iter().map(move |softcap| (mask, softcap));
    MASKS.into_iter().flat_map(capped).flat_map(|(mask, softcap)| SINKS.map(|sink| (mask, softcap, sink)))
}

/// Lengths random from 1 to `sk`, known to the device alone. Tables too, where there are pages.
fn cache() -> Vec<Case> {
    let mut cases = Vec::new();
    for (sq, sk) in CACHE {
        for head_dim in CACHE_DIMS {
            for page_size in PAGE_SIZES {
                for (kv_heads, group) in &HEADS[..3] {
                    for causal in [false, true] {
                        let seed = cases.len() as u64;
                        let mut rng = Rng::with_seed(seed);
                        let lengths = (0..CACHE_BATCH).map(|_| rng.u32(1..=sk as u32)).collect();
                        let known = Known::Device;
                        let kv = page_size.map_or(Kv::Dense, |page_size| Kv::Paged {
                            page_size,
                            shared: 0,
                            spare: 0,
                            known,
                        });
                        let layout = [Layout::Contiguous, Layout::Interleaved][cases.len() / 4 % 2];
                        let format = [Bf16, F16][cases.len() / 8 % 2];
                        cases.push(Case {
                            head_dim_qk: head_dim,
                            head_dim_v: head_dim,
                            causal,
                            kv,
                            lengths: Lengths::Device(lengths),
                            layout,
                            format,
                            output: format,
                            seed,
                            ..Case::new(CACHE_BATCH, sq, sk, *kv_heads, *group)
                        });
                    }
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

/// Every `step`th of the cases that cost no more than `small`.
fn thinned(cases: Vec<Case>, small: usize, step: usize) -> Vec<Case> {
    cases.into_iter().filter(|case| cost(case) <= small).step_by(step).collect()
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

/// Runs a matrix: in full, each case with each of `splits`; or its thinned part, whose cases take turns.
fn run_matrix(site: &Site, all: Vec<Case>, thinned: Vec<Case>, splits: &[Splits]) -> usize {
    if !site.is_emulated() {
        // Side by side: a GPU waits for hosts.
        return all.par_iter().map(|case| right(site, case, splits)).sum();
    }
    let one = |(index, case)| right(site, case, &splits[index % splits.len()..][..1]);
    thinned.iter().enumerate().map(one).sum()
}

/// Steps through the small cases of the tables, prime to the number of values of each axis.
const FORWARD_STEP: usize = 17;
const CACHE_STEP: usize = 5;
const COMBINE_STEP: usize = 17;

fn thinned_forward() -> Vec<Case> {
    thinned(forward(), SMALL, FORWARD_STEP)
}

fn thinned_cache() -> Vec<Case> {
    thinned(cache(), SMALL_CACHE, CACHE_STEP)
}

fn thinned_combine() -> Vec<Case> {
    thinned(combine(), SMALL, COMBINE_STEP)
}

#[test]
fn the_forward_matrix() {
    suite("matrix::the_forward_matrix", |site| run_matrix(site, forward(), thinned_forward(), &FORWARD_SPLITS));
}

#[test]
fn the_kv_cache_matrix() {
    suite("matrix::the_kv_cache_matrix", |site| run_matrix(site, cache(), thinned_cache(), &CACHE_SPLITS));
}

#[test]
fn the_combine_matrix() {
    suite("matrix::the_combine_matrix", |site| {
        let one = |case: &Case| right(site, case, &[case.splits]);
        if site.is_emulated() { thinned_combine().iter().map(one).sum() } else { combine().par_iter().map(one).sum() }
    });
}

/// What is left for an emulator still has each value of every axis but the lengths.
#[test]
fn the_thinned_matrices_turn_every_axis() {
    let [forward, cache, combine] = [thinned_forward(), thinned_cache(), thinned_combine()];
    println!("{} of the forward, {} of the cache, {} of the combine matrix", forward.len(), cache.len(), combine.len());
    for dims in DIMS {
        for cases in [&forward, &combine] {
            assert!(cases.iter().any(|case| (case.head_dim_qk, case.head_dim_v) == dims), "{dims:?}");
        }
    }
    for heads in HEADS {
        assert!(forward.iter().any(|case| (case.kv_heads, case.group) == heads), "{heads:?}");
    }
    for (mask, softcap, sink) in scores() {
        for format in [Bf16, F16] {
            let causal = mask == Mask::Causal;
            let has = |case: &Case| (case.causal, case.window.is_some()) == (causal, mask == Mask::Local);
            let is =
                |case: &Case| has(case) && (case.softcap, case.sink.is_some(), case.format) == (softcap, sink, format);
            assert!(forward.iter().any(is), "{mask:?}, {softcap:?}, {sink}, {format:?}");
        }
    }
    for head_dim in CACHE_DIMS {
        for (kv_heads, group) in &HEADS[..3] {
            let is = |case: &&Case| (case.head_dim_v, case.kv_heads, case.group) == (head_dim, *kv_heads, *group);
            assert!(cache.iter().any(|case| is(&case)), "{head_dim}, {kv_heads}/{group}");
        }
    }
    for (kv, causal) in PAGE_SIZES.into_iter().flat_map(|page_size| [(page_size, false), (page_size, true)]) {
        let size = |case: &Case| if let Kv::Paged { page_size, .. } = case.kv { Some(page_size) } else { None };
        let found = cache.iter().any(|case| (size(case), case.causal) == (kv, causal));
        assert!(found, "pages of {kv:?}, causal {causal}");
    }
    for splits in COMBINE_SPLITS {
        assert!(combine.iter().any(|case| case.splits == Splits::Exact(splits)), "{splits}");
    }
    for formats in COMBINE_FORMATS {
        assert!(combine.iter().any(|case| (case.format, case.output) == formats), "{formats:?}");
    }
}
