//! Float arithmetic as NVIDIA GPUs do it, on bits.

use super::ops::{FloatMode, FloatOp, FloatUnary, MatrixTy, Round};
use half::{bf16, f16};

/// The only NaN that f32 arithmetic yields.
const NAN: u32 = 0x7fff_ffff;
/// The only NaN that f64 arithmetic yields.
const NAN64: u64 = 0x7fff_ffff_ffff_ffff;
/// The only NaN that conversions to 16 bits yield.
const NAN16: u16 = 0x7fff;

/// Subnormals become zero, signs stay.
#[inline(always)]
pub(super) fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

#[inline(always)]
fn canonical(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

#[inline(always)]
fn canonical64(value: f64) -> u64 {
    if value.is_nan() { NAN64 } else { value.to_bits() }
}

#[inline(always)]
fn load(mode: FloatMode, bits: u32) -> f32 {
    f32::from_bits(if mode.ftz { flush(bits) } else { bits })
}

#[inline(always)]
fn finish(mode: FloatMode, value: f32) -> u32 {
    let bits = canonical(value);
    let bits = if mode.ftz { flush(bits) } else { bits };
    if mode.sat { saturate(bits) } else { bits }
}

/// Clamps to 0..1; NaN becomes 0.
#[inline(always)]
fn saturate(bits: u32) -> u32 {
    let value = f32::from_bits(bits);
    if value >= 1.0 {
        1f32.to_bits()
    } else if value > 0.0 {
        bits
    } else {
        0
    }
}

/// `high + low` (exact, `low` much the smaller) rounded to f32 in a direction.
fn directed(high: f64, low: f64, round: Round) -> f32 {
    let nearest = high as f32;
    if !nearest.is_finite() || !high.is_finite() {
        // Overflow of a finite sum stops at the largest finite value when rounding away from it.
        let stops = high.is_finite()
            && match round {
                Round::Zero => true,
                Round::Down => high > 0.0,
                Round::Up => high < 0.0,
                Round::Nearest => false,
            };
        return if stops { f32::MAX.copysign(high as f32) } else { nearest };
    }
    let error = (high - f64::from(nearest)) + low;
    let toward = match round {
        Round::Nearest => return nearest,
        Round::Zero => {
            if nearest > 0.0 || nearest == 0.0 && high > 0.0 {
                -1.0
            } else {
                1.0
            }
        }
        Round::Down => -1.0,
        Round::Up => 1.0,
    };
    if toward < 0.0 && error < 0.0 {
        nearest.next_down()
    } else if toward > 0.0 && error > 0.0 {
        nearest.next_up()
    } else {
        nearest
    }
}

/// `a + b` exactly, as a rounded sum and its error.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// `a op b` in f32.
#[inline(always)]
pub(super) fn binary(op: FloatOp, mode: FloatMode, a: u32, b: u32) -> u32 {
    let (x, y) = (load(mode, a), load(mode, b));
    if mode.round != Round::Nearest {
        return directed_binary(op, mode, x, y);
    }
    match op {
        FloatOp::Add => finish(mode, x + y),
        FloatOp::Sub => finish(mode, x - y),
        FloatOp::Mul => finish(mode, x * y),
        FloatOp::Div => finish(mode, x / y),
        FloatOp::Min => finish(mode, min(x, y)),
        FloatOp::Max => finish(mode, max(x, y)),
        FloatOp::MinNan => finish(mode, if x.is_nan() | y.is_nan() { f32::NAN } else { min(x, y) }),
        FloatOp::MaxNan => finish(mode, if x.is_nan() | y.is_nan() { f32::NAN } else { max(x, y) }),
    }
}

#[cold]
fn directed_binary(op: FloatOp, mode: FloatMode, x: f32, y: f32) -> u32 {
    let (a, b) = (f64::from(x), f64::from(y));
    let (high, low) = match op {
        FloatOp::Add => two_sum(a, b),
        FloatOp::Sub => two_sum(a, -b),
        FloatOp::Mul => (a * b, 0.0),
        _ => unreachable!("the decoder allows directed rounding for sums and products only"),
    };
    finish(mode, directed(high, low, mode.round))
}

/// The smaller one; the other one if one is NaN; -0 is smaller than 0.
#[inline(always)]
fn min(x: f32, y: f32) -> f32 {
    if x < y || y.is_nan() || x == y && x.is_sign_negative() { x } else { y }
}

/// The larger one; the other one if one is NaN; 0 is larger than -0.
#[inline(always)]
fn max(x: f32, y: f32) -> f32 {
    if x > y || y.is_nan() || x == y && x.is_sign_positive() { x } else { y }
}

/// `a * b + c` with one rounding.
#[inline(always)]
pub(super) fn fma(mode: FloatMode, a: u32, b: u32, c: u32) -> u32 {
    let (x, y, z) = (load(mode, a), load(mode, b), load(mode, c));
    if mode.round != Round::Nearest {
        let (high, low) = two_sum(f64::from(x) * f64::from(y), f64::from(z));
        return finish(mode, directed(high, low, mode.round));
    }
    finish(mode, x.mul_add(y, z))
}

/// `a op b` in f64.
pub(super) fn binary64(op: FloatOp, a: u64, b: u64) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    canonical64(match op {
        FloatOp::Add => x + y,
        FloatOp::Sub => x - y,
        FloatOp::Mul => x * y,
        FloatOp::Div => x / y,
        FloatOp::Min | FloatOp::MinNan if x.is_nan() || y.is_nan() => {
            if op == FloatOp::MinNan || x.is_nan() && y.is_nan() {
                f64::NAN
            } else if x.is_nan() {
                y
            } else {
                x
            }
        }
        FloatOp::Max | FloatOp::MaxNan if x.is_nan() || y.is_nan() => {
            if op == FloatOp::MaxNan || x.is_nan() && y.is_nan() {
                f64::NAN
            } else if x.is_nan() {
                y
            } else {
                x
            }
        }
        FloatOp::Min | FloatOp::MinNan => {
            if x < y || x == y && x.is_sign_negative() {
                x
            } else {
                y
            }
        }
        FloatOp::Max | FloatOp::MaxNan => {
            if x > y || x == y && x.is_sign_positive() {
                x
            } else {
                y
            }
        }
    })
}

