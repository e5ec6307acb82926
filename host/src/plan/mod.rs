//! How a problem is computed: kernel, splits, launches, workspace. Pure: no device, no environment.

mod choose;
mod coverage;
mod heuristic;
mod ragged;

use std::fmt;

use kernels_gpu::abi::warpgroups::MAX_MERGED_SPLITS;
use kernels_gpu::abi::{self, BlockShape, Geometry, Kernel, MAX_SPLITS, Vendor};

use self::choose::{Choice, Limits, choose};
pub use self::choose::{KernelReason, Reason};
pub use self::coverage::Unit;
use self::heuristic::Work;
pub use self::ragged::Ragged;
use crate::catalogue::Variant;
use crate::{Catalogue, DeviceProps, Error, Options, Problem, Result};

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
    ragged: Option<Ragged>,
    split_tokens: u32,
    reason: Reason,
    kernel_reason: KernelReason,
    waves: f64,
    attention: Launch,
    schedule: Option<KernelLaunch>,
    merging: Merging,
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

/// A kernel beside the attention kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLaunch {
    /// The kernel.
    pub kernel: Kernel,
    /// Its launch.
    pub launch: Launch,
}

/// Who merges the splits of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// Nobody: there is one split.
    None,
    /// The combine kernel, launched after the attention kernel.
    Kernel(KernelLaunch),
    /// Of the attention kernel's blocks, the one of each row block that finishes last.
    LastBlock {
        /// Row blocks. The executor owns a counter of each, by which a block learns that it is the last.
        counters: u32,
    },
    /// All of the attention kernel's blocks, once those of a row block have met: warpgroups, where all blocks run at once.
    Blocks,
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
    let schedule = catalogue.schedule();
    // Auto does not split what cannot be merged, and keeps to the workspace.
    let part_queries = match options.max_workspace_bytes {
        _ if combine.is_err() => 0,
        None => u64::MAX,
        Some(most) => most as u64 / part_bytes(problem).max(1),
    };
    let splits = part_queries.checked_div(problem.total_q() as u64).unwrap_or(1).clamp(1, u64::from(MAX_SPLITS)) as u32;
    let limits = Limits { splits, part_queries, on_device: schedule.is_ok() };
    let Choice { variant, work, num_splits, ragged, split_tokens, reason, kernel_reason } =
        choose(&variants, problem, options, device, limits)?;

    let part_queries = match (&ragged, num_splits) {
        (Some(ragged), _) => ragged.part_queries(),
        (None, 1) => 0,
        (None, n) => u64::from(n) * problem.total_q() as u64,
    };
    let workspace_bytes = workspace_bytes(problem, num_splits, part_queries)?;
    if let Some(most) = options.max_workspace_bytes.filter(|&most| workspace_bytes > most) {
        let allowed = format!("at least {workspace_bytes}, which {num_splits} splits need");
        return Err(Error::argument("max_workspace_bytes", most, allowed));
    }
    let (units, grid) = match &ragged {
        // A block a unit, and the hardware balances.
        Some(ragged) => {
            let units = work.units_per_split() / problem.batch as u64 * ragged.entries();
            (units, units)
        }
        None => {
            let units = work.units_per_split() * u64::from(num_splits);
            (units, work.grid(units))
        }
    };
    let vendor = device.target.vendor();
    let threads = variant.geometry.threads;
    let attention = Launch {
        grid: grid.min(u64::from(device.max_blocks(threads))) as u32,
        block: threads,
        shared_bytes: variant.kernel.shared_bytes(vendor),
    };
    let merging = match num_splits {
        1 => Merging::None,
        _ => merging(problem, &variant, &work, ragged.is_some(), num_splits, vendor, combine?),
    };
    Ok(Plan {
        problem: problem.clone(),
        options: *options,
        device: device.clone(),
        variant,
        m_blocks: work.m_blocks(),
        units: units as u32,
        num_splits,
        schedule: match &ragged {
            Some(ragged) if ragged.known().is_none() => {
                let kernel = schedule?;
                let block = kernel.threads(vendor);
                Some(KernelLaunch {
                    kernel,
                    launch: Launch { grid: 1, block, shared_bytes: kernel.shared_bytes(vendor) },
                })
            }
            _ => None,
        },
        ragged,
        split_tokens,
        reason,
        kernel_reason,
        waves: work.waves(units),
        attention,
        merging,
        workspace_bytes,
    })
}

