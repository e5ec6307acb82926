//! How the compiler is called for each target: everything that decides the artefacts, apart from the
//! sources, is in this file (the source hash covers it).

use kernels_gpu::abi::{Kernel, Target, Vendor};

/// The nightly that the kernels are tested with; `rust-toolchain.toml` names it too.
pub(crate) const TESTED_COMPILER: &str = "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)";

/// Loops over register arrays must unroll whole, or the arrays end up in local memory.
const UNROLL_THRESHOLD: u32 = 20_000;

/// LDS of a gfx950 compute unit in bytes.
const AMD_LDS_BYTES: u32 = 160 * 1024;
/// SIMDs (execution units) of a compute unit.
const AMD_SIMDS: u32 = 4;
/// Wavefronts that a SIMD holds at most.
const AMD_WAVES_PER_SIMD: u32 = 8;

/// rustc's name of the target.
pub(crate) fn triple(target: Target) -> &'static str {
    match target.vendor() {
        Vendor::Nvidia => "nvptx64-nvidia-cuda",
        Vendor::Amd => "amdgcn-amd-amdhsa",
    }
}

/// Flags for every crate of the device build, `core` included. The sources know the target by
/// `cfg(splitkv_target = "...")`.
pub(crate) fn shared(target: Target) -> Vec<String> {
    let mut flags = vec![format!("-Ctarget-cpu={}", target.name())];
    flags.push(format!("--cfg=splitkv_target=\"{}\"", target.name()));
    if matches!(target, Target::Sm90 | Target::Sm90a) {
        // Matrix products of e4m3 need PTX 8.4 (CUDA 12.4); LLVM's own choice for the architecture is older.
        flags.push("-Ctarget-feature=+ptx84".into());
    }
    flags
}

/// Flags for the kernels alone.
pub(crate) fn kernels(target: Target) -> Vec<String> {
    let mut flags = vec![format!("-Cllvm-args=-unroll-threshold={UNROLL_THRESHOLD}")];
    if target.vendor() == Vendor::Amd {
        // Else private arrays move into up to 64 KiB of LDS, unseen by the launch.
        flags.push("-Cllvm-args=-disable-promote-alloca-to-lds".into());
    }
    flags
}

/// Launch bounds of every kernel, as LLVM's `-forceattrs-csv-path` reads them: `function,attribute=value`.
pub(crate) fn launch_bounds(target: Target) -> String {
    target.kernels().flat_map(|kernel| kernel_bounds(kernel, target.vendor()).map(|line| line + "\n")).collect()
}

fn kernel_bounds(kernel: &Kernel, vendor: Vendor) -> [String; 2] {
    let (name, threads, min_blocks) = (kernel.name, kernel.threads(vendor), kernel.min_blocks(vendor));
    match vendor {
        Vendor::Nvidia => [format!("{name},nvvm.maxntid={threads}"), format!("{name},nvvm.minctasm={min_blocks}")],
        Vendor::Amd => {
            // LLVM does not see the LDS that a launch asks for, so it is told how many wavefronts fit.
            let warps = threads / vendor.warp_size();
            let fitting = AMD_LDS_BYTES / kernel.shared_bytes(vendor).max(1);
            let least = (min_blocks * warps).div_ceil(AMD_SIMDS);
            let most = fitting.saturating_mul(warps).div_ceil(AMD_SIMDS).min(AMD_WAVES_PER_SIMD);
            [
                format!("{name},amdgpu-flat-work-group-size={threads},{threads}"),
                format!("{name},amdgpu-waves-per-eu={least},{most}"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_abi_table() {
        let nvidia = launch_bounds(Target::Sm90);
        let amd = launch_bounds(Target::Gfx950);
        for kernel in Target::Sm90.kernels() {
            let threads = kernel.threads(Vendor::Nvidia);
            assert!(nvidia.contains(&format!("{},nvvm.maxntid={threads}\n", kernel.name)));
        }
        for kernel in Target::Gfx950.kernels() {
            let threads = kernel.threads(Vendor::Amd);
            assert!(amd.contains(&format!("{},amdgpu-flat-work-group-size={threads},{threads}\n", kernel.name)));
        }
        for kernel in Target::Gfx950.kernels() {
            let (blocks, threads) = (kernel.min_blocks(Vendor::Amd), kernel.threads(Vendor::Amd));
            assert!(blocks * kernel.shared_bytes(Vendor::Amd) <= AMD_LDS_BYTES, "{}", kernel.name);
            assert!(blocks * threads / 64 <= AMD_SIMDS * AMD_WAVES_PER_SIMD, "{}", kernel.name);
        }
        assert_eq!(nvidia.lines().count(), 2 * Target::Sm90.kernels().count());
        // 128 threads are 2 wavefronts; 8 such blocks are 16 on 4 SIMDs; 1 KiB of LDS limits nothing.
        assert!(amd.contains("combine,amdgpu-waves-per-eu=4,8\n"));
    }
}
