//! e4m3: what is asked of it beside the properties that all formats have. Emulated devices get fewer heads, and shorter
//! sequences with the same remainders.

use std::sync::Mutex;

use splitkv::{DType, Error, Executor, Inputs, Options, Tensor, plan};
use splitkv_tests::case::{Case, Data, Known, Kv, Lengths, Queries, Shape, Splits};
use splitkv_tests::compare::{Output, compare};
use splitkv_tests::data::Tensors;
use splitkv_tests::gauge::Needed;
use splitkv_tests::launch::{Bits, Launch, plan_case, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{self, Site, sites};
use splitkv_tests::tolerance::{Row, largest};

/// While a GPU's stream is captured, no other thread may wait for the device, as copies do: there, one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn suite(name: &str, body: impl Fn(&Site) -> usize) {
    let _alone = sites().iter().any(|site| !site.is_emulated()).then(|| ALONE.lock());
    site::suite(name, body);
}

/// A case of e4m3 in head dims 192/128.
fn e4m3(batch: usize, sq: usize, sk: usize, kv_heads: usize, group: usize) -> Case {
    let (head_dim_qk, head_dim_v, format) = (192, 128, Format::E4m3);
    Case { head_dim_qk, head_dim_v, format, ..Case::new(batch, sq, sk, kv_heads, group) }
}

/// Tokens, of which an emulator gets fewer.
fn thinned(site: &Site, tokens: usize) -> usize {
    const STEP: usize = 128;
    if site.is_emulated() && tokens > 4 * STEP { tokens % STEP + 3 * STEP } else { tokens }
}

/// What is asked of the whole output.
struct Gates {
    /// The least cosine of a row and its reference.
    cosine: f64,
    /// The largest relative error of the LSE. (FP8 matrix units that accumulate in fewer bits than fp32 give 3e-4 to
    /// 1e-3 on large scores.)
    lse: f64,
}

const RANDOM: Gates = Gates { cosine: 0.98, lse: 1e-4 };
const DECODE: Gates = Gates { cosine: 0.99, ..RANDOM };
const PEAKED: Gates = Gates { lse: 2e-3, ..RANDOM };

