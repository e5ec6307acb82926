//! Executes scalar arithmetic (SOP1, SOP2, SOPC, SOPK).

use super::inst::{Encoding, Inst, Operand};
use super::salu_ops::Salu;
use super::wave::{Mode, Scalar, Wave};
use crate::fault::Trap;

/// What an operation leaves: a result and the condition code, where it has them.
struct Outcome {
    value: Option<Scalar>,
    scc: Option<(bool, bool)>,
}

impl Wave {
    /// Executes one scalar instruction. `pc_address` is the address of the next instruction.
    pub(super) fn salu(&mut self, inst: &Inst, op: Salu, pc_address: u64) -> Result<(), Trap> {
        use Salu::*;
        let simm = i64::from(inst.imm) as u64;
        let a = if inst.src[0].is_none() { Scalar::defined(0) } else { self.scalar(inst, 0) };
        let b = match inst.encoding {
            Encoding::Sopk => Scalar::defined(simm),
            _ if inst.src[1].is_none() => Scalar::defined(0),
            _ => self.scalar(inst, 1),
        };
        // Sources and destination of SOPK are one register.
        let a = if inst.encoding == Encoding::Sopk && !inst.dst.is_none() {
            self.register(usize::from(inst.dst.0))
        } else {
            a
        };
        let outcome = match op {
            s_cselect_b32 | s_cselect_b64 => self.select(a, b)?,
            s_cmov_b32 | s_cmov_b64 | s_cmovk_i32 => {
                let value = if inst.encoding == Encoding::Sopk { b } else { a };
                let kept = self.destination(inst);
                self.select(value, kept)?
            }
            s_and_saveexec_b64 | s_or_saveexec_b64 | s_xor_saveexec_b64 | s_andn2_saveexec_b64
            | s_orn2_saveexec_b64 | s_nand_saveexec_b64 | s_nor_saveexec_b64 | s_xnor_saveexec_b64
            | s_andn2_wrexec_b64 => {
                return self.save_exec(inst, op, a);
            }
            s_getpc_b64 => Outcome { value: Some(Scalar::defined(pc_address)), scc: None },
            s_getreg_b32 | s_setreg_b32 | s_setreg_imm32_b32 => return self.hardware_register(inst, op, a),
            s_bitset0_b32 | s_bitset1_b32 | s_bitset0_b64 | s_bitset1_b64 => {
                let old = self.destination(inst);
                let bit = 1u64 << (a.bits & if inst.dst_width == 2 { 63 } else { 31 });
                let set = matches!(op, s_bitset1_b32 | s_bitset1_b64);
                let bits = if set { old.bits | bit } else { old.bits & !bit };
                let undefined = if a.undefined != 0 { u64::MAX } else { old.undefined & !bit };
                Outcome { value: Some(Scalar { bits, undefined }), scc: None }
            }
            _ => compute(op, a, b, self.scc, self.scc_undefined),
        };
        if let Some(value) = outcome.value {
            self.set_scalar(inst, value)?;
        }
        if let Some((scc, undefined)) = outcome.scc {
            (self.scc, self.scc_undefined) = (scc, undefined);
        }
        Ok(())
    }

    /// The destination's value before the instruction.
    fn destination(&self, inst: &Inst) -> Scalar {
        let index = usize::from(inst.dst.0);
        let low = self.register(index);
        if inst.dst_width < 2 {
            return low;
        }
        let high = self.register(index + 1);
        Scalar { bits: low.bits | high.bits << 32, undefined: low.undefined | high.undefined << 32 }
    }

    fn select(&self, yes: Scalar, no: Scalar) -> Result<Outcome, Trap> {
        let chosen = if self.scc { yes } else { no };
        let undefined = if self.scc_undefined { u64::MAX } else { chosen.undefined };
        Ok(Outcome { value: Some(Scalar { bits: chosen.bits, undefined }), scc: None })
    }

