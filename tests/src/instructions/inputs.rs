//! Operands: random ones from fixed seeds, and those at which results turn.

use fastrand::Rng;

use super::THREADS;

/// Bits of values that are special somewhere: zeros, ones, infinities, NaN with and without payload, the ends of the
/// subnormals and of the normal numbers.
const SPECIAL: [u32; 20] = [
    0x0000_0000,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0000,
    0x7f80_0001,
    0x7fff_ffff,
    0x0000_0001,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x8080_0000,
    0x0080_0001,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x3f7f_ffff,
    0x3f80_0001,
];

/// Element of a matrix operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Bf16,
    F16,
    E4m3,
}

impl Element {
    /// Bits of an element, of its mantissa, and the exponents' bias.
    fn format(self) -> (u32, u32, i32) {
        match self {
            Self::Bf16 => (16, 7, 127),
            Self::F16 => (16, 10, 15),
            Self::E4m3 => (8, 3, 7),
        }
    }

    /// A random value with an exponent in `low..=high`; those below the normal range give subnormals.
    fn random(self, rng: &mut Rng, low: i32, high: i32) -> u32 {
        let (bits, mantissa, bias) = self.format();
        let most = (1 << (bits - 1 - mantissa)) - 2;
        let field = (rng.i32(low..=high) + bias).clamp(0, most) as u32;
        rng.u32(0..2) << (bits - 1) | field << mantissa | rng.u32(..) & ((1 << mantissa) - 1)
    }

    /// Zero, infinity or NaN where there is one, the largest value, subnormals.
    fn special(self, rng: &mut Rng) -> u32 {
        let (bits, mantissa, _) = self.format();
        let infinity = ((1 << (bits - 1 - mantissa)) - 1) << mantissa;
        let magnitude = [0, infinity, infinity | 1 << (mantissa - 1), infinity - 1, 1, (1 << mantissa) - 1];
        rng.u32(0..2) << (bits - 1) | magnitude[rng.usize(0..magnitude.len())]
    }
}

/// What a warp's matrices hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matrix {
    /// Values of like size.
    Even,
    /// Exponents far apart.
    Spread,
    /// Powers of two and zeros: the last bits of sums are few terms.
    Powers,
    /// One or two products and an accumulator far above or below them.
    Few,
    /// Neighbouring products that cancel, or nearly.
    Cancelling,
    /// Subnormal operands, products and accumulators.
    Tiny,
    /// Sums at the end of the range.
    Huge,
    /// Infinities, NaN and zeros among others.
    Special,
}

const MATRICES: [Matrix; 8] = [
    Matrix::Even,
    Matrix::Spread,
    Matrix::Powers,
    Matrix::Few,
    Matrix::Cancelling,
    Matrix::Tiny,
    Matrix::Huge,
    Matrix::Special,
];

/// Warps for each kind of matrix.
const WARPS: usize = 16;

/// Operands of mma.sync of shape m16n8k16 (16-bit elements) or m16n8k32 (8-bit): A, B and C as the lanes of a warp hold
/// them (PTX ISA, "Matrix fragments").
pub(super) fn matrices(element: Element) -> Vec<u32> {
    let mut rng = Rng::with_seed(element as u64 + 1);
    let per_register = 32 / element.format().0 as usize;
    let depth = 8 * per_register;
    let mut operands = Vec::new();
    for warp in 0..MATRICES.len() * WARPS {
        let (a, b, c) = matrix(element, MATRICES[warp / WARPS], depth, &mut rng);
        let register = |at: &dyn Fn(usize) -> u32| {
            (0..per_register).fold(0, |word, e| word | at(e) << (element.format().0 as usize * e))
        };
        for lane in 0..THREADS {
            let (group, thread) = (lane / 4, lane % 4);
            let k = |half: usize, e: usize| per_register * (thread + 4 * half) + e;
            operands.extend((0..4).map(|i| register(&|e| a[group + 8 * (i % 2)][k(i / 2, e)])));
            operands.extend((0..2).map(|i| register(&|e| b[k(i, e)][group])));
            operands.extend((0..4).map(|i| c[group + 8 * (i / 2)][2 * thread + i % 2]));
        }
    }
    operands
}

type Bits = Vec<Vec<u32>>;

