//! Matrix products of a warpgroup (PTX ISA, "wgmma"), 72 columns wide.
//!
//! A product has 64 rows and 72 columns. Lane `4 g + t` of warp `w` holds 36 floats of it: element `4 j + 2 h + e` is
//! row `16 w + 8 h + g`, column `8 j + 2 t + e`. All functions compute one or two products of the same second operand, and
//! wait for them: fence, products and wait are one block of assembly, or ptxas would put waits of its own between.

use crate::abi::Operand;
use crate::abi::warpgroups::{Layout, ROWS, WIDE};
use core::arch::asm;

/// Elements that a lane holds of a product.
pub(crate) const ELEMENTS: usize = 36;
/// Products of the same second operand at most.
pub(crate) const PRODUCTS: usize = 2;
/// What a lane holds of them.
pub(crate) type Elements = [[f32; ELEMENTS]; PRODUCTS];

/// How rows in shared memory are swizzled.
#[derive(Clone, Copy)]
pub(crate) enum Swizzle {
    /// Not at all.
    None = 0,
    /// Within 128 bytes.
    Span128 = 1,
    /// Within 64 bytes.
    Span64 = 2,
}

/// What products know of an operand at shared address `shared`: its leading and its stride distance in bytes. Of operands
/// whose depth lies together, the leading one leads to neighbours along the depth (without swizzle; 16 with one) and the
/// stride to the next eight rows. Of those whose rows (or columns) lie together: without swizzle, the stride leads to the
/// next eight of them and the leading one to the next eight along the depth; with one, the stride to the next eight along
/// the depth. PTX ISA, "matrix descriptor".
#[inline(always)]
pub(crate) const fn descriptor(shared: u32, leading: u32, stride: u32, swizzle: Swizzle) -> u64 {
    ((shared as u64) >> 4) | ((leading as u64) >> 4 << 16) | ((stride as u64) >> 4 << 32) | ((swizzle as u64) << 62)
}

/// The first product's elements, as operands of the assembly.
macro_rules! first {
    () => {
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}, {16}, {17}, \
         {18}, {19}, {20}, {21}, {22}, {23}, {24}, {25}, {26}, {27}, {28}, {29}, {30}, {31}, {32}, {33}, {34}, {35}"
    };
}
/// The second one's.
macro_rules! second {
    () => {
        "{36}, {37}, {38}, {39}, {40}, {41}, {42}, {43}, {44}, {45}, {46}, {47}, {48}, {49}, {50}, {51}, {52}, {53}, \
         {54}, {55}, {56}, {57}, {58}, {59}, {60}, {61}, {62}, {63}, {64}, {65}, {66}, {67}, {68}, {69}, {70}, {71}"
    };
}

