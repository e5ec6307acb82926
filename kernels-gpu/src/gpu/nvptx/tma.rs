//! Copies of boxes of a tensor into shared memory, by the unit for that (PTX ISA, "cp.async.bulk.tensor"). A tensor map,
//! which the host encodes, says where the tensor lies, how large a box is, and how its rows are swizzled.

use core::arch::asm;

/// Bytes of a tensor map, which is aligned to 64 of them.
pub(crate) const MAP_BYTES: usize = 128;

/// Makes a tensor map in global memory, which the host wrote before the launch, known to the unit that copies.
///
/// # Safety
/// `map` is a tensor map.
#[inline(always)]
pub(crate) unsafe fn acquire_map(map: *const u8) {
    // SAFETY: the caller's promise. PTX ISA, "fence.proxy.tensormap".
    unsafe {
        asm!("fence.proxy.tensormap::generic.acquire.sys [{0}], {1};",
            in(reg64) map, const MAP_BYTES, options(nostack));
    }
}

/// Starts to copy the box of a tensor of four dims, the innermost first, that begins at `at`. What lies outside the
/// tensor is zero. The whole box's bytes are brought to `barrier`, those outside included. `policy` is the L2's.
///
/// # Safety
/// `map` is a tensor map of four dims that [`acquire_map`] has seen. `shared` is the shared address of a box, aligned to
/// 128 (with a swizzle of 128 bytes, to 1024). It is not accessed until the phase of `barrier` has been waited for that
/// expects the bytes; what other threads did there before is known to this one, through [`super::mbarrier`].
#[inline(always)]
pub(crate) unsafe fn copy_box_4d(shared: u32, map: *const u8, at: [u32; 4], barrier: u32, policy: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint \
              [{0}], [{1}, {{{2}, {3}, {4}, {5}}}], [{6}], {7};",
            in(reg32) shared, in(reg64) map, in(reg32) at[0], in(reg32) at[1], in(reg32) at[2], in(reg32) at[3],
            in(reg32) barrier, in(reg64) policy, options(nostack));
    }
}
