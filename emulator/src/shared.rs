//! A block's shared memory (LDS): bytes, which of them are defined or in flight, and races between threads.
//!
//! Races are found with [clocks](crate::clocks): each access leaves a stamp (thread, clock of its warp). An access
//! that meets a stamp of another thread beyond what its warp knows, one of the two writing, is a race.

use crate::clocks::Clocks;
use crate::{FaultKind, memory::Data};

const DEFINED: u8 = 1;
const PENDING: u8 = 2;
/// The same for four bytes at once.
const ALL_DEFINED: u32 = u32::from_le_bytes([DEFINED; 4]);
const ALL_PENDING: u32 = u32::from_le_bytes([PENDING; 4]);

/// Stamps of writes are `clock << 11 | atomic << 10 | thread`, those of reads `clock << 11 | lane`; 0 is no access.
const CLOCK_SHIFT: u32 = 11;
const ATOMIC: u32 = 1 << 10;
const THREAD: u32 = ATOMIC - 1;
const LAST_CLOCK: u32 = u32::MAX >> CLOCK_SHIFT;
/// In place of a lane: several lanes of the warp read.
const SEVERAL: u32 = THREAD;

/// Shared memory of the blocks that one host thread runs, one after the other.
pub(crate) struct Shared {
    bytes: Vec<u8>,
    /// `DEFINED | PENDING`, one a byte.
    state: Vec<u8>,
    /// log2 of the bytes that share a stamp: the narrowest access of the kernel.
    granule: u32,
    warp_size: u32,
    warps: usize,
    /// Stamp of each granule's last write.
    writes: Vec<u32>,
    /// Stamps of each granule's last reads, one a warp: `reads[granule * warps + warp]`.
    reads: Vec<u32>,
    clocks: Clocks,
}

/// Who accesses: the linear index of the thread in its block.
type Thread = u32;

