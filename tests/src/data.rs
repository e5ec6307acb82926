//! A case's tensors on the host, and the output that is right for them.

use fastrand::Rng;
use rayon::prelude::*;

use crate::case::{Case, Data, Kv, starts};
use crate::numeric::Format;
use crate::places::{Place, Places, Rows};
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
    /// With e4m3: the factors of Q, K and V, one or `[batch, kv_heads]`; else none.
    pub descales: [Vec<f32>; 3],
}

/// Elements of V that [`mark`] sets: two.
const MARKED: usize = 2;

impl Tensors {
    /// The tensors of `case`; what must not matter is NaN.
    pub fn new(case: &Case) -> Self {
        Self::filled(case, f32::NAN)
    }

    /// The tensors of `case`; what must not matter has the value `filling`.
    pub fn filled(case: &Case, filling: f32) -> Self {
        let mut tensors = Self::blank(case, filling);
        let Self { buffers, places, descales } = &mut tensors;
        let (queries, lengths, size) = (case.query_lengths(), case.lengths(), case.format.size());
        let parts = [(&places.q, &queries), (&places.k, &lengths), (&places.v, &lengths)];
        for (tensor, (place, lengths)) in parts.into_iter().enumerate() {
            let mut rng = Rng::with_seed(case.seed.wrapping_mul(3).wrapping_add(tensor as u64));
            let [_, _, heads, dim] = place.shape;
            let mut values = vec![0.0; dim];
            for (sequence, &length) in lengths.iter().enumerate() {
                for position in 0..length {
                    for head in 0..heads {
                        fill(case, tensor, sequence * heads + head, position, &mut rng, &mut values);
                        let kv_head = head * case.kv_heads / heads;
                        let descale = descale(&descales[tensor], sequence * case.kv_heads + kv_head);
                        values.iter_mut().for_each(|value| *value /= descale);
                        let start = place.start(sequence, position, head) * size;
                        let vector = buffers[place.buffer][start..start + dim * size].chunks_exact_mut(size);
                        vector.zip(&values).for_each(|(element, value)| case.format.encode(*value, element));
                    }
                }
            }
        }
        tensors
    }

    /// Buffers for `case` with nothing in them but `filling`.
    fn blank(case: &Case, filling: f32) -> Self {
        let places = case.places();
        let mut element = vec![0; case.format.size()];
        case.format.encode(filling, &mut element);
        let descales = if case.format == Format::E4m3 {
            // Sequences that have pages in common have their factors in common too.
            let different = match case.kv {
                Kv::Paged { shared, .. } if shared > 0 => case.kv_heads,
                _ => case.batch * case.kv_heads,
            };
            // Products of them are no powers of two: nothing comes out right by leaving one out.
            let factor =
                |tensor: usize, head: usize| [0.25, 0.375, 0.75][tensor] * (1.0 + (head % different % 5) as f32 / 4.0);
            let factors = |tensor: usize| {
                let heads = if case.per_head[tensor] { case.batch * case.kv_heads } else { 1 };
                (0..heads).map(|head| factor(tensor, head)).collect()
            };
            [factors(0), factors(1), factors(2)]
        } else {
            Default::default()
        };
        Self { buffers: places.sizes().map(|size| element.repeat(size)).collect(), places, descales }
    }

    /// One sequence of these, for `alone`, a case with that sequence only (and no more KV tokens than here).
    pub fn sequence(&self, index: usize, alone: &Case) -> Self {
        let mut tensors = Self::blank(alone, f32::NAN);
        let size = alone.format.size();
        for (from, to) in self.descales.iter().zip(&mut tensors.descales) {
            let heads = to.len();
            *to = if from.len() == 1 { from.clone() } else { from[index * heads..][..heads].to_vec() };
        }
        let (here, there) = (&self.places, &tensors.places);
        let (queries, length) = (alone.query_lengths()[0], alone.lengths()[0]);
        for (from, to, length) in
            [(&here.q, &there.q, queries), (&here.k, &there.k, length), (&here.v, &there.v, length)]
        {
            let [_, _, heads, dim] = to.shape;
            for (position, head) in (0..length).flat_map(|s| (0..heads).map(move |h| (s, h))) {
                let source = &self.buffers[from.buffer][from.start(index, position, head) * size..][..dim * size];
                tensors.buffers[to.buffer][to.start(0, position, head) * size..][..dim * size].copy_from_slice(source);
            }
        }
        tensors
    }

