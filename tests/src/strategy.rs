//! Random cases. What a case costs is bounded by a budget, so that an emulator can run many; what is rare but
//! breaks kernels (edges of tiles, empty sequences, empty splits, odd groups) is drawn often.

use kernels_gpu::abi::{MAX_SPLITS, Role};
use proptest::prelude::*;
use splitkv::{Catalogue, Target};

use crate::case::{Case, Data, Known, Kv, Layout, Lengths, Queries, Shape, Splits, Window};
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
    let kernel = (head_dims(), block_shapes(), q_tiles(), any::<[bool; 3]>());
    let served = (windows(), softcaps(), sinks(), kept(packed_queries(), 0.25), kv_forms(), prop::bool::weighted(0.15));
    (shape, numbers, rest, kernel, served).prop_map(|(shape, numbers, rest, kernel, served)| {
        let (batch, kv_heads, group, sq, sk, mut fractions) = shape;
        let (window, softcap, sink, queries, mut kv, ragged) = served;
        let (format, wide_output, causal, scale, lse) = numbers;
        let (splits, layout, data, seed, budget) = rest;
        let ((head_dim_qk, head_dim_v), block_shape, q_tiles, per_head) = kernel;
        let per_head = per_head.map(|per_head| per_head && format == Format::E4m3);
        let mut case = Case {
            format,
            output: if wide_output { Format::F32 } else { narrow(format, seed) },
            per_head,
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
            window,
            softcap,
            sink,
            ..Case::new(batch, sq, sk, kv_heads, group)
        };
        if format == Format::E4m3 {
            fit_e4m3(&mut case);
        }
        case.q_tiles = q_tiles.filter(|&q_tiles| q_tiles <= most_q_tiles(&case));
        fit(&mut case, budget);
        if ragged {
            make_ragged(&mut case, &mut fractions, &mut kv);
        }
        if let Some((fractions, known)) = queries {
            let lengths = fractions[..case.batch].iter().map(|one| one.length(case.sq)).collect();
            case.queries = Queries::Packed { lengths, known };
        }
        case.kv = kv.kv(&case);
        case.lengths = fractions.lengths(&case);
        case
    })
}

/// A 16-bit format of O for this format of the inputs.
fn narrow(format: Format, seed: u64) -> Format {
    match format {
        Format::E4m3 if seed.is_multiple_of(2) => Format::F16,
        Format::E4m3 => Format::Bf16,
        format => format,
    }
}

/// Makes an e4m3 case one that there are kernels for: narrower head dims in whole pieces of 16 bytes, and no splits
/// where the mask forbids them.
fn fit_e4m3(case: &mut Case) {
    for dim in [&mut case.head_dim_qk, &mut case.head_dim_v] {
        *dim = dim.next_multiple_of(16).min(192);
    }
    if case.is_causal_e4m3() {
        case.splits = match case.splits {
            Splits::Exact(_) => Splits::Exact(1),
            Splits::Auto | Splits::Tokens(_) => Splits::Auto,
        };
    }
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

/// Makes a case one of few rows with one long sequence among short ones, whose splits are the planner's to choose.
fn make_ragged(case: &mut Case, fractions: &mut Fractions, kv: &mut KvForm) {
    case.batch = case.batch.clamp(2, 4);
    (case.kv_heads, case.group) = (1, case.group.min(4));
    case.sq = if case.format == Format::E4m3 { 1 } else { case.sq.min(3) };
    case.sk = 4 * TILE_N + case.sk % (6 * TILE_N);
    (case.splits, case.block_shape, case.q_tiles) = (Splits::Auto, None, None);
    let long = case.seed as usize % case.batch;
    let short = |index: usize| if index == long { Fraction::All } else { Fraction::Part((index * 1500) as u16) };
    let short: Vec<_> = (0..MOST_BATCH).map(short).collect();
    *fractions = match fractions {
        Fractions::Device(_) => Fractions::Device(short),
        Fractions::Full | Fractions::Host(_) => Fractions::Host(short),
    };
    if let KvForm::Packed(room, _) = kv {
        room.fill(Fraction::All);
    }
}

/// A case's cost, and the KV tiles that it has room for: long rather than wide, or the reverse.
fn budgets(budget: Budget) -> impl Strategy<Value = (usize, usize)> {
    let cost = prop_oneof![4 => Just(budget.usual / 2), 5 => Just(budget.usual), 1 => Just(budget.most)];
    (cost, prop_oneof![1 => Just(1), 2 => Just(4)])
}

/// Sequences of a case, at most.
const MOST_BATCH: usize = 8;

fn batches() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(1), 4 => 2..=4usize, 1 => 5..=MOST_BATCH]
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
    let kernels = Catalogue::of(Target::Sm90a).fitting(&problem(case)).expect("there is a kernel for every case");
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
    prop_oneof![2 => Just(Format::Bf16), 2 => Just(Format::F16), 1 => Just(Format::E4m3)]
}

