//! The vocabulary that the algorithm is written in. Each vendor's folder supplies the same names:
//!
//! - `thread`, `warp`, `shared`: who runs, what a warp does together, the block's memory. Names follow
//!   `cuda_std`.
//! - `math`: the approximate instructions, and conversions.
//! - `tile`: matrix products of one warp. A [`tile::Fragment`] is four fp32 values that a lane holds of a
//!   matrix of query rows by columns (KV tokens, or output dims); `tile::row`, `tile::slot` and
//!   `tile::column` say which ones. A lane holds parts of `tile::ROWS` rows.
//! - `ring`: a warp's ring of KV chunks: start copies, wait for the oldest, compute with it.

#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
pub(crate) use nvptx::{VENDOR, math, ring, shared, thread, tile, warp};

#[cfg(target_arch = "amdgpu")]
mod amdgcn;
#[cfg(target_arch = "amdgpu")]
pub(crate) use amdgcn::{VENDOR, math, ring, shared, thread, tile, warp};

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
    /// Tokens that exist, at least 1; the ring's chunk size at most. Rows beyond are never read.
    pub(crate) tokens: u32,
}

/// Four floats that are loaded and stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Float4(pub(crate) [f32; 4]);

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
