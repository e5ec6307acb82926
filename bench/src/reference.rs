//! The check of results against the reference in f64, which is computed once for all choices.

use clap::ValueEnum;
use rayon::prelude::*;
use splitkv::{DType, KvLens, Problem, Tensor};
use splitkv_tests::numeric::Format;
use splitkv_tests::places::{Place, Rows};
use splitkv_tests::reference::{Attention, Mask, View};
use splitkv_tests::tolerance::Row;

use crate::arena::{Arena, Set};

/// Most pairs of a row and a key that a sample has.
const SAMPLE: usize = 1 << 22;

/// Rows of the output (a query of a head of a sequence) that are compared with the reference in f64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// All rows.
    All,
    /// As many rows, drawn at random, the first and the last one, as have 2^22 keys together; all rows where that
    /// is enough, as it is for one query, 32 heads and 131072 tokens.
    Sample,
    /// None.
    None,
}

/// What the sampled rows should be.
pub(crate) struct Reference {
    rows: Vec<([usize; 3], Row)>,
}

/// How a result compares.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// The largest error.
    pub(crate) error: f64,
    /// The first element that is off by more than its row's tolerance, in words.
    pub(crate) wrong: Option<String>,
}

fn format(dtype: DType) -> Format {
    match dtype {
        DType::F16 => Format::F16,
        DType::F32 => Format::F32,
        DType::E4m3 => Format::E4m3,
        _ => Format::Bf16,
    }
}

/// KV length of each sequence.
pub(crate) fn lengths(problem: &Problem) -> Vec<usize> {
    match &problem.kv_lens {
        KvLens::Host(lens) => lens.iter().map(|&len| len as usize).collect(),
        KvLens::Full | KvLens::Device => vec![problem.sk; problem.batch],
    }
}

/// The rows to compare, as `[sequence, query, head]`, those of one KV head of one sequence together.
fn sample(problem: &Problem, check: Check) -> Vec<[usize; 3]> {
    let total = problem.batch * problem.sq * problem.heads;
    let wanted = match check {
        Check::All => total,
        Check::Sample => (SAMPLE / problem.sk.max(1)).clamp(2, total.max(2)).min(total),
        Check::None => 0,
    };
    let mut rows: Vec<usize> = if wanted == total {
        (0..total).collect()
    } else {
        let mut rng = fastrand::Rng::with_seed(0x5a3b1e);
        let drawn = rng.choose_multiple(1..total.saturating_sub(1), wanted.saturating_sub(2));
        drawn.into_iter().chain([0, total - 1].into_iter().take(wanted)).collect()
    };
    let split = |row: usize| [row / problem.heads / problem.sq, row / problem.heads % problem.sq, row % problem.heads];
    rows.sort_unstable_by_key(|&row| {
        let [batch, query, head] = split(row);
        (batch, head, query)
    });
    rows.into_iter().map(split).collect()
}

impl Reference {
    /// The rows that `check` asks for, computed on all cores. `None` where it asks for none.
    pub(crate) fn new(arena: &Arena, set: &Set, problem: &Problem, check: Check) -> Option<Self> {
        if check == Check::None {
            return None;
        }
        let lengths = lengths(problem);
        let rows = sample(problem, check);
        let of_one_head =
            |a: &[usize; 3], b: &[usize; 3]| (a[0], a[2] / problem.group()) == (b[0], b[2] / problem.group());
        // The f64 copy of one KV head of one sequence at a time and thread.
        let heads: Vec<&[[usize; 3]]> = rows.chunk_by(of_one_head).collect();
        let of_head = |rows: &&[[usize; 3]]| {
            let (batch, kv_head, len) = (rows[0][0], rows[0][2] / problem.group(), lengths[rows[0][0]]);
            let take = |tensor: &Tensor, positions: usize, head: usize| -> Vec<f64> {
                let (strides, dim) = (tensor.strides(), tensor.shape()[3]);
                let start = |position| batch * strides[0] + position * strides[1] + head * strides[2];
                (0..positions).flat_map(|position| arena.values(tensor, start(position), dim)).collect()
            };
            let (k, v) = (take(&set.k, len, kv_head), take(&set.v, len, kv_head));
            let (dim, dim_v) = (problem.head_dim_qk, problem.head_dim_v);
            let of_row = |&[batch, query, head]: &[usize; 3]| {
                let q = take(&set.q, problem.sq, head);
                let attention = Attention {
                    q: View { values: &q, place: &one_head(problem.sq, dim) },
                    k: View { values: &k, place: &one_head(len, dim) },
                    v: View { values: &v, place: &one_head(len, dim_v) },
                    queries: &[problem.sq],
                    lengths: &[len],
                    heads: 1,
                    kv_heads: 1,
                    mask: Mask { causal: problem.causal, ..Mask::default() },
                    scale: f64::from(problem.effective_scale()),
                    softcap: None,
                    sinks: None,
                };
                let row = Row::new(&attention, [0, query, 0], format(problem.dtype), format(problem.o_dtype));
                ([batch, query, head], row)
            };
            rows.par_iter().map(of_row).collect::<Vec<_>>()
        };
        Some(Self { rows: heads.par_iter().flat_map(of_head).collect() })
    }

