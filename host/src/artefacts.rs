//! Where compiled kernels come from: a folder, or this very program.

use std::path::PathBuf;
use std::{env, fs, io};

use kernels_gpu::abi::Target;

use crate::manifest::Manifest;
use crate::{Error, Result};

/// The environment variable that names a folder of compiled kernels.
const FOLDER_VARIABLE: &str = "SPLITKV_KERNELS";
/// Where a checkout has its compiled kernels.
const FOLDER: &str = "target/kernels";
/// What stands for a folder in messages about files that are in the program.
const EMBEDDED: &str = "(in this program)";

/// A manifest and the files that it lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Artefacts {
    /// Files of a folder.
    Folder(PathBuf),
    /// Files that the feature `embed-kernels` compressed into this program.
    Embedded,
}

impl Artefacts {
    /// The folder that the environment variable names; where it is not set, this program, if it was built with kernels;
    /// else the nearest [`FOLDER`] of the current directory and those above.
    pub(crate) fn find(target: Target) -> Result<Self> {
        match env::var_os(FOLDER_VARIABLE) {
            Some(folder) => Ok(Self::Folder(folder.into())),
            None if cfg!(feature = "embed-kernels") => Ok(Self::Embedded),
            None => Self::nearest(target),
        }
    }

    fn nearest(target: Target) -> Result<Self> {
        let here = env::current_dir().map_err(|source| Error::Io { path: ".".into(), source })?;
        let folders: Vec<_> = here.ancestors().map(|above| above.join(FOLDER)).collect();
        match folders.iter().find(|folder| folder.join(Manifest::FILE).is_file()) {
            Some(folder) => Ok(Self::Folder(folder.clone())),
            None => Err(Error::KernelsNotFound { target, searched: folders }),
        }
    }

    /// The folder, or what stands for it.
    pub(crate) fn place(&self) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.clone(),
            Self::Embedded => EMBEDDED.into(),
        }
    }

    /// Where the file is that the manifest calls `name`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place().join(name)
    }

    /// The contents of a file.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let contents = match self {
            Self::Folder(folder) => fs::read(folder.join(name)),
            Self::Embedded => embedded(name),
        };
        contents.map_err(|source| Error::Io { path: self.path(name), source })
    }
}

/// Names and compressed contents of the files in this program, written by the build script.
#[cfg(feature = "embed-kernels")]
pub(crate) static FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

#[cfg(feature = "embed-kernels")]
fn embedded(name: &str) -> io::Result<Vec<u8>> {
    use std::io::Read as _;

    let (_, packed) = FILES.iter().find(|(file, _)| *file == name).ok_or(io::ErrorKind::NotFound)?;
    let mut contents = Vec::new();
    flate2::read::DeflateDecoder::new(*packed).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(not(feature = "embed-kernels"))]
fn embedded(_: &str) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::NotFound.into())
}
