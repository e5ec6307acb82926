//! Matrix instructions: ldmatrix, stmatrix, mma.sync.

use super::access::{addresses, count_rows, need_whole_warp, shared_address};
use super::float;
use super::ops::{Address, MatrixTy, Mma, Reg};
use super::registers::{FULL, LANES};
use super::warp::{Context, lanes_of};
use crate::fault::Trap;
use crate::memory::Data;

/// The rows that a matrix load or store accesses: one address from each of the first `8 * count` lanes.
fn row_addresses(cx: &mut Context<'_, '_>, address: Address, count: u8, stores: bool) -> Result<[u64; LANES], Trap> {
    need_whole_warp(cx)?;
    cx.mask = FULL >> (LANES - 8 * usize::from(count));
    let rows = addresses(cx, address);
    cx.mask = FULL;
    let rows = rows?;
    count_rows(cx, &rows[..8 * usize::from(count)], stores);
    Ok(rows)
}

/// ldmatrix: `count` matrices of 8 rows of 8 16-bit elements.
pub(super) fn load(
    cx: &mut Context<'_, '_>,
    address: Address,
    count: u8,
    transpose: bool,
    d: &[Reg; 4],
) -> Result<(), Trap> {
    let addresses = row_addresses(cx, address, count, false)?;
    for (matrix, &d) in d.iter().enumerate().take(count.into()) {
        let mut rows = [Data::default(); 8];
        for (row, data) in rows.iter_mut().enumerate() {
            let lane = 8 * matrix + row;
            let (thread, at) = (cx.thread(lane), addresses[lane]);
            let read = cx.block.shared.read(thread, shared_address(at), 16, 16);
            *data = read.map_err(|kind| cx.trap(kind, lane, Some(at)))?;
        }
        let mut values = [0; LANES];
        let mut undefined = 0;
        for lane in 0..LANES {
            let (g, t) = (lane / 4, lane % 4);
            if transpose {
                let element = |row: &Data| row.words[g / 2] >> (16 * (g % 2)) & 0xffff;
                let (low, high) = (&rows[2 * t], &rows[2 * t + 1]);
                values[lane] = element(low) | element(high) << 16;
                undefined |= u32::from((low.undefined | high.undefined) >> (g / 2) & 1) << lane;
            } else {
                values[lane] = rows[g].words[t];
                undefined |= u32::from(rows[g].undefined >> t & 1) << lane;
            }
        }
        cx.warp.registers.set(d, FULL, &values, undefined);
    }
    Ok(())
}

/// stmatrix: the inverse of ldmatrix.
pub(super) fn store(
    cx: &mut Context<'_, '_>,
    address: Address,
    count: u8,
    transpose: bool,
    a: &[Reg; 4],
) -> Result<(), Trap> {
    let addresses = row_addresses(cx, address, count, true)?;
    for (matrix, &a) in a.iter().enumerate().take(count.into()) {
        let (values, undefined) = (*cx.warp.registers.get::<u32>(a), cx.warp.registers.undefined::<u32>(a));
        for row in 0..8 {
            let mut data = Data::default();
            for column in 0..8 {
                let (lane, half) =
                    if transpose { (4 * column + row / 2, row % 2) } else { (4 * row + column / 2, column % 2) };
                data.words[column / 2] |= (values[lane] >> (16 * half) & 0xffff) << (16 * (column % 2));
                data.undefined |= ((undefined >> lane & 1) as u8) << (column / 2);
            }
            let lane = 8 * matrix + row;
            let (thread, at) = (cx.thread(lane), addresses[lane]);
            let written = cx.block.shared.write(thread, shared_address(at), 16, 16, data);
            written.map_err(|kind| cx.trap(kind, lane, Some(at)))?;
        }
    }
    cx.block.made_progress();
    Ok(())
}

/// Rows of A, columns of B, and the most that is summed in one step.
const M: usize = 16;
const N: usize = 8;
const K: usize = 16;

