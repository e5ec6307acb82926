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
use super::matrix::{Element, load_matrix_transposed};
use super::query::{Query, load_row};
use super::tile::{COLUMNS, DEPTH, Fragment};
use super::{shared, thread, warp};
use crate::gpu::{Chunk, page_offset};
use core::marker::PhantomData;

/// Bytes that one copy of all lanes fills.
const PART: u32 = warp::SIZE * PIECE;

/// Ring of `STAGES` chunks of `SF * COLUMNS` KV tokens; K rows of `QF` query fragments, V rows of `OF` output
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
    /// K of the chunk under way, where a wave loads it.
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
    const CHUNK: u32 = (SF * COLUMNS) as u32;
    const WAVES: u32 = MEMBERS / warp::SIZE;
    const K_IN_SHARED: bool = Self::WAVES > 1;
    /// A fragment's depth are four pieces, one for each 16 lanes.
    const K: Layout = Layout { pieces: 4 * QF as u32, unit: 1 };
    /// A fragment's columns are two pieces, which four lanes read together.
    const V: Layout = Layout { pieces: 2 * OF as u32, unit: 2 };
    const V_START: u32 = if Self::K_IN_SHARED { Self::CHUNK * Self::K.pitch() } else { 0 };
    const STAGE: u32 = Self::V_START + Self::CHUNK * Self::V.pitch();

    /// A ring with nothing under way.
    ///
    /// # Safety
    /// `memory` is the members' alone, `STAGES` stages long, in shared memory, aligned to 256 bytes.
    #[inline(always)]
    pub(crate) unsafe fn new(memory: *mut u8) -> Self {
        const {
            assert!(Self::CHUNK <= warp::SIZE, "a lane for each token");
            assert!(
                (Self::CHUNK * Self::K.pitch() / PART).div_ceil(Self::WAVES) <= 16,
                "sources are kept in registers"
            );
            assert!(
                (Self::CHUNK * Self::V.pitch() / PART).div_ceil(Self::WAVES) <= 16,
                "sources are kept in registers"
            );
            assert!(STAGES == 2, "K of one chunk is kept ahead");
            assert!(SF.is_multiple_of(2) && COLUMNS * 2 == DEPTH, "two fragments of weights make one operand");
            assert!((Self::CHUNK * Self::K.pitch()).is_multiple_of(PART), "copies are whole");
            assert!((Self::CHUNK * Self::V.pitch()).is_multiple_of(PART), "copies are whole");
        }
        let lane = warp::lane_id();
        let (k_row, k_piece) = (lane % 16, lane / 16);
        let v_row = lane / 4;
        Self {
            memory,
            // SAFETY: the caller's promise.
            base: unsafe { shared::address(memory) },
            write: 0,
            read: 0,
            lane,
            k_lane: k_row * Self::K.pitch() + (k_piece ^ Self::K.turn(k_row)) * PIECE,
            v_lane: v_row * Self::V.pitch() + Self::V.turn(v_row) * PIECE + lane % 4 * 8,
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
        // SAFETY: the caller's promise. In pages, lane `t` finds token `t`, and tells those that copy it.
        unsafe {
            let found = if PAGED { chunk.find(warp::per_lane(self.lane)) } else { (0, 0) };
            let pages = chunk.pages;
            let row = |row: u32, page_stride: u64, stride: u64| {
                if PAGED {
                    let (page, place) = (warp::warp_shuffle(found.0, row), warp::warp_shuffle(found.1, row));
                    page_offset(page, page_stride, place, stride)
                } else {
                    (u64::from(row) * stride) as usize
                }
            };
            let k_row = |token| chunk.k.wrapping_add(row(token, pages.k_stride, chunk.k_stride));
            let v_row = |token| chunk.v.wrapping_add(row(token, pages.v_stride, chunk.v_stride));
            self.copy_rows(Self::V, stage + Self::V_START, v_row, chunk.v_bytes, chunk.tokens);
            if Self::K_IN_SHARED {
                self.copy_rows(Self::K, stage, k_row, chunk.k_bytes, chunk.tokens);
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
    ///
    /// # Safety
    /// As for [`Self::issue`].
    #[inline(always)]
    unsafe fn copy_rows(&self, layout: Layout, start: u32, source: impl Fn(u32) -> *const u8, bytes: u32, tokens: u32) {
        const MOST: usize = 16;
        let parts = Self::CHUNK * layout.pitch() / PART;
        let (lane, bytes) = (warp::per_lane(self.lane), warp::per_lane(bytes));
        let wave = if Self::K_IN_SHARED { warp::warp_id() } else { 0 };
        let each = parts.div_ceil(Self::WAVES);
        let place = |i: u32| layout.filled(i * Self::WAVES + wave, lane);
        let mut sources = [core::ptr::null(); MOST];
        if PAGED {
            // All lanes' answers are in before the first copy starts: LLVM takes a copy for one more that the counter of
            // shared memory waits for, which the ISA's manual does not say.
            for i in 0..each {
                sources[i as usize] = source(place(i).0);
            }
            copy::pin();
        }
        for i in 0..each {
            let part = i * Self::WAVES + wave;
            if parts.is_multiple_of(Self::WAVES) || part < parts {
                let (row, piece) = place(i);
                let source = if PAGED { sources[i as usize] } else { source(row) };
                let source = source.wrapping_add((piece * PIECE) as usize);
                let source = piece_or_zeros(source, row < tokens && piece * PIECE < bytes);
                // SAFETY: the piece exists, or zeros are read; the caller's promise.
                unsafe { copy::copy_16_each(start + part * PART, source) };
            }
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
        for f in 0..SF {
            let token = (lane % 16 + (f * COLUMNS) as u32).min(tokens - 1);
            // SAFETY: the row exists.
            self.k_ahead[f] = unsafe { load_row(source(token), bytes, lane) };
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
        for f in 0..SF {
            for depth in 0..QF {
                let place = Self::K.at(self.read + self.k_lane, 4 * depth as u32);
                let place = place + (f * COLUMNS) as u32 * Self::K.pitch();
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
        query: &Query<QF, QT, IN_SHARED>,
    ) -> [[Fragment; SF]; QT] {
        let mut scores = [[[0.0; 4]; SF]; QT];
        for depth in 0..QF {
            for t in 0..QT {
                for f in 0..SF {
                    // SAFETY: the caller's promise.
                    unsafe { E::multiply_add(&mut scores[t][f], self.k[f][depth], query.fragments[t][depth]) };
                }
            }
        }
        // What reads V now needs the registers of K.
        copy::pin();
        scores
    }

    /// Adds the product of the weights of the oldest chunk's tokens in two fragments, the `step`-th ones, and their V
    /// to `out`.
    ///
    /// # Safety
    /// As for [`Self::scores`].
    #[inline(always)]
    pub(crate) unsafe fn accumulate<const QT: usize>(
        &self,
        step: usize,
        weights: &[[Fragment; 2]; QT],
        out: &mut [[Fragment; OF]; QT],
    ) {
        let lane = self.base + self.read + Self::V_START + self.v_lane;
        // Lane `l` holds the weights of tokens `4 * (l / 16)` and the three after, of two fragments. They are the
        // operand of one product, whose depth thus counts the tokens in this order; V is read in it too.
        let mut b = [[0; 4]; QT];
        for t in 0..QT {
            let [p, r] = weights[t];
            b[t] = [E::pack(p[0], p[1]), E::pack(p[2], p[3]), E::pack(r[0], r[1]), E::pack(r[2], r[3])];
        }
        let mut v = [[0; 4]; OF];
        for f in 0..OF {
            let address = Self::V.at(lane, 2 * f as u32) + (2 * step * COLUMNS) as u32 * Self::V.pitch();
            // SAFETY: the caller's promise; the addresses lie in the stage.
            let (first, second) = unsafe {
                (load_matrix_transposed(address), load_matrix_transposed(address + COLUMNS as u32 * Self::V.pitch()))
            };
            v[f] = [first[0], first[1], second[0], second[1]];
        }
        // All reads are started before the first product: LLVM would wait for each in turn.
        copy::pin();
        for f in 0..OF {
            for t in 0..QT {
                // SAFETY: the caller's promise.
                unsafe { E::multiply_add(&mut out[t][f], v[f], b[t]) };
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
