//! The 8-bit float of the kernels on the host, and a quantiser for it.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::{Error, Result};

/// An 8-bit float: sign, 4 exponent bits with bias 7, 3 mantissa bits. It has subnormals, two NaNs (all bits but the
/// sign set) and no infinities; the largest value is 448. "OCP 8-bit Floating Point Specification", E4M3; elsewhere
/// called e4m3fn. The fnuz formats of gfx942 are others.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct E4m3(u8);

impl E4m3 {
    /// The largest value: 448.
    pub const MAX: Self = Self(0x7e);
    /// The NaN that conversions give.
    pub const NAN: Self = Self(0x7f);

    const MANTISSA_BITS: u32 = 3;
    const BIAS: u32 = 7;
    const MAX_F32: f32 = 448.0;
    /// The smallest value with a full mantissa, and the distance of those below.
    const MIN_NORMAL: f32 = 1.0 / 64.0;
    const SUBNORMALS: f32 = 512.0;

    /// The value with these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The value's bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// The nearest value, ties to even. What is beyond ±448, infinities too, becomes ±448 (it saturates), whatever it
    /// would be rounded to; NaN becomes [`E4m3::NAN`]. The sign of zero stays.
    pub fn from_f32(x: f32) -> Self {
        if x.is_nan() {
            return Self::NAN;
        }
        let (sign, magnitude) = (if x.is_sign_negative() { 0x80 } else { 0 }, x.abs());
        let bits = if magnitude >= Self::MAX_F32 {
            Self::MAX.0
        } else if magnitude < Self::MIN_NORMAL {
            // At most 8, which is the smallest normal value.
            (magnitude * Self::SUBNORMALS).round_ties_even() as u8
        } else {
            let dropped = f32::MANTISSA_DIGITS - 1 - Self::MANTISSA_BITS;
            let bits = magnitude.to_bits();
            let rounded = (bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1)) >> dropped;
            (rounded - ((127 - Self::BIAS) << Self::MANTISSA_BITS)) as u8
        };
        Self(sign | bits)
    }

    /// The value, exactly.
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (u32::from(self.0) >> Self::MANTISSA_BITS & 0xf, u32::from(self.0) & 0x7);
        let magnitude = match (exponent, mantissa) {
            (0xf, 0x7) => f32::NAN,
            (0, _) => mantissa as f32 / Self::SUBNORMALS,
            _ => {
                let dropped = f32::MANTISSA_DIGITS - 1 - Self::MANTISSA_BITS;
                f32::from_bits((exponent + 127 - Self::BIAS) << (f32::MANTISSA_DIGITS - 1) | mantissa << dropped)
            }
        };
        if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// Quantises a tensor with one factor ([`Descale::PerTensor`](crate::Descale::PerTensor)).
    ///
    /// The factor is the largest finite magnitude over 448, so that it becomes 448; 1 where all values are 0 or not
    /// finite; and never below the smallest normal f32. Each element is [`E4m3::from_f32`] of the value over the factor:
    /// infinities saturate, NaN stays NaN.
    pub fn quantize(values: &[f32]) -> Quantized {
        let descale = descale(values.iter());
        let elements = values.iter().map(|&x| Self::from_f32(x / descale)).collect();
        Quantized { elements, descales: vec![descale] }
    }

    /// Quantises a tensor `shape` = `[batch, tokens, heads, dim]` without gaps with one factor for each sequence and KV
    /// head ([`Descale::PerHead`](crate::Descale::PerHead)), `[batch, kv_heads]`; each as [`E4m3::quantize`] has it.
    /// Of Q, the `heads / kv_heads` heads that read a KV head share its factor.
    ///
    /// # Errors
    /// [`Error::Argument`] where `values` are not as many as the shape has, or `heads` is no multiple of `kv_heads`.
    pub fn quantize_heads(values: &[f32], shape: [usize; 4], kv_heads: usize) -> Result<Quantized> {
        let [batch, tokens, heads, dim] = shape;
        if shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size)) != Some(values.len()) {
            let allowed = format!("as many as the shape {shape:?} has");
            return Err(Error::argument("values", format_args!("{} values", values.len()), allowed));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let allowed = format!("a divisor of the shape's heads ({heads})");
            return Err(Error::argument("kv_heads", kv_heads, allowed));
        }
        // The heads of a KV head lie side by side at each position.
        let run = heads / kv_heads * dim;
        let mut quantized = Quantized { elements: vec![Self(0); values.len()], descales: Vec::new() };
        for (sequence, kv_head) in (0..batch).flat_map(|b| (0..kv_heads).map(move |h| (b, h))) {
            let runs = (0..tokens).map(|token| ((sequence * tokens + token) * kv_heads + kv_head) * run);
            let descale = descale(runs.clone().flat_map(|start| &values[start..start + run]));
            for index in runs.flat_map(|start| start..start + run) {
                quantized.elements[index] = Self::from_f32(values[index] / descale);
            }
            quantized.descales.push(descale);
        }
        Ok(quantized)
    }
}

impl From<E4m3> for f32 {
    fn from(x: E4m3) -> Self {
        x.to_f32()
    }
}

impl fmt::Display for E4m3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f32().fmt(f)
    }
}

impl fmt::Debug for E4m3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f32().fmt(f)
    }
}

