//! Compiles `kernels-gpu` for the GPU targets.
//!
//! One cargo build a target, side by side, each in a target folder of its own, so that no build waits for
//! or undoes another. PTX is cut into a file a kernel; AMD's kernels share a code object.

mod core_source;
pub(crate) mod flags;
pub(crate) mod linker;
mod ptx;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use kernels_gpu::abi::{KERNELS, Target, Vendor};
use splitkv::manifest::{KernelEntry, Manifest, source_hash};

use crate::code_object;
use crate::progress::{Progress, Task};
use crate::workspace::{cargo, output, root, target_dir};
use core_source::CoreSource;

/// Compiles the kernels for some targets into a folder.
pub(crate) struct KernelBuilder {
    targets: Vec<Target>,
    out: PathBuf,
}

impl KernelBuilder {
    /// All targets, into `target/kernels`.
    pub(crate) fn new() -> Self {
        Self { targets: Target::ALL.to_vec(), out: target_dir().join("kernels") }
    }

    /// These targets instead of all.
    pub(crate) fn targets(mut self, targets: &[Target]) -> Self {
        self.targets = Target::ALL.into_iter().filter(|target| targets.contains(target)).collect();
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
        if found == self.targets.len() * KERNELS.len() {
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

        manifest.kernels = fresh.into_iter().filter(|entry| !wanted(&entry)).collect();
        for entries in built {
            manifest.kernels.extend(entries?);
        }
        manifest.kernels.sort_by_key(|entry| Target::ALL.iter().position(|target| target.name() == entry.target));
        write(&out.join(Manifest::FILE), serde_json::to_string_pretty(&manifest)?.as_bytes())?;
        eprintln!("{} kernels in {}", manifest.kernels.len(), out.display());
        Ok(out)
    }
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

/// Compiles for one target and puts the artefacts into `out/TARGET/`.
fn build_target(target: Target, core: &CoreSource, out: &Path, task: &Task) -> Result<Vec<KernelEntry>> {
    let folder = out.join(target.name());
    let result = compile(target, core, task).and_then(|artefact| {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        match target.vendor() {
            Vendor::Nvidia => install_ptx(target, &artefact, &folder),
            Vendor::Amd => install_code_object(target, &artefact, &folder),
        }
    });
    match &result {
        Ok(_) => task.done("built"),
        Err(_) => task.done("failed"),
    }
    result.with_context(|| format!("building the kernels for {}", target.name()))
}

/// Runs cargo; returns the path of the PTX text or code object.
fn compile(target: Target, core: &CoreSource, task: &Task) -> Result<PathBuf> {
    let folder = target_dir().join("kernels-build").join(target.name());
    fs::create_dir_all(&folder)?;
    // Cargo does not look into the file, so its name tells one content from another.
    let bounds = flags::launch_bounds(target);
    let mut hasher = DefaultHasher::new();
    bounds.hash(&mut hasher);
    let bounds_file = folder.join(format!("launch-bounds-{:016x}.csv", hasher.finish()));
    write(&bounds_file, bounds.as_bytes())?;

    let mut command = cargo();
    core.apply(&mut command);
    // The user's RUSTFLAGS are meant for the host.
    command.env("CARGO_ENCODED_RUSTFLAGS", flags::shared(target).join("\u{1f}"));
    command.args(["rustc", "--color=never", "--package=kernels-gpu", "--lib", "--crate-type=cdylib"]);
    command.args(["--profile=kernels", "-Zbuild-std=core", "--target", flags::triple(target), "--target-dir"]);
    command.arg(&folder).arg("--").args(flags::kernels(target));
    command.arg(format!("-Cllvm-args=-forceattrs-csv-path={}", bounds_file.display()));
    let artefact = match target.vendor() {
        Vendor::Nvidia => {
            let assembly = folder.join("kernels.ptx");
            let linker = std::env::current_exe().context("this program's path is unknown")?;
            command.arg(format!("--emit=asm={}", assembly.display()));
            command.arg(format!("-Clinker={}", linker.display())).arg(format!("-Clink-arg={}", linker::FLAG));
            assembly
        }
        Vendor::Amd => folder.join(flags::triple(target)).join("kernels/kernels_gpu.elf"),
    };
    run_cargo(&mut command, task)?;
    ensure!(artefact.is_file(), "cargo made no {}: remove {} and try again", artefact.display(), folder.display());
    Ok(artefact)
}

/// Runs cargo and shows which crate it is at. Diagnostics come at the end, in one piece.
fn run_cargo(command: &mut Command, task: &Task) -> Result<()> {
    task.say("compiling");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot run cargo")?;
    let mut diagnostics = String::new();
    for line in BufReader::new(child.stderr.take().expect("stderr is piped")).lines() {
        let line = line?;
        let words = line.trim_start();
        match words.split_whitespace().next() {
            Some("Compiling") => {
                task.say(&words.split_whitespace().take(2).collect::<Vec<_>>().join(" ").to_lowercase());
            }
            Some("Updating" | "Downloading") => task.say(words),
            Some("Downloaded" | "Locking" | "Adding" | "Blocking" | "Finished") => {}
            // LLVM says so of every crate and module that does not hold all kernels.
            _ if line.starts_with("Function in CSV file") => {}
            _ => diagnostics += &format!("{line}\n"),
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cargo failed ({status})\n{}", diagnostics.trim_end());
    }
    if !diagnostics.trim().is_empty() {
        task.print(diagnostics.trim_end());
    }
    Ok(())
}

/// Cuts the PTX, checks it against the table, writes a file a kernel.
fn install_ptx(target: Target, ptx: &Path, folder: &Path) -> Result<Vec<KernelEntry>> {
    let mut modules = ptx::split(&fs::read_to_string(ptx)?)?;
    let mut entries = Vec::new();
    for kernel in KERNELS {
        let Some(module) = modules.remove(kernel.name) else { bail!("the PTX has no kernel {}", kernel.name) };
        let bound = format!(".maxntid {}", kernel.threads(target.vendor()));
        ensure!(module.text.contains(&bound), "{} was compiled without its launch bound `{bound}`", kernel.name);
        let file = format!("{}.ptx", kernel.name);
        write(&folder.join(&file), module.text.as_bytes())?;
        let file = format!("{}/{file}", target.name());
        entries.push(KernelEntry::new(kernel, target, file, module.static_shared_bytes));
    }
    let extra: Vec<_> = modules.into_keys().collect();
    ensure!(extra.is_empty(), "kernels that the ABI table does not list: {}", extra.join(", "));
    Ok(entries)
}

/// Checks the code object against the table and copies it.
fn install_code_object(target: Target, elf: &Path, folder: &Path) -> Result<Vec<KernelEntry>> {
    let elf = fs::read(elf)?;
    let mut found: BTreeMap<_, _> =
        code_object::kernels(&elf)?.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect();
    let mut entries = Vec::new();
    for kernel in KERNELS {
        let Some(metadata) = found.remove(kernel.name) else { bail!("the code object has no kernel {}", kernel.name) };
        let (bound, threads) = (metadata.max_flat_workgroup_size, kernel.threads(target.vendor()));
        ensure!(bound == threads, "{} was compiled for {bound} threads, not {threads}", kernel.name);
        let file = format!("{}/kernels.elf", target.name());
        entries.push(KernelEntry::new(kernel, target, file, metadata.group_segment_fixed_size));
    }
    let extra: Vec<_> = found.into_keys().collect();
    ensure!(extra.is_empty(), "kernels that the ABI table does not list: {}", extra.join(", "));
    write(&folder.join("kernels.elf"), &elf)?;
    Ok(entries)
}

/// Writes a file whole or not at all.
fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, contents)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("writing {}", path.display()))
}
