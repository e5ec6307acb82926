//! A warp: its lanes, where they are, and the loop that executes them.

use super::decode::Program;
use super::mbarrier::{self, Wait};
use super::ops::{Instruction, Op, Order, Reduction, ReductionOp, Reg, Together};
use super::registers::{FULL, LANES, Lane, RegisterSet, Registers};
use super::units::Units;
use super::wgmma::{self, Products};
use super::{access, alu, bulk, lanes, matrix, tcgen05};
use crate::FaultKind;
use crate::engine::{self, Block, KernelInfo, Stop};
use crate::fault::Trap;
use crate::races::Site;

/// Lanes that are at the same instruction.
#[derive(Clone, Copy)]
struct Group {
    pc: u32,
    mask: u32,
    hold: Hold,
}

/// What keeps lanes from going on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    Nothing,
    /// Other lanes have to arrive at the same instruction.
    Lanes,
    /// Something has to happen outside the warp.
    Blocked,
}

/// An asynchronous copy that its thread has not waited for.
#[derive(Clone, Copy)]
pub(super) struct Copy {
    /// Number of the thread's group that it belongs to.
    pub(super) group: u32,
    pub(super) lane: u32,
    pub(super) address: u32,
    pub(super) bytes: u32,
}

/// A warp.
pub(super) struct Warp {
    pub(super) index: u32,
    pub(super) registers: Registers,
    groups: Vec<Group>,
    /// Local memory of lane 0, lane 1 ...
    pub(super) local: Vec<u8>,
    /// One a byte of local memory.
    pub(super) local_defined: Vec<bool>,
    pub(super) copies: Vec<Copy>,
    /// Groups of copies that each lane has committed.
    pub(super) committed: [u32; LANES],
    /// The question that the barrier it waits at answers, and the lanes that wait.
    reduction: Option<(Reduction, u32)>,
    /// Products of its warpgroup in flight.
    pub(super) products: Products,
    /// Registers that loads from tensor memory have not reached.
    pub(super) loading: RegisterSet,
    /// What lanes that are blocked wait for; `None`: tensor memory.
    pub(super) wait: Option<Wait>,
}

/// What an instruction works on: the warp, its block, and the lanes that execute.
pub(super) struct Context<'a, 'b> {
    pub(super) program: &'a Program,
    pub(super) warp: &'a mut Warp,
    pub(super) block: &'a mut Block<'b>,
    pub(super) units: &'a mut Units,
    pub(super) pc: u32,
    pub(super) mask: u32,
}

