//! Calls cargo for the device code.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use kernels_gpu::abi::{Target, Vendor};

use super::core_source::CoreSource;
use super::{flags, linker};
use crate::progress::Task;
use crate::workspace::{cargo, target_dir, write_whole};

/// Each target has a target folder of its own.
fn build_folder(target: Target) -> PathBuf {
    target_dir().join("kernels-build").join(target.name())
}

/// A cargo call on the device code for `target`.
pub(super) fn device_cargo(subcommand: &str, target: Target, core: &CoreSource) -> Command {
    let mut command = cargo();
    core.apply(&mut command);
    // The user's RUSTFLAGS are meant for the host.
    command.env("CARGO_ENCODED_RUSTFLAGS", flags::shared(target).join("\u{1f}"));
    command.args([subcommand, "--package=kernels-gpu", "--lib", "--profile=kernels", "-Zbuild-std=core"]);
    command.args(["--target", flags::triple(target), "--target-dir"]).arg(build_folder(target));
    command
}

/// Runs cargo; returns the path of the PTX text or code object.
pub(super) fn compile(target: Target, core: &CoreSource, task: &Task) -> Result<PathBuf> {
    let folder = build_folder(target);
    fs::create_dir_all(&folder)?;
    // Cargo does not look into the file, so its name tells one content from another.
    let bounds = flags::launch_bounds(target);
    let mut hasher = DefaultHasher::new();
    bounds.hash(&mut hasher);
    let bounds_file = folder.join(format!("launch-bounds-{:016x}.csv", hasher.finish()));
    write_whole(&bounds_file, bounds.as_bytes())?;

    let mut command = device_cargo("rustc", target, core);
    command.args(["--color=never", "--crate-type=cdylib", "--"]).args(flags::kernels(target));
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
