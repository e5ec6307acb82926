//! Who knows whose past: a clock for each warp of a block, and for each agent that works for it asynchronously.
//!
//! A clock advances with each synchronisation. Each warp knows, for every warp and agent, up to which clock what that
//! one did comes before what it does itself now. Meeting at a barrier makes warps know all that any of them knows; a
//! warp that leaves something for others to find ([`Clocks::release`]) makes those know it that find it
//! ([`Clocks::acquire`]).
//!
//! Agents are the copy and matrix units. What warps know of their work, and what is visible to them, needs more than
//! order, so two more maps are kept for blocks that have agents:
//!
//! - `visible`: up to which clock ordinary accesses to shared memory are visible to the asynchronous proxy; a proxy
//!   fence takes what is known over into it;
//! - `tensor`: what is known of accesses to tensor memory, which goes from a fence before the synchronisation of
//!   threads to a fence after it.

/// Clocks by warp, and behind them by agent.
type Vector = Vec<u32>;

fn join(to: &mut [u32], from: &[u32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = (*to).max(*from);
    }
}

/// A vector for each warp.
#[derive(Clone, Debug, Default)]
struct Map {
    width: usize,
    values: Vector,
}

impl Map {
    fn new(warps: usize, width: usize) -> Self {
        Self { width, values: vec![0; warps * width] }
    }

    fn of(&self, warp: u32) -> &[u32] {
        &self.values[warp as usize * self.width..][..self.width]
    }

    fn of_mut(&mut self, warp: u32) -> &mut [u32] {
        &mut self.values[warp as usize * self.width..][..self.width]
    }

    /// Makes the warps' vectors the same: the most that any of them has.
    fn meet(&mut self, warps: &[u32]) {
        for i in 0..self.width {
            let most = warps.iter().map(|&warp| self.of(warp)[i]).max().unwrap_or(0);
            warps.iter().for_each(|&warp| self.of_mut(warp)[i] = most);
        }
    }
}

/// What is left for others to find.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// Clocks start again sometimes; what was left before that says nothing any more.
    era: u32,
    known: Vector,
    visible: Vector,
    tensor: Vector,
}

impl Knowledge {
    fn join(&mut self, era: u32, known: &[u32], visible: &[u32], tensor: &[u32]) {
        if self.era != era || self.known.is_empty() {
            *self = Self { era, known: known.to_vec(), visible: visible.to_vec(), tensor: tensor.to_vec() };
        } else {
            join(&mut self.known, known);
            join(&mut self.visible, visible);
            join(&mut self.tensor, tensor);
        }
    }

    /// Adds what others have left elsewhere.
    pub(crate) fn add(&mut self, other: &Self) {
        if !other.known.is_empty() && other.era >= self.era {
            self.join(other.era, &other.known, &other.visible, &other.tensor);
        }
    }
}

/// The clocks of a block's warps and agents.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    warps: usize,
    era: u32,
    now: Vector,
    known: Map,
    visible: Map,
    /// What each warp knows of tensor memory, what it has fenced for others, and what it has found without a fence.
    tensor: [Map; 3],
}

/// Places in [`Clocks::tensor`].
const KNOWN: usize = 0;
const BEFORE: usize = 1;
const FOUND: usize = 2;

impl Clocks {
    /// All at 1, knowing nothing.
    pub(crate) fn new(warps: usize, agents: usize) -> Self {
        let width = warps + agents;
        let more = if agents == 0 { Map::default() } else { Map::new(warps, width) };
        Self {
            warps,
            era: 0,
            now: vec![1; width],
            known: Map::new(warps, width),
            visible: more.clone(),
            tensor: [more.clone(), more.clone(), more],
        }
    }

    /// Starts again: everything up to `clock` comes before all that follows.
    pub(crate) fn begin_after(&mut self, clock: u32) {
        self.era += 1;
        self.now.fill(clock + 1);
        for map in self.maps() {
            map.values.fill(clock);
        }
    }

