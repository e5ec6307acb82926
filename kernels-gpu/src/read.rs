//! Reads memory and does nothing else: the card's ceiling, which benchmarks hold attention against.

use crate::abi::{READ_THREADS, ReadArguments};
use crate::gpu::thread;

/// 16 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Vector([u32; 4]);

/// Body of a read kernel: each block reads runs of `UNROLL * READ_THREADS` vectors, grid-strided.
///
/// # Safety
/// The launch is as the ABI table says; `vectors` is a multiple of the run.
#[inline(always)]
pub(crate) unsafe fn read<const UNROLL: usize>(a: ReadArguments) {
    let source = a.source.cast::<Vector>();
    let run = u64::from(READ_THREADS) * UNROLL as u64;
    let thread = u64::from(thread::thread_idx_x());
    let mut all = 0;
    let mut start = u64::from(thread::block_idx_x()) * run;
    while start < a.vectors {
        let mut vectors = [Vector([0; 4]); UNROLL];
        for u in 0..UNROLL {
            let place = start + (u as u64) * u64::from(READ_THREADS) + thread;
            // SAFETY: the run lies within the buffer.
            vectors[u] = unsafe { source.add(place as usize).read() };
        }
        for u in 0..UNROLL {
            for i in 0..4 {
                all |= vectors[u].0[i];
            }
        }
        start += u64::from(thread::grid_dim_x()) * run;
    }
    // Keeps the loads alive: the caller's data has no vector of this value, but the compiler cannot know.
    if all == a.never {
        // SAFETY: one word for each thread of a block.
        unsafe { a.sink.cast::<u32>().add(thread as usize).write(all) };
    }
}
