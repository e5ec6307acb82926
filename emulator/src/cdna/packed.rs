//! Executes the packed encoding (VOP3P): pairs of halves, pairs of fp32, dot products, mixed precision.

use super::float;
use super::inst::Inst;
use super::operands::{Wide, union};
use super::valu::{dot2, fma_to_odd};
use super::valu_ops::Valu;
use super::wave::{As, LANES, Vector, Wave};
use crate::fault::Trap;

impl Wave {
    pub(super) fn packed(&mut self, inst: &Inst, op: Valu) -> Result<(), Trap> {
        use Valu::*;
        match op {
            v_pk_fma_f16 => self.packed_half(inst, |[a, b, c]| fma_to_odd(a, b, c)),
            v_pk_add_f16 => self.packed_half(inst, |[a, b]| a + b),
            v_pk_mul_f16 => self.packed_half(inst, |[a, b]| a * b),
            v_pk_min_f16 => self.packed_half(inst, |[a, b]| float::min(a, b)),
            v_pk_max_f16 => self.packed_half(inst, |[a, b]| float::max(a, b)),
            v_pk_minimum3_f16 => self.packed_half(inst, |[a, b, c]| float::minimum(float::minimum(a, b), c)),
            v_pk_maximum3_f16 => self.packed_half(inst, |[a, b, c]| float::maximum(float::maximum(a, b), c)),
            v_pk_mul_lo_u16 => self.packed_int(inst, |[a, b]| a.wrapping_mul(b)),
            v_pk_add_u16 if inst.mods.clamp => self.packed_int(inst, |[a, b]| a.saturating_add(b)),
            v_pk_sub_u16 if inst.mods.clamp => self.packed_int(inst, |[a, b]| a.saturating_sub(b)),
            v_pk_add_i16 if inst.mods.clamp => {
                self.packed_int(inst, |[a, b]| (a as i16).saturating_add(b as i16) as u16)
            }
            v_pk_sub_i16 if inst.mods.clamp => {
                self.packed_int(inst, |[a, b]| (a as i16).saturating_sub(b as i16) as u16)
            }
            v_pk_add_i16 | v_pk_add_u16 => self.packed_int(inst, |[a, b]| a.wrapping_add(b)),
            v_pk_sub_i16 | v_pk_sub_u16 => self.packed_int(inst, |[a, b]| a.wrapping_sub(b)),
            v_pk_lshlrev_b16 => self.packed_int(inst, |[a, b]| b << (a & 15)),
            v_pk_lshrrev_b16 => self.packed_int(inst, |[a, b]| b >> (a & 15)),
            v_pk_ashrrev_i16 => self.packed_int(inst, |[a, b]| (b as i16 >> (a & 15)) as u16),
            v_pk_max_i16 => self.packed_int(inst, |[a, b]| (a as i16).max(b as i16) as u16),
            v_pk_min_i16 => self.packed_int(inst, |[a, b]| (a as i16).min(b as i16) as u16),
            v_pk_max_u16 => self.packed_int(inst, |[a, b]| a.max(b)),
            v_pk_min_u16 => self.packed_int(inst, |[a, b]| a.min(b)),
            v_pk_fma_f32 => self.packed_float(inst, |[a, b, c]| float::fma(a, b, c)),
            v_pk_mul_f32 => self.packed_float(inst, |[a, b]| a * b),
            v_pk_add_f32 => self.packed_float(inst, |[a, b]| a + b),
            v_pk_mov_b32 => {
                let [low, high] = [0, 1].map(|n| self.pair_half(inst, n, inst.mods.op_sel >> n & 1 != 0, false));
                let bits = std::array::from_fn(|l| u64::from(low.bits[l]) | u64::from(high.bits[l]) << 32);
                self.put_wide(inst, &Wide { bits, undefined: [low.undefined, high.undefined] });
            }
            v_fma_mix_f32 => {
                let (mut bits, undefined) = self.mixed(inst);
                self.finish_float(inst, &mut bits);
                self.put(inst, Vector { bits, undefined });
            }
            v_fma_mixlo_f16 | v_fma_mixhi_f16 => {
                let (bits, undefined) = self.mixed(inst);
                let bits = bits.map(|x| {
                    let x = f32::from_bits(x);
                    u32::from(float::f16_bits(if inst.mods.clamp { self.clamp(x) } else { x }))
                });
                self.put_half(inst, Vector { bits, undefined }, op == v_fma_mixhi_f16);
            }
            v_dot2_f32_bf16 => self.dot(inst, |a, b, c| dot2(a, b, f32::from_bits(c), float::bf16_to_f32).to_bits()),
            v_dot2_f32_f16 => self.dot(inst, |a, b, c| dot2(a, b, f32::from_bits(c), float::f16_to_f32).to_bits()),
            v_dot2_i32_i16 => self.dot(inst, |a, b, c| {
                let product = |s: u32| i32::from((a >> s) as i16).wrapping_mul(i32::from((b >> s) as i16));
                product(0).wrapping_add(product(16)).wrapping_add(c as i32) as u32
            }),
            v_dot2_u32_u16 => self.dot(inst, |a, b, c| {
                let product = |s: u32| u32::from((a >> s) as u16).wrapping_mul(u32::from((b >> s) as u16));
                product(0).wrapping_add(product(16)).wrapping_add(c)
            }),
            v_dot4_i32_i8 => self.dot(inst, |a, b, c| {
                let product = |s: u32| i32::from((a >> s) as i8) * i32::from((b >> s) as i8);
                (0..4).fold(c as i32, |sum, i| sum.wrapping_add(product(8 * i))) as u32
            }),
            v_dot4_u32_u8 => self.dot(inst, |a, b, c| {
                let product = |s: u32| u32::from((a >> s) as u8) * u32::from((b >> s) as u8);
                (0..4).fold(c, |sum, i| sum.wrapping_add(product(8 * i)))
            }),
            _ => return Err(self.illegal("not emulated")),
        }
        Ok(())
    }

