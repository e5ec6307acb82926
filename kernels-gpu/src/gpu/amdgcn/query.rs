//! Query rows as the second operand of the score products, in registers.

use super::copy::piece_or_zeros;
use super::layout::{PIECE, Piece};
use super::tile::Element;
use super::warp;
use crate::gpu::QuerySource;
use core::marker::PhantomData;

/// `QT` times a product's query rows of `QF` fragments. A lane has registers enough for them: never in shared memory.
pub(crate) struct Query<E, const QF: usize, const QT: usize, const IN_SHARED: bool> {
    pub(super) fragments: [[[u32; 4]; QF]; QT],
    element: PhantomData<E>,
}

impl<E: Element, const QF: usize, const QT: usize, const IN_SHARED: bool> Query<E, QF, QT, IN_SHARED> {
    /// Loads the wave's rows: tile `t` starts at row `first + t * stride` of the block's.
    ///
    /// # Safety
    /// `source` says the truth.
    #[inline(always)]
    pub(crate) unsafe fn load(
        source: &impl QuerySource,
        first: u32,
        stride: u32,
        _block_rows: u32,
        _memory: *mut u8,
    ) -> Self {
        const { assert!(!IN_SHARED) };
        let lane = warp::per_lane(warp::lane_id());
        let mut fragments = [[[0; 4]; QF]; QT];
        for t in 0..QT {
            if let Some(row) = source.row(first + t as u32 * stride + E::row(lane, 0)) {
                // SAFETY: the caller's promise.
                fragments[t] = unsafe { load_row::<E, QF>(row, source.bytes(), lane) };
            }
        }
        Self { fragments, element: PhantomData }
    }
}

/// The lane's part of a row as an operand of products: those lanes that share a row share each of its `QF` fragments.
/// Beyond the first `bytes` bytes all are zero, and none is read.
///
/// # Safety
/// `row` is aligned to 16 bytes and `bytes` bytes, a multiple of 16, can be read from it.
#[inline(always)]
pub(super) unsafe fn load_row<E: Element, const QF: usize>(row: *const u8, bytes: u32, lane: u32) -> [[u32; 4]; QF] {
    let mut fragments = [[0; 4]; QF];
    for f in 0..QF {
        // A lane reads a piece of each fragment.
        let offset = (f as u32 * E::SHARING + lane / E::M) * PIECE;
        let piece = piece_or_zeros(row.wrapping_add(offset as usize), offset < bytes);
        // SAFETY: the row has the piece, or zeros are read.
        fragments[f] = unsafe { piece.cast::<Piece>().read() }.0;
    }
    fragments
}
