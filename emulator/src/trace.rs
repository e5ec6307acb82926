//! What one block's matrix unit did, and what its warps did meanwhile.

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Instructions that the block had executed.
    pub step: u64,
    /// The warp that did it, or for which it was done.
    pub warp: u32,
    /// What happened.
    pub kind: TraceKind,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceKind {
    /// A thread gave a product to the matrix unit.
    Issued {
        /// Number of the product, in the order of issue.
        product: u32,
        /// First column of its accumulator in tensor memory.
        accumulator: u32,
    },
    /// A thread asked that an mbarrier be signalled when its products are done.
    Committed {
        /// The mbarrier's address in shared memory.
        barrier: u32,
        /// Number of the block's last product.
        last: u32,
    },
    /// The matrix unit finished a product: as late as it may, when somebody waits for it and no warp can go on.
    Done {
        /// Number of the product.
        product: u32,
    },
    /// A warp passed a wait for an mbarrier.
    Waited {
        /// The mbarrier's address in shared memory.
        barrier: u32,
        /// Phases that were complete.
        phases: u64,
    },
    /// A warp loaded columns of tensor memory.
    Loaded {
        /// The first one.
        column: u32,
        /// How many.
        columns: u32,
    },
    /// A warp stored columns of tensor memory.
    Stored {
        /// The first one.
        column: u32,
        /// How many.
        columns: u32,
    },
    /// A warp computed, between the events before and behind.
    Computed {
        /// Approximate functions (ex2 and the like), an instruction each.
        special: u64,
    },
}

/// Collects events.
#[derive(Default)]
pub(crate) struct Tracer {
    events: Vec<TraceEvent>,
    /// Special instructions of each warp since its last event.
    special: Vec<u64>,
    /// Special instructions of the block when they were last counted.
    counted: u64,
    products: u32,
}

impl Tracer {
    /// A warp has had its turn, up to now; `special` is the block's counter.
    pub(crate) fn turn(&mut self, warp: u32, special: u64) {
        let warp = warp as usize;
        self.special.resize(self.special.len().max(warp + 1), 0);
        self.special[warp] += special - self.counted;
        self.counted = special;
    }

    /// Something happened in a warp's turn.
    pub(crate) fn add(&mut self, step: u64, warp: u32, special: u64, kind: TraceKind) {
        self.turn(warp, special);
        let special = std::mem::take(&mut self.special[warp as usize]);
        if special > 0 {
            self.events.push(TraceEvent { step, warp, kind: TraceKind::Computed { special } });
        }
        self.events.push(TraceEvent { step, warp, kind });
    }

    /// The number of the next product.
    pub(crate) fn next_product(&mut self) -> u32 {
        self.products += 1;
        self.products - 1
    }

    /// The number of the last product.
    pub(crate) fn last_product(&self) -> u32 {
        self.products.saturating_sub(1)
    }

    pub(crate) fn finish(self) -> Vec<TraceEvent> {
        self.events
    }
}
