//! A decoded kernel: how it starts, and the loop that executes it.

use std::sync::Arc;

use super::decode::decode;
use super::elf::{Argument, CodeObject, Descriptor, KernelImage};
use super::expansion::{mark_first_loads, uses_old_value};
use super::inst::{Inst, Mods, Op, Program as Control};
use super::memory_ops::{Action, LdsAction};
use super::text::wait_counts;
use super::wave::{LANES, Mode, Scalar, Vector, Wave};
use crate::counters::Class;
use crate::engine::{AnyProgram, Block, KernelInfo, Launch, Parameter, Program, Stop};
use crate::fault::Trap;
use crate::memory::Data;
use crate::races::{Access, Site};
use crate::{Error, FaultKind};

/// Address windows of what is not global memory, below all allocations: kernarg segment, code object, dispatch
/// packet. 4 GiB each.
const KERNARG: u64 = 0x6f00_0000_0000;
const IMAGE: u64 = 0x6e00_0000_0000;
const PACKET: u64 = 0x6d00_0000_0000;
const WINDOW: u64 = 1 << 32;
/// Bytes of an AQL dispatch packet.
const PACKET_BYTES: u32 = 64;
/// With preloaded arguments the first 256 bytes load them for firmware that cannot: they are skipped.
const PRELOAD_PROLOGUE: u32 = 256;

/// An instruction with what the loop needs at hand.
struct Step {
    inst: Inst,
    class: Class,
    /// Index of a branch's target.
    target: u32,
}

/// A kernel of a gfx950 code object.
pub(crate) struct Kernel {
    info: KernelInfo,
    descriptor: Descriptor,
    arguments: Vec<Argument>,
    steps: Vec<Step>,
    image: Arc<Vec<u8>>,
    /// Address of the code in the image.
    code_start: u64,
    /// Vector and accumulation registers that waves have, accumulation registers from 256.
    registers: usize,
}

/// Decodes a code object.
///
/// # Errors
/// [`Error::Load`] names kernel, offset and encoding of an instruction that is not known.
pub(crate) fn load(bytes: &[u8]) -> Result<Vec<Box<dyn AnyProgram>>, Error> {
    let object = CodeObject::parse(bytes)?;
    let image = Arc::new(object.image);
    let kernel = |kernel: KernelImage| Ok(Box::new(Kernel::new(kernel, &image)?) as Box<dyn AnyProgram>);
    object.kernels.into_iter().map(kernel).collect()
}

impl Kernel {
    fn new(kernel: KernelImage, image: &Arc<Vec<u8>>) -> Result<Self, Error> {
        let place = |offset: u32| format!("kernel {}, offset {offset:#x}", kernel.name);
        let refuse = |offset: u32, reason: String| Error::Load { place: place(offset), reason };
        if kernel.dynamic_stack {
            return Err(refuse(0, "a stack whose size is not known".into()));
        }
        if let Some(reason) = Mode::unsupported(kernel.descriptor.float_mode) {
            return Err(refuse(0, reason));
        }
        let code = &image[kernel.code.clone()];
        let mut decoded = Vec::new();
        let mut offset = if kernel.descriptor.preload.0 > 0 { PRELOAD_PROLOGUE } else { 0 };
        while (offset as usize) < code.len() {
            let inst = decode(code, offset)
                .map_err(|unknown| refuse(unknown.offset, format!("{} (word {:#010x})", unknown.what, unknown.word)))?;
            offset += inst.bytes;
            decoded.push(inst);
        }
        mark_first_loads(&mut decoded);
        let mut steps: Vec<_> = decoded.into_iter().map(|inst| Step { class: class(&inst), inst, target: 0 }).collect();
        resolve_branches(&mut steps).map_err(|(offset, reason)| refuse(offset, reason))?;
        let Descriptor { vgprs, agprs, .. } = kernel.descriptor;
        let registers = if agprs > 0 { 256 + agprs } else { vgprs } as usize;
        for step in &steps {
            let inst = &step.inst;
            let operands = inst.sources().chain([(inst.dst, inst.dst_width)]);
            for (operand, width) in operands {
                let end = operand.vector_index().map_or(0, |index| index + usize::from(width));
                let accumulation = operand.vector_index().is_some_and(|index| index >= 256);
                let limit = if accumulation { registers } else { vgprs as usize };
                if end > limit {
                    return Err(refuse(inst.offset, format!("`{inst}` uses a register beyond the {vgprs} + {agprs}")));
                }
            }
        }
        let visible = kernel.arguments.iter().filter(|argument| !argument.kind.starts_with("hidden_"));
        let info = KernelInfo {
            name: kernel.name.clone(),
            parameters: visible.map(|a| Parameter { name: a.name.clone(), offset: a.offset, bytes: a.bytes }).collect(),
            static_shared: kernel.descriptor.lds_bytes,
            shared_granule: steps.iter().map(|step| shared_granule(&step.inst)).min().unwrap_or(4),
            agents: crate::shared::Agents::NONE,
            max_threads: kernel.max_threads,
            ordered: takes_turns(&steps),
        };
        Ok(Self {
            info,
            descriptor: kernel.descriptor,
            arguments: kernel.arguments,
            steps,
            image: Arc::clone(image),
            code_start: kernel.code.start as u64,
            registers,
        })
    }

