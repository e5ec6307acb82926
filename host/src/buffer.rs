//! Device memory.

use std::fmt;
use std::sync::Arc;

use crate::{Device, Error, Result};

/// A range of device memory, owned or borrowed. Clones are the same memory, which is freed with the last of them.
#[derive(Clone)]
pub struct Buffer(Arc<Inner>);

struct Inner {
    device: Device,
    address: u64,
    size: usize,
    owned: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: it came from `alloc`, and whoever gave work that uses it holds a clone until that is done.
            unsafe { self.device.driver().free(self.address) };
        }
    }
}

impl Buffer {
    /// Allocates `size` bytes, with arbitrary contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or what the driver says.
    pub fn new(device: &Device, size: usize) -> Result<Self> {
        let address = if size == 0 { 0 } else { device.driver().alloc(size)? };
        Ok(Self::owned(device, address, size))
    }

    /// Device memory with these contents. May be called while a stream is captured.
    pub(crate) fn with_contents(device: &Device, bytes: &[u8]) -> Result<Self> {
        let address = device.driver().upload(bytes)?;
        Ok(Self::owned(device, address, bytes.len()))
    }

    /// Allocates `size` bytes that only kernels use.
    pub(crate) fn workspace(device: &Device, size: usize) -> Result<Self> {
        let address = if size == 0 { 0 } else { device.driver().alloc_workspace(size)? };
        Ok(Self::owned(device, address, size))
    }

    fn owned(device: &Device, address: u64, size: usize) -> Self {
        Self(Arc::new(Inner { device: device.clone(), address, size, owned: size > 0 }))
    }

    /// Borrows memory that someone else allocated on `device`.
    ///
    /// # Safety
    /// `address..address + size` is memory of `device`, and stays so until the last clone of the buffer is gone and
    /// all work that it was given to is done.
    pub unsafe fn from_raw(device: &Device, address: u64, size: usize) -> Self {
        Self(Arc::new(Inner { device: device.clone(), address, size, owned: false }))
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its address on the device; 0 where it is empty.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Copies `bytes` to `offset`. Waits for all work on the device first.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside, or what the driver says.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.0.device.synchronize()?;
        // SAFETY: the range is inside the buffer, and no work runs.
        unsafe { self.0.device.driver().write(self.0.address + offset as u64, bytes) }
    }

    /// Copies from `offset` into `bytes`. Waits for all work on the device first.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range outside, or what the driver says.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.0.device.synchronize()?;
        // SAFETY: the range is inside the buffer, and no work runs.
        unsafe { self.0.device.driver().read(self.0.address + offset as u64, bytes) }
    }

    /// Sets every byte. Waits for all work on the device first.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fill(&self, byte: u8) -> Result<()> {
        if self.0.size == 0 {
            return Ok(());
        }
        self.0.device.synchronize()?;
        // SAFETY: the range is the buffer, and no work runs.
        unsafe { self.0.device.driver().fill(self.0.address, byte, self.0.size) }
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<()> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.0.size) {
            return Ok(());
        }
        let given = format!("{bytes} bytes at {offset}");
        Err(Error::argument("offset", given, format_args!("within the buffer's {} bytes", self.0.size)))
    }

    pub(crate) fn hold(&self) -> crate::stream::Held {
        Arc::clone(&self.0) as crate::stream::Held
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {} bytes at {:#x})", self.0.device.name(), self.0.size, self.0.address)
    }
}
