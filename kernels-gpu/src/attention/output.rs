//! Where a packed row's results go, and how they are written.

use super::combine::merge_parts;
use super::parts::{Parts, Table};
use super::schedule::Unit;
use crate::abi::{AttentionArguments, Output};
use crate::gpu::{Float2, Float4, divide_by_few, math};
use core::ptr;

/// Natural logarithm of 2.
pub(super) const LN_2: f32 = core::f32::consts::LN_2;
/// log2(e).
pub(super) const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// Final results: O in the caller's layout and type, and the LSE where asked for.
#[derive(Clone, Copy)]
pub(super) struct Final {
    pub(super) o: *mut u8,
    pub(super) lse: *mut u8,
    /// Logits without values, or null.
    pub(super) sink: *const u8,
    pub(super) o_stride_batch: u64,
    pub(super) o_stride_seq: u64,
    pub(super) o_stride_head: u64,
    /// Queries of each sequence.
    pub(super) sq: u32,
    /// Query heads.
    pub(super) heads: u32,
    pub(super) o_dtype: u32,
}

impl Final {
    /// The row of a query and head, of `dims` dims.
    #[inline(always)]
    pub(super) fn row(&self, batch: u32, query: u32, head: u32, dims: u32) -> RowOutput {
        let sink = if self.sink.is_null() {
            f32::NEG_INFINITY
        } else {
            // SAFETY: the host checked that each head has one.
            unsafe { self.sink.cast::<f32>().add(head as usize).read() }
        };
        let (batch, query, head) = (u64::from(batch), u64::from(query), u64::from(head));
        let element = batch * self.o_stride_batch + query * self.o_stride_seq + head * self.o_stride_head;
        let bytes = if self.o_dtype == Output::F32 as u32 { 4 } else { 2 };
        let lse = (batch * u64::from(self.heads) + head) * u64::from(self.sq) + query;
        RowOutput {
            o: self.o.wrapping_add((element * bytes) as usize),
            dtype: self.o_dtype,
            dims,
            lse: if self.lse.is_null() { self.lse } else { self.lse.wrapping_add((lse * 4) as usize) },
            sink,
        }
    }
}

/// Where one row is written.
#[derive(Clone, Copy)]
pub(super) struct RowOutput {
    /// The row's first element, aligned to 16 bytes.
    o: *mut u8,
    /// Element type, an `Output` as u32.
    dtype: u32,
    /// Dims that are written; 0: none.
    dims: u32,
    /// The row's LSE, or null.
    lse: *mut u8,
    /// A logit without a value that the row has, natural; minus infinity: none.
    pub(super) sink: f32,
}

impl RowOutput {
    /// A row that is written nowhere.
    pub(super) const NONE: Self =
        Self { o: ptr::null_mut(), dtype: 0, dims: 0, lse: ptr::null_mut(), sink: f32::NEG_INFINITY };

    /// Writes `COUNT` runs of `N` dims (2 or 4): run `i` starts at `dim(i)`, a multiple of `N`. Dims that the row has
    /// not are left out.
    ///
    /// # Safety
    /// The row exists.
    #[inline(always)]
    pub(super) unsafe fn store<const N: usize, const COUNT: usize>(
        &self,
        dim: impl Fn(usize) -> u32,
        value: impl Fn(usize) -> [f32; N],
    ) {
        // One loop for each type, so that it is short enough to unroll.
        if self.dtype == Output::F32 as u32 {
            for i in 0..COUNT {
                if dim(i) < self.dims {
                    // SAFETY: the row has the dims.
                    unsafe { store_floats(self.o.cast::<f32>().add(dim(i) as usize), value(i)) };
                }
            }
        } else if self.dtype == Output::Bf16 as u32 {
            for i in 0..COUNT {
                if dim(i) < self.dims {
                    // SAFETY: the row has the dims.
                    unsafe { store_halves(self.o.add(2 * dim(i) as usize), value(i), math::pack_bf16) };
                }
            }
        } else {
            for i in 0..COUNT {
                if dim(i) < self.dims {
                    // SAFETY: the row has the dims.
                    unsafe { store_halves(self.o.add(2 * dim(i) as usize), value(i), math::pack_f16) };
                }
            }
        }
    }

