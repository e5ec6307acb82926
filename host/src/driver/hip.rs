//! HIP, whose library is opened at run time.
//!
//! Constants and signatures are those of `hip_runtime_api.h` since HIP 6.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use kernels_gpu::abi::Target;
use libloading::Library;

use super::{Backend, DeviceId, Driver, Handle, LaunchCall, ordinal};
use crate::{DeviceProps, Error, Result};

pub(super) const BACKEND: Backend = Backend { name: "hip", list, open };

/// Names of the library, the newest first. `libamdhip64.so` belongs to development packages.
const LIBRARIES: [&str; 4] = ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

type Code = c_int;
type Pointer = *mut c_void;

const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NOT_READY: Code = 600;

const STREAM_NON_BLOCKING: c_uint = 1;
const CAPTURE_MODE_THREAD_LOCAL: c_int = 1;

/// Values of `hipDeviceAttribute_t`.
mod attribute {
    use super::c_int;
    pub(super) const MAX_GRID_DIM_X: c_int = 29;
    pub(super) const MAX_SHARED_MEMORY_PER_BLOCK: c_int = 74;
    pub(super) const MAX_THREADS_PER_BLOCK: c_int = 56;
    pub(super) const MAX_THREADS_PER_MULTIPROCESSOR: c_int = 57;
    pub(super) const MULTIPROCESSOR_COUNT: c_int = 63;
    pub(super) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: c_int = 10_004;
}

/// Declares the functions that are looked up, each with its signature.
macro_rules! functions {
    ($($name:ident($($argument:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {
        /// The library and the functions used of it.
        #[allow(non_snake_case, reason = "HIP's names")]
        struct Api {
            $($name: unsafe extern "C" fn($($argument: $ty),*) $(-> $result)?,)*
            _library: Library,
        }

        impl Api {
            fn new(library: Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    $(
                        // SAFETY: the signature is the header's, and the pointer lives with the library.
                        $name: unsafe { *library.get(concat!(stringify!($name), "\0").as_bytes())? },
                    )*
                    _library: library,
                })
            }
        }
    };
}
functions! {
    hipInit(flags: c_uint) -> Code;
    hipGetDeviceCount(count: *mut c_int) -> Code;
    hipSetDevice(device: c_int) -> Code;
    hipGetDevice(device: *mut c_int) -> Code;
    hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Code;
    hipDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> Code;
    hipGetDevicePropertiesR0600(properties: Pointer, device: c_int) -> Code;
    hipGetErrorName(code: Code) -> *const c_char;
    hipGetErrorString(code: Code) -> *const c_char;
    hipDeviceSynchronize() -> Code;
    hipMalloc(address: *mut u64, bytes: usize) -> Code;
    hipFree(address: u64) -> Code;
    hipMemcpyHtoD(to: u64, from: *const c_void, bytes: usize) -> Code;
    hipMemcpyDtoH(to: Pointer, from: u64, bytes: usize) -> Code;
    hipMemset(address: u64, byte: c_int, bytes: usize) -> Code;
    hipModuleLoadData(module: *mut Handle, image: *const c_void) -> Code;
    hipModuleUnload(module: Handle) -> Code;
    hipModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> Code;
    hipModuleLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: Handle, arguments: *mut Pointer, extra: *mut Pointer
    ) -> Code;
    hipStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) -> Code;
    hipStreamDestroy(stream: Handle) -> Code;
    hipStreamSynchronize(stream: Handle) -> Code;
    hipStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> Code;
    hipStreamBeginCapture(stream: Handle, mode: c_int) -> Code;
    hipStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code;
    hipGraphInstantiate(
        launchable: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, bytes: usize
    ) -> Code;
    hipGraphDestroy(graph: Handle) -> Code;
    hipGraphExecDestroy(launchable: Handle) -> Code;
    hipGraphLaunch(launchable: Handle, stream: Handle) -> Code;
    hipEventCreate(event: *mut Handle) -> Code;
    hipEventDestroy(event: Handle) -> Code;
    hipEventRecord(event: Handle, stream: Handle) -> Code;
    hipEventQuery(event: Handle) -> Code;
    hipEventSynchronize(event: Handle) -> Code;
    hipEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> Code;
}
