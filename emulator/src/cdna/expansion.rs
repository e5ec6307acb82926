//! Recognises the compare-and-swap loops that LLVM makes of atomics which memory may not support.
//!
//! Such a loop begins with a plain load of the word: its value is only a guess, so that it must not count as a race.
//! And where the program does not use the old value, what a block does depends on no other block, however often it
//! has to try.

use super::inst::{Inst, Op, Operand};
use super::memory_ops::{Action, AtomicOp, MemoryOp, ScalarMemory};
use super::valu_ops::Valu;

/// Instructions before the loop in which its first load is looked for.
const WINDOW: usize = 16;

/// Whether `code[at]` is the compare-and-swap of such a loop: its result is compared with what was expected, and
/// becomes what is expected next.
fn is_loop(code: &[&Inst], at: usize) -> Option<(usize, usize)> {
    let inst = code[at];
    let Op::Memory(MemoryOp { action: Action::Atomic(AtomicOp::CompareSwap, 4), .. }) = inst.op else { return None };
    let old = inst.dst.vector_index()?;
    let expected = inst.src[1].vector_index()? + 1;
    let is_move = |inst: &&&Inst| {
        matches!(inst.op, Op::Valu(Valu::v_mov_b32))
            && inst.dst.vector_index() == Some(expected)
            && inst.src[0].vector_index() == Some(old)
    };
    code[at + 1..].iter().take(8).find(is_move).map(|_| (old, expected))
}

/// Whether a register's value is used after `code[at]`: its next mention is a read.
fn is_used(code: &[&Inst], at: usize, register: usize) -> bool {
    let holds = |operand: Operand, width: u8| {
        operand.vector_index().is_some_and(|first| (first..first + usize::from(width)).contains(&register))
    };
    let mention = code[at..].iter().find_map(|inst| {
        let read = inst.sources().any(|(operand, width)| holds(operand, width));
        (read || holds(inst.dst, inst.dst_width)).then_some(read)
    });
    mention == Some(true)
}

/// Marks the loads that begin such loops as ordered.
pub(super) fn mark_first_loads(code: &mut [Inst]) {
    for at in 0..code.len() {
        let view: Vec<&Inst> = code[at..].iter().take(10).collect();
        if is_loop(&view, 0).is_none() {
            continue;
        }
        let (address, base, imm) = (code[at].src[0], code[at].src[3], code[at].imm);
        for load in &mut code[at.saturating_sub(WINDOW)..at] {
            load.mods.ordered |= match load.op {
                Op::Memory(MemoryOp { action: Action::Load(unit), .. }) => {
                    unit.bytes == 4 && (load.src[0], load.src[3], load.imm) == (address, base, imm)
                }
                Op::ScalarMemory(ScalarMemory::Load(1)) => load.src[0] == base,
                _ => false,
            };
        }
    }
}

/// Whether `code[at]` is an atomic whose old value the program uses.
pub(super) fn uses_old_value(code: &[&Inst], at: usize) -> bool {
    let inst = code[at];
    let Op::Memory(MemoryOp { action: Action::Atomic(..), .. }) = inst.op else { return false };
    let Some((old, expected)) = is_loop(code, at) else { return !inst.dst.is_none() };
    // The loop ends with its branch back.
    let end = code[at..].iter().position(|inst| matches!(inst.op, Op::Program(_)) && inst.imm < 0 && inst.imm > -64);
    end.is_none_or(|end| [old, expected].iter().any(|&register| is_used(code, at + end + 1, register)))
}
