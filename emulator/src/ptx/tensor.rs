//! Tensor memory: 128 lanes of 512 columns of 32 bits, which warps allocate by columns.
//!
//! A warp reaches the 32 lanes of its quadrant only. Accesses are asynchronous: until the wait that completes them, or
//! the mbarrier that products signal, what they touch must be left alone. Order between threads counts only with the
//! fences of tcgen05 on both sides of their synchronisation.

use crate::FaultKind;
use crate::clocks::Clocks;
use crate::stamps::{Actor, Conflict, Stamps};

pub(super) const LANES: u32 = 128;
pub(super) const COLUMNS: u32 = 512;
/// Lanes that a warp reaches.
pub(super) const QUADRANT: u32 = 32;
const QUADRANTS: u32 = LANES / QUADRANT;

/// Some columns in some quadrants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) column: u32,
    pub(super) columns: u32,
    /// `None`: all.
    pub(super) quadrant: Option<u32>,
}

impl Region {
    /// The region's granules: a column of a quadrant each.
    fn granules(self) -> impl Iterator<Item = usize> {
        let quadrants = self.quadrant.map_or(0..QUADRANTS, |quadrant| quadrant..quadrant + 1);
        quadrants.flat_map(move |q| (self.column..self.column + self.columns).map(move |c| (q * COLUMNS + c) as usize))
    }
}

/// What is in flight in a granule.
#[derive(Clone, Copy, Default)]
struct InFlight {
    /// Products that write it, and that read it.
    written: u16,
    read: u16,
    /// Warps that store to it, and that load from it.
    stores: u32,
    loads: u32,
}

/// What a warp does with tensor memory, or a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Load,
    Store,
    /// A product reads its operand, or writes its accumulator.
    Operand,
    Accumulator,
}

/// A block's tensor memory.
pub(super) struct TensorMemory {
    /// `values[lane * COLUMNS + column]`.
    values: Vec<u32>,
    undefined: Vec<bool>,
    in_flight: Vec<InFlight>,
    stamps: Stamps,
    /// The clocks' era that the stamps are from.
    era: u32,
    /// First column and number of columns.
    allocations: Vec<(u32, u32)>,
    pub(super) relinquished: bool,
    /// Regions that each warp loads or stores without having waited.
    unfinished: Vec<(u32, Use, Region)>,
}

/// A rule that is broken.
fn rule(what: String) -> FaultKind {
    FaultKind::TensorMemory { what }
}

impl TensorMemory {
    /// `width` warps and agents that read.
    pub(super) fn new(width: u32) -> Self {
        let cells = (LANES * COLUMNS) as usize;
        let granules = (QUADRANTS * COLUMNS) as usize;
        Self {
            values: vec![0; cells],
            undefined: vec![true; cells],
            in_flight: vec![InFlight::default(); granules],
            stamps: Stamps::new(granules, width as usize, QUADRANT),
            era: 0,
            allocations: Vec::new(),
            relinquished: false,
            unfinished: Vec::new(),
        }
    }

    /// First of so many free columns, the lowest there is.
    pub(super) fn allocate(&mut self, columns: u32) -> Result<Option<u32>, FaultKind> {
        if !columns.is_power_of_two() || !(32..=COLUMNS).contains(&columns) {
            return Err(rule(format!("an allocation of {columns} columns; it must be a power of two from 32 to 512")));
        }
        if self.relinquished {
            return Err(rule("the block has given up its right to allocate tensor memory".into()));
        }
        let free =
            |first: u32| self.allocations.iter().all(|&(at, count)| first + columns <= at || at + count <= first);
        let first = (0..=COLUMNS - columns).step_by(columns as usize).find(|&first| free(first));
        self.allocations.extend(first.map(|first| (first, columns)));
        Ok(first)
    }

    /// Frees an allocation, whose accesses must all be done.
    pub(super) fn free(&mut self, column: u32, columns: u32) -> Result<(), FaultKind> {
        let Some(index) = self.allocations.iter().position(|&allocation| allocation == (column, columns)) else {
            return Err(rule(format!("{columns} columns from {column} on are freed, but were not allocated as that")));
        };
        let region = Region { column, columns, quadrant: None };
        if region.granules().any(|g| self.in_flight[g].written + self.in_flight[g].read != 0) {
            return Err(FaultKind::UsedBeforeWait { what: "tensor memory of a product freed" });
        }
        self.allocations.remove(index);
        for lane in 0..LANES {
            for column in column..column + columns {
                self.undefined[(lane * COLUMNS + column) as usize] = true;
            }
        }
        Ok(())
    }

    /// Columns that are still allocated.
    pub(super) fn allocated(&self) -> u32 {
        self.allocations.iter().map(|allocation| allocation.1).sum()
    }

