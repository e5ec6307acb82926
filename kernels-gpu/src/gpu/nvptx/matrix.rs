//! Matrix instructions of one warp, and the loads that feed them.

use super::math;
use core::arch::asm;

/// Element type of a matrix operand.
pub(crate) trait Element {
    /// Two values rounded to this type, `low` in the low half.
    fn pack(low: f32, high: f32) -> u32;

    /// `c += a * b` for a 16x16 (row), b 16x8 (column), c 16x8 fp32. PTX ISA, "mma.m16n8k16".
    ///
    /// # Safety
    /// Every lane of the warp reaches this call.
    unsafe fn multiply_add(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2]);
}

macro_rules! element {
    ($name:ident, $ty:literal, $pack:ident) => {
        pub(crate) struct $name;

        impl Element for $name {
            #[inline(always)]
            fn pack(low: f32, high: f32) -> u32 {
                math::$pack(low, high)
            }

            #[inline(always)]
            unsafe fn multiply_add(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2]) {
                let [mut c0, mut c1, mut c2, mut c3] = *c;
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        concat!("mma.sync.aligned.m16n8k16.row.col.f32.", $ty, ".", $ty, ".f32 ",
                            "{{{0},{1},{2},{3}}}, {{{4},{5},{6},{7}}}, {{{8},{9}}}, {{{0},{1},{2},{3}}};"),
                        inout(reg32) c0, inout(reg32) c1, inout(reg32) c2, inout(reg32) c3,
                        in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                        in(reg32) b[0], in(reg32) b[1],
                        options(nostack, nomem)
                    );
                }
                *c = [c0, c1, c2, c3];
            }
        }
    };
}
element!(Bf16, "bf16", pack_bf16);
element!(F16, "f16", pack_f16);

/// Loads four 8x8 matrices of 16-bit elements; lane `l` gives the address of row `l % 8` of matrix `l / 8`.
/// PTX ISA, "ldmatrix".
///
/// # Safety
/// Every lane of the warp reaches this call; `shared` is the address of 16 shared bytes, aligned to 16.
#[inline(always)]
pub(crate) unsafe fn load_matrix_x4(shared: u32) -> [u32; 4] {
    let (r0, r1, r2, r3): (u32, u32, u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{0},{1},{2},{3}}}, [{4}];",
            out(reg32) r0, out(reg32) r1, out(reg32) r2, out(reg32) r3, in(reg32) shared,
            options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}

/// As [`load_matrix_x4`], each matrix transposed.
///
/// # Safety
/// As for [`load_matrix_x4`].
#[inline(always)]
pub(crate) unsafe fn load_matrix_x4_transposed(shared: u32) -> [u32; 4] {
    let (r0, r1, r2, r3): (u32, u32, u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{0},{1},{2},{3}}}, [{4}];",
            out(reg32) r0, out(reg32) r1, out(reg32) r2, out(reg32) r3, in(reg32) shared,
            options(nostack, readonly));
    }
    [r0, r1, r2, r3]
}
