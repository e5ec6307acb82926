//! A word in global memory at which the blocks that have parts of the same rows meet (PTX ISA, "atom", scope gpu).

use core::arch::asm;

/// Adds to the word, and returns what it was. What this thread knows is known to who reads the word with
/// [`read`] or adds to it later.
///
/// # Safety
/// `word` is an aligned u64 in global memory.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, value: u64) -> u64 {
    let before: u64;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("atom.acq_rel.gpu.global.add.u64 {0}, [{1}], {2};",
            out(reg64) before, in(reg64) word, in(reg64) value, options(nostack));
    }
    before
}

/// As [`add`], and tells nobody anything: nothing that this thread did is waited for.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn count(word: *mut u64, value: u64) -> u64 {
    let before: u64;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("atom.relaxed.gpu.global.add.u64 {0}, [{1}], {2};",
            out(reg64) before, in(reg64) word, in(reg64) value, options(nostack));
    }
    before
}

/// The word. What was known to who added to it is known to this thread.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub(crate) unsafe fn read(word: *const u64) -> u64 {
    let value: u64;
    // SAFETY: the caller's promise.
    unsafe { asm!("ld.acquire.gpu.global.u64 {0}, [{1}];", out(reg64) value, in(reg64) word, options(nostack)) }
    value
}

/// Sets the word to 0.
///
/// # Safety
/// As for [`add`]; no thread accesses the word before the next launch.
#[inline(always)]
pub(crate) unsafe fn clear(word: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("st.relaxed.gpu.global.u64 [{0}], 0;", in(reg64) word, options(nostack)) }
}
