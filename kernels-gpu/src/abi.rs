//! The one table that kernels and host share: targets, kernel names, argument lists, tile sizes.
//!
//! Everything here is `const`, needs no device and compiles on stable. Device code instantiates its
//! kernels from `for_each_kernel` and takes its parameters from the argument lists below; the host
//! plans from [`KERNELS`] and packs the same lists. [`HASH`] covers all of it: a host refuses
//! artefacts that were built with another one.

mod geometry;

pub use geometry::{BlockShape, Geometry};

/// Element type of Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operand {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// OCP 8-bit float with 4 exponent and 3 mantissa bits, no infinities, largest value 448 (e4m3fn).
    E4m3,
}

impl Operand {
    /// Size of an element in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 => 1,
        }
    }
}

/// Element type of the output, as the run-time argument `o_dtype` encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Output {
    /// IEEE binary32.
    F32 = 0,
    /// bfloat16.
    Bf16 = 1,
    /// IEEE binary16.
    F16 = 2,
}

/// Who made the GPU: decides warp width, matrix instructions and copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// NVIDIA, compiled for nvptx64.
    Nvidia,
    /// AMD, compiled for amdgcn.
    Amd,
}

/// An architecture that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// NVIDIA compute capability 9.0 (Hopper).
    Sm90,
    /// NVIDIA compute capability 10.0 (Blackwell), portable instructions only.
    Sm100,
    /// AMD CDNA4.
    Gfx950,
}

impl Target {
    /// All targets, in the order in which they are built and listed.
    pub const ALL: [Self; 3] = [Self::Sm90, Self::Sm100, Self::Gfx950];

    /// The name used on command lines, in file names and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm90 => "sm_90",
            Self::Sm100 => "sm_100",
            Self::Gfx950 => "gfx950",
        }
    }

    /// The GPU's maker.
    pub const fn vendor(self) -> Vendor {
        match self {
            Self::Sm90 | Self::Sm100 => Vendor::Nvidia,
            Self::Gfx950 => Vendor::Amd,
        }
    }
}

impl Vendor {
    /// Threads of a warp (NVIDIA) or wavefront (AMD).
    pub const fn warp_size(self) -> u32 {
        match self {
            Self::Nvidia => 32,
            Self::Amd => 64,
        }
    }
}

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Attention over a part of the KV sequence. Takes [`AttentionArguments`].
    Attention {
        /// Element type of Q, K and V.
        operand: Operand,
        /// Head dim of Q and K.
        head_dim_qk: u32,
        /// Head dim of V and O.
        head_dim_v: u32,
        /// How warps share the work.
        shape: BlockShape,
        /// Query tiles that a block owns.
        q_tiles: u32,
        /// Whether K and V lie in pages, which a table lists.
        paged: bool,
    },
    /// Merges the splits' partial results, any head dim and output type. Takes [`CombineArguments`].
    Combine,
    /// Merges a caller's partial results, any number, head dim and type. Takes [`MergeArguments`].
    Merge,
    /// Reads a buffer, for benchmarks: the ceiling of the card's memory. Takes [`ReadArguments`].
    Read {
        /// 16-byte loads that a thread has under way.
        unroll: u32,
    },
}

/// One kernel of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Entry point's name in the artefact.
    pub name: &'static str,
    /// What it does.
    pub role: Role,
}

/// Threads of a block of the combine kernel, on either vendor.
pub const COMBINE_THREADS: u32 = 128;
/// Output elements that one thread of the combine kernel holds.
pub const COMBINE_WIDTH: u32 = 4;
/// Threads of a block of the merge kernel, on either vendor. Each warp takes a row.
pub const MERGE_THREADS: u32 = 128;
/// 64-bit words that the merge kernel's table has for each partial result: O's address and its strides of sequences,
/// queries and heads in elements, then the same of the LSE.
pub const MERGE_WORDS: usize = 8;
/// Threads of a block of a read kernel, on either vendor.
pub const READ_THREADS: u32 = 512;
/// Most splits that a plan may have.
pub const MAX_SPLITS: u32 = 256;

/// Bit of the status word: a sequence's length was negative or beyond the plan's maximum; it was clamped.
pub const STATUS_BAD_LENGTH: u32 = 1;
/// Bit of the status word: offsets of packed sequences fell, left the tensor or made a sequence longer than the plan's
/// maximum; they were clamped.
pub const STATUS_BAD_OFFSETS: u32 = 2;
/// Bit of the status word: an entry of the page table that was needed is no page; page 0 was taken.
pub const STATUS_BAD_PAGE: u32 = 4;
/// Bits of `descales_per_head`: Q has a factor for each sequence and KV head, in place of one.
pub const PER_HEAD_Q: u32 = 1;
/// The same of K.
pub const PER_HEAD_K: u32 = 2;
/// The same of V.
pub const PER_HEAD_V: u32 = 4;
/// A window without a bound on that side.
pub const NO_BOUND: u32 = i32::MAX as u32;
/// Bit of the status word: a partial result's LSE was plus infinity or NaN; its row is NaN.
pub const STATUS_BAD_LSE: u32 = 16;

