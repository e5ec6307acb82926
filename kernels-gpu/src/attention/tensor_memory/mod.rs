//! Attention where matrix products read and write tensor memory, and the warps of a block have roles: FlashAttention-4's
//! pipeline. docs/blackwell.md has a picture of it.
//!
//! Scores come in two streams, each with its own columns for scores (which its weights overwrite) and outputs, and its
//! own four warps of softmax. With two query tiles each has a stream. With one, the even KV tiles are one stream and the
//! odd ones the other, each with its own maximum and sum, and the two are merged at the end: so the products of one tile
//! are computed while the softmax of the one before is.
//!
//! Item `n` of a unit is stream `n % 2`'s next tile. The products are issued in the order scores 0, scores 1, and then for
//! each item `n`: outputs of `n`, scores of `n + 2`.

mod correct;
mod load;
mod multiply;
mod softmax;

use super::schedule::{Sizes, Unit, units};
use crate::abi::AttentionArguments;
use crate::abi::tcgen05::{COLUMNS, ROWS, STREAMS, SharedMap, TOKENS, barrier};
use crate::gpu::arguments::Arguments;
use crate::gpu::math::{opaque, opaque_address};
use crate::gpu::tcgen05::{self, Operand};
use crate::gpu::tile::Element;
use crate::gpu::{Float2, mbarrier, shared, thread, warp, warpgroup};
use core::marker::PhantomData;

/// The roles of a block's warps. A warp reaches the lanes of tensor memory that its number modulo 4 says, so that the
/// four warps of a group have a row a thread.
mod role {
    /// The first stream's softmax; the second one's follows.
    pub(super) const SOFTMAX: u32 = 0;
    /// Rescales outputs when a maximum has risen, and writes the results.
    pub(super) const CORRECT: u32 = 8;
    /// Issues the products, by one thread. Allocates tensor memory.
    pub(super) const MULTIPLY: u32 = 12;
    /// Copy Q, K and V. The warp before is idle.
    pub(super) const LOAD: u32 = 14;
    /// Warps behind the last one.
    pub(super) const END: u32 = 16;
}
const _: () = assert!(role::END * warp::SIZE == crate::abi::tcgen05::THREADS);
/// Warps of a group that has a row a thread.
const GROUP: u32 = ROWS / warp::SIZE;
/// Threads that copy.
const LOADERS: u32 = (role::END - role::LOAD) * warp::SIZE;

/// Registers of a thread of softmax, of correction, and of the other roles: those of a multiprocessor shared out.
const REGISTERS: [u32; 3] = [184, 64, 80];
const _: () = assert!((2 * REGISTERS[0] + REGISTERS[1] + REGISTERS[2]) * ROWS <= 64 << 10);

/// What a kernel was compiled for.
trait Kernel {
    type E: Operand;
    const Q_TILES: u32;
    const V: u32;
    const PAGED: bool;
    const MAP: SharedMap;
    /// Products, each 32 bytes deep, that make a tile's scores.
    const QK_STEPS: u32;
    /// Products that make a tile's outputs.
    const PV_STEPS: u32 = TOKENS * Self::E::OPERAND.bytes() / 32;
    /// Sizes of a unit.
    const SIZES: Sizes = Sizes {
        q_tiles: Self::Q_TILES,
        tile_rows: Self::Q_TILES * ROWS,
        tile_n: TOKENS,
        warp_token: 0,
        element: Self::E::OPERAND.bytes(),
    };

    /// Items of a unit with so many KV tiles.
    #[inline(always)]
    fn items(tiles: u32) -> u32 {
        Self::Q_TILES * tiles
    }

    /// Whether the item is the first, and whether it is the last, of those that take one KV tile.
    #[inline(always)]
    fn ends(item: u32) -> (bool, bool) {
        let part = item % Self::Q_TILES;
        (part == 0, part == Self::Q_TILES - 1)
    }
}

struct Of<E, const QK: u32, const V: u32, const Q_TILES: u32, const PAGED: bool>(PhantomData<E>);

impl<E: Operand, const QK: u32, const V: u32, const Q_TILES: u32, const PAGED: bool> Kernel
    for Of<E, QK, V, Q_TILES, PAGED>
{
    type E = E;
    const Q_TILES: u32 = Q_TILES;
    const V: u32 = V;
    const PAGED: bool = PAGED;
    const MAP: SharedMap = SharedMap::of(E::OPERAND, QK, V, Q_TILES);
    const QK_STEPS: u32 = QK * E::OPERAND.bytes() / 32;
}

