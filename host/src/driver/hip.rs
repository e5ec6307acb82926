//! HIP, whose library is opened at run time.
//!
//! Constants and signatures are those of `hip_runtime_api.h` since HIP 6.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use kernels_gpu::abi::Target;
use libloading::Library;

use super::{Backend, DeviceId, Driver, Handle, LaunchCall, Listed, ordinal};
use crate::{DeviceProps, Error, Result};

pub(super) const BACKEND: Backend = Backend { name: "hip", list, open };

/// Names of the library, the newest first. The one without a version belongs to development packages; ROCm's own
/// folder is not always known to the loader.
const LIBRARIES: [&str; 5] =
    ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"];

type Code = c_int;
type Pointer = *mut c_void;

const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NOT_READY: Code = 600;

/// Size of the header of a 64-bit ELF file.
const ELF_HEADER_BYTES: usize = 64;

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
    pub(super) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: c_int = 10_002;
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

/// The library, opened once; where that fails, what was tried.
fn api() -> Result<&'static Api> {
    static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
    let api = API.get_or_init(|| {
        let mut tried = Vec::new();
        let library = LIBRARIES.iter().find_map(|name| {
            // SAFETY: loading HIP's library runs its constructors, which are meant for that.
            unsafe { Library::new(*name) }.map_err(|error| tried.push(explain(&error))).ok()
        });
        let library = library.ok_or_else(|| format!("HIP's library cannot be opened: {}", tried.join("; ")))?;
        let api = Api::new(library).map_err(|error| format!("the library lacks a function: {}", explain(&error)))?;
        // SAFETY: the library is loaded.
        match unsafe { (api.hipInit)(0) } {
            SUCCESS => Ok(api),
            code => Err(format!("hipInit: {}", api.describe(code).1)),
        }
    });
    api.as_ref().map_err(|reason| no_device(reason.clone()))
}

