//! One step of decoding: a query for each head against a cache of 4096 tokens, planned once and run as a graph.
//!
//! `cargo run --release --example decode [DEVICE]`, where DEVICE is `cuda:0`, `hip:0`, `emulator:sm_90a`, ...

use splitkv::half::bf16;
use splitkv::{DType, Device, Executor, Inputs, Kernels, Options, Problem, Tensor, plan};

fn main() -> splitkv::Result<()> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::best()?,
    };
    let kernels = Kernels::find(device.props().target)?;

    // 32 query heads that share 8 KV heads of 128 elements.
    let problem = Problem::new(1, 32, 8, 1, 4096, 128, DType::Bf16).lse(true);
    let plan = plan(&problem, &Options::default(), device.props(), kernels.catalogue())?;
    println!("{plan}");

    // With q = 0 all tokens weigh the same: O is the mean of V, LSE the logarithm of their number.
    let tokens: Vec<_> = (0..4096 * 8 * 128).map(|i| bf16::from_f32(((i / 1024) % 2) as f32)).collect();
    let q = Tensor::zeros(&device, DType::Bf16, &problem.q_shape())?;
    let k = Tensor::from_host(&device, &tokens, &problem.k_shape())?;
    let v = Tensor::from_host(&device, &tokens, &problem.v_shape())?;
    let o = Tensor::uninit(&device, DType::Bf16, &problem.o_shape())?;
    let lse = Tensor::uninit(&device, DType::F32, &problem.lse_shape())?;

    let mut executor = Executor::new(&device, &kernels, &plan)?;
    let inputs = Inputs { lse: Some(&lse), ..Inputs::new(&q, &k, &v, &o) };
    let stream = device.stream()?;
    let graph = stream.capture(|| executor.run(&stream, &inputs))?;
    graph.launch(&stream)?;
    stream.synchronize()?;

    println!("o[0] = {}, expected 0.5", o.to_host::<bf16>()?[0]);
    println!("lse[0] = {}, expected {}", lse.to_host::<f32>()?[0], 4096_f32.ln());
    Ok(())
}
