//! The decoded form of an instruction.

use super::memory_ops::{LdsOp, MemoryOp, ScalarMemory};
use super::salu_ops::Salu;
use super::valu_ops::Valu;

/// An instruction's encoding, as the ISA manual names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    Sop2,
    Sopk,
    Sop1,
    Sopc,
    Sopp,
    Smem,
    Vop1,
    Vop2,
    Vopc,
    Vop3,
    Vop3P,
    Mai,
    Ds,
    Flat,
    Mubuf,
}

/// One row of an opcode table.
#[derive(Debug)]
pub(crate) struct Row<T: 'static> {
    pub(crate) encoding: Encoding,
    pub(crate) code: u16,
    pub(crate) op: T,
    pub(crate) name: &'static str,
    /// Registers of the destination, then of each source.
    pub(crate) widths: &'static [u8],
    pub(crate) flags: u16,
}

impl<T> Row<T> {
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The destination is a source too.
pub(crate) const READS_DST: u16 = 1;
/// Writes a lane mask besides the destination (VCC in the short encodings).
pub(crate) const SDST: u16 = 2;
/// The third source is a lane mask (VCC in the short encodings).
pub(crate) const MASK_SRC2: u16 = 4;
/// The destination is a scalar register.
pub(crate) const SGPR_DST: u16 = 8;
/// The first source is written too.
pub(crate) const WRITES_SRC: u16 = 16;
/// The short encoding has no `_e32` in its name.
pub(crate) const NO_SUFFIX: u16 = 32;
/// The source is an accumulation register.
pub(crate) const ACC_SRC: u16 = 64;
/// The destination is an accumulation register.
pub(crate) const ACC_DST: u16 = 128;
/// Packed encoding whose operands are not pairs of halves: no `op_sel_hi`.
pub(crate) const NO_OP_SEL: u16 = 256;

/// A 16-bit result leaves the other half of the destination as it is; others clear it.
pub(crate) const KEEPS_HALF: u16 = 512;

/// Declares an enum of opcodes and the table of its rows.
macro_rules! table {
    ($(#[$doc:meta])* $enum:ident { $($encoding:ident {
        $($code:literal $op:ident [$($width:literal)*] $($flag:ident)*;)*
    })* }) => {
        $(#[$doc])*
        #[allow(non_camel_case_types, reason = "the manual's mnemonics")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum $enum { $($($op,)*)* }

        impl $enum {
            /// The rows, in the order of the variants.
            pub(crate) const ROWS: &[Row<Self>] = &[$($(Row {
                encoding: Encoding::$encoding,
                code: $code,
                op: $enum::$op,
                name: stringify!($op),
                widths: &[$($width),*],
                flags: 0 $(| $flag)*,
            },)*)*];

            /// This opcode's row.
            pub(crate) fn row(self) -> &'static Row<Self> {
                &Self::ROWS[self as usize]
            }

            /// The row of an encoding's code.
            pub(crate) fn find(encoding: Encoding, code: u32) -> Option<&'static Row<Self>> {
                Self::ROWS.iter().find(|row| row.encoding == encoding && u32::from(row.code) == code)
            }
        }
    };
}
pub(crate) use table;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Salu(Salu),
    Program(Program),
    ScalarMemory(ScalarMemory),
    Valu(Valu),
    Compare(Compare),
    Mfma(Mfma),
    Memory(MemoryOp),
    Lds(LdsOp),
}

/// Program control (SOPP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Nop,
    End,
    Branch,
    BranchScc(bool),
    BranchVcc(bool),
    BranchExec(bool),
    Barrier,
    Waitcnt,
    Sleep,
    SetPriority,
    SendMessage,
    Trap,
}

