//! Instructions that read and write registers of their own lane only.

use super::ops::*;
use super::registers::{FULL, Registers};
use super::{bits, convert, float};

/// Executes `op` in the lanes of `mask`. `false`: it is not an instruction of this kind.
#[inline]
pub(super) fn execute(r: &mut Registers, mask: u32, op: &Op) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has just been asked for both features.
        return unsafe { execute_avx2(r, mask, op) };
    }
    execute_anywhere(r, mask, op)
}

/// The same code with 8 lanes an instruction, and fused multiply-adds in hardware.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn execute_avx2(r: &mut Registers, mask: u32, op: &Op) -> bool {
    execute_anywhere(r, mask, op)
}

#[inline(always)]
fn execute_anywhere(r: &mut Registers, mask: u32, op: &Op) -> bool {
    match *op {
        Op::Int { op, width, d, a, b } => int(r, mask, op, width, d, a, b),
        Op::Shift { op, width, d, a, b } => shift(r, mask, op, width, d, a, b),
        Op::IntUnary { op, width, d, a } => int_unary(r, mask, op, width, d, a),
        Op::Count { op, signed, wide, d, a } => count(r, mask, op, signed, wide, d, a),
        Op::MulWide { signed, width, d, a, b } => match (width, signed) {
            (Width::W16, false) => r.map2(mask, d, (a, b), |x: u32, y: u32| (x & 0xffff) * (y & 0xffff)),
            (Width::W16, true) => {
                r.map2(mask, d, (a, b), |x: u32, y: u32| (i32::from(x as i16) * i32::from(y as i16)) as u32);
            }
            (_, false) => r.map2(mask, d, (a, b), |x: u32, y: u32| u64::from(x) * u64::from(y)),
            (_, true) => {
                r.map2(mask, d, (a, b), |x: u32, y: u32| (i64::from(x as i32) * i64::from(y as i32)) as u64);
            }
        },
        Op::MadWide { signed, d, a, b, c, .. } => {
            if signed {
                r.map3(mask, d, (a, b, c), |x: u32, y: u32, z: u64| {
                    ((i64::from(x as i32) * i64::from(y as i32)) as u64).wrapping_add(z)
                });
            } else {
                r.map3(mask, d, (a, b, c), |x: u32, y: u32, z: u64| (u64::from(x) * u64::from(y)).wrapping_add(z));
            }
        }
        Op::MadLo { width, d, a, b, c } => match width {
            Width::W16 => {
                r.map3(mask, d, (a, b, c), |x: u32, y: u32, z: u32| x.wrapping_mul(y).wrapping_add(z) & 0xffff)
            }
            Width::W32 => r.map3(mask, d, (a, b, c), |x: u32, y: u32, z: u32| x.wrapping_mul(y).wrapping_add(z)),
            Width::W64 => r.map3(mask, d, (a, b, c), |x: u64, y: u64, z: u64| x.wrapping_mul(y).wrapping_add(z)),
        },
        Op::BitExtract { .. }
        | Op::BitInsert { .. }
        | Op::Permute { .. }
        | Op::Logic3 { .. }
        | Op::FunnelShift { .. } => bits::execute(r, mask, op),
        Op::Mov32 { d, a } => r.map1(mask, d, a, |x: u32| x),
        Op::Mov64 { d, a } => r.map1(mask, d, a, |x: u64| x),
        Op::Pack64 { d, low, high } => {
            r.map2(mask, d, (low, high), |x: u32, y: u32| u64::from(x) | u64::from(y) << 32);
        }
        Op::Pack32 { d, low, high } => r.map2(mask, d, (low, high), |x: u32, y: u32| x & 0xffff | y << 16),
        Op::Unpack64 { low, high, a } => {
            low.into_iter().for_each(|d| r.map1(mask, d, a, |x: u64| x as u32));
            high.into_iter().for_each(|d| r.map1(mask, d, a, |x: u64| (x >> 32) as u32));
        }
        Op::Unpack32 { low, high, a } => {
            // The source may be one of the destinations.
            let (values, undefined) = (*r.get::<u32>(a), r.undefined::<u32>(a));
            low.into_iter().for_each(|d| r.set(d, mask, &values.map(|x| x & 0xffff), undefined));
            high.into_iter().for_each(|d| r.set(d, mask, &values.map(|x| x >> 16), undefined));
        }
        Op::Select32 { d, a, b, p } => select::<u32>(r, mask, d, a, b, p),
        Op::Select64 { d, a, b, p } => select::<u64>(r, mask, d, a, b, p),
        Op::SetP { compare, ty, d, not_d, a, b, with } => setp(r, mask, compare, ty, d, not_d, a, b, with),
        Op::PredMov { d, a } => {
            let (value, undefined) = r.predicate(a);
            r.set_predicate(d, mask, value, undefined);
        }
        Op::PredLogic { op, d, a, b } => {
            let (value, undefined) = logic(op, r.predicate(a), r.predicate(b));
            r.set_predicate(d, mask, value, undefined);
        }
        Op::F32 { op, mode, d, a, b } => f32_binary(r, mask, op, mode, d, a, b),
        Op::F64 { op, d, a, b } => r.map2(mask, d, (a, b), |x, y| float::binary64(op, x, y)),
        Op::Fma32 { mode: PLAIN, d, a, b, c } => r.map3(mask, d, (a, b, c), |x, y, z| float::fma(PLAIN, x, y, z)),
        Op::Fma32 { mode: FTZ, d, a, b, c } => r.map3(mask, d, (a, b, c), |x, y, z| float::fma(FTZ, x, y, z)),
        Op::Fma32 { mode, d, a, b, c } => r.map3(mask, d, (a, b, c), |x, y, z| float::fma(mode, x, y, z)),
        Op::F32Three { op, mode, d, a, b, c } => {
            r.map3(mask, d, (a, b, c), |x, y, z| float::binary(op, mode, float::binary(op, mode, x, y), z))
        }
        Op::F32x2 { op, mode, d, a, b } => {
            r.map2(mask, d, (a, b), |x: u64, y: u64| {
                halves(|shift| float::binary(op, mode, (x >> shift) as u32, (y >> shift) as u32))
            });
        }
        Op::Fma32x2 { mode, d, a, b, c } => {
            r.map3(mask, d, (a, b, c), |x: u64, y: u64, z: u64| {
                halves(|shift| float::fma(mode, (x >> shift) as u32, (y >> shift) as u32, (z >> shift) as u32))
            });
        }
        Op::Fma64 { d, a, b, c } => r.map3(mask, d, (a, b, c), float::fma64),
        Op::Unary32 { op, mode, d, a } => r.map1(mask, d, a, |x| float::unary(op, mode, x)),
        Op::Unary64 { op, d, a } => r.map1(mask, d, a, |x| float::unary64(op, x)),
        Op::Convert { from, to, mode, to_integral, d, a } => {
            convert::execute(r, mask, from, to, mode, to_integral, d, a)
        }
        Op::PackFloats { to, mode, relu, d, a, b } => match (to, mode, relu) {
            (Ty::Bf16, PLAIN, false) => r.map2(mask, d, (a, b), |x, y| float::pack(true, PLAIN, false, x, y)),
            (to, mode, relu) => {
                r.map2(mask, d, (a, b), |x, y| float::pack(to == Ty::Bf16, mode, relu, x, y));
            }
        },
        Op::PackFp8 { to, d, a, b } => r.map2(mask, d, (a, b), |x: u32, y: u32| {
            let byte = |bits| u32::from(float::to_fp8(to, f32::from_bits(bits)));
            byte(x) << 8 | byte(y)
        }),
        Op::UnpackFp8 { from, d, a } => r.map1(mask, d, a, |x: u32| {
            let half = |bits: u8| u32::from(float::to_f16(Round::Nearest, float::from_fp8(from, bits)));
            half(x as u8) | half((x >> 8) as u8) << 16
        }),
        Op::Window { to_generic, space, d, a } => {
            let start = match space {
                Space::Shared => super::decode::SHARED_WINDOW,
                Space::Local => super::decode::LOCAL_WINDOW,
                Space::Global | Space::Param | Space::Generic | Space::Tensor => 0,
            };
            let start = if to_generic { start } else { start.wrapping_neg() };
            r.map1(mask, d, a, |x: u64| x.wrapping_add(start));
        }
        _ => return false,
    }
    true
}

