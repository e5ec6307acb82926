//! Other libraries' attention, where this machine's Python has them: one process each, which runs `peers.py` and
//! answers a request a line, so that their rounds take turns with this library's.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, value_parser};
use serde_json::{Value, json};
use splitkv::Problem;

use crate::timing::Contestant;
use crate::work::Sizes;

const SCRIPT: &str = include_str!("peers.py");
/// Their names in `peers.py`, and for people.
const PEERS: [(&str, &str); 4] = [
    ("cudnn", "PyTorch's cuDNN attention"),
    ("flash", "PyTorch's flash attention"),
    ("fa3", "FlashAttention-3"),
    ("flashinfer", "FlashInfer"),
];

/// A peer and the process that it runs in.
pub(crate) struct Peer {
    name: &'static str,
    title: &'static str,
    process: Process,
    state: State,
}

enum State {
    /// It has not been heard of yet.
    Starting,
    /// It is there: its version.
    Here(String),
    /// It is not, or not any more: why.
    Missing(String),
}

/// A child process that answers lines with lines.
struct Process {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    /// Time that may still be spent on waiting for it.
    left: Duration,
    limit: Duration,
}

impl Process {
    fn start(command: &mut Command, limit: Duration) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let requests = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, requests, answers, left: limit, limit })
    }

    /// The next line. What does not come in time never comes: the process is ended.
    fn answer(&mut self) -> Result<Value> {
        let start = Instant::now();
        let line = self.answers.recv_timeout(self.left);
        self.left = self.left.saturating_sub(start.elapsed());
        match line {
            Ok(line) => serde_json::from_str(&line).with_context(|| format!("it answered {line}")),
            Err(RecvTimeoutError::Timeout) => {
                let _ = self.child.kill();
                bail!("it took more than {} s in all", self.limit.as_secs_f64())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("it ended: {}", self.child.wait()?),
        }
    }

    fn ask(&mut self, request: &Value) -> Result<Value> {
        // Where it has ended, the answer says so.
        let _ = writeln!(self.requests, "{request}");
        let answer = self.answer()?;
        match answer["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has nothing to save, and may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python that has the peers, and how long they may take.
#[derive(Args)]
pub(crate) struct PeerOptions {
    /// The Python that has the peers.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// How long a peer may be waited for in all (FlashInfer compiles its kernels for minutes, the first time).
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..))]
    peer_limit: u64,
}

impl PeerOptions {
    /// Starts those of `wanted` on the GPU of `device`.
    ///
    /// # Errors
    /// Where that Python cannot be started.
    pub(crate) fn start(&self, device: &str, wanted: &[&str]) -> Result<Vec<Peer>> {
        start(&self.python, device, Duration::from_secs(self.peer_limit), wanted)
    }
}

/// Starts those of `wanted` with the Python `python`, on the GPU of `device`; each may be waited for `limit` in all.
///
/// # Errors
/// Where that Python cannot be started.
fn start(python: &str, device: &str, limit: Duration, wanted: &[&str]) -> Result<Vec<Peer>> {
    // PyTorch has AMD's GPUs under NVIDIA's name.
    let ordinal = device.split_once(':').and_then(|(_, ordinal)| ordinal.parse().ok()).unwrap_or(0_u32);
    let start = |(name, title): (&'static str, &'static str)| {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT, name, &format!("cuda:{ordinal}")]);
        let process = Process::start(&mut command, limit).with_context(|| format!("starting {python}"))?;
        Ok(Peer { name, title, process, state: State::Starting })
    };
    PEERS.into_iter().filter(|(name, _)| wanted.contains(name)).map(start).collect()
}

/// The peers' names, in the order of [`start`].
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PEERS.into_iter().map(|(name, _)| name)
}

impl Peer {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// One line for people: its version, or why it is missing.
    pub(crate) fn describe(&mut self) -> String {
        let said = match self.version() {
            Ok(version) => version,
            Err(why) => format!("missing: {why:#}"),
        };
        format!("{} ({}): {said}", self.name, self.title)
    }