impl Program {
    pub(crate) const ROWS: &[(u32, Self, &'static str)] = &[
        (0x00, Self::Nop, "s_nop"),
        (0x01, Self::End, "s_endpgm"),
        (0x02, Self::Branch, "s_branch"),
        (0x04, Self::BranchScc(false), "s_cbranch_scc0"),
        (0x05, Self::BranchScc(true), "s_cbranch_scc1"),
        (0x06, Self::BranchVcc(false), "s_cbranch_vccz"),
        (0x07, Self::BranchVcc(true), "s_cbranch_vccnz"),
        (0x08, Self::BranchExec(false), "s_cbranch_execz"),
        (0x09, Self::BranchExec(true), "s_cbranch_execnz"),
        (0x0a, Self::Barrier, "s_barrier"),
        (0x0c, Self::Waitcnt, "s_waitcnt"),
        (0x0e, Self::Sleep, "s_sleep"),
        (0x0f, Self::SetPriority, "s_setprio"),
        (0x10, Self::SendMessage, "s_sendmsg"),
        (0x12, Self::Trap, "s_trap"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ROWS.iter().find(|row| row.1 == self).map_or("", |row| row.2)
    }
}

/// A vector comparison: 64 results into a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compare {
    pub(crate) ty: CompareType,
    /// Index into the condition names of the type.
    pub(crate) condition: u8,
    /// Whether EXEC is written too (`v_cmpx`).
    pub(crate) exec: bool,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompareType {
    ClassF32,
    ClassF16,
    F16,
    F32,
    F64,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
}

impl Compare {
    /// Conditions of floats, by their code.
    pub(crate) const FLOAT: [&str; 16] =
        ["f", "lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "tru"];
    /// Conditions of integers, by their code.
    pub(crate) const INTEGER: [&str; 8] = ["f", "lt", "eq", "le", "gt", "ne", "ge", "t"];

    /// The comparison of a VOPC code.
    pub(crate) fn of_code(code: u32) -> Option<Self> {
        use CompareType::*;
        let (low, exec) = (code & 0xf, code & 0x10 != 0);
        let (ty, condition, exec) = match code {
            0x10 | 0x11 => (ClassF32, 0, code & 1 != 0),
            0x14 | 0x15 => (ClassF16, 0, code & 1 != 0),
            0x20..0x40 => (F16, low, exec),
            0x40..0x60 => (F32, low, exec),
            0x60..0x80 => (F64, low, exec),
            0xa0..0xc0 => (if low < 8 { I16 } else { U16 }, low & 7, exec),
            0xc0..0xe0 => (if low < 8 { I32 } else { U32 }, low & 7, exec),
            0xe0..0x100 => (if low < 8 { I64 } else { U64 }, low & 7, exec),
            _ => return None,
        };
        Some(Self { ty, condition: condition as u8, exec })
    }

    pub(crate) fn name(self) -> String {
        use CompareType::*;
        let prefix = if self.exec { "v_cmpx" } else { "v_cmp" };
        let condition = match self.ty {
            ClassF32 | ClassF16 => "class",
            F16 | F32 | F64 => Self::FLOAT[self.condition as usize],
            _ => Self::INTEGER[self.condition as usize],
        };
        let ty = match self.ty {
            F16 | ClassF16 => "f16",
            F32 | ClassF32 => "f32",
            F64 => "f64",
            I16 => "i16",
            U16 => "u16",
            I32 => "i32",
            U32 => "u32",
            I64 => "i64",
            U64 => "u64",
        };
        format!("{prefix}_{condition}_{ty}")
    }

    /// Registers of each source.
    pub(crate) fn width(self) -> u8 {
        if matches!(self.ty, CompareType::F64 | CompareType::I64 | CompareType::U64) { 2 } else { 1 }
    }
}

/// Element type of a matrix operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    Fp8,
    Bf8,
    Fp6,
    Bf6,
    Fp4,
}

impl Element {
    /// Bits of an element.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::Fp8 | Self::Bf8 => 8,
            Self::Fp6 | Self::Bf6 => 6,
            Self::Fp4 => 4,
        }
    }

    /// The operand formats that `cbsz` and `blgp` of the f8f6f4 instructions select.
    pub(crate) const fn of_format(format: u8) -> Option<Self> {
        Some(match format {
            0 => Self::Fp8,
            1 => Self::Bf8,
            2 => Self::Fp6,
            3 => Self::Bf6,
            4 => Self::Fp4,
            _ => return None,
        })
    }
}

