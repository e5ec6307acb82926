//! The warps that copy Q, K and V to shared memory, a tile at a time, as the products want it: in blocks of 128 bytes of
//! every row, swizzled.

use super::super::schedule::QueryRows;
use super::{Block, Kernel, LOADERS, Turn, Units, role};
use crate::abi::AttentionArguments;
use crate::abi::tcgen05::{BLOCK_BYTES, ROWS, TOKENS, barrier};
use crate::gpu::math::opaque;
use crate::gpu::{Chunk, QuerySource, copy, mbarrier, page_offset, thread, warp};

/// Bytes that one copy moves.
const PIECE: u32 = 16;

/// Copies all that the block's units need, in the order in which the products take it: Q, then the first K, then of each
/// tile the next one's K and its own V.
///
/// # Safety
/// The load warps call it; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<K: Kernel>(a: &AttentionArguments, block: &Block) {
    let thread = thread::thread_idx_x() - role::LOAD * warp::SIZE;
    let (mut k, mut v, mut q_parity) = (Turn::FIRST, Turn::FIRST, 0);
    let mut copies = Copies { barrier: 0 };
    let mut units = Units::new();
    // SAFETY: the caller's promise; a stage is written when its last reader has said so.
    unsafe {
        while let Some((unit, tiles)) = units.next::<K>(a) {
            if tiles == 0 {
                continue;
            }
            copies.wait_for_room(block.barrier::<K>(barrier::Q_EMPTY), q_parity ^ 1);
            let source = QueryRows { a: *a, unit, element: K::SIZES.element };
            for tile in 0..K::Q_TILES {
                let to = block.shared + K::MAP.q + tile * K::MAP.qk_tile;
                copy_tile(to, K::MAP.qk_tile, source.bytes(), thread, |row| source.row(tile * ROWS + row));
            }
            copies.begun(block.barrier::<K>(barrier::Q_FULL));
            q_parity ^= 1;
            // Step `s` copies K of tile `s` and V of the one before.
            let mut step = 0;
            while step <= tiles {
                let token = unit.begin + step * TOKENS;
                if step < tiles {
                    copy_k::<K>(block, &unit.chunk(a, token, K::SIZES, K::PAGED), thread, &mut k, &mut copies);
                }
                if step > 0 {
                    let before = opaque(token) - TOKENS;
                    copy_v::<K>(block, &unit.chunk(a, before, K::SIZES, K::PAGED), thread, &mut v, &mut copies);
                }
                step += 1;
            }
            copies.finish();
        }
    }
}

/// Copies K of a tile to the ring's next stage, once that is empty.
///
/// # Safety
/// As for [`run`]; the chunk is a tile of a unit.
#[inline(always)]
unsafe fn copy_k<K: Kernel>(block: &Block, chunk: &Chunk, thread: u32, turn: &mut Turn, copies: &mut Copies) {
    let Turn { stage, parity } = *turn;
    let rows = |row: u32| {
        // SAFETY: the caller's promise.
        let offset = unsafe { offset(chunk, row, chunk.k_stride, chunk.pages.k_stride, K::PAGED) };
        (row < chunk.tokens).then(|| chunk.k.wrapping_add(offset))
    };
    // SAFETY: the caller's promise.
    unsafe {
        copies.wait_for_room(block.barrier::<K>(barrier::K_EMPTY + stage), parity ^ 1);
        let to = block.shared + K::MAP.k + stage * K::MAP.qk_tile;
        copy_tile(to, K::MAP.qk_tile, chunk.k_bytes, thread, rows);
    }
    // SAFETY: the barrier waits for all load threads.
    unsafe { copies.begun(block.barrier::<K>(barrier::K_FULL + stage)) };
    turn.next(K::MAP.k_stages);
}

