//! Block shapes and tile sizes: what the planner and the kernels must agree on.

use super::{Operand, Vendor, tcgen05, warpgroups};

/// How the warps of a block share its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockShape {
    /// Each warp takes every `warps`-th chunk of the KV through a ring of its own, and all warps hold the
    /// same query rows; the block merges them at the end. For few rows: decode.
    SplitKv,
    /// All warps take every chunk of the KV through one ring, and each holds query rows of its own. For
    /// packed groups and short queries.
    SharedKv,
    /// Warpgroups compute on other tiles of the KV, keys being the rows of their products, and one thread copies. For
    /// packed groups and short queries. See [`warpgroups`].
    Warpgroups,
    /// Warps have roles: some copy, one issues matrix products over tensor memory, others turn scores into weights or
    /// rescale outputs. See [`tcgen05`].
    Tcgen05,
}

/// Sizes of an attention kernel on one vendor's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Packed query rows of one tile. A block owns `q_tiles * tile_m`.
    pub tile_m: u32,
    /// KV tokens that the block takes in one step. Split boundaries are multiples of it. It divides 128.
    pub tile_n: u32,
    /// Warps of a block.
    pub warps: u32,
    /// KV tokens that one warp takes in one step.
    pub chunk: u32,
    /// Chunks in a ring, of which `stages - 1` are on their way while one is computed.
    pub stages: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Whether the query rows stay in shared memory, because the registers are full.
    pub query_in_shared: bool,
    /// Dynamic shared memory of a block, in bytes: the rings, then the query rows, then the merge buffer, and on NVIDIA a
    /// word in which the block learns whether it is the last one.
    pub shared_bytes: u32,
    /// Blocks that must fit on a multiprocessor (compute unit): the register budget's divisor.
    pub min_blocks: u32,
}

impl Geometry {
    /// Shared memory that the rings of a block are to fill on NVIDIA: about as much as must be under way on a
    /// multiprocessor to keep the memory busy (measured on an H200).
    const RING_BYTES: u32 = 140 << 10;
    /// Shared memory that a block can have.
    pub(super) const NVIDIA_SHARED_BYTES: u32 = 227 << 10;
    const AMD_SHARED_BYTES: u32 = 160 << 10;
    /// Shared memory of the word behind the merge buffer.
    const LAST_BYTES: u32 = 16;

    /// The sizes of the kernel with these head dims, block shape and query tiles.
    pub const fn of(
        vendor: Vendor,
        operand: Operand,
        head_dim_qk: u32,
        head_dim_v: u32,
        shape: BlockShape,
        q_tiles: u32,
    ) -> Self {
        match vendor {
            Vendor::Nvidia => match shape {
                BlockShape::Tcgen05 => Self::tcgen05(operand, head_dim_qk, head_dim_v, q_tiles),
                BlockShape::Warpgroups => warpgroups::geometry(operand, head_dim_qk, head_dim_v, q_tiles),
                BlockShape::SplitKv | BlockShape::SharedKv => {
                    Self::nvidia(operand, head_dim_qk, head_dim_v, shape, q_tiles)
                }
            },
            Vendor::Amd => Self::amd(operand, head_dim_qk, head_dim_v, shape, q_tiles),
        }
    }

    const fn tcgen05(operand: Operand, head_dim_qk: u32, head_dim_v: u32, q_tiles: u32) -> Self {
        let map = tcgen05::SharedMap::of(operand, head_dim_qk, head_dim_v, q_tiles);
        Self {
            tile_m: tcgen05::ROWS,
            tile_n: tcgen05::TOKENS,
            warps: tcgen05::THREADS / Vendor::Nvidia.warp_size(),
            chunk: tcgen05::TOKENS,
            stages: map.k_stages,
            threads: tcgen05::THREADS,
            query_in_shared: true,
            shared_bytes: map.bytes,
            min_blocks: 1,
        }
    }

