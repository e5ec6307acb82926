//! Matrix instructions of one wave, and the loads that transpose for them.

use core::mem::transmute;

#[derive(Clone, Copy)]
#[repr(simd)]
struct I16x4([i16; 4]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct I16x8([i16; 8]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct F16x8([f16; 8]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct I32x2([i32; 2]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct I32x8([i32; 8]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct F32x4([f32; 4]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct F32x16([f32; 16]);

#[allow(improper_ctypes, reason = "intrinsics take LLVM's vectors, which is what repr(simd) is")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.amdgcn.mfma.f32.16x16x32.bf16"]
    fn mfma_bf16(a: I16x8, b: I16x8, c: F32x4, cbsz: u32, abid: u32, blgp: u32) -> F32x4;
    #[link_name = "llvm.amdgcn.mfma.f32.16x16x32.f16"]
    fn mfma_f16(a: F16x8, b: F16x8, c: F32x4, cbsz: u32, abid: u32, blgp: u32) -> F32x4;
    #[link_name = "llvm.amdgcn.mfma.scale.f32.32x32x64.f8f6f4.v8i32.v8i32"]
    fn mfma_scale_f8f6f4(
        a: I32x8,
        b: I32x8,
        c: F32x16,
        a_format: u32,
        b_format: u32,
        a_scale_byte: u32,
        a_scale: u32,
        b_scale_byte: u32,
        b_scale: u32,
    ) -> F32x16;
    #[link_name = "llvm.amdgcn.ds.read.tr16.b64.v4i16"]
    fn ds_read_tr16(shared: u32) -> I16x4;
    #[link_name = "llvm.amdgcn.ds.read.tr8.b64.v2i32"]
    fn ds_read_tr8(shared: u32) -> I32x2;
}

macro_rules! multiply_add {
    ($name:ident, $mfma:ident, $vector:ident) => {
        /// `c += a * b` for a 16x32, b 32x16, c 16x16 fp32. Lane `l` holds row `l % 16` of a and column
        /// `l % 16` of b, both at depths `8 * (l / 16)` and the seven after; of c it holds column `l % 16`, rows
        /// `4 * (l / 16)` and the three after. CDNA4 ISA, "V_MFMA_F32_16X16X32_BF16", "..._F16".
        ///
        /// # Safety
        /// Every lane of the wave reaches this call.
        #[inline(always)]
        pub(crate) unsafe fn $name(c: &mut [f32; 4], a: [u32; 4], b: [u32; 4]) {
            // SAFETY: the caller's promise; the vectors have the arrays' sizes, and all bits are values.
            unsafe {
                *c = transmute::<F32x4, [f32; 4]>($mfma(
                    transmute::<[u32; 4], $vector>(a),
                    transmute::<[u32; 4], $vector>(b),
                    F32x4(*c),
                    0,
                    0,
                    0,
                ));
            }
        }
    };
}
multiply_add!(multiply_add_bf16, mfma_bf16, I16x8);
multiply_add!(multiply_add_f16, mfma_f16, F16x8);

/// `c += a * b` for a 32x64, b 64x32 of e4m3, c 32x32 fp32. Lane `l` holds 32 bytes of row `l % 32` of a and of column
/// `l % 32` of b, at the same depths; of c it holds column `l % 32`, rows `8 * r + 4 * (l / 32)` and the three after in
/// `c[r]`. CDNA4 ISA, "V_MFMA_SCALE_F32_32X32X64_F8F6F4".
///
/// # Safety
/// Every lane of the wave reaches this call.
#[inline(always)]
pub(crate) unsafe fn multiply_add_e4m3(c: &mut [[f32; 4]; 4], a: [[u32; 4]; 2], b: [[u32; 4]; 2]) {
    /// The format of an operand that is e4m3.
    const E4M3: u32 = 0;
    /// A scale of 2^0, for each 32 depths.
    const UNIT: u32 = 127;
    // SAFETY: the caller's promise; the vectors have the arrays' sizes, and all bits are values.
    unsafe {
        *c = transmute::<F32x16, [[f32; 4]; 4]>(mfma_scale_f8f6f4(
            transmute::<[[u32; 4]; 2], I32x8>(a),
            transmute::<[[u32; 4]; 2], I32x8>(b),
            transmute::<[[f32; 4]; 4], F32x16>(*c),
            E4M3,
            E4M3,
            0,
            UNIT,
            0,
            UNIT,
        ));
    }
}

/// Loads a 4x16 matrix of 16-bit elements for each 16 lanes and transposes it: lane `l` of them gives the
/// address of row `l / 4`, columns `4 * (l % 4)` and the three after, and gets column `l`.
/// CDNA4 ISA, "DS_READ_B64_TR_B16".
///
/// # Safety
/// Every lane of the wave reaches this call; `shared` is the address of 8 shared bytes, aligned to 8. LLVM
/// does not know what is read: the bytes are written before and after only beyond a wait of [`super::copy`].
#[inline(always)]
pub(crate) unsafe fn load_transposed_16(shared: u32) -> [u32; 2] {
    // SAFETY: the caller's promise; the vector has the array's size.
    unsafe { transmute::<I16x4, [u32; 2]>(ds_read_tr16(shared)) }
}

/// Loads an 8x16 matrix of bytes for each 16 lanes and transposes it: lane `l` of them gives the address of row
/// `l / 2`, columns `8 * (l % 2)` and the seven after, and gets column `l`. CDNA4 ISA, "DS_READ_B64_TR_B8".
///
/// # Safety
/// As for [`load_transposed_16`].
#[inline(always)]
pub(crate) unsafe fn load_transposed_8(shared: u32) -> [u32; 2] {
    // SAFETY: the caller's promise; the vector has the array's size.
    unsafe { transmute::<I32x2, [u32; 2]>(ds_read_tr8(shared)) }
}
