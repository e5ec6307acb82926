//! Reading memory and nothing else, for benchmarks: what a device's memory can give.

use std::sync::Arc;

use kernels_gpu::abi::{READ_THREADS, ReadArguments, Role};

use crate::driver::LaunchCall;
use crate::kernels::LoadedKernel;
use crate::{Buffer, Device, Error, Kernels, Result, Stream};

/// What the words that a thread reads, or-ed, are not: neither 0, as of a thread that reads none, nor nearly all ones, as
/// of one that reads many.
const NEVER: u32 = 0x0004_2001;

/// A kernel that reads a buffer. The fastest of several, over a buffer far larger than the caches, is the ceiling
/// that a memory-bound kernel is held against.
pub struct Reader {
    device: Device,
    kernel: Arc<LoadedKernel>,
    unroll: u32,
    sink: Buffer,
}

impl Reader {
    /// The readers that `kernels` has.
    ///
    /// # Errors
    /// [`Error::Argument`] where `kernels` are for another target; [`Error::Io`], [`Error::OutOfMemory`], or what the
    /// driver says.
    pub fn all(device: &Device, kernels: &Kernels) -> Result<Vec<Self>> {
        kernels.check_target(device)?;
        let mut readers = Vec::new();
        for kernel in kernels.catalogue().kernels() {
            if let Role::Read { unroll } = kernel.role {
                let sink = Buffer::new(device, READ_THREADS as usize * size_of::<u32>())?;
                readers.push(Self { device: device.clone(), kernel: kernels.load(device, kernel)?, unroll, sink });
            }
        }
        Ok(readers)
    }

    /// Loads of 16 bytes that a thread has under way.
    pub fn unroll(&self) -> u32 {
        self.unroll
    }

    /// Bytes that [`Reader::run`] reads of a buffer of `size` bytes: whole runs of all threads of a block.
    pub fn bytes(&self, size: usize) -> usize {
        let run = self.unroll as usize * READ_THREADS as usize * 16;
        size / run * run
    }

    /// Gives `stream` the work of reading the first [`Reader::bytes`] bytes of `buffer`, with `blocks` blocks.
    ///
    /// # Errors
    /// [`Error::Argument`] for no blocks or another device's buffer or stream, or what the driver says.
    pub fn run(&self, stream: &Stream, buffer: &Buffer, blocks: u32) -> Result<()> {
        self.device.check_same("stream", stream.device())?;
        self.device.check_same("buffer", buffer.device())?;
        if blocks == 0 {
            return Err(Error::argument("blocks", 0, "at least 1"));
        }
        let vectors = (self.bytes(buffer.size()) / 16) as u64;
        let arguments = ReadArguments { source: buffer.address(), sink: self.sink.address(), vectors, never: NEVER };
        stream.hold([buffer.hold(), self.sink.hold(), Arc::clone(&self.kernel) as _])?;
        let call = LaunchCall {
            function: self.kernel.function,
            grid: blocks,
            block: READ_THREADS,
            shared_bytes: 0,
            arguments: &arguments.cells(),
        };
        // SAFETY: the stream lives and is this device's; the function lives and takes these arguments. The vectors lie
        // in the buffer, the sink has a word for each thread, and the stream holds both until the work is done.
        unsafe { self.device.driver().launch(stream.handle(), &call) }
    }
}
