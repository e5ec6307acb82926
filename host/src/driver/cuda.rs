//! CUDA, through cust. What cust's safe API lacks comes from its bindings, [`cust::sys`].

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use cust::context::Context;
use cust::sys::{self, CUdevice_attribute as Attribute, CUresult};
use kernels_gpu::abi::Target;
use libloading::os::unix::Library;

use super::{Backend, DeviceId, Driver, Handle, LaunchCall, Listed, TensorMap, ordinal, upload};
use crate::stream::Held;
use crate::{Device, DeviceProps, Error, Result, Stream};

pub(super) const BACKEND: Backend = Backend { name: "cuda", list, open };

/// Size of the buffer for the log of the driver's compiler.
const LOG_BYTES: usize = 16 * 1024;

/// A device's context. Every call makes it current for as long as the call takes.
struct Cuda {
    name: String,
    props: DeviceProps,
    context: Context,
}

/// Calls a function of the driver and gives an error with its name.
macro_rules! cu {
    ($device:expr, unsafe $function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: handles are live and of the current context, ranges were checked, and places for results are
        // variables of the caller. The result's code may be newer than the bindings' enum; it is within its range.
        check($device, stringify!($function), unsafe { sys::$function($($argument),*) })
    };
}

fn check(device: &str, call: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver {
        device: device.into(),
        call,
        code: code as i32,
        name: describe(code, sys::cuGetErrorName),
        message: describe(code, sys::cuGetErrorString),
    })
}

