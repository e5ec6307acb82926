//! Graphs at other lengths than they were captured for, beside plans that know the lengths.

use anyhow::{Context, Result, bail};
use clap::Args;
use splitkv::{DType, Executor, Inputs, KvLens, Options, Problem, Tensor};

use crate::arena::{Arena, Set};
use crate::candidate::{Ready, Type, plan_for, sets};
use crate::decode::{Shape, parse_shape};
use crate::output::{progress, table};
use crate::reference::{Check, Reference};
use crate::session::Session;
use crate::timing::{Contestant, Rounds, Timed, alternate};
use crate::work::describe;

/// How much longer a replay may take than a plan that knows the lengths.
const ALLOWED: f64 = 1.10;

/// Time replays at shorter lengths: one plan for the longest, captured once, beside a fresh plan for each.
///
/// The lengths change on the device alone: all sequences at 1, 1/2, 1/4 and 1/16 of the longest, and one long among
/// short ones (1/32). Each graph's calls rotate through more than the cache; the two take turns. Exit status 1: a result
/// is wrong, or a replay takes more than 10 % and 1 us longer than the fresh plan. On an emulated device, both are checked
/// and nothing is timed.
#[derive(Args)]
pub(crate) struct Replay {
    /// A shape at its longest (may be given several times): batch, queries, tokens, heads, KV heads, and head dims where
    /// they are not 128 [default: four].
    #[arg(long = "shape", value_parser = parse_shape, value_name = "B,Q,K,H,HKV[,D[/DV]]")]
    shapes: Vec<Shape>,
    /// Type of Q, K, V and O.
    #[arg(long, default_value = "bf16")]
    dtype: Type,
    /// The device, such as `cuda:0` [default: the best one found].
    #[arg(long)]
    device: Option<String>,
    /// Which rows are compared with the reference.
    #[arg(long, default_value = "sample")]
    check: Check,
}

const SHAPES: [Shape; 4] = [
    Shape { sizes: [1, 1, 131_072, 32, 8], dims: (128, 128) },
    Shape { sizes: [4, 1, 32_768, 32, 8], dims: (128, 128) },
    Shape { sizes: [16, 1, 16_384, 32, 8], dims: (128, 128) },
    Shape { sizes: [64, 1, 8192, 32, 8], dims: (128, 128) },
];

/// Lengths of a batch, and what they are called.
fn lengths(problem: &Problem) -> Vec<(&'static str, Vec<u32>)> {
    let (batch, sk) = (problem.batch, problem.sk as u32);
    let alike = [("all", 1), ("1/2", 2), ("1/4", 4), ("1/16", 16)];
    let mut lengths: Vec<_> = alike.map(|(name, part)| (name, vec![(sk / part).max(1); batch])).into();
    if batch > 1 {
        let mut one_long = vec![(sk / 32).max(1); batch];
        one_long[batch / 2] = sk;
        lengths.push(("one long", one_long));
    }
    lengths
}

/// What was measured at some lengths.
struct Line {
    shape: String,
    lengths: &'static str,
    /// Splits of the plan for the longest, and of the fresh one.
    splits: [String; 2],
    /// Microseconds, where time is taken.
    times: Option<[f64; 2]>,
    wrong: Vec<&'static str>,
}

impl Line {
    /// Whether the replay takes too long.
    fn is_slow(&self) -> bool {
        self.times.is_some_and(|[replay, fresh]| replay > ALLOWED * fresh && replay > fresh + 1.0)
    }

    fn fields(&self) -> Vec<String> {
        let micros = |index: usize| self.times.map_or("-".into(), |times| format!("{:.2}", times[index]));
        let ratio = self.times.map_or("-".into(), |[replay, fresh]| format!("{:.3}", replay / fresh));
        let [planned, fresh] = self.splits.clone();
        vec![self.shape.clone(), self.lengths.into(), planned, fresh, micros(0), micros(1), ratio]
    }
}

