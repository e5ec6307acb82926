//! The sweep of splits over one problem.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use comfy_table::Table;
use serde::Serialize;
use splitkv::{Error, LaunchCounters, Options, Plan, Problem, Splits, emulator};

use crate::arena::Arena;
use crate::candidate::{Choice, Ready, Type, plan_for, sets};
use crate::ceiling::Ceiling;
use crate::output::{Files, progress, table};
use crate::plot::{Plot, Series};
use crate::reference::{Check, Checked};
use crate::session::Session;
use crate::timing::{Contestant, Rounds, alternate};
use crate::work::{Sizes, Work, describe};

/// KV tokens by default, and where kernels are interpreted.
const TOKENS: u32 = 131_072;
const TOKENS_EMULATED: u32 = 2048;
/// Explicit numbers of splits: the powers of two up to this one.
const MOST: u32 = 128;
/// Most bytes of inputs that are tried to be had, so that sizes do not overflow.
const MOST_BYTES: u128 = 1 << 40;
/// An emulated sweep that takes longer than this is announced.
const LONG: Duration = Duration::from_secs(60);

const HEADER: [&str; 13] = [
    "benchmark_type",
    "num_splits",
    "B",
    "Q",
    "K",
    "H",
    "D",
    "kvheads_per_group",
    "arithmetic_intensity",
    "avg_time",
    "tflops",
    "bw",
    "correctness",
];

/// Sweep the splits of one problem.
///
/// Runs it with the automatic choice, with 1, 2, 4 ... 128 splits, and with two query tiles a block and as many splits
/// as the automatic choice (where there are such kernels: for head dim 128, and for 192 with 128 for V).
///
/// On a GPU it is timed: graph replays, medians of seven rounds in which the choices take turns, inputs rotated
/// through more than the cache. On an emulated device nothing is timed; what the kernels do is counted.
///
/// Columns of the CSV: benchmark_type (auto, standard, q_tiles2), num_splits, B, Q, K, H, D (of Q and K),
/// kvheads_per_group (query heads that share a KV head), arithmetic_intensity (4BQKHD / bytes of Q, K, V, O),
/// avg_time (ms), tflops (TFLOP/s), bw (TB/s of Q, K, V, O), correctness (True or False; see --check). On an emulated
/// device avg_time, tflops and bw are empty, and columns with the counters of all launches follow.
#[derive(Args)]
pub(crate) struct SplitKv {
    /// Sequences.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    batch: u32,
    /// Queries of each sequence.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    q: u32,
    /// KV tokens of each sequence [default: 131072; on an emulated device 2048].
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    k: Option<u32>,
    /// Query heads, a multiple of the KV heads.
    #[arg(long, default_value_t = 32, value_parser = value_parser!(u32).range(1..))]
    heads: u32,
    /// KV heads [default: as many as query heads].
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    kv_heads: Option<u32>,
    /// Head dim of Q and K: a multiple of 8, at most 256.
    #[arg(long, default_value_t = 128)]
    dim: u32,
    /// Head dim of V and O [default: that of Q and K].
    #[arg(long)]
    dim_v: Option<u32>,
    /// Type of Q, K, V and O.
    #[arg(long, default_value = "bf16")]
    dtype: Type,
    /// Each query sees only the keys up to its own position.
    #[arg(long)]
    causal: bool,
    /// The device, such as `cuda:0` or `emulator:sm_90a` [default: the best one found].
    #[arg(long)]
    device: Option<String>,
    /// Which rows are compared with the reference.
    #[arg(long, default_value = "sample")]
    check: Check,
    #[command(flatten)]
    files: Files,
}

/// A line of the table.
#[derive(Clone, Debug, Serialize)]
struct Line {
    benchmark_type: &'static str,
    choice: Choice,
    /// Median, a call.
    micros: Option<f64>,
    tflops: Option<f64>,
    terabytes_per_second: Option<f64>,
    percent_of_ceiling: Option<f64>,
    correct: Option<bool>,
    /// Largest error against the reference.
    error: Option<f64>,
    /// The first value that is wrong.
    wrong: Option<String>,
    /// On emulated devices.
    launches: Vec<LaunchCounters>,
}

