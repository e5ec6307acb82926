//! What a plan costs: a small model of a kernel that is limited by memory, by which kernel and splits are chosen.
//!
//! The unit of cost is a byte of KV that one multiprocessor streams while all of them do. Where few blocks are at
//! work each runs faster, up to [`ALONE`].
//!
//! Every block of query rows reads the KV once more: of 16 rows where warps split the KV (`SplitKv`), of 128 where
//! they share it (`SharedKv`), twice as many with two query tiles. On the other hand each warp computes on all tokens
//! of its rows one after another, at [`WARP`]: where four warps split the KV that is four times as fast as the block
//! can stream, where they share it about as fast, and with two query tiles half of it.

use kernels_gpu::abi::BlockShape;

use super::ragged::Ragged;
use crate::catalogue::Variant;
use crate::{Lengths, Problem};

/// How much faster a block streams when it has the memory to itself than when every multiprocessor streams. From a
/// sweep of splits on an H200 (one sequence of 131072 tokens, 8 KV heads): 64 blocks reach 47 KB/us each, where
/// 132 share 4500 KB/us.
const ALONE: f64 = 1.35;
/// How fast one warp computes on KV for one query tile, in bytes of KV for each that a multiprocessor streams.
/// Estimated: 64 matrix products and a softmax for 32 tokens of d128, about 0.5 us.
const WARP: f64 = 1.0;
/// The same of a block over tensor memory, for one query tile, in place of one warp's. Not measured: a tile of d128 takes
/// about 1100 cycles of the matrix unit and of the exponentials, side by side, and about twice as long to stream.
const TCGEN05: f64 = 2.0;
/// How gradually one limit passes into the other (the exponent of a p-norm): a device that is 3 % short of full is as
/// fast as a full one, one that is a fifth short is not.
const GRADUAL: f64 = 8.0;
/// What a unit costs beside its bytes: filling the ring, merging the warps, storing. About 1.2 us on an H200.
const UNIT: f64 = 40e3;
/// What the combine costs beside its bytes: about 2.8 us on an H200.
const COMBINE: f64 = 100e3;
/// What each split adds to the combine: a dependent read.
const COMBINE_SPLIT: f64 = 700.0;
/// Costs this close count as equal, and the fewest splits win.
const TIE: f64 = 1.005;

/// The work of a problem before it is split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    m_blocks: usize,
    units_per_split: u64,
    /// KV tiles over all units.
    tiles: f64,
    /// KV tiles of the longest unit.
    longest: u64,
    /// Whether all units have the same number of tiles, as far as is known.
    uniform: bool,
    /// Whether that is sure: lengths on the device may differ from what is planned.
    sure: bool,
    /// Blocks that the device holds at once.
    slots: u64,
    /// Bytes of KV in a tile.
    tile_bytes: f64,
    /// How fast a block gets on with the memory to itself: as it streams, or as it computes.
    alone: f64,
    /// Queries of all sequences, and of one at most.
    queries: u64,
    sq: u64,
    /// Bytes that a part of a query adds, of all heads: written and read.
    part_bytes: f64,
}

/// What splits make of the work.
struct Parts {
    /// Units of work.
    units: u64,
    /// Units that take about as long as the longest.
    big: u64,
    /// KV tiles of the longest unit.
    longest: u64,
    /// Splits of a sequence at most.
    splits: u64,
    /// Queries of all parts.
    queries: u64,
}

impl Work {
    /// The work of `problem` (a valid one) on a device that holds `slots` blocks at once.
    pub(super) fn new(problem: &Problem, variant: &Variant, slots: u64) -> Self {
        let m_blocks = problem.rows().div_ceil(variant.block_rows());
        let tile = variant.geometry.tile_n as usize;
        // KV tiles that the first and the last block of a sequence's query rows see; those between are between.
        let seen = |lengths: Lengths| {
            let rows = lengths.queries * problem.group();
            let blocks = rows.div_ceil(variant.block_rows());
            if blocks == 0 {
                return (0, [0, 0]);
            }
            let tiles = [0, blocks - 1].map(|block| {
                let last = ((block + 1) * variant.block_rows()).min(rows) - 1;
                let keys_of =
                    |row: usize| problem.effective_window().of(row / problem.group(), lengths.queries, lengths.keys);
                let end = keys_of(last).end;
                end.div_ceil(tile) - keys_of(block * variant.block_rows()).start.min(end) / tile
            });
            (blocks, tiles)
        };
        // Where all sequences are alike, one stands for all.
        let alike = problem.lengths_alike();
        let sequences = if problem.is_empty() { 0 } else { problem.batch };
        let (looked_at, each) = if alike { (sequences.min(1), sequences as f64) } else { (sequences, 1.0) };
        let (mut sum, mut longest, mut shortest) = (0.0, 0, usize::MAX);
        for index in 0..looked_at {
            let (blocks, [first, last]) = seen(problem.lengths(index));
            sum += each * blocks as f64 * (first + last) as f64 / 2.0;
            longest = longest.max(first).max(last);
            shortest = shortest.min(if blocks < m_blocks { 0 } else { first.min(last) });
        }
        let shares = match variant.shape {
            BlockShape::SplitKv => f64::from(variant.geometry.warps),
            BlockShape::Tcgen05 => TCGEN05,
            _ => 1.0,
        };
        Self {
            m_blocks,
            // Rows bound it, all of them together below 2^31.
            units_per_split: (sequences * m_blocks * problem.kv_heads) as u64,
            tiles: sum * problem.kv_heads as f64,
            longest: longest as u64,
            uniform: shortest >= longest,
            sure: problem.lengths_known(),
            slots,
            tile_bytes: (tile * (problem.head_dim_qk + problem.head_dim_v) * problem.dtype.size_of()) as f64,
            alone: ALONE.min(shares * WARP / f64::from(variant.q_tiles)),
            queries: problem.total_q() as u64,
            sq: problem.sq as u64,
            part_bytes: (problem.heads * (problem.head_dim_v + 1)) as f64 * 4.0 * 2.0,
        }
    }

