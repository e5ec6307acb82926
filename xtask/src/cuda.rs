//! Building the library's feature `cuda` on any machine.
//!
//! cust links libcuda, which comes with NVIDIA's driver. To link without one, a stand-in is made that has
//! the same name and exports what cust_raw declares; programs linked with it load the driver's library.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::workspace::{cargo, output, target_dir};

/// The name under which the dynamic loader looks for the driver's library.
const LIBRARY: &str = "libcuda.so.1";

/// Whether to build with the feature `cuda`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cuda {
    On,
    Off,
}

impl Cuda {
    /// On if it was asked for, or if there is a driver.
    pub(crate) fn choose(asked_for: bool) -> Self {
        if asked_for || driver_found() { Self::On } else { Self::Off }
    }

    /// Adds the feature to a cargo call that selects packages, and the stand-in to link with.
    pub(crate) fn apply(self, cargo: &mut Command) -> Result<()> {
        if self == Self::On {
            cargo.args(["--features", "splitkv/cuda"]).env("CUDA_LIBRARY_PATH", stand_in()?);
        }
        Ok(())
    }
}

/// Whether the dynamic loader would find the driver's library.
fn driver_found() -> bool {
    let paths = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(LIBRARY).exists())
        || output(Command::new("ldconfig").arg("-p")).is_ok_and(|cache| cache.contains(LIBRARY))
}

/// The folder that `CUDA_LIBRARY_PATH` has to name; makes the library in it if need be.
fn stand_in() -> Result<PathBuf> {
    let folder = target_dir().join("cuda-stand-in");
    let library = folder.join("lib64/libcuda.so");
    let source_file = folder.join("libcuda.rs");
    let source = source(&bindings()?)?;
    if library.is_file() && fs::read_to_string(&source_file).is_ok_and(|old| old == source) {
        return Ok(folder);
    }
    fs::create_dir_all(folder.join("lib64"))?;
    fs::write(&source_file, source)?;
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=cuda", "-Cpanic=abort", "-O"]);
    rustc.arg(format!("-Clink-arg=-Wl,-soname,{LIBRARY}"));
    output(rustc.arg("-o").arg(&library).arg(&source_file)).context("making something to link instead of libcuda")?;
    Ok(folder)
}

/// cust_raw's declarations.
fn bindings() -> Result<String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
    }
    let metadata = output(cargo().args(["metadata", "--format-version=1", "--all-features", "--locked"]))?;
    let metadata: Metadata = serde_json::from_str(&metadata).context("cannot read cargo's metadata")?;
    let package = metadata.packages.into_iter().find(|package| package.name == "cust_raw");
    let package = package.context("the feature `cuda` does not depend on cust_raw")?.manifest_path;
    let file = package.parent().unwrap_or(Path::new(".")).join("src/cuda.rs");
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// A library that exports every function of `bindings` and implements none: each returns
/// CUDA_ERROR_UNKNOWN.
fn source(bindings: &str) -> Result<String> {
    let functions = bindings.lines().filter_map(|line| line.trim_start().strip_prefix("pub fn cu"));
    let mut names: Vec<_> = functions.filter_map(|tail| tail.split('(').next()).collect();
    names.sort_unstable();
    names.dedup();
    ensure!(names.len() > 100, "only {} functions in cust_raw's bindings: their format changed", names.len());
    let mut source =
        String::from("#![no_std]\n#[panic_handler]\nfn panic(_: &core::panic::PanicInfo) -> ! { loop {} }\n");
    for name in names {
        source += &format!("#[unsafe(no_mangle)] extern \"C\" fn cu{name}() -> u32 {{ 999 }}\n");
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_declared_function_is_exported_once() {
        let declare = |i| format!("extern \"C\" {{\n    pub fn cuCall{i}(\n        x: u32,\n    ) -> CUresult;\n}}\n");
        let bindings: String = (0..150).chain(0..10).map(declare).collect();
        let source = source(&bindings).unwrap();
        assert_eq!(source.matches("no_mangle").count(), 150);
        assert!(source.contains("fn cuCall149() -> u32"));
        assert!(super::source("pub fn other();").unwrap_err().to_string().contains("0 functions"));
    }
}