    /// Whether an address is in global memory, not in one of the windows.
    pub(super) fn is_global(address: u64) -> bool {
        !(PACKET..KERNARG + WINDOW).contains(&address)
    }

    /// Loads from global memory or one of the windows. `ordered`: as an atomic.
    #[expect(clippy::too_many_arguments, reason = "who, where and how of an access")]
    pub(super) fn load(
        &self,
        block: &mut Block<'_>,
        pc: u32,
        thread: u32,
        address: u64,
        bytes: u32,
        align: u32,
        ordered: bool,
    ) -> Result<Data, FaultKind> {
        if Self::is_global(address) {
            let access = if ordered { Access::Atomic } else { Access::Read };
            let site = Site { pc, thread };
            if !straddles(address, bytes) {
                return block.global_read(site, access, address, bytes, align);
            }
            let [low, high] = [0, 2].map(|at| block.global_read(site, access, address + at, 2, 2));
            let (low, high) = (low?, high?);
            let words = [low.words[0] | high.words[0] << 16, 0, 0, 0];
            return Ok(Data { words, undefined: low.undefined | high.undefined });
        }
        if address & u64::from(align - 1) != 0 {
            return Err(FaultKind::Misaligned { align });
        }
        let mut data = Data::default();
        for i in 0..bytes {
            let at = address + u64::from(i);
            let offset = (at % WINDOW) as u32;
            let (size, byte) = match at & !(WINDOW - 1) {
                // Wide scalar loads may reach into the padding that ends the segment.
                KERNARG => {
                    (self.descriptor.kernarg_bytes.next_multiple_of(16), self.kernarg_byte(block.launch, offset))
                }
                PACKET => (PACKET_BYTES, Some(packet_byte(block.launch, &self.descriptor, offset))),
                _ => (self.image.len() as u32, self.image.get(offset as usize).copied()),
            };
            if offset >= size {
                return Err(FaultKind::ParameterOutOfBounds { bytes, size });
            }
            let word = i as usize / 4;
            data.words[word] |= u32::from(byte.unwrap_or(0)) << (8 * (i % 4));
            data.undefined |= u8::from(byte.is_none()) << word;
        }
        Ok(data)
    }

