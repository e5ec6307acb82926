//! How a problem is computed: kernel, splits, launches, workspace. Pure: no device, no environment.

mod coverage;
mod heuristic;

use std::fmt;

use kernels_gpu::abi::{self, Geometry, Kernel, MAX_SPLITS};

pub use self::coverage::Unit;
use self::heuristic::Work;
use crate::catalogue::Variant;
use crate::{Catalogue, DeviceProps, Error, Options, Problem, Result, Splits};

/// Most units of a launch: blocks step through them in 32 bits.
const MAX_UNITS: u64 = i32::MAX as u64;

/// How a problem is computed on a device. Plain data, made by [`plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    problem: Problem,
    options: Options,
    device: DeviceProps,
    variant: Variant,
    m_blocks: u32,
    units: u32,
    num_splits: u32,
    split_tokens: u32,
    reason: Reason,
    waves: f64,
    attention: Launch,
    combine: Option<CombineLaunch>,
    workspace_bytes: usize,
}

/// A kernel launch: one-dimensional grid and block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: u32,
}

/// The launch of the kernel that merges the splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombineLaunch {
    /// The kernel.
    pub kernel: Kernel,
    /// Its launch.
    pub launch: Launch,
}

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
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "as asked",
            Self::NothingToCompute => "nothing to compute",
            Self::OneTile => "one KV tile",
            Self::UnsplitIsCheapest => "cheapest unsplit",
            Self::SplitIsCheapest => "cheapest with this many",
        })
    }
}

/// Plans `problem` for `device` with the kernels of `catalogue`.
///
/// # Errors
/// [`Error::Argument`], which names the field of the problem, the option, the device's property or the catalogue.
pub fn plan(problem: &Problem, options: &Options, device: &DeviceProps, catalogue: &Catalogue) -> Result<Plan> {
    problem.validate()?;
    if catalogue.target() != device.target {
        let allowed = format!("kernels for {}", device.target.name());
        return Err(Error::argument("catalogue", format_args!("kernels for {}", catalogue.target().name()), allowed));
    }
    if device.multiprocessors == 0 {
        return Err(Error::argument("device.multiprocessors", 0, "at least 1"));
    }
    let variants = catalogue.variants(problem)?;
    let combine = plan_combine(problem, device, catalogue);
    // Auto does not split what cannot be merged.
    let max_splits = if combine.is_ok() { MAX_SPLITS } else { 1 };
    let variant = choose_variant(&variants, problem, options, device, max_splits)?;
    let work = work(problem, &variant, device)?;
    let (num_splits, split_tokens, reason) = choose_splits(problem, options, &variant.geometry, &work, max_splits)?;

    let units = work.units_per_split() * u64::from(num_splits);
    let vendor = device.target.vendor();
    let threads = variant.geometry.threads;
    let attention = Launch {
        grid: work.grid(units).min(u64::from(device.max_blocks(threads))) as u32,
        block: threads,
        shared_bytes: variant.kernel.shared_bytes(vendor),
    };
    Ok(Plan {
        problem: problem.clone(),
        options: *options,
        device: device.clone(),
        variant,
        m_blocks: work.m_blocks(),
        units: units as u32,
        num_splits,
        split_tokens,
        reason,
        waves: work.waves(units),
        attention,
        combine: if num_splits > 1 { Some(combine?) } else { None },
        workspace_bytes: workspace_bytes(problem, num_splits)?,
    })
}

