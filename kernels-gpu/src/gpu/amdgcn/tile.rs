//! Products of 16 query rows, and what a lane holds of them.
//!
//! The matrix unit computes the transposes: scores as K times the query's transpose, outputs as V's
//! transpose times the weights' transpose. A lane then holds parts of one query row alone, and the scores
//! become the second product's operand without leaving their lanes.

pub(crate) use super::matrix::{Bf16, Element, F16};
use super::{math, warp};

/// Query rows of a product.
pub(crate) const M: u32 = 16;
/// Rows that a lane holds a part of.
pub(crate) const ROWS: usize = 1;
/// Columns of one fragment.
pub(crate) const COLUMNS: usize = 16;
/// Consecutive columns of one row among a fragment's elements.
pub(crate) const RUN: usize = 4;
/// Head dims of one query fragment.
pub(crate) const DEPTH: usize = 32;

/// What a lane holds of a 16 x `COLUMNS` fp32 matrix.
pub(crate) type Fragment = [f32; 4];

/// Row of the product that the lane's slot `slot` stands for.
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
