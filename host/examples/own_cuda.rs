//! A decode in a program that has a CUDA context, a stream and memory of its own, all of them cust's.
//!
//! `cargo run --release --features cuda --example own_cuda` on a machine with an NVIDIA GPU.

use std::sync::Arc;

use cust::context::Context;
use cust::memory::{CopyDestination, DeviceBuffer, DeviceSlice};
use cust::stream::{Stream, StreamFlags};
use splitkv::half::bf16;
use splitkv::{Buffer, DType, Device, Executor, Inputs, Kernels, Options, Problem, Tensor, plan};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let o = run()?;
    println!("o[0] = {}, expected 0.5", o[0]);
    Ok(())
}

fn run() -> Result<Vec<f32>> {
    cust::init(cust::CudaFlags::empty())?;
    let context = Context::new(cust::device::Device::get_device(0)?)?;
    // It takes the context, and ends it: streams and memory of cust's come after it, and so are dropped before.
    let device = Device::from_cust_context(context)?;
    let own_stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None)?);

    let problem = Problem::new(2, 8, 2, 1, 1024, 128, DType::Bf16);
    // With q = 0 all tokens weigh the same: O is the mean of V, in which zeros and ones take turns.
    let elements = |shape: &[usize]| shape.iter().product::<usize>();
    let tokens: Vec<_> = (0..elements(&problem.k_shape())).map(|i| (i / 256 % 2) as f32).map(bf16_bits).collect();
    let q = DeviceBuffer::from_slice(&vec![0_u16; elements(&problem.q_shape())])?;
    let k = DeviceBuffer::from_slice(&tokens)?;
    let v = DeviceBuffer::from_slice(&tokens)?;
    let o = DeviceBuffer::from_slice(&vec![0_u16; elements(&problem.o_shape())])?;

    let stream = splitkv::Stream::from_cust(&device, Arc::clone(&own_stream))?;
    let kernels = Kernels::find(device.props().target)?;
    let plan = plan(&problem, &Options::default(), device.props(), kernels.catalogue())?;
    let tensor = |memory: &DeviceSlice<u16>, shape: Vec<usize>| -> Result<Tensor> {
        // SAFETY: the memory is the device's and outlives the work: the stream is waited for below, before the buffers
        // are dropped. Nothing else uses it meanwhile.
        let buffer = unsafe { Buffer::from_raw(&device, memory.as_device_ptr().as_raw(), memory.len() * 2) };
        let strides = [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1];
        Ok(Tensor::new(buffer, 0, DType::Bf16, &shape, &strides)?)
    };
    let (q, k, v) = (tensor(&q, problem.q_shape())?, tensor(&k, problem.k_shape())?, tensor(&v, problem.v_shape())?);
    let out = tensor(&o, problem.o_shape())?;
    let mut executor = Executor::new(&device, &kernels, &plan)?;
    executor.run(&stream, &Inputs::new(&q, &k, &v, &out))?;
    // cust's own stream, which the work is on.
    own_stream.synchronize()?;

    let mut host = vec![0_u16; o.len()];
    o.copy_to(&mut host)?;
    Ok(host.into_iter().map(|bits| bf16::from_bits(bits).to_f32()).collect())
}

fn bf16_bits(x: f32) -> u16 {
    bf16::from_f32(x).to_bits()
}

#[cfg(test)]
#[test]
fn own_memory_is_computed_on() {
    if let Err(error) = cust::init(cust::CudaFlags::empty()) {
        println!("NO DEVICE, so nothing ran: {error:?}");
        return;
    }
    let o = run().unwrap();
    assert_eq!(o, vec![0.5; 2 * 8 * 128]);
}
