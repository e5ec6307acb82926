//! The arguments of an attention kernel, kept where they are in nobody's way.
//!
//! A wave has about a hundred registers for values that all its lanes share, fewer than the arguments need. Those that
//! are seldom needed lie in the lanes of a few vector registers, from which they are read where they are used.

use super::warp::SIZE;
use crate::abi::AttentionArguments;
use core::arch::amdgpu;

/// Vector registers that hold a word of every argument in each lane.
const REGISTERS: usize = AttentionArguments::COUNT.div_ceil(SIZE as usize);

/// The arguments.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    hot: AttentionArguments,
    /// Low and high words.
    shelved: [[u32; 2]; REGISTERS],
}

impl Arguments {
    #[inline(always)]
    pub(crate) fn new(a: AttentionArguments) -> Self {
        let words = a.words();
        let mut shelved = [[0; 2]; REGISTERS];
        for place in 0..AttentionArguments::COUNT {
            let (register, lane) = (place / SIZE as usize, (place % SIZE as usize) as u32);
            for half in 0..2 {
                // SAFETY: the lane is one of the wave's. CDNA4 ISA, "V_WRITELANE_B32".
                shelved[register][half] =
                    unsafe { amdgpu::writelane_u32(words[place][half], lane, shelved[register][half]) };
            }
        }
        Self { hot: a, shelved }
    }

    /// The arguments that each chunk of KV needs: what it is made of, pages, the status word, and the scale. They are
    /// the only ones to be taken from here.
    #[inline(always)]
    pub(crate) fn hot(&self) -> &AttentionArguments {
        &self.hot
    }

    /// All arguments, for what is done once a unit.
    #[inline(always)]
    pub(crate) fn all(&self) -> AttentionArguments {
        let shelved = self.shelved;
        let all = AttentionArguments::from_words(|place| {
            let (register, lane) = (place / SIZE as usize, (place % SIZE as usize) as u32);
            let [low, high] = shelved[register];
            // SAFETY: the lane is one of the wave's. CDNA4 ISA, "V_READLANE_B32".
            unsafe { [amdgpu::readlane_u32(low, lane), amdgpu::readlane_u32(high, lane)] }
        });
        // Addresses that LLVM knows to be of global memory, as they came: others it reaches by another kind of access, and
        // an atomic by a loop.
        let AttentionArguments { q, k, v, o, partial_o, status, .. } = self.hot;
        AttentionArguments { q, k, v, o, partial_o, status, ..all }
    }
}
