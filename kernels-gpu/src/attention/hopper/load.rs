//! The warpgroup that copies: one thread K and V, the other warps a unit's query rows, and what its end needs.

use super::super::descale;
use super::super::output::UnitOutput;
use super::super::schedule::{QueryRows, Unit, units};
use super::notes::Notes;
use super::{Block, COPY_BARRIER, HELPERS, NOTES_BARRIER, READY_BARRIER, SIZES, Turn};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{
    COMPUTE_THREADS, GROUP_THREADS, K_BYTES, NARROW, ROWS, THREADS, TOKENS, V_HALF, V_TOKENS, WIDE, at, barrier, map,
};
use crate::gpu::math::{self, opaque};
use crate::gpu::tile::E4m3;
use crate::gpu::{QuerySource, copy, mbarrier, named_barrier, thread, tma, warp};

/// Copies what the block's units need, as those who compute leave room for it.
///
/// # Safety
/// All threads of the group call it, `warp` being the number of this thread's; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run(a: &AttentionArguments, block: &Block, warp: u32) {
    let (mut index, mut tile, mut ring_parity) = (thread::block_idx_x(), 0, 1);
    // SAFETY: the caller's promise; a stage is filled when its last reader has said so.
    unsafe {
        if warp == 0 && warp::lane_id() == 0 {
            for number in [map::K_WIDE, map::K_NARROW, map::V] {
                tma::acquire_map(map(a, number));
            }
        } else if warp == 1 && warp::lane_id() == 0 {
            block.make_barriers();
        }
        warp::sync_warp();
        named_barrier::sync(COPY_BARRIER, GROUP_THREADS);
        while index < units(a, SIZES) {
            let unit = Unit::new(a, index, SIZES);
            mbarrier::wait(block.barrier(barrier::RING_FREE), ring_parity);
            ring_parity ^= 1;
            if warp == 0 {
                named_barrier::arrive(READY_BARRIER, THREADS);
                // Tiles queue up in memory: the first one goes ahead, and the others after the queries, which would come
                // too late behind them.
                let (mut from, mut to) = (unit.begin, unit.end.min(unit.begin + TOKENS));
                loop {
                    if warp::lane_id() == 0 {
                        copy_tiles(a, block, &unit, [from, to], tile);
                    }
                    warp::sync_warp();
                    tile += (to - from).div_ceil(TOKENS);
                    if opaque(from) == unit.begin {
                        named_barrier::sync(COPY_BARRIER, GROUP_THREADS);
                    }
                    if to == unit.end {
                        break;
                    }
                    (from, to) = (to, unit.end);
                }
            } else {
                prepare(a, block, &unit, index);
            }
            index = index.saturating_add(thread::grid_dim_x());
        }
    }
}

/// Address of a tensor map.
#[inline(always)]
fn map(a: &AttentionArguments, number: u32) -> *const u8 {
    a.page_table.wrapping_add((number * map::BYTES) as usize).cast_const()
}

/// Copies the unit's tiles from one of its tokens to another, the first one being the block's number `tile`, as stages of
/// the ring become empty.
///
/// # Safety
/// One thread calls it; as for [`run`].
#[inline(always)]
unsafe fn copy_tiles(a: &AttentionArguments, block: &Block, unit: &Unit, tokens: [u32; 2], mut tile: u32) {
    let (k_wide, k_narrow, v) = (map(a, map::K_WIDE), map(a, map::K_NARROW), map(a, map::V));
    let policy = copy::evict_first_policy();
    // Packed sequences are one.
    let batch = if a.cu_seqlens_kv.is_null() { unit.batch } else { 0 };
    let [mut token, end] = tokens;
    while token < end {
        let turn = Turn::of(tile);
        let place = [0, unit.kv_head, unit.sequence.first_key + token, batch];
        let to = block.shared + turn.offset();
        let full = block.barrier(barrier::K_FULL + turn.stage);
        // SAFETY: the caller's promise.
        unsafe {
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
        }
        tile += 1;
        token += TOKENS;
    }
}

/// Copies the unit's query rows, swizzled as products want them, and notes down what its end needs.
///
/// # Safety
/// The helpers call it; those who compute are through with the unit before. As for [`run`].
#[inline(always)]
unsafe fn prepare(a: &AttentionArguments, block: &Block, unit: &Unit, index: u32) {
    const PIECE: u32 = 16;
    const WIDE_PIECES: u32 = WIDE / PIECE;
    const PIECES: u32 = (WIDE + NARROW) / PIECE;
    // Rows from one of a thread's to the next: the swizzle of both is the same.
    const STEP: u32 = HELPERS / PIECES;
    const { assert!(HELPERS.is_multiple_of(PIECES) && STEP == 8) };
    // Else what depends on it alone is computed ahead of everything, and takes registers.
    let helper = opaque(thread::thread_idx_x()) - COMPUTE_THREADS - warp::SIZE;
    // SAFETY: the caller's promise; barriers lie between what is written here and its readers.
    unsafe {
        let factors = [descale::of_scores::<E4m3>(a, unit), descale::of_v::<E4m3>(a, unit)];
        let output = UnitOutput::new(*a, *unit, SIZES.table(a), factors[1]);
        let rows = QueryRows { a: *a, unit: *unit, element: 1 };
        let (mut row, piece) = (helper / PIECES, helper % PIECES);
        let (mut place, place_step) = if piece < WIDE_PIECES {
            (row * WIDE + (piece ^ (row % STEP)) * PIECE, STEP * WIDE)
        } else {
            (ROWS * WIDE + row * NARROW + ((piece - WIDE_PIECES) ^ (row / 2 % 4)) * PIECE, STEP * NARROW)
        };
        place += block.shared + at::QUERY;
        let (count, wanted) = (output.rows(), piece * PIECE < rows.bytes());
        // Nothing is read of a row that does not exist.
        let start = |row: u32| rows.row(row).unwrap_or(a.q.cast_const()).wrapping_add((piece * PIECE) as usize);
        let mut from = start(row);
        while row < ROWS {
            math::roll();
            copy::copy_16_zero_fill(place, from, if wanted && row < count { PIECE } else { 0 });
            row = opaque(row + STEP);
            place += place_step;
            from =
                if a.group == 1 { from.wrapping_add((u64::from(STEP) * a.q_stride_seq) as usize) } else { start(row) };
        }
        copy::commit_group();
        named_barrier::arrive(COPY_BARRIER, GROUP_THREADS);
        let notes = Notes::new(block);
        if helper == 0 {
            notes.write_numbers(a, unit, &output, factors[0], index);
        }
        copy::wait_for_oldest::<2>();
        mbarrier::fence_async_proxy();
        named_barrier::arrive(READY_BARRIER, THREADS);
        if helper < output.rows().min(ROWS) {
            notes.write_row(&output, helper);
        }
        named_barrier::arrive(NOTES_BARRIER, COMPUTE_THREADS + HELPERS);
    }
}
