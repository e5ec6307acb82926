//! Compiled kernels: finding them, checking what they are, loading them when first used.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kernels_gpu::abi::{self, Kernel, Target};

use crate::artefacts::Artefacts;
use crate::driver::{DeviceId, Handle};
use crate::manifest::{KernelEntry, Manifest, source_hash};
use crate::{Catalogue, Device, Error, Result};

/// Compiled kernels for one target and the one that it is based on ([`Target::base`]), in a folder or in this program. Clones are the same kernels; files are read when a
/// device first needs them.
#[derive(Clone)]
pub struct Kernels(Arc<Inner>);

struct Inner {
    artefacts: Artefacts,
    source_hash: String,
    catalogue: Catalogue,
    /// File of each kernel of the catalogue, by name.
    files: HashMap<&'static str, String>,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<(DeviceId, String), Arc<Module>>,
    kernels: HashMap<(DeviceId, &'static str), Arc<LoadedKernel>>,
}

/// A file that is loaded on a device.
struct Module {
    device: Device,
    handle: Handle,
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it came from `module_load`, and whoever runs its kernels holds it.
        unsafe { self.device.driver().module_unload(self.handle) };
    }
}

/// A kernel that can be launched on one device.
pub(crate) struct LoadedKernel {
    pub(crate) function: Handle,
    _module: Arc<Module>,
}

impl Kernels {
    /// The kernels for `target` in `folder`.
    ///
    /// # Errors
    /// [`Error::KernelsNotFound`] without a manifest there, [`Error::BadManifest`], [`Error::ForeignKernels`] where
    /// they were built with another ABI table, [`Error::KernelsForOtherTargets`], [`Error::Io`].
    pub fn open(folder: impl AsRef<Path>, target: Target) -> Result<Self> {
        let folder = folder.as_ref();
        if !folder.join(Manifest::FILE).is_file() {
            return Err(Error::KernelsNotFound { target, searched: vec![folder.into()] });
        }
        Self::of(Artefacts::Folder(folder.into()), target)
    }

    /// The kernels for `target` that the feature `embed-kernels` put into this program.
    ///
    /// # Errors
    /// Those of [`Kernels::open`].
    #[cfg(feature = "embed-kernels")]
    pub fn embedded(target: Target) -> Result<Self> {
        Self::of(Artefacts::Embedded, target)
    }

    /// The kernels for `target` in the folder that the environment variable `SPLITKV_KERNELS` names. Where it is not
    /// set: those in this program, if it was built with the feature `embed-kernels`; else those in `target/kernels` of
    /// the current directory or the nearest one above that has it.
    ///
    /// # Errors
    /// Those of [`Kernels::open`]; [`Error::KernelsNotFound`] names every folder that was looked into.
    pub fn find(target: Target) -> Result<Self> {
        match Artefacts::find(target)? {
            Artefacts::Folder(folder) => Self::open(folder, target),
            embedded => Self::of(embedded, target),
        }
    }

    fn of(artefacts: Artefacts, target: Target) -> Result<Self> {
        let path = artefacts.path(Manifest::FILE);
        let manifest = parse_manifest(&artefacts.read(Manifest::FILE)?, &path)?;
        let folder = artefacts.place();
        if manifest.abi_hash != Manifest::abi_hash() {
            return Err(Error::ForeignKernels { folder, found: manifest.abi_hash, expected: Manifest::abi_hash() });
        }
        let (mut files, mut found) = (HashMap::new(), Vec::new());
        for entry in &manifest.kernels {
            let served = [Some(target), target.base()].into_iter().flatten().find(|t| t.name() == entry.target);
            if let Some(built_for) = served {
                files.insert(table_name(entry, built_for, &path)?, entry.file.clone());
            } else if !found.contains(&entry.target) {
                found.push(entry.target.clone());
            }
        }
        if files.is_empty() {
            return Err(Error::KernelsForOtherTargets { folder, target, found });
        }
        let kernels = abi::KERNELS.iter().filter(|kernel| files.contains_key(kernel.name)).copied().collect();
        Ok(Self(Arc::new(Inner {
            artefacts,
            source_hash: manifest.source_hash,
            catalogue: Catalogue::new(target, kernels),
            files,
            loaded: Mutex::default(),
        })))
    }

