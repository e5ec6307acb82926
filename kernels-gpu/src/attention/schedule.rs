//! Which rows and which KV tokens a block, and each of its warps, works on.

use super::parts::{Entry, Table};
use super::sequence::{Sequence, Sequences, sight};
use crate::abi::AttentionArguments;
use crate::gpu::arguments::Arguments;
use crate::gpu::{Chunk, Pages, QuerySource, divide, divide_by_few, thread, warp};

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
    /// Where the sequence's queries and keys are, and how many.
    pub(super) sequence: Sequence,
    /// First KV token of the split, a multiple of the block's step.
    pub(super) begin: u32,
    /// End of the KV tokens that the split has and some row of the tile sees.
    pub(super) end: u32,
}

/// Units of the launch; the host checks that they fit.
///
/// # Safety
/// The pointers of `a` are as its documentation says.
#[inline(always)]
pub(super) unsafe fn units(a: &AttentionArguments, sizes: Sizes) -> u32 {
    let (even, blocks, table) = (a.num_splits * a.batch, sizes.m_blocks(a) * a.kv_heads, sizes.table(a));
    // SAFETY: the caller's promise.
    let entries = if table.is_null() { even } else { unsafe { table.entries().read() } };
    warp::uniform(entries * blocks)
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
        let (table, sequences) = (sizes.table(a), a.batch);
        // Read ahead of the branches, or LLVM makes one load of an address that a branch selects, and with it the
        // arguments stay in memory.
        let (num_splits, split_tokens) = (a.num_splits, a.split_tokens);
        // SAFETY: the counts are not 0, since there is a unit; a table has an entry for each.
        let (kv_head, m_block, batch, split) = unsafe {
            let (rest, kv_head) = divide(index, a.kv_heads);
            let (entry, m_block) = divide_by_few(rest, sizes.m_blocks(a));
            let Entry { sequence, split } = if table.is_null() {
                let (split, sequence) = divide_by_few(entry, sequences);
                Entry { sequence, split }
            } else {
                table.entry(entry).read()
            };
            (kv_head, m_block, sequence, split)
        };
        let first_row = m_block * tile_rows;
        // SAFETY: the batch index is in range.
        let mut sequence = unsafe { Sequence::new(Sequences::of(a), batch) };
        sequence.keys = warp::uniform(sequence.keys);
        let rows = sequence.queries * a.group;
        let last_row = (first_row + tile_rows).min(rows).saturating_sub(1);
        // SAFETY: group is not 0.
        let (first_query, last_query) = unsafe { (divide(first_row, a.group).0, divide(last_row, a.group).0) };
        let sight = sight(a, &sequence);
        // Rows beyond a short sequence's last one see nothing.
        let visible = if first_row < rows { sight.end(last_query) } else { 0 };
        let first_tile = sight.begin(first_query).min(visible) / tile_n;
        let (begin, end) = if split_tokens == 0 {
            // SAFETY: the table has the sequence.
            let splits = if table.is_null() { num_splits } else { unsafe { table.record(batch).read().splits } };
            // Split s starts at tile s * tiles / splits, written so that no product leaves 32 bits.
            // SAFETY: splits is not 0.
            let (quotient, rest) = unsafe { divide(visible.div_ceil(tile_n) - first_tile, splits) };
            // SAFETY: as above.
            let share = |s: u32| (first_tile + s * quotient + unsafe { divide(s * rest, splits) }.0) * tile_n;
            (share(split), share(split + 1))
        } else {
            let begin = u64::from(split) * u64::from(split_tokens);
            let end = (begin + u64::from(split_tokens)).min(u64::from(visible)) as u32;
            // Hidden tiles at its start are left out.
            let begin = (begin.min(u64::from(visible)) as u32).max(first_tile * tile_n);
            (begin.min(end.max(begin)), end)
        };
        let end = end.min(visible);
        let (begin, end) = (warp::uniform(begin.min(end)), warp::uniform(end));
        Self { batch, kv_head, split, first_row, sequence, begin, end }
    }

    /// The tile of the KV that begins with token `token`.
    #[cfg(splitkv_target = "sm_100f")]
    #[inline(always)]
    pub(super) fn chunk(&self, a: &AttentionArguments, token: u32, sizes: Sizes, paged: bool) -> Chunk {
        let bytes = |elements: u64| elements * u64::from(sizes.element);
        let (batch, head) = (u64::from(self.batch), u64::from(self.kv_head));
        let place = |base: *mut u8, stride_batch: u64, stride_seq: u64, stride_head: u64| -> *const u8 {
            let token = u64::from(self.sequence.first_key) + u64::from(token);
            let dense = if paged { 0 } else { batch * stride_batch + token * stride_seq };
            base.wrapping_add(bytes(dense + head * stride_head) as usize)
        };
        Chunk {
            k: place(a.k, a.k_stride_batch, a.k_stride_seq, a.k_stride_head),
            v: place(a.v, a.v_stride_batch, a.v_stride_seq, a.v_stride_head),
            k_stride: bytes(a.k_stride_seq),
            v_stride: bytes(a.v_stride_seq),
            k_bytes: a.head_dim_qk * sizes.element,
            v_bytes: a.head_dim_v * sizes.element,
            tokens: self.end - token,
            pages: Pages {
                table: a.page_table.wrapping_add((batch * a.page_table_stride * 4) as usize),
                first: token,
                page_size: a.page_size,
                pages: a.pages,
                k_stride: bytes(a.k_stride_batch),
                v_stride: bytes(a.v_stride_batch),
                status: a.status,
            },
        }
    }

    /// Rows of the KV head: all queries of all heads in the group.
    #[inline(always)]
    pub(super) fn rows(&self, a: &AttentionArguments) -> u32 {
        self.sequence.queries * a.group
    }
}

