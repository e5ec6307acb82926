//! The block's shared memory.

use core::arch::asm;

#[derive(Clone, Copy)]
#[repr(C, align(1024))]
struct Aligned([u8; 1024]);

/// Start of the dynamic shared memory, aligned to 1024 bytes: a swizzle of 128 bytes needs it. Its size is the launch's.
#[inline(always)]
pub(crate) fn dynamic_shared_mem() -> *mut u8 {
    core::intrinsics::gpu::gpu_launch_sized_workgroup_mem::<Aligned>().cast()
}

/// The 32-bit address that shared-memory instructions take.
///
/// # Safety
/// `pointer` points into shared memory.
#[inline(always)]
pub(crate) unsafe fn address(pointer: *const u8) -> u32 {
    let address: u64;
    // SAFETY: the caller's promise. PTX ISA, "cvta".
    unsafe {
        asm!("cvta.to.shared.u64 {0}, {1};", out(reg64) address, in(reg64) pointer.addr(), options(nostack, pure, nomem));
    }
    address as u32
}

/// Writes a word.
///
/// # Safety
/// `address` is the shared address of a word, aligned to 4, that no other thread accesses.
#[cfg(splitkv_target = "sm_90a")]
#[inline(always)]
pub(crate) unsafe fn store(address: u32, word: u32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("st.shared.b32 [{0}], {1};", in(reg32) address, in(reg32) word, options(nostack)) }
}

/// As [`store`], of a float.
///
/// # Safety
/// As for [`store`].
#[cfg(splitkv_target = "sm_90a")]
#[inline(always)]
pub(crate) unsafe fn store_f32(address: u32, value: f32) {
    // SAFETY: the caller's promise.
    unsafe { asm!("st.shared.f32 [{0}], {1};", in(reg32) address, in(reg32) value, options(nostack)) }
}

/// As [`store`], of two floats.
///
/// # Safety
/// As for [`store`], with 8 bytes.
#[cfg(splitkv_target = "sm_90a")]
#[inline(always)]
pub(crate) unsafe fn store_two_f32(address: u32, [x, y]: [f32; 2]) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("st.shared.v2.f32 [{0}], {{{1}, {2}}};", in(reg32) address, in(reg32) x, in(reg32) y, options(nostack));
    }
}

/// Reads a float.
///
/// # Safety
/// `address` is the shared address of a float, aligned to 4, that no other thread writes.
#[cfg(splitkv_target = "sm_90a")]
#[inline(always)]
pub(crate) unsafe fn load_f32(address: u32) -> f32 {
    let value: f32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ld.shared.f32 {0}, [{1}];", out(reg32) value, in(reg32) address, options(nostack, readonly));
    }
    value
}
