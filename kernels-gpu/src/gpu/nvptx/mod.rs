//! The vocabulary on NVIDIA GPUs: PTX instructions of sm_80 and later.
//!
//! One instruction a function. What computes on one lane is marked `pure`; what the whole warp executes
//! together is not, because LLVM does not treat inline assembly as convergent and might move it.

pub(crate) mod arguments;
pub(crate) mod copy;
mod element;
pub(crate) mod math;
pub(crate) mod matrix;
#[cfg(any(splitkv_target = "sm_90a", splitkv_target = "sm_100f"))]
pub(crate) mod mbarrier;
#[cfg(splitkv_target = "sm_90a")]
pub(crate) mod named_barrier;
pub(crate) mod query;
#[cfg(splitkv_target = "sm_90a")]
pub(crate) mod rendezvous;
pub(crate) mod ring;
pub(crate) mod shared;
#[cfg(splitkv_target = "sm_100f")]
pub(crate) mod tcgen05;
pub(crate) mod thread;
pub(crate) mod tile;
#[cfg(any(splitkv_target = "sm_90a", splitkv_target = "sm_100f"))]
pub(crate) mod tma;
pub(crate) mod warp;
#[cfg(any(splitkv_target = "sm_90a", splitkv_target = "sm_100f"))]
pub(crate) mod warpgroup;
#[cfg(splitkv_target = "sm_90a")]
pub(crate) mod wgmma;

/// Whose GPU this is.
pub(crate) const VENDOR: crate::abi::Vendor = crate::abi::Vendor::Nvidia;
