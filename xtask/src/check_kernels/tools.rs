//! Programs of the CUDA toolkit: those on PATH, or from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::{output, target_dir};

/// The version of the PyPI packages that are fetched.
const VERSION: &str = "13.5.37";

/// The program `name` on PATH, if `fits` says so; else the one of the PyPI package, fetched into the target folder once.
pub(crate) fn find(name: &str, package: &str, fits: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    if fits(Path::new(name)) {
        return Ok(name.into());
    }
    let folder = target_dir().join(format!("{name}-{VERSION}"));
    let program = folder.join("nvidia/cu13/bin").join(name);
    if !program.is_file() {
        eprintln!("no {name} on PATH that serves: fetching {package} {VERSION} from PyPI");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--upgrade", "--target"]);
        output(pip.arg(&folder).arg(format!("{package}=={VERSION}"))).with_context(|| {
            format!("no {name}: put that of CUDA 12.8 or newer on PATH, or make `python3 -m pip` work")
        })?;
    }
    Ok(program)
}