    fn save_exec(&mut self, inst: &Inst, op: Salu, a: Scalar) -> Result<(), Trap> {
        use Salu::*;
        let old = Scalar::defined(self.exec());
        let combined = match op {
            s_and_saveexec_b64 => bitwise(a, old, |x, y| x & y),
            s_or_saveexec_b64 => bitwise(a, old, |x, y| x | y),
            s_xor_saveexec_b64 => bitwise(a, old, |x, y| x ^ y),
            // EXEC = S0 & ~EXEC.
            s_andn2_saveexec_b64 | s_andn2_wrexec_b64 => bitwise(a, old, |x, y| x & !y),
            s_orn2_saveexec_b64 => bitwise(a, old, |x, y| x | !y),
            s_nand_saveexec_b64 => bitwise(a, old, |x, y| !(x & y)),
            s_nor_saveexec_b64 => bitwise(a, old, |x, y| !(x | y)),
            _ => bitwise(a, old, |x, y| !(x ^ y)),
        };
        if combined.undefined != 0 {
            return Err(self.undefined("EXEC, which decides which lanes run"));
        }
        let saved = if op == s_andn2_wrexec_b64 { combined } else { old };
        self.set_scalar64(Operand::EXEC, combined);
        self.set_scalar(inst, saved)?;
        (self.scc, self.scc_undefined) = (combined.bits != 0, false);
        Ok(())
    }

    /// MODE is the only hardware register that kernels may read and write here; its low byte is the float mode.
    fn hardware_register(&mut self, inst: &Inst, op: Salu, a: Scalar) -> Result<(), Trap> {
        const MODE: u16 = 1;
        let imm = inst.imm as u16;
        let (id, offset, size) = (imm & 63, u32::from(imm >> 6 & 31), u32::from(imm >> 11) + 1);
        if id != MODE || offset + size > 8 {
            return Err(self.illegal(format!("hardware register {id}, bits {offset}..{}", offset + size)));
        }
        let mask = (1u32 << size) - 1;
        let value = match op {
            Salu::s_getreg_b32 => {
                let value = u64::from(self.mode.float >> offset & mask);
                return self.set_scalar(inst, Scalar::defined(value));
            }
            Salu::s_setreg_imm32_b32 => Scalar::defined(u64::from(inst.literal)),
            _ => a,
        };
        if value.undefined != 0 {
            return Err(self.undefined("the MODE register"));
        }
        let mode = self.mode.float & !(mask << offset) | (value.bits as u32 & mask) << offset;
        if let Some(reason) = Mode::unsupported(mode) {
            return Err(self.illegal(reason));
        }
        self.mode.float = mode;
        Ok(())
    }
}

/// A bitwise operation; a result bit is undefined if it depends on an undefined bit.
fn bitwise(a: Scalar, b: Scalar, f: impl Fn(u64, u64) -> u64) -> Scalar {
    let bits = f(a.bits, b.bits);
    let vary_a = f(a.bits ^ a.undefined, b.bits) ^ bits;
    let vary_b = f(a.bits, b.bits ^ b.undefined) ^ bits;
    let vary_both = f(a.bits ^ a.undefined, b.bits ^ b.undefined) ^ bits;
    Scalar { bits, undefined: vary_a | vary_b | vary_both }
}