    /// Refuses kernels that were built from other sources than the checkout `workspace` has now.
    ///
    /// # Errors
    /// [`Error::StaleKernels`], or [`Error::Io`] where the sources cannot be read.
    pub fn check_fresh(&self, workspace: impl AsRef<Path>) -> Result<()> {
        let workspace = workspace.as_ref();
        let expected = source_hash(workspace).map_err(|source| Error::Io { path: workspace.into(), source })?;
        if expected == self.0.source_hash {
            return Ok(());
        }
        Err(Error::StaleKernels { folder: self.0.artefacts.place(), found: self.0.source_hash.clone(), expected })
    }

    /// The target on whose devices they run.
    pub fn target(&self) -> Target {
        self.0.catalogue.target()
    }

    /// What there is, for [`plan`](crate::plan()).
    pub fn catalogue(&self) -> &Catalogue {
        &self.0.catalogue
    }

    /// Where they were found: a folder; `None` where they are in this program.
    pub fn folder(&self) -> Option<&Path> {
        match &self.0.artefacts {
            Artefacts::Folder(folder) => Some(folder),
            Artefacts::Embedded => None,
        }
    }

    /// What a caller may ask for in place of a kernel that is not there.
    pub(crate) fn allowed(&self) -> String {
        format!("kernels that are in {}", self.0.artefacts.place().display())
    }

    /// Refuses `device` where these kernels do not run on it.
    pub(crate) fn check_target(&self, device: &Device) -> Result<()> {
        let (given, needed) = (self.target(), device.props().target);
        if given == needed {
            return Ok(());
        }
        let allowed = format!("those for {}, which {} needs", needed.name(), device.name());
        Err(Error::argument("kernels", format_args!("those for {}", given.name()), allowed))
    }

    /// The kernel, loaded on `device` (which has this target).
    pub(crate) fn load(&self, device: &Device, kernel: &Kernel) -> Result<Arc<LoadedKernel>> {
        let id = device.id();
        let mut loaded = self.0.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = loaded.kernels.get(&(id, kernel.name)) {
            return Ok(Arc::clone(kernel));
        }
        let Some(file) = self.0.files.get(kernel.name) else {
            return Err(Error::argument("plan", format_args!("one for {}", kernel.name), self.allowed()));
        };
        let module = match loaded.modules.get(&(id, file.clone())) {
            Some(module) => Arc::clone(module),
            None => {
                let handle = device.driver().module_load(&self.0.artefacts.read(file)?)?;
                let module = Arc::new(Module { device: device.clone(), handle });
                loaded.modules.insert((id, file.clone()), Arc::clone(&module));
                module
            }
        };
        let shared_bytes = kernel.shared_bytes(self.target().vendor());
        // SAFETY: the module lives.
        let function = unsafe { device.driver().module_function(module.handle, kernel.name, shared_bytes) }?;
        let loaded_kernel = Arc::new(LoadedKernel { function, _module: module });
        loaded.kernels.insert((id, kernel.name), Arc::clone(&loaded_kernel));
        Ok(loaded_kernel)
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernels({} in {})", self.target().name(), self.0.artefacts.place().display())
    }
}

fn parse_manifest(text: &[u8], path: &Path) -> Result<Manifest> {
    let bad = |problem: String| Error::BadManifest { path: path.into(), problem };
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
    // The format first: another one may lack fields, and should be called another one.
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(Manifest::FORMAT) => {}
        Some(format) => return Err(bad(format!("format {format}; this library reads {}", Manifest::FORMAT))),
        None => return Err(bad("no format number".into())),
    }
    serde_json::from_value(value).map_err(|error| bad(error.to_string()))
}

/// The name of `entry` in the ABI table. The hash of the table is right, so everything else has to be.
fn table_name(entry: &KernelEntry, target: Target, path: &Path) -> Result<&'static str> {
    let kernel = abi::KERNELS.iter().find(|kernel| kernel.name == entry.name);
    match kernel {
        Some(kernel)
            if kernel.targets.contains(&target)
                && KernelEntry::new(kernel, target, entry.file.clone(), entry.static_shared_bytes) == *entry =>
        {
            Ok(kernel.name)
        }
        _ => {
            let problem = format!("the entry of {} for {} is not the ABI table's", entry.name, entry.target);
            Err(Error::BadManifest { path: path.into(), problem })
        }
    }
}
