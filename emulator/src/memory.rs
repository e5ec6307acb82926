//! Global memory: allocations with guard zones between, and which of their bytes are defined.
//!
//! Addresses are handed out upwards and never again, so that a stale pointer hits nothing live. Data is kept
//! in 32-bit atomic words that are accessed relaxed: blocks on several host threads may race without undefined
//! behaviour, and the races themselves are found by [`crate::races`].

use crate::{Error, FaultKind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// Address of the first allocation.
const BASE: u64 = 0x7000_0000_0000;
/// Allocations start at multiples of this, as with the vendors' allocators.
const ALIGN: u64 = 256;
/// Least distance between two allocations.
const GUARD: u64 = 1 << 16;
/// Freed allocations that are remembered to name them in a fault.
const REMEMBERED: usize = 1024;

/// What an allocation is for: decides whether undefined data may be stored in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A buffer that somebody reads after the launch: storing undefined data in it is a fault.
    Buffer,
    /// Scratch between kernels: undefined data stored in it stays undefined.
    Workspace,
}

/// One live allocation.
pub(crate) struct Allocation {
    base: u64,
    bytes: u64,
    purpose: Purpose,
    data: Box<[AtomicU32]>,
    /// One bit a byte: set when it is defined.
    defined: Box<[AtomicU32]>,
    /// Makes 64-bit atomics one step.
    wide: Mutex<()>,
}

/// Zeroed words, which the operating system backs when they are first written.
fn zeroed(words: u64) -> Option<Box<[AtomicU32]>> {
    let words = usize::try_from(words).ok()?;
    if words == 0 {
        return Some(Box::default());
    }
    let layout = std::alloc::Layout::array::<AtomicU32>(words).ok()?;
    // SAFETY: the layout's size is not zero, and zeroed memory is a valid array of AtomicU32 of that layout,
    // which the box owns from here on.
    unsafe {
        let pointer = std::alloc::alloc_zeroed(layout).cast::<AtomicU32>();
        (!pointer.is_null()).then(|| Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, words)))
    }
}

impl Allocation {
    fn new(base: u64, bytes: u64, purpose: Purpose) -> Option<Self> {
        let data = zeroed(bytes.div_ceil(4))?;
        let defined = zeroed(bytes.div_ceil(32))?;
        Some(Self { base, bytes, purpose, data, defined, wide: Mutex::new(()) })
    }

    fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }

    /// Replaces the bits of `mask` in word `index` by those of `value`.
    #[inline]
    fn merge(words: &[AtomicU32], index: usize, mask: u32, value: u32) {
        let word = &words[index];
        let old = word.load(Relaxed);
        if old & mask == value & mask {
            return;
        }
        if mask == u32::MAX {
            word.store(value, Relaxed);
        } else {
            let _ = word.fetch_update(Relaxed, Relaxed, |old| Some(old & !mask | value & mask));
        }
    }

    fn set_defined(&self, offset: u64, bytes: u64, defined: bool) {
        let value = if defined { u32::MAX } else { 0 };
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let bit = at % 32;
            let count = (32 - bit).min(end - at);
            let mask = (u32::MAX >> (32 - count)) << bit;
            Self::merge(&self.defined, (at / 32) as usize, mask, value);
            at += count;
        }
    }

    fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let at = offset + i as u64;
            let shift = at % 4 * 8;
            Self::merge(&self.data, (at / 4) as usize, 0xff << shift, u32::from(byte) << shift);
        }
    }

    fn read_byte(&self, offset: u64) -> u8 {
        (self.data[(offset / 4) as usize].load(Relaxed) >> (offset % 4 * 8)) as u8
    }
}

/// A device's global memory, seen by the host.
pub(crate) struct Memory {
    capacity: u64,
    next: AtomicU64,
    used: AtomicU64,
    live: RwLock<Arc<Vec<Arc<Allocation>>>>,
    freed: Mutex<std::collections::VecDeque<(u64, u64)>>,
}