/// A block of assembly whose first operands are the elements of one product (of two), of class `out` or `inout`.
#[rustfmt::skip]
macro_rules! one_product {
    ($($text:expr),+; $class:ident $x:ident; $($operands:tt)*) => {
        asm!($($text,)+
            $class(reg32) $x[0][0], $class(reg32) $x[0][1], $class(reg32) $x[0][2], $class(reg32) $x[0][3],
            $class(reg32) $x[0][4], $class(reg32) $x[0][5], $class(reg32) $x[0][6], $class(reg32) $x[0][7],
            $class(reg32) $x[0][8], $class(reg32) $x[0][9], $class(reg32) $x[0][10], $class(reg32) $x[0][11],
            $class(reg32) $x[0][12], $class(reg32) $x[0][13], $class(reg32) $x[0][14], $class(reg32) $x[0][15],
            $class(reg32) $x[0][16], $class(reg32) $x[0][17], $class(reg32) $x[0][18], $class(reg32) $x[0][19],
            $class(reg32) $x[0][20], $class(reg32) $x[0][21], $class(reg32) $x[0][22], $class(reg32) $x[0][23],
            $class(reg32) $x[0][24], $class(reg32) $x[0][25], $class(reg32) $x[0][26], $class(reg32) $x[0][27],
            $class(reg32) $x[0][28], $class(reg32) $x[0][29], $class(reg32) $x[0][30], $class(reg32) $x[0][31],
            $class(reg32) $x[0][32], $class(reg32) $x[0][33], $class(reg32) $x[0][34], $class(reg32) $x[0][35],
            $($operands)*)
    };
}
/// The same of two products: the second one's elements come behind.
#[rustfmt::skip]
macro_rules! two_products {
    ($($text:expr),+; $class:ident $x:ident; $($operands:tt)*) => {
        one_product!($($text),+; $class $x;
            $class(reg32) $x[1][0], $class(reg32) $x[1][1], $class(reg32) $x[1][2], $class(reg32) $x[1][3],
            $class(reg32) $x[1][4], $class(reg32) $x[1][5], $class(reg32) $x[1][6], $class(reg32) $x[1][7],
            $class(reg32) $x[1][8], $class(reg32) $x[1][9], $class(reg32) $x[1][10], $class(reg32) $x[1][11],
            $class(reg32) $x[1][12], $class(reg32) $x[1][13], $class(reg32) $x[1][14], $class(reg32) $x[1][15],
            $class(reg32) $x[1][16], $class(reg32) $x[1][17], $class(reg32) $x[1][18], $class(reg32) $x[1][19],
            $class(reg32) $x[1][20], $class(reg32) $x[1][21], $class(reg32) $x[1][22], $class(reg32) $x[1][23],
            $class(reg32) $x[1][24], $class(reg32) $x[1][25], $class(reg32) $x[1][26], $class(reg32) $x[1][27],
            $class(reg32) $x[1][28], $class(reg32) $x[1][29], $class(reg32) $x[1][30], $class(reg32) $x[1][31],
            $class(reg32) $x[1][32], $class(reg32) $x[1][33], $class(reg32) $x[1][34], $class(reg32) $x[1][35],
            $($operands)*)
    };
}

/// One step of the scores: 32 head dims, which begin `$offset` bytes / 16 behind what the descriptors `$k` and `$q` say;
/// rows 64 to 127 of K lie `$rows` bytes / 16 behind.
macro_rules! score_step {
    ($k:literal, $q:literal, $offset:literal, $rows:literal, $add:literal) => {
        concat!(
            "add.s64 a, {",
            $k,
            "}, ",
            $offset,
            "; add.s64 b, {",
            $q,
            "}, ",
            $offset,
            ";",
            "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {{",
            first!(),
            "}}, a, b, ",
            $add,
            ", 1, 1;",
            "add.s64 a, a, ",
            $rows,
            ";",
            "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {{",
            second!(),
            "}}, a, b, ",
            $add,
            ", 1, 1;"
        )
    };
}

/// Scores of 128 keys: the products of keys 0 to 63, then of keys 64 to 127, with the queries. Head dims 0 to 127 are
/// rows of 128 bytes, swizzled (descriptors `k[0]`, `q[0]`), those from 128 to 191 rows of 64 bytes (`k[1]`, `q[1]`).
///
/// # Safety
/// All threads of the warpgroup reach this call with the same descriptors, of shared memory that is known to the
/// asynchronous proxy.
#[inline(always)]
pub(crate) unsafe fn scores_e4m3(k: [u64; 2], q: [u64; 2]) -> Elements {
    let mut x = [[0.0; ELEMENTS]; PRODUCTS];
    // SAFETY: the caller's promise.
    unsafe {
        two_products!(
            "{{ .reg .b64 a, b; .reg .pred begin, add;",
            "setp.ne.b32 begin, 0, 0; setp.eq.b32 add, 0, 0;",
            "wgmma.fence.sync.aligned;",
            score_step!("72", "74", "0", "512", "begin"),
            score_step!("72", "74", "2", "512", "add"),
            score_step!("72", "74", "4", "512", "add"),
            score_step!("72", "74", "6", "512", "add"),
            score_step!("73", "75", "0", "256", "add"),
            score_step!("73", "75", "2", "256", "add"),
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0; }}";
            out x;
            in(reg64) k[0], in(reg64) k[1], in(reg64) q[0], in(reg64) q[1],
            options(nostack)
        );
    }
    x
}

