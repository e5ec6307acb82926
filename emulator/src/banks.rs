//! Bank conflicts of shared memory (LDS).
//!
//! Memory is cut into banks of 4 bytes: byte `a` lies in bank `a / 4 % banks`. An access of a warp is served in
//! phases, each for a fixed set of lanes. In one pass of a phase each bank gives one word, to every lane that asks
//! for that word; each further word that lanes want of the same bank is a pass more, a conflict.
//!
//! - NVIDIA: 32 banks. Up to 4 bytes a lane take one phase, 8 bytes two (halves of the warp), 16 bytes four (quarters).
//!   Source: CUDA C++ Programming Guide, shared memory of compute capabilities 2.x and 5.x.
//! - gfx950: reads of 8 and 16 bytes see 64 banks; reads of 12 bytes and stores see 32. Lanes of a phase are not
//!   always neighbours. Source: the phases and banks that the authors of HipKittens measured on CDNA4 for
//!   `ds_read_b64`, `_b96`, `_b128` and `ds_write_b64`, and AMD's article on LDS bank conflicts for `ds_write_b128`.
//!   Assumed, because nobody has published it: narrower accesses move as many bytes a phase as those do, and a
//!   `ds_read_b64_tr` is served as a `ds_read_b64`.

/// How the lanes of one access are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Banks {
    count: u32,
    /// The lanes of each phase.
    phases: &'static [u64],
}

const WHOLE: &[u64] = &[u64::MAX];
const HALVES: &[u64] = &lanes_together::<2>(32);
const QUARTERS: &[u64] = &lanes_together::<4>(16);
const EIGHTHS: &[u64] = &lanes_together::<8>(8);

/// `ds_read_b128`: two sets of 16 lanes, for each half of the wave.
const READ_16: &[u64] = &[0x0ff0_f00f, 0xf00f_0ff0, 0x0ff0_f00f << 32, 0xf00f_0ff0 << 32];
/// `ds_read_b96`: four sets of 8 lanes, for each half of the wave.
const READ_12: &[u64] = &[
    0x00f0_000f,
    0x000f_00f0,
    0xf000_0f00,
    0x0f00_f000,
    0x00f0_000f << 32,
    0x000f_00f0 << 32,
    0xf000_0f00 << 32,
    0x0f00_f000 << 32,
];

/// `lanes` neighbours in each of `N` phases.
const fn lanes_together<const N: usize>(lanes: u32) -> [u64; N] {
    let mut phases = [0; N];
    let mut i = 0;
    while i < N {
        phases[i] = u64::MAX >> (64 - lanes) << (i as u32 * lanes);
        i += 1;
    }
    phases
}

impl Banks {
    /// An access of `bytes` a lane of a warp of 32.
    pub(crate) fn nvidia(bytes: u32) -> Self {
        let phases = match bytes {
            0..=4 => WHOLE,
            5..=8 => &QUARTERS[..2],
            _ => &EIGHTHS[..4],
        };
        Self { count: 32, phases }
    }

    /// A load of `bytes` a lane of a wave of 64.
    pub(crate) fn gfx950_load(bytes: u32) -> Self {
        let (count, phases) = match bytes {
            0..=4 => (64, WHOLE),
            5..=8 => (64, HALVES),
            9..=12 => (32, READ_12),
            _ => (64, READ_16),
        };
        Self { count, phases }
    }

    /// A store of `bytes` a lane of a wave of 64.
    pub(crate) fn gfx950_store(bytes: u32) -> Self {
        let phases = match bytes {
            0..=4 => HALVES,
            5..=8 => QUARTERS,
            _ => EIGHTHS,
        };
        Self { count: 32, phases }
    }

    /// Passes beyond one a phase, when the lanes of the mask access `bytes` each.
    pub(crate) fn conflicts(self, mask: u64, bytes: u32, address: impl Fn(usize) -> u32) -> u64 {
        self.phases.iter().map(|phase| self.conflicts_of_phase(phase & mask, bytes, &address)).sum()
    }

