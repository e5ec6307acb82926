//! Executes vector comparisons.

use super::float;
use super::inst::{Compare, CompareType, Inst, Operand};
use super::wave::{As, LANES, Wave};
use crate::fault::Trap;
use std::cmp::Ordering;

/// Bits of a float condition's code: whether it holds for less, equal, greater. Codes from 8 negate (and so hold for
/// NaN).
fn float_condition(code: u8, order: Option<Ordering>) -> bool {
    // 7 is "ordered", which holds for all three; its negation, 8, is "unordered".
    let (base, negate) = if code < 8 { (code, false) } else { (15 - code, true) };
    let holds = match order {
        None => false,
        Some(Ordering::Less) => base & 1 != 0,
        Some(Ordering::Equal) => base & 2 != 0,
        Some(Ordering::Greater) => base & 4 != 0,
    };
    holds != negate
}

/// The same for integers, whose code 7 is "true".
fn integer_condition(code: u8, order: Ordering) -> bool {
    let bit = match order {
        Ordering::Less => 1,
        Ordering::Equal => 2,
        Ordering::Greater => 4,
    };
    code & bit != 0
}

impl Wave {
    pub(super) fn compare(&mut self, inst: &Inst, compare: Compare) -> Result<(), Trap> {
        use CompareType::*;
        let code = compare.condition;
        let (bits, undefined) = match compare.ty {
            F32 => self.compare32(inst, As::B32, |a, b| {
                let flush = self.mode.flush_inputs();
                let [a, b] = [a, b].map(|x| if flush { float::flush(f32::from_bits(x)) } else { f32::from_bits(x) });
                float_condition(code, a.partial_cmp(&b))
            }),
            F16 => self.compare32(inst, As::B16, |a, b| {
                let [a, b] = [a, b].map(|x| float::f16_to_f32(x as u16));
                float_condition(code, a.partial_cmp(&b))
            }),
            ClassF32 => self.compare32(inst, As::B32, |a, classes| float::class(a, 8, 23) & classes != 0),
            ClassF16 => self.compare32(inst, As::B16, |a, classes| float::class(a & 0xffff, 5, 10) & classes != 0),
            I32 => self.compare32(inst, As::B32, |a, b| integer_condition(code, (a as i32).cmp(&(b as i32)))),
            U32 => self.compare32(inst, As::B32, |a, b| integer_condition(code, a.cmp(&b))),
            I16 => self.compare32(inst, As::B16, |a, b| integer_condition(code, (a as i16).cmp(&(b as i16)))),
            U16 => self.compare32(inst, As::B16, |a, b| integer_condition(code, (a as u16).cmp(&(b as u16)))),
            F64 => self
                .compare64(inst, true, |a, b| float_condition(code, f64::from_bits(a).partial_cmp(&f64::from_bits(b)))),
            I64 => self.compare64(inst, false, |a, b| integer_condition(code, (a as i64).cmp(&(b as i64)))),
            U64 => self.compare64(inst, false, |a, b| integer_condition(code, a.cmp(&b))),
        };
        self.put_mask(inst.dst, bits, undefined)?;
        if compare.exec {
            self.put_mask(Operand::EXEC, bits, undefined)?;
        }
        Ok(())
    }

    fn compare32(&self, inst: &Inst, as_: As, f: impl Fn(u32, u32) -> bool) -> (u64, u64) {
        let (a, b) = (self.source(inst, 0, as_), self.source(inst, 1, as_));
        let bits = (0..LANES).fold(0, |mask, l| mask | u64::from(f(a.bits[l], b.bits[l])) << l);
        (bits, a.undefined | b.undefined)
    }

    fn compare64(&self, inst: &Inst, double: bool, f: impl Fn(u64, u64) -> bool) -> (u64, u64) {
        let (a, b) = (self.wide_source(inst, 0, double), self.wide_source(inst, 1, double));
        let bits = (0..LANES).fold(0, |mask, l| mask | u64::from(f(a.bits[l], b.bits[l])) << l);
        (bits, a.tainted() | b.tainted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_conditions() {
        let names = Compare::FLOAT;
        let holds = |name: &str, order| float_condition(names.iter().position(|n| *n == name).unwrap() as u8, order);
        for (order, yes) in [
            (Some(Ordering::Less), ["lt", "le", "lg", "o", "nge", "ngt", "neq", "tru"]),
            (Some(Ordering::Equal), ["eq", "le", "ge", "o", "nlg", "ngt", "nlt", "tru"]),
            (Some(Ordering::Greater), ["gt", "ge", "lg", "o", "nle", "nlt", "neq", "tru"]),
            (None, ["u", "nge", "nlg", "ngt", "nle", "neq", "nlt", "tru"]),
        ] {
            for name in names {
                assert_eq!(holds(name, order), yes.contains(&name), "{name} {order:?}");
            }
        }
    }
}