    /// Writes the LSE, where it is wanted.
    ///
    /// # Safety
    /// The row exists.
    #[inline(always)]
    pub(super) unsafe fn store_lse(&self, lse: f32) {
        if !self.lse.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.lse.cast::<f32>().write(lse) };
        }
    }
}

/// Writes 2 or 4 floats at once.
///
/// # Safety
/// `target` is aligned to their size and they can be written.
#[inline(always)]
pub(super) unsafe fn store_floats<const N: usize>(target: *mut f32, x: [f32; N]) {
    const { assert!(N == 2 || N == 4) };
    // SAFETY: the caller's promise.
    unsafe {
        if N == 4 {
            target.cast::<Float4>().write(Float4([x[0], x[1], x[2], x[3]]));
        } else {
            target.cast::<Float2>().write(Float2([x[0], x[1]]));
        }
    }
}

/// Writes 2 or 4 floats as 16-bit elements at once.
///
/// # Safety
/// `target` is aligned to their size and they can be written.
#[inline(always)]
unsafe fn store_halves<const N: usize>(target: *mut u8, x: [f32; N], pack: impl Fn(f32, f32) -> u32) {
    let low = pack(x[0], x[1]);
    // SAFETY: the caller's promise.
    unsafe {
        if N == 4 {
            target.cast::<u64>().write(u64::from(low) | u64::from(pack(x[2], x[3])) << 32);
        } else {
            target.cast::<u32>().write(low);
        }
    }
}

/// The parts of a row, and where they are merged to.
#[cfg(splitkv_target = "sm_90a")]
#[derive(Clone, Copy)]
pub(super) struct RowParts {
    /// The first part's elements and LSE, fp32, and how many floats the next part's are behind.
    pub(super) o: *const f32,
    pub(super) lse: *const f32,
    pub(super) o_step: u64,
    pub(super) lse_step: u64,
    /// Dims that the row has.
    pub(super) dims: u32,
    pub(super) target: RowOutput,
}

/// Where an attention kernel writes a unit's rows: the final result of an unsplit plan, or the split's part.
pub(super) struct UnitOutput {
    a: AttentionArguments,
    unit: Unit,
    target: Final,
    /// First query of the sequence, among its own or all packed ones; and the sequence, 0 where they are packed.
    first_query: u32,
    batch: u32,
    /// The parts of the sequence's first query, in queries.
    parts: Parts,
    /// Factor of V's values.
    pub(super) descale: f32,
}

impl UnitOutput {
    /// Where `unit`'s rows go, with the launch's table.
    ///
    /// # Safety
    /// The unit is one of the launch's; the pointers of `a` are as its documentation says.
    #[inline(always)]
    pub(super) unsafe fn new(a: AttentionArguments, unit: Unit, table: Table, descale: f32) -> Self {
        let (sq, total_q, packed) = (a.sq, a.total_q, !a.cu_seqlens_q.is_null());
        let target = Final {
            o: a.o,
            lse: a.lse,
            sink: a.sink,
            o_stride_batch: a.o_stride_batch,
            o_stride_seq: a.o_stride_seq,
            o_stride_head: a.o_stride_head,
            sq: if packed { total_q } else { sq },
            heads: a.kv_heads * a.group,
            o_dtype: a.o_dtype,
        };
        let batch = if packed { 0 } else { unit.batch };
        // Read ahead of the branch: see `Unit::new`.
        let (first_query, num_splits) = (unit.sequence.first_query, a.num_splits);
        let parts = if table.is_null() {
            let query = u64::from(batch) * u64::from(sq) + u64::from(first_query);
            Parts::even(num_splits, total_q, query)
        } else {
            // SAFETY: the caller's promise; the sequence is one of the table's.
            Parts::of(unsafe { table.record(unit.batch).read() }, 0)
        };
        Self { a, unit, target, first_query, batch, parts, descale }
    }

