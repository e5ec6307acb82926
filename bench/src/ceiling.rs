//! What the card's memory gives: the fastest of several read kernels.

use anyhow::{Context, Result};
use splitkv::{Buffer, Device, Kernels, Reader, Stream};

use crate::timing::{Timed, alternate};

/// Bytes that are read at once.
const BYTES: usize = 2 << 30;
/// Blocks for each multiprocessor; a full house is 4 of 512 threads.
const BLOCKS: [u32; 4] = [1, 2, 4, 8];

/// The ceiling and where it was found.
#[derive(Clone, Debug)]
pub(crate) struct Ceiling {
    /// Bytes a second.
    pub(crate) bandwidth: f64,
    /// The kernel: loads under way a thread, blocks a multiprocessor.
    pub(crate) found_with: String,
}

/// Measures the ceiling; every kernel with every number of blocks.
pub(crate) fn measure(device: &Device, kernels: &Kernels, stream: &Stream) -> Result<Ceiling> {
    let buffer = Buffer::new(device, BYTES).context("memory for the read ceiling")?;
    crate::inputs::fill(&buffer, 0xce11)?;
    let mut timed = Vec::new();
    let mut names = Vec::new();
    let readers = Reader::all(device, kernels)?;
    for reader in &readers {
        for blocks in BLOCKS {
            let graph = stream.capture(|| reader.run(stream, &buffer, blocks * device.props().multiprocessors))?;
            timed.push(Timed { graph, calls: 1 });
            names.push((reader.bytes(BYTES), format!("{} loads x {blocks} blocks", reader.unroll())));
        }
    }
    let times = alternate(stream, &timed)?;
    let fastest = names
        .into_iter()
        .zip(times)
        .map(|((bytes, found_with), micros)| Ceiling { bandwidth: bytes as f64 / micros * 1e6, found_with });
    fastest.max_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth)).context("there are no read kernels")
}
