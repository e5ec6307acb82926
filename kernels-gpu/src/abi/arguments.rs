//! The kernels' argument lists. Both sides are made from them: the entry points' parameters, and what a host packs.

/// An address in device memory: a pointer on the device, its value on the host.
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
pub type Pointer = *mut u8;
/// An address in device memory: a pointer on the device, its value on the host.
#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
pub type Pointer = u64;

/// A value that can be a kernel argument.
pub trait Scalar: Copy {
    /// The value's bits, zero-extended. A driver passes the address of this cell (both vendors and all
    /// hosts are little-endian, so its first bytes are the value).
    fn cell(self) -> u64;
}
impl Scalar for u64 {
    fn cell(self) -> u64 {
        self
    }
}
impl Scalar for u32 {
    fn cell(self) -> u64 {
        u64::from(self)
    }
}
impl Scalar for f32 {
    fn cell(self) -> u64 {
        u64::from(self.to_bits())
    }
}

/// A kernel argument as 32-bit words, low and high.
#[cfg(target_arch = "amdgpu")]
trait Words {
    fn split(self) -> [u32; 2];
    fn join(words: [u32; 2]) -> Self;
}
#[cfg(target_arch = "amdgpu")]
impl Words for u64 {
    #[inline(always)]
    fn split(self) -> [u32; 2] {
        [self as u32, (self >> 32) as u32]
    }
    #[inline(always)]
    fn join([low, high]: [u32; 2]) -> Self {
        Self::from(low) | Self::from(high) << 32
    }
}
#[cfg(target_arch = "amdgpu")]
impl Words for Pointer {
    #[inline(always)]
    fn split(self) -> [u32; 2] {
        (self.expose_provenance() as u64).split()
    }
    #[inline(always)]
    fn join(words: [u32; 2]) -> Self {
        core::ptr::with_exposed_provenance_mut(u64::join(words) as usize)
    }
}
#[cfg(target_arch = "amdgpu")]
impl Words for u32 {
    #[inline(always)]
    fn split(self) -> [u32; 2] {
        [self, 0]
    }
    #[inline(always)]
    fn join([low, _]: [u32; 2]) -> Self {
        low
    }
}
#[cfg(target_arch = "amdgpu")]
impl Words for f32 {
    #[inline(always)]
    fn split(self) -> [u32; 2] {
        [self.to_bits(), 0]
    }
    #[inline(always)]
    fn join([low, _]: [u32; 2]) -> Self {
        Self::from_bits(low)
    }
}

