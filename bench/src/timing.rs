//! Timing: graph replays by the device's clock, rounds that take turns, medians.

use std::time::Duration;

use anyhow::Result;
use splitkv::{Device, Graph, Stream};

/// Rounds, and about how long one of them takes for one contestant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    count: usize,
    round: Round,
}

#[derive(Clone, Copy, Debug)]
enum Round {
    /// As many replays as take about so long.
    Time(Duration),
    Replays(usize),
}

impl Rounds {
    /// What is compared.
    pub(crate) fn careful(device: &Device) -> Self {
        Self::new(device, 7, Round::Time(Duration::from_millis(20)))
    }

    /// What is looked through for the best.
    pub(crate) fn quick(device: &Device) -> Self {
        Self::new(device, 3, Round::Time(Duration::from_millis(10)))
    }

    /// So many rounds of so many replays.
    pub(crate) fn exact(device: &Device, count: usize, replays: usize) -> Self {
        Self::new(device, count, Round::Replays(replays))
    }

    /// Where a GPU's driver stands before an emulator, one replay says as much as many.
    fn new(device: &Device, count: usize, round: Round) -> Self {
        if is_emulated(device) { Self { count: 1, round: Round::Replays(1) } } else { Self { count, round } }
    }
}

/// Whether kernels are interpreted there: on an emulator's own device, and on one that is found through a GPU driver's
/// functions.
pub(crate) fn is_emulated(device: &Device) -> bool {
    device.props().name.starts_with("emulated")
}

/// Somebody who can replay a graph of calls.
pub(crate) trait Contestant {
    /// Calls in a replay, one after another.
    fn calls(&self) -> usize;
    /// The device's time in microseconds for so many replays in a row, after one that does not count.
    fn replay(&mut self, replays: usize) -> Result<f64>;
}

/// A graph of this library's calls.
pub(crate) struct Timed<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) graph: Graph,
    pub(crate) calls: usize,
}

impl Contestant for Timed<'_> {
    fn calls(&self) -> usize {
        self.calls
    }

    fn replay(&mut self, replays: usize) -> Result<f64> {
        self.graph.launch(self.stream)?;
        let start = self.stream.record()?;
        for _ in 0..replays {
            self.graph.launch(self.stream)?;
        }
        Ok(self.stream.record()?.elapsed_since(&start)?.as_secs_f64() * 1e6)
    }
}

/// Microseconds of a call of each contestant: medians of rounds in which they take turns, so that what drifts (clocks,
/// temperature) meets all of them. One who fails is out, and the others go on.
pub(crate) fn alternate(contestants: &mut [&mut dyn Contestant], rounds: Rounds) -> Vec<Result<f64>> {
    let mut replays = Vec::new();
    for contestant in contestants.iter_mut() {
        replays.push(contestant.replay(1).map(|micros| match rounds.round {
            Round::Time(length) => (length.as_secs_f64() * 1e6 / micros.max(1e-3)).ceil().clamp(1.0, 2000.0) as usize,
            Round::Replays(replays) => replays,
        }));
    }
    let mut times: Vec<Result<Vec<f64>>> = replays.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..rounds.count {
        for (index, contestant) in contestants.iter_mut().enumerate() {
            let (Ok(replays), Ok(measured)) = (&replays[index], &mut times[index]) else { continue };
            match contestant.replay(*replays) {
                Ok(micros) => measured.push(micros / (*replays * contestant.calls()) as f64),
                Err(error) => times[index] = Err(error),
            }
        }
    }
    replays.into_iter().zip(times).map(|(replays, times)| replays.and(times).map(median)).collect()
}

/// The middle value; of an even number of values the upper one of the two.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 9.0, 2.0, 4.0]), 3.0);
        assert_eq!(median(vec![5.0]), 5.0);
        assert_eq!(median(vec![1.0, f64::INFINITY, 2.0, 4.0]), 4.0);
    }

    /// Takes so many microseconds a replay in each round, then fails.
    struct Scripted<'a> {
        times: Vec<f64>,
        calls: usize,
        seen: &'a std::cell::RefCell<Vec<(usize, usize)>>,
    }

    impl Contestant for Scripted<'_> {
        fn calls(&self) -> usize {
            self.calls
        }

        fn replay(&mut self, replays: usize) -> Result<f64> {
            self.seen.borrow_mut().push((self.calls, replays));
            if self.times.is_empty() {
                bail!("broken");
            }
            Ok(self.times.remove(0) * replays as f64)
        }
    }

    #[test]
    fn contestants_take_turns_and_one_who_fails_is_out() {
        let seen = std::cell::RefCell::default();
        let rounds = Rounds { count: 3, round: Round::Time(Duration::from_micros(1000)) };
        let mut steady = Scripted { times: vec![100.0, 120.0, 100.0, 140.0], calls: 4, seen: &seen };
        let mut failing = Scripted { times: vec![500.0, 500.0], calls: 1, seen: &seen };
        let mut never = Scripted { times: vec![], calls: 2, seen: &seen };
        let times = alternate(&mut [&mut steady, &mut failing, &mut never], rounds);
        assert_eq!(*times[0].as_ref().unwrap(), 30.0, "the median of 120, 100 and 140, for 4 calls");
        assert_eq!(times[1].as_ref().unwrap_err().to_string(), "broken");
        assert_eq!(times[2].as_ref().unwrap_err().to_string(), "broken");
        let order = [(4, 1), (1, 1), (2, 1), (4, 10), (1, 2), (4, 10), (1, 2), (4, 10)];
        assert_eq!(*seen.borrow(), order);
    }
}
