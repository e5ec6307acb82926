//! tcgen05: products whose accumulators are in tensor memory, and what goes with them.
//!
//! One thread issues products; they are done in order, when somebody waits for an mbarrier that a commit behind them
//! signals. Sums are as in [`multiply`]: the hardware's differ in their last bits.

use super::access::{addresses, resolve, shared_address};
use super::descriptor::{Descriptor, Elements, Form, Major, Matrix, multiply, unpack};
use super::mbarrier;
use super::ops::{Address, MatrixTy, PredSource, Reg, Space, TensorA, TensorMma, TensorOp};
use super::tensor::{LANES, QUADRANT, Region, TensorMemory, Use};
use super::units::{Key, Units, trap};
use super::warp::{Context, Flow};
use crate::engine::{Block, Left};
use crate::fault::Trap;
use crate::memory::Data;
use crate::races::Site;
use crate::shared::Agent;
use crate::stamps::Actor;
use crate::{FaultKind, TraceKind};

/// Columns of tensor memory that a product's A takes.
const A_COLUMNS: u32 = 8;

/// What a thread has given to the matrix unit.
pub(super) enum Work {
    Product(Box<Product>),
    /// Signals an mbarrier when all before it is done.
    Commit {
        site: Site,
        barrier: u32,
        left: Left,
    },
}

/// A product that has not been done.
pub(super) struct Product {
    pub(super) site: Site,
    /// Its number in a trace.
    number: u32,
    shape: Shape,
    a: A,
    b: Matrix,
    /// First column of the accumulator.
    d: u32,
    accumulate: bool,
}

enum A {
    Shared(Matrix),
    /// First column in tensor memory.
    Tensor(u32),
}

/// What an instruction descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    m: u32,
    n: u32,
    k: u32,
    types: [MatrixTy; 2],
    negate: [bool; 2],
    major: [Major; 2],
}

fn illegal(what: impl Into<String>) -> FaultKind {
    FaultKind::Illegal { what: what.into() }
}

impl Shape {
    /// The error is a rule that is broken, in words.
    fn decode(bytes: u32, bits: u32) -> Result<Self, String> {
        let field = |low: u32, count: u32| bits >> low & ((1 << count) - 1);
        let named = |what: &str, value: u32| format!("instruction descriptor {bits:#010x}: {what} is {value}");
        // Sparsity, saturation, and what is reserved.
        for (low, count) in [(0, 4), (6, 1), (23, 1), (29, 3)] {
            if field(low, count) != 0 {
                let last = low + count - 1;
                return Err(format!("bits {low} to {last} of instruction descriptor {bits:#010x} must hold 0"));
            }
        }
        if field(4, 2) != 1 {
            return Err(named("the accumulator's type (only f32, 1, is supported)", field(4, 2)));
        }
        let ty = |number: u32| match (bytes, number) {
            (2, 0) => Ok(MatrixTy::F16),
            (2, 1) => Ok(MatrixTy::Bf16),
            (1, 0) => Ok(MatrixTy::E4m3),
            (1, 1) => Ok(MatrixTy::E5m2),
            _ => Err(named("an operand's type (which is not supported)", number)),
        };
        let (m, n) = (field(24, 5) << 4, field(17, 6) << 3);
        if !matches!(m, 64 | 128) {
            return Err(named("M (64 and 128 are allowed)", m));
        }
        let step = if m == 128 { 16 } else { 8 };
        if !(step..=256).contains(&n) || !n.is_multiple_of(step) {
            return Err(named(&format!("N (multiples of {step} up to 256 are allowed)"), n));
        }
        let major = |bit: u32| if field(bit, 1) != 0 { Major::Mn } else { Major::K };
        let types = [ty(field(7, 3))?, ty(field(10, 3))?];
        let negate = [field(13, 1) != 0, field(14, 1) != 0];
        Ok(Self { m, n, k: 32 / bytes, types, negate, major: [major(15), major(16)] })
    }

    /// The lane of a row.
    fn lane(self, row: u32) -> u32 {
        if self.m == LANES { row } else { row / 16 * QUADRANT + row % 16 }
    }
}

