//! Compiles `kernels-gpu` for the GPU targets.
//!
//! One cargo build a target, side by side, each in a target folder of its own, so that no build waits for
//! or undoes another. PTX is cut into a file a kernel; AMD's kernels share a code object.

mod compile;
mod core_source;
mod flags;
mod install;
pub(crate) mod linker;
mod ptx;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use kernels_gpu::abi::Target;
use splitkv::manifest::{KernelEntry, Manifest, source_hash};

use crate::progress::{Progress, Task};
use crate::workspace::{output, root, target_dir, write_whole};
use core_source::CoreSource;

/// Compiles the kernels for some targets into a folder.
pub(crate) struct KernelBuilder {
    targets: Vec<Target>,
    out: PathBuf,
}

impl KernelBuilder {
    /// All targets, into `target/kernels`.
    pub(crate) fn new() -> Self {
        Self { targets: with_kernels(&Target::ALL), out: target_dir().join("kernels") }
    }

    /// These targets instead of all.
    pub(crate) fn targets(mut self, targets: &[Target]) -> Self {
        self.targets = with_kernels(targets);
        self
    }

    /// This folder instead of `target/kernels`.
    pub(crate) fn out_dir(mut self, out: PathBuf) -> Self {
        self.out = out;
        self
    }

    /// Compiles what is missing or stale and returns the folder with the artefacts. Other targets' artefacts
    /// there stay if they are fresh, and go if they are not.
    pub(crate) fn build(&self) -> Result<PathBuf> {
        let out = std::path::absolute(&self.out)?;
        let mut manifest = Manifest {
            format: Manifest::FORMAT,
            abi_hash: Manifest::abi_hash(),
            source_hash: source_hash(root()).context("cannot hash the kernels' sources")?,
            compiler: compiler()?,
            kernels: Vec::new(),
        };
        let fresh = fresh_entries(&out, &manifest);
        let wanted = |entry: &&KernelEntry| self.targets.iter().any(|target| target.name() == entry.target);
        let found = fresh.iter().filter(wanted).count();
        if found == self.targets.iter().map(|target| target.kernels().count()).sum::<usize>() {
            eprintln!("{found} kernels up to date in {}", out.display());
            return Ok(out);
        }

        let progress = Progress::new();
        let core = {
            let task = progress.task("core");
            let core = core_source::find(release(&manifest.compiler), |message| task.say(message))?;
            task.done("sources found");
            core
        };
        fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
        let built = thread::scope(|scope| {
            let start = |&target: &Target| {
                let task = progress.task(target.name());
                let (core, out) = (&core, &out);
                scope.spawn(move || build_target(target, core, out, &task))
            };
            let threads: Vec<_> = self.targets.iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("a build does not panic")).collect::<Vec<_>>()
        });

        // What was built is recorded even if another target failed.
        manifest.kernels = fresh.into_iter().filter(|entry| !wanted(&entry)).collect();
        let mut failure = Ok(());
        for entries in built {
            match entries {
                Ok(entries) => manifest.kernels.extend(entries),
                Err(error) => failure = failure.and(Err(error)),
            }
        }
        manifest.kernels.sort_by_key(|entry| Target::ALL.iter().position(|target| target.name() == entry.target));
        write_whole(&out.join(Manifest::FILE), serde_json::to_string_pretty(&manifest)?.as_bytes())?;
        failure?;
        eprintln!("{} kernels in {}", manifest.kernels.len(), out.display());
        Ok(out)
    }
}

/// Those of `targets` that there are kernels for, in the order of the table.
fn with_kernels(targets: &[Target]) -> Vec<Target> {
    Target::ALL.into_iter().filter(|t| targets.contains(t) && t.kernels().next().is_some()).collect()
}

/// The compiler's name and version. One other than the tested one gets a warning, a stable one an error.
fn compiler() -> Result<String> {
    let compiler = output(Command::new("rustc").arg("--version"))?.trim().to_owned();
    ensure!(
        compiler.contains("nightly"),
        "the kernels need a nightly compiler, this is {compiler}; without `+TOOLCHAIN`, rust-toolchain.toml chooses one"
    );
    if compiler != flags::TESTED_COMPILER {
        eprintln!("warning: this is {compiler}; the kernels are tested with {}", flags::TESTED_COMPILER);
    }
    Ok(compiler)
}

/// `1.97.0-nightly` of `rustc 1.97.0-nightly (...)`.
fn release(compiler: &str) -> &str {
    compiler.split_whitespace().nth(1).unwrap_or_default()
}

/// The entries of the manifest in `out` whose artefacts are there and were built from the same sources by the
/// same compiler as `now` states.
fn fresh_entries(out: &Path, now: &Manifest) -> Vec<KernelEntry> {
    let Ok(text) = fs::read_to_string(out.join(Manifest::FILE)) else { return Vec::new() };
    match serde_json::from_str::<Manifest>(&text) {
        Ok(old) if Manifest { kernels: Vec::new(), ..old.clone() } == *now => {
            old.kernels.into_iter().filter(|entry| out.join(&entry.file).is_file()).collect()
        }
        _ => Vec::new(),
    }
}

/// `cargo clippy` on the device code for `target`, warnings being errors.
pub(crate) fn clippy(target: Target) -> Result<Command> {
    let core = core_source::find(release(&compiler()?), |message| eprintln!("{message}"))?;
    let mut command = compile::device_cargo("clippy", target, &core);
    command.args(["--", "-Dwarnings"]);
    Ok(command)
}

/// Compiles for one target and puts the artefacts into `out/TARGET/`.
fn build_target(target: Target, core: &CoreSource, out: &Path, task: &Task) -> Result<Vec<KernelEntry>> {
    let result = compile::compile(target, core, task).and_then(|artefact| install::install(target, &artefact, out));
    task.done(if result.is_ok() { "built" } else { "failed" });
    result.with_context(|| format!("building the kernels for {}", target.name()))
}

#[cfg(test)]
mod tests {
    use kernels_gpu::abi::KERNELS;

    use super::*;

    #[test]
    fn entries_are_fresh_while_sources_compiler_and_file_are_the_same() {
        let out = std::env::temp_dir().join(format!("splitkv-fresh-{}", std::process::id()));
        fs::create_dir_all(&out).unwrap();
        let entry =
            |index: usize| KernelEntry::new(&KERNELS[index], Target::Sm90, format!("{}.ptx", KERNELS[index].name), 0);
        let old = Manifest {
            format: Manifest::FORMAT,
            abi_hash: Manifest::abi_hash(),
            source_hash: "1".into(),
            compiler: "rustc 1".into(),
            kernels: vec![entry(0), entry(1)],
        };
        let now = Manifest { kernels: Vec::new(), ..old.clone() };
        assert_eq!(fresh_entries(&out, &now), []);
        fs::write(out.join(Manifest::FILE), serde_json::to_string(&old).unwrap()).unwrap();
        assert_eq!(fresh_entries(&out, &now), [], "no artefact is there");
        fs::write(out.join(entry(1).file), "").unwrap();
        assert_eq!(fresh_entries(&out, &now), [entry(1)]);
        assert_eq!(fresh_entries(&out, &Manifest { source_hash: "2".into(), ..now.clone() }), []);
        assert_eq!(fresh_entries(&out, &Manifest { compiler: "rustc 2".into(), ..now }), []);
        fs::remove_dir_all(out).unwrap();
    }
}
