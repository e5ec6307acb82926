//! Exchanges between lanes through registers.

use super::inst::Inst;
use super::valu_ops::Valu;
use super::wave::{As, LANES, Scalar, Wave};
use crate::fault::Trap;

impl Wave {
    pub(super) fn lane_move(&mut self, inst: &Inst, op: Valu) -> Result<(), Trap> {
        match op {
            Valu::v_readfirstlane_b32 => self.read_lane(inst, self.first_lane()),
            Valu::v_readlane_b32 => {
                let lane = self.lane_number(inst)?;
                self.read_lane(inst, lane)
            }
            Valu::v_writelane_b32 => {
                let lane = self.lane_number(inst)?;
                let value = self.scalar(inst, 0);
                let index = inst.dst.vector_index().unwrap_or_default();
                self.vectors[index][lane] = value.bits as u32;
                let bit = 1 << lane;
                let undefined = &mut self.vectors_undefined[index];
                *undefined = if value.undefined as u32 != 0 { *undefined | bit } else { *undefined & !bit };
                Ok(())
            }
            _ => {
                self.swap(inst, op);
                Ok(())
            }
        }
    }

    /// The lane that the second source names, whether or not it executes.
    fn lane_number(&self, inst: &Inst) -> Result<usize, Trap> {
        let lane = self.scalar(inst, 1);
        if lane.undefined as u32 != 0 {
            return Err(self.undefined("a lane number"));
        }
        Ok(lane.bits as usize % LANES)
    }

    fn read_lane(&mut self, inst: &Inst, lane: usize) -> Result<(), Trap> {
        let value = self.lanes(inst.src[0], 0, inst.literal, As::B32);
        let undefined = if value.undefined >> lane & 1 != 0 { u64::MAX } else { 0 };
        self.set_scalar(inst, Scalar { bits: value.bits[lane].into(), undefined })
    }

    /// `v_swap_b32` in each lane; the permlane swaps exchange rows of 16 or halves of 32 lanes.
    fn swap(&mut self, inst: &Inst, op: Valu) {
        let (Some(first), Some(second)) = (inst.dst.vector_index(), inst.src[0].vector_index()) else { return };
        let exec = self.exec();
        let [old_first, old_second] = [first, second].map(|i| self.lanes_of(i));
        let distance = match op {
            Valu::v_permlane16_swap_b32 => 16,
            Valu::v_permlane32_swap_b32 => 32,
            _ => 0,
        };
        // Lane `l` of the first register, odd in rows, meets lane `l - distance` of the second.
        let pairs = (0..LANES).filter(|l| distance == 0 || l & distance != 0).map(|l| (l, l - distance));
        for (a, b) in pairs {
            if exec >> a & 1 == 0 || exec >> b & 1 == 0 {
                continue;
            }
            self.set_lane(first, a, old_second.bits[b], old_second.undefined >> b & 1 != 0);
            self.set_lane(second, b, old_first.bits[a], old_first.undefined >> a & 1 != 0);
        }
    }

    fn lanes_of(&self, index: usize) -> super::wave::Vector {
        super::wave::Vector { bits: self.vectors[index], undefined: self.vectors_undefined[index] }
    }

    /// Writes one lane of a vector register.
    pub(super) fn set_lane(&mut self, index: usize, lane: usize, bits: u32, undefined: bool) {
        self.vectors[index][lane] = bits;
        let bit = 1 << lane;
        let mask = &mut self.vectors_undefined[index];
        *mask = if undefined { *mask | bit } else { *mask & !bit };
    }
}
