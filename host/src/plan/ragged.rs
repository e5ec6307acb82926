//! Splits of their own for each sequence of a ragged batch: what [`abi::schedule`]'s rule gives for a problem.

use kernels_gpu::abi::schedule::{self, Rows};
use kernels_gpu::abi::{MAX_SPLITS, NO_BOUND};

use crate::catalogue::Variant;
use crate::{Lengths, Problem};

/// How the splits of a ragged batch are shared out: long sequences have more than short ones.
///
/// A split has at most as many KV tiles as the smallest number with which no more than [`Ragged::wide`] splits are big,
/// which is longer than half of that number. So the long sequences fill the device, and the short ones, which are not
/// split, change little.
#[derive(Clone, Debug, PartialEq)]
pub struct Ragged {
    rows: Rows,
    wide: u32,
    /// Of the lengths, where the host knows them.
    known: Option<Shares>,
    /// Splits of all sequences, and queries of all parts, at most.
    most_entries: u64,
    most_part_queries: u64,
    /// Splits of one sequence at most.
    most_splits: u32,
}

/// The splits of sequences whose lengths are known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    /// Splits of each sequence.
    pub(super) splits: Vec<u32>,
    /// KV tiles of the longest split.
    pub(super) longest: u64,
    /// Splits that are big.
    pub(super) big: u64,
}

impl Shares {
    /// Queries of all parts: those of sequences with more than one split, once a split.
    fn part_queries(&self, problem: &Problem) -> u64 {
        let queries = |(index, splits): (usize, &u32)| match splits {
            1 => 0,
            n => u64::from(*n) * problem.lengths(index).queries as u64,
        };
        self.splits.iter().enumerate().map(queries).sum()
    }
}

/// KV tiles of the sequences, of which the rule shares out those that are known.
pub(super) struct Tiles {
    rows: Rows,
    known: Option<Vec<u32>>,
}

impl Tiles {
    pub(super) fn new(problem: &Problem, variant: &Variant) -> Self {
        let window = problem.effective_window();
        let bound = |bound: Option<u32>| bound.map_or(NO_BOUND, |bound| bound.min(NO_BOUND));
        let rows = Rows {
            group: problem.group() as u32,
            block_rows: variant.block_rows() as u32,
            tile_n: variant.geometry.tile_n,
            left: bound(window.left),
            right: bound(window.right),
        };
        let known =
            problem.lengths_known().then(|| tiles(&rows, (0..problem.batch).map(|index| problem.lengths(index))));
        Self { rows, known }
    }

    /// Whether the host knows the lengths.
    pub(super) fn known(&self) -> bool {
        self.known.is_some()
    }

    /// The splits with this many big ones at most.
    pub(super) fn share(&self, problem: &Problem, wide: u32) -> Ragged {
        let known = self.known.as_ref().map(|tiles| share(tiles, wide));
        let (rows, batch, sq) = (self.rows, problem.batch as u64, problem.sq as u64);
        match &known {
            Some(shares) => Ragged {
                rows,
                wide,
                most_entries: shares.splits.iter().map(|splits| u64::from(*splits)).sum(),
                most_part_queries: shares.part_queries(problem),
                most_splits: shares.splits.iter().copied().max().unwrap_or(1),
                known,
            },
            // Big splits are `wide` at most, and where there is one, the other sequences are one less than all. Only big
            // ones have parts. No split is smaller than a tile.
            None => {
                let most = u64::from(wide.min(MAX_SPLITS)).min((problem.sk as u64).div_ceil(u64::from(rows.tile_n)));
                Ragged {
                    rows,
                    wide,
                    known,
                    most_entries: (batch + u64::from(wide) - 1).min(batch * most),
                    most_part_queries: (u64::from(wide)).min(batch * most) * sq,
                    most_splits: most as u32,
                }
            }
        }
    }
}

fn tiles(rows: &Rows, lengths: impl Iterator<Item = Lengths>) -> Vec<u32> {
    lengths.map(|Lengths { queries, keys }| rows.tiles(queries as u32, keys as u32)).collect()
}

fn share(tiles: &[u32], wide: u32) -> Shares {
    let longest = tiles.iter().copied().max().unwrap_or(0);
    let big = |most| tiles.iter().map(|&tiles| schedule::big_splits(tiles, most)).sum();
    let most = schedule::split_tiles(longest, wide, big);
    let splits: Vec<_> = tiles.iter().map(|&tiles| schedule::splits(tiles, most)).collect();
    let longest = tiles.iter().zip(&splits).map(|(tiles, splits)| u64::from(tiles.div_ceil(*splits))).max();
    Shares { splits, longest: longest.unwrap_or(0), big: u64::from(big(most)) }
}

impl Ragged {
    /// Big splits at most.
    pub fn wide(&self) -> u32 {
        self.wide
    }

    /// Splits of each sequence, where the host knows the lengths. Else the device finds them at each run.
    pub fn known(&self) -> Option<&[u32]> {
        self.known.as_ref().map(|shares| shares.splits.as_slice())
    }

    /// Splits of sequences of these lengths.
    pub fn splits(&self, lengths: &[Lengths]) -> Vec<u32> {
        share(&tiles(&self.rows, lengths.iter().copied()), self.wide).splits
    }

    /// Splits of all sequences at most; exact where the host knows the lengths.
    pub fn entries(&self) -> u64 {
        self.most_entries
    }

    pub(super) fn shares(&self) -> Option<&Shares> {
        self.known.as_ref()
    }

    /// Splits of one sequence at most.
    pub(super) fn most_splits(&self) -> u32 {
        self.most_splits
    }

    /// Rows of partial results at most, each of all heads.
    pub(super) fn part_queries(&self) -> u64 {
        self.most_part_queries
    }

    /// What decides how many KV tiles a block sees.
    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Words of the table.
    pub(crate) fn table_words(&self, batch: usize) -> usize {
        schedule::words(batch, self.most_entries as usize)
    }

    /// The table, where the host knows the lengths.
    pub(crate) fn table(&self, problem: &Problem) -> Option<Vec<u32>> {
        let splits = self.known()?;
        let mut words = vec![0; schedule::HEADER];
        words[0] = self.most_entries as u32;
        let (mut part, mut query) = (0, 0);
        for (index, &splits) in splits.iter().enumerate() {
            let queries = problem.lengths(index).queries as u32;
            words.extend([part, splits, query, queries]);
            part += if splits > 1 { splits * queries } else { 0 };
            query += queries;
        }
        for (sequence, &splits) in splits.iter().enumerate() {
            words.extend((0..splits).flat_map(|split| [sequence as u32, split]));
        }
        Some(words)
    }
}
