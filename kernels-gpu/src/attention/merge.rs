//! Normalises a block's results. Where its warps saw other keys of the same rows, merges them through shared
//! memory.

use super::output::{LN_2, LOG2_E, UnitOutput, store_floats};
use super::softmax::{Rows, finite};
use crate::abi::Geometry;
use crate::gpu::tile::{self, Element, Fragment, ROWS, RUN};
use crate::gpu::{Float4, math, thread, warp};
use core::marker::PhantomData;

/// LSE (natural) of a row, and what its output is to be multiplied by, from the maximum and the sum of its weights and
/// the factor of V's values. Without a key that is 0, whatever the factor is. The sum tells, for NaN among the scores
/// passes the maximum by.
#[inline(always)]
pub(super) fn normalise<E: Element>(max: f32, sum: f32, descale: f32) -> (f32, f32) {
    if sum == 0.0 {
        return (f32::NEG_INFINITY, 0.0);
    }
    let log2 = if E::HEADROOM == 0.0 { math::log2(sum) } else { math::log2(sum) - E::HEADROOM };
    ((max + log2) * LN_2, 1.0 / sum * descale)
}

/// LSE (natural) with a sink taken in, and the factor by which that makes the normalised output smaller. It is a step of
/// its own, so that a row has the same bits whether its only part was written as a split's or not.
#[inline(always)]
pub(super) fn with_sink(lse: f32, sink: f32) -> (f32, f32) {
    if sink == f32::NEG_INFINITY {
        return (lse, 1.0);
    }
    let most = math::max(lse, sink);
    let weight = math::exp2((lse - most) * LOG2_E);
    let sum = weight + math::exp2((sink - most) * LOG2_E);
    (math::fma(math::log2(sum), LN_2, most), weight / sum)
}

/// Writes one warp's rows, which no other warp shares, from row `first` of the unit on. A lane's `RUN` elements of
/// slot `s` follow each other in a fragment.
///
/// # Safety
/// Every lane of the warp reaches this call; the arguments behind `output` are as the ABI says.
#[inline(always)]
pub(super) unsafe fn write_rows<E: Element, const OF: usize>(
    output: &UnitOutput,
    first: u32,
    lane: u32,
    rows: &Rows,
    out: &[Fragment; OF],
) {
    for slot in 0..ROWS {
        // SAFETY: the caller's promise.
        let sum = unsafe { tile::row_sum::<E>(rows.sum[slot]) };
        let row = output.row(first + E::row(lane, slot));
        let (lse, inverse) = normalise::<E>(rows.max[slot], sum, output.descale);
        let (lse, factor) = with_sink(lse, row.sink);
        // SAFETY: the row exists, or is written nowhere.
        unsafe {
            row.store::<RUN, OF>(
                |f| E::out_column(lane, f, slot * RUN),
                |f| core::array::from_fn(|i| out[f][slot * RUN + i] * inverse * factor),
            );
            // The lane that holds column 0 speaks for the row.
            if E::out_column(lane, 0, 0) == 0 {
                row.store_lse(lse);
            }
        }
    }
}

/// The block's buffer: of each warp and row the unnormalised output, then of each the maximum and sum.
pub(super) struct Merge<E, const WARPS: usize, const OF: usize> {
    out: *mut f32,
    state: *mut [f32; 2],
    /// Whether the block is the last one of its row block.
    last: *mut u32,
    /// Rows of a warp.
    rows: u32,
    element: PhantomData<E>,
}

impl<E: Element, const WARPS: usize, const OF: usize> Merge<E, WARPS, OF> {
    const DIMS: u32 = (OF * E::COLUMNS) as u32;
    const PITCH: usize = Geometry::merge_pitch(Self::DIMS) as usize;

    /// The buffer at `memory`, for `rows` rows.
    ///
    /// # Safety
    /// `memory` is shared memory, aligned to 16 bytes, of `WARPS * rows * (PITCH + 2)` floats and a word.
    #[inline(always)]
    pub(super) unsafe fn new(memory: *mut u8, rows: u32) -> Self {
        let out = memory.cast::<f32>();
        let all = WARPS * rows as usize;
        // SAFETY: the caller's promise.
        let (state, last) = unsafe { (out.add(all * Self::PITCH).cast(), out.add(all * (Self::PITCH + 2)).cast()) };
        Self { out, state, last, rows, element: PhantomData }
    }

