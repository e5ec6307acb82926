//! The factors that 8-bit values are to be multiplied by. They are read anew for each unit, so that a captured launch
//! follows them.

use super::schedule::Unit;
use crate::abi::{AttentionArguments, PER_HEAD_K, PER_HEAD_Q, PER_HEAD_V, Pointer};
use crate::gpu::arguments::Arguments;
use crate::gpu::tile::Element;

/// Whether values of this type have factors.
#[inline(always)]
const fn wanted<E: Element>() -> bool {
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
    unsafe { a.scale_log2 * (read(a, unit, a.q_descale, PER_HEAD_Q) * read(a, unit, a.k_descale, PER_HEAD_K)) }
}

/// Factor of the scores in the loop over the KV: what [`of_scores`] gave, or, where values have no factors, the
/// argument, which needs no register.
#[inline(always)]
pub(super) fn scale<E: Element>(a: &Arguments, of_scores: f32) -> f32 {
    if wanted::<E>() { of_scores } else { a.hot().scale_log2 }
}

/// Factor of V's values; 1 where they have none.
///
/// # Safety
/// The arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn of_v<E: Element>(a: &AttentionArguments, unit: &Unit) -> f32 {
    // SAFETY: the caller's promise.
    if wanted::<E>() { unsafe { read(a, unit, a.v_descale, PER_HEAD_V) } } else { 1.0 }
}

/// The factor of the unit's KV head.
///
/// # Safety
/// `factors` is one factor, or one for each sequence and KV head where `a.flags` has the bit `per_head`.
#[inline(always)]
unsafe fn read(a: &AttentionArguments, unit: &Unit, factors: Pointer, per_head: u32) -> f32 {
    let head = u64::from(unit.batch) * u64::from(a.kv_heads) + u64::from(unit.kv_head);
    let index = if a.flags & per_head == 0 { 0 } else { head };
    // SAFETY: the caller's promise.
    unsafe { factors.cast::<f32>().add(index as usize).read() }
}
