//! Merges a block's warps, each of which saw other keys, through shared memory.

use super::output::LN_2;
use super::softmax::{Rows, finite};
use crate::abi::Geometry;
use crate::gpu::tile::{self, Fragment, ROWS};
use crate::gpu::{Float4, math};

/// The block's buffer: of each warp and row the unnormalised output, then of each the maximum and sum.
pub(super) struct Merge<const WARPS: usize, const OF: usize> {
    out: *mut f32,
    state: *mut [f32; 2],
}

impl<const WARPS: usize, const OF: usize> Merge<WARPS, OF> {
    const DIMS: u32 = (OF * tile::COLUMNS) as u32;
    const PITCH: usize = Geometry::merge_pitch(Self::DIMS) as usize;

    /// The buffer at `memory`.
    ///
    /// # Safety
    /// `memory` is shared memory, aligned to 16 bytes, of `WARPS * tile::M * (PITCH + 2)` floats.
    #[inline(always)]
    pub(super) unsafe fn new(memory: *mut u8) -> Self {
        let out = memory.cast::<f32>();
        // SAFETY: the caller's promise.
        Self { out, state: unsafe { out.add(WARPS * tile::M as usize * Self::PITCH) }.cast() }
    }

    /// Writes one warp's rows.
    ///
    /// # Safety
    /// Every lane of warp `warp` reaches this call; no thread reads the buffer before the next barrier.
    #[inline(always)]
    pub(super) unsafe fn write(&self, warp: u32, lane: u32, rows: &Rows, out: &[Fragment; OF]) {
        for slot in 0..ROWS {
            // SAFETY: the caller's promise.
            let sum = unsafe { tile::row_sum(rows.sum[slot]) };
            let row = (warp * tile::M + tile::row(lane, slot)) as usize;
            // The lane that holds column 0 speaks for the row.
            if tile::column(lane, 0, 0) == 0 {
                // SAFETY: row is below WARPS * M.
                unsafe { self.state.add(row).write([rows.max[slot], sum]) };
            }
        }
        for f in 0..OF {
            let first = tile::column(lane, f, 0);
            for i in 0..4 {
                let row = (warp * tile::M + tile::row(lane, tile::slot(i))) as usize;
                // Apart from the first column, so that LLVM sees neighbours and makes one store of them.
                let step = tile::column(lane, f, i) - first;
                // SAFETY: row is below WARPS * M, the column below DIMS.
                unsafe { self.out.add(row * Self::PITCH + first as usize).add(step as usize).write(out[f][i]) };
            }
        }
    }

    /// Four normalised output dims of a row from `dim` on, and the row's LSE (natural).
    ///
    /// # Safety
    /// A barrier lies between every warp's [`Self::write`] and this call; `row < tile::M`, `dim + 4 <= DIMS`.
    #[inline(always)]
    pub(super) unsafe fn read(&self, row: u32, dim: u32) -> ([f32; 4], f32) {
        let mut max = f32::NEG_INFINITY;
        let mut states = [[0.0; 2]; WARPS];
        for warp in 0..WARPS {
            // SAFETY: the caller's promise.
            states[warp] = unsafe { self.state.add(warp * tile::M as usize + row as usize).read() };
            max = math::max(max, states[warp][0]);
        }
        let mut sum = 0.0;
        let mut out = [0.0; 4];
        for warp in 0..WARPS {
            let [warp_max, warp_sum] = states[warp];
            let weight = math::exp2(warp_max - finite(max));
            sum = math::fma(weight, warp_sum, sum);
            let place = (warp * tile::M as usize + row as usize) * Self::PITCH + dim as usize;
            // SAFETY: the caller's promise; PITCH and dim are multiples of 4.
            let part = unsafe { self.out.add(place).cast::<Float4>().read() };
            for i in 0..4 {
                out[i] = math::fma(weight, part.0[i], out[i]);
            }
        }
        if max == f32::NEG_INFINITY {
            return ([0.0; 4], f32::NEG_INFINITY);
        }
        let inverse = 1.0 / sum;
        for x in &mut out {
            *x *= inverse;
        }
        (out, (max + math::log2(sum)) * LN_2)
    }
}
