//! The warpgroups that compute.

use super::super::merge::{normalise, with_sink};
use super::super::schedule::units;
use super::super::softmax::finite;
use super::notes::{Notes, Numbers};
use super::{BOTH_BARRIER, Block, GROUP_BARRIER, HELPERS, NOTES_BARRIER, READY_BARRIER, SIZES, Turn, fuse};
use crate::abi::AttentionArguments;
use crate::abi::warpgroups::{
    COMPUTE_GROUPS, COMPUTE_THREADS, GROUP_THREADS, K_BYTES, NARROW, ROWS, THREADS, TOKENS, V_HALF, V_TOKENS,
    WEIGHT_BLOCK, WEIGHTS, WIDE, at, barrier,
};
use crate::gpu::math::{self, opaque};
use crate::gpu::shared::{load_f32, store, store_f32, store_two_f32};
use crate::gpu::tile::{E4m3, Element};
use crate::gpu::wgmma::{self, ELEMENTS, Swizzle, descriptor};
use crate::gpu::{Float2, Float4, matrix, mbarrier, named_barrier, thread, warp};

/// Logarithm to base 2 of the largest weight after a row's reference has moved to its maximum.
const HEADROOM: f32 = 4.8;
/// The same of the largest weight that e4m3 has, 448. Below it references stay, so that outputs need no scaling.
const MOST: f32 = 8.8;
const _: () = assert!(HEADROOM < MOST);

/// Columns of a product that a lane holds elements of.
const COLUMNS: usize = ELEMENTS / 2;

/// Column of an element of two products: one of those that the lane has.
const fn column(element: usize) -> usize {
    element % ELEMENTS / 4 * 2 + element % 2
}

/// The elements of a column: keys `g` and `64 + g` of the warp's 16, then the ones 8 behind them.
const fn elements(column: usize) -> [usize; 4] {
    let first = column / 2 * 4 + column % 2;
    [first, ELEMENTS + first, first + 2, ELEMENTS + first + 2]
}

/// What a lane holds of a unit.
struct State {
    /// Outputs: head dims of V by rows, two products.
    out: [f32; 2 * ELEMENTS],
    /// Of each column, what is added to its scores: minus the reference.
    offset: [f32; COLUMNS],
    /// Of each column, this lane's part of the sum of weights.
    sum: [f32; COLUMNS],
}

/// Where a lane is, and what it finds there.
#[derive(Clone, Copy)]
struct Lane {
    /// Thread in the warpgroup.
    thread: u32,
    /// Warp in the warpgroup.
    warp: u32,
    /// Group of four lanes in the warp, and lane in the group.
    g: u32,
    t: u32,
    /// The warpgroup's barrier.
    barrier: u32,
    /// Shared address of the warpgroup's weights, and of its rows' steps.
    weights: u32,
    steps: u32,
}

