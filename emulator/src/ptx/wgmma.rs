//! wgmma: products of a warpgroup, whose warps each do their own 16 rows.
//!
//! Products are computed when they are waited for. Until then nobody may touch the accumulator's registers, write those
//! of A, or overwrite the operands in shared memory.

use super::descriptor::{Descriptor, Elements, Form, Matrix, multiply, unpack};
use super::ops::{Op, Reg, Wgmma, WgmmaA};
use super::registers::{FULL, LANES, RegisterSet};
use super::warp::Context;
use crate::FaultKind;
use crate::fault::Trap;
use crate::shared::Agent;
use std::collections::VecDeque;

/// Rows that a warp computes.
const ROWS: u32 = 16;
/// Warps of a warpgroup.
const WARPS: u32 = 4;

/// A product in flight.
struct Product {
    /// The instruction.
    pc: u32,
    a: A,
    b: Matrix,
    accumulate: bool,
}

/// The warp's rows of A.
enum A {
    Shared(Matrix),
    /// From registers, as they were.
    Registers(Elements),
}

/// What a warp has in flight.
#[derive(Default)]
pub(super) struct Products {
    /// Not yet committed.
    open: Vec<Product>,
    /// Committed groups, the oldest first.
    groups: VecDeque<Vec<Product>>,
    /// Registers of accumulators, and of A, that are in use.
    accumulators: RegisterSet,
    sources: RegisterSet,
    /// Registers that were written since the last fence; before the first one, all count as that.
    written: RegisterSet,
    fenced: bool,
}

impl Products {
    fn is_empty(&self) -> bool {
        self.open.is_empty() && self.groups.is_empty()
    }
}

fn illegal(what: String) -> FaultKind {
    FaultKind::Illegal { what }
}

/// Another instruction reads or writes registers that units use.
pub(super) fn touch(cx: &mut Context<'_, '_>, touches: &[(Reg, bool)]) -> Result<(), Trap> {
    for &(reg, writes) in touches {
        if cx.warp.loading.contains(reg) {
            return Err(cx.trap_all(FaultKind::UsedBeforeWait { what: "registers of tcgen05.ld used" }));
        }
        let products = &mut cx.warp.products;
        if products.accumulators.contains(reg) {
            let what = "registers of an accumulator of wgmma used";
            return Err(cx.trap_all(FaultKind::UsedBeforeWait { what }));
        }
        if writes {
            if products.sources.contains(reg) {
                let what = "registers of an operand of wgmma overwritten";
                return Err(cx.trap_all(FaultKind::UsedBeforeWait { what }));
            }
            products.written.insert(reg);
        }
    }
    Ok(())
}

/// wgmma.fence.
pub(super) fn fence(cx: &mut Context<'_, '_>) {
    cx.warp.products.written.clear();
    cx.warp.products.fenced = true;
}

/// wgmma.commit_group.
pub(super) fn commit(cx: &mut Context<'_, '_>) {
    let open = std::mem::take(&mut cx.warp.products.open);
    cx.warp.products.groups.push_back(open);
}

/// All lanes end: nothing may be in flight.
pub(super) fn finish(cx: &Context<'_, '_>) -> Result<(), Trap> {
    if cx.warp.products.is_empty() {
        return Ok(());
    }
    let what = "the warp ends, and its products were in flight";
    Err(cx.trap_all(FaultKind::UsedBeforeWait { what }))
}

/// The descriptor that all lanes have in a register.
fn descriptor(cx: &Context<'_, '_>, reg: Reg) -> Result<Descriptor, Trap> {
    cx.need_defined(cx.warp.registers.undefined::<u64>(reg), "a matrix descriptor")?;
    let values = cx.warp.registers.get::<u64>(reg);
    if values.iter().any(|value| value != &values[0]) {
        return Err(cx.trap_all(illegal("a matrix descriptor differs within the warp".into())));
    }
    Descriptor::decode(Form::Wgmma, values[0]).map_err(|what| cx.trap_all(illegal(what)))
}

/// wgmma.mma_async: begins a product.
pub(super) fn start(cx: &mut Context<'_, '_>, op: &Wgmma) -> Result<(), Trap> {
    super::access::need_whole_warp(cx)?;
    let group = cx.warp.index / WARPS * WARPS;
    if (group + WARPS) * LANES as u32 > cx.block.launch.threads() {
        return Err(cx.trap_all(illegal("wgmma needs the four warps of a warpgroup".into())));
    }
    let sources: &[Reg] = match &op.a {
        WgmmaA::Registers(registers) => registers,
        WgmmaA::Shared(_) => &[],
    };
    check_registers(cx, op, sources)?;
    let (holds, undefined) = cx.warp.registers.predicate(op.accumulate);
    cx.need_defined(undefined, "a product")?;
    if holds != 0 && holds != FULL {
        return Err(cx.trap_all(illegal("whether to accumulate differs within the warp".into())));
    }
    let first = cx.warp.index % WARPS * ROWS;
    let a = match op.a {
        WgmmaA::Registers(registers) => A::Registers(fragment(cx, op, &registers)),
        WgmmaA::Shared(reg) => A::Shared(descriptor(cx, reg)?.matrix(op.major[0], op.a_ty, first, ROWS, op.k)),
    };
    let b = descriptor(cx, op.b)?.matrix(op.major[1], op.b_ty, 0, op.n, op.k);
    let agent = Agent { agent: None, cause: cx.thread(0) };
    let shared = match &a {
        A::Shared(a) => &a.pieces[..],
        A::Registers(_) => &[],
    };
    for &piece in shared.iter().chain(&b.pieces) {
        let begun = cx.block.shared.begin_read(agent, piece);
        begun.map_err(|kind| cx.trap(kind, 0, Some(piece.into())))?;
    }
    cx.block.counters.matrix_macs += u64::from(ROWS * op.n * op.k);
    let products = &mut cx.warp.products;
    products.accumulators.extend(&op.d);
    products.sources.extend(sources);
    products.open.push(Product { pc: cx.pc, a, b, accumulate: holds != 0 });
    Ok(())
}

