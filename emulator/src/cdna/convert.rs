//! Executes conversions between number formats.

use super::float::{self, E4M3, E5M2, Small};
use super::inst::Inst;
use super::operands::{Wide, union};
use super::valu_ops::Valu;
use super::wave::{As, Vector, Wave};
use crate::fault::Trap;

impl Wave {
    /// Executes a conversion, or what is left for the packed encoding.
    pub(super) fn convert(&mut self, inst: &Inst, op: Valu) -> Result<(), Trap> {
        use Valu::*;
        match op {
            v_cvt_f32_i32 => self.convert_integer(inst, |a| a as i32 as f32),
            v_cvt_f32_u32 => self.convert_integer(inst, |a| a as f32),
            v_cvt_f32_ubyte0 => self.convert_integer(inst, |a| (a & 0xff) as f32),
            v_cvt_f32_ubyte1 => self.convert_integer(inst, |a| (a >> 8 & 0xff) as f32),
            v_cvt_f32_ubyte2 => self.convert_integer(inst, |a| (a >> 16 & 0xff) as f32),
            v_cvt_f32_ubyte3 => self.convert_integer(inst, |a| (a >> 24) as f32),
            v_cvt_f32_bf16 => self.convert_integer(inst, |a| f32::from_bits(a << 16)),
            v_cvt_f32_fp8 => self.convert_integer(inst, |a| E4M3.decode(a & 0xff)),
            v_cvt_f32_bf8 => self.convert_integer(inst, |a| E5M2.decode(a & 0xff)),
            v_cvt_u32_f32 => self.int(inst, |[a]| f32::from_bits(a) as u32),
            v_cvt_i32_f32 => self.int(inst, |[a]| f32::from_bits(a) as i32 as u32),
            v_cvt_f32_f16 => {
                let a = self.source(inst, 0, As::B16);
                let mut bits = a.bits.map(|a| float::f16_to_f32(a as u16).to_bits());
                self.finish_float(inst, &mut bits);
                self.put(inst, Vector { bits, ..a });
            }
            v_cvt_f16_f32 => self.convert_floats(inst, |[a]| float::f16_bits(a).into()),
            v_cvt_f16_u16 => self.int16(inst, |[a]| float::f16_bits(a.into())),
            v_cvt_f16_i16 => self.int16(inst, |[a]| float::f16_bits((a as i16).into())),
            v_cvt_u16_f16 => self.int16(inst, |[a]| float::f16_to_f32(a) as u16),
            v_cvt_i16_f16 => self.int16(inst, |[a]| float::f16_to_f32(a) as i16 as u16),
            v_cvt_f64_f32 => {
                let a = self.float_source(inst, 0);
                self.put_wide(
                    inst,
                    &Wide { bits: a.bits.map(|a| f64::from(f32::from_bits(a)).to_bits()), undefined: [a.undefined; 2] },
                );
            }
            v_cvt_f64_i32 => {
                let a = self.source(inst, 0, As::B32);
                self.put_wide(
                    inst,
                    &Wide { bits: a.bits.map(|a| f64::from(a as i32).to_bits()), undefined: [a.undefined; 2] },
                );
            }
            v_cvt_f64_u32 => {
                let a = self.source(inst, 0, As::B32);
                self.put_wide(
                    inst,
                    &Wide { bits: a.bits.map(|a| f64::from(a).to_bits()), undefined: [a.undefined; 2] },
                );
            }
            v_cvt_f32_f64 => self.convert_double(inst, |a| (a as f32).to_bits()),
            v_cvt_i32_f64 => self.convert_double(inst, |a| a as i32 as u32),
            v_cvt_u32_f64 => self.convert_double(inst, |a| a as u32),
            v_cvt_pkrtz_f16_f32 => {
                self.convert_floats(inst, |[a, b]| pack(float::f16_toward_zero(a), float::f16_toward_zero(b)))
            }
            v_cvt_pk_f16_f32 => self.convert_floats(inst, |[a, b]| pack(float::f16_bits(a), float::f16_bits(b))),
            v_cvt_pk_bf16_f32 => self.convert_floats(inst, |[a, b]| pack(float::bf16_bits(a), float::bf16_bits(b))),
            v_cvt_pk_u16_u32 => self.int(inst, |[a, b]| pack(a.min(0xffff) as u16, b.min(0xffff) as u16)),
            v_cvt_pk_i16_i32 => self.int(inst, |[a, b]| {
                let saturate = |x: u32| (x as i32).clamp(-32768, 32767) as u16;
                pack(saturate(a), saturate(b))
            }),
            v_pack_b32_f16 => {
                let (a, b) = (self.source(inst, 0, As::B16), self.source(inst, 1, As::B16));
                let bits = std::array::from_fn(|l| pack(a.bits[l] as u16, b.bits[l] as u16));
                self.put(inst, Vector { bits, undefined: a.undefined | b.undefined });
            }
            v_cvt_pk_fp8_f32 => self.pack_small(inst, E4M3, None),
            v_cvt_pk_bf8_f32 => self.pack_small(inst, E5M2, None),
            v_cvt_scalef32_pk_fp8_f32 => self.pack_small(inst, E4M3, Some(2)),
            v_cvt_scalef32_pk_bf8_f32 => self.pack_small(inst, E5M2, Some(2)),
            v_cvt_pk_f32_fp8 => self.unpack_small(inst, E4M3, None),
            v_cvt_pk_f32_bf8 => self.unpack_small(inst, E5M2, None),
            v_cvt_scalef32_pk_f32_fp8 => self.unpack_small(inst, E4M3, Some(1)),
            v_cvt_scalef32_pk_f32_bf8 => self.unpack_small(inst, E5M2, Some(1)),
            v_cvt_scalef32_pk_fp8_f16 => self.pack_halves(inst, E4M3, float::f16_to_f32),
            v_cvt_scalef32_pk_bf8_f16 => self.pack_halves(inst, E5M2, float::f16_to_f32),
            v_cvt_scalef32_pk_fp8_bf16 => self.pack_halves(inst, E4M3, float::bf16_to_f32),
            v_cvt_scalef32_pk_bf8_bf16 => self.pack_halves(inst, E5M2, float::bf16_to_f32),
            v_cvt_scalef32_pk_f16_fp8 => self.unpack_halves(inst, E4M3, float::f16_bits),
            v_cvt_scalef32_pk_f16_bf8 => self.unpack_halves(inst, E5M2, float::f16_bits),
            v_cvt_scalef32_pk_bf16_fp8 => self.unpack_halves(inst, E4M3, float::bf16_bits),
            v_cvt_scalef32_pk_bf16_bf8 => self.unpack_halves(inst, E5M2, float::bf16_bits),
            _ => return self.packed(inst, op),
        }
        Ok(())
    }

