//! The project's tasks: `cargo xtask --help`.

mod build_kernels;
mod code_object;
mod progress;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kernels_gpu::abi::Target;

use build_kernels::{KernelBuilder, linker};

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Compile the kernels: PTX for NVIDIA, a code object for AMD, and manifest.json.
    BuildKernels {
        /// Compile for this GPU architecture only (may be given several times) [default: all].
        #[arg(long = "target", value_parser = parse_target, value_name = "sm_90|sm_100|gfx950")]
        targets: Vec<Target>,
        /// Folder for the artefacts [default: target/kernels].
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

fn parse_target(name: &str) -> Result<Target, String> {
    Target::ALL
        .into_iter()
        .find(|target| target.name() == name)
        .ok_or_else(|| format!("`{name}` is not a target; there are {}", Target::ALL.map(Target::name).join(", ")))
}

fn run(task: Task) -> anyhow::Result<ExitCode> {
    match task {
        Task::BuildKernels { targets, out } => {
            let mut builder = KernelBuilder::new();
            if !targets.is_empty() {
                builder = builder.targets(&targets);
            }
            if let Some(out) = out {
                builder = builder.out_dir(out);
            }
            builder.build()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn main() -> ExitCode {
    // rustc runs this program in place of a PTX linker.
    if let Some(result) = linker::run_if_asked() {
        return result;
    }
    run(Cli::parse().task).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