/// Operations that depend on their sources (and SCC) alone.
fn compute(op: Salu, a: Scalar, b: Scalar, scc: bool, scc_undefined: bool) -> Outcome {
    use Salu::*;
    let any = a.undefined != 0 || b.undefined != 0;
    let spread = |undefined: bool| if undefined { u64::MAX } else { 0 };
    let (x, y) = (a.bits as u32, b.bits as u32);
    let (sx, sy) = (x as i32, y as i32);
    let plain = |bits: u64| Outcome { value: Some(Scalar { bits, undefined: spread(any) }), scc: None };
    let with =
        |bits: u64, scc: bool| Outcome { value: Some(Scalar { bits, undefined: spread(any) }), scc: Some((scc, any)) };
    let nonzero = |bits: u64| with(bits, bits != 0);
    let compare = |result: bool| Outcome { value: None, scc: Some((result, any)) };
    let logic = |f: fn(u64, u64) -> u64, mask: u64| {
        let value = bitwise(a, b, f);
        let value = Scalar { bits: value.bits & mask, undefined: value.undefined & mask };
        // A defined one makes SCC certain.
        let scc_undefined = value.undefined != 0 && value.bits & !value.undefined == 0;
        Outcome { value: Some(value), scc: Some((value.bits != 0, scc_undefined)) }
    };
    let (low, all) = (u64::from(u32::MAX), u64::MAX);
    // A shift by a defined amount moves the undefined bits along.
    let shift = |bits: u64, f: &dyn Fn(u64) -> u64| {
        let undefined = if b.undefined != 0 { u64::MAX } else { f(a.undefined) };
        Outcome { value: Some(Scalar { bits, undefined }), scc: Some((bits != 0, any)) }
    };
    match op {
        s_add_u32 => {
            let (sum, carry) = x.overflowing_add(y);
            with(sum.into(), carry)
        }
        s_sub_u32 => {
            let (difference, borrow) = x.overflowing_sub(y);
            with(difference.into(), borrow)
        }
        s_add_i32 | s_addk_i32 => {
            let (sum, overflow) = sx.overflowing_add(sy);
            with((sum as u32).into(), overflow)
        }
        s_sub_i32 => {
            let (difference, overflow) = sx.overflowing_sub(sy);
            with((difference as u32).into(), overflow)
        }
        s_addc_u32 | s_subb_u32 => {
            let carry = u64::from(scc);
            let wide = if op == s_addc_u32 {
                u64::from(x) + u64::from(y) + carry
            } else {
                u64::from(x).wrapping_sub(u64::from(y)).wrapping_sub(carry)
            };
            let undefined = any || scc_undefined;
            let value = Scalar { bits: u64::from(wide as u32), undefined: spread(undefined) };
            Outcome { value: Some(value), scc: Some((wide >> 32 != 0, undefined)) }
        }
        s_min_i32 => with((sx.min(sy) as u32).into(), sx < sy),
        s_min_u32 => with(x.min(y).into(), x < y),
        s_max_i32 => with((sx.max(sy) as u32).into(), sx > sy),
        s_max_u32 => with(x.max(y).into(), x > y),
        s_and_b32 => logic(|x, y| x & y, low),
        s_and_b64 => logic(|x, y| x & y, all),
        s_or_b32 => logic(|x, y| x | y, low),
        s_or_b64 => logic(|x, y| x | y, all),
        s_xor_b32 => logic(|x, y| x ^ y, low),
        s_xor_b64 => logic(|x, y| x ^ y, all),
        s_andn2_b32 => logic(|x, y| x & !y, low),
        s_andn2_b64 => logic(|x, y| x & !y, all),
        s_orn2_b32 => logic(|x, y| x | !y, low),
        s_orn2_b64 => logic(|x, y| x | !y, all),
        s_nand_b32 => logic(|x, y| !(x & y), low),
        s_nand_b64 => logic(|x, y| !(x & y), all),
        s_nor_b32 => logic(|x, y| !(x | y), low),
        s_nor_b64 => logic(|x, y| !(x | y), all),
        s_xnor_b32 => logic(|x, y| !(x ^ y), low),
        s_xnor_b64 => logic(|x, y| !(x ^ y), all),
        s_not_b32 => logic(|x, _| !x, low),
        s_not_b64 => logic(|x, _| !x, all),
        s_lshl_b32 => shift((x << (y & 31)).into(), &|u| u << (y & 31) & low),
        s_lshl_b64 => shift(a.bits << (y & 63), &|u| u << (y & 63)),
        s_lshr_b32 => shift((x >> (y & 31)).into(), &|u| (u & low) >> (y & 31)),
        s_lshr_b64 => shift(a.bits >> (y & 63), &|u| u >> (y & 63)),
        s_ashr_i32 => shift(((sx >> (y & 31)) as u32).into(), &|u| (u as i32 >> (y & 31)) as u32 as u64),
        s_ashr_i64 => shift((a.bits as i64 >> (y & 63)) as u64, &|u| (u as i64 >> (y & 63)) as u64),
        s_bfm_b32 => plain((((1u32 << (x & 31)) - 1) << (y & 31)).into()),
        s_bfm_b64 => plain(((1u64 << (x & 63)) - 1) << (y & 63)),
        s_mul_i32 | s_mulk_i32 => plain(x.wrapping_mul(y).into()),
        s_mul_hi_u32 => plain((u64::from(x) * u64::from(y)) >> 32),
        s_mul_hi_i32 => plain(u64::from(((i64::from(sx) * i64::from(sy)) >> 32) as u32)),
        s_bfe_u32 | s_bfe_i32 => {
            let (offset, width) = (y & 31, y >> 16 & 127);
            let shifted = if op == s_bfe_i32 { (sx >> offset) as u32 } else { x >> offset };
            let kept = width.min(32);
            let field = if kept == 0 { 0 } else { shifted << (32 - kept) };
            let field = match (op, kept) {
                (_, 0) => 0,
                (s_bfe_i32, _) => (field as i32 >> (32 - kept)) as u32,
                _ => field >> (32 - kept),
            };
            nonzero(field.into())
        }
        s_absdiff_i32 => nonzero(sx.wrapping_sub(sy).unsigned_abs().into()),
        s_lshl1_add_u32 | s_lshl2_add_u32 | s_lshl3_add_u32 | s_lshl4_add_u32 => {
            let by = op as u32 - s_lshl1_add_u32 as u32 + 1;
            let sum = (u64::from(x) << by) + u64::from(y);
            with(u64::from(sum as u32), sum >> 32 != 0)
        }
        s_pack_ll_b32_b16 => plain((x & 0xffff | y << 16).into()),
        s_pack_lh_b32_b16 => plain((x & 0xffff | y & 0xffff_0000).into()),
        s_pack_hh_b32_b16 => plain((x >> 16 | y & 0xffff_0000).into()),
        s_movk_i32 => Outcome { value: Some(Scalar::defined(u64::from(y))), scc: None },
        s_mov_b32 | s_mov_b64 => Outcome { value: Some(a), scc: None },
        s_brev_b32 => plain(x.reverse_bits().into()),
        s_brev_b64 => plain(a.bits.reverse_bits()),
        s_bcnt1_i32_b32 => nonzero(x.count_ones().into()),
        s_bcnt1_i32_b64 => nonzero(a.bits.count_ones().into()),
        s_ff0_i32_b32 => plain(first_bit((!x).into())),
        s_ff0_i32_b64 => plain(first_bit(!a.bits)),
        s_ff1_i32_b32 => plain(first_bit(x.into())),
        s_ff1_i32_b64 => plain(first_bit(a.bits)),
        s_flbit_i32_b32 => plain(if x == 0 { low } else { x.leading_zeros().into() }),
        s_flbit_i32_b64 => plain(if a.bits == 0 { low } else { a.bits.leading_zeros().into() }),
        s_sext_i32_i8 => plain((sx as i8 as i32 as u32).into()),
        s_sext_i32_i16 => plain((sx as i16 as i32 as u32).into()),
        s_abs_i32 => nonzero(sx.unsigned_abs().into()),
        s_cmp_eq_i32 | s_cmpk_eq_i32 | s_cmp_eq_u32 => compare(x == y),
        s_cmp_lg_i32 | s_cmpk_lg_i32 | s_cmp_lg_u32 => compare(x != y),
        s_cmp_gt_i32 | s_cmpk_gt_i32 => compare(sx > sy),
        s_cmp_ge_i32 | s_cmpk_ge_i32 => compare(sx >= sy),
        s_cmp_lt_i32 | s_cmpk_lt_i32 => compare(sx < sy),
        s_cmp_le_i32 | s_cmpk_le_i32 => compare(sx <= sy),
        s_cmp_gt_u32 => compare(x > y),
        s_cmp_ge_u32 => compare(x >= y),
        s_cmp_lt_u32 => compare(x < y),
        s_cmp_le_u32 => compare(x <= y),
        // The unsigned comparisons with a constant extend it with zeros.
        s_cmpk_eq_u32 => compare(x == y & 0xffff),
        s_cmpk_lg_u32 => compare(x != y & 0xffff),
        s_cmpk_gt_u32 => compare(x > y & 0xffff),
        s_cmpk_ge_u32 => compare(x >= y & 0xffff),
        s_cmpk_lt_u32 => compare(x < y & 0xffff),
        s_cmpk_le_u32 => compare(x <= y & 0xffff),
        s_bitcmp0_b32 => compare(x >> (y & 31) & 1 == 0),
        s_bitcmp1_b32 => compare(x >> (y & 31) & 1 == 1),
        s_bitcmp0_b64 => compare(a.bits >> (y & 63) & 1 == 0),
        s_bitcmp1_b64 => compare(a.bits >> (y & 63) & 1 == 1),
        s_cmp_eq_u64 => compare(a.bits == b.bits),
        s_cmp_lg_u64 => compare(a.bits != b.bits),
        s_cselect_b32 | s_cselect_b64 | s_cmov_b32 | s_cmov_b64 | s_cmovk_i32 | s_and_saveexec_b64
        | s_or_saveexec_b64 | s_xor_saveexec_b64 | s_andn2_saveexec_b64 | s_orn2_saveexec_b64 | s_nand_saveexec_b64
        | s_nor_saveexec_b64 | s_xnor_saveexec_b64 | s_andn2_wrexec_b64 | s_getpc_b64 | s_getreg_b32 | s_setreg_b32
        | s_setreg_imm32_b32 | s_bitset0_b32 | s_bitset1_b32 | s_bitset0_b64 | s_bitset1_b64 => {
            unreachable!("executed by `Wave::salu`")
        }
    }
}

/// Index of the lowest set bit, or -1.
fn first_bit(bits: u64) -> u64 {
    if bits == 0 { u64::from(u32::MAX) } else { bits.trailing_zeros().into() }
}
