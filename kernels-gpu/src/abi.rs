//! The one table that kernels and host share: targets, kernel names, argument lists, tile sizes.
//!
//! Everything here is `const`, needs no device and compiles on stable. Device code instantiates its
//! kernels from `for_each_kernel` and takes its parameters from the argument lists below; the host
//! plans from [`KERNELS`] and packs the same lists. [`HASH`] covers all of it: a host refuses
//! artefacts that were built with another one.

mod arguments;
mod geometry;
pub mod schedule;
pub mod tcgen05;
pub mod warpgroups;

use arguments::{ATTENTION_TEXT, COMBINE_TEXT, MERGE_TEXT, READ_TEXT, SCHEDULE_TEXT};
pub use arguments::{
    AttentionArguments, CombineArguments, MergeArguments, Pointer, ReadArguments, Scalar, ScheduleArguments,
};
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
pub(crate) use arguments::{
    attention_arguments, combine_arguments, merge_arguments, read_arguments, schedule_arguments,
};
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
    /// NVIDIA compute capability 9.0 (Hopper), portable instructions only.
    Sm90,
    /// The same with what only 9.0 has: warpgroups' matrix products.
    Sm90a,
    /// NVIDIA compute capability 10.0 (Blackwell) and later, portable instructions only.
    Sm100,
    /// NVIDIA compute capability 10.x with what only this family has: tensor memory and its matrix products.
    Sm100f,
    /// AMD CDNA4.
    Gfx950,
}

impl Target {
    /// All targets, in the order in which they are built and listed.
    pub const ALL: [Self; 5] = [Self::Sm90, Self::Sm90a, Self::Sm100, Self::Sm100f, Self::Gfx950];
    /// Those of the portable kernels.
    pub const PORTABLE: &[Self] = &[Self::Sm90, Self::Sm100, Self::Gfx950];

    /// The name used on command lines, in file names and in the manifest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm90 => "sm_90",
            Self::Sm90a => "sm_90a",
            Self::Sm100 => "sm_100",
            Self::Sm100f => "sm_100f",
            Self::Gfx950 => "gfx950",
        }
    }

    /// The GPU's maker.
    pub const fn vendor(self) -> Vendor {
        match self {
            Self::Sm90 | Self::Sm90a | Self::Sm100 | Self::Sm100f => Vendor::Nvidia,
            Self::Gfx950 => Vendor::Amd,
        }
    }

    /// The target whose kernels run on this one's devices beside its own.
    pub const fn base(self) -> Option<Self> {
        match self {
            Self::Sm90a => Some(Self::Sm90),
            Self::Sm100f => Some(Self::Sm100),
            Self::Sm90 | Self::Sm100 | Self::Gfx950 => None,
        }
    }

    /// The kernels that are built for this target.
    pub fn kernels(self) -> impl Iterator<Item = &'static Kernel> {
        KERNELS.iter().filter(move |kernel| kernel.targets.contains(&self))
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
    /// Shares the splits of a ragged batch out by the lengths on the device. Takes [`ScheduleArguments`].
    Schedule,
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
    /// The targets that it is built for.
    pub targets: &'static [Target],
}

