//! Building the library's feature `cuda` on any machine.
//!
//! cust links libcuda, which comes with NVIDIA's driver. What is linked here is the emulator behind the same functions
//! (`emulator/driver`), under the same name for the loader; a program loads NVIDIA's library when it runs. Where it is
//! to load the emulator, it is told so by [`Emulated::apply`].

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::{cargo, output, run, target_dir};

/// The name under which the dynamic loader looks for NVIDIA's library.
const CUDA_LIBRARY: &str = "libcuda.so.1";
/// The name under which the host library looks first for AMD's library.
const HIP_LIBRARY: &str = "libamdhip64.so.8";
/// The dynamic loader looks in these folders first.
const LOADER_VARIABLE: &str = "LD_LIBRARY_PATH";

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

    /// Adds the feature to a cargo call that selects packages, and what to link with.
    pub(crate) fn apply(self, cargo: &mut Command) -> Result<()> {
        if self == Self::On {
            Emulated::build()?.link(cargo);
        }
        Ok(())
    }
}

/// Whether the dynamic loader would find the driver's library.
fn driver_found() -> bool {
    let paths = env::var_os(LOADER_VARIABLE).unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(CUDA_LIBRARY).exists())
        || output(Command::new("ldconfig").arg("-p")).is_ok_and(|cache| cache.contains(CUDA_LIBRARY))
}

/// The emulator behind the functions of both makers' drivers.
pub(crate) struct Emulated {
    /// Has two folders apart, because cargo puts the one that is linked from where the loader looks: `lib64` with the
    /// name that the linker looks for, `load` with those that the loader looks for.
    folder: PathBuf,
}

impl Emulated {
    /// The devices that programs find when they load it.
    pub(crate) const DEVICES: &str = "cuda:0,hip:0";

    pub(crate) fn build() -> Result<Self> {
        let built = Self { folder: target_dir().join("emulated-driver") };
        let library = target_dir().join("release/libsplitkv_emulator_driver.so");
        for name in ["lib64/libcuda.so", &format!("load/{CUDA_LIBRARY}"), &format!("load/{HIP_LIBRARY}")] {
            let link = built.folder.join(name);
            if fs::read_link(&link).is_ok_and(|linked| linked == library) {
                continue;
            }
            fs::create_dir_all(link.parent().unwrap_or(&built.folder))?;
            // What a workspace that was moved has left, if anything.
            let _ = fs::remove_file(&link);
            symlink(&library, &link).with_context(|| format!("linking {}", link.display()))?;
        }
        let mut command = cargo();
        command.args(["build", "--quiet", "--release", "--target-dir"]).arg(target_dir());
        // In one call with what is linked with it, so that both get the same build of the emulator.
        command.args(["splitkv-emulator-driver", "splitkv", "splitkv-tests"].map(|name| format!("--package={name}")));
        built.link(&mut command);
        run(&mut command).context("building the emulator behind the drivers' functions")?;
        Ok(built)
    }

    fn link(&self, cargo: &mut Command) {
        cargo.args(["--features", "splitkv/cuda"]).env("CUDA_LIBRARY_PATH", &self.folder);
    }

    /// Makes a cargo call that selects packages use the drivers' files, over the emulator.
    pub(crate) fn apply(&self, cargo: &mut Command) -> Result<()> {
        self.link(cargo);
        let paths = env::var_os(LOADER_VARIABLE).unwrap_or_default();
        let paths = env::join_paths([self.folder.join("load")].into_iter().chain(env::split_paths(&paths)))?;
        cargo.env(LOADER_VARIABLE, paths);
        Ok(())
    }
}
