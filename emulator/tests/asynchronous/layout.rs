//! Small matrices, and how they lie in shared memory for matrix instructions.

use half::{bf16, f16};

/// An element type with values that are exact in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Element {
    Bf16,
    F16,
    E4m3,
}

impl Element {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::E4m3 => "e4m3",
        }
    }

    pub(crate) fn bytes(self) -> usize {
        if self == Self::E4m3 { 1 } else { 2 }
    }

    /// Elements that an instruction sums.
    pub(crate) fn k(self) -> usize {
        32 / self.bytes()
    }

    /// Bits of an integer from -4 to 4.
    pub(crate) fn bits(self, value: i32) -> u32 {
        match self {
            Self::Bf16 => bf16::from_f32(value as f32).to_bits().into(),
            Self::F16 => f16::from_f32(value as f32).to_bits().into(),
            Self::E4m3 => {
                let magnitude = [0, 0x38, 0x40, 0x44, 0x48][value.unsigned_abs() as usize];
                magnitude | if value < 0 { 0x80 } else { 0 }
            }
        }
    }
}

/// How a matrix lies: which way, and the swizzle's span in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) k_major: bool,
    pub(crate) span: usize,
}

/// A matrix in shared memory.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) leading: usize,
    pub(crate) stride: usize,
}

/// Lays out `count` rows (or columns) of `k` elements. Distances that an instruction may choose are a little more than
/// they need be.
pub(crate) fn image(
    element: Element,
    layout: Layout,
    count: usize,
    k: usize,
    value: impl Fn(usize, usize) -> i32,
) -> Image {
    let (size, span) = (element.bytes(), layout.span);
    // Along the elements, and across.
    let (along, across) = if layout.k_major { (k, count) } else { (count, k) };
    let (per_eight, pieces) = (8 * span.max(16), (along * size).div_ceil(span.max(16)));
    let padding = if span == 0 { 64 } else { 1024 };
    // From eight to eight across, and from piece (or span) to piece along.
    let (eights, next) = match (layout.k_major, span) {
        (_, 0) => (per_eight + padding, (per_eight + padding) * across.div_ceil(8) + padding),
        (true, _) => (per_eight, 0),
        (false, _) => (per_eight, per_eight * across.div_ceil(8) + padding),
    };
    let mut bytes = vec![0; (pieces * next + across.div_ceil(8) * eights).next_multiple_of(1024)];
    for a in 0..across {
        for l in 0..along {
            let width = span.max(16);
            let (offset, row) = (l * size % width, a % 8);
            let exchanged = match span {
                32 => row / 4,
                64 => row / 2,
                128 => row,
                _ => 0,
            };
            let piece = (offset / 16) ^ exchanged;
            let at = l * size / width * next + a / 8 * eights + row * width + piece * 16 + offset % 16;
            let (mn, k) = if layout.k_major { (a, l) } else { (l, a) };
            let bits = element.bits(value(mn, k)).to_le_bytes();
            bytes[at..at + size].copy_from_slice(&bits[..size]);
        }
    }
    // Without a swizzle the two distances change places with the direction.
    let (leading, stride) = if span == 0 && !layout.k_major { (eights, next) } else { (next, eights) };
    Image { bytes, leading, stride }
}

/// A small value for an element.
pub(crate) fn value(seed: usize, mn: usize, k: usize) -> i32 {
    ((mn * 5 + k * 3 + mn * k + seed) % 9) as i32 - 4
}

/// Copies `bytes` bytes of the input to shared memory at `%r3` + `offset`, and makes them visible to all.
pub(crate) fn fill(offset: usize, bytes: usize) -> String {
    format!(
        "{{ .reg .b32 i, n, o, v; .reg .b64 a; .reg .pred p; mov.u32 n, %ntid.x; shl.b32 n, n, 2; shl.b32 i, %r1, 2;
         $F: cvt.u64.u32 a, i; add.u64 a, a, %d2; ld.global.u32 v, [a]; add.u32 o, i, %r3; st.shared.u32 [o+{offset}], v;
         add.u32 i, i, n; setp.lt.u32 p, i, {bytes}; @p bra $F; }}
         fence.proxy.async.shared::cta; bar.sync 0;"
    )
}
