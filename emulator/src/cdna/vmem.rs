//! Executes vector memory instructions: global, flat, scratch and buffer.

use super::inst::Inst;
use super::lds::join;
use super::memory_ops::{Action, AtomicOp, MemoryOp, Space, Unit};
use super::program::{Kernel, straddles};
use super::wave::{As, LANES, PRIVATE_APERTURE, SHARED_APERTURE, Wave};
use crate::banks::Banks;
use crate::engine::Block;
use crate::fault::Trap;
use crate::memory::Data;
use crate::races::{Access, Site};
use crate::{FaultKind, counters};

/// Where a lane's access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Global(u64),
    Lds(u32),
    Scratch(u32),
    /// Beyond a buffer's records from this byte of the access on: loads give 0, stores are dropped.
    Clipped(u64, u32),
}

impl Kernel {
    pub(super) fn vector_memory(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        op: MemoryOp,
    ) -> Result<(), Trap> {
        match op.action {
            Action::CacheInvalidate | Action::CacheWriteBack => {
                wave.waits.issue_vm(inst.dst, 0);
                return Ok(());
            }
            Action::Load(unit) => self.vector_load(wave, block, inst, op.space, unit)?,
            Action::Store(unit) => self.vector_store(wave, block, inst, op.space, unit)?,
            Action::LoadLds(unit) => self.load_to_lds(wave, block, inst, op.space, unit)?,
            Action::Atomic(atomic, bytes) => self.vector_atomic(wave, block, inst, op.space, atomic, bytes)?,
        }
        wave.waits.issue_vm(inst.dst, inst.dst_width);
        if op.space == Space::Flat {
            wave.waits.issue_lds(inst.dst, inst.dst_width);
        }
        Ok(())
    }

    fn vector_load(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        space: Space,
        unit: Unit,
    ) -> Result<(), Trap> {
        let places = self.places(wave, inst, space, unit.bytes.into())?;
        let mut loaded = Box::new([Data::default(); LANES]);
        for lane in Wave::each(wave.exec()) {
            loaded[lane] = self.load_place(wave, block, inst, lane, places[lane], unit)?;
        }
        count(block, &places, wave.exec(), unit.bytes.into(), true);
        if let Some(index) = inst.dst.vector_index() {
            wave.put_loaded(index, unit, &loaded);
        }
        Ok(())
    }

    fn load_place(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        lane: usize,
        place: Place,
        unit: Unit,
    ) -> Result<Data, Trap> {
        let bytes = u32::from(unit.bytes);
        let thread = wave.first_thread + lane as u32;
        let ordered = inst.mods.ordered;
        match place {
            Place::Global(address) => self
                .load(block, wave.pc, thread, address, bytes, bytes.min(4), ordered)
                .map_err(|kind| wave.trap_at(kind, lane, address)),
            Place::Lds(address) => block
                .shared
                .read(thread, address, bytes, bytes.next_power_of_two())
                .map_err(|kind| wave.trap_at(kind, lane, address.into())),
            Place::Scratch(offset) => wave.scratch_read(lane, offset, bytes),
            Place::Clipped(address, valid) => {
                let mut data = Data::default();
                for word in 0..valid / 4 {
                    let at = address + u64::from(word) * 4;
                    let loaded = self
                        .load(block, wave.pc, thread, at, 4, 4, ordered)
                        .map_err(|kind| wave.trap_at(kind, lane, at))?;
                    data.words[word as usize] = loaded.words[0];
                    data.undefined |= (loaded.undefined & 1) << word;
                }
                Ok(data)
            }
        }
    }

    fn vector_store(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        space: Space,
        unit: Unit,
    ) -> Result<(), Trap> {
        let bytes = u32::from(unit.bytes);
        let places = self.places(wave, inst, space, bytes)?;
        let data = wave.stored(inst, 1, unit);
        let access = if inst.mods.ordered { Access::Atomic } else { Access::Write };
        for lane in Wave::each(wave.exec()) {
            let thread = wave.first_thread + lane as u32;
            let site = Site { pc: wave.pc, thread };
            match places[lane] {
                Place::Global(address) if straddles(address, bytes) => {
                    for half in 0..2u32 {
                        let words = [data[lane].words[0] >> (16 * half) & 0xffff, 0, 0, 0];
                        let at = address + u64::from(2 * half);
                        block
                            .global_write(site, access, at, 2, 2, Data { words, ..data[lane] })
                            .map_err(|kind| wave.trap_at(kind, lane, at))?;
                    }
                }
                Place::Global(address) => block
                    .global_write(site, access, address, bytes, bytes.min(4), data[lane])
                    .map_err(|kind| wave.trap_at(kind, lane, address))?,
                Place::Lds(address) => {
                    block
                        .shared
                        .write(thread, address, bytes, bytes.next_power_of_two(), data[lane])
                        .map_err(|kind| wave.trap_at(kind, lane, address.into()))?;
                    block.made_progress();
                }
                Place::Scratch(offset) => wave.scratch_write(lane, offset, bytes, data[lane])?,
                Place::Clipped(address, valid) => {
                    for word in 0..valid / 4 {
                        let at = address + u64::from(word) * 4;
                        let words = [data[lane].words[word as usize], 0, 0, 0];
                        let part = Data { words, undefined: data[lane].undefined >> word & 1 };
                        block
                            .global_write(site, access, at, 4, 4, part)
                            .map_err(|kind| wave.trap_at(kind, lane, at))?;
                    }
                }
            }
        }
        if places.iter().any(|place| matches!(place, Place::Lds(_))) {
            block.shared.sync_warp(wave.index);
        }
        count(block, &places, wave.exec(), bytes, false);
        Ok(())
    }

