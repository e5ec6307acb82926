//! Random cases. What a case costs is bounded by a budget, so that an emulator can run many; what is rare but
//! breaks kernels (edges of tiles, empty sequences, empty splits, odd groups) is drawn often.

use kernels_gpu::abi::{Geometry, KERNELS, MAX_SPLITS, Vendor};
use proptest::prelude::*;

use crate::case::{Case, Data, Layout, Lengths, Splits};
use crate::numeric::Format;

/// What a case may cost, in KV tokens times packed query tiles: `batch * kv_heads * m_blocks * sk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// For half of the cases.
    pub usual: usize,
    /// For one case in ten.
    pub most: usize,
}

impl Budget {
    /// For a GPU: what bounds a case is the reference.
    pub const GPU: Self = Self { usual: 16 * 1024, most: 128 * 1024 };
    /// For an emulator.
    pub const EMULATOR: Self = Self { usual: 512, most: 4096 };
}

/// The tile sizes that cases are drawn around. They are the same on both vendors.
pub fn geometry() -> Geometry {
    KERNELS.iter().find_map(|kernel| kernel.geometry(Vendor::Nvidia)).expect("the table has an attention kernel")
}

/// Any valid case within `budget`.
pub fn cases(budget: Budget) -> impl Strategy<Value = Case> {
    let shape = (batches(), kv_heads(), groups(), queries(), tokens(), fractions());
    let numbers = (formats(), any::<bool>(), prop::bool::weighted(0.4), scales(), prop::bool::weighted(0.7));
    let rest = (splits(), layouts(), data(), any::<u64>(), budgets(budget));
    (shape, numbers, rest).prop_map(|(shape, numbers, rest)| {
        let (batch, kv_heads, group, sq, sk, fractions) = shape;
        let (format, wide_output, causal, scale, lse) = numbers;
        let (splits, layout, data, seed, budget) = rest;
        let mut case = Case {
            format,
            output: if wide_output { Format::F32 } else { format },
            causal,
            scale,
            lse,
            splits,
            layout,
            data,
            seed,
            ..Case::new(batch, sq, sk, kv_heads, group)
        };
        fit(&mut case, budget);
        case.lengths = fractions.lengths(&case);
        case
    })
}

/// Makes a case smaller until it is within `budget`: less of what there is most of, sequences, heads or query tiles,
/// until there is room for `least_tiles` KV tiles; then fewer KV tiles, at least half of those that there is room for
/// (the remainder modulo a tile stays, so that edges stay edges); then fewer splits.
fn fit(case: &mut Case, (budget, least_tiles): (usize, usize)) {
    let geometry = geometry();
    let (tile_m, tile_n) = (geometry.tile_m as usize, geometry.tile_n as usize);
    let m_blocks = |case: &Case| (case.sq * case.group).div_ceil(tile_m);
    let units = |case: &Case| case.batch * case.kv_heads * m_blocks(case);
    while units(case) > 1 && units(case) * least_tiles * tile_n > budget {
        let most = case.batch.max(case.kv_heads).max(m_blocks(case));
        if case.batch == most {
            case.batch -= 1;
        } else if case.kv_heads == most {
            case.kv_heads -= 1;
        } else if case.sq > 1 {
            case.sq = case.sq.div_ceil(2);
        } else {
            case.group = case.group.div_ceil(2);
        }
    }
    let tiles = (budget / units(case)).div_ceil(tile_n).max(1);
    if case.sk > tiles * tile_n {
        case.sk = case.sk % tile_n + (tiles - 1 - case.sk / tile_n % tiles.div_ceil(2)) * tile_n;
    }
    // An empty split still costs its blocks.
    if let Splits::Exact(n) = case.splits {
        case.splits = Splits::Exact(n.min((budget / units(case) / 4).max(4) as u32));
    }
}

/// A case's cost, and the KV tiles that it has room for: long rather than wide, or the reverse.
fn budgets(budget: Budget) -> impl Strategy<Value = (usize, usize)> {
    let cost = prop_oneof![4 => Just(budget.usual / 2), 5 => Just(budget.usual), 1 => Just(budget.most)];
    (cost, prop_oneof![1 => Just(1), 2 => Just(4)])
}

fn batches() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(1), 4 => 2..=4usize, 1 => 5..=8usize]
}

