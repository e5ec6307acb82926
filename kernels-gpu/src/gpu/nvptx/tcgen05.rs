//! Tensor memory, and matrix products whose accumulators are in it (PTX ISA, "tcgen05"). An address in tensor memory is
//! `lane << 16 | column`; a column of a lane has 32 bits.
//!
//! Accesses are asynchronous: a thread waits for its own loads and stores, and for products by a barrier in shared
//! memory that [`commit`] signals. What another thread has done counts only with [`fence_before`] on its side of the
//! synchronisation and [`fence_after`] on this side.

use super::math;
use super::tile::{Bf16, E4m3, Element, F16};
use core::arch::asm;

/// Columns of the first operand that one product takes from tensor memory.
pub(crate) const OPERAND_COLUMNS: u32 = 8;

/// Allocates columns, and writes the address of the first one to shared memory.
///
/// # Safety
/// Every lane of the warp reaches this call. `shared` is the shared address of a u32; `columns` is a power of two from 32
/// to 512. The same warp frees them before the block ends.
#[inline(always)]
pub(crate) unsafe fn alloc(shared: u32, columns: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{0}], {1};",
            in(reg32) shared, in(reg32) columns, options(nostack));
    }
}

/// Gives up the right to allocate, so that another block need not wait for it.
///
/// # Safety
/// Every lane of the warp reaches this call; the block allocates nothing more.
#[inline(always)]
pub(crate) unsafe fn relinquish() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", options(nostack)) }
}

/// Frees what [`alloc`] has given.
///
/// # Safety
/// Every lane of the warp that has allocated reaches this call, and all accesses are done.
#[inline(always)]
pub(crate) unsafe fn free(address: u32, columns: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tcgen05.dealloc.cta_group::1.sync.aligned.b32 {0}, {1};",
            in(reg32) address, in(reg32) columns, options(nostack));
    }
}

/// What this thread has done with tensor memory comes before what it does next to synchronise.
#[inline(always)]
pub(crate) fn fence_before() {
    // SAFETY: orders accesses, touches nothing else.
    unsafe { asm!("tcgen05.fence::before_thread_sync;", options(nostack)) }
}

/// What this thread does next with tensor memory comes after what it has synchronised with.
#[inline(always)]
pub(crate) fn fence_after() {
    // SAFETY: orders accesses, touches nothing else.
    unsafe { asm!("tcgen05.fence::after_thread_sync;", options(nostack)) }
}

/// Signals the barrier once all products that this thread has issued are done: one arrival. What the thread did before
/// is seen by who has waited, as with [`fence_before`].
///
/// # Safety
/// `barrier` is a barrier ([`super::mbarrier`]) whose phase needs one more arrival.
#[inline(always)]
pub(crate) unsafe fn commit(barrier: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{0}];",
            in(reg32) barrier, options(nostack));
    }
}

macro_rules! accesses {
    ($load:ident, $wait:ident, $store:ident, $count:literal, $shape:literal, $list:literal, $($i:literal)*) => {
        /// Loads columns of the lane that the thread stands for. They are there after the wait of the same width.
        ///
        /// # Safety
        /// Every lane of the warp reaches this call with the same address, of the first of the warp's lanes: 32 times its
        /// number modulo 4. The columns are allocated and were written.
        #[inline(always)]
        pub(crate) unsafe fn $load(address: u32) -> [f32; $count] {
            let mut values = [0.0; $count];
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("tcgen05.ld.sync.aligned.32x32b.", $shape, ".b32 {{", $list, "}}, [{", $count, "}];"),
                    $(out(reg32) values[$i],)* in(reg32) address, options(nostack));
            }
            values
        }

        /// Waits for all loads of the warp, of which `values` are one's.
        ///
        /// # Safety
        /// Every lane of the warp reaches this call.
        #[inline(always)]
        pub(crate) unsafe fn $wait(values: &mut [f32; $count]) {
            // SAFETY: the caller's promise. That it takes the values keeps what uses them behind it.
            unsafe {
                asm!(concat!("tcgen05.wait::ld.sync.aligned; // ", $list),
                    $(inout(reg32) values[$i],)* options(nostack));
            }
        }

        /// Stores columns.
        ///
        /// # Safety
        /// As for the load; nobody accesses the columns before [`wait_stores`] and what tells them.
        #[inline(always)]
        pub(crate) unsafe fn $store(address: u32, words: &[u32; $count]) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(concat!("tcgen05.st.sync.aligned.32x32b.", $shape, ".b32 [{", $count, "}], {{", $list, "}};"),
                    $(in(reg32) words[$i],)* in(reg32) address, options(nostack));
            }
        }
    };
}
accesses!(load_8, wait_loads_8, store_8, 8, "x8", "{0},{1},{2},{3},{4},{5},{6},{7}",
    0 1 2 3 4 5 6 7);
