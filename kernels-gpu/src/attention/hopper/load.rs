//! The warpgroup that copies: one thread K and V, the other warps a unit's query rows, and what its end needs.

use super::super::descale;
use super::super::output::UnitOutput;
use super::super::schedule::{QueryRows, Unit, units};
use super::notes::Notes;
use super::operands::{Copy, Operands};
use super::{Block, COPY_BARRIER, HELPERS, NOTES_BARRIER, READY_BARRIER, Turn, sizes};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{COMPUTE_THREADS, GROUP_THREADS, ROWS, THREADS, barrier, map};
use crate::gpu::math::{self, opaque};
use crate::gpu::{QuerySource, copy, mbarrier, named_barrier, thread, tma, warp};

/// Pieces of a query row that a thread copies at most.
const MOST_QUERY_COPIES: usize = 2;

/// Copies what the block's units need, as those who compute leave room for it.
///
/// # Safety
/// All threads of the group call it, `warp` being the number of this thread's; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<E: Operands>(a: &AttentionArguments, block: &Block<E>, warp: u32) {
    let (mut index, mut tile, mut ring_parity) = (thread::block_idx_x(), 0, 1);
    // SAFETY: the caller's promise; a stage is filled when its last reader has said so.
    unsafe {
        if warp == 0 && warp::lane_id() == 0 {
            for number in 0..map::COUNT {
                if E::copies_by(number) {
                    tma::acquire_map(map(a, number));
                }
            }
        } else if warp == 1 && warp::lane_id() == 0 {
            block.make_barriers();
        }
        warp::sync_warp();
        named_barrier::sync(COPY_BARRIER, GROUP_THREADS);
        while index < units(a, sizes::<E>()) {
            let unit = Unit::new(a, index, sizes::<E>());
            mbarrier::wait(block.barrier(barrier::RING_FREE), ring_parity);
            ring_parity ^= 1;
            if warp == 0 {
                named_barrier::arrive(READY_BARRIER, THREADS);
                // Tiles queue up in memory: the first one goes ahead, and the others after the queries, which would come
                // too late behind them.
                let (mut from, mut to) = (unit.begin, unit.end.min(unit.begin + E::LAYOUT.tokens));
                loop {
                    if warp::lane_id() == 0 {
                        copy_tiles(a, block, &unit, [from, to], tile);
                    }
                    warp::sync_warp();
                    tile += (to - from).div_ceil(E::LAYOUT.tokens);
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
unsafe fn copy_tiles<E: Operands>(
    a: &AttentionArguments,
    block: &Block<E>,
    unit: &Unit,
    tokens: [u32; 2],
    mut tile: u32,
) {
    let policy = copy::evict_first_policy();
    // Packed sequences are one.
    let batch = if a.cu_seqlens_kv.is_null() { unit.batch } else { 0 };
    let [mut token, end] = tokens;
    while token < end {
        let turn = Turn::of(tile);
        let first_key = unit.sequence.first_key + token;
        let copy = |boxes: &[Copy], to: u32, full: u32| {
            for &Copy { map: number, to: offset, byte, token } in boxes {
                let place = [byte, unit.kv_head, first_key + token, batch];
                // SAFETY: the caller's promise; the box lies in the stage.
                unsafe { tma::copy_box_4d(to + offset, map(a, number), place, full, policy) };
            }
        };
        let to = block.shared + turn.stage * E::LAYOUT.stage;
        let full = block.barrier(barrier::K_FULL + turn.stage);
        // SAFETY: the caller's promise.
        unsafe {
            mbarrier::wait(block.barrier(barrier::K_EMPTY + turn.stage), turn.parity ^ 1);
            mbarrier::arrive_expect_bytes(full, E::LAYOUT.k_bytes);
            copy(E::K, to, full);
            let (to, full) = (to + E::LAYOUT.k_bytes, block.barrier(barrier::V_FULL + turn.stage));
            mbarrier::wait(block.barrier(barrier::V_EMPTY + turn.stage), turn.parity ^ 1);
            mbarrier::arrive_expect_bytes(full, E::LAYOUT.v_bytes);
            copy(E::V, to, full);
        }
        tile += 1;
        token += E::LAYOUT.tokens;
    }
}

/// Copies the unit's query rows, swizzled as products want them, and notes down what its end needs.
///
/// # Safety
/// The helpers call it; those who compute are through with the unit before. As for [`run`].
#[inline(always)]
unsafe fn prepare<E: Operands>(a: &AttentionArguments, block: &Block<E>, unit: &Unit, index: u32) {
    const PIECE: u32 = 16;
    // Rows from one of a thread's to the next: the swizzle of both is the same.
    const STEP: u32 = 8;
    // Threads of a row. Each has one piece of it, or several, as far from each other.
    const PIECES: u32 = HELPERS / STEP;
    const { assert!(HELPERS.is_multiple_of(STEP) && E::QUERY_PIECES.is_multiple_of(PIECES)) };
    // Else what depends on it alone is computed ahead of everything, and takes registers.
    let helper = opaque(thread::thread_idx_x()) - COMPUTE_THREADS - warp::SIZE;
    // SAFETY: the caller's promise; barriers lie between what is written here and its readers.
    unsafe {
        let factors = [descale::of_scores::<E>(a, unit), descale::of_v::<E>(a, unit)];
        let output = UnitOutput::new(*a, *unit, sizes::<E>().table(a), factors[1]);
        let rows = QueryRows { a: *a, unit: *unit, element: E::OPERAND.bytes() };
        let (mut row, first) = (helper / PIECES, helper % PIECES);
        let query = block.shared + E::LAYOUT.query_at;
        let mut places = [0; MOST_QUERY_COPIES];
        for i in 0..E::QUERY_PIECES / PIECES {
            places[i as usize] = query + E::query_place(row, first + i * PIECES);
        }
        let (count, bytes) = (output.rows(), rows.bytes());
        // Nothing is read of a row that does not exist.
        let start = |row: u32| rows.row(row).unwrap_or(a.q.cast_const()).wrapping_add((first * PIECE) as usize);
        let row_step = (u64::from(STEP * E::OPERAND.bytes()) * a.q_stride_seq) as usize;
        let mut from = start(row);
        while row < ROWS {
            math::roll();
            for i in 0..E::QUERY_PIECES / PIECES {
                let (piece, place) = (first + i * PIECES, &mut places[i as usize]);
                let wanted = piece * PIECE < bytes && row < count;
                let from = from.wrapping_add((i * PIECES * PIECE) as usize);
                copy::copy_16_zero_fill(*place, from, if wanted { PIECE } else { 0 });
                *place += E::query_step(piece);
            }
            row = opaque(row + STEP);
            from = if a.group == 1 { from.wrapping_add(row_step) } else { start(row) };
        }
        copy::commit_group();
        named_barrier::arrive(COPY_BARRIER, GROUP_THREADS);
        let notes = Notes::new(block);
        if helper == 0 {
            notes.write_numbers::<E>(a, unit, &output, factors[0], index);
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
