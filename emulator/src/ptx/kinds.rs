//! The parts of decoded instructions: types, operations, modes, operands.

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
    Tensor,
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

/// A question that a barrier answers: how many threads' predicates hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    pub(super) what: ReductionOp,
    pub(super) a: PredSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReductionOp {
    /// All; into a predicate.
    And(Reg),
    /// Any; into a predicate.
    Or(Reg),
    /// How many.
    Count(Reg),
}

/// A phase of an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseSource {
    /// The latest one of this parity (a 32-bit register).
    Parity(Reg),
    /// The one that an arrival named (a 64-bit register).
    Token(Reg),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BarrierOp {
    Init {
        count: Reg,
    },
    Invalidate,
    Arrive {
        /// The token of the phase.
        d: Option<Reg>,
        count: Reg,
        /// Bytes to expect, before it arrives.
        expect: Option<Reg>,
        release: bool,
    },
    Expect {
        bytes: Reg,
    },
    /// Whether the phase is complete; `waits`: until it is.
    Test {
        d: Reg,
        phase: PhaseSource,
        waits: bool,
        acquire: bool,
    },
    /// Arrives when the thread's earlier copies have; `counted`: the barrier already expects it.
    ArriveCopies {
        counted: bool,
    },
}

/// Element type of the A and B operands of products with f32 accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixTy {
    Bf16,
    F16,
    E4m3,
    E5m2,
}

impl MatrixTy {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "bf16" => Self::Bf16,
            "f16" => Self::F16,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> u32 {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 | Self::E5m2 => 1,
        }
    }
}
