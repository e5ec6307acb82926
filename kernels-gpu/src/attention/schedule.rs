//! Which rows and which KV tokens a block, and each of its warps, works on.

use crate::abi::{AttentionArguments, STATUS_BAD_LENGTH};
use crate::gpu::{Chunk, divide, thread, warp};
use core::sync::atomic::{AtomicU32, Ordering};

/// One query tile against one split of a sequence's KV.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// Sequence.
    pub(super) batch: u32,
    /// KV head.
    pub(super) kv_head: u32,
    /// Split of the KV.
    pub(super) split: u32,
    /// First packed row of the tile: row `r` is query `r / group` of the KV head's query head `r % group`.
    pub(super) first_row: u32,
    /// KV tokens of the sequence.
    pub(super) len: u32,
    /// First KV token of the split, a multiple of the block's step.
    pub(super) begin: u32,
    /// End of the KV tokens that the split has and some row of the tile sees.
    pub(super) end: u32,
}

/// Units of the launch; the host checks that they fit.
#[inline(always)]
pub(super) fn units(a: &AttentionArguments) -> u32 {
    warp::uniform(a.num_splits * a.batch * a.m_blocks * a.kv_heads)
}

/// Keys that query `query` sees: those below this number.
#[inline(always)]
pub(super) fn key_limit(a: &AttentionArguments, len: u32, query: u32) -> u32 {
    if a.causal == 0 {
        return len;
    }
    // Bottom-right: the last query sees every key. `query < sq`, so the sum cannot exceed `len`.
    (i64::from(len) - i64::from(a.sq) + i64::from(query) + 1).max(0) as u32
}

impl Unit {
    /// Unit `index`; KV heads run fastest, since neighbours in memory are best read at the same time.
    ///
    /// # Safety
    /// `index < units(a)`, and the pointers of `a` are as its documentation says.
    #[inline(always)]
    pub(super) unsafe fn new(a: &AttentionArguments, index: u32, sizes: Sizes) -> Self {
        let Sizes { tile_rows, tile_n, .. } = sizes;
        let index = warp::per_lane(index);
        // SAFETY: the counts are not 0, since there is a unit.
        let (kv_head, m_block, batch, split) = unsafe {
            let (rest, kv_head) = divide(index, a.kv_heads);
            let (rest, m_block) = divide(rest, a.m_blocks);
            let (split, batch) = divide(rest, a.batch);
            (kv_head, m_block, batch, split)
        };
        let first_row = m_block * tile_rows;
        // SAFETY: the batch index is in range.
        let len = unsafe { kv_len(a, batch) };
        let last_row = (first_row + tile_rows).min(a.sq * a.group) - 1;
        // SAFETY: group is not 0.
        let visible = key_limit(a, len, unsafe { divide(last_row, a.group) }.0);
        // Read ahead of the branch, or LLVM makes one load of an address that the branch selects, and with it
        // the arguments stay in memory.
        let (num_splits, split_tokens) = (a.num_splits, a.split_tokens);
        let (begin, end) = if split_tokens == 0 {
            // Split s starts at tile s * tiles / num_splits, written so that no product leaves 32 bits.
            // SAFETY: num_splits is not 0.
            let (quotient, rest) = unsafe { divide(visible.div_ceil(tile_n), num_splits) };
            // SAFETY: as above.
            let share = |s: u32| (s * quotient + unsafe { divide(s * rest, num_splits) }.0) * tile_n;
            (share(split), share(split + 1))
        } else {
            let begin = u64::from(split) * u64::from(split_tokens);
            (begin.min(u64::from(visible)) as u32, (begin + u64::from(split_tokens)).min(u64::from(visible)) as u32)
        };
        let (begin, end) = (warp::uniform(begin), warp::uniform(end.min(visible)));
        Self { batch, kv_head, split, first_row, len: warp::uniform(len), begin, end }
    }

    /// Rows of the KV head: all queries of all heads in the group.
    #[inline(always)]
    pub(super) fn rows(a: &AttentionArguments) -> u32 {
        a.sq * a.group
    }
}

