//! The comparison notices faults, and does not cry wolf: a model of a split-KV kernel, in fp32 with 16-bit
//! probabilities as the GPU's matrix units force them, passes on random cases, and fails with each fault in it.

use std::ops::Range;

use proptest::test_runner::{Config, RngSeed, TestRunner};
use rayon::prelude::*;
use splitkv_tests::case::{Case, Data, Known, Kv, Layout, Lengths, Queries, Splits, Window};
use splitkv_tests::compare::{Output, compare};
use splitkv_tests::data::Tensors;
use splitkv_tests::numeric::Format;
use splitkv_tests::places::Place;
use splitkv_tests::strategy::{Budget, TILE_N, cases};

/// What the model does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A tile in the middle is left out.
    DroppedTile,
    /// A tile in the middle is taken twice.
    DoubledTile,
    /// A tile in the middle is taken in place of the next one.
    WrongTile,
    /// A warp's chunk of V is taken from the chunk before.
    StaleChunkOfV,
    /// Eight tokens are weighed, but their V is not added.
    EightTokensOfVLost,
    /// A query sees one key too few.
    CausalShort,
    /// A query sees one key too many.
    CausalLong,
    /// The last key of the sequence is not seen.
    LastKeyLost,
    /// O is not divided by the sum.
    Unnormalised,
    /// The accumulator is not scaled when the maximum grows.
    NotRescaled,
    /// The second split is not merged.
    LostSplit,
    /// The splits' mean is taken without their weights.
    UnweightedMerge,
    /// An empty split enters with weight 1.
    EmptySplitCounts,
    /// The LSE is to base 2.
    BaseTwo,
    /// The KV head is `head % kv_heads`.
    InterleavedHeads,
    /// Probabilities have bf16's precision whatever the format.
    CoarseProbabilities,
    /// A window has one key too few on its left.
    WindowShort,
    /// A window has one key too many on its left.
    WindowLong,
    /// The masks are aligned to the most queries of a sequence, not to its own.
    AlignedToMost,
    /// The softcap is left out.
    Uncapped,
    /// The mask comes before the softcap: a masked key has the score -cap.
    CappedAfterMask,
    /// The scale comes after the softcap.
    ScaledAfterCap,
    /// The sink has no weight.
    SinkLost,
    /// The sink enters in each split.
    SinkInEachSplit,
    /// A KV head's sink in place of a query head's.
    SinkOfKvHead,
    /// A sink's logit is taken to base 2.
    SinkToBaseTwo,
    /// A page in the middle is taken from the beginning of the sequence.
    WrongPage,
}

/// One row's running state.
struct Running {
    max: f32,
    sum: f32,
    o: Vec<f32>,
}

/// A decoded tensor's vector.
type Get<'a> = dyn Fn(usize, usize, usize) -> &'a [f64] + 'a;

fn model<'a>(case: &Case, tensors: &'a Tensors, splits: usize, fault: Option<Fault>) -> Output {
    let decoded = tensors.decoded(case);
    let get = |tensor: usize, place: &'a Place| {
        let values = &decoded[tensor];
        move |b, s, h| &values[place.start(b, s, h)..][..place.shape[3]]
    };
    let (q, k, v) = (get(0, &tensors.places.q), get(1, &tensors.places.k), get(2, &tensors.places.v));
    let (lengths, queries) = (case.lengths(), case.query_lengths());
    let rows = case.rows();
    let mut output = Output { o: Vec::new(), lse: case.lse.then(|| vec![0.0; rows.len()]) };
    for ([b, i, h], lse_at) in rows.into_iter().zip(case.lse_rows()) {
        let length = lengths[b];
        let kv_head = if fault == Some(Fault::InterleavedHeads) { h % case.kv_heads } else { h / case.group };
        let mut mask = case.mask();
        match fault {
            Some(Fault::WindowShort) => mask.left = mask.left.map(|left| left - 1),
            Some(Fault::WindowLong) => mask.left = mask.left.map(|left| left + 1),
            _ => {}
        }
        let aligned = if fault == Some(Fault::AlignedToMost) { case.sq } else { queries[b] };
        let mut keys = mask.keys(i, aligned, length);
        match fault {
            Some(Fault::CausalShort) if case.causal => keys.end = keys.end.saturating_sub(1),
            Some(Fault::CausalLong) if case.causal => keys.end = (keys.end + 1).min(length),
            Some(Fault::LastKeyLost) => keys.end = keys.end.min(length.saturating_sub(1)),
            _ => {}
        }
        let row = (q(b, i, h), kv_head, b);
        let mut parts: Vec<_> =
            (0..splits).map(|split| part(case, row, (length, &keys), (split, splits), (&k, &v), fault)).collect();
        let sink = sink(case, h, fault);
        if fault == Some(Fault::SinkInEachSplit) {
            parts.iter_mut().for_each(|part| *part = with_sink(part, sink));
        }
        let (o, lse) = with_sink(&merge(&parts, fault), sink);
        output.o.push(o.iter().map(|o| case.output.round(f64::from(*o))).collect());
        if let Some(lses) = &mut output.lse {
            let base = if fault == Some(Fault::BaseTwo) { std::f32::consts::LN_2 } else { 1.0 };
            lses[lse_at] = f64::from(lse / base);
        }
    }
    output
}

