//! Memory instructions: scalar loads, vector memory (flat, global, scratch, buffer) and LDS.

/// Scalar memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalarMemory {
    /// `s_load`: so many registers from a 64-bit base.
    Load(u8),
    /// `s_buffer_load`: so many registers through a buffer descriptor.
    BufferLoad(u8),
    CacheInvalidate,
    CacheWriteBack,
    Time,
    RealTime,
}

impl ScalarMemory {
    pub(crate) const ROWS: &[(u32, Self, &'static str)] = &[
        (0x00, Self::Load(1), "s_load_dword"),
        (0x01, Self::Load(2), "s_load_dwordx2"),
        (0x02, Self::Load(4), "s_load_dwordx4"),
        (0x03, Self::Load(8), "s_load_dwordx8"),
        (0x04, Self::Load(16), "s_load_dwordx16"),
        (0x08, Self::BufferLoad(1), "s_buffer_load_dword"),
        (0x09, Self::BufferLoad(2), "s_buffer_load_dwordx2"),
        (0x0a, Self::BufferLoad(4), "s_buffer_load_dwordx4"),
        (0x0b, Self::BufferLoad(8), "s_buffer_load_dwordx8"),
        (0x0c, Self::BufferLoad(16), "s_buffer_load_dwordx16"),
        (0x20, Self::CacheInvalidate, "s_dcache_inv"),
        (0x21, Self::CacheWriteBack, "s_dcache_wb"),
        (0x24, Self::Time, "s_memtime"),
        (0x25, Self::RealTime, "s_memrealtime"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ROWS.iter().find(|row| row.1 == self).map_or("", |row| row.2)
    }
}

/// What a lane moves between memory and registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Bytes in memory.
    pub(crate) bytes: u8,
    /// Sign-extended when narrower than its register.
    pub(crate) signed: bool,
    /// Which part of the register.
    pub(crate) part: Part,
}

/// Part of a register that a narrow access moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole register.
    Full,
    /// The low half; the high half is kept.
    Low,
    /// The high half; the low half is kept.
    High,
}

impl Unit {
    const fn of(bytes: u8, signed: bool, part: Part) -> Self {
        Self { bytes, signed, part }
    }

    /// Unsigned or at least a register wide.
    pub(crate) const fn full(bytes: u8) -> Self {
        Self::of(bytes, false, Part::Full)
    }

    /// Registers of a lane.
    pub(crate) const fn registers(self) -> u8 {
        self.bytes.div_ceil(4)
    }
}

const U8: Unit = Unit::full(1);
const I8: Unit = Unit::of(1, true, Part::Full);
const U16: Unit = Unit::full(2);
const I16: Unit = Unit::of(2, true, Part::Full);
const U8_LOW: Unit = Unit::of(1, false, Part::Low);
const U8_HIGH: Unit = Unit::of(1, false, Part::High);
const I8_LOW: Unit = Unit::of(1, true, Part::Low);
const I8_HIGH: Unit = Unit::of(1, true, Part::High);
const U16_LOW: Unit = Unit::of(2, false, Part::Low);
const U16_HIGH: Unit = Unit::of(2, false, Part::High);
const B32: Unit = Unit::full(4);
const B64: Unit = Unit::full(8);
const B96: Unit = Unit::full(12);
const B128: Unit = Unit::full(16);

/// Read-modify-write operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Swap,
    CompareSwap,
    Add,
    Sub,
    SMin,
    UMin,
    SMax,
    UMax,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    AddF32,
    MinF32,
    MaxF32,
    PkAddF16,
    PkAddBf16,
}

/// Which addresses a vector memory instruction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Flat,
    Scratch,
    Global,
    Buffer,
}

/// What a vector memory instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Load(Unit),
    Store(Unit),
    /// From memory to LDS at M0 plus the lane's place.
    LoadLds(Unit),
    /// Operand bytes: 4 or 8.
    Atomic(AtomicOp, u8),
    /// Write back or invalidate caches (buffer encoding).
    CacheWriteBack,
    CacheInvalidate,
}

/// A vector memory instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryOp {
    pub(crate) space: Space,
    pub(crate) action: Action,
    /// Name after the space's.
    pub(crate) name: &'static str,
}

