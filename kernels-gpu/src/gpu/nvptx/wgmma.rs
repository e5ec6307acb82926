//! Matrix products of a warpgroup over e4m3 (PTX ISA, "wgmma"), 72 columns wide.
//!
//! A product has 64 rows and 72 columns. Lane `4 g + t` of warp `w` holds 36 floats of it: element `4 j + 2 h + e` is
//! row `16 w + 8 h + g`, column `8 j + 2 t + e`. All functions compute two products of the same second operand, and wait
//! for them: fence, products and wait are one block of assembly, or ptxas would put waits of its own between.

use crate::abi::warpgroups::WEIGHT_BLOCK;
use core::arch::asm;

/// Elements that a lane holds of a product.
pub(crate) const ELEMENTS: usize = 36;

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

/// What products know of an operand at shared address `shared`: distances in bytes of neighbours along the depth
/// (without swizzle; 16 with one) and of groups of eight rows. PTX ISA, "matrix descriptor".
#[inline(always)]
pub(crate) const fn descriptor(shared: u32, depth: u32, rows: u32, swizzle: Swizzle) -> u64 {
    ((shared as u64) >> 4) | ((depth as u64) >> 4 << 16) | ((rows as u64) >> 4 << 32) | ((swizzle as u64) << 62)
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
#[rustfmt::skip]
pub(crate) unsafe fn scores(k: [u64; 2], q: [u64; 2]) -> [f32; 2 * ELEMENTS] {
    let mut x = [0.0; 2 * ELEMENTS];
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
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
            "wgmma.wait_group.sync.aligned 0; }}",
            out(reg32) x[0], out(reg32) x[1], out(reg32) x[2], out(reg32) x[3],
            out(reg32) x[4], out(reg32) x[5], out(reg32) x[6], out(reg32) x[7],
            out(reg32) x[8], out(reg32) x[9], out(reg32) x[10], out(reg32) x[11],
            out(reg32) x[12], out(reg32) x[13], out(reg32) x[14], out(reg32) x[15],
            out(reg32) x[16], out(reg32) x[17], out(reg32) x[18], out(reg32) x[19],
            out(reg32) x[20], out(reg32) x[21], out(reg32) x[22], out(reg32) x[23],
            out(reg32) x[24], out(reg32) x[25], out(reg32) x[26], out(reg32) x[27],
            out(reg32) x[28], out(reg32) x[29], out(reg32) x[30], out(reg32) x[31],
            out(reg32) x[32], out(reg32) x[33], out(reg32) x[34], out(reg32) x[35],
            out(reg32) x[36], out(reg32) x[37], out(reg32) x[38], out(reg32) x[39],
            out(reg32) x[40], out(reg32) x[41], out(reg32) x[42], out(reg32) x[43],
            out(reg32) x[44], out(reg32) x[45], out(reg32) x[46], out(reg32) x[47],
            out(reg32) x[48], out(reg32) x[49], out(reg32) x[50], out(reg32) x[51],
            out(reg32) x[52], out(reg32) x[53], out(reg32) x[54], out(reg32) x[55],
            out(reg32) x[56], out(reg32) x[57], out(reg32) x[58], out(reg32) x[59],
            out(reg32) x[60], out(reg32) x[61], out(reg32) x[62], out(reg32) x[63],
            out(reg32) x[64], out(reg32) x[65], out(reg32) x[66], out(reg32) x[67],
            out(reg32) x[68], out(reg32) x[69], out(reg32) x[70], out(reg32) x[71],
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
const STEP: u32 = 2 * WEIGHT_BLOCK;
const _: () = assert!(STEP / 16 == 146, "as the assembly says");

/// Adds to two products of 64 head dims of V each what 128 keys give. `v[s][p]` is the lane's part of the first operand
/// in step `s` and product `p`. The weights lie in blocks of 16 keys (of all queries), unswizzled.
///
/// # Safety
/// As for [`scores`].
#[inline(always)]
#[rustfmt::skip]
pub(crate) unsafe fn add_outputs(x: &mut [f32; 2 * ELEMENTS], v: &[[[u32; 4]; 2]; 4], weights: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{{ .reg .b64 b; .reg .pred add; setp.eq.b32 add, 0, 0;",
            "wgmma.fence.sync.aligned;",
            output_step!("0", "72", "73", "74", "75", "76", "77", "78", "79"),
            output_step!("146", "80", "81", "82", "83", "84", "85", "86", "87"),
            output_step!("292", "88", "89", "90", "91", "92", "93", "94", "95"),
            output_step!("438", "96", "97", "98", "99", "100", "101", "102", "103"),
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0; }}",
            inout(reg32) x[0], inout(reg32) x[1], inout(reg32) x[2], inout(reg32) x[3],
            inout(reg32) x[4], inout(reg32) x[5], inout(reg32) x[6], inout(reg32) x[7],
            inout(reg32) x[8], inout(reg32) x[9], inout(reg32) x[10], inout(reg32) x[11],
            inout(reg32) x[12], inout(reg32) x[13], inout(reg32) x[14], inout(reg32) x[15],
            inout(reg32) x[16], inout(reg32) x[17], inout(reg32) x[18], inout(reg32) x[19],
            inout(reg32) x[20], inout(reg32) x[21], inout(reg32) x[22], inout(reg32) x[23],
            inout(reg32) x[24], inout(reg32) x[25], inout(reg32) x[26], inout(reg32) x[27],
            inout(reg32) x[28], inout(reg32) x[29], inout(reg32) x[30], inout(reg32) x[31],
            inout(reg32) x[32], inout(reg32) x[33], inout(reg32) x[34], inout(reg32) x[35],
            inout(reg32) x[36], inout(reg32) x[37], inout(reg32) x[38], inout(reg32) x[39],
            inout(reg32) x[40], inout(reg32) x[41], inout(reg32) x[42], inout(reg32) x[43],
            inout(reg32) x[44], inout(reg32) x[45], inout(reg32) x[46], inout(reg32) x[47],
            inout(reg32) x[48], inout(reg32) x[49], inout(reg32) x[50], inout(reg32) x[51],
            inout(reg32) x[52], inout(reg32) x[53], inout(reg32) x[54], inout(reg32) x[55],
            inout(reg32) x[56], inout(reg32) x[57], inout(reg32) x[58], inout(reg32) x[59],
            inout(reg32) x[60], inout(reg32) x[61], inout(reg32) x[62], inout(reg32) x[63],
            inout(reg32) x[64], inout(reg32) x[65], inout(reg32) x[66], inout(reg32) x[67],
            inout(reg32) x[68], inout(reg32) x[69], inout(reg32) x[70], inout(reg32) x[71],
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
