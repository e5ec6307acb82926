//! What a launch did.

use serde::{Deserialize, Serialize};

/// Counts of one launch, summed over its blocks: the same whatever the number of host threads.
///
/// An instruction counts once for each warp that executes it with at least one active lane; all `*_instructions`
/// classes are disjoint and sum to [`instructions`](Self::instructions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Blocks executed.
    pub blocks: u64,
    /// Instructions of all classes.
    pub instructions: u64,
    /// Integer, logic and address arithmetic, moves, predicates (on AMD: VALU and SALU).
    pub integer_instructions: u64,
    /// Floating-point arithmetic and conversions.
    pub float_instructions: u64,
    /// Approximate functions: ex2, lg2, rcp, rsqrt, sqrt.
    pub special_instructions: u64,
    /// Branches, exits.
    pub control_instructions: u64,
    /// Global (flat, buffer) loads and stores, asynchronous copies, local (scratch) accesses.
    pub memory_instructions: u64,
    /// Shared-memory (LDS) loads and stores, matrix loads.
    pub shared_instructions: u64,
    /// Matrix multiply-accumulate instructions.
    pub matrix_instructions: u64,
    /// Exchanges between lanes: shuffles, votes, permutes.
    pub lane_instructions: u64,
    /// Atomic operations on any memory.
    pub atomic_instructions: u64,
    /// Barriers, fences, waits, commits.
    pub sync_instructions: u64,
    /// Multiply-accumulates of the matrix instructions.
    pub matrix_macs: u64,
    /// Bytes loaded from global memory, lane by lane, copies included.
    pub global_load_bytes: u64,
    /// Bytes stored to global memory, lane by lane.
    pub global_store_bytes: u64,
    /// 32-byte sectors that the warps' global loads touched, each once an instruction.
    pub global_load_sectors: u64,
    /// 32-byte sectors that the warps' global stores touched, each once an instruction.
    pub global_store_sectors: u64,
    /// Bytes loaded from shared memory.
    pub shared_load_bytes: u64,
    /// Bytes stored to shared memory, copies included.
    pub shared_store_bytes: u64,
    /// Passes over shared memory beyond those needed without bank conflicts.
    pub bank_conflicts: u64,
    /// Block barriers, each once a block.
    pub barriers: u64,
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
        *match class {
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
        } += 1;
    }
}

impl std::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.instructions += other.instructions;
        self.integer_instructions += other.integer_instructions;
        self.float_instructions += other.float_instructions;
        self.special_instructions += other.special_instructions;
        self.control_instructions += other.control_instructions;
        self.memory_instructions += other.memory_instructions;
        self.shared_instructions += other.shared_instructions;
        self.matrix_instructions += other.matrix_instructions;
        self.lane_instructions += other.lane_instructions;
        self.atomic_instructions += other.atomic_instructions;
        self.sync_instructions += other.sync_instructions;
        self.matrix_macs += other.matrix_macs;
        self.global_load_bytes += other.global_load_bytes;
        self.global_store_bytes += other.global_store_bytes;
        self.global_load_sectors += other.global_load_sectors;
        self.global_store_sectors += other.global_store_sectors;
        self.shared_load_bytes += other.shared_load_bytes;
        self.shared_store_bytes += other.shared_store_bytes;
        self.bank_conflicts += other.bank_conflicts;
        self.barriers += other.barriers;
    }
}

/// Distinct 32-byte sectors that a warp's accesses of `bytes` bytes (at most 32) at `addresses` touch.
pub(crate) fn sectors(addresses: impl Iterator<Item = u64>, bytes: u32) -> u64 {
    let mut seen = [0u64; 128];
    let mut count = 0;
    for address in addresses {
        for sector in address / 32..=(address + u64::from(bytes) - 1) / 32 {
            // Lanes are mostly in order: the latest sectors are the likeliest.
            if !seen[..count].iter().rev().any(|&s| s == sector) {
                seen[count] = sector;
                count += 1;
            }
        }
    }
    count as u64
}

/// Passes beyond the conflict-free number that banked shared memory needs for one warp access.
///
/// Memory has `banks` banks of 4 bytes. An access of `bytes` a lane is served in groups of lanes that together
/// ask for at most `banks * 4` bytes; within a group, distinct words in one bank take a pass each, and lanes
/// that read the same word share one.
pub(crate) fn bank_conflicts(addresses: impl Iterator<Item = u32>, bytes: u32, banks: u32) -> u64 {
    let words = bytes.div_ceil(4);
    let lanes_per_group = (banks / words).max(1);
    let mut conflicts = 0;
    // The group so far: its words in order of arrival, the first one in each bank, and the passes of each bank.
    let (mut group, mut used, mut lanes) = ([0u32; 64], 0, 0);
    let (mut first, mut passes, mut most) = ([u32::MAX; 64], [0u8; 64], 1);
    for address in addresses {
        if lanes == lanes_per_group {
            conflicts += u64::from(most - 1);
            (used, lanes, most) = (0, 0, 1);
            first = [u32::MAX; 64];
        }
        lanes += 1;
        for word in address / 4..address / 4 + words {
            let bank = (word % banks) as usize;
            if first[bank] == u32::MAX {
                (first[bank], passes[bank]) = (word, 1);
            } else if first[bank] != word && !group[..used].contains(&word) {
                passes[bank] += 1;
                most = most.max(passes[bank]);
            }
            group[used] = word;
            used += 1;
        }
    }
    conflicts + u64::from(most - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_common_patterns() {
        assert_eq!(sectors((0..32).map(|i| 0x1000 + i * 4), 4), 4);
        assert_eq!(sectors((0..32).map(|i| 0x1000 + i * 16), 16), 16);
        assert_eq!(sectors((0..32).map(|_| 0x1000), 4), 1);
        assert_eq!(sectors((0..32).map(|i| 0x1000 + i * 256), 4), 32);
        assert_eq!(sectors(std::iter::once(0x101e), 4), 2);
    }

    #[test]
    fn conflicts_of_common_patterns() {
        assert_eq!(bank_conflicts((0..32).map(|i| i * 4), 4, 32), 0);
        assert_eq!(bank_conflicts((0..32).map(|_| 64), 4, 32), 0, "broadcast");
        assert_eq!(bank_conflicts((0..32).map(|i| i * 8), 4, 32), 1);
        assert_eq!(bank_conflicts((0..32).map(|i| i * 128), 4, 32), 31);
        assert_eq!(bank_conflicts((0..32).map(|i| i * 16), 16, 32), 0);
        assert_eq!(bank_conflicts((0..8).map(|i| i * 256), 16, 32), 7, "rows of a tile without swizzle");
    }
}