    /// The values of Q's buffer, of K's and of V's, with the factors of their vectors.
    pub fn decoded(&self, case: &Case) -> [Vec<f64>; 3] {
        let lengths = [case.query_lengths(), case.lengths(), case.lengths()];
        let places = [&self.places.q, &self.places.k, &self.places.v];
        std::array::from_fn(|tensor| {
            let place = places[tensor];
            let elements = case.format.decode(&self.buffers[place.buffer]);
            if self.descales[tensor].is_empty() {
                return elements;
            }
            let mut values = elements.clone();
            let [_, _, heads, dim] = place.shape;
            for (sequence, &length) in lengths[tensor].iter().enumerate() {
                for (position, head) in (0..length).flat_map(|s| (0..heads).map(move |h| (s, h))) {
                    let kv_head = head * case.kv_heads / heads;
                    let descale = descale(&self.descales[tensor], sequence * case.kv_heads + kv_head);
                    // From the elements, since sequences may have pages in common.
                    let start = place.start(sequence, position, head);
                    for (value, element) in values[start..].iter_mut().zip(&elements[start..]).take(dim) {
                        *value = element * f64::from(descale);
                    }
                }
            }
            values
        })
    }

    /// What the output should be: the rows of [`Case::rows`].
    pub fn expected(&self, case: &Case) -> Vec<Row> {
        let decoded = self.decoded(case);
        let (queries, lengths) = (case.query_lengths(), case.lengths());
        let by_head = |tensor: usize, place, lengths| by_head(View { values: &decoded[tensor], place }, lengths);
        let (q, k, v) = (
            by_head(0, &self.places.q, &queries),
            by_head(1, &self.places.k, &lengths),
            by_head(2, &self.places.v, &lengths),
        );
        let sinks = case.sinks();
        let attention = Attention {
            q: View { values: &q.0, place: &q.1 },
            k: View { values: &k.0, place: &k.1 },
            v: View { values: &v.0, place: &v.1 },
            queries: &queries,
            lengths: &lengths,
            heads: case.heads(),
            kv_heads: case.kv_heads,
            mask: case.mask(),
            scale: case.scale(),
            softcap: case.softcap.map(f64::from),
            sinks: sinks.as_deref(),
        };
        // Rows that see the same keys after each other, so that these stay in a core's cache.
        let mut rows: Vec<_> = case.rows().into_iter().enumerate().collect();
        rows.sort_by_key(|(_, [sequence, query, head])| (*sequence, attention.kv_head(*head), *query));
        let row = |(index, row)| (index, Row::new(&attention, row, case.format, case.output));
        let mut rows: Vec<_> = rows.into_par_iter().map(row).collect();
        rows.sort_by_key(|(index, _)| *index);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

/// The vectors of a tensor, those of a head after each other: rows that see the same keys find them close together.
fn by_head(tensor: View<'_>, lengths: &[usize]) -> (Vec<f64>, Place) {
    let [_, _, heads, dim] = tensor.place.shape;
    let (starts, total) = starts(lengths);
    let (shape, strides) = ([1, total, heads, dim], [0, dim, total * dim]);
    let place = Place { buffer: 0, shape, offset: 0, strides, rows: Rows::Packed { starts } };
    let mut values = vec![0.0; total * heads * dim];
    for (sequence, &length) in lengths.iter().enumerate() {
        for (position, head) in (0..length).flat_map(|position| (0..heads).map(move |head| (position, head))) {
            let vector = tensor.vector(sequence, position, head);
            values[place.start(sequence, position, head)..][..dim].copy_from_slice(vector);
        }
    }
    (values, place)
}

/// The factor of sequence and KV head `head`.
fn descale(factors: &[f32], head: usize) -> f32 {
    match factors {
        [] => 1.0,
        [factor] => *factor,
        _ => factors[head],
    }
}

/// Makes one vector of Q (`tensor` 0), K (1) or V (2).
fn fill(case: &Case, tensor: usize, sequence_head: usize, position: usize, rng: &mut Rng, vector: &mut [f32]) {
    const V: usize = 2;
    let constant = match (&case.data, tensor) {
        (Data::Constant, _) => Some([0.5, 0.25, -1.5][tensor]),
        (Data::Positions, 0) => Some(0.0),
        (Data::Ones, V) => Some(1.0),
        (Data::Positions, V) => {
            vector.fill(0.0);
            for index in mark(position, vector.len()) {
                vector[index] = 1.0;
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
        vector.fill(constant);
        return;
    }
    let (mean, deviation) = match (&case.data, tensor) {
        (Data::Peaked, 0) => (0.0, 6.0),
        (Data::Offset, 1) => (4.0, 1.0),
        (Data::Offset, V) => (64.0, 1.0),
        _ => (0.0, 1.0),
    };
    for element in vector {
        *element = mean + deviation * normal(rng);
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
