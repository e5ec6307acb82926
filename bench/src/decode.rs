//! Decodes against the read ceiling of the same run.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use splitkv::{BlockShape, DType, Device, Executor, Inputs, Kernels, Options, Plan, Problem, Splits, plan};

use crate::ceiling;
use crate::inputs::Set;
use crate::timing::{Timed, alternate};

/// Inputs are rotated through at least so many bytes, far more than the cache holds.
const ROTATED: usize = 512 << 20;
/// A card that reads less than this is not in order, and the run says nothing (bytes a second, H200).
const VOID: f64 = 4.5e12;

#[derive(Args)]
pub(crate) struct Decode {
    /// The device [default: the best one found].
    #[arg(long)]
    device: Option<String>,
    /// A shape as BATCH,QUERIES,TOKENS,HEADS,KV_HEADS (may be given several times) [default: five that matter].
    #[arg(long = "shape", value_parser = parse_shape, value_name = "B,Q,K,H,HKV")]
    shapes: Vec<Shape>,
    /// Head dim of Q and K, and of V where it is another.
    #[arg(long = "dim", value_parser = parse_dims, value_name = "QK[/V]", default_value = "128")]
    dims: Dims,
    /// Numbers of splits beside the automatic choice, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    splits: Vec<u32>,
    /// Query tiles that a block owns, separated by commas [default: the planner's choice].
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    q_tiles: Vec<u32>,
    /// How the warps of a block share its work, `split-kv` or `shared-kv`, separated by commas [default: the planner's
    /// choice].
    #[arg(long = "block-shape", value_parser = parse_block_shape, value_delimiter = ',', value_name = "SHAPE,...")]
    block_shapes: Vec<BlockShape>,
    /// Skip the check against the reference, which takes seconds for long KV.
    #[arg(long)]
    no_check: bool,
    /// Write the figures as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Shape {
    batch: usize,
    sq: usize,
    sk: usize,
    heads: usize,
    kv_heads: usize,
}

const SHAPES: [Shape; 5] = [
    Shape { batch: 1, sq: 1, sk: 131_072, heads: 32, kv_heads: 32 },
    Shape { batch: 1, sq: 1, sk: 131_072, heads: 32, kv_heads: 8 },
    Shape { batch: 16, sq: 1, sk: 8192, heads: 32, kv_heads: 8 },
    Shape { batch: 64, sq: 1, sk: 4096, heads: 32, kv_heads: 8 },
    Shape { batch: 1, sq: 1, sk: 4096, heads: 32, kv_heads: 8 },
];

fn parse_shape(text: &str) -> Result<Shape, String> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[batch, sq, sk, heads, kv_heads]) => Ok(Shape { batch, sq, sk, heads, kv_heads }),
        _ => Err("five numbers, separated by commas: batch, queries, tokens, heads, KV heads".into()),
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Dims {
    qk: usize,
    v: usize,
}

fn parse_dims(text: &str) -> Result<Dims, String> {
    let (qk, v) = text.split_once('/').unwrap_or((text, text));
    match (qk.parse(), v.parse()) {
        (Ok(qk), Ok(v)) => Ok(Dims { qk, v }),
        _ => Err("a head dim, such as 128, or two, such as 192/128".into()),
    }
}

fn parse_block_shape(text: &str) -> Result<BlockShape, String> {
    match text {
        "split-kv" => Ok(BlockShape::SplitKv),
        "shared-kv" => Ok(BlockShape::SharedKv),
        _ => Err("split-kv or shared-kv".into()),
    }
}

/// Each value as a choice, or the planner's where there is none.
fn choices<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

#[derive(Serialize)]
struct Figure {
    shape: Shape,
    dims: Dims,
    kernel: &'static str,
    choice: String,
    num_splits: u32,
    micros: f64,
    gigabytes_per_second: f64,
    percent_of_ceiling: f64,
    /// Largest error against the reference.
    error: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    device: String,
    ceiling_gigabytes_per_second: f64,
    ceiling_found_with: String,
    figures: Vec<Figure>,
}

