//! What works for the warps of a block while they go on: copies, and the barriers that they signal.
//!
//! Work is done as late as it may be: when no warp can go on, and then only what a warp waits for. So a wait that is
//! missing, or one for something else, shows each time.

use super::bulk::{Copy, End};
use super::decode::AGENTS;
use super::mbarrier::{Barrier, Wait};
use super::tcgen05::Work;
use super::tensor::TensorMemory;
use crate::FaultKind;
use crate::engine::{Block, Left};
use crate::fault::Trap;
use crate::races::Site;
use std::collections::{BTreeMap, VecDeque};

/// The barriers and asynchronous work of a block.
#[derive(Default)]
pub(super) struct Units {
    /// By address in shared memory.
    pub(super) barriers: BTreeMap<u32, Barrier>,
    /// What warps have waited for in vain.
    wanted: Vec<Wait>,
    /// Arrivals that wait for copies.
    pub(super) arrivals: Vec<CopyArrival>,
    /// Copies of whole pieces, the oldest first.
    pub(super) copies: Vec<Copy>,
    /// What each thread has given to the matrix unit, in order.
    pipes: BTreeMap<u32, VecDeque<Work>>,
    pub(super) tensor: Option<Box<TensorMemory>>,
    /// Where tensor memory was last allocated.
    pub(super) allocator: Site,
    /// Groups of copies to global memory that each thread has committed.
    groups: BTreeMap<u32, u32>,
    /// What agents have been named for.
    issuers: Vec<Key>,
    signals: Vec<Key>,
}

/// What an agent's work has in common: who waits for one piece of it knows of all that came before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// Copies that signal one mbarrier.
    Barrier(u32),
    /// Products that one thread has issued, which are done in order.
    Issuer(u32),
}

/// A thread's copies (cp.async), and the barrier that they arrive at when they are done.
pub(super) struct CopyArrival {
    pub(super) site: Site,
    pub(super) barrier: u32,
    /// First address and length of each.
    pub(super) copies: Vec<(u32, u32)>,
    pub(super) left: Left,
}

/// A fault of work that an instruction has begun.
pub(super) fn trap(site: Site, kind: FaultKind) -> Trap {
    Trap { kind, pc: site.pc, thread: Some(site.thread), address: None }
}

impl Units {
    /// Somebody waits for a phase that is not complete.
    pub(super) fn want(&mut self, wait: Wait) {
        if !self.wanted.contains(&wait) {
            self.wanted.push(wait);
        }
    }

    /// The agent of a kind of work.
    pub(super) fn agent(&mut self, key: Key) -> u32 {
        let (list, first, count) = match key {
            Key::Issuer(_) => (&mut self.issuers, 0, AGENTS.readers),
            Key::Barrier(_) => (&mut self.signals, AGENTS.readers, AGENTS.writers),
        };
        let index = list.iter().position(|&other| other == key).unwrap_or_else(|| {
            list.push(key);
            list.len() - 1
        });
        first + index as u32 % count
    }

    /// The group that a thread's next copy to global memory belongs to.
    pub(super) fn open_group(&self, thread: u32) -> u32 {
        self.groups.get(&thread).copied().unwrap_or(0)
    }

    pub(super) fn commit_group(&mut self, thread: u32) {
        *self.groups.entry(thread).or_default() += 1;
    }

    /// All committed groups of a thread but the last `pending` are done.
    pub(super) fn finish_groups(&mut self, thread: u32, pending: u32, block: &mut Block<'_>) -> Result<(), Trap> {
        let committed = self.open_group(thread);
        let done = |copy: &Copy| match copy.end {
            End::Group(group) => copy.site.thread == thread && group + pending < committed,
            End::Barrier { .. } => false,
        };
        while let Some(index) = self.copies.iter().position(done) {
            self.copies.remove(index).finish(self, block)?;
        }
        Ok(())
    }

