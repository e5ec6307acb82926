//! Four sequences that begin with the same 512 tokens: the prefix is read once for all of them, each suffix by its own
//! sequence, and the two results are merged.
//!
//! `cargo run --release --example shared_prefix [DEVICE]`, where DEVICE is `cuda:0`, `hip:0`, `emulator:sm_90a`, ...

use splitkv::half::bf16;
use splitkv::{AttentionOptions, DType, Device, Kernels, LseBase, Merge, Partial, Result, Tensor, attention};

const SEQUENCES: usize = 4;
const PREFIX: usize = 512;
const SUFFIX: usize = 100;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;

fn main() -> Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::best()?,
    };
    let worst = run(&device)?;
    println!("{}: merged and whole differ by {worst:e} at most", device.name());
    Ok(())
}

/// The largest difference between merged parts and attention over whole sequences.
fn run(device: &Device) -> Result<f32> {
    let kernels = Kernels::find(device.props().target)?;
    let options = AttentionOptions { lse: true, o_dtype: Some(DType::F32), ..AttentionOptions::default() };
    let tensor = |data: &[bf16], shape: [usize; 4]| Tensor::from_host(device, data, &shape);
    let attend = |q: &Tensor, k: &[bf16], v: &[bf16], sequences: usize| -> Result<(Tensor, Tensor)> {
        let shape = [sequences, k.len() / (sequences * KV_HEADS * DIM), KV_HEADS, DIM];
        let (o, lse) = attention(device, &kernels, q, &tensor(k, shape)?, &tensor(v, shape)?, &options)?;
        Ok((o, lse.expect("asked for")))
    };

    let q = wave(1, SEQUENCES * HEADS * DIM);
    let (prefix_k, prefix_v) = (wave(2, PREFIX * KV_HEADS * DIM), wave(3, PREFIX * KV_HEADS * DIM));
    let (suffix_k, suffix_v) =
        (wave(4, SEQUENCES * SUFFIX * KV_HEADS * DIM), wave(5, SEQUENCES * SUFFIX * KV_HEADS * DIM));

    // The prefix is one sequence with a query of each; the suffixes are a batch with a query each.
    let q_of_one = tensor(&q, [1, SEQUENCES, HEADS, DIM])?;
    let q_of_each = tensor(&q, [SEQUENCES, 1, HEADS, DIM])?;
    let (prefix_o, prefix_lse) = attend(&q_of_one, &prefix_k, &prefix_v, 1)?;
    let (suffix_o, suffix_lse) = attend(&q_of_each, &suffix_k, &suffix_v, SEQUENCES)?;

    // The prefix's results, seen as the batch's: sequences take the place of queries.
    let as_batch = |x: &Tensor, shape: &[usize], strides: &[usize]| {
        Tensor::new(x.buffer().clone(), x.offset(), x.dtype(), shape, strides)
    };
    let prefix_o = as_batch(&prefix_o, suffix_o.shape(), suffix_o.strides())?;
    let prefix_lse = as_batch(&prefix_lse, &[SEQUENCES, HEADS, 1], &[1, SEQUENCES, 1])?;
    let parts = [(&prefix_o, &prefix_lse), (&suffix_o, &suffix_lse)];
    let parts = parts.map(|(o, lse)| Partial { o, lse, base: LseBase::Natural });
    let o = Tensor::uninit(device, DType::F32, suffix_o.shape())?;
    let stream = device.stream()?;
    Merge::new(device, &kernels, &parts, &o, None)?.run(&stream)?;
    stream.synchronize()?;

    // What it would be with the prefix copied into each sequence.
    let whole = |prefix: &[bf16], suffix: &[bf16]| -> Vec<bf16> {
        suffix.chunks(SUFFIX * KV_HEADS * DIM).flat_map(|own| [prefix, own].concat()).collect()
    };
    let (want, _) = attend(&q_of_each, &whole(&prefix_k, &suffix_k), &whole(&prefix_v, &suffix_v), SEQUENCES)?;
    let (got, want) = (o.to_host::<f32>()?, want.to_host::<f32>()?);
    Ok(got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max))
}

/// Values that look like data and are the same each time.
fn wave(seed: usize, count: usize) -> Vec<bf16> {
    (0..count).map(|i| bf16::from_f32(((i * (2 * seed + 7)) as f32 * 0.37).sin())).collect()
}

#[cfg(test)]
#[test]
fn parts_make_the_whole() {
    let worst = run(&Device::best().unwrap()).unwrap();
    assert!(worst < 2e-3, "{worst}");
}