    /// Splits of the unit's sequence.
    #[inline(always)]
    pub(super) fn splits(&self) -> u32 {
        self.parts.count
    }

    /// The parts of the unit's row `row`, which exists, where the launch has no table.
    #[cfg(splitkv_target = "sm_90a")]
    #[inline(always)]
    pub(super) fn parts(&self, row: u32) -> RowParts {
        let a = &self.a;
        let (query, head) = self.place(row);
        let Parts { first, step, .. } = self.parts_of(query, head);
        let dims = u64::from(a.head_dim_v);
        RowParts {
            o: a.partial_o.cast::<f32>().wrapping_add((first * dims) as usize).cast_const(),
            lse: a.partial_lse.cast::<f32>().wrapping_add(first as usize).cast_const(),
            o_step: step * dims,
            lse_step: step,
            dims: a.head_dim_v,
            target: self.result(query, head),
        }
    }

    /// Rows from the unit's first one to the KV head's last.
    #[inline(always)]
    pub(super) fn rows(&self) -> u32 {
        self.unit.rows(&self.a).saturating_sub(self.unit.first_row)
    }

    /// The unit's row `row`; one that does not exist is written nowhere.
    #[inline(always)]
    pub(super) fn row(&self, row: u32) -> RowOutput {
        let (a, unit) = (&self.a, &self.unit);
        if row >= self.rows() {
            return RowOutput::NONE;
        }
        let (query, head) = self.place(row);
        if self.splits() == 1 {
            return self.result(query, head);
        }
        let Parts { first, step, .. } = self.parts_of(query, head);
        let partial = first + u64::from(unit.split) * step;
        RowOutput {
            o: a.partial_o.wrapping_add((partial * u64::from(a.head_dim_v) * 4) as usize),
            dtype: Output::F32 as u32,
            // An empty split has no part; its LSE says so.
            dims: if unit.begin < unit.end { a.head_dim_v } else { 0 },
            lse: a.partial_lse.wrapping_add((partial * 4) as usize),
            sink: f32::NEG_INFINITY,
        }
    }

    /// Merges the parts of the unit's row `row`.
    ///
    /// # Safety
    /// Every lane of the warp reaches this call with the same row, which exists. All its parts are written.
    #[inline(always)]
    pub(super) unsafe fn merge(&self, row: u32) {
        let AttentionArguments { partial_o, partial_lse, head_dim_v, .. } = self.a;
        let (query, head) = self.place(row);
        let (parts, target) = (self.parts_of(query, head), self.result(query, head));
        // SAFETY: the caller's promise; the pointers are as their documentation says.
        unsafe { merge_parts(partial_o, partial_lse, parts, head_dim_v, &target) };
    }

    /// Where the final result of a query and head goes.
    #[inline(always)]
    fn result(&self, query: u32, head: u32) -> RowOutput {
        self.target.row(self.batch, self.first_query + query, head, self.a.head_dim_v)
    }

    /// Query of the sequence and head of the unit's row `row`, which exists.
    #[inline(always)]
    fn place(&self, row: u32) -> (u32, u32) {
        // SAFETY: group is not 0, since there is a row.
        let (query, member) = unsafe { divide_by_few(self.unit.first_row + row, self.a.group) };
        (query, self.unit.kv_head * self.a.group + member)
    }

    #[inline(always)]
    fn parts_of(&self, query: u32, head: u32) -> Parts {
        let Parts { first, step, count } = self.parts;
        Parts { first: first + u64::from(query), step, count }.of_head(self.target.heads, head)
    }
}
