//! Runs the demonstration and the benchmarks, which are a program of their own that needs no Rust.

use std::ffi::OsStr;

use anyhow::Result;

use crate::build_kernels::KernelBuilder;
use crate::cuda::Cuda;
use crate::test::KERNELS_VARIABLE;
use crate::workspace::{cargo, run};

/// Builds the kernels and calls `splitkv-bench` with `arguments`.
pub(crate) fn bench(cuda: Cuda, arguments: &[impl AsRef<OsStr>]) -> Result<()> {
    let kernels = KernelBuilder::new().build()?;
    let mut command = cargo();
    command.args(["run", "--quiet", "--release", "--package=splitkv-bench"]);
    cuda.apply(&mut command)?;
    run(command.arg("--").args(arguments).env(KERNELS_VARIABLE, kernels))
}
