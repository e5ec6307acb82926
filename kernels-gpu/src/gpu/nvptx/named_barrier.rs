//! The block's barriers for a part of its warps (PTX ISA, "bar"). Number 0 is the whole block's.

use core::arch::asm;

/// Waits for `threads` threads at barrier `barrier`, and makes their shared-memory accesses visible to each other.
///
/// # Safety
/// As many threads of whole warps reach this call, or one of this module with the same barrier.
#[inline(always)]
pub(crate) unsafe fn sync(barrier: u32, threads: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("bar.sync {0}, {1};", in(reg32) barrier, in(reg32) threads, options(nostack)) }
}

/// As [`sync`], and does not wait: what this thread did before is seen by those that wait.
///
/// # Safety
/// As for [`sync`].
#[inline(always)]
pub(crate) unsafe fn arrive(barrier: u32, threads: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("bar.arrive {0}, {1};", in(reg32) barrier, in(reg32) threads, options(nostack)) }
}

/// As [`sync`] with the 128 threads of a warpgroup; whether `predicate` holds for one of them.
///
/// # Safety
/// As for [`sync`].
#[inline(always)]
pub(crate) unsafe fn any_of_warpgroup(barrier: u32, predicate: bool) -> bool {
    let result: u32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("{{ .reg .pred mine, any;",
            "setp.ne.u32 mine, {1}, 0;",
            "bar.red.or.pred any, {2}, 128, mine;",
            "selp.u32 {0}, 1, 0, any; }}",
            out(reg32) result, in(reg32) u32::from(predicate), in(reg32) barrier, options(nostack));
    }
    result != 0
}
