//! Matrix instructions of one wave, and the load that transposes for them.

use super::math;
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
struct F32x4([f32; 4]);

#[allow(improper_ctypes, reason = "intrinsics take LLVM's vectors, which is what repr(simd) is")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.amdgcn.mfma.f32.16x16x32.bf16"]
    fn mfma_bf16(a: I16x8, b: I16x8, c: F32x4, cbsz: u32, abid: u32, blgp: u32) -> F32x4;
    #[link_name = "llvm.amdgcn.mfma.f32.16x16x32.f16"]
    fn mfma_f16(a: F16x8, b: F16x8, c: F32x4, cbsz: u32, abid: u32, blgp: u32) -> F32x4;
    #[link_name = "llvm.amdgcn.ds.read.tr16.b64.v4i16"]
    fn ds_read_tr16(shared: u32) -> I16x4;
}

/// Element type of a matrix operand.
pub(crate) trait Element {
    /// Two values rounded to this type, `low` in the low half.
    fn pack(low: f32, high: f32) -> u32;

    /// `c += a * b` for a 16x32, b 32x16, c 16x16 fp32. Lane `l` holds row `l % 16` of a and column
    /// `l % 16` of b, both at depths `8 * (l / 16)` and the seven after; of c it holds column `l % 16`, rows
    /// `4 * (l / 16)` and the three after. CDNA4 ISA, "V_MFMA_F32_16X16X32_BF16", "..._F16".
    ///
    /// # Safety
    /// Every lane of the wave reaches this call.
    unsafe fn multiply_add(c: &mut [f32; 4], a: [u32; 4], b: [u32; 4]);
}

macro_rules! element {
    ($name:ident, $vector:ident, $mfma:ident, $pack:ident) => {
        pub(crate) struct $name;

        impl Element for $name {
            #[inline(always)]
            fn pack(low: f32, high: f32) -> u32 {
                math::$pack(low, high)
            }

            #[inline(always)]
            unsafe fn multiply_add(c: &mut [f32; 4], a: [u32; 4], b: [u32; 4]) {
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
        }
    };
}
element!(Bf16, I16x8, mfma_bf16, pack_bf16);
element!(F16, F16x8, mfma_f16, pack_f16);

/// Loads a 4x16 matrix of 16-bit elements for each 16 lanes and transposes it: lane `l` of them gives the
/// address of row `l / 4`, columns `4 * (l % 4)` and the three after, and gets column `l`.
/// CDNA4 ISA, "DS_READ_B64_TR_B16".
///
/// # Safety
/// Every lane of the wave reaches this call; `shared` is the address of 8 shared bytes, aligned to 8. LLVM
/// does not know what is read: the bytes are written before and after only beyond a wait of [`super::copy`].
#[inline(always)]
pub(crate) unsafe fn load_matrix_transposed(shared: u32) -> [u32; 2] {
    // SAFETY: the caller's promise; the vector has the array's size.
    unsafe { transmute::<I16x4, [u32; 2]>(ds_read_tr16(shared)) }
}