/// Output elements that a lane holds of a row whose parts its warp merges.
pub const COMBINE_WIDTH: u32 = 4;
/// Parts of a row that a warp loads at once to merge them.
pub const MERGE_UNROLL: u32 = 16;
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
/// Bits of `flags`: Q has a factor for each sequence and KV head, in place of one.
pub const PER_HEAD_Q: u32 = 1;
/// The same of K.
pub const PER_HEAD_K: u32 = 2;
/// The same of V.
pub const PER_HEAD_V: u32 = 4;
/// Bit of `flags`: the block that finishes the last split of a row block merges its parts, in place of the combine kernel.
/// Not where the kernel cannot ([`Kernel::can_merge`]).
pub const MERGE_LAST: u32 = 8;
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
            // One warp.
            (None, _) => vendor.warp_size(),
        }
    }

    /// Dynamic shared memory of a block in bytes.
    pub const fn shared_bytes(&self, vendor: Vendor) -> u32 {
        match self.geometry(vendor) {
            Some(geometry) => geometry.shared_bytes,
            None => 0,
        }
    }

    /// Whether the last block of a row block can merge its parts, in place of the combine kernel: blocks of few rows
    /// whose kernel has registers left. On AMD, what a block has written would first have to leave its cache.
    pub const fn can_merge(&self, vendor: Vendor) -> bool {
        matches!((vendor, self.role), (Vendor::Nvidia, Role::Attention { shape: BlockShape::SplitKv, q_tiles: 1, .. }))
    }

    /// Blocks that must fit on a multiprocessor at once.
    pub const fn min_blocks(&self, vendor: Vendor) -> u32 {
        match (self.geometry(vendor), self.role) {
            (Some(geometry), _) => geometry.min_blocks,
            (None, Role::Read { .. }) => 2,
            (None, Role::Schedule) => 1,
            (None, Role::Combine) => 16,
            (None, _) => 8,
        }
    }

    /// Tile sizes of an attention kernel; `None` for the others.
    pub const fn geometry(&self, vendor: Vendor) -> Option<Geometry> {
        match self.role {
            Role::Attention { operand, head_dim_qk, head_dim_v, shape, q_tiles, .. } => {
                Some(Geometry::of(vendor, operand, head_dim_qk, head_dim_v, shape, q_tiles))
            }
            Role::Combine | Role::Merge | Role::Schedule | Role::Read { .. } => None,
        }
    }
}

/// Calls the macro `$apply` with every kernel, one line each: `attention` (and what else there is) for each portable
/// target, `warpgroups` for `sm_90a`, `tcgen05` for `sm_100f`.
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
            warpgroups attention_bf16_d192x128_warpgroups_q1: Bf16, 192, 128, 1;
            warpgroups attention_f16_d192x128_warpgroups_q1: F16, 192, 128, 1;
            warpgroups attention_e4m3_d192x128_warpgroups_q1: E4m3, 192, 128, 1;
            tcgen05 attention_bf16_d64_tcgen05_q1, attention_bf16_d64_tcgen05_q1_paged: Bf16, 64, 64, 1;
            tcgen05 attention_bf16_d64_tcgen05_q2, attention_bf16_d64_tcgen05_q2_paged: Bf16, 64, 64, 2;
            tcgen05 attention_bf16_d128_tcgen05_q1, attention_bf16_d128_tcgen05_q1_paged: Bf16, 128, 128, 1;
            tcgen05 attention_bf16_d128_tcgen05_q2, attention_bf16_d128_tcgen05_q2_paged: Bf16, 128, 128, 2;
            tcgen05 attention_bf16_d192x128_tcgen05_q1, attention_bf16_d192x128_tcgen05_q1_paged: Bf16, 192, 128, 1;
            tcgen05 attention_bf16_d192x128_tcgen05_q2, attention_bf16_d192x128_tcgen05_q2_paged: Bf16, 192, 128, 2;
            tcgen05 attention_f16_d64_tcgen05_q1, attention_f16_d64_tcgen05_q1_paged: F16, 64, 64, 1;
            tcgen05 attention_f16_d64_tcgen05_q2, attention_f16_d64_tcgen05_q2_paged: F16, 64, 64, 2;
            tcgen05 attention_f16_d128_tcgen05_q1, attention_f16_d128_tcgen05_q1_paged: F16, 128, 128, 1;
            tcgen05 attention_f16_d128_tcgen05_q2, attention_f16_d128_tcgen05_q2_paged: F16, 128, 128, 2;
            tcgen05 attention_f16_d192x128_tcgen05_q1, attention_f16_d192x128_tcgen05_q1_paged: F16, 192, 128, 1;
            tcgen05 attention_f16_d192x128_tcgen05_q2, attention_f16_d192x128_tcgen05_q2_paged: F16, 192, 128, 2;
            tcgen05 attention_e4m3_d192x128_tcgen05_q1, attention_e4m3_d192x128_tcgen05_q1_paged: E4m3, 192, 128, 1;
            combine combine;
            merge merge_partials;
            schedule schedule;
            read read_x4: 4;
            read read_x8: 8;
            read read_x16: 16;
        }
    };
}
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
pub(crate) use for_each_kernel;

