//! A wave's ring of KV chunks: K in registers, V in shared memory.
//!
//! K is the first operand of its product as it lies in memory, so each lane loads its part straight into
//! registers. V must be transposed, which only loads from shared memory do. A stage there holds `CHUNK` rows
//! of V. A row is cut into blocks of 32 bytes; block `b` of row `r` lies in place `b ^ (r % 8)`, so that the
//! eight rows which half a wave reads at once lie in different ones of the 64 banks. The copies write
//! places in order, so it is the lanes' global addresses that are permuted.

use super::matrix::{Element, load_matrix_transposed};
use super::tile::{COLUMNS, DEPTH, Fragment, Query, load_row};
use super::{copy, shared, warp};
use crate::gpu::Chunk;
use core::marker::PhantomData;

/// Bytes that a lane copies at once.
const PIECE: u32 = 16;
/// Bytes of a row that a fragment's columns take: the unit in which places are permuted.
const BLOCK: u32 = 2 * COLUMNS as u32;

/// What is copied for a row that does not exist.
#[repr(C, align(16))]
struct Zeros([u8; PIECE as usize]);
static ZEROS: Zeros = Zeros([0; PIECE as usize]);

/// Ring of `STAGES` chunks of `SF * COLUMNS` KV tokens; K rows of `QF` query fragments, V rows of `OF`
/// output fragments.
pub(crate) struct Ring<E, const QF: usize, const SF: usize, const OF: usize, const STAGES: usize> {
    /// Shared address of the first stage.
    base: u32,
    /// Bytes from the first stage to the one written next.
    write: u32,
    /// Bytes from the first stage to the one read now.
    read: u32,
    /// Offset of this lane's row and place in transposing reads of V.
    v_lane: u32,
    lane: u32,
    /// K of the chunk under way, and of the oldest one after [`Self::wait`].
    k_ahead: [[[u32; 4]; QF]; SF],
    k: [[[u32; 4]; QF]; SF],
    element: PhantomData<E>,
}

impl<E: Element, const QF: usize, const SF: usize, const OF: usize, const STAGES: usize> Ring<E, QF, SF, OF, STAGES> {
    const CHUNK: u32 = (SF * COLUMNS) as u32;
    const V_PITCH: u32 = OF as u32 * BLOCK;
    const STAGE: u32 = Self::CHUNK * Self::V_PITCH;