fn plan_combine(problem: &Problem, device: &DeviceProps, catalogue: &Catalogue) -> Result<KernelLaunch> {
    let vendor = device.target.vendor();
    let kernel = catalogue.combine()?;
    let block = kernel.threads(vendor);
    let rows = (problem.total_q() * problem.heads) as u32;
    let most = device.max_blocks(block);
    if rows > most {
        let allowed = format!("at most {most} where there is more than one split: one block a row");
        return Err(Error::argument("total_q * heads", rows, allowed));
    }
    if !problem.head_dim_v.is_multiple_of(abi::COMBINE_WIDTH as usize) {
        let allowed = format!("a multiple of {}, where there is more than one split", abi::COMBINE_WIDTH);
        return Err(Error::argument("head_dim_v", problem.head_dim_v, allowed));
    }
    Ok(KernelLaunch { kernel, launch: Launch { grid: rows, block, shared_bytes: kernel.shared_bytes(vendor) } })
}

/// Most rounds of loads in which the last block of a row block merges its parts. Longer, and the combine kernel's many
/// blocks are sooner done than one.
const MERGE_ROUNDS: u32 = 4;

/// Who merges the splits, of which there are more than one.
fn merging(
    problem: &Problem,
    variant: &Variant,
    work: &Work,
    ragged: bool,
    num_splits: u32,
    vendor: Vendor,
    kernel: KernelLaunch,
) -> Merging {
    let units = work.units_per_split();
    // Blocks that wait for others that do not run yet would lose more than a combine costs.
    let together = !ragged && num_splits <= MAX_MERGED_SPLITS && work.waves(units * u64::from(num_splits)) <= 1.0;
    if variant.shape == BlockShape::Warpgroups && together {
        return Merging::Blocks;
    }
    // Each warp takes a row after the other, of so many parts and dims at a time.
    let rows = problem.rows().min(variant.block_rows()) as u32;
    let dims = vendor.warp_size() * abi::COMBINE_WIDTH;
    let rounds = rows.div_ceil(variant.geometry.warps)
        * (problem.head_dim_v as u32).div_ceil(dims)
        * num_splits.div_ceil(abi::MERGE_UNROLL);
    if variant.kernel.can_merge(vendor) && rounds <= MERGE_ROUNDS {
        return Merging::LastBlock { counters: units as u32 };
    }
    Merging::Kernel(kernel)
}

/// Bytes of a part of a query: O and LSE of all heads in fp32.
fn part_bytes(problem: &Problem) -> u64 {
    // Heads and dims are below 2^31.
    (problem.heads * (problem.head_dim_v + 1) * size_of::<f32>()) as u64
}