/// `a * b + c` in f64.
pub(super) fn fma64(a: u64, b: u64, c: u64) -> u64 {
    canonical64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)))
}

/// A function of one f32. The approximate ones are computed in f64 and rounded once: within the error that
/// the hardware's are allowed (2 ulp for ex2 and lg2), but not its bits.
#[inline(always)]
pub(super) fn unary(op: FloatUnary, mode: FloatMode, a: u32) -> u32 {
    let x = load(mode, a);
    let wide = f64::from(x);
    match op {
        FloatUnary::Neg => finish(mode, -x),
        FloatUnary::Abs => finish(mode, x.abs()),
        FloatUnary::Sqrt => finish(mode, x.sqrt()),
        FloatUnary::Rcp => finish(mode, 1.0 / x),
        FloatUnary::Rsqrt => finish(mode, (1.0 / wide.sqrt()) as f32),
        FloatUnary::Ex2 => finish(mode, wide.exp2() as f32),
        FloatUnary::Lg2 => finish(mode, wide.log2() as f32),
        FloatUnary::Sin => finish(mode, wide.sin() as f32),
        FloatUnary::Cos => finish(mode, wide.cos() as f32),
        FloatUnary::Tanh => finish(mode, wide.tanh() as f32),
    }
}

/// A function of one f64.
pub(super) fn unary64(op: FloatUnary, a: u64) -> u64 {
    let x = f64::from_bits(a);
    match op {
        FloatUnary::Neg => a ^ 1 << 63,
        FloatUnary::Abs => a & !(1 << 63),
        FloatUnary::Sqrt => canonical64(x.sqrt()),
        FloatUnary::Rcp => canonical64(1.0 / x),
        _ => unreachable!("the decoder allows no other function of f64"),
    }
}

/// f32 to bf16. NaN becomes the one NaN.
#[inline(always)]
pub(super) fn to_bf16(round: Round, value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return NAN16;
    }
    let up = match round {
        Round::Nearest => (bits >> 16 & 1) + 0x7fff,
        Round::Zero => 0,
        Round::Up => {
            if value.is_sign_positive() {
                0xffff
            } else {
                0
            }
        }
        Round::Down => {
            if value.is_sign_positive() {
                0
            } else {
                0xffff
            }
        }
    };
    ((bits + if value.is_infinite() { 0 } else { up }) >> 16) as u16
}

