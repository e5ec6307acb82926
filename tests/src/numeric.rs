//! Number formats, as exact f64 values.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// A number format of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32; output only.
    F32,
}

impl Format {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The largest relative error of rounding to nearest a value in the normal range.
    pub fn roundoff(self) -> f64 {
        match self {
            Self::Bf16 => 2f64.powi(-8),
            Self::F16 => 2f64.powi(-11),
            Self::F32 => 2f64.powi(-24),
        }
    }

    /// The largest absolute error of rounding to nearest a value below the normal range: half the least
    /// subnormal.
    pub fn underflow(self) -> f64 {
        match self {
            Self::Bf16 => 2f64.powi(-134),
            Self::F16 => 2f64.powi(-25),
            Self::F32 => 2f64.powi(-150),
        }
    }

    /// The nearest value of the format, ties to even.
    pub fn round(self, x: f64) -> f64 {
        match self {
            Self::Bf16 => bf16::from_f64(x).to_f64(),
            Self::F16 => f16::from_f64(x).to_f64(),
            Self::F32 => f64::from(x as f32),
        }
    }

    /// Writes the nearest value into `bytes`, those of one element in little-endian order.
    ///
    /// # Panics
    /// If they are not as many as [`Format::size`].
    pub fn encode(self, x: f32, bytes: &mut [u8]) {
        match self {
            Self::Bf16 => bytes.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
            Self::F16 => bytes.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            Self::F32 => bytes.copy_from_slice(&x.to_le_bytes()),
        }
    }

    /// The value of little-endian elements.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Self::Bf16 => halves(bytes).map(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))).collect(),
            Self::F16 => halves(bytes).map(|bits| f16::from_bits(bits).to_f64()).collect(),
            Self::F32 => {
                let (words, rest) = bytes.as_chunks::<4>();
                assert!(rest.is_empty(), "{} bytes are no whole number of f32", bytes.len());
                words.iter().map(|word| f64::from(f32::from_le_bytes(*word))).collect()
            }
        }
    }
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty(), "{} bytes are no whole number of 16-bit elements", bytes.len());
    pairs.iter().map(|pair| u16::from_le_bytes(*pair))
}