/// What the loader said, which is the error's source.
fn explain(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn no_device(reason: String) -> Error {
    Error::NoDevice { name: "hip".into(), reason }
}

impl Api {
    /// The name and the explanation of an error code.
    fn describe(&self, code: Code) -> (String, String) {
        let text = |text: *const c_char| {
            if text.is_null() {
                return "unknown".into();
            }
            // SAFETY: HIP gives strings that are never freed.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        // SAFETY: both take any number.
        unsafe { (text((self.hipGetErrorName)(code)), text((self.hipGetErrorString)(code))) }
    }

    fn check(&self, device: &str, call: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let (name, message) = self.describe(code);
        Err(Error::Driver { device: device.into(), call, code, name, message })
    }
}

/// Calls a function of the library and gives an error with its name.
macro_rules! hip {
    ($api:expr, $device:expr, unsafe $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: handles are live and of the current device, ranges were checked, and places for results are
        // variables of the caller.
        let code = unsafe { ($api.$function)($($argument),*) };
        $api.check($device, stringify!($function), code)
    }};
}

fn count(api: &Api) -> Result<usize> {
    let mut count = 0;
    hip!(api, "hip", unsafe hipGetDeviceCount(&mut count)).map_err(|error| no_device(error.to_string()))?;
    if count > 0 { Ok(count as usize) } else { Err(no_device("the library reports no GPU".into())) }
}

fn list() -> Result<Vec<Listed>> {
    let api = api()?;
    let props = |index: usize| (index.to_string(), props(api, &format!("hip:{index}"), index as c_int));
    Ok((0..count(api)?).map(props).collect())
}

fn open(index: &str) -> Result<Arc<dyn Driver>> {
    let api = api()?;
    let index = ordinal("hip", index, count(api)?)?;
    let (name, device) = (format!("hip:{index}"), index as c_int);
    let props = props(api, &name, device)?;
    Ok(Arc::new(Hip { name, props, device, api }))
}

fn props(api: &Api, name: &str, device: c_int) -> Result<DeviceProps> {
    let attribute = |attribute: c_int| -> Result<u32> {
        let mut value = 0;
        hip!(api, name, unsafe hipDeviceGetAttribute(&mut value, attribute, device))?;
        Ok(value.max(0) as u32)
    };
    let architecture = architecture(api, name, device)?;
    if architecture != Target::Gfx950.name() {
        return Err(Error::UnsupportedArchitecture { device: name.into(), found: architecture });
    }
    let mut text = [0_u8; 256];
    hip!(api, name, unsafe hipDeviceGetName(text.as_mut_ptr().cast(), text.len() as c_int, device))?;
    Ok(DeviceProps {
        name: CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned(),
        target: Target::Gfx950,
        multiprocessors: attribute(attribute::MULTIPROCESSOR_COUNT)?,
        shared_bytes_per_block: attribute(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?,
        shared_bytes_per_multiprocessor: attribute(attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        threads_per_block: attribute(attribute::MAX_THREADS_PER_BLOCK)?,
        threads_per_multiprocessor: attribute(attribute::MAX_THREADS_PER_MULTIPROCESSOR)?,
        max_grid: attribute(attribute::MAX_GRID_DIM_X)?,
        // What HIP has no attribute for.
        ..DeviceProps::mi355x()
    })
}

/// The architecture's name, without its features: `gfx950`.
///
/// It is a field of the properties' struct, which grows with HIP's versions. So the struct is only a range of bytes
/// here, larger than any version of it, in which the name is searched: it lies behind all numbers and is the last
/// text that begins so.
fn architecture(api: &Api, name: &str, device: c_int) -> Result<String> {
    // 8-byte words, aligned as the struct is, eight times its size today.
    let mut properties = vec![0_u64; 1536];
    hip!(api, name, unsafe hipGetDevicePropertiesR0600(properties.as_mut_ptr().cast(), device))?;
    Ok(find_architecture(bytemuck::cast_slice(&properties)).unwrap_or_else(|| "of an unknown architecture".into()))
}

fn find_architecture(properties: &[u8]) -> Option<String> {
    let at = properties.windows(3).rposition(|bytes| bytes == b"gfx")?;
    let name = properties[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric());
    Some(name.map(|&byte| char::from(byte)).collect())
}

/// A device. HIP's current device is a property of the thread; every call sets it and puts the old one back.
struct Hip {
    name: String,
    props: DeviceProps,
    device: c_int,
    api: &'static Api,
}

/// The device of a call, current until this is dropped.
struct Current {
    api: &'static Api,
    before: c_int,
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: it was current before.
        unsafe { (self.api.hipSetDevice)(self.before) };
    }
}

impl Hip {
    fn enter(&self) -> Result<Current> {
        let mut before = 0;
        hip!(self.api, &self.name, unsafe hipGetDevice(&mut before))?;
        hip!(self.api, &self.name, unsafe hipSetDevice(self.device))?;
        Ok(Current { api: self.api, before })
    }
}

impl Driver for Hip {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> DeviceId {
        DeviceId { driver: BACKEND.name, context: self.device as u64 }
    }

    fn props(&self) -> &DeviceProps {
        &self.props
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipDeviceSynchronize())
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        let mut address = 0;
        match hip!(self.api, &self.name, unsafe hipMalloc(&mut address, bytes)) {
            Ok(()) => Ok(address),
            Err(Error::Driver { code: OUT_OF_MEMORY, .. }) => {
                Err(Error::OutOfMemory { device: self.name.clone(), bytes })
            }
            Err(error) => Err(error),
        }
    }

    unsafe fn free(&self, address: u64) {
        let Ok(_current) = self.enter() else { return };
        // A fault of earlier work may come out here; the next call reports it again.
        let _ = hip!(self.api, &self.name, unsafe hipFree(address));
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipMemcpyHtoD(address, bytes.as_ptr().cast(), bytes.len()))?;
        hip!(self.api, &self.name, unsafe hipStreamSynchronize(0))
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipMemcpyDtoH(bytes.as_mut_ptr().cast(), address, bytes.len()))
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipMemset(address, c_int::from(byte), bytes))?;
        hip!(self.api, &self.name, unsafe hipStreamSynchronize(0))
    }

    fn module_load(&self, image: &[u8]) -> Result<Handle> {
        let _current = self.enter()?;
        // The library reads the header before it knows what the image is, whose length it is not told.
        let image = [image, &[0; ELF_HEADER_BYTES]].concat();
        let mut module = 0;
        hip!(self.api, &self.name, unsafe hipModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(module)
    }

    unsafe fn module_unload(&self, module: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = hip!(self.api, &self.name, unsafe hipModuleUnload(module));
    }

    unsafe fn module_function(&self, module: Handle, name: &str, _shared_bytes: u32) -> Result<Handle> {
        let _current = self.enter()?;
        let entry = CString::new(name).map_err(|_| Error::argument("kernel", name, "a name without zero bytes"))?;
        let mut function = 0;
        hip!(self.api, &self.name, unsafe hipModuleGetFunction(&mut function, module, entry.as_ptr()))?;
        Ok(function)
    }

    unsafe fn launch(&self, stream: Handle, call: &LaunchCall<'_>) -> Result<()> {
        let _current = self.enter()?;
        let mut arguments: Vec<Pointer> =
            call.arguments.iter().map(|cell| std::ptr::from_ref(cell).cast_mut().cast()).collect();
        hip!(
            self.api,
            &self.name,
            unsafe hipModuleLaunchKernel(
                call.function,
                call.grid,
                1,
                1,
                call.block,
                1,
                1,
                call.shared_bytes,
                stream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        )
    }

    fn stream_create(&self) -> Result<Handle> {
        let _current = self.enter()?;
        let mut stream = 0;
        hip!(self.api, &self.name, unsafe hipStreamCreateWithFlags(&mut stream, STREAM_NON_BLOCKING))?;
        Ok(stream)
    }

    unsafe fn stream_destroy(&self, stream: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = hip!(self.api, &self.name, unsafe hipStreamDestroy(stream));
    }

    unsafe fn stream_synchronize(&self, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipStreamSynchronize(stream))
    }

    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipStreamWaitEvent(stream, event, 0))
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipStreamBeginCapture(stream, CAPTURE_MODE_THREAD_LOCAL))
    }

    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle> {
        let _current = self.enter()?;
        let (mut graph, mut launchable) = (0, 0);
        hip!(self.api, &self.name, unsafe hipStreamEndCapture(stream, &mut graph))?;
        let instantiated = hip!(
            self.api,
            &self.name,
            unsafe hipGraphInstantiate(&mut launchable, graph, null_mut(), null_mut(), 0)
        );
        let _ = hip!(self.api, &self.name, unsafe hipGraphDestroy(graph));
        instantiated?;
        Ok(launchable)
    }

    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipGraphLaunch(graph, stream))
    }

    unsafe fn graph_destroy(&self, graph: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = hip!(self.api, &self.name, unsafe hipGraphExecDestroy(graph));
    }

    fn event_create(&self) -> Result<Handle> {
        let _current = self.enter()?;
        let mut event = 0;
        hip!(self.api, &self.name, unsafe hipEventCreate(&mut event))?;
        Ok(event)
    }

    unsafe fn event_destroy(&self, event: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = hip!(self.api, &self.name, unsafe hipEventDestroy(event));
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipEventRecord(event, stream))
    }

    unsafe fn event_query(&self, event: Handle) -> Result<bool> {
        let _current = self.enter()?;
        match hip!(self.api, &self.name, unsafe hipEventQuery(event)) {
            Ok(()) => Ok(true),
            Err(Error::Driver { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    unsafe fn event_synchronize(&self, event: Handle) -> Result<()> {
        let _current = self.enter()?;
        hip!(self.api, &self.name, unsafe hipEventSynchronize(event))
    }

    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let _current = self.enter()?;
        let mut milliseconds = 0.0;
        hip!(self.api, &self.name, unsafe hipEventElapsedTime(&mut milliseconds, start, end))?;
        Ok(milliseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::find_architecture;

    #[test]
    fn the_architecture_is_the_last_text_that_begins_so() {
        let mut bytes = vec![0; 1024];
        assert_eq!(find_architecture(&bytes), None);
        bytes[..11].copy_from_slice(b"AMD gfx9999");
        bytes[700..725].copy_from_slice(b"gfx950:sramecc+:xnack-\0\0\0");
        assert_eq!(find_architecture(&bytes).unwrap(), "gfx950");
        bytes[1018..].copy_from_slice(b"gfx90a");
        assert_eq!(find_architecture(&bytes).unwrap(), "gfx90a");
    }
}