impl Memory {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            next: AtomicU64::new(BASE),
            used: AtomicU64::new(0),
            live: RwLock::default(),
            freed: Mutex::default(),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(crate) fn alloc(&self, bytes: u64, purpose: Purpose) -> Result<u64, Error> {
        let mut live = self.live.write().expect("no panic while the lock is held");
        let used = self.used();
        let out_of_memory = || Error::OutOfMemory { asked: bytes, free: self.capacity - used, capacity: self.capacity };
        if bytes > self.capacity - used {
            return Err(out_of_memory());
        }
        let base = self.next.load(Relaxed);
        let allocation = Allocation::new(base, bytes, purpose).ok_or_else(out_of_memory)?;
        self.next.store((base + bytes + GUARD).next_multiple_of(ALIGN), Relaxed);
        self.used.store(used + bytes, Relaxed);
        Arc::make_mut(&mut live).push(Arc::new(allocation));
        Ok(base)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), Error> {
        let mut live = self.live.write().expect("no panic while the lock is held");
        let index = live.binary_search_by_key(&address, |a| a.base).map_err(|_| Error::NotAnAllocation { address })?;
        let allocation = Arc::make_mut(&mut live).remove(index);
        self.used.fetch_sub(allocation.bytes, Relaxed);
        let mut freed = self.freed.lock().expect("no panic while the lock is held");
        freed.push_back((allocation.base, allocation.bytes));
        if freed.len() > REMEMBERED {
            freed.pop_front();
        }
        Ok(())
    }

    /// The allocations that are live now. A launch keeps them until it ends.
    pub(crate) fn snapshot(&self) -> Arc<Vec<Arc<Allocation>>> {
        self.live.read().expect("no panic while the lock is held").clone()
    }

    fn find(&self, address: u64, bytes: u64) -> Result<(Arc<Allocation>, u64), Error> {
        let live = self.snapshot();
        let index = live.partition_point(|a| a.base <= address);
        match index.checked_sub(1).map(|i| &live[i]) {
            Some(allocation) if allocation.contains(address, bytes) => {
                Ok((allocation.clone(), address - allocation.base))
            }
            _ => Err(Error::HostAccess { address, bytes }),
        }
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let (allocation, offset) = self.find(address, bytes.len() as u64)?;
        let head = bytes.len().min((offset.next_multiple_of(4) - offset) as usize);
        allocation.write_bytes(offset, &bytes[..head]);
        let (words, tail) = bytes[head..].as_chunks::<4>();
        let first = ((offset + head as u64) / 4) as usize;
        for (i, word) in words.iter().enumerate() {
            allocation.data[first + i].store(u32::from_le_bytes(*word), Relaxed);
        }
        allocation.write_bytes(offset + (bytes.len() - tail.len()) as u64, tail);
        allocation.set_defined(offset, bytes.len() as u64, true);
        Ok(())
    }

    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let (allocation, offset) = self.find(address, bytes.len() as u64)?;
        let head = bytes.len().min((offset.next_multiple_of(4) - offset) as usize);
        for (i, byte) in bytes[..head].iter_mut().enumerate() {
            *byte = allocation.read_byte(offset + i as u64);
        }
        let first = ((offset + head as u64) / 4) as usize;
        let (words, tail) = bytes[head..].as_chunks_mut::<4>();
        for (i, word) in words.iter_mut().enumerate() {
            *word = allocation.data[first + i].load(Relaxed).to_le_bytes();
        }
        let tail_offset = offset + head as u64 + words.len() as u64 * 4;
        for (i, byte) in tail.iter_mut().enumerate() {
            *byte = allocation.read_byte(tail_offset + i as u64);
        }
        Ok(())
    }

    pub(crate) fn fill(&self, address: u64, byte: u8, bytes: u64) -> Result<(), Error> {
        let (allocation, offset) = self.find(address, bytes)?;
        let end = offset + bytes;
        let first = offset.next_multiple_of(4).min(end);
        let last = (end / 4 * 4).max(first);
        for at in (offset..first).chain(last..end) {
            allocation.write_bytes(at, &[byte]);
        }
        for word in &allocation.data[(first / 4) as usize..(last / 4).max(first / 4) as usize] {
            word.store(u32::from_le_bytes([byte; 4]), Relaxed);
        }
        allocation.set_defined(offset, bytes, true);
        Ok(())
    }

    /// The first undefined byte of a range, if any.
    pub(crate) fn undefined(&self, address: u64, bytes: u64) -> Result<Option<u64>, Error> {
        let (allocation, offset) = self.find(address, bytes)?;
        let defined = |at: u64| allocation.defined[(at / 32) as usize].load(Relaxed) >> (at % 32) & 1 != 0;
        Ok((offset..offset + bytes).find(|&at| !defined(at)).map(|at| allocation.base + at))
    }

    /// Describes what lies around an address that is in no live allocation.
    fn near(&self, allocations: &[Arc<Allocation>], address: u64) -> String {
        let freed = self.freed.lock().expect("no panic while the lock is held");
        if let Some((base, bytes)) = freed.iter().rev().find(|(base, bytes)| (*base..base + bytes).contains(&address)) {
            return format!("inside {bytes} bytes at {base:#x}, which were freed");
        }
        let index = allocations.partition_point(|a| a.base <= address);
        let before = index.checked_sub(1).map(|i| &allocations[i]);
        let after = allocations.get(index);
        let distance_before = before.map_or(u64::MAX, |a| address - a.base);
        let distance_after = after.map_or(u64::MAX, |a| a.base - address);
        match (before, after) {
            (Some(a), _) if distance_before.saturating_sub(a.bytes) <= distance_after => {
                format!("at offset {distance_before} from the start of {} bytes at {:#x}", a.bytes, a.base)
            }
            (_, Some(a)) => format!("{distance_after} bytes before {} bytes at {:#x}", a.bytes, a.base),
            _ => "there is none".to_owned(),
        }
    }
}

