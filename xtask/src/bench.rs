//! Runs the demonstration and the benchmarks, which are a program of their own that needs no Rust.

use std::env;
use std::ffi::OsStr;

use anyhow::{Context, Result};

use crate::build_kernels::KernelBuilder;
use crate::cuda::Cuda;
use crate::test::KERNELS_VARIABLE;
use crate::workspace::{cargo, root, run};

/// Builds the kernels and calls `splitkv-bench` with `arguments`, in the caller's folder: paths are meant from there.
pub(crate) fn bench(cuda: Cuda, arguments: &[impl AsRef<OsStr>]) -> Result<()> {
    let kernels = KernelBuilder::new().build()?;
    let mut command = cargo();
    command.current_dir(env::current_dir().context("the current folder")?);
    command.arg("run").arg("--manifest-path").arg(root().join("Cargo.toml"));
    command.args(["--quiet", "--release", "--package=splitkv-bench"]);
    cuda.apply(&mut command)?;
    run(command.arg("--").args(arguments).env(KERNELS_VARIABLE, kernels))
}
