//! The thread's place in the grid, and the block's barrier.

use super::copy;
use core::arch::amdgpu;

/// The part of the dispatch packet that tells the grid (HSA, `hsa_kernel_dispatch_packet_t`).
#[repr(C)]
struct Dispatch {
    header: u32,
    workgroup_size: [u16; 3],
    reserved: u16,
    grid_size: [u32; 3],
}

/// Thread index in the block.
#[inline(always)]
pub(crate) fn thread_idx_x() -> u32 {
    amdgpu::workitem_id_x()
}

/// Block index in the grid.
#[inline(always)]
pub(crate) fn block_idx_x() -> u32 {
    amdgpu::workgroup_id_x()
}

/// Threads of a block.
#[inline(always)]
pub(crate) fn block_dim_x() -> u32 {
    // SAFETY: every kernel is launched through a packet, which stays while it runs; a block has a thread.
    unsafe {
        let threads = u32::from((*dispatch()).workgroup_size[0]);
        core::hint::assert_unchecked(threads != 0);
        threads
    }
}

/// Blocks in the grid.
#[inline(always)]
pub(crate) fn grid_dim_x() -> u32 {
    // SAFETY: as for `block_dim_x`. The packet counts in threads.
    let threads = unsafe { (*dispatch()).grid_size[0] };
    threads / block_dim_x()
}

/// The dispatch packet.
#[inline(always)]
fn dispatch() -> *const Dispatch {
    core::intrinsics::gpu::amdgpu_dispatch_ptr().cast()
}

/// Waits for all threads of the block, and makes their shared-memory accesses visible to each other.
///
/// # Safety
/// Every thread of the block reaches this call.
#[inline(always)]
pub(crate) unsafe fn sync_threads() {
    // The barrier alone does not wait for shared memory; LLVM's fences would also flush caches.
    copy::wait_shared();
    amdgpu::s_barrier();
    copy::pin();
}

/// Whether blocks can draw tickets.
pub(crate) const TICKETS: bool = false;

/// Of kernels that draw tickets, which are none here.
///
/// # Safety
/// It is not called.
#[inline(always)]
pub(crate) unsafe fn draw_ticket(_counter: *mut u32, _last: u32) -> u32 {
    0
}