/// Executes an instruction.
pub(super) fn execute(cx: &mut Context<'_, '_>, op: &TensorOp) -> Result<Flow, Trap> {
    let warp = cx.warp.index;
    match op {
        TensorOp::Alloc { to, columns } => return allocate(cx, *to, *columns),
        TensorOp::Relinquish => tensor(cx).relinquished = true,
        TensorOp::Free { address, columns } => {
            let address = cx.uniform(*address, "an address in tensor memory")?;
            let columns = cx.uniform(*columns, "the number of columns")?;
            let freed = tensor(cx).free(address & 0xffff, columns);
            freed.map_err(|kind| cx.trap(kind, 0, Some(address.into())))?;
        }
        TensorOp::FenceBefore => cx.block.shared.clocks.fence_before(warp),
        TensorOp::FenceAfter => cx.block.shared.clocks.fence_after(warp),
        TensorOp::WaitLoads => {
            let clock = cx.block.shared.clocks.now(warp);
            tensor(cx).finish(Use::Load, warp, clock);
            cx.warp.loading.clear();
        }
        TensorOp::WaitStores => {
            let clock = cx.block.shared.clocks.now(warp);
            tensor(cx).finish(Use::Store, warp, clock);
        }
        TensorOp::Load { address, d } => load(cx, *address, d)?,
        TensorOp::Store { address, a } => store(cx, *address, a)?,
        TensorOp::Mma(op) => start(cx, op)?,
        TensorOp::Commit { barrier } => commit(cx, *barrier)?,
    }
    cx.block.made_progress();
    Ok(Flow::Next)
}

/// The block's tensor memory, which it has from the first use on.
fn tensor<'a>(cx: &'a mut Context<'_, '_>) -> &'a mut TensorMemory {
    let width = cx.block.launch.warps() + cx.program.agents().readers;
    cx.units.tensor.get_or_insert_with(|| Box::new(TensorMemory::new(width)))
}

fn allocate(cx: &mut Context<'_, '_>, to: Address, columns: Reg) -> Result<Flow, Trap> {
    let columns = cx.uniform(columns, "the number of columns")?;
    let (place, lane) = (addresses(cx, to)?, cx.mask.trailing_zeros() as usize);
    let Some(first) = tensor(cx).allocate(columns).map_err(|kind| cx.trap_all(kind))? else {
        cx.warp.wait = None;
        return Ok(Flow::Blocked);
    };
    let (Space::Shared, address) = resolve(to.space, place[lane]) else {
        return Err(cx.trap_all(illegal("tcgen05.alloc writes to shared memory only")));
    };
    cx.units.allocator = cx.site(lane);
    let (thread, data) = (cx.thread(lane), Data { words: [first, 0, 0, 0], undefined: 0 });
    let written = cx.block.shared.write(thread, shared_address(address), 4, 4, data);
    written.map_err(|kind| cx.trap(kind, lane, Some(address)))?;
    cx.block.made_progress();
    Ok(Flow::Next)
}

/// The region that a warp's load or store reaches.
fn region(cx: &Context<'_, '_>, address: Address, columns: u32) -> Result<Region, Trap> {
    super::access::need_whole_warp(cx)?;
    let all = addresses(cx, address)?;
    if all.iter().any(|other| *other != all[0]) {
        return Err(cx.trap_all(illegal("an address in tensor memory differs within the warp")));
    }
    let (lane, column) = (all[0] as u32 >> 16, all[0] as u32 & 0xffff);
    let quadrant = cx.warp.index % 4;
    if lane != quadrant * QUADRANT {
        let (first, last) = (quadrant * QUADRANT, quadrant * QUADRANT + QUADRANT - 1);
        let warp = cx.warp.index;
        let what =
            format!("warp {warp} reaches lanes {first} to {last} of tensor memory, and the address has lane {lane}");
        return Err(cx.trap(FaultKind::TensorMemory { what }, 0, Some(all[0])));
    }
    Ok(Region { column, columns, quadrant: Some(quadrant) })
}

/// Begins a warp's access.
fn begin(cx: &mut Context<'_, '_>, kind: Use, region: Region) -> Result<(), Trap> {
    tensor(cx);
    let warp = cx.warp.index;
    let clocks = &cx.block.shared.clocks;
    let thread = warp * QUADRANT;
    let actor = Actor { thread, cause: thread, clock: clocks.now(warp), known: clocks.all_tensor(warp) };
    let Some(tensor) = &mut cx.units.tensor else { return Ok(()) };
    let begun = tensor.begin(kind, region, &actor, (warp, clocks));
    begun.map_err(|kind| cx.trap(kind, 0, Some(region.column.into())))
}

