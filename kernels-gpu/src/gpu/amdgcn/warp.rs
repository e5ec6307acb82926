//! What the lanes of a wave do together. They run in step, so nothing here waits for them.

use super::thread::thread_idx_x;
use core::arch::amdgpu;

/// Lanes of a wave.
pub(crate) const SIZE: u32 = 64;

/// This thread's lane.
#[inline(always)]
pub(crate) fn lane_id() -> u32 {
    thread_idx_x() % SIZE
}

/// This thread's wave in the block.
#[inline(always)]
pub(crate) fn warp_id() -> u32 {
    uniform(thread_idx_x() / SIZE)
}

/// The lane's value, computed here: LLVM does not see what it is, and so moves nothing that depends on it out of a
/// loop, where it would take a register all the time. A value that is the same in all lanes is kept by each lane for
/// itself: a wave has about a hundred registers for such values, which those that are seldom needed should not fill.
#[inline(always)]
pub(crate) fn per_lane(value: u32) -> u32 {
    /// DPP control: each lane of four reads itself.
    const QUAD_PERM_IDENTITY: u32 = 0b11_10_01_00;
    // SAFETY: no lane reads another.
    unsafe { amdgpu::update_dpp::<QUAD_PERM_IDENTITY, 0xf, 0xf, true>(0, value) }
}

/// A value that is the same in all lanes, kept once for the wave: what loops and branches depend on.
/// CDNA4 ISA, "V_READFIRSTLANE_B32".
#[inline(always)]
pub(crate) fn uniform(value: u32) -> u32 {
    amdgpu::readfirstlane_u32(value)
}

/// The value of the lane whose number differs in the bits of `mask`. CDNA4 ISA, "DS_BPERMUTE_B32".
///
/// # Safety
/// Every lane of the wave reaches this call with the same `mask`.
#[inline(always)]
pub(crate) unsafe fn warp_shuffle_xor(value: f32, mask: u32) -> f32 {
    // SAFETY: the caller's promise. The lane is given as a byte address.
    f32::from_bits(unsafe { amdgpu::ds_bpermute((lane_id() ^ mask) * 4, value.to_bits()) })
}

/// The value of lane `lane`. CDNA4 ISA, "DS_BPERMUTE_B32".
///
/// # Safety
/// Every lane of the wave reaches this call; `lane` is below [`SIZE`].
#[inline(always)]
pub(crate) unsafe fn warp_shuffle(value: u32, lane: u32) -> u32 {
    // SAFETY: the caller's promise. The lane is given as a byte address.
    unsafe { amdgpu::ds_bpermute(lane * 4, value) }
}

/// The values of lanes `l % 32` and `l % 32 + 32`. CDNA4 ISA, "V_PERMLANE32_SWAP_B32".
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn halves(value: f32) -> (f32, f32) {
    // SAFETY: the caller's promise. The first operand's upper lanes change places with the second's lower ones.
    let (low, high) = unsafe { amdgpu::permlane32_swap::<false, false>(value.to_bits(), value.to_bits()) };
    (f32::from_bits(low), f32::from_bits(high))
}

/// The values of the even and the odd row of 16 lanes, at this lane's place, of the two rows that it is in.
/// CDNA4 ISA, "V_PERMLANE16_SWAP_B32".
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn neighbour_rows(value: f32) -> (f32, f32) {
    // SAFETY: the caller's promise. The first operand's odd rows change places with the second's even ones.
    let (even, odd) = unsafe { amdgpu::permlane16_swap::<false, false>(value.to_bits(), value.to_bits()) };
    (f32::from_bits(even), f32::from_bits(odd))
}

/// Combines a value of every lane, in the same order in every lane.
///
/// # Safety
/// Every lane of the wave reaches this call.
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