/// Fractional bits that a step keeps below its largest term.
const FRACTION: i32 = 25;
/// The exponent of a zero: below that of anything else.
const ZERO_EXPONENT: i32 = -1000;
/// The exponent of infinities and NaN: above that of anything else, even times zero.
const SPECIAL_EXPONENT: i32 = 2000;

/// The registers of a warp's operand.
type Fragment<const R: usize> = [[u32; LANES]; R];

/// One step's operands as exact f32, with the exponents that the hardware aligns by.
struct Operands {
    a: [[f32; K]; M],
    a_exponent: [[i32; K]; M],
    b: [[f32; N]; K],
    b_exponent: [[i32; N]; K],
}

/// mma.sync with f32 accumulators.
pub(super) fn multiply(cx: &mut Context<'_, '_>, mma: &Mma) -> Result<(), Trap> {
    need_whole_warp(cx)?;
    cx.block.counters.matrix_macs += (M * N) as u64 * u64::from(mma.k);
    let r = &cx.warp.registers;
    let (a, b, c) = (mma.a.map(|a| *r.get(a)), mma.b.map(|b| *r.get(b)), mma.c.map(|c| *r.get(c)));
    let d = product(mma, &a, &b, &c);
    let undefined = undefined_elements(cx, mma);
    for (i, &reg) in mma.d.iter().enumerate() {
        cx.warp.registers.set::<u32>(reg, FULL, &d[i], undefined[i]);
    }
    Ok(())
}

/// `a * b + c` on the registers of a warp.
fn product(mma: &Mma, a: &Fragment<4>, b: &Fragment<2>, c: &Fragment<4>) -> Fragment<4> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has just been asked for the feature.
        return unsafe { product_avx2(mma, a, b, c) };
    }
    product_anywhere(mma, a, b, c)
}

/// The same code with 8 elements an instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn product_avx2(mma: &Mma, a: &Fragment<4>, b: &Fragment<2>, c: &Fragment<4>) -> Fragment<4> {
    product_anywhere(mma, a, b, c)
}

