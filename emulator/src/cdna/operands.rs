//! How vector instructions read and write lanes: modifiers, DPP, SDWA, half selects, EXEC.

use super::float;
use super::inst::{Dpp, Encoding, Inst, KEEPS_HALF, Op, Operand};
use super::wave::{As, LANES, Lanes, Scalar, Vector, Wave};
use crate::fault::Trap;

/// The NaN of an operation without one among its sources.
pub(super) const QUIET_NAN: u32 = 0x7fc0_0000;

/// A 64-bit operand in each lane.
pub(super) struct Wide {
    pub(super) bits: [u64; LANES],
    /// Lanes whose low half, and whose high half, is undefined.
    pub(super) undefined: [u64; 2],
}

impl Wide {
    /// Lanes where any bit is undefined.
    pub(super) fn tainted(&self) -> u64 {
        self.undefined[0] | self.undefined[1]
    }
}

impl Wave {
    /// Source `n` of a vector instruction, with everything that the encoding does to it on the way.
    pub(super) fn source(&self, inst: &Inst, n: usize, as_: As) -> Vector {
        let mut value = self.lanes(inst.src[n], 0, inst.literal, as_);
        let mods = &inst.mods;
        if let (0, Some(dpp)) = (n, mods.dpp) {
            value = self.moved(&value, dpp);
        }
        if let (0 | 1, Some(sdwa)) = (n, mods.sdwa) {
            let (shift, width) = part(sdwa.src[n]);
            let up = 32 - width;
            let signed = sdwa.sext[n];
            for bits in &mut value.bits {
                let high = *bits >> shift << up;
                *bits = if signed { (high as i32 >> up) as u32 } else { high >> up };
            }
        }
        if as_ == As::B16 && mods.op_sel >> n & 1 != 0 && inst.encoding == Encoding::Vop3 {
            value.bits.iter_mut().for_each(|bits| *bits >>= 16);
        }
        if inst.encoding != Encoding::Vop3P {
            let sign = if as_ == As::B16 { 0x8000 } else { 0x8000_0000 };
            self.apply_sign(inst, n, &mut value.bits, sign);
        }
        value
    }

    fn apply_sign(&self, inst: &Inst, n: usize, lanes: &mut Lanes, sign: u32) {
        if inst.mods.abs >> n & 1 != 0 {
            lanes.iter_mut().for_each(|bits| *bits &= !sign);
        }
        if inst.mods.neg >> n & 1 != 0 {
            lanes.iter_mut().for_each(|bits| *bits ^= sign);
        }
    }

    /// A source of two registers.
    pub(super) fn wide_source(&self, inst: &Inst, n: usize, double: bool) -> Wide {
        let operand = inst.src[n];
        let (low, mut high);
        if operand.vector_index().is_some() || operand.scalar_index().is_some() {
            low = self.lanes(operand, 0, inst.literal, As::B64);
            high = self.lanes(operand, 1, inst.literal, As::B64);
        } else {
            let value = self.constant(operand, inst.literal, As::B64);
            // A literal is the high half of a double, the low half of an integer.
            let value = if operand == Operand::LITERAL && double { value.bits << 32 } else { value.bits };
            (low, high) = (Vector::splat(value as u32), Vector::splat((value >> 32) as u32));
        }
        self.apply_sign(inst, n, &mut high.bits, 0x8000_0000);
        let bits = std::array::from_fn(|l| u64::from(low.bits[l]) | u64::from(high.bits[l]) << 32);
        Wide { bits, undefined: [low.undefined, high.undefined] }
    }

    /// Source `n` as a mask of lanes.
    pub(super) fn mask_source(&self, inst: &Inst, n: usize) -> Scalar {
        let mask = self.scalar(inst, n);
        // A constant is sign-extended to all lanes, which `constant` has done.
        Scalar { undefined: mask.undefined & self.exec(), ..mask }
    }

    /// The value that each lane gets from another through DPP.
    fn moved(&self, value: &Vector, dpp: Dpp) -> Vector {
        let mut moved = Vector::splat(0);
        let exec = self.exec();
        for lane in 0..LANES {
            if let Some(from) = dpp_source(dpp.control, lane)
                && exec >> from & 1 != 0
            {
                moved.bits[lane] = value.bits[from];
                moved.undefined |= (value.undefined >> from & 1) << lane;
            }
        }
        moved
    }

    /// Lanes that a vector instruction writes.
    fn write_mask(&self, inst: &Inst) -> u64 {
        let exec = self.exec();
        let Some(dpp) = inst.mods.dpp else { return exec };
        (0..LANES)
            .filter(|&lane| {
                let enabled = dpp.row_mask >> (lane / 16) & 1 != 0 && dpp.bank_mask >> (lane % 16 / 4) & 1 != 0;
                let from = dpp_source(dpp.control, lane).filter(|from| exec >> from & 1 != 0);
                enabled && (from.is_some() || dpp.bound_control)
            })
            .fold(0, |mask, lane| mask | 1 << lane)
            & exec
    }

