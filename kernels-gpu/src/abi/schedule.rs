//! Splits of their own for each sequence of a ragged batch: the rule, and the table that tells the kernels.
//!
//! The rule: a split takes at most as many KV tiles as the smallest number with which no more than `wide` splits are
//! big. A split is big if its sequence is longer than half of that number; what is shorter is not split, and costs
//! little. So long sequences share the device out, and short ones change nothing. The host applies the rule to lengths
//! that it knows, the kernel `schedule` to those that only the device knows; both by the functions below.
//!
//! The table: [`HEADER`] words, of which the first is the number of entries; [`SEQUENCE_WORDS`] for each sequence;
//! [`ENTRY_WORDS`] for each entry. An entry is one split of one sequence, and they are in order.

use super::{MAX_SPLITS, NO_BOUND};

/// Words of the table before the sequences.
pub const HEADER: usize = 4;
/// Words of a sequence: row of its first part, splits, first query among those of all sequences, queries.
pub const SEQUENCE_WORDS: usize = 4;
/// Words of an entry: its sequence, and which of the sequence's splits it is.
pub const ENTRY_WORDS: usize = 2;

/// Words of the table before the entries.
pub const fn entries_at(batch: usize) -> usize {
    HEADER + SEQUENCE_WORDS * batch
}

/// Words of a table of so many entries.
pub const fn words(batch: usize, entries: usize) -> usize {
    entries_at(batch) + ENTRY_WORDS * entries
}

/// Splits of a sequence of `tiles` KV tiles where one takes at most `split_tiles`: as many as that needs, at most
/// [`MAX_SPLITS`].
#[inline(always)]
pub const fn splits(tiles: u32, split_tiles: u32) -> u32 {
    let splits = quotient(tiles, split_tiles);
    let splits = if splits * split_tiles < tiles { splits + 1 } else { splits };
    if splits == 0 {
        1
    } else if splits > MAX_SPLITS {
        MAX_SPLITS
    } else {
        splits
    }
}

/// Big splits of such a sequence.
#[inline(always)]
pub const fn big_splits(tiles: u32, split_tiles: u32) -> u32 {
    if tiles > split_tiles / 2 { splits(tiles, split_tiles) } else { 0 }
}

/// KV tiles of a split at most: the smallest number for which `big`, the sum of all sequences' [`big_splits`] as a function
/// of it, is at most `wide`. No sequence has more than `longest` tiles, which are below 2^30.
#[inline(always)]
pub fn split_tiles(longest: u32, wide: u32, big: impl Fn(u32) -> u32) -> u32 {
    // With twice the longest no split is big.
    let (mut low, mut high) = (1, 2 * longest + 1);
    while low < high {
        let middle = u32::midpoint(low, high);
        if big(middle) <= wide {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// What decides how many KV tiles a block of query rows sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Query heads that share a KV head.
    pub group: u32,
    /// Packed query rows that a block owns.
    pub block_rows: u32,
    /// KV tokens that it takes in one step.
    pub tile_n: u32,
    /// Keys that a query sees before its position, or [`NO_BOUND`].
    pub left: u32,
    /// Keys that it sees behind it, or [`NO_BOUND`].
    pub right: u32,
}

impl Rows {
    /// KV tiles that a block of a sequence of so many queries and keys sees: the first block, or the last if it sees
    /// more. Queries times `group` are below 2^31.
    #[inline(always)]
    pub const fn tiles(&self, queries: u32, keys: u32) -> u32 {
        let rows = queries * self.group;
        if rows == 0 {
            return 0;
        }
        let last_block = quotient(rows - 1, self.block_rows) * self.block_rows;
        let sight = Sight { queries, keys, left: self.left, right: self.right };
        let first_end = if self.block_rows < rows { self.block_rows - 1 } else { rows - 1 };
        let first = self.of(&sight, 0, first_end);
        let last = self.of(&sight, last_block, rows - 1);
        if first < last { last } else { first }
    }

    /// KV tiles that rows `first` to `last` see.
    #[inline(always)]
    const fn of(&self, sight: &Sight, first: u32, last: u32) -> u32 {
        let end = sight.end(quotient(last, self.group));
        let begin = sight.begin(quotient(first, self.group));
        let begin = if begin < end { begin } else { end };
        let end = quotient(end, self.tile_n) + (quotient(end, self.tile_n) * self.tile_n < end) as u32;
        end - quotient(begin, self.tile_n)
    }
}

/// Which keys the queries of a sequence see. Query `i` of `n` stands at position `i + keys - n`: the last one at the
/// last key. It sees the keys from `left` before its position to `right` behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Queries.
    pub queries: u32,
    /// Keys. With the queries below 2^31.
    pub keys: u32,
    /// Keys before a query's position, or [`NO_BOUND`].
    pub left: u32,
    /// Keys behind it, or [`NO_BOUND`].
    pub right: u32,
}

impl Sight {
    /// Position of query `query`, which may be negative.
    #[inline(always)]
    pub const fn position(&self, query: u32) -> i32 {
        (query + self.keys) as i32 - self.queries as i32
    }

    /// First key that the query may see.
    #[inline(always)]
    pub const fn begin(&self, query: u32) -> u32 {
        let begin = self.position(query).saturating_sub(self.left as i32);
        if self.left == NO_BOUND || begin < 0 { 0 } else { begin as u32 }
    }

    /// End of the keys that the query sees.
    #[inline(always)]
    pub const fn end(&self, query: u32) -> u32 {
        let end = self.position(query).saturating_add(1).saturating_add(self.right as i32);
        if self.right == NO_BOUND || end > self.keys as i32 {
            self.keys
        } else if end < 0 {
            0
        } else {
            end as u32
        }
    }

    /// Whether a query at `position` sees key `key`.
    #[inline(always)]
    pub const fn sees(&self, position: i32, key: u32) -> bool {
        let distance = key as i32 - position;
        key < self.keys && distance <= self.right as i32 && distance >= -(self.left as i32)
    }
}

/// A quotient without the panic of the plain operator; nothing divides by 0 here.
#[inline(always)]
const fn quotient(value: u32, divisor: u32) -> u32 {
    match value.checked_div(divisor) {
        Some(quotient) => quotient,
        None => 0,
    }
}
