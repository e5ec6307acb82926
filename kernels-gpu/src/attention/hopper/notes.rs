//! What those who compute need of a unit, found by others while its tiles are on their way, and kept in shared memory.

use super::super::output::{RowOutput, RowParts, UnitOutput};
use super::super::schedule::Unit;
use super::{Block, SIZES};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{NOTES_BYTES, ROWS, at};
use crate::gpu::divide;

/// A unit's numbers.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Numbers {
    /// Rows that exist.
    pub(super) rows: u32,
    /// KV tokens.
    pub(super) tokens: u32,
    pub(super) split: u32,
    /// Factor of scores, in the exp2 domain.
    pub(super) scale: f32,
    /// Factor of V's values.
    pub(super) descale: f32,
    /// Number of the word at which the blocks of the unit's splits meet.
    pub(super) word: u32,
    /// Rows that each of them merges.
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

    /// Notes the numbers of unit `index` down; `scale` is the scores' factor.
    ///
    /// # Safety
    /// One thread calls it, none reads an earlier unit's any more, and a barrier comes before they are read.
    #[inline(always)]
    pub(super) unsafe fn write_numbers(
        self,
        a: &AttentionArguments,
        unit: &Unit,
        output: &UnitOutput,
        scale: f32,
        index: u32,
    ) {
        let (rows, splits) = (output.rows().min(SIZES.tile_rows), a.num_splits);
        let numbers = Numbers {
            rows,
            tokens: unit.end - unit.begin,
            split: unit.split,
            scale,
            descale: output.descale,
            // Blocks merge where all sequences have the same splits, which run slowest.
            word: index - unit.split * SIZES.units_of_split(a),
            // SAFETY: splits is not 0.
            share: unsafe { divide(rows + splits - 1, splits).0 },
        };
        // SAFETY: the caller's promise.
        unsafe { self.numbers.write(numbers) };
    }

    /// Notes down where row `row`, which exists, goes.
    ///
    /// # Safety
    /// As for [`Self::write_numbers`], one thread a row.
    #[inline(always)]
    pub(super) unsafe fn write_row(self, output: &UnitOutput, row: u32) {
        let noted = Row { output: output.row(row), parts: output.parts(row) };
        // SAFETY: the caller's promise.
        unsafe { self.rows.add(row as usize).write(noted) };
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
