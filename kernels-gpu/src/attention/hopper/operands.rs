//! What differs between element types: how tiles lie in shared memory, and how scores become weights and outputs.

use super::compute::{COLUMNS, Lane};
use crate::abi::Operand;
use crate::abi::warpgroups::{HEAD_DIM_QK, HEAD_DIM_V, Layout, NARROW, ROWS, WIDE, map};
use crate::gpu::shared::store;
use crate::gpu::tile::{Bf16, E4m3, Element, F16};
use crate::gpu::wgmma::{self, ELEMENTS, Elements, PRODUCTS, Swizzle, descriptor};
use crate::gpu::{math, matrix, warp};

/// A box that a tensor map copies for a tile.
#[derive(Clone, Copy)]
pub(super) struct Copy {
    /// Number of the map.
    pub(super) map: u32,
    /// Where it comes to in the tile's K or V.
    pub(super) to: u32,
    /// Bytes of a row, and tokens of the tile, that lie before it.
    pub(super) byte: u32,
    pub(super) token: u32,
}

/// An element type of the operands of warpgroups' products.
pub(super) trait Operands: Element {
    /// Where things are in shared memory.
    const LAYOUT: Layout = Layout::of(Self::OPERAND);
    /// Products that the scores of a tile are: of 64 keys each.
    const PRODUCTS: usize = Self::LAYOUT.tokens as usize / 64;
    /// Pieces of 16 bytes of a query row.
    const QUERY_PIECES: u32 = HEAD_DIM_QK * Self::OPERAND.bytes() / 16;
    /// Words of a row of V.
    const V_WORDS: u32 = HEAD_DIM_V * Self::OPERAND.bytes() / 4;
    /// Logarithm to base 2 of the largest weight after a row's reference has moved to its maximum.
    const LARGEST: f32;
    /// The same of the largest weight that there may be. Below it references stay, so that outputs need no scaling.
    const MOST: f32;
    /// The boxes of K, and of V.
    const K: &[Copy];
    const V: &[Copy];
    /// Head dims from a lane's first element of a column of the outputs to its second one, and to the other product's.
    const OUT_STEP: usize;
    const OUT_PRODUCT: usize;
    /// A lane's part of a tile of V, where it goes through registers.
    type Values;
    /// Whether it does: then V is not read any more once [`Self::load_values`] is done everywhere.
    const THROUGH_REGISTERS: bool;

    /// Whether tensor map number `map` copies something.
    #[inline(always)]
    fn copies_by(map: u32) -> bool {
        (Self::K.iter().chain(Self::V)).any(|copy| copy.map == map)
    }

    /// Place of a piece of a query row behind the first row's.
    fn query_place(row: u32, piece: u32) -> u32;

    /// Distance of the same piece eight rows on.
    fn query_step(piece: u32) -> u32;

    /// Place of a word of a row of V behind the first row's.
    fn value_place(row: u32, word: u32) -> u32;

    /// Head dim that the lane's first element of a column stands for in the first product of the outputs.
    fn out_dim(lane: &Lane) -> u32;

    /// Scores of the stage's keys with the query rows, from their shared addresses.
    ///
    /// # Safety
    /// All threads of the warpgroup reach this call with the same values; K and Q are there for the asynchronous proxy.
    unsafe fn scores(stage: u32, query: u32) -> Elements;

    /// Makes weights of scores, adds them to the sums of their columns and stores them as products want them.
    ///
    /// # Safety
    /// No product reads the warpgroup's weights any more.
    unsafe fn store_weights(scores: &Elements, sums: &mut [f32; COLUMNS], lane: &Lane);

    /// The lane's part of V.
    ///
    /// # Safety
    /// All threads of the warpgroup reach this call; `values` is the shared address of a stage's V, which has come.
    unsafe fn load_values(values: u32, lane: &Lane) -> Self::Values;

    /// Adds to the outputs what V, from [`Self::load_values`] or from its shared address, and the weights give.
    ///
    /// # Safety
    /// As for [`Self::scores`], V and the weights being there.
    unsafe fn add_outputs(out: &mut Elements, v: &Self::Values, values: u32, weights: u32);
}

/// Pieces of 16 bytes of a wide piece of a row.
const WIDE_PIECES: u32 = WIDE / 16;

/// Element of a product's column `c`: of key (or head dim) `g`. Two behind lies that of `8 + g`.
pub(super) const fn element(c: usize) -> usize {
    c / 2 * 4 + c % 2
}