/// tcgen05.ld of 32 lanes: a register a column.
fn load(cx: &mut Context<'_, '_>, address: Address, d: &[Reg]) -> Result<(), Trap> {
    let region = region(cx, address, d.len() as u32)?;
    begin(cx, Use::Load, region)?;
    let first = cx.warp.index % 4 * QUADRANT;
    let (mut values, mut undefined) = (vec![[0; 32]; d.len()], vec![0; d.len()]);
    for lane in 0..QUADRANT as usize {
        let (cells, unknown) = tensor(cx).row(first + lane as u32, region.column, region.columns);
        for i in 0..d.len() {
            values[i][lane] = cells[i];
            undefined[i] |= u32::from(unknown[i]) << lane;
        }
    }
    for (i, &reg) in d.iter().enumerate() {
        cx.warp.registers.set(reg, u32::MAX, &values[i], undefined[i]);
    }
    cx.warp.loading.extend(d);
    let Region { column, columns, .. } = region;
    cx.block.note(cx.warp.index, |_| TraceKind::Loaded { column, columns });
    Ok(())
}

/// tcgen05.st of 32 lanes.
fn store(cx: &mut Context<'_, '_>, address: Address, a: &[Reg]) -> Result<(), Trap> {
    let region = region(cx, address, a.len() as u32)?;
    begin(cx, Use::Store, region)?;
    let first = cx.warp.index % 4 * QUADRANT;
    for (i, &reg) in a.iter().enumerate() {
        let (values, undefined) = (*cx.warp.registers.get::<u32>(reg), cx.warp.registers.undefined::<u32>(reg));
        for (lane, &value) in values.iter().enumerate() {
            let (cell, unknown) = tensor(cx).row_mut(first + lane as u32, region.column + i as u32, 1);
            (cell[0], unknown[0]) = (value, undefined >> lane & 1 != 0);
        }
    }
    let Region { column, columns, .. } = region;
    cx.block.note(cx.warp.index, |_| TraceKind::Stored { column, columns });
    Ok(())
}

/// The lane that executes alone.
fn only_lane(cx: &Context<'_, '_>) -> Result<usize, Trap> {
    match cx.mask.count_ones() {
        1 => Ok(cx.mask.trailing_zeros() as usize),
        count => Err(cx.trap_all(illegal(format!("{count} threads issue it, and one must")))),
    }
}

/// The matrix that a descriptor in a register describes.
fn matrix(cx: &Context<'_, '_>, lane: usize, reg: Reg, shape: Shape, which: usize) -> Result<Matrix, FaultKind> {
    let descriptor = Descriptor::decode(Form::Tcgen05, cx.value(lane, reg, "a matrix descriptor")?).map_err(illegal)?;
    let count = [shape.m, shape.n][which];
    let whole = (count * shape.types[which].bytes()).is_multiple_of(16);
    if shape.major[which] == Major::Mn && !whole {
        return Err(illegal("an MN-major operand whose rows are no whole pieces of 16 bytes"));
    }
    Ok(descriptor.matrix(shape.major[which], shape.types[which], 0, count, shape.k))
}

/// tcgen05.mma: gives a product to the matrix unit.
fn start(cx: &mut Context<'_, '_>, op: &TensorMma) -> Result<(), Trap> {
    let lane = only_lane(cx)?;
    tensor(cx);
    start_lane(cx, lane, op).map_err(|kind| cx.trap(kind, lane, None))
}

