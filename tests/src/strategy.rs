//! Random cases. What a case costs is bounded by a budget, so that an emulator can run many; what is rare but
//! breaks kernels (edges of tiles, empty sequences, empty splits, odd groups) is drawn often.

use kernels_gpu::abi::{MAX_SPLITS, Role};
use proptest::prelude::*;
use splitkv::{Catalogue, Target};

use crate::case::{Case, Data, Layout, Lengths, Shape, Splits};
use crate::launch::problem;
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

/// Tile sizes that cases are drawn around: each kernel's KV tile divides [`TILE_N`] and is a multiple of [`CHUNK`], and
/// rows come in [`TILE_M`].
pub const TILE_M: usize = 16;
/// See [`TILE_M`].
pub const TILE_N: usize = 128;
/// See [`TILE_M`].
pub const CHUNK: usize = 16;

/// Any valid case within `budget`.
pub fn cases(budget: Budget) -> impl Strategy<Value = Case> {
    let shape = (batches(), kv_heads(), groups(), queries(), tokens(), fractions());
    let numbers = (formats(), any::<bool>(), prop::bool::weighted(0.4), scales(), prop::bool::weighted(0.7));
    let rest = (splits(), layouts(), data(), any::<u64>(), budgets(budget));
    let kernel = (head_dims(), block_shapes(), q_tiles());
    (shape, numbers, rest, kernel).prop_map(|(shape, numbers, rest, kernel)| {
        let (batch, kv_heads, group, sq, sk, fractions) = shape;
        let (format, wide_output, causal, scale, lse) = numbers;
        let (splits, layout, data, seed, budget) = rest;
        let ((head_dim_qk, head_dim_v), block_shape, q_tiles) = kernel;
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
            head_dim_qk,
            head_dim_v,
            block_shape,
            ..Case::new(batch, sq, sk, kv_heads, group)
        };
        case.q_tiles = q_tiles.filter(|&q_tiles| q_tiles <= most_q_tiles(&case));
        fit(&mut case, budget);
        case.lengths = fractions.lengths(&case);
        case
    })
}

/// Makes a case smaller until it is within `budget`: less of what there is most of, sequences, heads or query tiles,
/// until there is room for `least_tiles` KV tiles; then fewer KV tiles, at least half of those that there is room for
/// (the remainder modulo a tile stays, so that edges stay edges); then fewer splits.
fn fit(case: &mut Case, (budget, least_tiles): (usize, usize)) {
    let m_blocks = |case: &Case| (case.sq * case.group).div_ceil(TILE_M);
    let units = |case: &Case| case.batch * case.kv_heads * m_blocks(case);
    while units(case) > 1 && units(case) * least_tiles * TILE_N > budget {
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
    let tiles = (budget / units(case)).div_ceil(TILE_N).max(1);
    if case.sk > tiles * TILE_N {
        case.sk = case.sk % TILE_N + (tiles - 1 - case.sk / TILE_N % tiles.div_ceil(2)) * TILE_N;
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
    prop_oneof![10 => Just(1), 6 => 2..=8usize, 2 => 9..=40usize, 1 => 41..=300usize]
}

/// KV tokens: anything, or next to a multiple of a warp's chunk or a block's tile.
fn tokens() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0..=4096usize,
        2 => edges(CHUNK, 0..=64),
        4 => edges(TILE_N, 0..=32),
        1 => edges(TILE_N, 32..=256),
    ]
}

/// Head dims of Q and K, and of V: those that kernels were compiled for, or others, which are padded.
fn head_dims() -> impl Strategy<Value = (usize, usize)> {
    let dim = || (1..=32usize).prop_map(|pieces| 8 * pieces);
    prop_oneof![
        6 => Just((128, 128)),
        2 => Just((64, 64)),
        1 => Just((96, 96)),
        3 => Just((192, 128)),
        2 => Just((256, 256)),
        2 => prop::sample::select(vec![(8, 8), (40, 40), (80, 80), (104, 104), (136, 136), (200, 72)]),
        1 => (dim(), dim()),
    ]
}

fn block_shapes() -> impl Strategy<Value = Option<Shape>> {
    prop_oneof![4 => Just(None), 1 => Just(Some(Shape::SplitKv)), 2 => Just(Some(Shape::SharedKv))]
}

fn q_tiles() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![3 => Just(None), 1 => Just(Some(1)), 2 => Just(Some(2))]
}

/// The most query tiles of the kernels for a case. All targets have the same kernels.
fn most_q_tiles(case: &Case) -> u32 {
    let kernels = Catalogue::of(Target::Sm90).fitting(&problem(case)).expect("there is a kernel for every case");
    let q_tiles = kernels.iter().filter_map(|kernel| match kernel.role {
        Role::Attention { q_tiles, .. } => Some(q_tiles),
        _ => None,
    });
    q_tiles.max().expect("they are attention kernels")
}

fn edges(size: usize, multiples: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = usize> {
    (multiples, 0..=2usize).prop_map(move |(multiple, plus)| (size * multiple + plus).saturating_sub(1))
}

fn splits() -> impl Strategy<Value = Splits> {
    let exact = prop_oneof![2 => Just(1), 8 => 2..=8u32, 2 => 9..=64u32, 1 => 65..=MAX_SPLITS];
    let tokens = prop_oneof![4 => Just(1), 2 => 2..=4u32, 1 => 5..=32u32];
    prop_oneof![
        3 => Just(Splits::Auto),
        6 => exact.prop_map(Splits::Exact),
        3 => tokens.prop_map(|tiles| Splits::Tokens(tiles * TILE_N as u32)),
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
        let length = match self {
            Self::None => 0,
            Self::All => sk,
            Self::Part(fraction) => part(fraction),
            Self::Edge(fraction, plus) => (part(fraction) / TILE_N * TILE_N + plus).saturating_sub(1).min(sk),
        };
        length as u32
    }
}