    /// The halves of source `n` for the low and the high result, negated as the modifiers say.
    fn halves(&self, inst: &Inst, n: usize, as_: As, sign: u16) -> ([[u16; LANES]; 2], u64) {
        let value = self.lanes(inst.src[n], 0, inst.literal, as_);
        let mods = &inst.mods;
        let half = |high: bool, negate: bool| {
            let shift = if high { 16 } else { 0 };
            value.bits.map(|bits| (bits >> shift) as u16 ^ if negate { sign } else { 0 })
        };
        let low = half(mods.op_sel >> n & 1 != 0, mods.neg >> n & 1 != 0);
        let high = half(mods.op_sel_hi >> n & 1 != 0, mods.abs >> n & 1 != 0);
        ([low, high], value.undefined)
    }

    fn packed_words<const N: usize>(&mut self, inst: &Inst, as_: As, sign: u16, f: impl Fn([u16; N]) -> u16) {
        let sources: [_; N] = std::array::from_fn(|n| self.halves(inst, n, as_, sign));
        let bits = std::array::from_fn(|l| {
            let result = |half: usize| u32::from(f(std::array::from_fn(|n| sources[n].0[half][l])));
            result(0) | result(1) << 16
        });
        let undefined = sources.iter().fold(0, |all, source| all | source.1);
        self.put(inst, Vector { bits, undefined });
    }

    fn packed_int<const N: usize>(&mut self, inst: &Inst, f: impl Fn([u16; N]) -> u16) {
        self.packed_words(inst, As::B32, 0, f);
    }

    fn packed_half<const N: usize>(&mut self, inst: &Inst, f: impl Fn([f32; N]) -> f32) {
        let (clamp, dx10) = (inst.mods.clamp, self.mode.dx10_clamp);
        let limit = move |x: f32| match x.is_nan() {
            true if dx10 => 0.0,
            true => x,
            false => x.clamp(0.0, 1.0),
        };
        self.packed_words(inst, As::B16, 0x8000, move |halves: [u16; N]| {
            let x = f(halves.map(float::f16_to_f32));
            float::f16_bits(if clamp { limit(x) } else { x })
        });
    }

    /// One of the two registers of source `n`. Constants count for both.
    fn pair_half(&self, inst: &Inst, n: usize, high: bool, negate: bool) -> Vector {
        let register = inst.src[n].vector_index().is_some() || inst.src[n].scalar_index().is_some();
        let mut value = self.lanes(inst.src[n], usize::from(high && register), inst.literal, As::B32);
        if negate {
            value.bits.iter_mut().for_each(|bits| *bits ^= 0x8000_0000);
        }
        value
    }

    fn packed_float<const N: usize>(&mut self, inst: &Inst, f: impl Fn([f32; N]) -> f32) {
        let mods = &inst.mods;
        let flush = self.mode.flush_inputs();
        let value = |bits: u32| if flush { float::flush(f32::from_bits(bits)) } else { f32::from_bits(bits) };
        let results = [(mods.op_sel, mods.neg), (mods.op_sel_hi, mods.abs)].map(|(select, negate)| {
            let sources: [Vector; N] =
                std::array::from_fn(|n| self.pair_half(inst, n, select >> n & 1 != 0, negate >> n & 1 != 0));
            let mut bits = std::array::from_fn(|l| f(std::array::from_fn(|n| value(sources[n].bits[l]))).to_bits());
            self.finish_float(inst, &mut bits);
            Vector { bits, undefined: union(&sources) }
        });
        let [low, high] = results;
        let bits = std::array::from_fn(|l| u64::from(low.bits[l]) | u64::from(high.bits[l]) << 32);
        self.put_wide(inst, &Wide { bits, undefined: [low.undefined, high.undefined] });
    }

    /// `v_fma_mix`: each source is fp32, or the half that `op_sel` chooses where `op_sel_hi` is set.
    fn mixed(&self, inst: &Inst) -> ([u32; LANES], u64) {
        let mods = &inst.mods;
        let mut undefined = 0;
        let sources: [[f32; LANES]; 3] = std::array::from_fn(|n| {
            let half = mods.op_sel_hi >> n & 1 != 0;
            let value = self.lanes(inst.src[n], 0, inst.literal, if half { As::B16 } else { As::B32 });
            undefined |= value.undefined;
            let shift = if mods.op_sel >> n & 1 != 0 { 16 } else { 0 };
            value.bits.map(|bits| {
                let mut x = if half { float::f16_to_f32((bits >> shift) as u16) } else { f32::from_bits(bits) };
                x = if mods.abs >> n & 1 != 0 { x.abs() } else { x };
                if mods.neg >> n & 1 != 0 { -x } else { x }
            })
        });
        let [a, b, c] = sources;
        (std::array::from_fn(|l| float::fma(a[l], b[l], c[l]).to_bits()), undefined)
    }

    fn dot(&mut self, inst: &Inst, f: impl Fn(u32, u32, u32) -> u32) {
        let [a, b, c] = [0, 1, 2].map(|n| self.lanes(inst.src[n], 0, inst.literal, As::B32));
        let mut bits = std::array::from_fn(|l| f(a.bits[l], b.bits[l], c.bits[l]));
        if inst.mods.clamp {
            self.finish_float(inst, &mut bits);
        }
        self.put(inst, Vector { bits, undefined: union(&[a, b, c]) });
    }
}