fn describe(code: CUresult, by: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult) -> String {
    let mut text = null();
    // SAFETY: it sets `text` to null or to a string that is never freed.
    unsafe {
        by(code, &mut text);
        if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}

/// What cust's own calls fail with. Its error is not printed by its `Display`, which panics where the driver does not
/// know the code.
fn failed(device: &str, call: &'static str) -> impl FnOnce(cust::error::CudaError) -> Error {
    let device = device.into();
    move |error| Error::Driver {
        device,
        call,
        code: error as i32,
        name: format!("{error:?}"),
        message: "from cust".into(),
    }
}

fn devices() -> Result<Vec<cust::device::Device>> {
    let no_device = |reason: String| Error::NoDevice { name: "cuda".into(), reason };
    let mut count = 0;
    cu!("cuda", unsafe cuInit(0)).map_err(|error| no_device(error.to_string()))?;
    cu!("cuda", unsafe cuDeviceGetCount(&mut count)).map_err(|error| no_device(error.to_string()))?;
    if count == 0 {
        return Err(no_device("the driver reports no GPU".into()));
    }
    (0..count as u32)
        .map(|index| cust::device::Device::get_device(index).map_err(failed("cuda", "cuDeviceGet")))
        .collect()
}

fn list() -> Result<Vec<Listed>> {
    let devices = devices()?.into_iter().enumerate();
    Ok(devices.map(|(index, device)| (index.to_string(), props(&format!("cuda:{index}"), device))).collect())
}

fn open(index: &str) -> Result<Arc<dyn Driver>> {
    let devices = devices()?;
    let index = ordinal("cuda", index, devices.len())?;
    let name = format!("cuda:{index}");
    let props = props(&name, devices[index])?;
    // `Context::new` leaves the context current, which is not ours to change.
    let mut before = null_mut();
    cu!(&name, unsafe cuCtxGetCurrent(&mut before))?;
    let context = Context::new(devices[index]).map_err(failed(&name, "cuDevicePrimaryCtxRetain"))?;
    cu!(&name, unsafe cuCtxSetCurrent(before))?;
    Ok(Arc::new(Cuda { name, props, context }))
}

fn props(device: &str, cuda: cust::device::Device) -> Result<DeviceProps> {
    let attribute = |attribute: Attribute| -> Result<u32> {
        let mut value = 0;
        cu!(device, unsafe cuDeviceGetAttribute(&mut value, attribute, cuda.as_raw()))?;
        Ok(value.max(0) as u32)
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let target = match major {
        9 => Target::Sm90a,
        10 => Target::Sm100f,
        // PTX for 10.0 is compiled for anything later.
        11.. => Target::Sm100,
        _ => {
            let found = format!("of compute capability {major}.{minor}");
            return Err(Error::UnsupportedArchitecture { device: device.into(), found });
        }
    };
    let threads_per_block = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    let max_grid = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?;
    Ok(DeviceProps {
        name: cuda.name().map_err(failed(device, "cuDeviceGetName"))?,
        target,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_bytes_per_multiprocessor: attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        reserved_shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
        threads_per_block,
        threads_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        max_grid,
        max_grid_threads: u64::from(max_grid) * u64::from(threads_per_block),
    })
}

/// The context of a call, current until this is dropped.
struct Current;

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = null_mut();
        // SAFETY: pops what `enter` pushed.
        unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// A mode of this thread in which calls are allowed that captures usually forbid, until this is dropped.
struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    fn enter(device: &str) -> Result<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        cu!(device, unsafe cuThreadExchangeStreamCaptureMode(&mut mode))?;
        Ok(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: gives back the mode that there was.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

/// A tensor map as the driver writes it.
#[repr(C, align(64))]
struct Aligned([u8; 128]);

/// `cuTensorMapEncodeTiled`, which the bindings do not have: object, element type, rank, address, dimensions, strides,
/// box, element strides, interleave, swizzle, promotion in the L2, fill.
type EncodeTiled = unsafe extern "C" fn(
    *mut Aligned,
    u32,
    u32,
    u64,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    u32,
    u32,
    u32,
    u32,
) -> CUresult;

impl Cuda {
    fn enter(&self) -> Result<Current> {
        cu!(&self.name, unsafe cuCtxPushCurrent_v2(self.context.as_raw()))?;
        Ok(Current)
    }
}

impl Driver for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> DeviceId {
        DeviceId { driver: BACKEND.name, context: self.context.as_raw() as u64 }
    }

    fn props(&self) -> &DeviceProps {
        &self.props
    }

    fn synchronize(&self) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuCtxSynchronize())
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let _current = self.enter()?;
        let mut address = 0;
        match cu!(&self.name, unsafe cuMemAlloc_v2(&mut address, bytes)) {
            Ok(()) => Ok(address),
            Err(Error::Driver { code, .. }) if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32 => {
                Err(Error::OutOfMemory { device: self.name.clone(), bytes })
            }
            Err(error) => Err(error),
        }
    }

    fn upload(&self, bytes: &[u8]) -> Result<u64> {
        let _relaxed = Relaxed::enter(&self.name)?;
        upload(self, bytes)
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<[u8; 128]> {
        const NAME: &str = "cuTensorMapEncodeTiled";
        let _current = self.enter()?;
        // SAFETY: the program has the driver loaded; the function is declared as the driver's documentation says.
        let encode = unsafe { Library::this().get::<EncodeTiled>(NAME.as_bytes()) };
        let encode = encode.map_err(|_| Error::Unsupported {
            device: self.name.clone(),
            what: "tensor maps: its driver has no cuTensorMapEncodeTiled (CUDA 12.0 has)",
        })?;
        let mut object = Aligned([0; 128]);
        let (u8_elements, rank, no_interleave, promote_128_bytes, fill_zeros) = (0, 4, 0, 2, 0);
        let swizzle = if map.swizzle == 128 { 3 } else { 2 };
        // SAFETY: all places are as long as the rank says.
        let code = unsafe {
            encode(
                &mut object,
                u8_elements,
                rank,
                map.address,
                map.dims.as_ptr(),
                map.strides.as_ptr(),
                map.box_dims.as_ptr(),
                [1; 4].as_ptr(),
                no_interleave,
                swizzle,
                promote_128_bytes,
                fill_zeros,
            )
        };
        check(&self.name, NAME, code).map(|()| object.0)
    }

    unsafe fn free(&self, address: u64) {
        let Ok(_current) = self.enter() else { return };
        let _relaxed = Relaxed::enter(&self.name);
        // A fault of earlier work may come out here; the next call reports it again.
        let _ = cu!(&self.name, unsafe cuMemFree_v2(address));
    }

    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()))?;
        // The copy may be on its way from a staging buffer.
        cu!(&self.name, unsafe cuStreamSynchronize(null_mut()))
    }

    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()))
    }

    unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuMemsetD8_v2(address, byte, bytes))?;
        cu!(&self.name, unsafe cuStreamSynchronize(null_mut()))
    }

    fn module_load(&self, image: &[u8]) -> Result<Handle> {
        let _current = self.enter()?;
        // PTX is text that ends with a zero byte.
        let image = [image, &[0]].concat();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut module = null_mut();
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        cu!(&self.name, unsafe cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 2, options, values)).map_err(
            |error| match error {
                Error::Driver { device, call, code, name, mut message } => {
                    let log = String::from_utf8_lossy(log.split(|&byte| byte == 0).next().unwrap_or_default());
                    if !log.trim().is_empty() {
                        message = format!("{message}: {}", log.trim());
                    }
                    Error::Driver { device, call, code, name, message }
                }
                error => error,
            },
        )?;
        Ok(module as Handle)
    }

    unsafe fn module_unload(&self, module: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = cu!(&self.name, unsafe cuModuleUnload(module as _));
    }

    unsafe fn module_function(&self, module: Handle, name: &str, shared_bytes: u32) -> Result<Handle> {
        let _current = self.enter()?;
        let entry = CString::new(name).map_err(|_| Error::argument("kernel", name, "a name without zero bytes"))?;
        let mut function = null_mut();
        cu!(&self.name, unsafe cuModuleGetFunction(&mut function, module as _, entry.as_ptr()))?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        cu!(&self.name, unsafe cuFuncSetAttribute(function, attribute, shared_bytes as i32))?;
        Ok(function as Handle)
    }

    unsafe fn launch(&self, stream: Handle, call: &LaunchCall<'_>) -> Result<()> {
        let _current = self.enter()?;
        let mut arguments: Vec<_> =
            call.arguments.iter().map(|cell| std::ptr::from_ref(cell).cast_mut().cast::<c_void>()).collect();
        let (grid, block) = ((call.grid, 1, 1), (call.block, 1, 1));
        cu!(
            &self.name,
            unsafe cuLaunchKernel(
                call.function as _,
                grid.0,
                grid.1,
                grid.2,
                block.0,
                block.1,
                block.2,
                call.shared_bytes,
                stream as _,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        )
    }

    fn stream_create(&self) -> Result<Handle> {
        let _current = self.enter()?;
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        cu!(&self.name, unsafe cuStreamCreate(&mut stream, flags))?;
        Ok(stream as Handle)
    }

    unsafe fn stream_destroy(&self, stream: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = cu!(&self.name, unsafe cuStreamDestroy_v2(stream as _));
    }

    unsafe fn stream_synchronize(&self, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuStreamSynchronize(stream as _))
    }

    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuStreamWaitEvent(stream as _, event as _, 0))
    }

    unsafe fn capture_begin(&self, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        // Other threads go on allocating and synchronizing meanwhile.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        cu!(&self.name, unsafe cuStreamBeginCapture_v2(stream as _, mode))
    }

    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle> {
        let _current = self.enter()?;
        let (mut graph, mut launchable) = (null_mut(), null_mut());
        cu!(&self.name, unsafe cuStreamEndCapture(stream as _, &mut graph))?;
        let instantiated =
            cu!(&self.name, unsafe cuGraphInstantiate_v2(&mut launchable, graph, null_mut(), null_mut(), 0));
        let _ = cu!(&self.name, unsafe cuGraphDestroy(graph));
        instantiated?;
        Ok(launchable as Handle)
    }

    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuGraphLaunch(graph as _, stream as _))
    }

    unsafe fn graph_destroy(&self, graph: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = cu!(&self.name, unsafe cuGraphExecDestroy(graph as _));
    }

    fn event_create(&self) -> Result<Handle> {
        let _current = self.enter()?;
        let mut event = null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        cu!(&self.name, unsafe cuEventCreate(&mut event, flags))?;
        Ok(event as Handle)
    }

    unsafe fn event_destroy(&self, event: Handle) {
        let Ok(_current) = self.enter() else { return };
        let _ = cu!(&self.name, unsafe cuEventDestroy_v2(event as _));
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuEventRecord(event as _, stream as _))
    }

    unsafe fn event_query(&self, event: Handle) -> Result<bool> {
        let _current = self.enter()?;
        match cu!(&self.name, unsafe cuEventQuery(event as _)) {
            Ok(()) => Ok(true),
            Err(Error::Driver { code, .. }) if code == CUresult::CUDA_ERROR_NOT_READY as i32 => Ok(false),
            Err(error) => Err(error),
        }
    }

    unsafe fn event_synchronize(&self, event: Handle) -> Result<()> {
        let _current = self.enter()?;
        cu!(&self.name, unsafe cuEventSynchronize(event as _))
    }

    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let _current = self.enter()?;
        let mut milliseconds = 0.0;
        cu!(&self.name, unsafe cuEventElapsedTime(&mut milliseconds, start as _, end as _))?;
        Ok(milliseconds)
    }
}