/// Registers that were written must have been fenced; those of A must not be on their way.
fn check_registers(cx: &Context<'_, '_>, op: &Wgmma, sources: &[Reg]) -> Result<(), Trap> {
    let products = &cx.warp.products;
    if !products.fenced || op.d.iter().chain(sources).any(|&reg| products.written.contains(reg)) {
        let what = "registers that wgmma uses were written".into();
        return Err(cx.trap_all(FaultKind::MissingFence { fence: "wgmma.fence", what }));
    }
    if sources.iter().any(|&reg| products.accumulators.contains(reg)) {
        let what = "registers of an accumulator of wgmma used";
        return Err(cx.trap_all(FaultKind::UsedBeforeWait { what }));
    }
    Ok(())
}

/// The warp's rows of A in registers: each holds neighbours along K, for the upper or the lower eight rows.
fn fragment(cx: &Context<'_, '_>, op: &Wgmma, registers: &[Reg; 4]) -> Elements {
    let (k, per_word) = (op.k as usize, 4 / op.a_ty.bytes() as usize);
    let mut elements = Elements { values: vec![0.0; 16 * k], undefined: vec![false; 16] };
    for (i, &reg) in registers.iter().enumerate() {
        let (words, undefined) = (cx.warp.registers.get::<u32>(reg), cx.warp.registers.undefined::<u32>(reg));
        for (lane, word) in words.iter().enumerate() {
            let row = lane / 4 + 8 * (i % 2);
            let at = row * k + k / 2 * (i / 2) + lane % 4 * per_word;
            unpack(op.a_ty, &[*word], &mut elements.values[at..at + per_word]);
            elements.undefined[row] |= undefined >> lane & 1 != 0;
        }
    }
    if op.negate[0] {
        elements.values.iter_mut().for_each(|value| *value = -*value);
    }
    elements
}

/// wgmma.wait_group: all groups but the last `pending` are done.
pub(super) fn wait(cx: &mut Context<'_, '_>, pending: u32) -> Result<(), Trap> {
    while cx.warp.products.groups.len() > pending as usize
        && let Some(group) = cx.warp.products.groups.pop_front()
    {
        for product in group {
            execute(cx, &product);
        }
    }
    let program = cx.program;
    let products = &mut cx.warp.products;
    products.accumulators.clear();
    products.sources.clear();
    for product in products.groups.iter().flatten().chain(&products.open) {
        if let Op::Wgmma(op) = &program.code[product.pc as usize].op {
            products.accumulators.extend(&op.d);
            if let WgmmaA::Registers(registers) = &op.a {
                products.sources.extend(registers);
            }
        }
    }
    cx.block.made_progress();
    Ok(())
}

/// Computes a product.
fn execute(cx: &mut Context<'_, '_>, product: &Product) {
    let Op::Wgmma(op) = &cx.program.code[product.pc as usize].op else { unreachable!("a product comes from wgmma") };
    let thread = cx.thread(0);
    let shared = &mut cx.block.shared;
    let read = |shared: &mut crate::shared::Shared, matrix: &Matrix, negate: bool| {
        for &piece in &matrix.pieces {
            shared.end_read(piece);
            shared.has_read(thread, piece, true);
        }
        matrix.elements(negate, |address| shared.peek(address))
    };
    let from_shared;
    let a = match &product.a {
        A::Shared(matrix) => {
            from_shared = read(shared, matrix, op.negate[0]);
            &from_shared
        }
        A::Registers(elements) => elements,
    };
    let b = read(shared, &product.b, op.negate[1]);
    let columns = op.n as usize;
    let mut sums = vec![0.0; ROWS as usize * columns];
    let mut undefined = vec![0u32; op.d.len()];
    let places = |register: usize, lane: usize| {
        (lane / 4 + register / 2 % 2 * 8, register / 4 * 8 + lane % 4 * 2 + register % 2)
    };
    if product.accumulate {
        for (i, &reg) in op.d.iter().enumerate() {
            undefined[i] = cx.warp.registers.undefined::<u32>(reg);
            for (lane, &bits) in cx.warp.registers.get::<u32>(reg).iter().enumerate() {
                let (row, column) = places(i, lane);
                sums[row * columns + column] = f32::from_bits(bits);
            }
        }
    }
    multiply(a, &b, op.k as usize, &mut sums);
    for (i, &reg) in op.d.iter().enumerate() {
        let mut values = [0; LANES];
        for (lane, value) in values.iter_mut().enumerate() {
            let (row, column) = places(i, lane);
            let sum = sums[row * columns + column];
            *value = if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() };
            undefined[i] |= u32::from(a.undefined[row] | b.undefined[column]) << lane;
        }
        cx.warp.registers.set(reg, FULL, &values, undefined[i]);
    }
}
