//! Where a benchmark runs.

use anyhow::Result;
use splitkv::{Device, Kernels, Stream};

/// A device, its kernels, and a stream to work on.
pub(crate) struct Session {
    pub(crate) device: Device,
    pub(crate) kernels: Kernels,
    pub(crate) stream: Stream,
}

impl Session {
    /// The device of this name, or the best one found.
    pub(crate) fn open(device: Option<&str>) -> Result<Self> {
        let device = device.map_or_else(Device::best, Device::open)?;
        let kernels = Kernels::find(device.props().target)?;
        let stream = device.stream()?;
        Ok(Self { device, kernels, stream })
    }

    /// Whether the device counts what it does in place of taking time.
    pub(crate) fn counts(&self) -> bool {
        self.device.name().starts_with("emulator:")
    }
}