impl Replay {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(self.device.as_deref())?;
        println!("{}", session.device);
        let shapes = if self.shapes.is_empty() { &SHAPES } else { self.shapes.as_slice() };
        let problems: Vec<_> = shapes.iter().map(|shape| shape.problem(self.dtype.dtype())).collect::<Result<_>>()?;
        // As many sets as keep the shortest lengths out of the cache.
        let count = |problem: &Problem| {
            let mut shortest = problem.clone();
            shortest.sk = (problem.sk / 16).max(1);
            sets(&session.device, &shortest)
        };
        let with_sets = problems.iter().map(|problem| (problem, count(problem)));
        let arena = Arena::new(&session.device, self.dtype.dtype(), with_sets)?;
        let bar = progress("replay", problems.len());
        let mut lines = Vec::new();
        for problem in &problems {
            bar.set_message(describe(problem));
            lines.extend(self.measure(&session, &arena, problem, count(problem)).with_context(|| describe(problem))?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let header = ["shape", "lengths", "splits planned", "fresh", "replay us", "fresh us", "replay / fresh"];
        println!("\n{}", table(header, 2, lines.iter().map(Line::fields)));
        if let Some(line) = lines.iter().find(|line| !line.wrong.is_empty()) {
            bail!("{} at lengths {}: {} is wrong", line.shape, line.lengths, line.wrong.join(" and "));
        }
        if let Some(line) = lines.iter().find(|line| line.is_slow()) {
            bail!("{} at lengths {}: the replay is more than 10 % slower than a fresh plan", line.shape, line.lengths);
        }
        Ok(())
    }

    fn measure(&self, session: &Session, arena: &Arena, problem: &Problem, count: usize) -> Result<Vec<Line>> {
        let longest = problem.clone().kv_lens(KvLens::Device);
        let plan = plan_for(session, &longest, &Options::default())?;
        let mut executor = Executor::new(&session.device, &session.kernels, &plan)?;
        let on_device = Tensor::zeros(&session.device, DType::I32, &[problem.batch])?;
        let sets = (0..count).map(|index| arena.set(problem, index)).collect::<splitkv::Result<Vec<_>>>()?;
        let stream = &session.stream;
        let mut call = |set: &Set| {
            let inputs = Inputs { kv_lens: Some(&on_device), ..Inputs::new(&set.q, &set.k, &set.v, &set.o) };
            executor.run(stream, &inputs)
        };
        let graph = stream.capture(|| sets.iter().try_for_each(&mut call))?;
        let mut replay = Timed { stream, graph, calls: count };
        let mut lines = Vec::new();
        for (name, lengths) in lengths(problem) {
            let bytes: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
            stream.synchronize()?;
            on_device.buffer().write(on_device.offset(), &bytes)?;
            let known = problem.clone().kv_lens(KvLens::Host(lengths));
            let ready = Ready::new(session, arena, &known, count, self.check)?;
            let fresh = plan_for(session, &known, &Options::default())?;
            let splits = [plan.num_splits(), fresh.num_splits()].map(|splits| splits.to_string());
            let mut candidates = ready.candidates(vec![fresh])?;
            let fresh = &mut candidates[0];
            let mut wrong = Vec::new();
            if ready.check(fresh)?.is_some_and(|checked| checked.wrong.is_some()) {
                wrong.push("the fresh plan");
            }
            sets[0].o.buffer().fill(0xff)?;
            replay.replay(0)?;
            stream.synchronize()?;
            let reference = Reference::new(arena, &sets[0], &known, self.check);
            let checked = reference.map(|reference| reference.check(&sets[0])).transpose()?;
            if checked.is_some_and(|checked| checked.wrong.is_some()) {
                wrong.push("the replay");
            }
            let times = if session.counts() {
                None
            } else {
                let mut fresh = ready.timed(fresh)?;
                let mut contestants: [&mut dyn Contestant; 2] = [&mut replay, &mut fresh];
                let times = alternate(&mut contestants, Rounds::careful(&session.device));
                let times = times.into_iter().collect::<Result<Vec<_>>>()?;
                Some([times[0], times[1]])
            };
            lines.push(Line { shape: describe(problem), lengths: name, splits, times, wrong });
        }
        Ok(lines)
    }
}
