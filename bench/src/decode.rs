//! Decodes: the automatic choice of splits against explicit ones, other libraries and the read ceiling, in one run.

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use serde::Serialize;
use splitkv::{BlockShape, DType, Options, Plan, Problem, Splits};

use crate::arena::Arena;
use crate::candidate::{Candidate, Choice, Ready, Type, plan_for, sets};
use crate::ceiling::Ceiling;
use crate::output::{Files, progress};
use crate::peers::{self, Peer, PeerOptions};
use crate::random;
use crate::reference::Check;
use crate::report::{self, Figure, Measured};
use crate::session::Session;
use crate::timing::{Contestant, Rounds, alternate};
use crate::work::{Sizes, Work};

/// Explicit numbers of splits by default, beside the automatic choice and its neighbours.
const SPLITS: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
/// So many of the fastest explicit choices are timed again, in rounds with the automatic one.
const RIVALS: usize = 2;

/// Time decodes: automatic splits against explicit ones, other libraries and the read ceiling.
///
/// The ceiling is the fastest of several read kernels over 2 GiB, in the same run.
///
/// Graph replays, calls one after another, medians of rounds in which the choices take turns, inputs rotated through
/// more than the cache. First every explicit choice is timed quickly; then the automatic choice, the two fastest others
/// and the peers take turns in seven longer rounds. GB/s counts K and V once. Exit status 1: a result is wrong, the
/// automatic choice is slower than the best explicit one by more than 3 % and 0.3 us, or an H200 reads less than
/// 4.5 TB/s, so that the run is void.
///
/// On an emulated device, plans are shown and nothing is run.
#[derive(Args)]
pub(crate) struct Decode {
    /// A shape (may be given several times): batch, queries, tokens, heads, KV heads, and head dims where they are not
    /// 128 [default: seven that matter].
    #[arg(long = "shape", value_parser = parse_shape, value_name = "B,Q,K,H,HKV[,D[/DV]]", conflicts_with = "random")]
    shapes: Vec<Shape>,
    /// Time N shapes drawn at random in place of those: batch 1 to 256, tokens 128 to 131072, K and V up to 16 GiB, 1
    /// to 16 query heads a KV head, every other one with ragged lengths.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..))]
    random: Option<u16>,
    /// Where random shapes start: the same ones for the same seed [default: 0].
    #[arg(long, value_name = "S", requires = "random")]
    seed: Option<u64>,
    /// Type of Q, K, V and O.
    #[arg(long, default_value = "bf16")]
    dtype: Type,
    /// The device, such as `cuda:0` [default: the best one found].
    #[arg(long)]
    device: Option<String>,
    /// Explicit numbers of splits, separated by commas [default: 14 of them from 1 to 128, and the automatic choice's
    /// neighbours].
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = value_parser!(u32).range(1..=256))]
    splits: Vec<u32>,
    /// Query tiles that a block owns in explicit choices, separated by commas [default: the planner's choice].
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    q_tiles: Vec<u32>,
    /// How the warps of a block share its work in explicit choices, `split-kv`, `shared-kv` or `warpgroups`, separated by commas
    /// [default: the planner's choice].
    #[arg(long = "block-shape", value_parser = parse_block_shape, value_delimiter = ',', value_name = "SHAPE,...")]
    block_shapes: Vec<BlockShape>,
    /// Show every explicit choice in the table.
    #[arg(long)]
    all: bool,
    /// Time the peers that this machine's Python has, too: PyTorch's cuDNN and flash attention, FlashAttention-3,
    /// FlashInfer; each in the fastest of its ways. What is missing is named.
    #[arg(long, conflicts_with = "random")]
    peers: bool,
    #[command(flatten)]
    peer_options: PeerOptions,
    /// Which rows are compared with the reference.
    #[arg(long, default_value = "sample")]
    check: Check,
    #[command(flatten)]
    files: Files,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub(crate) sizes: [usize; 5],
    pub(crate) dims: (usize, usize),
}

impl Shape {
    /// The decode of this shape.
    pub(crate) fn problem(&self, dtype: DType) -> Result<Problem> {
        let Self { sizes: [batch, sq, sk, heads, kv_heads], dims } = *self;
        let problem = Problem::new(batch, heads, kv_heads, sq, sk, dims.0, dtype).head_dim_v(dims.1);
        problem.validate().with_context(|| format!("--shape {}", crate::work::describe(&problem)))?;
        Ok(problem)
    }
}