/// Windows: nothing but the own key, about a tile, anything.
fn windows() -> impl Strategy<Value = Option<Window>> {
    let bound = || prop_oneof![2 => 0..=3u32, 3 => 100..=140u32, 2 => 0..=1000u32, 1 => Just(u32::MAX)];
    let left = kept(bound(), 0.8);
    let right = prop_oneof![3 => Just(Some(0)), 2 => Just(None), 2 => bound().prop_map(Some)];
    kept((left, right).prop_map(|(left, right)| Window { left, right }), 0.25)
}

fn softcaps() -> impl Strategy<Value = Option<f32>> {
    kept(prop::sample::select(vec![0.5, 1.0, 15.0, 50.0, 1e-3, 300.0]), 0.2)
}

/// Sinks: none for a head, one that weighs about a key, one that weighs about a sequence or more than all.
fn sinks() -> impl Strategy<Value = Option<Vec<Option<f32>>>> {
    let logit = prop_oneof![1 => Just(None), 3 => (-4f32..4.0).prop_map(Some), 2 => (4f32..60.0).prop_map(Some)];
    kept(prop::collection::vec(logit, 1..6), 0.2)
}

fn known() -> impl Strategy<Value = Known> {
    prop_oneof![Just(Known::Host), Just(Known::Device)]
}

fn packed_queries() -> impl Strategy<Value = (Vec<Fraction>, Known)> {
    (each_fraction(), known())
}

/// How the KV lies together; the room of packed sequences as parts of `sk`.
#[derive(Clone, Debug)]
enum KvForm {
    Dense,
    Packed(Vec<Fraction>, Known),
    Paged(Kv),
}

fn kv_forms() -> impl Strategy<Value = KvForm> {
    let page_size = prop_oneof![
        3 => prop::sample::select(vec![1, 16, 32, 64, 128, 256, 512]),
        1 => 1..=300usize,
    ];
    let shared = prop_oneof![3 => Just(0), 1 => 1..4usize];
    let paged = (page_size, shared, 0..3usize, known())
        .prop_map(|(page_size, shared, spare, known)| KvForm::Paged(Kv::Paged { page_size, shared, spare, known }));
    let packed = (each_fraction(), known()).prop_map(|(room, known)| KvForm::Packed(room, known));
    prop_oneof![5 => Just(KvForm::Dense), 2 => packed, 4 => paged]
}

impl KvForm {
    fn kv(self, case: &Case) -> Kv {
        match self {
            Self::Dense => Kv::Dense,
            Self::Packed(fractions, known) => {
                Kv::Packed { room: fractions[..case.batch].iter().map(|one| one.length(case.sk)).collect(), known }
            }
            Self::Paged(kv) => kv,
        }
    }
}

/// A value with this probability, else none.
fn kept<T: std::fmt::Debug>(value: impl Strategy<Value = T>, probability: f64) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(probability, value)
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

/// One for each sequence that a case may have.
fn each_fraction() -> impl Strategy<Value = Vec<Fraction>> + Clone {
    let fraction = prop_oneof![
        2 => Just(Fraction::None),
        2 => Just(Fraction::All),
        4 => any::<u16>().prop_map(Fraction::Part),
        2 => (any::<u16>(), 0..=2usize).prop_map(|(part, plus)| Fraction::Edge(part, plus)),
    ];
    prop::collection::vec(fraction, MOST_BATCH)
}

fn fractions() -> impl Strategy<Value = Fractions> {
    let each = each_fraction();
    prop_oneof![
        3 => Just(Fractions::Full),
        3 => each.clone().prop_map(Fractions::Host),
        3 => each.prop_map(Fractions::Device),
    ]
}

impl Fractions {
    fn lengths(&self, case: &Case) -> Lengths {
        let each =
            |fractions: &[Fraction]| case.room().iter().zip(fractions).map(|(room, one)| one.length(*room)).collect();
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
