//! Floating-point formats and the operations that differ from the host's.

use half::{bf16, f16};

/// An fp32 with denormals replaced by zero of the same sign.
pub(super) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// A small float format without infinity (e4m3, e3m2, e2m3, e2m1) or with (e5m2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Small {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// What the largest exponent means.
    top: Top,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Top {
    /// Numbers, and NaN where all mantissa bits are set (OCP e4m3).
    Nan,
    /// Infinity and NaN (e5m2).
    Ieee,
    /// Numbers only.
    Numbers,
}

/// OCP e4m3 ("fp8").
pub(super) const E4M3: Small = Small { exponent_bits: 4, mantissa_bits: 3, top: Top::Nan };
/// OCP e5m2 ("bf8").
pub(super) const E5M2: Small = Small { exponent_bits: 5, mantissa_bits: 2, top: Top::Ieee };
/// OCP e2m3 ("fp6").
pub(super) const E2M3: Small = Small { exponent_bits: 2, mantissa_bits: 3, top: Top::Numbers };
/// OCP e3m2 ("bf6").
pub(super) const E3M2: Small = Small { exponent_bits: 3, mantissa_bits: 2, top: Top::Numbers };
/// OCP e2m1 ("fp4").
pub(super) const E2M1: Small = Small { exponent_bits: 2, mantissa_bits: 1, top: Top::Numbers };

impl Small {
    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The value of an encoding.
    pub(super) fn decode(self, bits: u32) -> f32 {
        let (m, e) = (self.mantissa_bits, self.exponent_bits);
        let mantissa = bits & ((1 << m) - 1);
        let exponent = bits >> m & ((1 << e) - 1);
        let sign = if bits >> (m + e) & 1 == 1 { -1.0 } else { 1.0 };
        if exponent == (1 << e) - 1 {
            match self.top {
                Top::Ieee if mantissa == 0 => return sign * f32::INFINITY,
                Top::Ieee => return f32::NAN,
                Top::Nan if mantissa == (1 << m) - 1 => return f32::NAN,
                _ => {}
            }
        }
        let (significand, power) = if exponent == 0 { (mantissa, 1) } else { (mantissa | 1 << m, exponent as i32) };
        sign * significand as f32 * exp2(power - self.bias() - m as i32)
    }

    /// Rounds to nearest even. Beyond the largest number: infinity or, without infinity, NaN (FP16_OVFL = 0).
    pub(super) fn encode(self, value: f32) -> u32 {
        let (m, e) = (self.mantissa_bits, self.exponent_bits);
        let sign = u32::from(value.is_sign_negative()) << (m + e);
        let all = (1 << (m + e)) - 1;
        let (overflow, nan) = match self.top {
            Top::Nan => (all, all),
            Top::Ieee => (((1 << e) - 1) << m, all),
            Top::Numbers => (all, all),
        };
        if value.is_nan() {
            return sign | nan;
        }
        let magnitude = value.abs();
        if magnitude.is_infinite() {
            return sign | overflow;
        }
        // The spacing of the format's numbers around the value; fp32 represents the quotient exactly.
        let exponent = if magnitude == 0.0 { i32::MIN / 2 } else { magnitude.log2_floor() };
        let exponent = exponent.max(1 - self.bias());
        let steps = (magnitude as f64 / f64::from(exp2(exponent - m as i32))).round_ties_even() as u32;
        // A normal number has `1 << m` steps or more below its exponent.
        let code = ((exponent + self.bias() - 1) as u32) * (1 << m) + steps;
        let largest = match self.top {
            Top::Nan => all - 1,
            Top::Ieee => overflow - 1,
            Top::Numbers => all,
        };
        sign | if code > largest { overflow } else { code }
    }
}

trait Log2Floor {
    fn log2_floor(self) -> i32;
}

impl Log2Floor for f32 {
    /// Exponent of the highest bit of a positive finite number.
    fn log2_floor(self) -> i32 {
        let bits = self.to_bits();
        match bits >> 23 {
            0 => 31 - bits.leading_zeros() as i32 - 149,
            exponent => exponent as i32 - 127,
        }
    }
}

/// Two to a power that fp32 represents as a normal number.
pub(super) fn exp2(power: i32) -> f32 {
    f32::from_bits(((power + 127) as u32) << 23)
}

/// fp32 to binary16, towards zero.
pub(super) fn f16_toward_zero(x: f32) -> u16 {
    let nearest = f16::from_f32(x);
    if x.is_nan() || f32::from(nearest).abs() <= x.abs() {
        return nearest.to_bits();
    }
    // Rounded away: the neighbour towards zero is one less in magnitude, and infinity's is the largest number.
    nearest.to_bits() - 1
}

/// The value of a bf16.
pub(super) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to bf16, to nearest even.
pub(super) fn bf16_bits(x: f32) -> u16 {
    bf16::from_f32(x).to_bits()
}

