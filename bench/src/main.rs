//! A demonstration, and benchmarks: `splitkv-bench --help`.
//!
//! Kernels are found as the library finds them: in `SPLITKV_KERNELS`, or in `target/kernels`.

mod arena;
mod candidate;
mod ceiling;
mod counters;
mod decode;
mod demo;
mod fp8;
mod output;
mod peers;
mod plot;
mod random;
mod reference;
mod replay;
mod report;
mod session;
mod split_kv;
mod timing;
mod work;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run a split-KV decode, check it against the reference, print the plan and the result.
    Demo(demo::Demo),
    SplitKv(split_kv::SplitKv),
    Decode(decode::Decode),
    Fp8(fp8::Fp8),
    Replay(replay::Replay),
    /// Count what a fixed set of problems does on each emulated device, and show what moved since the committed
    /// file. Fails if anything did.
    Counters(counters::Counters),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Demo(demo) => demo.run(),
        Task::SplitKv(split_kv) => split_kv.run(),
        Task::Decode(decode) => decode.run(),
        Task::Fp8(fp8) => fp8.run(),
        Task::Replay(replay) => replay.run(),
        Task::Counters(counters) => counters.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