/// The logit of a head's sink.
fn sink(case: &Case, head: usize, fault: Option<Fault>) -> f32 {
    let Some(sinks) = case.sinks() else { return f32::NEG_INFINITY };
    match fault {
        Some(Fault::SinkLost) => f32::NEG_INFINITY,
        Some(Fault::SinkOfKvHead) => sinks[head / case.group],
        Some(Fault::SinkToBaseTwo) => sinks[head] * std::f32::consts::LN_2,
        _ => sinks[head],
    }
}

/// A row once a sink has taken its part.
fn with_sink((o, lse): &(Vec<f32>, f32), sink: f32) -> (Vec<f32>, f32) {
    let max = lse.max(sink);
    if max == f32::NEG_INFINITY {
        return (o.clone(), max);
    }
    let sum = (lse - max).exp() + (sink - max).exp();
    let weight = (lse - max).exp() / sum;
    (o.iter().map(|o| o * weight).collect(), max + sum.ln())
}

/// The score of a raw product.
fn score(case: &Case, product: f32, fault: Option<Fault>) -> f32 {
    let scale = case.scale() as f32;
    match case.softcap {
        None => scale * product,
        Some(_) if fault == Some(Fault::Uncapped) => scale * product,
        Some(cap) if fault == Some(Fault::ScaledAfterCap) => scale * (cap * (product / cap).tanh()),
        Some(cap) => cap * (scale * product / cap).tanh(),
    }
}

/// One split's O and LSE for a row.
fn part(
    case: &Case,
    (q, kv_head, b): (&[f64], usize, usize),
    (length, visible): (usize, &Range<usize>),
    (split, splits): (usize, usize),
    (k, v): (&Get<'_>, &Get<'_>),
    fault: Option<Fault>,
) -> (Vec<f32>, f32) {
    let (tile_n, chunk) = (TILE_N, 32);
    let tiles = length.div_ceil(tile_n);
    let middle = tiles / 2;
    let page = |j| match case.kv {
        Kv::Paged { page_size, .. } if fault == Some(Fault::WrongPage) && j / page_size == length / page_size / 2 => {
            j % page_size
        }
        _ => j,
    };
    let mut state = Running { max: f32::NEG_INFINITY, sum: 0.0, o: vec![0.0; case.head_dim_v] };
    for tile in split * tiles / splits..(split + 1) * tiles / splits {
        let (source, times) = match fault {
            Some(Fault::DroppedTile) if tile == middle => (tile, 0),
            Some(Fault::DoubledTile) if tile == middle => (tile, 2),
            Some(Fault::WrongTile) if tile == middle => (tile - 1, 1),
            _ => (tile, 1),
        };
        for first in (0..times).flat_map(|_| (source * tile_n..(source + 1) * tile_n).step_by(chunk)) {
            let keys = first.max(visible.start)..(first + chunk).min(visible.end);
            let keys = if fault == Some(Fault::CappedAfterMask) { first..(first + chunk).min(length) } else { keys };
            let scores: Vec<f32> = keys
                .clone()
                .map(|j| match case.softcap {
                    Some(cap) if !visible.contains(&j) => -cap,
                    _ => score(case, dot(q, k(b, page(j), kv_head)), fault),
                })
                .collect();
            let max = scores.iter().copied().fold(state.max, f32::max);
            if max == f32::NEG_INFINITY {
                continue;
            }
            let keep = if fault == Some(Fault::NotRescaled) { 1.0 } else { (state.max - max).exp() };
            state.max = max;
            state.sum *= keep;
            state.o.iter_mut().for_each(|o| *o *= keep);
            for (j, score) in keys.zip(&scores) {
                let p = (score - max).exp();
                state.sum += p;
                let in_middle = j / tile_n == middle;
                let v_at =
                    if fault == Some(Fault::StaleChunkOfV) && in_middle { j.saturating_sub(chunk) } else { page(j) };
                if fault == Some(Fault::EightTokensOfVLost) && in_middle && j % tile_n < 8 {
                    continue;
                }
                let coarse = fault == Some(Fault::CoarseProbabilities);
                let format = if coarse { Format::Bf16 } else { case.format };
                // Scaled into the range of the smallest format.
                let rounded = (format.round(f64::from(p) * 256.0) / 256.0) as f32;
                state.o.iter_mut().zip(v(b, v_at, kv_head)).for_each(|(o, v)| *o += rounded * *v as f32);
            }
        }
    }
    if state.sum == 0.0 {
        return (state.o, f32::NEG_INFINITY);
    }
    let divisor = if fault == Some(Fault::Unnormalised) { 1.0 } else { state.sum };
    (state.o.iter().map(|o| o / divisor).collect(), state.max + state.sum.ln())
}