accesses!(load_16, wait_loads_16, store_16, 16, "x16", "{0},{1},{2},{3},{4},{5},{6},{7},{8},{9},{10},{11},{12},{13},{14},{15}",
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
accesses!(load_32, wait_loads_32, store_32, 32, "x32", "{0},{1},{2},{3},{4},{5},{6},{7},{8},{9},{10},{11},{12},{13},{14},{15},{16},{17},{18},{19},{20},{21},{22},{23},{24},{25},{26},{27},{28},{29},{30},{31}",
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);

/// Waits for all stores of the warp.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
pub(crate) unsafe fn wait_stores() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tcgen05.wait::st.sync.aligned;", options(nostack)) }
}

/// Which way a second operand lies in shared memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Major {
    /// Rows along the depth: K.
    Depth,
    /// Rows along the columns of the result: V.
    Columns,
}

/// Descriptor of an operand of 128 rows in shared memory: blocks of 128 bytes of every row, one after the other, with a
/// swizzle of 128 bytes (PTX ISA, "matrix descriptor"; the facts that depend on hardware are in docs/blackwell.md).
#[inline(always)]
pub(crate) const fn descriptor(shared: u32) -> u64 {
    const NEXT_BLOCK: u64 = 128 * 128 / 16;
    const NEXT_8_ROWS: u64 = 8 * 128 / 16;
    const VERSION: u64 = 1;
    const SWIZZLE_128: u64 = 2;
    let start = (shared as u64 & 0x3ffff) >> 4;
    start | NEXT_BLOCK << 16 | NEXT_8_ROWS << 32 | VERSION << 46 | SWIZZLE_128 << 61
}

/// The instruction descriptor: `rows` rows by `columns` columns, sums in fp32 (PTX ISA, "instruction descriptor").
pub(crate) const fn instruction<E: Operand>(rows: u32, columns: u32, second: Major) -> u32 {
    const SUMS_F32: u32 = 1;
    SUMS_F32 << 4
        | E::TYPE << 7
        | E::TYPE << 10
        | (matches!(second, Major::Columns) as u32) << 16
        | columns >> 3 << 17
        | rows >> 4 << 24
}

/// Element types of products.
pub(crate) trait Operand: Element {
    /// The type in an instruction descriptor.
    const TYPE: u32;
    /// Columns of tensor memory that 32 packed elements take.
    const PACKED: u32 = 32 * Self::OPERAND.bytes() / 4;

    /// `d = a b`, or `d += a b` where `accumulate` is set, of operands in shared memory, 32 bytes deep.
    ///
    /// # Safety
    /// One thread issues it. `d` is the address of allocated columns, `a` and `b` are descriptors of what was written
    /// and, by [`super::mbarrier::fence_async_proxy`], made known; nobody touches any of it until a commit behind the
    /// product has signalled.
    unsafe fn multiply(d: u32, a: u64, b: u64, instruction: u32, accumulate: bool);

    /// The same, `a` being the address of packed elements in tensor memory, [`OPERAND_COLUMNS`] columns of them.
    ///
    /// # Safety
    /// As for [`Self::multiply`].
    unsafe fn multiply_from_tensor(d: u32, a: u32, b: u64, instruction: u32, accumulate: bool);

    /// Rounds 32 values to the type and stores them packed.
    ///
    /// # Safety
    /// As for [`store_16`].
    unsafe fn store_packed(address: u32, values: &[f32; 32]);
}

macro_rules! operand {
    ($name:ident, $kind:literal, $ty:literal, $words:literal, $store:ident, |$x:ident, $i:ident| $pack:expr) => {
        impl Operand for $name {
            const TYPE: u32 = $ty;

            #[inline(always)]
            unsafe fn multiply(d: u32, a: u64, b: u64, instruction: u32, accumulate: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!("{{ .reg .pred more; setp.ne.u32 more, {4}, 0;",
                        concat!("tcgen05.mma.cta_group::1.kind::", $kind, " [{0}], {1}, {2}, {3}, more; }}"),
                        in(reg32) d, in(reg64) a, in(reg64) b, in(reg32) instruction,
                        in(reg32) u32::from(accumulate), options(nostack));
                }
            }

            #[inline(always)]
            unsafe fn multiply_from_tensor(d: u32, a: u32, b: u64, instruction: u32, accumulate: bool) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!("{{ .reg .pred more; setp.ne.u32 more, {4}, 0;",
                        concat!("tcgen05.mma.cta_group::1.kind::", $kind, " [{0}], [{1}], {2}, {3}, more; }}"),
                        in(reg32) d, in(reg32) a, in(reg64) b, in(reg32) instruction,
                        in(reg32) u32::from(accumulate), options(nostack));
                }
            }

            #[inline(always)]
            unsafe fn store_packed(address: u32, $x: &[f32; 32]) {
                let mut words = [0; $words];
                for $i in 0..$words {
                    words[$i] = $pack;
                }
                // SAFETY: the caller's promise.
                unsafe { $store(address, &words) }
            }
        }
    };
}
operand!(Bf16, "f16", 1, 16, store_16, |x, i| math::pack_bf16(x[2 * i], x[2 * i + 1]));
operand!(F16, "f16", 0, 16, store_16, |x, i| math::pack_f16(x[2 * i], x[2 * i + 1]));
operand!(E4m3, "f8f6f4", 0, 8, store_8, |x, i| math::pack_e4m3([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]));
