//! Races between blocks in global memory.
//!
//! Each block logs the bytes it reads, writes and accesses atomically, as exact sets in pages of bitmaps. When
//! a block is done its sets are merged, in block order, with those of the blocks before it: a byte that one
//! block wrote and another touched is a race, unless both accesses were atomic. The answer does not depend on
//! which block the host happened to run first. Blocks that order each other are the matter of [`crate::order`].
//!
//! Cost: 3 bits for each byte of a page that is touched, and 8 bytes for each word of a page that is written.

use std::collections::HashMap;

const PAGE: u64 = 4096;
const WORDS: usize = (PAGE / 64) as usize;
/// Direct-mapped cache of pages, since lanes and warps come back to the same few.
const CACHE: usize = 64;

/// Where an access was made: instruction and thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Site {
    /// Index of the instruction in the decoded kernel.
    pub(crate) pc: u32,
    /// Linear index of the thread in the block.
    pub(crate) thread: u32,
}

/// How bytes are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A plain load.
    Read,
    /// A plain store.
    Write,
    /// An atomic operation, or a load or store that is ordered like one (volatile, relaxed, acquire, release).
    Atomic,
}

/// What was done to one page.
pub(crate) struct Page {
    read: [u64; WORDS],
    write: [u64; WORDS],
    atomic: [u64; WORDS],
    /// Who last wrote each word, plainly or atomically; only in pages that are written.
    writers: Option<Box<[Writer; (PAGE / 4) as usize]>>,
}

#[derive(Clone, Copy, Default)]
struct Writer {
    block: u32,
    /// `pc << 10 | thread`.
    site: u32,
}

impl Writer {
    fn site(self) -> Site {
        Site { pc: self.site >> 10, thread: self.site & 1023 }
    }
}

impl Page {
    const EMPTY: Self = Self { read: [0; WORDS], write: [0; WORDS], atomic: [0; WORDS], writers: None };

    fn set(&mut self, access: Access) -> &mut [u64; WORDS] {
        match access {
            Access::Read => &mut self.read,
            Access::Write => &mut self.write,
            Access::Atomic => &mut self.atomic,
        }
    }

    /// First byte of the page that is in conflict with `other`'s accesses.
    fn conflict(&self, other: &Self) -> Option<u64> {
        (0..WORDS).find_map(|i| {
            let bits = self.write[i] & (other.write[i] | other.read[i] | other.atomic[i])
                | other.write[i] & (self.read[i] | self.atomic[i])
                | self.atomic[i] & other.read[i]
                | other.atomic[i] & self.read[i];
            (bits != 0).then(|| i as u64 * 64 + u64::from(bits.trailing_zeros()))
        })
    }

    fn absorb(&mut self, other: Self) {
        for i in 0..WORDS {
            self.read[i] |= other.read[i];
            self.write[i] |= other.write[i];
            self.atomic[i] |= other.atomic[i];
        }
        match (&mut self.writers, other.writers) {
            (mine @ None, theirs) => *mine = theirs,
            (Some(mine), Some(theirs)) => {
                for (mine, theirs) in mine.iter_mut().zip(*theirs) {
                    if theirs.block != 0 {
                        *mine = theirs;
                    }
                }
            }
            (Some(_), None) => {}
        }
    }

    /// Whether anything in the page is written, plainly or atomically.
    pub(crate) fn is_written(&self) -> bool {
        self.writers.is_some()
    }

    /// The first conflict with `other`, a later page of the same number. `blocks` are the two pages' blocks, where
    /// they are of one block each.
    pub(crate) fn race(&self, other: &Self, number: u64, blocks: (Option<u64>, Option<u64>)) -> Option<Race> {
        let byte = self.conflict(other)?;
        let address = number * PAGE + byte;
        // Whichever of the two wrote is known exactly.
        Some(match (other.writer(byte), self.writer(byte)) {
            (Some((block, site)), first) => Race { address, block, site, other: first.map(|w| w.0).or(blocks.0) },
            (None, Some((block, site))) => Race { address, block, site, other: blocks.1 },
            (None, None) => unreachable!("one of two accesses in conflict wrote"),
        })
    }

    /// The block that last wrote the word of `byte` and where, if one did.
    fn writer(&self, byte: u64) -> Option<(u64, Site)> {
        let writer = self.writers.as_ref()?[(byte / 4) as usize];
        (writer.block != 0).then(|| (u64::from(writer.block - 1), writer.site()))
    }
}

/// What one block did to global memory.
pub(crate) struct AccessLog {
    /// Linear index of the block, plus 1.
    block: u32,
    index: HashMap<u64, usize>,
    pages: Vec<Page>,
    cache: Box<[(u64, usize); CACHE]>,
}

impl AccessLog {
    /// An empty log of the block with this linear index (below 2^32 - 1).
    pub(crate) fn new(block: u64) -> Self {
        let block = u32::try_from(block + 1).expect("a grid has less than 2^32 - 1 blocks");
        Self { block, index: HashMap::new(), pages: Vec::new(), cache: Box::new([(u64::MAX, 0); CACHE]) }
    }

