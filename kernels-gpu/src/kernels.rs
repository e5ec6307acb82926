//! The entry points: one for each line of the ABI table.

use crate::abi::{
    AttentionArguments, BlockShape, CombineArguments, Geometry, MergeArguments, Operand, Pointer, ReadArguments,
    ScheduleArguments, attention_arguments, combine_arguments, for_each_kernel, merge_arguments, read_arguments,
    schedule_arguments,
};
use crate::attention;
use crate::gpu::tile::{self, Element};
use crate::gpu::{VENDOR, warp};
use crate::read;

/// Defines an entry point that takes an argument list and passes it to `$body` as one value.
macro_rules! kernel {
    ($name:ident ($body:expr) $arguments:ident { $($(#[$doc:meta])* $argument:ident: $ty:ty,)* }) => {
        /// Entry point of the kernel of this name.
        ///
        /// # Safety
        /// The launch is as the ABI table says: grid, threads, shared memory, arguments.
        #[unsafe(no_mangle)]
        pub unsafe extern "gpu-kernel" fn $name($($argument: $ty),*) {
            let body = $body;
            // SAFETY: the caller's promise.
            unsafe { body($arguments { $($argument),* }) }
        }
    };
}

#[cfg(not(any(splitkv_target = "sm_90a", splitkv_target = "sm_100f")))]
macro_rules! attention {
    ($name:ident: $operand:ident, $qk:literal, $v:literal, $shape:ident, $q_tiles:literal, $paged:literal) => {
        attention_arguments!(kernel! $name ({
            const G: Geometry = Geometry::of(VENDOR, Operand::$operand, $qk, $v, BlockShape::$shape, $q_tiles);
            const { assert!(Geometry::rows(VENDOR, Operand::$operand) == <tile::$operand as Element>::M) };
            attention::forward::<
                tile::$operand,
                { $qk / <tile::$operand as Element>::DEPTH },
                { G.chunk as usize / <tile::$operand as Element>::COLUMNS },
                { $v / <tile::$operand as Element>::COLUMNS },
                { <tile::$operand as Element>::WEIGHTS },
                $q_tiles,
                { G.warps as usize },
                { G.stages as usize },
                { if matches!(BlockShape::$shape, BlockShape::SplitKv) { warp::SIZE } else { G.threads } },
                { G.query_in_shared },
                $paged,
            >
        }) AttentionArguments);
    };
}

#[cfg(splitkv_target = "sm_90a")]
macro_rules! attention {
    ($name:ident: $operand:ident, $qk:literal, $v:literal, $q_tiles:literal) => {
        attention_arguments!(kernel! $name ({
            const { assert!(Geometry::of(VENDOR, Operand::$operand, $qk, $v, BlockShape::Warpgroups, $q_tiles).stages > 0) };
            attention::warpgroups::<tile::$operand>
        }) AttentionArguments);
    };
}

#[cfg(splitkv_target = "sm_100f")]
macro_rules! attention {
    ($name:ident: $operand:ident, $qk:literal, $v:literal, $q_tiles:literal, $paged:literal) => {
        attention_arguments!(kernel! $name (
            attention::tensor_memory::<tile::$operand, $qk, $v, $q_tiles, $paged>
        ) AttentionArguments);
    };
}

/// The kernels of this target.
macro_rules! define_kernels {
    ($(attention $name:ident, $paged:ident: $operand:ident, $qk:literal, $v:literal, $shape:ident, $q_tiles:literal;)*
     $(warpgroups $warpgroups:ident: $w_operand:ident, $w_qk:literal, $w_v:literal, $w_q_tiles:literal;)*
     $(tcgen05 $tcgen05:ident, $tcgen05_paged:ident: $t_operand:ident, $t_qk:literal, $t_v:literal, $t_q_tiles:literal;)*
     combine $combine:ident;
     merge $merge:ident;
     schedule $schedule:ident;
     $(read $read:ident: $unroll:literal;)*) => {
        #[cfg(not(any(splitkv_target = "sm_90a", splitkv_target = "sm_100f")))]
        pub mod portable {
            //! Those of portable targets.
            use super::*;
            $(
                attention!($name: $operand, $qk, $v, $shape, $q_tiles, false);
                attention!($paged: $operand, $qk, $v, $shape, $q_tiles, true);
            )*
            combine_arguments!(kernel! $combine (attention::combine) CombineArguments);
            merge_arguments!(kernel! $merge (attention::merge_partials) MergeArguments);
            schedule_arguments!(kernel! $schedule (attention::schedule) ScheduleArguments);
            $(read_arguments!(kernel! $read (read::read::<$unroll>) ReadArguments);)*
        }
        #[cfg(splitkv_target = "sm_90a")]
        pub mod special {
            //! Those of this special target.
            use super::*;
            $(attention!($warpgroups: $w_operand, $w_qk, $w_v, $w_q_tiles);)*
        }
        #[cfg(splitkv_target = "sm_100f")]
        pub mod special {
            //! Those of this special target.
            use super::*;
            $(
                attention!($tcgen05: $t_operand, $t_qk, $t_v, $t_q_tiles, false);
                attention!($tcgen05_paged: $t_operand, $t_qk, $t_v, $t_q_tiles, true);
            )*
        }
    };
}
for_each_kernel!(define_kernels);