    /// Its version. Waits until it is known.
    pub(crate) fn version(&mut self) -> Result<String> {
        if let State::Starting = self.state {
            self.state = match self.process.answer() {
                Ok(answer) => match (answer["version"].as_str(), answer["missing"].as_str()) {
                    (Some(version), _) => State::Here(version.into()),
                    (None, Some(why)) => State::Missing(why.into()),
                    (None, None) => State::Missing(format!("it answered {answer}")),
                },
                Err(error) => State::Missing(format!("{error:#}")),
            };
        }
        match &self.state {
            State::Here(version) => Ok(version.clone()),
            State::Missing(why) => Err(anyhow!("{why}")),
            State::Starting => unreachable!("it was just waited for"),
        }
    }

    /// Makes the fastest of its ways to compute `problem` (without a mask, full lengths) ready for timing, with so many
    /// sets of inputs in rotation. The way's name.
    pub(crate) fn prepare(&mut self, problem: &Problem, sets: usize) -> Result<(String, Ready<'_>)> {
        self.version()?;
        let mut sizes = serde_json::to_value(Sizes::of(problem))?;
        sizes["sets"] = sets.into();
        let answer = self.process.ask(&json!({ "prepare": sizes }))?;
        let choice = answer["choice"].as_str().with_context(|| format!("it answered {answer}"))?.to_owned();
        Ok((choice, Ready { process: &mut self.process, sets }))
    }
}

/// A peer that is ready to be timed.
pub(crate) struct Ready<'a> {
    process: &'a mut Process,
    sets: usize,
}

impl Contestant for Ready<'_> {
    fn calls(&self) -> usize {
        self.sets
    }

    fn replay(&mut self, replays: usize) -> Result<f64> {
        let answer = self.process.ask(&json!({ "replay": replays }))?;
        answer["micros"].as_f64().with_context(|| format!("it answered {answer}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use splitkv::DType;

    fn peer(script: &str, limit: Duration) -> Peer {
        let process = Process::start(Command::new("sh").args(["-c", script]), limit).unwrap();
        Peer { name: "peer", title: "A peer", process, state: State::Starting }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_peer_is_prepared_and_timed() {
        let script = r#"echo '{"version": "peer 1.2"}'; read prepare; echo "$prepare" | grep -q '"sets":3' &&
            echo '{"choice": "8 splits"}'; read replay; echo '{"micros": 12.5}'; read replay; echo '{"error": "broken"}'"#;
        let mut peer = peer(script, LIMIT);
        assert_eq!(peer.describe(), "peer (A peer): peer 1.2");
        let (choice, mut ready) = peer.prepare(&Problem::new(1, 1, 1, 1, 1, 64, DType::Bf16), 3).unwrap();
        assert_eq!((choice.as_str(), ready.calls()), ("8 splits", 3));
        assert_eq!(ready.replay(7).unwrap(), 12.5);
        assert_eq!(ready.replay(7).unwrap_err().to_string(), "broken");
        let ended = ready.replay(7).unwrap_err().to_string();
        assert!(ended.starts_with("it ended: exit status: 0"), "{ended}");
    }

    #[test]
    fn what_is_missing_or_does_not_answer_is_named() {
        let mut missing = peer(r#"echo '{"missing": "no torch"}'"#, LIMIT);
        assert_eq!(missing.describe(), "peer (A peer): missing: no torch");
        assert!(missing.prepare(&Problem::new(1, 1, 1, 1, 1, 64, DType::Bf16), 1).is_err());
        let mut slow = peer("exec sleep 60", Duration::from_millis(50));
        assert_eq!(slow.describe(), "peer (A peer): missing: it took more than 0.05 s in all");
        let mut foreign = peer("echo hello", LIMIT);
        assert_eq!(foreign.describe().split(": ").nth(2), Some("it answered hello"));
        let mut silent = peer("exit 3", LIMIT);
        assert_eq!(silent.describe(), "peer (A peer): missing: it ended: exit status: 3");
        let error = start("no-such-python", "cuda:0", LIMIT, &["fa3"]).err().unwrap();
        assert_eq!(error.to_string(), "starting no-such-python");
    }
}
