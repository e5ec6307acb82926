//! A ring of KV chunks, of one wave or of the whole block.
//!
//! K is the first operand of its product as it lies in memory. A wave with a ring of its own loads each lane's part
//! straight into registers; a block, whose waves all need the same K, takes it through shared memory. V must be
//! transposed, which only loads from shared memory do. A stage there holds `CHUNK` rows of K, where the block shares
//! it, and then `CHUNK` rows of V, each as [`Layout`] says. The copies write places in order, so it is the lanes'
//! global addresses that are permuted.
//!
//! Ordinary loads from shared memory make LLVM wait for every copy under way. K is therefore read whole when its
//! chunk has just arrived and the next copies have not been started.

use super::copy::{self, piece_or_zeros};
use super::layout::{Layout, PIECE, Piece};
use super::query::{Query, load_row};
use super::tile::{Element, Fragment};
use super::{shared, thread, warp};
use crate::gpu::{Chunk, page_offset};
use core::marker::PhantomData;

/// Bytes that one copy of all lanes fills.
const PART: u32 = warp::SIZE * PIECE;

/// Ring of `STAGES` chunks of `SF` score fragments' KV tokens; K rows of `QF` query fragments, V rows of `OF` output
/// fragments. `MEMBERS` threads fill and read it together: a wave, or the block.
pub(crate) struct Ring<
    E,
    const QF: usize,
    const SF: usize,
    const OF: usize,
    const STAGES: usize,
    const MEMBERS: u32,
    const PAGED: bool,
