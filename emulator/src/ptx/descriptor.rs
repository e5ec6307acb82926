//! Matrices in shared memory, as the descriptors of matrix instructions say where they lie.
//!
//! A matrix is stored in pieces of 16 bytes, whose elements follow each other along K (K-major) or along M or N
//! (MN-major). Eight neighbouring pieces across that direction make a core matrix. With a swizzle of `w` pieces, a row
//! of `w` pieces lies together, eight rows follow each other, and the pieces are exchanged by the bits of their
//! addresses. Where the next ones lie:
//!
//! | | K-major | MN-major |
//! |---|---|---|
//! | no swizzle | next piece along K: leading; next 8 rows: stride | next piece along MN: stride; next 8 along K: leading |
//! | swizzle | next 8 rows: stride; the leading offset is not used | next `w` pieces along MN: leading; next 8 along K: stride |
//!
//! Sources: the PTX ISA's canonical layouts, and CUTLASS's notes on its descriptors.

use super::float;
use super::matrix::from_f16;
use super::ops::MatrixTy;
use crate::Swizzle;
use crate::memory::Data;
use crate::shared::CHUNK;
use std::sync::LazyLock;

/// Which way the elements of a piece go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Major {
    K,
    Mn,
}

/// A decoded descriptor. Addresses and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
}

/// Whose descriptor it is: they differ in their highest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Wgmma,
    Tcgen05,
}

impl Descriptor {
    /// The error is a rule that is broken, in words.
    pub(super) fn decode(form: Form, bits: u64) -> Result<Self, String> {
        let field = |low: u32, count: u32| (bits >> low & ((1 << count) - 1)) as u32;
        let reserved = match form {
            Form::Wgmma => [(14, 2, 0), (30, 2, 0), (46, 3, 0), (52, 10, 0)],
            Form::Tcgen05 => [(14, 2, 0), (30, 2, 0), (46, 3, 1), (52, 9, 0)],
        };
        for (low, count, value) in reserved {
            if field(low, count) != value {
                let last = low + count - 1;
                return Err(format!("bits {low} to {last} of descriptor {bits:#018x} must hold {value}"));
            }
        }
        if field(49, 3) != 0 {
            return Err(format!("descriptor {bits:#018x} has a base offset, which is not supported"));
        }
        let swizzle = match (form, field(61, 3)) {
            (_, 0) => Swizzle::None,
            (Form::Wgmma, 0b010) | (Form::Tcgen05, 2) => Swizzle::Span128,
            (Form::Wgmma, 0b100) | (Form::Tcgen05, 4) => Swizzle::Span64,
            (Form::Wgmma, 0b110) | (Form::Tcgen05, 6) => Swizzle::Span32,
            (_, mode) => {
                return Err(format!("descriptor {bits:#018x} has swizzle mode {mode}, which is not supported"));
            }
        };
        let [start, leading, stride] = [0, 16, 32].map(|low| field(low, 14) * CHUNK);
        Ok(Self { start, leading, stride, swizzle })
    }

    /// The address of a piece: `mn` and `k` count pieces along the direction of the elements, elements across.
    fn piece(&self, major: Major, mn: u32, k: u32) -> u32 {
        let width = (self.swizzle.bytes() / CHUNK).max(1);
        let plain = self.swizzle == Swizzle::None;
        let offset = match major {
            Major::K if plain => mn % 8 * CHUNK + mn / 8 * self.stride + k * self.leading,
            Major::K => mn % 8 * width * CHUNK + mn / 8 * self.stride + k * CHUNK,
            Major::Mn if plain => k % 8 * CHUNK + k / 8 * self.leading + mn * self.stride,
            Major::Mn => mn % width * CHUNK + mn / width * self.leading + k % 8 * width * CHUNK + k / 8 * self.stride,
        };
        self.swizzle.apply(self.start.wrapping_add(offset))
    }

    /// The pieces of `count` rows (of A; columns of B) from `first` on, `k` elements each.
    pub(super) fn matrix(&self, major: Major, ty: MatrixTy, first: u32, count: u32, k: u32) -> Matrix {
        let per_piece = CHUNK / ty.bytes();
        let pieces = match major {
            Major::K => (first..first + count)
                .flat_map(|mn| (0..k / per_piece).map(move |piece| (mn, piece)))
                .map(|(mn, piece)| self.piece(major, mn, piece))
                .collect(),
            Major::Mn => (0..k)
                .flat_map(|k| (first / per_piece..(first + count) / per_piece).map(move |piece| (piece, k)))
                .map(|(piece, k)| self.piece(major, piece, k))
                .collect(),
        };
        Matrix { ty, major, count, k, pieces }
    }
}