/// A (16 rows), B (8 columns), C (16 x 8).
fn matrix(element: Element, kind: Matrix, depth: usize, rng: &mut Rng) -> (Bits, Bits, Bits) {
    let (bits, mantissa, bias) = element.format();
    // Exponents of operands, and of accumulators.
    let wide = bias.min(40);
    let ((low, high), (c_low, c_high)) = match kind {
        Matrix::Even | Matrix::Cancelling => ((-2, 1), (-2, 4)),
        Matrix::Spread => ((-wide, wide.min(15)), (-30, 30)),
        Matrix::Powers => ((-wide.min(10), 0), (-26, 2)),
        Matrix::Few => ((-wide.min(8), wide.min(8)), (-40, 30)),
        Matrix::Tiny if element == Element::Bf16 => ((-75, -60), (-140, -120)),
        Matrix::Tiny => ((-bias - 2, -bias + 2), (-140, -20)),
        Matrix::Huge if element == Element::Bf16 => ((60, 64), (122, 127)),
        Matrix::Huge => ((bias - 2, bias), (120, 127)),
        Matrix::Special => ((-3, 3), (-3, 3)),
    };
    let value = |rng: &mut Rng| {
        let value = element.random(rng, low, high);
        match kind {
            Matrix::Powers if rng.bool() => 0,
            Matrix::Powers => value >> mantissa << mantissa,
            Matrix::Few if rng.u32(0..8) != 0 => 0,
            Matrix::Special if rng.u32(0..24) == 0 => element.special(rng),
            _ => value,
        }
    };
    let mut a: Bits = (0..16).map(|_| (0..depth).map(|_| value(rng)).collect()).collect();
    let mut b: Bits = (0..depth).map(|_| (0..8).map(|_| value(rng)).collect()).collect();
    if kind == Matrix::Cancelling {
        // At any distance, so that terms of different groups meet.
        let shift = [1, 2, 4, 8][rng.usize(0..4)];
        for k in (0..depth).filter(|k| k & shift != 0) {
            for row in &mut a {
                row[k] = row[k - shift] ^ u32::from(rng.u32(0..8) == 0);
            }
            b[k] = b[k - shift].iter().map(|bits_| bits_ ^ 1 << (bits - 1)).collect();
        }
    }
    let mut accumulator = || {
        let field = (rng.i32(c_low..=c_high) + 127).clamp(0, 254) as u32;
        let value = rng.u32(0..2) << 31 | field << 23 | rng.u32(..) & 0x7f_ffff;
        match kind {
            Matrix::Special if rng.u32(0..4) == 0 => SPECIAL[rng.usize(0..SPECIAL.len())],
            Matrix::Even | Matrix::Powers | Matrix::Cancelling if rng.u32(0..4) == 0 => 0,
            _ => value,
        }
    };
    let c = (0..16).map(|_| (0..8).map(|_| accumulator()).collect()).collect();
    (a, b, c)
}

/// 16 bytes of a thread, and the row that it names for ldmatrix.
pub(super) fn rows() -> Vec<u32> {
    let mut rng = Rng::with_seed(11);
    let mut operands = Vec::new();
    for _ in 0..4 {
        let mut rows: Vec<u32> = (0..THREADS as u32).collect();
        rng.shuffle(&mut rows);
        for row in rows {
            operands.extend([rng.u32(..), rng.u32(..), rng.u32(..), rng.u32(..), row]);
        }
    }
    operands
}

/// 16 bytes, how many of them are copied, and what was there before.
pub(super) fn copies() -> Vec<u32> {
    let mut rng = Rng::with_seed(12);
    let thread = |thread: u32| [rng.u32(..), rng.u32(..), rng.u32(..), rng.u32(..), thread % 17, !0, 0, 0];
    (0..17 * THREADS as u32).flat_map(thread).collect()
}

/// A value, and a mask of lanes: one mask a warp.
pub(super) fn shuffles() -> Vec<u32> {
    let mut rng = Rng::with_seed(13);
    (0..32 * THREADS).flat_map(|thread| [rng.u32(..), (thread / THREADS) as u32]).collect()
}

