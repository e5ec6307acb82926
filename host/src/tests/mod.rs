//! The library over a device that executes nothing and remembers everything.

#[cfg(all(feature = "embed-kernels", feature = "emulator"))]
mod embedded;
mod executor;
mod kernels;
mod recorder;
mod stream;
mod tensor;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use kernels_gpu::abi;

use self::recorder::Recorder;
use crate::manifest::{KernelEntry, Manifest};
use crate::{Catalogue, Device, DeviceProps, Error, Kernels, Result, Target};

/// A device and what it remembers.
fn device(target: Target) -> (Device, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::new(DeviceProps::of(target)));
    (Device::from_driver(recorder.clone()), recorder)
}

/// A folder that is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("splitkv-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// A folder with every kernel of the table for `target`, each a file of its own with its name as contents.
    fn with_kernels(target: Target) -> Self {
        let folder = Self::new();
        folder.write(&manifest(target));
        for kernel in Catalogue::of(target).kernels() {
            fs::write(folder.0.join(format!("{}.bin", kernel.name)), kernel.name).unwrap();
        }
        folder
    }

    fn write(&self, manifest: &Manifest) {
        fs::write(self.0.join(Manifest::FILE), serde_json::to_string(manifest).unwrap()).unwrap();
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn manifest(target: Target) -> Manifest {
    let entry = |kernel: &abi::Kernel, target| KernelEntry::new(kernel, target, format!("{}.bin", kernel.name), 0);
    let targets = [Some(target), target.base()].into_iter().flatten();
    Manifest {
        format: Manifest::FORMAT,
        abi_hash: Manifest::abi_hash(),
        source_hash: "5".repeat(32),
        compiler: "rustc".into(),
        kernels: targets.flat_map(|target| target.kernels().map(move |kernel| entry(kernel, target))).collect(),
    }
}

/// All kernels for `target`. The files are only read when they are loaded, so the folder has to stay.
fn kernels(target: Target) -> (Kernels, Folder) {
    let folder = Folder::with_kernels(target);
    (Kernels::open(folder.path(), target).unwrap(), folder)
}

/// The name of the argument that was refused, and the whole message.
fn refused<T>(result: Result<T>) -> (&'static str, String) {
    match result {
        Err(error @ Error::Argument { argument, .. }) => (argument, error.to_string()),
        Err(error) => panic!("expected a refused argument, got {error}"),
        Ok(_) => panic!("expected a refused argument"),
    }
}
