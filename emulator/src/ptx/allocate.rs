//! Registers that are never live together share a place: PTX names every value anew, and a warp's state would be
//! several times as large as what it uses at a time.
//!
//! Lanes that part keep apart, since each has its own column of a register: what holds along each lane's way
//! through the code holds for the warp.

use std::collections::{HashMap, HashSet};

/// What one instruction does with registers, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    pub(super) reads: Vec<usize>,
    pub(super) writes: Vec<usize>,
    /// A guard may keep lanes from executing it: its writes leave the old value to them.
    pub(super) guarded: bool,
    /// Instructions that may come next.
    pub(super) next: Vec<usize>,
}

/// A set of register numbers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }

    fn union(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(i, &word)| {
            let rest = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|&word| word != 0).map(move |word| 64 * i + word.trailing_zeros() as usize)
        })
    }
}

/// Registers that are live before each instruction.
fn liveness(code: &[Footprint], count: usize) -> Vec<Set> {
    let mut before = vec![Set::new(count); code.len()];
    let mut live = Set::new(count);
    let mut changed = true;
    while changed {
        changed = false;
        for i in (0..code.len()).rev() {
            after(&code[i], &before, &mut live);
            if !code[i].guarded {
                code[i].writes.iter().for_each(|&number| live.remove(number));
            }
            code[i].reads.iter().for_each(|&number| live.insert(number));
            if live != before[i] {
                std::mem::swap(&mut before[i], &mut live);
                changed = true;
            }
        }
    }
    before
}

/// Sets `live` to the registers that are live behind an instruction.
fn after(instruction: &Footprint, before: &[Set], live: &mut Set) {
    live.0.fill(0);
    instruction.next.iter().for_each(|&next| live.union(&before[next]));
}

/// Gives each register a place in its bank; `banks[number]` says which. Registers that may hold values at the same
/// time, and those that are read before they are written, have places of their own. Those of `pinned` share theirs
/// with none.
pub(super) fn allocate(code: &[Footprint], banks: &[u8], pinned: &HashSet<usize>) -> Vec<usize> {
    let count = banks.len();
    let before = liveness(code, count);
    let mut conflicts = vec![Set::new(count); count];
    let mut conflict = |number: usize, live: &Set| {
        conflicts[number].union(live);
        live.numbers().for_each(|other| conflicts[other].insert(number));
    };
    if let Some(entry) = before.first() {
        entry.numbers().for_each(|number| conflict(number, entry));
    }
    let mut live = Set::new(count);
    for instruction in code {
        after(instruction, &before, &mut live);
        instruction.writes.iter().for_each(|&number| live.insert(number));
        instruction.writes.iter().for_each(|&number| conflict(number, &live));
    }
    let mut places: Vec<Option<usize>> = vec![None; count];
    let mut reserved: HashMap<u8, usize> = HashMap::new();
    for number in (0..count).filter(|number| pinned.contains(number)) {
        let next = reserved.entry(banks[number]).or_default();
        places[number] = Some(*next);
        *next += 1;
    }
    for number in (0..count).filter(|number| !pinned.contains(number)) {
        let taken: Vec<usize> = (conflicts[number].numbers())
            .filter(|&other| other != number && banks[other] == banks[number])
            .filter_map(|other| places[other])
            .collect();
        let first = reserved.get(&banks[number]).copied().unwrap_or(0);
        places[number] = (first..).find(|place| !taken.contains(place));
    }
    places.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(code: &[Footprint], banks: &[u8]) -> Vec<usize> {
        super::allocate(code, banks, &HashSet::new())
    }

    fn straight(code: &[(&[usize], &[usize])]) -> Vec<Footprint> {
        let step = |(i, (reads, writes)): (usize, &(&[usize], &[usize]))| Footprint {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            guarded: false,
            next: if i + 1 < code.len() { vec![i + 1] } else { vec![] },
        };
        code.iter().enumerate().map(step).collect()
    }

    #[test]
    fn a_place_is_used_again_when_its_value_is_dead() {
        // 0 = ..; 1 = f(0); 2 = f(1); use 2; use 1.
        let code = straight(&[(&[], &[0]), (&[0], &[1]), (&[1], &[2]), (&[2], &[]), (&[1], &[])]);
        assert_eq!(allocate(&code, &[0, 0, 0]), [0, 0, 1]);
        assert_eq!(allocate(&code, &[0, 1, 0]), [0, 0, 0], "banks are apart");
    }

    #[test]
    fn values_live_around_a_loop() {
        // 0 = ..; loop { 1 = ..; use 1; use 0 }
        let mut code = straight(&[(&[], &[0]), (&[], &[1]), (&[1], &[]), (&[0], &[])]);
        code[3].next = vec![1];
        assert_eq!(allocate(&code, &[0, 0]), [0, 1]);
    }

    #[test]
    fn a_guarded_write_keeps_the_old_value() {
        // 0 = ..; 1 = ..; use 1; @p 0 = ..; use 0.
        let mut code = straight(&[(&[], &[0]), (&[], &[1]), (&[1], &[]), (&[], &[0]), (&[0], &[])]);
        assert_eq!(allocate(&code, &[0, 0]), [0, 0]);
        code[3].guarded = true;
        assert_eq!(allocate(&code, &[0, 0]), [0, 1]);
    }

    #[test]
    fn what_is_read_before_it_is_written_stays_undefined() {
        // 1 = ..; use 1; use 0, which nothing has written.
        let code = straight(&[(&[], &[1]), (&[1], &[]), (&[0], &[])]);
        assert_eq!(allocate(&code, &[0, 0]), [0, 1]);
    }

    #[test]
    fn results_that_nobody_reads_spoil_nothing() {
        // 0 = ..; 1 = .. (dead); use 0.
        let code = straight(&[(&[], &[0]), (&[], &[1]), (&[0], &[])]);
        assert_eq!(allocate(&code, &[0, 0]), [0, 1]);
    }

    #[test]
    fn pinned_registers_share_with_none() {
        let code = straight(&[(&[], &[0]), (&[0], &[1]), (&[1], &[2]), (&[2], &[]), (&[1], &[])]);
        assert_eq!(super::allocate(&code, &[0, 0, 0], &HashSet::from([1])), [1, 0, 1]);
    }
}
