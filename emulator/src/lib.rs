//! Executes compiled PTX and gfx950 kernels on the CPU, and checks them while they run.
//!
//! A [`Machine`] stands for one device: it owns global memory, loads the artefacts that the GPU would
//! load ([`Machine::load`]), and runs their kernels ([`Machine::launch`]). Every launch is checked: an
//! access outside a live allocation, a race, a barrier that part of a block misses, undefined data that
//! reaches an address, a branch or a caller's buffer end it with a [`Fault`] that names kernel,
//! instruction, block, thread and address. Every launch is counted too ([`Counters`]).
//!
//! Blocks run in parallel on the host's cores, and the same input gives the same bits and the same
//! counters whatever the number of host threads. How the parts fit together:
//!
//! - `memory` holds allocations with guard zones, and which of their bytes are defined;
//! - `shared` holds a block's shared memory (LDS); `banks` counts its bank conflicts;
//! - `stamps` finds races within a block, `races` those between blocks in global memory, `order` what orders blocks,
//!   `clocks` how order is known;
//! - `engine` runs blocks and schedules the warps of a block; it knows no instruction;
//! - an instruction set implements `engine::Program`: it decodes once and executes a warp;
//! - `cdna` is gfx950.

mod banks;
pub mod cdna;
mod clocks;
mod counters;
mod engine;
mod error;
mod fault;
mod machine;
mod memory;
mod order;
mod ptx;
mod races;
mod shared;
mod stamps;
mod tensor_map;
mod trace;

pub use counters::Counters;
pub use error::Error;
pub use fault::{Fault, FaultKind};
pub use machine::{Machine, Module};
pub use tensor_map::{Swizzle, TensorMap};
pub use trace::{TraceEvent, TraceKind};

/// An architecture whose code can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// NVIDIA compute capability 9.0.
    Sm90,
    /// NVIDIA compute capability 10.0.
    Sm100,
    /// AMD CDNA4.
    Gfx950,
}

impl Arch {
    /// All architectures.
    pub const ALL: [Self; 3] = [Self::Sm90, Self::Sm100, Self::Gfx950];

    /// The name used on command lines and in artefacts: `sm_90`, `sm_100`, `gfx950`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm90 => "sm_90",
            Self::Sm100 => "sm_100",
            Self::Gfx950 => "gfx950",
        }
    }

    /// Threads of a warp (wavefront).
    pub const fn warp_size(self) -> u32 {
        match self {
            Self::Sm90 | Self::Sm100 => 32,
            Self::Gfx950 => 64,
        }
    }

    /// Most bytes of shared memory (LDS) that a block may have.
    pub const fn max_shared_bytes(self) -> u32 {
        match self {
            Self::Sm90 | Self::Sm100 => 227 * 1024,
            Self::Gfx950 => 160 * 1024,
        }
    }

    /// Blocks that run at the same time where one can wait for another: one on each multiprocessor of an H200, a B200;
    /// on gfx950 fewer than there are compute units.
    pub(crate) const fn resident_blocks(self) -> u32 {
        match self {
            Self::Sm90 => 132,
            Self::Sm100 => 148,
            Self::Gfx950 => 64,
        }
    }

    /// Bytes of global memory that a machine of this architecture has unless told otherwise: those of an
    /// H200, a B200, an MI350X.
    pub const fn memory_bytes(self) -> u64 {
        match self {
            Self::Sm90 => 141_000_000_000,
            Self::Sm100 => 180_000_000_000,
            Self::Gfx950 => 288_000_000_000,
        }
    }
}

impl std::str::FromStr for Arch {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|arch| arch.name() == name)
            .ok_or_else(|| Error::UnknownArch { given: name.to_owned() })
    }
}
