//! Barriers in shared memory (mbarrier): phases that end when all arrivals and all bytes have come.
//!
//! Their state is kept beside the memory that they occupy, which nobody may access otherwise. A `try_wait` waits until
//! the phase is complete, however long that takes: it never answers no. A `test_wait` answers at once.

use super::access::{addresses, resolve, shared_address};
use super::ops::{Address, BarrierOp, PhaseSource, Reg, Space};
use super::units::{CopyArrival, Units};
use super::warp::{Context, Flow, lanes_of};
use crate::engine::Left;
use crate::fault::Trap;
use crate::{FaultKind, TraceKind};

/// Most arrivals, and most bytes in flight, of a phase.
const MOST: i64 = (1 << 20) - 1;

/// Where operands arrive.
const SINK: &str = "an mbarrier";

/// An mbarrier.
#[derive(Default)]
pub(super) struct Barrier {
    /// Arrivals that a phase needs.
    count: u32,
    /// Arrivals that the phase still needs.
    pending: u32,
    /// Bytes that the phase still waits for; negative when bytes have come before they were expected.
    bytes: i64,
    /// Phases that are complete.
    phase: u64,
    /// What those leave that have arrived in this phase, and what those left who did in earlier ones.
    left: Left,
    done: Left,
}

/// The phase that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Parity(u32),
    Number(u64),
}

/// A thread waits for a phase of an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) address: u32,
    phase: Phase,
}

fn illegal(what: impl Into<String>) -> FaultKind {
    FaultKind::Illegal { what: what.into() }
}

impl Barrier {
    fn new(count: u32) -> Self {
        Self { count, pending: count, ..Self::default() }
    }

    fn arrive(&mut self, count: u32) -> Result<(), FaultKind> {
        if count == 0 || count > self.pending {
            let what = format!("{count} arrivals at an mbarrier whose phase needs {} more", self.pending);
            return Err(illegal(what));
        }
        self.pending -= count;
        self.turn();
        Ok(())
    }

    /// Expects so many bytes more, or fewer as they come.
    fn expect(&mut self, bytes: i64) -> Result<(), FaultKind> {
        self.bytes += bytes;
        if self.bytes.abs() > MOST {
            return Err(illegal(format!("an mbarrier waits for {} bytes, more than it can count", self.bytes)));
        }
        self.turn();
        Ok(())
    }

    /// Begins the next phase if this one is complete.
    fn turn(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase += 1;
            self.pending = self.count;
            self.done.add(&std::mem::take(&mut self.left));
        }
    }

    fn is_complete(&self, phase: Phase) -> bool {
        match phase {
            Phase::Parity(parity) => self.phase % 2 != u64::from(parity),
            Phase::Number(phase) => self.phase > phase,
        }
    }
}

impl Units {
    fn barrier(&mut self, address: u32) -> Result<&mut Barrier, FaultKind> {
        let missing = || illegal("there is no mbarrier at the address: it was not initialised");
        self.barriers.get_mut(&address).ok_or_else(missing)
    }

    /// Whether there is an mbarrier.
    pub(super) fn need_barrier(&mut self, address: u32) -> Result<(), FaultKind> {
        self.barrier(address).map(drop)
    }

    pub(super) fn is_complete(&self, wait: Wait) -> bool {
        self.barriers.get(&wait.address).is_none_or(|barrier| barrier.is_complete(wait.phase))
    }

    /// An agent has moved `bytes` bytes, or has come to an arrival, for an mbarrier. `left` is what it leaves.
    pub(super) fn signal(&mut self, address: u32, left: &Left, bytes: u32, arrivals: u32) -> Result<(), FaultKind> {
        let barrier = self.barrier(address)?;
        barrier.left.add(left);
        if bytes != 0 {
            barrier.expect(-i64::from(bytes))?;
        }
        if arrivals != 0 { barrier.arrive(arrivals) } else { Ok(()) }
    }

    /// What a thread waits for, and how the barrier stands.
    pub(super) fn describe(&self, wait: Wait) -> String {
        let Wait { address, phase } = wait;
        let phase = match phase {
            Phase::Parity(parity) => format!("parity {parity}"),
            Phase::Number(phase) => format!("phase {phase}"),
        };
        let Some(Barrier { phase: at, pending, count, bytes, .. }) = self.barriers.get(&address) else {
            return format!("{phase} of an mbarrier at {address:#x} that is gone");
        };
        format!(
            "{phase} of the mbarrier at {address:#x} (phase {at}: {pending} of {count} arrivals and {bytes} bytes missing)"
        )
    }
}

/// The address of an mbarrier in a lane.
pub(super) fn place(cx: &Context<'_, '_>, space: Space, address: u64) -> Result<u32, FaultKind> {
    match resolve(space, address) {
        (Space::Shared, address) => Ok(shared_address(address)),
        _ if cx.mask == 0 => Ok(0),
        _ => Err(illegal("an mbarrier is in shared memory, and the address is not")),
    }
}

/// Executes an operation on an mbarrier.
pub(super) fn execute(cx: &mut Context<'_, '_>, address: Address, op: BarrierOp) -> Result<Flow, Trap> {
    let addresses = addresses(cx, address)?;
    if let BarrierOp::Test { d, phase, waits, acquire } = op {
        return test(cx, (address.space, &addresses), d, phase, (waits, acquire));
    }
    for lane in lanes_of(cx.mask) {
        let at = addresses[lane];
        let step = place(cx, address.space, at).and_then(|place| one(cx, lane, place, op));
        step.map_err(|kind| cx.trap(kind, lane, Some(at)))?;
    }
    cx.block.made_progress();
    Ok(Flow::Next)
}

