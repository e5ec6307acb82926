//! The warpgroups that compute.

use super::super::merge::{normalise, with_sink};
use super::super::schedule::units;
use super::super::softmax::finite;
use super::notes::{Notes, Numbers};
use super::operands::{Operands, element};
use super::{BOTH_BARRIER, Block, GROUP_BARRIER, HELPERS, NOTES_BARRIER, READY_BARRIER, Turn, fuse, sizes};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{
    COMPUTE_GROUPS, COMPUTE_THREADS, GROUP_THREADS, HEAD_DIM_V, ROWS, SUMS_AT, THREADS, barrier,
};
use crate::gpu::math::{self, opaque};
use crate::gpu::shared::{load_f32, store, store_f32, store_two_f32};
use crate::gpu::wgmma::{ELEMENTS, Elements, PRODUCTS};
use crate::gpu::{Float2, Float4, mbarrier, named_barrier, thread, warp};

/// Columns of a product that a lane holds elements of.
pub(super) const COLUMNS: usize = ELEMENTS / 2;

/// Column of an element of a product: one of those that the lane has.
const fn column(element: usize) -> usize {
    element / 4 * 2 + element % 2
}

/// What a lane holds of a unit.
struct State {
    /// Outputs: head dims of V by rows, two products.
    out: Elements,
    /// Of each column, what is added to its scores: minus the reference.
    offset: [f32; COLUMNS],
    /// Of each column, this lane's part of the sum of weights.
    sum: [f32; COLUMNS],
}

/// Where a lane is, and what it finds there.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    /// Thread in the warpgroup.
    thread: u32,
    /// Warp in the warpgroup.
    pub(super) warp: u32,
    /// Group of four lanes in the warp, and lane in the group.
    pub(super) g: u32,
    pub(super) t: u32,
    /// The warpgroup's barrier.
    barrier: u32,
    /// Shared address of the warpgroup's weights, and of its rows' steps.
    pub(super) weights: u32,
    steps: u32,
}

/// Computes the block's units.
///
/// # Safety
/// Both warpgroups call it, `group` being the number of this thread's; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run<E: Operands>(a: &AttentionArguments, block: &Block<E>, group: u32) {
    let (lane, thread) = (warp::lane_id(), thread::thread_idx_x() % GROUP_THREADS);
    let lane = Lane {
        thread,
        warp: thread / warp::SIZE,
        g: lane / 4,
        t: lane % 4,
        barrier: GROUP_BARRIER + group,
        weights: block.shared + E::LAYOUT.weights_at + group * E::LAYOUT.weights,
        steps: block.shared + E::LAYOUT.steps_at + group * ROWS * 4,
    };
    let notes = Notes::new(block);
    let (mut index, mut first_tile) = (thread::block_idx_x(), 0);
    // SAFETY: the caller's promise.
    while index < unsafe { units(a, sizes::<E>()) } {
        // SAFETY: the index is in range; the caller's promise. All threads walk the same units.
        unsafe {
            named_barrier::sync(READY_BARRIER, THREADS);
            let Numbers { tokens, scale, .. } = notes.numbers();
            let mut state = State { out: [[0.0; ELEMENTS]; PRODUCTS], offset: [0.0; COLUMNS], sum: [0.0; COLUMNS] };
            let mut tile = first_tile + group;
            let mut left = tokens.saturating_sub(group * E::LAYOUT.tokens);
            let mut first = true;
            while left > 0 {
                step(&mut state, block, &lane, Turn::of(tile), scale, left, first);
                first = false;
                tile += COMPUTE_GROUPS;
                left = left.saturating_sub(COMPUTE_GROUPS * E::LAYOUT.tokens);
            }
            let numbers = notes.numbers();
            first_tile += numbers.tokens.div_ceil(E::LAYOUT.tokens);
            write(&state, block, &lane, group, &numbers, notes);
            if a.page_table_stride != 0 {
                fuse::merge(a, block, &numbers, notes);
            }
            index = index.saturating_add(thread::grid_dim_x());
            if index < units(a, sizes::<E>()) {
                // The ring may be filled again; the next unit's notes, and query rows, may be written.
                mbarrier::fence_async_proxy();
                warp::sync_warp();
                if warp::lane_id() == 0 {
                    mbarrier::arrive(block.barrier(barrier::RING_FREE));
                }
            }
        }
    }
}

