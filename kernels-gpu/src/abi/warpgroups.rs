//! What a block of shape `Warpgroups` has, and where: threads, tensor maps, shared memory. Budgets are checked where
//! the tables are made.

use super::{Geometry, Operand};

/// Rows of a query tile: the columns of a product, since keys are its rows.
pub const ROWS: u32 = 72;
/// KV tokens of a tile.
pub const TOKENS: u32 = 128;
/// Tiles in the ring.
pub const STAGES: u32 = 4;
/// Warpgroups that compute: of a unit's tiles each takes every second one.
pub const COMPUTE_GROUPS: u32 = 2;
/// Threads of a warpgroup.
pub const GROUP_THREADS: u32 = 128;
/// Threads of a block: the warpgroups that compute, and one whose first thread copies.
pub const THREADS: u32 = (COMPUTE_GROUPS + 1) * GROUP_THREADS;
/// Threads that compute.
pub const COMPUTE_THREADS: u32 = COMPUTE_GROUPS * GROUP_THREADS;

/// Bytes of a row's wide part, swizzled over 128 bytes.
pub const WIDE: u32 = 128;
/// Bytes of the narrow part behind it, swizzled over 64 bytes: head dim 192 is both.
pub const NARROW: u32 = 64;

/// Tensor maps that the kernel finds behind `page_table`, of 128 bytes each. All have four dims: elements of a row, KV
/// heads, tokens, sequences (one where they are packed).
pub mod map {
    /// The wide parts of K: boxes of `WIDE` x 1 x `TOKENS` x 1.
    pub const K_WIDE: u32 = 0;
    /// The narrow parts of K: boxes of `NARROW` x 1 x `TOKENS` x 1.
    pub const K_NARROW: u32 = 1;
    /// V: boxes of `WIDE` x 1 x `V_TOKENS` x 1.
    pub const V: u32 = 2;
    /// Maps in number.
    pub const COUNT: u32 = 3;
    /// Bytes of a map.
    pub const BYTES: u32 = 128;
}

/// Most splits that the blocks themselves merge, where `page_table_stride` is not 0. Behind the maps lies a u64 for each
/// sequence, block of rows and KV head, at which they meet: zero before a launch, and after it.
pub const MAX_MERGED_SPLITS: u32 = 48;
/// Bytes from one such word to the next: a line of its own for each, since blocks that wait read it again and again.
pub const WORD_BYTES: u32 = 128;

/// KV tokens of a half of V. Products take one token of either half in turn.
pub const V_TOKENS: u32 = TOKENS / 2;
/// Bytes of K in a stage, the wide parts first.
pub const K_BYTES: u32 = TOKENS * (WIDE + NARROW);
/// Distance of the halves of V: four rows more than a half has, so that what is read of both at once lies in different
/// banks.
pub const V_HALF: u32 = V_TOKENS * WIDE + 512;
/// Bytes of a stage: K, then V.
pub const STAGE: u32 = (K_BYTES + 2 * V_HALF).next_multiple_of(1024);

/// Distance of blocks of 16 weights (of all rows) in a warpgroup's weights: 16 bytes more than a block has, so that a
/// warp writes to different banks.
pub const WEIGHT_BLOCK: u32 = ROWS * 16 + 16;
/// Bytes of a warpgroup's weights. Where its maxima are sought, the buffer holds a float of each row for 32 of them.
pub const WEIGHTS: u32 = TOKENS / 16 * WEIGHT_BLOCK;
const _: () = assert!(WEIGHTS >= 32 * ROWS * 4);

/// Bytes of what the end of a unit needs: where each row goes, and where its parts are.
pub const NOTES_BYTES: u32 = 16 + ROWS * 112;

/// Where things are in shared memory, in bytes from its start.
pub mod at {
    use super::{COMPUTE_GROUPS, NARROW, ROWS, STAGE, STAGES, WEIGHTS, WIDE};

    /// The query rows: their wide parts, then their narrow ones.
    pub const QUERY: u32 = STAGES * STAGE;
    /// Each warpgroup's weights.
    pub const WEIGHT: u32 = QUERY + ROWS * (WIDE + NARROW);
    /// Each warpgroup's steps of its rows' references.
    pub const STEP: u32 = WEIGHT + COMPUTE_GROUPS * WEIGHTS;
    /// Barriers.
    pub const BARRIERS: u32 = STEP + COMPUTE_GROUPS * ROWS * 4;
    /// What the end of a unit needs, found at its beginning.
    pub const NOTES: u32 = (BARRIERS + super::barrier::COUNT * 8).next_multiple_of(16);
    /// End.
    pub const END: u32 = NOTES + super::NOTES_BYTES;
    /// Where the ring lies while it is empty, at the end of a unit: sums of the rows' weights, a float of each row for
    /// 32 threads of each warpgroup. The buffer in which warpgroups are merged lies before it.
    pub const SUMS: u32 = 80 << 10;
    const _: () = assert!(SUMS + COMPUTE_GROUPS * 32 * ROWS * 4 <= QUERY);
}

/// Barriers in shared memory, by number. Where there are several of a kind, the number is the first one's.
pub mod barrier {
    use super::STAGES;

    /// A stage's K has come.
    pub const K_FULL: u32 = 0;
    /// A stage's V has come.
    pub const V_FULL: u32 = K_FULL + STAGES;
    /// A stage's K may be overwritten.
    pub const K_EMPTY: u32 = V_FULL + STAGES;
    /// A stage's V may be overwritten.
    pub const V_EMPTY: u32 = K_EMPTY + STAGES;
    /// A unit's results have been written: the ring may be filled again.
    pub const RING_FREE: u32 = V_EMPTY + STAGES;
    /// Barriers in number.
    pub const COUNT: u32 = RING_FREE + 1;
}

pub(super) const fn geometry(operand: Operand, head_dim_qk: u32, head_dim_v: u32, q_tiles: u32) -> Geometry {
    assert!(matches!(operand, Operand::E4m3) && head_dim_qk == WIDE + NARROW && head_dim_v == WIDE && q_tiles == 1);
    const { assert!(at::END <= Geometry::NVIDIA_SHARED_BYTES, "a block's shared memory") };
    Geometry {
        tile_m: ROWS,
        tile_n: TOKENS,
        warps: THREADS / super::Vendor::Nvidia.warp_size(),
        chunk: TOKENS,
        stages: STAGES,
        threads: THREADS,
        query_in_shared: true,
        shared_bytes: at::END,
        min_blocks: 1,
    }
}
