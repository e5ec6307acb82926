//! What the card's memory gives: the fastest of several read kernels.

use anyhow::{Context, Result};
use serde::Serialize;
use splitkv::{Buffer, Device, Kernels, Reader, Stream};

use crate::timing::{Contestant, Rounds, Timed, alternate, is_emulated};

/// Bytes that are read at once.
const BYTES: usize = 2 << 30;
/// The same where it is interpreted and says nothing of a card: as much as the blocks of one multiprocessor read.
const BYTES_EMULATED: usize = 1 << 20;
/// Blocks for each multiprocessor; a full house is 4 of 512 threads.
const BLOCKS: [u32; 4] = [1, 2, 4, 8];
/// An H200 that reads less than this many bytes a second is not in order.
const LEAST_OF_H200: f64 = 4.5e12;

/// The ceiling and where it was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Ceiling {
    /// Bytes a second.
    #[serde(rename = "bytes_per_second")]
    pub(crate) bandwidth: f64,
    /// The kernel: loads under way a thread, blocks a multiprocessor.
    found_with: String,
    /// How many kernels and grids were tried.
    tried: usize,
    /// Whether the card reads less than one in order does, so that the run says nothing.
    pub(crate) void: bool,
}

impl Ceiling {
    /// Measures it: every kernel with every number of blocks.
    pub(crate) fn measure(device: &Device, kernels: &Kernels, stream: &Stream) -> Result<Self> {
        let (size, multiprocessors) =
            if is_emulated(device) { (BYTES_EMULATED, 1) } else { (BYTES, device.props().multiprocessors) };
        let buffer = Buffer::new(device, size).context("memory for the read ceiling")?;
        crate::arena::fill(&buffer)?;
        let (mut timed, mut names) = (Vec::new(), Vec::new());
        let readers = Reader::all(device, kernels)?;
        for reader in &readers {
            for blocks in BLOCKS {
                let graph = stream.capture(|| reader.run(stream, &buffer, blocks * multiprocessors))?;
                timed.push(Timed { stream, graph, calls: 1 });
                names.push((reader.bytes(size), format!("{} loads x {blocks} blocks", reader.unroll())));
            }
        }
        let mut contestants: Vec<&mut dyn Contestant> = timed.iter_mut().map(|timed| timed as _).collect();
        let times = alternate(&mut contestants, Rounds::careful(device)).into_iter().collect::<Result<Vec<_>>>()?;
        let bandwidths =
            names.into_iter().zip(&times).map(|((bytes, name), micros)| (bytes as f64 / micros * 1e6, name));
        let (bandwidth, found_with) =
            bandwidths.max_by(|a, b| a.0.total_cmp(&b.0)).context("there are no read kernels")?;
        let void = is_void(&device.props().name, bandwidth);
        Ok(Self { bandwidth, found_with, tried: times.len(), void })
    }

    /// One line for people.
    pub(crate) fn describe(&self) -> String {
        let Self { bandwidth, found_with, tried, void } = self;
        let line = format!("read ceiling {:.0} GB/s ({found_with}; the best of {tried})", bandwidth / 1e9);
        if *void { format!("{line}\nVOID: {}", self.why_void()) } else { line }
    }

    /// Why a run is void that is.
    pub(crate) fn why_void(&self) -> String {
        let (found, least) = (self.bandwidth / 1e9, LEAST_OF_H200 / 1e9);
        format!("this H200 reads {found:.0} GB/s, one in order {least:.0} or more: the figures say nothing")
    }
}

fn is_void(name: &str, bandwidth: f64) -> bool {
    name.contains("H200") && !name.starts_with("emulated") && bandwidth < LEAST_OF_H200
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slow_h200_is_void() {
        assert!(is_void("NVIDIA H200", 4.499e12));
        assert!(!is_void("NVIDIA H200", 4.5e12));
        assert!(!is_void("NVIDIA H100 80GB HBM3", 3.1e12));
        assert!(!is_void("emulated NVIDIA H200", 1e6));
        let ceiling = Ceiling { bandwidth: 4.2e12, found_with: "8 loads x 2 blocks".into(), tried: 12, void: true };
        let text = ceiling.describe();
        assert!(text.starts_with("read ceiling 4200 GB/s (8 loads x 2 blocks; the best of 12)\nVOID: "), "{text}");
        assert!(text.contains("4500 or more"), "{text}");
    }
}
