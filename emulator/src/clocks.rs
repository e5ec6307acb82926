//! Who knows whose past: a clock for each warp of a block.
//!
//! A warp's clock advances with each of its synchronisations. Each warp knows, for every warp, up to which clock
//! what that warp did comes before what it does itself now. Meeting at a barrier makes warps know all that any
//! of them knows.

/// The clocks of a block's warps.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    now: Vec<u32>,
    /// `known[w * warps + v]`: what warp `w` knows of warp `v`.
    known: Vec<u32>,
}

impl Clocks {
    /// All at 1, knowing nothing.
    pub(crate) fn new(warps: usize) -> Self {
        Self { now: vec![1; warps], known: vec![0; warps * warps] }
    }

    /// Starts again: everything up to `clock` comes before all that follows.
    pub(crate) fn begin_after(&mut self, clock: u32) {
        self.known.fill(clock);
        self.now.fill(clock + 1);
    }

    /// The clock that is furthest on.
    pub(crate) fn latest(&self) -> u32 {
        self.now.iter().copied().max().unwrap_or(0)
    }

    /// A warp's clock.
    #[inline]
    pub(crate) fn now(&self, warp: u32) -> u32 {
        self.now[warp as usize]
    }

    /// Up to which clock what `other` did comes before what `warp` does now.
    #[inline]
    pub(crate) fn known(&self, warp: u32, other: u32) -> u32 {
        self.known[warp as usize * self.now.len() + other as usize]
    }

    /// The same for all other warps.
    #[inline]
    pub(crate) fn all_known(&self, warp: usize) -> &[u32] {
        &self.known[warp * self.now.len()..][..self.now.len()]
    }

    /// What `warp` did until now comes before what it does from now on.
    pub(crate) fn advance(&mut self, warp: u32) {
        let w = warp as usize;
        self.known[w * self.now.len() + w] = self.now[w];
        self.now[w] += 1;
    }

    /// What any of these warps did until now comes before what any of them does from now on.
    pub(crate) fn meet(&mut self, warps: &[u32]) {
        for &warp in warps {
            self.advance(warp);
        }
        let count = self.now.len();
        for v in 0..count {
            let known = warps.iter().map(|&w| self.known[w as usize * count + v]).max().unwrap_or(0);
            for &w in warps {
                self.known[w as usize * count + v] = known;
            }
        }
    }
}