/// K and Q lie as in global memory, V goes through registers to be transposed. Of V, product `p` of warp `w` has head
/// dims `32 w + 16 p` to `32 w + 16 p + 15`, even ones first.
impl Operands for E4m3 {
    const LARGEST: f32 = 4.8;
    // 448 is the largest that there is.
    const MOST: f32 = 8.8;
    const K: &[Copy] = &[
        Copy { map: map::K_WIDE, to: 0, byte: 0, token: 0 },
        Copy { map: map::K_NARROW, to: Self::LAYOUT.tokens * WIDE, byte: WIDE, token: 0 },
    ];
    const V: &[Copy] = &[
        Copy { map: map::V, to: 0, byte: 0, token: 0 },
        Copy { map: map::V, to: Self::LAYOUT.v_part, byte: 0, token: Self::LAYOUT.v_tokens },
    ];
    const OUT_STEP: usize = 1;
    const OUT_PRODUCT: usize = 16;
    type Values = [[[u32; 4]; 2]; 4];
    const THROUGH_REGISTERS: bool = true;

    #[inline(always)]
    fn query_place(row: u32, piece: u32) -> u32 {
        if piece < WIDE_PIECES {
            row * WIDE + (piece ^ (row % 8)) * 16
        } else {
            ROWS * WIDE + row * NARROW + ((piece - WIDE_PIECES) ^ (row / 2 % 4)) * 16
        }
    }

    #[inline(always)]
    fn query_step(piece: u32) -> u32 {
        8 * if piece < WIDE_PIECES { WIDE } else { NARROW }
    }

    #[inline(always)]
    fn value_place(row: u32, word: u32) -> u32 {
        row / Self::LAYOUT.v_tokens * Self::LAYOUT.v_part + row % Self::LAYOUT.v_tokens * WIDE + word * 4
    }

    #[inline(always)]
    fn out_dim(lane: &Lane) -> u32 {
        lane.warp * 32 + lane.g * 2
    }

    #[inline(always)]
    unsafe fn scores(stage: u32, query: u32) -> Elements {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::scores_e4m3(
                [
                    descriptor(stage, 16, 8 * WIDE, Swizzle::Span128),
                    descriptor(stage + Self::LAYOUT.tokens * WIDE, 16, 8 * NARROW, Swizzle::Span64),
                ],
                [
                    descriptor(query, 16, 8 * WIDE, Swizzle::Span128),
                    descriptor(query + ROWS * WIDE, 16, 8 * NARROW, Swizzle::Span64),
                ],
            )
        }
    }

    #[inline(always)]
    unsafe fn store_weights(scores: &Elements, sums: &mut [f32; COLUMNS], lane: &Lane) {
        let block = Self::LAYOUT.weight_block;
        let place = lane.weights + lane.warp * 2 * block + lane.g / 4 * block + lane.t * 32 + lane.g % 4 * 4;
        for c in 0..COLUMNS {
            let e = element(c);
            let [a, b] = scores;
            let weights = [math::exp2(a[e]), math::exp2(b[e]), math::exp2(a[e + 2]), math::exp2(b[e + 2])];
            sums[c] += (weights[0] + weights[2]) + (weights[1] + weights[3]);
            // SAFETY: the caller's promise; the place is this lane's.
            unsafe { store(place + c as u32 / 2 * 128 + c as u32 % 2 * 16, math::pack_e4m3(weights)) };
        }
    }

    /// Step `s` takes of either half of the tile the 16 keys of warp `s`, in the order in which the weights lie.
    #[inline(always)]
    unsafe fn load_values(values: u32, lane: &Lane) -> Self::Values {
        const EVEN: u32 = 0x6420;
        const ODD: u32 = 0x7531;
        // Rows of the matrices: of either half in turn.
        let (number, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
        let (half, row) = (row % 2, row / 2 + number % 2 * 8 + number / 2 * 4);
        let swizzle = (row + half * (Self::LAYOUT.v_part / WIDE)) % 8;
        let start = values + half * Self::LAYOUT.v_part + row * WIDE;
        let mut v = [[[0; 4]; 2]; 4];
        for s in 0..4 {
            for p in 0..2 {
                let piece = (2 * lane.warp + p as u32) ^ swizzle;
                // SAFETY: the caller's promise; the rows are the stage's.
                let m = unsafe { matrix::load_matrix_x4_transposed(start + s as u32 * 16 * WIDE + piece * 16) };
                v[s][p] = [
                    math::permute(m[0], m[1], EVEN),
                    math::permute(m[0], m[1], ODD),
                    math::permute(m[2], m[3], EVEN),
                    math::permute(m[2], m[3], ODD),
                ];
            }
        }
        v
    }

    #[inline(always)]
    unsafe fn add_outputs(out: &mut Elements, v: &Self::Values, _values: u32, weights: u32) {
        // SAFETY: the caller's promise.
        unsafe {
            wgmma::add_outputs_e4m3(out, v, descriptor(weights, Self::LAYOUT.weight_block, 128, Swizzle::None));
        }
    }
}