impl Kernel {
    /// Threads of a block on `vendor`'s GPUs.
    pub const fn threads(&self, vendor: Vendor) -> u32 {
        match (self.geometry(vendor), self.role) {
            (Some(geometry), _) => geometry.threads,
            (None, Role::Read { .. }) => READ_THREADS,
            (None, Role::Merge) => MERGE_THREADS,
            (None, _) => COMBINE_THREADS,
        }
    }

    /// Dynamic shared memory of a block in bytes. The combine kernel holds a weight for each split, and each
    /// thread's output.
    pub const fn shared_bytes(&self, vendor: Vendor) -> u32 {
        match (self.geometry(vendor), self.role) {
            (Some(geometry), _) => geometry.shared_bytes,
            (None, Role::Read { .. } | Role::Merge) => 0,
            (None, _) => (MAX_SPLITS + COMBINE_THREADS * COMBINE_WIDTH) * 4,
        }
    }

    /// Blocks that must fit on a multiprocessor at once.
    pub const fn min_blocks(&self, vendor: Vendor) -> u32 {
        match (self.geometry(vendor), self.role) {
            (Some(geometry), _) => geometry.min_blocks,
            (None, Role::Read { .. }) => 2,
            (None, _) => 8,
        }
    }

    /// Tile sizes of an attention kernel; `None` for the others.
    pub const fn geometry(&self, vendor: Vendor) -> Option<Geometry> {
        match self.role {
            Role::Attention { operand, head_dim_qk, head_dim_v, shape, q_tiles, .. } => {
                Some(Geometry::of(vendor, operand, head_dim_qk, head_dim_v, shape, q_tiles))
            }
            Role::Combine | Role::Merge | Role::Read { .. } => None,
        }
    }
}