/// Codes that the flat, global, scratch and buffer encodings share.
const MEMORY_ROWS: &[(u32, &str, Action)] = &[
    (0x10, "load_ubyte", Action::Load(U8)),
    (0x11, "load_sbyte", Action::Load(I8)),
    (0x12, "load_ushort", Action::Load(U16)),
    (0x13, "load_sshort", Action::Load(I16)),
    (0x14, "load_dword", Action::Load(B32)),
    (0x15, "load_dwordx2", Action::Load(B64)),
    (0x16, "load_dwordx3", Action::Load(B96)),
    (0x17, "load_dwordx4", Action::Load(B128)),
    (0x18, "store_byte", Action::Store(U8)),
    (0x19, "store_byte_d16_hi", Action::Store(U8_HIGH)),
    (0x1a, "store_short", Action::Store(U16)),
    (0x1b, "store_short_d16_hi", Action::Store(U16_HIGH)),
    (0x1c, "store_dword", Action::Store(B32)),
    (0x1d, "store_dwordx2", Action::Store(B64)),
    (0x1e, "store_dwordx3", Action::Store(B96)),
    (0x1f, "store_dwordx4", Action::Store(B128)),
    (0x20, "load_ubyte_d16", Action::Load(U8_LOW)),
    (0x21, "load_ubyte_d16_hi", Action::Load(U8_HIGH)),
    (0x22, "load_sbyte_d16", Action::Load(I8_LOW)),
    (0x23, "load_sbyte_d16_hi", Action::Load(I8_HIGH)),
    (0x24, "load_short_d16", Action::Load(U16_LOW)),
    (0x25, "load_short_d16_hi", Action::Load(U16_HIGH)),
    (0x40, "atomic_swap", Action::Atomic(AtomicOp::Swap, 4)),
    (0x41, "atomic_cmpswap", Action::Atomic(AtomicOp::CompareSwap, 4)),
    (0x42, "atomic_add", Action::Atomic(AtomicOp::Add, 4)),
    (0x43, "atomic_sub", Action::Atomic(AtomicOp::Sub, 4)),
    (0x44, "atomic_smin", Action::Atomic(AtomicOp::SMin, 4)),
    (0x45, "atomic_umin", Action::Atomic(AtomicOp::UMin, 4)),
    (0x46, "atomic_smax", Action::Atomic(AtomicOp::SMax, 4)),
    (0x47, "atomic_umax", Action::Atomic(AtomicOp::UMax, 4)),
    (0x48, "atomic_and", Action::Atomic(AtomicOp::And, 4)),
    (0x49, "atomic_or", Action::Atomic(AtomicOp::Or, 4)),
    (0x4a, "atomic_xor", Action::Atomic(AtomicOp::Xor, 4)),
    (0x4b, "atomic_inc", Action::Atomic(AtomicOp::Inc, 4)),
    (0x4c, "atomic_dec", Action::Atomic(AtomicOp::Dec, 4)),
    (0x4d, "atomic_add_f32", Action::Atomic(AtomicOp::AddF32, 4)),
    (0x4e, "atomic_pk_add_f16", Action::Atomic(AtomicOp::PkAddF16, 4)),
    (0x52, "atomic_pk_add_bf16", Action::Atomic(AtomicOp::PkAddBf16, 4)),
    (0x60, "atomic_swap_x2", Action::Atomic(AtomicOp::Swap, 8)),
    (0x61, "atomic_cmpswap_x2", Action::Atomic(AtomicOp::CompareSwap, 8)),
    (0x62, "atomic_add_x2", Action::Atomic(AtomicOp::Add, 8)),
    (0x63, "atomic_sub_x2", Action::Atomic(AtomicOp::Sub, 8)),
    (0x64, "atomic_smin_x2", Action::Atomic(AtomicOp::SMin, 8)),
    (0x65, "atomic_umin_x2", Action::Atomic(AtomicOp::UMin, 8)),
    (0x66, "atomic_smax_x2", Action::Atomic(AtomicOp::SMax, 8)),
    (0x67, "atomic_umax_x2", Action::Atomic(AtomicOp::UMax, 8)),
    (0x68, "atomic_and_x2", Action::Atomic(AtomicOp::And, 8)),
    (0x69, "atomic_or_x2", Action::Atomic(AtomicOp::Or, 8)),
    (0x6a, "atomic_xor_x2", Action::Atomic(AtomicOp::Xor, 8)),
    (0x6b, "atomic_inc_x2", Action::Atomic(AtomicOp::Inc, 8)),
    (0x6c, "atomic_dec_x2", Action::Atomic(AtomicOp::Dec, 8)),
];

/// Codes of the global encoding alone.
const GLOBAL_ROWS: &[(u32, &str, Action)] = &[
    (0x2a, "load_lds_dword", Action::LoadLds(B32)),
    (0x7d, "load_lds_dwordx4", Action::LoadLds(B128)),
    (0x7e, "load_lds_dwordx3", Action::LoadLds(B96)),
];