    #[inline]
    fn page(&mut self, number: u64) -> &mut Page {
        let slot = &mut self.cache[number as usize % CACHE];
        if slot.0 != number {
            let pages = &mut self.pages;
            let index = *self.index.entry(number).or_insert_with(|| {
                pages.push(Page::EMPTY);
                pages.len() - 1
            });
            *slot = (number, index);
        }
        &mut self.pages[slot.1]
    }

    /// Whether nothing has been logged.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The pages that were touched, with their numbers.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.index.iter().map(|(&number, &index)| (number, &self.pages[index]))
    }

    /// Logs an access of at most 16 bytes.
    #[inline]
    pub(crate) fn add(&mut self, access: Access, address: u64, bytes: u32, site: Site) {
        let offset = address % PAGE;
        if offset + u64::from(bytes) > PAGE {
            let head = (PAGE - offset) as u32;
            self.add(access, address, head, site);
            return self.add(access, address + u64::from(head), bytes - head, site);
        }
        let block = self.block;
        let page = self.page(address / PAGE);
        let (word, bit) = ((offset / 64) as usize, offset % 64);
        let mask = u128::from(u64::MAX >> (64 - bytes)) << bit;
        let set = page.set(access);
        set[word] |= mask as u64;
        if (mask >> 64) as u64 != 0 {
            set[word + 1] |= (mask >> 64) as u64;
        }
        if access != Access::Read {
            let writers = page.writers.get_or_insert_with(|| Box::new([Writer::default(); (PAGE / 4) as usize]));
            for writer in &mut writers[(offset / 4) as usize..=((offset + u64::from(bytes) - 1) / 4) as usize] {
                *writer = Writer { block, site: site.pc << 10 | site.thread };
            }
        }
    }
}

/// A race that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Race {
    /// The address.
    pub(crate) address: u64,
    /// Linear index of the block whose access is named.
    pub(crate) block: u64,
    /// That access.
    pub(crate) site: Site,
    /// Linear index of the other block, if it is known.
    pub(crate) other: Option<u64>,
}

/// What all blocks merged so far did.
#[derive(Default)]
pub(crate) struct Merged {
    pages: HashMap<u64, Page>,
}

impl Merged {
    /// Adds a block's log, or says where it races with the blocks before.
    pub(crate) fn merge(&mut self, log: AccessLog) -> Result<(), Race> {
        let mut numbers: Vec<(u64, usize)> = log.index.into_iter().collect();
        numbers.sort_unstable();
        let mut pages: Vec<Option<Page>> = log.pages.into_iter().map(Some).collect();
        let this = u64::from(log.block - 1);
        for (number, index) in numbers {
            let page = pages[index].take().expect("each page is in the index once");
            let Some(before) = self.pages.get_mut(&number) else {
                self.pages.insert(number, page);
                continue;
            };
            if let Some(race) = before.race(&page, number, (None, Some(this))) {
                return Err(race);
            }
            before.absorb(page);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(accesses: &[(u64, Access, u64, u32)]) -> Result<(), Race> {
        let mut all = Merged::default();
        for block in 0..3 {
            let mut log = AccessLog::new(block);
            for &(_, access, address, bytes) in accesses.iter().filter(|a| a.0 == block) {
                log.add(access, address, bytes, Site { pc: 7, thread: 3 });
            }
            all.merge(log)?;
        }
        Ok(())
    }

    #[test]
    fn finds_exactly_the_bytes_in_conflict() {
        use Access::{Atomic, Read, Write};
        let site = Site { pc: 7, thread: 3 };
        assert_eq!(merged(&[(0, Write, 100, 2), (1, Write, 102, 2), (2, Read, 104, 16), (1, Read, 104, 16)]), Ok(()));
        assert_eq!(merged(&[(0, Write, 4094, 4), (0, Read, 4094, 4), (0, Atomic, 4094, 4)]), Ok(()), "own bytes");
        assert_eq!(
            merged(&[(0, Write, 4090, 8), (2, Read, 4096, 4)]),
            Err(Race { address: 4096, block: 0, site, other: Some(2) })
        );
        assert_eq!(
            merged(&[(0, Read, 56, 16), (1, Write, 64, 4)]),
            Err(Race { address: 64, block: 1, site, other: None })
        );
        assert_eq!(
            merged(&[(0, Write, 8, 4), (1, Write, 8, 4)]),
            Err(Race { address: 8, block: 1, site, other: Some(0) })
        );
        assert_eq!(merged(&[(0, Atomic, 8, 4), (1, Atomic, 8, 4)]), Ok(()));
        assert!(merged(&[(0, Atomic, 8, 4), (1, Read, 8, 4)]).is_err());
        assert!(merged(&[(0, Write, 8, 4), (1, Atomic, 8, 4)]).is_err());
    }
}