const SHAPES: [Shape; 7] = [
    Shape { sizes: [1, 1, 131_072, 32, 32], dims: (128, 128) },
    Shape { sizes: [1, 1, 131_072, 32, 8], dims: (128, 128) },
    Shape { sizes: [16, 1, 8192, 32, 8], dims: (128, 128) },
    Shape { sizes: [64, 1, 4096, 32, 8], dims: (128, 128) },
    Shape { sizes: [1, 1, 4096, 32, 8], dims: (128, 128) },
    Shape { sizes: [1, 70, 16_384, 12, 12], dims: (192, 128) },
    Shape { sizes: [1, 70, 11_008, 12, 12], dims: (192, 128) },
];

pub(crate) fn parse_shape(text: &str) -> Result<Shape, String> {
    let fields: Vec<&str> = text.split(',').collect();
    let numbers: Result<Vec<usize>, _> = fields.iter().take(5).map(|field| field.parse()).collect();
    let dims = fields.get(5).copied().unwrap_or("128");
    let (qk, v) = dims.split_once('/').unwrap_or((dims, dims));
    match (numbers.as_deref(), qk.parse(), v.parse()) {
        (Ok(&[b, q, k, h, h_kv]), Ok(qk), Ok(v)) if fields.len() <= 6 && [b, q, k, h, h_kv].iter().all(|&n| n > 0) => {
            Ok(Shape { sizes: [b, q, k, h, h_kv], dims: (qk, v) })
        }
        _ => {
            Err("allowed: batch, queries, tokens, heads and KV heads, each at least 1, separated by commas, and head \
                  dims where they are not 128: 1,1,4096,32,8 or 1,70,16384,12,12,192/128"
                .into())
        }
    }
}

fn parse_block_shape(text: &str) -> Result<BlockShape, String> {
    match text {
        "split-kv" => Ok(BlockShape::SplitKv),
        "shared-kv" => Ok(BlockShape::SharedKv),
        "warpgroups" => Ok(BlockShape::Warpgroups),
        _ => Err("allowed: split-kv, shared-kv, warpgroups".into()),
    }
}

/// Each value as a choice, or the planner's where there is none.
fn choices<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() { vec![None] } else { values.iter().copied().map(Some).collect() }
}

#[derive(Serialize)]
struct Report {
    device: String,
    device_name: String,
    /// What the shapes were drawn with, where they were.
    seed: Option<u64>,
    ceiling: Option<Ceiling>,
    /// Each peer's version, or why it is missing.
    peers: Vec<String>,
    shapes: Vec<Measured>,
}

