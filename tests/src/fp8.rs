//! What is asked of e4m3 beside what all formats are: bounds on the whole output.

use crate::case::{Case, Data, Shape};
use crate::compare::{Output, compare};
use crate::data::Tensors;
use crate::launch::{Bits, run};
use crate::numeric::Format;
use crate::site::Site;
use crate::tolerance::{Row, largest};

/// A case of e4m3 in head dims 192/128.
pub fn e4m3(batch: usize, sq: usize, sk: usize, kv_heads: usize, group: usize) -> Case {
    let (head_dim_qk, head_dim_v, format) = (192, 128, Format::E4m3);
    Case { head_dim_qk, head_dim_v, format, ..Case::new(batch, sq, sk, kv_heads, group) }
}

/// What is asked of the whole output.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// The least cosine of a row and its reference.
    pub cosine: f64,
    /// The largest relative error of the LSE. (FP8 matrix units that accumulate in fewer bits than fp32 give 3e-4 to
    /// 1e-3 on large scores.)
    pub lse: f64,
}

/// On random data.
pub const RANDOM: Gates = Gates { cosine: 0.98, lse: 1e-4 };
/// On random data, one query a sequence.
pub const DECODE: Gates = Gates { cosine: 0.99, ..RANDOM };
/// Where few keys have all the weight.
pub const PEAKED: Gates = Gates { lse: 2e-3, ..RANDOM };

/// Runs a case, and compares it with f64 attention on the dequantised values: row by row as all formats, and by `gates`.
///
/// # Panics
/// When it is wrong, or cannot run.
#[track_caller]
pub fn right(site: &Site, case: &Case, gates: &Gates) -> Bits {
    let tensors = Tensors::new(case);
    let (bits, _) = run(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    let (expected, output) = (tensors.expected(case), bits.output(case));
    check(case, &expected, &output, gates);
    compare(case, &expected, &output).unwrap_or_else(|error| panic!("{error}\n{case}"));
    bits
}

/// Asserts that `output` keeps to `gates`.
///
/// # Panics
/// When it does not.
#[track_caller]
pub fn check(case: &Case, expected: &[Row], output: &Output, gates: &Gates) {
    let most = largest(expected.iter().flat_map(|row| row.o.iter().copied()));
    let lse = output.lse.as_ref().expect("asked for");
    for (row, ((got, want), index)) in output.o.iter().zip(expected).zip(case.lse_rows()).enumerate() {
        let error = largest(got.iter().zip(&want.o).map(|(got, want)| got - want));
        assert!(error <= 0.08 * most, "row {row}: error {error}, largest {most}\n{case}");
        if want.lse == f64::NEG_INFINITY {
            assert!(got.iter().all(|o| *o == 0.0) && lse[index] == f64::NEG_INFINITY, "row {row} saw a key\n{case}");
            continue;
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let cosine = dot(got, &want.o) / (dot(got, got) * dot(&want.o, &want.o)).sqrt();
        assert!(cosine > gates.cosine, "row {row}: cosine {cosine}\n{case}");
        let error = (lse[index] - want.lse).abs();
        assert!(error <= gates.lse * want.lse.abs().max(1.0), "row {row}: LSE {} for {}\n{case}", lse[index], want.lse);
    }
}

/// Block shapes.
pub const SHAPES: [Option<Shape>; 2] = [Some(Shape::SplitKv), Some(Shape::SharedKv)];

/// The largest relative error of O where V is 1, so that O should be 1 whatever the scores are.
///
/// # Panics
/// When it cannot run.
#[track_caller]
pub fn error_of_ones(site: &Site, case: &Case) -> f64 {
    let case = Case { data: Data::Ones, output: Format::F32, ..case.clone() };
    let tensors = Tensors::new(&case);
    let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    // 1 over V's factor is not exact in e4m3.
    let descale = f64::from(tensors.descales[2][0]);
    let one = Format::E4m3.round(1.0 / descale) * descale;
    largest(bits.output(&case).o.iter().flatten().map(|o| o / one - 1.0))
}
