//! Asynchronous copies from global to shared memory, and waits.
//!
//! Shared addresses are passed as integers, so LLVM does not see that these copies write what
//! [`super::matrix::load_matrix_transposed`] reads. Every wait here is therefore also a line that no
//! memory access crosses, neither in LLVM's optimiser nor in its scheduler.

use super::layout::PIECE;
use core::arch::amdgpu;
use core::sync::atomic::{Ordering, compiler_fence};

unsafe extern "unadjusted" {
    #[link_name = "llvm.amdgcn.load.to.lds.p0"]
    fn load_to_lds(global: *const u8, shared: u32, bytes: u32, offset: u32, cache: u32);
    #[link_name = "llvm.amdgcn.s.waitcnt"]
    safe fn s_waitcnt(counters: u32);
}

/// What is read in place of what does not exist.
#[repr(C, align(16))]
struct Zeros([u8; PIECE as usize]);
static ZEROS: Zeros = Zeros([0; PIECE as usize]);

/// `piece` if it exists, else a piece of zeros.
#[inline(always)]
pub(super) fn piece_or_zeros(piece: *const u8, exists: bool) -> *const u8 {
    if exists { piece } else { ZEROS.0.as_ptr() }
}

/// Starts to copy 16 bytes for each lane: those of lane `l` go to `shared + 16 * l`.
/// CDNA4 ISA, "GLOBAL_LOAD_LDS_DWORDX4".
///
/// # Safety
/// Every lane of the wave reaches this call, with the same `shared`, a multiple of 16; `global` is the
/// address of 16 bytes, aligned to 16; the shared bytes are not accessed until [`wait_all`].
#[inline(always)]
pub(crate) unsafe fn copy_16_each(shared: u32, global: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { load_to_lds(global, shared, 16, 0, 0) }
}

/// Waits until every memory access that this wave has started is done. CDNA4 ISA, "S_WAITCNT".
#[inline(always)]
pub(crate) fn wait_all() {
    pin();
    // vmcnt (bits 0-3, 14-15) 0, expcnt (4-6) any, lgkmcnt (8-11) 0.
    s_waitcnt(0x0070);
    pin();
}

/// Waits until this wave's accesses to shared memory are done.
#[inline(always)]
pub(crate) fn wait_shared() {
    pin();
    // vmcnt and expcnt any, lgkmcnt 0.
    s_waitcnt(0xc07f);
    pin();
}

/// No instruction moves across this point.
#[inline(always)]
pub(crate) fn pin() {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: directs the scheduler, has no effect of its own.
    unsafe { amdgpu::sched_barrier::<0>() }
}
