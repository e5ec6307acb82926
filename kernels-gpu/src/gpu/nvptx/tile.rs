//! Products of 16 query rows, and what a lane holds of them (PTX ISA, "Matrix fragments for mma.m16n8k16").

pub(crate) use super::element::{Bf16, E4m3, Element, F16};
use super::{math, warp};

/// Rows that a lane holds a part of.
pub(crate) const ROWS: usize = 2;
/// Columns of one fragment.
pub(crate) const COLUMNS: usize = 8;
/// Consecutive columns of one row among a fragment's elements.
pub(crate) const RUN: usize = 2;

/// What a lane holds of a 16 x `COLUMNS` fp32 matrix.
pub(crate) type Fragment = [f32; 4];

/// Slot that element `i` of a fragment belongs to.
#[inline(always)]
pub(crate) const fn slot(i: usize) -> usize {
    i / 2
}

/// The largest value among the lanes that hold the same rows.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
pub(crate) unsafe fn row_max<E: Element>(mut x: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        x = math::max(x, warp::warp_shuffle_xor(x, 1));
        math::max(x, warp::warp_shuffle_xor(x, 2))
    }
}

/// The sum over the lanes that hold the same rows.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
pub(crate) unsafe fn row_sum<E: Element>(mut x: f32) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        x += warp::warp_shuffle_xor(x, 1);
        x + warp::warp_shuffle_xor(x, 2)
    }
}