/// The rows of a unit's query tiles.
pub(super) struct QueryRows {
    pub(super) a: AttentionArguments,
    pub(super) unit: Unit,
    /// Bytes of an element.
    pub(super) element: u32,
}

impl QuerySource for QueryRows {
    #[inline(always)]
    fn row(&self, row: u32) -> Option<*const u8> {
        let (a, unit) = (&self.a, &self.unit);
        let row = unit.first_row + row;
        if row >= unit.rows(a) {
            return None;
        }
        // SAFETY: group is not 0.
        let (query, member) = unsafe { divide_by_few(row, a.group) };
        let head = u64::from(unit.kv_head) * u64::from(a.group) + u64::from(member);
        let query = u64::from(unit.sequence.first_query + query);
        let offset = u64::from(unit.batch) * a.q_stride_batch + query * a.q_stride_seq + head * a.q_stride_head;
        Some(a.q.wrapping_add((u64::from(self.element) * offset) as usize).cast_const())
    }

    #[inline(always)]
    fn bytes(&self) -> u32 {
        self.element * self.a.head_dim_qk
    }
}

/// Tile sizes that the schedule needs.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Query tiles.
    pub(super) q_tiles: u32,
    /// Packed rows of a unit.
    pub(super) tile_rows: u32,
    /// KV tokens that a block takes in one step.
    pub(super) tile_n: u32,
    /// Where in the block's step this warp's KV tokens start.
    pub(super) warp_token: u32,
    /// Bytes of an element of K and V.
    pub(super) element: u32,
}

impl Sizes {
    /// The table of a ragged batch. Kernels with two query tiles have none, and no register left for one.
    #[inline(always)]
    pub(super) fn table(self, a: &AttentionArguments) -> Table {
        Table::new(if self.q_tiles == 1 { a.schedule } else { core::ptr::null_mut() }, a.batch)
    }

    /// Counter of the row block that `unit` is a split of, among the launch's.
    #[inline(always)]
    pub(super) fn ticket(self, a: &AttentionArguments, unit: &Unit) -> *mut u32 {
        let row_block = unit.batch * self.m_blocks(a) + unit.first_row / self.tile_rows;
        a.status.cast::<u32>().wrapping_add(1 + (row_block * a.kv_heads + unit.kv_head) as usize)
    }

