//! Instructions that give work to the copy and matrix units.

use super::descriptor::Major;
use super::kinds::*;

/// `d = a * b + d` for a warp's share of a warpgroup: 16 of 64 rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wgmma {
    pub(super) a_ty: MatrixTy,
    pub(super) b_ty: MatrixTy,
    pub(super) n: u32,
    pub(super) k: u32,
    /// The accumulator's registers, in PTX's order.
    pub(super) d: Box<[Reg]>,
    pub(super) a: WgmmaA,
    /// A descriptor.
    pub(super) b: Reg,
    /// Whether `d` is added.
    pub(super) accumulate: PredSource,
    pub(super) negate: [bool; 2],
    pub(super) major: [Major; 2],
}

/// Where a warpgroup's A lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WgmmaA {
    /// A descriptor.
    Shared(Reg),
    Registers([Reg; 4]),
}

/// `d = a * b + d` with `d` in tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorMma {
    /// Bytes of an element.
    pub(super) bytes: u32,
    pub(super) d: Address,
    pub(super) a: TensorA,
    /// A descriptor of the matrix.
    pub(super) b: Reg,
    /// The instruction's descriptor.
    pub(super) descriptor: Reg,
    /// Whether `d` is added.
    pub(super) accumulate: PredSource,
}

/// Where A lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorA {
    /// A descriptor.
    Shared(Reg),
    Tensor(Address),
}

/// An instruction on tensor memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TensorOp {
    /// Writes the address of so many columns to shared memory.
    Alloc {
        to: Address,
        columns: Reg,
    },
    Relinquish,
    Free {
        address: Reg,
        columns: Reg,
    },
    Mma(TensorMma),
    Commit {
        barrier: Address,
    },
    FenceBefore,
    FenceAfter,
    WaitLoads,
    WaitStores,
    /// A register a column.
    Load {
        address: Address,
        d: Box<[Reg]>,
    },
    Store {
        address: Address,
        a: Box<[Reg]>,
    },
}

/// A copy of whole pieces between global and shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bulk {
    pub(super) shared: Address,
    pub(super) global: BulkEnd,
    /// The mbarrier that a copy to shared memory signals; a copy to global memory has none.
    pub(super) barrier: Option<Address>,
}

/// The global side of a copy of whole pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkEnd {
    Plain { address: Address, bytes: Reg },
    Tensor { map: Address, coordinates: [Reg; 5], rank: usize },
}