    const fn nvidia(operand: Operand, head_dim_qk: u32, head_dim_v: u32, shape: BlockShape, q_tiles: u32) -> Self {
        const VENDOR: Vendor = Vendor::Nvidia;
        let rows = Self::rows(VENDOR, operand);
        // Registers of a lane for a tile's query and output rows; 255 there are.
        let query_in_shared = q_tiles * (head_dim_qk * operand.bytes() / 8 + head_dim_v / 2) > 160;
        let (warps, rings) = match shape {
            BlockShape::SplitKv => (4, 4),
            BlockShape::SharedKv => (8, 1),
            BlockShape::Warpgroups => panic!("it has sizes of its own"),
            BlockShape::Tcgen05 => panic!("it has sizes of its own"),
        };
        let tile_m = Self::tile_m(rows, shape, warps);
        let query = if query_in_shared { q_tiles * tile_m * Self::row_bytes(operand, head_dim_qk) } else { 0 };
        let rest = query + Self::merge_bytes(rows, head_dim_v, shape, warps, q_tiles) + Self::LAST_BYTES;
        let limit = Self::NVIDIA_SHARED_BYTES;
        let room = if limit - rest < Self::RING_BYTES { limit - rest } else { Self::RING_BYTES };
        // Half a chunk where two whole ones do not fit, or where their scores do not fit the registers.
        let stage_32 = Self::stage_bytes(VENDOR, operand, head_dim_qk, head_dim_v, shape, 32);
        let chunk = if query_in_shared || limit - rest < 2 * rings * stage_32 { 16 } else { 32 };
        let stage = Self::stage_bytes(VENDOR, operand, head_dim_qk, head_dim_v, shape, chunk);
        let stages = {
            let fit = room / rings / stage;
            if fit < 2 {
                2
            } else if fit > 8 {
                8
            } else {
                fit
            }
        };
        let shared_bytes = rings * stages * stage + rest;
        assert!(shared_bytes <= limit, "a block's shared memory");
        Self {
            tile_m,
            tile_n: rings * chunk,
            warps,
            chunk,
            stages,
            threads: warps * VENDOR.warp_size(),
            query_in_shared,
            shared_bytes,
            min_blocks: 1,
        }
    }

    const fn amd(operand: Operand, head_dim_qk: u32, head_dim_v: u32, shape: BlockShape, q_tiles: u32) -> Self {
        const VENDOR: Vendor = Vendor::Amd;
        let rows = Self::rows(VENDOR, operand);
        // K of one chunk is kept ahead in registers, or read before the next one is copied.
        let stages = 2;
        let (warps, chunk, min_blocks) = match (operand, shape) {
            // One wave on a SIMD, or fewer where the shared memory does not hold their rings.
            (Operand::Bf16 | Operand::F16, BlockShape::SplitKv) => {
                let warp_bytes = stages * Self::stage_bytes(VENDOR, operand, head_dim_qk, head_dim_v, shape, 32)
                    + Self::merge_bytes(rows, head_dim_v, shape, 1, q_tiles);
                (if 4 * warp_bytes <= Self::AMD_SHARED_BYTES { 4 } else { 2 }, 32, 1)
            }
            // Two waves on a SIMD, of 256 registers. A lane's part of the query and output rows, and of the scores
            // and K of 64 tokens, leaves a quarter of them to what else there is, or is halved.
            (Operand::Bf16 | Operand::F16, BlockShape::SharedKv) => {
                let used = q_tiles * (head_dim_qk / 8 + head_dim_v / 4 + 16) + head_dim_qk / 2;
                (8, if used <= 192 { 64 } else { 32 }, 1)
            }
            // A product takes 64 tokens of 8 bits. One wave on a SIMD: two blocks where the shared memory holds them.
            (Operand::E4m3, BlockShape::SplitKv) => (2, 64, 1),
            // Of twice the rows a wave, as many rows a block. Two blocks, if what a lane holds leaves a quarter of 256
            // registers.
            (Operand::E4m3, BlockShape::SharedKv) => {
                let used = q_tiles * (head_dim_qk / 8 + head_dim_v / 2 + 32) + head_dim_qk / 4;
                (4, 64, if used <= 192 { 2 } else { 1 })
            }
            (_, BlockShape::Warpgroups | BlockShape::Tcgen05) => panic!("it is NVIDIA's"),
        };
        let rings = match shape {
            BlockShape::SplitKv => warps,
            BlockShape::SharedKv | BlockShape::Warpgroups | BlockShape::Tcgen05 => 1,
        };
        let shared_bytes = rings * stages * Self::stage_bytes(VENDOR, operand, head_dim_qk, head_dim_v, shape, chunk)
            + Self::merge_bytes(rows, head_dim_v, shape, warps, q_tiles);
        assert!(min_blocks * shared_bytes <= Self::AMD_SHARED_BYTES, "a compute unit's shared memory");
        Self {
            tile_m: Self::tile_m(rows, shape, warps),
            tile_n: rings * chunk,
            warps,
            chunk,
            stages,
            threads: warps * VENDOR.warp_size(),
            query_in_shared: false,
            shared_bytes,
            min_blocks,
        }
    }

