//! Races in global memory where blocks order each other: release, atomic, acquire.
//!
//! Used for kernels whose blocks can see each other ([`KernelInfo::ordered`](crate::engine::KernelInfo)). The
//! accesses of each warp are logged in segments; a segment ends where others may be ordered after it (a barrier, a
//! release) or it after others (an acquire). Segments of two blocks are ordered if the later one's warp knew the
//! earlier one's end when it began. What a warp knows of other blocks travels:
//!
//! - a release fence takes what the warp knows, its own past included, and the warp's next atomic write leaves
//!   it at its address;
//! - an atomic read takes what lies at its address, and the warp's next acquire fence makes it known;
//! - a barrier makes its warps know what any of them knows.
//!
//! Within a warp, program order counts: a lane's fence covers the whole warp.

use crate::clocks::{self, Clocks};
use crate::races::{Access, AccessLog, Page, Race, Site};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// For each block, up to which clock each of its warps' past is known.
type Knowledge = BTreeMap<u64, Vec<u32>>;

/// Adds `more` to `known`.
fn learn(known: &mut Arc<Knowledge>, more: &Arc<Knowledge>) {
    if Arc::ptr_eq(known, more) || more.is_empty() {
        return;
    }
    if known.is_empty() {
        known.clone_from(more);
        return;
    }
    let known = Arc::make_mut(known);
    for (&block, clocks) in more.iter() {
        let mine = known.entry(block).or_insert_with(|| vec![0; clocks.len()]);
        for (mine, clock) in mine.iter_mut().zip(clocks) {
            *mine = (*mine).max(*clock);
        }
    }
}

/// Whether `known` holds all of `more`.
fn covers(known: &Knowledge, more: &Knowledge) -> bool {
    let of = |(block, clocks): (&u64, &Vec<u32>)| {
        known.get(block).is_some_and(|mine| mine.iter().zip(clocks).all(|(mine, clock)| mine >= clock))
    };
    more.iter().all(of)
}

/// What releases have left at the addresses of atomics, for all blocks of a launch.
#[derive(Default)]
pub(crate) struct Releases(Mutex<HashMap<u64, Arc<Knowledge>>>);

/// What warps leave for others of their block.
#[derive(Clone, Default)]
pub(crate) struct Left {
    clocks: clocks::Knowledge,
    known: Arc<Knowledge>,
}

impl Left {
    pub(crate) fn add(&mut self, other: &Self) {
        self.clocks.add(&other.clocks);
        learn(&mut self.known, &other.known);
    }
}

/// Accesses of one warp between two points where order may change.
pub(crate) struct Segment {
    block: u64,
    warp: u32,
    /// The warp's clock at the end.
    end: u32,
    /// What was known of other blocks from the beginning on.
    known: Arc<Knowledge>,
    log: AccessLog,
}

/// One warp's open segment and what travels with it.
struct Open {
    known: Arc<Knowledge>,
    /// What the last release fence took.
    to_release: Option<Arc<Knowledge>>,
    /// What atomic reads have taken since the last acquire fence.
    acquired: Arc<Knowledge>,
    log: AccessLog,
}

/// What one block did to global memory, and in which order.
pub(crate) struct OrderedLog<'a> {
    block: u64,
    warp_size: u32,
    releases: &'a Releases,
    clocks: Clocks,
    warps: Vec<Open>,
    segments: Vec<Segment>,
}

impl<'a> OrderedLog<'a> {
    pub(crate) fn new(block: u64, warps: u32, warp_size: u32, releases: &'a Releases) -> Self {
        let open =
            || Open { known: Arc::default(), to_release: None, acquired: Arc::default(), log: AccessLog::new(block) };
        let clocks = Clocks::new(warps as usize, 0);
        Self { block, warp_size, releases, clocks, warps: (0..warps).map(|_| open()).collect(), segments: Vec::new() }
    }

    /// Ends a warp's segment; its clock advances after that.
    fn close(&mut self, warp: u32) {
        let open = &mut self.warps[warp as usize];
        if !open.log.is_empty() {
            let log = std::mem::replace(&mut open.log, AccessLog::new(self.block));
            let known = open.known.clone();
            self.segments.push(Segment { block: self.block, warp, end: self.clocks.now(warp), known, log });
        }
    }

