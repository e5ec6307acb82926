//! Compares an output with the reference, row by row.

use std::fmt;

use crate::case::Case;
use crate::tolerance::Row;

/// An output as values.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// O: the rows of [`Case::rows`].
    pub o: Vec<Vec<f64>>,
    /// LSE, where [`Case::lse_rows`] says, if it was asked for.
    pub lse: Option<Vec<f64>>,
}

/// The worst wrong row.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// `O` or `LSE`.
    pub what: &'static str,
    /// Batch, query, head, and for O the element.
    pub place: [usize; 4],
    /// The value computed.
    pub got: f64,
    /// The reference's.
    pub want: f64,
    /// The difference allowed.
    pub tolerance: f64,
    /// Wrong rows in all.
    pub wrong: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, place: [batch, query, head, element], got, want, tolerance, wrong } = self;
        write!(
            f,
            "{what} is wrong in {wrong} rows; worst: batch {batch}, query {query}, head {head}, element {element}: \
             got {got}, want {want} within {tolerance:e}"
        )
    }
}

impl std::error::Error for Mismatch {}

/// Compares O and, where it was computed, LSE with the expected rows.
///
/// # Errors
/// The worst wrong row, if there is one. NaN is wrong always.
///
/// # Panics
/// If `output` has not the size that `case` says.
pub fn compare(case: &Case, expected: &[Row], output: &Output) -> Result<(), Mismatch> {
    let rows = case.rows();
    assert_eq!(output.o.len(), expected.len(), "rows of O");
    let o = expected.iter().zip(&output.o).enumerate().map(|(row, (want, got))| {
        let elements = got.iter().zip(&want.o).enumerate();
        let [batch, query, head] = rows[row];
        let differences = elements.map(|(element, (got, want_element))| Difference {
            place: [batch, query, head, element],
            got: *got,
            want: *want_element,
            tolerance: want.o_tolerance,
        });
        worst(differences)
    });
    report("O", o.flatten())?;
    let Some(lse) = &output.lse else { return Ok(()) };
    assert_eq!(lse.len(), expected.len(), "rows of LSE");
    let lse = expected.iter().zip(case.lse_rows()).enumerate().map(|(row, (want, index))| {
        let ([batch, query, head], got) = (rows[row], lse[index]);
        Difference { place: [batch, query, head, 0], got, want: want.lse, tolerance: want.lse_tolerance }
    });
    report("LSE", lse)
}

#[derive(Clone, Copy)]
struct Difference {
    place: [usize; 4],
    got: f64,
    want: f64,
    tolerance: f64,
}

impl Difference {
    /// How wrong it is: above 0 if it is. Equal infinities are right; NaN is as wrong as can be.
    fn excess(&self) -> f64 {
        if self.got == self.want {
            return 0.0;
        }
        let difference = (self.got - self.want).abs();
        if difference.is_nan() { f64::INFINITY } else { (difference - self.tolerance).max(0.0) }
    }
}

fn worst(differences: impl Iterator<Item = Difference>) -> Option<Difference> {
    differences.max_by(|a, b| a.excess().total_cmp(&b.excess()))
}

fn report(what: &'static str, rows: impl Iterator<Item = Difference>) -> Result<(), Mismatch> {
    let wrong: Vec<Difference> = rows.filter(|row| row.excess() > 0.0).collect();
    match worst(wrong.iter().copied()) {
        None => Ok(()),
        Some(Difference { place, got, want, tolerance }) => {
            Err(Mismatch { what, place, got, want, tolerance, wrong: wrong.len() })
        }
    }
}