    /// Loads whose data goes to LDS at M0 + offset + lane * size; it arrives with vmcnt.
    fn load_to_lds(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        space: Space,
        unit: Unit,
    ) -> Result<(), Trap> {
        let bytes = u32::from(unit.bytes);
        let places = self.places(wave, inst, space, bytes)?;
        let m0 = wave.register(124);
        if m0.undefined as u32 != 0 {
            return Err(wave.undefined("an address (M0)"));
        }
        let slot = bytes.max(4);
        let base = (m0.bits as u32).wrapping_add(inst.imm as u32);
        for lane in Wave::each(wave.exec()) {
            let data = self.load_place(wave, block, inst, lane, places[lane], unit)?;
            let address = base.wrapping_add(lane as u32 * slot);
            block
                .shared
                .begin_async(wave.first_thread + lane as u32, address, slot, 4, data)
                .map_err(|kind| wave.trap_at(kind, lane, address.into()))?;
            wave.waits.note_to_lds(lane, address, slot);
        }
        block.shared.sync_warp(wave.index);
        count(block, &places, wave.exec(), bytes, true);
        block.counters.shared_store_bytes += u64::from(wave.exec().count_ones() * slot);
        block.made_progress();
        Ok(())
    }

    fn vector_atomic(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        space: Space,
        op: AtomicOp,
        bytes: u8,
    ) -> Result<(), Trap> {
        let places = self.places(wave, inst, space, bytes.into())?;
        let swap = op == AtomicOp::CompareSwap;
        let operands = wave.stored(inst, 1, Unit::full(if swap { bytes * 2 } else { bytes }));
        let mut old = Box::new([Data::default(); LANES]);
        for lane in Wave::each(wave.exec()) {
            let thread = wave.first_thread + lane as u32;
            if operands[lane].undefined != 0 {
                return Err(wave.trap_at(FaultKind::Undefined { sink: "an atomic" }, lane, 0));
            }
            let words = operands[lane].words;
            let operand = join(words);
            let expected = u64::from(words[2]) | u64::from(words[3]) << 32;
            let update = |old: u64| {
                if swap && bytes == 8 { (old == expected).then_some(operand) } else { op.apply(old, operand, bytes) }
            };
            let result = match places[lane] {
                Place::Global(address) => block
                    .global_atomic(Site { pc: wave.pc, thread }, address, bytes.into(), update)
                    .map_err(|kind| wave.trap_at(kind, lane, address))?,
                Place::Lds(address) => block
                    .shared
                    .atomic(thread, address, bytes.into(), update)
                    .map_err(|kind| wave.trap_at(kind, lane, address.into()))?,
                Place::Clipped(..) => (0, false),
                Place::Scratch(_) => return Err(wave.illegal("an atomic on scratch")),
            };
            old[lane].words[..2].copy_from_slice(&[result.0 as u32, (result.0 >> 32) as u32]);
            old[lane].undefined = if result.1 { 3 } else { 0 };
        }
        if let Some(index) = inst.dst.vector_index() {
            wave.put_loaded(index, Unit::full(bytes), &old);
        }
        Ok(())
    }

    /// Where each lane's access goes.
    fn places(&self, wave: &Wave, inst: &Inst, space: Space, bytes: u32) -> Result<[Place; LANES], Trap> {
        match space {
            Space::Global | Space::Flat => {
                let address = wave.lanes(inst.src[0], 0, 0, As::B32);
                let mut undefined = address.undefined;
                let addresses: [u64; LANES] = if inst.src[3].is_none() {
                    let high = wave.lanes(inst.src[0], 1, 0, As::B32);
                    undefined |= high.undefined;
                    std::array::from_fn(|l| u64::from(address.bits[l]) | u64::from(high.bits[l]) << 32)
                } else {
                    let base = wave.scalar(inst, 3);
                    undefined |= if base.undefined != 0 { u64::MAX } else { 0 };
                    address.bits.map(|offset| base.bits.wrapping_add(offset.into()))
                };
                wave.check_address(undefined)?;
                Ok(addresses.map(|address| {
                    let address = address.wrapping_add_signed(inst.imm.into());
                    match (address >> 32) as u32 {
                        SHARED_APERTURE if space == Space::Flat => Place::Lds(address as u32),
                        PRIVATE_APERTURE if space == Space::Flat => Place::Scratch(address as u32),
                        _ => Place::Global(address),
                    }
                }))
            }
            Space::Scratch => {
                let mut offsets = [inst.imm as u32; LANES];
                for source in [0, 3] {
                    if !inst.src[source].is_none() {
                        let value = wave.lanes(inst.src[source], 0, 0, As::B32);
                        wave.check_address(value.undefined)?;
                        offsets.iter_mut().zip(value.bits).for_each(|(sum, part)| *sum = sum.wrapping_add(part));
                    }
                }
                Ok(offsets.map(Place::Scratch))
            }
            Space::Buffer => self.buffer_places(wave, inst, bytes),
        }
    }

