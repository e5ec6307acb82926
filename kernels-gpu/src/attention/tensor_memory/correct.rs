//! Rescales outputs when a maximum has risen, off the way from scores to weights, and writes the results: a row a thread.

use super::super::descale;
use super::super::merge::{normalise, with_sink};
use super::super::output::UnitOutput;
use super::super::softmax::finite;
use super::{Block, Kernel, Parities, Units, anew, arrive, wait};
use crate::abi::AttentionArguments;
use crate::abi::tcgen05::{OUTPUTS, ROWS, STREAMS, barrier};
use crate::gpu::math::opaque;
use crate::gpu::tcgen05;
use crate::gpu::{math, thread, warp};

/// Columns of a load.
const LOAD: usize = 16;

/// Corrects and writes all units.
///
/// # Safety
/// The four warps of correction call it; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<K: Kernel>(a: &AttentionArguments, block: &Block) {
    let row = thread::thread_idx_x() % ROWS;
    let lanes = (row / warp::SIZE * warp::SIZE) << 16;
    let outputs = |stream: u32| block.columns + lanes + OUTPUTS[0] + stream * (OUTPUTS[1] - OUTPUTS[0]);
    let mut messages = Parities(0);
    let mut hear = |stream: u32| -> [f32; 2] {
        // SAFETY: all lanes are here; each stream sends as many messages as are heard.
        unsafe {
            wait(block.barrier::<K>(barrier::MESSAGE_FULL + stream), messages.take(stream));
            let words = block.message::<K>(stream, row).read().0;
            arrive(block.barrier::<K>(barrier::MESSAGE_EMPTY + stream));
            words
        }
    };
    let (mut units, mut outputs_parity) = (Units::new(), 0);
    // SAFETY: the caller's promise.
    while let Some((_, tiles)) = unsafe { units.next::<K>(a) } {
        let items = K::items(tiles);
        let mut item = 0;
        while item < items {
            let stream = item % STREAMS;
            let [factor, _] = hear(stream);
            // SAFETY: all lanes are here. The products before the scores that the message is about are done, those
            // behind wait for this.
            unsafe {
                // The first item's outputs begin anew: what was there has been written.
                if item >= STREAMS && warp::any(factor < 1.0) {
                    tcgen05::fence_after();
                    rescale::<K>(outputs(stream), factor);
                }
                tcgen05::fence_before();
                arrive(block.barrier::<K>(barrier::WEIGHTS_FULL + stream));
            }
            item += 1;
        }
        let mut states = [[f32::NEG_INFINITY, 0.0]; STREAMS as usize];
        if items > 0 {
            states = [hear(0), hear(1)];
            // SAFETY: all lanes are here.
            unsafe {
                wait(block.barrier::<K>(barrier::OUTPUTS_FULL), outputs_parity);
                tcgen05::fence_after();
            }
            outputs_parity ^= 1;
        }
        // SAFETY: the caller's promise.
        let (a, unit) = (&anew(a), unsafe { units.last::<K>(a) });
        // SAFETY: the caller's promise.
        let output = unsafe { UnitOutput::new(*a, unit, K::SIZES.table(a), descale::of_v::<K::E>(a, &unit)) };
        for tile in 0..K::Q_TILES {
            // With one tile, the streams have seen other keys of its rows.
            let parts = if K::Q_TILES == 1 {
                [(0, states[0]), (1, states[1])]
            } else {
                [(tile, if tile == 0 { states[0] } else { states[1] }); 2]
            };
            let count = if K::Q_TILES == 1 { items.min(STREAMS) } else { items.min(1) };
            let max = math::max(parts[0].1[0], parts[1].1[0]);
            let weights = [math::exp2(parts[0].1[0] - finite(max)), math::exp2(parts[1].1[0] - finite(max))];
            let sum = if K::Q_TILES == 1 {
                math::fma(weights[1], parts[1].1[1], weights[0] * parts[0].1[1])
            } else {
                parts[0].1[1]
            };
            let target = output.row(tile * ROWS + row);
            let (lse, inverse) = normalise::<K::E>(max, sum, output.descale);
            let (lse, factor) = with_sink(lse, target.sink);
            let mut dim = 0;
            // Rolled: its stores are long.
            while dim < opaque(K::V) {
                let mut out = [0.0; LOAD];
                // SAFETY: all lanes are here; so many streams have outputs.
                unsafe {
                    if count > 0 {
                        out = tcgen05::load_16(outputs(parts[0].0) + dim);
                        tcgen05::wait_loads_16(&mut out);
                    }
                    if K::Q_TILES == 1 {
                        for i in 0..LOAD {
                            out[i] *= weights[0];
                        }
                        if count > 1 {
                            let mut more = tcgen05::load_16(outputs(1) + dim);
                            tcgen05::wait_loads_16(&mut more);
                            for i in 0..LOAD {
                                out[i] = math::fma(weights[1], more[i], out[i]);
                            }
                        }
                    }
                    target.store::<4, { LOAD / 4 }>(
                        |i| dim + 4 * i as u32,
                        |i| core::array::from_fn(|j| out[4 * i + j] * inverse * factor),
                    );
                }
                dim += LOAD as u32;
            }
            // SAFETY: the row exists, or is written nowhere.
            unsafe { target.store_lse(lse) };
        }
    }
}

/// Multiplies a row of outputs by a factor.
///
/// # Safety
/// Every lane of the warp reaches this call; nobody else accesses the columns.
#[inline(always)]
unsafe fn rescale<K: Kernel>(columns: u32, factor: f32) {
    let mut dim = 0;
    // Rolled: registers are few.
    while dim < opaque(K::V) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut out = tcgen05::load_16(columns + dim);
            tcgen05::wait_loads_16(&mut out);
            for i in 0..LOAD {
                out[i] *= factor;
            }
            tcgen05::store_16(columns + dim, &out.map(f32::to_bits));
        }
        dim += LOAD as u32;
    }
    // SAFETY: the caller's promise.
    unsafe { tcgen05::wait_stores() };
}
