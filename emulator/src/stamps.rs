//! Races between the threads of a block, found with [clocks](crate::clocks): each access leaves a stamp, who made it
//! and at which clock. An access that meets a stamp of another one beyond what it knows, one of the two writing, is a
//! race.

use std::ops::Range;

/// Stamps of writes are `clock << 12 | atomic << 11 | thread`, those of reads `clock << 12 | lane`; 0 is no access.
/// Threads beyond the block's stand for agents, one a warp.
const CLOCK_SHIFT: u32 = 12;
/// The mark of an atomic write.
pub(crate) const ATOMIC: u32 = 1 << 11;
const THREAD: u32 = ATOMIC - 1;
/// In place of a lane: several lanes of the warp read, or all of them together.
const SEVERAL: u32 = THREAD;
const TOGETHER: u32 = THREAD - 1;

/// The last clock that a stamp can hold.
pub(crate) const LAST_CLOCK: u32 = u32::MAX >> CLOCK_SHIFT;

/// Who accesses, and what comes before that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor<'a> {
    /// The thread whose stamp is left.
    pub(crate) thread: u32,
    /// The thread that caused the access: itself, or for an agent the one that it works for.
    pub(crate) cause: u32,
    /// The clock of `thread`.
    pub(crate) clock: u32,
    /// Up to which clocks others' accesses come before this one.
    pub(crate) known: &'a [u32],
}

/// An access that is not ordered with an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The thread of the earlier access.
    pub(crate) other: u32,
    /// Its clock then.
    pub(crate) clock: u32,
    /// The two accesses, the earlier one first.
    pub(crate) what: &'static str,
}

/// Last accesses to each granule of a memory.
pub(crate) struct Stamps {
    warp_size: u32,
    /// Warps, and those agents that read.
    width: usize,
    writes: Vec<u32>,
    /// One for each of them: `reads[granule * width + warp]`.
    reads: Vec<u32>,
}

impl Stamps {
    pub(crate) fn new(granules: usize, width: usize, warp_size: u32) -> Self {
        Self { warp_size, width, writes: vec![0; granules], reads: vec![0; granules * width] }
    }

    pub(crate) fn forget(&mut self) {
        self.writes.fill(0);
        self.reads.fill(0);
    }

    /// The thread and clock of the last write of a granule, if there was one.
    #[inline]
    pub(crate) fn last_write(&self, granule: usize) -> Option<(u32, u32)> {
        let stamp = self.writes[granule];
        (stamp != 0).then_some((stamp & THREAD, stamp >> CLOCK_SHIFT))
    }

    /// Whether what a stamp of a write stands for is not ordered before what the actor does.
    #[inline]
    fn unordered(&self, stamp: u32, actor: &Actor<'_>) -> bool {
        let other = stamp & THREAD;
        if stamp == 0 || other == actor.thread || other == actor.cause {
            return false;
        }
        stamp >> CLOCK_SHIFT > actor.known[(other / self.warp_size) as usize]
    }

    fn conflict(stamp: u32, what: &'static str) -> Conflict {
        Conflict { other: stamp & THREAD, clock: stamp >> CLOCK_SHIFT, what }
    }

    /// Checks that the last writes of `granules` are ordered before the actor; records nothing.
    pub(crate) fn check_written(&self, granules: Range<usize>, actor: &Actor<'_>) -> Result<(), Conflict> {
        for granule in granules {
            if self.unordered(self.writes[granule], actor) {
                return Err(Self::conflict(self.writes[granule], "write, then read"));
            }
        }
        Ok(())
    }

    /// Records a read of `granules` and checks it against writes.
    #[inline(always)]
    pub(crate) fn read(&mut self, granules: Range<usize>, actor: &Actor<'_>) -> Result<(), Conflict> {
        let (warp, lane) = ((actor.thread / self.warp_size) as usize, actor.thread % self.warp_size);
        for granule in granules {
            let write = self.writes[granule];
            if self.unordered(write, actor) {
                return Err(Self::conflict(write, "write, then read"));
            }
            let read = &mut self.reads[granule * self.width + warp];
            let joined = *read >> CLOCK_SHIFT == actor.clock && *read & THREAD != lane;
            *read = actor.clock << CLOCK_SHIFT | if joined { SEVERAL } else { lane };
        }
        Ok(())
    }

    /// Records a write of `granules` and checks it against reads and writes; `atomic` is [`ATOMIC`] or 0.
    #[inline]
    pub(crate) fn write(&mut self, granules: Range<usize>, actor: &Actor<'_>, atomic: u32) -> Result<(), Conflict> {
        let stamp = actor.clock << CLOCK_SHIFT | atomic | actor.thread;
        let (own, lane) = ((actor.thread / self.warp_size) as usize, actor.thread % self.warp_size);
        let (cause, cause_lane) = ((actor.cause / self.warp_size) as usize, actor.cause % self.warp_size);
        for granule in granules {
            let write = self.writes[granule];
            if self.unordered(write, actor) && write & atomic == 0 {
                return Err(Self::conflict(write, "write, then write"));
            }
            let reads = &self.reads[granule * self.width..][..self.width];
            for (v, (&read, &known)) in reads.iter().zip(actor.known).enumerate() {
                let reader = read & THREAD;
                if read >> CLOCK_SHIFT > known
                    && (v, reader) != (own, lane)
                    && (v, reader) != (cause, cause_lane)
                    && (v, reader) != (own, TOGETHER)
                {
                    let other = v as u32 * self.warp_size + if reader >= TOGETHER { 0 } else { reader };
                    return Err(Conflict { other, clock: read >> CLOCK_SHIFT, what: "read, then write" });
                }
            }
            self.writes[granule] = stamp;
        }
        Ok(())
    }

    /// The actor has waited for its asynchronous write: it is as if it had been made now.
    pub(crate) fn written(&mut self, granules: Range<usize>, thread: u32, clock: u32) {
        self.writes[granules].fill(clock << CLOCK_SHIFT | thread);
    }

    /// The actor has waited for its asynchronous read; `together`: the whole warp has.
    pub(crate) fn has_read(&mut self, granules: Range<usize>, thread: u32, clock: u32, together: bool) {
        let warp = (thread / self.warp_size) as usize;
        let lane = if together { TOGETHER } else { thread % self.warp_size };
        for granule in granules {
            self.reads[granule * self.width + warp] = clock << CLOCK_SHIFT | lane;
        }
    }
}