/// Up to 16 bytes as a lane loads or stores them, in 32-bit words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Data {
    /// The words; unused ones, and the unused part of a sub-word access, are 0.
    pub(crate) words: [u32; 4],
    /// One bit a word: set when any of its bytes is undefined.
    pub(crate) undefined: u8,
}

/// Global memory as the threads of one block see it: the allocations at launch, and the last one used.
pub(crate) struct View<'a> {
    memory: &'a Memory,
    allocations: &'a [Arc<Allocation>],
    last: usize,
}

impl<'a> View<'a> {
    pub(crate) fn new(memory: &'a Memory, allocations: &'a [Arc<Allocation>]) -> Self {
        Self { memory, allocations, last: 0 }
    }

    /// The allocation that holds the access, and the offset in it.
    #[inline]
    fn find(&mut self, address: u64, bytes: u32, align: u32) -> Result<(&'a Allocation, u64), FaultKind> {
        let allocation = match self.allocations.get(self.last) {
            Some(allocation) if allocation.contains(address, u64::from(bytes)) => allocation,
            _ => self.find_slowly(address, bytes)?,
        };
        if address & u64::from(align - 1) != 0 {
            return Err(FaultKind::Misaligned { align });
        }
        Ok((allocation, address - allocation.base))
    }

    #[cold]
    fn find_slowly(&mut self, address: u64, bytes: u32) -> Result<&'a Arc<Allocation>, FaultKind> {
        let index = self.allocations.partition_point(|a| a.base <= address);
        if let Some(i) = index.checked_sub(1)
            && self.allocations[i].contains(address, u64::from(bytes))
        {
            self.last = i;
            return Ok(&self.allocations[i]);
        }
        Err(FaultKind::GlobalOutOfBounds { bytes, near: self.memory.near(self.allocations, address) })
    }

    /// Loads 1, 2, 4, 8, 12 or 16 bytes. `align` is a power of two, at least `min(bytes, 4)`.
    #[inline]
    pub(crate) fn read(&mut self, address: u64, bytes: u32, align: u32) -> Result<Data, FaultKind> {
        debug_assert!(align >= bytes.min(4) && bytes <= 16);
        let (allocation, offset) = self.find(address, bytes, align)?;
        let mut data = Data::default();
        let index = (offset / 4) as usize;
        for (i, word) in data.words.iter_mut().enumerate().take(bytes.div_ceil(4) as usize) {
            *word = allocation.data[index + i].load(Relaxed);
        }
        if bytes < 4 {
            data.words[0] = data.words[0] >> (offset % 4 * 8) & (u32::MAX >> (32 - bytes * 8));
        }
        // An access of 16 bytes at a multiple of 4 may straddle two words of 32 bits, one a byte.
        let first = (offset / 32) as usize;
        let mut bits = u64::from(allocation.defined[first].load(Relaxed));
        if let Some(second) = allocation.defined.get(first + 1)
            && offset % 32 + u64::from(bytes) > 32
        {
            bits |= u64::from(second.load(Relaxed)) << 32;
        }
        let bits = bits >> (offset % 32);
        let wanted = (1u64 << bytes) - 1;
        if bits & wanted != wanted {
            let missing = !bits & wanted;
            for word in 0..4 {
                data.undefined |= u8::from(missing >> (4 * word) & 0xf != 0) << word;
            }
        }
        Ok(data)
    }

    /// Stores 1, 2, 4, 8, 12 or 16 bytes; `align` as for [`read`](Self::read). Undefined words are a fault,
    /// except in a workspace, whose bytes become undefined.
    #[inline]
    pub(crate) fn write(&mut self, address: u64, bytes: u32, align: u32, data: Data) -> Result<(), FaultKind> {
        debug_assert!(align >= bytes.min(4) && bytes <= 16);
        let (allocation, offset) = self.find(address, bytes, align)?;
        if data.undefined != 0 && allocation.purpose == Purpose::Buffer {
            return Err(FaultKind::Undefined { sink: "a store to a buffer" });
        }
        let index = (offset / 4) as usize;
        if bytes < 4 {
            let shift = offset % 4 * 8;
            let mask = u32::MAX >> (32 - bytes * 8);
            Allocation::merge(&allocation.data, index, mask << shift, data.words[0] << shift);
        } else {
            for (i, word) in data.words.iter().enumerate().take(bytes as usize / 4) {
                allocation.data[index + i].store(*word, Relaxed);
            }
        }
        if data.undefined == 0 {
            allocation.set_defined(offset, u64::from(bytes), true);
        } else {
            for word in 0..bytes.div_ceil(4) {
                let defined = data.undefined >> word & 1 == 0;
                allocation.set_defined(offset + u64::from(word) * 4, u64::from(bytes.min(4)), defined);
            }
        }
        Ok(())
    }

    /// Replaces 4 or 8 bytes in one step by what `update` makes of them (`None`: leaves them), and returns the
    /// old value and whether it was undefined.
    pub(crate) fn atomic(
        &mut self,
        address: u64,
        bytes: u32,
        mut update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<(u64, bool), FaultKind> {
        let undefined = self.read(address, bytes, bytes)?.undefined != 0;
        let (allocation, offset) = self.find(address, bytes, bytes)?;
        let index = (offset / 4) as usize;
        let old = if bytes == 4 {
            let step = |old: u32| update(u64::from(old)).map(|new| new as u32);
            let (Ok(old) | Err(old)) = allocation.data[index].fetch_update(Relaxed, Relaxed, step);
            u64::from(old)
        } else {
            let _one_at_a_time = allocation.wide.lock().expect("no panic while the lock is held");
            let [low, high] = [0, 1].map(|i| u64::from(allocation.data[index + i].load(Relaxed)));
            let old = low | high << 32;
            if let Some(new) = update(old) {
                allocation.data[index].store(new as u32, Relaxed);
                allocation.data[index + 1].store((new >> 32) as u32, Relaxed);
            }
            old
        };
        Ok((old, undefined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_reads_what_it_wrote_at_any_offset() {
        let memory = Memory::new(1 << 20);
        let base = memory.alloc(64, Purpose::Buffer).unwrap();
        memory.fill(base, 0xee, 64).unwrap();
        for (offset, length) in [(0, 16), (1, 1), (3, 9), (5, 0), (7, 21), (61, 3)] {
            let bytes: Vec<u8> = (0..length).map(|i| (offset * 7 + i) as u8).collect();
            memory.write(base + offset, &bytes).unwrap();
            let mut back = vec![0; length as usize];
            memory.read(base + offset, &mut back).unwrap();
            assert_eq!(back, bytes);
        }
        assert!(matches!(memory.write(base + 60, &[0; 5]), Err(Error::HostAccess { bytes: 5, .. })));
        memory.free(base).unwrap();
        assert!(matches!(memory.read(base, &mut [0]), Err(Error::HostAccess { .. })));
        assert!(matches!(memory.free(base), Err(Error::NotAnAllocation { .. })));
    }

    #[test]
    fn fill_keeps_its_neighbours() {
        let memory = Memory::new(1 << 20);
        let base = memory.alloc(32, Purpose::Buffer).unwrap();
        for (offset, length) in [(1, 2), (1, 3), (2, 9), (4, 8), (7, 1), (0, 0)] {
            memory.fill(base, 1, 32).unwrap();
            memory.fill(base + offset, 2, length).unwrap();
            let mut back = [0; 32];
            memory.read(base, &mut back).unwrap();
            for (i, byte) in back.into_iter().enumerate() {
                let inside = (offset..offset + length).contains(&(i as u64));
                assert_eq!(byte, if inside { 2 } else { 1 }, "offset {offset} length {length} byte {i}");
            }
        }
    }

    #[test]
    fn undefined_bytes_are_tracked_one_by_one() {
        let memory = Memory::new(1 << 20);
        let base = memory.alloc(64, Purpose::Workspace).unwrap();
        memory.write(base, &[1; 5]).unwrap();
        assert_eq!(memory.undefined(base, 5).unwrap(), None);
        assert_eq!(memory.undefined(base, 64).unwrap(), Some(base + 5));
        let snapshot = memory.snapshot();
        let mut view = View::new(&memory, &snapshot);
        assert_eq!(view.read(base, 8, 8).unwrap().undefined, 0b10);
        assert_eq!(view.read(base + 4, 1, 1).unwrap().undefined, 0);
        view.write(base + 28, 16, 4, Data { words: [1, 2, 3, 4], undefined: 0b0100 }).unwrap();
        assert_eq!(view.read(base + 28, 16, 4).unwrap(), Data { words: [1, 2, 3, 4], undefined: 0b0100 });
    }

    #[test]
    fn a_view_refuses_what_is_outside() {
        let memory = Memory::new(1 << 20);
        let first = memory.alloc(16, Purpose::Buffer).unwrap();
        let second = memory.alloc(16, Purpose::Buffer).unwrap();
        assert!(second - first >= GUARD && second.is_multiple_of(ALIGN));
        let snapshot = memory.snapshot();
        let mut view = View::new(&memory, &snapshot);
        assert!(view.read(first, 16, 16).is_ok());
        assert!(matches!(view.read(first + 4, 16, 4), Err(FaultKind::GlobalOutOfBounds { bytes: 16, .. })));
        assert_eq!(view.read(first + 2, 4, 4), Err(FaultKind::Misaligned { align: 4 }));
        assert!(view.read(0, 4, 4).is_err());
        let undefined = Data { words: [0; 4], undefined: 1 };
        assert!(matches!(view.write(first, 4, 4, undefined), Err(FaultKind::Undefined { .. })));
        assert!(
            matches!(memory.alloc(1 << 20, Purpose::Buffer), Err(Error::OutOfMemory { free, .. }) if free == (1 << 20) - 32)
        );
    }

    #[test]
    fn atomics_return_the_old_value() {
        let memory = Memory::new(1 << 20);
        let base = memory.alloc(16, Purpose::Buffer).unwrap();
        memory.fill(base, 0, 16).unwrap();
        let snapshot = memory.snapshot();
        let mut view = View::new(&memory, &snapshot);
        assert_eq!(view.atomic(base, 4, |x| Some(x + 5)).unwrap(), (0, false));
        assert_eq!(view.atomic(base, 4, |_| None).unwrap(), (5, false));
        assert_eq!(view.atomic(base + 8, 8, |x| Some(x.wrapping_sub(1))).unwrap(), (0, false));
        assert_eq!(view.atomic(base + 8, 8, |_| None).unwrap(), (u64::MAX, false));
    }
}