    /// Writes one warp's rows from row `first` on.
    ///
    /// # Safety
    /// Every lane of warp `warp` reaches this call; no thread reads the buffer before the next barrier.
    #[inline(always)]
    pub(super) unsafe fn write(&self, warp: u32, first: u32, lane: u32, rows: &Rows, out: &[Fragment; OF]) {
        let place = |slot: usize| (warp * self.rows + first + E::row(lane, slot)) as usize;
        for slot in 0..ROWS {
            // SAFETY: the caller's promise.
            let sum = unsafe { tile::row_sum::<E>(rows.sum[slot]) };
            // The lane that holds column 0 speaks for the row.
            if E::out_column(lane, 0, 0) == 0 {
                // SAFETY: the row is one of the buffer's.
                unsafe { self.state.add(place(slot)).write([rows.max[slot], sum]) };
            }
        }
        for f in 0..OF {
            for run in 0..4 / RUN {
                let first = run * RUN;
                let place = place(tile::slot(first)) * Self::PITCH + E::out_column(lane, f, first) as usize;
                let x: [f32; RUN] = core::array::from_fn(|i| out[f][first + i]);
                // SAFETY: the row is one of the buffer's, the columns below DIMS.
                unsafe { store_floats(self.out.add(place), x) };
            }
        }
    }

    /// Merges the warps and writes all rows.
    ///
    /// # Safety
    /// The block's first `threads` threads reach this call; a barrier lies between every warp's [`Self::write`] and it.
    #[inline(always)]
    pub(super) unsafe fn write_rows(&self, output: &UnitOutput, threads: u32) {
        let rows = output.rows().min(self.rows);
        const PIECE: u32 = 4;
        let pieces = Self::DIMS / PIECE;
        let mut item = warp::per_lane(thread::thread_idx_x());
        while item < rows * pieces {
            let (row, dim) = (item / pieces, item % pieces * PIECE);
            // SAFETY: row and dim are in range; the caller's promise.
            unsafe {
                let target = output.row(row);
                let (x, lse) = self.read(row, dim, target.sink, output.descale);
                target.store::<4, 1>(|_| dim, |_| x);
                if dim == 0 {
                    target.store_lse(lse);
                }
            }
            item += threads;
        }
    }

    /// If the block is the last one of the row block whose parts are written, merges them and writes the results.
    ///
    /// # Safety
    /// Every thread of the block reaches this call; a barrier lies between what it has written and it. `ticket` is the
    /// row block's counter.
    #[inline(always)]
    pub(super) unsafe fn merge_last(&self, output: &UnitOutput, ticket: *mut u32) {
        let last = output.splits() - 1;
        // SAFETY: the caller's promise; the word is the block's, and two barriers lie between its uses.
        let is_last = unsafe {
            if thread::thread_idx_x() == 0 {
                self.last.write((thread::draw_ticket(ticket, last) == last) as u32);
            }
            thread::sync_threads();
            self.last.read() != 0
        };
        if is_last {
            let rows = output.rows().min(self.rows);
            let mut row = warp::warp_id();
            while row < rows {
                // SAFETY: the row exists. The ticket says that the blocks of all its parts have written them.
                unsafe { output.merge(row) };
                row += WARPS as u32;
            }
        }
    }

    /// Four normalised output dims of a row with this sink and factor of V from `dim` on, and the row's LSE (natural).
    ///
    /// # Safety
    /// As for [`Self::write_rows`]; `row < rows`, `dim + 4 <= DIMS`.
    #[inline(always)]
    unsafe fn read(&self, row: u32, dim: u32, sink: f32, descale: f32) -> ([f32; 4], f32) {
        let mut max = f32::NEG_INFINITY;
        let mut states = [[0.0; 2]; WARPS];
        for warp in 0..WARPS {
            // SAFETY: the caller's promise.
            states[warp] = unsafe { self.state.add(warp * self.rows as usize + row as usize).read() };
            max = math::max(max, states[warp][0]);
        }
        let mut sum = 0.0;
        let mut out = [0.0; 4];
        for warp in 0..WARPS {
            let [warp_max, warp_sum] = states[warp];
            let weight = math::exp2(warp_max - finite(max));
            sum = math::fma(weight, warp_sum, sum);
            let place = (warp * self.rows as usize + row as usize) * Self::PITCH + dim as usize;
            // SAFETY: the caller's promise; PITCH and dim are multiples of 4.
            let part = unsafe { self.out.add(place).cast::<Float4>().read() };
            for i in 0..4 {
                out[i] = math::fma(weight, part.0[i], out[i]);
            }
        }
        let (lse, inverse) = normalise::<E>(max, sum, descale);
        let (lse, factor) = with_sink(lse, sink);
        for x in &mut out {
            *x = *x * inverse * factor;
        }
        (out, lse)
    }
}
