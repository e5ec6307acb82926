//! Executes LDS instructions.

use super::inst::Inst;
use super::memory_ops::{AtomicOp, LdsAction, LdsOp, Part, Unit};
use super::wave::{As, LANES, Lanes, Vector, Wave};
use crate::FaultKind;
use crate::banks::Banks;
use crate::engine::Block;
use crate::fault::Trap;
use crate::memory::Data;

impl Wave {
    pub(super) fn lds(&mut self, block: &mut Block<'_>, inst: &Inst, op: LdsOp) -> Result<(), Trap> {
        match op.action {
            LdsAction::Read(unit) => self.lds_read(block, inst, unit)?,
            LdsAction::Read2(unit, stride) => {
                // Both loads come before the first result: the address register may be one of those that are written.
                let [first, second] = pair_offsets(inst, unit, stride);
                let first = self.lds_load(block, inst, unit.bytes.into(), first)?;
                let second = self.lds_load(block, inst, unit.bytes.into(), second)?;
                if let Some(index) = inst.dst.vector_index() {
                    self.put_loaded(index, unit, &first);
                    self.put_loaded(index + usize::from(unit.registers()), unit, &second);
                }
            }
            LdsAction::Write(unit) => self.lds_write(block, inst, unit, inst.imm as u32, 1)?,
            LdsAction::Write2(unit, stride) => {
                for (i, offset) in pair_offsets(inst, unit, stride).into_iter().enumerate() {
                    self.lds_write(block, inst, unit, offset, 1 + i)?;
                }
            }
            LdsAction::Atomic(op, bytes, returns) => self.lds_atomic(block, inst, op, bytes, returns)?,
            LdsAction::ReadTranspose(bytes) => self.lds_transpose(block, inst, bytes)?,
            LdsAction::Swizzle => self.swizzle(inst),
            LdsAction::Permute => self.permute(inst)?,
            LdsAction::BackwardPermute => self.backward_permute(inst)?,
        }
        self.waits.issue_lds(inst.dst, inst.dst_width);
        Ok(())
    }

    /// The address register; undefined in no lane that executes.
    fn lds_addresses(&self, inst: &Inst) -> Result<Lanes, Trap> {
        let address = self.lanes(inst.src[0], 0, 0, As::B32);
        self.check_address(address.undefined)?;
        Ok(address.bits)
    }

    /// Faults if an address is undefined in a lane that executes.
    pub(super) fn check_address(&self, undefined: u64) -> Result<(), Trap> {
        match undefined & self.exec() {
            0 => Ok(()),
            lanes => Err(Trap {
                kind: FaultKind::Undefined { sink: "an address" },
                pc: self.pc,
                thread: Some(self.first_thread + lanes.trailing_zeros()),
                address: None,
            }),
        }
    }

    /// One load of each lane; the lanes' data.
    fn lds_load(
        &mut self,
        block: &mut Block<'_>,
        inst: &Inst,
        bytes: u32,
        offset: u32,
    ) -> Result<Box<[Data; LANES]>, Trap> {
        let addresses = self.lds_addresses(inst)?;
        let exec = self.exec();
        let mut loaded = Box::new([Data::default(); LANES]);
        let align = lds_align(bytes);
        for lane in Self::each(exec) {
            let address = addresses[lane].wrapping_add(offset);
            loaded[lane] = block
                .shared
                .read(self.first_thread + lane as u32, address, bytes, align)
                .map_err(|kind| self.trap_at(kind, lane, address.into()))?;
            self.waits.note_lds(lane, address, bytes, None);
        }
        let address = |lane: usize| addresses[lane].wrapping_add(offset);
        block.counters.bank_conflicts += Banks::gfx950_load(bytes).conflicts(exec, bytes, address);
        block.counters.shared_load_bytes += u64::from(exec.count_ones() * bytes);
        block.shared.sync_warp(self.index);
        Ok(loaded)
    }

    fn lds_read(&mut self, block: &mut Block<'_>, inst: &Inst, unit: Unit) -> Result<(), Trap> {
        let loaded = self.lds_load(block, inst, unit.bytes.into(), inst.imm as u32)?;
        if let Some(index) = inst.dst.vector_index() {
            self.put_loaded(index, unit, &loaded);
        }
        Ok(())
    }

