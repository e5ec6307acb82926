//! What CUDA callers bring along: contexts and streams of cust, and what the driver holds them to. On a GPU, or on the
//! emulator behind the driver's functions.
#![cfg(feature = "cuda")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cust::context::Context;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::module::Module;
use cust::stream::{Stream, StreamFlags};
use cust::sys::{self, CUfunction_attribute, CUresult};
use splitkv::Device;

/// Stores its arguments, each as 64 bits, and the last element of its dynamic shared memory.
const KERNEL: &str = "
.version 7.8
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry arguments(
    .param .u64 out, .param .u16 short, .param .u32 word, .param .u64 long, .param .u32 last
)
{
    .reg .b16 %h<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u16 %h1, [short];
    ld.param.u32 %r1, [word];
    ld.param.u64 %rd2, [long];
    ld.param.u32 %r2, [last];
    cvt.u64.u16 %rd3, %h1;
    cvt.u64.u32 %rd4, %r1;
    mov.u32 %r3, memory;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    ld.shared.u32 %r4, [%r3];
    cvt.u64.u32 %rd5, %r4;
    st.global.u64 [%rd1], %rd3;
    st.global.u64 [%rd1+8], %rd4;
    st.global.u64 [%rd1+16], %rd2;
    st.global.u64 [%rd1+24], %rd5;
    ret;
}
";

/// The device's context, current on this thread; `None` without a device.
fn context() -> Option<Context> {
    if let Err(error) = cust::init(cust::CudaFlags::empty()) {
        println!("NO DEVICE, so nothing ran: {error:?}");
        return None;
    }
    let device = cust::device::Device::get_device(0).expect("device 0");
    Some(Context::new(device).expect("its context"))
}

fn current() -> sys::CUcontext {
    let mut current = null_mut();
    // SAFETY: `current` is a place for the result.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut current) }, CUresult::CUDA_SUCCESS);
    current
}

/// Launches one thread of the kernel with `shared` bytes, the last of which it uses.
fn launch(function: sys::CUfunction, stream: &Stream, out: u64, shared: u32) -> CUresult {
    let (short, word, long, last) = (0xfedc_u16, 0x8765_4321_u32, 0x0123_4567_89ab_cdef_u64, shared - 4);
    let mut arguments = [
        (&raw const out).cast_mut().cast::<c_void>(),
        (&raw const short).cast_mut().cast(),
        (&raw const word).cast_mut().cast(),
        (&raw const long).cast_mut().cast(),
        (&raw const last).cast_mut().cast(),
    ];
    let arguments = arguments.as_mut_ptr();
    // SAFETY: the function and the stream live, and these are the arguments that the kernel has, which the driver
    // reads before it returns.
    unsafe { sys::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared, stream.as_inner(), arguments, null_mut()) }
}

#[test]
fn arguments_arrive_and_shared_memory_has_to_be_asked_for() {
    let Some(_context) = context() else { return };
    let module = Module::from_ptx(KERNEL, &[]).expect("a module");
    let function = module.get_function("arguments").expect("a kernel").to_raw();
    assert!(module.get_function("argument").is_err());
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).expect("a stream");
    let out = DeviceBuffer::from_slice(&[0_u64; 4]).expect("memory");
    let address = out.as_device_ptr().as_raw();
    let ask = |bytes: i32| {
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function lives.
        unsafe { sys::cuFuncSetAttribute(function, most, bytes) }
    };
    let stored = || {
        stream.synchronize().expect("the kernel ends");
        let mut stored = [0; 4];
        out.copy_to(&mut stored).expect("a copy");
        stored
    };
    let want = [0xfedc, 0x8765_4321, 0x0123_4567_89ab_cdef, 0x8765_4321];

    assert_eq!(launch(function, &stream, address, 48 * 1024), CUresult::CUDA_SUCCESS);
    assert_eq!(stored(), want);
    assert_eq!(launch(function, &stream, address, 48 * 1024 + 16), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(ask(227 * 1024 + 16), CUresult::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(ask(227 * 1024), CUresult::CUDA_SUCCESS);
    assert_eq!(launch(function, &stream, address, 227 * 1024), CUresult::CUDA_SUCCESS);
    assert_eq!(stored(), want);
}

#[test]
fn contexts_and_streams_of_cust_are_taken() {
    let Some(context) = context() else { return };
    let raw = context.as_raw();
    assert_eq!(current(), raw);
    let device = Device::from_cust_context(context.clone()).expect("a device");
    assert_eq!(device.name(), "cuda:0");
    let own = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None).expect("a stream"));
    let stream = splitkv::Stream::from_cust(&device, Arc::clone(&own)).expect("the same context");
    let event = stream.record().expect("an event");
    stream.synchronize().expect("nothing to wait for");
    assert!(event.is_done().expect("an answer"));
    drop(stream);
    assert_eq!(Arc::strong_count(&own), 1);
    // The primary context is the one that the library opens by name.
    let opened = Device::open("cuda:0").expect("the device");
    assert_eq!(opened.props(), device.props());
    assert_eq!(current(), raw);
    // Without a current context, the library's calls leave it so.
    // SAFETY: null is no context.
    assert_eq!(unsafe { sys::cuCtxSetCurrent(null_mut()) }, CUresult::CUDA_SUCCESS);
    opened.stream().expect("a stream").synchronize().expect("nothing to wait for");
    assert!(current().is_null());
}