    /// Blocks of query rows of a KV head.
    pub(super) fn m_blocks(&self) -> u32 {
        self.m_blocks as u32
    }

    /// Units of work of one split.
    pub(super) fn units_per_split(&self) -> u64 {
        self.units_per_split
    }

    /// Whether all units are known to have the same number of tiles.
    pub(super) fn alike_for_sure(&self) -> bool {
        self.uniform && self.sure
    }

    /// KV tiles of the longest sequence.
    pub(super) fn longest_tiles(&self) -> u64 {
        self.longest
    }

    /// The fewest splits whose estimated cost is as low as any, at most `max_splits`.
    pub(super) fn choose(&self, max_splits: u32) -> u32 {
        let by_units = super::MAX_UNITS.checked_div(self.units_per_split).unwrap_or(1);
        let most = u64::from(max_splits).min(self.longest).min(by_units).max(1);
        let costs: Vec<_> = (1..=most).map(|splits| self.cost(splits)).collect();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        costs.iter().position(|&cost| cost <= least * TIE).map_or(1, |index| index as u32 + 1)
    }

    /// Blocks of the grid. Equal units: spread evenly. Otherwise one a unit, and the hardware balances.
    pub(super) fn grid(&self, units: u64) -> u64 {
        if self.alike_for_sure() { self.even(units) } else { units }
    }

    /// As few blocks as take `units` equal units in as many waves as any number would.
    fn even(&self, units: u64) -> u64 {
        units.div_ceil(units.div_ceil(self.slots).max(1))
    }

    /// How many times the units fill the device.
    pub(super) fn waves(&self, units: u64) -> f64 {
        units as f64 / self.slots as f64
    }

    /// The work of the longest sequence alone, if all of its blocks see as much.
    pub(super) fn of_longest(&self, batch: usize) -> Self {
        let units = self.units_per_split / batch as u64;
        Self { units_per_split: units, tiles: (units * self.longest) as f64, uniform: true, queries: self.sq, ..*self }
    }

    /// The estimate with this many splits of each sequence.
    pub(super) fn cost(&self, splits: u64) -> f64 {
        let units = self.units_per_split * splits;
        let longest = self.longest.div_ceil(splits);
        self.cost_of(self.uniform, Parts { units, big: units, longest, splits, queries: self.queries * splits })
    }

    /// The estimate with splits of their own for sequences whose lengths are known.
    pub(super) fn cost_ragged(&self, ragged: &Ragged, batch: usize) -> Option<f64> {
        let shares = ragged.shares()?;
        let blocks = self.units_per_split / batch as u64;
        let parts = Parts {
            units: ragged.entries() * blocks,
            big: shares.big * blocks,
            longest: shares.longest,
            splits: u64::from(ragged.most_splits()),
            queries: ragged.part_queries(),
        };
        Some(self.cost_of(false, parts))
    }

    fn cost_of(&self, uniform: bool, Parts { units, big, longest, splits, queries }: Parts) -> f64 {
        let slots = self.slots as f64;
        let longest = longest as f64 * self.tile_bytes;
        // Two limits: the memory that all blocks share, and what the blocks on the longest way can stream alone.
        let (shared, alone, tail) = if uniform {
            let way = units.div_ceil(self.slots) as f64 * longest;
            (way * self.even(units) as f64 / slots, way / self.alone, 0.0)
        } else {
            // Units finish at different times: half of the longest one is left over at the end.
            let tail = if big > self.slots { longest / self.alone / 2.0 } else { 0.0 };
            (self.tiles * self.tile_bytes / slots, longest / self.alone, tail)
        };
        let streaming = (shared.powf(GRADUAL) + alone.powf(GRADUAL)).powf(1.0 / GRADUAL) + tail;
        let combine = match splits {
            1 => 0.0,
            n => COMBINE + COMBINE_SPLIT * n as f64 + self.part_bytes * queries as f64 / slots,
        };
        streaming + UNIT * self.waves(units).max(1.0) + combine
    }
}