/// Calls the macro `$apply` with every kernel of the product, one line each.
macro_rules! for_each_kernel {
    ($apply:ident) => {
        $apply! {
            attention attention_bf16_d64_splitkv_q1, attention_bf16_d64_splitkv_q1_paged: Bf16, 64, 64, SplitKv, 1;
            attention attention_bf16_d64_sharedkv_q1, attention_bf16_d64_sharedkv_q1_paged: Bf16, 64, 64, SharedKv, 1;
            attention attention_bf16_d96_splitkv_q1, attention_bf16_d96_splitkv_q1_paged: Bf16, 96, 96, SplitKv, 1;
            attention attention_bf16_d96_sharedkv_q1, attention_bf16_d96_sharedkv_q1_paged: Bf16, 96, 96, SharedKv, 1;
            attention attention_bf16_d128_splitkv_q1, attention_bf16_d128_splitkv_q1_paged: Bf16, 128, 128, SplitKv, 1;
            attention attention_bf16_d128_splitkv_q2, attention_bf16_d128_splitkv_q2_paged: Bf16, 128, 128, SplitKv, 2;
            attention attention_bf16_d128_sharedkv_q1, attention_bf16_d128_sharedkv_q1_paged: Bf16, 128, 128, SharedKv, 1;
            attention attention_bf16_d128_sharedkv_q2, attention_bf16_d128_sharedkv_q2_paged: Bf16, 128, 128, SharedKv, 2;
            attention attention_bf16_d192x128_splitkv_q1, attention_bf16_d192x128_splitkv_q1_paged: Bf16, 192, 128, SplitKv, 1;
            attention attention_bf16_d192x128_splitkv_q2, attention_bf16_d192x128_splitkv_q2_paged: Bf16, 192, 128, SplitKv, 2;
            attention attention_bf16_d192x128_sharedkv_q1, attention_bf16_d192x128_sharedkv_q1_paged: Bf16, 192, 128, SharedKv, 1;
            attention attention_bf16_d192x128_sharedkv_q2, attention_bf16_d192x128_sharedkv_q2_paged: Bf16, 192, 128, SharedKv, 2;
            attention attention_bf16_d256_splitkv_q1, attention_bf16_d256_splitkv_q1_paged: Bf16, 256, 256, SplitKv, 1;
            attention attention_bf16_d256_sharedkv_q1, attention_bf16_d256_sharedkv_q1_paged: Bf16, 256, 256, SharedKv, 1;
            attention attention_f16_d64_splitkv_q1, attention_f16_d64_splitkv_q1_paged: F16, 64, 64, SplitKv, 1;
            attention attention_f16_d64_sharedkv_q1, attention_f16_d64_sharedkv_q1_paged: F16, 64, 64, SharedKv, 1;
            attention attention_f16_d96_splitkv_q1, attention_f16_d96_splitkv_q1_paged: F16, 96, 96, SplitKv, 1;
            attention attention_f16_d96_sharedkv_q1, attention_f16_d96_sharedkv_q1_paged: F16, 96, 96, SharedKv, 1;
            attention attention_f16_d128_splitkv_q1, attention_f16_d128_splitkv_q1_paged: F16, 128, 128, SplitKv, 1;
            attention attention_f16_d128_splitkv_q2, attention_f16_d128_splitkv_q2_paged: F16, 128, 128, SplitKv, 2;
            attention attention_f16_d128_sharedkv_q1, attention_f16_d128_sharedkv_q1_paged: F16, 128, 128, SharedKv, 1;
            attention attention_f16_d128_sharedkv_q2, attention_f16_d128_sharedkv_q2_paged: F16, 128, 128, SharedKv, 2;
            attention attention_f16_d192x128_splitkv_q1, attention_f16_d192x128_splitkv_q1_paged: F16, 192, 128, SplitKv, 1;
            attention attention_f16_d192x128_splitkv_q2, attention_f16_d192x128_splitkv_q2_paged: F16, 192, 128, SplitKv, 2;
            attention attention_f16_d192x128_sharedkv_q1, attention_f16_d192x128_sharedkv_q1_paged: F16, 192, 128, SharedKv, 1;
            attention attention_f16_d192x128_sharedkv_q2, attention_f16_d192x128_sharedkv_q2_paged: F16, 192, 128, SharedKv, 2;
            attention attention_f16_d256_splitkv_q1, attention_f16_d256_splitkv_q1_paged: F16, 256, 256, SplitKv, 1;
            attention attention_f16_d256_sharedkv_q1, attention_f16_d256_sharedkv_q1_paged: F16, 256, 256, SharedKv, 1;
            attention attention_e4m3_d64_splitkv_q1, attention_e4m3_d64_splitkv_q1_paged: E4m3, 64, 64, SplitKv, 1;
            attention attention_e4m3_d64_sharedkv_q1, attention_e4m3_d64_sharedkv_q1_paged: E4m3, 64, 64, SharedKv, 1;
            attention attention_e4m3_d128_splitkv_q1, attention_e4m3_d128_splitkv_q1_paged: E4m3, 128, 128, SplitKv, 1;
            attention attention_e4m3_d128_sharedkv_q1, attention_e4m3_d128_sharedkv_q1_paged: E4m3, 128, 128, SharedKv, 1;
            attention attention_e4m3_d192x128_splitkv_q1, attention_e4m3_d192x128_splitkv_q1_paged: E4m3, 192, 128, SplitKv, 1;
            attention attention_e4m3_d192x128_sharedkv_q1, attention_e4m3_d192x128_sharedkv_q1_paged: E4m3, 192, 128, SharedKv, 1;
            attention attention_e4m3_d192_splitkv_q1, attention_e4m3_d192_splitkv_q1_paged: E4m3, 192, 192, SplitKv, 1;
            attention attention_e4m3_d192_sharedkv_q1, attention_e4m3_d192_sharedkv_q1_paged: E4m3, 192, 192, SharedKv, 1;
            combine combine;
            merge merge_partials;
            read read_x4: 4;
            read read_x8: 8;
            read read_x16: 16;
        }
    };
}
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
pub(crate) use for_each_kernel;

