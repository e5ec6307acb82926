//! Faults that people met in other attention libraries, replayed on each device. The number of a test is its case's;
//! the whole kind of fault is what has to be impossible.

use std::sync::Mutex;

use splitkv::{
    Buffer, Catalogue, DType, DeviceProps, Error, Executor, HostPartial, Inputs, KvLayout, KvLens, LseBase, Merge,
    Options, PageTable, Partial, Problem, Target, Tensor, merge_on_host, plan,
};
use splitkv_tests::case::{Case, Data, Known, Kv, Layout, Lengths, Queries, Splits, Window};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::fp8;
use splitkv_tests::launch::{Bits, Launch, plan_case, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::places::{Place, Rows};
use splitkv_tests::reference::{Attention, Mask, View};
use splitkv_tests::site::{self, Site, sites};
use splitkv_tests::tolerance::Row;

/// While a GPU's stream is captured, no other thread may wait for the device, as copies do: there, one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn suite(name: &str, body: impl Fn(&Site) -> usize) {
    let _alone = sites().iter().any(|site| !site.is_emulated()).then(|| ALONE.lock());
    site::suite(name, body);
}

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
    let places = case.rows().into_iter().zip(case.lse_rows());
    for (row, (o, ([batch, query, _], index))) in output.o.iter().zip(places).enumerate() {
        let lse = lse[index];
        if is_empty(batch, query) {
            assert!(o.iter().all(|o| *o == 0.0) && lse == f64::NEG_INFINITY, "row {row}: LSE {lse}, O {o:?}\n{case}");
        } else {
            assert!(o.iter().any(|o| *o != 0.0) && lse.is_finite(), "row {row}: LSE {lse}, O {o:?}\n{case}");
        }
    }
}

/// Pages whose table both, or only the device, know.
fn paged(page_size: usize) -> [Kv; 2] {
    [Known::Host, Known::Device].map(|known| Kv::Paged { page_size, shared: 0, spare: 0, known })
}

/// Asserts a refusal of `argument` that names both numbers.
#[track_caller]
fn assert_refused<T>(result: splitkv::Result<T>, argument: &str, given: &str, allowed: &str) {
    match result {
        Ok(_) => panic!("{argument} was not refused"),
        Err(Error::Argument { argument: named, given: said, allowed: may }) => {
            assert_eq!(named, argument, "given {said}; allowed: {may}");
            assert!(said.contains(given) && may.contains(allowed), "{argument}: given {said}; allowed: {may}");
        }
        Err(error) => panic!("{argument}: {error}"),
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

/// Merging empty parts gives the empty set; merging them with a full one leaves that as it is. An LSE of plus infinity
/// is no result, and is refused where it can be seen, reported where not.
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
        cases + merged_with_empty_parts(site)
    });
}