/// Calls `$apply` with the attention kernels' argument list.
///
/// LLVM leaves a list of 51 in memory on AMD (seen as scratch in every kernel); 49 it does not.
macro_rules! attention_arguments {
    ($apply:ident! $($prefix:tt)*) => {
        $apply! { $($prefix)* {
            /// Q: `[batch, sq, heads, head_dim_qk]`, or packed `[total_q, heads, head_dim_qk]`.
            q: Pointer,
            /// K: `[batch, sk, kv_heads, head_dim_qk]`, packed `[total_kv, kv_heads, head_dim_qk]`, or pages
            /// `[pages, page_size, kv_heads, head_dim_qk]`.
            k: Pointer,
            /// V, likewise with `head_dim_v`.
            v: Pointer,
            /// O: as Q, with `head_dim_v`; written of a sequence with one split.
            o: Pointer,
            /// LSE: fp32 `[batch, heads, sq]` or `[heads, total_q]`, natural log, or null; written of a sequence with one
            /// split.
            lse: Pointer,
            /// Partial O: fp32 `[num_splits, total_q, heads, head_dim_v]`, normalised, without the sink. The queries of
            /// sequence `b` begin at `b * sq`, or where packed Q says. With a table `[rows, heads, head_dim_v]`, where it
            /// says which rows are a sequence's.
            partial_o: Pointer,
            /// Partial LSE: fp32, likewise without `head_dim_v`, natural log, without the sink.
            partial_lse: Pointer,
            /// KV length of each sequence, int32 `[batch]`, or null: all that it has.
            kv_lens: Pointer,
            /// Where each sequence's queries begin in packed Q and O, int32 `[batch + 1]`, or null: not packed.
            cu_seqlens_q: Pointer,
            /// Where each sequence's keys begin in packed K and V, int32 `[batch + 1]`, or null: not packed.
            cu_seqlens_kv: Pointer,
            /// The pages of each sequence, int32 `[batch, ...]`; of shape `Warpgroups` the tensor maps of
            /// `warpgroups::map`; else null.
            page_table: Pointer,
            /// One more logit of each head without a value, fp32 `[heads]`, natural, or null; used of a sequence with one split.
            sink: Pointer,
            /// Of 8-bit elements: the factor that Q's values are to be multiplied by, fp32 `[1]` or `[batch, kv_heads]`.
            q_descale: Pointer,
            /// The same of K.
            k_descale: Pointer,
            /// The same of V.
            v_descale: Pointer,
            /// The table of a ragged batch ([`super::schedule`]), or null: each sequence has `num_splits` splits. Null with two
            /// query tiles.
            schedule: Pointer,
            /// Status word, u32: bits `STATUS_*` are set in it. With `MERGE_LAST`, counters follow, u32 `[batch, row blocks,
            /// kv_heads]`, 0 between launches.
            status: Pointer,
            /// Strides in elements. Packed Q, K, V and O have 0 as their batch strides; pages have their own there.
            q_stride_batch: u64,
            q_stride_seq: u64,
            q_stride_head: u64,
            k_stride_batch: u64,
            k_stride_seq: u64,
            k_stride_head: u64,
            v_stride_batch: u64,
            v_stride_seq: u64,
            v_stride_head: u64,
            o_stride_batch: u64,
            o_stride_seq: u64,
            o_stride_head: u64,
            /// Distance of the sequences in the page table, in entries; of shape `Warpgroups` whether the blocks merge the
            /// splits.
            page_table_stride: u64,
            /// Bits `PER_HEAD_*`: which of Q, K and V have a factor for each sequence and KV head. `MERGE_LAST`: see there.
            flags: u32,
            /// Sequences.
            batch: u32,
            /// Queries of each sequence, at most where Q is packed.
            sq: u32,
            /// KV tokens of each sequence at most; `sq + sk` is below 2^31.
            sk: u32,
            /// Queries of all sequences.
            total_q: u32,
            /// KV tokens of packed K and V.
            total_kv: u32,
            /// Tokens of a page.
            page_size: u32,
            /// Pages that K and V have; at least one where a sequence has a token.
            pages: u32,
            /// Head dim of Q and K: a multiple of 8, at most the kernel's.
            head_dim_qk: u32,
            /// Head dim of V and O, likewise.
            head_dim_v: u32,
            /// KV heads.
            kv_heads: u32,
            /// Query heads that share a KV head.
            group: u32,
            /// Parts of each sequence's KV.
            num_splits: u32,
            /// KV tokens of a split, a multiple of `tile_n`; 0: each sequence's tiles are shared out evenly.
            split_tokens: u32,
            /// Of a sequence with `n` queries and `len` keys, query `i` sees the keys `j` with
            /// `i + len - n - window_left <= j <= i + len - n + window_right`; `NO_BOUND`: no bound.
            window_left: u32,
            window_right: u32,
            /// Element type of `o`: an `Output` as u32.
            o_dtype: u32,
            /// Softmax scale times log2(e); with a softcap, times 2 log2(e) / cap.
            scale_log2: f32,
            /// Softcap times log2(e), or 0: none.
            softcap_log2: f32,
        } }
    };
}

/// Calls `$apply` with the combine kernel's argument list.
macro_rules! combine_arguments {
    ($apply:ident! $($prefix:tt)*) => {
        $apply! { $($prefix)* {
            /// Partial O, as the attention kernels write it.
            partial_o: Pointer,
            /// Partial LSE, as the attention kernels write it.
            partial_lse: Pointer,
            /// O: `[batch, sq, heads, head_dim_v]`. Packed, it is one sequence.
            o: Pointer,
            /// LSE: fp32 `[batch, heads, sq]`, natural log, or null.
            lse: Pointer,
            /// One more logit of each head without a value, fp32 `[heads]`, natural, or null.
            sink: Pointer,
            /// Where packed sequences begin, int32 `[batch + 1]`, or null: queries from the last one's end on belong to none.
            cu_seqlens_q: Pointer,
            /// The table of a ragged batch, or null: each sequence has `num_splits` parts.
            schedule: Pointer,
            /// Strides in elements.
            o_stride_batch: u64,
            o_stride_seq: u64,
            o_stride_head: u64,
            /// Rows: `batch * sq * heads`; one block each.
            rows: u32,
            /// Sequences that `cu_seqlens_q` tells of.
            batch: u32,
            /// Queries of each sequence.
            sq: u32,
            /// Query heads.
            heads: u32,
            /// Head dim of V and O, a multiple of `COMBINE_WIDTH`.
            head_dim_v: u32,
            /// Parts of each sequence's KV.
            num_splits: u32,
            /// Element type of `o`: an `Output` as u32.
            o_dtype: u32,
        } }
    };
}

