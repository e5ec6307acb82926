//! Devices: opening, listing, properties.

use std::fmt;
use std::sync::Arc;

use crate::driver::{BACKENDS, Backend, DeviceId, Driver};
use crate::{DeviceProps, Error, Result};

/// An opened device. Clones are the same device; it may be used from any thread.
#[derive(Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
}

/// A device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The name to open it by: `cuda:0`.
    pub name: String,
    /// Its properties.
    pub props: DeviceProps,
}

impl Device {
    /// Opens a device by name: `cuda:0`, `hip:0`, `emulator:sm_90a`.
    ///
    /// # Errors
    /// [`Error::NoDevice`] where there is no such device or no driver, [`Error::UnsupportedArchitecture`] where no
    /// kernels are built for it, or what the driver says.
    pub fn open(name: &str) -> Result<Self> {
        let refuse = |reason| Error::NoDevice { name: name.into(), reason };
        let drivers = || BACKENDS.iter().map(|b| format!("{}:...", b.name)).collect::<Vec<_>>().join(", ");
        let (driver, rest) = name.split_once(':').ok_or_else(|| refuse(format!("devices are named {}", drivers())))?;
        match BACKENDS.iter().find(|backend| backend.name == driver) {
            Some(backend) => Ok(Self::from_driver((backend.open)(rest)?)),
            None if driver == "cuda" => Err(refuse("this build lacks the cargo feature `cuda`".into())),
            None => Err(refuse(format!("devices are named {}", drivers()))),
        }
    }

    /// Every device that [`Device::open`] would open, GPUs first. Drivers that are not there and devices without
    /// kernels are left out.
    pub fn list() -> Vec<DeviceInfo> {
        BACKENDS.iter().flat_map(|backend| devices(backend).unwrap_or_default()).filter_map(Result::ok).collect()
    }

    /// Opens the first device of [`Device::list`].
    ///
    /// # Errors
    /// [`Error::NoDevice`] with what each driver said where there is none; what the driver says where the first
    /// one cannot be opened.
    pub fn best() -> Result<Self> {
        let mut reasons = Vec::new();
        for backend in BACKENDS {
            let found = match devices(backend) {
                Ok(found) => found,
                Err(error) => {
                    reasons.push(error.to_string());
                    continue;
                }
            };
            for device in found {
                match device {
                    Ok(info) => return Self::open(&info.name),
                    Err(error) => reasons.push(error.to_string()),
                }
            }
        }
        if !BACKENDS.iter().any(|backend| backend.name == "cuda") {
            reasons.push("cuda: this build lacks the cargo feature `cuda`".into());
        }
        Err(Error::NoDevice { name: "to run on".into(), reason: reasons.join("; ") })
    }

    /// The name that it is opened by.
    pub fn name(&self) -> &str {
        self.driver.name()
    }

    /// Its properties.
    pub fn props(&self) -> &DeviceProps {
        self.driver.props()
    }

    /// Waits until all work on the device is done. Not while one of its streams is being captured.
    ///
    /// # Errors
    /// What the driver says; faults of earlier work come out here.
    pub fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }

    /// Begins to keep the counters of each launch on this device, from any thread, until [`Device::take_counters`].
    /// What was kept before is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on a device that is not emulated.
    #[cfg(feature = "emulator")]
    pub fn count_launches(&self) -> Result<()> {
        self.driver.count_launches()
    }

    /// Ends what [`Device::count_launches`] began: the counters of each launch since then, in the order in which they
    /// ended. A launch that a graph recorded counts each time the graph is launched; one that failed does not.
    #[cfg(feature = "emulator")]
    pub fn take_counters(&self) -> Vec<crate::LaunchCounters> {
        self.driver.take_counters()
    }

    pub(crate) fn from_driver(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.driver.id()
    }

    /// Refuses `argument`, which lives on `device`, where that is another one.
    pub(crate) fn check_same(&self, argument: &'static str, device: &Self) -> Result<()> {
        if self.id() == device.id() {
            return Ok(());
        }
        let allowed = format!("one on {}", self.name());
        Err(Error::argument(argument, format_args!("one on {}", device.name()), allowed))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name(), self.props().name, self.props().target.name())
    }
}

fn devices(backend: &Backend) -> Result<Vec<Result<DeviceInfo>>> {
    let name = |rest: String| format!("{}:{rest}", backend.name);
    let found = (backend.list)()?;
    Ok(found.into_iter().map(|(rest, props)| Ok(DeviceInfo { name: name(rest), props: props? })).collect())
}