/// The sequence's KV length; one beyond the plan's maximum is clamped and flagged.
///
/// # Safety
/// `batch < a.batch`; `kv_lens` and `status` are valid.
#[inline(always)]
unsafe fn kv_len(a: &AttentionArguments, batch: u32) -> u32 {
    if a.kv_lens.is_null() {
        return a.sk;
    }
    // SAFETY: the caller's promise.
    let len = unsafe { *a.kv_lens.cast::<i32>().add(batch as usize) };
    // The host keeps sk below 2^31.
    let clamped = len.max(0).min(a.sk as i32);
    if len != clamped {
        // SAFETY: the status word is an aligned u32 that all blocks may set bits in.
        unsafe { AtomicU32::from_ptr(a.status.cast()) }.fetch_or(STATUS_BAD_LENGTH, Ordering::Relaxed);
    }
    clamped as u32
}

/// Tile sizes that the schedule needs.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Packed rows of a unit.
    pub(super) tile_rows: u32,
    /// KV tokens that a block takes in one step.
    pub(super) tile_n: u32,
    /// Where in the block's step this warp's KV tokens start.
    pub(super) warp_token: u32,
    /// Bytes of an element of K and V.
    pub(super) element: u32,
}

/// The chunks that one warp takes, over all units of its block, in order: what is copied ahead.
pub(super) struct Walk {
    index: u32,
    end: u32,
    token: u32,
    k: *const u8,
    v: *const u8,
    sizes: Sizes,
}

impl Walk {
    /// The walk of a warp of this block.
    ///
    /// # Safety
    /// As for [`Unit::new`].
    #[inline(always)]
    pub(super) unsafe fn new(a: &AttentionArguments, sizes: Sizes) -> Self {
        let index = thread::block_idx_x();
        let mut walk = Self { index, end: 0, token: 0, k: a.k, v: a.v, sizes };
        if index < units(a) {
            // SAFETY: the index is in range; the caller's promise.
            unsafe { walk.enter(a) };
        }
        walk
    }

    /// The next chunk, or `None` after the last one.
    ///
    /// # Safety
    /// As for [`Unit::new`].
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, a: &AttentionArguments) -> Option<Chunk> {
        while self.token >= self.end {
            // An index beyond the last unit stays there.
            self.index = self.index.saturating_add(thread::grid_dim_x());
            if self.index >= units(a) {
                return None;
            }
            // SAFETY: the index is in range; the caller's promise.
            unsafe { self.enter(a) };
        }
        let bytes = u64::from(self.sizes.element);
        let (k_stride, v_stride) = (a.k_stride_seq * bytes, a.v_stride_seq * bytes);
        let chunk = Chunk {
            k: self.k,
            v: self.v,
            k_stride,
            v_stride,
            k_bytes: a.head_dim_qk * self.sizes.element,
            v_bytes: a.head_dim_v * self.sizes.element,
            tokens: self.end - self.token,
        };
        self.token += self.sizes.tile_n;
        self.k = self.k.wrapping_add((u64::from(self.sizes.tile_n) * k_stride) as usize);
        self.v = self.v.wrapping_add((u64::from(self.sizes.tile_n) * v_stride) as usize);
        Some(chunk)
    }

    /// Goes to the first chunk of unit `self.index`.
    ///
    /// # Safety
    /// The index is that of a unit; as for [`Unit::new`].
    #[inline(always)]
    unsafe fn enter(&mut self, a: &AttentionArguments) {
        // SAFETY: the caller's promise.
        let unit = unsafe { Unit::new(a, self.index, self.sizes) };
        self.end = unit.end;
        self.token = unit.begin + self.sizes.warp_token;
        let (batch, head, token) = (u64::from(unit.batch), u64::from(unit.kv_head), u64::from(self.token));
        let place = |base: *mut u8, stride_batch, stride_seq, stride_head| -> *const u8 {
            let element = batch * stride_batch + token * stride_seq + head * stride_head;
            base.wrapping_add((element * u64::from(self.sizes.element)) as usize)
        };
        self.k = place(a.k, a.k_stride_batch, a.k_stride_seq, a.k_stride_head);
        self.v = place(a.v, a.v_stride_batch, a.v_stride_seq, a.v_stride_head);
    }
}
