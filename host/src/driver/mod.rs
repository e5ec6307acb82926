//! What the library needs of a device, once; a file for each maker's driver.
//!
//! Handles are the driver's own pointers or numbers. Every method may be called from any thread.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "emulator")]
mod emulator;
mod hip;

use std::sync::Arc;

use crate::{DeviceProps, Error, Result};

/// A driver's handle of a module, function, stream, event or graph.
pub(crate) type Handle = u64;

/// Tells devices apart: two of them with the same value share their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceId {
    /// `cuda`, `hip`, ...
    pub(crate) driver: &'static str,
    /// The context, or the device's number where there are no contexts.
    pub(crate) context: u64,
}

/// [`Driver::upload`], where nothing stands in its way.
fn upload(driver: &(impl Driver + ?Sized), bytes: &[u8]) -> Result<u64> {
    let address = driver.alloc(bytes.len())?;
    // SAFETY: it was just allocated.
    let written = unsafe { driver.write(address, bytes) };
    if written.is_err() {
        // SAFETY: as above.
        unsafe { driver.free(address) };
    }
    written.map(|()| address)
}

/// A tensor of bytes in device memory, and the box of it that one copy moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TensorMap {
    /// A multiple of 16.
    pub(crate) address: u64,
    /// Bytes of each dimension, the innermost first; none is 0.
    pub(crate) dims: [u64; 4],
    /// Bytes from one element to the next in each dimension but the innermost: multiples of 16.
    pub(crate) strides: [u64; 3],
    pub(crate) box_dims: [u32; 4],
    /// Bytes within which pieces of 16 are exchanged: 64 or 128.
    pub(crate) swizzle: u32,
}

/// A kernel launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchCall<'a> {
    pub(crate) function: Handle,
    pub(crate) grid: u32,
    pub(crate) block: u32,
    pub(crate) shared_bytes: u32,
    /// One cell an argument, its value in the first bytes.
    pub(crate) arguments: &'a [u64],
}

/// One device (context). Methods that take handles or addresses are unsafe: those must be this driver's, and live.
pub(crate) trait Driver: Send + Sync {
    /// The name by which it is opened: `cuda:0`.
    fn name(&self) -> &str;
    fn id(&self) -> DeviceId;
    fn props(&self) -> &DeviceProps;

    /// Waits for all work on the device.
    fn synchronize(&self) -> Result<()>;

    /// Allocates device memory, aligned to at least 256 bytes. `bytes` is not 0.
    fn alloc(&self, bytes: usize) -> Result<u64>;
    /// Allocates memory that only kernels use, in which they may store what nobody has defined.
    fn alloc_workspace(&self, bytes: usize) -> Result<u64> {
        self.alloc(bytes)
    }
    /// Allocates device memory with these contents, at least one byte. May be called while a stream is captured.
    fn upload(&self, bytes: &[u8]) -> Result<u64> {
        upload(self, bytes)
    }
    /// A tensor map, to be copied to device memory at a multiple of 64 bytes.
    fn tensor_map(&self, _map: &TensorMap) -> Result<[u8; 128]> {
        Err(Error::Unsupported { device: self.name().into(), what: "tensor maps" })
    }
    /// # Safety
    /// `address` came from `alloc` or `alloc_workspace`, and no work uses it.
    unsafe fn free(&self, address: u64);
    /// Copies to the device; done when it returns.
    /// # Safety
    /// The range is device memory, and no work uses it.
    unsafe fn write(&self, address: u64, bytes: &[u8]) -> Result<()>;
    /// Copies from the device; done when it returns.
    /// # Safety
    /// The range is device memory, and no work writes to it.
    unsafe fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()>;
    /// Sets every byte; done when it returns.
    /// # Safety
    /// The range is device memory, and no work uses it.
    unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<()>;

    fn module_load(&self, image: &[u8]) -> Result<Handle>;
    /// # Safety
    /// A live module whose kernels do not run.
    unsafe fn module_unload(&self, module: Handle);
    /// A kernel that may be launched with `shared_bytes` of dynamic shared memory.
    /// # Safety
    /// A live module.
    unsafe fn module_function(&self, module: Handle, name: &str, shared_bytes: u32) -> Result<Handle>;

