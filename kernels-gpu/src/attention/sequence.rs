//! Where the queries and keys of a sequence are, and which keys each query sees.

use crate::abi::schedule::Sight;
use crate::abi::{AttentionArguments, STATUS_BAD_LENGTH, STATUS_BAD_OFFSETS};
use core::sync::atomic::{AtomicU32, Ordering};

/// What the arguments say of all sequences, by the same names.
pub(super) struct Sequences {
    pub(super) kv_lens: *const u8,
    pub(super) cu_seqlens_q: *const u8,
    pub(super) cu_seqlens_kv: *const u8,
    pub(super) status: *mut u8,
    pub(super) sq: u32,
    pub(super) sk: u32,
    pub(super) total_q: u32,
    pub(super) total_kv: u32,
}

impl Sequences {
    #[inline(always)]
    pub(super) fn of(a: &AttentionArguments) -> Self {
        // Values, read ahead of any branch: see `Unit::new`.
        Self {
            kv_lens: a.kv_lens,
            cu_seqlens_q: a.cu_seqlens_q,
            cu_seqlens_kv: a.cu_seqlens_kv,
            status: a.status,
            sq: a.sq,
            sk: a.sk,
            total_q: a.total_q,
            total_kv: a.total_kv,
        }
    }
}

/// A sequence's queries and keys.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    /// Where its queries begin in packed Q and O; 0 where they are not packed.
    pub(super) first_query: u32,
    /// Queries.
    pub(super) queries: u32,
    /// Where its keys begin in packed K and V; 0 where they are not packed.
    pub(super) first_key: u32,
    /// Keys.
    pub(super) keys: u32,
}

impl Sequence {
    /// Sequence `batch`. What the arguments say of it that cannot be is clamped and flagged.
    ///
    /// # Safety
    /// There is such a sequence; the pointers are as the arguments' documentation says.
    #[inline(always)]
    pub(super) unsafe fn new(all: Sequences, batch: u32) -> Self {
        let Sequences { kv_lens, cu_seqlens_q, cu_seqlens_kv, status, sq, sk, total_q, total_kv } = all;
        // SAFETY: the caller's promise.
        unsafe {
            let (first_query, queries) = place(cu_seqlens_q, batch, total_q, sq, status);
            let (first_key, mut keys) = place(cu_seqlens_kv, batch, total_kv, sk, status);
            if !kv_lens.is_null() {
                let given = *kv_lens.cast::<i32>().add(batch as usize);
                let clamped = given.max(0).min(keys as i32);
                if given != clamped {
                    flag(status, STATUS_BAD_LENGTH);
                }
                keys = clamped as u32;
            }
            Self { first_query, queries, first_key, keys }
        }
    }
}

/// Begin and length of sequence `batch` by `offsets`, int32 `[batch + 1]`, within `total` and of `most` tokens at most;
/// without offsets, `most` tokens.
///
/// # Safety
/// The offsets of the sequence and of the next can be read; `status` is the status word.
#[inline(always)]
unsafe fn place(offsets: *const u8, batch: u32, total: u32, most: u32, status: *mut u8) -> (u32, u32) {
    if offsets.is_null() {
        return (0, most);
    }
    // SAFETY: the caller's promise.
    let (begin, end) = unsafe {
        let offsets = offsets.cast::<i32>().add(batch as usize);
        (offsets.read(), offsets.add(1).read())
    };
    // The host keeps sizes below 2^31.
    let first = begin.max(0).min(total as i32);
    let length = end.min(total as i32).saturating_sub(first).max(0).min(most as i32);
    if first != begin || first + length != end {
        // SAFETY: the caller's promise.
        unsafe { flag(status, STATUS_BAD_OFFSETS) };
    }
    (first as u32, length as u32)
}

/// Sets a bit of the status word.
///
/// # Safety
/// `status` is an aligned u32 that all blocks may set bits in.
#[inline(always)]
unsafe fn flag(status: *mut u8, bit: u32) {
    // SAFETY: the caller's promise.
    unsafe { AtomicU32::from_ptr(status.cast()) }.fetch_or(bit, Ordering::Relaxed);
}

/// Which keys the queries of a sequence see by the arguments' bounds.
#[inline(always)]
pub(super) fn sight(a: &AttentionArguments, sequence: &Sequence) -> Sight {
    let Sequence { queries, keys, .. } = *sequence;
    Sight { queries, keys, left: a.window_left, right: a.window_right }
}
