//! Executes matrix multiply-accumulates. They ignore EXEC.
//!
//! Layouts (CDNA3 and CDNA4 ISA manuals, "Matrix Arithmetic Instructions"), with `l` the lane and `p` the elements
//! of an operand that one lane holds: A has row `l % m` and columns `p * (l / m) + e`, B has column `l % m` and rows
//! `p * (l / m) + e`. C and D have column `l % m`; register `r` is row `4 * (l / 16) + r` for `m` = 16, and
//! `8 * (r / 4) + 4 * (l / 32) + r % 4` for `m` = 32.

use super::float::{self, E2M1, E2M3, E3M2, E4M3, E5M2};
use super::inst::{Element, Inst, Mfma};
use super::operands::QUIET_NAN;
use super::wave::{As, LANES, Vector, Wave};
use crate::fault::Trap;

/// Elements of A or B: `values[k * m + i]`, and the rows (columns) that hold something undefined.
struct Matrix {
    values: Vec<f32>,
    undefined: u64,
}

impl Wave {
    pub(super) fn mfma(&mut self, inst: &Inst, op: Mfma) -> Result<(), Trap> {
        let (m, k) = (usize::from(op.m), usize::from(op.k));
        if !op.mixed && (inst.mods.cbsz, inst.mods.abid, inst.mods.blgp) != (0, 0, 0) {
            return Err(self.illegal("broadcasts of matrix operands (cbsz, abid, blgp) are not emulated"));
        }
        let mut a = self.matrix(inst, 0, op, op.a);
        let mut b = self.matrix(inst, 1, op, op.b);
        if op.scaled {
            self.scale(inst, 0, op, &mut a)?;
            self.scale(inst, 1, op, &mut b)?;
        }
        let rows = |register: usize, lane: usize| match m {
            16 => 4 * (lane / 16) + register,
            _ => 8 * (register / 4) + 4 * (lane / 32) + register % 4,
        };
        let registers = usize::from(op.output_registers());
        let mut sums = vec![0f32; m * m];
        let constant = inst.src[2].vector_index().is_none();
        let mut undefined = [0u64; 16];
        for (register, undefined) in undefined.iter_mut().enumerate().take(registers) {
            let c = self.lanes(inst.src[2], if constant { 0 } else { register }, inst.literal, As::B32);
            *undefined = c.undefined;
            for (lane, &bits) in c.bits.iter().enumerate() {
                sums[rows(register, lane) * m + lane % m] = f32::from_bits(bits);
            }
        }
        if op.a == Element::F32 {
            multiply_add(&mut sums, &a.values, &b.values, m, k, |sum, a, b| float::fma(a, b, sum));
        } else {
            // Products of shorter elements are exact in fp32.
            multiply_add(&mut sums, &a.values, &b.values, m, k, |sum, a, b| sum + a * b);
        }
        let first = inst.dst.vector_index().unwrap_or_default();
        for (register, undefined) in undefined.iter().enumerate().take(registers) {
            let bits = std::array::from_fn(|lane| match sums[rows(register, lane) * m + lane % m] {
                sum if sum.is_nan() => QUIET_NAN,
                sum => sum.to_bits(),
            });
            let mut tainted = *undefined;
            if a.undefined | b.undefined != 0 {
                tainted |= (0..LANES)
                    .filter(|&lane| (a.undefined >> rows(register, lane) | b.undefined >> (lane % m)) & 1 != 0)
                    .fold(0, |mask, lane| mask | 1 << lane);
            }
            self.write(first + register, &Vector { bits, undefined: tainted }, u64::MAX);
        }
        Ok(())
    }

    /// Reads A (`n` = 0) or B (`n` = 1).
    fn matrix(&self, inst: &Inst, n: usize, op: Mfma, element: Element) -> Matrix {
        let (m, k) = (usize::from(op.m), usize::from(op.k));
        let registers: Vec<Vector> =
            (0..usize::from(inst.widths[n])).map(|part| self.lanes(inst.src[n], part, inst.literal, As::B32)).collect();
        let any = registers.iter().fold(0, |all, register| all | register.undefined);
        let undefined = (0..LANES / m).fold(0, |all, group| all | any >> (group * m)) & (u64::MAX >> (64 - m));
        let mut values = vec![0.0; m * k];
        let per_lane = k * m / LANES;
        let bits = element.bits() as usize;
        for e in 0..per_lane {
            let (word, shift) = (e * bits / 32, e * bits % 32);
            for lane in 0..LANES {
                let low = registers[word].bits[lane] >> shift;
                let high = if shift + bits > 32 { registers[word + 1].bits[lane] << (32 - shift) } else { 0 };
                values[(per_lane * (lane / m) + e) * m + lane % m] = decode(element, low | high);
            }
        }
        Matrix { values, undefined }
    }

    /// Multiplies the elements of each lane by the scale that its lane holds: a byte (chosen by `op_sel` and
    /// `op_sel_hi`) that is a power of two with bias 127.
    fn scale(&self, inst: &Inst, n: usize, op: Mfma, matrix: &mut Matrix) -> Result<(), Trap> {
        let (m, k) = (usize::from(op.m), usize::from(op.k));
        let source = inst.src[3 + n];
        let scales = match (source.vector_index(), source.scalar_index()) {
            (None, None) => Vector::splat(self.constant(source, inst.literal, As::B32).bits as u32),
            _ => self.lanes(source, 0, inst.literal, As::B32),
        };
        let byte = inst.mods.op_sel >> n & 1 | (inst.mods.op_sel_hi >> n & 1) << 1;
        let per_lane = k * m / LANES;
        for lane in 0..LANES {
            let code = scales.bits[lane] >> (8 * byte) & 0xff;
            let scale = if code == 0xff { f32::NAN } else { float::ldexp(1.0, code as i32 - 127) };
            for e in 0..per_lane {
                matrix.values[(per_lane * (lane / m) + e) * m + lane % m] *= scale;
            }
        }
        let undefined = (0..LANES / m).fold(0, |all, group| all | scales.undefined >> (group * m));
        matrix.undefined |= undefined & (u64::MAX >> (64 - m));
        Ok(())
    }
}

fn decode(element: Element, bits: u32) -> f32 {
    match element {
        Element::F32 => f32::from_bits(bits),
        Element::F16 => float::f16_to_f32(bits as u16),
        Element::Bf16 => float::bf16_to_f32(bits as u16),
        Element::Fp8 => E4M3.decode(bits & 0xff),
        Element::Bf8 => E5M2.decode(bits & 0xff),
        Element::Fp6 => E2M3.decode(bits & 0x3f),
        Element::Bf6 => E3M2.decode(bits & 0x3f),
        Element::Fp4 => E2M1.decode(bits & 0xf),
    }
}

/// `sums[i][j] += a[k][i] * b[k][j]`, over `k` in order, each step rounded to fp32.
fn multiply_add(sums: &mut [f32], a: &[f32], b: &[f32], m: usize, k: usize, step: impl Fn(f32, f32, f32) -> f32) {
    for k in 0..k {
        let (a, b) = (&a[k * m..][..m], &b[k * m..][..m]);
        for (sums, &a) in sums.chunks_exact_mut(m).zip(a) {
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = step(*sum, a, b);
            }
        }
    }
}