/// A choice that was refused.
#[derive(Clone, Debug, Serialize)]
struct Refused {
    benchmark_type: &'static str,
    num_splits: u32,
    why: String,
}

/// What is to be run, by benchmark type, and what cannot be.
struct Sweep {
    plans: Vec<(&'static str, Plan)>,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Report {
    device: String,
    device_name: String,
    problem: Sizes,
    work: Work,
    arithmetic_intensity: f64,
    ceiling: Option<Ceiling>,
    lines: Vec<Line>,
    refused: Vec<Refused>,
}

impl SplitKv {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(self.device.as_deref())?;
        let problem = self.problem(session.counts())?;
        let Sweep { plans, refused } = plans(&session, &problem).map_err(by_flag)?;
        println!("{}\n{}", session.device, describe(&problem));
        let ceiling = if session.counts() {
            None
        } else {
            let ceiling = Ceiling::measure(&session.device, &session.kernels, &session.stream)?;
            println!("{}", ceiling.describe());
            Some(ceiling)
        };
        let work = Work::of(&problem);
        let lines = self.measure(&session, &problem, plans, ceiling.as_ref())?;
        println!("\n{}", if session.counts() { counted(&lines) } else { timed(&lines) });
        for Refused { benchmark_type, num_splits, why } in &refused {
            println!("{benchmark_type} {num_splits} refused: {why}");
        }
        let csv = csv(&problem, &work, &lines)?;
        let report = Report {
            device: session.device.name().into(),
            device_name: session.device.props().name.clone(),
            problem: Sizes::of(&problem),
            work,
            arithmetic_intensity: work.arithmetic_intensity(),
            ceiling,
            lines,
            refused,
        };
        self.files.write(&csv, &report, &plot(&report, &describe(&problem)))?;
        let wrong: Vec<_> =
            report.lines.iter().filter_map(|line| line.wrong.as_ref().map(|wrong| (line, wrong))).collect();
        if let Some((line, wrong)) = wrong.first() {
            let Line { benchmark_type, choice, .. } = line;
            bail!("{} results are wrong; {benchmark_type} {}: {wrong}", wrong.len(), choice.num_splits);
        }
        match &report.ceiling {
            Some(ceiling) if ceiling.void => bail!("void: {}", ceiling.why_void()),
            _ => Ok(()),
        }
    }

    /// The problem that the flags say.
    fn problem(&self, emulated: bool) -> Result<Problem> {
        let tokens = self.k.unwrap_or(if emulated { TOKENS_EMULATED } else { TOKENS });
        let [batch, q, k, heads, dim] = [self.batch, self.q, tokens, self.heads, self.dim].map(|size| size as usize);
        let kv_heads = self.kv_heads.unwrap_or(self.heads) as usize;
        let problem = Problem::new(batch, heads, kv_heads, q, k, dim, self.dtype.dtype())
            .head_dim_v(self.dim_v.unwrap_or(self.dim) as usize)
            .causal(self.causal);
        problem.validate().map_err(by_flag)?;
        let bytes = [problem.q_shape(), problem.k_shape(), problem.v_shape()]
            .map(|shape| shape.iter().map(|&size| size as u128).product::<u128>() * problem.dtype.size_of() as u128);
        let bytes: u128 = bytes.iter().sum();
        if bytes > MOST_BYTES {
            bail!("--batch, --q, --k, --heads, --dim: given inputs of {bytes} bytes; allowed: at most {MOST_BYTES}");
        }
        Ok(problem)
    }