macro_rules! kernel_table {
    ($(attention $name:ident, $paged:ident: $operand:ident, $qk:literal, $v:literal, $shape:ident, $q_tiles:literal;)*
     combine $combine:ident;
     merge $merge:ident;
     $(read $read:ident: $unroll:literal;)*) => {
        /// Every kernel, built for every target.
        pub const KERNELS: &[Kernel] = &[
            $(
                Kernel {
                    name: stringify!($name),
                    role: Role::Attention {
                        operand: Operand::$operand,
                        head_dim_qk: $qk,
                        head_dim_v: $v,
                        shape: BlockShape::$shape,
                        q_tiles: $q_tiles,
                        paged: false,
                    },
                },
                Kernel {
                    name: stringify!($paged),
                    role: Role::Attention {
                        operand: Operand::$operand,
                        head_dim_qk: $qk,
                        head_dim_v: $v,
                        shape: BlockShape::$shape,
                        q_tiles: $q_tiles,
                        paged: true,
                    },
                },
            )*
            Kernel { name: stringify!($combine), role: Role::Combine },
            Kernel { name: stringify!($merge), role: Role::Merge },
            $(Kernel { name: stringify!($read), role: Role::Read { unroll: $unroll } },)*
        ];
        const KERNEL_TEXT: &str = stringify!($($name $paged $operand $qk $v $shape $q_tiles)* $combine $merge $($read $unroll)*);
    };
}
for_each_kernel!(kernel_table);

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
            /// O: as Q, with `head_dim_v`; written when `num_splits` is 1.
            o: Pointer,
            /// LSE: fp32 `[batch, heads, sq]` or `[heads, total_q]`, natural log, or null; written when `num_splits` is 1.
            lse: Pointer,
            /// Partial O: fp32 `[num_splits, total_q, heads, head_dim_v]`, normalised, without the sink. The queries of
            /// sequence `b` begin at `b * sq`, or where packed Q says.
            partial_o: Pointer,
            /// Partial LSE: fp32 `[num_splits, total_q, heads]`, natural log, without the sink.
            partial_lse: Pointer,
            /// KV length of each sequence, int32 `[batch]`, or null: all that it has.
            kv_lens: Pointer,
            /// Where each sequence's queries begin in packed Q and O, int32 `[batch + 1]`, or null: not packed.
            cu_seqlens_q: Pointer,
            /// Where each sequence's keys begin in packed K and V, int32 `[batch + 1]`, or null: not packed.
            cu_seqlens_kv: Pointer,
            /// The pages of each sequence, int32 `[batch, ...]`, or null without pages.
            page_table: Pointer,
            /// One more logit of each head without a value, fp32 `[heads]`, natural, or null; used when `num_splits` is 1.
            sink: Pointer,
            /// Of 8-bit elements: the factor that Q's values are to be multiplied by, fp32 `[1]` or `[batch, kv_heads]`.
            q_descale: Pointer,
            /// The same of K.
            k_descale: Pointer,
            /// The same of V.
            v_descale: Pointer,
            /// Status word, u32: bits `STATUS_*` are set in it.
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
            /// Distance of the sequences in the page table, in entries.
            page_table_stride: u64,
            /// Bits `PER_HEAD_*`: which of Q, K and V have a factor for each sequence and KV head.
            descales_per_head: u32,
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
            /// Blocks of query tiles of a KV head: `ceil(sq * group / (q_tiles * tile_m))`.
            m_blocks: u32,
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
pub(crate) use {attention_arguments, combine_arguments, merge_arguments, read_arguments};

macro_rules! define_arguments {
    ($(#[$doc:meta])* $name:ident $text:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "strides, and bounds, share one line")]
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
        const $text: &str = stringify!($($field: $ty,)*);
    };
}
#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
use std::{vec, vec::Vec};
attention_arguments!(define_arguments! #[doc = "Arguments of an attention kernel."] AttentionArguments ATTENTION_TEXT);
combine_arguments!(define_arguments! #[doc = "Arguments of the combine kernel."] CombineArguments COMBINE_TEXT);
merge_arguments!(define_arguments! #[doc = "Arguments of the merge kernel."] MergeArguments MERGE_TEXT);
read_arguments!(define_arguments! #[doc = "Arguments of a read kernel."] ReadArguments READ_TEXT);

/// Hash of everything above that both sides must agree on: argument lists, kernels, tile sizes.
pub const HASH: u64 = {
    let mut hash =
        Fnv::new().text(ATTENTION_TEXT).text(COMBINE_TEXT).text(MERGE_TEXT).text(READ_TEXT).text(KERNEL_TEXT);
    let mut i = 0;
    while i < KERNELS.len() {
        hash = hash.kernel(&KERNELS[i], Vendor::Nvidia).kernel(&KERNELS[i], Vendor::Amd);
        i += 1;
    }
    hash.0
};

/// FNV-1a, 64 bits: `const`, and enough to tell two tables apart.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    const fn byte(self, byte: u8) -> Self {
        Self((self.0 ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3))
    }

    const fn text(mut self, text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            self = self.byte(bytes[i]);
            i += 1;
        }
        self
    }

    const fn number(mut self, number: u32) -> Self {
        let bytes = number.to_le_bytes();
        let mut i = 0;
        while i < bytes.len() {
            self = self.byte(bytes[i]);
            i += 1;
        }
        self
    }

    const fn kernel(self, kernel: &Kernel, vendor: Vendor) -> Self {
        let hash =
            self.number(kernel.threads(vendor)).number(kernel.shared_bytes(vendor)).number(kernel.min_blocks(vendor));
        match kernel.geometry(vendor) {
            Some(g) => hash.number(g.tile_m).number(g.tile_n).number(g.chunk).number(g.stages),
            None => hash,
        }
    }
}
