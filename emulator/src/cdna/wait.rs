//! What is still on its way: the counters of `s_waitcnt` and the registers and LDS bytes they protect.
//!
//! Loads deliver at once here; what is modelled is the promise. vmcnt counts vector memory instructions, which
//! complete in order. lgkmcnt counts LDS instructions, which complete in order, and scalar loads, which complete in
//! any order, so that only lgkmcnt(0) says something about them. Flat accesses count in both.

use super::inst::{Inst, Op, Operand, Program};
use super::memory_ops::{Action, Space};
use crate::memory::Data;

/// Most instructions that vmcnt and lgkmcnt can count; the hardware stalls beyond.
const MAX_VM: u32 = 63;
const MAX_LGKM: u32 = 15;

/// Instructions issued and known to be complete, numbered from 1.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    issued: u32,
    done: u32,
}

impl Queue {
    fn issue(&mut self, most: u32) -> u32 {
        self.issued += 1;
        self.wait(most);
        self.issued
    }

    /// At most `outstanding` are incomplete.
    fn wait(&mut self, outstanding: u32) {
        self.done = self.done.max(self.issued.saturating_sub(outstanding));
    }

    fn busy(self) -> bool {
        self.done < self.issued
    }
}

/// An access of a lane to LDS that no wait has completed yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct LdsAccess {
    number: u32,
    pub(super) lane: u32,
    pub(super) address: u32,
    pub(super) bytes: u32,
    /// What was stored; `None` for loads.
    pub(super) stored: Option<Data>,
}

#[derive(Debug, Default)]
pub(super) struct Waits {
    vm: Queue,
    lds: Queue,
    scalar: Queue,
    /// For each vector register: the vector memory and the LDS instruction that fills it.
    vector_vm: Vec<u32>,
    vector_lds: Vec<u32>,
    /// For each scalar register: the scalar load that fills it.
    scalar_load: Vec<u32>,
    /// LDS bytes that vector memory loads fill, in order of issue.
    pub(super) to_lds: Vec<LdsAccess>,
    /// LDS instructions' accesses that no wait has completed.
    pub(super) lds_accesses: Vec<LdsAccess>,
    /// The wave has waited at a barrier and not run since.
    pub(super) passed_barrier: bool,
}

impl Waits {
    pub(super) fn new(registers: usize) -> Self {
        Self {
            vector_vm: vec![0; registers],
            vector_lds: vec![0; registers],
            scalar_load: vec![0; 128],
            ..Self::default()
        }
    }

    fn busy(&self) -> bool {
        self.vm.busy() || self.lds.busy() || self.scalar.busy()
    }

    /// What the instruction uses that has not arrived.
    #[inline]
    pub(super) fn unready(&self, inst: &Inst) -> Option<&'static str> {
        if !self.busy() { None } else { self.find_unready(inst) }
    }

    fn find_unready(&self, inst: &Inst) -> Option<&'static str> {
        let (vm_load, lds_load) = match inst.op {
            Op::Memory(op) => (op.space != Space::Flat && matches!(op.action, Action::Load(_)), false),
            Op::Lds(_) => (false, true),
            _ => (false, false),
        };
        let used = inst.sources().find_map(|(operand, width)| self.pending(operand, width, false, false));
        let overwritten = || {
            self.pending(inst.dst, inst.dst_width, vm_load, lds_load)
                .or_else(|| self.pending(inst.sdst, if inst.sdst.is_none() { 0 } else { 2 }, false, false))
        };
        let vcc = || match inst.op {
            Op::Program(Program::BranchVcc(_)) => self.pending(Operand::VCC, 2, false, false),
            _ => None,
        };
        used.or_else(overwritten).or_else(vcc)
    }

    /// What fills `width` registers from `operand` and has not arrived. In-order loads may overwrite each other.
    fn pending(&self, operand: Operand, width: u8, vm_load: bool, lds_load: bool) -> Option<&'static str> {
        if operand.is_none() {
            return None;
        }
        let width = usize::from(width);
        if let Some(first) = operand.vector_index() {
            for register in first..first + width {
                if !vm_load && self.vector_vm[register] > self.vm.done {
                    return Some("vector register of a memory load (vmcnt) used");
                }
                if !lds_load && self.vector_lds[register] > self.lds.done {
                    return Some("vector register of an LDS load (lgkmcnt) used");
                }
            }
        } else if let Some(first) = operand.scalar_index() {
            let registers = &self.scalar_load[first..(first + width).min(128)];
            if registers.iter().any(|&load| load > self.scalar.done) {
                return Some("scalar register of a scalar load (lgkmcnt) used");
            }
        }
        None
    }

    /// A vector memory instruction was issued that fills `width` registers from `dst`.
    pub(super) fn issue_vm(&mut self, dst: Operand, width: u8) -> u32 {
        let number = self.vm.issue(MAX_VM);
        if let Some(first) = dst.vector_index() {
            self.vector_vm[first..first + usize::from(width)].fill(number);
        }
        number
    }

    /// An LDS instruction was issued that fills `width` registers from `dst`.
    pub(super) fn issue_lds(&mut self, dst: Operand, width: u8) {
        let number = self.lds.issue(MAX_LGKM);
        if let Some(first) = dst.vector_index() {
            self.vector_lds[first..first + usize::from(width)].fill(number);
        }
    }

    /// A scalar load was issued that fills `width` registers from `dst`.
    pub(super) fn issue_scalar(&mut self, dst: Operand, width: u8) {
        let number = self.scalar.issue(u32::MAX);
        if let Some(first) = dst.scalar_index() {
            self.scalar_load[first..first + usize::from(width)].fill(number);
        }
    }

    /// Notes an access of the LDS instruction that is issued next.
    pub(super) fn note_lds(&mut self, lane: usize, address: u32, bytes: u32, stored: Option<Data>) {
        let number = self.lds.issued + 1;
        self.lds_accesses.push(LdsAccess { number, lane: lane as u32, address, bytes, stored });
    }

    /// Notes LDS bytes that the vector memory instruction issued next fills.
    pub(super) fn note_to_lds(&mut self, lane: usize, address: u32, bytes: u32) {
        let number = self.vm.issued + 1;
        self.to_lds.push(LdsAccess { number, lane: lane as u32, address, bytes, stored: None });
    }

    /// Waits until at most so many are outstanding; returns the LDS bytes that have arrived.
    pub(super) fn wait(&mut self, vm: u32, lgkm: u32) -> Vec<LdsAccess> {
        self.vm.wait(vm);
        self.lds.wait(lgkm);
        if lgkm == 0 {
            self.scalar.wait(0);
        }
        let lds_done = self.lds.done;
        self.lds_accesses.retain(|access| access.number > lds_done);
        let arrived = self.to_lds.partition_point(|access| access.number <= self.vm.done);
        self.to_lds.drain(..arrived).collect()
    }
}