    /// Units of each split where there is no table.
    #[cfg(splitkv_target = "sm_90a")]
    #[inline(always)]
    pub(super) fn units_of_split(self, a: &AttentionArguments) -> u32 {
        a.batch * self.m_blocks(a) * a.kv_heads
    }

    /// Units of a KV head and an entry: blocks of the rows of the longest sequence.
    #[inline(always)]
    fn m_blocks(self, a: &AttentionArguments) -> u32 {
        (a.sq * a.group).div_ceil(self.tile_rows)
    }
}

/// The chunks that one warp takes, over all units of its block, in order: what is copied ahead.
pub(super) struct Walk<const PAGED: bool> {
    index: u32,
    end: u32,
    token: u32,
    k: *const u8,
    v: *const u8,
    table: *const u8,
    sizes: Sizes,
}

impl<const PAGED: bool> Walk<PAGED> {
    /// The walk of a warp of this block.
    ///
    /// # Safety
    /// As for [`Unit::new`].
    #[inline(always)]
    pub(super) unsafe fn new(a: &Arguments, sizes: Sizes) -> Self {
        let index = thread::block_idx_x();
        let (k, v) = (a.hot().k, a.hot().v);
        let mut walk = Self { index, end: 0, token: 0, k, v, table: k, sizes };
        // SAFETY: the index is in range; the caller's promise.
        unsafe {
            if index < units(&a.all(), sizes) {
                walk.enter(&a.all());
            }
        }
        walk
    }

    /// The next chunk, or `None` after the last one.
    ///
    /// # Safety
    /// As for [`Unit::new`].
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, a: &Arguments) -> Option<Chunk> {
        while self.token >= self.end {
            // An index beyond the last unit stays there.
            self.index = self.index.saturating_add(thread::grid_dim_x());
            let all = a.all();
            // SAFETY: the index is in range; the caller's promise.
            unsafe {
                if self.index >= units(&all, self.sizes) {
                    return None;
                }
                self.enter(&all);
            }
        }
        let a = a.hot();
        let element = self.sizes.element;
        let bytes = |elements: u64| elements * u64::from(element);
        let (k_stride, v_stride) = (bytes(a.k_stride_seq), bytes(a.v_stride_seq));
        let chunk = Chunk {
            k: self.k,
            v: self.v,
            k_stride,
            v_stride,
            k_bytes: a.head_dim_qk * element,
            v_bytes: a.head_dim_v * element,
            tokens: self.end - self.token,
            pages: Pages {
                table: self.table,
                first: self.token,
                page_size: a.page_size,
                pages: a.pages,
                k_stride: bytes(a.k_stride_batch),
                v_stride: bytes(a.v_stride_batch),
                status: a.status,
            },
        };
        self.token += self.sizes.tile_n;
        if !PAGED {
            self.k = self.k.wrapping_add((u64::from(self.sizes.tile_n) * k_stride) as usize);
            self.v = self.v.wrapping_add((u64::from(self.sizes.tile_n) * v_stride) as usize);
        }
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
        let (batch, head) = (u64::from(unit.batch), u64::from(unit.kv_head));
        let bytes = u64::from(self.sizes.element);
        if PAGED {
            self.table = a.page_table.wrapping_add((batch * a.page_table_stride * 4) as usize);
            self.k = a.k.wrapping_add((head * a.k_stride_head * bytes) as usize);
            self.v = a.v.wrapping_add((head * a.v_stride_head * bytes) as usize);
        } else {
            let token = u64::from(unit.sequence.first_key) + u64::from(self.token);
            let place = |base: *mut u8, stride_batch, stride_seq, stride_head| -> *const u8 {
                base.wrapping_add(((batch * stride_batch + token * stride_seq + head * stride_head) * bytes) as usize)
            };
            self.k = place(a.k, a.k_stride_batch, a.k_stride_seq, a.k_stride_head);
            self.v = place(a.v, a.v_stride_batch, a.v_stride_seq, a.v_stride_head);
        }
    }
}