/// Runs a case, and compares it with f64 attention on the dequantised values: row by row as all formats, and by `gates`.
#[track_caller]
fn right(site: &Site, case: &Case, gates: &Gates) -> Bits {
    let tensors = Tensors::new(case);
    let (bits, _) = run(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    let (expected, output) = (tensors.expected(case), bits.output(case));
    check(case, &expected, &output, gates);
    compare(case, &expected, &output).unwrap_or_else(|error| panic!("{error}\n{case}"));
    bits
}

#[track_caller]
fn check(case: &Case, expected: &[Row], output: &Output, gates: &Gates) {
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

fn all_right(site: &Site, gates: &Gates, cases: impl IntoIterator<Item = Case>) -> usize {
    let mut count = 0;
    for case in cases {
        right(site, &case, gates);
        count += 1;
    }
    count
}

const SHAPES: [Option<Shape>; 2] = [Some(Shape::SplitKv), Some(Shape::SharedKv)];

/// Queries and KV tokens, with the splits that they are tried with.
#[test]
fn short_queries_over_a_prefix() {
    suite("fp8::short_queries_over_a_prefix", |site| {
        let table: [(usize, usize, &[Splits]); 6] = [
            (1, 257, &[Splits::Auto, Splits::Exact(3)]),
            (70, 16_384, &[Splits::Exact(2), Splits::Exact(4), Splits::Exact(16), Splits::Auto]),
            (127, 11_008, &[Splits::Auto, Splits::Tokens(128)]),
            (129, 257, &[Splits::Auto]),
            (255, 513, &[Splits::Auto]),
            (383, 11_008, &[Splits::Auto, Splits::Exact(2)]),
        ];
        let heads = if site.is_emulated() { 1 } else { 12 };
        let cases = table.into_iter().flat_map(|(sq, sk, splits)| {
            let case = e4m3(1, sq, thinned(site, sk), heads, 1);
            splits.iter().map(move |&splits| Case { splits, ..case.clone() })
        });
        all_right(site, &DECODE, cases)
    });
}

/// Heads that share KV heads, in both block shapes, with a mask and without.
#[test]
fn grouped_heads() {
    suite("fp8::grouped_heads", |site| {
        let table = [(1, 16), (8, 4), (12, 1)];
        let cases = table.into_iter().flat_map(|(kv_heads, group)| {
            let kv_heads = if site.is_emulated() { kv_heads.min(2) } else { kv_heads };
            let case = Case { head_dim_qk: 128, per_head: [true; 3], ..e4m3(2, 5, 700, kv_heads, group) };
            let shapes = SHAPES.map(|block_shape| Case { block_shape, ..case.clone() });
            shapes.into_iter().flat_map(|case| [Case { causal: true, ..case.clone() }, case])
        });
        all_right(site, &RANDOM, cases)
    });
}

/// Head dims that there are kernels for, and those that are padded.
#[test]
fn head_dims() {
    suite("fp8::head_dims", |site| {
        let table =
            [(64, 64), (128, 128), (192, 64), (192, 96), (192, 128), (192, 160), (192, 192), (16, 16), (80, 48)];
        let cases = table.into_iter().flat_map(|(head_dim_qk, head_dim_v)| {
            let case = Case { head_dim_qk, head_dim_v, splits: Splits::Exact(2), ..e4m3(1, 40, 385, 2, 1) };
            SHAPES.map(|block_shape| Case { block_shape, ..case.clone() })
        });
        all_right(site, &RANDOM, cases)
    });
}

/// As many queries as keys, at edges and beside them; and many rows to merge.
#[test]
fn ragged_lengths() {
    suite("fp8::ragged_lengths", |site| {
        let squares = [1, 385, 1000, 4097].map(|tokens| {
            let tokens = thinned(site, tokens);
            Case { causal: true, ..e4m3(1, tokens, tokens, 1, 1) }
        });
        let tails = [(4097, 1), (4097, 3), (2050, 7), (8193, 1)].map(|(sq, heads)| {
            let (sq, heads) = if site.is_emulated() { (sq % 128 + 128, heads) } else { (sq, heads) };
            let case = e4m3(1, sq, 300, heads, 1);
            Case { head_dim_qk: 64, head_dim_v: 64, splits: Splits::Exact(2), ..case }
        });
        all_right(site, &RANDOM, squares.into_iter().chain(tails))
    });
}

/// Packed sequences: many queries of each, and lengths of zero on either side.
#[test]
fn packed_sequences() {
    suite("fp8::packed_sequences", |site| {
        let table: [(&[u32], &[u32]); 6] = [
            (&[2614], &[16_384]),
            (&[1024, 1590], &[8192, 8192]),
            (&[1024, 512, 1078], &[8192, 4096, 4096]),
            (&[1024, 512, 256, 822], &[8192, 4096, 2048, 2048]),
            (&[70, 0, 1, 33], &[500, 300, 0, 129]),
            (&[0, 0], &[10, 0]),
        ];
        let thin = |sizes: &[u32], by: u32| -> Vec<u32> {
            sizes.iter().map(|&n| if site.is_emulated() && n > 600 { n / by } else { n }).collect()
        };
        let cases = table.into_iter().flat_map(|(queries, keys)| {
            let (queries, keys) = (thin(queries, 32), thin(keys, 24));
            let most = |sizes: &[u32]| sizes.iter().copied().max().unwrap_or(0) as usize;
            let case = e4m3(queries.len(), most(&queries), most(&keys), 1, 2);
            [Known::Host, Known::Device].map(|known| Case {
                queries: Queries::Packed { lengths: queries.clone(), known },
                kv: Kv::Packed { room: keys.clone(), known },
                per_head: [false, true, true],
                splits: Splits::Auto,
                ..case.clone()
            })
        });
        all_right(site, &RANDOM, cases)
    });
}

/// Scores 200 times as large: a row is about one key's V.
#[test]
fn peaked_scores() {
    suite("fp8::peaked_scores", |site| {
        let scale = Some(200.0 / 192f32.sqrt());
        let cases = [(1, 300), (70, 1000)].into_iter().flat_map(|(sq, sk)| {
            [Splits::Exact(1), Splits::Exact(4)].into_iter().flat_map(move |splits| {
                SHAPES.map(|block_shape| Case { scale, splits, block_shape, ..e4m3(1, sq, sk, 2, 1) })
            })
        });
        all_right(site, &PEAKED, cases)
    });
}

/// More queries than keys, no keys, and another scale.
#[test]
fn rows_without_keys() {
    suite("fp8::rows_without_keys", |site| {
        let scale = Some(0.37);
        let dead = e4m3(1, if site.is_emulated() { 256 } else { 1024 }, 128, 1, 1);
        let lengths = Lengths::Device(vec![0, 77]);
        let cases = SHAPES.into_iter().flat_map(|block_shape| {
            [
                Case { causal: true, block_shape, ..dead.clone() },
                Case { block_shape, scale, splits: Splits::Exact(3), ..e4m3(2, 5, 0, 2, 1) },
                Case { block_shape, scale, lengths: lengths.clone(), ..e4m3(2, 5, 300, 2, 1) },
            ]
        });
        all_right(site, &RANDOM, cases)
    });
}

/// The largest relative error of O where V is 1, so that O should be 1 whatever the scores are.
#[track_caller]
fn error_of_ones(site: &Site, case: &Case) -> f64 {
    let case = Case { data: Data::Ones, output: Format::F32, ..case.clone() };
    let tensors = Tensors::new(&case);
    let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    // 1 over V's factor is not exact in e4m3.
    let descale = f64::from(tensors.descales[2][0]);
    let one = Format::E4m3.round(1.0 / descale) * descale;
    largest(bits.output(&case).o.iter().flatten().map(|o| o / one - 1.0))
}

/// Few query heads, scores of any size: weights neither saturate nor lose their sum.
///
/// Weights are rounded for the product with V, and summed unrounded. Where a row has many keys of like weight, or one
/// that outweighs all, V = 1 gives 1 within 1 %. Where it has a few (scores six times as large), their errors do not
/// average out: 1.4 % were seen, and the rounding of e4m3 alone bounds it by 2^-4.
#[test]
fn report_17_weights_that_saturate() {
    suite("fp8::report_17_weights_that_saturate", |site| {
        let mut cases = 0;
        for sk in [128, 129, 511, 1024] {
            for (factor, gates, ones) in [
                (0.0, DECODE, 0.01),
                (0.05, DECODE, 0.01),
                (1.0, DECODE, 0.01),
                (6.0, PEAKED, 0.02),
                (200.0, PEAKED, 0.01),
                (-200.0, PEAKED, 0.01),
            ] {
                for splits in [Splits::Exact(1), Splits::Exact(3)] {
                    let scale = Some(factor / 128f32.sqrt());
                    for block_shape in SHAPES {
                        let case = Case { head_dim_qk: 128, scale, splits, block_shape, ..e4m3(1, 1, sk, 1, 6) };
                        right(site, &case, &gates);
                        let error = error_of_ones(site, &case);
                        assert!(error < ones, "{error}\n{case}");
                        cases += 2;
                    }
                }
            }
        }
        cases
    });
}

/// Factors of K and V that are ignored would show: each is another one, and so is Q's.
#[test]
fn report_15_factors_that_are_ignored() {
    suite("fp8::report_15_factors_that_are_ignored", |site| {
        let mut cases = 0;
        for per_head in (0..8).map(|bits| [0, 1, 2].map(|bit| bits >> bit & 1 == 1)) {
            for splits in [Splits::Exact(1), Splits::Exact(2)] {
                let case = Case { per_head, splits, ..e4m3(2, 3, 200, 2, 2) };
                let mut tensors = Tensors::new(&case);
                let mut scale = |tensor: usize, factor: f32| {
                    tensors.descales[tensor].iter_mut().for_each(|descale| *descale *= factor);
                };
                // K's first factor becomes 0.25, V's 0.5.
                scale(1, 0.25 / 0.375);
                scale(2, 0.5 / 0.75);
                assert_eq!((tensors.descales[1][0], tensors.descales[2][0]), (0.25, 0.5));
                let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
                check(&case, &tensors.expected(&case), &bits.output(&case), &RANDOM);
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

/// A captured launch follows the factors: they are read on the device.
#[test]
fn replay_follows_the_factors() {
    suite("fp8::replay_follows_the_factors", |site| {
        let mut replays = 0;
        for (per_head, splits) in [([false; 3], Splits::Exact(1)), ([true; 3], Splits::Exact(3))] {
            let case = Case { per_head, splits, ..e4m3(2, 7, 300, 2, 1) };
            let mut tensors = Tensors::new(&case);
            let mut launch = Launch::new(site, &case, &tensors).expect("a valid case");
            let graph = launch.capture().expect("a launch can be captured");
            for (tensor, factor) in [(0, 3.0), (1, 0.5), (2, 7.0), (0, 0.01)] {
                tensors.descales[tensor].iter_mut().for_each(|descale| *descale *= factor);
                launch.set_descales(tensor, &tensors.descales[tensor]).expect("a write");
                launch.fill(0xff).expect("a write");
                launch.replay(&graph).expect("a launch");
                let (want, _) = run(site, &case, &tensors).expect("a valid case");
                let got = launch.read().expect("a valid case");
                assert_eq!(got, want, "tensor {tensor} times {factor}: {case}");
                check(&case, &tensors.expected(&case), &got.output(&case), &PEAKED);
                replays += 1;
            }
        }
        replays
    });
}

/// What the FP8 benchmark's problems count where kernels are emulated. Prints.
#[test]
#[ignore = "a measurement"]
fn counters_of_the_benchmark() {
    suite("fp8::counters_of_the_benchmark", |site| {
        for sk in [16_384, 11_008] {
            let case = Case { splits: Splits::Auto, ..e4m3(1, 70, sk, 12, 1) };
            let mut launch = Launch::new(site, &case, &Tensors::new(&case)).expect("a valid case");
            site.device.count_launches().expect("an emulated device");
            launch.run().expect("a valid case");
            println!("{}\n  needed: {:?}", launch.plan(), Needed::of(&case));
            for counted in site.device.take_counters() {
                println!("  {}: {:#?}", counted.kernel, counted.counters);
            }
        }
        2
    });
}

/// The rule of causal splits, with the compiled kernels: 70 queries over 16384 keys.
#[test]
fn causal_splits_are_refused() {
    suite("fp8::causal_splits_are_refused", |site| {
        let causal = Case { causal: true, splits: Splits::Exact(4), ..e4m3(1, 70, 16_384, 12, 1) };
        let error = plan_case(site, &causal).expect_err("it is refused").to_string();
        assert!(error.starts_with("splits: given exactly 4; allowed: one split"), "{error}");
        let auto = plan_case(site, &Case { splits: Splits::Auto, ..causal }).expect("one split");
        assert_eq!(auto.num_splits(), 1);
        2
    });
}

/// Factors that are missing, of the wrong shape or type, or given where there are none.
#[test]
fn wrong_factors_are_refused() {
    suite("fp8::wrong_factors_are_refused", |site| wrong_factors(site).expect("everything else is right"));
}

fn wrong_factors(site: &Site) -> Result<usize, Error> {
    let device = &site.device;
    let refused = |case: &Case, change: &dyn Fn(&mut [Option<Tensor>; 3])| -> Result<String, Error> {
        let problem = splitkv_tests::launch::problem(case);
        let plan = plan(&problem, &Options::default(), device.props(), site.kernels.catalogue())?;
        let tensor = |dtype, shape: &[usize]| Tensor::zeros(device, dtype, shape);
        let (q, k) = (tensor(problem.dtype, &problem.q_shape())?, tensor(problem.dtype, &problem.k_shape())?);
        let (v, o) = (tensor(problem.dtype, &problem.v_shape())?, tensor(problem.o_dtype, &problem.o_shape())?);
        let lse = tensor(DType::F32, &problem.lse_shape())?;
        let shapes = [problem.q_descale, problem.k_descale, problem.v_descale].map(|d| problem.descale_shape(d));
        let mut descales = [None, None, None];
        if case.format == Format::E4m3 {
            for (descale, shape) in descales.iter_mut().zip(shapes) {
                *descale = Some(tensor(DType::F32, &shape)?);
            }
        }
        change(&mut descales);
        let [q_descale, k_descale, v_descale] = descales.each_ref().map(Option::as_ref);
        let inputs = Inputs { lse: Some(&lse), q_descale, k_descale, v_descale, ..Inputs::new(&q, &k, &v, &o) };
        match Executor::new(device, &site.kernels, &plan)?.run(&device.stream()?, &inputs) {
            Ok(()) => Ok(String::new()),
            Err(error) => Ok(error.to_string()),
        }
    };
    let case = Case { per_head: [false, true, false], ..e4m3(2, 1, 64, 2, 1) };
    let other = |dtype, shape: &[usize]| Some(Tensor::zeros(device, dtype, shape).expect("there is memory"));
    assert_eq!(refused(&case, &|_| {})?, "");
    let text = refused(&case, &|descales| descales[0] = None)?;
    assert_eq!(text, "q_descale: given none; allowed: a tensor [1] of f32, as planned");
    let text = refused(&case, &|descales| descales[1] = other(DType::F32, &[1]))?;
    assert_eq!(text, "k_descale: given shape [1]; allowed: shape [2, 2]");
    let text = refused(&case, &|descales| descales[2] = other(DType::Bf16, &[1]))?;
    assert_eq!(text, "v_descale: given bf16; allowed: f32");
    let bf16 = Case { format: Format::Bf16, per_head: [false; 3], ..case };
    let text = refused(&bf16, &|descales| descales[2] = other(DType::F32, &[1]))?;
    assert_eq!(text, "v_descale: given a tensor; allowed: none, as planned");
    Ok(5)
}