    /// Logs an access. `reads` and `writes` say what an atomic does.
    pub(crate) fn add(&mut self, access: Access, address: u64, bytes: u32, site: Site, reads: bool, writes: bool) {
        let open = &mut self.warps[(site.thread / self.warp_size) as usize];
        open.log.add(access, address, bytes, site);
        if access == Access::Atomic {
            let mut releases = self.releases.0.lock().expect("no panic while the lock is held");
            if reads && let Some(left) = releases.get(&address) {
                learn(&mut open.acquired, left);
            }
            match &open.to_release {
                // An atomic that also reads goes on with what was left before it; a store ends that.
                Some(known) if writes && reads => learn(releases.entry(address).or_default(), known),
                Some(known) if writes => drop(releases.insert(address, known.clone())),
                None if writes && !reads => drop(releases.remove(&address)),
                _ => {}
            }
        }
    }

    /// A fence at the scope of the device or wider.
    pub(crate) fn fence(&mut self, warp: u32, acquire: bool, release: bool) {
        let w = warp as usize;
        if acquire {
            let acquired = std::mem::take(&mut self.warps[w].acquired);
            self.learn(warp, &acquired);
        }
        if release {
            self.close(warp);
            self.clocks.advance(warp);
            let own: Vec<u32> = (0..self.warps.len() as u32).map(|v| self.clocks.known(warp, v)).collect();
            let mut known = self.warps[w].known.clone();
            learn(&mut known, &Arc::new(Knowledge::from([(self.block, own)])));
            self.warps[w].to_release = Some(known);
        }
    }

    /// What a warp does from now on comes after what it learns. Asking again and again teaches it nothing.
    fn learn(&mut self, warp: u32, more: &Arc<Knowledge>) {
        if !covers(&self.warps[warp as usize].known, more) {
            self.close(warp);
            self.clocks.advance(warp);
            learn(&mut self.warps[warp as usize].known, more);
        }
    }

    /// A warp leaves what it knows for others of its block.
    pub(crate) fn release(&mut self, warp: u32, left: &mut Left) {
        self.close(warp);
        self.clocks.release(warp, &mut left.clocks);
        learn(&mut left.known, &self.warps[warp as usize].known);
    }

    /// A warp finds what others of its block have left.
    pub(crate) fn acquire(&mut self, warp: u32, left: &Left) {
        self.clocks.acquire(warp, &left.clocks);
        self.learn(warp, &left.known);
    }

    /// These warps have met at a barrier.
    pub(crate) fn meet(&mut self, warps: &[u32]) {
        for &warp in warps {
            self.close(warp);
        }
        self.clocks.meet(warps);
        let mut known = Arc::default();
        for &warp in warps {
            learn(&mut known, &self.warps[warp as usize].known);
        }
        for &warp in warps {
            self.warps[warp as usize].known = known.clone();
        }
    }

    /// All segments, when the block is done.
    pub(crate) fn finish(mut self) -> Vec<Segment> {
        for warp in 0..self.warps.len() as u32 {
            self.close(warp);
        }
        self.segments
    }
}

impl Segment {
    /// Whether all of this comes before all of `other`.
    fn before(&self, other: &Self) -> bool {
        other.known.get(&self.block).is_some_and(|clocks| clocks[self.warp as usize] >= self.end)
    }
}

/// The race with the lowest address among all blocks' segments, if there is one.
pub(crate) fn find_race(segments: &[Segment]) -> Option<Race> {
    let mut pages: BTreeMap<u64, Vec<(&Segment, &Page)>> = BTreeMap::new();
    for segment in segments {
        for (number, page) in segment.log.pages() {
            pages.entry(number).or_default().push((segment, page));
        }
    }
    for (number, touched) in pages {
        let mut found: Option<Race> = None;
        for (i, (first, page)) in touched.iter().enumerate().filter(|(_, (_, page))| page.is_written()) {
            // Pairs of two writers come up twice; once is enough.
            for (j, (second, other)) in touched.iter().enumerate() {
                if first.block == second.block || j < i && other.is_written() {
                    continue;
                }
                if !first.before(second)
                    && !second.before(first)
                    && let Some(race) = page.race(other, number, (Some(first.block), Some(second.block)))
                    && found.is_none_or(|found| race.address < found.address)
                {
                    found = Some(race);
                }
            }
        }
        if found.is_some() {
            return found;
        }
    }
    None
}