    /// A ring with nothing under way.
    ///
    /// # Safety
    /// `memory` is this wave's alone, `STAGES` stages long, in shared memory, aligned to 256 bytes.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: *mut u8) -> Self {
        const {
            assert!(STAGES == 2, "K of one chunk is kept ahead");
            assert!(SF.is_multiple_of(2) && COLUMNS * 2 == DEPTH, "two fragments of weights make one operand");
            assert!(OF.is_multiple_of(8), "the eight places that a block can take lie in one row");
        }
        let lane = warp::lane_id();
        let row = lane / 4;
        Self {
            // SAFETY: the caller's promise.
            base: unsafe { shared::address(memory) },
            write: 0,
            read: 0,
            v_lane: row * Self::V_PITCH + row % 8 * BLOCK + lane % 4 * 8,
            lane,
            k_ahead: [[[0; 4]; QF]; SF],
            k: [[[0; 4]; QF]; SF],
            element: PhantomData,
        }
    }

    /// Starts to copy a chunk: V into the next free stage, K into registers.
    ///
    /// # Safety
    /// Every lane of the wave reaches this call; no chunk is under way, so that [`Self::wait`] came since the
    /// last computation with the stage; the chunk's tokens can be read.
    #[inline(always)]
    pub(crate) unsafe fn issue(&mut self, chunk: Option<Chunk>) {
        let Some(chunk) = chunk else { return };
        // SAFETY: the caller's promise.
        unsafe {
            self.copy_v(&chunk);
            self.load_k(&chunk);
        }
        self.write += Self::STAGE;
        if self.write == STAGES as u32 * Self::STAGE {
            self.write = 0;
        }
        copy::pin();
    }

    /// Copies the rows of V that exist, and zeros for the others.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    unsafe fn copy_v(&self, chunk: &Chunk) {
        let pieces = Self::V_PITCH / PIECE;
        let step = warp::SIZE / pieces;
        let (row, place) = (self.lane / pieces, self.lane % pieces);
        let mut source = chunk.v.wrapping_add((u64::from(row) * chunk.v_stride) as usize);
        for i in 0..Self::CHUNK / step {
            let row = row + i * step;
            let piece = place ^ (row % 8 * (BLOCK / PIECE));
            let exists = row < chunk.tokens;
            let source_piece = source.wrapping_add((piece * PIECE) as usize);
            let source_piece = if exists { source_piece } else { ZEROS.0.as_ptr() };
            // SAFETY: the row exists, or the zeros are read; the caller's promise.
            unsafe { copy::copy_16_each(self.base + self.write + i * step * Self::V_PITCH, source_piece) };
            source = source.wrapping_add((u64::from(step) * chunk.v_stride) as usize);
        }
    }

    /// Loads K; the last row that exists stands in for those that do not. Their scores are masked, whatever
    /// they are: a chunk is cut short only by the last key that any row of the tile sees.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    unsafe fn load_k(&mut self, chunk: &Chunk) {
        for f in 0..SF {
            let token = (self.lane % 16 + (f * COLUMNS) as u32).min(chunk.tokens - 1);
            let row = chunk.k.wrapping_add((u64::from(token) * chunk.k_stride) as usize);
            // SAFETY: the row exists.
            self.k_ahead[f] = unsafe { load_row(row, self.lane) };
        }
    }

    /// Waits until the oldest chunk has arrived.
    ///
    /// # Safety
    /// Every lane of the wave reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn wait(&mut self) {
        // One chunk is under way, the one wanted. The wait for shared memory is for the reads of the stage that
        // the next copy overwrites.
        copy::wait_all();
        self.k = self.k_ahead;
    }

    /// Scores of the query tile against the oldest chunk.
    ///
    /// # Safety
    /// The chunk has been waited for; every lane of the wave reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn scores(&self, query: &Query<QF>) -> [Fragment; SF] {
        let mut scores = [[0.0; 4]; SF];
        for depth in 0..QF {
            for f in 0..SF {
                // SAFETY: the caller's promise.
                unsafe { E::multiply_add(&mut scores[f], self.k[f][depth], query.0[depth]) };
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
        let lane = self.base + self.read + self.v_lane;
        for pair in 0..SF / 2 {
            // Lane `l` holds the weights of tokens `4 * (l / 16)` and the three after, of two fragments. They are
            // the operand of one product, whose depth thus counts the tokens in this order; V is read in it too.
            let (p, r) = (weights[2 * pair], weights[2 * pair + 1]);
            let b = [E::pack(p[0], p[1]), E::pack(p[2], p[3]), E::pack(r[0], r[1]), E::pack(r[2], r[3])];
            let rows = (2 * pair * COLUMNS) as u32 * Self::V_PITCH;
            let mut v = [[0; 4]; OF];
            for f in 0..OF {
                // The block number's lower three bits take part in the permutation.
                let block = f as u32 * BLOCK;
                let address = (lane ^ (block % (8 * BLOCK))) + block / (8 * BLOCK) * (8 * BLOCK) + rows;
                // SAFETY: the caller's promise; the addresses lie in the stage.
                let (first, second) = unsafe {
                    (load_matrix_transposed(address), load_matrix_transposed(address + COLUMNS as u32 * Self::V_PITCH))
                };
                v[f] = [first[0], first[1], second[0], second[1]];
            }
            // All reads are started before the first product: LLVM would wait for each in turn.
            copy::pin();
            for f in 0..OF {
                // SAFETY: the caller's promise.
                unsafe { E::multiply_add(&mut out[f], v[f], b) };
            }
        }
        // What follows waits for the chunk under way, even if only to move registers.
        copy::pin();
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