/// Codes of the buffer encoding alone.
const BUFFER_ROWS: &[(u32, &str, Action)] =
    &[(0x28, "wbl2", Action::CacheWriteBack), (0x29, "inv", Action::CacheInvalidate)];

impl MemoryOp {
    pub(crate) fn of_code(space: Space, code: u32) -> Option<Self> {
        let own = match space {
            Space::Global => GLOBAL_ROWS,
            Space::Buffer => BUFFER_ROWS,
            Space::Flat | Space::Scratch => &[],
        };
        let &(_, name, action) = MEMORY_ROWS.iter().chain(own).find(|row| row.0 == code)?;
        let atomic = matches!(action, Action::Atomic(..));
        (!(atomic && space == Space::Scratch)).then_some(Self { space, action, name })
    }

    pub(crate) fn name(self) -> String {
        let space = match self.space {
            Space::Flat => "flat",
            Space::Scratch => "scratch",
            Space::Global => "global",
            Space::Buffer => "buffer",
        };
        format!("{space}_{}", self.name)
    }

    /// Registers of the data that comes from (or, for loads, goes to) vector registers.
    pub(crate) fn data_registers(self) -> u8 {
        match self.action {
            Action::Load(unit) | Action::Store(unit) => unit.registers(),
            Action::Atomic(AtomicOp::CompareSwap, bytes) => bytes / 2,
            Action::Atomic(_, bytes) => bytes / 4,
            Action::LoadLds(_) | Action::CacheWriteBack | Action::CacheInvalidate => 0,
        }
    }
}

/// What an LDS instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LdsAction {
    Read(Unit),
    /// Two places, their offsets counted in elements times this.
    Read2(Unit, u32),
    Write(Unit),
    Write2(Unit, u32),
    /// Operand bytes, and whether the old value is returned.
    Atomic(AtomicOp, u8, bool),
    /// Transposing read of elements of so many bytes.
    ReadTranspose(u8),
    Swizzle,
    Permute,
    BackwardPermute,
}

/// An LDS instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LdsOp {
    pub(crate) action: LdsAction,
    pub(crate) name: &'static str,
}

