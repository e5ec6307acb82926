//! A word in global memory at which the blocks that have parts of the same rows meet (PTX ISA, "atom", scope gpu), and
//! how they read what others wrote.

use super::super::Float4;
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

/// Reads a float from the L2 if `wanted`; else it is `otherwise`. Such loads stay where they are in the program, so that
/// all of a loop's are under way before the first is waited for.
///
/// # Safety
/// If `wanted`, `place` is an aligned float in global memory that no other thread writes.
#[inline(always)]
pub(crate) unsafe fn load_if(wanted: bool, place: *const f32, otherwise: f32) -> f32 {
    let mut value = otherwise;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("{{ .reg .pred wanted;",
            "setp.ne.u32 wanted, {2}, 0;",
            "@wanted ld.global.cg.f32 {0}, [{1}]; }}",
            inout(reg32) value, in(reg64) place, in(reg32) u32::from(wanted), options(nostack, readonly));
    }
    value
}

/// As [`load_if`], four floats, which are zeros otherwise.
///
/// # Safety
/// As for [`load_if`]; `place` is aligned to 16.
#[inline(always)]
pub(crate) unsafe fn load_four_if(wanted: bool, place: *const f32) -> Float4 {
    let mut value = [0.0_f32; 4];
    let [x, y, z, w] = &mut value;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("{{ .reg .pred wanted;",
            "setp.ne.u32 wanted, {5}, 0;",
            "@wanted ld.global.cg.v4.f32 {{{0}, {1}, {2}, {3}}}, [{4}]; }}",
            inout(reg32) *x, inout(reg32) *y, inout(reg32) *z, inout(reg32) *w,
            in(reg64) place, in(reg32) u32::from(wanted), options(nostack, readonly));
    }
    Float4(value)
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