/// A lane's operand.
fn operand(cx: &Context<'_, '_>, lane: usize, reg: Reg) -> Result<u32, FaultKind> {
    cx.value(lane, reg, SINK)
}

/// A lane's operation.
fn one(cx: &mut Context<'_, '_>, lane: usize, place: u32, op: BarrierOp) -> Result<(), FaultKind> {
    let (thread, warp) = (cx.thread(lane), cx.warp.index);
    if let BarrierOp::Init { count } = op {
        let count = operand(cx, lane, count)?;
        if !(1..=MOST).contains(&i64::from(count)) {
            return Err(illegal(format!("an mbarrier for {count} arrivals; it takes 1 to {MOST}")));
        }
        cx.block.shared.begin_barrier(thread, place)?;
        cx.units.barriers.insert(place, Barrier::new(count));
        return Ok(());
    }
    cx.block.shared.use_barrier(thread, place)?;
    cx.units.need_barrier(place)?;
    match op {
        BarrierOp::Invalidate => {
            cx.block.shared.end_barrier(thread, place)?;
            cx.units.barriers.remove(&place);
        }
        BarrierOp::Arrive { d, count, expect, release } => {
            let count = operand(cx, lane, count)?;
            let expect = expect.map(|bytes| operand(cx, lane, bytes)).transpose()?;
            let barrier = cx.units.barrier(place)?;
            let phase = barrier.phase;
            if release {
                cx.block.release(warp, &mut barrier.left);
            }
            if let Some(bytes) = expect {
                barrier.expect(bytes.into())?;
            }
            barrier.arrive(count)?;
            if let Some(d) = d {
                cx.warp.registers.set_lane(d, lane, phase, false);
            }
        }
        BarrierOp::Expect { bytes } => {
            let bytes = operand(cx, lane, bytes)?;
            cx.units.barrier(place)?.expect(bytes.into())?;
        }
        BarrierOp::ArriveCopies { counted } => {
            let barrier = cx.units.barrier(place)?;
            barrier.pending += u32::from(!counted);
            let copies = cx.warp.copies.extract_if(.., |copy| copy.lane == lane as u32);
            let copies: Vec<_> = copies.map(|copy| (copy.address, copy.bytes)).collect();
            for &(address, bytes) in &copies {
                cx.block.shared.stamp_async(thread, address, bytes);
            }
            let mut left = Left::default();
            cx.block.release(warp, &mut left);
            cx.units.arrivals.push(CopyArrival { site: cx.site(lane), barrier: place, copies, left });
        }
        BarrierOp::Init { .. } | BarrierOp::Test { .. } => unreachable!("handled by the callers"),
    }
    Ok(())
}

/// test_wait and try_wait.
fn test(
    cx: &mut Context<'_, '_>,
    (space, addresses): (Space, &[u64; 32]),
    d: Reg,
    phase: PhaseSource,
    (waits, acquire): (bool, bool),
) -> Result<Flow, Trap> {
    let mut complete = 0;
    for lane in lanes_of(cx.mask) {
        let at = addresses[lane];
        let wait = wait_of(cx, lane, (space, at), phase).map_err(|kind| cx.trap(kind, lane, Some(at)))?;
        if cx.units.is_complete(wait) {
            complete |= 1 << lane;
            continue;
        }
        cx.units.want(wait);
        if waits {
            cx.warp.wait = Some(wait);
            return Ok(Flow::Blocked);
        }
    }
    if acquire {
        let mut last = None;
        for lane in lanes_of(complete) {
            let place = shared_address(resolve(space, addresses[lane]).1);
            if last.replace(place) != Some(place)
                && let Some(barrier) = cx.units.barriers.get(&place)
            {
                cx.block.acquire(cx.warp.index, &barrier.done);
                cx.block.note(cx.warp.index, |_| TraceKind::Waited { barrier: place, phases: barrier.phase });
            }
        }
    }
    cx.warp.registers.set_predicate(d, cx.mask, complete, 0);
    if complete == cx.mask {
        cx.block.made_progress();
        return Ok(Flow::Next);
    }
    Ok(Flow::Yield)
}

/// The phase that a lane asks for.
fn wait_of(
    cx: &mut Context<'_, '_>,
    lane: usize,
    (space, address): (Space, u64),
    phase: PhaseSource,
) -> Result<Wait, FaultKind> {
    let address = place(cx, space, address)?;
    cx.block.shared.use_barrier(cx.thread(lane), address)?;
    let at = cx.units.barrier(address)?.phase;
    let phase = match phase {
        PhaseSource::Parity(reg) => match operand(cx, lane, reg)? {
            parity @ (0 | 1) => Phase::Parity(parity),
            parity => return Err(illegal(format!("{parity} is no parity of a phase"))),
        },
        PhaseSource::Token(reg) => {
            let number: u64 = cx.value(lane, reg, SINK)?;
            if number + 1 < at || number > at {
                return Err(illegal("the token is not of this phase or the one before it"));
            }
            Phase::Number(number)
        }
    };
    Ok(Wait { address, phase })
}
