//! What a block of shape `Warpgroups` has, and where: threads, tensor maps, shared memory. Budgets are checked where
//! the tables are made.

use super::{Geometry, Operand};

/// Rows of a query tile: the columns of a product, since keys are its rows.
pub const ROWS: u32 = 72;
/// Tiles in the ring.
pub const STAGES: u32 = 4;
/// Warpgroups that compute: of a unit's tiles each takes every second one.
pub const COMPUTE_GROUPS: u32 = 2;
/// Threads of a warpgroup.
pub const GROUP_THREADS: u32 = 128;
/// Threads of a block: the warpgroups that compute, and one that copies.
pub const THREADS: u32 = (COMPUTE_GROUPS + 1) * GROUP_THREADS;
/// Threads that compute.
pub const COMPUTE_THREADS: u32 = COMPUTE_GROUPS * GROUP_THREADS;

/// Head dim of Q and K.
pub const HEAD_DIM_QK: u32 = 192;
/// Head dim of V and O.
pub const HEAD_DIM_V: u32 = 128;

/// Bytes of a piece of a row that is swizzled over 128 bytes. Rows of K are one or several of these.
pub const WIDE: u32 = 128;
/// Bytes of the narrow piece behind it, swizzled over 64 bytes: head dim 192 of e4m3 is both.
pub const NARROW: u32 = 64;

/// Tensor maps that the kernel finds behind `page_table`, of 128 bytes each. All have four dims: bytes of a row, KV
/// heads, tokens, sequences (one where they are packed).
pub mod map {
    /// Wide pieces of K: boxes of `WIDE` x 1 x `k_tokens` x 1.
    pub const K_WIDE: u32 = 0;
    /// Narrow pieces of K: boxes of `NARROW` x 1 x `k_tokens` x 1.
    pub const K_NARROW: u32 = 1;
    /// V: boxes of `WIDE` x 1 x `v_tokens` x 1.
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

/// Bytes of what the end of a unit needs: where each row goes, and where its parts are.
pub const NOTES_BYTES: u32 = 16 + ROWS * 112;

/// What depends on the element type: tiles, and where things are in shared memory, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// KV tokens of a tile.
    pub tokens: u32,
    /// KV tokens of a box of K.
    pub k_tokens: u32,
    /// KV tokens of a box of V.
    pub v_tokens: u32,
    /// Distance of the parts of V in a stage: halves of the tile's tokens, or of the head dims.
    pub v_part: u32,
    /// Bytes of K in a stage, piece by piece; V lies behind.
    pub k_bytes: u32,
    /// Bytes of V in a stage.
    pub v_bytes: u32,
    /// Bytes of a stage.
    pub stage: u32,
    /// Distance of blocks of a warpgroup's weights.
    pub weight_block: u32,
    /// Bytes of a warpgroup's weights. Where its maxima are sought, the buffer holds a float of each row for 32 of them.
    pub weights: u32,
    /// Place of the query rows, piece by piece.
    pub query_at: u32,
    /// Place of each warpgroup's weights.
    pub weights_at: u32,
    /// Place of each warpgroup's steps of its rows' references.
    pub steps_at: u32,
    /// Place of the barriers.
    pub barriers_at: u32,
    /// Place of what the end of a unit needs, found at its beginning.
    pub notes_at: u32,
    /// End of it all.
    pub end: u32,
}

/// Where the ring lies while it is empty, at the end of a unit: sums of the rows' weights, a float of each row for 32
/// threads of each warpgroup. The buffer in which warpgroups are merged lies before it.
pub const SUMS_AT: u32 = 80 << 10;

impl Layout {
    /// That of a type's kernel.
    pub const fn of(operand: Operand) -> Self {
        match operand {
            // Weights lie in blocks of 16 keys (of all rows), 16 bytes apart, so that a warp writes to different banks.
            // V's halves are read at once, one token of either in turn: four rows apart, they lie in different banks.
            Operand::E4m3 => Self::new(operand, 128, [128, 64], 64 * WIDE + 512, ROWS * 16 + 16, 16),
            // Weights lie in blocks of 8 keys, rows in eights of 16 bytes; V in parts of 64 head dims. Boxes of few tokens
            // read whole rows of memory sooner; of fewer than 16, one thread copies too few bytes at a time.
            Operand::Bf16 | Operand::F16 => Self::new(operand, 64, [16, 16], 64 * WIDE, ROWS * 16, 8),
        }
    }

    const fn new(
        operand: Operand,
        tokens: u32,
        [k_tokens, v_tokens]: [u32; 2],
        v_part: u32,
        weight_block: u32,
        weight_block_tokens: u32,
    ) -> Self {
        let k_bytes = tokens * HEAD_DIM_QK * operand.bytes();
        let v_bytes = tokens * HEAD_DIM_V * operand.bytes();
        let stage = (k_bytes + 2 * v_part).next_multiple_of(1024);
        let weights = tokens / weight_block_tokens * weight_block;
        assert!(weights >= 32 * ROWS * 4, "a buffer for maxima");
        let query_at = STAGES * stage;
        assert!(SUMS_AT + COMPUTE_GROUPS * 32 * ROWS * 4 <= query_at, "sums lie in the ring");
        let weights_at = query_at + ROWS * HEAD_DIM_QK * operand.bytes();
        let steps_at = weights_at + COMPUTE_GROUPS * weights;
        let barriers_at = steps_at + COMPUTE_GROUPS * ROWS * 4;
        let notes_at = (barriers_at + barrier::COUNT * 8).next_multiple_of(16);
        let end = notes_at + NOTES_BYTES;
        Self {
            tokens,
            k_tokens,
            v_tokens,
            v_part,
            k_bytes,
            v_bytes,
            stage,
            weight_block,
            weights,
            query_at,
            weights_at,
            steps_at,
            barriers_at,
            notes_at,
            end,
        }
    }
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
    assert!(head_dim_qk == HEAD_DIM_QK && head_dim_v == HEAD_DIM_V && q_tiles == 1);
    let layout = Layout::of(operand);
    assert!(layout.end <= Geometry::NVIDIA_SHARED_BYTES, "a block's shared memory");
    Geometry {
        tile_m: ROWS,
        tile_n: layout.tokens,
        warps: THREADS / super::Vendor::Nvidia.warp_size(),
        chunk: layout.tokens,
        stages: STAGES,
        threads: THREADS,
        query_in_shared: true,
        shared_bytes: layout.end,
        min_blocks: 1,
    }
}
