//! The thread's place in the grid, and the block's barrier.

use core::arch::{asm, nvptx};

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

/// Whether blocks can draw tickets.
pub(crate) const TICKETS: bool = true;

/// Adds 1 to a counter, or sets it back to 0 from `last`, and returns what it was. What the block wrote before the last
/// barrier is seen by whoever draws later, and what earlier ones wrote by the block after its next barrier (PTX ISA,
/// "Memory Consistency Model": causality order is transitive).
///
/// # Safety
/// `counter` is an aligned u32 that only this changes.
#[inline(always)]
pub(crate) unsafe fn draw_ticket(counter: *mut u32, last: u32) -> u32 {
    let drawn: u32;
    // SAFETY: the caller's promise. PTX ISA, "atom".
    unsafe {
        asm!("atom.acq_rel.gpu.global.inc.u32 {0}, [{1}], {2};",
            out(reg32) drawn, in(reg64) counter, in(reg32) last, options(nostack));
    }
    drawn
}
