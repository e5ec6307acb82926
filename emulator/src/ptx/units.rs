//! What works for the warps of a block while they go on: copies, and the barriers that they signal.
//!
//! Work is done as late as it may be: when no warp can go on, and then only what a warp waits for. So a wait that is
//! missing, or one for something else, shows each time.

use super::mbarrier::{Barrier, Wait};
use crate::FaultKind;
use crate::engine::{Block, Left};
use crate::fault::Trap;
use crate::races::Site;
use std::collections::BTreeMap;

/// The barriers and asynchronous work of a block.
#[derive(Default)]
pub(super) struct Units {
    /// By address in shared memory.
    pub(super) barriers: BTreeMap<u32, Barrier>,
    /// What warps have waited for in vain.
    wanted: Vec<Wait>,
    /// Arrivals that wait for copies.
    pub(super) arrivals: Vec<CopyArrival>,
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
fn trap(site: Site, kind: FaultKind) -> Trap {
    Trap { kind, pc: site.pc, thread: Some(site.thread), address: None }
}

impl Units {
    /// Somebody waits for a phase that is not complete.
    pub(super) fn want(&mut self, wait: Wait) {
        if !self.wanted.contains(&wait) {
            self.wanted.push(wait);
        }
    }

    /// Does work that somebody waits for, or else the oldest. `false`: there is none.
    pub(super) fn settle(&mut self, block: &mut Block<'_>) -> Result<bool, Trap> {
        let wanted = std::mem::take(&mut self.wanted).into_iter().filter(|&wait| !self.is_complete(wait));
        let wanted: Vec<u32> = wanted.map(|wait| wait.address).collect();
        let found = self.arrivals.iter().position(|arrival| wanted.contains(&arrival.barrier));
        if let Some(index) = found.or_else(|| (!self.arrivals.is_empty()).then_some(0)) {
            self.finish_arrival(index, block)?;
            return Ok(true);
        }
        Ok(false)
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

    /// Nothing may be in flight when a block ends.
    pub(super) fn finish(&mut self) -> Result<(), Trap> {
        let site = self.arrivals.first().map(|arrival| arrival.site);
        let what = "the block ends, and its asynchronous work was in flight";
        site.map_or(Ok(()), |site| Err(trap(site, FaultKind::UsedBeforeWait { what })))
    }
}