impl Decode {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(self.device.as_deref())?;
        let problems = self.problems()?;
        // They start while the ceiling is measured. A Python that is not there has no peers.
        let wanted: Vec<&str> = peers::names().collect();
        let started = self.peers.then(|| self.peer_options.start(session.device.name(), &wanted));
        println!("{}", session.device);
        let timed = !session.counts();
        let ceiling = if timed {
            let ceiling = Ceiling::measure(&session.device, &session.kernels, &session.stream)?;
            println!("{}", ceiling.describe());
            Some(ceiling)
        } else {
            println!("nothing is timed on an emulated device: these are the plans");
            None
        };
        let (mut peers, described) = match started {
            None => (Vec::new(), Vec::new()),
            Some(Ok(mut peers)) => {
                let described = peers.iter_mut().map(Peer::describe).collect();
                (peers, described)
            }
            Some(Err(error)) => {
                (Vec::new(), peers::names().map(|name| format!("{name}: missing: {error:#}")).collect())
            }
        };
        peers.retain_mut(|peer| timed && peer.version().is_ok());
        described.iter().for_each(|line: &String| println!("{line}"));
        let mut shapes = Vec::new();
        let bar = progress("decode", problems.len());
        let arena = ceiling.as_ref().map(|_| {
            bar.set_message("inputs");
            let with_sets = problems.iter().map(|problem| (problem, sets(&session.device, problem)));
            Arena::new(&session.device, self.dtype.dtype(), with_sets)
        });
        let arena = arena.transpose()?;
        for problem in &problems {
            let name = crate::work::describe(problem);
            bar.set_message(name.clone());
            let measured = match (&arena, &ceiling) {
                (Some(arena), Some(ceiling)) => self.measure(&session, arena, problem, ceiling.bandwidth, &mut peers),
                _ => self.planned(&session, problem),
            };
            shapes.push(measured.context(name)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let brief = self.random.is_some() && !self.all;
        println!("\n{}", if brief { report::verdicts(&shapes) } else { report::figures(&shapes, self.all) });
        report::notes(&shapes).iter().for_each(|note| println!("{note}"));
        let seed = self.random.map(|_| self.seed.unwrap_or(0));
        let device_name = session.device.props().name.clone();
        let plot = report::plot(&shapes, format!("decodes on {device_name}"), ceiling.as_ref().map(|c| c.bandwidth));
        let csv = report::csv(&shapes)?;
        let report =
            Report { device: session.device.name().into(), device_name, seed, ceiling, peers: described, shapes };
        self.files.write(&csv, &report, &plot)?;
        report.verdict()
    }

    fn problems(&self) -> Result<Vec<Problem>> {
        if let Some(count) = self.random {
            return Ok(random::shapes(usize::from(count), self.seed.unwrap_or(0), self.dtype.dtype()));
        }
        let shapes = if self.shapes.is_empty() { &SHAPES } else { self.shapes.as_slice() };
        shapes.iter().map(|shape| shape.problem(self.dtype.dtype())).collect()
    }

    /// The plans of the explicit choices.
    fn explicit(&self, session: &Session, problem: &Problem, auto: &Plan) -> Result<Vec<Plan>> {
        let chosen = auto.num_splits();
        let usual = SPLITS.into_iter().chain([chosen - 1, chosen, chosen + 1]).filter(|n| (1..=256).contains(n));
        let mut numbers: Vec<u32> = if self.splits.is_empty() { usual.collect() } else { self.splits.clone() };
        numbers.sort_unstable();
        numbers.dedup();
        let mut plans = Vec::new();
        for block_shape in choices(&self.block_shapes) {
            for q_tiles in choices(&self.q_tiles) {
                for &n in &numbers {
                    let options = Options { splits: Splits::Exact(n), q_tiles, block_shape, ..Options::default() };
                    match plan_for(session, problem, &options) {
                        Ok(plan) => plans.push(plan),
                        // What nobody asked for by name may be impossible.
                        Err(_) if self.splits.is_empty() && q_tiles.is_none() && block_shape.is_none() => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(plans)
    }

    /// The automatic choice, where nothing is run.
    fn planned(&self, session: &Session, problem: &Problem) -> Result<Measured> {
        let auto = plan_for(session, problem, &Options::default())?;
        self.explicit(session, problem, &auto)?;
        Ok(Measured {
            shape: crate::work::describe(problem),
            sizes: Sizes::of(problem),
            auto: Figure::of(&Choice::of(&auto)),
            best: None,
            sweep: Vec::new(),
            peers: Vec::new(),
            absent: Vec::new(),
        })
    }

    fn measure(
        &self,
        session: &Session,
        arena: &Arena,
        problem: &Problem,
        ceiling: f64,
        peers: &mut [Peer],
    ) -> Result<Measured> {
        let count = sets(&session.device, problem);
        let ready = Ready::new(session, arena, problem, count, self.check)?;
        let auto = plan_for(session, problem, &Options::default())?;
        let explicit = self.explicit(session, problem, &auto)?;
        let mut candidates = ready.candidates(std::iter::once(auto).chain(explicit).collect())?;
        let mut figures = Vec::new();
        for candidate in &mut candidates {
            let mut figure = Figure::of(&Choice::of(&candidate.plan));
            figure.checked(ready.check(candidate).with_context(|| figure.choice.clone())?);
            figures.push(figure);
        }
        let kv_bytes = Work::of(problem).kv_bytes;
        let mut timed = candidates.iter_mut().map(|candidate| ready.timed(candidate)).collect::<Result<Vec<_>>>()?;
        let mut contestants: Vec<&mut dyn Contestant> = timed.iter_mut().map(|timed| timed as _).collect();
        let times =
            alternate(&mut contestants, Rounds::quick(&session.device)).into_iter().collect::<Result<Vec<_>>>()?;
        for (figure, &micros) in figures.iter_mut().zip(&times) {
            figure.took(micros, kv_bytes, ceiling);
        }
        let rivals = rivals(&candidates, &times);
        let (mut names, mut absent, mut opponents) = (Vec::new(), Vec::new(), Vec::new());
        for peer in peers {
            let name = peer.name();
            match peer.prepare(problem, count) {
                Ok((choice, opponent)) => {
                    names.push((name, choice));
                    opponents.push(opponent);
                }
                Err(error) => absent.push((name.to_owned(), format!("{error:#}"))),
            }
        }
        // The automatic choice, the rivals, the peers.
        let mut finalists: Vec<usize> = std::iter::once(0).chain(rivals).collect();
        finalists.sort_unstable();
        let own = timed.iter_mut().enumerate().filter(|(index, _)| finalists.contains(index));
        let mut contestants: Vec<&mut dyn Contestant> = own.map(|(_, timed)| timed as _).collect();
        contestants.extend(opponents.iter_mut().map(|opponent| opponent as &mut dyn Contestant));
        let mut times = alternate(&mut contestants, Rounds::careful(&session.device));
        let peer_times = times.split_off(finalists.len());
        let mut finals = Vec::new();
        for (index, micros) in finalists.into_iter().zip(times) {
            let mut figure = figures[index].clone();
            figure.took(micros?, kv_bytes, ceiling);
            finals.push(figure);
        }
        let auto = finals[0].clone();
        // The automatic choice's number of splits is an explicit choice, too.
        let best =
            finals.into_iter().min_by(|a, b| a.micros.unwrap_or(f64::MAX).total_cmp(&b.micros.unwrap_or(f64::MAX)));
        let mut measured_peers = Vec::new();
        for ((name, choice), micros) in names.into_iter().zip(peer_times) {
            match micros {
                Ok(micros) => {
                    let mut figure = Figure::named(name, choice);
                    figure.took(micros, kv_bytes, ceiling);
                    measured_peers.push(figure);
                }
                Err(error) => absent.push((name.to_owned(), format!("{error:#}"))),
            }
        }
        Ok(Measured {
            shape: crate::work::describe(problem),
            sizes: Sizes::of(problem),
            auto,
            best: best.map(|best| Figure { who: "best".into(), ..best }),
            sweep: figures.split_off(1),
            peers: measured_peers,
            absent,
        })
    }
}

/// The fastest explicit choices that are other plans than the automatic one, which is the first candidate.
fn rivals(candidates: &[Candidate], times: &[f64]) -> Vec<usize> {
    let plan = |index: usize| {
        let plan = &candidates[index].plan;
        (plan.kernel().name, plan.num_splits())
    };
    let mut others: Vec<usize> = (1..candidates.len()).filter(|&index| plan(index) != plan(0)).collect();
    others.sort_by(|&a, &b| times[a].total_cmp(&times[b]));
    others.truncate(RIVALS);
    others
}

impl Report {
    /// An error where a result is wrong, the run is void, or the automatic choice is not good enough.
    fn verdict(&self) -> Result<()> {
        let wrong: Vec<_> = self.shapes.iter().filter_map(|shape| shape.wrong().map(|wrong| (shape, wrong))).collect();
        if let Some((shape, wrong)) = wrong.first() {
            bail!("results are wrong for {} shapes; {}: {wrong}", wrong.len(), shape.shape);
        }
        if let Some(ceiling) = self.ceiling.as_ref().filter(|ceiling| ceiling.void) {
            bail!("void: {}", ceiling.why_void());
        }
        match self.shapes.iter().filter(|shape| shape.within() == Some(false)).count() {
            0 => Ok(()),
            count => bail!("the automatic choice is too slow for {count} of {} shapes", self.shapes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_parsed() {
        let shape = |sizes, dims| Ok(Shape { sizes, dims });
        assert_eq!(parse_shape("1,2,300,8,4"), shape([1, 2, 300, 8, 4], (128, 128)));
        assert_eq!(parse_shape("1,2,300,8,4,64"), shape([1, 2, 300, 8, 4], (64, 64)));
        assert_eq!(parse_shape("1,70,16384,12,12,192/128"), shape([1, 70, 16_384, 12, 12], (192, 128)));
        for bad in ["", "1,2,3,4", "1,2,3,4,5,6,7", "1,2,0,4,2", "1,2,x,4,2", "1,2,3,4,2,128/"] {
            assert!(parse_shape(bad).unwrap_err().starts_with("allowed: batch"), "{bad}");
        }
    }
}
