//! Products of 16 or 32 query rows, and what a lane holds of them.
//!
//! The matrix unit computes the transposes: scores as K times the query's transpose, outputs as V's
//! transpose times the weights' transpose. A lane then holds parts of one query row alone, and the scores
//! become the second product's operand without leaving their lanes.

pub(crate) use super::element::{Bf16, E4m3, Element, F16};
use super::{math, warp};

/// Rows that a lane holds a part of.
pub(crate) const ROWS: usize = 1;
/// Consecutive columns of one row among a fragment's elements.
pub(crate) const RUN: usize = 4;

/// What a lane holds of a fp32 matrix of a product's rows by [`Element::COLUMNS`].
pub(crate) type Fragment = [f32; 4];

/// Slot that element `i` of a fragment belongs to.
#[inline(always)]
pub(crate) const fn slot(_i: usize) -> usize {
    0
}

/// The largest value among the lanes that hold the same rows.
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn row_max<E: Element>(x: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { reduce_row::<E>(x, math::max) }
}

/// The sum over the lanes that hold the same rows.
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn row_sum<E: Element>(x: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { reduce_row::<E>(x, |a, b| a + b) }
}

/// Combines the values of the two or four lanes that hold the same row, in the same order in each.
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
unsafe fn reduce_row<E: Element>(x: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = warp::halves(x);
        let x = combine(a, b);
        if E::SHARING == 2 {
            return x;
        }
        let (a, b) = warp::neighbour_rows(x);
        combine(a, b)
    }
}