/// The same of V.
///
/// # Safety
/// As for [`copy_k`].
#[inline(always)]
unsafe fn copy_v<K: Kernel>(block: &Block, chunk: &Chunk, thread: u32, turn: &mut Turn, copies: &mut Copies) {
    let Turn { stage, parity } = *turn;
    let rows = |row: u32| {
        // SAFETY: the caller's promise.
        let offset = unsafe { offset(chunk, row, chunk.v_stride, chunk.pages.v_stride, K::PAGED) };
        (row < chunk.tokens).then(|| chunk.v.wrapping_add(offset))
    };
    // SAFETY: the caller's promise.
    unsafe {
        copies.wait_for_room(block.barrier::<K>(barrier::V_EMPTY + stage), parity ^ 1);
        let to = block.shared + K::MAP.v + stage * K::MAP.v_tile;
        copy_tile(to, K::MAP.v_tile, chunk.v_bytes, thread, rows);
    }
    // SAFETY: as above.
    unsafe { copies.begun(block.barrier::<K>(barrier::V_FULL + stage)) };
    turn.next(K::MAP.v_stages);
}

/// Offset in bytes of a token's row from the chunk's address.
///
/// # Safety
/// As for [`Chunk::find`].
#[inline(always)]
unsafe fn offset(chunk: &Chunk, token: u32, stride: u64, page_stride: u64, paged: bool) -> usize {
    if paged {
        // SAFETY: the caller's promise.
        let (page, place) = unsafe { chunk.find(token) };
        page_offset(page, page_stride, place, stride)
    } else {
        (u64::from(token) * stride) as usize
    }
}

/// Starts to copy this thread's share of a tile of 128 rows, `tile` bytes in all, to shared address `shared`. What a row
/// has not, and rows that do not exist, become zero.
///
/// # Safety
/// Nobody accesses the tile; `row` gives the addresses of `row_bytes` bytes, aligned to 16.
#[inline(always)]
unsafe fn copy_tile(shared: u32, tile: u32, row_bytes: u32, thread: u32, row: impl Fn(u32) -> Option<*const u8>) {
    let pieces = tile / ROWS / PIECE;
    let mut item = thread;
    // Rolled: there are many, and what finds a row is long.
    while item < opaque(tile / PIECE) {
        let (at, piece) = (item / pieces, item % pieces);
        let place = piece / 8 * BLOCK_BYTES + at * 128 + ((piece % 8) ^ (at % 8)) * PIECE;
        let inside = piece * PIECE < row_bytes;
        let (from, bytes) = match row(at) {
            Some(start) if inside => (start.wrapping_add((piece * PIECE) as usize), PIECE),
            _ => (core::ptr::null(), 0),
        };
        // SAFETY: the caller's promise; of a piece that does not exist nothing is read.
        unsafe { copy::copy_16_zero_fill(shared + place, from, bytes) };
        item += LOADERS;
    }
}

/// A thread's copies under way. Products read shared memory by a way of their own (the asynchronous proxy), so that the
/// copies are waited for and fenced here before the barrier hears of them: those of one tile while the next one's come.
struct Copies {
    /// Barrier of the tile whose copies were begun last; 0: none.
    barrier: u32,
}

impl Copies {
    /// The copies for the phase of `barrier` have been begun.
    ///
    /// # Safety
    /// The barrier is the block's, and waits for this thread.
    #[inline(always)]
    unsafe fn begun(&mut self, barrier: u32) {
        copy::commit_group();
        if self.barrier != 0 {
            copy::wait_for_oldest::<3>();
            mbarrier::fence_async_proxy();
            // SAFETY: the caller's promise.
            unsafe { mbarrier::arrive(self.barrier) };
        }
        self.barrier = barrier;
    }

    /// Waits until a place may be overwritten. Who is to say so may wait for the copies under way: if it is not so at
    /// once, they come first.
    ///
    /// # Safety
    /// As for [`Self::begun`], and for [`mbarrier::wait`].
    #[inline(always)]
    unsafe fn wait_for_room(&mut self, barrier: u32, parity: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            if !mbarrier::has_ended(barrier, parity) {
                self.finish();
                mbarrier::wait(barrier, parity);
            }
        }
    }

    /// Waits for all copies.
    ///
    /// # Safety
    /// As for [`Self::begun`].
    #[inline(always)]
    unsafe fn finish(&mut self) {
        if self.barrier != 0 {
            copy::wait_for_oldest::<2>();
            mbarrier::fence_async_proxy();
            // SAFETY: the caller's promise.
            unsafe { mbarrier::arrive(self.barrier) };
            self.barrier = 0;
        }
    }
}
