//! The state of a wave of 64 lanes: registers, and what is known of their contents.

use super::inst::{Inst, Operand};
use super::wait::Waits;
use crate::FaultKind;
use crate::fault::Trap;

/// Lanes of a wave.
pub(super) const LANES: usize = 64;
/// The bits of a register in each lane.
pub(super) type Lanes = [u32; LANES];

/// High words of the addresses that flat accesses send to LDS and to scratch.
pub(super) const SHARED_APERTURE: u32 = 0x0001_0000;
pub(super) const PRIVATE_APERTURE: u32 = 0x0002_0000;

/// A vector operand: bits in each lane, and the lanes where they are undefined.
#[derive(Clone, Copy)]
pub(super) struct Vector {
    pub(super) bits: Lanes,
    pub(super) undefined: u64,
}

impl Vector {
    pub(super) fn splat(bits: u32) -> Self {
        Self { bits: [bits; LANES], undefined: 0 }
    }
}

/// A scalar value, and which of its bits are undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scalar {
    pub(super) bits: u64,
    pub(super) undefined: u64,
}

impl Scalar {
    pub(super) fn defined(bits: u64) -> Self {
        Self { bits, undefined: 0 }
    }
}

/// How inline constants are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum As {
    /// 32 bits: floats are single precision.
    B32,
    /// 16 bits: floats are half precision.
    B16,
    /// 64 bits: floats are double precision.
    B64,
}

/// The floating-point mode register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    /// Rounding (bits 0..4) and denormals (bits 4..8), as the MODE register has them.
    pub(super) float: u32,
    /// NaN clamps to 0.
    pub(super) dx10_clamp: bool,
}

impl Mode {
    /// What cannot be emulated of a float mode: anything but rounding to nearest, and binary16 and fp64 denormals
    /// that are kept.
    pub(super) fn unsupported(float: u32) -> Option<String> {
        (float & 0xcf != 0xc0).then(|| format!("float mode {float:#x}: rounding or fp16 denormals are not the default"))
    }

    /// fp32 inputs that are denormal count as zero.
    pub(super) fn flush_inputs(self) -> bool {
        self.float & 0x10 == 0
    }

    /// fp32 results that are denormal become zero.
    pub(super) fn flush_outputs(self) -> bool {
        self.float & 0x20 == 0
    }
}

pub(crate) struct Wave {
    /// Linear index of lane 0's thread in its block.
    pub(super) first_thread: u32,
    /// Index of the wave in its block.
    pub(super) index: u32,
    /// Vector registers, then (from 256) accumulation registers.
    pub(super) vectors: Vec<Lanes>,
    /// Lanes of each vector register that are undefined.
    pub(super) vectors_undefined: Vec<u64>,
    scalars: [u32; 128],
    scalars_undefined: [u32; 128],
    pub(super) scc: bool,
    pub(super) scc_undefined: bool,
    pub(super) mode: Mode,
    /// Index of the next instruction.
    pub(super) pc: u32,
    pub(super) waits: Waits,
    /// Scratch of all lanes, `scratch_bytes` each, and which bytes are defined.
    pub(super) scratch: Vec<u8>,
    pub(super) scratch_defined: Vec<bool>,
    pub(super) scratch_bytes: u32,
}

impl Wave {
    /// A wave whose registers are all undefined, with EXEC set for `lanes` lanes.
    pub(super) fn new(index: u32, lanes: u32, registers: usize, scratch_bytes: u32, mode: Mode) -> Self {
        let mut wave = Self {
            first_thread: index * LANES as u32,
            index,
            vectors: vec![[0; LANES]; registers],
            vectors_undefined: vec![u64::MAX; registers],
            scalars: [0; 128],
            scalars_undefined: [u32::MAX; 128],
            scc: false,
            scc_undefined: true,
            mode,
            pc: 0,
            waits: Waits::new(registers),
            scratch: vec![0; scratch_bytes as usize * LANES],
            scratch_defined: vec![false; scratch_bytes as usize * LANES],
            scratch_bytes,
        };
        wave.set_scalar64(Operand::EXEC, Scalar::defined(u64::MAX >> (64 - lanes)));
        wave
    }

