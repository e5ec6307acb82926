//! splitkv's kernels, and the ABI that the host shares with them.
//!
//! For a GPU target this crate is the device code; for a host it is [`abi`] alone, on stable Rust.
#![cfg_attr(any(target_arch = "nvptx64", target_arch = "amdgpu"), no_std)]

pub mod abi;