/// Bytes of the parts of so many queries.
fn workspace_bytes(problem: &Problem, num_splits: u32, part_queries: u64) -> Result<usize> {
    let bytes = part_bytes(problem).checked_mul(part_queries);
    bytes.filter(|&bytes| bytes <= isize::MAX as u64).map(|bytes| bytes as usize).ok_or_else(|| {
        let given = format!("{num_splits} over {} rows", problem.total_q() * problem.heads);
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

    /// Why it is this kernel.
    pub fn kernel_reason(&self) -> KernelReason {
        self.kernel_reason
    }

    /// The head dims that the kernel was compiled for: of Q and K, and of V and O. It pads the problem's with zeros.
    pub fn kernel_dims(&self) -> (usize, usize) {
        self.variant.dims()
    }

    /// How the warps of a block share the work.
    pub fn block_shape(&self) -> BlockShape {
        self.variant.shape
    }

    /// Query tiles that a block owns.
    pub fn q_tiles(&self) -> u32 {
        self.variant.q_tiles
    }

    /// Blocks of `q_tiles * tile_m` packed query rows of one KV head.
    pub fn m_blocks(&self) -> u32 {
        self.m_blocks
    }

    /// Parts of each sequence's KV; of one sequence at most where each has its own number ([`Plan::ragged`]).
    pub fn num_splits(&self) -> u32 {
        self.num_splits
    }

    /// How splits are shared out by the sequences' lengths, where not all have [`Plan::num_splits`].
    pub fn ragged(&self) -> Option<&Ragged> {
        self.ragged.as_ref()
    }

    /// KV tokens of each split where [`Splits::Tokens`](crate::Splits::Tokens) was asked for; 0: each sequence's tiles are shared out
    /// evenly.
    pub fn split_tokens(&self) -> u32 {
        self.split_tokens
    }

    /// Why there are so many splits.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Size in bytes of the workspace that a run needs: 0 with one split; exact, but where splits are shared out by lengths
    /// that only the device knows: then it is enough for any.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// The attention kernel's launch. No blocks where there is nothing to compute.
    pub fn attention(&self) -> Launch {
        self.attention
    }

    /// The launch of the kernel that shares splits out by lengths on the device, ahead of the attention kernel.
    pub fn schedule(&self) -> Option<KernelLaunch> {
        self.schedule
    }

    /// Who merges the splits.
    pub fn merging(&self) -> Merging {
        self.merging
    }

    /// The combine kernel's launch, where it merges the splits.
    pub fn combine(&self) -> Option<KernelLaunch> {
        match self.merging {
            Merging::Kernel(launch) => Some(launch),
            _ => None,
        }
    }

    /// Estimate of how many times the units of work fill the device.
    pub fn waves(&self) -> f64 {
        self.waves
    }

    /// Units of work: `num_splits * batch * m_blocks * kv_heads`, or where each sequence has splits of its own, their sum in
    /// place of `num_splits * batch`; at most, where only the device knows the lengths. Block `b` of the grid takes the
    /// units `b`, `b + grid`, `b + 2 grid`, and so on.
    pub fn units(&self) -> u32 {
        self.units
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { grid, block, shared_bytes } = self.attention;
        let Geometry { tile_m, tile_n, .. } = self.variant.geometry;
        writeln!(f, "{} on {} ({})", self.problem, self.device.name, self.device.target.name())?;
        writeln!(f, "  kernel     {} ({})", self.variant.kernel.name, self.kernel_reason)?;
        let (qk, v) = self.kernel_dims();
        if (qk, v) != (self.problem.head_dim_qk, self.problem.head_dim_v) {
            writeln!(f, "  padded     to head dims {qk}/{v}")?;
        }
        let warps = match self.variant.shape {
            BlockShape::SplitKv => "each warp other tokens",
            BlockShape::SharedKv => "each warp other rows",
            BlockShape::Warpgroups => "each warpgroup other tokens",
            BlockShape::Tcgen05 => "warps with roles",
            _ => unreachable!("the ABI table grew a block shape that the planner does not know"),
        };
        writeln!(f, "  tile       {} x {tile_m} rows, {tile_n} tokens, {warps}", self.variant.q_tiles)?;
        let (splits, asked) = (self.num_splits, self.options.splits);
        match &self.ragged {
            None => writeln!(f, "  splits     {splits} ({}; asked: {asked})", self.reason)?,
            Some(ragged) => {
                let all = ragged.entries();
                let most = if ragged.known().is_some() { "" } else { " at most" };
                writeln!(f, "  splits     1 to {splits}, {all} in all{most} ({}; asked: {asked})", self.reason)?;
            }
        }
        writeln!(f, "  grid       {grid} blocks of {block} threads for {} units", self.units())?;
        writeln!(f, "  waves      {:.2} of {} multiprocessors", self.waves, self.device.multiprocessors)?;
        writeln!(f, "  shared     {shared_bytes} bytes a block")?;
        if let Some(KernelLaunch { launch, .. }) = self.schedule {
            writeln!(f, "  schedule   {} block of {} threads", launch.grid, launch.block)?;
        }
        match self.merging {
            Merging::None => writeln!(f, "  combine    none")?,
            Merging::Kernel(KernelLaunch { launch, .. }) => {
                writeln!(f, "  combine    {} blocks of {} threads", launch.grid, launch.block)?;
            }
            Merging::LastBlock { counters } => writeln!(f, "  combine    by the last block of each of {counters}")?,
            Merging::Blocks => writeln!(f, "  combine    by the blocks themselves")?,
        }
        write!(f, "  workspace  {} bytes", self.workspace_bytes)
    }
}