> {
    /// The first stage, and its shared address.
    memory: *mut u8,
    base: u32,
    /// Bytes from the first stage to the one written next.
    write: u32,
    /// Bytes from the first stage to the one read now.
    read: u32,
    lane: u32,
    /// Offset of this lane's row and place in reads of K, and in transposing reads of V.
    k_lane: u32,
    v_lane: u32,
    /// K of the chunk under way, where a wave loads it, for each product of scores.
    k_ahead: [[[u32; 4]; QF]; SF],
    /// K of the oldest chunk after [`Self::wait`].
    k: [[[u32; 4]; QF]; SF],
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
    const CHUNK: u32 = (SF * E::COLUMNS) as u32;
    /// Products that give the scores of a chunk, and the outputs of all dims.
    const SCORES: usize = SF / E::GROUP;
    const OUTPUTS: usize = OF / E::GROUP;
    const WAVES: u32 = MEMBERS / warp::SIZE;
    const K_IN_SHARED: bool = Self::WAVES > 1;
    /// A fragment's depth are so many pieces as lanes share it.
    const K: Layout = Layout { pieces: E::SHARING * QF as u32, unit: 1 };
    /// A product's dims are two pieces, which four lanes read together.
    const V: Layout = Layout { pieces: 2 * Self::OUTPUTS as u32, unit: 2 };
    const V_START: u32 = if Self::K_IN_SHARED { Self::CHUNK * Self::K.pitch() } else { 0 };
    const STAGE: u32 = Self::V_START + Self::CHUNK * Self::V.pitch();

    /// A ring with nothing under way.
    ///
    /// # Safety
    /// `memory` is the members' alone, `STAGES` stages long, in shared memory, aligned to 256 bytes.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: *mut u8) -> Self {
        const {
            assert!(STAGES == 2, "K of one chunk is kept ahead");
            assert!(SF.is_multiple_of(E::WEIGHTS) && SF.is_multiple_of(E::GROUP), "weights make whole operands");
            assert!(QF.is_multiple_of(E::PARTS) && OF.is_multiple_of(E::GROUP), "rows make whole operands");
            assert!(E::M * E::OPERAND.bytes() == 2 * PIECE, "a product's dims are two pieces");
            assert!((Self::CHUNK * Self::K.pitch()).is_multiple_of(PART), "copies are whole");
            assert!((Self::CHUNK * Self::V.pitch()).is_multiple_of(PART), "copies are whole");
        }
        let lane = warp::lane_id();
        let (k_row, k_piece) = (lane % E::M, lane / E::M);
        let (v_row, v_byte) = E::value_place(lane);
        Self {
            memory,
            // SAFETY: the caller's promise.
            base: unsafe { shared::address(memory) },
            write: 0,
            read: 0,
            lane,
            k_lane: k_row * Self::K.pitch() + (k_piece ^ Self::K.turn(k_row)) * PIECE,
            v_lane: v_row * Self::V.pitch() + Self::V.turn(v_row) * PIECE + v_byte,
            k_ahead: [[[0; 4]; QF]; SF],
            k: [[[0; 4]; QF]; SF],
            element: PhantomData,
        }
    }

    /// Starts to copy a chunk into the next free stage, or to load what a wave keeps in registers.
    ///
    /// # Safety
    /// Every member reaches this call; no chunk is under way, so that [`Self::wait`] came since the last computation
    /// with the stage; the chunk's tokens can be read.
    #[inline(always)]
    pub(crate) unsafe fn issue(&mut self, chunk: Option<Chunk>) {
        let Some(chunk) = chunk else { return };
        let stage = self.base + self.write;
        // SAFETY: the caller's promise. In pages, each lane looks up the rows that it copies.
        unsafe {
            let pages = chunk.pages;
            let row = |row: u32, page_stride: u64, stride: u64| {
                if PAGED {
                    let (page, place) = chunk.find(row);
                    page_offset(page, page_stride, place, stride)
                } else {
                    (u64::from(row) * stride) as usize
                }
            };
            let k_row = |token| chunk.k.wrapping_add(row(token, pages.k_stride, chunk.k_stride));
            let v_row = |token| chunk.v.wrapping_add(row(token, pages.v_stride, chunk.v_stride));
            self.copy_rows(Self::V, E::token, stage + Self::V_START, v_row, chunk.v_bytes, chunk.tokens);
            if Self::K_IN_SHARED {
                self.copy_rows(Self::K, |row| row, stage, k_row, chunk.k_bytes, chunk.tokens);
            } else {
                self.load_k(k_row, chunk.k_bytes, chunk.tokens);
            }
        }
        self.write += Self::STAGE;
        if self.write == STAGES as u32 * Self::STAGE {
            self.write = 0;
        }
        copy::pin();
    }

    /// Copies the first `bytes` bytes of `tokens` rows, which `source` tells, and fills up with zeros: rows, and the chunk.
    /// `token` says which token lies in which row.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    unsafe fn copy_rows(
        &self,
        layout: Layout,
        token: impl Fn(u32) -> u32,
        start: u32,
        source: impl Fn(u32) -> *const u8,
        bytes: u32,
        tokens: u32,
    ) {
        /// Copies that are started together, after their rows have been found: waiting for the page table is waiting for
        /// all copies before it.
        const BATCH: u32 = 8;
        let parts = Self::CHUNK * layout.pitch() / PART;
        let (lane, bytes) = (warp::per_lane(self.lane), warp::per_lane(bytes));
        let wave = if Self::K_IN_SHARED { warp::warp_id() } else { 0 };
        let each = parts.div_ceil(Self::WAVES);
        let mut first = 0;
        while first < each {
            let mut sources = [core::ptr::null(); BATCH as usize];
            for i in 0..BATCH {
                if first + i < each {
                    let (row, piece) = layout.filled((first + i) * Self::WAVES + wave, lane);
                    let token = token(row);
                    let source = source(token).wrapping_add((piece * PIECE) as usize);
                    sources[i as usize] = piece_or_zeros(source, token < tokens && piece * PIECE < bytes);
                }
            }
            if PAGED {
                copy::pin();
            }
            for i in 0..BATCH {
                let part = (first + i) * Self::WAVES + wave;
                if first + i < each && (parts.is_multiple_of(Self::WAVES) || part < parts) {
                    // SAFETY: the piece exists, or zeros are read; the caller's promise.
                    unsafe { copy::copy_16_each(start + part * PART, sources[i as usize]) };
                }
            }
            first += BATCH;
        }
    }

    /// Loads K; the last row that exists stands in for those that do not. Their scores are masked, whatever they
    /// are: a chunk is cut short only by the last key that any row of the tile sees.
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    unsafe fn load_k(&mut self, source: impl Fn(u32) -> *const u8, bytes: u32, tokens: u32) {
        let (lane, bytes) = (warp::per_lane(self.lane), warp::per_lane(bytes));
        for f in 0..Self::SCORES {
            let token = (lane % E::M + f as u32 * E::M).min(tokens - 1);
            // SAFETY: the row exists.
            self.k_ahead[f] = unsafe { load_row::<E, QF>(source(token), bytes, lane) };
        }
    }

    /// Waits until the oldest chunk has arrived, and all members are done with the one before it.
    ///
    /// # Safety
    /// Every member reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn wait(&mut self) {
        // One chunk is under way, the one wanted. The wait for shared memory is for the reads of the stage that
        // the next copy overwrites.
        copy::wait_all();
        if Self::K_IN_SHARED {
            // SAFETY: the caller's promise.
            unsafe {
                thread::sync_threads();
                self.read_k();
            }
        } else {
            self.k = self.k_ahead;
        }
    }

    /// Reads K of the oldest chunk from shared memory.
    ///
    /// # Safety
    /// The chunk has arrived, and nothing is under way.
    #[inline(always)]
    unsafe fn read_k(&mut self) {
        for f in 0..Self::SCORES {
            for depth in 0..QF {
                let place = Self::K.at(self.read + self.k_lane, E::SHARING * depth as u32);
                let place = place + f as u32 * E::M * Self::K.pitch();
                // SAFETY: the place lies in the stage; its rows are aligned to 16 bytes.
                self.k[f][depth] = unsafe { self.memory.add(place as usize).cast::<Piece>().read() }.0;
            }
        }
    }

    /// Scores of the query tiles against the oldest chunk.
    ///
    /// # Safety
    /// The chunk has been waited for; every lane of the wave reaches this call.
    #[inline(always)]
    pub(crate) unsafe fn scores<const QT: usize, const IN_SHARED: bool>(
        &self,
        query: &Query<E, QF, QT, IN_SHARED>,
    ) -> [[Fragment; SF]; QT] {
        let mut scores = [[[0.0; 4]; SF]; QT];
        for step in 0..QF / E::PARTS {
            let parts = step * E::PARTS..(step + 1) * E::PARTS;
            for t in 0..QT {
                for f in 0..Self::SCORES {
                    let scores = &mut scores[t][f * E::GROUP..(f + 1) * E::GROUP];
                    // SAFETY: the caller's promise.
                    unsafe {
                        E::multiply_add(scores, &self.k[f][parts.clone()], &query.fragments[t][parts.clone()]);
                    }
                }
            }
        }
        // What reads V now needs the registers of K.
        copy::pin();
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
        /// Rows that a transposing read takes.
        const ROWS: usize = 16;
        let lane = self.base + self.read + Self::V_START + self.v_lane;
        let mut b = [[[0; 4]; 2]; QT];
        for t in 0..QT {
            b[t] = E::weight_operand(&weights[t]);
        }
        let mut v = [[[0; 4]; 2]; OF];
        for f in 0..Self::OUTPUTS {
            for read in 0..W * E::COLUMNS / ROWS {
                let row = step * W * E::COLUMNS + read * ROWS;
                let address = Self::V.at(lane, 2 * f as u32) + row as u32 * Self::V.pitch();
                // SAFETY: the caller's promise; the address lies in the stage.
                let values = unsafe { E::load_values(address) };
                v[f][read / 2][read % 2 * 2] = values[0];
                v[f][read / 2][read % 2 * 2 + 1] = values[1];
            }
        }
        // All reads are started before the first product: LLVM would wait for each in turn.
        copy::pin();
        for f in 0..Self::OUTPUTS {
            for t in 0..QT {
                let out = &mut out[t][f * E::GROUP..(f + 1) * E::GROUP];
                // SAFETY: the caller's promise.
                unsafe { E::multiply_add(out, &v[f][..E::PARTS], &b[t][..E::PARTS]) };
            }
        }
    }

    /// Frees the oldest chunk's stage.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        // What follows waits for the chunk under way, even if only to move registers.
        copy::pin();
        self.read += Self::STAGE;
        if self.read == STAGES as u32 * Self::STAGE {
            self.read = 0;
        }
    }
}
