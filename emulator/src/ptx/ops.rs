//! Decoded instructions. Registers are indices into a warp's register banks; constants are registers too.

use crate::counters::Class;
use crate::races::Access;

/// Index of a register in its bank.
pub(super) type Reg = u16;

/// A scalar type of PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ty {
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    B64,
    U64,
    S64,
    F64,
    Pred,
}

impl Ty {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> u32 {
        match self {
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::Pred => 0,
        }
    }

    pub(super) fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(super) fn float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }
}

/// Width of an integer operation. 16-bit values live in 32-bit registers, zero-extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    W16,
    W32,
    W64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntOp {
    Add,
    Sub,
    MulLo,
    MulHiU,
    MulHiS,
    DivU,
    DivS,
    RemU,
    RemS,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShiftOp {
    Left,
    RightU,
    RightS,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntUnary {
    Neg,
    Abs,
    Not,
    Brev,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountOp {
    Ones,
    LeadingZeros,
    /// Position of the highest one, or all ones.
    HighestOne,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatOp {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    MinNan,
    MaxNan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatUnary {
    Neg,
    Abs,
    Sqrt,
    Rcp,
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
}

/// Rounding of a result: to the nearest (even), towards zero, down, up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// How a float operation treats its operands and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FloatMode {
    pub(super) round: Round,
    /// Subnormal operands and results become zero.
    pub(super) ftz: bool,
    /// The result is clamped to 0..1, NaN to 0.
    pub(super) sat: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Floats: true if either is NaN, else as the ordered one.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// What is compared, and in which bank it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompareTy {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F32 { ftz: bool },
    F64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logic {
    And,
    Or,
    Xor,
}

/// A predicate, or its complement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PredSource {
    pub(super) reg: Reg,
    pub(super) negate: bool,
}

/// A register of either data bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnyReg {
    R32(Reg),
    R64(Reg),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NumWarps,
    SmId,
    NumSms,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicSharedBytes,
    TotalSharedBytes,
    /// Counts the block's instructions: the same each time.
    Clock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// How a memory operation or a fence orders others, as other blocks can see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) acquire: bool,
    pub(super) release: bool,
}

/// `[base + offset]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) space: Space,
    pub(super) base: AnyReg,
    pub(super) offset: i64,
}

/// Up to 8 registers of a vector operand; `None` is `_`.
pub(super) type Vector = [Option<AnyReg>; 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtomicOp {
    Add,
    AddF32,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

impl AtomicOp {
    /// Whether memory ends the same whatever order the operations come in.
    pub(super) fn commutes(self) -> bool {
        !matches!(self, Self::AddF32 | Self::Exchange | Self::CompareExchange)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot(Reg),
}

/// Element type of the A and B operands of `mma.sync` with f32 accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixTy {
    Bf16,
    F16,
    E4m3,
    E5m2,
}

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
        if matches!(self.a_ty, MatrixTy::E4m3 | MatrixTy::E5m2) { 4 } else { 2 }
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
    /// Two f32 in a register.
    Packed32 {
        op: FloatOp,
        mode: FloatMode,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    PackedFma32 {
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
    },
    BarrierWarp,
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