    /// Buffer accesses: only raw buffers (no stride) are emulated.
    fn buffer_places(&self, wave: &Wave, inst: &Inst, bytes: u32) -> Result<[Place; LANES], Trap> {
        let descriptor = [0, 1, 2, 3].map(|i| wave.register(usize::from(inst.src[3].0) + i));
        let soffset = wave.scalar(inst, 2);
        if descriptor.iter().any(|word| word.undefined != 0) || soffset.undefined != 0 {
            return Err(wave.undefined("a buffer descriptor"));
        }
        let [low, high, records, flags] = descriptor.map(|word| word.bits);
        let (stride, swizzle, add_tid) = (high >> 16 & 0x3fff, high >> 31 & 1, flags >> 23 & 1);
        if (stride, swizzle, add_tid) != (0, 0, 0) || inst.mods.idxen {
            return Err(wave.illegal("buffer with stride, swizzle, index or lane numbers"));
        }
        let base = low | (high & 0xffff) << 32;
        let mut offsets = [0u64; LANES];
        if inst.mods.offen {
            let value = wave.lanes(inst.src[0], 0, 0, As::B32);
            wave.check_address(value.undefined)?;
            offsets = value.bits.map(u64::from);
        }
        Ok(offsets.map(|offset| {
            // The offset wraps at 32 bits before the scalar offset is added.
            let offset = u64::from((offset as u32).wrapping_add(inst.imm as u32)) + soffset.bits;
            let address = base + offset;
            if offset + u64::from(bytes) <= records {
                return Place::Global(address);
            }
            // Each dword is checked on its own.
            Place::Clipped(address, (records.saturating_sub(offset) as u32 / 4 * 4).min(bytes))
        }))
    }
}

/// Counts an access of `bytes` a lane to global memory and to LDS.
fn count(block: &mut Block<'_>, places: &[Place; LANES], exec: u64, bytes: u32, load: bool) {
    let global = || {
        Wave::each(exec).filter_map(|lane| match places[lane] {
            Place::Global(address) if Kernel::is_global(address) => Some((address, bytes)),
            Place::Clipped(address, valid) => Some((address, valid)),
            _ => None,
        })
    };
    let lds = |lane: usize| if let Place::Lds(address) = places[lane] { Some(address) } else { None };
    let in_lds = Wave::each(exec).filter(|&lane| lds(lane).is_some()).fold(0, |all, lane| all | 1 << lane);
    let moved: u64 = global().map(|(_, bytes)| u64::from(bytes)).sum();
    let moved_in_lds = u64::from(bytes) * u64::from(u64::count_ones(in_lds));
    let banks = if load { Banks::gfx950_load(bytes) } else { Banks::gfx950_store(bytes) };
    let counters = &mut block.counters;
    counters.bank_conflicts += banks.conflicts(in_lds, bytes, |lane| lds(lane).unwrap_or_default());
    if load {
        counters.global_load_bytes += moved;
        counters.global_load_sectors += counters::sectors(global());
        counters.shared_load_bytes += moved_in_lds;
    } else {
        counters.global_store_bytes += moved;
        counters.global_store_sectors += counters::sectors(global());
        counters.shared_store_bytes += moved_in_lds;
    }
}

impl Wave {
    fn scratch_range(&self, lane: usize, offset: u32, bytes: u32) -> Result<std::ops::Range<usize>, Trap> {
        let end = u64::from(offset) + u64::from(bytes);
        if end > self.scratch_bytes.into() {
            let kind = FaultKind::LocalOutOfBounds { bytes, size: self.scratch_bytes };
            return Err(self.trap_at(kind, lane, offset.into()));
        }
        let start = lane * self.scratch_bytes as usize + offset as usize;
        Ok(start..start + bytes as usize)
    }

    fn scratch_read(&self, lane: usize, offset: u32, bytes: u32) -> Result<Data, Trap> {
        let range = self.scratch_range(lane, offset, bytes)?;
        let mut data = Data::default();
        for (i, (byte, defined)) in self.scratch[range.clone()].iter().zip(&self.scratch_defined[range]).enumerate() {
            data.words[i / 4] |= u32::from(*byte) << (8 * (i % 4));
            data.undefined |= u8::from(!defined) << (i / 4);
        }
        Ok(data)
    }

    fn scratch_write(&mut self, lane: usize, offset: u32, bytes: u32, data: Data) -> Result<(), Trap> {
        let range = self.scratch_range(lane, offset, bytes)?;
        for (i, at) in range.enumerate() {
            self.scratch[at] = (data.words[i / 4] >> (8 * (i % 4))) as u8;
            self.scratch_defined[at] = data.undefined >> (i / 4) & 1 == 0;
        }
        Ok(())
    }
}
