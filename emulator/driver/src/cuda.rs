//! What NVIDIA's driver exports: the primary context of one GPU, and the stack of contexts that each thread has.

mod absent;
mod tensor_map;

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use splitkv_emulator::Arch;

use crate::boundary::{Arguments, Bytes, Image, In, InOut, Out, Text, exports};
use crate::code::{self, Code};
use crate::runtime::{CaptureMode, Handle, Launch, Result, Runtime, exchange_capture_mode};

/// Names the GPU that is found: `sm_90`.
const VARIABLE: &str = "SPLITKV_EMULATED_CUDA";
/// Dynamic shared memory that a kernel may have before `cuFuncSetAttribute`, in bytes.
const SHARED_WITHOUT_ASKING: u32 = 48 * 1024;

static DRIVER: Mutex<Driver> = Mutex::new(Driver { gpu: None, contexts: 0, primary: None });

struct Driver {
    /// Known once the driver is initialized.
    gpu: Option<Gpu>,
    /// Contexts made so far; the number of the newest is its handle.
    contexts: Handle,
    primary: Option<Primary>,
}

/// The primary context, from the first `Retain` to the last `Release`.
struct Primary {
    context: Handle,
    retained: u32,
    runtime: Runtime,
}

thread_local! {
    /// The thread's contexts, the current one last. Null is none.
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// The GPU that is found.
#[derive(Clone)]
struct Gpu {
    name: &'static str,
    /// Compute capability.
    capability: (i32, i32),
    multiprocessors: i32,
    /// What executes its code, if that can be done.
    arch: Option<Arch>,
}

impl Gpu {
    /// The one that the environment names.
    fn from_environment() -> Result<Self> {
        let name = std::env::var(VARIABLE).unwrap_or_else(|_| Arch::Sm90.name().into());
        let number: i32 = name.strip_prefix("sm_").and_then(|number| number.parse().ok()).ok_or(Code::NoDevice)?;
        let arch = name.parse().ok();
        let (name, multiprocessors) = match arch {
            Some(Arch::Sm90) => ("emulated NVIDIA H200", 132),
            Some(Arch::Sm100) => ("emulated NVIDIA B200", 148),
            _ => ("emulated NVIDIA GPU", 1),
        };
        Ok(Self { name, capability: (number / 10, number % 10), multiprocessors, arch })
    }
}

fn with_driver<T>(body: impl FnOnce(&mut Driver) -> Result<T>) -> Result<T> {
    body(&mut DRIVER.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The GPU `device`, once the driver is initialized.
fn with_gpu<T>(device: i32, body: impl FnOnce(&Gpu, &mut Driver) -> Result<T>) -> Result<T> {
    with_driver(|driver| {
        let gpu = driver.gpu.clone().ok_or(Code::NotInitialized)?;
        if device == 0 { body(&gpu, driver) } else { Err(Code::InvalidDevice) }
    })
}

/// The current context, unless a kernel failed in it.
fn with_current<T>(body: impl FnOnce(&mut Runtime) -> Result<T>) -> Result<T> {
    with_driver(|driver| {
        driver.gpu.as_ref().ok_or(Code::NotInitialized)?;
        let context = current();
        let primary = driver.primary.as_mut().filter(|primary| primary.context == context);
        let runtime = &mut primary.ok_or(Code::InvalidContext)?.runtime;
        runtime.check()?;
        body(runtime)
    })
}

fn current() -> Handle {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

/// Values of `CUdevice_attribute` that callers ask for.
fn attribute(gpu: &Gpu, attribute: u32) -> Result<i32> {
    Ok(match attribute {
        // Threads of a block, in all and in each direction.
        1..=3 => 1024,
        4 => 64,
        // Blocks in each direction.
        5 => i32::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block.
        8 => SHARED_WITHOUT_ASKING as i32,
        // Threads of a warp.
        10 => 32,
        16 => gpu.multiprocessors,
        // Threads of a multiprocessor.
        39 => 2048,
        75 => gpu.capability.0,
        76 => gpu.capability.1,
        // Shared memory of a multiprocessor, of a block that asks for it, and what each block takes more.
        81 => 228 * 1024,
        97 => gpu.arch.map_or(SHARED_WITHOUT_ASKING, Arch::max_shared_bytes) as i32,
        111 => 1024,
        _ => return Err(Code::InvalidValue),
    })
}

/// Options of the compiler of PTX that are heeded: the log of errors.
const LOG: u32 = 5;
const LOG_BYTES: u32 = 6;

/// Loads PTX; what is wrong with it goes to the caller's log.
fn load(image: &Image, options: &[u32], values: &[usize]) -> Result<Handle> {
    let elf = image.elf()?;
    let option = |wanted| options.iter().position(|&option| option == wanted).map(|index| values[index]);
    with_current(|runtime| {
        runtime.load(elf.unwrap_or_else(|| image.text())).map_err(|error| {
            if let (Some(log), Some(bytes)) = (option(LOG), option(LOG_BYTES)) {
                // What cannot be written there is not worth another error.
                let _ = Bytes::at(log).put_text(&error.to_string(), bytes);
            }
            match crate::runtime::code(error) {
                Code::InvalidImage if elf.is_none() => Code::InvalidPtx,
                code => code,
            }
        })
    })
}

/// One of the texts that belong to a code.
fn describe(number: u32, text: Out<*const c_char>, which: usize) -> Result<()> {
    let texts = code::describe(number);
    text.put(|| Ok(texts.map_or(std::ptr::null(), |texts| CStr::as_ptr(texts[which]))))
        .and(texts.map(drop).ok_or(Code::InvalidValue))
}

exports! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Code::InvalidValue);
        }
        with_driver(|driver| {
            driver.gpu = Some(Gpu::from_environment()?);
            Ok(())
        })
    }

    fn cuDriverGetVersion(version: Out<i32>) { version.put(|| Ok(13_000)) }
    fn cuGetErrorName(code: u32, name: Out<*const c_char>) { describe(code, name, 0) }
    fn cuGetErrorString(code: u32, text: Out<*const c_char>) { describe(code, text, 2) }

    // Devices

    fn cuDeviceGetCount(count: Out<i32>) { count.put(|| with_gpu(0, |_, _| Ok(1))) }
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) { device.put(|| with_gpu(ordinal, |_, _| Ok(ordinal))) }
    fn cuDeviceGetName(name: Bytes, length: i32, device: i32) {
        let length = usize::try_from(length).map_err(|_| Code::InvalidValue)?;
        with_gpu(device, |gpu, _| name.put_text(gpu.name, length))
    }
    fn cuDeviceGetAttribute(value: Out<i32>, number: u32, device: i32) {
        value.put(|| with_gpu(device, |gpu, _| attribute(gpu, number)))
    }
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.put(|| with_gpu(device, |gpu, _| Ok(gpu.arch.map_or(0, Arch::memory_bytes) as usize)))
    }

    // Contexts

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) {
        context.put(|| with_gpu(device, |gpu, driver| {
            let arch = gpu.arch.ok_or(Code::NotSupported)?;
            let primary = driver.primary.get_or_insert_with(|| {
                driver.contexts += 1;
                Primary { context: driver.contexts, retained: 0, runtime: Runtime::new(arch, SHARED_WITHOUT_ASKING) }
            });
            primary.retained += 1;
            Ok(primary.context)
        }))
    }
    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        with_gpu(device, |_, driver| {
            let primary = driver.primary.as_mut().ok_or(Code::InvalidContext)?;
            primary.retained -= 1;
            if primary.retained == 0 {
                driver.primary = None;
            }
            Ok(())
        })
    }
    fn cuCtxPushCurrent_v2(context: Handle) {
        with_driver(|driver| match &driver.primary {
            Some(primary) if primary.context == context => {
                CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
                Ok(())
            }
            _ => Err(Code::InvalidContext),
        })
    }
    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        let popped = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(Code::InvalidContext)?;
        // No place for the result is allowed here.
        let _ = context.put(|| Ok(popped));
        Ok(())
    }
    fn cuCtxGetCurrent(context: Out<Handle>) { context.put(|| Ok(current())) }
    fn cuCtxSetCurrent(context: Handle) {
        CONTEXTS.with_borrow_mut(|contexts| {
            contexts.pop();
            if context != 0 {
                contexts.push(context);
            }
        });
        Ok(())
    }
    fn cuCtxGetDevice(device: Out<i32>) { device.put(|| with_current(|_| Ok(0))) }
    fn cuCtxSynchronize() { with_current(Runtime::synchronize) }

    // Memory

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        if bytes == 0 {
            return Err(Code::InvalidValue);
        }
        address.put(|| with_current(|runtime| runtime.alloc(bytes)))
    }
    fn cuMemFree_v2(address: u64) {
        if address == 0 { Ok(()) } else { with_current(|runtime| runtime.free(address)) }
    }
    fn cuMemcpyHtoD_v2(to: u64, from: In<u8>, bytes: usize) {
        with_current(|runtime| runtime.write(to, from.slice(bytes)?))
    }
    fn cuMemcpyDtoH_v2(to: Bytes, from: u64, bytes: usize) {
        with_current(|runtime| runtime.read(from, to.slice(bytes)?))
    }
    fn cuMemsetD8_v2(address: u64, byte: u8, bytes: usize) {
        with_current(|runtime| runtime.fill(address, byte, bytes))
    }

    // Modules and kernels

    fn cuModuleLoadData(module: Out<Handle>, image: Image) { module.put(|| load(&image, &[], &[])) }
    fn cuModuleLoadDataEx(module: Out<Handle>, image: Image, count: u32, options: In<u32>, values: In<usize>) {
        let count = count as usize;
        module.put(|| load(&image, options.slice(count)?, values.slice(count)?))
    }
    fn cuModuleUnload(module: Handle) { with_current(|runtime| runtime.unload(module)) }
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        function.put(|| with_current(|runtime| runtime.function(module, name.get()?)))
    }
    fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) {
        // The most dynamic shared memory is the only one that can be set here.
        if attribute != 8 {
            return Err(Code::NotSupported);
        }
        let bytes = u32::try_from(value).map_err(|_| Code::InvalidValue)?;
        with_current(|runtime| runtime.allow_shared(function, bytes))
    }
    fn cuLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: Handle, arguments: Arguments, extra: usize,
    ) {
        // Arguments in one buffer.
        if extra != 0 {
            return Err(Code::NotSupported);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        with_current(|runtime| {
            let arguments = arguments.read(runtime.argument_sizes(function)?)?;
            runtime.launch(stream, Launch { function, grid, block, shared_bytes, arguments })
        })
    }

    // Streams and graphs

    fn cuStreamCreate(stream: Out<Handle>, flags: u32) {
        stream.put(|| with_current(|runtime| Ok(runtime.stream_create(flags & 1 == 0))))
    }
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, _priority: i32) {
        stream.put(|| with_current(|runtime| Ok(runtime.stream_create(flags & 1 == 0))))
    }
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        context.put(|| with_current(|runtime| runtime.stream(stream).map(|_| current())))
    }
    fn cuStreamDestroy_v2(stream: Handle) { with_current(|runtime| runtime.stream_destroy(stream)) }
    fn cuStreamSynchronize(stream: Handle) { with_current(|runtime| runtime.synchronize_stream(stream)) }
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) {
        with_current(|runtime| runtime.stream_wait(stream, event))
    }
    fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) {
        let mode = CaptureMode::new(mode)?;
        with_current(|runtime| runtime.capture_begin(stream, mode))
    }
    fn cuThreadExchangeStreamCaptureMode(mode: InOut<u32>) {
        mode.exchange(|mode| Ok(exchange_capture_mode(CaptureMode::new(mode)?).number()))
    }
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.put(|| with_current(|runtime| runtime.capture_end(stream)))
    }
    fn cuGraphInstantiate_v2(launchable: Out<Handle>, graph: Handle, _node: usize, _log: Bytes, _bytes: usize) {
        launchable.put(|| with_current(|runtime| runtime.graph_instantiate(graph)))
    }
    fn cuGraphDestroy(graph: Handle) { with_current(|runtime| runtime.graph_destroy(graph)) }
    fn cuGraphExecDestroy(launchable: Handle) { with_current(|runtime| runtime.graph_destroy(launchable)) }
    fn cuGraphLaunch(launchable: Handle, stream: Handle) {
        with_current(|runtime| runtime.graph_launch(launchable, stream))
    }

    // Events

    fn cuEventCreate(event: Out<Handle>, _flags: u32) {
        event.put(|| with_current(|runtime| Ok(runtime.event_create())))
    }
    fn cuEventDestroy_v2(event: Handle) { with_current(|runtime| runtime.event_destroy(event)) }
    fn cuEventRecord(event: Handle, stream: Handle) { with_current(|runtime| runtime.event_record(event, stream)) }
    fn cuEventQuery(event: Handle) { with_current(|runtime| runtime.event_query(event)) }
    fn cuEventSynchronize(event: Handle) { with_current(|runtime| runtime.event_synchronize(event)) }
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        milliseconds.put(|| with_current(|runtime| runtime.event_elapsed(start, end)))
    }
}
