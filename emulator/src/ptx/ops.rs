//! Decoded instructions. Registers are indices into a warp's register banks; constants are registers too.

use crate::counters::Class;
use crate::races::Access;

pub(super) use super::kinds::*;
pub(super) use super::unit_ops::*;

/// `d = a * b + c` for a whole warp; the registers of a lane in PTX's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mma {
    pub(super) a_ty: MatrixTy,
    pub(super) b_ty: MatrixTy,
    /// Elements summed: 8, 16 or 32.
    pub(super) k: u32,
    pub(super) d: [Reg; 4],
    pub(super) a: [Reg; 4],
    pub(super) b: [Reg; 2],
    pub(super) c: [Reg; 4],
}

impl Mma {
    /// Elements of A or B in a register.
    pub(super) fn per_register(&self) -> usize {
        if self.a_ty.bytes() == 1 { 4 } else { 2 }
    }

    /// Registers of B that are used; A has twice as many.
    pub(super) fn b_registers(&self) -> usize {
        self.k as usize / 4 / self.per_register()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Int {
        op: IntOp,
        width: Width,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Shift {
        op: ShiftOp,
        width: Width,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    IntUnary {
        op: IntUnary,
        width: Width,
        d: Reg,
        a: Reg,
    },
    Count {
        op: CountOp,
        signed: bool,
        wide: bool,
        d: Reg,
        a: Reg,
    },
    /// 32 (or 16) bits times as many, all bits kept.
    MulWide {
        signed: bool,
        width: Width,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    MadWide {
        signed: bool,
        width: Width,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    MadLo {
        width: Width,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    BitExtract {
        signed: bool,
        wide: bool,
        d: Reg,
        a: Reg,
        position: Reg,
        length: Reg,
    },
    BitInsert {
        wide: bool,
        d: Reg,
        a: Reg,
        b: Reg,
        position: Reg,
        length: Reg,
    },
    Permute {
        d: Reg,
        a: Reg,
        b: Reg,
        selector: Reg,
    },
    Logic3 {
        table: u8,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    FunnelShift {
        left: bool,
        clamp: bool,
        d: Reg,
        a: Reg,
        b: Reg,
        amount: Reg,
    },
    Mov32 {
        d: Reg,
        a: Reg,
    },
    Mov64 {
        d: Reg,
        a: Reg,
    },
    Special {
        d: AnyReg,
        what: Special,
    },
    /// `d = {low, high}`.
    Pack64 {
        d: Reg,
        low: Reg,
        high: Reg,
    },
    Unpack64 {
        low: Option<Reg>,
        high: Option<Reg>,
        a: Reg,
    },
    Pack32 {
        d: Reg,
        low: Reg,
        high: Reg,
    },
    Unpack32 {
        low: Option<Reg>,
        high: Option<Reg>,
        a: Reg,
    },
    SetP {
        compare: Compare,
        ty: CompareTy,
        d: Reg,
        not_d: Option<Reg>,
        a: Reg,
        b: Reg,
        with: Option<(Logic, PredSource)>,
    },
    PredLogic {
        op: Logic,
        d: Reg,
        a: PredSource,
        b: PredSource,
    },
    PredMov {
        d: Reg,
        a: PredSource,
    },
    Select32 {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Reg,
    },
    Select64 {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Reg,
    },
    F32 {
        op: FloatOp,
        mode: FloatMode,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    /// The least or the largest of three.
    F32Three {
        op: FloatOp,
        mode: FloatMode,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    /// Two f32 in a 64-bit register.
    F32x2 {
        op: FloatOp,
        mode: FloatMode,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Fma32x2 {
        mode: FloatMode,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    F64 {
        op: FloatOp,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Fma32 {
        mode: FloatMode,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Fma64 {
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Unary32 {
        op: FloatUnary,
        mode: FloatMode,
        d: Reg,
        a: Reg,
    },
    Unary64 {
        op: FloatUnary,
        d: Reg,
        a: Reg,
    },
    Convert {
        from: Ty,
        to: Ty,
        mode: FloatMode,
        to_integral: bool,
        d: AnyReg,
        a: AnyReg,
    },
    /// Two f32 to a pair of 16-bit floats, `a` in the high half.
    PackFloats {
        to: Ty,
        mode: FloatMode,
        relu: bool,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    /// Two f32 to a pair of 8-bit floats, `a` in the high byte.
    PackFp8 {
        to: MatrixTy,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    /// A pair of 8-bit floats to a pair of f16.
    UnpackFp8 {
        from: MatrixTy,
        d: Reg,
        a: Reg,
    },
    /// Adds the start of a space's window in the generic space (or subtracts it).
    Window {
        to_generic: bool,
        space: Space,
        d: Reg,
        a: Reg,
    },
    Load {
        address: Address,
        access: Access,
        order: Order,
        ty: Ty,
        count: u8,
        d: Vector,
    },
    Store {
        address: Address,
        access: Access,
        order: Order,
        ty: Ty,
        count: u8,
        a: Vector,
    },
    Atomic {
        address: Address,
        order: Order,
        op: AtomicOp,
        bytes: u32,
        d: Option<AnyReg>,
        b: AnyReg,
        c: Option<AnyReg>,
    },
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u32,
        used: Option<Reg>,
    },
    CommitCopies,
    /// Waits until at most so many of the thread's groups are pending; `None`: commits, and waits for all.
    WaitCopies {
        pending: Option<u32>,
    },
    Bulk(Box<Bulk>),
    CommitBulk,
    /// Waits until at most so many of the thread's groups are pending.
    WaitBulk {
        pending: u32,
    },
    MatrixLoad {
        address: Address,
        count: u8,
        transpose: bool,
        d: [Reg; 4],
    },
    MatrixStore {
        address: Address,
        count: u8,
        transpose: bool,
        a: [Reg; 4],
    },
    Mma(Box<Mma>),
    Wgmma(Box<Wgmma>),
    /// Registers may be used by the products that follow.
    WgmmaFence,
    WgmmaCommit,
    Tensor(Box<TensorOp>),
    /// Waits until at most so many of the warp's groups of products are pending.
    WgmmaWait {
        pending: u32,
    },
    Shuffle {
        mode: ShuffleMode,
        d: Reg,
        in_range: Option<Reg>,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Vote {
        mode: VoteMode,
        d: Reg,
        a: PredSource,
    },
    Reduce {
        op: IntOp,
        d: Reg,
        a: Reg,
    },
    /// The lowest member lane is the leader.
    Elect {
        d: Option<Reg>,
        leader: Reg,
    },
    ActiveMask {
        d: Reg,
    },
    BarrierBlock {
        id: Reg,
        threads: Option<Reg>,
        reduction: Option<Reduction>,
    },
    BarrierArrive {
        id: Reg,
        threads: Reg,
    },
    BarrierWarp,
    /// An operation on an mbarrier in shared memory.
    Barrier {
        address: Address,
        op: BarrierOp,
    },
    /// Ordinary accesses to shared memory become visible to the asynchronous proxy.
    FenceProxy,
    Fence {
        order: Order,
    },
    /// A hint that changes nothing.
    Nothing,
    Branch {
        target: u32,
    },
    BranchIndexed {
        index: Reg,
        targets: Box<[u32]>,
    },
    Exit,
    Trap,
}

/// Lanes that an instruction needs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// It works for any lanes.
    Any,
    /// All lanes that have not ended.
    All,
    /// Those of this mask.
    Members(Reg),
}

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) guard: Option<PredSource>,
    pub(super) together: Together,
    pub(super) class: Class,
    pub(super) op: Op,
    pub(super) line: u32,
}