    /// The lanes that execute.
    pub(super) fn exec(&self) -> u64 {
        u64::from(self.scalars[126]) | u64::from(self.scalars[127]) << 32
    }

    /// The first lane that executes; lane 0 if none does.
    pub(super) fn first_lane(&self) -> usize {
        let exec = self.exec();
        if exec == 0 { 0 } else { exec.trailing_zeros() as usize }
    }

    pub(super) fn trap(&self, kind: FaultKind) -> Trap {
        Trap { kind, pc: self.pc, thread: Some(self.first_thread + self.first_lane() as u32), address: None }
    }

    pub(super) fn trap_at(&self, kind: FaultKind, lane: usize, address: u64) -> Trap {
        let thread = Some(self.first_thread + lane as u32);
        Trap { kind, pc: self.pc, thread, address: Some(address) }
    }

    pub(super) fn illegal(&self, what: impl Into<String>) -> Trap {
        self.trap(FaultKind::Illegal { what: what.into() })
    }

    pub(super) fn undefined(&self, sink: &'static str) -> Trap {
        self.trap(FaultKind::Undefined { sink })
    }

    /// A scalar register by its number.
    pub(super) fn register(&self, index: usize) -> Scalar {
        Scalar { bits: u64::from(self.scalars[index]), undefined: u64::from(self.scalars_undefined[index]) }
    }

    pub(super) fn set_register(&mut self, index: usize, value: Scalar) {
        self.scalars[index] = value.bits as u32;
        self.scalars_undefined[index] = value.undefined as u32;
    }

    /// Writes a pair of scalar registers.
    pub(super) fn set_scalar64(&mut self, operand: Operand, value: Scalar) {
        let index = usize::from(operand.0);
        self.set_register(index, value);
        self.set_register(index + 1, Scalar { bits: value.bits >> 32, undefined: value.undefined >> 32 });
    }

    /// Reads a scalar operand of 1 or 2 registers.
    pub(super) fn scalar(&self, inst: &Inst, index: usize) -> Scalar {
        let (operand, width) = (inst.src[index], inst.widths[index]);
        match operand.scalar_index() {
            Some(i) if width == 2 => {
                let (low, high) = (self.register(i), self.register(i + 1));
                Scalar { bits: low.bits | high.bits << 32, undefined: low.undefined | high.undefined << 32 }
            }
            Some(i) => self.register(i),
            None if width == 2 => self.constant(operand, inst.literal, As::B64),
            None => self.constant(operand, inst.literal, As::B32),
        }
    }

    /// Writes a scalar destination of 1 or 2 registers.
    pub(super) fn set_scalar(&mut self, inst: &Inst, value: Scalar) -> Result<(), Trap> {
        let index = usize::from(inst.dst.0);
        let exec = index == 126 || index == 127;
        if exec && value.undefined != 0 {
            return Err(self.undefined("EXEC, which decides which lanes run"));
        }
        if inst.dst_width == 2 {
            self.set_scalar64(inst.dst, value)
        } else {
            self.set_register(index, value)
        }
        Ok(())
    }