/// The layout of 16-bit types, and the boxes of their tiles.
const HALVES: Layout = Layout::of(Operand::Bf16);
const K_BOXES: usize = (HALVES.k_bytes / (HALVES.k_tokens * WIDE)) as usize;
const V_BOXES: usize = (HALVES.v_bytes / (HALVES.v_tokens * WIDE)) as usize;

/// Boxes of `tokens` tokens by map `map`: all pieces of 64 head dims of some tokens, then of the next ones, so that what
/// lies together is read together. Pieces lie `piece` bytes apart in the stage.
const fn boxes<const N: usize>(map: u32, tokens: u32, piece: u32) -> [Copy; N] {
    let pieces = N as u32 * tokens / HALVES.tokens;
    let mut boxes = [Copy { map, to: 0, byte: 0, token: 0 }; N];
    let mut i = 0;
    while i < N {
        let (number, token) = (i as u32 % pieces, i as u32 / pieces * tokens);
        boxes[i] = Copy { map, to: number * piece + token * WIDE, byte: number * WIDE, token };
        i += 1;
    }
    boxes
}

/// All operands lie as in global memory, in pieces of 64 head dims: the products transpose V and the weights. Of V,
/// product `p` has head dims `64 p` to `64 p + 63`.
macro_rules! operands_of_16_bits {
    ($name:ident, $scores:ident, $add_outputs:ident, $pack:ident) => {
        impl Operands for $name {
            const LARGEST: f32 = 0.0;
            // Far below the largest of binary16.
            const MOST: f32 = 8.0;
            const K: &[Copy] = &boxes::<K_BOXES>(map::K_WIDE, HALVES.k_tokens, HALVES.tokens * WIDE);
            const V: &[Copy] = &boxes::<V_BOXES>(map::V, HALVES.v_tokens, HALVES.v_part);
            const OUT_STEP: usize = 8;
            const OUT_PRODUCT: usize = 64;
            type Values = ();
            const THROUGH_REGISTERS: bool = false;

            #[inline(always)]
            fn query_place(row: u32, piece: u32) -> u32 {
                (piece / WIDE_PIECES * ROWS + row) * WIDE + ((piece % WIDE_PIECES) ^ (row % 8)) * 16
            }

            #[inline(always)]
            fn query_step(_piece: u32) -> u32 {
                8 * WIDE
            }

            #[inline(always)]
            fn value_place(row: u32, word: u32) -> u32 {
                word / (WIDE / 4) * Self::LAYOUT.v_part + row * WIDE + word % (WIDE / 4) * 4
            }

            #[inline(always)]
            fn out_dim(lane: &Lane) -> u32 {
                lane.warp * 16 + lane.g
            }

            #[inline(always)]
            unsafe fn scores(stage: u32, query: u32) -> Elements {
                // SAFETY: the caller's promise.
                unsafe {
                    wgmma::$scores(
                        descriptor(stage, 16, 8 * WIDE, Swizzle::Span128),
                        descriptor(query, 16, 8 * WIDE, Swizzle::Span128),
                    )
                }
            }

            #[inline(always)]
            unsafe fn store_weights(scores: &Elements, sums: &mut [f32; COLUMNS], lane: &Lane) {
                let place = lane.weights + lane.warp * 2 * Self::LAYOUT.weight_block + lane.g * 16 + lane.t * 4;
                for j in 0..ELEMENTS / 4 {
                    let weights: [f32; 4] = core::array::from_fn(|i| math::exp2(scores[0][4 * j + i]));
                    sums[2 * j] += weights[0] + weights[2];
                    sums[2 * j + 1] += weights[1] + weights[3];
                    let place = place + j as u32 * 128;
                    // SAFETY: the caller's promise; the places are this lane's.
                    unsafe {
                        store(place, math::$pack(weights[0], weights[1]));
                        store(place + Self::LAYOUT.weight_block, math::$pack(weights[2], weights[3]));
                    }
                }
            }

            #[inline(always)]
            unsafe fn load_values(_values: u32, _lane: &Lane) {}

            #[inline(always)]
            unsafe fn add_outputs(out: &mut Elements, _v: &(), values: u32, weights: u32) {
                // SAFETY: the caller's promise.
                unsafe {
                    wgmma::$add_outputs(
                        out,
                        descriptor(values, Self::LAYOUT.v_part, 8 * WIDE, Swizzle::Span128),
                        descriptor(weights, Self::LAYOUT.weight_block, 128, Swizzle::None),
                    );
                }
            }
        }
    };
}
operands_of_16_bits!(Bf16, scores_bf16, add_outputs_bf16, pack_bf16);
operands_of_16_bits!(F16, scores_f16, add_outputs_f16, pack_f16);

/// What is asked of all of them.
const fn sound<E: Operands>() {
    assert!(E::LARGEST < E::MOST && E::PRODUCTS <= PRODUCTS);
}
const _: () = (sound::<E4m3>(), sound::<Bf16>(), sound::<F16>()).0;
