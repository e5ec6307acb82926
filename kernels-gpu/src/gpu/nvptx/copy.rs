//! Asynchronous copies from global to shared memory (PTX ISA, "cp.async").

use core::arch::asm;

/// An L2 policy under which lines are the first to go: for what is read once.
#[inline(always)]
pub(crate) fn evict_first_policy() -> u64 {
    let policy: u64;
    // SAFETY: makes a value.
    unsafe {
        asm!("createpolicy.fractional.L2::evict_first.b64 {0}, 1.0;",
            out(reg64) policy, options(nostack, nomem));
    }
    policy
}

/// Starts to copy 16 bytes.
///
/// # Safety
/// `shared` and `global` are addresses of 16 bytes, aligned to 16; the shared bytes are not accessed until
/// the group that this copy belongs to has been waited for.
#[inline(always)]
pub(crate) unsafe fn copy_16(shared: u32, global: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cp.async.cg.shared.global [{0}], [{1}], 16;", in(reg32) shared, in(reg64) global, options(nostack));
    }
}

/// As [`copy_16`], under an L2 policy.
///
/// Keep it out of short loops with a condition: where ptxas (13.0 and 13.5) turns the condition into a predicate, it
/// makes an illegal instruction of it (the policy's uniform register is missing).
///
/// # Safety
/// As for [`copy_16`].
#[inline(always)]
pub(crate) unsafe fn copy_16_with_policy(shared: u32, global: *const u8, policy: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cp.async.cg.shared.global.L2::cache_hint [{0}], [{1}], 16, {2};",
            in(reg32) shared, in(reg64) global, in(reg64) policy, options(nostack));
    }
}

/// Starts to copy the first `bytes` of 16 bytes; the rest becomes zero, and is not read.
///
/// # Safety
/// As for [`copy_16`]; `bytes` is at most 16, and only so many bytes need to exist.
#[inline(always)]
pub(crate) unsafe fn copy_16_zero_fill(shared: u32, global: *const u8, bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cp.async.cg.shared.global [{0}], [{1}], 16, {2};",
            in(reg32) shared, in(reg64) global, in(reg32) bytes, options(nostack));
    }
}

/// Closes the group of the copies that this thread has started since the last group.
#[inline(always)]
pub(crate) fn commit_group() {
    // SAFETY: orders copies, touches nothing else.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// Waits until only `STAGES - 2` of this thread's newest groups are under way: of a ring's `STAGES - 1`, the
/// oldest has arrived.
#[inline(always)]
pub(crate) fn wait_for_oldest<const STAGES: usize>() {
    // SAFETY: orders copies, touches nothing else.
    unsafe { asm!("cp.async.wait_group {0};", const STAGES - 2, options(nostack)) }
}
