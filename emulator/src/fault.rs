//! What the checks report.

use std::fmt;

/// A kernel did something wrong: what, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// The kernel's name.
    pub kernel: String,
    /// Text of the instruction.
    pub instruction: String,
    /// Where the instruction is: a line of PTX, an offset in the kernel's code.
    pub place: String,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the thread in the block; `None` when the fault is the whole block's.
    pub thread: Option<[u32; 3]>,
    /// The address concerned, in the memory that the kind names.
    pub address: Option<u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: kernel {}, {} `{}`, block {:?}",
            self.kind, self.kernel, self.place, self.instruction, self.block
        )?;
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread:?}")?;
        }
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// The ways in which a kernel can be wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// Global access outside every live allocation.
    #[error("global access of {bytes} bytes outside a live allocation ({near})")]
    GlobalOutOfBounds {
        /// Size of the access.
        bytes: u32,
        /// The nearest allocation, in words.
        near: String,
    },
    /// Access outside the block's shared memory.
    #[error("shared access of {bytes} bytes outside the block's {size} bytes")]
    SharedOutOfBounds {
        /// Size of the access.
        bytes: u32,
        /// The block's shared memory in bytes.
        size: u32,
    },
    /// Access outside a thread's local (scratch) memory.
    #[error("local access of {bytes} bytes outside the thread's {size} bytes")]
    LocalOutOfBounds {
        /// Size of the access.
        bytes: u32,
        /// The thread's local memory in bytes.
        size: u32,
    },
    /// Access outside the kernel's parameters or constants.
    #[error("parameter access of {bytes} bytes outside the kernel's {size} bytes")]
    ParameterOutOfBounds {
        /// Size of the access.
        bytes: u32,
        /// Size of the parameters in bytes.
        size: u32,
    },
    /// The address is not a multiple of what the access needs.
    #[error("misaligned access: needs an address that is a multiple of {align}")]
    Misaligned {
        /// The alignment needed.
        align: u32,
    },
    /// Two threads of a block touched the same shared bytes, one writing, with nothing between that orders them.
    #[error("shared memory race with thread {other} of the block ({what}) and no barrier between")]
    SharedRace {
        /// Linear index of the other thread.
        other: u32,
        /// Which accesses met, the other's first.
        what: &'static str,
    },
    /// Two warps touched the same tensor memory, one writing, with nothing between that orders them.
    #[error("tensor memory race with thread {other} of the block ({what}) and no synchronisation between")]
    TensorRace {
        /// Linear index of a thread of the other warp.
        other: u32,
        /// Which accesses met, the other's first.
        what: &'static str,
    },
    /// A rule of tensor memory is broken.
    #[error("{what}")]
    TensorMemory {
        /// The rule, in words.
        what: String,
    },
    /// Two blocks touched the same global bytes, one writing, with nothing between that orders them.
    #[error("global memory race with {}, and no release - atomic - acquire between", other_block(.other))]
    GlobalRace {
        /// Linear index of the other block, where it is known: readers are not remembered one by one.
        other: Option<u64>,
    },
    /// Data of an asynchronous copy or load was used (or overwritten) before the wait that completes it.
    #[error("{what} before the wait that completes it")]
    UsedBeforeWait {
        /// What was in flight.
        what: &'static str,
    },
    /// An undefined value was used where it decides something that can be seen.
    #[error("undefined value reaches {sink}")]
    Undefined {
        /// Where it arrived: an address, a branch, a store to a caller's buffer.
        sink: &'static str,
    },
    /// Some threads wait at a barrier that others never reach.
    #[error("barrier {barrier} is missed by part of the block: {waiting} of {expected} threads arrived")]
    BarrierMissed {
        /// The barrier's number.
        barrier: u32,
        /// Threads that wait.
        waiting: u32,
        /// Threads that the barrier expects.
        expected: u32,
    },
    /// A barrier or a warp-wide instruction that all lanes must execute together was reached by some of them.
    #[error("executed by lanes {active:#x}, but needs lanes {needed:#x} together")]
    Divergent {
        /// Lanes that execute it.
        active: u64,
        /// Lanes that must.
        needed: u64,
    },
    /// Nothing that another thread could see has happened for too long.
    #[error("waits for ever: {steps} instructions without a store, a barrier or an exit")]
    WaitsForEver {
        /// Instructions of warps since the last progress.
        steps: u64,
    },
    /// All threads that have not ended wait for something that will never come.
    #[error("no thread of the block can go on: {waits}")]
    Deadlock {
        /// Who waits for what.
        waits: String,
    },
    /// Two accesses are in order, but one may not see the other: a fence is missing.
    #[error("{what}, with no {fence} between")]
    MissingFence {
        /// The fence that would do.
        fence: &'static str,
        /// The two accesses.
        what: String,
    },
    /// The kernel stopped itself (trap, unreachable code).
    #[error("the kernel stopped itself")]
    Trap,
    /// The instruction breaks a rule of its own.
    #[error("{what}")]
    Illegal {
        /// The rule, in words.
        what: String,
    },
}

fn other_block(other: &Option<u64>) -> String {
    other.map_or_else(|| "an earlier reader".to_owned(), |block| format!("block {block}"))
}

/// A fault as the executing code knows it: the engine adds kernel, instruction text and block.
#[derive(Clone, Debug)]
pub(crate) struct Trap {
    /// What is wrong.
    pub(crate) kind: FaultKind,
    /// Index of the instruction in the decoded kernel.
    pub(crate) pc: u32,
    /// Linear index of the thread in the block.
    pub(crate) thread: Option<u32>,
    /// The address concerned.
    pub(crate) address: Option<u64>,
}
