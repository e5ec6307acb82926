//! Finds the sources of `core`, which are compiled for each GPU target.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::workspace::{output, target_dir};

/// Debian's suites that may hold the package, the least far from a stable system first.
const DEBIAN_SUITES: [&str; 3] = ["trixie-backports", "forky", "sid"];
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The sources of `core`.
pub(crate) enum CoreSource {
    /// The toolchain's own: cargo finds them.
    Component,
    /// A `library` folder from elsewhere, which cargo must be told about.
    Folder(PathBuf),
}

impl CoreSource {
    /// Tells `cargo`, if it has to be told.
    pub(crate) fn apply(&self, cargo: &mut Command) {
        if let Self::Folder(library) = self {
            cargo.env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
        }
    }
}

/// The component if it is there; else has rustup add it; else unpacks Debian's package into the target
/// folder. `release` is the compiler's, such as `1.97.0-nightly`. `say` is told what takes time.
pub(crate) fn find(release: &str, say: impl Fn(&str)) -> Result<CoreSource> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let sysroot = Path::new(sysroot.trim());
    if has_component(sysroot) {
        return Ok(CoreSource::Component);
    }
    say("adding the component rust-src");
    let rustup = match add_component(sysroot) {
        Ok(()) => return Ok(CoreSource::Component),
        Err(error) => error,
    };
    say("fetching Debian's package rust-src");
    let debian = match debian_package(release) {
        Ok(library) => return Ok(CoreSource::Folder(library)),
        Err(error) => error,
    };
    Err(anyhow!(
        "the sources of `core` were not found. Tried:\n\
         1. the component in {}: not there\n\
         2. `rustup component add rust-src`: {rustup:#}\n\
         3. Debian's package rust-src: {debian:#}\n\
         What to do: install the component rust-src of the toolchain that runs `cargo xtask` \
         (`rustup component add rust-src`, or your distribution's package for Rust {release}), and try again.",
        sysroot.display()
    ))
}

fn has_component(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
}

fn add_component(sysroot: &Path) -> Result<()> {
    // A rustup toolchain's folder has its name.
    let toolchain = sysroot.file_name().context("the toolchain's folder has no name")?;
    output(Command::new("rustup").args(["component", "add", "rust-src", "--toolchain"]).arg(toolchain))?;
    ensure!(has_component(sysroot), "rustup added it, but it is not in {}", sysroot.display());
    Ok(())
}

/// Debian's package, fetched with apt but apart from the system's configuration and state, and unpacked.
fn debian_package(release: &str) -> Result<PathBuf> {
    let folder = target_dir().join("rust-src");
    if let Ok(library) = unpacked(&folder, release) {
        return Ok(library);
    }
    let mirror = debian_mirror()?;
    let mut failures = Vec::new();
    for suite in DEBIAN_SUITES {
        match fetch(&folder, &mirror, suite).and_then(|()| unpacked(&folder, release)) {
            Ok(library) => return Ok(library),
            Err(error) => failures.push(format!("{suite}: {error:#}")),
        }
    }
    bail!("{}", failures.join("; "))
}

/// The `library` folder below `folder` that belongs to the compiler's release.
fn unpacked(folder: &Path, release: &str) -> Result<PathBuf> {
    let minor = release.rsplit_once('.').map_or(release, |(minor, _)| minor);
    let sources = folder.join("usr/src");
    for entry in fs::read_dir(&sources).with_context(|| format!("{} is not there", sources.display()))? {
        let entry = entry?;
        let library = entry.path().join("library");
        if entry.file_name().to_string_lossy().starts_with(&format!("rustc-{minor}.")) && library.is_dir() {
            return Ok(library);
        }
    }
    bail!("it does not hold Rust {minor}")
}

/// The mirror that this machine's apt uses for Debian.
fn debian_mirror() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path()));
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "list" || extension == "sources"))
        .filter_map(|file| fs::read_to_string(file).ok())
        .find_map(|text| mirror_in(&text))
        .context("apt's sources name no Debian mirror")
}

/// The first Debian mirror in an apt sources file, of either format.
fn mirror_in(sources: &str) -> Option<String> {
    let lines = sources.lines().map(str::trim).filter(|line| line.starts_with("URIs:") || line.starts_with("deb "));
    let mut words = lines.flat_map(str::split_whitespace);
    words.find(|word| word.contains("://") && word.trim_end_matches('/').ends_with("/debian")).map(str::to_owned)
}

fn fetch(folder: &Path, mirror: &str, suite: &str) -> Result<()> {
    let apt = folder.join(format!("apt-{suite}"));
    fs::create_dir_all(apt.join("lists/partial"))?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    let sources = apt.join("sources.list");
    fs::write(&sources, format!("deb [signed-by={DEBIAN_KEYRING}] {mirror} {suite} main\n"))?;
    let apt_get = || {
        let mut command = Command::new("apt-get");
        command.current_dir(&apt).arg("-qq");
        command.arg("-o").arg(format!("Dir::Etc::sourcelist={}", sources.display()));
        command.args(["-o", "Dir::Etc::sourceparts=/dev/null"]);
        command.arg("-o").arg(format!("Dir::State::Lists={}", apt.join("lists").display()));
        command.arg("-o").arg(format!("Dir::Cache={}", apt.join("cache").display()));
        // The package is for every architecture; apt's own user cannot read the workspace everywhere.
        command.args(["-o", "APT::Sandbox::User=root"]);
        command
    };
    output(apt_get().arg("update"))?;
    output(apt_get().args(["download", "rust-src"]))?;
    let package = fs::read_dir(&apt)?.flatten().map(|entry| entry.path());
    let package = package.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = package.context("apt-get downloaded no package")?;
    output(Command::new("dpkg").arg("-x").arg(package).arg(folder))?;
    fs::remove_dir_all(&apt)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_formats() {
        let deb822 = "Types: deb\nURIs: http://mirror.example/debian-security\n\nURIs: http://mirror.example/debian/\n";
        assert_eq!(mirror_in(deb822).as_deref(), Some("http://mirror.example/debian/"));
        let list = "# deb http://old.example/debian x main\ndeb [arch=amd64] http://a.example/debian sid main\n";
        assert_eq!(mirror_in(list).as_deref(), Some("http://a.example/debian"));
        assert_eq!(mirror_in("deb http://a.example/ubuntu noble main\n"), None);
    }
    #[test]
    #[ignore = "downloads 46 MB; needs apt"]
    fn the_debian_package_holds_core() {
        let compiler = output(Command::new("rustc").arg("--version")).unwrap();
        let release = compiler.split_whitespace().nth(1).unwrap();
        let library = debian_package(release).unwrap();
        assert!(library.join("core/src/lib.rs").is_file());
    }
}