    /// Writes what the lanes loaded to registers from `index`.
    pub(super) fn put_loaded(&mut self, index: usize, unit: Unit, loaded: &[Data; LANES]) {
        let exec = self.exec();
        for word in 0..usize::from(unit.registers()) {
            let old = self.vectors[index + word];
            let mut value = Vector::splat(0);
            for lane in Self::each(exec) {
                value.bits[lane] = unit.extend(loaded[lane].words[word], old[lane]);
                value.undefined |= u64::from(loaded[lane].undefined >> word & 1) << lane;
            }
            self.write(index + word, &value, exec);
        }
    }

    /// What the lanes store from registers.
    pub(super) fn stored(&self, inst: &Inst, source: usize, unit: Unit) -> Box<[Data; LANES]> {
        let mut data = Box::new([Data::default(); LANES]);
        for word in 0..usize::from(unit.registers()) {
            let value = self.lanes(inst.src[source], word, 0, As::B32);
            for (lane, data) in data.iter_mut().enumerate() {
                data.words[word] = unit.narrow(value.bits[lane]);
                data.undefined |= (value.undefined >> lane & 1) as u8 * (1 << word);
            }
        }
        data
    }

    fn lds_write(
        &mut self,
        block: &mut Block<'_>,
        inst: &Inst,
        unit: Unit,
        offset: u32,
        source: usize,
    ) -> Result<(), Trap> {
        let addresses = self.lds_addresses(inst)?;
        let data = self.stored(inst, source, unit);
        let (exec, bytes) = (self.exec(), u32::from(unit.bytes));
        for lane in Self::each(exec) {
            let address = addresses[lane].wrapping_add(offset);
            block
                .shared
                .write(self.first_thread + lane as u32, address, bytes, lds_align(bytes), data[lane])
                .map_err(|kind| self.trap_at(kind, lane, address.into()))?;
            self.waits.note_lds(lane, address, bytes, Some(data[lane]));
        }
        let address = |lane: usize| addresses[lane].wrapping_add(offset);
        block.counters.bank_conflicts += Banks::gfx950_store(bytes).conflicts(exec, bytes, address);
        block.counters.shared_store_bytes += u64::from(exec.count_ones() * bytes);
        block.shared.sync_warp(self.index);
        block.made_progress();
        Ok(())
    }

    fn lds_atomic(
        &mut self,
        block: &mut Block<'_>,
        inst: &Inst,
        op: AtomicOp,
        bytes: u8,
        returns: bool,
    ) -> Result<(), Trap> {
        let addresses = self.lds_addresses(inst)?;
        let operands = self.stored(inst, 1, Unit::full(bytes));
        let mut old = Box::new([Data::default(); LANES]);
        for lane in Self::each(self.exec()) {
            let address = addresses[lane].wrapping_add(inst.imm as u32);
            if operands[lane].undefined != 0 {
                return Err(self.trap_at(FaultKind::Undefined { sink: "an atomic" }, lane, address.into()));
            }
            let operand = join(operands[lane].words);
            let (value, undefined) = block
                .shared
                .atomic(self.first_thread + lane as u32, address, bytes.into(), |old| op.apply(old, operand, bytes))
                .map_err(|kind| self.trap_at(kind, lane, address.into()))?;
            old[lane].words[..2].copy_from_slice(&[value as u32, (value >> 32) as u32]);
            old[lane].undefined = if undefined { 3 } else { 0 };
        }
        if let (true, Some(index)) = (returns, inst.dst.vector_index()) {
            self.put_loaded(index, Unit::full(bytes), &old);
        }
        block.shared.sync_warp(self.index);
        block.made_progress();
        Ok(())
    }