    /// How often they have started again.
    pub(crate) fn era(&self) -> u32 {
        self.era
    }

    fn maps(&mut self) -> impl Iterator<Item = &mut Map> {
        [&mut self.known, &mut self.visible].into_iter().chain(&mut self.tensor)
    }

    /// The clock that is furthest on.
    pub(crate) fn latest(&self) -> u32 {
        self.now.iter().copied().max().unwrap_or(0)
    }

    /// A warp's or agent's clock.
    #[inline]
    pub(crate) fn now(&self, who: u32) -> u32 {
        self.now[who as usize]
    }

    /// Up to which clock what `other` did comes before what `warp` does now.
    #[inline]
    pub(crate) fn known(&self, warp: u32, other: u32) -> u32 {
        self.known.of(warp)[other as usize]
    }

    /// The same for all others.
    #[inline]
    pub(crate) fn all_known(&self, warp: u32) -> &[u32] {
        self.known.of(warp)
    }

    /// Up to which clocks the warp knows ordinary accesses to be visible to the asynchronous proxy.
    pub(crate) fn all_visible(&self, warp: u32) -> &[u32] {
        self.visible.of(warp)
    }

    /// Up to which clocks accesses to tensor memory come before those of the warp.
    pub(crate) fn all_tensor(&self, warp: u32) -> &[u32] {
        self.tensor[KNOWN].of(warp)
    }

    /// What `warp` did until now comes before what it does from now on.
    pub(crate) fn advance(&mut self, warp: u32) {
        let now = self.now[warp as usize];
        self.known.of_mut(warp)[warp as usize] = now;
        self.now[warp as usize] += 1;
    }

    /// What any of these warps did until now comes before what any of them does from now on.
    pub(crate) fn meet(&mut self, warps: &[u32]) {
        for &warp in warps {
            self.advance(warp);
        }
        self.known.meet(warps);
        if self.has_agents() {
            self.visible.meet(warps);
            let [_, before, found] = &mut self.tensor;
            let mut all = vec![0; before.width];
            warps.iter().for_each(|&warp| join(&mut all, before.of(warp)));
            warps.iter().for_each(|&warp| join(found.of_mut(warp), &all));
        }
    }

    fn has_agents(&self) -> bool {
        self.now.len() > self.warps
    }

    /// Adds what `warp` knows, its own past included, to what is found by whoever acquires `left`.
    pub(crate) fn release(&mut self, warp: u32, left: &mut Knowledge) {
        let w = warp as usize;
        let mut known = self.known.of(warp).to_vec();
        known[w] = self.now[w];
        self.now[w] += 1;
        left.join(self.era, &known, self.visible.of(warp), self.tensor[BEFORE].of(warp));
    }

    /// `warp` has found what others have left.
    pub(crate) fn acquire(&mut self, warp: u32, left: &Knowledge) {
        if left.era == self.era {
            join(self.known.of_mut(warp), &left.known);
            join(self.visible.of_mut(warp), &left.visible);
            join(self.tensor[FOUND].of_mut(warp), &left.tensor);
        }
    }

    /// Index of an agent among all that have clocks.
    pub(crate) fn agent(&self, agent: u32) -> u32 {
        self.warps as u32 + agent
    }

    /// Whether someone is an agent.
    pub(crate) fn is_agent(&self, who: u32) -> bool {
        who as usize >= self.warps
    }

    /// What an agent (by its index among all) has begun until now is found by whoever acquires `left`.
    pub(crate) fn release_agent(&mut self, who: u32, left: &mut Knowledge) {
        let mut done = vec![0; self.now.len()];
        done[who as usize] = self.now[who as usize];
        self.now[who as usize] += 1;
        let none = vec![0; self.now.len()];
        left.join(self.era, &done, &none, &done);
    }