/// One step of the outputs: 32 keys, whose weights begin `$offset` bytes / 16 behind what the descriptor says.
macro_rules! output_step {
    ($offset:literal, $a:literal, $b:literal, $c:literal, $d:literal, $e:literal, $f:literal, $g:literal, $h:literal) => {
        concat!(
            "add.s64 b, {104}, ",
            $offset,
            ";",
            "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {{",
            first!(),
            "}}, {{{",
            $a,
            "}, {",
            $b,
            "}, {",
            $c,
            "}, {",
            $d,
            "}}}, b, add, 1, 1;",
            "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 {{",
            second!(),
            "}}, {{{",
            $e,
            "}, {",
            $f,
            "}, {",
            $g,
            "}, {",
            $h,
            "}}}, b, add, 1, 1;"
        )
    };
}

/// Distance of the weights of one step of the outputs from those of the one before, in bytes.
const STEP: u32 = 2 * Layout::of(Operand::E4m3).weight_block;
const _: () = assert!(STEP / 16 == 146, "as the assembly says");

/// Adds to two products of 64 head dims of V each what 128 keys give. `v[s][p]` is the lane's part of the first operand
/// in step `s` and product `p`. The weights lie in blocks of 16 keys (of all queries), unswizzled.
///
/// # Safety
/// As for [`scores_e4m3`].
#[inline(always)]
#[rustfmt::skip]
pub(crate) unsafe fn add_outputs_e4m3(x: &mut Elements, v: &[[[u32; 4]; 2]; 4], weights: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        two_products!(
            "{{ .reg .b64 b; .reg .pred add; setp.eq.b32 add, 0, 0;",
            "wgmma.fence.sync.aligned;",
            output_step!("0", "72", "73", "74", "75", "76", "77", "78", "79"),
            output_step!("146", "80", "81", "82", "83", "84", "85", "86", "87"),
            output_step!("292", "88", "89", "90", "91", "92", "93", "94", "95"),
            output_step!("438", "96", "97", "98", "99", "100", "101", "102", "103"),
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0; }}";
            inout x;
            in(reg32) v[0][0][0], in(reg32) v[0][0][1], in(reg32) v[0][0][2], in(reg32) v[0][0][3],
            in(reg32) v[0][1][0], in(reg32) v[0][1][1], in(reg32) v[0][1][2], in(reg32) v[0][1][3],
            in(reg32) v[1][0][0], in(reg32) v[1][0][1], in(reg32) v[1][0][2], in(reg32) v[1][0][3],
            in(reg32) v[1][1][0], in(reg32) v[1][1][1], in(reg32) v[1][1][2], in(reg32) v[1][1][3],
            in(reg32) v[2][0][0], in(reg32) v[2][0][1], in(reg32) v[2][0][2], in(reg32) v[2][0][3],
            in(reg32) v[2][1][0], in(reg32) v[2][1][1], in(reg32) v[2][1][2], in(reg32) v[2][1][3],
            in(reg32) v[3][0][0], in(reg32) v[3][0][1], in(reg32) v[3][0][2], in(reg32) v[3][0][3],
            in(reg32) v[3][1][0], in(reg32) v[3][1][1], in(reg32) v[3][1][2], in(reg32) v[3][1][3],
            in(reg64) weights,
            options(nostack)
        );
    }
}

/// Instruction of a product over a type of 16 bits.
macro_rules! instruction {
    ($type:literal) => {
        concat!("wgmma.mma_async.sync.aligned.m64n72k16.f32.", $type, ".", $type, " ")
    };
}

/// One step of the scores of 16-bit types: 16 head dims, which begin `$k` and `$q` bytes / 16 behind what the
/// descriptors say.
macro_rules! score_step_16 {
    ($type:literal, $k:literal, $q:literal, $add:literal) => {
        concat!(
            "add.s64 a, {36}, ",
            $k,
            "; add.s64 b, {37}, ",
            $q,
            ";",
            instruction!($type),
            "{{",
            first!(),
            "}}, a, b, ",
            $add,
            ", 1, 1, 0, 0;"
        )
    };
}

