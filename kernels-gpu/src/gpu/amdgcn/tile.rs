//! Products of a 16-row query tile, and what a lane holds of them.
//!
//! The matrix unit computes the transposes: scores as K times the query's transpose, outputs as V's
//! transpose times the weights' transpose. A lane then holds parts of one query row alone, and the scores
//! become the second product's operand without leaving their lanes.

pub(crate) use super::matrix::{Bf16, Element, F16};
use super::{math, warp};

/// Query rows of a tile.
pub(crate) const M: u32 = 16;
/// Rows that a lane holds a part of.
pub(crate) const ROWS: usize = 1;
/// Columns of one fragment.
pub(crate) const COLUMNS: usize = 16;
/// Head dims of one query fragment.
pub(crate) const DEPTH: usize = 32;

/// What a lane holds of a 16 x `COLUMNS` fp32 matrix.
pub(crate) type Fragment = [f32; 4];

/// Row of the tile that the lane's slot `slot` stands for.
#[inline(always)]
pub(crate) fn row(lane: u32, _slot: usize) -> u32 {
    lane % 16
}

/// Slot that element `i` of a fragment belongs to.
#[inline(always)]
pub(crate) const fn slot(_i: usize) -> usize {
    0
}

/// Column of element `i` of fragment `fragment`.
#[inline(always)]
pub(crate) fn column(lane: u32, fragment: usize, i: usize) -> u32 {
    (fragment * COLUMNS) as u32 + lane / 16 * 4 + i as u32
}

/// The largest value among the lanes that hold the same rows.
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn row_max(x: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { reduce_row(x, math::max) }
}

/// The sum over the lanes that hold the same rows.
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn row_sum(x: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { reduce_row(x, |a, b| a + b) }
}

/// Combines the values of the four lanes that hold the same row, in the same order in each.
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
unsafe fn reduce_row(x: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = warp::halves(x);
        let (a, b) = warp::neighbour_rows(combine(a, b));
        combine(a, b)
    }
}

/// A query tile as the second operand of `QF` products of depth [`DEPTH`].
pub(crate) struct Query<const QF: usize>(pub(super) [[u32; 4]; QF]);

impl<const QF: usize> Query<QF> {
    /// Loads the lane's part of its row; `None` stands for a row of zeros.
    ///
    /// # Safety
    /// The pointer is aligned to 16 bytes and `QF * DEPTH` 16-bit elements can be read from it.
    #[inline(always)]
    pub(crate) unsafe fn load(rows: [Option<*const u8>; ROWS], lane: u32) -> Self {
        let mut fragments = [[0; 4]; QF];
        if let Some(row) = rows[0] {
            // SAFETY: the four lanes of a row read 64 bytes a fragment; the caller's promise.
            fragments = unsafe { load_row(row, lane) };
        }
        Self(fragments)
    }
}

/// The lane's part of a row as an operand of `QF` products: lanes `l`, `l + 16`, `l + 32`, `l + 48` share
/// each [`DEPTH`] elements.
///
/// # Safety
/// `row` is aligned to 16 bytes and `QF * DEPTH` 16-bit elements can be read from it.
#[inline(always)]
pub(super) unsafe fn load_row<const QF: usize>(row: *const u8, lane: u32) -> [[u32; 4]; QF] {
    #[derive(Clone, Copy)]
    #[repr(C, align(16))]
    struct Piece([u32; 4]);

    let mut fragments = [[0; 4]; QF];
    let pieces = row.cast::<Piece>();
    for i in 0..QF {
        // SAFETY: pieces i * 4 to i * 4 + 3 are fragment i; the caller's promise.
        fragments[i] = unsafe { pieces.add(i * 4 + (lane / 16) as usize).read() }.0;
    }
    fragments
}
