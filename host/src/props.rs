//! What the planner knows of a device.

use kernels_gpu::abi::Target;

/// Properties of a device, as far as plans depend on them. Made by a driver, or by hand to plan for a device that
/// is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProps {
    /// The maker's name of the device.
    pub name: String,
    /// The architecture whose kernels run on it.
    pub target: Target,
    /// Streaming multiprocessors (compute units).
    pub multiprocessors: u32,
    /// Shared memory that one block may have, in bytes, where the driver lets a kernel opt in to more: that.
    pub shared_bytes_per_block: u32,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// Shared memory that the system takes of a multiprocessor for each block, in bytes.
    pub reserved_shared_bytes: u32,
    /// Most threads of a block.
    pub threads_per_block: u32,
    /// Most threads of a multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// Most blocks of a grid.
    pub max_grid: u32,
    /// Most threads of a grid.
    pub max_grid_threads: u64,
}

impl DeviceProps {
    /// An NVIDIA H200 SXM.
    pub fn h200() -> Self {
        Self::nvidia("NVIDIA H200", Target::Sm90a, 132)
    }

    /// An NVIDIA B200.
    pub fn b200() -> Self {
        Self::nvidia("NVIDIA B200", Target::Sm100f, 148)
    }

    fn nvidia(name: &str, target: Target, multiprocessors: u32) -> Self {
        Self {
            name: name.into(),
            target,
            multiprocessors,
            shared_bytes_per_block: 227 * 1024,
            shared_bytes_per_multiprocessor: 228 * 1024,
            reserved_shared_bytes: 1024,
            threads_per_block: 1024,
            threads_per_multiprocessor: 2048,
            max_grid: i32::MAX as u32,
            max_grid_threads: (i32::MAX as u64) * 1024,
        }
    }

    /// An AMD Instinct MI355X (gfx950).
    pub fn mi355x() -> Self {
        Self {
            name: "AMD Instinct MI355X".into(),
            target: Target::Gfx950,
            multiprocessors: 256,
            shared_bytes_per_block: 160 * 1024,
            shared_bytes_per_multiprocessor: 160 * 1024,
            reserved_shared_bytes: 0,
            threads_per_block: 1024,
            threads_per_multiprocessor: 2048,
            max_grid: i32::MAX as u32,
            // A dispatch packet counts work-items in 32 bits.
            max_grid_threads: u32::MAX as u64,
        }
    }

    /// A typical device with `target`'s architecture.
    pub fn of(target: Target) -> Self {
        match target {
            Target::Sm90 | Target::Sm90a => Self { target, ..Self::h200() },
            Target::Sm100 | Target::Sm100f => Self { target, ..Self::b200() },
            Target::Gfx950 => Self::mi355x(),
        }
    }

    /// Most blocks of `threads` threads in one grid.
    pub(crate) fn max_blocks(&self, threads: u32) -> u32 {
        let by_threads = self.max_grid_threads / u64::from(threads.max(1));
        self.max_grid.min(u32::try_from(by_threads).unwrap_or(u32::MAX))
    }

    /// Blocks that fit on a multiprocessor at once as far as shared memory and threads go.
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> u32 {
        let by_threads = self.threads_per_multiprocessor / threads.max(1);
        let of_each = shared_bytes.saturating_add(self.reserved_shared_bytes);
        by_threads.min(self.shared_bytes_per_multiprocessor.checked_div(of_each).unwrap_or(u32::MAX))
    }
}