/// Takes a tile in, of which the unit has `left` tokens or more than all.
///
/// # Safety
/// All threads of the warpgroup reach this call with the same values; `turn` is the tile's.
#[inline(always)]
unsafe fn step<E: Operands>(
    state: &mut State,
    block: &Block<E>,
    lane: &Lane,
    turn: Turn,
    scale: f32,
    left: u32,
    first: bool,
) {
    let stage = block.shared + turn.stage * E::LAYOUT.stage;
    // SAFETY: the caller's promise; the barriers say when a stage is full, and that it has been read.
    unsafe {
        mbarrier::wait(block.barrier(barrier::K_FULL + turn.stage), turn.parity);
        let mut x = E::scores(stage, block.shared + E::LAYOUT.query_at);
        if warp::lane_id() == 0 {
            mbarrier::arrive(block.barrier(barrier::K_EMPTY + turn.stage));
        }
        for p in 0..E::PRODUCTS {
            for e in 0..ELEMENTS {
                x[p][e] = math::fma(x[p][e], scale, state.offset[column(e)]);
            }
        }
        if left < E::LAYOUT.tokens {
            hide::<E>(&mut x, lane, left);
        }
        let mut most = [x[0][0], x[0][1], x[0][2], x[0][3]];
        for e in 4..E::PRODUCTS * ELEMENTS {
            most[e % 4] = math::max(most[e % 4], x[e / ELEMENTS][e % ELEMENTS]);
        }
        let most = math::max(math::max(most[0], most[1]), math::max(most[2], most[3]));
        if named_barrier::any_of_warpgroup(lane.barrier, first || most > E::MOST) {
            move_references::<E>(state, &mut x, lane, first);
        }
        E::store_weights(&x, &mut state.sum, lane);
        mbarrier::fence_async_proxy();
        let values = stage + E::LAYOUT.k_bytes;
        mbarrier::wait(block.barrier(barrier::V_FULL + turn.stage), turn.parity);
        if left < E::LAYOUT.tokens {
            clear::<E>(values, lane, left);
        }
        let v = E::load_values(values, lane);
        named_barrier::sync(lane.barrier, GROUP_THREADS);
        let empty = block.barrier(barrier::V_EMPTY + turn.stage);
        if E::THROUGH_REGISTERS && warp::lane_id() == 0 {
            mbarrier::arrive(empty);
        }
        E::add_outputs(&mut state.out, &v, values, lane.weights);
        if !E::THROUGH_REGISTERS && warp::lane_id() == 0 {
            mbarrier::arrive(empty);
        }
    }
}

