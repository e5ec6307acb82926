//! What a program, a launch and a block are. The blocks of a grid run on the host's cores (`grid`), the warps of a
//! block in turns (`warps`). Knows no instruction.

mod grid;
mod warps;

pub(crate) use grid::run;

use crate::clocks::Knowledge;
use crate::counters::Counters;
use crate::fault::Trap;
use crate::memory::{Data, View};
use crate::order::{self, OrderedLog};
use crate::races::{Access, AccessLog, Site};
use crate::shared::{Agents, Shared};
use crate::trace::Tracer;
use crate::{Fault, FaultKind, TraceKind};

/// One argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    /// Its name, or its number where the artefact has none.
    pub(crate) name: String,
    /// Offset in the parameter space, in bytes.
    pub(crate) offset: u32,
    /// Size in bytes, at most 8.
    pub(crate) bytes: u32,
}

/// What the engine needs to know of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct KernelInfo {
    /// Entry point.
    pub(crate) name: String,
    /// Arguments that the host passes, in order.
    pub(crate) parameters: Vec<Parameter>,
    /// Shared memory that the kernel declares itself; dynamic shared memory follows it.
    pub(crate) static_shared: u32,
    /// Width of the narrowest shared-memory access: 1, 2 or 4 bytes.
    pub(crate) shared_granule: u32,
    /// Copy and matrix units that are told apart.
    pub(crate) agents: Agents,
    /// Most threads of a block (`.maxntid`, `max_flat_workgroup_size`).
    pub(crate) max_threads: u32,
    /// Set when what a block does depends on when other blocks run: it takes values from atomics, or waits for
    /// others. Such kernels run on one host thread with their blocks taking turns, so that their result is a
    /// function of the input; all others run in parallel.
    pub(crate) ordered: bool,
}

/// Why a warp stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// All its threads have ended.
    Exit,
    /// Waits at a barrier of the block.
    Barrier {
        /// The barrier's number.
        id: u32,
        /// Threads that the barrier expects; `None`: the whole block.
        threads: Option<u32>,
        /// Threads of the warp that have arrived.
        arrived: u32,
        /// Those of them that say yes to a question that the barrier answers.
        yes: u32,
        /// Where the warp waits.
        pc: u32,
    },
    /// Has arrived at a barrier of the block and goes on.
    Arrive {
        /// The barrier's number.
        id: u32,
        /// Threads that the barrier expects.
        threads: u32,
        /// Threads of the warp that have arrived.
        arrived: u32,
    },
    /// Can go on only when something else has happened; says so again until it has.
    Blocked {
        /// Where the warp waits.
        pc: u32,
    },
    /// Its turn is over.
    Yield {
        /// Where it goes on.
        pc: u32,
    },
}

/// A decoded kernel of some instruction set.
pub(crate) trait Program: Send + Sync {
    /// State of a warp: registers, program counter, lanes.
    type Warp: Send;
    /// What the warps of a block share beside memory: barriers, and the units that work asynchronously.
    type Units: Default + Send;

    /// What the engine needs to know.
    fn info(&self) -> &KernelInfo;

