//! The factors that 8-bit values are to be multiplied by. They are read anew for each unit, so that a captured launch
//! follows them.

use super::schedule::Unit;
use crate::abi::{AttentionArguments, Pointer};
use crate::gpu::tile::Element;

/// Whether values of this type have factors.
#[inline(always)]
pub(super) const fn wanted<E: Element>() -> bool {
    E::OPERAND.bytes() == 1
}

/// Factor of the scores of a unit, in the exp2 domain: the softmax scale, and the factors of Q's and K's values.
///
/// # Safety
/// The arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn of_scores<E: Element>(a: &AttentionArguments, unit: &Unit) -> f32 {
    if !wanted::<E>() {
        return a.scale_log2;
    }
    // SAFETY: the caller's promise.
    unsafe {
        a.scale_log2 * (read(a, unit, a.q_descale, a.q_descale_stride) * read(a, unit, a.k_descale, a.k_descale_stride))
    }
}

/// Factor of V's values.
///
/// # Safety
/// The arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn of_v(a: &AttentionArguments, unit: &Unit) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { read(a, unit, a.v_descale, a.v_descale_stride) }
}

/// The factor of the unit's KV head.
///
/// # Safety
/// `factors` is one factor, with a stride of 0, or one for each sequence and KV head, with a stride of 1.
#[inline(always)]
unsafe fn read(a: &AttentionArguments, unit: &Unit, factors: Pointer, stride: u32) -> f32 {
    let head = u64::from(unit.batch) * u64::from(a.kv_heads) + u64::from(unit.kv_head);
    // SAFETY: the caller's promise.
    unsafe { factors.cast::<f32>().add((head * u64::from(stride)) as usize).read() }
}