fn merge(parts: &[(Vec<f32>, f32)], fault: Option<Fault>) -> (Vec<f32>, f32) {
    let lost = usize::from(fault == Some(Fault::LostSplit));
    let parts: Vec<_> = parts.iter().enumerate().filter(|(split, _)| *split != lost || lost == 0).collect();
    let max = parts.iter().map(|(_, (_, lse))| *lse).fold(f32::NEG_INFINITY, f32::max);
    let weight = |lse: f32| match fault {
        Some(Fault::UnweightedMerge) if lse > f32::NEG_INFINITY => 1.0,
        Some(Fault::EmptySplitCounts) if lse == f32::NEG_INFINITY => 1.0,
        _ if lse == f32::NEG_INFINITY => 0.0,
        _ => (lse - max).exp(),
    };
    let sum: f32 = parts.iter().map(|(_, (_, lse))| weight(*lse)).sum();
    let mut merged = vec![0.0; parts[0].1.0.len()];
    for (_, (o, lse)) in &parts {
        merged.iter_mut().zip(o).for_each(|(merged, o)| *merged += weight(*lse) * o / sum.max(f32::MIN_POSITIVE));
    }
    (merged, if sum > 0.0 { max + sum.ln() } else { max })
}

fn dot(a: &[f64], b: &[f64]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (*a as f32) * (*b as f32)).sum()
}

fn splits(case: &Case) -> usize {
    match case.splits {
        Splits::Auto => 3,
        Splits::Exact(n) => n as usize,
        Splits::Tokens(n) => case.sk.div_ceil(n as usize).max(1),
    }
}

fn noticed(case: &Case, fault: Option<Fault>) -> bool {
    let tensors = Tensors::new(case);
    let output = model(case, &tensors, splits(case), fault);
    compare(case, &tensors.expected(case), &output).is_err()
}