/// Calls `$apply` with the merge kernel's argument list.
macro_rules! merge_arguments {
    ($apply:ident! $($prefix:tt)*) => {
        $apply! { $($prefix)* {
            /// What is merged: `MERGE_WORDS` u64 for each partial result.
            partials: Pointer,
            /// O: `[batch, sq, heads, head_dim_v]`.
            o: Pointer,
            /// LSE: fp32 `[batch, heads, sq]`, in the partial results' base, or null.
            lse: Pointer,
            /// Status word, u32: bits `STATUS_*` are set in it.
            status: Pointer,
            /// Strides in elements.
            o_stride_batch: u64,
            o_stride_seq: u64,
            o_stride_head: u64,
            /// Rows: `batch * sq * heads`; one warp each.
            rows: u32,
            /// Queries of each sequence.
            sq: u32,
            /// Heads.
            heads: u32,
            /// Head dim of V and O, a multiple of 4.
            head_dim_v: u32,
            /// Partial results.
            count: u32,
            /// Element type of the partial O: an `Output` as u32.
            partial_dtype: u32,
            /// Element type of `o`, likewise.
            o_dtype: u32,
            /// What an LSE grows by where the sum of exponentials doubles: ln 2, or 1 in base 2.
            lse_per_octave: f32,
        } }
    };
}

/// Calls `$apply` with the schedule kernel's argument list; names that an attention kernel has too mean the same.
macro_rules! schedule_arguments {
    ($apply:ident! $($prefix:tt)*) => {
        $apply! { $($prefix)* {
            /// Written: the table ([`super::schedule`]).
            schedule: Pointer,
            kv_lens: Pointer,
            cu_seqlens_q: Pointer,
            cu_seqlens_kv: Pointer,
            status: Pointer,
            batch: u32,
            sq: u32,
            sk: u32,
            total_q: u32,
            total_kv: u32,
            group: u32,
            window_left: u32,
            window_right: u32,
            /// Packed query rows of a block.
            block_rows: u32,
            /// KV tokens that a block takes in one step.
            tile_n: u32,
            /// Big splits at most.
            wide: u32,
        } }
    };
}

/// Calls `$apply` with the read kernels' argument list.
macro_rules! read_arguments {
    ($apply:ident! $($prefix:tt)*) => {
        $apply! { $($prefix)* {
            /// What to read.
            source: Pointer,
            /// Where to write should `never` be met: a u32 for each of `READ_THREADS` threads.
            sink: Pointer,
            /// Length of `source` in 16-byte vectors, a multiple of `unroll * READ_THREADS`.
            vectors: u64,
            /// A value that the bitwise or of the words that a thread reads does not have.
            never: u32,
        } }
    };
}
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
pub(crate) use {attention_arguments, combine_arguments, merge_arguments, read_arguments, schedule_arguments};

macro_rules! define_arguments {
    ($(#[$doc:meta])* $name:ident $text:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "strides and bounds share one line, and lists the names of others")]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        #[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
        impl $name {
            /// Names of the arguments, in order.
            pub const NAMES: &[&str] = &[$(stringify!($field)),*];

            /// Sizes of the arguments in bytes, in order; each is aligned to its size.
            pub const SIZES: &[usize] = &[$(size_of::<$ty>()),*];

            /// The arguments in order, one cell each, for a driver.
            pub fn cells(&self) -> Vec<u64> {
                vec![$(Scalar::cell(self.$field)),*]
            }
        }
        #[cfg(target_arch = "amdgpu")]
        #[allow(dead_code, reason = "of the attention kernels' list alone")]
        impl $name {
            /// Arguments, in number.
            pub(crate) const COUNT: usize = [$(stringify!($field)),*].len();

            /// The arguments in order, two words each.
            #[inline(always)]
            pub(crate) fn words(self) -> [[u32; 2]; Self::COUNT] {
                [$(Words::split(self.$field)),*]
            }

            /// The arguments whose words `words` gives, by their places.
            #[inline(always)]
            pub(crate) fn from_words(words: impl Fn(usize) -> [u32; 2]) -> Self {
                let mut place = 0;
                let mut next = || {
                    place += 1;
                    words(place - 1)
                };
                Self { $($field: Words::join(next())),* }
            }
        }
        pub(super) const $text: &str = stringify!($($field: $ty,)*);
    };
}
#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
use std::{vec, vec::Vec};
attention_arguments!(define_arguments! #[doc = "Arguments of an attention kernel."] AttentionArguments ATTENTION_TEXT);
combine_arguments!(define_arguments! #[doc = "Arguments of the combine kernel."] CombineArguments COMBINE_TEXT);
merge_arguments!(define_arguments! #[doc = "Arguments of the merge kernel."] MergeArguments MERGE_TEXT);
schedule_arguments!(define_arguments! #[doc = "Arguments of the schedule kernel."] ScheduleArguments SCHEDULE_TEXT);
read_arguments!(define_arguments! #[doc = "Arguments of a read kernel."] ReadArguments READ_TEXT);
