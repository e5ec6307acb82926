//! Arithmetic of one lane: the special function unit, and conversions.

use core::arch::asm;

/// 2 to the power of `x`; 0 for minus infinity. PTX ISA, "ex2": relative error 2^-22.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe { asm!("ex2.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(nostack, pure, nomem)) }
    y
}

/// Logarithm to base 2; exact at 1. PTX ISA, "lg2": absolute error 2^-22 around 1.
#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe { asm!("lg2.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(nostack, pure, nomem)) }
    y
}

/// 1 / x. PTX ISA, "rcp": 1 ulp.
#[inline(always)]
pub(crate) fn reciprocal(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe { asm!("rcp.approx.ftz.f32 {0}, {1};", out(reg32) y, in(reg32) x, options(nostack, pure, nomem)) }
    y
}

/// The same value, of which the compiler knows nothing: what is computed from it is computed here.
#[inline(always)]
pub(crate) fn opaque(x: u32) -> u32 {
    let y: u32;
    // SAFETY: arithmetic on registers.
    unsafe { asm!("mov.u32 {0}, {1};", out(reg32) y, in(reg32) x, options(nostack, nomem)) }
    y
}

/// At the start of a loop's body: ptxas leaves the loop as it is. PTX ISA, "nounroll".
#[cfg(splitkv_target = "sm_90a")]
#[inline(always)]
pub(crate) fn roll() {
    // SAFETY: no instruction.
    unsafe { asm!(".pragma \"nounroll\";", options(nostack, nomem)) }
}

/// As [`opaque`], of an address.
#[cfg(splitkv_target = "sm_100f")]
#[inline(always)]
pub(crate) fn opaque_address(x: *mut u8) -> *mut u8 {
    let y: usize;
    // SAFETY: arithmetic on registers.
    unsafe { asm!("mov.u64 {0}, {1};", out(reg64) y, in(reg64) x.expose_provenance(), options(nostack, nomem)) }
    core::ptr::with_exposed_provenance_mut(y)
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

/// Two values rounded to bfloat16, `low` in the low half.
#[inline(always)]
pub(crate) fn pack_bf16(low: f32, high: f32) -> u32 {
    let packed: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {0}, {1}, {2};",
            out(reg32) packed, in(reg32) high, in(reg32) low, options(nostack, pure, nomem));
    }
    packed
}

/// Two values rounded to binary16, `low` in the low half.
#[inline(always)]
pub(crate) fn pack_f16(low: f32, high: f32) -> u32 {
    let packed: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {0}, {1}, {2};",
            out(reg32) packed, in(reg32) high, in(reg32) low, options(nostack, pure, nomem));
    }
    packed
}

/// Four values rounded to e4m3, the first in the lowest byte. Beyond 448 it is 448; NaN stays NaN.
/// PTX ISA, "cvt.rn.satfinite.e4m3x2.f32".
#[inline(always)]
pub(crate) fn pack_e4m3(x: [f32; 4]) -> u32 {
    let packed: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("{{ .reg .b16 low, high;",
            "cvt.rn.satfinite.e4m3x2.f32 low, {2}, {1};",
            "cvt.rn.satfinite.e4m3x2.f32 high, {4}, {3};",
            "mov.b32 {0}, {{low, high}}; }}",
            out(reg32) packed, in(reg32) x[0], in(reg32) x[1], in(reg32) x[2], in(reg32) x[3],
            options(nostack, pure, nomem));
    }
    packed
}

/// Four bytes of eight: the digits of `selector`, from the lowest on, number them from those of `low`.
/// PTX ISA, "prmt".
#[inline(always)]
pub(crate) fn permute(low: u32, high: u32, selector: u32) -> u32 {
    let permuted: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("prmt.b32 {0}, {1}, {2}, {3};",
            out(reg32) permuted, in(reg32) low, in(reg32) high, in(reg32) selector, options(nostack, pure, nomem));
    }
    permuted
}
