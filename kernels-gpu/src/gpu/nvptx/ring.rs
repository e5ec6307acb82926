//! A ring of KV chunks in shared memory, of one warp or of the whole block.
//!
//! A stage holds `CHUNK` rows of K, then as many of V, [`Geometry::row_bytes`] apart. A row is cut into pieces of
//! 16 bytes; piece `p` of row `r` lies in place [`swizzled`]`(p, r)`, so that the eight rows which one phase of
//! `ldmatrix` reads, and the pieces which one copy writes, lie in different banks.

use super::math::opaque;
use super::matrix::{load_matrix_x4, load_matrix_x4_transposed};
use super::query::Query;
use super::tile::{COLUMNS, Element, Fragment};
use super::{copy, shared, thread, warp};
use crate::abi::Geometry;
use crate::gpu::{Chunk, page_offset};
use core::marker::PhantomData;

/// Bytes of a piece.
pub(super) const PIECE: u32 = 16;

/// Where in its row a piece lies.
#[inline(always)]
pub(super) const fn swizzled(piece: u32, row: u32) -> u32 {
    piece ^ (row % 8)
}

/// Goes `pieces` pieces further in a row of which the address `start` is that of piece 0, or, where `pieces` is even, 1.
/// Rows are whole lines of 128 bytes, so the swizzle stays within bits 4 to 6.
#[inline(always)]
pub(super) const fn further(start: u32, pieces: u32) -> u32 {
    let offset = pieces * PIECE;
    (start ^ (offset % 128)) + offset / 128 * 128
}

/// Ring of `STAGES` chunks of `SF * COLUMNS` KV tokens; K rows of `QF` query fragments, V rows of `OF`
/// output fragments. `MEMBERS` threads fill and read it together: a warp, or the block.
pub(crate) struct Ring<
    E,
    const QF: usize,
    const SF: usize,
    const OF: usize,
    const STAGES: usize,
    const MEMBERS: u32,
    const PAGED: bool,
> {
    /// Shared address of the first stage.
    base: u32,
    /// Bytes from the first stage to the one written next.
    write: u32,
    /// Bytes from the first stage to the one read now.
    read: u32,
    /// Offset of this lane's row and piece in `ldmatrix` of K, and of V.
    k_lane: u32,
    v_lane: u32,
    element: PhantomData<E>,
}

impl<
    E: Element,
    const QF: usize,
    const SF: usize,
    const OF: usize,
    const STAGES: usize,
    const MEMBERS: u32,
    const PAGED: bool,