/// A quantised tensor: element `i` stands for `elements[i]` times its factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// The elements, in the order of the values.
    pub elements: Vec<E4m3>,
    /// The factors, to be given as `q_descale`, `k_descale` or `v_descale`.
    pub descales: Vec<f32>,
}

/// The factor with which the largest finite one of `values` becomes 448.
fn descale<'a>(values: impl Iterator<Item = &'a f32>) -> f32 {
    let largest = values.filter(|x| x.is_finite()).fold(0.0, |largest: f32, x| largest.max(x.abs()));
    // Subnormal factors would be flushed to zero by GPUs.
    if largest == 0.0 { 1.0 } else { (largest / E4m3::MAX_F32).max(f32::MIN_POSITIVE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of the format's definition.
    fn defined(bits: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f64::from(bits & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2f64.powi(-6),
            15 if bits & 7 == 7 => f64::NAN,
            _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        };
        if bits & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn all_codes_are_the_values_of_the_definition_and_come_back() {
        for bits in 0..=u8::MAX {
            let (x, want) = (E4m3::from_bits(bits), defined(bits));
            if want.is_nan() {
                assert!(x.to_f32().is_nan(), "{bits:#x}");
                assert_eq!(E4m3::from_f32(x.to_f32()), E4m3::NAN);
            } else {
                assert_eq!(f64::from(x.to_f32()), want, "{bits:#x}");
                assert_eq!(x.to_f32().is_sign_negative(), bits & 0x80 != 0, "{bits:#x}");
                assert_eq!(E4m3::from_f32(x.to_f32()), x, "{bits:#x}");
            }
        }
        assert_eq!(E4m3::MAX.to_f32(), 448.0);
    }

    /// Between each two neighbours: the middle goes to the even one, its neighbours in f32 to the nearer one.
    #[test]
    fn ties_go_to_even() {
        for bits in 0..E4m3::MAX.0 {
            let (low, high) = (E4m3(bits), E4m3(bits + 1));
            let middle = (low.to_f32() + high.to_f32()) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            for (x, want) in [(middle, even), (middle.next_down(), low), (middle.next_up(), high)] {
                assert_eq!(E4m3::from_f32(x), want, "{x:e}");
                assert_eq!(E4m3::from_f32(-x), E4m3(want.0 | 0x80), "{:e}", -x);
            }
        }
    }

    #[test]
    fn beyond_the_largest_value_it_saturates() {
        for x in [448.0, 449.0, 463.9, 464.0, 465.0, 480.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!((E4m3::from_f32(x).0, E4m3::from_f32(-x).0), (0x7e, 0xfe), "{x}");
        }
        for nan in [f32::NAN, -f32::NAN] {
            assert_eq!(E4m3::from_f32(nan).0, 0x7f);
        }
        assert_eq!((E4m3::from_f32(0.0).0, E4m3::from_f32(-0.0).0), (0, 0x80));
        assert_eq!((E4m3::from_f32(1e-30).0, E4m3::from_f32(-1e-30).0), (0, 0x80));
    }

    #[test]
    fn a_tensor_is_quantised_by_its_largest_value() {
        let values = [0.5, -2.0, f32::INFINITY, f32::NAN, 0.0];
        let Quantized { elements, descales } = E4m3::quantize(&values);
        assert_eq!(descales, [2.0 / 448.0]);
        let values: Vec<f32> = elements.iter().map(|x| x.to_f32()).collect();
        assert_eq!(values[..3], [112.0, -448.0, 448.0]);
        assert!(values[3].is_nan() && values[4] == 0.0);
        assert_eq!(E4m3::quantize(&[0.0, f32::NAN]).descales, [1.0]);
        assert_eq!(E4m3::quantize(&[1e-44]).descales, [f32::MIN_POSITIVE]);
        assert_eq!(E4m3::quantize(&[f32::MAX]).elements, [E4m3::MAX]);
    }

    #[test]
    fn heads_are_quantised_by_their_own_largest_value() {
        // [batch 2, tokens 2, heads 4, dim 1]; two heads share a KV head.
        let values = [1.0, 2.0, 3.0, 4.0, 8.0, 7.0, 6.0, 5.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.5, 16.0];
        let Quantized { elements, descales } = E4m3::quantize_heads(&values, [2, 2, 4, 1], 2).unwrap();
        assert_eq!(descales, [8.0, 6.0, 0.0, 16.0].map(|x| if x == 0.0 { 1.0 } else { x / 448.0 }));
        assert_eq!(elements[4], E4m3::MAX);
        assert_eq!(elements[6], E4m3::MAX);
        assert_eq!(elements[15], E4m3::MAX);
        assert_eq!(elements[0].to_f32(), 56.0);
        assert_eq!(elements[10].to_f32(), 28.0);

        let refused = |error: Error| error.to_string();
        assert_eq!(
            refused(E4m3::quantize_heads(&values, [2, 2, 4, 2], 2).unwrap_err()),
            "values: given 16 values; allowed: as many as the shape [2, 2, 4, 2] has"
        );
        assert_eq!(
            refused(E4m3::quantize_heads(&values, [2, 2, 4, 1], 3).unwrap_err()),
            "kv_heads: given 3; allowed: a divisor of the shape's heads (4)"
        );
    }
}
