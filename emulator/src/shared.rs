//! A block's shared memory (LDS): bytes, which of them are defined or in flight, and races between threads (see
//! [`crate::stamps`]). What the copy and matrix units do with it is in `bulk`.

mod bulk;

pub(crate) use bulk::{Agent, Agents, CHUNK};

use crate::clocks::{Clocks, Knowledge};
use crate::stamps::{ATOMIC, Actor, Conflict, LAST_CLOCK, Stamps};
use crate::{FaultKind, memory::Data};
use std::ops::Range;

const DEFINED: u8 = 1;
/// An asynchronous copy writes the byte: nobody may touch it.
const PENDING: u8 = 2;
/// The byte belongs to an mbarrier: nobody may touch it otherwise.
const BARRIER: u8 = 4;
/// The same for four bytes at once.
const ALL_DEFINED: u32 = u32::from_le_bytes([DEFINED; 4]);
const ALL_TAKEN: u32 = u32::from_le_bytes([PENDING | BARRIER; 4]);

/// Shared memory of the blocks that one host thread runs, one after the other.
pub(crate) struct Shared {
    bytes: Vec<u8>,
    /// `DEFINED | PENDING | BARRIER`, one a byte.
    state: Vec<u8>,
    /// Asynchronous reads in flight, for each [`bulk::CHUNK`]; empty if the kernel has none.
    reading: Vec<u16>,
    /// For each thread, up to which of its clocks it has fenced its accesses for the asynchronous proxy.
    fenced: Vec<u32>,
    /// log2 of the bytes that share a stamp: the narrowest access of the kernel.
    granule: u32,
    warp_size: u32,
    stamps: Stamps,
    pub(crate) clocks: Clocks,
}

/// Who accesses: the linear index of the thread in its block.
type Thread = u32;

/// A thread that accesses for itself.
#[inline]
fn actor(clocks: &Clocks, warp_size: u32, thread: Thread) -> Actor<'_> {
    let warp = thread / warp_size;
    Actor { thread, cause: thread, clock: clocks.now(warp), known: clocks.all_known(warp) }
}

/// What two accesses that are not in order are. Who meets an agent has not waited for it.
fn race(clocks: &Clocks, warp_size: u32, conflict: Conflict) -> FaultKind {
    if clocks.is_agent(conflict.other / warp_size) {
        return FaultKind::UsedBeforeWait { what: "shared memory that the copy or matrix unit reads or writes used" };
    }
    FaultKind::SharedRace { other: conflict.other, what: conflict.what }
}