/// One query tile, but two where that saves reading the KV twice: unsplit, and more rows than a tile. Under
/// `Tokens`, always one, so that the kernel does not depend on the length.
fn choose_variant(
    variants: &[Variant],
    problem: &Problem,
    options: &Options,
    device: &DeviceProps,
    max_splits: u32,
) -> Result<Variant> {
    if let Some(q_tiles) = options.q_tiles {
        return variants.iter().find(|variant| variant.q_tiles == q_tiles).copied().ok_or_else(|| {
            let built: Vec<_> = variants.iter().map(|variant| variant.q_tiles.to_string()).collect();
            Error::argument("q_tiles", q_tiles, format_args!("{} for this problem", built.join(" or ")))
        });
    }
    let (first, last) = (variants[0], variants[variants.len() - 1]);
    if last.q_tiles == first.q_tiles || problem.rows() <= first.geometry.tile_m as usize {
        return Ok(first);
    }
    let unsplit = match options.splits {
        Splits::Auto => {
            let splits = |variant| Ok::<_, Error>(work(problem, variant, device)?.choose(max_splits));
            splits(&first)? == 1 && splits(&last)? == 1
        }
        Splits::Exact(n) => n == 1,
        Splits::Tokens(_) => false,
    };
    Ok(if unsplit { last } else { first })
}

/// The work of `problem` with the kernel `variant`.
fn work(problem: &Problem, variant: &Variant, device: &DeviceProps) -> Result<Work> {
    let fit = blocks_that_fit(variant, device)?;
    Ok(Work::new(problem, variant, u64::from(device.multiprocessors) * u64::from(fit)))
}

/// Blocks of the kernel that a multiprocessor holds; at least one.
fn blocks_that_fit(variant: &Variant, device: &DeviceProps) -> Result<u32> {
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
        fit => Ok(fit),
    }
}

fn choose_splits(
    problem: &Problem,
    options: &Options,
    geometry: &Geometry,
    work: &Work,
    max_splits: u32,
) -> Result<(u32, u32, Reason)> {
    let (num_splits, split_tokens, reason) = match options.splits {
        Splits::Exact(n) if n == 0 || n > MAX_SPLITS => {
            return Err(Error::argument("splits", n, format_args!("1 to {MAX_SPLITS}")));
        }
        Splits::Exact(n) => (n, 0, Reason::Asked),
        Splits::Tokens(n) => {
            if n == 0 || !n.is_multiple_of(geometry.tile_n) {
                let allowed = format!("a multiple of the kernel's KV tile ({})", geometry.tile_n);
                return Err(Error::argument("splits", format_args!("{n} tokens"), allowed));
            }
            let splits = problem.sk.div_ceil(n as usize).max(1);
            if splits > MAX_SPLITS as usize {
                let least = problem.sk.div_ceil(MAX_SPLITS as usize).next_multiple_of(geometry.tile_n as usize);
                let given = format!("{n} tokens, which makes {splits} splits");
                let allowed = format!("at most {MAX_SPLITS} splits: at least {least} tokens");
                return Err(Error::argument("splits", given, allowed));
            }
            (splits as u32, n, Reason::Asked)
        }
        Splits::Auto => {
            let n = work.choose(max_splits);
            let reason = match n {
                1 if work.longest_tiles() <= 1 => Reason::OneTile,
                1 => Reason::UnsplitIsCheapest,
                _ => Reason::SplitIsCheapest,
            };
            (n, 0, reason)
        }
    };
    if work.units_per_split() * u64::from(num_splits) > MAX_UNITS {
        let allowed = format!("at most {} for this problem", MAX_UNITS / work.units_per_split());
        return Err(Error::argument("splits", num_splits, allowed));
    }
    Ok((num_splits, split_tokens, if problem.is_empty() { Reason::NothingToCompute } else { reason }))
}

fn plan_combine(problem: &Problem, device: &DeviceProps, catalogue: &Catalogue) -> Result<CombineLaunch> {
    let vendor = device.target.vendor();
    let kernel = catalogue.combine()?;
    let block = kernel.threads(vendor);
    let rows = (problem.batch * problem.heads * problem.sq) as u32;
    let most = device.max_blocks(block);
    if rows > most {
        let allowed = format!("at most {most} where there is more than one split: one block a row");
        return Err(Error::argument("batch * heads * sq", rows, allowed));
    }
    let widest = block * abi::COMBINE_WIDTH;
    if problem.head_dim_v > widest as usize || !problem.head_dim_v.is_multiple_of(abi::COMBINE_WIDTH as usize) {
        let allowed =
            format!("a multiple of {}, at most {widest}, where there is more than one split", abi::COMBINE_WIDTH);
        return Err(Error::argument("head_dim_v", problem.head_dim_v, allowed));
    }
    Ok(CombineLaunch { kernel, launch: Launch { grid: rows, block, shared_bytes: kernel.shared_bytes(vendor) } })
}