    /// A constant or special value.
    pub(super) fn constant(&self, operand: Operand, literal: u32, as_: As) -> Scalar {
        let number = i64::from(operand.0);
        let float = |b16: u16, b32: u32, b64: u64| match as_ {
            As::B16 => u64::from(b16),
            As::B32 => u64::from(b32),
            As::B64 => b64,
        };
        let bits = match operand.0 {
            128..=192 => (number - 128) as u64,
            193..=208 => (192 - number) as u64,
            235 => u64::from(SHARED_APERTURE) << 32,
            236 => u64::from(SHARED_APERTURE) << 32 | 0xffff_ffff,
            237 => u64::from(PRIVATE_APERTURE) << 32,
            238 => u64::from(PRIVATE_APERTURE) << 32 | 0xffff_ffff,
            240 => float(0x3800, 0x3f00_0000, 0x3fe0_0000_0000_0000),
            241 => float(0xb800, 0xbf00_0000, 0xbfe0_0000_0000_0000),
            242 => float(0x3c00, 0x3f80_0000, 0x3ff0_0000_0000_0000),
            243 => float(0xbc00, 0xbf80_0000, 0xbff0_0000_0000_0000),
            244 => float(0x4000, 0x4000_0000, 0x4000_0000_0000_0000),
            245 => float(0xc000, 0xc000_0000, 0xc000_0000_0000_0000),
            246 => float(0x4400, 0x4080_0000, 0x4010_0000_0000_0000),
            247 => float(0xc400, 0xc080_0000, 0xc010_0000_0000_0000),
            248 => float(0x3118, 0x3e22_f983, 0x3fc4_5f30_6dc9_c882),
            251 => u64::from(self.vcc().bits == 0),
            252 => u64::from(self.exec() == 0),
            253 => u64::from(self.scc),
            _ => u64::from(literal),
        };
        let undefined = match operand.0 {
            251 => self.vcc().undefined,
            253 if self.scc_undefined => u64::MAX,
            _ => 0,
        };
        // A 32-bit read of an aperture is its high half.
        let bits = if (235..=238).contains(&operand.0) && as_ != As::B64 { bits >> 32 } else { bits };
        Scalar { bits: if as_ == As::B64 { bits } else { u64::from(bits as u32) }, undefined }
    }

    pub(super) fn vcc(&self) -> Scalar {
        let (low, high) = (self.register(106), self.register(107));
        Scalar { bits: low.bits | high.bits << 32, undefined: low.undefined | high.undefined << 32 }
    }

    /// One register of a vector, scalar or constant operand, the `part`-th of it, in every lane.
    pub(super) fn lanes(&self, operand: Operand, part: usize, literal: u32, as_: As) -> Vector {
        if let Some(index) = operand.vector_index() {
            return Vector { bits: self.vectors[index + part], undefined: self.vectors_undefined[index + part] };
        }
        let scalar = match operand.scalar_index() {
            Some(index) => self.register(index + part),
            None => {
                let value = self.constant(operand, literal, as_);
                // The literal of a double is its high half; other literals are zero-extended.
                match (as_, part) {
                    (As::B64, part) => Scalar { bits: value.bits >> (32 * part), ..value },
                    _ => value,
                }
            }
        };
        Vector { bits: [scalar.bits as u32; LANES], undefined: if scalar.undefined as u32 == 0 { 0 } else { u64::MAX } }
    }

    /// Writes the lanes of `mask` of a vector register.
    pub(super) fn write(&mut self, index: usize, value: &Vector, mask: u64) {
        let register = &mut self.vectors[index];
        if mask == u64::MAX {
            *register = value.bits;
            self.vectors_undefined[index] = value.undefined;
            return;
        }
        for (lane, (to, from)) in register.iter_mut().zip(&value.bits).enumerate() {
            let keep = ((mask >> lane & 1) as u32).wrapping_sub(1);
            *to = *to & keep | *from & !keep;
        }
        let undefined = &mut self.vectors_undefined[index];
        *undefined = *undefined & !mask | value.undefined & mask;
    }

    /// Lanes whose bit is set in `mask`.
    pub(super) fn each(mask: u64) -> impl Iterator<Item = usize> {
        let mut rest = mask;
        std::iter::from_fn(move || {
            let lane = (rest != 0).then(|| rest.trailing_zeros() as usize);
            rest &= rest.wrapping_sub(1);
            lane
        })
    }
}