/// A matrix multiply-accumulate `D = A B + C` with fp32 C and D of `m` x `m`, A of `m` x `k`, B of `k` x `m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mfma {
    pub(crate) m: u8,
    pub(crate) k: u8,
    pub(crate) a: Element,
    pub(crate) b: Element,
    /// The f8f6f4 form, whose element types come from `cbsz` and `blgp`.
    pub(crate) mixed: bool,
    /// Scales follow as operands 3 and 4.
    pub(crate) scaled: bool,
}

/// Codes of the matrix instructions: code, rows, depth, elements of A and B.
const MFMA_ROWS: &[(u32, u8, u8, Element, Element)] = &[
    (0x2d, 16, 128, Element::Fp8, Element::Fp8),
    (0x2e, 32, 64, Element::Fp8, Element::Fp8),
    (0x35, 16, 32, Element::Bf16, Element::Bf16),
    (0x37, 32, 16, Element::Bf16, Element::Bf16),
    (0x44, 32, 2, Element::F32, Element::F32),
    (0x45, 16, 4, Element::F32, Element::F32),
    (0x4c, 32, 8, Element::F16, Element::F16),
    (0x4d, 16, 16, Element::F16, Element::F16),
    (0x54, 16, 32, Element::F16, Element::F16),
    (0x55, 32, 16, Element::F16, Element::F16),
    (0x60, 32, 8, Element::Bf16, Element::Bf16),
    (0x61, 16, 16, Element::Bf16, Element::Bf16),
    (0x70, 16, 32, Element::Bf8, Element::Bf8),
    (0x71, 16, 32, Element::Bf8, Element::Fp8),
    (0x72, 16, 32, Element::Fp8, Element::Bf8),
    (0x73, 16, 32, Element::Fp8, Element::Fp8),
    (0x74, 32, 16, Element::Bf8, Element::Bf8),
    (0x75, 32, 16, Element::Bf8, Element::Fp8),
    (0x76, 32, 16, Element::Fp8, Element::Bf8),
    (0x77, 32, 16, Element::Fp8, Element::Fp8),
];

impl Mfma {
    /// The matrix instruction of a code.
    pub(crate) fn of_code(code: u32) -> Option<Self> {
        let &(_, m, k, a, b) = MFMA_ROWS.iter().find(|row| row.0 == code)?;
        Some(Self { m, k, a, b, mixed: matches!(code, 0x2d | 0x2e), scaled: false })
    }

    pub(crate) fn name(self) -> String {
        let element = |element| match element {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::Bf16 => "bf16",
            Element::Fp8 => "fp8",
            _ => "bf8",
        };
        let scale = if self.scaled { "scale_" } else { "" };
        let types = match (self.mixed, self.a.bits()) {
            (true, _) => "f8f6f4".to_string(),
            (false, 8) => format!("{}_{}", element(self.a), element(self.b)),
            _ => element(self.a).to_string(),
        };
        format!("v_mfma_{scale}f32_{0}x{0}x{1}_{types}", self.m, self.k)
    }

    /// Registers of an operand with this element type.
    pub(crate) fn input_registers(self, element: Element) -> u8 {
        (u32::from(self.m) * u32::from(self.k) * element.bits() / 64 / 32) as u8
    }

    /// Registers of C and D.
    pub(crate) fn output_registers(self) -> u8 {
        (u32::from(self.m) * u32::from(self.m) / 64) as u8
    }
}

/// A register or constant, by the number that encodes it.
///
/// 0..=127 are scalar registers (VCC 106, M0 124, EXEC 126), 128..=254 constants and special values, 255 a literal,
/// 256..=511 vector registers, 512..=767 accumulation registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Operand(pub(crate) u16);

impl Operand {
    pub(crate) const NONE: Self = Self(u16::MAX);
    pub(crate) const VCC: Self = Self(106);
    pub(crate) const EXEC: Self = Self(126);
    pub(crate) const LITERAL: Self = Self(255);
    /// Number of the first vector register.
    pub(crate) const VGPR: u16 = 256;
    /// Number of the first accumulation register.
    pub(crate) const AGPR: u16 = 512;