/// One step of the outputs of 16-bit types: 16 keys, whose values begin `$v` and whose weights begin `$p` bytes / 16
/// behind what the descriptors say. Head dims 64 to 127 of V lie 512 * 16 bytes behind the others.
macro_rules! output_step_16 {
    ($type:literal, $v:literal, $p:literal) => {
        concat!(
            "add.s64 a, {72}, ",
            $v,
            "; add.s64 b, {73}, ",
            $p,
            ";",
            instruction!($type),
            "{{",
            first!(),
            "}}, a, b, add, 1, 1, 1, 1;",
            "add.s64 a, a, 512;",
            instruction!($type),
            "{{",
            second!(),
            "}}, a, b, add, 1, 1, 1, 1;"
        )
    };
}

const _: () = {
    let layout = Layout::of(Operand::Bf16);
    let [piece, rows] = [layout.tokens * WIDE, ROWS * WIDE];
    assert!(piece / 16 == 512 && rows / 16 == 576, "as the assembly says");
    assert!(layout.v_part / 16 == 512 && 2 * layout.weight_block / 16 == 144, "as the assembly says");
};

macro_rules! products_of_16_bits {
    ($type:literal, $scores:ident, $add_outputs:ident) => {
        /// Scores of 64 keys: their product with the queries. `k` and `q` are in pieces of 64 head dims, in rows of 128
        /// bytes, swizzled; the pieces follow each other.
        ///
        /// # Safety
        /// As for [`scores_e4m3`].
        #[inline(always)]
        pub(crate) unsafe fn $scores(k: u64, q: u64) -> Elements {
            let mut x = [[0.0; ELEMENTS]; PRODUCTS];
            // SAFETY: the caller's promise.
            unsafe {
                one_product!(
                    "{{ .reg .b64 a, b; .reg .pred begin, add;",
                    "setp.ne.b32 begin, 0, 0; setp.eq.b32 add, 0, 0;",
                    "wgmma.fence.sync.aligned;",
                    score_step_16!($type, "0", "0", "begin"),
                    score_step_16!($type, "2", "2", "add"),
                    score_step_16!($type, "4", "4", "add"),
                    score_step_16!($type, "6", "6", "add"),
                    score_step_16!($type, "512", "576", "add"),
                    score_step_16!($type, "514", "578", "add"),
                    score_step_16!($type, "516", "580", "add"),
                    score_step_16!($type, "518", "582", "add"),
                    score_step_16!($type, "1024", "1152", "add"),
                    score_step_16!($type, "1026", "1154", "add"),
                    score_step_16!($type, "1028", "1156", "add"),
                    score_step_16!($type, "1030", "1158", "add"),
                    "wgmma.commit_group.sync.aligned;",
                    "wgmma.wait_group.sync.aligned 0; }}";
                    out x;
                    in(reg64) k, in(reg64) q, options(nostack)
                );
            }
            x
        }

        /// Adds to two products of 64 head dims of V each what 64 keys give. `v` is in pieces of 64 head dims, a key's in
        /// rows of 128 bytes, swizzled; the weights lie in blocks of 8 keys, rows by eights, unswizzled.
        ///
        /// # Safety
        /// As for [`scores_e4m3`].
        #[inline(always)]
        pub(crate) unsafe fn $add_outputs(x: &mut Elements, v: u64, weights: u64) {
            // SAFETY: the caller's promise.
            unsafe {
                two_products!(
                    "{{ .reg .b64 a, b; .reg .pred add; setp.eq.b32 add, 0, 0;",
                    "wgmma.fence.sync.aligned;",
                    output_step_16!($type, "0", "0"),
                    output_step_16!($type, "128", "144"),
                    output_step_16!($type, "256", "288"),
                    output_step_16!($type, "384", "432"),
                    "wgmma.commit_group.sync.aligned;",
                    "wgmma.wait_group.sync.aligned 0; }}";
                    inout x;
                    in(reg64) v, in(reg64) weights, options(nostack)
                );
            }
        }
    };
}
products_of_16_bits!("bf16", scores_bf16, add_outputs_bf16);
products_of_16_bits!("f16", scores_f16, add_outputs_f16);
