//! The FP8 benchmark: short queries over a long cached prefix, unsplit against the automatic choice of splits.

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use serde::Serialize;
use splitkv::{DType, Options, Problem, Splits};

use crate::arena::Arena;
use crate::candidate::{Choice, Ready, plan_for, sets};
use crate::output::{Tables, progress, table};
use crate::peers::{Peer, PeerOptions};
use crate::reference::Check;
use crate::session::Session;
use crate::timing::{Contestant, Rounds, alternate};

/// Calls, and replays of a graph, before anything is timed.
const WARM_UPS: usize = 5;

/// Time FP8 attention under 70 queries of 12 heads, head dims 192/128, no mask, LSE: one split against the automatic
/// choice.
///
/// Medians of 7 rounds of 100 graph replays, in which the choices take turns, after 5 calls and 5 replays; attention and
/// combine are in them, quantisation is not. `fixed` replays one call on the same inputs, `rotated` calls on so many
/// inputs that no cache holds them. Exit status 1: a result is wrong.
///
/// On an emulated device, plans are shown and nothing is run.
#[derive(Args)]
pub(crate) struct Fp8 {
    /// KV tokens, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_values_t = [16_384, 11_008],
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    kv: Vec<u32>,
    /// The device, such as `cuda:0` [default: the best one found].
    #[arg(long)]
    device: Option<String>,
    /// Time FlashAttention-3, too, where this machine's Python has it, in the fastest of its ways.
    #[arg(long)]
    peers: bool,
    #[command(flatten)]
    peer_options: PeerOptions,
    /// Which rows are compared with the reference.
    #[arg(long, default_value = "sample")]
    check: Check,
    #[command(flatten)]
    files: Tables,
}

/// What was measured of one problem and one kind of inputs.
#[derive(Debug, Default, Serialize)]
struct Line {
    kv: usize,
    /// `fixed` or `rotated`.
    inputs: &'static str,
    /// Inputs in rotation.
    sets: usize,
    auto_splits: u32,
    auto_kernel: &'static str,
    /// Medians, microseconds a call.
    one_split_us: Option<f64>,
    auto_us: Option<f64>,
    peer_us: Option<f64>,
    /// The peer's way, or why it has no time.
    peer: Option<String>,
    correct: Option<bool>,
    /// The first value that is wrong.
    wrong: Option<String>,
}

#[derive(Serialize)]
struct Report {
    device: String,
    device_name: String,
    /// Each peer's version, or why it is missing.
    peers: Vec<String>,
    lines: Vec<Line>,
}

impl Fp8 {
    pub(crate) fn run(&self) -> Result<()> {
        let session = Session::open(self.device.as_deref())?;
        println!("{}", session.device);
        let problems: Vec<Problem> = self.kv.iter().map(|&kv| problem(kv as usize)).collect();
        let (mut peers, mut described) = (Vec::new(), Vec::new());
        if self.peers {
            match self.peer_options.start(session.device.name(), &["fa3"]) {
                Ok(started) => peers = started,
                Err(error) => described.push(format!("fa3: missing: {error:#}")),
            }
            described.extend(peers.iter_mut().map(Peer::describe));
        }
        described.iter().for_each(|line| println!("{line}"));
        peers.retain_mut(|peer| !session.counts() && peer.version().is_ok());
        let mut lines = Vec::new();
        if session.counts() {
            println!("nothing is timed on an emulated device: these are the plans");
            for problem in &problems {
                for inputs in ["fixed", "rotated"] {
                    lines.push(planned(&session, problem, inputs, 0)?);
                }
            }
        } else {
            let bar = progress("fp8", problems.len());
            let with_sets = problems.iter().map(|problem| (problem, sets(&session.device, problem)));
            let arena = Arena::new(&session.device, DType::E4m3, with_sets)?;
            for problem in &problems {
                let name = crate::work::describe(problem);
                bar.set_message(name.clone());
                for (inputs, count) in [("fixed", 1), ("rotated", sets(&session.device, problem))] {
                    let line = self.measure(&session, &arena, problem, inputs, count, &mut peers);
                    lines.push(line.with_context(|| name.clone())?);
                }
                bar.inc(1);
            }
            bar.finish_and_clear();
        }
        println!("\n{}", figures(&lines));
        let device_name = session.device.props().name.clone();
        let report = Report { device: session.device.name().into(), device_name, peers: described, lines };
        self.files.write(&csv(&report.lines)?, &report)?;
        match report.lines.iter().find_map(|line| line.wrong.as_ref().map(|wrong| (line.kv, wrong))) {
            Some((kv, wrong)) => bail!("wrong over {kv} tokens: {wrong}"),
            None => Ok(()),
        }
    }