const fn tensor_memory_kernel(
    name: &'static str,
    operand: Operand,
    [head_dim_qk, head_dim_v]: [u32; 2],
    q_tiles: u32,
    paged: bool,
) -> Kernel {
    let shape = BlockShape::Tcgen05;
    let role = Role::Attention { operand, head_dim_qk, head_dim_v, shape, q_tiles, paged };
    Kernel { name, role, targets: &[Target::Sm100f] }
}

macro_rules! kernel_table {
    ($(attention $name:ident, $paged:ident: $operand:ident, $qk:literal, $v:literal, $shape:ident, $q_tiles:literal;)*
     $(warpgroups $warpgroups:ident: $w_operand:ident, $w_qk:literal, $w_v:literal, $w_q_tiles:literal;)*
     $(tcgen05 $tcgen05:ident, $tcgen05_paged:ident: $t_operand:ident, $t_qk:literal, $t_v:literal, $t_q_tiles:literal;)*
     combine $combine:ident;
     merge $merge:ident;
     schedule $schedule:ident;
     $(read $read:ident: $unroll:literal;)*) => {
        /// Every kernel.
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
                    targets: Target::PORTABLE,
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
                    targets: Target::PORTABLE,
                },
            )*
            $(
                Kernel {
                    name: stringify!($warpgroups),
                    role: Role::Attention {
                        operand: Operand::$w_operand,
                        head_dim_qk: $w_qk,
                        head_dim_v: $w_v,
                        shape: BlockShape::Warpgroups,
                        q_tiles: $w_q_tiles,
                        paged: false,
                    },
                    targets: &[Target::Sm90a],
                },
            )*
            $(
                tensor_memory_kernel(stringify!($tcgen05), Operand::$t_operand, [$t_qk, $t_v], $t_q_tiles, false),
                tensor_memory_kernel(stringify!($tcgen05_paged), Operand::$t_operand, [$t_qk, $t_v], $t_q_tiles, true),
            )*
            Kernel { name: stringify!($combine), role: Role::Combine, targets: Target::PORTABLE },
            Kernel { name: stringify!($merge), role: Role::Merge, targets: Target::PORTABLE },
            Kernel { name: stringify!($schedule), role: Role::Schedule, targets: Target::PORTABLE },
            $(Kernel { name: stringify!($read), role: Role::Read { unroll: $unroll }, targets: Target::PORTABLE },)*
        ];
        const KERNEL_TEXT: &str = stringify!($($name $paged $operand $qk $v $shape $q_tiles)* $($warpgroups)* $($tcgen05 $tcgen05_paged)* $combine $merge $schedule $($read $unroll)*);
    };
}
for_each_kernel!(kernel_table);

/// Hash of everything that both sides must agree on: argument lists, kernels, tile sizes, the rule of ragged batches.
pub const HASH: u64 = {
    let lists = Fnv::new().text(ATTENTION_TEXT).text(COMBINE_TEXT).text(MERGE_TEXT).text(SCHEDULE_TEXT).text(READ_TEXT);
    let mut hash = lists.text(KERNEL_TEXT).text(include_str!("abi/schedule.rs"));
    let mut i = 0;
    while i < KERNELS.len() {
        let mut t = 0;
        while t < KERNELS[i].targets.len() {
            let target = KERNELS[i].targets[t];
            hash = hash.text(target.name()).kernel(&KERNELS[i], target.vendor());
            t += 1;
        }
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