    /// Compares O.
    pub(crate) fn check(&self, set: &Set) -> splitkv::Result<Checked> {
        let o = &set.o;
        let mut bytes = vec![0; o.buffer().size()];
        o.buffer().read(0, &mut bytes)?;
        let got = format(o.dtype()).decode(&bytes);
        let mut checked = Checked { error: 0.0, wrong: None };
        for ([batch, query, head], row) in &self.rows {
            let start = batch * o.strides()[0] + query * o.strides()[1] + head * o.strides()[2];
            for (got, want) in got[start..].iter().zip(&row.o) {
                let error = (got - want).abs();
                let error = if error.is_nan() { f64::INFINITY } else { error };
                checked.error = checked.error.max(error);
                if error > row.o_tolerance && checked.wrong.is_none() {
                    let place = format!("sequence {batch}, query {query}, head {head}");
                    checked.wrong = Some(format!("{got} in place of {want} at {place}"));
                }
            }
        }
        Ok(checked)
    }
}

/// One head of one sequence, without gaps.
fn one_head(positions: usize, dim: usize) -> Place {
    Place {
        buffer: 0,
        shape: [1, positions, 1, dim],
        offset: 0,
        strides: [positions * dim, dim, dim],
        rows: Rows::Dense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use splitkv::Device;
    use splitkv::half::bf16;

    #[test]
    fn samples_are_small_and_have_both_ends() {
        let problem = |batch, sq, sk, heads| Problem::new(batch, heads, 4, sq, sk, 64, DType::Bf16);
        assert_eq!(sample(&problem(1, 1, 131_072, 32), Check::Sample).len(), 32);
        assert_eq!(sample(&problem(2, 3, 128, 8), Check::Sample).len(), 48);
        assert_eq!(sample(&problem(2, 3, 128, 8), Check::None), [[0; 3]; 0]);
        let large = problem(64, 2, 65_536, 32);
        let rows = sample(&large, Check::Sample);
        assert_eq!(rows.len(), 64);
        assert!(rows.contains(&[0, 0, 0]) && rows.contains(&[63, 1, 31]));
        assert_eq!(sample(&large, Check::All).len(), 64 * 2 * 32);
        // A key each is the least: two rows, or the only one.
        assert_eq!(sample(&problem(9, 1, 1 << 23, 4), Check::Sample), [[0, 0, 0], [8, 0, 3]]);
        assert_eq!(sample(&Problem::new(1, 1, 1, 1, 1 << 23, 64, DType::Bf16), Check::Sample), [[0, 0, 0]]);
    }

    #[test]
    fn what_is_wrong_is_found() {
        let device = Device::open("emulator:sm_90a").unwrap();
        let problem = Problem::new(2, 4, 2, 2, 40, 64, DType::Bf16).causal(true);
        let problem = problem.kv_lens(KvLens::Host(vec![40, 1]));
        let arena = Arena::new(&device, DType::Bf16, [(&problem, 1)]).unwrap();
        let set = arena.set(&problem, 0).unwrap();
        let reference = Reference::new(&arena, &set, &problem, Check::All).unwrap();
        // One key is visible: O is its V. None is: O is 0.
        let values = |batch: usize, head: usize| arena.values(&set.v, (batch * 40 * 2 + head) * 64, 64);
        let row = |at: [usize; 3]| &reference.rows.iter().find(|(row, _)| *row == at).unwrap().1;
        assert!(row([1, 1, 3]).o.iter().copied().eq(values(1, 1)));
        assert_eq!(row([1, 0, 0]).o, [0.0; 64]);
        let mut o = vec![bf16::ZERO; 2 * 2 * 4 * 64];
        for ([batch, query, head], row) in &reference.rows {
            for (index, value) in row.o.iter().enumerate() {
                o[((batch * 2 + query) * 4 + head) * 64 + index] = bf16::from_f64(*value);
            }
        }
        let write = |o: &[bf16]| {
            set.o.buffer().write(0, &o.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
            reference.check(&set).unwrap()
        };
        assert_eq!(write(&o).wrong, None);
        o[(4 + 2) * 64 + 5] = bf16::NAN;
        assert!(write(&o).wrong.unwrap().ends_with("sequence 0, query 1, head 2"));
        o[(4 + 2) * 64 + 5] = bf16::from_f64(40.0);
        let checked = write(&o);
        assert!(checked.wrong.unwrap().starts_with("40 in place of "));
        assert!(checked.error > 30.0);
    }
}
