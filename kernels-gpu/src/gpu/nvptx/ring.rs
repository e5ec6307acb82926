//! A warp's ring of KV chunks in shared memory.
//!
//! A stage holds `CHUNK` rows of K, then as many of V. A row is cut into pieces of 16 bytes; piece `p` of
//! row `r` lies in place `p ^ (r % 8)`, so that the eight rows which one `ldmatrix` phase reads, and the
//! pieces which one copy writes, lie in different banks.

use super::matrix::{Element, load_matrix_x4, load_matrix_x4_transposed};
use super::tile::{COLUMNS, Fragment, Query};
use super::{copy, shared, warp};
use crate::gpu::Chunk;
use core::marker::PhantomData;

const PIECE: u32 = 16;

/// Ring of `STAGES` chunks of `SF * COLUMNS` KV tokens; K rows of `QF` query fragments, V rows of `OF`
/// output fragments.
pub(crate) struct Ring<E, const QF: usize, const SF: usize, const OF: usize, const STAGES: usize> {
    /// Shared address of the first stage.
    base: u32,
    /// Bytes from the first stage to the one written next.
    write: u32,
    /// Bytes from the first stage to the one read now.
    read: u32,
    /// Offset of this lane's row and piece in `ldmatrix` of K, and of V.
    k_lane: u32,
    v_lane: u32,
    lane: u32,
    policy: u64,
    element: PhantomData<E>,
}

impl<E: Element, const QF: usize, const SF: usize, const OF: usize, const STAGES: usize> Ring<E, QF, SF, OF, STAGES> {
    const CHUNK: u32 = (SF * COLUMNS) as u32;
    const K_PITCH: u32 = (QF * super::tile::DEPTH * 2) as u32;
    const V_PITCH: u32 = (OF * COLUMNS * 2) as u32;
    const V_START: u32 = Self::CHUNK * Self::K_PITCH;
    const STAGE: u32 = Self::V_START + Self::CHUNK * Self::V_PITCH;