/// A matrix in shared memory: `count` rows or columns of `k` elements.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    ty: MatrixTy,
    major: Major,
    count: u32,
    k: u32,
    /// Addresses, along the direction of the elements first.
    pub(super) pieces: Vec<u32>,
}

/// Elements as f32, and which rows or columns hold undefined ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Elements {
    /// `values[mn * k_count + k]`.
    pub(super) values: Vec<f32>,
    pub(super) undefined: Vec<bool>,
}

impl Matrix {
    /// Reads the elements; `negate`: changes their signs.
    pub(super) fn elements(&self, negate: bool, read: impl Fn(u32) -> Data) -> Elements {
        let (count, k) = (self.count as usize, self.k as usize);
        let mut elements = Elements { values: vec![0.0; count * k], undefined: vec![false; count] };
        let per_piece = (CHUNK / self.ty.bytes()) as usize;
        let per_row = match self.major {
            Major::K => k / per_piece,
            Major::Mn => count / per_piece,
        };
        for (i, &address) in self.pieces.iter().enumerate() {
            let (row, first) = (i / per_row, i % per_row * per_piece);
            let data = read(address);
            let mut values = [0.0; CHUNK as usize];
            unpack(self.ty, &data.words, &mut values);
            for (e, &value) in values[..per_piece].iter().enumerate() {
                let (mn, k_at) = match self.major {
                    Major::K => (row, first + e),
                    Major::Mn => (first + e, row),
                };
                elements.values[mn * k + k_at] = if negate { -value } else { value };
                let word = e * self.ty.bytes() as usize / 4;
                elements.undefined[mn] |= data.undefined >> word & 1 != 0;
            }
        }
        elements
    }
}

/// All values of the 8-bit types.
static BYTES: LazyLock<[[f32; 256]; 2]> = LazyLock::new(|| {
    [MatrixTy::E4m3, MatrixTy::E5m2].map(|ty| std::array::from_fn(|bits| float::from_fp8(ty, bits as u8)))
});

/// The elements of words, as f32.
pub(super) fn unpack(ty: MatrixTy, words: &[u32], values: &mut [f32]) {
    let bytes = &BYTES[usize::from(ty == MatrixTy::E5m2)];
    let per_word = 4 / ty.bytes() as usize;
    for (word, values) in words.iter().zip(values.chunks_exact_mut(per_word)) {
        for (e, value) in values.iter_mut().enumerate() {
            *value = match ty {
                MatrixTy::Bf16 => f32::from_bits(word >> (16 * e) << 16),
                MatrixTy::F16 => from_f16(word >> (16 * e) & 0xffff),
                MatrixTy::E4m3 | MatrixTy::E5m2 => bytes[usize::from((word >> (8 * e)) as u8)],
            };
        }
    }
}

/// `d += a * b`: `d` has a row for each of A's, and a column for each of B's. Products are exact; each is added in
/// order of K with one rounding to f32. The hardware sums several products at a time, less exactly and in an order
/// that is not documented: for 8-bit elements with about 14 bits on sm_90.
pub(super) fn multiply(a: &Elements, b: &Elements, k: usize, d: &mut [f32]) {
    let columns = b.undefined.len();
    // Columns next to each other, so that they are computed together.
    let mut across = vec![0.0; b.values.len()];
    for (n, column) in b.values.chunks_exact(k).enumerate() {
        column.iter().enumerate().for_each(|(i, &value)| across[i * columns + n] = value);
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has just been asked for both features.
        return unsafe { multiply_avx2(&a.values, &across, k, columns, d) };
    }
    multiply_anywhere(&a.values, &across, k, columns, d);
}

/// The same code with 8 columns an instruction, and fused multiply-adds in hardware.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_avx2(a: &[f32], b: &[f32], k: usize, columns: usize, d: &mut [f32]) {
    multiply_anywhere(a, b, k, columns, d);
}