impl Shared {
    /// `granule_bytes` is the width of the kernel's narrowest shared access: 1, 2 or 4; `agents` are the copy and
    /// matrix units that it uses.
    pub(crate) fn new(bytes: u32, granule_bytes: u32, warps: u32, warp_size: u32, agents: Agents) -> Self {
        let (bytes, width, none) = (bytes as usize, (warps + agents.readers) as usize, agents == Agents::NONE);
        let granule = granule_bytes.clamp(1, 4).ilog2();
        Self {
            bytes: vec![0; bytes],
            state: vec![0; bytes],
            reading: if none { Vec::new() } else { vec![0; bytes.div_ceil(bulk::CHUNK as usize)] },
            fenced: if none { Vec::new() } else { vec![0; (warps * warp_size) as usize] },
            granule,
            warp_size,
            stamps: Stamps::new(bytes.div_ceil(1 << granule), width, warp_size),
            clocks: Clocks::new(warps as usize, (agents.readers + agents.writers) as usize),
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
        self.reading.fill(0);
        self.fenced.fill(0);
        if self.clocks.latest() > LAST_CLOCK / 2 {
            self.forget_accesses();
        } else {
            self.clocks.begin_after(self.clocks.latest());
        }
    }

    fn forget_accesses(&mut self) {
        self.stamps.forget();
        self.fenced.fill(0);
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

    /// A warp leaves what it knows, its own past included.
    pub(crate) fn release(&mut self, warp: u32, left: &mut Knowledge) {
        self.make_room();
        self.clocks.release(warp, left);
    }

    /// After a million synchronisations: starts again rather than mistake old stamps for new ones.
    fn make_room(&mut self) {
        // Some fences advance a clock without asking for room.
        if self.clocks.latest() >= LAST_CLOCK - 1024 {
            self.forget_accesses();
        }
    }

    #[inline(always)]
    fn check(&self, address: u32, bytes: u32, align: u32) -> Result<Range<usize>, FaultKind> {
        let end = u64::from(address) + u64::from(bytes);
        if end > self.bytes.len() as u64 {
            return Err(FaultKind::SharedOutOfBounds { bytes, size: self.size() });
        }
        if address & (align - 1) != 0 {
            return Err(FaultKind::Misaligned { align });
        }
        Ok(address as usize..end as usize)
    }

    fn granules(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start >> self.granule..((bytes.end - 1) >> self.granule) + 1
    }

    /// Records a read of `granules` and checks it against writes.
    #[inline]
    fn record_read(&mut self, granules: Range<usize>, thread: Thread) -> Result<(), FaultKind> {
        let read = self.stamps.read(granules, &actor(&self.clocks, self.warp_size, thread));
        read.map_err(|conflict| race(&self.clocks, self.warp_size, conflict))
    }

    /// Records a write of `granules` and checks it against reads and writes; `atomic` is [`ATOMIC`] or 0.
    #[inline]
    fn record_write(&mut self, granules: Range<usize>, thread: Thread, atomic: u32) -> Result<(), FaultKind> {
        let written = self.stamps.write(granules, &actor(&self.clocks, self.warp_size, thread), atomic);
        written.map_err(|conflict| race(&self.clocks, self.warp_size, conflict))
    }

    #[inline(always)]
    fn get(&self, range: Range<usize>) -> Data {
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
    fn set(&mut self, range: Range<usize>, data: Data, pending: u8) {
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

    #[inline(always)]
    fn check_settled(&self, range: &Range<usize>) -> Result<(), FaultKind> {
        let (words, rest) = self.state[range.clone()].as_chunks::<4>();
        let taken = words.iter().any(|s| u32::from_le_bytes(*s) & ALL_TAKEN != 0);
        if taken || rest.iter().any(|s| s & (PENDING | BARRIER) != 0) { Err(self.taken(range)) } else { Ok(()) }
    }

    #[cold]
    fn taken(&self, range: &Range<usize>) -> FaultKind {
        if self.state[range.clone()].iter().any(|s| s & PENDING != 0) {
            return FaultKind::UsedBeforeWait { what: "asynchronous copy to shared memory used" };
        }
        FaultKind::Illegal { what: "an ordinary access to an mbarrier".into() }
    }

    /// As [`check_settled`](Self::check_settled), and no asynchronous read is in flight either.
    #[inline]
    fn check_free(&self, range: &Range<usize>) -> Result<(), FaultKind> {
        self.check_settled(range)?;
        if self.reading.is_empty() { Ok(()) } else { self.check_not_read(range) }
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
        self.check_free(&range)?;
        self.record_write(self.granules(&range), thread, 0)?;
        self.set(range, data, pending);
        Ok(())
    }

    /// The thread has waited for its asynchronous store of these bytes: they are as if it had written them now.
    pub(crate) fn finish_async(&mut self, thread: Thread, address: u32, bytes: u32) {
        self.stamp_async(thread, address, bytes);
        self.settle_async(address, bytes);
    }

    /// The thread leaves its asynchronous store of these bytes to others, who may wait for it: for them it is as if it
    /// had been made now.
    pub(crate) fn stamp_async(&mut self, thread: Thread, address: u32, bytes: u32) {
        let granules = self.granules(&(address as usize..(address + bytes) as usize));
        self.stamps.written(granules, thread, self.clocks.now(thread / self.warp_size));
    }

    /// The asynchronous store of these bytes is done.
    pub(crate) fn settle_async(&mut self, address: u32, bytes: u32) {
        for state in &mut self.state[address as usize..(address + bytes) as usize] {
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
        self.check_free(&range)?;
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
        let mut shared = Shared::new(1024, 4, 2, 32, Agents::NONE);
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
        let mut s = Shared::new(64, 4, 3, 32, Agents::NONE);
        s.begin_block();
        s.write(0, 0, 4, 4, ONE).unwrap();
        s.sync_block(&[0, 1]);
        race(s.read(64, 0, 4, 4), 0);
        s.sync_block(&[1, 2]);
        s.read(64, 0, 4, 4).unwrap();
    }

    #[test]
    fn narrow_granules_do_not_invent_races() {
        let mut s = Shared::new(64, 2, 1, 32, Agents::NONE);
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