    fn conflicts_of_phase(self, mut lanes: u64, bytes: u32, address: impl Fn(usize) -> u32) -> u64 {
        let words = bytes.div_ceil(4);
        // The words so far in order of arrival, the first one in each bank, and the passes of each bank.
        let (mut seen, mut used) = ([0u32; 64], 0);
        let (mut first, mut passes, mut busy, mut most) = ([0u32; 64], [0u8; 64], 0u64, 1);
        while lanes != 0 {
            let word = address(lanes.trailing_zeros() as usize) / 4;
            lanes &= lanes - 1;
            for word in word..word + words {
                let bank = (word % self.count) as usize;
                if busy >> bank & 1 == 0 {
                    busy |= 1 << bank;
                    (first[bank], passes[bank]) = (word, 1);
                } else if first[bank] != word && !seen[..used].contains(&word) {
                    passes[bank] += 1;
                    most = most.max(passes[bank]);
                }
                seen[used] = word;
                used += 1;
            }
        }
        u64::from(most - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phases_of_an_access_have_each_lane_once() {
        for bytes in [1, 2, 4, 8, 12, 16] {
            for banks in [Banks::gfx950_load(bytes), Banks::gfx950_store(bytes)] {
                assert_eq!(banks.phases.iter().fold(0, |all, phase| all ^ phase), u64::MAX, "{bytes}");
                let lanes: u32 = banks.phases.iter().map(|phase| phase.count_ones()).sum();
                assert_eq!(lanes, 64, "{bytes}");
                // What a phase moves fits in one pass, and fills it but for those of 12 bytes.
                assert!(banks.phases.iter().all(|phase| phase.count_ones() * bytes <= banks.count * 4), "{bytes}");
            }
            let phases = Banks::nvidia(bytes).phases;
            assert_eq!(phases.iter().fold(0, |all, phase| all | phase) as u32, u32::MAX, "{bytes}");
        }
        // Lanes 0-3, 12-15, 20-27.
        let lanes: Vec<u32> = (0..64).filter(|lane| READ_16[0] >> lane & 1 != 0).collect();
        assert_eq!(lanes, [0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27]);
    }

    fn nvidia(bytes: u32, address: impl Fn(u32) -> u32) -> u64 {
        Banks::nvidia(bytes).conflicts(u32::MAX.into(), bytes, |lane| address(lane as u32))
    }

    #[test]
    fn nvidia_patterns() {
        assert_eq!(nvidia(4, |i| i * 4), 0);
        assert_eq!(nvidia(4, |_| 64), 0, "broadcast");
        assert_eq!(nvidia(2, |i| i * 2), 0, "two lanes a word");
        assert_eq!(nvidia(4, |i| i * 8), 1, "two words a bank");
        assert_eq!(nvidia(4, |i| i * 128), 31, "one bank");
        assert_eq!(nvidia(4, |i| i * 132), 0, "one word of padding");
        assert_eq!(nvidia(8, |i| i * 8), 0);
        assert_eq!(nvidia(8, |i| i * 128), 2 * 15, "halves of a warp");
        assert_eq!(nvidia(16, |i| i * 16), 0);
        assert_eq!(nvidia(16, |i| i * 256), 4 * 7, "rows of a tile without swizzle");
        assert_eq!(nvidia(16, |i| i * 256 + (i % 8) * 16), 0, "the same rows swizzled");
    }

    #[test]
    fn lanes_that_do_not_take_part_leave_the_phases_as_they_are() {
        // Lanes 0 and 8 want the same bank, but in different quarters.
        let conflicts = |mask| Banks::nvidia(16).conflicts(mask, 16, |lane| lane as u32 / 8 * 128);
        assert_eq!(conflicts(1 | 1 << 8), 0);
        assert_eq!(Banks::nvidia(16).conflicts(0b11, 16, |lane| lane as u32 * 128), 1);
        assert_eq!(Banks::nvidia(4).conflicts(0, 4, |_| 0), 0);
    }

    #[test]
    fn gfx950_patterns() {
        let load = |bytes, address: fn(u32) -> u32| {
            Banks::gfx950_load(bytes).conflicts(u64::MAX, bytes, |lane| address(lane as u32))
        };
        let store = |bytes, address: fn(u32) -> u32| {
            Banks::gfx950_store(bytes).conflicts(u64::MAX, bytes, |lane| address(lane as u32))
        };
        for (bytes, address) in [(4, (|i| i * 4) as fn(u32) -> u32), (8, |i| i * 8), (16, |i| i * 16)] {
            assert_eq!((load(bytes, address), store(bytes, address)), (0, 0), "{bytes}");
        }
        assert_eq!(load(4, |i| i * 256), 63);
        assert_eq!(store(4, |i| i * 128), 2 * 31);
        assert_eq!(load(8, |i| i * 256), 2 * 31);
        assert_eq!(store(8, |i| i * 128), 4 * 15);
        assert_eq!(load(16, |i| i * 256), 4 * 15);
        assert_eq!(store(16, |i| i * 256), 8 * 7);
        // Lanes 0 and 4 are in different phases, lanes 0 and 12 in the same.
        let two = |lane: usize| Banks::gfx950_load(16).conflicts(1 | 1 << lane, 16, |lane| lane as u32 * 256);
        assert_eq!((two(4), two(12)), (0, 1));
    }
}