/// What all roles know.
#[derive(Clone, Copy)]
struct Block {
    /// Shared memory, and its shared address.
    memory: *mut u8,
    shared: u32,
    /// Address of the first column of tensor memory.
    columns: u32,
}

impl Block {
    /// Shared address of a barrier.
    #[inline(always)]
    fn barrier<K: Kernel>(&self, number: u32) -> u32 {
        self.shared + K::MAP.barriers + number * mbarrier::BYTES
    }

    /// Where the message of a stream about a row is.
    #[inline(always)]
    fn message<K: Kernel>(&self, stream: u32, row: u32) -> *mut Float2 {
        let place = K::MAP.messages as usize + (stream * ROWS + row) as usize * 8;
        self.memory.wrapping_add(place).cast()
    }
}

/// Where a role is in a ring: the stage, and the parity of the phase in which it is filled.
#[derive(Clone, Copy)]
struct Turn {
    stage: u32,
    parity: u32,
}

impl Turn {
    const FIRST: Self = Self { stage: 0, parity: 0 };

    #[inline(always)]
    fn next(&mut self, stages: u32) {
        self.stage += 1;
        if self.stage == stages {
            *self = Self { stage: 0, parity: self.parity ^ 1 };
        }
    }
}

/// The parities of the next phases of a barrier of each stream, a bit each.
#[derive(Clone, Copy)]
struct Parities(u32);

impl Parities {
    /// The stream's parity, which is then the next phase's.
    #[inline(always)]
    fn take(&mut self, stream: u32) -> u32 {
        let parity = self.0 >> stream & 1;
        self.0 ^= 1 << stream;
        parity
    }
}

/// Waits for a phase, the warp as one.
///
/// # Safety
/// Every lane of the warp reaches this call; as for [`mbarrier::wait`].
#[inline(always)]
unsafe fn wait(barrier: u32, parity: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        mbarrier::wait(barrier, parity);
        warp::sync_warp();
    }
}

/// Arrives once for the warp: what its lanes did before is seen by who waits.
///
/// # Safety
/// Every lane of the warp reaches this call; as for [`mbarrier::arrive`].
#[inline(always)]
unsafe fn arrive(barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        warp::sync_warp();
        if warp::lane_id() == 0 {
            mbarrier::arrive(barrier);
        }
        warp::sync_warp();
    }
}

/// The arguments, with what is divided by or asked for unknown to the compiler: it would keep reciprocals and answers from unit to unit, and
/// registers are few.
#[inline(always)]
fn anew(a: &AttentionArguments) -> AttentionArguments {
    let mut a = *a;
    a.batch = opaque(a.batch);
    a.sq = opaque(a.sq);
    a.kv_heads = opaque(a.kv_heads);
    a.group = opaque(a.group);
    a.num_splits = opaque(a.num_splits);
    a.split_tokens = opaque(a.split_tokens);
    a.window_left = opaque(a.window_left);
    a.window_right = opaque(a.window_right);
    a.schedule = opaque_address(a.schedule);
    a.kv_lens = opaque_address(a.kv_lens);
    a.cu_seqlens_q = opaque_address(a.cu_seqlens_q);
    a.cu_seqlens_kv = opaque_address(a.cu_seqlens_kv);
    a
}

/// The block's units, in order; the same in all roles.
struct Units {
    next: u32,
}

impl Units {
    /// All that the block has.
    #[inline(always)]
    fn new() -> Self {
        Self { next: thread::block_idx_x() }
    }

    /// The next unit, and its KV tiles in number.
    ///
    /// # Safety
    /// The arguments are as the ABI says.
    #[inline(always)]
    unsafe fn next<K: Kernel>(&mut self, a: &AttentionArguments) -> Option<(Unit, u32)> {
        let a = &anew(a);
        // SAFETY: the index is in range; the caller's promise.
        let unit = unsafe {
            if self.next >= units(a, K::SIZES) {
                return None;
            }
            Unit::new(a, self.next, K::SIZES)
        };
        // Units and blocks are below 2^31 each.
        self.next += thread::grid_dim_x();
        Some((unit, (unit.end - unit.begin).div_ceil(TOKENS)))
    }

