//! What the end of a unit needs, found at its beginning, while the first tile is on its way, and kept in shared memory:
//! registers are full.

use super::super::output::{RowOutput, RowParts, UnitOutput};
use super::super::schedule::Unit;
use crate::abi::AttentionArguments;
use super::{Block, SIZES};
use crate::abi::warpgroups::{NOTES_BYTES, ROWS, WIDE, at};
use crate::gpu::{divide, thread};

/// Output elements that a thread merges at once.
pub(super) const PIECE: u32 = 4;

/// A unit's numbers.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Numbers {
    /// Rows that exist.
    pub(super) rows: u32,
    /// KV tokens.
    pub(super) tokens: u32,
    pub(super) split: u32,
    /// Factor of V's values.
    pub(super) descale: f32,
    /// Number of the word at which the blocks of the unit's splits meet.
    pub(super) word: u32,
    /// Pieces of output that each of them merges.
    pub(super) share: u32,
}

/// Where a row goes.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) output: RowOutput,
    pub(super) parts: RowParts,
}
const _: () = assert!(size_of::<Numbers>() + ROWS as usize * size_of::<Row>() <= NOTES_BYTES as usize);

/// The notes of a block's present unit.
#[derive(Clone, Copy)]
pub(super) struct Notes {
    numbers: *mut Numbers,
    rows: *mut Row,
}

impl Notes {
    #[inline(always)]
    pub(super) fn new(block: &Block) -> Self {
        let numbers = block.memory.wrapping_add(at::NOTES as usize).cast::<Numbers>();
        Self { numbers, rows: numbers.wrapping_add(1).cast() }
    }

    /// Notes unit `index` down.
    ///
    /// # Safety
    /// All threads that compute reach this call, none reads an earlier unit's notes any more, and a barrier comes before
    /// they are read.
    #[inline(always)]
    pub(super) unsafe fn write(self, a: &AttentionArguments, unit: &Unit, output: &UnitOutput, index: u32) {
        let thread = thread::thread_idx_x();
        let rows = output.rows().min(SIZES.tile_rows);
        // SAFETY: the caller's promise; one thread a place.
        unsafe {
            if thread < rows {
                let row = Row { output: output.row(thread), parts: output.parts(thread) };
                self.rows.add(thread as usize).write(row);
            }
            if thread == 0 {
                let (tokens, split, descale) = (unit.end - unit.begin, unit.split, output.descale);
                // Blocks merge where all sequences have the same splits, which run slowest.
                let word = index - split * SIZES.units_of_split(a);
                let share = divide(rows * (WIDE / PIECE) + a.num_splits - 1, a.num_splits).0;
                self.numbers.write(Numbers { rows, tokens, split, descale, word, share });
            }
        }
    }

    /// The unit's numbers.
    ///
    /// # Safety
    /// They were noted.
    #[inline(always)]
    pub(super) unsafe fn numbers(self) -> Numbers {
        // SAFETY: the caller's promise.
        unsafe { self.numbers.read() }
    }

    /// A row that exists.
    ///
    /// # Safety
    /// As for [`Self::numbers`].
    #[inline(always)]
    pub(super) unsafe fn row(self, row: u32) -> *const Row {
        self.rows.wrapping_add(row as usize)
    }
}