impl Decode {
    pub(crate) fn run(&self) -> Result<()> {
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best()?,
        };
        let kernels = Kernels::find(device.props().target)?;
        let stream = device.stream()?;
        let ceiling = ceiling::measure(&device, &kernels, &stream)?;
        println!("{}: reads {:.0} GB/s ({})", device.name(), ceiling.bandwidth / 1e9, ceiling.found_with);
        if device.props().target == splitkv::Target::Sm90 && ceiling.bandwidth < VOID {
            bail!("below {:.0} GB/s the card is not in order: the run is void", VOID / 1e9);
        }
        let shapes = if self.shapes.is_empty() { &SHAPES } else { self.shapes.as_slice() };
        let mut figures = Vec::new();
        for shape in shapes {
            let of_shape = self
                .measure(&device, &kernels, &stream, *shape, ceiling.bandwidth)
                .with_context(|| format!("{shape:?}"))?;
            figures.extend(of_shape);
        }
        println!("{}", table(&figures));
        if let Some(path) = &self.json {
            let report = Report {
                device: device.name().to_owned(),
                ceiling_gigabytes_per_second: ceiling.bandwidth / 1e9,
                ceiling_found_with: ceiling.found_with,
                figures,
            };
            fs::write(path, serde_json::to_string_pretty(&report)?)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    /// Every combination of what is to be chosen.
    fn options(&self) -> Vec<Options> {
        let splits = || std::iter::once(Splits::Auto).chain(self.splits.iter().map(|&n| Splits::Exact(n)));
        let mut all = Vec::new();
        for block_shape in choices(&self.block_shapes) {
            for q_tiles in choices(&self.q_tiles) {
                all.extend(splits().map(|splits| Options { splits, q_tiles, block_shape }));
            }
        }
        all
    }

    fn measure(
        &self,
        device: &Device,
        kernels: &Kernels,
        stream: &splitkv::Stream,
        shape: Shape,
        ceiling: f64,
    ) -> Result<Vec<Figure>> {
        let Shape { batch, sq, sk, heads, kv_heads } = shape;
        let problem = Problem::new(batch, heads, kv_heads, sq, sk, self.dims.qk, DType::Bf16).head_dim_v(self.dims.v);
        let bytes = batch * sk * kv_heads * (problem.head_dim_qk + problem.head_dim_v) * DType::Bf16.size_of();
        let sets: Vec<Set> = (0..ROTATED.div_ceil(bytes).max(1))
            .map(|seed| Set::new(device, &problem, seed as u64))
            .collect::<splitkv::Result<_>>()?;
        let mut plans: Vec<(Plan, Option<f64>)> = Vec::new();
        let mut timed = Vec::new();
        for options in self.options() {
            let plan = plan(&problem, &options, device.props(), kernels.catalogue())?;
            let mut executor = Executor::new(device, kernels, &plan)?;
            let mut run = |set: &Set| {
                let inputs = Inputs::new(&set.q, &set.k, &set.v, &set.o);
                executor.run(stream, &inputs)
            };
            let mut error = None;
            if !self.no_check {
                sets[0].o.buffer().fill(0xff)?;
                run(&sets[0])?;
                stream.synchronize()?;
                error = Some(sets[0].check(&problem).with_context(|| format!("{options:?}"))?);
            }
            let graph = stream.capture(|| sets.iter().try_for_each(&mut run))?;
            timed.push(Timed { graph, calls: sets.len() });
            plans.push((plan, error));
        }
        let times = alternate(stream, &timed)?;
        let figures = plans.into_iter().zip(times).map(|((plan, error), micros)| {
            let bandwidth = bytes as f64 / micros * 1e6;
            Figure {
                shape,
                dims: self.dims,
                kernel: plan.kernel().name,
                choice: if plan.options().splits == Splits::Auto { "auto".into() } else { "exact".into() },
                num_splits: plan.num_splits(),
                micros,
                gigabytes_per_second: bandwidth / 1e9,
                percent_of_ceiling: bandwidth / ceiling * 100.0,
                error,
            }
        });
        Ok(figures.collect())
    }
}

fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "batch",
        "queries",
        "tokens",
        "heads",
        "kernel",
        "splits",
        "us",
        "GB/s",
        "% of ceiling",
        "error",
    ]);
    for figure in figures {
        let Shape { batch, sq, sk, heads, kv_heads } = figure.shape;
        table.add_row([
            batch.to_string(),
            sq.to_string(),
            sk.to_string(),
            format!("{heads}/{kv_heads}"),
            figure.kernel.trim_start_matches("attention_").to_owned(),
            format!("{} {}", figure.choice, figure.num_splits),
            format!("{:.2}", figure.micros),
            format!("{:.0}", figure.gigabytes_per_second),
            format!("{:.1}", figure.percent_of_ceiling),
            figure.error.map_or("not checked".into(), |error| format!("{error:.1e}")),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