    fn convert_integer(&mut self, inst: &Inst, f: impl Fn(u32) -> f32) {
        let a = self.source(inst, 0, As::B32);
        let mut bits = a.bits.map(|a| f(a).to_bits());
        self.finish_float(inst, &mut bits);
        self.put(inst, Vector { bits, ..a });
    }

    fn convert_floats<const N: usize>(&mut self, inst: &Inst, f: impl Fn([f32; N]) -> u32) {
        let sources: [Vector; N] = std::array::from_fn(|n| self.float_source(inst, n));
        let bits = std::array::from_fn(|l| f(std::array::from_fn(|n| f32::from_bits(sources[n].bits[l]))));
        self.put16(inst, Vector { bits, undefined: union(&sources) });
    }

    fn convert_double(&mut self, inst: &Inst, f: impl Fn(f64) -> u32) {
        let a = self.wide_source(inst, 0, true);
        self.put(inst, Vector { bits: a.bits.map(|a| f(f64::from_bits(a))), undefined: a.tainted() });
    }

    /// Two numbers to two bytes in one half of the destination; `scale` is the source whose exponent divides.
    fn pack_small(&mut self, inst: &Inst, format: Small, scale: Option<usize>) {
        let (a, b) = (self.float_source(inst, 0), self.float_source(inst, 1));
        let scales = scale.map_or(Vector::splat(0x3f80_0000), |n| self.source(inst, n, As::B32));
        let bits = std::array::from_fn(|l| {
            let scale = exponent_only(scales.bits[l]);
            let byte = |bits: u32| format.encode(f32::from_bits(bits) / scale);
            byte(a.bits[l]) | byte(b.bits[l]) << 8
        });
        let value = Vector { bits, undefined: a.undefined | b.undefined | scales.undefined };
        self.put_half(inst, value, inst.mods.op_sel & 8 != 0);
    }

    /// Two bytes of the first source to two fp32; `scale` is the source whose exponent multiplies.
    fn unpack_small(&mut self, inst: &Inst, format: Small, scale: Option<usize>) {
        let a = self.source(inst, 0, As::B32);
        let scales = scale.map_or(Vector::splat(0x3f80_0000), |n| self.source(inst, n, As::B32));
        let shift = if inst.mods.op_sel & 1 != 0 { 16 } else { 0 };
        let bits = std::array::from_fn(|l| {
            let scale = exponent_only(scales.bits[l]);
            let value = |at: u32| u64::from((format.decode(a.bits[l] >> (shift + at) & 0xff) * scale).to_bits());
            value(0) | value(8) << 32
        });
        self.put_wide(inst, &Wide { bits, undefined: [a.undefined | scales.undefined; 2] });
    }

    /// Two halves of the first source, divided by the second's power of two, to two bytes in one half of the
    /// destination.
    fn pack_halves(&mut self, inst: &Inst, format: Small, value: impl Fn(u16) -> f32) {
        let [a, scales] = [0, 1].map(|n| self.source(inst, n, As::B32));
        let bits = std::array::from_fn(|l| {
            let scale = exponent_only(scales.bits[l]);
            let byte = |shift: u32| format.encode(value((a.bits[l] >> shift) as u16) / scale);
            byte(0) | byte(16) << 8
        });
        let value = Vector { bits, undefined: a.undefined | scales.undefined };
        self.put_half(inst, value, inst.mods.op_sel & 8 != 0);
    }

    /// Two bytes of the first source, multiplied by the second's power of two, to two halves.
    fn unpack_halves(&mut self, inst: &Inst, format: Small, code: impl Fn(f32) -> u16) {
        let [a, scales] = [0, 1].map(|n| self.source(inst, n, As::B32));
        let shift = if inst.mods.op_sel & 1 != 0 { 16 } else { 0 };
        let bits = std::array::from_fn(|l| {
            let scale = exponent_only(scales.bits[l]);
            let half = |at: u32| code(format.decode(a.bits[l] >> (shift + at) & 0xff) * scale);
            pack(half(0), half(8))
        });
        self.put(inst, Vector { bits, undefined: a.undefined | scales.undefined });
    }
}

fn pack(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Scale operands of conversions count by their exponent alone.
fn exponent_only(bits: u32) -> f32 {
    f32::from_bits(bits & 0x7f80_0000)
}