    /// A byte of the kernarg segment; `None` if the emulator has no value for it.
    fn kernarg_byte(&self, launch: &Launch, offset: u32) -> Option<u8> {
        if let Some(byte) = launch.parameters.get(offset as usize) {
            return Some(*byte);
        }
        let argument = self.arguments.iter().find(|a| (a.offset..a.offset + a.bytes).contains(&offset))?;
        let dimension = match argument.kind.as_bytes().last() {
            Some(b'y') => 1,
            Some(b'z') => 2,
            _ => 0,
        };
        let value = match argument.kind.trim_end_matches(['x', 'y', 'z']) {
            "hidden_block_count_" => launch.grid[dimension],
            "hidden_group_size_" => launch.block[dimension],
            "hidden_remainder_" | "hidden_global_offset_" => 0,
            "hidden_grid_dims" => dimensions(launch),
            "hidden_dynamic_lds_si" | "hidden_dynamic_lds_size" => launch.dynamic_shared,
            _ => return None,
        };
        value.to_le_bytes().get((offset - argument.offset) as usize).copied().or(Some(0))
    }
}

/// Whether an access is of the kind that the compiler makes of two neighbours of 16 bits: 4 bytes at an odd multiple
/// of 2. The hardware does any alignment in memory, and this one passes; wider ones are taken for mistakes.
pub(super) fn straddles(address: u64, bytes: u32) -> bool {
    bytes == 4 && address % 4 == 2
}

/// Dimensions of the grid that are used.
fn dimensions(launch: &Launch) -> u32 {
    (0..3).rev().find(|&d| launch.grid[d] * launch.block[d] > 1).map_or(1, |d| d as u32 + 1)
}

/// A byte of the dispatch packet (`hsa_kernel_dispatch_packet_t`): sizes of workgroup and grid.
fn packet_byte(launch: &Launch, descriptor: &Descriptor, offset: u32) -> u8 {
    let size = |d: usize| launch.grid[d] * launch.block[d];
    let (value, start) = match offset {
        2..4 => (dimensions(launch), 2),
        4..6 => (launch.block[0], 4),
        6..8 => (launch.block[1], 6),
        8..10 => (launch.block[2], 8),
        12..16 => (size(0), 12),
        16..20 => (size(1), 16),
        20..24 => (size(2), 20),
        24..28 => (descriptor.scratch_bytes, 24),
        28..32 => (descriptor.lds_bytes + launch.dynamic_shared, 28),
        _ => (0, offset),
    };
    value.to_le_bytes()[(offset - start) as usize]
}

/// Sets each branch's target.
fn resolve_branches(steps: &mut [Step]) -> Result<(), (u32, String)> {
    let offsets: Vec<u32> = steps.iter().map(|step| step.inst.offset).collect();
    for step in steps {
        let inst = &step.inst;
        if let Op::Program(Control::Branch | Control::BranchScc(_) | Control::BranchVcc(_) | Control::BranchExec(_)) =
            inst.op
        {
            let target = (inst.offset + inst.bytes).wrapping_add_signed(inst.imm * 4);
            let index = offsets.binary_search(&target);
            step.target =
                index.map_err(|_| (inst.offset, format!("`{inst}` leaves the kernel's instructions")))? as u32;
        }
    }
    Ok(())
}

/// Bytes of the narrowest part of LDS that the instruction may touch alone.
fn shared_granule(inst: &Inst) -> u32 {
    match inst.op {
        Op::Lds(op) => match op.action {
            LdsAction::Read(unit) | LdsAction::Write(unit) => unit.bytes.min(4).into(),
            _ => 4,
        },
        Op::Memory(op) if op.space == super::memory_ops::Space::Flat => match op.action {
            Action::Load(unit) | Action::Store(unit) => unit.bytes.min(4).into(),
            _ => 4,
        },
        _ => 4,
    }
}

/// Whether what a block does depends on other blocks: it uses what atomics return, or loads in their order.
fn takes_turns(steps: &[Step]) -> bool {
    let code: Vec<&Inst> = steps.iter().map(|step| &step.inst).collect();
    (0..code.len()).any(|at| {
        let waits = matches!(code[at].op, Op::Memory(op) if matches!(op.action, Action::Load(_)))
            && code[at].mods.cache & Mods::SC1 != 0;
        waits || uses_old_value(&code, at)
    })
}

