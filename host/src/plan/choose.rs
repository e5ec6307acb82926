//! Which kernel, and how many splits.

use std::fmt;

use kernels_gpu::abi::{BlockShape, Geometry, MAX_SPLITS, Target};

use super::MAX_UNITS;
use super::heuristic::Work;
use super::ragged::{Ragged, Tiles};
use crate::catalogue::Variant;
use crate::manifest::shape_name;
use crate::{DType, DeviceProps, Error, Options, Problem, Result, Splits};

/// Why a plan has its number of splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The caller asked for it.
    Asked,
    /// The problem has no output.
    NothingToCompute,
    /// No sequence has more than one KV tile.
    OneTile,
    /// The estimate is lowest without a split: there are units enough, or a combine costs more than it saves.
    UnsplitIsCheapest,
    /// The estimate is lowest with this many splits.
    SplitIsCheapest,
    /// e4m3 with a causal mask is not split below 384 queries.
    CausalE4m3,
    /// The estimate is lowest where each sequence has splits of its own.
    RaggedIsCheapest,
    /// Only the device knows the lengths: each sequence has splits by its own, found at each run.
    LengthsOnDevice,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "as asked",
            Self::NothingToCompute => "nothing to compute",
            Self::OneTile => "one KV tile",
            Self::UnsplitIsCheapest => "cheapest unsplit",
            Self::SplitIsCheapest => "cheapest with this many",
            Self::CausalE4m3 => "e4m3, causal, fewer than 384 queries",
            Self::RaggedIsCheapest => "cheapest with splits by length",
            Self::LengthsOnDevice => "splits by lengths on the device",
        })
    }
}

/// Why a plan has its kernel, among those of the problem's type and head dims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelReason {
    /// The caller asked for its block shape and its query tiles.
    Asked,
    /// The only one that fits the problem, the device and what was asked.
    Only,
    /// The rows of a KV head fit the smallest tile.
    FewRows,
    /// The rows of a KV head do not fit the smallest tile, and under [`Splits::Tokens`] nothing else may have a say.
    ManyRows,
    /// The estimate is lowest with it.
    Cheapest,
    /// It is made for the device's architecture; such a kernel is taken where one fits.
    Special,
    /// Kernels are made for the device's architecture, but none for the problem's type, layout and head dims (or for so
    /// little shared memory). A portable one is taken, which of them is chosen as everywhere.
    Portable,
}

impl fmt::Display for KernelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "as asked",
            Self::Only => "the only one",
            Self::FewRows => "few rows",
            Self::ManyRows => "many rows",
            Self::Cheapest => "cheapest",
            Self::Special => "made for this architecture",
            Self::Portable => "portable: none made for this architecture fits the type and head dims",
        })
    }
}

/// What was chosen.
pub(super) struct Choice {
    pub(super) variant: Variant,
    pub(super) work: Work,
    pub(super) num_splits: u32,
    pub(super) ragged: Option<Ragged>,
    pub(super) split_tokens: u32,
    pub(super) reason: Reason,
    pub(super) kernel_reason: KernelReason,
}

/// What the choice is bounded by, where it is free.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Splits of each sequence.
    pub(super) splits: u32,
    /// Queries of all parts.
    pub(super) part_queries: u64,
    /// Whether a kernel can share splits out by lengths on the device.
    pub(super) on_device: bool,
}

