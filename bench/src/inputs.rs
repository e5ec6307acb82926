//! Data to measure on, and the check of a result.

use anyhow::{Result, ensure};
use rayon::prelude::*;
use splitkv::half::bf16;
use splitkv::{Buffer, DType, Device, Problem, Tensor};
use splitkv_tests::numeric::Format;
use splitkv_tests::reference::{Attention, View};
use splitkv_tests::tolerance::Row;

/// Elements after which data repeats: odd, so that no two rows are the same.
const PERIOD: usize = (1 << 22) - 1;

/// Bell-shaped bf16 values of mean 0, deviation 1.
fn block(seed: u64) -> Vec<bf16> {
    let mut rng = fastrand::Rng::with_seed(seed);
    // The sum of twelve uniform values has deviation 1.
    (0..PERIOD).map(|_| bf16::from_f32((0..12).map(|_| rng.f32()).sum::<f32>() - 6.0)).collect()
}

fn bytes(block: &[bf16]) -> Vec<u8> {
    block.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Fills a buffer of bf16 values.
pub(crate) fn fill(buffer: &Buffer, seed: u64) -> splitkv::Result<()> {
    let block = bytes(&block(seed));
    for start in (0..buffer.size()).step_by(block.len()) {
        let length = block.len().min(buffer.size() - start);
        buffer.write(start, &block[..length])?;
    }
    Ok(())
}

/// Q, K, V and O of a bf16 problem.
pub(crate) struct Set {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) o: Tensor,
    seed: u64,
}

impl Set {
    /// Random inputs; sets with other seeds differ.
    pub(crate) fn new(device: &Device, problem: &Problem, seed: u64) -> splitkv::Result<Self> {
        let tensor = |shape: Vec<usize>, seed| {
            let tensor = Tensor::uninit(device, DType::Bf16, &shape)?;
            fill(tensor.buffer(), seed)?;
            Ok(tensor)
        };
        Ok(Self {
            q: tensor(problem.q_shape(), 3 * seed)?,
            k: tensor(problem.k_shape(), 3 * seed + 1)?,
            v: tensor(problem.v_shape(), 3 * seed + 2)?,
            o: Tensor::uninit(device, problem.o_dtype, &problem.o_shape())?,
            seed,
        })
    }

    /// Compares O with the reference, row by row: the largest error, where none is above its tolerance.
    pub(crate) fn check(&self, problem: &Problem) -> Result<f64> {
        let got: Vec<bf16> = self.o.to_host()?;
        let blocks: Vec<Vec<f64>> =
            (0..3).map(|tensor| block(3 * self.seed + tensor).iter().map(|x| f64::from(*x)).collect()).collect();
        // One KV head of one sequence at a time, so that the f64 copy stays small.
        let heads: Vec<(usize, usize)> =
            (0..problem.batch).flat_map(|b| (0..problem.kv_heads).map(move |h| (b, h))).collect();
        let worst = heads.par_iter().map(|&(batch, kv_head)| {
            let take = |tensor: usize, shape: Vec<usize>, first: usize, count: usize| -> Vec<f64> {
                let [_, seq, heads, dim] = shape[..] else { unreachable!("nothing is packed here") };
                let start = |s: usize, h: usize| ((batch * seq + s) * heads + first + h) * dim;
                let rows = (0..seq).flat_map(|s| (0..count).map(move |h| (s, h)));
                rows.flat_map(|(s, h)| (start(s, h)..start(s, h) + dim).map(|i| blocks[tensor][i % PERIOD])).collect()
            };
            let group = problem.group();
            let q = take(0, problem.q_shape(), kv_head * group, group);
            let k = take(1, problem.k_shape(), kv_head, 1);
            let v = take(2, problem.v_shape(), kv_head, 1);
            let (dim, dim_v) = (problem.head_dim_qk, problem.head_dim_v);
            let attention = Attention {
                q: View { values: &q, offset: 0, strides: [0, group * dim, dim], dim },
                k: View { values: &k, offset: 0, strides: [0, dim, dim], dim },
                v: View { values: &v, offset: 0, strides: [0, dim_v, dim_v], dim: dim_v },
                sq: problem.sq,
                heads: group,
                kv_heads: 1,
                lengths: &[problem.sk],
                causal: problem.causal,
                scale: f64::from(problem.effective_scale()),
            };
            let mut worst = 0.0f64;
            for (query, head) in (0..problem.sq).flat_map(|query| (0..group).map(move |head| (query, head))) {
                let row = Row::new(&attention, [0, query, head], Format::Bf16, Format::Bf16);
                let start = ((batch * problem.sq + query) * problem.heads + kv_head * group + head) * dim_v;
                for (got, want) in got[start..start + dim_v].iter().zip(&row.o) {
                    let error = (f64::from(*got) - want).abs();
                    ensure!(
                        error <= row.o_tolerance,
                        "wrong: sequence {batch}, query {query}, head {}: {got} in place of {want}",
                        kv_head * group + head
                    );
                    worst = worst.max(error);
                }
            }
            Ok(worst)
        });
        worst.try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
    }
}
