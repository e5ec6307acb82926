//! Where the parts of a row are: the same number for all sequences, or what the table of a ragged batch says.

use crate::abi::schedule;

/// The table of a ragged batch.
#[derive(Clone, Copy)]
pub(super) struct Table {
    words: *mut u32,
    batch: u32,
}

/// What the table says of a sequence.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Record {
    /// Row of its first part, in queries: part `s` of its query `i` is row `first_part + s * queries + i`. A sequence with
    /// one split has no parts.
    pub(super) first_part: u32,
    /// Splits.
    pub(super) splits: u32,
    /// First query among those of all sequences.
    pub(super) first_query: u32,
    /// Queries.
    pub(super) queries: u32,
}

/// One split of one sequence.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Entry {
    /// Sequence.
    pub(super) sequence: u32,
    /// Which of its splits.
    pub(super) split: u32,
}

impl Table {
    /// The table of `batch` sequences at `schedule`.
    #[inline(always)]
    pub(super) fn new(schedule: *mut u8, batch: u32) -> Self {
        Self { words: schedule.cast(), batch }
    }

    /// Whether there is none: all sequences have the same number of splits.
    #[inline(always)]
    pub(super) fn is_null(self) -> bool {
        self.words.is_null()
    }

    /// Entries: the first word.
    #[inline(always)]
    pub(super) fn entries(self) -> *mut u32 {
        self.words
    }

    /// What the table says of a sequence.
    #[inline(always)]
    pub(super) fn record(self, sequence: u32) -> *mut Record {
        self.words.wrapping_add(schedule::HEADER + schedule::SEQUENCE_WORDS * sequence as usize).cast()
    }

    /// Entry `index`.
    #[inline(always)]
    pub(super) fn entry(self, index: u32) -> *mut Entry {
        let place = schedule::entries_at(self.batch as usize) + schedule::ENTRY_WORDS * index as usize;
        self.words.wrapping_add(place).cast()
    }

    /// The sequence that has query `query` of all: the last one that begins at it or before.
    ///
    /// # Safety
    /// There is a table, and a sequence.
    #[inline(always)]
    pub(super) unsafe fn sequence_of(self, query: u32) -> u32 {
        let (mut low, mut high) = (0, self.batch);
        while high - low > 1 {
            let middle = u32::midpoint(low, high);
            // SAFETY: the caller's promise.
            if unsafe { (*self.record(middle)).first_query } <= query {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Where the parts of a query are: rows of the partial results, each of all heads.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// Row of the first part.
    pub(super) first: u64,
    /// Distance of the parts.
    pub(super) step: u64,
    /// How many there are. Where it is 1, the result was written in place of a part.
    pub(super) count: u32,
}

impl Parts {
    /// Those of row `row` of `rows`, where each sequence has `num_splits`.
    #[inline(always)]
    pub(super) fn even(num_splits: u32, rows: u32, row: u64) -> Self {
        Self { first: row, step: u64::from(rows), count: num_splits }
    }

    /// Those of query `query` of a sequence.
    #[inline(always)]
    pub(super) fn of(record: Record, query: u32) -> Self {
        let Record { first_part, splits, queries, .. } = record;
        Self { first: u64::from(first_part) + u64::from(query), step: u64::from(queries), count: splits }
    }

    /// Those of one head, in rows of one head.
    #[inline(always)]
    pub(super) fn of_head(self, heads: u32, head: u32) -> Self {
        let Self { first, step, count } = self;
        Self { first: first * u64::from(heads) + u64::from(head), step: step * u64::from(heads), count }
    }
}
