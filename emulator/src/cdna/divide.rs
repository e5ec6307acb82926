//! The steps of an fp32 division: `v_div_scale`, `v_div_fmas`, `v_div_fixup`.
//!
//! The manual's conditions for scaling are kept, with one reading of them: where the reciprocal of the denominator and
//! the quotient are both denormal, the denominator is scaled down. (Scaled up, as the manual's text has it, it would
//! overflow.) The whole sequence gives the correctly rounded quotient, which is tested.

use super::float;
use super::inst::Inst;
use super::operands::union;
use super::wave::{As, Vector, Wave};
use crate::fault::Trap;

impl Wave {
    /// `v_div_scale`: brings denominator (source 1) and numerator (source 2) into a range where the division
    /// cannot overflow or lose bits; the first source says which of the two is wanted. VCC: the quotient must be
    /// scaled back by `v_div_fmas`.
    pub(super) fn divide_scale(&mut self, inst: &Inst) -> Result<(), Trap> {
        let [s0, s1, s2] = [0, 1, 2].map(|n| self.source(inst, n, As::B32));
        let undefined = union(&[s0, s1, s2]);
        let mut vcc = 0;
        let bits = std::array::from_fn(|l| {
            let [wanted, d, n] = [s0.bits[l], s1.bits[l], s2.bits[l]].map(f32::from_bits);
            let (value, scaled) = scale(wanted, d, n);
            vcc |= u64::from(scaled) << l;
            value.to_bits()
        });
        self.put(inst, Vector { bits, undefined });
        self.put_mask(inst.sdst, vcc, undefined)
    }

    /// `v_div_fmas`: a multiply-add, scaled back by 2^64 or 2^-64 where VCC is set.
    pub(super) fn divide_fmas(&mut self, inst: &Inst) {
        let vcc = self.vcc();
        let [a, b, c] = [0, 1, 2].map(|n| self.source(inst, n, As::B32));
        let mut bits = std::array::from_fn(|l| {
            let [a, b, c] = [a.bits[l], b.bits[l], c.bits[l]].map(f32::from_bits);
            let sum = float::fma(a, b, c);
            match (vcc.bits >> l & 1, exponent(c) > 127) {
                (0, _) => sum,
                (_, true) => float::ldexp(sum, 64),
                _ => float::ldexp(sum, -64),
            }
            .to_bits()
        });
        self.finish_float(inst, &mut bits);
        self.put(inst, Vector { bits, undefined: union(&[a, b, c]) | vcc.undefined });
    }
}

/// The biased exponent.
fn exponent(x: f32) -> i32 {
    (x.to_bits() >> 23 & 0xff) as i32
}

/// The scaled operand, and whether the quotient is off by 2^64.
fn scale(wanted: f32, d: f32, n: f32) -> (f32, bool) {
    let is_d = wanted.to_bits() == d.to_bits();
    let is_n = wanted.to_bits() == n.to_bits();
    let up = |yes: bool| if yes { float::ldexp(wanted, 64) } else { wanted };
    let tiny_reciprocal = (1.0 / f64::from(d)).abs() < 2f64.powi(-126) && d.is_finite();
    let tiny_quotient = {
        let quotient = (f64::from(n) / f64::from(d)).abs();
        quotient > 0.0 && quotient < 2f64.powi(-126)
    };
    if n == 0.0 || d == 0.0 {
        (f32::NAN, false)
    } else if exponent(n) - exponent(d) >= 96 {
        (up(is_d), true)
    } else if d.is_subnormal() {
        (up(true), false)
    } else if tiny_reciprocal && tiny_quotient {
        (if is_d { float::ldexp(wanted, -64) } else { wanted }, true)
    } else if tiny_reciprocal {
        (float::ldexp(wanted, -64), false)
    } else if tiny_quotient {
        (up(is_n), true)
    } else {
        (up(exponent(n) <= 23), false)
    }
}

/// The quotient with the special cases put right.
pub(super) fn fixup(quotient: f32, d: f32, n: f32) -> f32 {
    let sign = if d.is_sign_negative() != n.is_sign_negative() { -1.0 } else { 1.0 };
    if n.is_nan() {
        n
    } else if d.is_nan() {
        d
    } else if (d == 0.0 && n == 0.0) || (d.is_infinite() && n.is_infinite()) {
        f32::NAN
    } else if d == 0.0 || n.is_infinite() {
        sign * f32::INFINITY
    } else if d.is_infinite() || n == 0.0 {
        sign * 0.0
    } else if quotient.is_nan() {
        // The quotient overflowed, and its refinement subtracted infinities.
        sign * f32::INFINITY
    } else {
        sign * quotient.abs()
    }
}