    /// `ds_read_b64_tr_b16` and `_b8`: each lane loads 8 bytes, and 16 lanes exchange their elements so that each
    /// holds a column of the rows that they loaded (4 rows of 16 halves, or 8 rows of 16 bytes).
    fn lds_transpose(&mut self, block: &mut Block<'_>, inst: &Inst, element: u8) -> Result<(), Trap> {
        let loaded = self.lds_load(block, inst, 8, inst.imm as u32)?;
        let (exec, element) = (self.exec(), usize::from(element));
        let per_lane = 8 / element;
        // Lanes that together hold one row.
        let row_lanes = 16 / per_lane;
        let mut result = Box::new([Data::default(); LANES]);
        for (lane, result) in result.iter_mut().enumerate() {
            let (column, group) = (lane % 16, lane & !15);
            let mut value = 0u64;
            for row in 0..per_lane {
                let from = group + row * row_lanes + column / per_lane;
                let place = column % per_lane * element;
                let bits = join(loaded[from].words) >> (8 * place) & (u64::MAX >> (64 - 8 * element));
                value |= bits << (8 * element * row);
                let undefined = exec >> from & 1 == 0 || loaded[from].undefined >> (place / 4) & 1 != 0;
                result.undefined |= u8::from(undefined) << (element * row / 4);
            }
            result.words[..2].copy_from_slice(&[value as u32, (value >> 32) as u32]);
        }
        if let Some(index) = inst.dst.vector_index() {
            self.put_loaded(index, Unit::full(8), &result);
        }
        Ok(())
    }

    /// `ds_bpermute_b32`: lane `l` gets the data of the lane that its address names; lanes that do not execute
    /// give 0.
    fn backward_permute(&mut self, inst: &Inst) -> Result<(), Trap> {
        let addresses = self.lds_addresses(inst)?;
        let data = self.lanes(inst.src[1], 0, 0, As::B32);
        let exec = self.exec();
        let mut result = Vector::splat(0);
        for (lane, address) in addresses.into_iter().enumerate() {
            let from = (address.wrapping_add(inst.imm as u32) / 4) as usize % LANES;
            if exec >> from & 1 != 0 {
                result.bits[lane] = data.bits[from];
                result.undefined |= (data.undefined >> from & 1) << lane;
            }
        }
        self.write(inst.dst.vector_index().unwrap_or_default(), &result, exec);
        Ok(())
    }

    /// `ds_permute_b32`: lane `l` gives its data to the lane that its address names; the highest lane wins, and
    /// lanes that nobody names get 0.
    fn permute(&mut self, inst: &Inst) -> Result<(), Trap> {
        let addresses = self.lds_addresses(inst)?;
        let data = self.lanes(inst.src[1], 0, 0, As::B32);
        let exec = self.exec();
        let mut result = Vector::splat(0);
        for lane in Self::each(exec) {
            let to = (addresses[lane].wrapping_add(inst.imm as u32) / 4) as usize % LANES;
            result.bits[to] = data.bits[lane];
            result.undefined = result.undefined & !(1 << to) | (data.undefined >> lane & 1) << to;
        }
        self.write(inst.dst.vector_index().unwrap_or_default(), &result, exec);
        Ok(())
    }

    /// `ds_swizzle_b32`: a fixed pattern within 4 or 32 lanes; lanes that do not execute give 0.
    fn swizzle(&mut self, inst: &Inst) {
        let data = self.lanes(inst.src[0], 0, 0, As::B32);
        let (exec, offset) = (self.exec(), inst.imm as usize);
        let mut result = Vector::splat(0);
        for lane in 0..LANES {
            let from = if offset & 0x8000 != 0 {
                lane & !3 | offset >> (2 * (lane & 3)) & 3
            } else {
                lane & 32 | ((lane & 31 & offset & 31) | offset >> 5 & 31) ^ (offset >> 10 & 31)
            };
            if exec >> from & 1 != 0 {
                result.bits[lane] = data.bits[from];
                result.undefined |= (data.undefined >> from & 1) << lane;
            }
        }
        self.write(inst.dst.vector_index().unwrap_or_default(), &result, exec);
    }

    /// The barrier that the wave waited at orders LDS accesses that are complete. Those that are not happen again,
    /// after it.
    pub(super) fn repeat_lds(&mut self, block: &mut Block<'_>) -> Result<(), Trap> {
        for access in &self.waits.lds_accesses {
            let thread = self.first_thread + access.lane;
            match access.stored {
                Some(data) => block.shared.write(thread, access.address, access.bytes, 1, data),
                None => block.shared.read(thread, access.address, access.bytes, 1).map(|_| ()),
            }
            .map_err(|kind| {
                let kind = match kind {
                    FaultKind::SharedRace { .. } => FaultKind::UsedBeforeWait {
                        what: "LDS access (lgkmcnt) passed by a barrier, and its bytes used",
                    },
                    other => other,
                };
                self.trap_at(kind, access.lane as usize, access.address.into())
            })?;
        }
        block.shared.sync_warp(self.index);
        Ok(())
    }
}