    /// A warp at the kernel's start. `index` is its place in the block; the last warp of a block may have
    /// fewer threads than lanes.
    fn warp(&self, block: &Block<'_>, index: u32) -> Self::Warp;

    /// Executes until the warp stops, at most `budget` instructions.
    fn run(
        &self,
        warp: &mut Self::Warp,
        block: &mut Block<'_>,
        units: &mut Self::Units,
        budget: u32,
    ) -> Result<Stop, Trap>;

    /// The barrier that the warp waited at is complete; `yes` threads said yes, of `threads`.
    fn released(&self, _warp: &mut Self::Warp, _yes: u32, _threads: u32) {}

    /// No warp can go on: does asynchronous work that one of them waits for. `false`: there is none.
    fn settle(&self, _units: &mut Self::Units, _block: &mut Block<'_>) -> Result<bool, Trap> {
        Ok(false)
    }

    /// What a blocked warp waits for, in words.
    fn waits_for(&self, _warp: &Self::Warp, _units: &Self::Units) -> String {
        String::new()
    }

    /// All warps have ended: nothing may be left in flight.
    fn finish(&self, _units: &mut Self::Units, _block: &mut Block<'_>) -> Result<(), Trap> {
        Ok(())
    }

    /// Text and place of the instruction at `pc`.
    fn locate(&self, pc: u32) -> (String, String);
}

/// Grid, block and arguments of a launch.
pub(crate) struct Launch {
    /// Blocks in each direction.
    pub(crate) grid: [u32; 3],
    /// Threads of a block in each direction.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) dynamic_shared: u32,
    /// The parameter space: arguments at their offsets.
    pub(crate) parameters: Vec<u8>,
    /// Lanes of a warp.
    pub(crate) warp_size: u32,
    /// Blocks of an ordered kernel that are resident together.
    pub(crate) resident: u32,
    /// Linear index of the block whose events are wanted.
    pub(crate) traced: Option<u64>,
}

impl Launch {
    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Warps of a block.
    pub(crate) fn warps(&self) -> u32 {
        self.threads().div_ceil(self.warp_size)
    }

    /// Blocks of the grid.
    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    fn block_index(&self, linear: u64) -> [u32; 3] {
        let [x, y] = [u64::from(self.grid[0]), u64::from(self.grid[1])];
        [(linear % x) as u32, (linear / x % y) as u32, (linear / x / y) as u32]
    }

    fn thread_index(&self, linear: u32) -> [u32; 3] {
        let [x, y, _] = self.block;
        [linear % x, linear / x % y, linear / x / y]
    }
}

/// What a block does to global memory, as far as other blocks may race with it.
enum Log<'a> {
    /// The kernel's blocks cannot see each other.
    Unordered(AccessLog),
    Ordered(OrderedLog<'a>),
}

impl Log<'_> {
    #[inline]
    fn add(&mut self, access: Access, address: u64, bytes: u32, site: Site, (reads, writes): (bool, bool)) {
        match self {
            Self::Unordered(log) => log.add(access, address, bytes, site),
            Self::Ordered(log) => log.add(access, address, bytes, site, reads, writes),
        }
    }
}

/// What warps of a block leave for those that find it at a barrier in memory.
#[derive(Clone, Default)]
pub(crate) struct Left {
    pub(crate) threads: Knowledge,
    global: order::Left,
}

impl Left {
    /// Adds what lies elsewhere.
    pub(crate) fn add(&mut self, other: &Self) {
        self.threads.add(&other.threads);
        self.global.add(&other.global);
    }
}

/// What the warps of one block share. Global and shared memory are accessed through it.
pub(crate) struct Block<'a> {
    pub(crate) launch: &'a Launch,
    /// Index of the block in the grid.
    pub(crate) index: [u32; 3],
    pub(crate) shared: Shared,
    pub(crate) counters: Counters,
    tracer: Option<Tracer>,
    view: View<'a>,
    log: Log<'a>,
    /// Grows with whatever another thread could notice.
    progress: u64,
}

