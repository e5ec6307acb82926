//! The vocabulary that the algorithm is written in. Each vendor's folder supplies the same names:
//!
//! - `thread`, `warp`, `shared`: who runs, what a warp does together, the block's memory. Names follow
//!   `cuda_std`.
//! - `arguments`: the kernel's arguments, those that each chunk needs apart from those that a unit needs once.
//! - `math`: the approximate instructions, and conversions.
//! - `tile`: matrix products of one warp. A [`tile::Fragment`] is four fp32 values that a lane holds of a
//!   matrix of query rows by columns (KV tokens, or output dims); `tile::slot` and a [`tile::Element`]'s `row`,
//!   `column` (of scores) and `out_column` say which ones. A lane holds parts of `tile::ROWS` rows, `tile::RUN` columns
//!   in a row.
//! - `query`: the query rows as operands.
//! - `ring`: a ring of KV chunks, of a warp or of the block: start copies, wait for the oldest, compute with it.

use crate::abi::STATUS_BAD_PAGE;
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
pub(crate) use nvptx::{VENDOR, arguments, math, query, ring, shared, thread, tile, warp};
#[cfg(splitkv_target = "sm_90a")]
pub(crate) use nvptx::{copy, matrix, mbarrier, named_barrier, rendezvous, tma, warpgroup, wgmma};
#[cfg(splitkv_target = "sm_100f")]
pub(crate) use nvptx::{copy, mbarrier, tcgen05, warpgroup};

#[cfg(target_arch = "amdgpu")]
mod amdgcn;
#[cfg(target_arch = "amdgpu")]
pub(crate) use amdgcn::{VENDOR, arguments, math, query, ring, shared, thread, tile, warp};

/// Where a chunk of consecutive KV tokens lies in global memory.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    /// First token's K row; in pages, that of token 0 of page 0.
    pub(crate) k: *const u8,
    /// First token's V row, likewise.
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
    /// Where the tokens are in pages; kernels without pages do not look at it.
    pub(crate) pages: Pages,
}

/// The pages of a sequence, from the chunk's first token on.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    /// The sequence's entries of the page table: int32, one for each `page_size` tokens.
    pub(crate) table: *const u8,
    /// First token of the chunk.
    pub(crate) first: u32,
    /// Tokens of a page.
    pub(crate) page_size: u32,
    /// Pages that there are.
    pub(crate) pages: u32,
    /// Bytes between pages of K.
    pub(crate) k_stride: u64,
    /// Bytes between pages of V.
    pub(crate) v_stride: u64,
    /// The status word.
    pub(crate) status: *mut u8,
}

impl Chunk {
    /// Page, and place in it, of token `token` of the chunk; of the last one for a token that does not exist. An entry
    /// that is no page is not followed: page 0 is, and the status word says so.
    ///
    /// # Safety
    /// The table has the tokens' entries; there is a page.
    #[inline(always)]
    pub(crate) unsafe fn find(&self, token: u32) -> (u32, u32) {
        let Pages { table, first, page_size, pages, status, .. } = self.pages;
        // SAFETY: the host checked that a page has a token; the caller's promise.
        unsafe {
            let (index, place) = divide(first + token.min(self.tokens - 1), page_size);
            let mut page = table.cast::<u32>().add(index as usize).read();
            if page >= pages {
                AtomicU32::from_ptr(status.cast()).fetch_or(STATUS_BAD_PAGE, Ordering::Relaxed);
                page = 0;
            }
            (page, place)
        }
    }
}

/// Offset in bytes of a row in pages.
#[inline(always)]
pub(crate) fn page_offset(page: u32, page_stride: u64, place: u32, stride: u64) -> usize {
    (u64::from(page) * page_stride + u64::from(place) * stride) as usize
}

/// Where the rows of a block's query tiles lie in global memory.
pub(crate) trait QuerySource {
    /// The row's first element, aligned to 16 bytes, or `None` for a row of zeros.
    fn row(&self, row: u32) -> Option<*const u8>;
    /// Bytes that a row has, a multiple of 16; what is beyond is zeros.
    fn bytes(&self) -> u32;
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

/// As [`divide`], by what is mostly 1: heads of a group, sequences, blocks of rows. Where a block begins, and has its code
/// still to fetch, a division takes long.
///
/// # Safety
/// As for [`divide`].
#[inline(always)]
pub(crate) unsafe fn divide_by_few(value: u32, divisor: u32) -> (u32, u32) {
    #[cfg(splitkv_target = "sm_90a")]
    if core::intrinsics::likely(math::opaque(divisor) == 1) {
        return (value, 0);
    }
    // SAFETY: the caller's promise.
    unsafe { divide(value, divisor) }
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