    /// Query rows of one matrix product.
    pub const fn rows(vendor: Vendor, operand: Operand) -> u32 {
        match (vendor, operand) {
            (Vendor::Nvidia, _) | (Vendor::Amd, Operand::Bf16 | Operand::F16) => 16,
            (Vendor::Amd, Operand::E4m3) => 32,
        }
    }

    /// Packed query rows of one tile.
    const fn tile_m(rows: u32, shape: BlockShape, warps: u32) -> u32 {
        match shape {
            BlockShape::SplitKv => rows,
            BlockShape::SharedKv | BlockShape::Warpgroups | BlockShape::Tcgen05 => rows * warps,
        }
    }

    /// Bytes of the buffer in which a block's warps merge what they saw of the same rows.
    const fn merge_bytes(rows: u32, head_dim_v: u32, shape: BlockShape, warps: u32, q_tiles: u32) -> u32 {
        match shape {
            BlockShape::SplitKv => warps * q_tiles * rows * (Self::merge_pitch(head_dim_v) + 2) * 4,
            BlockShape::SharedKv | BlockShape::Warpgroups | BlockShape::Tcgen05 => 0,
        }
    }

    /// Bytes of shared memory in one stage of a ring. On AMD, a warp with a ring of its own takes K straight to
    /// registers, and rows lie without gaps.
    pub const fn stage_bytes(
        vendor: Vendor,
        operand: Operand,
        head_dim_qk: u32,
        head_dim_v: u32,
        shape: BlockShape,
        chunk: u32,
    ) -> u32 {
        chunk
            * match (vendor, shape) {
                (Vendor::Nvidia, _) => Self::row_bytes(operand, head_dim_qk) + Self::row_bytes(operand, head_dim_v),
                (Vendor::Amd, BlockShape::SplitKv) => head_dim_v * operand.bytes(),
                (Vendor::Amd, BlockShape::SharedKv | BlockShape::Warpgroups | BlockShape::Tcgen05) => {
                    (head_dim_qk + head_dim_v) * operand.bytes()
                }
            }
    }

    /// Distance in bytes between rows of elements in shared memory on NVIDIA: whole lines of 128 bytes. (Rows one
    /// piece longer need no swizzle, but cost 7 % of the bandwidth on an H200: their copies cross lines.)
    pub const fn row_bytes(operand: Operand, head_dim: u32) -> u32 {
        (head_dim * operand.bytes()).next_multiple_of(128)
    }

    /// Distance in floats between rows of the buffer in which a block's warps merge their outputs.
    /// The 8 extra floats keep the lanes of a store in different banks.
    pub const fn merge_pitch(head_dim_v: u32) -> u32 {
        head_dim_v + 8
    }
}
