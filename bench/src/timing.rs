//! Timing graphs: the device's clock, alternating rounds, medians.

use std::time::Duration;

use splitkv::{Graph, Stream};

/// Rounds that a median is taken of.
pub(crate) const ROUNDS: usize = 7;
/// About how long one round of one graph takes.
const ROUND: Duration = Duration::from_millis(20);

/// A graph of several calls, one after another.
pub(crate) struct Timed {
    pub(crate) graph: Graph,
    pub(crate) calls: usize,
}

/// Microseconds of a call in each graph: medians of rounds in which the graphs take turns, so that what drifts
/// (clocks, temperature) meets all of them.
pub(crate) fn alternate(stream: &Stream, timed: &[Timed]) -> splitkv::Result<Vec<f64>> {
    let mut launches = Vec::new();
    for Timed { graph, .. } in timed {
        // Once to warm up, once to see how long it takes.
        measure(stream, graph, 1)?;
        let once = measure(stream, graph, 1)?;
        launches.push((ROUND.as_secs_f64() / once.as_secs_f64().max(1e-9)).ceil().clamp(1.0, 1000.0) as usize);
    }
    let mut rounds = vec![Vec::new(); timed.len()];
    for _ in 0..ROUNDS {
        for (index, Timed { graph, calls }) in timed.iter().enumerate() {
            let elapsed = measure(stream, graph, launches[index])?;
            rounds[index].push(elapsed.as_secs_f64() * 1e6 / (launches[index] * calls) as f64);
        }
    }
    Ok(rounds.into_iter().map(median).collect())
}

fn measure(stream: &Stream, graph: &Graph, launches: usize) -> splitkv::Result<Duration> {
    let start = stream.record()?;
    for _ in 0..launches {
        graph.launch(stream)?;
    }
    stream.record()?.elapsed_since(&start)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(super::median(vec![3.0, 1.0, 9.0, 2.0, 4.0]), 3.0);
    }
}