/// Partial O and LSE in fp32 of every split and row; nothing where the only split writes the result itself.
fn workspace_bytes(problem: &Problem, num_splits: u32) -> Result<usize> {
    if num_splits == 1 {
        return Ok(0);
    }
    let factors = [problem.batch, problem.heads, problem.sq, problem.head_dim_v + 1, size_of::<f32>()];
    let bytes = factors.iter().try_fold(num_splits as usize, |bytes, &n| bytes.checked_mul(n));
    bytes.filter(|&bytes| bytes <= isize::MAX as usize).ok_or_else(|| {
        let given = format!("{num_splits} over {} rows", problem.batch * problem.heads * problem.sq);
        Error::argument("splits", given, "a workspace below 2^63 bytes")
    })
}

impl Plan {
    /// What is computed.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// What was asked of the planner.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The device that the plan was made for.
    pub fn device(&self) -> &DeviceProps {
        &self.device
    }

    /// The attention kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.variant.kernel
    }

    /// The attention kernel's tile sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.variant.geometry
    }

    /// Query tiles that a block owns.
    pub fn q_tiles(&self) -> u32 {
        self.variant.q_tiles
    }

    /// Blocks of `q_tiles * tile_m` packed query rows of one KV head.
    pub fn m_blocks(&self) -> u32 {
        self.m_blocks
    }

    /// Parts of each sequence's KV.
    pub fn num_splits(&self) -> u32 {
        self.num_splits
    }

    /// KV tokens of each split where [`Splits::Tokens`] was asked for; 0: each sequence's tiles are shared out
    /// evenly.
    pub fn split_tokens(&self) -> u32 {
        self.split_tokens
    }

    /// Why there are so many splits.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Exact size in bytes of the workspace that a run needs; 0 with one split.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The attention kernel's launch. No blocks where there is nothing to compute.
    pub fn attention(&self) -> Launch {
        self.attention
    }

    /// The combine kernel's launch, where there is more than one split.
    pub fn combine(&self) -> Option<CombineLaunch> {
        self.combine
    }

    /// Estimate of how many times the units of work fill the device.
    pub fn waves(&self) -> f64 {
        self.waves
    }

    /// Whether the kernel masks causally: not where every query sees all keys anyway.
    pub fn causal(&self) -> bool {
        self.problem.masks()
    }

    /// Units of work: `num_splits * batch * m_blocks * kv_heads`. Block `b` of the grid takes the units `b`,
    /// `b + grid`, `b + 2 grid`, and so on.
    pub fn units(&self) -> u32 {
        self.units
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { grid, block, shared_bytes } = self.attention;
        let Geometry { tile_m, tile_n, .. } = self.variant.geometry;
        writeln!(f, "{} on {} ({})", self.problem, self.device.name, self.device.target.name())?;
        writeln!(f, "  kernel     {}", self.variant.kernel.name)?;
        writeln!(f, "  tile       {} x {tile_m} rows, {tile_n} tokens", self.variant.q_tiles)?;
        writeln!(f, "  splits     {} ({}; asked: {})", self.num_splits, self.reason, self.options.splits)?;
        writeln!(f, "  grid       {grid} blocks of {block} threads for {} units", self.units())?;
        writeln!(f, "  waves      {:.2} of {} multiprocessors", self.waves, self.device.multiprocessors)?;
        writeln!(f, "  shared     {shared_bytes} bytes a block")?;
        match self.combine {
            Some(CombineLaunch { launch, .. }) => {
                writeln!(f, "  combine    {} blocks of {} threads", launch.grid, launch.block)?;
            }
            None => writeln!(f, "  combine    none")?,
        }
        write!(f, "  workspace  {} bytes", self.workspace_bytes)
    }
}