    fn measure(
        &self,
        session: &Session,
        arena: &Arena,
        problem: &Problem,
        inputs: &'static str,
        count: usize,
        peers: &mut [Peer],
    ) -> Result<Line> {
        let mut line = planned(session, problem, inputs, count)?;
        let ready = Ready::new(session, arena, problem, count, self.check)?;
        let plans = [Splits::Exact(1), Splits::Auto].map(|splits| plan_for(session, problem, &with(splits)));
        let mut candidates = ready.candidates(plans.into_iter().collect::<splitkv::Result<_>>()?)?;
        for candidate in &mut candidates {
            if let Some(checked) = ready.check(candidate)? {
                line.correct = Some(line.correct.unwrap_or(true) && checked.wrong.is_none());
                line.wrong = line.wrong.take().or(checked.wrong);
            }
            for _ in 0..WARM_UPS {
                candidate.run(session, &ready.sets[0])?;
            }
        }
        let mut timed = candidates.iter_mut().map(|candidate| ready.timed(candidate)).collect::<Result<Vec<_>>>()?;
        let mut contestants: Vec<&mut dyn Contestant> = timed.iter_mut().map(|timed| timed as _).collect();
        let mut opponent = None;
        if let Some(peer) = peers.first_mut() {
            let name = peer.name();
            match peer.prepare(problem, count) {
                Ok((choice, ready)) => {
                    line.peer = Some(format!("{name}: {choice}"));
                    opponent = Some(ready);
                }
                Err(error) => line.peer = Some(format!("{name}: {error:#}")),
            }
        }
        contestants.extend(opponent.iter_mut().map(|opponent| opponent as &mut dyn Contestant));
        for contestant in &mut contestants {
            // One more replay does not count.
            contestant.replay(WARM_UPS - 1)?;
        }
        let mut times = alternate(&mut contestants, Rounds::exact(&session.device, 7, 100)).into_iter();
        let mut next = || times.next().transpose();
        (line.one_split_us, line.auto_us, line.peer_us) = (next()?, next()?, next()?);
        Ok(line)
    }
}

/// The benchmark's problem.
fn problem(kv: usize) -> Problem {
    Problem::new(1, 12, 12, 70, kv, 192, DType::E4m3).head_dim_v(128).lse(true)
}

fn with(splits: Splits) -> Options {
    Options { splits, ..Options::default() }
}

/// What the planner chooses, without times.
fn planned(session: &Session, problem: &Problem, inputs: &'static str, sets: usize) -> Result<Line> {
    plan_for(session, problem, &with(Splits::Exact(1)))?;
    let auto = Choice::of(&plan_for(session, problem, &with(Splits::Auto))?);
    let (auto_splits, auto_kernel) = (auto.num_splits, auto.kernel);
    Ok(Line { kv: problem.sk, inputs, sets, auto_splits, auto_kernel, ..Line::default() })
}

impl Line {
    fn speed_up(&self) -> Option<f64> {
        Some(self.one_split_us? / self.auto_us?)
    }

    /// The automatic choice's time over the peer's.
    fn over_peer(&self) -> Option<f64> {
        Some(self.auto_us? / self.peer_us?)
    }

    fn correctness(&self) -> &'static str {
        match self.correct {
            Some(true) => "True",
            Some(false) => "False",
            None => "",
        }
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.digits$}"))
}

fn figures(lines: &[Line]) -> String {
    let row = |line: &Line| {
        vec![
            line.inputs.to_owned(),
            line.kv.to_string(),
            number(line.one_split_us, 2),
            number(line.auto_us, 2),
            line.auto_splits.to_string(),
            number(line.speed_up(), 2),
            number(line.peer_us, 2),
            number(line.over_peer(), 3),
            line.correctness().to_owned(),
        ]
    };
    let header = ["inputs", "KV", "1 split us", "auto us", "splits", "speed-up", "peer us", "auto/it", "correct"];
    let mut text = table(header, 1, lines.iter().map(row)).to_string();
    for line in lines {
        if let Some(peer) = &line.peer {
            text += &format!("\n{} {}: {peer}", line.kv, line.inputs);
        }
    }
    text
}

fn csv(lines: &[Line]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "kv",
        "inputs",
        "sets",
        "one_split_us",
        "auto_us",
        "auto_splits",
        "auto_kernel",
        "speed_up",
        "peer",
        "peer_us",
        "auto_over_peer",
        "correctness",
    ])?;
    for line in lines {
        writer.write_record([
            line.kv.to_string(),
            line.inputs.into(),
            line.sets.to_string(),
            number(line.one_split_us, 4),
            number(line.auto_us, 4),
            line.auto_splits.to_string(),
            line.auto_kernel.into(),
            number(line.speed_up(), 4),
            line.peer.clone().unwrap_or_default(),
            number(line.peer_us, 4),
            number(line.over_peer(), 4),
            line.correctness().into(),
        ])?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_up_and_ratio() {
        let line = Line {
            kv: 16_384,
            inputs: "rotated",
            sets: 9,
            auto_splits: 11,
            auto_kernel: "kernel",
            one_split_us: Some(160.0),
            auto_us: Some(20.0),
            peer_us: Some(30.0),
            peer: Some("fa3: 11 splits".into()),
            correct: Some(true),
            wrong: None,
        };
        let text = csv(&[line, Line { kv: 7, inputs: "fixed", ..Line::default() }]).unwrap();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[1], "16384,rotated,9,160.0000,20.0000,11,kernel,8.0000,fa3: 11 splits,30.0000,0.6667,True");
        assert_eq!(rows[2], "7,fixed,0,,,0,,,,,,");
    }
}
