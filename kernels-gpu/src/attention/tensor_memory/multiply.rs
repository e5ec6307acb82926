//! The thread that issues all products, in the order in which the unit for them does them.

use super::{Block, Kernel, Parities, Turn, Units};
use crate::abi::AttentionArguments;
use crate::abi::tcgen05::{BLOCK_BYTES, OUTPUTS, ROWS, SCORES, STREAMS, TOKENS, barrier};
use crate::gpu::mbarrier;
use crate::gpu::tcgen05::{self, Major, OPERAND_COLUMNS, Operand, descriptor, instruction};
use crate::gpu::tile::Element;

/// Bytes of a row that one product takes, and in the units of a descriptor.
const STEP: u32 = 32;
const DESCRIPTOR_UNIT: u32 = 16;

/// Issues the products of all units.
///
/// # Safety
/// One thread calls it; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<K: Kernel>(a: &AttentionArguments, block: &Block) {
    let mut issuer = Issuer { block, k: Turn::FIRST, v: Turn::FIRST, weights: Parities(0) };
    let (mut units, mut q_parity) = (Units::new(), 0);
    // SAFETY: the caller's promise; the order is the one that all roles keep.
    unsafe {
        while let Some((_, tiles)) = units.next::<K>(a) {
            let items = K::items(tiles);
            if items == 0 {
                continue;
            }
            mbarrier::wait(block.barrier::<K>(barrier::Q_FULL), q_parity);
            q_parity ^= 1;
            let mut ahead = 0;
            while ahead < items.min(STREAMS) {
                issuer.scores::<K>(ahead, items);
                ahead += 1;
            }
            let mut item = 0;
            while item < items {
                issuer.outputs::<K>(item);
                if ahead < items {
                    issuer.scores::<K>(ahead, items);
                    ahead += 1;
                }
                item += 1;
            }
            tcgen05::commit(block.barrier::<K>(barrier::OUTPUTS_FULL));
        }
    }
}

/// Where the issuing thread is.
struct Issuer<'a> {
    block: &'a Block,
    k: Turn,
    v: Turn,
    weights: Parities,
}

impl Issuer<'_> {
    /// Scores of an item: of its query tile with its K.
    ///
    /// # Safety
    /// As for [`run`]; the item is the next one.
    #[inline(always)]
    unsafe fn scores<K: Kernel>(&mut self, item: u32, items: u32) {
        let block = self.block;
        let stream = item % STREAMS;
        let (first, last) = K::ends(item);
        let Turn { stage, parity } = self.k;
        let tile = if K::Q_TILES == 1 { 0 } else { stream };
        let q = descriptor(block.shared + K::MAP.q + tile * K::MAP.qk_tile);
        let k = descriptor(block.shared + K::MAP.k + stage * K::MAP.qk_tile);
        let d = block.columns + SCORES[0] + stream * (SCORES[1] - SCORES[0]);
        // SAFETY: Q and K have come. The scores before were read by softmax, and their weights by products that this
        // thread has issued before.
        unsafe {
            if first {
                mbarrier::wait(block.barrier::<K>(barrier::K_FULL + stage), parity);
            }
            for step in 0..K::QK_STEPS {
                let further =
                    u64::from(step / 4 * (BLOCK_BYTES / DESCRIPTOR_UNIT) + step % 4 * (STEP / DESCRIPTOR_UNIT));
                let kind = const { instruction::<K::E>(ROWS, TOKENS, Major::Depth) };
                K::E::multiply(d, q + further, k + further, kind, step > 0);
            }
            tcgen05::commit(block.barrier::<K>(barrier::SCORES_FULL + stream));
            if last {
                tcgen05::commit(block.barrier::<K>(barrier::K_EMPTY + stage));
                self.k.next(K::MAP.k_stages);
            }
            if item == items - 1 {
                tcgen05::commit(block.barrier::<K>(barrier::Q_EMPTY));
            }
        }
    }

    /// Outputs of an item: its weights with its V, added to the stream's outputs.
    ///
    /// # Safety
    /// As for [`Self::scores`].
    #[inline(always)]
    unsafe fn outputs<K: Kernel>(&mut self, item: u32) {
        let block = self.block;
        let stream = item % STREAMS;
        let (first, last) = K::ends(item);
        let Turn { stage, parity } = self.v;
        let v = descriptor(block.shared + K::MAP.v + stage * K::MAP.v_tile);
        let p = block.columns + SCORES[0] + stream * (SCORES[1] - SCORES[0]);
        let d = block.columns + OUTPUTS[0] + stream * (OUTPUTS[1] - OUTPUTS[0]);
        // SAFETY: V and the weights have come, and the outputs are scaled to them.
        unsafe {
            if first {
                mbarrier::wait(block.barrier::<K>(barrier::V_FULL + stage), parity);
            }
            mbarrier::wait(block.barrier::<K>(barrier::WEIGHTS_FULL + stream), self.weights.take(stream));
            tcgen05::fence_after();
            for step in 0..K::PV_STEPS {
                let rows = STEP / K::E::OPERAND.bytes();
                let further = u64::from(step * rows * 128 / DESCRIPTOR_UNIT);
                let kind = const { instruction::<K::E>(ROWS, K::V, Major::Columns) };
                let accumulate = item >= STREAMS || step > 0;
                K::E::multiply_from_tensor(d, p + step * OPERAND_COLUMNS, v + further, kind, accumulate);
            }
            if last {
                tcgen05::commit(block.barrier::<K>(barrier::V_EMPTY + stage));
                self.v.next(K::MAP.v_stages);
            }
        }
    }
}
