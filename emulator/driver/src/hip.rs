//! What AMD's driver exports: one GPU, which is every thread's current device.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

use splitkv_emulator::Arch;

use crate::boundary::{Arguments, Bytes, Image, In, Out, Text, exports};
use crate::code::{self, Code};
use crate::runtime::{CaptureMode, Handle, Launch, Result, Runtime};

/// Names the GPU that is found: `gfx950`.
const VARIABLE: &str = "SPLITKV_EMULATED_HIP";

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

/// The architecture that is found.
fn architecture() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| Arch::Gfx950.name().into())
}

/// The device, unless a kernel failed on it. There is nothing to run on where the emulator cannot be the GPU found.
fn with_runtime<T>(body: impl FnOnce(&mut Runtime) -> Result<T>) -> Result<T> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if runtime.is_none() {
        let arch: Arch = architecture().parse().map_err(|_| Code::NotSupported)?;
        // A kernel may have all of the local memory without asking.
        *runtime = Some(Runtime::new(arch, arch.max_shared_bytes()));
    }
    let runtime = runtime.as_mut().ok_or(Code::NotSupported)?;
    runtime.check()?;
    body(runtime)
}

fn check_device(device: i32) -> Result<()> {
    if device == 0 { Ok(()) } else { Err(Code::InvalidDevice) }
}

/// Values of `hipDeviceAttribute_t` that callers ask for.
fn attribute(attribute: i32) -> Result<i32> {
    Ok(match attribute {
        // Blocks in the first direction.
        29 => i32::MAX,
        // Threads of a block, of a compute unit; compute units.
        56 => 1024,
        57 => 2048,
        63 => 256,
        // Local memory of a block, of a compute unit.
        74 | 10_002 => Arch::Gfx950.max_shared_bytes() as i32,
        _ => return Err(Code::InvalidValue),
    })
}

/// Size of `hipDeviceProp_t` since HIP 6, and the places of its texts. The numbers between are left 0.
const PROPERTIES: usize = 1472;
const PROPERTIES_NAME: usize = 0;
const PROPERTIES_ARCHITECTURE: usize = 1160;
const NAME: &str = "emulated AMD Instinct MI355X";

/// One of the texts that belong to a code.
fn describe(number: u32, which: usize) -> *const c_char {
    code::describe(number).map_or(c"unknown error".as_ptr(), |texts| CStr::as_ptr(texts[which]))
}

/// The name of an error code.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(code: u32) -> *const c_char {
    describe(code, 1)
}

/// The explanation of an error code.
#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(code: u32) -> *const c_char {
    describe(code, 2)
}