    pub(crate) fn vgpr(index: u32) -> Self {
        Self(Self::VGPR + index as u16)
    }

    /// Vector or, where `acc`, accumulation register.
    pub(crate) fn vector(index: u32, acc: bool) -> Self {
        Self(if acc { Self::AGPR } else { Self::VGPR } + index as u16)
    }

    /// Index into the vector register file (accumulation registers from 256), if it is one.
    pub(crate) fn vector_index(self) -> Option<usize> {
        (self != Self::NONE && self.0 >= Self::VGPR).then(|| usize::from(self.0 - Self::VGPR))
    }

    /// Index into the scalar register file, if it is one.
    pub(crate) fn scalar_index(self) -> Option<usize> {
        (self.0 < 128).then_some(usize::from(self.0))
    }

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// Data-parallel primitive: where a lane's first source comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dpp {
    pub(crate) control: u16,
    pub(crate) row_mask: u8,
    pub(crate) bank_mask: u8,
    /// Lanes without a source read 0 (else they keep their destination).
    pub(crate) bound_control: bool,
}

/// Sub-dword addressing: which part of each operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sdwa {
    pub(crate) dst: u8,
    pub(crate) unused: u8,
    pub(crate) src: [u8; 2],
    pub(crate) sext: [bool; 2],
}

/// Modifiers of the vector encodings. Bit `i` of a mask belongs to source `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mods {
    /// Negated sources; in the packed encoding, of the low half.
    pub(crate) neg: u8,
    /// Absolute values; in the packed encoding, negation of the high half.
    pub(crate) abs: u8,
    /// High half chosen; bit 3 is the destination's. In the packed encoding, for the low result.
    pub(crate) op_sel: u8,
    /// Packed encoding: half chosen for the high result.
    pub(crate) op_sel_hi: u8,
    pub(crate) clamp: bool,
    /// 1: result times 2, 2: times 4, 3: halved.
    pub(crate) omod: u8,
    /// Matrix instructions: broadcasts, or operand formats.
    pub(crate) cbsz: u8,
    pub(crate) abid: u8,
    pub(crate) blgp: u8,
    pub(crate) dpp: Option<Dpp>,
    pub(crate) sdwa: Option<Sdwa>,
    /// Memory: `sc0`, `nt`, `sc1` (bits 0, 1, 2).
    pub(crate) cache: u8,
    /// Memory: the load or store is ordered as an atomic is.
    pub(crate) ordered: bool,
    /// Buffer: the address has an offset register, an index register.
    pub(crate) offen: bool,
    pub(crate) idxen: bool,
    /// Buffer: the data goes to LDS.
    pub(crate) lds: bool,
}

impl Mods {
    pub(crate) const SC0: u8 = 1;
    pub(crate) const NT: u8 = 2;
    pub(crate) const SC1: u8 = 4;
}

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) encoding: Encoding,
    /// Byte offset in the code.
    pub(crate) offset: u32,
    /// Size in bytes.
    pub(crate) bytes: u32,
    pub(crate) dst: Operand,
    pub(crate) dst_width: u8,
    /// Lane mask written besides the destination.
    pub(crate) sdst: Operand,
    /// Sources, in the order of the assembly text. Memory: address, data, second data, scalar base.
    /// Scaled matrix instructions: A, B, C, scale of A, scale of B.
    pub(crate) src: [Operand; 5],
    pub(crate) widths: [u8; 5],
    /// The literal constant, or the bits of the `bitop3` table.
    pub(crate) literal: u32,
    /// Immediate: branch distance, address offset, count.
    pub(crate) imm: i32,
    pub(crate) mods: Mods,
}

impl Inst {
    pub(crate) fn sources(&self) -> impl Iterator<Item = (Operand, u8)> + '_ {
        self.src.iter().copied().zip(self.widths).filter(|(operand, _)| !operand.is_none())
    }
}
