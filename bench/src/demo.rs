//! A split-KV decode from plan to checked result.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use splitkv::{
    Catalogue, DType, Device, DeviceProps, Error, Executor, Inputs, Kernels, Options, Problem, Splits, Target, plan,
};

use crate::arena::Arena;
use crate::counters;
use crate::reference::{Check, Reference};
use crate::timing::{Rounds, Timed, alternate};
use crate::work::Work;

/// Tokens of the decode on a GPU, and where kernels are interpreted.
const TOKENS: usize = 131_072;
const TOKENS_EMULATED: usize = 2048;

#[derive(Args)]
pub(crate) struct Demo {
    /// The device, such as `cuda:0` [default: the best one found].
    #[arg(long)]
    device: Option<String>,
    /// Print what each launch counts; on emulated devices only.
    #[arg(long)]
    counters: bool,
    /// Write the counters as JSON, too.
    #[arg(long, value_name = "FILE", requires = "counters")]
    json: Option<PathBuf>,
}

/// One sequence, one query, 32 query heads over 8 KV heads, head dim 128.
fn problem(tokens: usize) -> Problem {
    Problem::new(1, 32, 8, 1, tokens, 128, DType::Bf16)
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        let opened = match &self.device {
            Some(name) => Device::open(name),
            None => Device::best(),
        };
        match opened {
            Ok(device) => self.on_device(&device),
            // Whoever names a device wants that one.
            Err(error @ Error::NoDevice { .. }) if self.device.is_none() => without_device(&error),
            Err(error) => Err(error.into()),
        }
    }

    fn on_device(&self, device: &Device) -> Result<()> {
        if self.counters {
            device.count_launches()?;
        }
        let kernels = Kernels::find(device.props().target)?;
        let emulated = device.name().starts_with("emulator");
        let problem = problem(if emulated { TOKENS_EMULATED } else { TOKENS });
        println!("device   {}: {}", device.name(), device.props().name);
        // The emulator has no reason to split so short a sequence; the combine should be seen all the same.
        let splits = if emulated { Splits::Exact(4) } else { Splits::Auto };
        let plan = plan(&problem, &Options { splits, ..Options::default() }, device.props(), kernels.catalogue())?;
        println!("{plan}");

        let arena = Arena::new(device, problem.dtype, [(&problem, 1)])?;
        let set = arena.set(&problem, 0)?;
        set.o.buffer().fill(0xff)?;
        let stream = device.stream()?;
        let mut executor = Executor::new(device, &kernels, &plan)?;
        let mut run = || {
            let inputs = Inputs::new(&set.q, &set.k, &set.v, &set.o);
            executor.run(&stream, &inputs)
        };
        let start = Instant::now();
        run()?;
        stream.synchronize()?;
        let elapsed = start.elapsed();
        let launches = device.take_counters();
        if let Some(reference) = Reference::new(&arena, &set, &problem, Check::All) {
            let checked = reference.check(&set)?;
            if let Some(wrong) = checked.wrong {
                bail!("wrong against the reference in f64: {wrong}");
            }
            println!("result   largest error against the reference in f64: {:.1e}", checked.error);
        }
        if emulated {
            println!("time     {:.2} s in the emulator, every access checked", elapsed.as_secs_f64());
        } else {
            let mut timed = Timed { stream: &stream, graph: stream.capture(&mut run)?, calls: 1 };
            for micros in alternate(&mut [&mut timed], Rounds::careful(device)) {
                let micros = micros?;
                let bandwidth = Work::of(&problem).kv_bytes / micros / 1e3;
                println!("time     {micros:.1} us a call, {bandwidth:.0} GB/s of KV");
            }
        }
        if self.counters {
            println!("\n{}", counters::of_launches(&launches));
        }
        if let Some(path) = &self.json {
            fs::write(path, serde_json::to_string_pretty(&launches)?)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

fn without_device(error: &Error) -> Result<()> {
    println!("{error}\n\nThis is what would run on an NVIDIA H200:\n");
    let catalogue = Catalogue::of(Target::Sm90a);
    println!("{}", plan(&problem(TOKENS), &Options::default(), &DeviceProps::h200(), &catalogue)?);
    println!(
        "\nTo run it: on a machine with an NVIDIA GPU of compute capability 9.0 or 10.0 and its driver, or an AMD"
    );
    println!("gfx950 with ROCm, call `cargo xtask demo` again.");
    Ok(())
}
