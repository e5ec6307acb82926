//! The thread that copies K and V.

use super::super::schedule::{Unit, units};
use super::{Block, SIZES, Turn};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{K_BYTES, TOKENS, V_HALF, V_TOKENS, WIDE, barrier, map};
use crate::gpu::{copy, mbarrier, thread, tma};

/// Address of a tensor map.
#[inline(always)]
fn map(a: &AttentionArguments, number: u32) -> *const u8 {
    a.page_table.wrapping_add((number * map::BYTES) as usize).cast_const()
}

/// Makes the tensor maps known, and fetches them ahead.
///
/// # Safety
/// As for [`run`], which comes after it.
#[inline(always)]
pub(super) unsafe fn acquire_maps(a: &AttentionArguments) {
    // SAFETY: the caller's promise.
    unsafe {
        for number in [map::K_WIDE, map::K_NARROW, map::V] {
            tma::acquire_map(map(a, number));
        }
        for number in [map::K_WIDE, map::K_NARROW, map::V] {
            tma::prefetch_map(map(a, number));
        }
    }
}

/// Copies the tiles of all the block's units, as stages of the ring become empty.
///
/// # Safety
/// One thread calls it, after [`acquire_maps`]; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run(a: &AttentionArguments, block: &Block) {
    let (k_wide, k_narrow, v) = (map(a, map::K_WIDE), map(a, map::K_NARROW), map(a, map::V));
    let policy = copy::evict_first_policy();
    // SAFETY: the caller's promise; a stage is filled when its last reader has said so.
    unsafe {
        let (mut index, mut tile, mut ring_parity) = (thread::block_idx_x(), 0, 1);
        while index < units(a, SIZES) {
            let unit = Unit::new(a, index, SIZES);
            // Packed sequences are one.
            let batch = if a.cu_seqlens_kv.is_null() { unit.batch } else { 0 };
            mbarrier::wait(block.barrier(barrier::RING_FREE), ring_parity);
            ring_parity ^= 1;
            let mut token = unit.begin;
            while token < unit.end {
                let turn = Turn::of(tile);
                let place = [0, unit.kv_head, unit.sequence.first_key + token, batch];
                let to = block.shared + turn.offset();
                let full = block.barrier(barrier::K_FULL + turn.stage);
                mbarrier::wait(block.barrier(barrier::K_EMPTY + turn.stage), turn.parity ^ 1);
                mbarrier::arrive_expect_bytes(full, K_BYTES);
                tma::copy_box_4d(to, k_wide, place, full, policy);
                let [_, head, key, sequence] = place;
                tma::copy_box_4d(to + TOKENS * WIDE, k_narrow, [WIDE, head, key, sequence], full, policy);
                let (to, full) = (to + K_BYTES, block.barrier(barrier::V_FULL + turn.stage));
                mbarrier::wait(block.barrier(barrier::V_EMPTY + turn.stage), turn.parity ^ 1);
                mbarrier::arrive_expect_bytes(full, TOKENS * WIDE);
                tma::copy_box_4d(to, v, place, full, policy);
                tma::copy_box_4d(to + V_HALF, v, [0, head, key + V_TOKENS, sequence], full, policy);
                tile += 1;
                token += TOKENS;
            }
            index = index.saturating_add(thread::grid_dim_x());
        }
    }
}