impl Block<'_> {
    /// Global load; see [`View::read`].
    #[inline]
    pub(crate) fn global_read(
        &mut self,
        site: Site,
        access: Access,
        address: u64,
        bytes: u32,
        align: u32,
    ) -> Result<Data, FaultKind> {
        let data = self.view.read(address, bytes, align)?;
        self.log.add(access, address, bytes, site, (true, false));
        Ok(data)
    }

    /// Global store; see [`View::write`].
    #[inline]
    pub(crate) fn global_write(
        &mut self,
        site: Site,
        access: Access,
        address: u64,
        bytes: u32,
        align: u32,
        data: Data,
    ) -> Result<(), FaultKind> {
        self.view.write(address, bytes, align, data)?;
        self.log.add(access, address, bytes, site, (false, true));
        self.progress += 1;
        Ok(())
    }

    /// Global atomic; see [`View::atomic`].
    pub(crate) fn global_atomic(
        &mut self,
        site: Site,
        address: u64,
        bytes: u32,
        mut update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<(u64, bool), FaultKind> {
        let mut changed = false;
        let result = self.view.atomic(address, bytes, |old| {
            let new = update(old);
            changed = new.is_some_and(|new| new != old);
            new
        })?;
        self.log.add(Access::Atomic, address, bytes, site, (true, true));
        self.progress += u64::from(changed);
        Ok(result)
    }

    /// A fence of a warp (of any of its lanes) that other blocks can see: what its next atomics write releases what
    /// the warp knows; what its atomics have read is acquired.
    pub(crate) fn global_fence(&mut self, warp: u32, acquire: bool, release: bool) {
        if let Log::Ordered(log) = &mut self.log {
            log.fence(warp, acquire, release);
        }
    }

    /// Notes an event of a warp, if that is wanted.
    pub(crate) fn note(&mut self, warp: u32, kind: impl FnOnce(&mut Tracer) -> TraceKind) {
        if let Some(tracer) = &mut self.tracer {
            let kind = kind(tracer);
            tracer.add(self.counters.instructions, warp, self.counters.special_instructions, kind);
        }
    }

    /// A warp leaves what it knows for other warps, its own past included.
    pub(crate) fn release(&mut self, warp: u32, left: &mut Left) {
        self.shared.release(warp, &mut left.threads);
        if let Log::Ordered(log) = &mut self.log {
            log.release(warp, &mut left.global);
        }
    }

    /// A warp has found what others have left.
    pub(crate) fn acquire(&mut self, warp: u32, left: &Left) {
        self.shared.clocks.acquire(warp, &left.threads);
        if let Log::Ordered(log) = &mut self.log {
            log.acquire(warp, &left.global);
        }
    }

    /// Warps have met at a barrier.
    fn meet(&mut self, warps: &[u32]) {
        self.shared.sync_block(warps);
        if let Log::Ordered(log) = &mut self.log {
            log.meet(warps);
        }
    }

    /// Something happened that another thread of the block can see: a shared store, a copy, an arrival.
    #[inline]
    pub(crate) fn made_progress(&mut self) {
        self.progress += 1;
    }
}

/// A kernel, whatever its instruction set.
pub(crate) trait AnyProgram: Send + Sync {
    fn info(&self) -> &KernelInfo;
    fn start<'a>(&'a self, block: Block<'a>) -> Box<dyn Resident<'a> + 'a>;
    fn fault(&self, trap: Trap, launch: &Launch, block: [u32; 3]) -> Box<Fault>;
}

/// A block that has been started.
pub(crate) trait Resident<'a> {
    /// Gives each warp that can run a turn. `true`: the block is done.
    fn advance(&mut self) -> Result<bool, Trap>;
    /// Instructions since the last progress; other blocks' progress counts too.
    fn idle(&mut self) -> &mut u64;
    fn into_block(self: Box<Self>) -> Block<'a>;
}

impl<P: Program> AnyProgram for P {
    fn info(&self) -> &KernelInfo {
        Program::info(self)
    }

    fn start<'a>(&'a self, block: Block<'a>) -> Box<dyn Resident<'a> + 'a> {
        Box::new(warps::Warps::new(self, block))
    }

    fn fault(&self, trap: Trap, launch: &Launch, block: [u32; 3]) -> Box<Fault> {
        let (instruction, place) = self.locate(trap.pc);
        Box::new(Fault {
            kind: trap.kind,
            kernel: Program::info(self).name.clone(),
            instruction,
            place,
            block,
            thread: trap.thread.map(|thread| launch.thread_index(thread)),
            address: trap.address,
        })
    }
}

#[cfg(test)]
mod tests;