/// Computes the block's units.
///
/// # Safety
/// Both warpgroups call it, `group` being the number of this thread's; the arguments are as the ABI says.
#[inline(always)]
pub(super) unsafe fn run(a: &AttentionArguments, block: &Block, group: u32) {
    let (lane, thread) = (warp::lane_id(), thread::thread_idx_x() % GROUP_THREADS);
    let lane = Lane {
        thread,
        warp: thread / warp::SIZE,
        g: lane / 4,
        t: lane % 4,
        barrier: GROUP_BARRIER + group,
        weights: block.shared + at::WEIGHT + group * WEIGHTS,
        steps: block.shared + at::STEP + group * ROWS * 4,
    };
    let notes = Notes::new(block);
    let (mut index, mut first_tile) = (thread::block_idx_x(), 0);
    // SAFETY: the caller's promise.
    while index < unsafe { units(a, SIZES) } {
        // SAFETY: the index is in range; the caller's promise. All threads walk the same units.
        unsafe {
            named_barrier::sync(READY_BARRIER, THREADS);
            let Numbers { tokens, scale, .. } = notes.numbers();
            let mut state = State { out: [0.0; 2 * ELEMENTS], offset: [0.0; COLUMNS], sum: [0.0; COLUMNS] };
            let mut tile = first_tile + group;
            let mut left = tokens.saturating_sub(group * TOKENS);
            let mut first = true;
            while left > 0 {
                step(&mut state, block, &lane, Turn::of(tile), scale, left, first);
                first = false;
                tile += COMPUTE_GROUPS;
                left = left.saturating_sub(COMPUTE_GROUPS * TOKENS);
            }
            let numbers = notes.numbers();
            first_tile += numbers.tokens.div_ceil(TOKENS);
            write(&state, block, &lane, group, &numbers, notes);
            if a.page_table_stride != 0 {
                fuse::merge(a, block, &numbers, notes);
            }
            index = index.saturating_add(thread::grid_dim_x());
            if index < units(a, SIZES) {
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
unsafe fn step(state: &mut State, block: &Block, lane: &Lane, turn: Turn, scale: f32, left: u32, first: bool) {
    let stage = block.shared + turn.offset();
    let query = block.shared + at::QUERY;
    // SAFETY: the caller's promise; the barriers say when a stage is full, and that it has been read.
    unsafe {
        mbarrier::wait(block.barrier(barrier::K_FULL + turn.stage), turn.parity);
        let mut x = wgmma::scores(
            [
                descriptor(stage, 16, 8 * WIDE, Swizzle::Span128),
                descriptor(stage + TOKENS * WIDE, 16, 8 * NARROW, Swizzle::Span64),
            ],
            [
                descriptor(query, 16, 8 * WIDE, Swizzle::Span128),
                descriptor(query + ROWS * WIDE, 16, 8 * NARROW, Swizzle::Span64),
            ],
        );
        if warp::lane_id() == 0 {
            mbarrier::arrive(block.barrier(barrier::K_EMPTY + turn.stage));
        }
        for e in 0..2 * ELEMENTS {
            x[e] = math::fma(x[e], scale, state.offset[column(e)]);
        }
        if left < TOKENS {
            hide(&mut x, lane, left);
        }
        let mut most = [x[0], x[1], x[2], x[3]];
        for e in 1..COLUMNS {
            for i in 0..4 {
                most[i] = math::max(most[i], x[4 * e + i]);
            }
        }
        let most = math::max(math::max(most[0], most[1]), math::max(most[2], most[3]));
        if named_barrier::any_of_warpgroup(lane.barrier, first || most > MOST) {
            move_references(state, &mut x, lane, first);
        }
        let place =
            lane.weights + lane.warp * 2 * WEIGHT_BLOCK + lane.g / 4 * WEIGHT_BLOCK + lane.t * 32 + lane.g % 4 * 4;
        for c in 0..COLUMNS {
            let [e0, e1, e2, e3] = elements(c);
            let weights = [math::exp2(x[e0]), math::exp2(x[e1]), math::exp2(x[e2]), math::exp2(x[e3])];
            state.sum[c] += (weights[0] + weights[2]) + (weights[1] + weights[3]);
            store(place + c as u32 / 2 * 128 + c as u32 % 2 * 16, math::pack_e4m3(weights));
        }
        mbarrier::fence_async_proxy();
        let values = stage + K_BYTES;
        mbarrier::wait(block.barrier(barrier::V_FULL + turn.stage), turn.parity);
        if left < TOKENS {
            clear(values, lane, left);
        }
        let v = load_values(values, lane);
        named_barrier::sync(lane.barrier, GROUP_THREADS);
        if warp::lane_id() == 0 {
            mbarrier::arrive(block.barrier(barrier::V_EMPTY + turn.stage));
        }
        wgmma::add_outputs(&mut state.out, &v, descriptor(lane.weights, WEIGHT_BLOCK, 128, Swizzle::None));
    }
}

/// Hides the scores of the keys from `left` on.
#[inline(always)]
fn hide(x: &mut [f32; 2 * ELEMENTS], lane: &Lane, left: u32) {
    for product in 0..2 {
        for half in 0..2 {
            let key = product as u32 * V_TOKENS + lane.warp * 16 + half as u32 * 8 + lane.g;
            if key >= left {
                for c in 0..COLUMNS {
                    x[elements(c)[product + 2 * half]] = f32::NEG_INFINITY;
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
unsafe fn move_references(state: &mut State, x: &mut [f32; 2 * ELEMENTS], lane: &Lane, first: bool) {
    // SAFETY: the caller's promise; the buffers are the warpgroup's, and barriers lie between writing and reading.
    unsafe {
        for c in 0..COLUMNS {
            let [e0, e1, e2, e3] = elements(c);
            let most = math::max(math::max(x[e0], x[e1]), math::max(x[e2], x[e3]));
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
            let step = most - HEADROOM;
            store_f32(lane.steps + lane.thread * 4, if first { step } else { math::max(step, 0.0) });
        }
        named_barrier::sync(lane.barrier, GROUP_THREADS);
        for c in 0..COLUMNS {
            let step = load_f32(lane.steps + lane.place(c));
            state.offset[c] -= step;
            let places = elements(c);
            for i in 0..4 {
                x[places[i]] -= step;
            }
            if !first {
                let factor = math::exp2(-step);
                state.sum[c] *= factor;
                for i in 0..4 {
                    state.out[places[i]] *= factor;
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
unsafe fn clear(values: u32, lane: &Lane, left: u32) {
    let mut item = left * (WIDE / 4) + lane.thread;
    while item < TOKENS * (WIDE / 4) {
        let (row, word) = (item / (WIDE / 4), item % (WIDE / 4));
        // SAFETY: the row is one of the stage's.
        unsafe { store(values + row / V_TOKENS * V_HALF + row % V_TOKENS * WIDE + word * 4, 0) };
        item += GROUP_THREADS;
    }
    mbarrier::fence_async_proxy();
    // SAFETY: the caller's promise.
    unsafe { named_barrier::sync(lane.barrier, GROUP_THREADS) };
}

/// The lane's part of V as first operand of the outputs' products. Step `s` takes of either half of the tile the 16 keys
/// of warp `s`, in the order in which the weights lie; product `p` of warp `w` has head dims `32 w + 16 p` to
/// `32 w + 16 p + 15`, even ones first.
///
/// # Safety
/// All threads of the warpgroup reach this call; `values` is the shared address of a stage's V, which has come.
#[inline(always)]
unsafe fn load_values(values: u32, lane: &Lane) -> [[[u32; 4]; 2]; 4] {
    const EVEN: u32 = 0x6420;
    const ODD: u32 = 0x7531;
    // Rows of the matrices: of either half in turn.
    let (number, row) = (warp::lane_id() / 8, warp::lane_id() % 8);
    let (half, row) = (row % 2, row / 2 + number % 2 * 8 + number / 2 * 4);
    let swizzle = (row + half * (V_HALF / WIDE)) % 8;
    let start = values + half * V_HALF + row * WIDE;
    let mut v = [[[0; 4]; 2]; 4];
    for s in 0..4 {
        for p in 0..2 {
            let piece = (2 * lane.warp + p as u32) ^ swizzle;
            // SAFETY: the caller's promise; the rows are the stage's.
            let m = unsafe { matrix::load_matrix_x4_transposed(start + s as u32 * 16 * WIDE + piece * 16) };
            v[s][p] = [
                math::permute(m[0], m[1], EVEN),
                math::permute(m[0], m[1], ODD),
                math::permute(m[2], m[3], EVEN),
                math::permute(m[2], m[3], ODD),
            ];
        }
    }
    v
}

/// Merges the warpgroups and writes the unit's rows.
///
/// # Safety
/// All threads that compute reach this call; the notes are the unit's.
#[inline(always)]
unsafe fn write(state: &State, block: &Block, lane: &Lane, group: u32, numbers: &Numbers, notes: Notes) {
    // Floats from one row to the next: 8 more than it has, so that a warp writes to different banks.
    const PITCH: usize = WIDE as usize + 8;
    const GROUP: usize = ROWS as usize * PITCH;
    // Distance of the groups' sums: threads that read both at once find them in different banks.
    const SUMS: u32 = 32 * ROWS * 4 + 64;
    const { assert!(COMPUTE_GROUPS as usize * GROUP * 4 <= at::SUMS as usize) };
    const { assert!(at::SUMS + COMPUTE_GROUPS * SUMS <= at::QUERY && COMPUTE_GROUPS == 2) };
    let outputs = block.memory.cast::<f32>();
    // A row's factors: of the groups, and of their sum.
    let factors = block.memory.wrapping_add((at::WEIGHT) as usize).cast::<Float4>();
    // SAFETY: the ring is empty once both warpgroups are here: the copying thread waits for it to be free. The notes have
    // been taken then.
    unsafe {
        named_barrier::sync(NOTES_BARRIER, COMPUTE_THREADS + HELPERS);
        let (row, dim) = (lane.t as usize * 2, (lane.warp * 32 + lane.g * 2) as usize);
        let first = outputs.add(group as usize * GROUP + row * PITCH + dim);
        for p in 0..2 {
            for c in 0..COLUMNS {
                let [x, y] = [elements(c)[p], elements(c)[p + 2]].map(|e| state.out[e]);
                first.add((c / 2 * 8 + c % 2) * PITCH + p * 16).cast::<Float2>().write(Float2([x, y]));
            }
        }
        let sums = block.shared + at::SUMS;
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
            let offset = load_f32(block.shared + at::STEP + of * ROWS * 4 + row_or_last * 4);
            let seen = numbers.tokens > of * TOKENS;
            let max = if seen { E4m3::HEADROOM - offset } else { f32::NEG_INFINITY };
            let [other_max, other_sum] = [max, sum].map(|x| warp::warp_shuffle_xor(x, 1));
            if of == 0 && row < numbers.rows {
                let most = math::max(max, other_max);
                let weights = [max, other_max].map(|max| math::exp2(max - finite(most)));
                let sum = math::fma(weights[1], other_sum, weights[0] * sum);
                let (lse, inverse) = normalise::<E4m3>(most, sum, numbers.descale);
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