/// The same with partial results from elsewhere: three rows, of which the first is empty in all parts, the second in one.
fn merged_with_empty_parts(site: &Site) -> usize {
    const EMPTY: f32 = f32::NEG_INFINITY;
    let (full, hole) = ([1.0f32, 2.0, 3.0], [0.0f32, 2.0, 0.0]);
    let dim = 8;
    let spread = |values: &[f32; 3]| values.iter().flat_map(|value| vec![*value; dim]).collect::<Vec<_>>();
    let parts = [(spread(&hole), [EMPTY, 0.5, EMPTY]), (spread(&full), [EMPTY, EMPTY, 1.5])];
    let (want_o, want_lse) = (spread(&[0.0, 2.0, 3.0]), [EMPTY, 0.5, 1.5]);
    let on_host: Vec<_> = parts.iter().map(|(o, lse)| HostPartial { o, lse, base: LseBase::Natural }).collect();
    let (o, lse) = merge_on_host(&on_host, 3, dim).expect("sound parts");
    assert_eq!((&o, &lse[..]), (&want_o, &want_lse[..]));

    let tensor = |values: &[f32], shape: &[usize]| Tensor::from_host(&site.device, values, shape).expect("memory");
    let run = |parts: &[(Vec<f32>, [f32; 3])]| {
        let tensors: Vec<_> = parts.iter().map(|(o, lse)| (tensor(o, &[3, 1, dim]), tensor(lse, &[1, 3]))).collect();
        let partials: Vec<_> = tensors.iter().map(|(o, lse)| Partial { o, lse, base: LseBase::Natural }).collect();
        let (o, lse) = (tensor(&vec![f32::NAN; 3 * dim], &[3, 1, dim]), tensor(&[f32::NAN; 3], &[1, 3]));
        let mut merge = Merge::new(&site.device, &site.kernels, &partials, &o, Some(&lse)).expect("sound parts");
        merge.run(&site.device.stream().expect("a stream")).expect("sound parts");
        let bad = merge.status().expect("the device works").bad_lse;
        (o.to_host::<f32>().expect("f32"), lse.to_host::<f32>().expect("f32"), bad)
    };
    assert_eq!(run(&parts), (want_o, want_lse.to_vec(), false));

    let mut infinite = parts.clone();
    infinite[1].1[0] = f32::INFINITY;
    assert!(run(&infinite).2, "reported");
    let (o, lse) = &infinite[1];
    let refused = merge_on_host(&[HostPartial { o, lse, base: LseBase::Natural }], 3, dim);
    assert_refused(refused, "partials.lse", "inf", "");
    3
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

/// Packed queries over pages, two sequences, two splits, the output NaN before: every row is written, and is the unsplit
/// one.
#[test]
fn report_06_paged_packed_split() {
    suite("reports::report_06_paged_packed_split", |site| {
        let mut cases = 0;
        for kv in paged(256) {
            for (sq, queries) in [(1, vec![1, 1]), (5, vec![2, 5])] {
                for lengths in lengths(&[512, 300]) {
                    let queries = Queries::Packed { lengths: queries.clone(), known: Known::Device };
                    let (head_dim_qk, head_dim_v, output) = (64, 64, Format::F32);
                    let plain = Case { head_dim_qk, head_dim_v, output, queries, ..Case::new(2, sq, 512, 4, 1) };
                    let unsplit = Case { kv: kv.clone(), lengths, ..plain };
                    let split = Case { splits: Splits::Exact(2), ..unsplit.clone() };
                    let [got, want] = [&split, &unsplit].map(|case| right(site, case).output(case));
                    for (got, want) in got.o.iter().flatten().zip(want.o.iter().flatten()) {
                        assert!((got - want).abs() < 1e-3, "{got} split, {want} unsplit: {split}");
                    }
                    for (got, want) in got.lse.iter().flatten().zip(want.lse.iter().flatten()) {
                        assert!((got - want).abs() < 1e-5, "LSE {got} split, {want} unsplit: {split}");
                    }
                    cases += 2;
                }
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

/// A cache longer than its table: refused before anything is launched, with both numbers.
#[test]
fn report_08_length_beyond_the_table() {
    let device = DeviceProps::h200();
    let catalogue = Catalogue::of(Target::Sm90a);
    let problem = Problem::new(2, 8, 2, 1, 1025, 128, DType::Bf16);
    let tables = [PageTable::Device { width: 4 }, PageTable::Host { width: 4, pages: vec![0; 8] }];
    for table in tables {
        let kv = KvLayout::Paged { pages: 9, page_size: 256, table };
        for kv_lens in [KvLens::Full, KvLens::Device, KvLens::Host(vec![1025, 7])] {
            let mut problem = problem.clone().kv_lens(kv_lens);
            problem.kv = kv.clone();
            let refused = plan(&problem, &Options::default(), &device, &catalogue).expect_err("a table too narrow");
            let Error::Argument { argument, given, allowed } = &refused else { panic!("{refused}") };
            assert_eq!(*argument, "page_table", "{refused}");
            let words = format!("{given} {allowed}");
            assert!(words.contains("1024") && words.contains("1025"), "{refused}");
        }
    }
}

/// Pages, and rows of a batch, further apart than 2^31 elements.
#[test]
fn report_09_strides_beyond_32_bits() {
    suite("reports::report_09_strides_beyond_32_bits", |site| {
        // The second page, or sequence, begins here; V lies behind K.
        const FAR: usize = (1 << 31) + 64 * 16;
        let (heads, dim, tokens) = (2, 64, 16);
        let forms = [
            (KvLayout::Dense, Rows::Dense, 2, tokens),
            (
                KvLayout::Paged { pages: 2, page_size: tokens, table: PageTable::Host { width: 2, pages: vec![1, 0] } },
                Rows::Paged { width: 2, table: vec![1, 0] },
                1,
                2 * tokens,
            ),
        ];
        for (kv, rows, batch, sk) in forms {
            let case = Case { head_dim_qk: dim, head_dim_v: dim, seed: 9, ..Case::new(2, 1, tokens, 1, heads) };
            // The two parts of 16 tokens, and of the pool where they go.
            let parts = Tensors::new(&case);
            let place = |offset| Place {
                buffer: 0,
                shape: [2, tokens, 1, dim],
                offset,
                strides: [FAR, dim, dim],
                rows: rows.clone(),
            };
            let (k_place, v_place) = (place(0), place(tokens * dim));
            let device = &site.device;
            let size = case.format.size();
            let pool = Buffer::new(device, v_place.end() * size).expect("memory for a pool of 4 GiB");
            for (place, from) in [(&k_place, &parts.buffers[1]), (&v_place, &parts.buffers[2])] {
                let half = from.len() / 2;
                pool.write(place.offset * size, &from[..half]).expect("in the pool");
                pool.write((place.offset + FAR) * size, &from[half..]).expect("in the pool");
            }
            let tensor = |place: &Place| {
                let (shape, strides) = place.tensor();
                Tensor::new(pool.clone(), place.offset * size, DType::Bf16, &shape, &strides).expect("in the pool")
            };
            let mut problem = Problem::new(batch, heads, 1, 1, sk, dim, DType::Bf16).o_dtype(DType::F32).lse(true);
            problem.kv = kv;
            let options = Options { splits: splitkv::Splits::Exact(2), ..Options::default() };
            let plan = plan(&problem, &options, device.props(), site.kernels.catalogue()).expect("a valid problem");
            let q_bytes = &parts.buffers[0][..batch * heads * dim * size];
            let q_buffer = Buffer::new(device, q_bytes.len()).expect("memory");
            q_buffer.write(0, q_bytes).expect("its own size");
            let q_shape = [batch, 1, heads, dim];
            let q_strides = [heads * dim, heads * dim, dim, 1];
            let q = Tensor::new(q_buffer, 0, DType::Bf16, &q_shape, &q_strides).expect("its own shape");
            let o = Tensor::zeros(device, DType::F32, &q_shape).expect("memory");
            let lse = Tensor::zeros(device, DType::F32, &[batch, heads, 1]).expect("memory");
            let (k, v) = (tensor(&k_place), tensor(&v_place));
            let mut executor = Executor::new(device, &site.kernels, &plan).expect("a valid plan");
            let inputs = Inputs { lse: Some(&lse), ..Inputs::new(&q, &k, &v, &o) };
            executor.run(&device.stream().expect("a stream"), &inputs).expect("valid inputs");
            let (o, lse) = (o.to_host::<f32>().expect("f32"), lse.to_host::<f32>().expect("f32"));
            assert!(executor.status().expect("the device works").is_ok());

            // The same, near.
            let near = |place: &Place| Place { offset: 0, strides: [tokens * dim, dim, dim], ..place.clone() };
            let q_place = Place {
                buffer: 0,
                shape: q_shape,
                offset: 0,
                strides: [heads * dim, heads * dim, dim],
                rows: Rows::Dense,
            };
            let values: Vec<_> = parts.buffers.iter().map(|bytes| case.format.decode(bytes)).collect();
            let attention = Attention {
                q: View { values: &values[0], place: &q_place },
                k: View { values: &values[1], place: &near(&k_place) },
                v: View { values: &values[2], place: &near(&v_place) },
                queries: &vec![1; batch],
                lengths: &vec![sk; batch],
                heads,
                kv_heads: 1,
                mask: Mask::default(),
                scale: case.scale(),
                softcap: None,
                sinks: None,
            };
            for (row, (o, lse)) in o.chunks_exact(dim).zip(lse).enumerate() {
                let want = Row::new(&attention, [row / heads, 0, row % heads], Format::Bf16, Format::F32);
                for (got, want_o) in o.iter().zip(&want.o) {
                    let close = (f64::from(*got) - want_o).abs() <= want.o_tolerance;
                    assert!(close, "row {row} of {problem}: {got}, not {want_o}");
                }
                assert!((f64::from(lse) - want.lse).abs() <= want.lse_tolerance, "row {row} of {problem}: LSE {lse}");
            }
        }
        2
    });
}

/// K and V as halves of each page of one pool.
#[test]
fn report_10_interleaved_pool() {
    suite("reports::report_10_interleaved_pool", |site| {
        let cases = paged(16).into_iter().flat_map(|kv| {
            SPLITS.map(|splits| Case {
                splits,
                kv: kv.clone(),
                layout: Layout::Interleaved,
                lengths: Lengths::Device(vec![100, 37]),
                ..Case::new(2, 1, 160, 2, 3)
            })
        });
        all_right(site, cases)
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

/// A graph captured at a short length, and replayed at longer ones up to the planned maximum.
#[test]
fn report_12_graph_at_other_lengths() {
    suite("reports::report_12_graph_at_other_lengths", |site| {
        let mut cases = 0;
        let [_, tables_on_the_device] = paged(64);
        for kv in [Kv::Dense, tables_on_the_device] {
            for splits in [Splits::Auto, Splits::Exact(3), Splits::Tokens(256)] {
                let at = |lengths: &[u32]| Case {
                    splits,
                    kv: kv.clone(),
                    lengths: Lengths::Device(lengths.to_vec()),
                    ..Case::new(2, 1, 1000, 1, 4)
                };
                // A table for every token that there may be.
                let tensors = Tensors::new(&at(&[1000, 1000]));
                let mut launch = Launch::new(site, &at(&[1000, 1000]), &tensors).expect("a valid case");
                launch.set_lengths(&[3, 1]).expect("two lengths");
                let graph = launch.capture().expect("a valid case");
                for lengths in [[3, 1], [1000, 1000], [130, 700], [0, 999]] {
                    launch.fill(0xff).expect("memory");
                    launch.set_lengths(&lengths.map(|length| length as i32)).expect("two lengths");
                    launch.replay(&graph).expect("a valid graph");
                    let replayed = launch.read().expect("nothing wrong");
                    launch.fill(0xff).expect("memory");
                    launch.run().expect("a valid case");
                    assert_eq!(launch.read().expect("nothing wrong"), replayed, "{lengths:?}, {splits:?}");
                    let case = Case { seed: at(&lengths).seed, ..at(&lengths) };
                    let expected = tensors.expected(&case);
                    compare(&case, &expected, &replayed.output(&case)).unwrap_or_else(|e| panic!("{e}\n{case}"));
                    cases += 1;
                }
            }
        }
        cases
    });
}

/// A sequence alone, and in batches whose other lengths change: the same bits under `Tokens`.
#[test]
fn report_13_batch_invariance() {
    suite("reports::report_13_batch_invariance", |site| {
        let mut cases = 0;
        let [host_paged, device_paged] = paged(16);
        for kv in [Kv::Dense, host_paged, device_paged] {
            for (sq, group) in [(1, 4), (5, 8)] {
                let case = |lengths: Vec<u32>| Case {
                    splits: Splits::Tokens(256),
                    causal: true,
                    kv: kv.clone(),
                    lengths: Lengths::Host(lengths.clone()),
                    ..Case::new(lengths.len(), sq, 900, 1, group)
                };
                let alone = case(vec![700]);
                let want = right(site, &alone);
                for others in [vec![], vec![0], vec![900, 1], vec![700; 6]] {
                    let together = case([vec![700], others].concat());
                    // The first sequence's data do not depend on the others.
                    let got = right(site, &together).sequence(&together, 0);
                    assert_eq!(got, want, "{together}");
                    cases += 1;
                }
            }
        }
        cases
    });
}

/// A sink with splits, the first of which is empty: it counts once.
#[test]
fn report_14_sink_with_an_empty_first_split() {
    suite("reports::report_14_sink_with_an_empty_first_split", |site| {
        let mut cases = 0;
        for splits in SPLITS {
            for lengths in lengths(&[20, 0, 300]) {
                for sink in [vec![Some(2.0)], vec![Some(-3.0), None, Some(80.0)]] {
                    let sink = Some(sink);
                    let case = Case { splits, sink, lengths: lengths.clone(), ..Case::new(3, 1, 300, 1, 6) };
                    right(site, &case);
                    cases += 1;
                }
            }
        }
        // q = 0 and a sink of ln 5: five keys more, of no value.
        let sink = Some(vec![Some(5f32.ln())]);
        let case = Case { splits: Splits::Exact(7), sink, data: Data::Positions, ..Case::new(1, 1, 20, 1, 2) };
        let lse = right(site, &case).output(&case).lse.expect("asked for");
        assert!(lse.iter().all(|lse| (lse - 25f64.ln()).abs() < 1e-6), "{lse:?}");
        cases + 1
    });
}

/// Factors of K and V that are ignored would show: each is another one, and so is Q's.
#[test]
fn report_15_factors_that_are_ignored() {
    suite("reports::report_15_factors_that_are_ignored", |site| {
        let mut cases = 0;
        for per_head in (0..8).map(|bits| [0, 1, 2].map(|bit| bits >> bit & 1 == 1)) {
            for splits in [Splits::Exact(1), Splits::Exact(2)] {
                let case = Case { per_head, splits, ..fp8::e4m3(2, 3, 200, 2, 2) };
                let mut tensors = Tensors::new(&case);
                let mut scale = |tensor: usize, factor: f32| {
                    tensors.descales[tensor].iter_mut().for_each(|descale| *descale *= factor);
                };
                // K's first factor becomes 0.25, V's 0.5.
                scale(1, 0.25 / 0.375);
                scale(2, 0.5 / 0.75);
                assert_eq!((tensors.descales[1][0], tensors.descales[2][0]), (0.25, 0.5));
                let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
                fp8::check(&case, &tensors.expected(&case), &bits.output(&case), &fp8::RANDOM);
                cases += 1;
            }
        }
        cases
    });
}

/// Only e4m3 has a name; bytes of another 8-bit format cannot be given as it by mistake of a name.
#[test]
fn report_16_other_formats_are_refused() {
    for name in ["e4m3fnuz", "float8_e4m3fnuz", "e5m2", "float8_e5m2", "e5m2fnuz", "float8_e5m2fnuz"] {
        let Err(Error::Argument { argument, given, allowed }) = name.parse::<DType>() else {
            panic!("{name} is taken");
        };
        assert_eq!((argument, given.as_str()), ("dtype", name));
        assert!(allowed.contains("e4m3"), "{allowed}");
    }
    assert_eq!("float8_e4m3fn".parse::<DType>().ok(), Some(DType::E4m3));
}

/// Few query heads, scores of any size: weights neither saturate nor lose their sum.
///
/// Weights are rounded for the product with V, and summed unrounded. Where a row has many keys of like weight, or one
/// that outweighs all, V = 1 gives 1 within 1 %. Where it has a few (scores six times as large), their errors do not
/// average out: 1.4 % were seen, and the rounding of e4m3 alone bounds it by 2^-4.
#[test]
fn report_17_weights_that_saturate() {
    suite("reports::report_17_weights_that_saturate", |site| {
        let mut cases = 0;
        for sk in [128, 129, 511, 1024] {
            for (factor, gates, ones) in [
                (0.0, fp8::DECODE, 0.01),
                (0.05, fp8::DECODE, 0.01),
                (1.0, fp8::DECODE, 0.01),
                (6.0, fp8::PEAKED, 0.02),
                (200.0, fp8::PEAKED, 0.01),
                (-200.0, fp8::PEAKED, 0.01),
            ] {
                for splits in [Splits::Exact(1), Splits::Exact(3)] {
                    let scale = Some(factor / 128f32.sqrt());
                    for block_shape in fp8::SHAPES {
                        let case = Case { head_dim_qk: 128, scale, splits, block_shape, ..fp8::e4m3(1, 1, sk, 1, 6) };
                        fp8::right(site, &case, &gates);
                        let error = fp8::error_of_ones(site, &case);
                        assert!(error < ones, "{error}\n{case}");
                        cases += 2;
                    }
                }
            }
        }
        cases
    });
}

/// Scale, then softcap, then mask: masked keys have no weight, not that of the negative cap.
#[test]
fn report_18_softcap_with_a_mask() {
    suite("reports::report_18_softcap_with_a_mask", |site| {
        let window = Some(Window { left: Some(30), right: Some(3) });
        let cases = [(true, None), (false, window), (true, window)].into_iter().flat_map(|(causal, window)| {
            [0.1, 1.0, 30.0].into_iter().flat_map(move |cap| {
                SPLITS.map(|splits| Case {
                    splits,
                    causal,
                    window,
                    softcap: Some(cap),
                    lengths: Lengths::Device(vec![170, 9]),
                    ..Case::new(2, 12, 200, 1, 2)
                })
            })
        });
        all_right(site, cases)
    });
}

/// A window of W keys, the row's own among them, at each query.
#[test]
fn report_19_window_of_so_many_keys() {
    suite("reports::report_19_window_of_so_many_keys", |site| {
        let mut cases = 0;
        for splits in SPLITS {
            for sq in [1, 9] {
                for keys in [1, 127, 128, 129] {
                    let window = Some(Window { left: Some(keys - 1), right: Some(0) });
                    let case = Case { splits, window, data: Data::Positions, ..Case::new(1, sq, 500, 1, 2) };
                    let lse = right(site, &case).output(&case).lse.expect("asked for");
                    // Every key weighs 1.
                    let ln = f64::from(keys).ln();
                    assert!(lse.iter().all(|lse| (lse - ln).abs() < 1e-6), "{keys} keys: {lse:?}");
                    cases += 1;
                }
            }
        }
        cases
    });
}

/// LSE is the natural logarithm, split or not, and is not merged with one to base 2.
#[test]
fn report_20_lse_to_base_e() {
    suite("reports::report_20_lse_to_base_e", |site| {
        for splits in SPLITS {
            let case = Case { splits, data: Data::Positions, ..Case::new(1, 1, 1000, 1, 2) };
            let lse = right(site, &case).output(&case).lse.expect("asked for");
            assert!(lse.iter().all(|lse| (lse - 1000f64.ln()).abs() < 1e-5), "{lse:?}");
        }
        let (o, lse) = ([1.0f32; 8], [0.0f32]);
        let part = |base| HostPartial { o: &o, lse: &lse, base };
        let mix = [part(LseBase::Natural), part(LseBase::Two)];
        assert_refused(merge_on_host(&mix, 1, 8), "partials.base", "base 2", "natural");
        let [o, other, out] = [(); 3].map(|()| Tensor::zeros(&site.device, DType::F32, &[1, 1, 8]).expect("memory"));
        let lse = Tensor::zeros(&site.device, DType::F32, &[1, 1]).expect("memory");
        let mix = [(&o, LseBase::Natural), (&other, LseBase::Two)].map(|(o, base)| Partial { o, lse: &lse, base });
        let merge = Merge::new(&site.device, &site.kernels, &mix, &out, None);
        assert_refused(merge, "partials.base", "base 2", "natural");
        SPLITS.len() + 2
    });
}

/// A workspace smaller than needed: refused before anything is launched, with both sizes.
#[test]
fn report_21_workspace_too_small() {
    suite("reports::report_21_workspace_too_small", |site| {
        let case = Case { splits: Splits::Exact(3), ..Case::new(2, 1, 700, 1, 4) };
        let plan = plan_case(site, &case).expect("a valid case");
        let needed = plan.workspace_bytes();
        assert_eq!(needed, 3 * (2 * 4) * (128 + 1) * 4, "partial O and LSE of each split");
        let with = |bytes| {
            let workspace = Buffer::new(&site.device, bytes).expect("memory");
            Executor::with_workspace(&site.device, &site.kernels, &plan, workspace)
        };
        assert!(with(needed).is_ok());
        for bytes in [0, 1, needed - 1] {
            assert_refused(with(bytes), "workspace", &bytes.to_string(), &needed.to_string());
        }
        4
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

/// A head dim whose splits cannot be merged: `Auto` does not split, and who asks for it is told.
#[test]
fn report_24_missing_split_path() {
    let device = DeviceProps::h200();
    let whole = Catalogue::of(Target::Sm90a);
    let is_attention = |kernel: &splitkv::Kernel| kernel.name.starts_with("attention");
    let without = Catalogue::new(Target::Sm90a, whole.kernels().iter().copied().filter(is_attention).collect());
    // One long sequence, which splits where it can.
    let problem = Problem::new(1, 8, 1, 1, 65_536, 128, DType::Bf16);
    let with =
        |catalogue: &Catalogue, splits| plan(&problem, &Options { splits, ..Options::default() }, &device, catalogue);
    assert!(with(&whole, splitkv::Splits::Auto).expect("a valid problem").num_splits() > 1);
    assert_eq!(with(&without, splitkv::Splits::Auto).expect("unsplit").num_splits(), 1);
    for splits in [splitkv::Splits::Exact(2), splitkv::Splits::Tokens(256)] {
        assert_refused(with(&without, splits), "catalogue", "no combine", "merge");
    }
    // A head dim that no kernel has.
    let wide = Problem::new(1, 8, 1, 1, 65_536, 512, DType::Bf16);
    for splits in [splitkv::Splits::Auto, splitkv::Splits::Exact(2)] {
        let options = Options { splits, ..Options::default() };
        assert_refused(plan(&wide, &options, &device, &whole), "head_dim_qk", "512", "at most 256");
    }
}
