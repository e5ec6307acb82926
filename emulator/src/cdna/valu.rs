//! Executes vector arithmetic (VOP1, VOP2, VOP3). Conversions are in `convert`, steps of divisions in `divide`, the
//! packed encoding in `packed`, comparisons in `compare`.

use super::float;
use super::inst::{Inst, Operand};
use super::operands::{Wide, union};
use super::valu_ops::Valu;
use super::wave::{As, LANES, Vector, Wave};
use crate::fault::Trap;

impl Wave {
    /// Executes one vector instruction.
    pub(super) fn valu(&mut self, inst: &Inst, op: Valu) -> Result<(), Trap> {
        use Valu::*;
        match op {
            v_nop => {}
            v_mov_b32 | v_accvgpr_mov_b32 | v_accvgpr_read_b32 | v_accvgpr_write_b32 => self.int(inst, |[a]| a),
            v_mov_b64 => {
                let value = self.wide_source(inst, 0, false);
                self.put_wide(inst, &value);
            }
            v_readfirstlane_b32
            | v_readlane_b32
            | v_writelane_b32
            | v_swap_b32
            | v_permlane16_swap_b32
            | v_permlane32_swap_b32 => return self.lane_move(inst, op),
            v_cndmask_b32 => self.select_lanes(inst),

            // fp32
            v_add_f32 => self.float(inst, |[a, b]| a + b),
            v_sub_f32 => self.float(inst, |[a, b]| a - b),
            v_subrev_f32 => self.float(inst, |[a, b]| b - a),
            v_mul_f32 => self.float(inst, |[a, b]| a * b),
            v_min_f32 => self.float(inst, |[a, b]| float::min(a, b)),
            v_max_f32 => self.float(inst, |[a, b]| float::max(a, b)),
            v_fma_f32 | v_fmamk_f32 | v_fmaak_f32 => self.float(inst, |[a, b, c]| float::fma(a, b, c)),
            v_fmac_f32 => self.accumulate(inst, float::fma),
            v_min3_f32 => self.float(inst, |[a, b, c]| float::min(float::min(a, b), c)),
            v_max3_f32 => self.float(inst, |[a, b, c]| float::max(float::max(a, b), c)),
            v_med3_f32 => self.float(inst, |[a, b, c]| float::med3(a, b, c)),
            v_minimum3_f32 => self.float(inst, |[a, b, c]| float::minimum(float::minimum(a, b), c)),
            v_maximum3_f32 => self.float(inst, |[a, b, c]| float::maximum(float::maximum(a, b), c)),
            v_trunc_f32 => self.float(inst, |[a]| a.trunc()),
            v_ceil_f32 => self.float(inst, |[a]| a.ceil()),
            v_floor_f32 => self.float(inst, |[a]| a.floor()),
            v_rndne_f32 => self.float(inst, |[a]| a.round_ties_even()),
            v_fract_f32 => self.float(inst, |[a]| float::minimum(a - a.floor(), 1.0 - f32::EPSILON / 2.0)),
            v_ldexp_f32 => self.load_exponent(inst),
            v_frexp_exp_i32_f32 => self.int(inst, |[a]| frexp(f32::from_bits(a)).1 as u32),
            v_frexp_mant_f32 => self.float(inst, |[a]| frexp(a).0),
            // The approximations take and give no denormals. They are rounded correctly here, which is within
            // their documented error of 1 ulp.
            v_exp_f32 => self.approximate(inst, f64::exp2),
            v_log_f32 => self.approximate(inst, f64::log2),
            v_rcp_f32 | v_rcp_iflag_f32 => self.approximate(inst, f64::recip),
            v_rsq_f32 => self.approximate(inst, |x| x.sqrt().recip()),
            v_sqrt_f32 => self.approximate(inst, f64::sqrt),
            v_div_scale_f32 => return self.divide_scale(inst),
            v_div_fmas_f32 => self.divide_fmas(inst),
            v_div_fixup_f32 => self.float(inst, |[q, d, n]| super::divide::fixup(q, d, n)),

            // fp64
            v_add_f64 => self.double(inst, |[a, b]| a + b),
            v_mul_f64 => self.double(inst, |[a, b]| a * b),
            v_min_f64 => self.double(inst, |[a, b]| a.min(b)),
            v_max_f64 => self.double(inst, |[a, b]| a.max(b)),
            v_fma_f64 => self.double(inst, |[a, b, c]| a.mul_add(b, c)),
            v_fmac_f64 => {
                let with_dst =
                    Inst { src: [inst.src[0], inst.src[1], inst.dst, Operand::NONE, Operand::NONE], ..inst.clone() };
                self.double(&with_dst, |[a, b, c]| a.mul_add(b, c));
            }
            v_rcp_f64 => self.double(inst, |[a]| a.recip()),
            v_ldexp_f64 => {
                let (a, b) = (self.wide_source(inst, 0, true), self.source(inst, 1, As::B32));
                let bits = std::array::from_fn(|l| {
                    (f64::from_bits(a.bits[l]) * 2f64.powi((b.bits[l] as i32).clamp(-1000, 1000))).to_bits()
                });
                self.put_wide(inst, &Wide { bits, undefined: [a.tainted() | b.undefined; 2] });
            }

            // binary16
            v_add_f16 => self.half(inst, |[a, b]| a + b),
            v_sub_f16 => self.half(inst, |[a, b]| a - b),
            v_subrev_f16 => self.half(inst, |[a, b]| b - a),
            v_mul_f16 => self.half(inst, |[a, b]| a * b),
            v_min_f16 => self.half(inst, |[a, b]| float::min(a, b)),
            v_max_f16 => self.half(inst, |[a, b]| float::max(a, b)),
            v_min3_f16 => self.half(inst, |[a, b, c]| float::min(float::min(a, b), c)),
            v_max3_f16 => self.half(inst, |[a, b, c]| float::max(float::max(a, b), c)),
            v_med3_f16 => self.half(inst, |[a, b, c]| float::med3(a, b, c)),
            v_mad_f16 | v_mad_legacy_f16 => self.half(inst, |[a, b, c]| float::f16_to_f32(float::f16_bits(a * b)) + c),
            v_fma_f16 | v_fma_legacy_f16 => self.half(inst, |[a, b, c]| fma_to_odd(a, b, c)),
            v_rcp_f16 => self.half(inst, |[a]| a.recip()),
            v_sqrt_f16 => self.half(inst, |[a]| a.sqrt()),
            v_rsq_f16 => self.half(inst, |[a]| (1.0 / f64::from(a).sqrt()) as f32),
            v_log_f16 => self.half(inst, |[a]| f64::from(a).log2() as f32),
            v_exp_f16 => self.half(inst, |[a]| f64::from(a).exp2() as f32),
            v_floor_f16 => self.half(inst, |[a]| a.floor()),
            v_ceil_f16 => self.half(inst, |[a]| a.ceil()),
            v_trunc_f16 => self.half(inst, |[a]| a.trunc()),
            v_rndne_f16 => self.half(inst, |[a]| a.round_ties_even()),
            v_fract_f16 => self.half(inst, |[a]| float::minimum(a - a.floor(), 1.0 - 1.0 / 2048.0)),
            v_ldexp_f16 => {
                let (a, b) = (self.source(inst, 0, As::B16), self.source(inst, 1, As::B16));
                let bits = std::array::from_fn(|l| {
                    let x = float::ldexp(float::f16_to_f32(a.bits[l] as u16), i32::from(b.bits[l] as i16));
                    u32::from(float::f16_bits(x))
                });
                self.put16(inst, Vector { bits, undefined: a.undefined | b.undefined });
            }
            v_div_fixup_f16 | v_div_fixup_legacy_f16 => self.half(inst, |[q, d, n]| super::divide::fixup(q, d, n)),

            // Integers
            v_add_u32 if inst.mods.clamp => self.int(inst, |[a, b]| a.saturating_add(b)),
            v_sub_u32 if inst.mods.clamp => self.int(inst, |[a, b]| a.saturating_sub(b)),
            v_subrev_u32 if inst.mods.clamp => self.int(inst, |[a, b]| b.saturating_sub(a)),
            v_add_i32 if inst.mods.clamp => self.int(inst, |[a, b]| (a as i32).saturating_add(b as i32) as u32),
            v_sub_i32 if inst.mods.clamp => self.int(inst, |[a, b]| (a as i32).saturating_sub(b as i32) as u32),
            v_add_u32 | v_add_i32 => self.int(inst, |[a, b]| a.wrapping_add(b)),
            v_sub_u32 | v_sub_i32 => self.int(inst, |[a, b]| a.wrapping_sub(b)),
            v_subrev_u32 => self.int(inst, |[a, b]| b.wrapping_sub(a)),
            v_add_co_u32 | v_addc_co_u32 => return self.carry(inst, |a, b, c| a + b + c),
            v_sub_co_u32 | v_subb_co_u32 => return self.carry(inst, |a, b, c| a.wrapping_sub(b).wrapping_sub(c)),
            v_subrev_co_u32 | v_subbrev_co_u32 => {
                return self.carry(inst, |a, b, c| b.wrapping_sub(a).wrapping_sub(c));
            }
            v_mul_i32_i24 => self.int(inst, |[a, b]| i24(a).wrapping_mul(i24(b)) as u32),
            v_mul_hi_i32_i24 => self.int(inst, |[a, b]| ((i64::from(i24(a)) * i64::from(i24(b))) >> 32) as u32),
            v_mul_u32_u24 => self.int(inst, |[a, b]| u24(a).wrapping_mul(u24(b))),
            v_mul_hi_u32_u24 => self.int(inst, |[a, b]| ((u64::from(u24(a)) * u64::from(u24(b))) >> 32) as u32),
            v_mad_i32_i24 => self.int(inst, |[a, b, c]| (i24(a).wrapping_mul(i24(b)) as u32).wrapping_add(c)),
            v_mad_u32_u24 => self.int(inst, |[a, b, c]| u24(a).wrapping_mul(u24(b)).wrapping_add(c)),
            v_mul_lo_u32 => self.int(inst, |[a, b]| a.wrapping_mul(b)),
            v_mul_hi_u32 => self.int(inst, |[a, b]| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            v_mul_hi_i32 => self.int(inst, |[a, b]| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
            v_mad_u64_u32 => return self.multiply_add_wide(inst, |a, b| u64::from(a) * u64::from(b), false),
            v_mad_i64_i32 => {
                return self.multiply_add_wide(inst, |a, b| (i64::from(a as i32) * i64::from(b as i32)) as u64, true);
            }
            v_mad_u32_u16 => self.int(inst, |[a, b, c]| (a & 0xffff).wrapping_mul(b & 0xffff).wrapping_add(c)),
            v_mad_i32_i16 => {
                self.int(inst, |[a, b, c]| (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32)
            }
            v_mad_u16 | v_mad_i16 | v_mad_legacy_u16 | v_mad_legacy_i16 => {
                self.int16(inst, |[a, b, c]| a.wrapping_mul(b).wrapping_add(c))
            }
            v_min_i32 => self.int(inst, |[a, b]| (a as i32).min(b as i32) as u32),
            v_max_i32 => self.int(inst, |[a, b]| (a as i32).max(b as i32) as u32),
            v_min_u32 => self.int(inst, |[a, b]| a.min(b)),
            v_max_u32 => self.int(inst, |[a, b]| a.max(b)),
            v_min3_i32 => self.int(inst, |[a, b, c]| (a as i32).min(b as i32).min(c as i32) as u32),
            v_max3_i32 => self.int(inst, |[a, b, c]| (a as i32).max(b as i32).max(c as i32) as u32),
            v_med3_i32 => self.int(inst, |v| median(v.map(|x| x as i32)) as u32),
            v_min3_u32 => self.int(inst, |[a, b, c]| a.min(b).min(c)),
            v_max3_u32 => self.int(inst, |[a, b, c]| a.max(b).max(c)),
            v_med3_u32 => self.int(inst, median),
            v_add_u16 if inst.mods.clamp => self.int16(inst, |[a, b]| a.saturating_add(b)),
            v_sub_u16 if inst.mods.clamp => self.int16(inst, |[a, b]| a.saturating_sub(b)),
            v_add_u16 | v_add_i16 => self.int16(inst, |[a, b]| a.wrapping_add(b)),
            v_sub_u16 | v_sub_i16 => self.int16(inst, |[a, b]| a.wrapping_sub(b)),
            v_subrev_u16 => self.int16(inst, |[a, b]| b.wrapping_sub(a)),
            v_mul_lo_u16 => self.int16(inst, |[a, b]| a.wrapping_mul(b)),
            v_min_i16 => self.int16(inst, |[a, b]| (a as i16).min(b as i16) as u16),
            v_max_i16 => self.int16(inst, |[a, b]| (a as i16).max(b as i16) as u16),
            v_min_u16 => self.int16(inst, |[a, b]| a.min(b)),
            v_max_u16 => self.int16(inst, |[a, b]| a.max(b)),
            v_min3_i16 => self.int16(inst, |[a, b, c]| (a as i16).min(b as i16).min(c as i16) as u16),
            v_max3_i16 => self.int16(inst, |[a, b, c]| (a as i16).max(b as i16).max(c as i16) as u16),
            v_med3_i16 => self.int16(inst, |v| median(v.map(|x| x as i16)) as u16),
            v_min3_u16 => self.int16(inst, |[a, b, c]| a.min(b).min(c)),
            v_max3_u16 => self.int16(inst, |[a, b, c]| a.max(b).max(c)),
            v_med3_u16 => self.int16(inst, median),
            v_add3_u32 => self.int(inst, |[a, b, c]| a.wrapping_add(b).wrapping_add(c)),
            v_lshl_add_u32 => self.int(inst, |[a, b, c]| (a << (b & 31)).wrapping_add(c)),
            v_add_lshl_u32 => self.int(inst, |[a, b, c]| a.wrapping_add(b) << (c & 31)),
            v_lshl_add_u64 => {
                let (a, b, c) =
                    (self.wide_source(inst, 0, false), self.source(inst, 1, As::B32), self.wide_source(inst, 2, false));
                let bits = std::array::from_fn(|l| (a.bits[l] << (b.bits[l] & 7)).wrapping_add(c.bits[l]));
                // The low half depends on low halves alone.
                let low = a.undefined[0] | b.undefined | c.undefined[0];
                self.put_wide(inst, &Wide { bits, undefined: [low, low | a.undefined[1] | c.undefined[1]] });
            }

            // Bits
            v_and_b32 => self.int(inst, |[a, b]| a & b),
            v_or_b32 => self.int(inst, |[a, b]| a | b),
            v_xor_b32 => self.int(inst, |[a, b]| a ^ b),
            v_xnor_b32 => self.int(inst, |[a, b]| !(a ^ b)),
            v_not_b32 => self.int(inst, |[a]| !a),
            v_or3_b32 => self.int(inst, |[a, b, c]| a | b | c),
            v_and_or_b32 => self.int(inst, |[a, b, c]| a & b | c),
            v_lshl_or_b32 => self.int(inst, |[a, b, c]| a << (b & 31) | c),
            v_lshlrev_b32 => self.int(inst, |[a, b]| b << (a & 31)),
            v_lshrrev_b32 => self.int(inst, |[a, b]| b >> (a & 31)),
            v_ashrrev_i32 => self.int(inst, |[a, b]| (b as i32 >> (a & 31)) as u32),
            v_lshlrev_b16 => self.int16(inst, |[a, b]| b << (a & 15)),
            v_lshrrev_b16 => self.int16(inst, |[a, b]| b >> (a & 15)),
            v_ashrrev_i16 => self.int16(inst, |[a, b]| (b as i16 >> (a & 15)) as u16),
            v_lshlrev_b64 => self.shift_wide(inst, |a, b| b << (a & 63)),
            v_lshrrev_b64 => self.shift_wide(inst, |a, b| b >> (a & 63)),
            v_ashrrev_i64 => self.shift_wide(inst, |a, b| (b as i64 >> (a & 63)) as u64),
            v_bfe_u32 => self.int(inst, |[a, b, c]| match c & 31 {
                0 => 0,
                width => a >> (b & 31) & ((1 << width) - 1),
            }),
            v_bfe_i32 => self.int(inst, |[a, b, c]| match c & 31 {
                0 => 0,
                width => ((a as i32 >> (b & 31)) << (32 - width) >> (32 - width)) as u32,
            }),
            v_bfi_b32 => self.int(inst, |[a, b, c]| a & b | !a & c),
            v_bfm_b32 => self.int(inst, |[a, b]| ((1 << (a & 31)) - 1) << (b & 31)),
            v_bfrev_b32 => self.int(inst, |[a]| a.reverse_bits()),
            v_ffbh_u32 => self.int(inst, |[a]| if a == 0 { u32::MAX } else { a.leading_zeros() }),
            v_ffbh_i32 => self.int(inst, |[a]| match a ^ (a as i32 >> 31) as u32 {
                0 => u32::MAX,
                differing => differing.leading_zeros(),
            }),
            v_xad_u32 => self.int(inst, |[a, b, c]| (a ^ b).wrapping_add(c)),
            v_ffbl_b32 => self.int(inst, |[a]| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
            v_bcnt_u32_b32 => self.int(inst, |[a, b]| a.count_ones().wrapping_add(b)),
            v_mbcnt_lo_u32_b32 => self.masked_count(inst, 0),
            v_mbcnt_hi_u32_b32 => self.masked_count(inst, 32),
            v_alignbit_b32 => self.int(inst, |[a, b, c]| ((u64::from(a) << 32 | u64::from(b)) >> (c & 31)) as u32),
            v_alignbyte_b32 => {
                self.int(inst, |[a, b, c]| ((u64::from(a) << 32 | u64::from(b)) >> (8 * (c & 3))) as u32)
            }
            v_perm_b32 => self.int(inst, |[a, b, c]| permute_bytes(a, b, c)),
            v_bitop3_b32 => {
                let table = inst.literal;
                self.int(inst, |[a, b, c]| bit_table(table, a, b, c));
            }
            v_bitop3_b16 => {
                let table = inst.literal;
                self.int16(inst, |[a, b, c]| bit_table(table, a.into(), b.into(), c.into()) as u16);
            }
            v_dot2c_f32_bf16 => {
                self.accumulate_bits(inst, |a, b, c| dot2(a, b, f32::from_bits(c), float::bf16_to_f32).to_bits());
            }
            v_dot2c_f32_f16 => {
                self.accumulate_bits(inst, |a, b, c| dot2(a, b, f32::from_bits(c), float::f16_to_f32).to_bits());
            }
            _ => return self.convert(inst, op),
        }
        Ok(())
    }

    /// Two registers and the destination's old value.
    fn accumulate_bits(&mut self, inst: &Inst, f: impl Fn(u32, u32, u32) -> u32) {
        let (a, b) = (self.source(inst, 0, As::B32), self.source(inst, 1, As::B32));
        let c = self.lanes(inst.dst, 0, 0, As::B32);
        let mut bits = std::array::from_fn(|l| f(a.bits[l], b.bits[l], c.bits[l]));
        self.finish_float(inst, &mut bits);
        self.put(inst, Vector { bits, undefined: union(&[a, b, c]) });
    }

    fn accumulate(&mut self, inst: &Inst, f: impl Fn(f32, f32, f32) -> f32) {
        let flush = self.mode.flush_inputs();
        let value = |bits: u32| if flush { float::flush(f32::from_bits(bits)) } else { f32::from_bits(bits) };
        self.accumulate_bits(inst, |a, b, c| f(value(a), value(b), value(c)).to_bits());
    }

    /// `v_cndmask`: the second source where the mask is set.
    fn select_lanes(&mut self, inst: &Inst) {
        let (a, b) = (self.source(inst, 0, As::B32), self.source(inst, 1, As::B32));
        let mask = self.mask_source(inst, 2);
        let bits = std::array::from_fn(|l| if mask.bits >> l & 1 != 0 { b.bits[l] } else { a.bits[l] });
        let undefined = mask.undefined | mask.bits & b.undefined | !mask.bits & a.undefined;
        self.put(inst, Vector { bits, undefined });
    }

    /// An approximation: denormal sources and results are zero.
    fn approximate(&mut self, inst: &Inst, f: impl Fn(f64) -> f64) {
        self.float(inst, |[a]| float::flush(f(float::flush(a).into()) as f32));
    }

    fn load_exponent(&mut self, inst: &Inst) {
        let (a, b) = (self.float_source(inst, 0), self.source(inst, 1, As::B32));
        let mut bits = std::array::from_fn(|l| float::ldexp(f32::from_bits(a.bits[l]), b.bits[l] as i32).to_bits());
        self.finish_float(inst, &mut bits);
        self.put(inst, Vector { bits, undefined: a.undefined | b.undefined });
    }

    /// Addition or subtraction with carry in (the third source, if there is one) and out; `f` works on 33 bits.
    fn carry(&mut self, inst: &Inst, f: impl Fn(u64, u64, u64) -> u64) -> Result<(), Trap> {
        let (a, b) = (self.source(inst, 0, As::B32), self.source(inst, 1, As::B32));
        let carry = if inst.src[2].is_none() { super::wave::Scalar::defined(0) } else { self.mask_source(inst, 2) };
        let undefined = a.undefined | b.undefined | carry.undefined;
        let mut out = 0;
        let mut bits = [0; LANES];
        for (l, bits) in bits.iter_mut().enumerate() {
            let wide = f(a.bits[l].into(), b.bits[l].into(), carry.bits >> l & 1);
            *bits = wide as u32;
            out |= (wide >> 32 & 1) << l;
        }
        self.put(inst, Vector { bits, undefined });
        self.put_mask(inst.sdst, out, undefined)
    }

    fn multiply_add_wide(&mut self, inst: &Inst, product: impl Fn(u32, u32) -> u64, signed: bool) -> Result<(), Trap> {
        let (a, b, c) =
            (self.source(inst, 0, As::B32), self.source(inst, 1, As::B32), self.wide_source(inst, 2, false));
        // The low half depends on the addend's low half alone.
        let low = a.undefined | b.undefined | c.undefined[0];
        let high = low | c.undefined[1];
        let mut carry = 0;
        let bits = std::array::from_fn(|l| {
            let product = product(a.bits[l], b.bits[l]);
            let (sum, unsigned_overflow) = product.overflowing_add(c.bits[l]);
            let (_, signed_overflow) = (product as i64).overflowing_add(c.bits[l] as i64);
            carry |= u64::from(if signed { signed_overflow } else { unsigned_overflow }) << l;
            sum
        });
        self.put_wide(inst, &Wide { bits, undefined: [low, high] });
        self.put_mask(inst.sdst, carry, high)
    }

    fn shift_wide(&mut self, inst: &Inst, f: impl Fn(u32, u64) -> u64) {
        let (a, b) = (self.source(inst, 0, As::B32), self.wide_source(inst, 1, false));
        let bits = std::array::from_fn(|l| f(a.bits[l], b.bits[l]));
        self.put_wide(inst, &Wide { bits, undefined: [a.undefined | b.tainted(); 2] });
    }

    /// Counts the bits of a mask that belong to lanes below; the mask's first bit is lane `first`'s.
    fn masked_count(&mut self, inst: &Inst, first: usize) {
        let (a, b) = (self.source(inst, 0, As::B32), self.source(inst, 1, As::B32));
        let bits = std::array::from_fn(|l| {
            let below = l.saturating_sub(first).min(32) as u32;
            let mask = u32::MAX.checked_shr(32 - below).unwrap_or(0);
            (a.bits[l] & mask).count_ones().wrapping_add(b.bits[l])
        });
        self.put(inst, Vector { bits, undefined: a.undefined | b.undefined });
    }
}

fn i24(x: u32) -> i32 {
    (x << 8) as i32 >> 8
}

fn u24(x: u32) -> u32 {
    x & 0xff_ffff
}

fn median<T: Ord + Copy>([a, b, c]: [T; 3]) -> T {
    a.min(b).max(a.max(b).min(c))
}

/// Mantissa in [0.5, 1) and exponent.
fn frexp(x: f32) -> (f32, i32) {
    if x == 0.0 || !x.is_finite() {
        return (x, 0);
    }
    let wide = f64::from(x).to_bits();
    let exponent = (wide >> 52 & 0x7ff) as i32 - 1022;
    (f64::from_bits(wide & !(0x7ff << 52) | 1022 << 52) as f32, exponent)
}

/// A sum for rounding to binary16: rounded to odd in fp32, so that the second rounding is right.
pub(super) fn fma_to_odd(a: f32, b: f32, c: f32) -> f32 {
    let exact = f64::from(a) * f64::from(b) + f64::from(c);
    let near = exact as f32;
    let bits = near.to_bits();
    if !near.is_finite() || f64::from(near) == exact || bits & 1 == 1 {
        return near;
    }
    f32::from_bits(if f64::from(near).abs() < exact.abs() { bits + 1 } else { bits.wrapping_sub(1) })
}

pub(super) fn dot2(a: u32, b: u32, c: f32, value: impl Fn(u16) -> f32) -> f32 {
    let product = |shift: u32| value((a >> shift) as u16) * value((b >> shift) as u16);
    product(0) + product(16) + c
}

fn bit_table(table: u32, a: u32, b: u32, c: u32) -> u32 {
    (0..8).filter(|i| table >> i & 1 != 0).fold(0, |all, i| {
        let of = |x: u32, bit: u32| if i >> bit & 1 != 0 { x } else { !x };
        all | of(a, 2) & of(b, 1) & of(c, 0)
    })
}

/// `v_perm_b32`: bytes 0 to 3 are the second source's, 4 to 7 the first's; 8 to 11 signs, 12 zero, above ones.
fn permute_bytes(a: u32, b: u32, selects: u32) -> u32 {
    let bytes = u64::from(a) << 32 | u64::from(b);
    (0..4).fold(0, |all, i| {
        let byte = match selects >> (8 * i) & 0xff {
            select @ 0..=7 => (bytes >> (8 * select)) as u32 & 0xff,
            select @ 8..=11 => 0xff * (bytes >> (16 * (select - 8) + 15) & 1) as u32,
            12 => 0,
            _ => 0xff,
        };
        all | byte << (8 * i)
    })
}
