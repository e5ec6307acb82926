//! Barriers in shared memory that count arrivals and bytes (PTX ISA, "mbarrier"), and the fence between the proxies that
//! access shared memory.
//!
//! A barrier is in one phase after the other; a phase ends when all its arrivals and all its expected bytes have come.
//! Who waits names the parity of a phase, the first one's being 0. The phase before the first counts as ended: a
//! producer that waits for an empty stage begins with parity 1.

use core::arch::asm;

/// Bytes of a barrier.
pub(crate) const BYTES: u32 = 8;

/// Makes a barrier whose phases need `count` arrivals.
///
/// # Safety
/// `barrier` is the shared address of 8 bytes, aligned to 8, that are accessed by these functions alone from now on.
/// One thread makes it; [`fence_init`] and a barrier of the block come before any other use.
#[inline(always)]
pub(crate) unsafe fn init(barrier: u32, count: u32) {
    // SAFETY: the caller's promise. PTX ISA, "mbarrier.init".
    unsafe { asm!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) barrier, in(reg32) count, options(nostack)) }
}

/// Makes the barriers that this thread has made known to the units that signal them.
#[inline(always)]
pub(crate) fn fence_init() {
    // SAFETY: orders accesses, touches nothing else. PTX ISA, "fence.mbarrier_init".
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}

/// Arrives at the barrier. What this thread did before is seen by who has waited for the phase.
///
/// # Safety
/// `barrier` is a barrier whose phase needs one more arrival.
#[inline(always)]
pub(crate) unsafe fn arrive(barrier: u32) {
    // SAFETY: the caller's promise. PTX ISA, "mbarrier.arrive".
    unsafe { asm!("mbarrier.arrive.shared::cta.b64 _, [{0}];", in(reg32) barrier, options(nostack)) }
}

/// As [`arrive`], and the phase waits for `bytes` bytes more.
///
/// # Safety
/// As for [`arrive`]; copies bring as many bytes, neither more nor fewer.
#[inline(always)]
pub(crate) unsafe fn arrive_expect_bytes(barrier: u32, bytes: u32) {
    // SAFETY: the caller's promise. PTX ISA, "mbarrier.arrive.expect_tx".
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{0}], {1};",
            in(reg32) barrier, in(reg32) bytes, options(nostack));
    }
}

/// Arrives at the barrier once all the `cp.async` copies that this thread has started have been done. It is one of the
/// arrivals that the barrier was made for.
///
/// # Safety
/// As for [`arrive`].
#[inline(always)]
pub(crate) unsafe fn arrive_after_copies(barrier: u32) {
    // SAFETY: the caller's promise. PTX ISA, "cp.async.mbarrier.arrive".
    unsafe { asm!("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{0}];", in(reg32) barrier, options(nostack)) }
}

/// Waits until the phase of parity `parity` has ended: what was done before its arrivals, and its bytes, are seen.
///
/// # Safety
/// `barrier` is a barrier, `parity` 0 or 1, and the phase that is meant is the present one or the one before it.
#[inline(always)]
pub(crate) unsafe fn wait(barrier: u32, parity: u32) {
    loop {
        let ended: u32;
        // SAFETY: the caller's promise. PTX ISA, "mbarrier.try_wait": it may give up at any time.
        unsafe {
            asm!("{{ .reg .pred p;",
                "mbarrier.try_wait.parity.shared::cta.b64 p, [{1}], {2};",
                "selp.u32 {0}, 1, 0, p; }}",
                out(reg32) ended, in(reg32) barrier, in(reg32) parity, options(nostack));
        }
        if ended != 0 {
            return;
        }
    }
}

/// Whether the phase of parity `parity` has ended, as seen now; if so, it is as after [`wait`].
///
/// # Safety
/// As for [`wait`].
#[inline(always)]
pub(crate) unsafe fn has_ended(barrier: u32, parity: u32) -> bool {
    let ended: u32;
    // SAFETY: the caller's promise. PTX ISA, "mbarrier.test_wait".
    unsafe {
        asm!("{{ .reg .pred p;",
            "mbarrier.test_wait.parity.shared::cta.b64 p, [{1}], {2};",
            "selp.u32 {0}, 1, 0, p; }}",
            out(reg32) ended, in(reg32) barrier, in(reg32) parity, options(nostack));
    }
    ended != 0
}

/// Makes what this thread has written to shared memory, or has waited for, known to the units that read it by
/// themselves: matrix products and bulk copies.
#[inline(always)]
pub(crate) fn fence_async_proxy() {
    // SAFETY: orders accesses, touches nothing else. PTX ISA, "fence.proxy".
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
