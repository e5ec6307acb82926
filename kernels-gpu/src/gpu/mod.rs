//! The vocabulary that the algorithm is written in. Each vendor's folder supplies the same names:
//!
//! - `thread`, `warp`, `shared`: who runs, what a warp does together, the block's memory. Names follow
//!   `cuda_std`.
//! - `math`: the approximate instructions, and conversions.
//! - `tile`: matrix products of one warp. A [`tile::Fragment`] is four fp32 values that a lane holds of a
//!   matrix of query rows by columns (KV tokens, or output dims); `tile::row`, `tile::slot` and
//!   `tile::column` say which ones. A lane holds parts of `tile::ROWS` rows, `tile::RUN` columns in a row.
//! - `query`: the query rows as operands.
//! - `ring`: a ring of KV chunks, of a warp or of the block: start copies, wait for the oldest, compute with it.

#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
pub(crate) use nvptx::{VENDOR, math, query, ring, shared, thread, tile, warp};

#[cfg(target_arch = "amdgpu")]
mod amdgcn;
#[cfg(target_arch = "amdgpu")]
pub(crate) use amdgcn::{VENDOR, math, query, ring, shared, thread, tile, warp};

/// Where a chunk of consecutive KV tokens lies in global memory.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    /// First token's K row.
    pub(crate) k: *const u8,
    /// First token's V row.
    pub(crate) v: *const u8,
    /// Bytes between K rows.
    pub(crate) k_stride: u64,
    /// Bytes between V rows.
    pub(crate) v_stride: u64,
    /// Bytes of a K row; the ring's rows may be longer, and are filled up with zeros.
    pub(crate) k_bytes: u32,
    /// Bytes of a V row, likewise.
    pub(crate) v_bytes: u32,
    /// Tokens that exist, at least 1; the ring's chunk size at most. Rows beyond are never read.
    pub(crate) tokens: u32,
}

/// Where the rows of a block's query tiles lie in global memory.
pub(crate) trait QuerySource {
    /// The row's first element, aligned to 16 bytes, or `None` for a row of zeros.
    fn row(&self, row: u32) -> Option<*const u8>;
    /// Head dims that a row has; those beyond are zeros. A multiple of 8.
    fn dims(&self) -> u32;
}

/// Floats that are loaded and stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Float4(pub(crate) [f32; 4]);

/// As [`Float4`].
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Float2(pub(crate) [f32; 2]);

/// Quotient and remainder by a value that the host checked not to be zero, without the panic that plain
/// operators bring.
///
/// # Safety
/// `divisor` is not 0.
#[inline(always)]
pub(crate) unsafe fn divide(value: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: the caller's promise.
    unsafe { core::hint::assert_unchecked(divisor != 0) };
    (value / divisor, value % divisor)
}

/// The value of an IEEE binary16 number.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u32) -> f32 {
    let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
    // The exponents' biases differ by 112; subnormal numbers come out right as well.
    let magnitude = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    // Infinity and NaN keep their mantissa.
    let magnitude = if rest >= 0x7c00 { 0x7f80_0000 | rest << 13 } else { magnitude.to_bits() };
    f32::from_bits(sign | magnitude)
}