    /// Writes a 32-bit result.
    pub(super) fn put(&mut self, inst: &Inst, mut value: Vector) {
        let Some(index) = inst.dst.vector_index() else { return };
        if let Some(sdwa) = inst.mods.sdwa
            && sdwa.dst != 6
        {
            let (shift, width) = part(sdwa.dst);
            let mask = (u32::MAX >> (32 - width)) << shift;
            let old = self.vectors[index];
            for (bits, old) in value.bits.iter_mut().zip(old) {
                let placed = (*bits << shift) & mask;
                *bits = match sdwa.unused {
                    0 => placed,
                    1 => ((*bits << (32 - width)) as i32 >> (32 - width) << shift) as u32,
                    _ => placed | old & !mask,
                };
            }
            if sdwa.unused == 2 {
                value.undefined |= self.vectors_undefined[index];
            }
        }
        let mask = self.write_mask(inst);
        self.write(index, &value, mask);
    }

    /// Writes a 16-bit result: into the half that `op_sel` chooses, the other half kept; or else, by most
    /// instructions, into the low half with the high one cleared.
    pub(super) fn put16(&mut self, inst: &Inst, value: Vector) {
        let high = inst.encoding == Encoding::Vop3 && inst.mods.op_sel & 8 != 0;
        let keeps = matches!(inst.op, Op::Valu(op) if op.row().has(KEEPS_HALF));
        if high || keeps { self.put_half(inst, value, high) } else { self.put(inst, value) }
    }

    /// Writes 16 bits into the low or high half of the destination and keeps the other.
    pub(super) fn put_half(&mut self, inst: &Inst, mut value: Vector, high: bool) {
        let Some(index) = inst.dst.vector_index() else { return };
        let old = self.vectors[index];
        for (bits, old) in value.bits.iter_mut().zip(old) {
            *bits = if high { *bits << 16 | old & 0xffff } else { *bits & 0xffff | old & 0xffff_0000 };
        }
        let mask = self.write_mask(inst);
        // The half that is kept may never be read: an undefined one does not taint the other.
        self.write(index, &value, mask);
    }

    /// Writes a 64-bit result.
    pub(super) fn put_wide(&mut self, inst: &Inst, value: &Wide) {
        let Some(index) = inst.dst.vector_index() else { return };
        let mask = self.write_mask(inst);
        for half in 0..2 {
            let bits = value.bits.map(|bits| (bits >> (32 * half)) as u32);
            self.write(index + half, &Vector { bits, undefined: value.undefined[half] }, mask);
        }
    }

    /// Writes a mask of lanes to scalar registers; lanes that do not execute get 0.
    pub(super) fn put_mask(&mut self, to: Operand, bits: u64, undefined: u64) -> Result<(), Trap> {
        let exec = self.exec();
        let value = Scalar { bits: bits & exec, undefined: undefined & exec };
        if to == Operand::EXEC && value.undefined != 0 {
            return Err(self.undefined("EXEC, which decides which lanes run"));
        }
        self.set_scalar64(to, value);
        Ok(())
    }

    /// An operation on 32-bit integers.
    pub(super) fn int<const N: usize>(&mut self, inst: &Inst, f: impl Fn([u32; N]) -> u32) {
        let sources: [Vector; N] = std::array::from_fn(|n| self.source(inst, n, As::B32));
        let bits = std::array::from_fn(|l| f(std::array::from_fn(|n| sources[n].bits[l])));
        self.put(inst, Vector { bits, undefined: union(&sources) });
    }

    /// An operation on 16-bit integers.
    pub(super) fn int16<const N: usize>(&mut self, inst: &Inst, f: impl Fn([u16; N]) -> u16) {
        let sources: [Vector; N] = std::array::from_fn(|n| self.source(inst, n, As::B16));
        let bits = std::array::from_fn(|l| u32::from(f(std::array::from_fn(|n| sources[n].bits[l] as u16))));
        self.put16(inst, Vector { bits, undefined: union(&sources) });
    }

    /// fp32 sources: flushed if the mode asks for it.
    pub(super) fn float_source(&self, inst: &Inst, n: usize) -> Vector {
        let mut value = self.source(inst, n, As::B32);
        if self.mode.flush_inputs() {
            value.bits.iter_mut().for_each(|bits| *bits = float::flush(f32::from_bits(*bits)).to_bits());
        }
        value
    }