const PLAIN: FloatMode = FloatMode { round: Round::Nearest, ftz: false, sat: false };
const FTZ: FloatMode = FloatMode { round: Round::Nearest, ftz: true, sat: false };

/// Integer operations on a width: unsigned type, signed type, and how it sits in a register.
macro_rules! int_ops {
    ($r:ident, $mask:ident, $op:ident, $d:ident, $a:ident, $b:ident, $lane:ty, $u:ty, $s:ty, $wide_u:ty, $wide_s:ty) => {{
        let ab = ($a, $b);
        match $op {
            IntOp::Add => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).wrapping_add(y as $u) as $lane),
            IntOp::Sub => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).wrapping_sub(y as $u) as $lane),
            IntOp::MulLo => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).wrapping_mul(y as $u) as $lane),
            IntOp::MulHiU => $r.map2($mask, $d, ab, |x: $lane, y: $lane| {
                ((x as $u as $wide_u * y as $u as $wide_u) >> <$u>::BITS) as $u as $lane
            }),
            IntOp::MulHiS => $r.map2($mask, $d, ab, |x: $lane, y: $lane| {
                ((x as $s as $wide_s * y as $s as $wide_s) >> <$u>::BITS) as $u as $lane
            }),
            IntOp::DivU => $r
                .map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).checked_div(y as $u).unwrap_or(<$u>::MAX) as $lane),
            IntOp::DivS => $r.map2($mask, $d, ab, |x: $lane, y: $lane| {
                if y as $s == 0 { <$u>::MAX as $lane } else { (x as $s).wrapping_div(y as $s) as $u as $lane }
            }),
            IntOp::RemU => {
                $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).checked_rem(y as $u).unwrap_or(x as $u) as $lane)
            }
            IntOp::RemS => {
                $r.map2(
                    $mask,
                    $d,
                    ab,
                    |x: $lane, y: $lane| {
                        if y as $s == 0 { x } else { (x as $s).wrapping_rem(y as $s) as $u as $lane }
                    },
                )
            }
            IntOp::MinU => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).min(y as $u) as $lane),
            IntOp::MinS => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $s).min(y as $s) as $u as $lane),
            IntOp::MaxU => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $u).max(y as $u) as $lane),
            IntOp::MaxS => $r.map2($mask, $d, ab, |x: $lane, y: $lane| (x as $s).max(y as $s) as $u as $lane),
            IntOp::And => $r.map2($mask, $d, ab, |x: $lane, y: $lane| x & y),
            IntOp::Or => $r.map2($mask, $d, ab, |x: $lane, y: $lane| x | y),
            IntOp::Xor => $r.map2($mask, $d, ab, |x: $lane, y: $lane| x ^ y),
        }
    }};
}

