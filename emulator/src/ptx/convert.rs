//! cvt.

use super::float;
use super::ops::{AnyReg, FloatMode, Round, Ty};
use super::registers::Registers;

/// Converts in the lanes of `mask`.
#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
pub(super) fn execute(
    r: &mut Registers,
    mask: u32,
    from: Ty,
    to: Ty,
    mode: FloatMode,
    to_integral: bool,
    d: AnyReg,
    a: AnyReg,
) {
    if !from.float() && !to.float() && !mode.sat {
        // Sign- or zero-extend from the source's width, then cut to the destination's.
        let shift = 64 - from.bytes() * 8;
        let cut = u64::MAX >> (64 - to.bytes() * 8);
        let signed = from.signed();
        let extend = move |x: u64| {
            let high = x << shift;
            // Values in wide registers keep their sign beyond the type's width.
            (if signed { (high as i64 >> shift) as u64 } else { high >> shift }) & cut
        };
        return match (d, a) {
            (AnyReg::R32(d), AnyReg::R32(a)) => r.map1(mask, d, a, |x: u32| extend(u64::from(x)) as u32),
            (AnyReg::R64(d), AnyReg::R32(a)) => r.map1(mask, d, a, |x: u32| extend(u64::from(x))),
            (AnyReg::R32(d), AnyReg::R64(a)) => r.map1(mask, d, a, |x: u64| extend(x) as u32),
            (AnyReg::R64(d), AnyReg::R64(a)) => r.map1(mask, d, a, extend),
        };
    }
    for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
        let (value, undefined) = r.any_lane(a, lane);
        r.set_any_lane(d, lane, convert_scalar(from, to, mode, to_integral, value), undefined);
    }
}

fn convert_scalar(from: Ty, to: Ty, mode: FloatMode, to_integral: bool, bits: u64) -> u64 {
    // Every source fits exactly: integers of at most 64 bits, floats of at most 64.
    if !from.float() {
        let shift = 64 - from.bytes() * 8;
        let value = if from.signed() {
            i128::from((bits << shift) as i64 >> shift)
        } else {
            i128::from(bits << shift >> shift)
        };
        return match to {
            Ty::F32 => u64::from(int_to_f32(value, mode.round).to_bits()),
            Ty::F64 => (value as f64).to_bits(),
            Ty::F16 => u64::from(float::to_f16(mode.round, int_to_f32(value, Round::Zero))),
            Ty::Bf16 => u64::from(float::to_bf16(mode.round, int_to_f32(value, Round::Zero))),
            _ => clamp(value, to),
        };
    }
    let value = match from {
        Ty::F32 => f64::from(f32::from_bits(if mode.ftz { float::flush(bits as u32) } else { bits as u32 })),
        Ty::F16 => f64::from(float::from_16(false, bits as u16)),
        Ty::Bf16 => f64::from(float::from_16(true, bits as u16)),
        _ => f64::from_bits(bits),
    };
    let value = if to_integral { float::integral(mode.round, value) } else { value };
    match to {
        Ty::F32 => u64::from(float::narrow(mode, value)),
        Ty::F64 => float::bits64(value),
        Ty::F16 => u64::from(float::to_f16(mode.round, value as f32)),
        Ty::Bf16 => u64::from(float::to_bf16(mode.round, value as f32)),
        _ if value.is_nan() => 0,
        _ => clamp(value as i128, to),
    }
}

/// Clamps to an integer type's range.
fn clamp(value: i128, to: Ty) -> u64 {
    let bits = to.bytes() * 8;
    let (low, high) =
        if to.signed() { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    value.clamp(low, high) as u64 & (u64::MAX >> (64 - bits))
}

fn int_to_f32(value: i128, round: Round) -> f32 {
    let nearest = value as f32;
    let error = value - nearest as i128;
    let down = match round {
        Round::Nearest => return nearest,
        Round::Zero => value > 0,
        Round::Down => true,
        Round::Up => false,
    };
    if down && error < 0 {
        nearest.next_down()
    } else if !down && error > 0 {
        nearest.next_up()
    } else {
        nearest
    }
}
