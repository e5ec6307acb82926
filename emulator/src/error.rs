//! What can go wrong outside a running kernel.

use crate::Fault;

/// An error of the emulator's API. A kernel that does something wrong is [`Error::Fault`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No architecture of that name.
    #[error("architecture {given:?} is unknown; known: sm_90, sm_100, gfx950")]
    UnknownArch {
        /// The name given.
        given: String,
    },
    /// The device's memory is used up, or the host cannot back it.
    #[error("out of memory: {asked} bytes asked for, {free} of {capacity} are free")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that the device has left.
        free: u64,
        /// Bytes that the device has in all.
        capacity: u64,
    },
    /// `free` of something that is not the start of a live allocation.
    #[error("{address:#x} is not the start of a live allocation")]
    NotAnAllocation {
        /// The address given.
        address: u64,
    },
    /// A host access outside live allocations.
    #[error("host access to {bytes} bytes at {address:#x} is not inside one live allocation")]
    HostAccess {
        /// First address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The artefact cannot be loaded: malformed, or with an unknown instruction.
    #[error("{place}: {reason}")]
    Load {
        /// Where: a line of PTX, an offset in a code object.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The artefact is sound, but for an architecture that this device does not run.
    #[error("code for {found} does not run on {arch}")]
    OtherArch {
        /// The artefact's architecture.
        found: String,
        /// The device's.
        arch: &'static str,
    },
    /// The module has no kernel of that name.
    #[error("no kernel {name:?} in the module; it has: {known}")]
    UnknownKernel {
        /// The name given.
        name: String,
        /// Names of the module's kernels.
        known: String,
    },
    /// The launch does not fit the kernel or the device.
    #[error("launch of {kernel}: {argument} is {given}, allowed: {allowed}")]
    Launch {
        /// The kernel's name.
        kernel: String,
        /// Which part of the launch.
        argument: String,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A tensor map cannot be made of that.
    #[error("tensor map: {argument} is {given}, allowed: {allowed}")]
    TensorMap {
        /// Which argument.
        argument: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A check found something wrong while the kernel ran.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}