/// What the instruction counts as.
fn class(inst: &Inst) -> Class {
    match inst.op {
        Op::Salu(_) => Class::Integer,
        Op::Program(op) => match op {
            Control::Barrier | Control::Waitcnt | Control::Nop | Control::Sleep | Control::SetPriority => Class::Sync,
            _ => Class::Control,
        },
        Op::ScalarMemory(_) => Class::Memory,
        Op::Memory(op) => {
            if matches!(op.action, Action::Atomic(..)) {
                Class::Atomic
            } else {
                Class::Memory
            }
        }
        Op::Lds(op) => match op.action {
            LdsAction::Atomic(..) => Class::Atomic,
            LdsAction::Swizzle | LdsAction::Permute | LdsAction::BackwardPermute => Class::Lane,
            _ => Class::Shared,
        },
        Op::Mfma(_) => Class::Matrix,
        Op::Compare(_) => Class::Integer,
        Op::Valu(op) => {
            let name = op.row().name;
            let one_of = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
            if one_of(&["lane", "swap"]) {
                Class::Lane
            } else if one_of(&["v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt"]) {
                Class::Special
            } else if one_of(&["f16", "f32", "f64", "fp8", "bf8"]) {
                Class::Float
            } else {
                Class::Integer
            }
        }
    }
}

impl Program for Kernel {
    type Warp = Wave;
    type Units = ();

    fn info(&self) -> &KernelInfo {
        &self.info
    }

    fn warp(&self, block: &Block<'_>, index: u32) -> Wave {
        let d = &self.descriptor;
        let launch = block.launch;
        let lanes = (launch.threads() - index * LANES as u32).min(LANES as u32);
        let mode = Mode { float: d.float_mode, dx10_clamp: d.dx10_clamp };
        let mut wave = Wave::new(index, lanes, self.registers, d.scratch_bytes, mode);
        let mut next = 0;
        let mut put = |values: &[u64]| {
            for &value in values {
                wave.set_register(next, Scalar::defined(value));
                next += 1;
            }
        };
        // Absent pointers are zero: whoever follows one is told so.
        let pointer = |address: u64| [address & 0xffff_ffff, address >> 32];
        for (enabled, words) in [
            (d.private_segment_buffer, &[0, 0, 0, 0][..]),
            (d.dispatch_ptr, &pointer(PACKET)),
            (d.queue_ptr, &pointer(0)),
            (d.kernarg_segment_ptr, &pointer(KERNARG)),
            (d.dispatch_id, &pointer(0)),
            (d.flat_scratch_init, &pointer(0)),
            (d.private_segment_size, &[u64::from(d.scratch_bytes)]),
        ] {
            if enabled {
                put(words);
            }
        }
        let (count, first) = d.preload;
        for dword in first..first + count {
            let byte = |i: u32| self.kernarg_byte(launch, dword * 4 + i).unwrap_or(0);
            put(&[u64::from(u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]))]);
        }
        for dimension in 0..3 {
            if d.workgroup_id[dimension] {
                put(&[u64::from(block.index[dimension])]);
            }
        }
        if d.workgroup_info {
            put(&[0]);
        }
        let [x, y, _] = launch.block;
        let first_thread = wave.first_thread;
        let ids = std::array::from_fn(|lane| {
            let thread = first_thread + lane as u32;
            (thread % x) | ((thread / x % y) << 10) | (thread / (x * y)) << 20
        });
        wave.write(0, &Vector { bits: ids, undefined: 0 }, wave.exec());
        wave
    }

    fn run(&self, wave: &mut Wave, block: &mut Block<'_>, _: &mut (), budget: u32) -> Result<Stop, Trap> {
        if wave.waits.passed_barrier {
            wave.waits.passed_barrier = false;
            wave.repeat_lds(block)?;
        }
        for _ in 0..budget {
            let Some(step) = self.steps.get(wave.pc as usize) else {
                return Err(wave.illegal("the kernel ran past its end"));
            };
            let inst = &step.inst;
            block.counters.instruction(step.class);
            if let Some(what) = wave.waits.unready(inst) {
                return Err(wave.trap(FaultKind::UsedBeforeWait { what }));
            }
            match inst.op {
                Op::Program(op) => {
                    if let Some(stop) = self.control(wave, block, step, op)? {
                        return Ok(stop);
                    }
                    continue;
                }
                Op::Salu(op) => {
                    let next = IMAGE + self.code_start + u64::from(inst.offset + inst.bytes);
                    wave.salu(inst, op, next)?;
                }
                Op::ScalarMemory(op) => self.scalar_memory(wave, block, inst, op)?,
                Op::Valu(op) => wave.valu(inst, op)?,
                Op::Compare(op) => wave.compare(inst, op)?,
                Op::Mfma(op) => {
                    wave.mfma(inst, op)?;
                    block.counters.matrix_macs += u64::from(op.m) * u64::from(op.m) * u64::from(op.k);
                }
                Op::Memory(op) => self.vector_memory(wave, block, inst, op)?,
                Op::Lds(op) => wave.lds(block, inst, op)?,
            }
            wave.pc += 1;
        }
        Ok(Stop::Yield { pc: wave.pc })
    }

    fn locate(&self, pc: u32) -> (String, String) {
        match self.steps.get(pc as usize) {
            Some(step) => (step.inst.to_string(), format!("offset {:#x}", step.inst.offset)),
            None => ("end of code".into(), "end of code".into()),
        }
    }
}

