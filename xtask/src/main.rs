//! The project's tasks: `cargo xtask --help`.

mod bench;
mod build_kernels;
mod check_kernels;
mod code_object;
mod cuda;
mod lint;
mod progress;
mod test;
mod workspace;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use kernels_gpu::abi::Target;

use build_kernels::{KernelBuilder, linker};
use cuda::Cuda;

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Args)]
struct Targets {
    /// For this GPU architecture only (may be given several times) [default: all].
    #[arg(long = "target", value_parser = parse_target, value_name = "sm_90|sm_90a|sm_100|sm_100f|gfx950")]
    targets: Vec<Target>,
}

impl Targets {
    fn builder(&self) -> KernelBuilder {
        let builder = KernelBuilder::new();
        if self.targets.is_empty() { builder } else { builder.targets(&self.targets) }
    }
}

#[derive(Args)]
struct Features {
    /// Build this feature even if NVIDIA's driver is not found.
    #[arg(long, value_parser = ["cuda"], value_name = "cuda")]
    features: Vec<String>,
}

impl Features {
    fn cuda(&self) -> Cuda {
        Cuda::choose(!self.features.is_empty())
    }
}

#[derive(Subcommand)]
enum Task {
    /// Compile the kernels: PTX for NVIDIA, a code object for AMD, and manifest.json.
    BuildKernels {
        #[command(flatten)]
        targets: Targets,
        /// Folder for the artefacts [default: target/kernels].
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Compile what is stale in target/kernels, then list what each kernel there needs: registers, spills,
    /// stack, shared memory. Fails if one spills or has a stack.
    CheckKernels {
        #[command(flatten)]
        targets: Targets,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Build and check the kernels, then run every suite on the devices there are.
    Test {
        /// Run on these devices instead, separated by commas, such as `cuda:0,hip:0`.
        #[arg(long, value_name = "DEVICE,...")]
        device: Option<String>,
        #[command(flatten)]
        features: Features,
        /// Arguments for `cargo test`.
        #[arg(last = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// Run a split-KV decode on the best device found, check it, and print the plan and the result.
    Demo {
        /// Run on this device instead, such as `cuda:0`.
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
        /// Print what each launch counts; on emulated devices only.
        #[arg(long)]
        counters: bool,
        /// Write the counters as JSON, too.
        #[arg(long, value_name = "FILE", requires = "counters")]
        json: Option<PathBuf>,
        #[command(flatten)]
        features: Features,
    },
    /// Count what a fixed set of problems does on each emulated device, and show what moved since the committed
    /// file. Fails if anything did.
    Counters {
        /// Take what was counted over into the committed file.
        #[arg(long)]
        accept: bool,
    },
    /// Run a benchmark: `split-kv` sweeps the splits of one problem, `decode` times decodes against the memory's read
    /// ceiling and other libraries, `replay` times graphs at other lengths than they were captured for. Each has its own
    /// `--help`: `cargo xtask bench split-kv --help`.
    Bench {
        #[command(flatten)]
        features: Features,
        /// The benchmark and its arguments, for `splitkv-bench`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK", required = true)]
        arguments: Vec<OsString>,
    },
    /// Build kernels, test programs and benchmarks into a folder that can be carried to a machine without Rust.
    BuildTests {
        #[command(flatten)]
        targets: Targets,
        #[command(flatten)]
        features: Features,
        /// The folder.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Check format and documentation, run clippy on the host and on both kinds of GPU code, check on stable Rust.
    Lint,
}

fn parse_target(name: &str) -> Result<Target, String> {
    Target::ALL
        .into_iter()
        .find(|target| target.name() == name)
        .ok_or_else(|| format!("`{name}` is not a target; there are {}", Target::ALL.map(Target::name).join(", ")))
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::BuildKernels { targets, out } => {
            let builder = targets.builder();
            let builder = if let Some(out) = out { builder.out_dir(out) } else { builder };
            builder.build()?;
        }
        Task::CheckKernels { targets, json } => check_kernels::check(&targets.builder().build()?, json)?,
        Task::Test { device, features, arguments } => test::test(device.as_deref(), features.cuda(), &arguments)?,
        Task::Demo { device, counters, json, features } => {
            let mut arguments = vec![OsString::from("demo")];
            if let Some(device) = device {
                arguments.extend(["--device".into(), device.into()]);
            }
            if counters {
                arguments.push("--counters".into());
            }
            if let Some(json) = json {
                arguments.extend(["--json".into(), json.into()]);
            }
            bench::bench(features.cuda(), &arguments)?;
        }
        Task::Counters { accept } => {
            let accept = accept.then_some("--accept");
            bench::bench(Cuda::choose(false), &["counters"].into_iter().chain(accept).collect::<Vec<_>>())?;
        }
        Task::Bench { features, arguments } => bench::bench(features.cuda(), &arguments)?,
        Task::BuildTests { targets, features, out } => test::build_tests(targets.builder(), features.cuda(), &out)?,
        Task::Lint => lint::lint()?,
    }
    Ok(())
}

fn main() -> ExitCode {
    // rustc runs this program in place of a PTX linker.
    if let Some(result) = linker::run_if_asked() {
        return result;
    }
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