    /// # Safety
    /// A live stream; the call's function is live, and its arguments are what the kernel takes.
    unsafe fn launch(&self, stream: Handle, call: &LaunchCall<'_>) -> Result<()>;

    /// A stream that does not wait for the default stream.
    fn stream_create(&self) -> Result<Handle>;
    /// # Safety
    /// A live stream.
    unsafe fn stream_destroy(&self, stream: Handle);
    /// # Safety
    /// A live stream.
    unsafe fn stream_synchronize(&self, stream: Handle) -> Result<()>;
    /// # Safety
    /// A live stream and event.
    unsafe fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()>;
    /// Begins to record the stream's work in place of executing it.
    /// # Safety
    /// A live stream.
    unsafe fn capture_begin(&self, stream: Handle) -> Result<()>;
    /// Ends recording; a graph that can be launched. The stream executes again, also after an error.
    /// # Safety
    /// A live stream.
    unsafe fn capture_end(&self, stream: Handle) -> Result<Handle>;
    /// # Safety
    /// A live graph and stream.
    unsafe fn graph_launch(&self, graph: Handle, stream: Handle) -> Result<()>;
    /// # Safety
    /// A live graph.
    unsafe fn graph_destroy(&self, graph: Handle);

    fn event_create(&self) -> Result<Handle>;
    /// # Safety
    /// A live event.
    unsafe fn event_destroy(&self, event: Handle);
    /// # Safety
    /// A live event and stream.
    unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()>;
    /// Whether the work before the event is done.
    /// # Safety
    /// A live event.
    unsafe fn event_query(&self, event: Handle) -> Result<bool>;
    /// # Safety
    /// A live event.
    unsafe fn event_synchronize(&self, event: Handle) -> Result<()>;
    /// Milliseconds between two events that are done.
    /// # Safety
    /// Live events.
    unsafe fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32>;

    /// From now on, keeps what each launch counts.
    #[cfg(feature = "emulator")]
    fn count_launches(&self) -> Result<()> {
        Err(Error::Unsupported { device: self.name().into(), what: "counters: only emulated devices count" })
    }
    /// Ends counting; the launches since [`Driver::count_launches`], in order.
    #[cfg(feature = "emulator")]
    fn take_counters(&self) -> Vec<LaunchCounters> {
        Vec::new()
    }
}

/// What one launch on an emulated device counted.
#[cfg(feature = "emulator")]
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LaunchCounters {
    /// The kernel.
    pub kernel: String,
    /// Its counters, summed over the blocks.
    pub counters: splitkv_emulator::Counters,
}

/// A device's name behind the colon and its properties, or why it cannot be used.
pub(crate) type Listed = (String, Result<DeviceProps>);

/// A driver that may be there: its name before the colon, its devices, and how to open one.
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    /// The devices, or why there are none.
    pub(crate) list: fn() -> Result<Vec<Listed>>,
    /// Opens the device with this name behind the colon.
    pub(crate) open: fn(&str) -> Result<Arc<dyn Driver>>,
}

/// All drivers that are compiled in, the preferred ones first.
pub(crate) const BACKENDS: &[Backend] = &[
    #[cfg(feature = "cuda")]
    cuda::BACKEND,
    hip::BACKEND,
    #[cfg(feature = "emulator")]
    emulator::BACKEND,
];

/// The ordinal in a device's name, below `count`.
pub(crate) fn ordinal(driver: &str, text: &str, count: usize) -> Result<usize> {
    let name = || format!("{driver}:{text}");
    let index: usize = text.parse().map_err(|_| Error::NoDevice {
        name: name(),
        reason: format!("a number belongs behind the colon: {driver}:0"),
    })?;
    if index < count { Ok(index) } else { Err(Error::NoDevice { name: name(), reason: format!("there are {count}") }) }
}
