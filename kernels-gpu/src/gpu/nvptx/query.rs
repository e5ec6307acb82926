//! Query rows as the first operand of the score products: in registers, or, where those are full, in shared
//! memory.

use super::matrix::load_matrix_x4;
use super::ring::{PIECE, further, swizzled};
use super::tile::{Element, ROWS};
use super::{shared, thread, warp};
use crate::abi::Geometry;
use crate::gpu::{Float4, QuerySource};
use core::marker::PhantomData;

/// `QT` times 16 query rows of `QF` fragments.
pub(crate) struct Query<E, const QF: usize, const QT: usize, const IN_SHARED: bool> {
    /// Fragments of the lane, where they are in registers.
    fragments: [[[u32; 4]; QF]; QT],
    /// Shared address of the lane's row and piece in the first fragment, where they are in shared memory.
    address: u32,
    /// Bytes between the first rows of two tiles.
    tile_bytes: u32,
    element: PhantomData<E>,
}

impl<E: Element, const QF: usize, const QT: usize, const IN_SHARED: bool> Query<E, QF, QT, IN_SHARED> {
    const PITCH: u32 = Geometry::row_bytes(E::OPERAND, (QF * E::DEPTH) as u32);

    /// Loads the warp's rows: tile `t` starts at row `first + t * stride` of the block's. In shared memory the
    /// block holds `block_rows` rows at `memory`.
    ///
    /// # Safety
    /// Every thread of the block reaches this call, and none reads rows of an earlier call any more. `source` says the
    /// truth. `memory` is shared memory for the block's rows, aligned to 128 bytes, where `IN_SHARED`.
    #[inline(always)]
    pub(crate) unsafe fn load(
        source: &impl QuerySource,
        first: u32,
        stride: u32,
        block_rows: u32,
        memory: *mut u8,
    ) -> Self {
        let lane = warp::lane_id();
        let fragments = [[[0; 4]; QF]; QT];
        let mut query = Self { fragments, address: 0, tile_bytes: stride * Self::PITCH, element: PhantomData };
        if IN_SHARED {
            // SAFETY: the caller's promise.
            unsafe {
                Self::stage(source, block_rows, memory);
                thread::sync_threads();
                // Matrices 0, 1 are rows 0..8 and 8..16 of the first depth half, 2, 3 those of the second.
                let row = first + lane % 16;
                let place = row * Self::PITCH + swizzled(lane / 16, row) * PIECE;
                query.address = shared::address(memory) + place;
            }
            return query;
        }
        for t in 0..QT {
            for slot in 0..ROWS {
                if let Some(row) = source.row(first + t as u32 * stride + E::row(lane, slot)) {
                    let words = row.cast::<u32>();
                    for f in 0..QF {
                        // Eight words of a row are one fragment's.
                        let word = 8 * f + (lane % 4) as usize;
                        // SAFETY: only words that the row has.
                        unsafe {
                            if ((4 * word) as u32) < source.bytes() {
                                query.fragments[t][f][slot] = *words.add(word);
                            }
                            if ((4 * word + 16) as u32) < source.bytes() {
                                query.fragments[t][f][slot + 2] = *words.add(word + 4);
                            }
                        }
                    }
                }
            }
        }
        query
    }

    /// Copies the block's rows to shared memory.
    ///
    /// # Safety
    /// As for [`Self::load`].
    #[inline(always)]
    unsafe fn stage(source: &impl QuerySource, block_rows: u32, memory: *mut u8) {
        let pieces = QF as u32 * 2;
        let mut item = thread::thread_idx_x();
        while item < block_rows * pieces {
            let (row, piece) = (item / pieces, item % pieces);
            let mut value = Float4([0.0; 4]);
            if let Some(row_start) = source.row(row)
                && piece * PIECE < source.bytes()
            {
                // SAFETY: the row has the piece.
                value = unsafe { row_start.cast::<Float4>().add(piece as usize).read() };
            }
            let place = (row * Self::PITCH + swizzled(piece, row) * PIECE) as usize;
            // SAFETY: the place lies in the block's rows.
            unsafe { memory.add(place).cast::<Float4>().write(value) };
            item += thread::block_dim_x();
        }
    }

    /// Fragment `f` of tile `t`.
    ///
    /// # Safety
    /// Every lane of the warp reaches this call.
    #[inline(always)]
    pub(super) unsafe fn fragment(&self, t: usize, f: usize) -> [u32; 4] {
        if IN_SHARED {
            let address = further(self.address + t as u32 * self.tile_bytes, f as u32 * 2);
            // SAFETY: the caller's promise; the address lies in the warp's rows.
            unsafe { load_matrix_x4(address) }
        } else {
            self.fragments[t][f]
        }
    }
}