/// The lanes of a mask.
pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> + Clone {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

impl Context<'_, '_> {
    /// Linear index in the block of the thread in a lane.
    pub(super) fn thread(&self, lane: usize) -> u32 {
        self.warp.index * LANES as u32 + lane as u32
    }

    pub(super) fn site(&self, lane: usize) -> Site {
        Site { pc: self.pc, thread: self.thread(lane) }
    }

    pub(super) fn trap(&self, kind: FaultKind, lane: usize, address: Option<u64>) -> Trap {
        Trap { kind, pc: self.pc, thread: Some(self.thread(lane)), address }
    }

    /// A fault of all lanes.
    pub(super) fn trap_all(&self, kind: FaultKind) -> Trap {
        self.trap(kind, self.mask.trailing_zeros() as usize, None)
    }

    /// A fault if any executing lane is among the `undefined` ones.
    pub(super) fn need_defined(&self, undefined: u32, sink: &'static str) -> Result<(), Trap> {
        match undefined & self.mask {
            0 => Ok(()),
            lanes => Err(self.trap(FaultKind::Undefined { sink }, lanes.trailing_zeros() as usize, None)),
        }
    }

    /// A lane's operand, which must be defined to reach `sink`.
    pub(super) fn value<T: Lane>(&self, lane: usize, reg: Reg, sink: &'static str) -> Result<T, FaultKind> {
        if self.warp.registers.undefined::<T>(reg) >> lane & 1 != 0 {
            return Err(FaultKind::Undefined { sink });
        }
        Ok(self.warp.registers.get::<T>(reg)[lane])
    }

    /// The value that all executing lanes have in a register.
    pub(super) fn uniform(&self, reg: Reg, what: &str) -> Result<u32, Trap> {
        self.need_defined(self.warp.registers.undefined::<u32>(reg), "an instruction that needs one value a warp")?;
        let values = self.warp.registers.get::<u32>(reg);
        let first = values[self.mask.trailing_zeros() as usize % LANES];
        match lanes_of(self.mask).find(|&lane| values[lane] != first) {
            None => Ok(first),
            Some(lane) => {
                let what = format!("{what} differs within the warp: {first:#x} and {:#x}", values[lane]);
                Err(self.trap(FaultKind::Illegal { what }, lane, None))
            }
        }
    }
}

impl Warp {
    fn live(&self) -> u32 {
        self.groups.iter().fold(0, |mask, group| mask | group.mask)
    }

    /// Joins lanes that have met, and puts the ones that go on first in place 0: of those that do not wait,
    /// the ones furthest behind. `false`: all wait.
    fn schedule(&mut self) -> bool {
        self.groups.sort_unstable_by_key(|group| (group.pc, group.mask));
        self.groups.dedup_by(|next, group| {
            let met = next.pc == group.pc;
            if met {
                group.mask |= next.mask;
                group.hold = Hold::Nothing;
            }
            met
        });
        match self.groups.iter().position(|group| group.hold == Hold::Nothing) {
            Some(index) => {
                self.groups.swap(0, index);
                true
            }
            None => false,
        }
    }
}

impl engine::Program for Program {
    type Warp = Warp;
    type Units = Units;

    fn info(&self) -> &KernelInfo {
        &self.info
    }

    fn warp(&self, block: &Block<'_>, index: u32) -> Warp {
        let threads = (block.launch.threads() - index * LANES as u32).min(LANES as u32);
        Warp {
            index,
            registers: self.registers.clone(),
            groups: vec![Group { pc: 0, mask: FULL >> (LANES as u32 - threads), hold: Hold::Nothing }],
            local: vec![0; self.local_bytes as usize * LANES],
            local_defined: vec![false; self.local_bytes as usize * LANES],
            copies: Vec::new(),
            committed: [0; LANES],
            reduction: None,
            products: Products::default(),
            loading: RegisterSet::default(),
            wait: None,
        }
    }

    fn run(&self, warp: &mut Warp, block: &mut Block<'_>, units: &mut Units, budget: u32) -> Result<Stop, Trap> {
        for group in &mut warp.groups {
            if group.hold == Hold::Blocked {
                group.hold = Hold::Nothing;
            }
        }
        for _ in 0..budget {
            if warp.groups.len() > 1 && !warp.schedule() {
                if let Some(group) = warp.groups.iter().find(|group| group.hold == Hold::Blocked) {
                    return Ok(Stop::Blocked { pc: group.pc });
                }
                self.meet(warp, block, units)?;
            }
            let Some(&Group { pc, mask, .. }) = warp.groups.first() else { return Ok(Stop::Exit) };
            let instruction = &self.code[pc as usize];
            let mut context =
                Context { program: self, warp: &mut *warp, block: &mut *block, units: &mut *units, pc, mask };
            if !context.are_together(instruction)? {
                warp.groups[0].hold = Hold::Lanes;
                continue;
            }
            if let Some(guard) = instruction.guard {
                let (holds, undefined) = context.warp.registers.predicate(guard);
                context.need_defined(undefined, "a branch")?;
                context.mask = mask & holds;
                if context.mask == 0 && !matches!(instruction.op, Op::Branch { .. }) {
                    context.block.counters.instruction(instruction.class);
                    warp.groups[0].pc = pc + 1;
                    continue;
                }
                if instruction.together != Together::Any && context.mask != mask {
                    let kind = FaultKind::Divergent { active: context.mask.into(), needed: mask.into() };
                    return Err(Context { mask, ..context }.trap_all(kind));
                }
            }
            if let Some(touches) = self.touches.get(pc as usize)
                && !touches.is_empty()
            {
                wgmma::touch(&mut context, touches)?;
            }
            context.block.counters.instruction(instruction.class);
            match context.execute(&instruction.op)? {
                Flow::Next => warp.groups[0].pc = pc + 1,
                Flow::Exit(lanes) => {
                    warp.groups[0] = Group { pc: pc + 1, mask: mask & !lanes, hold: Hold::Nothing };
                    if mask == lanes {
                        warp.groups.swap_remove(0);
                    }
                }
                Flow::Jump { target, lanes } if lanes == mask => warp.groups[0].pc = target,
                Flow::Jump { target, lanes } => {
                    warp.groups[0] = Group { pc: pc + 1, mask: mask & !lanes, hold: Hold::Nothing };
                    if lanes != 0 {
                        warp.groups.push(Group { pc: target, mask: lanes, hold: Hold::Nothing });
                    }
                }
                Flow::Scatter(targets) => {
                    warp.groups.swap_remove(0);
                    let groups = targets.into_iter().filter(|target| target.1 != 0);
                    warp.groups.extend(groups.map(|(pc, mask)| Group { pc, mask, hold: Hold::Nothing }));
                    // Lanes that go to the same place have met.
                    warp.schedule();
                }
                Flow::Barrier { id, threads, yes } => {
                    warp.groups[0].pc = pc + 1;
                    return Ok(Stop::Barrier { id, threads, arrived: mask.count_ones(), yes, pc });
                }
                Flow::Arrive { id, threads } => {
                    warp.groups[0].pc = pc + 1;
                    return Ok(Stop::Arrive { id, threads, arrived: mask.count_ones() });
                }
                Flow::Blocked => {
                    block.counters.take_back(instruction.class);
                    warp.groups[0].hold = Hold::Blocked;
                    if warp.groups.len() == 1 {
                        return Ok(Stop::Blocked { pc });
                    }
                }
                Flow::Yield => {
                    warp.groups[0].pc = pc + 1;
                    return Ok(Stop::Yield { pc: pc + 1 });
                }
            }
        }
        Ok(warp.groups.first().map_or(Stop::Exit, |group| Stop::Yield { pc: group.pc }))
    }

    fn released(&self, warp: &mut Warp, yes: u32, threads: u32) {
        if let Some((Reduction { what, .. }, mask)) = warp.reduction.take() {
            let truth = |holds: bool| if holds { mask } else { 0 };
            match what {
                ReductionOp::And(d) => warp.registers.set_predicate(d, mask, truth(yes == threads), 0),
                ReductionOp::Or(d) => warp.registers.set_predicate(d, mask, truth(yes > 0), 0),
                ReductionOp::Count(d) => warp.registers.set(d, mask, &[yes; LANES], 0),
            }
        }
    }

    fn settle(&self, units: &mut Units, block: &mut Block<'_>) -> Result<bool, Trap> {
        units.settle(block)
    }

    fn waits_for(&self, warp: &Warp, units: &Units) -> String {
        warp.wait.map_or_else(|| "free columns of tensor memory".into(), |wait| units.describe(wait))
    }

    fn finish(&self, units: &mut Units, _: &mut Block<'_>) -> Result<(), Trap> {
        units.finish()
    }

    fn locate(&self, pc: u32) -> (String, String) {
        let line = self.code.get(pc as usize).map_or(0, |instruction| instruction.line);
        let text = (line as usize).checked_sub(1).and_then(|index| self.text.get(index));
        (text.cloned().unwrap_or_default(), format!("line {line}"))
    }
}

/// Where the lanes go after an instruction.
pub(super) enum Flow {
    Next,
    /// These lanes end.
    Exit(u32),
    /// These lanes go to the target, the others on.
    Jump {
        target: u32,
        lanes: u32,
    },
    /// Each target with its lanes.
    Scatter(Vec<(u32, u32)>),
    Barrier {
        id: u32,
        threads: Option<u32>,
        yes: u32,
    },
    Arrive {
        id: u32,
        threads: u32,
    },
    /// The instruction has to be tried again.
    Blocked,
    /// The warp has only looked whether something has happened.
    Yield,
}

impl Program {
    /// All lanes wait, at different places: executes an exchange whose lanes are all there, or it is a fault.
    fn meet(&self, warp: &mut Warp, block: &mut Block<'_>, units: &mut Units) -> Result<(), Trap> {
        let live = warp.live();
        let at = |group: &Group| &self.code[group.pc as usize];
        for leader in 0..warp.groups.len() {
            let (first, lead) = (warp.groups[leader], at(&warp.groups[leader]));
            let Together::Members(reg) = lead.together else { continue };
            let (pc, mask) = (first.pc, first.mask);
            let context = Context { program: self, warp: &mut *warp, block: &mut *block, units: &mut *units, pc, mask };
            let members = context.uniform(reg, "the member mask")? & live;
            let Warp { groups, registers, .. } = &mut *warp;
            let takes_part = |group: &&mut Group| {
                let instruction = at(group);
                let Together::Members(reg) = instruction.together else { return false };
                let same_members = registers.get::<u32>(reg)[group.mask.trailing_zeros() as usize] & live == members;
                same_members && instruction.guard.is_none() && lanes::can_meet(&lead.op, &instruction.op)
            };
            let parts: Vec<_> = groups.iter_mut().filter(takes_part).collect();
            if parts.iter().fold(0, |mask, group| mask | group.mask) != members {
                continue;
            }
            let mut list = Vec::new();
            for group in parts {
                list.push((group.mask, &at(group).op));
                block.counters.instruction(at(group).class);
                *group = Group { pc: group.pc + 1, mask: group.mask, hold: Hold::Nothing };
            }
            let mut context = Context { program: self, warp, block, units, pc, mask: members };
            lanes::exchange(&mut context, &list);
            context.warp.schedule();
            return Ok(());
        }
        Err(self.never_together(warp))
    }

    /// Lanes wait for each other at different places.
    fn never_together(&self, warp: &Warp) -> Trap {
        let group = warp.groups[0];
        let kind = FaultKind::Divergent { active: group.mask.into(), needed: warp.live().into() };
        let thread = warp.index * LANES as u32 + group.mask.trailing_zeros();
        Trap { kind, pc: group.pc, thread: Some(thread), address: None }
    }
}

impl Context<'_, '_> {
    /// Whether the lanes that the instruction needs are here.
    fn are_together(&self, instruction: &Instruction) -> Result<bool, Trap> {
        match instruction.together {
            Together::Any => Ok(true),
            Together::All => Ok(self.warp.groups.len() == 1),
            Together::Members(reg) => {
                let members = self.uniform(reg, "the member mask")?;
                if self.mask & !members != 0 {
                    let what = format!("lanes {:#x} execute it, but are not in the member mask", self.mask & !members);
                    return Err(self.trap_all(FaultKind::Illegal { what }));
                }
                // Threads that have ended need not come.
                Ok(members & self.warp.live() & !self.mask == 0)
            }
        }
    }

    #[inline]
    fn execute(&mut self, op: &Op) -> Result<Flow, Trap> {
        if alu::execute(&mut self.warp.registers, self.mask, op) {
            return Ok(Flow::Next);
        }
        match op {
            Op::Special { d, what } => {
                for lane in lanes_of(self.mask) {
                    self.warp.registers.set_any_lane(*d, lane, self.special(*what, lane), false);
                }
            }
            Op::Load { address, access, order, ty, count, d } => {
                access::load(self, *address, *access, *ty, *count, d)?;
                self.fence(Order { release: false, ..*order });
                if order.acquire {
                    // Probably again and again: what is waited for must have a chance to happen.
                    return Ok(Flow::Yield);
                }
            }
            Op::Store { address, access, order, ty, count, a } => {
                self.fence(Order { acquire: false, ..*order });
                access::store(self, *address, *access, *ty, *count, a)?;
            }
            Op::Atomic { address, order, op, bytes, d, b, c } => {
                self.fence(Order { acquire: false, ..*order });
                access::atomic(self, *address, *op, *bytes, *d, *b, *c)?;
                self.fence(Order { release: false, ..*order });
            }
            Op::CopyAsync { to, from, bytes, used } => access::copy_async(self, *to, *from, *bytes, *used)?,
            Op::CommitCopies => access::commit_copies(self),
            Op::WaitCopies { pending } => access::wait_copies(self, *pending)?,
            Op::Bulk(copy) => bulk::start(self, copy)?,
            Op::CommitBulk => bulk::commit(self),
            Op::WaitBulk { pending } => bulk::wait(self, *pending)?,
            Op::MatrixLoad { address, count, transpose, d } => {
                matrix::load(self, *address, *count, *transpose, d)?;
            }
            Op::MatrixStore { address, count, transpose, a } => {
                matrix::store(self, *address, *count, *transpose, a)?;
            }
            Op::Mma(mma) => matrix::multiply(self, mma)?,
            Op::Wgmma(op) => wgmma::start(self, op)?,
            Op::Tensor(op) => return tcgen05::execute(self, op),
            Op::WgmmaFence => wgmma::fence(self),
            Op::WgmmaCommit => wgmma::commit(self),
            Op::WgmmaWait { pending } => wgmma::wait(self, *pending)?,
            Op::Shuffle { .. } | Op::Vote { .. } | Op::Reduce { .. } | Op::Elect { .. } | Op::BarrierWarp => {
                lanes::exchange(self, &[(self.mask, op)]);
            }
            Op::ActiveMask { d } => self.warp.registers.set(*d, self.mask, &[self.mask; LANES], 0),
            Op::BarrierBlock { id, threads, reduction } => return self.barrier(*id, *threads, *reduction),
            Op::BarrierArrive { id, threads } => {
                let threads = self.uniform(*threads, "the barrier's thread count")?;
                return Ok(Flow::Arrive { id: self.uniform(*id, "the barrier's number")?, threads });
            }
            Op::Barrier { address, op } => return mbarrier::execute(self, *address, *op),
            Op::FenceProxy => self.block.shared.fence_proxy(self.warp.index, self.mask, self.mask == self.warp.live()),
            Op::Fence { order } => self.fence(*order),
            Op::Nothing => {}
            Op::Branch { target } => return Ok(Flow::Jump { target: *target, lanes: self.mask }),
            Op::BranchIndexed { index, targets } => return self.branch_indexed(*index, targets),
            Op::Exit => {
                if self.mask == self.warp.live() {
                    wgmma::finish(self)?;
                }
                return Ok(Flow::Exit(self.mask));
            }
            Op::Trap => {
                if self.mask != 0 {
                    return Err(self.trap_all(FaultKind::Trap));
                }
            }
            _ => unreachable!("all other instructions are arithmetic"),
        }
        Ok(Flow::Next)
    }

    fn fence(&mut self, order: Order) {
        if order != Order::default() {
            self.block.global_fence(self.warp.index, order.acquire, order.release);
        }
    }

    fn barrier(&mut self, id: Reg, threads: Option<Reg>, reduction: Option<Reduction>) -> Result<Flow, Trap> {
        let threads = match threads {
            Some(reg) => Some(self.uniform(reg, "the barrier's thread count")?),
            None => None,
        };
        let mut yes = 0;
        if let Some(reduction) = reduction {
            let (holds, undefined) = self.warp.registers.predicate(reduction.a);
            self.need_defined(undefined, "a barrier")?;
            yes = (holds & self.mask).count_ones();
            self.warp.reduction = Some((reduction, self.mask));
        }
        Ok(Flow::Barrier { id: self.uniform(id, "the barrier's number")?, threads, yes })
    }

    fn branch_indexed(&self, index: Reg, targets: &[u32]) -> Result<Flow, Trap> {
        self.need_defined(self.warp.registers.undefined::<u32>(index), "a branch")?;
        let indices = self.warp.registers.get::<u32>(index);
        let mut taken = vec![(self.pc + 1, self.warp.groups[0].mask & !self.mask)];
        for lane in lanes_of(self.mask) {
            let Some(&target) = targets.get(indices[lane] as usize) else {
                let what = format!("index {} of {} branch targets", indices[lane], targets.len());
                return Err(self.trap(FaultKind::Illegal { what }, lane, None));
            };
            taken.push((target, 1 << lane));
        }
        Ok(Flow::Scatter(taken))
    }
}