fn start_lane(cx: &mut Context<'_, '_>, lane: usize, op: &TensorMma) -> Result<(), FaultKind> {
    let (thread, warp) = (cx.thread(lane), cx.warp.index);
    let descriptor = cx.value(lane, op.descriptor, "an instruction descriptor")?;
    let shape = Shape::decode(op.bytes, descriptor).map_err(illegal)?;
    let accumulate = truth(cx, lane, op.accumulate)?;
    let d = Region { column: column(cx, lane, op.d)?, columns: shape.n, quadrant: None };
    let b = matrix(cx, lane, op.b, shape, 1)?;
    let a = match op.a {
        TensorA::Shared(reg) => A::Shared(matrix(cx, lane, reg, shape, 0)?),
        TensorA::Tensor(_) if shape.m != LANES || shape.major[0] != Major::K => {
            return Err(illegal("A in tensor memory needs M 128 and is K-major"));
        }
        TensorA::Tensor(address) => A::Tensor(column(cx, lane, address)?),
    };
    let agent = cx.units.agent(Key::Issuer(thread));
    for &piece in a.pieces().iter().chain(&b.pieces) {
        cx.block.shared.begin_read(Agent { agent: Some(agent), cause: thread }, piece)?;
    }
    let clocks = &cx.block.shared.clocks;
    let who = clocks.agent(agent);
    // Accesses of the issuing warp itself are in order.
    let (stamp, cause) = (who * QUADRANT, warp * QUADRANT);
    let actor = Actor { thread: stamp, cause, clock: clocks.now(who), known: clocks.all_tensor(warp) };
    if let Some(tensor) = &mut cx.units.tensor {
        if let A::Tensor(column) = a {
            let region = Region { column, columns: A_COLUMNS, quadrant: None };
            tensor.begin(Use::Operand, region, &actor, (warp, clocks))?;
        }
        tensor.begin(Use::Accumulator, d, &actor, (warp, clocks))?;
    }
    cx.block.counters.matrix_macs += u64::from(shape.m * shape.n * shape.k);
    let (site, mut number) = (cx.site(lane), 0);
    cx.block.note(warp, |tracer| {
        number = tracer.next_product();
        TraceKind::Issued { product: number, accumulator: d.column }
    });
    let product = Product { site, number, shape, a, b, d: d.column, accumulate };
    cx.units.give(thread, Work::Product(Box::new(product)));
    Ok(())
}

impl A {
    fn pieces(&self) -> &[u32] {
        match self {
            Self::Shared(matrix) => &matrix.pieces,
            Self::Tensor(_) => &[],
        }
    }
}

fn truth(cx: &Context<'_, '_>, lane: usize, source: PredSource) -> Result<bool, FaultKind> {
    let (holds, undefined) = cx.warp.registers.predicate(source);
    if undefined >> lane & 1 != 0 {
        return Err(FaultKind::Undefined { sink: "a product" });
    }
    Ok(holds >> lane & 1 != 0)
}

/// The first column at an address in tensor memory, whose lane must be 0.
fn column(cx: &Context<'_, '_>, lane: usize, address: Address) -> Result<u32, FaultKind> {
    let (base, undefined) = cx.warp.registers.any_lane(address.base, lane);
    if undefined {
        return Err(FaultKind::Undefined { sink: "an address" });
    }
    let address = base.wrapping_add(address.offset as u64) as u32;
    if address >> 16 != 0 {
        let what = format!("a product's address in tensor memory has lane {}, and must have 0", address >> 16);
        return Err(FaultKind::TensorMemory { what });
    }
    Ok(address)
}

/// tcgen05.commit: an mbarrier learns when all that the thread has issued so far is done.
fn commit(cx: &mut Context<'_, '_>, barrier: Address) -> Result<(), Trap> {
    let lane = only_lane(cx)?;
    let at = addresses(cx, barrier)?[lane];
    let (site, thread) = (cx.site(lane), cx.thread(lane));
    let mut step = || {
        let place = mbarrier::place(cx, barrier.space, at)?;
        cx.block.shared.use_barrier(thread, place)?;
        cx.units.need_barrier(place)?;
        let agent = cx.units.agent(Key::Issuer(thread));
        let mut left = Left::default();
        cx.block.shared.release_agent(agent, &mut left.threads);
        cx.units.give(thread, Work::Commit { site, barrier: place, left });
        let warp = cx.warp.index;
        cx.block.note(warp, |tracer| TraceKind::Committed { barrier: place, last: tracer.last_product() });
        Ok(())
    };
    step().map_err(|kind| cx.trap(kind, lane, Some(at)))
}

impl Work {
    /// Does the work.
    pub(super) fn finish(self, units: &mut Units, block: &mut Block<'_>) -> Result<(), Trap> {
        match self {
            Self::Product(product) => {
                let issuer = product.site.thread / QUADRANT;
                if let Some(tensor) = &mut units.tensor {
                    product.execute(tensor, block);
                }
                let product = product.number;
                block.note(issuer, |_| TraceKind::Done { product });
                Ok(())
            }
            Self::Commit { site, barrier, left } => units.signal(barrier, &left, 0, 1).map_err(|kind| trap(site, kind)),
        }
    }
}