/// One integer operation, for reductions.
pub(super) fn int_scalar(op: IntOp, x: u32, y: u32) -> u32 {
    match op {
        IntOp::Add => x.wrapping_add(y),
        IntOp::MinU => x.min(y),
        IntOp::MinS => (x as i32).min(y as i32) as u32,
        IntOp::MaxU => x.max(y),
        IntOp::MaxS => (x as i32).max(y as i32) as u32,
        IntOp::And => x & y,
        IntOp::Or => x | y,
        IntOp::Xor => x ^ y,
        _ => unreachable!("the decoder allows no other reduction"),
    }
}

#[inline(always)]
fn int(r: &mut Registers, mask: u32, op: IntOp, width: Width, d: Reg, a: Reg, b: Reg) {
    let divides = matches!(op, IntOp::DivU | IntOp::DivS | IntOp::RemU | IntOp::RemS);
    let by_zero = if divides { mask & zero_lanes(r, width, b) } else { 0 };
    match width {
        Width::W16 => int_ops!(r, mask, op, d, a, b, u32, u16, i16, u32, i32),
        Width::W32 => int_ops!(r, mask, op, d, a, b, u32, u32, i32, u64, i64),
        Width::W64 => int_ops!(r, mask, op, d, a, b, u64, u64, i64, u128, i128),
    }
    // PTX leaves the result of a division by zero open.
    match width {
        _ if by_zero == 0 => {}
        Width::W16 | Width::W32 => r.set_undefined::<u32>(d, by_zero),
        Width::W64 => r.set_undefined::<u64>(d, by_zero),
    }
}