impl Kernel {
    /// Branches, waits and barriers. Sets the program counter.
    fn control(&self, wave: &mut Wave, block: &mut Block<'_>, step: &Step, op: Control) -> Result<Option<Stop>, Trap> {
        let next = wave.pc + 1;
        let branch = |taken: bool| if taken { step.target } else { next };
        wave.pc = match op {
            Control::Branch => step.target,
            Control::BranchScc(set) => {
                if wave.scc_undefined {
                    return Err(wave.undefined("a branch"));
                }
                branch(wave.scc == set)
            }
            Control::BranchVcc(set) => {
                let vcc = wave.vcc();
                // A defined one decides, whatever the other lanes are.
                if vcc.undefined != 0 && vcc.bits & !vcc.undefined == 0 {
                    return Err(wave.undefined("a branch"));
                }
                branch((vcc.bits != 0) == set)
            }
            Control::BranchExec(set) => branch((wave.exec() != 0) == set),
            Control::End => return Ok(Some(Stop::Exit)),
            Control::Barrier => {
                let pc = wave.pc;
                wave.pc = next;
                wave.waits.passed_barrier = true;
                // A wave arrives as a whole, whatever EXEC is.
                let arrived = (block.launch.threads() - wave.first_thread).min(LANES as u32);
                return Ok(Some(Stop::Barrier { id: 0, threads: None, arrived, yes: 0, pc }));
            }
            Control::Waitcnt => {
                let (vm, _, lgkm) = wait_counts(step.inst.imm as u16);
                let arrived = wave.waits.wait(vm, lgkm);
                for access in &arrived {
                    block.shared.finish_async(wave.first_thread + access.lane, access.address, access.bytes);
                }
                if !arrived.is_empty() {
                    block.shared.sync_warp(wave.index);
                }
                next
            }
            Control::Sleep => {
                let pc = wave.pc;
                wave.pc = next;
                return Ok(Some(Stop::Yield { pc }));
            }
            Control::Nop | Control::SetPriority => next,
            Control::Trap => return Err(wave.trap(FaultKind::Trap)),
            Control::SendMessage => return Err(wave.illegal("messages to the host are not emulated")),
        };
        Ok(None)
    }
}