#[test]
fn a_sound_kernel_passes() {
    let config = Config { cases: 200, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&cases(Budget::EMULATOR), |case| {
        let tensors = Tensors::new(&case);
        let output = model(&case, &tensors, splits(&case), None);
        compare(&case, &tensors.expected(&case), &output)
            .map_err(|mismatch| proptest::test_runner::TestCaseError::fail(format!("{mismatch}\n{case}")))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Cases in which every key matters: random data, short and long KV, with more splits than one.
fn sensitive() -> Vec<Case> {
    use Format::{Bf16, F16, F32};
    [
        (300, 2, Bf16, Bf16, true),
        (300, 2, F16, F16, false),
        (1000, 3, Bf16, F32, false),
        (4096, 5, Bf16, Bf16, false),
        (4096, 5, F16, F32, true),
        (16_384, 7, Bf16, Bf16, false),
    ]
    .map(|(sk, splits, format, output, lse)| {
        let splits = Splits::Exact(splits);
        Case { format, output, lse, splits, layout: Layout::Padded, ..Case::new(1, 2, sk, 2, 2) }
    })
    .into()
}

fn assert_noticed(fault: Fault, cases: &[Case]) {
    let missed: Vec<_> = cases.par_iter().filter(|case| !noticed(case, Some(fault))).map(Case::to_string).collect();
    assert!(missed.is_empty(), "{fault:?} is not noticed in {} of {}: {missed:#?}", missed.len(), cases.len());
}

#[test]
fn sound_on_the_sensitive_cases() {
    for case in sensitive() {
        assert!(!noticed(&case, None), "{case}");
    }
}

#[test]
fn tile_faults_are_noticed() {
    for fault in [Fault::DroppedTile, Fault::DoubledTile, Fault::WrongTile, Fault::StaleChunkOfV] {
        assert_noticed(fault, &sensitive());
    }
}

#[test]
fn arithmetic_faults_are_noticed() {
    let faults = [Fault::Unnormalised, Fault::NotRescaled, Fault::InterleavedHeads, Fault::LostSplit];
    for fault in faults {
        assert_noticed(fault, &sensitive());
    }
}

#[test]
fn wrong_lse_is_noticed() {
    let cases: Vec<_> = sensitive().into_iter().filter(|case| case.lse).collect();
    for fault in [Fault::BaseTwo, Fault::LastKeyLost] {
        assert_noticed(fault, &cases);
    }
}

#[test]
fn lost_v_is_noticed_in_long_kv() {
    let cases: Vec<_> = sensitive().into_iter().filter(|case| case.sk <= 4096).collect();
    assert_noticed(Fault::EightTokensOfVLost, &cases);
}

#[test]
fn lost_precision_is_noticed() {
    let cases = [1000, 4096].map(|sk| Case {
        format: Format::F16,
        output: Format::F32,
        lse: false,
        splits: Splits::Exact(3),
        ..Case::new(1, 4, sk, 2, 4)
    });
    assert_noticed(Fault::CoarseProbabilities, &cases);
}

#[test]
fn a_causal_limit_off_by_one_is_noticed() {
    let cases: Vec<_> = sensitive().into_iter().map(|case| Case { causal: true, ..case }).collect();
    let with_lse: Vec<_> = cases.iter().filter(|case| case.lse).cloned().collect();
    let short: Vec<_> = cases.into_iter().filter(|case| case.sk <= 300).collect();
    for fault in [Fault::CausalShort, Fault::CausalLong] {
        assert_noticed(fault, &with_lse);
        assert_noticed(fault, &short);
    }
}

#[test]
fn merge_faults_are_noticed() {
    let uneven: Vec<_> = [128 + 1, 1000]
        .map(|sk| Case { splits: Splits::Exact(2), data: Data::Normal, lse: false, ..Case::new(1, 1, sk, 1, 4) })
        .into();
    assert_noticed(Fault::UnweightedMerge, &uneven);
    let empty = Case { splits: Splits::Exact(4), lengths: Lengths::Device(vec![200]), ..Case::new(1, 2, 1000, 1, 3) };
    assert_noticed(Fault::EmptySplitCounts, &[empty]);
}

fn with(cases: Vec<Case>, change: impl Fn(&mut Case)) -> Vec<Case> {
    let changed = cases.into_iter().map(|mut case| {
        change(&mut case);
        case
    });
    changed.collect()
}

#[test]
fn window_faults_are_noticed() {
    // Windows of 128 keys.
    let cases = with(sensitive(), |case| case.window = Some(Window { left: Some(127), right: Some(0) }));
    for fault in [Fault::WindowShort, Fault::WindowLong] {
        assert_noticed(fault, &cases);
    }
    for fault in [Fault::DroppedTile, Fault::StaleChunkOfV] {
        assert_noticed(fault, &with(cases.clone(), |case| case.window = Some(Window { left: None, right: Some(0) })));
    }
}

#[test]
fn softcap_faults_are_noticed() {
    let cases = with(sensitive(), |case| case.softcap = Some(1.0));
    for fault in [Fault::Uncapped, Fault::ScaledAfterCap] {
        assert_noticed(fault, &cases);
    }
    let masked = with(cases, |case| case.window = Some(Window { left: Some(99), right: Some(0) }));
    assert_noticed(Fault::CappedAfterMask, &masked);
}

#[test]
fn sink_faults_are_noticed() {
    // As much weight as all keys together, or so.
    let cases = with(sensitive(), |case| {
        case.sink = Some([0.0, 0.5, 1.0, 2.0].map(|more| Some((case.sk as f32).ln() + more)).into());
    });
    for fault in [Fault::SinkLost, Fault::SinkInEachSplit, Fault::SinkOfKvHead, Fault::SinkToBaseTwo] {
        assert_noticed(fault, &cases);
    }
}

#[test]
fn a_wrong_page_is_noticed() {
    for page_size in [16, 64, 128] {
        let kv = Kv::Paged { page_size, shared: 0, spare: 0, known: Known::Host };
        assert_noticed(Fault::WrongPage, &with(sensitive(), |case| case.kv = kv.clone()));
    }
    // A single token in the wrong place is found by its mark.
    let kv = Kv::Paged { page_size: 1, shared: 0, spare: 0, known: Known::Host };
    let shorter = sensitive().into_iter().filter(|case| case.sk <= 4096).collect();
    let marked = with(shorter, |case| (case.kv, case.data) = (kv.clone(), Data::Positions));
    assert_noticed(Fault::WrongPage, &with(marked, |case| case.output = Format::F32));
}

#[test]
fn a_mask_aligned_to_another_sequences_queries_is_noticed() {
    let cases = with(sensitive(), |case| {
        (case.batch, case.sq, case.causal) = (2, 9, true);
        case.queries = Queries::Packed { lengths: vec![9, 3], known: Known::Host };
    });
    let noticeable: Vec<_> = cases.into_iter().filter(|case| case.lse || case.sk <= 300).collect();
    assert_noticed(Fault::AlignedToMost, &noticeable);
}