#[inline(always)]
fn product_anywhere(mma: &Mma, a: &Fragment<4>, b: &Fragment<2>, c: &Fragment<4>) -> Fragment<4> {
    let mut accumulators = [[0f32; N]; M];
    for (i, c) in c.iter().enumerate() {
        for lane in 0..LANES {
            accumulators[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] = f32::from_bits(c[lane]);
        }
    }
    // Hopper has no 8-bit products: the operands are converted to f16 and multiplied 16 at a time (of k = 32 first
    // the low halves of the registers, then the high ones), and the accumulator is added at the end.
    let converted = mma.per_register() == 4;
    let mut sums = if converted { [[0f32; N]; M] } else { accumulators };
    let steps = (mma.k as usize).div_ceil(K);
    let per_step = mma.per_register() / steps;
    for step in 0..steps {
        let mut operands = Operands {
            a: [[0.0; K]; M],
            a_exponent: [[ZERO_EXPONENT; K]; M],
            b: [[0.0; N]; K],
            b_exponent: [[ZERO_EXPONENT; N]; K],
        };
        // The order within a step does not matter, as long as it is the same for A and B.
        for slot in 0..mma.b_registers() * per_step {
            let (register, e) = (slot / per_step, step * per_step + slot % per_step);
            let (values, exponents) = elements(mma.b_ty, &b[register], e);
            for lane in 0..LANES {
                let k = 2 * (lane % 4) + 8 * (slot / 2) + slot % 2;
                operands.b[k][lane / 4] = values[lane];
                operands.b_exponent[k][lane / 4] = exponents[lane];
            }
            // Registers of A come in pairs, for the upper and the lower 8 rows.
            for half in 0..2 {
                let (values, exponents) = elements(mma.a_ty, &a[2 * register + half], e);
                for lane in 0..LANES {
                    let k = 2 * (lane % 4) + 8 * (slot / 2) + slot % 2;
                    operands.a[lane / 4 + 8 * half][k] = values[lane];
                    operands.a_exponent[lane / 4 + 8 * half][k] = exponents[lane];
                }
            }
        }
        accumulate(&operands, &mut sums);
    }
    if converted {
        for (sums, accumulators) in sums.iter_mut().zip(&accumulators) {
            for (sum, accumulator) in sums.iter_mut().zip(accumulators) {
                *sum += accumulator;
            }
        }
    }
    let mut d = [[0; LANES]; 4];
    for (i, d) in d.iter_mut().enumerate() {
        for lane in 0..LANES {
            let value = sums[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
            d[lane] = if value.is_nan() { 0x7fff_ffff } else { value.to_bits() };
        }
    }
    d
}

/// Values of element `index` of each lane's register, and their exponents: subnormals have that of the
/// smallest normal number.
#[inline(always)]
fn elements(ty: MatrixTy, register: &[u32; LANES], index: usize) -> ([f32; LANES], [i32; LANES]) {
    let least = if ty == MatrixTy::Bf16 { -126 } else { -14 };
    let mut values = [0f32; LANES];
    for lane in 0..LANES {
        values[lane] = match ty {
            MatrixTy::Bf16 => f32::from_bits(register[lane] >> (16 * index) << 16),
            MatrixTy::F16 => from_f16(register[lane] >> (16 * index) & 0xffff),
            MatrixTy::E4m3 | MatrixTy::E5m2 => float::from_fp8(ty, (register[lane] >> (8 * index)) as u8),
        };
    }
    (values, values.map(|value| exponent(value, least)))
}

/// f16 to f32 without a branch, so that it is vectorised.
#[inline(always)]
pub(super) fn from_f16(bits: u32) -> f32 {
    let magnitude = (bits & 0x7fff) << 13;
    // Moving the exponent's bias by a multiplication makes subnormals right too.
    let value = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let value = if magnitude >= 0x7c00 << 13 { magnitude | 0x7f80_0000 } else { value };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

#[inline(always)]
fn exponent(value: f32, least: i32) -> i32 {
    let field = (value.to_bits() >> 23 & 0xff) as i32;
    let exponent = if value == 0.0 { ZERO_EXPONENT } else { (field - 127).max(least) };
    if field == 0xff { SPECIAL_EXPONENT } else { exponent }
}

/// Lanes in which each register of D is undefined: rows of A, columns of B and elements of C decide.
fn undefined_elements(cx: &Context<'_, '_>, mma: &Mma) -> [u32; 4] {
    let of = |reg: Reg| cx.warp.registers.undefined::<u32>(reg);
    let mut undefined = mma.c.map(of);
    let (mut rows, mut columns) = (0u32, 0u32);
    for (i, &a) in mma.a.iter().enumerate().take(2 * mma.b_registers()) {
        lanes_of(of(a)).for_each(|lane| rows |= 1 << (lane / 4 + 8 * (i % 2)));
    }
    for &b in &mma.b[..mma.b_registers()] {
        lanes_of(of(b)).for_each(|lane| columns |= 1 << (lane / 4));
    }
    if rows | columns != 0 {
        for (i, undefined) in undefined.iter_mut().enumerate() {
            for lane in 0..LANES {
                let row = rows >> (lane / 4 + 8 * (i / 2));
                let column = columns >> (2 * (lane % 4) + i % 2);
                *undefined |= ((row | column) & 1) << lane;
            }
        }
    }
    undefined
}

/// Adds a step's products to the sums as Hopper's tensor cores do: the products are exact; they and the
/// accumulator are aligned to the largest exponent among them (an operand's exponent, not the product's) and cut
/// off 25 bits below it; their sum is exact, and is cut off to f32. The published studies of this arithmetic say
/// so, and so do the values recorded on an H200, bit by bit. sm_100 is taken to do the same.
#[inline(always)]
fn accumulate(operands: &Operands, sums: &mut [[f32; N]; M]) {
    for (m, sums) in sums.iter_mut().enumerate() {
        let mut largest = [ZERO_EXPONENT; N];
        for n in 0..N {
            largest[n] = exponent(sums[n], -126);
        }
        for k in 0..K {
            for n in 0..N {
                largest[n] = largest[n].max(operands.a_exponent[m][k] + operands.b_exponent[k][n]);
            }
        }
        // Within these bounds no product or scale leaves the range of f32 in a way that could be seen.
        // Infinities and NaN are beyond them.
        let ordinary = |e: i32| (-90..=100).contains(&e);
        // Where all terms are zeros, any exponent will do.
        let largest = largest.map(|e| if e < 2 * -149 { 0 } else { e });
        if largest.into_iter().all(ordinary) {
            accumulate_row(operands, m, sums, &largest);
        } else {
            for n in 0..N {
                sums[n] = accumulate_exactly(operands, m, n, sums[n]);
            }
        }
    }
}

/// One row, with every exponent in `largest` from -90 to 100.
#[inline(always)]
fn accumulate_row(operands: &Operands, m: usize, sums: &mut [f32; N], largest: &[i32; N]) {
    let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
    let cut = |scaled: f32| -> i32 {
        // SAFETY: a term is finite and less than 4 times 2^largest, so less than 2^27 when it is scaled.
        unsafe { scaled.to_int_unchecked() }
    };
    let scale = largest.map(|e| power(FRACTION - e));
    // Two sums of at most 9 terms each: less than 2^31.
    let (mut even, mut odd) = ([0i32; N], [0i32; N]);
    for n in 0..N {
        even[n] = cut(sums[n] * scale[n]);
    }
    for k in (0..K).step_by(2) {
        for n in 0..N {
            even[n] += cut(operands.a[m][k] * operands.b[k][n] * scale[n]);
            odd[n] += cut(operands.a[m][k + 1] * operands.b[k + 1][n] * scale[n]);
        }
    }
    for n in 0..N {
        let sum = f64::from(even[n]) + f64::from(odd[n]);
        // Cut the 53 bits to 24.
        let cut = f64::from_bits(sum.to_bits() & !0x1fff_ffff) as f32;
        sums[n] = cut * power(largest[n] - FRACTION);
    }
}

/// One element, whatever its size: the specification of [`accumulate`].
fn accumulate_exactly(operands: &Operands, m: usize, n: usize, sum: f32) -> f32 {
    let terms = || (0..K).map(|k| (operands.a[m][k], operands.b[k][n]));
    let exponents = (0..K).map(|k| operands.a_exponent[m][k] + operands.b_exponent[k][n]);
    if sum.is_nan() || terms().any(|(a, b)| (a * b).is_nan()) {
        return f32::NAN;
    }
    let infinite = |sign: bool| {
        let product = |(a, b): (f32, f32)| {
            (a.is_infinite() || b.is_infinite()) && (a.is_sign_negative() != b.is_sign_negative()) == sign
        };
        terms().any(product) || sum.is_infinite() && sum.is_sign_negative() == sign
    };
    match (infinite(false), infinite(true)) {
        (true, true) => return f32::NAN,
        (true, false) => return f32::INFINITY,
        (false, true) => return f32::NEG_INFINITY,
        (false, false) => {}
    }
    let largest = exponents.chain([exponent(sum, -126)]).max().unwrap_or(ZERO_EXPONENT);
    if largest < 2 * -149 {
        return 0.0;
    }
    // In f64 no product of two f32 is rounded or leaves the range, and cutting is exact.
    let unit = f64::from(FRACTION - largest).exp2();
    let total: f64 = terms().map(|(a, b)| (f64::from(a) * f64::from(b) * unit).trunc()).sum::<f64>()
        + (f64::from(sum) * unit).trunc();
    let value = total / unit;
    let rounded = value as f32;
    // Cut towards zero, but what is too large is infinite.
    if rounded.is_finite() && f64::from(rounded).abs() > value.abs() {
        f32::from_bits(rounded.to_bits() - 1)
    } else {
        rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator.
    fn random(state: &mut u64) -> u32 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 32) as u32
    }

    fn operands(state: &mut u64, spread: u32) -> (Operands, [[f32; N]; M]) {
        let mut value = || {
            let sign_and_mantissa = random(state) & 0x807f_0000;
            let biased = 127 - spread / 2 + random(state) % spread;
            let value = f32::from_bits(sign_and_mantissa | biased << 23);
            let value = if random(state).is_multiple_of(8) { 0.0 } else { value };
            (value, exponent(value, -126))
        };
        let mut o = Operands { a: [[0.0; K]; M], a_exponent: [[0; K]; M], b: [[0.0; N]; K], b_exponent: [[0; N]; K] };
        let mut sums = [[0.0; N]; M];
        for k in 0..K {
            for m in 0..M {
                (o.a[m][k], o.a_exponent[m][k]) = value();
            }
            for n in 0..N {
                (o.b[k][n], o.b_exponent[k][n]) = value();
            }
        }
        for row in &mut sums {
            for sum in row {
                *sum = value().0 * 1.000_001;
            }
        }
        (o, sums)
    }

    #[test]
    fn the_fast_way_gives_the_bits_of_the_exact_one() {
        let mut state = 1;
        for spread in [2, 8, 30, 60, 100] {
            for _ in 0..20 {
                let (o, before) = operands(&mut state, spread);
                let mut fast = before;
                accumulate(&o, &mut fast);
                for m in 0..M {
                    for n in 0..N {
                        let exact = accumulate_exactly(&o, m, n, before[m][n]);
                        assert_eq!(
                            fast[m][n].to_bits(),
                            exact.to_bits(),
                            "spread {spread}: {} and {exact}",
                            fast[m][n]
                        );
                    }
                }
            }
        }
    }

    fn one(a: [f32; 2], b: [f32; 2], c: f32) -> f32 {
        let mut o = Operands {
            a: [[0.0; K]; M],
            a_exponent: [[ZERO_EXPONENT; K]; M],
            b: [[0.0; N]; K],
            b_exponent: [[ZERO_EXPONENT; N]; K],
        };
        for k in 0..2 {
            (o.a[0][k], o.a_exponent[0][k]) = (a[k], exponent(a[k], -126));
            (o.b[k][0], o.b_exponent[k][0]) = (b[k], exponent(b[k], -126));
        }
        let mut sums = [[0.0; N]; M];
        sums[0][0] = c;
        accumulate(&o, &mut sums);
        sums[0][0]
    }

    #[test]
    fn halves_are_converted_exactly() {
        for bits in 0..=0xffff {
            let (mine, theirs) = (from_f16(bits), float::from_16(false, bits as u16));
            assert!(mine.to_bits() == theirs.to_bits() || mine.is_nan() && theirs.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn terms_are_cut_off_and_special_values_pass() {
        assert_eq!(one([3.0, 0.5], [2.0, 4.0], 1.0), 9.0);
        assert_eq!(one([1.0, 2f32.powi(-26)], [1.0, 1.0], 0.0), 1.0);
        assert_eq!(one([-1.0, 2f32.powi(-24)], [1.0, 1.0], 0.0), -(1.0 - 2f32.powi(-24)));
        assert_eq!(one([1.0, 1.0], [2f32.powi(30), -2f32.powi(30)], 1.0), 0.0, "lost beside the larger ones");
        assert_eq!(one([f32::INFINITY, 1.0], [1.0, 1.0], 0.0), f32::INFINITY);
        assert!(one([f32::INFINITY, 1.0], [0.0, 1.0], 0.0).is_nan());
        assert!(one([f32::INFINITY, f32::NEG_INFINITY], [1.0, 1.0], 0.0).is_nan());
        assert!(one([f32::NAN, 1.0], [1.0, 1.0], 0.0).is_nan());
        assert_eq!(one([2f32.powi(100), 0.0], [2f32.powi(100), 0.0], 0.0), f32::INFINITY);
        assert_eq!(one([2f32.powi(-80), 0.0], [2f32.powi(-60), 0.0], 0.0), f32::from_bits(1 << 9));
    }
}
