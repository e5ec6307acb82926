//! Arithmetic of one lane: transcendental instructions, and conversions.

use core::arch::amdgpu;

unsafe extern "unadjusted" {
    #[link_name = "llvm.amdgcn.exp2.f32"]
    safe fn v_exp_f32(x: f32) -> f32;
    #[link_name = "llvm.amdgcn.log.f32"]
    safe fn v_log_f32(x: f32) -> f32;
    #[link_name = "llvm.amdgcn.fmed3.f32"]
    safe fn v_med3_f32(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.amdgcn.cvt.pk.fp8.f32"]
    safe fn v_cvt_pk_fp8_f32(a: f32, b: f32, old: u32, high: bool) -> u32;
    #[link_name = "llvm.amdgcn.rcp.f32"]
    safe fn v_rcp_f32(x: f32) -> f32;
}

#[derive(Clone, Copy)]
#[repr(simd)]
struct F32x2([f32; 2]);

#[derive(Clone, Copy)]
#[repr(simd)]
struct F16x2([f16; 2]);

/// 2 to the power of `x`; 0 for minus infinity. CDNA4 ISA, "V_EXP_F32": 1 ULP, denormals are flushed.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    v_exp_f32(x)
}

/// Logarithm to base 2; exact at 1. CDNA4 ISA, "V_LOG_F32": 1 ULP, denormals are flushed.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    v_log_f32(x)
}

/// 1 / x. CDNA4 ISA, "V_RCP_F32": 1 ULP.
#[inline(always)]
pub(crate) fn reciprocal(x: f32) -> f32 {
    v_rcp_f32(x)
}

/// The larger value; the other one if one is NaN.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    a.max(b)
}

/// `a * b + c`, rounded once.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    core::intrinsics::fmaf32(a, b, c)
}

/// Two values rounded to bfloat16 (to nearest even), `low` in the low half.
///
/// gfx950 has V_CVT_PK_BF16_F32, but rustc has no type from which LLVM would select it.
#[inline(always)]
pub(crate) fn pack_bf16(low: f32, high: f32) -> u32 {
    let round = |x: f32| {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        // A NaN's payload must not carry over into the exponent or vanish: make it quiet instead.
        if x.is_nan() { bits | 0x0040_0000 } else { rounded }
    };
    // SAFETY: arithmetic on registers. Bytes 2 and 3 of the second operand, then those of the first.
    unsafe { amdgpu::perm(round(high), round(low), 0x0706_0302) }
}

/// Two values rounded to binary16 (to nearest even), `low` in the low half.
#[inline(always)]
pub(crate) fn pack_f16(low: f32, high: f32) -> u32 {
    // SAFETY: both are vectors of two floats; F16x2 has u32's size.
    unsafe {
        let halves: F16x2 = core::intrinsics::simd::simd_cast(F32x2([low, high]));
        core::mem::transmute(halves)
    }
}

/// The same value. What NVIDIA's kernels hide from the compiler with it, one may know here: rings have two stages.
#[inline(always)]
pub(crate) fn opaque(x: u32) -> u32 {
    x
}

/// Four values rounded to e4m3 (to nearest even), the first in the lowest byte. Beyond 448 it is 448. NaN becomes a
/// number: a weight that is NaN makes its row's sum NaN, and with it the output. CDNA4 ISA, "V_CVT_PK_FP8_F32".
#[inline(always)]
pub(crate) fn pack_e4m3(x: [f32; 4]) -> u32 {
    /// The largest value; the instruction makes NaN of larger ones.
    const MAX: f32 = 448.0;
    let clamp = |x| v_med3_f32(x, -MAX, MAX);
    let low = v_cvt_pk_fp8_f32(clamp(x[0]), clamp(x[1]), 0, false);
    v_cvt_pk_fp8_f32(clamp(x[2]), clamp(x[3]), low, true)
}
