//! What the lanes of a warp do together.

use super::thread::thread_idx_x;
use core::arch::asm;

// Intrinsics, not `asm!`: LLVM knows that these are convergent, and copies them into no branch that lanes take apart.
unsafe extern "C" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.f32"]
    fn shuffle_xor(members: i32, value: f32, mask: i32, clamp: i32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shuffle(members: i32, value: i32, lane: i32, clamp: i32) -> i32;
}

/// Lanes of a warp.
pub(crate) const SIZE: u32 = 32;

/// This thread's lane.
#[inline(always)]
pub(crate) fn lane_id() -> u32 {
    thread_idx_x() % SIZE
}

/// This thread's warp in the block.
#[inline(always)]
pub(crate) fn warp_id() -> u32 {
    thread_idx_x() / SIZE
}

/// The lane's value, computed here and kept by each lane for itself: ptxas decides by itself what is.
#[inline(always)]
pub(crate) fn per_lane(value: u32) -> u32 {
    value
}

/// A value that is the same in all lanes, kept once for the warp: ptxas finds by itself what can be.
#[inline(always)]
pub(crate) fn uniform(value: u32) -> u32 {
    value
}

/// Waits for all lanes, and makes their memory accesses visible to each other.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
pub(crate) unsafe fn sync_warp() {
    // SAFETY: the caller's promise. PTX ISA, "bar.warp.sync".
    unsafe { asm!("bar.warp.sync 0xffffffff;", options(nostack)) }
}

/// Whether `predicate` holds in some lane.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[cfg(splitkv_target = "sm_100f")]
#[inline(always)]
pub(crate) unsafe fn any(predicate: bool) -> bool {
    let lanes: u32;
    // SAFETY: the caller's promise. PTX ISA, "vote.sync".
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.u32 p, {1}, 0; vote.sync.ballot.b32 {0}, p, 0xffffffff; }}",
            out(reg32) lanes, in(reg32) u32::from(predicate), options(nostack));
    }
    lanes != 0
}

/// The value of the lane whose number differs in the bits of `mask`.
///
/// # Safety
/// Every lane of the warp reaches this call with the same `mask`.
#[inline(always)]
pub(crate) unsafe fn warp_shuffle_xor(value: f32, mask: u32) -> f32 {
    // SAFETY: the caller's promise. PTX ISA, "shfl.sync".
    unsafe { shuffle_xor(-1, value, mask as i32, 0x1f) }
}

/// The value of lane `lane`.
///
/// # Safety
/// Every lane of the warp reaches this call; `lane` is below [`SIZE`].
#[inline(always)]
pub(crate) unsafe fn warp_shuffle(value: u32, lane: u32) -> u32 {
    // SAFETY: the caller's promise. PTX ISA, "shfl.sync".
    unsafe { shuffle(-1, value as i32, lane as i32, 0x1f) as u32 }
}

/// Combines a value of every lane, in the same order in every lane.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
pub(crate) unsafe fn reduce(mut value: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut mask = SIZE / 2;
    while mask > 0 {
        // SAFETY: the caller's promise.
        value = combine(value, unsafe { warp_shuffle_xor(value, mask) });
        mask /= 2;
    }
    value
}
