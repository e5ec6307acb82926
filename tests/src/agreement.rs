//! How far two devices' outputs of the same case are apart, and how far they may be.

use std::fmt;

use crate::case::Case;
use crate::launch::Bits;
use crate::tolerance::{Row, largest};

/// What two outputs of one case, or of several, have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Cases compared, and those whose outputs are bit-equal.
    pub cases: [usize; 2],
    /// Rows of O compared, and those that are bit-equal.
    pub rows: [usize; 2],
    /// Rows by their largest difference in roundoffs of O's format at the row's largest element: up to 1/16, 1/4, 1,
    /// 4, more.
    pub o: [usize; 5],
    /// The largest of these differences.
    pub o_most: f64,
    /// LSE compared, and those that are bit-equal.
    pub lses: [usize; 2],
    /// The largest difference of an LSE, relative to it where it is above 1.
    pub lse_most: f64,
}

/// Upper ends of the classes of [`Agreement::o`].
const CLASSES: [f64; 4] = [1.0 / 16.0, 0.25, 1.0, 4.0];

/// An LSE may differ by this, relative to it where it is above 1: ex2 and lg2 are off by 2^-22 at most, each of a few
/// times, and sums of 2^12 terms round differently where a term does.
pub const LSE: f64 = 2e-6;

/// Compares two outputs of a case, and says where they are further apart than they may be: O by more than a quarter of
/// the row's tolerance of the reference and one rounding of the output, LSE by more than [`LSE`].
pub fn compare(case: &Case, expected: &[Row], got: &Bits, want: &Bits) -> (Agreement, Option<String>) {
    let mut agreement = Agreement { cases: [1, usize::from(got == want)], ..Agreement::default() };
    let mut wrong = None;
    let row_bytes = case.head_dim_v * case.output.size();
    let equal = got.o.chunks_exact(row_bytes).zip(want.o.chunks_exact(row_bytes)).filter(|(got, want)| got == want);
    agreement.rows[1] = equal.count();
    let (got, want) = (got.output(case), want.output(case));
    for (index, (got, want)) in got.o.iter().zip(&want.o).enumerate() {
        let magnitude = largest(want.iter().copied());
        let apart = largest(got.iter().zip(want).map(|(got, want)| got - want));
        let roundoffs = if apart == 0.0 { 0.0 } else { apart / (magnitude * case.output.roundoff()) };
        agreement.rows[0] += 1;
        agreement.o[CLASSES.iter().position(|most| roundoffs <= *most).unwrap_or(CLASSES.len())] += 1;
        agreement.o_most = agreement.o_most.max(roundoffs);
        let allowed = expected[index].o_tolerance / 4.0 + 2.0 * magnitude * case.output.roundoff();
        if apart > allowed || got.iter().chain(want).any(|value| value.is_nan()) {
            wrong.get_or_insert_with(|| format!("row {index} of O: {apart:e} apart, {allowed:e} allowed"));
        }
    }
    for (index, (got, want)) in got.lse.iter().flatten().zip(want.lse.iter().flatten()).enumerate() {
        let apart = if got == want { 0.0 } else { (got - want).abs() / want.abs().max(1.0) };
        agreement.lses[0] += 1;
        agreement.lses[1] += usize::from(got == want);
        agreement.lse_most = agreement.lse_most.max(apart);
        if apart > LSE || apart.is_nan() {
            wrong.get_or_insert_with(|| format!("LSE {index}: {got} and {want}, {apart:e} apart, {LSE:e} allowed"));
        }
    }
    (agreement, wrong)
}

impl std::ops::AddAssign for Agreement {
    fn add_assign(&mut self, other: Self) {
        let add = |to: &mut [usize], from: &[usize]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        add(&mut self.cases, &other.cases);
        add(&mut self.rows, &other.rows);
        add(&mut self.o, &other.o);
        add(&mut self.lses, &other.lses);
        self.o_most = self.o_most.max(other.o_most);
        self.lse_most = self.lse_most.max(other.lse_most);
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cases, rows, o, o_most, lses, lse_most } = self;
        writeln!(
            f,
            "bit-equal: {} of {} cases, {} of {} rows of O, {} of {} LSE",
            cases[1], cases[0], rows[1], rows[0], lses[1], lses[0]
        )?;
        write!(f, "rows of O by difference in roundoffs:")?;
        for (count, most) in o.iter().zip(CLASSES) {
            write!(f, " {count} to {most},")?;
        }
        write!(f, " {} beyond; most {o_most:.3}\nlargest difference of an LSE: {lse_most:.2e}", o[CLASSES.len()])
    }
}
