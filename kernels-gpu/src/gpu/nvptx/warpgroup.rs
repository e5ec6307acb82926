//! Warps with roles: the registers of a warpgroup (four warps), and one lane that stands for its warp.

use core::arch::asm;

/// Whether this lane is the one that stands for the warp; the same one each time.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
pub(crate) unsafe fn elect() -> bool {
    let elected: u32;
    // SAFETY: the caller's promise. PTX ISA, "elect.sync".
    unsafe {
        asm!("{{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 {0}, 1, 0, p; }}",
            out(reg32) elected, options(nostack));
    }
    elected != 0
}

/// Takes registers for the warp, up to `COUNT` a thread, and waits until others have given them back.
///
/// # Safety
/// Every lane of the warpgroup's four warps reaches this call. `COUNT` is a multiple of 8 from 24 to 256, and all warps
/// together have as many.
#[inline(always)]
pub(crate) unsafe fn take_registers<const COUNT: u32>() {
    // SAFETY: the caller's promise. PTX ISA, "setmaxnreg".
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {0};", const COUNT, options(nostack)) }
}

/// Gives registers back, down to `COUNT` a thread.
///
/// # Safety
/// As for [`take_registers`].
#[inline(always)]
pub(crate) unsafe fn give_registers<const COUNT: u32>() {
    // SAFETY: the caller's promise. PTX ISA, "setmaxnreg".
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {0};", const COUNT, options(nostack)) }
}
