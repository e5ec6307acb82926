//! The engine, driven by kernels that are scripts.

use super::*;
use crate::memory::Data;
use crate::{Arch, Error, Machine, Module};

/// A kernel whose warps run a Rust function step by step: `(block, warp, step) -> stop`.
struct Scripted<F> {
    info: KernelInfo,
    step: F,
}

impl<F> Program for Scripted<F>
where
    F: Fn(&mut Block<'_>, u32, u32) -> Result<Option<Stop>, Trap> + Send + Sync,
{
    type Warp = (u32, u32);
    type Units = ();

    fn info(&self) -> &KernelInfo {
        &self.info
    }

    fn warp(&self, _: &Block<'_>, index: u32) -> Self::Warp {
        (index, 0)
    }

    fn run(&self, warp: &mut Self::Warp, block: &mut Block<'_>, _: &mut (), budget: u32) -> Result<Stop, Trap> {
        for _ in 0..budget {
            block.counters.instruction(crate::counters::Class::Integer);
            warp.1 += 1;
            if let Some(stop) = (self.step)(block, warp.0, warp.1 - 1)? {
                return Ok(stop);
            }
        }
        Ok(Stop::Yield { pc: warp.1 })
    }

    fn locate(&self, pc: u32) -> (String, String) {
        (format!("step {pc}"), "script".into())
    }
}

type Step = Result<Option<Stop>, Trap>;

fn launch(
    machine: &Machine,
    blocks: u32,
    ordered: bool,
    step: impl Fn(&mut Block<'_>, u32, u32) -> Step + Send + Sync + 'static,
) -> Result<Counters, Error> {
    let info = KernelInfo {
        name: "scripted".into(),
        parameters: vec![Parameter { name: "p".into(), offset: 0, bytes: 4 }],
        static_shared: 0,
        shared_granule: 4,
        agents: crate::shared::Agents::NONE,
        max_threads: 1024,
        ordered,
    };
    let module = Module::new(machine.arch(), vec![Box::new(Scripted { info, step })]);
    machine.launch(&module, "scripted", [blocks, 1, 1], [64, 1, 1], 64, &[7])
}

fn fault(result: Result<Counters, Error>) -> Fault {
    match result {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("expected a fault, got {other:?}"),
    }
}

const BARRIER: Step = Ok(Some(Stop::Barrier { id: 0, threads: None, arrived: 32, yes: 0, pc: 5 }));
const EXIT: Step = Ok(Some(Stop::Exit));

fn site(kind: FaultKind) -> Trap {
    Trap { kind, pc: 9, thread: Some(33), address: Some(4) }
}

#[test]
fn barriers_release_and_are_counted() {
    let machine = Machine::with_memory(Arch::Sm90, 1 << 20);
    let counters = launch(&machine, 3, false, |block, warp, step| match step {
        0 => block.shared.write(warp * 32, warp * 4, 4, 4, Data::default()).map(|()| None).map_err(site),
        1 => BARRIER,
        2 => block.shared.read(warp * 32, 4 - warp * 4, 4, 4).map(|_| None).map_err(site),
        _ => EXIT,
    })
    .unwrap();
    assert_eq!((counters.blocks, counters.barriers, counters.instructions), (3, 3, 3 * 2 * 4));
}

#[test]
fn a_missed_barrier_and_an_endless_loop_are_faults() {
    let machine = Machine::with_memory(Arch::Sm90, 1 << 20);
    let missed = fault(launch(&machine, 2, false, |_, warp, _| if warp == 1 { BARRIER } else { EXIT }));
    assert_eq!(missed.kind, FaultKind::BarrierMissed { barrier: 0, waiting: 32, expected: 64 });
    assert_eq!((missed.block, missed.thread, missed.instruction.as_str()), ([0; 3], Some([32, 0, 0]), "step 5"));
    let endless = fault(launch(&machine, 1, false, |_, _, _| Ok(None)));
    assert!(matches!(endless.kind, FaultKind::WaitsForEver { .. }));
}

#[test]
fn the_lowest_blocks_fault_is_reported_whatever_the_number_of_threads() {
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let fault = pool.install(|| {
            let machine = Machine::with_memory(Arch::Sm90, 1 << 20);
            fault(launch(&machine, 100, false, |block, _, _| {
                if block.index[0] % 10 == 9 { Err(site(FaultKind::Trap)) } else { EXIT }
            }))
        });
        assert_eq!((fault.block, fault.thread, fault.address), ([9, 0, 0], Some([33, 0, 0]), Some(4)));
    }
}

#[test]
fn blocks_that_write_the_same_bytes_race() {
    let machine = Machine::with_memory(Arch::Sm90, 1 << 20);
    let buffer = machine.alloc(64).unwrap();
    let store = |offset: fn(u32) -> u64| {
        launch(&machine, 4, false, move |block, warp, _| {
            let site = Site { pc: 3, thread: warp * 32 };
            if warp == 0 {
                let address = buffer + offset(block.index[0]);
                let write = block.global_write(site, Access::Write, address, 4, 4, Data::default());
                write.map_err(|kind| Trap { kind, pc: 3, thread: None, address: Some(address) })?;
            }
            EXIT
        })
    };
    assert!(store(|block| u64::from(block) * 4).is_ok());
    let race = fault(store(|block| u64::from(block % 3) * 4));
    assert_eq!(race.kind, FaultKind::GlobalRace { other: Some(0) });
    assert_eq!((race.block, race.address), ([3, 0, 0], Some(buffer)));
}

#[test]
fn a_block_of_an_ordered_kernel_can_wait_for_a_later_one() {
    let machine = Machine::with_memory(Arch::Sm90, 1 << 20);
    let flag = machine.alloc(4).unwrap();
    machine.fill(flag, 0, 4).unwrap();
    let counters = launch(&machine, 2, true, move |block, _, _| {
        let me = block.index[0];
        let site = Site { pc: 0, thread: 0 };
        let add = u64::from(me);
        let (value, _) = block.global_atomic(site, flag, 4, |old| Some(old + add)).unwrap();
        if me == 1 || value != 0 { EXIT } else { Ok(None) }
    });
    assert_eq!(counters.unwrap().blocks, 2);
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let machine = Machine::with_memory(Arch::Sm90, 1 << 20);
    let info = KernelInfo {
        name: "k".into(),
        parameters: vec![Parameter { name: "n".into(), offset: 0, bytes: 4 }],
        static_shared: 1024,
        shared_granule: 4,
        agents: crate::shared::Agents::NONE,
        max_threads: 128,
        ordered: false,
    };
    let step = |_: &mut Block<'_>, _: u32, _: u32| EXIT;
    let module = Module::new(Arch::Sm90, vec![Box::new(Scripted { info, step })]);
    let argument =
        |grid, block, shared, arguments: &[u64]| match machine.launch(&module, "k", grid, block, shared, arguments) {
            Err(Error::Launch { argument, .. }) => argument,
            other => panic!("expected a refusal, got {other:?}"),
        };
    let one = [1, 1, 1];
    assert_eq!(argument([0, 1, 1], one, 0, &[0]), "the grid");
    assert_eq!(argument([1, 65536, 1], one, 0, &[0]), "the grid");
    assert_eq!(argument(one, [129, 1, 1], 0, &[0]), "the block");
    assert_eq!(argument(one, one, 227 * 1024, &[0]), "dynamic shared memory");
    assert_eq!(argument(one, one, 0, &[]), "the argument count");
    assert_eq!(argument(one, one, 0, &[1 << 32]), "argument n");
    assert!(machine.launch(&module, "k", one, one, 226 * 1024, &[0xffff_ffff]).is_ok());
    assert!(matches!(machine.launch(&module, "j", one, one, 0, &[0]), Err(Error::UnknownKernel { .. })));
}
