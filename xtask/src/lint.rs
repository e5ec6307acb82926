//! Format, documentation, clippy on the host and on both GPU targets, and the oldest supported stable compiler.

use std::process::Command;

use anyhow::{Result, bail};
use kernels_gpu::abi::Target;

use crate::build_kernels::{self, KernelBuilder};
use crate::cuda::Cuda;
use crate::test::KERNELS_VARIABLE;
use crate::workspace::{cargo, output, run, target_dir};

/// The packages that must check on stable Rust: all that runs where kernels are not built.
const STABLE_PACKAGES: [&str; 5] =
    ["splitkv", "splitkv-tests", "splitkv-emulator", "splitkv-emulator-driver", "kernels-gpu"];

/// One clippy run for each kind of device code.
const DEVICE_TARGETS: [Target; 4] = [Target::Sm90, Target::Sm90a, Target::Sm100f, Target::Gfx950];

/// Runs everything; an error names what failed.
pub(crate) fn lint() -> Result<()> {
    let mut failed = Vec::new();
    let mut step = |name: &str, command: Result<Command>| {
        eprintln!("== {name}");
        if let Err(error) = command.and_then(|mut command| run(&mut command)) {
            eprintln!("{error:#}");
            failed.push(name.to_owned());
        }
    };

    let mut format = cargo();
    format.args(["fmt", "--all", "--check"]);
    step("format", Ok(format));
    let mut documentation = cargo();
    documentation.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-Dwarnings");
    step("documentation", Ok(documentation));
    step("clippy", clippy(Cuda::Off));
    step("clippy, feature cuda", clippy(Cuda::On));
    step("clippy, feature embed-kernels", embedding_clippy());
    for target in DEVICE_TARGETS {
        step(&format!("clippy, device code for {}", target.name()), build_kernels::clippy(target));
    }
    match stable_toolchain() {
        Some(toolchain) => {
            let mut check = cargo();
            // In a target folder of its own, so that it leaves the nightly's alone.
            check.arg(format!("+{toolchain}")).arg("check").arg("--target-dir").arg(target_dir().join("stable"));
            check.args(STABLE_PACKAGES.map(|package| format!("--package={package}")));
            step(&format!("check on {toolchain}"), Ok(check));
        }
        None => eprintln!("== check on {}: not installed, skipped", stable_name()),
    }
    if !failed.is_empty() {
        bail!("lint failed: {}", failed.join("; "));
    }
    Ok(())
}

fn clippy(cuda: Cuda) -> Result<Command> {
    let mut command = cargo();
    command.args(["clippy", "--workspace", "--all-targets"]);
    cuda.apply(&mut command)?;
    command.args(["--", "-Dwarnings"]);
    Ok(command)
}

/// The library alone: it is what has the feature, which needs kernels.
fn embedding_clippy() -> Result<Command> {
    let kernels = KernelBuilder::new().build()?;
    let mut command = cargo();
    command.args(["clippy", "--package=splitkv", "--all-targets", "--features=embed-kernels", "--", "-Dwarnings"]);
    command.env(KERNELS_VARIABLE, kernels);
    Ok(command)
}

/// The workspace's `rust-version` as rustup names it.
fn stable_name() -> String {
    format!("{}.0", env!("CARGO_PKG_RUST_VERSION"))
}

/// That toolchain, if rustup has it.
fn stable_toolchain() -> Option<String> {
    let installed = output(Command::new("rustup").args(["toolchain", "list"])).ok()?;
    installed.lines().any(|line| line.starts_with(&stable_name())).then(stable_name)
}
