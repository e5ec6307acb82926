//! What random cases were made of, so that a run can show that it looked where kernels break.

use std::collections::HashMap;
use std::fmt;

use splitkv::{BlockShape, Plan};

use crate::case::{Case, Data, Kv, Layout, Lengths, Splits};
use crate::feature::Feature;
use crate::numeric::Format;

/// Counts of cases.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    cases: usize,
    rows: Vec<(&'static str, usize)>,
}

/// What a case is counted as, beside a case.
fn features(case: &Case, plan: &Plan) -> Vec<(&'static str, bool)> {
    let (lengths, mask) = (case.lengths(), case.mask());
    let mut sequences = case.query_lengths().into_iter().zip(&lengths);
    let sees_nothing =
        sequences.any(|(queries, length)| (0..queries).any(|query| mask.keys(query, queries, *length).is_empty()));
    // Splits that have keys, of each block of rows.
    let splits = plan.num_splits();
    let mut filled = HashMap::new();
    let each = case.query_lengths().into_iter().zip(&lengths);
    let each: Vec<_> = each.map(|(queries, keys)| splitkv::Lengths { queries, keys: *keys }).collect();
    for unit in plan.units_of(&each) {
        let tokens = plan.tokens(unit, each[unit.batch as usize]);
        let filled = filled.entry((unit.batch, unit.m_block, unit.kv_head)).or_insert((0, unit.splits));
        filled.0 += u32::from(!tokens.is_empty());
    }
    let mut features: Vec<_> = Feature::ALL.map(|feature| (feature.name(), feature.is_in(case))).into();
    features.extend([
        (SPLIT, splits > 1),
        ("two splits that have keys", filled.values().any(|(filled, _)| *filled > 1)),
        (EMPTY_SPLIT, filled.values().any(|(filled, splits)| *splits > 1 && filled < splits)),
        (RAGGED_KNOWN, plan.ragged().is_some_and(|ragged| ragged.known().is_some())),
        (RAGGED_ON_DEVICE, plan.schedule().is_some()),
        (RAGGED, plan.ragged().is_some_and(|ragged| ragged.splits(&each).windows(2).any(|pair| pair[0] != pair[1]))),
        (CAUSAL, case.causal),
        ("splits: auto", case.splits == Splits::Auto),
        ("splits: exact", matches!(case.splits, Splits::Exact(_))),
        ("splits: tokens", matches!(case.splits, Splits::Tokens(_))),
        ("more than 16 splits", splits > 16),
        ("more than one query", case.sq > 1),
        ("more rows than a block's", plan.m_blocks() > 1),
        ("head dims 64", plan.kernel_dims() == (64, 64)),
        ("head dims 96", plan.kernel_dims() == (96, 96)),
        ("head dims 128", plan.kernel_dims() == (128, 128)),
        ("head dims 192/128", plan.kernel_dims() == (192, 128)),
        ("head dims 256", plan.kernel_dims() == (256, 256)),
        (PADDED, plan.kernel_dims() != (case.head_dim_qk, case.head_dim_v)),
        ("warps split the KV", plan.block_shape() == BlockShape::SplitKv),
        (SHARED_KV, plan.block_shape() == BlockShape::SharedKv),
        ("block shape asked for", case.block_shape.is_some()),
        (TWO_TILES, plan.q_tiles() == 2),
        ("query tiles asked for", case.q_tiles.is_some()),
        ("group not a power of two", !case.group.is_power_of_two()),
        ("more sequences than one", case.batch > 1),
        (NO_KEYS, sees_nothing),
        ("a sequence without queries", case.query_lengths().contains(&0)),
        ("lengths known to the host", matches!(case.lengths, Lengths::Host(_))),
        ("lengths on the device", matches!(case.lengths, Lengths::Device(_))),
        ("more of these than one", Feature::ALL.iter().filter(|feature| feature.is_in(case)).count() > 1),
        ("pages smaller than 16 tokens", matches!(case.kv, Kv::Paged { page_size: ..16, .. })),
        ("pages shared", matches!(case.kv, Kv::Paged { shared: 1.., .. })),
        ("e4m3", case.format == Format::E4m3),
        ("e4m3 with factors per head", case.per_head.contains(&true)),
        ("f16", case.format == Format::F16),
        ("fp32 output", case.output == Format::F32),
        ("with LSE", case.lse),
        ("scale given", case.scale.is_some()),
        ("strided", case.layout != Layout::Contiguous),
        ("data other than normal", case.data != Data::Normal),
    ]);
    features
}

/// More than one split.
pub const SPLIT: &str = "more than one split";
/// A split that has no keys.
pub const EMPTY_SPLIT: &str = "an empty split";
/// Splits by lengths that the host knows.
pub const RAGGED_KNOWN: &str = "splits by length";
/// Splits by lengths that only the device knows.
pub const RAGGED_ON_DEVICE: &str = "splits by lengths on the device";
/// Sequences with other numbers of splits than others.
pub const RAGGED: &str = "sequences split differently";
/// Causal.
pub const CAUSAL: &str = "causal";
/// Rows that see no key.
pub const NO_KEYS: &str = "rows that see nothing";
/// Head dims that no kernel was compiled for.
pub const PADDED: &str = "head dims padded";
/// Warps share the KV.
pub const SHARED_KV: &str = "warps share the KV";
/// Two query tiles a block.
pub const TWO_TILES: &str = "two query tiles";

impl Histogram {
    /// Counts a case.
    pub fn add(&mut self, case: &Case, plan: &Plan) {
        let features = features(case, plan);
        self.rows.resize(features.len(), ("", 0));
        for (row, (name, has)) in self.rows.iter_mut().zip(features) {
            *row = (name, row.1 + usize::from(has));
        }
        self.cases += 1;
    }

    /// Cases counted.
    pub fn cases(&self) -> usize {
        self.cases
    }

    /// The share of cases with the feature `name`, in percent.
    ///
    /// # Panics
    /// If there is no such feature.
    pub fn percent(&self, name: &str) -> f64 {
        let (_, count) = self.rows.iter().find(|(row, _)| *row == name).expect("a feature of the histogram");
        *count as f64 * 100.0 / self.cases as f64
    }

    /// Asserts the shares that make a run of random problems worth something.
    ///
    /// # Panics
    /// If one is too small.
    pub fn assert_composition(&self) {
        let least = [
            (SPLIT, 40.0),
            (EMPTY_SPLIT, 10.0),
            (CAUSAL, 20.0),
            (PADDED, 10.0),
            (SHARED_KV, 20.0),
            (TWO_TILES, 5.0),
            (RAGGED, 2.0),
            (RAGGED_ON_DEVICE, 2.0),
        ];
        let features = Feature::ALL.into_iter();
        let features = features.map(|feature| (feature.name(), 10.0));
        for (name, least) in least.into_iter().chain(features) {
            assert!(self.percent(name) >= least, "less than {least} % of the cases have {name}:\n{self}");
        }
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:6} random problems, of which", self.cases)?;
        for (name, count) in &self.rows {
            writeln!(f, "{count:6} {:5.1} %  {name}", self.percent(name))?;
        }
        Ok(())
    }
}
