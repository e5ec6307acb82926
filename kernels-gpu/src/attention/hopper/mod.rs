//! Attention over a part of the KV by warpgroups, for head dims 192/128 on Hopper.
//!
//! Operands are exchanged: scores are `K Q^T`, outputs `V^T P^T`, so that few query rows waste little of a product,
//! whose rows are keys (or head dims of V) and whose columns are query rows. K and Q are read from shared memory as they
//! lie in global memory, and so is V of 16 bits, where that of e4m3 goes through registers; weights go through shared
//! memory. Two warpgroups take every second tile of a unit's KV and are merged at its end. Of a third, one thread copies
//! tiles ahead, and the other warps copy the queries, and note down what a unit's end needs.
//!
//! Each launch fetches its code anew, and one of these takes 20 us: what runs once a unit is short, or runs beside.
//!
//! There is no mask: all rows see all keys of their sequence.

mod compute;
mod fuse;
mod load;
mod notes;
mod operands;

use super::schedule::Sizes;
use crate::abi::warpgroups::{COMPUTE_GROUPS, COMPUTE_THREADS, GROUP_THREADS, ROWS, STAGES, barrier};
use crate::abi::{AttentionArguments, NO_BOUND};
use crate::gpu::{mbarrier, named_barrier, shared, thread, warp, warpgroup};
use core::marker::PhantomData;
use operands::Operands;

/// Sizes that the schedule needs.
const fn sizes<E: Operands>() -> Sizes {
    Sizes { q_tiles: 1, tile_rows: ROWS, tile_n: E::LAYOUT.tokens, warp_token: 0, element: E::OPERAND.bytes() }
}

/// Registers of a thread that copies, and of one that computes: together as many as the launch has.
const LOAD_REGISTERS: u32 = 56;
const COMPUTE_REGISTERS: u32 = 224;

/// First warp of the group that copies.
const FIRST_WARP: u32 = COMPUTE_THREADS / warp::SIZE;
/// Its threads that do not copy tiles.
const HELPERS: u32 = GROUP_THREADS - warp::SIZE;

/// Numbers of the block's barriers: all know that the ring's barriers are made, and the queries copied; a warpgroup's own
/// is its number and this; that of both that compute; they and the helpers know that the notes are taken; the copying
/// group's own.
const READY_BARRIER: u32 = 0;
const GROUP_BARRIER: u32 = 1;
const BOTH_BARRIER: u32 = GROUP_BARRIER + COMPUTE_GROUPS;
const NOTES_BARRIER: u32 = BOTH_BARRIER + 1;
const COPY_BARRIER: u32 = NOTES_BARRIER + 1;

/// Body of the kernel.
///
/// # Safety
/// The launch is as the ABI table says: threads, shared memory, and what the arguments point to.
#[inline(always)]
#[expect(private_bounds, reason = "a detail of these kernels")]
pub(crate) unsafe fn warpgroups<E: Operands>(a: AttentionArguments) {
    // There is no mask: what asks for its bounds is left out.
    let a = AttentionArguments { window_left: NO_BOUND, window_right: NO_BOUND, ..a };
    let (group, warp) = (thread::thread_idx_x() / GROUP_THREADS, thread::thread_idx_x() / warp::SIZE);
    let memory = shared::dynamic_shared_mem();
    // SAFETY: the launch has this much shared memory.
    let shared = unsafe { shared::address(memory) };
    let block = Block::<E> { memory, shared, element: PhantomData };
    // SAFETY: one warp makes the barriers before any other uses them: the barrier of a unit's queries comes later. The
    // groups are whole, and give back as many registers as they take.
    unsafe {
        if group == COMPUTE_GROUPS {
            warpgroup::give_registers::<LOAD_REGISTERS>();
            load::run(&a, &block, warp - FIRST_WARP);
        } else {
            warpgroup::take_registers::<COMPUTE_REGISTERS>();
            compute::run(&a, &block, group);
        }
    }
}

/// The block's shared memory.
struct Block<E> {
    memory: *mut u8,
    /// Its shared address.
    shared: u32,
    element: PhantomData<E>,
}

impl<E: Operands> Block<E> {
    /// Shared address of a barrier.
    #[inline(always)]
    fn barrier(&self, number: u32) -> u32 {
        self.shared + E::LAYOUT.barriers_at + number * mbarrier::BYTES
    }

    /// Makes the barriers: of full stages the copying thread and the bytes count, of empty ones the warps of a group.
    ///
    /// # Safety
    /// As for [`mbarrier::init`].
    #[inline(always)]
    unsafe fn make_barriers(&self) {
        const GROUP_WARPS: u32 = GROUP_THREADS / warp::SIZE;
        // SAFETY: the caller's promise.
        unsafe {
            for stage in 0..STAGES {
                mbarrier::init(self.barrier(barrier::K_FULL + stage), 1);
                mbarrier::init(self.barrier(barrier::V_FULL + stage), 1);
                mbarrier::init(self.barrier(barrier::K_EMPTY + stage), GROUP_WARPS);
                mbarrier::init(self.barrier(barrier::V_EMPTY + stage), GROUP_WARPS);
            }
            mbarrier::init(self.barrier(barrier::RING_FREE), COMPUTE_GROUPS * GROUP_WARPS);
        }
        mbarrier::fence_init();
        mbarrier::fence_async_proxy();
    }
}

/// Where the ring stands: the stage, and the parity of the phase in which it is full.
#[derive(Clone, Copy)]
struct Turn {
    stage: u32,
    parity: u32,
}

impl Turn {
    /// The turn of a block's tile number `tile`.
    #[inline(always)]
    fn of(tile: u32) -> Self {
        Self { stage: tile % STAGES, parity: tile / STAGES % 2 }
    }
}
