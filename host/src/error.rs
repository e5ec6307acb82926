//! What can go wrong, in one enum.

use std::path::PathBuf;

use kernels_gpu::abi::Target;

/// Result of this crate's calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument was refused before anything was done.
    #[error("{argument}: given {given}; allowed: {allowed}")]
    Argument {
        /// The argument's name, as the API spells it: `heads`, `q.strides`, `splits`, `workspace`, ...
        argument: &'static str,
        /// What was given.
        given: String,
        /// What would have been accepted.
        allowed: String,
    },

    /// No folder with compiled kernels was found.
    #[error(
        "no compiled kernels for {}: no manifest.json in {}; build them with `cargo xtask build-kernels`, or name \
         their folder in SPLITKV_KERNELS",
        .target.name(), list(.searched)
    )]
    KernelsNotFound {
        /// The target that was looked for.
        target: Target,
        /// The folders that were looked into.
        searched: Vec<PathBuf>,
    },
    /// A folder of compiled kernels has none for this target.
    #[error("the kernels in {} were built for {}, not for {}", .folder.display(), or_nothing(.found), .target.name())]
    KernelsForOtherTargets {
        /// The folder.
        folder: PathBuf,
        /// The target that was asked for.
        target: Target,
        /// The targets that the folder has.
        found: Vec<String>,
    },
    /// The kernels were built with another ABI table than this library.
    #[error(
        "the kernels in {} have ABI hash {found}, this library has {expected}: rebuild them with \
         `cargo xtask build-kernels`",
        .folder.display()
    )]
    ForeignKernels {
        /// The folder.
        folder: PathBuf,
        /// The manifest's hash.
        found: String,
        /// This library's hash.
        expected: String,
    },
    /// The kernels were built from other sources than the checkout has now.
    #[error(
        "the kernels in {} were built from sources with hash {found}, the checkout has {expected}: rebuild them with \
         `cargo xtask build-kernels`",
        .folder.display()
    )]
    StaleKernels {
        /// The folder.
        folder: PathBuf,
        /// The manifest's hash.
        found: String,
        /// The checkout's hash.
        expected: String,
    },
    /// A manifest says something that cannot be true.
    #[error("{}: {problem}", .path.display())]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the compiled kernels cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },

    /// The device does not exist, or its driver is not there.
    #[error("no device {name}: {reason}")]
    NoDevice {
        /// What was asked for.
        name: String,
        /// What was found instead.
        reason: String,
    },
    /// The device exists, but kernels are not built for its architecture.
    #[error("{device} is {found}; kernels are built for sm_90, sm_100 (and later NVIDIA architectures) and gfx950")]
    UnsupportedArchitecture {
        /// The device.
        device: String,
        /// Its architecture.
        found: String,
    },
    /// The device has not enough free memory.
    #[error("{device} has no {bytes} bytes of free memory")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was asked for.
        bytes: usize,
    },
    /// A call into the driver failed. Faults of earlier asynchronous work come out here as well.
    #[error("{device}: {call} failed: {code} ({name}): {message}")]
    Driver {
        /// The device.
        device: String,
        /// The driver's function.
        call: &'static str,
        /// Its error code.
        code: i32,
        /// The code's name.
        name: String,
        /// The driver's explanation, and the compiler's log where there is one.
        message: String,
    },
    /// The emulator refused a call, or found a fault in a kernel.
    #[cfg(feature = "emulator")]
    #[error("{device}: {source}")]
    Emulator {
        /// The device.
        device: String,
        /// What it found.
        source: splitkv_emulator::Error,
    },
    /// The driver lacks something that this call needs.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// What it lacks.
        what: &'static str,
    },
}

impl Error {
    /// An [`Error::Argument`].
    pub(crate) fn argument(
        argument: &'static str,
        given: impl std::fmt::Display,
        allowed: impl std::fmt::Display,
    ) -> Self {
        Self::Argument { argument, given: given.to_string(), allowed: allowed.to_string() }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    or_nothing(&names)
}

fn or_nothing(names: &[String]) -> String {
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}