const LDS_ROWS: &[(u32, &str, LdsAction)] = &[
    (0x0d, "ds_write_b32", LdsAction::Write(B32)),
    (0x0e, "ds_write2_b32", LdsAction::Write2(B32, 1)),
    (0x0f, "ds_write2st64_b32", LdsAction::Write2(B32, 64)),
    (0x1e, "ds_write_b8", LdsAction::Write(U8)),
    (0x1f, "ds_write_b16", LdsAction::Write(U16)),
    (0x36, "ds_read_b32", LdsAction::Read(B32)),
    (0x37, "ds_read2_b32", LdsAction::Read2(B32, 1)),
    (0x38, "ds_read2st64_b32", LdsAction::Read2(B32, 64)),
    (0x39, "ds_read_i8", LdsAction::Read(I8)),
    (0x3a, "ds_read_u8", LdsAction::Read(U8)),
    (0x3b, "ds_read_i16", LdsAction::Read(I16)),
    (0x3c, "ds_read_u16", LdsAction::Read(U16)),
    (0x3d, "ds_swizzle_b32", LdsAction::Swizzle),
    (0x3e, "ds_permute_b32", LdsAction::Permute),
    (0x3f, "ds_bpermute_b32", LdsAction::BackwardPermute),
    (0x4d, "ds_write_b64", LdsAction::Write(B64)),
    (0x4e, "ds_write2_b64", LdsAction::Write2(B64, 1)),
    (0x4f, "ds_write2st64_b64", LdsAction::Write2(B64, 64)),
    (0x54, "ds_write_b8_d16_hi", LdsAction::Write(U8_HIGH)),
    (0x55, "ds_write_b16_d16_hi", LdsAction::Write(U16_HIGH)),
    (0x56, "ds_read_u8_d16", LdsAction::Read(U8_LOW)),
    (0x57, "ds_read_u8_d16_hi", LdsAction::Read(U8_HIGH)),
    (0x58, "ds_read_i8_d16", LdsAction::Read(I8_LOW)),
    (0x59, "ds_read_i8_d16_hi", LdsAction::Read(I8_HIGH)),
    (0x5a, "ds_read_u16_d16", LdsAction::Read(U16_LOW)),
    (0x5b, "ds_read_u16_d16_hi", LdsAction::Read(U16_HIGH)),
    (0x76, "ds_read_b64", LdsAction::Read(B64)),
    (0x77, "ds_read2_b64", LdsAction::Read2(B64, 1)),
    (0x78, "ds_read2st64_b64", LdsAction::Read2(B64, 64)),
    (0xde, "ds_write_b96", LdsAction::Write(B96)),
    (0xdf, "ds_write_b128", LdsAction::Write(B128)),
    (0xe2, "ds_read_b64_tr_b8", LdsAction::ReadTranspose(1)),
    (0xe3, "ds_read_b64_tr_b16", LdsAction::ReadTranspose(2)),
    (0xfe, "ds_read_b96", LdsAction::Read(B96)),
    (0xff, "ds_read_b128", LdsAction::Read(B128)),
    (0x00, "ds_add_u32", LdsAction::Atomic(AtomicOp::Add, 4, false)),
    (0x01, "ds_sub_u32", LdsAction::Atomic(AtomicOp::Sub, 4, false)),
    (0x05, "ds_min_i32", LdsAction::Atomic(AtomicOp::SMin, 4, false)),
    (0x06, "ds_max_i32", LdsAction::Atomic(AtomicOp::SMax, 4, false)),
    (0x07, "ds_min_u32", LdsAction::Atomic(AtomicOp::UMin, 4, false)),
    (0x08, "ds_max_u32", LdsAction::Atomic(AtomicOp::UMax, 4, false)),
    (0x09, "ds_and_b32", LdsAction::Atomic(AtomicOp::And, 4, false)),
    (0x0a, "ds_or_b32", LdsAction::Atomic(AtomicOp::Or, 4, false)),
    (0x0b, "ds_xor_b32", LdsAction::Atomic(AtomicOp::Xor, 4, false)),
    (0x12, "ds_min_f32", LdsAction::Atomic(AtomicOp::MinF32, 4, false)),
    (0x13, "ds_max_f32", LdsAction::Atomic(AtomicOp::MaxF32, 4, false)),
    (0x15, "ds_add_f32", LdsAction::Atomic(AtomicOp::AddF32, 4, false)),
    (0x20, "ds_add_rtn_u32", LdsAction::Atomic(AtomicOp::Add, 4, true)),
    (0x21, "ds_sub_rtn_u32", LdsAction::Atomic(AtomicOp::Sub, 4, true)),
    (0x25, "ds_min_rtn_i32", LdsAction::Atomic(AtomicOp::SMin, 4, true)),
    (0x26, "ds_max_rtn_i32", LdsAction::Atomic(AtomicOp::SMax, 4, true)),
    (0x27, "ds_min_rtn_u32", LdsAction::Atomic(AtomicOp::UMin, 4, true)),
    (0x28, "ds_max_rtn_u32", LdsAction::Atomic(AtomicOp::UMax, 4, true)),
    (0x29, "ds_and_rtn_b32", LdsAction::Atomic(AtomicOp::And, 4, true)),
    (0x2a, "ds_or_rtn_b32", LdsAction::Atomic(AtomicOp::Or, 4, true)),
    (0x2b, "ds_xor_rtn_b32", LdsAction::Atomic(AtomicOp::Xor, 4, true)),
    (0x2d, "ds_wrxchg_rtn_b32", LdsAction::Atomic(AtomicOp::Swap, 4, true)),
    (0x35, "ds_add_rtn_f32", LdsAction::Atomic(AtomicOp::AddF32, 4, true)),
    (0x40, "ds_add_u64", LdsAction::Atomic(AtomicOp::Add, 8, false)),
    (0x60, "ds_add_rtn_u64", LdsAction::Atomic(AtomicOp::Add, 8, true)),
];

impl LdsOp {
    pub(crate) fn of_code(code: u32) -> Option<Self> {
        let &(_, name, action) = LDS_ROWS.iter().find(|row| row.0 == code)?;
        Some(Self { action, name })
    }

    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// Registers of the destination and of each data operand; 0: there is none.
    pub(crate) fn registers(self) -> [u8; 3] {
        match self.action {
            LdsAction::Read(unit) => [unit.registers(), 0, 0],
            LdsAction::Read2(unit, _) => [unit.registers() * 2, 0, 0],
            LdsAction::Write(unit) => [0, unit.registers(), 0],
            LdsAction::Write2(unit, _) => [0, unit.registers(), unit.registers()],
            LdsAction::Atomic(_, bytes, returns) => [if returns { bytes / 4 } else { 0 }, bytes / 4, 0],
            LdsAction::ReadTranspose(_) => [2, 0, 0],
            LdsAction::Swizzle => [1, 0, 0],
            LdsAction::Permute | LdsAction::BackwardPermute => [1, 1, 0],
        }
    }
}