/// f32 to f16. NaN becomes the one NaN.
#[inline(always)]
pub(super) fn to_f16(round: Round, value: f32) -> u16 {
    if value.is_nan() {
        return NAN16;
    }
    let nearest = f16::from_f32_const(value);
    let error = f64::from(value) - f64::from(nearest);
    let bits = nearest.to_bits();
    let toward_zero = match round {
        Round::Nearest => return bits,
        Round::Zero => true,
        Round::Down => value.is_sign_positive(),
        Round::Up => value.is_sign_negative(),
    };
    let too_large = if value.is_sign_positive() { error < 0.0 } else { error > 0.0 };
    let too_small = if value.is_sign_positive() { error > 0.0 } else { error < 0.0 };
    if toward_zero && too_large {
        bits - 1
    } else if !toward_zero && too_small {
        bits + 1
    } else {
        bits
    }
}

/// Two f32 to a pair of 16-bit floats, the first in the high half.
#[inline(always)]
pub(super) fn pack(to_bf: bool, mode: FloatMode, relu: bool, a: u32, b: u32) -> u32 {
    let half = |bits: u32| {
        let value = load(mode, bits);
        let value = if relu && value <= 0.0 { 0.0 } else { value };
        u32::from(if to_bf { to_bf16(mode.round, value) } else { to_f16(mode.round, value) })
    };
    half(a) << 16 | half(b)
}

/// Value of an 8-bit float (e4m3: no infinities, e5m2: as f16's high byte).
pub(super) fn from_fp8(ty: MatrixTy, bits: u8) -> f32 {
    let bits32 = u32::from(bits);
    if ty == MatrixTy::E5m2 {
        return f32::from(f16::from_bits((bits32 << 8) as u16));
    }
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (bits32 >> 3 & 15, bits32 & 7);
    match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => sign * m as f32 / 512.0,
        (e, m) => sign * (8 + m) as f32 * f32::from_bits((e + 127 - 7 - 3) << 23),
    }
}