    /// An operation on fp32.
    pub(super) fn float<const N: usize>(&mut self, inst: &Inst, f: impl Fn([f32; N]) -> f32) {
        let sources: [Vector; N] = std::array::from_fn(|n| self.float_source(inst, n));
        let mut bits =
            std::array::from_fn(|l| f(std::array::from_fn(|n| f32::from_bits(sources[n].bits[l]))).to_bits());
        self.finish_float(inst, &mut bits);
        self.put(inst, Vector { bits, undefined: union(&sources) });
    }

    /// Output modifiers of fp32 results. NaNs become the one that the hardware makes, whatever the host's.
    pub(super) fn finish_float(&self, inst: &Inst, bits: &mut Lanes) {
        for bits in bits.iter_mut() {
            *bits = if f32::from_bits(*bits).is_nan() { QUIET_NAN } else { *bits };
        }
        let (clamp, flush) = (inst.mods.clamp, self.mode.flush_outputs());
        // The hardware ignores the factor where it keeps denormals.
        let factor = if flush { output_factor(inst) } else { 1.0 };
        if factor == 1.0 && !clamp && !flush {
            return;
        }
        for bits in bits {
            let mut x = f32::from_bits(*bits) * factor;
            x = if flush { float::flush(x) } else { x };
            *bits = if clamp { self.clamp(x) } else { x }.to_bits();
        }
    }

    /// To [0, 1].
    pub(super) fn clamp(&self, x: f32) -> f32 {
        if x.is_nan() { if self.mode.dx10_clamp { 0.0 } else { x } } else { x.clamp(0.0, 1.0) }
    }

    /// An operation on binary16, computed in fp32 and rounded. Its denormals are kept, so that output factors do
    /// not count.
    pub(super) fn half<const N: usize>(&mut self, inst: &Inst, f: impl Fn([f32; N]) -> f32) {
        let sources: [Vector; N] = std::array::from_fn(|n| self.source(inst, n, As::B16));
        let bits = std::array::from_fn(|l| {
            let x = f(std::array::from_fn(|n| float::f16_to_f32(sources[n].bits[l] as u16)));
            u32::from(float::f16_bits(if inst.mods.clamp { self.clamp(x) } else { x }))
        });
        self.put16(inst, Vector { bits, undefined: union(&sources) });
    }

    /// An operation on doubles, whose denormals are kept.
    pub(super) fn double<const N: usize>(&mut self, inst: &Inst, f: impl Fn([f64; N]) -> f64) {
        let sources: [Wide; N] = std::array::from_fn(|n| self.wide_source(inst, n, true));
        let bits = std::array::from_fn(|l| {
            let x = f(std::array::from_fn(|n| f64::from_bits(sources[n].bits[l])));
            if inst.mods.clamp { x.clamp(0.0, 1.0) } else { x }.to_bits()
        });
        let undefined = sources.iter().fold(0, |all, source| all | source.tainted());
        self.put_wide(inst, &Wide { bits, undefined: [undefined; 2] });
    }
}

fn output_factor(inst: &Inst) -> f32 {
    [1.0, 2.0, 4.0, 0.5][usize::from(inst.mods.omod)]
}

/// Lanes where any of the sources is undefined.
pub(super) fn union(sources: &[Vector]) -> u64 {
    sources.iter().fold(0, |all, source| all | source.undefined)
}

/// Shift and width of an SDWA select.
fn part(select: u8) -> (u32, u32) {
    match select {
        0..=3 => (u32::from(select) * 8, 8),
        4 | 5 => (u32::from(select - 4) * 16, 16),
        _ => (0, 32),
    }
}

/// The lane that `lane` reads through DPP, if it is inside the row (or the wave).
fn dpp_source(control: u16, lane: usize) -> Option<usize> {
    let (row, place) = (lane & !15, lane & 15);
    let amount = usize::from(control & 15);
    let in_row = |place: Option<usize>| place.filter(|&p| p < 16).map(|p| row + p);
    match control {
        0..=0xff => Some(lane & !3 | usize::from(control >> (2 * (lane & 3)) & 3)),
        0x101..=0x10f => in_row(Some(place + amount)),
        0x111..=0x11f => in_row(place.checked_sub(amount)),
        0x121..=0x12f => in_row(Some((place + 16 - amount) & 15)),
        0x130 => Some(lane + 1).filter(|&l| l < LANES),
        0x134 => Some((lane + 1) % LANES),
        0x138 => lane.checked_sub(1),
        0x13c => Some((lane + LANES - 1) % LANES),
        0x140 => Some(row + 15 - place),
        0x141 => Some(lane & !7 | (7 - (lane & 7))),
        // The last lane of the row before; of the half before.
        0x142 => row.checked_sub(1),
        0x143 => (lane >= 32).then_some(31),
        0x150..=0x15f => Some(row + amount),
        _ => None,
    }
}