    /// Does work that somebody waits for, or else the oldest that others can see. `false`: there is none.
    pub(super) fn settle(&mut self, block: &mut Block<'_>) -> Result<bool, Trap> {
        for wait in std::mem::take(&mut self.wanted) {
            if !self.is_complete(wait) && self.settle_for(wait, block)? {
                return Ok(true);
            }
        }
        let copy = self.copies.iter().position(|copy| matches!(copy.end, End::Barrier { .. }));
        if let Some(index) = copy {
            self.copies.remove(index).finish(self, block)?;
        } else if !self.arrivals.is_empty() {
            self.finish_arrival(0, block)?;
        } else if let Some((&thread, _)) = self.pipes.iter().find(|(_, pipe)| !pipe.is_empty()) {
            self.finish_work(thread, block)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Gives work of a thread to the matrix unit.
    pub(super) fn give(&mut self, thread: u32, work: Work) {
        self.pipes.entry(thread).or_default().push_back(work);
    }

    /// Does the oldest work of a thread, up to a commit.
    fn finish_work(&mut self, thread: u32, block: &mut Block<'_>) -> Result<(), Trap> {
        while let Some(work) = self.pipes.get_mut(&thread).and_then(VecDeque::pop_front) {
            let last = matches!(work, Work::Commit { .. });
            work.finish(self, block)?;
            if last {
                break;
            }
        }
        Ok(())
    }

    /// The thread that has committed work to a barrier.
    fn committer(&self, address: u32) -> Option<u32> {
        let commits = |work: &Work| matches!(work, Work::Commit { barrier, .. } if *barrier == address);
        self.pipes.iter().find(|(_, pipe)| pipe.iter().any(commits)).map(|(&thread, _)| thread)
    }

    /// Does what signals the barrier that somebody waits for, until the phase is complete.
    fn settle_for(&mut self, wait: Wait, block: &mut Block<'_>) -> Result<bool, Trap> {
        let mut done = false;
        while !self.is_complete(wait) {
            let signals = |copy: &Copy| matches!(copy.end, End::Barrier { address, .. } if address == wait.address);
            if let Some(index) = self.copies.iter().position(signals) {
                self.copies.remove(index).finish(self, block)?;
            } else if let Some(index) = self.arrivals.iter().position(|arrival| arrival.barrier == wait.address) {
                self.finish_arrival(index, block)?;
            } else if let Some(thread) = self.committer(wait.address) {
                // Up to one commit, whoever it is for: what is behind it stays in flight while that one goes on.
                self.finish_work(thread, block)?;
                return Ok(true);
            } else {
                break;
            }
            done = true;
        }
        Ok(done)
    }

    fn finish_arrival(&mut self, index: usize, block: &mut Block<'_>) -> Result<(), Trap> {
        let CopyArrival { site, barrier, copies, left } = self.arrivals.remove(index);
        for (address, bytes) in copies {
            block.shared.settle_async(address, bytes);
        }
        self.signal(barrier, &left, 0, 1).map_err(|kind| trap(site, kind))
    }

    /// A thread waits for all its copies, those included that arrive at barriers.
    pub(super) fn finish_arrivals_of(&mut self, thread: u32, block: &mut Block<'_>) -> Result<(), Trap> {
        while let Some(index) = self.arrivals.iter().position(|arrival| arrival.site.thread == thread) {
            self.finish_arrival(index, block)?;
        }
        Ok(())
    }

    /// Nothing may be in flight when a block ends, and tensor memory must be free.
    pub(super) fn finish(&mut self) -> Result<(), Trap> {
        let copy = self.copies.first().map(|copy| copy.site);
        let product = self.pipes.values().flatten().find_map(|work| match work {
            Work::Product(product) => Some(product.site),
            Work::Commit { .. } => None,
        });
        let what = "the block ends, and its asynchronous work was in flight";
        if let Some(site) = copy.or(self.arrivals.first().map(|arrival| arrival.site)).or(product) {
            return Err(trap(site, FaultKind::UsedBeforeWait { what }));
        }
        match self.tensor.as_ref().map_or(0, |tensor| tensor.allocated()) {
            0 => Ok(()),
            columns => {
                let what = format!("the block ends, and {columns} columns of tensor memory were not freed");
                Err(Trap { thread: None, ..trap(self.allocator, FaultKind::TensorMemory { what }) })
            }
        }
    }
}