/// f32 to an 8-bit float, to the nearest, beyond the range the largest finite value.
pub(super) fn to_fp8(ty: MatrixTy, value: f32) -> u8 {
    let (mantissa_bits, bias, largest) = if ty == MatrixTy::E4m3 { (3, 7, 0x7e) } else { (2, 15, 0x7b) };
    if value.is_nan() {
        return 0x7f;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs();
    let least = 1 - bias;
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(least);
    // In units of the last place this is an integer and a fraction, exactly.
    let scaled = f64::from(magnitude) * f64::from(mantissa_bits - exponent).exp2();
    let rounded = scaled.round_ties_even() as u32;
    // A carry out of the mantissa moves on to the next exponent by itself.
    let code = (((exponent - least) as u32) << mantissa_bits).saturating_add(rounded);
    sign | code.min(largest) as u8
}

/// Any 16-bit float to f32.
pub(super) fn from_16(is_bf: bool, bits: u16) -> f32 {
    if is_bf { f32::from(bf16::from_bits(bits)) } else { f32::from(f16::from_bits(bits)) }
}

/// Rounds to an integral value.
pub(super) fn integral(round: Round, value: f64) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

/// f64 to f32 bits.
pub(super) fn narrow(mode: FloatMode, value: f64) -> u32 {
    finish(mode, directed(value, 0.0, mode.round))
}

/// An f64 that came from f64 arithmetic, to bits.
pub(super) fn bits64(value: f64) -> u64 {
    canonical64(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: FloatMode = FloatMode { round: Round::Nearest, ftz: false, sat: false };

    fn mode(round: Round) -> FloatMode {
        FloatMode { round, ..MODE }
    }

    #[test]
    fn nan_and_signed_zero() {
        let one = 1f32.to_bits();
        let nan = f32::NAN.to_bits();
        assert_eq!(binary(FloatOp::Add, MODE, one, nan), NAN);
        assert_eq!(binary(FloatOp::Max, MODE, one, nan), one);
        assert_eq!(binary(FloatOp::Max, MODE, nan, one), one);
        assert_eq!(binary(FloatOp::Min, MODE, nan, nan), NAN);
        assert_eq!(binary(FloatOp::MaxNan, MODE, nan, one), NAN);
        let (zero, minus) = (0, 0x8000_0000);
        for (a, b) in [(zero, minus), (minus, zero)] {
            assert_eq!(binary(FloatOp::Max, MODE, a, b), zero);
            assert_eq!(binary(FloatOp::Min, MODE, a, b), minus);
        }
        assert_eq!(unary(FloatUnary::Ex2, FloatMode { ftz: true, ..MODE }, f32::NEG_INFINITY.to_bits()), 0);
        assert_eq!(unary(FloatUnary::Ex2, FloatMode { ftz: true, ..MODE }, (-127f32).to_bits()), 0);
        assert_eq!(unary(FloatUnary::Lg2, MODE, 0), f32::NEG_INFINITY.to_bits());
        assert_eq!(binary(FloatOp::Add, FloatMode { ftz: true, ..MODE }, 1, 0), 0);
    }

    #[test]
    fn directed_rounding_brackets_the_exact_sum() {
        let (a, b) = (1f32.to_bits(), 1e-10f32.to_bits());
        let add = |round| f32::from_bits(binary(FloatOp::Add, mode(round), a, b));
        assert_eq!((add(Round::Down), add(Round::Zero), add(Round::Up)), (1.0, 1.0, 1f32.next_up()));
        let sub = |round| f32::from_bits(binary(FloatOp::Sub, mode(round), a, b));
        assert_eq!((sub(Round::Down), sub(Round::Zero), sub(Round::Up)), (1f32.next_down(), 1f32.next_down(), 1.0));
        let third = |round| f32::from_bits(fma(mode(round), (1f32 / 3.0).to_bits(), 3f32.to_bits(), 0));
        assert!(third(Round::Down) <= 1.0 && third(Round::Up) >= 1.0);
        let big = f32::MAX.to_bits();
        assert_eq!(binary(FloatOp::Add, mode(Round::Zero), big, big), big);
        assert_eq!(binary(FloatOp::Add, mode(Round::Up), big, big), f32::INFINITY.to_bits());
    }

    #[test]
    fn sixteen_bit_conversions() {
        assert_eq!(to_bf16(Round::Nearest, f32::from_bits(0x3f80_8000)), 0x3f80, "tie to even");
        assert_eq!(to_bf16(Round::Nearest, f32::from_bits(0x3f81_8000)), 0x3f82, "tie to even");
        assert_eq!(to_bf16(Round::Zero, f32::from_bits(0x3f80_ffff)), 0x3f80);
        assert_eq!(to_bf16(Round::Nearest, f32::NAN), 0x7fff);
        assert_eq!(to_bf16(Round::Nearest, f32::NEG_INFINITY), 0xff80);
        assert_eq!(to_f16(Round::Nearest, 65520.0), 0x7c00);
        assert_eq!(to_f16(Round::Zero, 65520.0), 0x7bff);
        assert_eq!(to_f16(Round::Nearest, 1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(to_f16(Round::Up, 1.0 + 1.0 / 2048.0), 0x3c01);
        assert_eq!(to_f16(Round::Nearest, f32::NAN), 0x7fff);
        assert_eq!(pack(true, MODE, false, 2f32.to_bits(), 1f32.to_bits()), 0x4000_3f80);
    }

    #[test]
    fn eight_bit_floats_round_trip_and_saturate() {
        for ty in [MatrixTy::E4m3, MatrixTy::E5m2] {
            for bits in 0..=255u8 {
                let value = from_fp8(ty, bits);
                if value.is_finite() {
                    assert_eq!(to_fp8(ty, value), bits, "{ty:?} {bits:#x}");
                }
            }
        }
        assert_eq!(from_fp8(MatrixTy::E4m3, 0x7e), 448.0);
        assert_eq!(to_fp8(MatrixTy::E4m3, 1e9), 0x7e);
        assert_eq!(to_fp8(MatrixTy::E4m3, f32::NEG_INFINITY), 0xfe);
        assert_eq!(to_fp8(MatrixTy::E5m2, 1e9), 0x7b);
        assert_eq!(to_fp8(MatrixTy::E4m3, 17.0), to_fp8(MatrixTy::E4m3, 16.0), "tie to even");
        assert_eq!(to_fp8(MatrixTy::E4m3, f32::NAN), 0x7f);
    }
}