fn kv_heads() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(1), 3 => 2..=4usize, 1 => 5..=8usize]
}

fn groups() -> impl Strategy<Value = usize> {
    prop_oneof![12 => 1..=12usize, 2 => Just(16), 1 => Just(71)]
}

fn queries() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(1), 3 => 2..=8usize, 1 => 9..=40usize]
}

/// KV tokens: anything, or next to a multiple of a warp's chunk or a block's tile.
fn tokens() -> impl Strategy<Value = usize> {
    let Geometry { chunk, tile_n, .. } = geometry();
    prop_oneof![
        3 => 0..=4096usize,
        2 => edges(chunk as usize, 0..=32),
        4 => edges(tile_n as usize, 0..=32),
        1 => edges(tile_n as usize, 32..=256),
    ]
}

fn edges(size: usize, multiples: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = usize> {
    (multiples, 0..=2usize).prop_map(move |(multiple, plus)| (size * multiple + plus).saturating_sub(1))
}

fn splits() -> impl Strategy<Value = Splits> {
    let tile_n = geometry().tile_n;
    let exact = prop_oneof![2 => Just(1), 8 => 2..=8u32, 2 => 9..=64u32, 1 => 65..=MAX_SPLITS];
    let tokens = prop_oneof![4 => Just(1), 2 => 2..=4u32, 1 => 5..=32u32];
    prop_oneof![
        3 => Just(Splits::Auto),
        6 => exact.prop_map(Splits::Exact),
        3 => tokens.prop_map(move |tiles| Splits::Tokens(tiles * tile_n)),
    ]
}

fn scales() -> impl Strategy<Value = Option<f32>> {
    prop_oneof![
        5 => Just(None),
        2 => Just(Some(0.37)),
        1 => Just(Some(1e-6)),
        1 => Just(Some(-0.11)),
        1 => Just(Some(0.0)),
    ]
}

fn formats() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::Bf16), Just(Format::F16)]
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Contiguous), Just(Layout::Padded), Just(Layout::Interleaved), Just(Layout::HeadsFirst)]
}

fn data() -> impl Strategy<Value = Data> {
    prop_oneof![
        5 => Just(Data::Normal),
        2 => Just(Data::Peaked),
        1 => Just(Data::Constant),
        1 => Just(Data::Offset),
        1 => Just(Data::Positions),
        1 => prop::collection::vec(0..512usize, 1..4).prop_map(Data::Needles),
    ]
}

/// Lengths as parts of `sk`, which is known only once a case has been made to fit.
#[derive(Clone, Debug)]
enum Fractions {
    Full,
    Host(Vec<Fraction>),
    Device(Vec<Fraction>),
}

#[derive(Clone, Copy, Debug)]
enum Fraction {
    None,
    All,
    Part(u16),
    /// Near the multiple of a tile, at that part of `sk`.
    Edge(u16, usize),
}

fn fractions() -> impl Strategy<Value = Fractions> {
    let fraction = prop_oneof![
        2 => Just(Fraction::None),
        2 => Just(Fraction::All),
        4 => any::<u16>().prop_map(Fraction::Part),
        2 => (any::<u16>(), 0..=2usize).prop_map(|(part, plus)| Fraction::Edge(part, plus)),
    ];
    let each = prop::collection::vec(fraction, 8);
    prop_oneof![
        3 => Just(Fractions::Full),
        3 => each.clone().prop_map(Fractions::Host),
        3 => each.prop_map(Fractions::Device),
    ]
}

impl Fractions {
    fn lengths(&self, case: &Case) -> Lengths {
        let each = |fractions: &[Fraction]| fractions[..case.batch].iter().map(|one| one.length(case.sk)).collect();
        match self {
            Self::Full => Lengths::Full,
            Self::Host(fractions) => Lengths::Host(each(fractions)),
            Self::Device(fractions) => Lengths::Device(each(fractions)),
        }
    }
}

impl Fraction {
    fn length(self, sk: usize) -> u32 {
        let part = |part: u16| sk * usize::from(part) / usize::from(u16::MAX);
        let tile_n = geometry().tile_n as usize;
        let length = match self {
            Self::None => 0,
            Self::All => sk,
            Self::Part(fraction) => part(fraction),
            Self::Edge(fraction, plus) => (part(fraction) / tile_n * tile_n + plus).saturating_sub(1).min(sk),
        };
        length as u32
    }
}