    fn check_allocated(&self, region: Region) -> Result<(), FaultKind> {
        let end = region.column + region.columns;
        // Neighbouring allocations may be used as one.
        let covered = |column: u32| self.allocations.iter().any(|&(at, count)| (at..at + count).contains(&column));
        match (region.column..end).find(|&column| !covered(column)) {
            None => Ok(()),
            Some(column) => Err(rule(format!("column {column} of tensor memory is not allocated"))),
        }
    }

    /// Begins an access of `actor`, whose `known` is what it knows of tensor memory; `warp` is the one that causes it,
    /// and `clocks` say what it knows otherwise.
    pub(super) fn begin(
        &mut self,
        kind: Use,
        region: Region,
        actor: &Actor<'_>,
        (warp, clocks): (u32, &Clocks),
    ) -> Result<(), FaultKind> {
        self.check_allocated(region)?;
        if self.era != clocks.era() {
            self.stamps.forget();
            self.era = clocks.era();
        }
        let product = matches!(kind, Use::Operand | Use::Accumulator);
        let writes = matches!(kind, Use::Store | Use::Accumulator);
        for granule in region.granules() {
            let flight = &mut self.in_flight[granule];
            let what = match flight {
                _ if flight.written != 0 && !product => "an accumulator of tcgen05.mma used",
                _ if flight.read != 0 && writes && !product => "an operand of tcgen05.mma overwritten",
                _ if flight.stores != 0 && (product || flight.stores != 1 << warp || kind == Use::Load) => {
                    "what tcgen05.st writes used"
                }
                _ if flight.loads != 0 && writes => "what tcgen05.ld reads overwritten",
                _ => "",
            };
            if !what.is_empty() {
                return Err(FaultKind::UsedBeforeWait { what });
            }
            let granules = granule..granule + 1;
            let ordered = match writes {
                true => self.stamps.write(granules, actor, 0),
                false => self.stamps.read(granules, actor),
            };
            ordered.map_err(|conflict| not_ordered(conflict, warp, clocks))?;
            match kind {
                Use::Load => flight.loads |= 1 << warp,
                Use::Store => flight.stores |= 1 << warp,
                Use::Operand => flight.read += 1,
                Use::Accumulator => flight.written += 1,
            }
        }
        if !product {
            self.unfinished.push((warp, kind, region));
        }
        Ok(())
    }

    /// A warp has waited for all its loads, or stores.
    pub(super) fn finish(&mut self, kind: Use, warp: u32, clock: u32) {
        let (done, rest) = self.unfinished.drain(..).partition(|&(by, what, _)| by == warp && what == kind);
        self.unfinished = rest;
        let done: Vec<(u32, Use, Region)> = done;
        for granule in done.into_iter().flat_map(|(_, _, region)| region.granules()) {
            let flight = &mut self.in_flight[granule];
            if kind == Use::Load {
                flight.loads &= !(1 << warp);
                self.stamps.has_read(granule..granule + 1, warp * QUADRANT, clock, false);
            } else {
                flight.stores &= !(1 << warp);
                self.stamps.written(granule..granule + 1, warp * QUADRANT, clock);
            }
        }
    }

    /// A product is done with its operand or accumulator.
    pub(super) fn end(&mut self, kind: Use, region: Region) {
        for granule in region.granules() {
            let flight = &mut self.in_flight[granule];
            match kind {
                Use::Operand => flight.read -= 1,
                _ => flight.written -= 1,
            }
        }
    }

    fn cells(lane: u32, column: u32, columns: u32) -> std::ops::Range<usize> {
        let first = (lane * COLUMNS + column) as usize;
        first..first + columns as usize
    }

    /// Columns of a lane, and which of them are undefined.
    pub(super) fn row(&self, lane: u32, column: u32, columns: u32) -> (&[u32], &[bool]) {
        let cells = Self::cells(lane, column, columns);
        (&self.values[cells.clone()], &self.undefined[cells])
    }

    /// The same, to be changed.
    pub(super) fn row_mut(&mut self, lane: u32, column: u32, columns: u32) -> (&mut [u32], &mut [bool]) {
        let cells = Self::cells(lane, column, columns);
        (&mut self.values[cells.clone()], &mut self.undefined[cells])
    }
}

/// Why two accesses are not in order: nothing orders them, or something does and a fence is missing.
fn not_ordered(conflict: Conflict, warp: u32, clocks: &Clocks) -> FaultKind {
    let other = conflict.other / QUADRANT;
    if clocks.known(warp, other) >= conflict.clock {
        let fence = "tcgen05.fence::before_thread_sync and tcgen05.fence::after_thread_sync";
        let what = format!("tensor memory: {}, by another thread before the synchronisation", conflict.what);
        return FaultKind::MissingFence { fence, what };
    }
    if clocks.is_agent(other) {
        return FaultKind::UsedBeforeWait { what: "what tcgen05.mma reads or writes used" };
    }
    FaultKind::TensorRace { other: conflict.other, what: conflict.what }
}
