//! What a launch did.

use serde::{Deserialize, Serialize};

/// Defines [`Counters`], so that each counter is named once.
macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts of one launch, summed over its blocks: the same whatever the number of host threads.
        ///
        /// An instruction counts once for each warp that issues it, whatever lanes take part; all `*_instructions`
        /// classes are disjoint and sum to [`instructions`](Self::instructions).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Each counter with its name, in the order of the fields.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl std::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Blocks executed.
    blocks,
    /// Instructions of all classes.
    instructions,
    /// Integer, logic and address arithmetic, moves, predicates (on AMD: VALU and SALU).
    integer_instructions,
    /// Floating-point arithmetic and conversions.
    float_instructions,
    /// Approximate functions: ex2, lg2, rcp, rsqrt, sqrt.
    special_instructions,
    /// Branches, exits.
    control_instructions,
    /// Global (flat, buffer) loads and stores, asynchronous copies, local (scratch) accesses.
    memory_instructions,
    /// Shared-memory (LDS) loads and stores, matrix loads.
    shared_instructions,
    /// Matrix multiply-accumulate instructions.
    matrix_instructions,
    /// Exchanges between lanes: shuffles, votes, permutes.
    lane_instructions,
    /// Atomic operations on any memory. Their bytes, sectors and bank conflicts are not counted.
    atomic_instructions,
    /// Barriers, fences, waits, commits.
    sync_instructions,
    /// Multiply-accumulates of the matrix instructions.
    matrix_macs,
    /// Bytes loaded from global memory, lane by lane, copies included.
    global_load_bytes,
    /// Bytes stored to global memory, lane by lane.
    global_store_bytes,
    /// 32-byte sectors that the warps' global loads touched, each once an instruction.
    global_load_sectors,
    /// 32-byte sectors that the warps' global stores touched, each once an instruction.
    global_store_sectors,
    /// Bytes loaded from shared memory, lane by lane.
    shared_load_bytes,
    /// Bytes stored to shared memory, lane by lane, copies included.
    shared_store_bytes,
    /// Passes over shared memory beyond those needed without bank conflicts, of loads, stores, matrix loads and
    /// copies. The model and its sources: `emulator/src/banks.rs`.
    bank_conflicts,
    /// Block barriers, each once a block.
    barriers,
}

/// The class an instruction is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Integer,
    Float,
    Special,
    Control,
    Memory,
    Shared,
    Matrix,
    Lane,
    Atomic,
    Sync,
}

impl Counters {
    /// Counts one instruction of a warp.
    #[inline]
    pub(crate) fn instruction(&mut self, class: Class) {
        self.instructions += 1;
        *self.of(class) += 1;
    }

    /// The instruction was not executed after all: it will be tried again.
    pub(crate) fn take_back(&mut self, class: Class) {
        self.instructions -= 1;
        *self.of(class) -= 1;
    }

    #[inline]
    fn of(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Integer => &mut self.integer_instructions,
            Class::Float => &mut self.float_instructions,
            Class::Special => &mut self.special_instructions,
            Class::Control => &mut self.control_instructions,
            Class::Memory => &mut self.memory_instructions,
            Class::Shared => &mut self.shared_instructions,
            Class::Matrix => &mut self.matrix_instructions,
            Class::Lane => &mut self.lane_instructions,
            Class::Atomic => &mut self.atomic_instructions,
            Class::Sync => &mut self.sync_instructions,
        }
    }
}

/// Distinct 32-byte sectors that a warp's accesses touch, each an address and a number of bytes, at most 32.
pub(crate) fn sectors(accesses: impl Iterator<Item = (u64, u32)>) -> u64 {
    let mut seen = [0u64; 128];
    let mut count = 0;
    for (address, bytes) in accesses {
        for sector in address / 32..(address + u64::from(bytes)).div_ceil(32) {
            // Lanes are mostly in order: the latest sectors are the likeliest.
            if !seen[..count].iter().rev().any(|&s| s == sector) {
                seen[count] = sector;
                count += 1;
            }
        }
    }
    count as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_common_patterns() {
        assert_eq!(sectors((0..32).map(|i| (0x1000 + i * 4, 4))), 4);
        assert_eq!(sectors((0..32).map(|i| (0x1000 + i * 16, 16))), 16);
        assert_eq!(sectors((0..32).map(|_| (0x1000, 4))), 1);
        assert_eq!(sectors((0..32).map(|i| (0x1000 + i * 256, 4))), 32);
        assert_eq!(sectors([(0x101e, 4)].into_iter()), 2);
        assert_eq!(sectors([(0x1000, 0)].into_iter()), 0);
    }
}
