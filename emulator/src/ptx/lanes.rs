//! Exchanges between the lanes of a warp.
//!
//! The lanes that take part may be at different instructions of the same kind: since sm_70 only the
//! qualifiers and the member mask must agree, and compilers do copy a shuffle into both arms of a branch.

use super::alu::int_scalar;
use super::ops::{Op, PredSource, Reg, ShuffleMode, VoteMode};
use super::registers::LANES;
use super::warp::{Context, lanes_of};

/// Lanes that take part, and the instruction that they are at.
pub(super) type Part<'a> = (u32, &'a Op);

/// Whether lanes at one of these instructions can meet lanes at the other.
pub(super) fn can_meet(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Shuffle { mode: a, .. }, Op::Shuffle { mode: b, .. }) => a == b,
        (Op::Vote { mode: a, .. }, Op::Vote { mode: b, .. }) => std::mem::discriminant(a) == std::mem::discriminant(b),
        (Op::Reduce { op: a, .. }, Op::Reduce { op: b, .. }) => a == b,
        (Op::Elect { .. }, Op::Elect { .. }) | (Op::BarrierWarp, Op::BarrierWarp) => true,
        _ => false,
    }
}

/// Executes an exchange between all lanes of `cx.mask`, which `parts` divide among them.
pub(super) fn exchange(cx: &mut Context<'_, '_>, parts: &[Part<'_>]) {
    match parts[0].1 {
        Op::Shuffle { mode, .. } => shuffle(cx, *mode, parts),
        Op::Vote { mode, .. } => vote(cx, *mode, parts),
        Op::Reduce { .. } => reduce(cx, parts),
        Op::Elect { .. } => elect(cx, parts),
        Op::BarrierWarp => cx.block.shared.sync_warp(cx.warp.index),
        _ => unreachable!("the caller executes exchanges only"),
    }
}

/// A 32-bit operand of all lanes, and the lanes in which it is undefined.
fn operand(cx: &Context<'_, '_>, parts: &[Part<'_>], pick: impl Fn(&Op) -> Reg) -> ([u32; LANES], u32) {
    let (mut values, mut undefined) = ([0; LANES], !cx.mask);
    for &(mask, op) in parts {
        let reg = pick(op);
        let from = cx.warp.registers.get::<u32>(reg);
        lanes_of(mask).for_each(|lane| values[lane] = from[lane]);
        undefined |= cx.warp.registers.undefined::<u32>(reg) & mask;
    }
    (values, undefined)
}

/// shfl.sync. A lane that takes no part gives an undefined value.
fn shuffle(cx: &mut Context<'_, '_>, mode: ShuffleMode, parts: &[Part<'_>]) {
    let registers = |op: &Op| match *op {
        Op::Shuffle { d, in_range, a, b, c, .. } => (d, in_range, [a, b, c]),
        _ => unreachable!("the lanes that meet shuffle"),
    };
    let [(x, x_undefined), (distance, d_undefined), (control, c_undefined)] =
        [0, 1, 2].map(|i| operand(cx, parts, |op| registers(op).2[i]));
    let mut undefined = d_undefined | c_undefined;
    let mut values = [0; LANES];
    let mut inside = 0;
    for lane in 0..LANES as u32 {
        let (n, control) = (distance[lane as usize] & 31, control[lane as usize]);
        let (segment, clamp) = (control >> 8 & 31, control & 31);
        // For .up this is a lower bound, for the others an upper one.
        let bound = lane & segment | clamp & !segment;
        let lowest = lane & segment;
        let (source, valid) = match mode {
            ShuffleMode::Up => (lane.wrapping_sub(n), lane as i32 - n as i32 >= bound as i32),
            ShuffleMode::Down => (lane + n, lane + n <= bound),
            ShuffleMode::Butterfly => (lane ^ n, lane ^ n <= bound),
            ShuffleMode::Index => (lowest | n & !segment, lowest | n & !segment <= bound),
        };
        let source = if valid { source } else { lane };
        values[lane as usize] = x[source as usize];
        undefined |= (x_undefined >> source & 1) << lane;
        inside |= u32::from(valid) << lane;
    }
    for &(mask, op) in parts {
        let (d, in_range, _) = registers(op);
        cx.warp.registers.set(d, mask, &values, undefined);
        if let Some(p) = in_range {
            cx.warp.registers.set_predicate(p, mask, inside, d_undefined | c_undefined);
        }
    }
}

/// vote.sync.
fn vote(cx: &mut Context<'_, '_>, mode: VoteMode, parts: &[Part<'_>]) {
    let source = |op: &Op| match *op {
        Op::Vote { a, .. } => a,
        _ => unreachable!("the lanes that meet vote"),
    };
    let (mut value, mut undefined) = (0, 0);
    for &(mask, op) in parts {
        let a: PredSource = source(op);
        let (holds, unknown) = cx.warp.registers.predicate(a);
        value |= holds & mask;
        undefined |= unknown & mask;
    }
    let undefined = if undefined != 0 { cx.mask } else { 0 };
    let truth = match mode {
        VoteMode::Ballot(_) => false,
        VoteMode::All => value == cx.mask,
        VoteMode::Any => value != 0,
        VoteMode::Uniform => value == cx.mask || value == 0,
    };
    for &(mask, op) in parts {
        match *op {
            Op::Vote { mode: VoteMode::Ballot(d), .. } => cx.warp.registers.set(d, mask, &[value; LANES], undefined),
            Op::Vote { d, .. } => cx.warp.registers.set_predicate(d, mask, if truth { mask } else { 0 }, undefined),
            _ => unreachable!("the lanes that meet vote"),
        }
    }
}

/// redux.sync.
fn reduce(cx: &mut Context<'_, '_>, parts: &[Part<'_>]) {
    let registers = |op: &Op| match *op {
        Op::Reduce { op, d, a } => (op, d, a),
        _ => unreachable!("the lanes that meet reduce"),
    };
    let op = registers(parts[0].1).0;
    let (values, undefined) = operand(cx, parts, |op| registers(op).2);
    let undefined = if undefined & cx.mask != 0 { cx.mask } else { 0 };
    if let Some(result) = lanes_of(cx.mask).map(|lane| values[lane]).reduce(|x, y| int_scalar(op, x, y)) {
        for &(mask, op) in parts {
            cx.warp.registers.set(registers(op).1, mask, &[result; LANES], undefined);
        }
    }
}

/// elect.sync: the lowest lane leads.
fn elect(cx: &mut Context<'_, '_>, parts: &[Part<'_>]) {
    let lowest = cx.mask.trailing_zeros();
    for &(mask, op) in parts {
        if let Op::Elect { d, leader } = *op {
            if let Some(d) = d {
                cx.warp.registers.set(d, mask, &[lowest; LANES], 0);
            }
            cx.warp.registers.set_predicate(leader, mask, 1 << lowest, 0);
        }
    }
}
