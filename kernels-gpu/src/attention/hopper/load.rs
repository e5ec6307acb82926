//! The thread that copies K and V.

use super::super::schedule::{Unit, units};
use super::operands::{Copy, Operands};
use super::{Block, Turn, sizes};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{barrier, map};
use crate::gpu::{copy, mbarrier, thread, tma};

/// Copies the tiles of all the block's units, as stages of the ring become empty.
///
/// # Safety
/// One thread calls it; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<E: Operands>(a: &AttentionArguments, block: &Block<E>) {
    let maps = |number: u32| a.page_table.wrapping_add((number * map::BYTES) as usize).cast_const();
    let policy = copy::evict_first_policy();
    // SAFETY: the caller's promise; a stage is filled when its last reader has said so.
    unsafe {
        for number in 0..map::COUNT {
            if E::K.iter().chain(E::V).any(|copy| copy.map == number) {
                tma::acquire_map(maps(number));
            }
        }
        let (mut index, mut tile, mut ring_parity) = (thread::block_idx_x(), 0, 1);
        while index < units(a, sizes::<E>()) {
            let unit = Unit::new(a, index, sizes::<E>());
            // Packed sequences are one.
            let batch = if a.cu_seqlens_kv.is_null() { unit.batch } else { 0 };
            mbarrier::wait(block.barrier(barrier::RING_FREE), ring_parity);
            ring_parity ^= 1;
            let mut token = unit.begin;
            while token < unit.end {
                let turn = Turn::of(tile);
                let copy = |copy: &Copy, to: u32, full: u32| {
                    let key = unit.sequence.first_key + token + copy.token;
                    // The caller's promise; the box lies in the stage.
                    tma::copy_box_4d(to + copy.to, maps(copy.map), [copy.byte, unit.kv_head, key, batch], full, policy);
                };
                let to = block.shared + turn.stage * E::LAYOUT.stage;
                let full = block.barrier(barrier::K_FULL + turn.stage);
                mbarrier::wait(block.barrier(barrier::K_EMPTY + turn.stage), turn.parity ^ 1);
                mbarrier::arrive_expect_bytes(full, E::LAYOUT.k_bytes);
                for part in E::K {
                    copy(part, to, full);
                }
                let (to, full) = (to + E::LAYOUT.k_bytes, block.barrier(barrier::V_FULL + turn.stage));
                mbarrier::wait(block.barrier(barrier::V_EMPTY + turn.stage), turn.parity ^ 1);
                mbarrier::arrive_expect_bytes(full, E::LAYOUT.v_bytes);
                for part in E::V {
                    copy(part, to, full);
                }
                tile += 1;
                token += E::LAYOUT.tokens;
            }
            index = index.saturating_add(thread::grid_dim_x());
        }
    }
}