impl Shared {
    /// `granule_bytes` is the width of the kernel's narrowest shared access: 1, 2 or 4.
    pub(crate) fn new(bytes: u32, granule_bytes: u32, warps: u32, warp_size: u32) -> Self {
        let (bytes, warps) = (bytes as usize, warps as usize);
        let granule = granule_bytes.clamp(1, 4).ilog2();
        let granules = bytes.div_ceil(1 << granule);
        Self {
            bytes: vec![0; bytes],
            state: vec![0; bytes],
            granule,
            warp_size,
            warps,
            writes: vec![0; granules],
            reads: vec![0; granules * warps],
            clocks: Clocks::new(warps),
        }
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Makes everything undefined and forgets all accesses.
    pub(crate) fn begin_block(&mut self) {
        self.bytes.fill(0);
        self.state.fill(0);
        if self.clocks.latest() > LAST_CLOCK / 2 {
            self.forget_accesses();
        } else {
            self.clocks.begin_after(self.clocks.latest());
        }
    }

    fn forget_accesses(&mut self) {
        self.writes.fill(0);
        self.reads.fill(0);
        self.clocks.begin_after(0);
    }

    /// The lanes of a warp have synchronised: what each did comes before what any does next. A warp whose
    /// lanes run in lockstep calls this after each of its accesses.
    pub(crate) fn sync_warp(&mut self, warp: u32) {
        self.make_room();
        self.clocks.advance(warp);
    }

    /// These warps have met at a barrier.
    pub(crate) fn sync_block(&mut self, warps: &[u32]) {
        self.make_room();
        self.clocks.meet(warps);
    }

    /// After two million synchronisations: starts again rather than mistake old stamps for new ones.
    fn make_room(&mut self) {
        if self.clocks.latest() == LAST_CLOCK {
            self.forget_accesses();
        }
    }

    #[inline]
    fn check(&self, address: u32, bytes: u32, align: u32) -> Result<std::ops::Range<usize>, FaultKind> {
        let end = u64::from(address) + u64::from(bytes);
        if end > self.bytes.len() as u64 {
            return Err(FaultKind::SharedOutOfBounds { bytes, size: self.size() });
        }
        if address & (align - 1) != 0 {
            return Err(FaultKind::Misaligned { align });
        }
        Ok(address as usize..end as usize)
    }

    fn granules(&self, bytes: &std::ops::Range<usize>) -> std::ops::Range<usize> {
        bytes.start >> self.granule..((bytes.end - 1) >> self.granule) + 1
    }

    fn stamp(&self, thread: Thread) -> u32 {
        self.clocks.now(thread / self.warp_size) << CLOCK_SHIFT | thread
    }

    /// The thread of a stamp, if what it did is not ordered before what `thread` does now.
    #[inline]
    fn unordered(&self, stamp: u32, thread: Thread) -> Option<u32> {
        let other = stamp & THREAD;
        if stamp == 0 || other == thread {
            return None;
        }
        let known = self.clocks.known(thread / self.warp_size, other / self.warp_size);
        (stamp >> CLOCK_SHIFT > known).then_some(other)
    }

    /// Records a read of `granules` and checks it against writes.
    #[inline]
    fn record_read(&mut self, granules: std::ops::Range<usize>, thread: Thread) -> Result<(), FaultKind> {
        let (warp, lane) = (thread / self.warp_size, thread % self.warp_size);
        let clock = self.clocks.now(warp);
        for granule in granules {
            if let Some(other) = self.unordered(self.writes[granule], thread) {
                return Err(FaultKind::SharedRace { other, what: "write, then read" });
            }
            let read = &mut self.reads[granule * self.warps + warp as usize];
            let joined = *read >> CLOCK_SHIFT == clock && *read & THREAD != lane;
            *read = clock << CLOCK_SHIFT | if joined { SEVERAL } else { lane };
        }
        Ok(())
    }

    /// Records a write of `granules` and checks it against reads and writes; `atomic` is `ATOMIC` or 0.
    #[inline]
    fn record_write(&mut self, granules: std::ops::Range<usize>, thread: Thread, atomic: u32) -> Result<(), FaultKind> {
        let (warp, lane) = ((thread / self.warp_size) as usize, thread % self.warp_size);
        let stamp = self.stamp(thread) | atomic;
        for granule in granules {
            let write = self.writes[granule];
            if let Some(other) = self.unordered(write, thread)
                && write & atomic == 0
            {
                return Err(FaultKind::SharedRace { other, what: "write, then write" });
            }
            let reads = &self.reads[granule * self.warps..][..self.warps];
            for (v, (&read, &known)) in reads.iter().zip(self.clocks.all_known(warp)).enumerate() {
                let reader = read & THREAD;
                if read >> CLOCK_SHIFT > known && (v != warp || reader != lane) {
                    let other = v as u32 * self.warp_size + if reader == SEVERAL { 0 } else { reader };
                    return Err(FaultKind::SharedRace { other, what: "read, then write" });
                }
            }
            self.writes[granule] = stamp;
        }
        Ok(())
    }

    #[inline]
    fn get(&self, range: std::ops::Range<usize>) -> Data {
        let mut data = Data::default();
        let (words, rest) = self.bytes[range.clone()].as_chunks::<4>();
        for (to, from) in data.words.iter_mut().zip(words) {
            *to = u32::from_le_bytes(*from);
        }
        for (i, byte) in rest.iter().enumerate() {
            data.words[words.len()] |= u32::from(*byte) << (i * 8);
        }
        let (words, rest) = self.state[range].as_chunks::<4>();
        for (word, state) in words.iter().enumerate() {
            data.undefined |= u8::from(u32::from_le_bytes(*state) & ALL_DEFINED != ALL_DEFINED) << word;
        }
        data.undefined |= u8::from(rest.iter().any(|s| s & DEFINED == 0)) << words.len();
        data
    }

    #[inline]
    fn set(&mut self, range: std::ops::Range<usize>, data: Data, pending: u8) {
        let (words, rest) = self.bytes[range.clone()].as_chunks_mut::<4>();
        for (to, from) in words.iter_mut().zip(data.words) {
            *to = from.to_le_bytes();
        }
        let last = data.words[words.len().min(3)].to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        let state = |word: usize| pending | if data.undefined >> word & 1 == 0 { DEFINED } else { 0 };
        let (words, rest) = self.state[range].as_chunks_mut::<4>();
        for (word, to) in words.iter_mut().enumerate() {
            *to = [state(word); 4];
        }
        rest.fill(state(words.len()));
    }

    fn check_settled(&self, range: &std::ops::Range<usize>) -> Result<(), FaultKind> {
        let (words, rest) = self.state[range.clone()].as_chunks::<4>();
        let pending = words.iter().any(|s| u32::from_le_bytes(*s) & ALL_PENDING != 0);
        if pending || rest.iter().any(|s| s & PENDING != 0) {
            return Err(FaultKind::UsedBeforeWait { what: "asynchronous copy to shared memory used" });
        }
        Ok(())
    }

    /// Loads 1, 2, 4, 8, 12 or 16 bytes; `align` is a power of two.
    #[inline]
    pub(crate) fn read(&mut self, thread: Thread, address: u32, bytes: u32, align: u32) -> Result<Data, FaultKind> {
        let range = self.check(address, bytes, align)?;
        self.check_settled(&range)?;
        self.record_read(self.granules(&range), thread)?;
        Ok(self.get(range))
    }

    /// Stores 1, 2, 4, 8, 12 or 16 bytes; `align` is a power of two.
    #[inline]
    pub(crate) fn write(
        &mut self,
        thread: Thread,
        address: u32,
        bytes: u32,
        align: u32,
        data: Data,
    ) -> Result<(), FaultKind> {
        self.store(thread, address, bytes, align, (data, 0))
    }

    /// Starts an asynchronous store: until [`finish_async`](Self::finish_async) nobody may touch its bytes.
    #[inline]
    pub(crate) fn begin_async(
        &mut self,
        thread: Thread,
        address: u32,
        bytes: u32,
        align: u32,
        data: Data,
    ) -> Result<(), FaultKind> {
        self.store(thread, address, bytes, align, (data, PENDING))
    }

    /// Stores data; `pending` is 0, or [`PENDING`] for bytes that nobody may touch yet.
    #[inline(always)]
    fn store(
        &mut self,
        thread: Thread,
        address: u32,
        bytes: u32,
        align: u32,
        (data, pending): (Data, u8),
    ) -> Result<(), FaultKind> {
        let range = self.check(address, bytes, align)?;
        self.check_settled(&range)?;
        self.record_write(self.granules(&range), thread, 0)?;
        self.set(range, data, pending);
        Ok(())
    }

    /// The thread has waited for its asynchronous store of these bytes: they are as if it had written them now.
    pub(crate) fn finish_async(&mut self, thread: Thread, address: u32, bytes: u32) {
        let range = address as usize..(address + bytes) as usize;
        let stamp = self.stamp(thread);
        let granules = self.granules(&range);
        self.writes[granules].fill(stamp);
        for state in &mut self.state[range] {
            *state &= !PENDING;
        }
    }

    /// Replaces 4 or 8 bytes by what `update` makes of them; returns the old value and whether it was undefined.
    /// Atomics do not race with each other.
    pub(crate) fn atomic(
        &mut self,
        thread: Thread,
        address: u32,
        bytes: u32,
        update: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<(u64, bool), FaultKind> {
        let range = self.check(address, bytes, bytes)?;
        self.check_settled(&range)?;
        self.record_write(self.granules(&range), thread, ATOMIC)?;
        let data = self.get(range.clone());
        let high = if bytes == 8 { u64::from(data.words[1]) << 32 } else { 0 };
        let old = u64::from(data.words[0]) | high;
        if let Some(new) = update(old) {
            let words = [new as u32, (new >> 32) as u32, 0, 0];
            self.set(range, Data { words, undefined: data.undefined }, 0);
        }
        Ok((old, data.undefined != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Data = Data { words: [1, 2, 3, 4], undefined: 0 };

    fn shared() -> Shared {
        let mut shared = Shared::new(1024, 4, 2, 32);
        shared.begin_block();
        shared
    }

    fn race<T: std::fmt::Debug>(result: Result<T, FaultKind>, thread: u32) {
        match result {
            Err(FaultKind::SharedRace { other, .. }) => assert_eq!(other, thread),
            other => panic!("expected a race, got {other:?}"),
        }
    }

    #[test]
    fn bounds_alignment_and_definedness() {
        let mut s = shared();
        assert!(matches!(s.read(0, 1020, 8, 8), Err(FaultKind::SharedOutOfBounds { bytes: 8, size: 1024 })));
        assert!(matches!(s.read(0, u32::MAX, 4, 4), Err(FaultKind::SharedOutOfBounds { .. })));
        assert_eq!(s.read(0, 2, 4, 4), Err(FaultKind::Misaligned { align: 4 }));
        assert_eq!(s.read(0, 0, 16, 16).unwrap().undefined, 0b1111);
        s.write(0, 4, 8, 4, ONE).unwrap();
        assert_eq!(s.read(0, 0, 16, 16).unwrap(), Data { words: [0, 1, 2, 0], undefined: 0b1001 });
        s.begin_block();
        assert_eq!(s.read(0, 4, 4, 4).unwrap().undefined, 1);
    }

    #[test]
    fn a_barrier_orders_threads_and_nothing_else_does() {
        let mut s = shared();
        s.write(0, 0, 4, 4, ONE).unwrap();
        s.read(0, 0, 4, 4).unwrap();
        race(s.read(1, 0, 4, 4), 0);
        s.sync_warp(0);
        s.read(1, 0, 4, 4).unwrap();
        race(s.read(32, 0, 4, 4), 0);
        s.sync_block(&[0, 1]);
        s.read(32, 0, 4, 4).unwrap();
        s.read(33, 0, 4, 4).unwrap();
        race(s.write(1, 0, 4, 4, ONE), 32);
        race(s.write(33, 0, 4, 4, ONE), 32);
        s.sync_warp(1);
        s.write(33, 0, 4, 4, ONE).unwrap();
        race(s.write(34, 0, 4, 4, ONE), 33);
    }

    #[test]
    fn order_passes_from_warp_to_warp() {
        let mut s = Shared::new(64, 4, 3, 32);
        s.begin_block();
        s.write(0, 0, 4, 4, ONE).unwrap();
        s.sync_block(&[0, 1]);
        race(s.read(64, 0, 4, 4), 0);
        s.sync_block(&[1, 2]);
        s.read(64, 0, 4, 4).unwrap();
    }

    #[test]
    fn narrow_granules_do_not_invent_races() {
        let mut s = Shared::new(64, 2, 1, 32);
        s.begin_block();
        s.write(0, 0, 2, 2, ONE).unwrap();
        s.write(1, 2, 2, 2, ONE).unwrap();
        race(s.read(1, 0, 4, 4), 0);
    }

    #[test]
    fn asynchronous_bytes_are_untouchable_until_the_wait() {
        let mut s = shared();
        s.begin_async(0, 16, 16, 16, ONE).unwrap();
        assert!(matches!(s.read(0, 16, 4, 4), Err(FaultKind::UsedBeforeWait { .. })));
        assert!(matches!(s.write(0, 16, 4, 4, ONE), Err(FaultKind::UsedBeforeWait { .. })));
        s.sync_block(&[0, 1]);
        assert!(matches!(s.read(40, 16, 4, 4), Err(FaultKind::UsedBeforeWait { .. })));
        s.finish_async(0, 16, 16);
        assert_eq!(s.read(0, 16, 16, 16).unwrap(), ONE);
        race(s.read(40, 16, 4, 4), 0);
        s.sync_block(&[0, 1]);
        assert_eq!(s.read(40, 16, 4, 4).unwrap().words[0], 1);
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        let mut s = shared();
        s.write(0, 0, 4, 4, ONE).unwrap();
        s.sync_block(&[0, 1]);
        assert_eq!(s.atomic(0, 0, 4, |x| Some(x + 1)).unwrap(), (1, false));
        assert_eq!(s.atomic(40, 0, 4, |x| Some(x + 1)).unwrap(), (2, false));
        race(s.read(0, 0, 4, 4), 40);
    }
}
