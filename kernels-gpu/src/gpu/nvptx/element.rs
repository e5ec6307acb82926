//! Element types of Q, K and V: what they make of a warp's products.

use super::math;
use super::matrix::{multiply_add_bf16, multiply_add_e4m3, multiply_add_f16};
use super::tile::{COLUMNS, Fragment, RUN};
use crate::abi::Operand;

/// Element type of a matrix operand.
///
/// Operands have 32 bytes a row: of lane `l`, its bytes `4 * (l % 4)` and the three after, and the same of its second
/// half.
pub(crate) trait Element {
    /// The type by its name in the ABI.
    const OPERAND: Operand;
    /// Query rows of a product.
    const M: u32 = 16;
    /// Columns of one fragment.
    const COLUMNS: usize = COLUMNS;
    /// Head dims of one query fragment.
    const DEPTH: usize = 32 / Self::OPERAND.bytes() as usize;
    /// Fragments of weights that make one operand.
    const WEIGHTS: usize = Self::DEPTH / COLUMNS;
    /// Logarithm to base 2 of what weights are scaled by, to use the type's range; the largest weight is 1 before.
    const HEADROOM: f32;

    /// Row of the product that the lane's slot `slot` stands for.
    #[inline(always)]
    fn row(lane: u32, slot: usize) -> u32 {
        lane / 4 + 8 * slot as u32
    }

    /// Column of element `i` of fragment `fragment` of scores.
    #[inline(always)]
    fn column(lane: u32, fragment: usize, i: usize) -> u32 {
        (fragment * COLUMNS + i % RUN) as u32 + lane % 4 * 2
    }

    /// Column of element `i` of fragment `fragment` of outputs.
    fn out_column(lane: u32, fragment: usize, i: usize) -> u32;

    /// The lane's weights as the first operand of a product. Its depth counts the tokens in the order in which the
    /// lanes hold them; [`Self::value_operands`] does so too.
    fn weight_operand(weights: &[Fragment]) -> [u32; 4];

    /// The second operands of two products, of what `ldmatrix` gives the lane of the transposes of four matrices: of
    /// 8 tokens each, by dims of 16 bytes.
    fn value_operands(v: [u32; 4]) -> [[u32; 2]; 2];

    /// Two fragments of outputs as results of [`Self::value_operands`]'s products, and back.
    fn results(outputs: [Fragment; 2]) -> [Fragment; 2];

    /// `c += a * b` for a (row), b (column), and c in fp32.
    ///
    /// # Safety
    /// Every lane of the warp reaches this call.
    unsafe fn multiply_add(c: &mut Fragment, a: &[u32; 4], b: [u32; 2]);
}

macro_rules! element_of_16_bits {
    ($name:ident, $multiply_add:ident, $pack:ident) => {
        pub(crate) struct $name;

        impl Element for $name {
            const OPERAND: Operand = Operand::$name;
            const HEADROOM: f32 = 0.0;

            #[inline(always)]
            fn out_column(lane: u32, fragment: usize, i: usize) -> u32 {
                Self::column(lane, fragment, i)
            }

            #[inline(always)]
            fn weight_operand(weights: &[Fragment]) -> [u32; 4] {
                // The fragments of two products are, lane by lane, the first operand of the next one.
                let (p, r) = (weights[0], weights[1]);
                [math::$pack(p[0], p[1]), math::$pack(p[2], p[3]), math::$pack(r[0], r[1]), math::$pack(r[2], r[3])]
            }

            #[inline(always)]
            fn value_operands(v: [u32; 4]) -> [[u32; 2]; 2] {
                [[v[0], v[1]], [v[2], v[3]]]
            }

            #[inline(always)]
            fn results(outputs: [Fragment; 2]) -> [Fragment; 2] {
                outputs
            }

            #[inline(always)]
            unsafe fn multiply_add(c: &mut Fragment, a: &[u32; 4], b: [u32; 2]) {
                // SAFETY: the caller's promise.
                unsafe { $multiply_add(c, a, b) }
            }
        }
    };
}
element_of_16_bits!(Bf16, multiply_add_bf16, pack_bf16);
element_of_16_bits!(F16, multiply_add_f16, pack_f16);

/// e4m3 without infinities. `ldmatrix` transposes pairs of bytes, so that a lane gets two dims at once: the products
/// take even and odd ones apart.
pub(crate) struct E4m3;

impl Element for E4m3 {
    const OPERAND: Operand = Operand::E4m3;
    // The largest weight becomes 256, of 448 that there are.
    const HEADROOM: f32 = 8.0;

    #[inline(always)]
    fn out_column(lane: u32, fragment: usize, i: usize) -> u32 {
        // Of 16 dims a lane has four that follow each other.
        (fragment / 2 * 2 * COLUMNS + fragment % 2 * RUN + i % RUN) as u32 + lane % 4 * 4
    }

    #[inline(always)]
    fn weight_operand(weights: &[Fragment]) -> [u32; 4] {
        let rows = |slot: usize, first: usize| {
            let (p, r) = (weights[first], weights[first + 1]);
            math::pack_e4m3([p[RUN * slot], p[RUN * slot + 1], r[RUN * slot], r[RUN * slot + 1]])
        };
        [rows(0, 0), rows(1, 0), rows(0, 2), rows(1, 2)]
    }

    #[inline(always)]
    fn value_operands(v: [u32; 4]) -> [[u32; 2]; 2] {
        // A word has two dims of a token, then of the next one. Even bytes are one product's, odd ones the other's.
        const EVEN: u32 = 0x6420;
        const ODD: u32 = 0x7531;
        [
            [math::permute(v[0], v[1], EVEN), math::permute(v[2], v[3], EVEN)],
            [math::permute(v[0], v[1], ODD), math::permute(v[2], v[3], ODD)],
        ]
    }

    #[inline(always)]
    fn results([a, b]: [Fragment; 2]) -> [Fragment; 2] {
        // Columns of a row: even dims in one product, odd ones in the other; and back, since it is a transposition.
        [[a[0], b[0], a[2], b[2]], [a[1], b[1], a[3], b[3]]]
    }

    #[inline(always)]
    unsafe fn multiply_add(c: &mut Fragment, a: &[u32; 4], b: [u32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { multiply_add_e4m3(c, a, b) }
    }
}