exports! {
    fn hipInit(flags: u32) { if flags == 0 { Ok(()) } else { Err(Code::InvalidValue) } }

    // Devices

    fn hipGetDeviceCount(count: Out<i32>) { count.put(|| Ok(1)) }
    fn hipSetDevice(device: i32) { check_device(device) }
    fn hipGetDevice(device: Out<i32>) { device.put(|| Ok(0)) }
    fn hipDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
        check_device(device)?;
        value.put(|| attribute(number))
    }
    fn hipDeviceGetName(name: Bytes, length: i32, device: i32) {
        check_device(device)?;
        name.put_text(NAME, usize::try_from(length).map_err(|_| Code::InvalidValue)?)
    }
    fn hipGetDevicePropertiesR0600(properties: Bytes, device: i32) {
        check_device(device)?;
        let properties = properties.slice(PROPERTIES)?;
        properties.fill(0);
        let architecture = architecture() + ":sramecc+:xnack-";
        for (place, text) in [(PROPERTIES_NAME, NAME), (PROPERTIES_ARCHITECTURE, &architecture)] {
            let length = text.len().min(255);
            properties[place..place + length].copy_from_slice(&text.as_bytes()[..length]);
        }
        Ok(())
    }
    fn hipDeviceSynchronize() { with_runtime(Runtime::synchronize) }

    // Memory

    fn hipMalloc(address: Out<u64>, bytes: usize) {
        address.put(|| with_runtime(|runtime| if bytes == 0 { Ok(0) } else { runtime.alloc(bytes) }))
    }
    fn hipFree(address: u64) { with_runtime(|runtime| if address == 0 { Ok(()) } else { runtime.free(address) }) }
    fn hipMemcpyHtoD(to: u64, from: In<u8>, bytes: usize) {
        with_runtime(|runtime| runtime.write(to, from.slice(bytes)?))
    }
    fn hipMemcpyDtoH(to: Bytes, from: u64, bytes: usize) {
        with_runtime(|runtime| runtime.read(from, to.slice(bytes)?))
    }
    fn hipMemset(address: u64, byte: i32, bytes: usize) {
        // As `memset`, which takes the low byte.
        with_runtime(|runtime| runtime.fill(address, byte as u8, bytes))
    }

    // Modules and kernels

    fn hipModuleLoadData(module: Out<Handle>, image: Image) {
        let elf = image.elf()?.ok_or(Code::InvalidImage)?;
        module.put(|| with_runtime(|runtime| runtime.load(elf).map_err(crate::runtime::code)))
    }
    fn hipModuleUnload(module: Handle) { with_runtime(|runtime| runtime.unload(module)) }
    fn hipModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        function.put(|| with_runtime(|runtime| runtime.function(module, name.get()?)))
    }
    fn hipModuleLaunchKernel(
        function: Handle, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: Handle, arguments: Arguments, extra: usize,
    ) {
        // Arguments in one buffer.
        if extra != 0 {
            return Err(Code::NotSupported);
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        with_runtime(|runtime| {
            let arguments = arguments.read(runtime.argument_sizes(function)?)?;
            runtime.launch(stream, Launch { function, grid, block, shared_bytes, arguments })
        })
    }

    // Streams and graphs

    fn hipStreamCreateWithFlags(stream: Out<Handle>, flags: u32) {
        stream.put(|| with_runtime(|runtime| Ok(runtime.stream_create(flags & 1 == 0))))
    }
    fn hipStreamDestroy(stream: Handle) { with_runtime(|runtime| runtime.stream_destroy(stream)) }
    fn hipStreamSynchronize(stream: Handle) { with_runtime(|runtime| runtime.synchronize_stream(stream)) }
    fn hipStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) {
        with_runtime(|runtime| runtime.stream_wait(stream, event))
    }
    fn hipStreamBeginCapture(stream: Handle, mode: u32) {
        let mode = CaptureMode::new(mode)?;
        with_runtime(|runtime| runtime.capture_begin(stream, mode))
    }
    fn hipStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        graph.put(|| with_runtime(|runtime| runtime.capture_end(stream)))
    }
    fn hipGraphInstantiate(launchable: Out<Handle>, graph: Handle, _node: usize, _log: Bytes, _bytes: usize) {
        launchable.put(|| with_runtime(|runtime| runtime.graph_instantiate(graph)))
    }
    fn hipGraphDestroy(graph: Handle) { with_runtime(|runtime| runtime.graph_destroy(graph)) }
    fn hipGraphExecDestroy(launchable: Handle) { with_runtime(|runtime| runtime.graph_destroy(launchable)) }
    fn hipGraphLaunch(launchable: Handle, stream: Handle) {
        with_runtime(|runtime| runtime.graph_launch(launchable, stream))
    }

    // Events

    fn hipEventCreate(event: Out<Handle>) { event.put(|| with_runtime(|runtime| Ok(runtime.event_create()))) }
    fn hipEventDestroy(event: Handle) { with_runtime(|runtime| runtime.event_destroy(event)) }
    fn hipEventRecord(event: Handle, stream: Handle) { with_runtime(|runtime| runtime.event_record(event, stream)) }
    fn hipEventQuery(event: Handle) { with_runtime(|runtime| runtime.event_query(event)) }
    fn hipEventSynchronize(event: Handle) { with_runtime(|runtime| runtime.event_synchronize(event)) }
    fn hipEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        milliseconds.put(|| with_runtime(|runtime| runtime.event_elapsed(start, end)))
    }
}