    /// A proxy fence: what `warp` knows becomes visible to the asynchronous proxy; with `whole`, the past of all its
    /// lanes too.
    pub(crate) fn fence_proxy(&mut self, warp: u32, whole: bool) {
        let w = warp as usize;
        let visible = self.visible.of_mut(warp);
        join(visible, self.known.of(warp));
        if whole {
            visible[w] = self.now[w];
        }
        self.now[w] += 1;
    }

    /// `tcgen05.fence::before_thread_sync`: what the warp knows of tensor memory goes with what it leaves.
    pub(crate) fn fence_before(&mut self, warp: u32) {
        let w = warp as usize;
        let [known, before, _] = &mut self.tensor;
        let before = before.of_mut(warp);
        join(before, known.of(warp));
        before[w] = self.now[w];
        self.now[w] += 1;
    }

    /// `tcgen05.fence::after_thread_sync`: what the warp has found of tensor memory comes before its accesses.
    pub(crate) fn fence_after(&mut self, warp: u32) {
        let [known, _, found] = &mut self.tensor;
        join(known.of_mut(warp), found.of(warp));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_found() {
        let mut clocks = Clocks::new(3, 0);
        let mut left = Knowledge::default();
        clocks.acquire(1, &left);
        assert_eq!(clocks.known(1, 0), 0);
        clocks.release(0, &mut left);
        assert_eq!((clocks.now(0), clocks.known(0, 0)), (2, 0), "the warp's own lanes are as apart as before");
        clocks.acquire(1, &left);
        assert_eq!(clocks.known(1, 0), 1);
        // It goes on from there, with what that one did.
        let mut next = Knowledge::default();
        clocks.release(1, &mut next);
        clocks.acquire(2, &next);
        assert_eq!((clocks.known(2, 0), clocks.known(2, 1)), (1, 1));
        // What was left before clocks started again says nothing.
        clocks.begin_after(0);
        clocks.acquire(2, &next);
        assert_eq!(clocks.known(2, 0), 0);
    }

    #[test]
    fn visibility_to_the_asynchronous_proxy_travels() {
        let mut clocks = Clocks::new(3, 1);
        let (mut left, mut next) = (Knowledge::default(), Knowledge::default());
        clocks.release(0, &mut left);
        clocks.acquire(1, &left);
        assert_eq!(clocks.all_visible(1)[0], 0);
        clocks.fence_proxy(1, true);
        assert_eq!(clocks.all_visible(1)[..3], [1, 1, 0], "its own past and what it has learned");
        clocks.release(1, &mut next);
        clocks.acquire(2, &next);
        assert_eq!(clocks.all_visible(2)[..2], [1, 1]);
        // What comes after the fence is not visible.
        assert!(clocks.now(1) > 1);
    }

    #[test]
    fn tensor_memory_needs_a_fence_on_both_sides() {
        let known = |before: bool, after: bool| {
            let mut clocks = Clocks::new(2, 1);
            let mut left = Knowledge::default();
            if before {
                clocks.fence_before(0);
            }
            clocks.release(0, &mut left);
            clocks.acquire(1, &left);
            if after {
                clocks.fence_after(1);
            }
            clocks.all_tensor(1)[0]
        };
        assert_eq!([known(true, true), known(true, false), known(false, true)], [1, 0, 0]);
        // A commit is its own fence before; a barrier is a synchronisation as any.
        let mut clocks = Clocks::new(2, 1);
        let (mut left, agent) = (Knowledge::default(), clocks.agent(0));
        clocks.release_agent(agent, &mut left);
        clocks.acquire(0, &left);
        clocks.fence_after(0);
        assert_eq!((clocks.all_tensor(0)[2], clocks.known(0, 2)), (1, 1));
        clocks.fence_before(0);
        clocks.meet(&[0, 1]);
        clocks.fence_after(1);
        assert_eq!(clocks.all_tensor(1)[..], [1, 0, 1]);
    }
}
