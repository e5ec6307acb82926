//! A case's tensors on the host, and the output that is right for them.

use fastrand::Rng;
use rayon::prelude::*;

use crate::case::{Case, Data, Place, Places};
use crate::numeric::{Format, NAN16};
use crate::reference::{Attention, View};
use crate::tolerance::Row;

/// The inputs of a case. What a kernel must not read, positions beyond a length and gaps between vectors, holds
/// the filling.
#[derive(Clone, Debug)]
pub struct Tensors {
    /// The buffers, as bytes: Q's, then K's and V's, or one with both.
    pub buffers: Vec<Vec<u8>>,
    /// Where the tensors lie in them.
    pub places: Places,
}

/// Elements of V that [`mark`] sets: two.
const MARKED: usize = 2;

impl Tensors {
    /// The tensors of `case`; what must not matter is NaN.
    pub fn new(case: &Case) -> Self {
        Self::filled(case, NAN16)
    }

    /// The tensors of `case`; what must not matter holds these bits.
    pub fn filled(case: &Case, filling: u16) -> Self {
        let places = case.places();
        let lengths = case.lengths();
        let mut buffers: Vec<Vec<u16>> = places.sizes().map(|size| vec![filling; size]).collect();
        for (tensor, place) in [places.q, places.k, places.v].into_iter().enumerate() {
            let mut rng = Rng::with_seed(case.seed.wrapping_mul(3).wrapping_add(tensor as u64));
            let [_, seq, heads, dim] = place.shape;
            for (b, &length) in lengths.iter().enumerate() {
                for s in 0..if tensor == 0 { seq } else { length } {
                    for h in 0..heads {
                        let start = place.start(b, s, h);
                        let vector = &mut buffers[place.buffer][start..start + dim];
                        fill(case, tensor, b * heads + h, s, &mut rng, vector);
                    }
                }
            }
        }
        Self { buffers: buffers.iter().map(|buffer| bytes(buffer)).collect(), places }
    }

    /// One sequence of these, for `alone`, a case with that sequence only (and no more KV tokens than here).
    pub fn sequence(&self, index: usize, alone: &Case) -> Self {
        let places = alone.places();
        let mut buffers: Vec<Vec<u8>> = places.sizes().map(|size| bytes(&vec![NAN16; size])).collect();
        let (here, there) = (self.places, places);
        for (from, to) in [(here.q, there.q), (here.k, there.k), (here.v, there.v)] {
            let [_, seq, heads, dim] = to.shape;
            for (s, h) in (0..seq).flat_map(|s| (0..heads).map(move |h| (s, h))) {
                let (source, target, size) = (2 * from.start(index, s, h), 2 * to.start(0, s, h), 2 * dim);
                buffers[to.buffer][target..target + size]
                    .copy_from_slice(&self.buffers[from.buffer][source..source + size]);
            }
        }
        Self { buffers, places }
    }

    /// What the output should be: rows in the order `[batch, sq, heads]`.
    pub fn expected(&self, case: &Case) -> Vec<Row> {
        let decoded: Vec<Vec<f64>> = self.buffers.iter().map(|buffer| case.format.decode(buffer)).collect();
        let lengths = case.lengths();
        let view = |place: &Place| View {
            values: &decoded[place.buffer],
            offset: place.offset,
            strides: place.strides,
            dim: place.shape[3],
        };
        let attention = Attention {
            q: view(&self.places.q),
            k: view(&self.places.k),
            v: view(&self.places.v),
            sq: case.sq,
            heads: case.heads(),
            kv_heads: case.kv_heads,
            lengths: &lengths,
            causal: case.causal,
            scale: case.scale(),
        };
        let heads = case.heads();
        (0..case.batch * case.sq * heads)
            .into_par_iter()
            .map(|row| {
                let place = [row / heads / case.sq, row / heads % case.sq, row % heads];
                Row::new(&attention, place, case.format, case.output)
            })
            .collect()
    }
}

/// Writes one vector of Q (`tensor` 0), K (1) or V (2).
fn fill(case: &Case, tensor: usize, sequence_head: usize, position: usize, rng: &mut Rng, vector: &mut [u16]) {
    const V: usize = 2;
    let constant = match (&case.data, tensor) {
        (Data::Constant, _) => Some([0.5, 0.25, -1.5][tensor]),
        (Data::Positions, 0) => Some(0.0),
        (Data::Positions, V) => {
            vector.fill(0);
            for index in mark(position, vector.len()) {
                vector[index] = case.format.encode(1.0);
            }
            return;
        }
        (Data::Needles(_), 0) => Some(1.0),
        (Data::Needles(positions), 1) => {
            Some(if position == positions[sequence_head % positions.len()] { 4.0 } else { 0.0 })
        }
        _ => None,
    };
    if let Some(constant) = constant {
        vector.fill(case.format.encode(constant));
        return;
    }
    let (mean, deviation) = match (&case.data, tensor) {
        (Data::Peaked, 0) => (0.0, 6.0),
        (Data::Offset, 1) => (4.0, 1.0),
        (Data::Offset, V) => (64.0, 1.0),
        _ => (0.0, 1.0),
    };
    for element in vector {
        *element = case.format.encode(mean + deviation * normal(rng));
    }
}

/// The elements of V that are 1 at `position`; the others are 0. One in the first half of the head dim says the
/// position's last digit, one in the second half says the digit before it, in base `dim / 2`, so that neither
/// a dropped nor a doubled token, nor one tile in place of another, leaves the mean of V as it is.
pub fn mark(position: usize, dim: usize) -> [usize; MARKED] {
    let base = dim / 2;
    [position % base, base + position / base % base]
}

/// Mean 0, deviation 1: the sum of four uniform numbers.
fn normal(rng: &mut Rng) -> f32 {
    let bits = rng.u64(..);
    let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
    (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
}

fn bytes(elements: &[u16]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// Rows of an output buffer in the order `[batch, sq, heads]`, as values.
pub fn output_rows(buffer: &[u8], place: &Place, format: Format) -> Vec<Vec<f64>> {
    let values = format.decode(buffer);
    let [batch, seq, heads, dim] = place.shape;
    let rows = (0..batch * seq * heads).map(|row| place.start(row / heads / seq, row / heads % seq, row % heads));
    rows.map(|start| values[start..start + dim].to_vec()).collect()
}
