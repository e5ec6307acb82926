//! splitkv's kernels, and the ABI that the host shares with them.
//!
//! For a GPU target this crate is the device code; for a host it is [`abi`] alone, on stable Rust.
#![cfg_attr(any(target_arch = "nvptx64", target_arch = "amdgpu"), no_std)]
#![cfg_attr(
    any(target_arch = "nvptx64", target_arch = "amdgpu"),
    feature(abi_gpu_kernel, gpu_intrinsics, gpu_launch_sized_workgroup_mem, core_intrinsics),
    allow(internal_features, reason = "device intrinsics have no stable face")
)]
#![cfg_attr(
    any(target_arch = "nvptx64", target_arch = "amdgpu"),
    allow(
        clippy::needless_range_loop,
        reason = "counted loops over arrays unroll into registers; iterators over arrays by value leave them in memory"
    )
)]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch, link_llvm_intrinsics, stdarch_nvptx))]
#![cfg_attr(
    target_arch = "amdgpu",
    feature(abi_unadjusted, f16, link_llvm_intrinsics, repr_simd, simd_ffi, stdarch_amdgpu)
)]
#![cfg_attr(
    any(splitkv_target = "sm_90a", splitkv_target = "sm_100f"),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "kernels for special targets need a part of the vocabulary"
    )
)]

pub mod abi;

#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
mod attention;
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
mod gpu;
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
pub mod kernels;
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
mod read;

/// Device code has no panic left to reach; the language wants a handler all the same.
#[cfg(any(target_arch = "nvptx64", target_arch = "amdgpu"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
