//! The page table of a case: which pages sequences have in a pool that is larger than they need.

use fastrand::Rng;

use crate::case::{Case, Known, Kv, Lengths};

/// A pool and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Pages of the pool.
    pub pages: usize,
    /// Columns of the table: one a page of `sk` tokens, and the spare ones.
    pub width: usize,
    /// Row by row, as it lies on the device. Entries beyond a length hold what must never be followed.
    pub table: Vec<i32>,
}

/// How much larger a pool is than what is needed.
const POOL: usize = 3;

/// The pages of `case`: another order for each seed.
///
/// # Panics
/// If its KV is not paged.
pub fn pages(case: &Case) -> Pages {
    let Kv::Paged { page_size, shared, spare, known } = case.kv else { panic!("no paged KV: {case}") };
    let width = case.sk.div_ceil(page_size) + spare;
    // A table on the host is checked as far as a length may reach that the host does not know.
    let all = known == Known::Host && matches!(case.lengths, Lengths::Device(_));
    let lengths = if all { vec![case.sk; case.batch] } else { case.lengths() };
    let needed: Vec<usize> = lengths.iter().map(|length| length.div_ceil(page_size)).collect();
    let own: usize = needed.iter().map(|pages| pages.saturating_sub(shared)).sum();
    let pages = (POOL * (shared.min(width) + own)).max(1);

    let mut rng = Rng::with_seed(case.seed ^ 0x7061_6765);
    let mut order: Vec<i32> = (0..pages as i32).collect();
    rng.shuffle(&mut order);
    let (common, mut free) = (order.clone(), order.into_iter().skip(shared));
    let mut table = Vec::with_capacity(case.batch * width);
    for needed in needed {
        table.extend((0..width).map(|column| match common.get(column) {
            _ if column >= needed => garbage(pages, &mut rng),
            Some(page) if column < shared => *page,
            _ => free.next().expect("the pool has three times as many"),
        }));
    }
    Pages { pages, width, table }
}

/// An entry that must not matter: outside the pool, or inside it.
pub fn garbage(pages: usize, rng: &mut Rng) -> i32 {
    match rng.u8(..5) {
        0 => -1,
        1 => i32::MAX,
        2 => i32::MIN,
        3 => pages as i32,
        _ => rng.i32(0..pages as i32),
    }
}