fn zero_lanes(r: &Registers, width: Width, b: Reg) -> u32 {
    match width {
        Width::W16 => r.test2::<u32>(b, b, |y, _| y as u16 == 0).0,
        Width::W32 => r.test2::<u32>(b, b, |y, _| y == 0).0,
        Width::W64 => r.test2::<u64>(b, b, |y, _| y == 0).0,
    }
}

#[inline(always)]
fn shift(r: &mut Registers, mask: u32, op: ShiftOp, width: Width, d: Reg, a: Reg, b: Reg) {
    let ab = (a, b);
    match (width, op) {
        (Width::W16, ShiftOp::Left) => r.map2(mask, d, ab, |x: u32, n: u32| if n > 15 { 0 } else { x << n & 0xffff }),
        (Width::W16, ShiftOp::RightU) => r.map2(mask, d, ab, |x: u32, n: u32| (x & 0xffff) >> n.min(31)),
        (Width::W16, ShiftOp::RightS) => {
            r.map2(mask, d, ab, |x: u32, n: u32| u32::from((x as i16 >> n.min(15)) as u16));
        }
        (Width::W32, ShiftOp::Left) => r.map2(mask, d, ab, |x: u32, n: u32| if n > 31 { 0 } else { x << n }),
        (Width::W32, ShiftOp::RightU) => r.map2(mask, d, ab, |x: u32, n: u32| if n > 31 { 0 } else { x >> n }),
        (Width::W32, ShiftOp::RightS) => r.map2(mask, d, ab, |x: u32, n: u32| (x as i32 >> n.min(31)) as u32),
        (Width::W64, ShiftOp::Left) => r.map2(mask, d, ab, |x: u64, n: u32| if n > 63 { 0 } else { x << n }),
        (Width::W64, ShiftOp::RightU) => r.map2(mask, d, ab, |x: u64, n: u32| if n > 63 { 0 } else { x >> n }),
        (Width::W64, ShiftOp::RightS) => r.map2(mask, d, ab, |x: u64, n: u32| (x as i64 >> n.min(63)) as u64),
    }
}

#[inline(always)]
fn int_unary(r: &mut Registers, mask: u32, op: IntUnary, width: Width, d: Reg, a: Reg) {
    match (width, op) {
        (Width::W16, IntUnary::Neg) => r.map1(mask, d, a, |x: u32| x.wrapping_neg() & 0xffff),
        (Width::W16, IntUnary::Abs) => r.map1(mask, d, a, |x: u32| u32::from((x as i16).unsigned_abs())),
        (Width::W16, IntUnary::Not) => r.map1(mask, d, a, |x: u32| !x & 0xffff),
        (Width::W16, IntUnary::Brev) => r.map1(mask, d, a, |x: u32| u32::from((x as u16).reverse_bits())),
        (Width::W32, IntUnary::Neg) => r.map1(mask, d, a, |x: u32| x.wrapping_neg()),
        (Width::W32, IntUnary::Abs) => r.map1(mask, d, a, |x: u32| (x as i32).unsigned_abs()),
        (Width::W32, IntUnary::Not) => r.map1(mask, d, a, |x: u32| !x),
        (Width::W32, IntUnary::Brev) => r.map1(mask, d, a, |x: u32| x.reverse_bits()),
        (Width::W64, IntUnary::Neg) => r.map1(mask, d, a, |x: u64| x.wrapping_neg()),
        (Width::W64, IntUnary::Abs) => r.map1(mask, d, a, |x: u64| (x as i64).unsigned_abs()),
        (Width::W64, IntUnary::Not) => r.map1(mask, d, a, |x: u64| !x),
        (Width::W64, IntUnary::Brev) => r.map1(mask, d, a, |x: u64| x.reverse_bits()),
    }
}