impl Device {
    /// The device behind a context that the caller made with cust. It keeps the context alive, and ends it with its last
    /// clone: streams and memory of cust's in that context must be dropped before.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`], or what the driver says.
    pub fn from_cust_context(context: Context) -> Result<Self> {
        let mut ordinal = 0;
        cu!("cuda", unsafe cuCtxPushCurrent_v2(context.as_raw()))?;
        let current = Current;
        cu!("cuda", unsafe cuCtxGetDevice(&mut ordinal))?;
        drop(current);
        let name = format!("cuda:{ordinal}");
        let device = cust::device::Device::get_device(ordinal as u32).map_err(failed(&name, "cuDeviceGet"))?;
        let props = props(&name, device)?;
        Ok(Self::from_driver(Arc::new(Cuda { name, props, context })))
    }
}

impl Stream {
    /// A stream that the caller made with cust, in the context of `device`. It keeps the stream alive. Work that is
    /// given to it past this library is not known here: capture it with [`Stream::capture`] only.
    ///
    /// # Errors
    /// [`Error::Argument`] for a stream of another context, or what the driver says.
    pub fn from_cust(device: &Device, stream: Arc<cust::stream::Stream>) -> Result<Self> {
        let mut context = null_mut();
        cu!(device.name(), unsafe cuStreamGetCtx(stream.as_inner(), &mut context))?;
        let given = DeviceId { driver: BACKEND.name, context: context as u64 };
        if given != device.id() {
            let allowed = format!("one of the context of {}", device.name());
            return Err(Error::argument("stream", "one of another context", allowed));
        }
        let handle = stream.as_inner() as Handle;
        Ok(Self::from_handle(device, handle, Some(stream as Held)))
    }
}
