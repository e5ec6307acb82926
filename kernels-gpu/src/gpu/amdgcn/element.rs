//! Element types of Q, K and V: what they make of a wave's products.

use super::matrix::{load_transposed_8, load_transposed_16, multiply_add_bf16, multiply_add_e4m3, multiply_add_f16};
use super::tile::{Fragment, RUN};
use super::{math, warp};
use crate::abi::{Geometry, Operand, Vendor};

/// Element type of a matrix operand.
///
/// A product has as many rows, tokens or dims as queries, [`Self::M`], so that `64 / M` lanes share each; its depth
/// are 64 bytes.
pub(crate) trait Element {
    /// The type by its name in the ABI.
    const OPERAND: Operand;
    /// Query rows of a product.
    const M: u32 = Geometry::rows(Vendor::Amd, Self::OPERAND);
    /// Lanes that share a row.
    const SHARING: u32 = warp::SIZE / Self::M;
    /// Columns of one fragment.
    const COLUMNS: usize = Self::SHARING as usize * RUN;
    /// Fragments of a product's result.
    const GROUP: usize = Self::M as usize / Self::COLUMNS;
    /// Head dims of one query fragment, of which a lane has 16 bytes.
    const DEPTH: usize = (Self::SHARING * 16 / Self::OPERAND.bytes()) as usize;
    /// Query fragments that make one operand.
    const PARTS: usize = 4 / Self::SHARING as usize;
    /// Fragments of weights that make one operand.
    const WEIGHTS: usize = 64 / Self::OPERAND.bytes() as usize / Self::COLUMNS;
    /// Logarithm to base 2 of what weights are scaled by, to use the type's range; the largest weight is 1 before.
    const HEADROOM: f32;

    /// Row of the product that the lane's slot `slot` stands for.
    #[inline(always)]
    fn row(lane: u32, _slot: usize) -> u32 {
        lane % Self::M
    }

    /// Column of element `i` of fragment `fragment`, of scores and of outputs.
    #[inline(always)]
    fn column(lane: u32, fragment: usize, i: usize) -> u32 {
        (fragment * Self::COLUMNS + i) as u32 + lane / Self::M * RUN as u32
    }

    /// As [`Self::column`].
    #[inline(always)]
    fn out_column(lane: u32, fragment: usize, i: usize) -> u32 {
        Self::column(lane, fragment, i)
    }

    /// The lane's weights as the second operand of a product, in the first [`Self::PARTS`] parts. Its depth counts the
    /// tokens in the order in which the lanes hold them; V is read in it too.
    fn weight_operand(weights: &[Fragment]) -> [[u32; 4]; 2];

    /// The token that lies in row `row` of V in shared memory, such that a read takes rows that follow each other.
    fn token(row: u32) -> u32;

    /// Row of V, and byte of the row, from which on a lane gives 8 bytes to the transposing read of the first 16 rows.
    fn value_place(lane: u32) -> (u32, u32);

    /// Loads 16 rows of [`Self::M`] dims of V and transposes them.
    ///
    /// # Safety
    /// Every lane of the wave reaches this call; `shared` is as for [`load_transposed_16`].
    unsafe fn load_values(shared: u32) -> [u32; 2];

    /// `c += a * b` for [`Self::GROUP`] fragments and operands of [`Self::PARTS`] parts.
    ///
    /// # Safety
    /// Every lane of the wave reaches this call.
    unsafe fn multiply_add(c: &mut [Fragment], a: &[[u32; 4]], b: &[[u32; 4]]);
}

macro_rules! element_of_16_bits {
    ($name:ident, $multiply_add:ident, $pack:ident) => {
        pub(crate) struct $name;

        impl Element for $name {
            const OPERAND: Operand = Operand::$name;
            const HEADROOM: f32 = 0.0;

            #[inline(always)]
            fn weight_operand(weights: &[Fragment]) -> [[u32; 4]; 2] {
                let (p, r) = (weights[0], weights[1]);
                let operand = [
                    math::$pack(p[0], p[1]),
                    math::$pack(p[2], p[3]),
                    math::$pack(r[0], r[1]),
                    math::$pack(r[2], r[3]),
                ];
                [operand, [0; 4]]
            }

            #[inline(always)]
            fn token(row: u32) -> u32 {
                row
            }

            #[inline(always)]
            fn value_place(lane: u32) -> (u32, u32) {
                (lane / 4, lane % 4 * 8)
            }

            #[inline(always)]
            unsafe fn load_values(shared: u32) -> [u32; 2] {
                // SAFETY: the caller's promise.
                unsafe { load_transposed_16(shared) }
            }

            #[inline(always)]
            unsafe fn multiply_add(c: &mut [Fragment], a: &[[u32; 4]], b: &[[u32; 4]]) {
                // SAFETY: the caller's promise.
                unsafe { $multiply_add(&mut c[0], a[0], b[0]) }
            }
        }
    };
}
element_of_16_bits!(Bf16, multiply_add_bf16, pack_bf16);
element_of_16_bits!(F16, multiply_add_f16, pack_f16);

/// e4m3 without infinities.
pub(crate) struct E4m3;

impl Element for E4m3 {
    const OPERAND: Operand = Operand::E4m3;
    // The largest weight becomes 256, of 448 that there are.
    const HEADROOM: f32 = 8.0;

    #[inline(always)]
    fn weight_operand(weights: &[Fragment]) -> [[u32; 4]; 2] {
        let part = |first: usize| core::array::from_fn(|i| math::pack_e4m3(weights[first + i]));
        [part(0), part(4)]
    }

    #[inline(always)]
    fn token(row: u32) -> u32 {
        // A lane of the lower half holds the weights of tokens 0..4 and 8..12 of 16, one of the upper half the others:
        // the fours in the middle change places.
        row & !0b1100 | (row & 0b0100) << 1 | (row & 0b1000) >> 1
    }

    #[inline(always)]
    fn value_place(lane: u32) -> (u32, u32) {
        (lane / 32 * 8 + lane % 16 / 2, lane / 16 % 2 * 16 + lane % 2 * 8)
    }

    #[inline(always)]
    unsafe fn load_values(shared: u32) -> [u32; 2] {
        // SAFETY: the caller's promise.
        unsafe { load_transposed_8(shared) }
    }

    #[inline(always)]
    unsafe fn multiply_add(c: &mut [Fragment], a: &[[u32; 4]], b: &[[u32; 4]]) {
        let mut result = [c[0], c[1], c[2], c[3]];
        // SAFETY: the caller's promise.
        unsafe { multiply_add_e4m3(&mut result, [a[0], a[1]], [b[0], b[1]]) };
        c[..4].copy_from_slice(&result);
    }
}
