//! What a block of shape `Tcgen05` has, and where: warps, tensor memory, shared memory. Budgets are checked where the
//! tables are made.

use super::{Geometry, Operand};

/// Rows of a query tile: the lanes of tensor memory.
pub const ROWS: u32 = 128;
/// KV tokens of a tile.
pub const TOKENS: u32 = 128;
/// Streams of scores: of two query tiles one each, of one query tile the even and the odd KV tiles.
pub const STREAMS: u32 = 2;
/// Threads of a block: 16 warps, as [`crate::abi::tcgen05`]'s roles share them.
pub const THREADS: u32 = 512;

/// Columns of tensor memory, which a block allocates whole.
pub const COLUMNS: u32 = 512;
/// First columns of each stream's scores, over which its weights are written, and of its outputs.
pub const SCORES: [u32; 2] = [0, TOKENS];
/// First columns of each stream's outputs.
pub const OUTPUTS: [u32; 2] = [STREAMS * TOKENS, STREAMS * TOKENS + MAX_HEAD_DIM_V];
/// Most head dims of V, a column each.
pub const MAX_HEAD_DIM_V: u32 = 128;
const _: () = assert!(OUTPUTS[1] + MAX_HEAD_DIM_V <= COLUMNS, "tensor memory");

/// Bytes of a piece of a tile in shared memory: 128 rows of 128 bytes, swizzled, at a multiple of 1024.
pub const BLOCK_BYTES: u32 = 128 * 128;
/// Most stages of a ring.
const MAX_STAGES: u32 = 4;

/// Barriers in shared memory, by number. Where there are several of a kind, the number is the first one's.
pub mod barrier {
    /// The query tiles have come; they may be overwritten.
    pub const Q_FULL: u32 = 0;
    /// The query tiles may be overwritten.
    pub const Q_EMPTY: u32 = 1;
    /// A stage of K has come.
    pub const K_FULL: u32 = 2;
    /// A stage of K may be overwritten.
    pub const K_EMPTY: u32 = K_FULL + super::MAX_STAGES;
    /// A stage of V has come.
    pub const V_FULL: u32 = K_EMPTY + super::MAX_STAGES;
    /// A stage of V may be overwritten.
    pub const V_EMPTY: u32 = V_FULL + super::MAX_STAGES;
    /// A stream's scores are in tensor memory.
    pub const SCORES_FULL: u32 = V_EMPTY + super::MAX_STAGES;
    /// A stream's weights are in tensor memory, and its outputs are scaled to them.
    pub const WEIGHTS_FULL: u32 = SCORES_FULL + super::STREAMS;
    /// A stream's message from softmax to correction is written.
    pub const MESSAGE_FULL: u32 = WEIGHTS_FULL + super::STREAMS;
    /// A stream's message has been read.
    pub const MESSAGE_EMPTY: u32 = MESSAGE_FULL + super::STREAMS;
    /// All outputs of a unit are in tensor memory.
    pub const OUTPUTS_FULL: u32 = MESSAGE_EMPTY + super::STREAMS;
    /// Barriers in number.
    pub const COUNT: u32 = OUTPUTS_FULL + 1;
}

/// Where things are in shared memory, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMap {
    /// Query tiles: of each its blocks of 128 bytes of every row.
    pub q: u32,
    /// Bytes of a query tile, or of a stage of K.
    pub qk_tile: u32,
    /// Stages of K.
    pub k: u32,
    /// Stages of K in number.
    pub k_stages: u32,
    /// Stages of V.
    pub v: u32,
    /// Bytes of a stage of V.
    pub v_tile: u32,
    /// Stages of V in number.
    pub v_stages: u32,
    /// Messages from softmax to correction: of each stream and row two floats.
    pub messages: u32,
    /// Barriers, of 8 bytes.
    pub barriers: u32,
    /// Where the address of the allocated tensor memory is written.
    pub columns: u32,
    /// All of it.
    pub bytes: u32,
}

impl SharedMap {
    /// The map of a kernel: as many stages as there is room for.
    pub const fn of(operand: Operand, head_dim_qk: u32, head_dim_v: u32, q_tiles: u32) -> Self {
        assert!(head_dim_v <= MAX_HEAD_DIM_V && q_tiles <= STREAMS);
        let qk_tile = ROWS * Geometry::row_bytes(operand, head_dim_qk);
        let v_tile = TOKENS * Geometry::row_bytes(operand, head_dim_v);
        let message_bytes = STREAMS * ROWS * 8;
        let rest = message_bytes + barrier::COUNT * 8 + 8;
        let room = Geometry::NVIDIA_SHARED_BYTES - q_tiles * qk_tile - rest;
        let pairs = room / (qk_tile + v_tile);
        let v_stages = if pairs < MAX_STAGES { pairs } else { MAX_STAGES };
        // One more stage of K than of V where that fits: scores are computed ahead.
        let more = v_stages < MAX_STAGES && room - v_stages * (qk_tile + v_tile) >= qk_tile;
        let k_stages = if more { v_stages + 1 } else { v_stages };
        assert!(k_stages >= 2 && v_stages >= 1, "the pipeline needs them");
        let k = q_tiles * qk_tile;
        let v = k + k_stages * qk_tile;
        let messages = v + v_stages * v_tile;
        let barriers = messages + message_bytes;
        let columns = barriers + barrier::COUNT * 8;
        let bytes = columns + 8;
        assert!(bytes <= Geometry::NVIDIA_SHARED_BYTES, "a block's shared memory");
        Self { q: 0, qk_tile, k, k_stages, v, v_tile, v_stages, messages, barriers, columns, bytes }
    }
}
