//! The vocabulary on AMD GPUs: instructions of gfx950 (CDNA4), waves of 64 lanes.
//!
//! One instruction a function. What LLVM has no name for in `core::arch::amdgpu` is declared where it is
//! used, under the intrinsic's LLVM name. LLVM knows which of them are convergent.

pub(crate) mod arguments;
pub(crate) mod copy;
mod element;
mod layout;
pub(crate) mod math;
pub(crate) mod matrix;
pub(crate) mod query;
pub(crate) mod ring;
pub(crate) mod shared;
pub(crate) mod thread;
pub(crate) mod tile;
pub(crate) mod warp;

/// Whose GPU this is.
pub(crate) const VENDOR: crate::abi::Vendor = crate::abi::Vendor::Amd;
