//! The thread's place in the grid, and the block's barrier.

use core::arch::nvptx;

/// Thread index in the block.
#[inline(always)]
pub(crate) fn thread_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_thread_idx_x() as u32 }
}

/// Block index in the grid.
#[inline(always)]
pub(crate) fn block_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_idx_x() as u32 }
}

/// Threads of a block.
#[inline(always)]
pub(crate) fn block_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_block_dim_x() as u32 }
}

/// Blocks in the grid.
#[inline(always)]
pub(crate) fn grid_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { nvptx::_grid_dim_x() as u32 }
}

/// Waits for all threads of the block, and makes their shared-memory accesses visible to each other.
///
/// # Safety
/// Every thread of the block reaches this call.
#[inline(always)]
pub(crate) unsafe fn sync_threads() {
    // SAFETY: the caller's promise.
    unsafe { nvptx::_syncthreads() }
}