#[inline(always)]
fn multiply_anywhere(a: &[f32], b: &[f32], k: usize, columns: usize, d: &mut [f32]) {
    for (row, d) in a.chunks_exact(k).zip(d.chunks_exact_mut(columns)) {
        let mut at = 0;
        while at + 32 <= columns {
            multiply_columns::<32>(row, b, columns, at, d);
            at += 32;
        }
        // There are a multiple of 8.
        while at + 8 <= columns {
            multiply_columns::<8>(row, b, columns, at, d);
            at += 8;
        }
    }
}

/// `N` columns of a row, from `at` on, which stay in registers over all of K.
#[inline(always)]
fn multiply_columns<const N: usize>(row: &[f32], b: &[f32], columns: usize, at: usize, d: &mut [f32]) {
    let Some(d) = d[at..].first_chunk_mut::<N>() else { return };
    let mut sums = *d;
    for (i, &x) in row.iter().enumerate() {
        if let Some(b) = b[i * columns + at..].first_chunk::<N>() {
            for n in 0..N {
                sums[n] = x.mul_add(b[n], sums[n]);
            }
        }
    }
    *d = sums;
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn bits(start: u64, leading: u64, stride: u64) -> u64 {
        start >> 4 | leading >> 4 << 16 | stride >> 4 << 32
    }

    #[test]
    fn descriptors() {
        let decoded = Descriptor::decode(Form::Wgmma, bits(0x1400, 16, 1024) | 1 << 62).unwrap();
        assert_eq!(decoded, Descriptor { start: 0x1400, leading: 16, stride: 1024, swizzle: Swizzle::Span128 });
        let decoded = Descriptor::decode(Form::Tcgen05, bits(0x400, 0, 512) | 1 << 46 | 4 << 61).unwrap();
        assert_eq!(decoded, Descriptor { start: 0x400, leading: 0, stride: 512, swizzle: Swizzle::Span64 });
        for bit in [14, 15, 30, 31, 46, 47, 48, 52, 57, 61] {
            assert!(Descriptor::decode(Form::Wgmma, bits(0, 0, 0) ^ 1 << bit).is_err(), "{bit}");
        }
        for bit in [14, 15, 30, 31, 46, 47, 48, 52, 57, 60, 61] {
            assert!(Descriptor::decode(Form::Tcgen05, bits(0, 0, 0) | 1 << 46 ^ 1 << bit).is_err(), "{bit}");
        }
    }

    #[test]
    fn places_of_pieces() {
        let of = |swizzle, leading, stride| Descriptor { start: 0, leading, stride, swizzle };
        assert_eq!(of(Swizzle::None, 2048, 128).piece(Major::K, 11, 1), 2048 + 128 + 3 * 16);
        assert_eq!(of(Swizzle::None, 256, 2048).piece(Major::Mn, 3, 9), 3 * 2048 + 256 + 16);
        // Row 11 of eight pieces; the row within its eight is exchanged into the piece.
        assert_eq!(of(Swizzle::Span128, 0, 1024).piece(Major::K, 11, 1), 1024 + 3 * 128 + (1 ^ 3) * 16);
        assert_eq!(of(Swizzle::Span64, 0, 512).piece(Major::K, 3, 2), 3 * 64 + (2 ^ 1) * 16);
        assert_eq!(of(Swizzle::Span32, 0, 256).piece(Major::K, 5, 1), 5 * 32);
        assert_eq!(of(Swizzle::Span128, 8192, 1024).piece(Major::Mn, 9, 10), 8192 + 1024 + 2 * 128 + (1 ^ 2) * 16);
    }

    #[test]
    fn products() {
        let elements = |count: usize, k: usize, f: fn(usize, usize) -> f32| Elements {
            values: (0..count * k).map(|i| f(i / k, i % k)).collect(),
            undefined: vec![false; count],
        };
        let a = elements(3, 4, |m, k| (m + 2 * k) as f32);
        let b = elements(40, 4, |n, k| (5 * n) as f32 - k as f32);
        let mut d = vec![1.0; 120];
        multiply(&a, &b, 4, &mut d);
        for (i, d) in d.into_iter().enumerate() {
            let (m, n) = (i / 40, i % 40);
            let sum: f32 = (0..4).map(|k| (m + 2 * k) as f32 * ((5 * n) as f32 - k as f32)).sum();
            assert_eq!(d, 1.0 + sum);
        }
    }
}