impl Product {
    fn execute(&self, tensor: &mut TensorMemory, block: &mut Block<'_>) {
        let Self { shape, d, .. } = *self;
        let shared = &mut block.shared;
        let mut read = |matrix: &Matrix, negate: bool| {
            matrix.pieces.iter().for_each(|&piece| shared.end_read(piece));
            matrix.elements(negate, |address| shared.peek(address))
        };
        let b = read(&self.b, shape.negate[1]);
        let a = match &self.a {
            A::Shared(matrix) => read(matrix, shape.negate[0]),
            A::Tensor(column) => {
                tensor.end(Use::Operand, Region { column: *column, columns: A_COLUMNS, quadrant: None });
                operand(tensor, *column, shape)
            }
        };
        tensor.end(Use::Accumulator, Region { column: d, columns: shape.n, quadrant: None });
        let n = shape.n as usize;
        let mut sums = vec![0.0; shape.m as usize * n];
        let mut undefined = vec![false; sums.len()];
        if self.accumulate {
            for (row, (sums, undefined)) in sums.chunks_mut(n).zip(undefined.chunks_mut(n)).enumerate() {
                let (bits, unknown) = tensor.row(shape.lane(row as u32), d, shape.n);
                sums.iter_mut().zip(bits).for_each(|(sum, &bits)| *sum = f32::from_bits(bits));
                undefined.copy_from_slice(unknown);
            }
        }
        multiply(&a, &b, shape.k as usize, &mut sums);
        for (row, (sums, undefined)) in sums.chunks(n).zip(undefined.chunks(n)).enumerate() {
            let (bits, unknown) = tensor.row_mut(shape.lane(row as u32), d, shape.n);
            let row = a.undefined[row];
            for i in 0..n {
                bits[i] = if sums[i].is_nan() { 0x7fff_ffff } else { sums[i].to_bits() };
                unknown[i] = undefined[i] || row || b.undefined[i];
            }
        }
    }
}

/// A from tensor memory: a row a lane, along K from the low bits of a column on.
fn operand(tensor: &TensorMemory, column: u32, shape: Shape) -> Elements {
    let k = shape.k as usize;
    let mut elements = Elements { values: vec![0.0; LANES as usize * k], undefined: vec![false; LANES as usize] };
    for lane in 0..LANES {
        let row = lane as usize;
        let (words, unknown) = tensor.row(lane, column, A_COLUMNS);
        elements.undefined[row] = unknown.contains(&true);
        unpack(shape.types[0], words, &mut elements.values[row * k..(row + 1) * k]);
    }
    if shape.negate[0] {
        elements.values.iter_mut().for_each(|value| *value = -*value);
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_descriptors() {
        let shape = Shape::decode(2, 0x0820_0490).unwrap();
        let (ty, major) = (MatrixTy::Bf16, Major::K);
        let expected = Shape { m: 128, n: 128, k: 16, types: [ty; 2], negate: [false; 2], major: [major; 2] };
        assert_eq!(shape, expected);
        assert_eq!(Shape::decode(2, 0x0821_0490).unwrap(), Shape { major: [Major::K, Major::Mn], ..expected });
        let eight = Shape { k: 32, types: [MatrixTy::E4m3; 2], ..expected };
        assert_eq!(Shape::decode(1, 0x0820_0010), Ok(eight));
        for bit in [0, 1, 2, 3, 6, 23, 29, 30, 31] {
            assert!(Shape::decode(2, 0x0820_0490 | 1 << bit).is_err(), "{bit}");
        }
        for bits in [0x0820_0480, 0x0820_04a0, 0x0842_0490, 0x0600_0490, 0x0822_0490, 0x0820_0510, 0x1020_0490] {
            assert!(Shape::decode(2, bits).is_err(), "{bits:#x}");
        }
        // Rows of a small product go to the first half of each quadrant.
        let small = Shape { m: 64, ..expected };
        assert_eq!([0, 15, 16, 63].map(|row| small.lane(row)), [0, 15, 32, 111]);
    }
}