#[inline(always)]
fn count(r: &mut Registers, mask: u32, op: CountOp, signed: bool, wide: bool, d: Reg, a: Reg) {
    match (op, wide) {
        (CountOp::Ones, false) => r.map1(mask, d, a, |x: u32| x.count_ones()),
        (CountOp::Ones, true) => r.map1(mask, d, a, |x: u64| x.count_ones()),
        (CountOp::LeadingZeros, false) => r.map1(mask, d, a, |x: u32| x.leading_zeros()),
        (CountOp::LeadingZeros, true) => r.map1(mask, d, a, |x: u64| x.leading_zeros()),
        (CountOp::HighestOne, false) => r.map1(mask, d, a, |x: u32| {
            let x = if signed && x >> 31 != 0 { !x } else { x };
            x.checked_ilog2().unwrap_or(u32::MAX)
        }),
        (CountOp::HighestOne, true) => r.map1(mask, d, a, |x: u64| {
            let x = if signed && x >> 63 != 0 { !x } else { x };
            x.checked_ilog2().unwrap_or(u32::MAX)
        }),
    }
}

#[inline(always)]
fn select<T: super::registers::Lane>(r: &mut Registers, mask: u32, d: Reg, a: Reg, b: Reg, p: Reg) {
    let (takes_a, undefined) = r.predicate(PredSource { reg: p, negate: false });
    let (x, y) = (r.get::<T>(a), r.get::<T>(b));
    let mut values = *y;
    for lane in 0..32 {
        values[lane] = if takes_a >> lane & 1 != 0 { x[lane] } else { y[lane] };
    }
    let undefined = undefined | takes_a & r.undefined::<T>(a) | !takes_a & r.undefined::<T>(b);
    r.set(d, mask, &values, undefined);
}

/// Combines two predicates. A known operand that decides alone makes the result defined.
#[inline(always)]
fn logic(op: Logic, (a, a_undefined): (u32, u32), (b, b_undefined): (u32, u32)) -> (u32, u32) {
    let undefined = a_undefined | b_undefined;
    match op {
        Logic::And => (a & b, undefined & !(!a & !a_undefined) & !(!b & !b_undefined)),
        Logic::Or => (a | b, undefined & !(a & !a_undefined) & !(b & !b_undefined)),
        Logic::Xor => (a ^ b, undefined),
    }
}

macro_rules! compare_ints {
    ($r:ident, $compare:ident, $a:ident, $b:ident, $lane:ty, $ty:ty) => {
        match $compare {
            Compare::Eq | Compare::Equ => $r.test2::<$lane>($a, $b, |x, y| x as $ty == y as $ty),
            Compare::Ne | Compare::Neu => $r.test2::<$lane>($a, $b, |x, y| x as $ty != y as $ty),
            Compare::Lt | Compare::Ltu => $r.test2::<$lane>($a, $b, |x, y| (x as $ty) < y as $ty),
            Compare::Le | Compare::Leu => $r.test2::<$lane>($a, $b, |x, y| x as $ty <= y as $ty),
            Compare::Gt | Compare::Gtu => $r.test2::<$lane>($a, $b, |x, y| x as $ty > y as $ty),
            Compare::Ge | Compare::Geu => $r.test2::<$lane>($a, $b, |x, y| x as $ty >= y as $ty),
            Compare::Num => (FULL, 0),
            Compare::Nan => (0, 0),
        }
    };
}