/// Hides the scores of the keys from `left` on.
#[inline(always)]
fn hide<E: Operands>(x: &mut Elements, lane: &Lane, left: u32) {
    for p in 0..E::PRODUCTS {
        for half in 0..2 {
            let key = p as u32 * 64 + lane.warp * 16 + half as u32 * 8 + lane.g;
            if key >= left {
                for c in 0..COLUMNS {
                    x[p][element(c) + 2 * half] = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Moves each row's reference so that its largest score so far leaves the headroom, unless that is lower, and scales
/// what there is to it. The first tile sets the references.
///
/// # Safety
/// All threads of the warpgroup reach this call; none reads its weights any more.
#[inline(always)]
unsafe fn move_references<E: Operands>(state: &mut State, x: &mut Elements, lane: &Lane, first: bool) {
    // SAFETY: the caller's promise; the buffers are the warpgroup's, and barriers lie between writing and reading.
    unsafe {
        for c in 0..COLUMNS {
            let mut most = [x[0][element(c)], x[0][element(c) + 2]];
            for p in 1..E::PRODUCTS {
                most = [math::max(most[0], x[p][element(c)]), math::max(most[1], x[p][element(c) + 2])];
            }
            let most = math::max(most[0], most[1]);
            store_f32(lane.weights + (lane.warp * 8 + lane.g) * ROWS * 4 + lane.place(c), most);
        }
        named_barrier::sync(lane.barrier, GROUP_THREADS);
        if lane.thread < ROWS {
            let mut most = f32::NEG_INFINITY;
            let mut place = lane.weights + lane.thread * 4;
            for _ in 0..opaque(4) {
                for i in 0..8 {
                    most = math::max(most, load_f32(place + i * ROWS * 4));
                }
                place += 8 * ROWS * 4;
            }
            let step = most - E::LARGEST;
            store_f32(lane.steps + lane.thread * 4, if first { step } else { math::max(step, 0.0) });
        }
        named_barrier::sync(lane.barrier, GROUP_THREADS);
        for c in 0..COLUMNS {
            let step = load_f32(lane.steps + lane.place(c));
            state.offset[c] -= step;
            for half in 0..2 {
                for p in 0..E::PRODUCTS {
                    x[p][element(c) + 2 * half] -= step;
                }
            }
            if !first {
                let factor = math::exp2(-step);
                state.sum[c] *= factor;
                for half in 0..2 {
                    for p in 0..PRODUCTS {
                        state.out[p][element(c) + 2 * half] *= factor;
                    }
                }
            }
        }
    }
}

impl Lane {
    /// Place in bytes of the lane's column `c` in a row of floats, one of each column of a product.
    #[inline(always)]
    fn place(&self, c: usize) -> u32 {
        (c as u32 / 2 * 8 + self.t * 2 + c as u32 % 2) * 4
    }
}

/// Makes zeros of the rows of V from `left` on: memory behind a sequence may hold NaN, which no weight of 0 hides.
///
/// # Safety
/// All threads of the warpgroup reach this call; `values` is the shared address of a stage's V, which has come.
#[inline(always)]
unsafe fn clear<E: Operands>(values: u32, lane: &Lane, left: u32) {
    let mut item = left * E::V_WORDS + lane.thread;
    while item < E::LAYOUT.tokens * E::V_WORDS {
        // SAFETY: the row is one of the stage's.
        unsafe { store(values + E::value_place(item / E::V_WORDS, item % E::V_WORDS), 0) };
        item += GROUP_THREADS;
    }
    mbarrier::fence_async_proxy();
    // SAFETY: the caller's promise.
    unsafe { named_barrier::sync(lane.barrier, GROUP_THREADS) };
}

/// Merges the warpgroups and writes the unit's rows.
///
/// # Safety
/// All threads that compute reach this call; the notes are the unit's.
#[inline(always)]
unsafe fn write<E: Operands>(
    state: &State,
    block: &Block<E>,
    lane: &Lane,
    group: u32,
    numbers: &Numbers,
    notes: Notes,
) {
    // Floats from one row to the next: 4 more than it has, so that a warp writes to different banks.
    const PITCH: usize = HEAD_DIM_V as usize + 4;
    const GROUP: usize = ROWS as usize * PITCH;
    // Distance of the groups' sums: threads that read both at once find them in different banks.
    const SUMS: u32 = 32 * ROWS * 4 + 64;
    const { assert!(COMPUTE_GROUPS as usize * GROUP * 4 <= SUMS_AT as usize) };
    const { assert!(SUMS_AT + COMPUTE_GROUPS * SUMS <= E::LAYOUT.query_at && COMPUTE_GROUPS == 2) };
    let outputs = block.memory.cast::<f32>();
    // A row's factors: of the groups, and of their sum.
    let factors = block.memory.wrapping_add(E::LAYOUT.weights_at as usize).cast::<Float4>();
    // SAFETY: the ring is empty once both warpgroups are here: the copying thread waits for it to be free. The notes have
    // been taken then.
    unsafe {
        named_barrier::sync(NOTES_BARRIER, COMPUTE_THREADS + HELPERS);
        let (row, dim) = (lane.t as usize * 2, E::out_dim(lane) as usize);
        let first = outputs.add(group as usize * GROUP + row * PITCH + dim);
        for p in 0..PRODUCTS {
            for c in 0..COLUMNS {
                let [x, y] = [state.out[p][element(c)], state.out[p][element(c) + 2]];
                let place = first.add((c / 2 * 8 + c % 2) * PITCH + p * E::OUT_PRODUCT);
                if E::OUT_STEP == 1 {
                    place.cast::<Float2>().write(Float2([x, y]));
                } else {
                    place.write(x);
                    place.add(E::OUT_STEP).write(y);
                }
            }
        }
        let sums = block.shared + SUMS_AT;
        let place = sums + group * SUMS + (lane.warp * 8 + lane.g) * ROWS * 4 + lane.place(0);
        for c in 0..COLUMNS / 2 {
            store_two_f32(place + c as u32 * 32, [state.sum[2 * c], state.sum[2 * c + 1]]);
        }
        if lane.warp == 0 && lane.g == 0 {
            for c in 0..COLUMNS / 2 {
                store_two_f32(lane.steps + lane.place(2 * c), [state.offset[2 * c], state.offset[2 * c + 1]]);
            }
        }
        named_barrier::sync(BOTH_BARRIER, COMPUTE_THREADS);
        // Two threads a row, one for each group.
        let thread = opaque(thread::thread_idx_x());
        let (row, of) = (thread / 2, thread % 2);
        if row < ROWS.next_multiple_of(warp::SIZE / 2) {
            let row_or_last = row.min(ROWS - 1);
            let (mut sum, mut place) = (0.0, sums + of * SUMS + row_or_last * 4);
            for _ in 0..32 {
                sum += load_f32(place);
                place += ROWS * 4;
            }
            let offset = load_f32(block.shared + E::LAYOUT.steps_at + of * ROWS * 4 + row_or_last * 4);
            let seen = numbers.tokens > of * E::LAYOUT.tokens;
            let max = if seen { E::HEADROOM - offset } else { f32::NEG_INFINITY };
            let [other_max, other_sum] = [max, sum].map(|x| warp::warp_shuffle_xor(x, 1));
            if of == 0 && row < numbers.rows {
                let most = math::max(max, other_max);
                let weights = [max, other_max].map(|max| math::exp2(max - finite(most)));
                let sum = math::fma(weights[1], other_sum, weights[0] * sum);
                let (lse, inverse) = normalise::<E>(most, sum, numbers.descale);
                let target = &(*notes.row(row)).output;
                let (lse, factor) = with_sink(lse, target.sink);
                factors.add(row as usize).write(Float4([weights[0], weights[1], inverse, factor]));
                target.store_lse(lse);
            }
        }
        named_barrier::sync(BOTH_BARRIER, COMPUTE_THREADS);
        // A warp a row, three of them under way together.
        let (mut row, dim) = (thread / warp::SIZE, thread % warp::SIZE * 4);
        while row < numbers.rows {
            math::roll();
            let rows = [0, 1, 2].map(|i| row + i * (COMPUTE_THREADS / warp::SIZE));
            let values = rows.map(|row| {
                let row = row.min(numbers.rows - 1);
                let Float4([first, second, inverse, factor]) = factors.add(row as usize).read();
                let x = outputs.add(row as usize * PITCH + dim as usize);
                let (x, y) = (x.cast::<Float4>().read().0, x.add(GROUP).cast::<Float4>().read().0);
                let value = [0, 1, 2, 3].map(|i| math::fma(second, y[i], first * x[i]) * inverse * factor);
                ((*notes.row(row)).output, value)
            });
            for i in 0..rows.len() {
                if rows[i] < numbers.rows {
                    values[i].0.store::<4, 1>(|_| dim, |_| values[i].1);
                }
            }
            row += COMPUTE_THREADS / warp::SIZE * rows.len() as u32;
            row = opaque(row);
        }
    }
}