/// LDS accesses are aligned to their size, those of 12 bytes to 16.
fn lds_align(bytes: u32) -> u32 {
    bytes.next_power_of_two()
}

/// The two byte offsets of `ds_read2` and `ds_write2`.
fn pair_offsets(inst: &Inst, unit: Unit, stride: u32) -> [u32; 2] {
    let imm = inst.imm as u32;
    [imm & 0xff, imm >> 8].map(|offset| offset * u32::from(unit.bytes) * stride)
}

/// Two words as one number.
pub(super) fn join(words: [u32; 4]) -> u64 {
    u64::from(words[0]) | u64::from(words[1]) << 32
}

impl Unit {
    /// A register after a load of `value`.
    fn extend(self, value: u32, old: u32) -> u32 {
        let value = match (self.bytes, self.signed) {
            (1, true) => value as i8 as i32 as u32,
            (2, true) => value as i16 as i32 as u32,
            _ => value,
        };
        match self.part {
            Part::Full => value,
            Part::Low => old & 0xffff_0000 | value & 0xffff,
            Part::High => old & 0xffff | value << 16,
        }
    }

    /// What a store takes from a register.
    fn narrow(self, value: u32) -> u32 {
        let value = if self.part == Part::High { value >> 16 } else { value };
        match self.bytes {
            1 => value & 0xff,
            2 => value & 0xffff,
            _ => value,
        }
    }
}

impl AtomicOp {
    /// What replaces `old`; `None` where nothing changes. The operand of a comparing swap has the new value in its
    /// low part and the expected one in its high part (4 bytes only; 8-byte swaps pass them apart).
    pub(super) fn apply(self, old: u64, operand: u64, bytes: u8) -> Option<u64> {
        let (a, b) = (old as u32, operand as u32);
        let wide = bytes == 8;
        let signed = |x: u64| if wide { x as i64 } else { i64::from(x as i32) };
        let float = |f: fn(f32, f32) -> f32| f(f32::from_bits(a), f32::from_bits(b)).to_bits().into();
        let halves = |f: fn(u16, u16) -> u16| {
            u64::from(f(a as u16, b as u16)) | u64::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
        };
        let mask = if wide { u64::MAX } else { u64::from(u32::MAX) };
        let new = match self {
            Self::Swap => operand,
            Self::CompareSwap => {
                let expected = operand >> 32;
                return (u64::from(a) == expected).then_some(operand & 0xffff_ffff);
            }
            Self::Add => old.wrapping_add(operand),
            Self::Sub => old.wrapping_sub(operand),
            Self::SMin => {
                if signed(old) < signed(operand) {
                    old
                } else {
                    operand
                }
            }
            Self::SMax => {
                if signed(old) > signed(operand) {
                    old
                } else {
                    operand
                }
            }
            Self::UMin => old.min(operand & mask),
            Self::UMax => old.max(operand & mask),
            Self::And => old & operand,
            Self::Or => old | operand,
            Self::Xor => old ^ operand,
            Self::Inc => {
                if old >= operand & mask {
                    0
                } else {
                    old + 1
                }
            }
            Self::Dec => {
                if old == 0 || old > operand & mask {
                    operand
                } else {
                    old - 1
                }
            }
            Self::AddF32 => float(|x, y| x + y),
            Self::MinF32 => float(super::float::min),
            Self::MaxF32 => float(super::float::max),
            Self::PkAddF16 => {
                halves(|x, y| super::float::f16_bits(super::float::f16_to_f32(x) + super::float::f16_to_f32(y)))
            }
            Self::PkAddBf16 => {
                halves(|x, y| super::float::bf16_bits(super::float::bf16_to_f32(x) + super::float::bf16_to_f32(y)))
            }
        };
        Some(new & mask)
    }
}
