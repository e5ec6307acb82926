//! What the copy and matrix units do with shared memory: they access it in chunks of 16 bytes, for a thread that goes
//! on meanwhile, and not through the proxy of ordinary accesses.

use super::{BARRIER, DEFINED, PENDING, Shared, Thread, race};
use crate::FaultKind;
use crate::clocks::{Clocks, Knowledge};
use crate::memory::Data;
use crate::stamps::Actor;
use std::ops::Range;

/// Bytes that are accessed together.
pub(crate) const CHUNK: u32 = 16;

/// How many units are told apart in a block. The numbers of those that read shared memory come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agents {
    pub(crate) readers: u32,
    pub(crate) writers: u32,
}

impl Agents {
    /// Those of a kernel that uses none.
    pub(crate) const NONE: Self = Self { readers: 0, writers: 0 };
}

/// A unit that works for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agent {
    /// The one whose work others wait for; `None`: only the thread itself waits for it, and then it is as if the
    /// thread had done it.
    pub(crate) agent: Option<u32>,
    /// The thread that it works for.
    pub(crate) cause: Thread,
}

impl Shared {
    /// How an agent accesses memory.
    fn agent(clocks: &Clocks, warp_size: u32, agent: Agent) -> Actor<'_> {
        let actor = super::actor(clocks, warp_size, agent.cause);
        match agent.agent.map(|agent| clocks.agent(agent)) {
            Some(who) => Actor { thread: who * warp_size, clock: clocks.now(who), ..actor },
            None => actor,
        }
    }

    /// What the agent has begun until now is found by whoever acquires `left`.
    pub(crate) fn release_agent(&mut self, agent: u32, left: &mut Knowledge) {
        self.make_room();
        self.clocks.release_agent(self.clocks.agent(agent), left);
    }

    /// Lanes `mask` of a warp fence their accesses for the asynchronous proxy; `whole`: those are all its lanes.
    pub(crate) fn fence_proxy(&mut self, warp: u32, mask: u32, whole: bool) {
        self.make_room();
        let clock = self.clocks.now(warp);
        for lane in (0..self.warp_size).filter(|lane| mask >> lane & 1 != 0) {
            if let Some(fenced) = self.fenced.get_mut((warp * self.warp_size + lane) as usize) {
                *fenced = clock;
            }
        }
        if !self.fenced.is_empty() {
            self.clocks.fence_proxy(warp, whole);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn check_not_read(&self, range: &Range<usize>) -> Result<(), FaultKind> {
        let chunk = CHUNK as usize;
        if self.reading[range.start / chunk..range.end.div_ceil(chunk)].iter().any(|&count| count != 0) {
            let what = "shared memory overwritten while the copy or matrix unit reads it";
            return Err(FaultKind::UsedBeforeWait { what });
        }
        Ok(())
    }

    /// An agent begins to write a chunk: nobody may touch it until [`land`](Self::land).
    pub(crate) fn begin_write(&mut self, agent: Agent, address: u32) -> Result<(), FaultKind> {
        let range = self.check(address, CHUNK, CHUNK)?;
        self.check_free(&range)?;
        let granules = self.granules(&range);
        self.stamps
            .write(granules, &Self::agent(&self.clocks, self.warp_size, agent), 0)
            .map_err(|conflict| race(&self.clocks, self.warp_size, conflict))?;
        self.state[range].fill(PENDING);
        Ok(())
    }

    /// The chunk's data has arrived.
    pub(crate) fn land(&mut self, address: u32, data: Data) {
        let range = address as usize..(address + CHUNK) as usize;
        self.set(range, data, 0);
    }

    /// An agent begins to read a chunk: nobody may write it until [`end_read`](Self::end_read).
    pub(crate) fn begin_read(&mut self, agent: Agent, address: u32) -> Result<(), FaultKind> {
        let range = self.check(address, CHUNK, CHUNK)?;
        self.check_settled(&range)?;
        let granules = self.granules(&range);
        let actor = Self::agent(&self.clocks, self.warp_size, agent);
        self.stamps.read(granules.clone(), &actor).map_err(|conflict| race(&self.clocks, self.warp_size, conflict))?;
        self.check_visible(granules, agent.cause / self.warp_size)?;
        self.reading[(address / CHUNK) as usize] += 1;
        Ok(())
    }

    /// Ordinary writes need a fence before the asynchronous proxy sees them: by the writer, or by a thread on the way
    /// to the warp that causes the read.
    fn check_visible(&self, granules: Range<usize>, warp: u32) -> Result<(), FaultKind> {
        let visible = self.clocks.all_visible(warp);
        for granule in granules {
            if let Some((writer, clock)) = self.stamps.last_write(granule)
                && let Some(&fenced) = self.fenced.get(writer as usize)
                && fenced < clock
                && visible[(writer / self.warp_size) as usize] < clock
            {
                return Err(FaultKind::MissingFence {
                    fence: "fence.proxy.async",
                    what: format!("shared memory written by thread {writer} is read by the copy or matrix unit"),
                });
            }
        }
        Ok(())
    }

    /// An agent has read the chunk.
    pub(crate) fn end_read(&mut self, address: u32) {
        self.reading[(address / CHUNK) as usize] -= 1;
    }

    /// A thread has waited for a read of the chunk that was made for it; `together`: its whole warp has.
    pub(crate) fn has_read(&mut self, thread: Thread, address: u32, together: bool) {
        let range = address as usize..(address + CHUNK) as usize;
        let granules = self.granules(&range);
        self.stamps.has_read(granules, thread, self.clocks.now(thread / self.warp_size), together);
    }

    /// A chunk as it is.
    pub(crate) fn peek(&self, address: u32) -> Data {
        self.get(address as usize..(address + CHUNK) as usize)
    }

    /// 8 bytes become an mbarrier.
    pub(crate) fn begin_barrier(&mut self, thread: Thread, address: u32) -> Result<(), FaultKind> {
        let range = self.check(address, 8, 8)?;
        self.check_free(&range)?;
        self.record_write(self.granules(&range), thread, 0)?;
        self.state[range].fill(BARRIER | DEFINED);
        Ok(())
    }

    /// A thread uses an mbarrier, which must have been made before.
    pub(crate) fn use_barrier(&mut self, thread: Thread, address: u32) -> Result<(), FaultKind> {
        let range = self.check(address, 8, 8)?;
        let granules = self.granules(&range);
        let actor = super::actor(&self.clocks, self.warp_size, thread);
        self.stamps.check_written(granules, &actor).map_err(|conflict| race(&self.clocks, self.warp_size, conflict))
    }

    /// The bytes of an mbarrier are ordinary memory again.
    pub(crate) fn end_barrier(&mut self, thread: Thread, address: u32) -> Result<(), FaultKind> {
        let range = self.check(address, 8, 8)?;
        self.record_write(self.granules(&range), thread, 0)?;
        self.state[range].fill(0);
        Ok(())
    }
}