/// Chooses among `variants`, of the problem's type and head dims.
pub(super) fn choose(
    variants: &[Variant],
    problem: &Problem,
    options: &Options,
    device: &DeviceProps,
    limits: Limits,
) -> Result<Choice> {
    // What the device cannot hold is no candidate; where it holds none, the first says why.
    let (mut works, mut refusal) = (Vec::new(), None);
    for variant in asked(variants, options)? {
        match slots(&variant, device) {
            Ok(slots) => works.push((variant, Work::new(problem, &variant, slots))),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    if let (Some(error), true) = (refusal, works.is_empty()) {
        return Err(error);
    }
    let candidates = works.len();
    let special = special_shape(device.target);
    let is_special = |(variant, _): &(Variant, Work)| Some(variant.shape) == special;
    let takes_special = works.iter().any(is_special) && options.block_shape.is_none_or(|shape| Some(shape) == special);
    if takes_special {
        works.retain(is_special);
    }
    let split_free = !is_causal_e4m3(problem);
    let limits = if split_free { limits } else { Limits { splits: 1, part_queries: 0, ..limits } };
    let auto = |variant: &Variant, work: &Work, most: u32| {
        let splits = work.choose(most.min(limits.splits));
        let even = Free { splits, ragged: None, cost: work.cost(u64::from(splits)) };
        // Two query tiles are for what is not split.
        let ragged = if variant.q_tiles == 1 { share_out(problem, variant, work, &even, limits) } else { None };
        ragged.unwrap_or(even)
    };
    let exactly = |splits: u32, work: &Work| Free { splits, ragged: None, cost: work.cost(u64::from(splits)) };
    let (variant, work, free, mut kernel_reason) = match options.splits {
        Splits::Exact(n) if n == 0 || n > MAX_SPLITS => {
            return Err(Error::argument("splits", n, format_args!("1 to {MAX_SPLITS}")));
        }
        Splits::Exact(n) if takes_special => by_tiles(works, problem, |_, work| exactly(n, work)),
        Splits::Exact(n) => cheapest(works, problem, options, |_, work, _| exactly(n, work)),
        Splits::Auto if takes_special => by_tiles(works, problem, |variant, work| auto(variant, work, MAX_SPLITS)),
        Splits::Auto => cheapest(works, problem, options, auto),
        Splits::Tokens(_) => by_rows(works, problem),
    };
    if takes_special {
        kernel_reason = KernelReason::Special;
    } else if special.is_some() && options.block_shape.is_none() {
        kernel_reason = KernelReason::Portable;
    } else if candidates == 1 {
        kernel_reason = KernelReason::Only;
    }
    if candidates == 1 && options.block_shape.is_some() && options.q_tiles.is_some() {
        kernel_reason = KernelReason::Asked;
    }
    let (num_splits, split_tokens, reason) = match options.splits {
        Splits::Exact(n) => (n, 0, Reason::Asked),
        Splits::Tokens(n) => (splits_of_tokens(n, problem, &variant.geometry)?, n, Reason::Asked),
        Splits::Auto => {
            let reason = match free.splits {
                _ if free.ragged.as_ref().is_some_and(|ragged| ragged.known().is_some()) => Reason::RaggedIsCheapest,
                _ if free.ragged.is_some() => Reason::LengthsOnDevice,
                1 if work.longest_tiles() <= 1 => Reason::OneTile,
                1 if !split_free => Reason::CausalE4m3,
                1 => Reason::UnsplitIsCheapest,
                _ => Reason::SplitIsCheapest,
            };
            (free.splits, 0, reason)
        }
    };
    if num_splits > 1 && !split_free {
        let (given, sq) = (options.splits, problem.sq);
        let allowed = format!(
            "one split (auto, or exactly 1) with e4m3 and a causal mask over 2 to {} queries (given: sq {sq})",
            CAUSAL_E4M3_QUERIES - 1
        );
        return Err(Error::argument("splits", given, allowed));
    }
    if free.ragged.is_none() && work.units_per_split() * u64::from(num_splits) > MAX_UNITS {
        let allowed = format!("at most {} for this problem", MAX_UNITS / work.units_per_split());
        return Err(Error::argument("splits", num_splits, allowed));
    }
    let reason = if problem.is_empty() { Reason::NothingToCompute } else { reason };
    Ok(Choice { variant, work, num_splits, ragged: free.ragged, split_tokens, reason, kernel_reason })
}

/// What a variant would do where the splits are free, and its estimate.
struct Free {
    /// Splits of each sequence, or of one at most.
    splits: u32,
    ragged: Option<Ragged>,
    cost: f64,
}

/// Most sequences whose splits are shared out: one warp does it.
const MAX_RAGGED: usize = 4096;
/// Splits by length are taken where they are estimated to cost less than this part of even ones.
const GAIN: f64 = 0.98;
/// How many times as many splits as one sequence alone would have are shared out at most.
const MOST_WAVES: u32 = 4;

/// Splits by length, where that is worth more than `even` ones; or where only the device knows the lengths, and a long
/// sequence alone would be split.
fn share_out(problem: &Problem, variant: &Variant, work: &Work, even: &Free, limits: Limits) -> Option<Free> {
    let batch = problem.batch;
    if !(2..=MAX_RAGGED).contains(&batch) || problem.is_empty() || work.alike_for_sure() {
        return None;
    }
    let tiles = Tiles::new(problem, variant);
    // What the longest one would have alone fills the device.
    let once = work.of_longest(batch).choose(MAX_SPLITS);
    // Whatever the lengths are, no more queries than this have parts.
    let sure = (limits.part_queries / problem.sq as u64).min(i32::MAX as u64) as u32;
    let fits = |ragged: &Ragged| {
        let units = ragged.entries() * (work.units_per_split() / batch as u64);
        ragged.part_queries() <= limits.part_queries.min(i32::MAX as u64) && units <= MAX_UNITS
    };
    if once == 1 {
        return None;
    }
    if !tiles.known() {
        let wide = (batch as u32 * even.splits).clamp(once, MOST_WAVES * once).min(sure);
        let ragged = Some(wide).filter(|&wide| wide > 1 && limits.on_device).map(|wide| tiles.share(problem, wide));
        let ragged = ragged.filter(fits)?;
        return Some(Free { splits: ragged.most_splits(), ragged: Some(ragged), cost: even.cost });
    }
    let candidates = (1..=MOST_WAVES).map(|waves| waves * once).chain([sure]).filter(|&wide| wide > 1);
    let shared =
        candidates.map(|wide| tiles.share(problem, wide)).filter(|ragged| ragged.most_splits() > 1 && fits(ragged));
    let costs = shared.filter_map(|ragged| Some((work.cost_ragged(&ragged, batch)?, ragged)));
    let (cost, ragged) = costs.reduce(|best, next| if next.0 < best.0 { next } else { best })?;
    let free = Free { splits: ragged.most_splits(), ragged: Some(ragged), cost };
    Some(free).filter(|free| free.cost < GAIN * even.cost)
}

/// Queries from which on e4m3 is split under a causal mask.
const CAUSAL_E4M3_QUERIES: usize = 384;

/// Whether `problem` is one of those that are not split: the rule of other FP8 attention for gfx950, so that what is
/// asked for is refused here as there.
fn is_causal_e4m3(problem: &Problem) -> bool {
    let causal = problem.effective_window().right == Some(0);
    problem.dtype == DType::E4m3 && causal && (2..CAUSAL_E4M3_QUERIES).contains(&problem.sq)
}

/// The variants that have what was asked for; at least one.
fn asked(variants: &[Variant], options: &Options) -> Result<Vec<Variant>> {
    let of_dims = || {
        let Variant { head_dim_qk, head_dim_v, .. } = variants[0];
        format!("of the kernels for head dims {head_dim_qk}/{head_dim_v}")
    };
    let of_shape: Vec<_> =
        variants.iter().filter(|v| options.block_shape.is_none_or(|shape| v.shape == shape)).copied().collect();
    if let (Some(shape), true) = (options.block_shape, of_shape.is_empty()) {
        let built = list(variants.iter().map(|variant| shape_name(variant.shape).to_owned()));
        return Err(Error::argument("block_shape", shape_name(shape), format_args!("{built} {}", of_dims())));
    }
    let of_both: Vec<_> =
        of_shape.iter().filter(|v| options.q_tiles.is_none_or(|q_tiles| v.q_tiles == q_tiles)).copied().collect();
    if let (Some(q_tiles), true) = (options.q_tiles, of_both.is_empty()) {
        let built = list(of_shape.iter().map(|variant| variant.q_tiles.to_string()));
        return Err(Error::argument("q_tiles", q_tiles, format_args!("{built} {}", of_dims())));
    }
    Ok(of_both)
}

fn list(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    names.join(" or ")
}

/// The variant with the lowest estimate, and the number of splits, which `splits` gives for its work and the most that
/// it may have. Rows that fit the smallest tile are worth no larger one; and unless asked for, two query tiles are only
/// for unsplit plans whose rows exceed a tile.
fn cheapest(
    works: Vec<(Variant, Work)>,
    problem: &Problem,
    options: &Options,
    splits: impl Fn(&Variant, &Work, u32) -> Free,
) -> (Variant, Work, Free, KernelReason) {
    let smallest = works.iter().map(|(variant, _)| variant.geometry.tile_m).min().unwrap_or(0);
    let few_rows = problem.rows() <= smallest as usize;
    // One tile of warpgroups computes faster than warps that share the KV, and streams as fast.
    let one_tile = |(variant, _): &(Variant, Work)| {
        variant.shape == BlockShape::Warpgroups && problem.rows() <= variant.block_rows()
    };
    let beaten = works.iter().any(one_tile).then_some(BlockShape::SharedKv);
    let estimate = |(variant, work): (Variant, Work)| {
        let tile_m = variant.geometry.tile_m;
        let freely = variant.q_tiles == 1 || options.q_tiles.is_some();
        let mut free = splits(&variant, &work, if freely { MAX_SPLITS } else { 1 });
        let two_tiles = freely || free.splits == 1 && problem.rows() > tile_m as usize;
        let allowed = two_tiles && (tile_m == smallest || !few_rows) && Some(variant.shape) != beaten;
        if !allowed {
            free.cost = f64::INFINITY;
        }
        (variant, work, free)
    };
    let best = works.into_iter().map(estimate);
    let best = best.reduce(|best, next| if next.2.cost < best.2.cost { next } else { best });
    let (variant, work, free) = best.expect("there is a variant");
    let reason = if few_rows { KernelReason::FewRows } else { KernelReason::Cheapest };
    (variant, work, free, reason)
}

/// The shape of the kernels that are made for a target, where there are such.
fn special_shape(target: Target) -> Option<BlockShape> {
    match target {
        Target::Sm100f => Some(BlockShape::Tcgen05),
        Target::Sm90 | Target::Sm90a | Target::Sm100 | Target::Gfx950 => None,
    }
}

/// Of kernels of one special shape that differ in their query tiles: two (unless they were asked for) only for unsplit
/// plans whose rows exceed a tile. `splits` gives the splits for the one with the fewest.
fn by_tiles(
    mut works: Vec<(Variant, Work)>,
    problem: &Problem,
    splits: impl Fn(&Variant, &Work) -> Free,
) -> (Variant, Work, Free, KernelReason) {
    // In order: few query tiles first.
    let (fewest, work) = &works[0];
    let free = splits(fewest, work);
    let unsplit = free.splits == 1 && free.ragged.is_none();
    let more = unsplit && problem.rows() > fewest.block_rows();
    let (variant, work) = works.swap_remove(if more { works.len() - 1 } else { 0 });
    (variant, work, free, KernelReason::Special)
}

/// The variant by the rows of one KV head alone: under `Tokens` a sequence has the same bits whatever is beside it,
/// so neither the batch nor any length may have a say.
fn by_rows(works: Vec<(Variant, Work)>, problem: &Problem) -> (Variant, Work, Free, KernelReason) {
    // In order: warps that split the KV first, few query tiles first. More than one only where it was asked for.
    let few_tiles = works.iter().map(|(variant, _)| variant.q_tiles).min();
    let mut candidates: Vec<_> = works.into_iter().filter(|(variant, _)| Some(variant.q_tiles) == few_tiles).collect();
    let fits = |variant: &Variant| problem.rows() <= variant.block_rows();
    let index = candidates.iter().position(|(variant, _)| fits(variant)).unwrap_or(candidates.len() - 1);
    let (variant, work) = candidates.swap_remove(index);
    let reason = if index == 0 { KernelReason::FewRows } else { KernelReason::ManyRows };
    (variant, work, Free { splits: 0, ragged: None, cost: 0.0 }, reason)
}

fn splits_of_tokens(n: u32, problem: &Problem, geometry: &Geometry) -> Result<u32> {
    if n == 0 || !n.is_multiple_of(geometry.tile_n) {
        let allowed = format!("a multiple of the kernel's KV tile ({})", geometry.tile_n);
        return Err(Error::argument("splits", format_args!("{n} tokens"), allowed));
    }
    let splits = problem.sk.div_ceil(n as usize).max(1);
    if splits > MAX_SPLITS as usize {
        let least = problem.sk.div_ceil(MAX_SPLITS as usize).next_multiple_of(geometry.tile_n as usize);
        let given = format!("{n} tokens, which makes {splits} splits");
        return Err(Error::argument(
            "splits",
            given,
            format_args!("at most {MAX_SPLITS} splits: at least {least} tokens"),
        ));
    }
    Ok(splits as u32)
}

/// Blocks of the kernel that the device holds at once.
fn slots(variant: &Variant, device: &DeviceProps) -> Result<u64> {
    let Geometry { threads, min_blocks, .. } = variant.geometry;
    let shared = variant.kernel.shared_bytes(device.target.vendor());
    let name = variant.kernel.name;
    if shared > device.shared_bytes_per_block {
        let allowed = format!("at least {shared}, which {name} needs");
        return Err(Error::argument("device.shared_bytes_per_block", device.shared_bytes_per_block, allowed));
    }
    if threads > device.threads_per_block {
        let allowed = format!("at least {threads}, which {name} needs");
        return Err(Error::argument("device.threads_per_block", device.threads_per_block, allowed));
    }
    // Registers are budgeted for `min_blocks`; more may not fit.
    match device.blocks_per_multiprocessor(threads, shared).min(min_blocks) {
        0 => {
            let given = device.shared_bytes_per_multiprocessor;
            let allowed = format!("room for a block of {name}: {shared} bytes and {threads} threads");
            Err(Error::argument("device.shared_bytes_per_multiprocessor", given, allowed))
        }
        fit => Ok(u64::from(device.multiprocessors) * u64::from(fit)),
    }
}