    fn measure(
        &self,
        session: &Session,
        problem: &Problem,
        plans: Vec<(&'static str, Plan)>,
        ceiling: Option<&Ceiling>,
    ) -> Result<Vec<Line>> {
        let sets = if session.counts() { 1 } else { sets(&session.device, problem) };
        let bar = progress("split-kv", plans.len() + 2);
        bar.set_message("inputs and reference");
        let arena = Arena::new(&session.device, problem.dtype, [(problem, sets)])?;
        let ready = Ready::new(session, &arena, problem, sets, self.check)?;
        let (types, plans): (Vec<_>, Vec<_>) = plans.into_iter().unzip();
        let mut candidates = ready.candidates(plans)?;
        bar.inc(1);
        let mut lines = Vec::new();
        let start = Instant::now();
        for (index, (benchmark_type, candidate)) in types.into_iter().zip(&mut candidates).enumerate() {
            let choice = Choice::of(&candidate.plan);
            bar.set_message(format!("{benchmark_type} {}", choice.num_splits));
            if session.counts() {
                session.device.count_launches()?;
            }
            let checked = ready.check(candidate).with_context(|| format!("{benchmark_type} {}", choice.num_splits))?;
            let launches = session.device.take_counters();
            lines.push(Line::new(benchmark_type, choice, checked, launches));
            bar.inc(1);
            if index == 0 {
                announce(&bar, start.elapsed() * (bar.length().unwrap_or(2) as u32 - 2));
            }
        }
        if let Some(ceiling) = ceiling {
            bar.set_message("timing");
            let work = Work::of(problem);
            let mut timed =
                candidates.iter_mut().map(|candidate| ready.timed(candidate)).collect::<Result<Vec<_>>>()?;
            let mut contestants: Vec<&mut dyn Contestant> = timed.iter_mut().map(|timed| timed as _).collect();
            for (line, micros) in lines.iter_mut().zip(alternate(&mut contestants, Rounds::careful(&session.device))) {
                line.took(micros?, &work, ceiling.bandwidth);
            }
        }
        bar.finish_and_clear();
        Ok(lines)
    }
}

/// Says so where a sweep will take long.
fn announce(bar: &indicatif::ProgressBar, all: Duration) {
    if all > LONG {
        let minutes = all.as_secs_f64() / 60.0;
        bar.suspend(|| eprintln!("the whole sweep will take about {minutes:.1} minutes; a smaller --k takes less"));
    }
}

/// The error with the flag's name in place of the library's.
fn by_flag(error: Error) -> anyhow::Error {
    let Error::Argument { argument, given, allowed } = error else { return error.into() };
    let flag = match argument {
        "batch" => "--batch",
        "sq" => "--q",
        "sk" => "--k",
        "heads" => "--heads",
        "kv_heads" => "--kv-heads",
        "head_dim_qk" => "--dim",
        "head_dim_v" => "--dim-v",
        "head_dim_qk/head_dim_v" => "--dim/--dim-v",
        "batch * heads * sq" => "--batch * --heads * --q",
        other => other,
    };
    anyhow::anyhow!("{flag}: given {given}; allowed: {}", allowed.replace("kv_heads", "--kv-heads"))
}

/// What is run, the automatic choice first, and what the planner refuses. A problem that has no plan is an error.
fn plans(session: &Session, problem: &Problem) -> splitkv::Result<Sweep> {
    let auto = plan_for(session, problem, &Options::default())?;
    let exactly = |num_splits, q_tiles| Options { splits: Splits::Exact(num_splits), q_tiles, ..Options::default() };
    let standard = (0..=MOST.ilog2()).map(|power| ("standard", exactly(1 << power, None)));
    let q_tiles2 = ("q_tiles2", exactly(auto.num_splits(), Some(2)));
    let (mut plans, mut refused) = (vec![("auto", auto)], Vec::new());
    for (benchmark_type, options) in standard.chain([q_tiles2]) {
        let Splits::Exact(num_splits) = options.splits else { continue };
        match plan_for(session, problem, &options) {
            Ok(plan) => plans.push((benchmark_type, plan)),
            Err(error) => refused.push(Refused { benchmark_type, num_splits, why: error.to_string() }),
        }
    }
    Ok(Sweep { plans, refused })
}

impl Line {
    fn new(
        benchmark_type: &'static str,
        choice: Choice,
        checked: Option<Checked>,
        launches: Vec<LaunchCounters>,
    ) -> Self {
        Self {
            benchmark_type,
            choice,
            micros: None,
            tflops: None,
            terabytes_per_second: None,
            percent_of_ceiling: None,
            correct: checked.as_ref().map(|checked| checked.wrong.is_none()),
            error: checked.as_ref().map(|checked| checked.error),
            wrong: checked.and_then(|checked| checked.wrong),
            launches,
        }
    }