    /// A ring with nothing under way.
    ///
    /// # Safety
    /// `memory` is this warp's alone, `STAGES` stages long, in shared memory, aligned to 128 bytes.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: *mut u8) -> Self {
        let lane = warp::lane_id();
        let (matrix, row) = (lane / 8, lane % 8);
        // K: matrices 0, 1 are the two depth halves of 8 tokens, 2, 3 those of the next 8.
        // V, transposed: matrices 0, 1 are 8 dims of two groups of 8 tokens, 2, 3 the next 8 dims.
        let k_lane = (matrix / 2 * 8 + row) * Self::K_PITCH + ((matrix % 2) ^ row) * PIECE;
        let v_lane = (matrix % 2 * 8 + row) * Self::V_PITCH + ((matrix / 2) ^ row) * PIECE;
        Self {
            // SAFETY: the caller's promise.
            base: unsafe { shared::address(memory) },
            write: 0,
            read: 0,
            k_lane,
            v_lane,
            lane,
            policy: copy::evict_first_policy(),
            element: PhantomData,
        }
    }

    /// Starts to copy a chunk into the next free stage; `None` keeps the count of copies.
    ///
    /// # Safety
    /// At most `STAGES - 1` chunks are under way or being computed with; every lane passed
    /// [`warp::sync_warp`] since it last computed with the stage; the chunk's tokens can be read.
    #[inline(always)]
    pub(crate) unsafe fn issue(&mut self, chunk: Option<Chunk>) {
        if let Some(chunk) = chunk {
            let stage = self.base + self.write;
            // SAFETY: the caller's promise; stage and V_START are multiples of 128.
            unsafe {
                self.copy_rows(stage, Self::K_PITCH, chunk.k, chunk.k_stride, chunk.tokens);
                self.copy_rows(stage + Self::V_START, Self::V_PITCH, chunk.v, chunk.v_stride, chunk.tokens);
            }
            self.write += Self::STAGE;
            if self.write == STAGES as u32 * Self::STAGE {
                self.write = 0;
            }
        }
        copy::commit_group();
    }

    /// Copies `tokens` rows and fills the chunk's remaining ones with zeros.
    ///
    /// # Safety
    /// As for [`Self::issue`]; `start` is a multiple of 128.
    #[inline(always)]
    unsafe fn copy_rows(&self, start: u32, pitch: u32, rows: *const u8, stride: u64, tokens: u32) {
        let pieces = pitch / PIECE;
        let step = warp::SIZE / pieces;
        let (row, piece) = (self.lane / pieces, self.lane % pieces);
        let target = start + row * pitch + (piece ^ (row % 8)) * PIECE;
        let mut source = rows.wrapping_add((u64::from(row) * stride + u64::from(piece * PIECE)) as usize);
        let advance = (u64::from(step) * stride) as usize;
        let place = |i: u32| (target ^ (i * step % 8 * PIECE)) + i * step * pitch;
        if tokens >= Self::CHUNK {
            for i in 0..Self::CHUNK / step {
                // SAFETY: all rows of the chunk exist.
                unsafe { copy::copy_16(place(i), source, self.policy) };
                source = source.wrapping_add(advance);
            }
        } else {
            for i in 0..Self::CHUNK / step {
                let (source_or_first, bytes) = if row + i * step < tokens { (source, PIECE) } else { (rows, 0) };
                // SAFETY: a row below `tokens` exists; of one beyond, no byte is read.
                unsafe { copy::copy_16_zero_fill(place(i), source_or_first, bytes, self.policy) };
                source = source.wrapping_add(advance);
            }
        }
    }

    /// Waits until the oldest chunk has arrived.
    ///
    /// # Safety
    /// Every lane of the warp reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn wait(&mut self) {
        // `STAGES - 1` groups are under way, and the oldest is the one wanted.
        const { assert!(STAGES == 2, "wait_group takes an immediate: STAGES - 2") };
        copy::wait_group::<0>();
        // SAFETY: the caller's promise.
        unsafe { warp::sync_warp() };
    }

    /// Scores of the query tile against the oldest chunk.
    ///
    /// # Safety
    /// The chunk has been waited for; every lane of the warp reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn scores(&self, query: &Query<QF>) -> [Fragment; SF] {
        let mut scores = [[0.0; 4]; SF];
        let lane = self.base + self.read + self.k_lane;
        for pair in 0..SF / 2 {
            for depth in 0..QF {
                // Two pieces a step of the depth: bits 5 and 6 of the address take part in the swizzle.
                let offset = depth as u32 * 2 * PIECE;
                let address = (lane ^ (offset % 128)) + offset / 128 * 128 + pair as u32 * 16 * Self::K_PITCH;
                // SAFETY: the caller's promise; the address lies in the stage.
                unsafe {
                    let k = load_matrix_x4(address);
                    E::multiply_add(&mut scores[2 * pair], &query.0[depth], [k[0], k[1]]);
                    E::multiply_add(&mut scores[2 * pair + 1], &query.0[depth], [k[2], k[3]]);
                }
            }
        }
        scores
    }

    /// Adds the product of the weights and the oldest chunk's V to `out`.
    ///
    /// # Safety
    /// As for [`Self::scores`].
    #[inline(always)]
    pub(crate) unsafe fn accumulate(&self, weights: &[Fragment; SF], out: &mut [Fragment; OF]) {
        let lane = self.base + self.read + Self::V_START + self.v_lane;
        for pair in 0..SF / 2 {
            // The fragments of two products are, lane by lane, the first operand of the next one.
            let (p, r) = (weights[2 * pair], weights[2 * pair + 1]);
            let a = [E::pack(p[0], p[1]), E::pack(p[2], p[3]), E::pack(r[0], r[1]), E::pack(r[2], r[3])];
            for dims in 0..OF / 2 {
                let offset = dims as u32 * 2 * PIECE;
                let address = (lane ^ (offset % 128)) + offset / 128 * 128 + pair as u32 * 16 * Self::V_PITCH;
                // SAFETY: the caller's promise; the address lies in the stage.
                unsafe {
                    let v = load_matrix_x4_transposed(address);
                    E::multiply_add(&mut out[2 * dims], &a, [v[0], v[1]]);
                    E::multiply_add(&mut out[2 * dims + 1], &a, [v[2], v[3]]);
                }
            }
        }
    }

    /// Frees the oldest chunk's stage.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.read += Self::STAGE;
        if self.read == STAGES as u32 * Self::STAGE {
            self.read = 0;
        }
    }
}
