//! Where the queries and keys of a sequence are, and which keys each query sees.

use crate::abi::{AttentionArguments, NO_BOUND, STATUS_BAD_LENGTH, STATUS_BAD_OFFSETS};
use crate::gpu::warp;
use core::sync::atomic::{AtomicU32, Ordering};

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
    /// `batch < a.batch`; the pointers of `a` are as its documentation says.
    #[inline(always)]
    pub(super) unsafe fn new(a: &AttentionArguments, batch: u32) -> Self {
        // Read ahead of the branches: see `Unit::new`.
        let (sq, sk, total_q, total_kv, status) = (a.sq, a.sk, a.total_q, a.total_kv, a.status);
        // SAFETY: the caller's promise.
        unsafe {
            let (first_query, queries) = place(a.cu_seqlens_q, batch, total_q, sq, status);
            let (first_key, mut keys) = place(a.cu_seqlens_kv, batch, total_kv, sk, status);
            if !a.kv_lens.is_null() {
                let given = *a.kv_lens.cast::<i32>().add(batch as usize);
                let clamped = given.max(0).min(keys as i32);
                if given != clamped {
                    flag(status, STATUS_BAD_LENGTH);
                }
                keys = clamped as u32;
            }
            Self { first_query, queries, first_key, keys: warp::uniform(keys) }
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

/// Which keys the queries of a sequence see. Query `i` of `n` stands at position `i + keys - n`: the last one at the
/// last key. It sees the keys from `left` before its position to `right` behind it.
#[derive(Clone, Copy)]
pub(super) struct Sight {
    queries: u32,
    keys: u32,
    left: u32,
    right: u32,
}

impl Sight {
    #[inline(always)]
    pub(super) fn new(a: &AttentionArguments, sequence: &Sequence) -> Self {
        let Sequence { queries, keys, .. } = *sequence;
        Self { queries, keys, left: a.window_left, right: a.window_right }
    }

    /// Position of query `query`, which may be negative. `sq + sk` is below 2^31.
    #[inline(always)]
    pub(super) fn position(&self, query: u32) -> i32 {
        (query + self.keys) as i32 - self.queries as i32
    }

    /// First key that the query may see.
    #[inline(always)]
    pub(super) fn begin(&self, query: u32) -> u32 {
        if self.left == NO_BOUND { 0 } else { self.position(query).saturating_sub(self.left as i32).max(0) as u32 }
    }

    /// End of the keys that the query sees.
    #[inline(always)]
    pub(super) fn end(&self, query: u32) -> u32 {
        let end = self.position(query).saturating_add(1).saturating_add(self.right as i32);
        if self.right == NO_BOUND { self.keys } else { end.max(0).min(self.keys as i32) as u32 }
    }

    /// Whether a query at `position` sees key `key`.
    #[inline(always)]
    pub(super) fn sees(&self, position: i32, key: u32) -> bool {
        let distance = key as i32 - position;
        key < self.keys && distance <= self.right as i32 && distance >= -(self.left as i32)
    }
}