    fn took(&mut self, micros: f64, work: &Work, ceiling: f64) {
        let bandwidth = work.bytes / micros * 1e6;
        self.micros = Some(micros);
        self.tflops = Some(work.flops / micros / 1e6);
        self.terabytes_per_second = Some(bandwidth / 1e12);
        self.percent_of_ceiling = Some(bandwidth / ceiling * 100.0);
    }

    fn counters(&self) -> emulator::Counters {
        let mut sum = emulator::Counters::default();
        self.launches.iter().for_each(|launch| sum += launch.counters);
        sum
    }

    fn correctness(&self) -> &'static str {
        match self.correct {
            Some(true) => "True",
            Some(false) => "False",
            None => "",
        }
    }
}

fn csv(problem: &Problem, work: &Work, lines: &[Line]) -> Result<String> {
    let counted = lines.iter().any(|line| !line.launches.is_empty());
    let mut writer = csv::Writer::from_writer(Vec::new());
    let counters = |line: &Line| if counted { line.counters().entries().collect() } else { Vec::new() };
    let names = lines.first().map(counters).unwrap_or_default();
    writer.write_record(HEADER.into_iter().chain(names.iter().map(|(name, _)| *name)))?;
    for line in lines {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
        let sizes = [problem.batch, problem.sq, problem.sk, problem.heads, problem.head_dim_qk, problem.group()];
        let fields = [line.benchmark_type.to_owned(), line.choice.num_splits.to_string()]
            .into_iter()
            .chain(sizes.map(|size| size.to_string()))
            .chain([
                format!("{:.15}", work.arithmetic_intensity()),
                number(line.micros.map(|micros| micros / 1e3)),
                number(line.tflops),
                number(line.terabytes_per_second),
                line.correctness().to_owned(),
            ])
            .chain(counters(line).into_iter().map(|(_, value)| value.to_string()));
        writer.write_record(fields)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn timed(lines: &[Line]) -> Table {
    let number = |value: Option<f64>, digits: usize| value.map_or(String::new(), |value| format!("{value:.digits$}"));
    let row = |line: &Line| {
        vec![
            line.benchmark_type.to_owned(),
            line.choice.num_splits.to_string(),
            line.choice.short_kernel(),
            number(line.micros, 2),
            number(line.tflops, 2),
            number(line.terabytes_per_second, 3),
            number(line.percent_of_ceiling, 1),
            line.correctness().to_owned(),
        ]
    };
    table(["type", "splits", "kernel", "us", "TFLOP/s", "TB/s", "% of ceiling", "correct"], 1, lines.iter().map(row))
}

fn counted(lines: &[Line]) -> Table {
    let row = |line: &Line| {
        let counters = line.counters();
        vec![
            line.benchmark_type.to_owned(),
            line.choice.num_splits.to_string(),
            line.choice.short_kernel(),
            counters.instructions.to_string(),
            counters.matrix_instructions.to_string(),
            counters.global_load_sectors.to_string(),
            counters.bank_conflicts.to_string(),
            line.correctness().to_owned(),
        ]
    };
    table(["type", "splits", "kernel", "instr.", "matrix", "sectors", "conflicts", "correct"], 1, lines.iter().map(row))
}

fn plot(report: &Report, problem: &str) -> Plot {
    let point = |line: &Line| Some((line.choice.num_splits, line.terabytes_per_second? * 1e3));
    let of =
        |benchmark_type: &'static str| report.lines.iter().filter(move |line| line.benchmark_type == benchmark_type);
    let series = |name: &str, benchmark_type, auto: Option<(u32, f64)>| Series {
        name: name.into(),
        points: of(benchmark_type).filter_map(point).collect(),
        auto,
    };
    let auto = of("auto").find_map(point);
    let series = [series("explicit splits", "standard", auto), series("two query tiles a block", "q_tiles2", None)];
    Plot {
        title: format!("{problem} on {}", report.device_name),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        ceiling: report.ceiling.as_ref().map(|ceiling| ceiling.bandwidth / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use splitkv::DType;

    fn problem() -> Problem {
        Problem::new(1, 32, 32, 1, 131_072, 128, DType::Bf16)
    }

    fn line(benchmark_type: &'static str, num_splits: u32, wrong: Option<&str>) -> Line {
        let choice =
            Choice { auto: benchmark_type == "auto", num_splits, kernel: "attention_bf16_d128_splitkv_q1", q_tiles: 1 };
        Line::new(benchmark_type, choice, Some(Checked { error: 1e-4, wrong: wrong.map(Into::into) }), Vec::new())
    }

    #[test]
    fn csv_of_a_timed_sweep() {
        let work = Work::of(&problem());
        let mut lines = [line("auto", 4, None), line("standard", 128, Some("1 in place of 2"))];
        lines.iter_mut().for_each(|line| line.took(500.0, &work, 4.5e12));
        // 2 * 2 * 131072 * 32 * 128 bytes and 16384 more in half a millisecond.
        let expected = "\
benchmark_type,num_splits,B,Q,K,H,D,kvheads_per_group,arithmetic_intensity,avg_time,tflops,bw,correctness
auto,4,1,1,131072,32,128,1,0.999992370663676,0.500000,4.294967,4.295000,True
standard,128,1,1,131072,32,128,1,0.999992370663676,0.500000,4.294967,4.295000,False
";
        assert_eq!(csv(&problem(), &work, &lines).unwrap(), expected);
        assert!((lines[0].percent_of_ceiling.unwrap() - 4.295 / 4.5 * 100.0).abs() < 1e-3);
    }

    #[test]
    fn csv_of_an_emulated_sweep() {
        let work = Work::of(&problem());
        let launch = |instructions| LaunchCounters {
            kernel: "k".into(),
            counters: emulator::Counters { blocks: 3, instructions, ..Default::default() },
        };
        let mut line = line("standard", 2, None);
        line.correct = None;
        line.launches = vec![launch(10), launch(5)];
        let text = csv(&problem(), &work, &[line]).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines[0][..13], HEADER);
        assert_eq!(lines[0][13..15], ["blocks", "instructions"]);
        assert_eq!(lines[1][9..15], ["", "", "", "", "6", "15"]);
        assert_eq!(lines[0].len(), lines[1].len());
    }

    #[test]
    fn tables_fit_a_terminal() {
        let work = Work::of(&problem());
        let mut wide = line("q_tiles2", 128, None);
        wide.choice.kernel = "attention_bf16_d192x128_sharedkv_q2";
        wide.took(123_456.78, &work, 4.5e12);
        let counters = emulator::Counters {
            instructions: 99_999_999_999,
            matrix_instructions: 9_999_999_999,
            global_load_sectors: 9_999_999_999,
            bank_conflicts: 99_999_999,
            ..Default::default()
        };
        wide.launches = vec![LaunchCounters { kernel: "k".into(), counters }];
        for table in [timed(&[wide.clone()]), counted(&[wide])] {
            let text = table.to_string();
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.contains("sharedkv_q2"), "{text}");
        }
    }

    #[test]
    fn refusals_name_the_flag() {
        let error = by_flag(problem().head_dim_v(7).validate().unwrap_err());
        assert_eq!(error.to_string(), "--dim-v: given 7; allowed: a multiple of 8, at least 8");
        let error = by_flag(Problem::new(1, 3, 2, 1, 1, 8, DType::Bf16).validate().unwrap_err());
        assert_eq!(error.to_string(), "--heads: given 3; allowed: a multiple of --kv-heads (2)");
    }
}
