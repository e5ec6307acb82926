//! Matrix instructions of one warp, and the loads that feed them.

use core::arch::asm;

macro_rules! multiply_add {
    ($name:ident, $shape:literal, $ty:literal) => {
        /// `c += a * b` for a (row), b (column), and c in fp32. PTX ISA, "mma".
        ///
        /// # Safety
        /// Every lane of the warp reaches this call.
        #[inline(always)]
        pub(crate) unsafe fn $name(c: &mut [f32; 4], a: &[u32; 4], b: [u32; 2]) {
            let [mut c0, mut c1, mut c2, mut c3] = *c;
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    concat!("mma.sync.aligned.", $shape, ".row.col.f32.", $ty, ".", $ty, ".f32 ",
                        "{{{0},{1},{2},{3}}}, {{{4},{5},{6},{7}}}, {{{8},{9}}}, {{{0},{1},{2},{3}}};"),
                    inout(reg32) c0, inout(reg32) c1, inout(reg32) c2, inout(reg32) c3,
                    in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                    in(reg32) b[0], in(reg32) b[1],
                    options(nostack, nomem)
                );
            }
            *c = [c0, c1, c2, c3];
        }
    };
}
multiply_add!(multiply_add_bf16, "m16n8k16", "bf16");
multiply_add!(multiply_add_f16, "m16n8k16", "f16");
// FP8 arithmetic only from sm_89 on in name: on sm_90 and sm_100 ptxas makes conversions and f16 products of it.
multiply_add!(multiply_add_e4m3, "m16n8k32", "e4m3");

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