> Ring<E, QF, SF, OF, STAGES, MEMBERS, PAGED>
{
    const CHUNK: u32 = (SF * COLUMNS) as u32;
    const K_PITCH: u32 = Geometry::row_bytes(E::OPERAND, (QF * E::DEPTH) as u32);
    const V_PITCH: u32 = Geometry::row_bytes(E::OPERAND, (OF * COLUMNS) as u32);
    const K_PIECES: u32 = QF as u32 * 2;
    const V_PIECES: u32 = (OF * COLUMNS) as u32 * E::OPERAND.bytes() / PIECE;
    const V_START: u32 = Self::CHUNK * Self::K_PITCH;
    const STAGE: u32 = Self::V_START + Self::CHUNK * Self::V_PITCH;

    /// A ring with nothing under way.
    ///
    /// # Safety
    /// `memory` is the members' alone, `STAGES` stages long, in shared memory, aligned to 128 bytes.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: *mut u8) -> Self {
        let lane = warp::lane_id();
        let (matrix, row) = (lane / 8, lane % 8);
        let v_matrices = E::WEIGHTS as u32;
        Self {
            // SAFETY: the caller's promise.
            base: unsafe { shared::address(memory) },
            write: 0,
            read: 0,
            // K: matrices 0, 1 are the two depth halves of 8 tokens, 2, 3 those of the next 8.
            k_lane: (matrix / 2 * 8 + row) * Self::K_PITCH + swizzled(matrix % 2, row) * PIECE,
            // V, transposed: of 16 dims, 8 tokens a matrix for all of an operand's, then those of the next piece.
            v_lane: (matrix % v_matrices * 8 + row) * Self::V_PITCH + swizzled(matrix / v_matrices, row) * PIECE,
            element: PhantomData,
        }
    }

    /// Starts to copy a chunk into the next free stage; `None` keeps the count of copies.
    ///
    /// # Safety
    /// Every member reaches this call, right after [`Self::wait`] or with fewer than `STAGES - 1` chunks under way;
    /// the chunk's tokens can be read.
    #[inline(always)]
    pub(crate) unsafe fn issue(&mut self, chunk: Option<Chunk>) {
        if let Some(chunk) = chunk {
            let stage = self.base + self.write;
            // SAFETY: the caller's promise; the rows lie in the stage.
            unsafe {
                if PAGED {
                    self.copy_pages(stage, &chunk);
                } else {
                    let Chunk { k, v, k_stride, v_stride, k_bytes, v_bytes, tokens, .. } = chunk;
                    self.copy_rows(Self::K_PIECES, stage, Self::K_PITCH, k, k_stride, k_bytes, tokens);
                    self.copy_rows(Self::V_PIECES, stage + Self::V_START, Self::V_PITCH, v, v_stride, v_bytes, tokens);
                }
            }
            self.write += Self::STAGE;
            if self.write == STAGES as u32 * Self::STAGE {
                self.write = 0;
            }
        }
        copy::commit_group();
    }

    /// Copies the first `bytes` bytes of `tokens` rows and fills up with zeros: rows of `pieces` pieces, and the chunk.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what a row's numbers are")]
    unsafe fn copy_rows(
        &self,
        pieces: u32,
        start: u32,
        pitch: u32,
        rows: *const u8,
        stride: u64,
        bytes: u32,
        tokens: u32,
    ) {
        // Rows that the members copy at once: a power of two, which divides the chunk.
        let step = (MEMBERS / pieces + 1).next_power_of_two() / 2;
        let member = if MEMBERS == warp::SIZE { warp::lane_id() } else { thread::thread_idx_x() };
        let (row, piece) = (member / pieces, member % pieces);
        // Members that do not fill a row, or are too many for the chunk, rest.
        if row >= step || row >= Self::CHUNK {
            return;
        }
        let target = start + row * pitch + swizzled(piece, row) * PIECE;
        // The row's low bits and those of the steps are apart, so that their swizzles add up.
        let place = |i: u32| (target ^ (i * step % 8 * PIECE)) + i * step * pitch;
        let mut source = rows.wrapping_add((u64::from(row) * stride + u64::from(piece * PIECE)) as usize);
        let advance = (u64::from(step) * stride) as usize;
        let steps = Self::CHUNK.div_ceil(step);
        // Made anew each time: kept, it takes two registers of a full file.
        let policy = copy::evict_first_policy();
        if tokens >= Self::CHUNK && bytes == pieces * PIECE {
            for i in 0..steps {
                // SAFETY: all rows of the chunk exist, and have all pieces.
                unsafe {
                    // What one warp reads, few others read again; what a block reads, the other rows' blocks do.
                    if MEMBERS == warp::SIZE {
                        copy::copy_16_with_policy(place(i), source, policy);
                    } else {
                        copy::copy_16(place(i), source);
                    }
                }
                source = source.wrapping_add(advance);
            }
        } else {
            for i in 0..steps {
                let exists = row + i * step < tokens && piece * PIECE < bytes;
                let (source_or_first, bytes) = if exists { (source, PIECE) } else { (rows, 0) };
                // SAFETY: the piece of a row below `tokens` exists; of another one, no byte is read.
                unsafe { copy::copy_16_zero_fill(place(i), source_or_first, bytes) };
                source = source.wrapping_add(advance);
            }
        }
    }

    /// Copies a chunk whose rows lie in pages: lane `t` finds token `t`, and tells those that copy it.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    unsafe fn copy_pages(&self, stage: u32, chunk: &Chunk) {
        const { assert!(Self::CHUNK <= warp::SIZE, "a lane for each token") };
        // SAFETY: the caller's promise.
        unsafe {
            let (page, place) = chunk.find(warp::lane_id());
            let (k, v, tokens) = (chunk.k, chunk.v, chunk.tokens);
            let own = page_offset(page, chunk.pages.k_stride, place, chunk.k_stride);
            self.copy_found(Self::K_PIECES, stage, Self::K_PITCH, k, own, chunk.k_bytes, tokens);
            let own = page_offset(page, chunk.pages.v_stride, place, chunk.v_stride);
            self.copy_found(Self::V_PIECES, stage + Self::V_START, Self::V_PITCH, v, own, chunk.v_bytes, tokens);
        }
    }

    /// As [`Self::copy_rows`], of rows of which that of the lane's token lies `own` bytes behind `base`.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "what a row's numbers are")]
    unsafe fn copy_found(
        &self,
        pieces: u32,
        start: u32,
        pitch: u32,
        base: *const u8,
        own: usize,
        bytes: u32,
        tokens: u32,
    ) {
        let step = (MEMBERS / pieces + 1).next_power_of_two() / 2;
        let member = if MEMBERS == warp::SIZE { warp::lane_id() } else { thread::thread_idx_x() };
        // What follows from it is made anew each time: kept, it takes registers of a full file.
        let member = opaque(member);
        let (row, piece) = (member / pieces, member % pieces);
        // Members that rest take part in the shuffles.
        let copies = row < step && row < Self::CHUNK;
        let target = start + row * pitch + swizzled(piece, row) * PIECE;
        let base = base.wrapping_add((piece * PIECE) as usize);
        for i in 0..Self::CHUNK.div_ceil(step) {
            let token = row + i * step;
            let lane = token % warp::SIZE;
            // SAFETY: all lanes are here; the piece of a row below `tokens` exists; of another one, no byte is read.
            unsafe {
                let (low, high) = (warp::warp_shuffle(own as u32, lane), warp::warp_shuffle((own >> 32) as u32, lane));
                let source = base.wrapping_add(low as usize | (high as usize) << 32);
                let exists = token < tokens && piece * PIECE < bytes;
                if copies {
                    let place = (target ^ (i * step % 8 * PIECE)) + i * step * pitch;
                    copy::copy_16_zero_fill(place, source, if exists { PIECE } else { 0 });
                }
            }
        }
    }

    /// Waits until the oldest chunk has arrived, and all members are done with the one before it.
    ///
    /// # Safety
    /// Every member reaches this call; `STAGES - 1` chunks (or `None` in their place) are under way.
    #[inline(always)]
    pub(crate) unsafe fn wait(&mut self) {
        copy::wait_for_oldest::<STAGES>();
        // SAFETY: the caller's promise.
        unsafe {
            if MEMBERS == warp::SIZE {
                warp::sync_warp();
            } else {
                thread::sync_threads();
            }
        }
    }

    /// Scores of the query tiles against the oldest chunk.
    ///
    /// # Safety
    /// The chunk has been waited for; every lane of the warp reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn scores<const QT: usize, const IN_SHARED: bool>(
        &self,
        query: &Query<E, QF, QT, IN_SHARED>,
    ) -> [[Fragment; SF]; QT] {
        let mut scores = [[[0.0; 4]; SF]; QT];
        let lane = self.base + self.read + self.k_lane;
        for depth in 0..QF {
            let mut rows = [[0; 4]; QT];
            for t in 0..QT {
                // SAFETY: the caller's promise.
                rows[t] = unsafe { query.fragment(t, depth) };
            }
            for pair in 0..SF / 2 {
                let address = further(lane, depth as u32 * 2) + pair as u32 * 16 * Self::K_PITCH;
                // SAFETY: the caller's promise; the address lies in the stage.
                unsafe {
                    let k = load_matrix_x4(address);
                    for t in 0..QT {
                        E::multiply_add(&mut scores[t][2 * pair], &rows[t], [k[0], k[1]]);
                        E::multiply_add(&mut scores[t][2 * pair + 1], &rows[t], [k[2], k[3]]);
                    }
                }
            }
        }
        scores
    }

    /// Adds the product of the weights of the oldest chunk's tokens in `W` fragments, the `step`-th ones, and their V
    /// to `out`.
    ///
    /// # Safety
    /// As for [`Self::scores`].
    #[inline(always)]
    pub(crate) unsafe fn accumulate<const QT: usize, const W: usize>(
        &self,
        step: usize,
        weights: &[[Fragment; W]; QT],
        out: &mut [[Fragment; OF]; QT],
    ) {
        let lane = self.base + self.read + Self::V_START + self.v_lane + (step * W * COLUMNS) as u32 * Self::V_PITCH;
        let mut a = [[0; 4]; QT];
        for t in 0..QT {
            a[t] = E::weight_operand(&weights[t]);
        }
        for pair in 0..OF / 2 {
            // SAFETY: the caller's promise; the address lies in the stage. 16 dims are as many pieces as an element
            // has bytes.
            unsafe {
                let v = load_matrix_x4_transposed(further(lane, pair as u32 * E::OPERAND.bytes()));
                let [first, second] = E::value_operands(v);
                for t in 0..QT {
                    let mut results = E::results([out[t][2 * pair], out[t][2 * pair + 1]]);
                    E::multiply_add(&mut results[0], &a[t], first);
                    E::multiply_add(&mut results[1], &a[t], second);
                    [out[t][2 * pair], out[t][2 * pair + 1]] = E::results(results);
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