macro_rules! compare_floats {
    ($r:ident, $compare:ident, $a:ident, $b:ident, $lane:ty, $float:expr) => {{
        let f = $float;
        match $compare {
            Compare::Eq => $r.test2::<$lane>($a, $b, |x, y| f(x) == f(y)),
            Compare::Ne => $r.test2::<$lane>($a, $b, |x, y| f(x) < f(y) || f(x) > f(y)),
            Compare::Lt => $r.test2::<$lane>($a, $b, |x, y| f(x) < f(y)),
            Compare::Le => $r.test2::<$lane>($a, $b, |x, y| f(x) <= f(y)),
            Compare::Gt => $r.test2::<$lane>($a, $b, |x, y| f(x) > f(y)),
            Compare::Ge => $r.test2::<$lane>($a, $b, |x, y| f(x) >= f(y)),
            Compare::Equ => $r.test2::<$lane>($a, $b, |x, y| !(f(x) < f(y) || f(x) > f(y))),
            Compare::Neu => $r.test2::<$lane>($a, $b, |x, y| f(x) != f(y)),
            Compare::Ltu => $r.test2::<$lane>($a, $b, |x, y| !(f(x) >= f(y))),
            Compare::Leu => $r.test2::<$lane>($a, $b, |x, y| !(f(x) > f(y))),
            Compare::Gtu => $r.test2::<$lane>($a, $b, |x, y| !(f(x) <= f(y))),
            Compare::Geu => $r.test2::<$lane>($a, $b, |x, y| !(f(x) < f(y))),
            Compare::Num => $r.test2::<$lane>($a, $b, |x, y| !f(x).is_nan() && !f(y).is_nan()),
            Compare::Nan => $r.test2::<$lane>($a, $b, |x, y| f(x).is_nan() || f(y).is_nan()),
        }
    }};
}

#[inline(always)]
#[allow(clippy::too_many_arguments, reason = "the fields of one instruction")]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "unordered comparisons are true for NaN")]
fn setp(
    r: &mut Registers,
    mask: u32,
    compare: Compare,
    ty: CompareTy,
    d: Reg,
    not_d: Option<Reg>,
    a: Reg,
    b: Reg,
    with: Option<(Logic, PredSource)>,
) {
    let (value, undefined) = match ty {
        CompareTy::U16 => compare_ints!(r, compare, a, b, u32, u16),
        CompareTy::S16 => compare_ints!(r, compare, a, b, u32, i16),
        CompareTy::U32 => compare_ints!(r, compare, a, b, u32, u32),
        CompareTy::S32 => compare_ints!(r, compare, a, b, u32, i32),
        CompareTy::U64 => compare_ints!(r, compare, a, b, u64, u64),
        CompareTy::S64 => compare_ints!(r, compare, a, b, u64, i64),
        CompareTy::F32 { ftz: false } => compare_floats!(r, compare, a, b, u32, f32::from_bits),
        CompareTy::F32 { ftz: true } => {
            compare_floats!(r, compare, a, b, u32, |x| f32::from_bits(float::flush(x)))
        }
        CompareTy::F64 => compare_floats!(r, compare, a, b, u64, f64::from_bits),
    };
    let combine = |value| match with {
        Some((op, p)) => logic(op, (value, undefined), r.predicate(p)),
        None => (value, undefined),
    };
    let (result, negated) = (combine(value), combine(!value));
    r.set_predicate(d, mask, result.0, result.1);
    if let Some(not_d) = not_d {
        r.set_predicate(not_d, mask, negated.0, negated.1);
    }
}

/// A register whose 32-bit halves are `f` of their first bit.
#[inline(always)]
fn halves(f: impl Fn(u32) -> u32) -> u64 {
    u64::from(f(0)) | u64::from(f(32)) << 32
}

#[inline(always)]
fn f32_binary(r: &mut Registers, mask: u32, op: FloatOp, mode: FloatMode, d: Reg, a: Reg, b: Reg) {
    let ab = (a, b);
    // The common cases are loops of their own, so that they are vectorised.
    match (op, mode) {
        (FloatOp::Add, PLAIN) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Add, PLAIN, x, y)),
        (FloatOp::Sub, PLAIN) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Sub, PLAIN, x, y)),
        (FloatOp::Mul, PLAIN) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Mul, PLAIN, x, y)),
        (FloatOp::Max, PLAIN) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Max, PLAIN, x, y)),
        (FloatOp::Min, PLAIN) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Min, PLAIN, x, y)),
        (FloatOp::Add, FTZ) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Add, FTZ, x, y)),
        (FloatOp::Mul, FTZ) => r.map2(mask, d, ab, |x, y| float::binary(FloatOp::Mul, FTZ, x, y)),
        (op, mode) => r.map2(mask, d, ab, |x, y| float::binary(op, mode, x, y)),
    }
}
