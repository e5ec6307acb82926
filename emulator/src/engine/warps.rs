//! The warps of a block: who runs, who waits, and what they wait for.

use super::{Block, Left, Program, Resident, Stop};
use crate::FaultKind;
use crate::fault::Trap;

/// Instructions that a warp executes before its siblings get a turn, unless it stops earlier.
const QUANTUM: u32 = 1 << 14;
/// Instructions of a block's warps without progress after which it waits for ever.
const PATIENCE: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// Can run, but could not go on when it last did.
    Blocked {
        pc: u32,
    },
    AtBarrier(Waiting),
    Done,
}

/// A warp that waits at a barrier.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Waiting {
    id: u32,
    threads: Option<u32>,
    arrived: u32,
    yes: u32,
    pc: u32,
}

/// Threads that have arrived at a barrier and gone on.
struct Arrival {
    id: u32,
    threads: u32,
    arrived: u32,
    left: Left,
}

/// The warps of a block and what they share.
pub(super) struct Warps<'a, P: Program> {
    program: &'a P,
    warps: Vec<(P::Warp, State)>,
    block: Block<'a>,
    units: P::Units,
    arrivals: Vec<Arrival>,
    /// Instructions since the last progress.
    idle: u64,
}

impl<'a, P: Program> Warps<'a, P> {
    pub(super) fn new(program: &'a P, block: Block<'a>) -> Self {
        let warps = (0..block.launch.warps()).map(|i| (program.warp(&block, i), State::Ready)).collect();
        Self { program, warps, block, units: P::Units::default(), arrivals: Vec::new(), idle: 0 }
    }
}

impl<'a, P: Program> Resident<'a> for Warps<'a, P> {
    fn advance(&mut self) -> Result<bool, Trap> {
        let (progress, instructions) = (self.block.progress, self.block.counters.instructions);
        let mut running = None;
        for (index, (warp, state)) in self.warps.iter_mut().enumerate() {
            if !matches!(state, State::Ready | State::Blocked { .. }) {
                continue;
            }
            let stop = self.program.run(warp, &mut self.block, &mut self.units, QUANTUM)?;
            if let Some(tracer) = &mut self.block.tracer {
                tracer.turn(index as u32, self.block.counters.special_instructions);
            }
            *state = match stop {
                Stop::Exit => State::Done,
                Stop::Barrier { id, threads, arrived, yes, pc } => {
                    State::AtBarrier(Waiting { id, threads, arrived, yes, pc })
                }
                Stop::Arrive { id, threads, arrived } => {
                    let mut left = Left::default();
                    self.block.release(index as u32, &mut left);
                    self.arrivals.push(Arrival { id, threads, arrived, left });
                    self.block.made_progress();
                    State::Ready
                }
                Stop::Blocked { pc } => State::Blocked { pc },
                Stop::Yield { pc } => {
                    running = Some(pc);
                    State::Ready
                }
            };
        }
        if self.release_barriers() || self.block.progress != progress {
            self.idle = 0;
            return Ok(false);
        }
        if self.warps.iter().all(|w| w.1 == State::Done) {
            self.program.finish(&mut self.units, &mut self.block)?;
            return Ok(true);
        }
        if self.program.settle(&mut self.units, &mut self.block)? {
            self.idle = 0;
            return Ok(false);
        }
        let Some(pc) = running else { return Err(self.stuck()) };
        self.idle += self.block.counters.instructions - instructions;
        if self.idle > PATIENCE {
            return Err(Trap { kind: FaultKind::WaitsForEver { steps: self.idle }, pc, thread: None, address: None });
        }
        Ok(false)
    }

    fn idle(&mut self) -> &mut u64 {
        &mut self.idle
    }

    fn into_block(self: Box<Self>) -> Block<'a> {
        self.block
    }
}

impl<P: Program> Warps<'_, P> {
    /// Those that wait at a barrier, with their warps' numbers.
    fn waiting(&self) -> impl Iterator<Item = (u32, Waiting)> {
        self.warps.iter().enumerate().filter_map(|(index, (_, state))| match state {
            State::AtBarrier(waiting) => Some((index as u32, *waiting)),
            _ => None,
        })
    }

    /// Threads that have arrived at a barrier.
    fn arrived(&self, id: u32) -> u32 {
        let waiting = self.waiting().filter(|(_, w)| w.id == id).map(|(_, w)| w.arrived);
        waiting.chain(self.arrivals.iter().filter(|a| a.id == id).map(|a| a.arrived)).sum()
    }

    /// Threads that a barrier expects.
    fn expected(&self, waiting: Waiting) -> u32 {
        waiting.threads.unwrap_or(self.block.launch.threads())
    }

    /// Lets go the warps whose barrier is complete.
    fn release_barriers(&mut self) -> bool {
        let mut released = false;
        let waiting = self.waiting().map(|(_, waiting)| (waiting.id, self.expected(waiting)));
        let barriers: Vec<_> = waiting.chain(self.arrivals.iter().map(|a| (a.id, a.threads))).collect();
        for (id, expected) in barriers {
            let arrived = self.arrived(id);
            if arrived == 0 || arrived < expected {
                continue;
            }
            let (warps, yes): (Vec<u32>, Vec<u32>) =
                self.waiting().filter(|(_, w)| w.id == id).map(|(index, w)| (index, w.yes)).unzip();
            let yes = yes.iter().sum();
            self.block.meet(&warps);
            for arrival in self.arrivals.extract_if(.., |arrival| arrival.id == id) {
                warps.iter().for_each(|&warp| self.block.acquire(warp, &arrival.left));
            }
            for &warp in &warps {
                let (warp, state) = &mut self.warps[warp as usize];
                *state = State::Ready;
                self.program.released(warp, yes, expected);
            }
            self.block.counters.barriers += 1;
            released = true;
        }
        released
    }

    /// No warp can go on, and not all are done.
    fn stuck(&self) -> Trap {
        let blocked = self.warps.iter().position(|w| matches!(w.1, State::Blocked { .. }));
        let thread = |warp: u32| Some(warp * self.block.launch.warp_size);
        if let Some(index) = blocked
            && let State::Blocked { pc } = self.warps[index].1
        {
            let waits = self.warps.iter().enumerate().filter_map(|(index, (warp, state))| match state {
                State::Blocked { .. } => {
                    Some(format!("warp {index} waits for {}", self.program.waits_for(warp, &self.units)))
                }
                State::AtBarrier(w) => {
                    let (arrived, expected) = (self.arrived(w.id), self.expected(*w));
                    Some(format!("warp {index} waits at barrier {} ({arrived} of {expected} threads arrived)", w.id))
                }
                State::Done | State::Ready => None,
            });
            let kind = FaultKind::Deadlock { waits: waits.collect::<Vec<_>>().join("; ") };
            return Trap { kind, pc, thread: thread(index as u32), address: None };
        }
        let (index, first) = self.waiting().next().expect("a warp that is neither ready nor done waits");
        let waiting = self.arrived(first.id);
        let kind = FaultKind::BarrierMissed { barrier: first.id, waiting, expected: self.expected(first) };
        Trap { kind, pc: first.pc, thread: thread(index), address: None }
    }
}