/// The value of a binary16.
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// Rounds to binary16, to nearest even.
pub(super) fn f16_bits(x: f32) -> u16 {
    f16::from_f32(x).to_bits()
}

/// `minNum`: a number before NaN, -0 below +0.
pub(super) fn min(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// `maxNum`: a number before NaN, +0 above -0.
pub(super) fn max(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a > b || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

/// The middle of three; with a NaN among them, the smallest number.
pub(super) fn med3(a: f32, b: f32, c: f32) -> f32 {
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return min(min(a, b), c);
    }
    max(min(a, b), min(max(a, b), c))
}

/// The smallest, NaN if any is NaN.
pub(super) fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { min(a, b) }
}

/// The largest, NaN if any is NaN.
pub(super) fn maximum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { max(a, b) }
}

/// `x * 2^power`, rounded once.
pub(super) fn ldexp(x: f32, power: i32) -> f32 {
    // Exact in double precision, whose exponent range is far wider than what can matter.
    (f64::from(x) * f64::powi(2.0, power.clamp(-400, 400))) as f32
}

/// Fused multiply-add.
#[inline]
pub(super) fn fma(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact in f64. The sum is rounded to odd there, so that rounding it to f32 rounds once.
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    let bits = sum.to_bits();
    // Even and inexact: one step towards the exact value makes it odd. (The error of an infinite sum is NaN.)
    let inexact = error.abs() > 0.0;
    let step = if (error > 0.0) == (sum > 0.0) { 1 } else { u64::MAX };
    let adjusted = if inexact && bits & 1 == 0 { bits.wrapping_add(step) } else { bits };
    f64::from_bits(adjusted) as f32
}

/// Bits of `v_cmp_class`: which class of numbers `x` is in. `bits` is its encoding with `mantissa` mantissa bits.
pub(super) fn class(bits: u32, exponent_bits: u32, mantissa_bits: u32) -> u32 {
    let mantissa = bits & ((1 << mantissa_bits) - 1);
    let exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    let negative = bits >> (mantissa_bits + exponent_bits) & 1 == 1;
    let top = (1 << exponent_bits) - 1;
    let quiet = mantissa >> (mantissa_bits - 1) == 1;
    let (positive_bit, negative_bit) = match (exponent, mantissa) {
        (e, 0) if e == top => (9, 2),
        (e, _) if e == top => return if quiet { 2 } else { 1 },
        (0, 0) => (6, 5),
        (0, _) => (7, 4),
        _ => (8, 3),
    };
    1 << if negative { negative_bit } else { positive_bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_number_survives() {
        for (format, bits) in [(E4M3, 8), (E5M2, 8), (E2M3, 6), (E3M2, 6), (E2M1, 4)] {
            for code in 0..1u32 << bits {
                let value = format.decode(code);
                if !value.is_nan() {
                    assert_eq!(format.encode(value), code, "{format:?} {code:#x} {value}");
                }
            }
        }
    }

    #[test]
    fn e4m3_rounds_to_even_and_overflows_to_nan() {
        assert_eq!(E4M3.decode(0x7e), 448.0);
        assert_eq!(E4M3.encode(464.0), 0x7e, "halfway, even below");
        assert_eq!(E4M3.encode(465.0), 0x7f);
        assert_eq!(E4M3.encode(17.0), E4M3.encode(16.0));
        assert_eq!(E4M3.encode(19.0), E4M3.encode(20.0));
        assert_eq!(E4M3.encode(exp2(-10)), 0);
        assert_eq!(E4M3.encode(exp2(-10) * 1.5), 1);
        assert_eq!(E5M2.encode(1e9), 0x7c);
        assert_eq!(E2M1.encode(-100.0), 0xf);
    }

    #[test]
    fn fma_rounds_once() {
        let values =
            [1.0f32, -1.0, 1.5, 3.3, -7.7e-5, 1e-30, 1e30, 0.1, f32::MIN_POSITIVE, 1e-44, 0.0, -0.0, 1.0000001];
        for a in values {
            for b in values {
                for c in values {
                    let (ours, exact) = (fma(a, b, c), a.mul_add(b, c));
                    assert_eq!(ours.to_bits(), exact.to_bits(), "{a} {b} {c}");
                }
            }
        }
        assert!(fma(f32::INFINITY, 0.0, 1.0).is_nan());
        assert_eq!(fma(f32::INFINITY, 1.0, 1.0), f32::INFINITY);
        assert_eq!(fma(3e38, 3e38, f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(fma(f32::NEG_INFINITY, 3.0, 1.0), f32::NEG_INFINITY);
    }

    #[test]
    fn toward_zero() {
        assert_eq!(f16_toward_zero(65535.0), 0x7bff);
        assert_eq!(f16_toward_zero(-1.0009), 0xbc00);
        assert_eq!(f16_toward_zero(1.0), 0x3c00);
        assert_eq!(f16_toward_zero(f32::INFINITY), 0x7c00);
    }
}
