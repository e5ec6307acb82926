//! Faults that people met in other attention libraries, replayed on each device. The number of a test is its case's;
//! the whole kind of fault is what has to be impossible.

use splitkv_tests::case::{Case, Data, Layout, Lengths, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Bits, Launch, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{Site, suite};

/// Splits that a small case can be tried with.
const SPLITS: [Splits; 5] = [Splits::Auto, Splits::Exact(1), Splits::Exact(2), Splits::Exact(7), Splits::Tokens(128)];

/// Runs a case and compares it with the reference.
#[track_caller]
fn right(site: &Site, case: &Case) -> Bits {
    let tensors = Tensors::new(case);
    let (bits, _) = run(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    compare(case, &tensors.expected(case), &bits.output(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    bits
}

/// All of [`right`]'s cases, and how many they were.
#[track_caller]
fn all_right(site: &Site, cases: impl IntoIterator<Item = Case>) -> usize {
    let mut count = 0;
    for case in cases {
        right(site, &case);
        count += 1;
    }
    count
}

/// Asserts that these rows (of `[batch, sq, heads]`) saw nothing, and that the others saw something.
#[track_caller]
fn assert_empty_rows(case: &Case, bits: &Bits, is_empty: impl Fn(usize, usize) -> bool) {
    let output = bits.output(case);
    let lse = output.lse.expect("asked for");
    for (row, o) in output.o.iter().enumerate() {
        let [batch, query, head] = [row / case.heads() / case.sq, row / case.heads() % case.sq, row % case.heads()];
        let lse = lse[(batch * case.heads() + head) * case.sq + query];
        if is_empty(batch, query) {
            assert!(o.iter().all(|o| *o == 0.0) && lse == f64::NEG_INFINITY, "row {row}: LSE {lse}, O {o:?}\n{case}");
        } else {
            assert!(o.iter().any(|o| *o != 0.0) && lse.is_finite(), "row {row}: LSE {lse}, O {o:?}\n{case}");
        }
    }
}

fn lengths(lengths: &[u32]) -> [Lengths; 2] {
    [Lengths::Host(lengths.to_vec()), Lengths::Device(lengths.to_vec())]
}

/// A cache of 128 slots; what lies beyond a length holds NaN, in K and in V.
#[test]
fn report_01_nan_beyond_a_length() {
    suite("reports::report_01_nan_beyond_a_length", |site| {
        let cases = lengths(&[32, 64, 96, 48]).into_iter().flat_map(|lengths| {
            SPLITS.map(|splits| Case { lengths: lengths.clone(), splits, ..Case::new(4, 1, 128, 8, 1) })
        });
        all_right(site, cases)
    });
}

/// Merging empty parts gives the empty set; merging them with a full one leaves that as it is.
#[test]
fn report_02_merges_with_empty_parts() {
    suite("reports::report_02_merges_with_empty_parts", |site| {
        let mut cases = 0;
        for splits in [2, 3, 16, 256] {
            let nothing =
                Case { lengths: Lengths::Device(vec![0]), splits: Splits::Exact(splits), ..Case::new(1, 1, 500, 1, 2) };
            assert_empty_rows(&nothing, &right(site, &nothing), |_, _| true);
            for lengths in lengths(&[77]) {
                let one = Case { lengths, output: Format::F32, ..nothing.clone() };
                let unsplit = Case { splits: Splits::Exact(1), ..one.clone() };
                assert_eq!(right(site, &one), right(site, &unsplit), "{one}");
            }
            cases += 5;
        }
        cases
    });
}

/// No keys at all, and a row whose keys are all masked: O = 0, LSE = -inf.
#[test]
fn report_03_fully_masked() {
    suite("reports::report_03_fully_masked", |site| {
        let mut cases = 0;
        for splits in SPLITS {
            let no_keys = Case { splits, ..Case::new(2, 3, 0, 1, 4) };
            assert_empty_rows(&no_keys, &right(site, &no_keys), |_, _| true);
            let masked = Case { splits, causal: true, lengths: Lengths::Device(vec![1]), ..Case::new(1, 3, 40, 1, 4) };
            assert_empty_rows(&masked, &right(site, &masked), |_, query| query < 2);
            cases += 2;
        }
        cases
    });
}

/// Sizes of zero, and one sequence of length 0 in a batch; the output is NaN before.
#[test]
fn report_04_sizes_of_zero() {
    suite("reports::report_04_sizes_of_zero", |site| {
        let mut cases = 0;
        for splits in SPLITS {
            for [batch, sq, sk] in [[0, 1, 128], [2, 0, 128], [0, 0, 0], [2, 0, 0]] {
                let bits = right(site, &Case { splits, ..Case::new(batch, sq, sk, 2, 2) });
                assert_eq!((bits.o.len(), bits.lse.len()), (0, 0));
                cases += 1;
            }
            for lengths in lengths(&[300, 0, 20]) {
                let case = Case { splits, lengths, ..Case::new(3, 2, 300, 2, 2) };
                assert_empty_rows(&case, &right(site, &case), |batch, _| batch == 1);
                cases += 1;
            }
        }
        cases
    });
}

/// Causal with more queries than keys: the first rows see nothing.
#[test]
fn report_05_causal_with_more_queries_than_keys() {
    suite("reports::report_05_causal_with_more_queries_than_keys", |site| {
        let mut cases = 0;
        for splits in SPLITS {
            for [sq, sk] in [[5, 3], [40, 7], [20, 19]] {
                let case = Case { splits, causal: true, ..Case::new(1, sq, sk, 2, 3) };
                assert_empty_rows(&case, &right(site, &case), |_, query| query < sq - sk);
                cases += 1;
            }
        }
        cases
    });
}

/// Whatever the workspace holds before a run, NaN or other bits, some splits empty: the result is the same.
#[test]
fn report_07_dirty_workspace() {
    suite("reports::report_07_dirty_workspace", |site| {
        let mut cases = 0;
        for splits in [Splits::Auto, Splits::Exact(5), Splits::Exact(9), Splits::Tokens(128)] {
            let lengths = Lengths::Device(vec![0, 100, 600]);
            let case = Case { splits, lengths, ..Case::new(3, 1, 700, 1, 2) };
            let tensors = Tensors::new(&case);
            let mut launch = Launch::new(site, &case, &tensors).expect("a valid case");
            let outputs = [0xff, 0x7f, 0x00, 0x42, 0xc2].map(|byte| {
                launch.fill(byte).and_then(|()| launch.run()).and_then(|()| launch.read()).expect("a valid case")
            });
            compare(&case, &tensors.expected(&case), &outputs[0].output(&case))
                .unwrap_or_else(|e| panic!("{e}\n{case}"));
            assert!(outputs.iter().all(|output| *output == outputs[0]), "{case}");
            cases += outputs.len();
        }
        cases
    });
}

/// Any number of query heads for a KV head.
#[test]
fn report_11_odd_groups() {
    suite("reports::report_11_odd_groups", |site| {
        let cases = [5, 6, 7, 12, 16, 71].into_iter().flat_map(|group| {
            [(1, Splits::Exact(1)), (3, Splits::Exact(3))].map(|(sq, splits)| Case {
                splits,
                causal: true,
                ..Case::new(1, sq, 150, 2, group)
            })
        });
        all_right(site, cases)
    });
}

/// Not causal, and the first KV tile has no key: length 0 beside other lengths.
#[test]
fn report_22_first_tile_masked() {
    suite("reports::report_22_first_tile_masked", |site| {
        let mut cases = 0;
        for splits in SPLITS {
            for lengths in lengths(&[0, 1, 129]) {
                for data in [Data::Normal, Data::Constant] {
                    let layout = Layout::Interleaved;
                    let case = Case { splits, lengths: lengths.clone(), data, layout, ..Case::new(3, 1, 256, 1, 2) };
                    assert_empty_rows(&case, &right(site, &case), |batch, _| batch == 0);
                    cases += 1;
                }
            }
        }
        cases
    });
}

/// The same split call again and again: the same bits.
#[test]
fn report_23_repeated_call() {
    suite("reports::report_23_repeated_call", |site| {
        let repeats = if site.is_emulated() { 4 } else { 200 };
        for splits in [Splits::Exact(4), Splits::Tokens(128)] {
            let case = Case { splits, ..Case::new(2, 1, 515, 1, 8) };
            let tensors = Tensors::new(&case);
            let mut launch = Launch::new(site, &case, &tensors).expect("a valid case");
            let mut once = || launch.run().and_then(|()| launch.read()).expect("a valid case");
            let first = once();
            compare(&case, &tensors.expected(&case), &first.output(&case)).unwrap_or_else(|e| panic!("{e}\n{case}"));
            for repeat in 1..repeats {
                assert_eq!(once(), first, "repeat {repeat}: {case}");
            }
        }
        2 * repeats
    });
}
