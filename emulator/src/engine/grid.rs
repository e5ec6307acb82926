//! Runs the blocks of a grid on the host's cores.

use super::{AnyProgram, Block, Launch, Log, Resident};
use crate::counters::Counters;
use crate::fault::Trap;
use crate::memory::{Memory, View};
use crate::order::{OrderedLog, Releases, Segment, find_race};
use crate::races::{AccessLog, Merged, Race, Site};
use crate::shared::Shared;
use crate::trace::Tracer;
use crate::{Fault, FaultKind, TraceEvent};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What the blocks of a launch leave behind, in block order.
#[derive(Default)]
struct Outcome {
    counters: Counters,
    merged: Merged,
    /// Blocks done whose predecessors are not all merged yet.
    early: BTreeMap<u64, AccessLog>,
    next: u64,
    /// Events of the block that is traced.
    events: Vec<TraceEvent>,
    /// What the blocks of an ordered kernel did.
    segments: Vec<Segment>,
    /// The fault of the lowest block so far.
    fault: Option<(u64, Box<Fault>)>,
}

/// A launch while it runs.
struct Running<'a> {
    program: &'a dyn AnyProgram,
    launch: &'a Launch,
    memory: &'a Memory,
    allocations: &'a [Arc<crate::memory::Allocation>],
    /// First block that has not been started.
    next: AtomicU64,
    /// Blocks from here on need not run: an earlier one has a fault.
    limit: AtomicU64,
    releases: Releases,
    outcome: Mutex<Outcome>,
}

impl<'a> Running<'a> {
    fn shared(&self) -> Shared {
        let info = self.program.info();
        let bytes = info.static_shared + self.launch.dynamic_shared;
        Shared::new(bytes, info.shared_granule, self.launch.warps(), self.launch.warp_size, info.agents)
    }

    /// Starts the next block, in `shared` if there is one from a block that is done.
    fn start(&'a self, shared: Option<Shared>) -> Option<(u64, Box<dyn Resident<'a> + 'a>)> {
        let linear = self.next.fetch_add(1, Relaxed);
        if linear >= self.limit.load(Relaxed) {
            return None;
        }
        let mut shared = shared.unwrap_or_else(|| self.shared());
        shared.begin_block();
        let block = Block {
            launch: self.launch,
            index: self.launch.block_index(linear),
            shared,
            counters: Counters::default(),
            tracer: (self.launch.traced == Some(linear)).then(Tracer::default),
            view: View::new(self.memory, self.allocations),
            log: if self.program.info().ordered {
                let (warps, warp_size) = (self.launch.warps(), self.launch.warp_size);
                Log::Ordered(OrderedLog::new(linear, warps, warp_size, &self.releases))
            } else {
                Log::Unordered(AccessLog::new(linear))
            },
            progress: 0,
        };
        Some((linear, self.program.start(block)))
    }

    fn fail(&self, outcome: &mut Outcome, linear: u64, trap: Trap) {
        if outcome.fault.as_ref().is_none_or(|f| linear < f.0) {
            let fault = self.program.fault(trap, self.launch, self.launch.block_index(linear));
            outcome.fault = Some((linear, fault));
            self.limit.fetch_min(linear, Relaxed);
        }
    }

    /// A race that was found when block `linear` was done; the instruction named may be another block's.
    fn fail_by_race(&self, outcome: &mut Outcome, linear: u64, race: Race) {
        let kind = FaultKind::GlobalRace { other: race.other };
        let Site { pc, thread } = race.site;
        self.fail(outcome, linear, Trap { kind, pc, thread: Some(thread), address: Some(race.address) });
        if let Some((found, fault)) = &mut outcome.fault
            && *found == linear
        {
            fault.block = self.launch.block_index(race.block);
        }
    }

    /// Takes what a block leaves and returns its shared memory for the next.
    fn finish(&self, linear: u64, block: Block<'_>) -> Shared {
        let mut outcome = self.outcome.lock().expect("no panic while the lock is held");
        let outcome = &mut *outcome;
        outcome.counters += block.counters;
        outcome.counters.blocks += 1;
        if let Some(tracer) = block.tracer {
            outcome.events = tracer.finish();
        }
        match block.log {
            Log::Ordered(log) => outcome.segments.extend(log.finish()),
            Log::Unordered(log) => drop(outcome.early.insert(linear, log)),
        }
        while let Some(log) = outcome.early.remove(&outcome.next) {
            if let Err(race) = outcome.merged.merge(log) {
                self.fail_by_race(outcome, outcome.next, race);
                break;
            }
            outcome.next += 1;
        }
        block.shared
    }

    /// Runs blocks one after the other until there are none.
    fn run_in_parallel(&'a self) {
        let mut shared = None;
        while let Some((linear, mut resident)) = self.start(shared.take()) {
            let result = loop {
                match resident.advance() {
                    Ok(false) => {}
                    Ok(true) => break Ok(()),
                    Err(trap) => break Err(trap),
                }
            };
            shared = Some(match result {
                Ok(()) => self.finish(linear, resident.into_block()),
                Err(trap) => {
                    self.fail(&mut self.outcome.lock().expect("no panic while the lock is held"), linear, trap);
                    resident.into_block().shared
                }
            });
        }
    }

    /// Runs all blocks on this host thread, `RESIDENT` at a time, in turns.
    fn run_in_order(&'a self) {
        let mut residents: Vec<_> = (0..self.launch.resident).map_while(|_| self.start(None)).collect();
        while !residents.is_empty() {
            let mut still = Vec::with_capacity(residents.len());
            for (linear, mut resident) in residents {
                match resident.advance() {
                    Ok(false) => still.push((linear, resident)),
                    Ok(true) => still.extend(self.start(Some(self.finish(linear, resident.into_block())))),
                    Err(trap) => {
                        return self.fail(
                            &mut self.outcome.lock().expect("no panic while the lock is held"),
                            linear,
                            trap,
                        );
                    }
                }
            }
            residents = still;
            // Whoever waits for another block waits with good reason as long as some block gets on.
            if residents.iter_mut().any(|(_, resident)| *resident.idle() == 0) {
                residents.iter_mut().for_each(|(_, resident)| *resident.idle() = 0);
            }
        }
        let mut outcome = self.outcome.lock().expect("no panic while the lock is held");
        if let Some(race) = find_race(&outcome.segments) {
            self.fail_by_race(&mut outcome, race.block, race);
        }
    }
}

/// Runs a kernel to its end. The events are those of the traced block.
pub(crate) fn run(
    program: &dyn AnyProgram,
    launch: &Launch,
    memory: &Memory,
) -> Result<(Counters, Vec<TraceEvent>), Box<Fault>> {
    let allocations = memory.snapshot();
    let running = Running {
        program,
        launch,
        memory,
        allocations: &allocations,
        next: AtomicU64::new(0),
        limit: AtomicU64::new(launch.blocks()),
        releases: Releases::default(),
        outcome: Mutex::default(),
    };
    if program.info().ordered {
        running.run_in_order();
    } else {
        let workers = launch.blocks().min(rayon::current_num_threads() as u64);
        rayon::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|_| running.run_in_parallel());
            }
            running.run_in_parallel();
        });
    }
    let outcome = running.outcome.into_inner().expect("no panic while the lock is held");
    match outcome.fault {
        Some((_, fault)) => Err(fault),
        None => Ok((outcome.counters, outcome.events)),
    }
}