/// Pairs of f32 to be narrowed by `cut` bits: half of them at a tie or next to it.
pub(super) fn narrowed(cut: u32) -> Vec<u32> {
    let mut rng = Rng::with_seed(14 + u64::from(cut));
    let mut value = || match rng.u32(0..8) {
        0 => SPECIAL[rng.usize(0..SPECIAL.len())],
        1 => rng.u32(..),
        // The range of the narrower formats: f16 from 2^-26 to 2^17, e4m3 from 2^-11 to 2^10.
        2 => rng.u32(0..2) << 31 | rng.u32(127 - 26..127 + 18) << 23 | rng.u32(..) & 0x7f_ffff,
        3 => rng.u32(0..2) << 31 | rng.u32(127 - 12..127 + 11) << 23 | rng.u32(..) & 0x7f_ffff,
        kind => {
            let exponent = if kind < 6 { rng.u32(127 - 27..127 + 18) } else { rng.u32(127 - 12..127 + 11) };
            // Subnormals have their ties at higher bits.
            let tie = rng.u32(cut - 1..23);
            let high = rng.u32(0..2) << 31 | exponent << 23 | rng.u32(..) & 0x7f_ffff & u32::MAX << tie;
            (high | 1 << tie).wrapping_add(rng.u32(0..3)).wrapping_sub(1)
        }
    };
    (0..128 * THREADS).map(|_| value()).collect()
}

/// All 8-bit floats, two at a time.
pub(super) fn all_bytes() -> Vec<u32> {
    (0..256).map(|low| low | (255 - low) << 8).collect()
}

/// Operands of ex2: mostly what a softmax has, from -30 to 0.
pub(super) fn exponents() -> Vec<u32> {
    let mut rng = Rng::with_seed(15);
    let edges = [-150.0, -149.0, -127.0, -126.0, -125.0, -24.0, -1.0, 0.0, 1.0, 127.0, 128.0, 129.0f32];
    let mut operands: Vec<u32> = SPECIAL.to_vec();
    for edge in edges {
        operands.extend((0..8).map(|i| edge.to_bits().wrapping_add(i).wrapping_sub(4)));
    }
    complete(operands, 384, || match rng.u32(0..8) {
        0..3 => (rng.f32() * -30.0).to_bits(),
        3 => (rng.f32() - 0.5).to_bits(),
        4 => (rng.f32() * 300.0 - 150.0).to_bits(),
        5 => rng.u32(0..2) << 31 | rng.u32(127 - 30..127) << 23 | rng.u32(..) & 0x7f_ffff,
        6 => 1f32.to_bits() | rng.u32(..) & 0x7f_ffff,
        _ => rng.u32(..),
    })
}

/// Operands of lg2: mostly sums of a softmax, from 1 up.
pub(super) fn logarithms() -> Vec<u32> {
    let mut rng = Rng::with_seed(16);
    let mut operands: Vec<u32> = SPECIAL.to_vec();
    for edge in [0.5, 1.0, 2.0, 4.0, f32::MIN_POSITIVE] {
        operands.extend((0..32).map(|i| f32::to_bits(edge) + i - 16));
    }
    complete(operands, 256, || match rng.u32(0..8) {
        0..3 => (1.0 + rng.f32() * 5000.0).to_bits(),
        3 => (0.5 + rng.f32() * 1.5).to_bits(),
        4 => 1f32.to_bits() | rng.u32(..) & 0x7f_ffff,
        5 => (1.0 + rng.f32() / 1024.0).to_bits(),
        6 => rng.u32(..) & 0x7fff_ffff,
        _ => rng.u32(..),
    })
}

/// Three f32: special ones, of like size, and any.
pub(super) fn floats() -> Vec<u32> {
    let mut rng = Rng::with_seed(17);
    let mut operands = Vec::new();
    for thread in 0..64 * THREADS {
        let exponent = rng.u32(1..254);
        for _ in 0..3 {
            let near = (exponent + rng.u32(0..4)).min(254);
            operands.push(match thread % 4 {
                0 => SPECIAL[rng.usize(0..SPECIAL.len())],
                1 => rng.u32(0..2) << 31 | near << 23 | rng.u32(..) & 0x7f_ffff,
                2 => rng.u32(0..2) << 31 | rng.u32(125..130) << 23 | rng.u32(..) & 0x7f_ffff,
                _ => rng.u32(..),
            });
        }
    }
    operands
}

/// Fills up to a number of warps.
fn complete(mut operands: Vec<u32>, warps: usize, value: impl FnMut() -> u32) -> Vec<u32> {
    let missing = warps * THREADS - operands.len();
    operands.extend(std::iter::repeat_with(value).take(missing));
    operands
}
