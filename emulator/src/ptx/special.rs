//! Special registers.

use super::ops::Special;
use super::registers::FULL;
use super::warp::Context;

impl Context<'_, '_> {
    /// The value of a special register in a lane.
    pub(super) fn special(&self, what: Special, lane: usize) -> u64 {
        let launch = self.block.launch;
        let thread = self.thread(lane);
        let [x, y, _] = launch.block;
        u64::from(match what {
            Special::Tid(0) => thread % x,
            Special::Tid(1) => thread / x % y,
            Special::Tid(_) => thread / x / y,
            Special::Ntid(axis) => launch.block[usize::from(axis)],
            Special::Ctaid(axis) => self.block.index[usize::from(axis)],
            Special::Nctaid(axis) => launch.grid[usize::from(axis)],
            Special::LaneId => lane as u32,
            Special::WarpId => self.warp.index,
            Special::NumWarps => launch.warps(),
            // One emulated multiprocessor runs everything.
            Special::SmId => 0,
            Special::NumSms => 1,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLe => FULL >> (31 - lane),
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskGe => FULL << lane,
            Special::LaneMaskGt => FULL << lane << 1,
            Special::DynamicSharedBytes => launch.dynamic_shared,
            Special::TotalSharedBytes => self.block.shared.size(),
            Special::Clock => return self.block.counters.instructions,
        })
    }
}
