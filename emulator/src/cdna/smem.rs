//! Scalar loads.

use super::inst::{Inst, Operand};
use super::memory_ops::ScalarMemory;
use super::program::Kernel;
use super::wave::{Scalar, Wave};
use crate::engine::Block;
use crate::fault::Trap;
use crate::{FaultKind, counters};

impl Kernel {
    pub(super) fn scalar_memory(
        &self,
        wave: &mut Wave,
        block: &mut Block<'_>,
        inst: &Inst,
        op: ScalarMemory,
    ) -> Result<(), Trap> {
        let (registers, through_buffer) = match op {
            ScalarMemory::Load(registers) => (registers, false),
            ScalarMemory::BufferLoad(registers) => (registers, true),
            ScalarMemory::CacheInvalidate | ScalarMemory::CacheWriteBack => return Ok(()),
            ScalarMemory::Time | ScalarMemory::RealTime => {
                return Err(wave.illegal("a clock has no reproducible value"));
            }
        };
        let base = wave.scalar(&Inst { widths: [2, 1, 0, 0, 0], ..inst.clone() }, 0);
        let offset = if inst.src[1].is_none() { Scalar::defined(0) } else { wave.scalar(inst, 1) };
        if base.undefined | offset.undefined != 0 {
            return Err(wave.undefined("an address"));
        }
        // Addresses are multiples of 4: the low bits are ignored by the hardware, so that setting them is a mistake.
        let offset = offset.bits.wrapping_add(i64::from(inst.imm) as u64);
        let mut records = u64::MAX;
        let mut address = base.bits;
        if through_buffer {
            let size = wave.register(usize::from(inst.src[0].0) + 2);
            if size.undefined != 0 {
                return Err(wave.undefined("a buffer descriptor"));
            }
            records = size.bits;
            address &= 0xffff_ffff_ffff;
        }
        let mut sectors = Vec::new();
        for i in 0..u64::from(registers) {
            let place = offset.wrapping_add(i * 4);
            let at = address.wrapping_add(place);
            let word = if through_buffer && place + 4 > records {
                Scalar::defined(0)
            } else {
                let data = self
                    .load(block, wave.pc, wave.first_thread, at, 4, 4, inst.mods.ordered)
                    .map_err(|kind| wave.trap_at(kind, wave.first_lane(), at))?;
                sectors.push(at);
                Scalar { bits: data.words[0].into(), undefined: if data.undefined != 0 { u64::MAX } else { 0 } }
            };
            let register = usize::from(inst.dst.0) + i as usize;
            if register == usize::from(Operand::EXEC.0) || register > 127 {
                return Err(wave.trap(FaultKind::Illegal { what: "scalar load into EXEC".into() }));
            }
            wave.set_register(register, word);
        }
        let global: Vec<_> = sectors.into_iter().filter(|&at| Self::is_global(at)).collect();
        if !global.is_empty() {
            block.counters.global_load_bytes += 4 * global.len() as u64;
            block.counters.global_load_sectors += counters::sectors(global.into_iter().map(|at| (at, 4)));
        }
        wave.waits.issue_scalar(inst.dst, registers);
        Ok(())
    }
}