    /// The unit that [`Self::next`] gave last, found anew in place of being kept.
    ///
    /// # Safety
    /// As for [`Self::next`], which gave one.
    #[inline(always)]
    unsafe fn last<K: Kernel>(&self, a: &AttentionArguments) -> Unit {
        // SAFETY: the caller's promise.
        unsafe { Unit::new(&anew(a), opaque(self.next) - thread::grid_dim_x(), K::SIZES) }
    }
}

/// Body of an attention kernel of the shape `Tcgen05`.
///
/// # Safety
/// The launch is as the ABI table says: threads, shared memory, and what the arguments point to.
#[inline(always)]
pub(crate) unsafe fn tensor_memory<E: Operand, const QK: u32, const V: u32, const Q_TILES: u32, const PAGED: bool>(
    a: AttentionArguments,
) {
    // SAFETY: the caller's promise.
    unsafe { run::<Of<E, QK, V, Q_TILES, PAGED>>(a) }
}

/// As [`tensor_memory`].
///
/// # Safety
/// As for [`tensor_memory`].
#[inline(always)]
unsafe fn run<K: Kernel>(a: AttentionArguments) {
    let a = Arguments::new(a);
    let a = a.hot();
    let warp = warp::warp_id();
    let memory = shared::dynamic_shared_mem();
    // SAFETY: the launch has this much shared memory.
    let shared = unsafe { shared::address(memory) };
    let mut block = Block { memory, shared, columns: 0 };
    // SAFETY: one thread makes the barriers, one warp allocates, and all know of it behind the block's barrier.
    unsafe {
        if thread::thread_idx_x() == 0 {
            init_barriers::<K>(&block);
        }
        if warp == role::MULTIPLY {
            tcgen05::alloc(shared + K::MAP.columns, COLUMNS);
        }
        thread::sync_threads();
        block.columns = memory.add(K::MAP.columns as usize).cast::<u32>().read();
    }
    // SAFETY: each warp has one role; the registers of all roles are what there is.
    unsafe {
        if warp < role::CORRECT {
            warpgroup::take_registers::<{ REGISTERS[0] }>();
            softmax::run::<K>(a, &block, (warp - role::SOFTMAX) / GROUP);
        } else if warp < role::MULTIPLY {
            warpgroup::give_registers::<{ REGISTERS[1] }>();
            correct::run::<K>(a, &block);
        } else {
            warpgroup::give_registers::<{ REGISTERS[2] }>();
            if warp >= role::LOAD {
                load::run::<K>(a, &block);
            } else if warp == role::MULTIPLY && warpgroup::elect() {
                multiply::run::<K>(a, &block);
            }
        }
        tcgen05::fence_before();
        thread::sync_threads();
        tcgen05::fence_after();
        if opaque(warp) == role::MULTIPLY {
            tcgen05::relinquish();
            tcgen05::free(block.columns, COLUMNS);
        }
    }
}

/// Makes the barriers, each for as many arrivals as its phases have.
///
/// # Safety
/// One thread of the block calls it, before any use.
#[inline(always)]
unsafe fn init_barriers<K: Kernel>(block: &Block) {
    let many = |first: u32, count: u32, arrivals: u32| {
        for number in first..first + count {
            // SAFETY: the map has room for them.
            unsafe { mbarrier::init(block.barrier::<K>(number), arrivals) };
        }
    };
    // Of a product's end there is one arrival, of a group's warps one each.
    many(barrier::Q_FULL, 1, LOADERS);
    many(barrier::Q_EMPTY, 1, 1);
    many(barrier::K_FULL, K::MAP.k_stages, LOADERS);
    many(barrier::K_EMPTY, K::MAP.k_stages, 1);
    many(barrier::V_FULL, K::MAP.v_stages, LOADERS);
    many(barrier::V_EMPTY, K::MAP.v_stages, 1);
    many(barrier::SCORES_FULL, STREAMS, 1);
    many(barrier::WEIGHTS_FULL, STREAMS, 2 * GROUP);
    many(barrier::MESSAGE_FULL, STREAMS, GROUP);
    many(barrier::MESSAGE_EMPTY, STREAMS, GROUP);
    many(barrier::OUTPUTS_FULL, 1, 1);
    mbarrier::fence_init();
}
