//! e4m3: what is asked of it beside the properties that all formats have. Emulated devices get fewer heads, and shorter
//! sequences with the same remainders.

use std::sync::Mutex;

use splitkv::{DType, Error, Executor, Inputs, Options, Tensor, plan};
use splitkv_tests::case::{Case, Known, Kv, Lengths, Queries, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::fp8::{DECODE, Gates, PEAKED, RANDOM, SHAPES, check, e4m3, right};
use splitkv_tests::gauge::Needed;
use splitkv_tests::launch::{Launch, plan_case, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{self, Site, sites};

/// While a GPU's stream is captured, no other thread may wait for the device, as copies do: there, one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn suite(name: &str, body: impl Fn(&Site) -> usize) {
    let _alone = sites().iter().any(|site| !site.is_emulated()).then(|| ALONE.lock());
    site::suite(name, body);
}

/// Tokens, of which an emulator gets fewer.
fn thinned(site: &Site, tokens: usize) -> usize {
    const STEP: usize = 128;
    if site.is_emulated() && tokens > 4 * STEP { tokens % STEP + 3 * STEP } else { tokens }
}

fn all_right(site: &Site, gates: &Gates, cases: impl IntoIterator<Item = Case>) -> usize {
    let mut count = 0;
    for case in cases {
        right(site, &case, gates);
        count += 1;
    }
    count
}

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

/// Pages that sequences have in common, with the factors that they have in common for them.
#[test]
fn pages_in_common() {
    suite("fp8::pages_in_common", |site| {
        let table = [(1, 7), (16, 3), (64, 1), (256, 2)];
        let cases = table.into_iter().flat_map(|(page_size, shared)| {
            [[false; 3], [true; 3]].map(|per_head| Case {
                per_head,
                kv: Kv::Paged { page_size, shared, spare: 1, known: Known::Device },
                lengths: Lengths::Device(vec![300, 17, 0, 299]),
                splits: Splits::Auto,
                ..e4m3(4, 2, 300, 2, 3)
            })
        });
        all_right(site, &RANDOM, cases)
    });
}

/// Factors as no quantiser makes them: negative, zero, far from 1, and subnormal.
#[test]
fn odd_factors() {
    suite("fp8::odd_factors", |site| {
        let tiny = f32::MIN_POSITIVE / 256.0;
        let table = [
            [-0.25, 0.5, 1.0],
            [0.5, 0.5, -3.0],
            [0.0, 1.0, 1.0],
            [1.0, 1.0, 0.0],
            [1e20, 1e-20, 1e30],
            [1e-30, 1e30, 1e-30],
            [tiny, 1.0, 1.0],
            [tiny, tiny, 1.0],
        ];
        let mut count = 0;
        for factors in table {
            for (block_shape, splits) in SHAPES.into_iter().zip([Splits::Exact(3), Splits::Exact(1)]) {
                let case = Case { splits, block_shape, output: Format::F32, ..e4m3(1, 3, 700, 1, 2) };
                let mut tensors = Tensors::new(&case);
                for (given, factor) in tensors.descales.iter_mut().zip(factors) {
                    given.fill(factor);
                }
                let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
                compare(&case, &tensors.expected(&case), &bits.output(&case))
                    .unwrap_or_else(|error| panic!("factors {factors:?}: {error}\n{case}"));
                count += 1;
            }
        }
        count
    });
}

/// The factors of a sequence without keys do not matter: O is 0 and LSE minus infinity.
#[test]
fn factors_without_keys_do_not_matter() {
    suite("fp8::factors_without_keys_do_not_matter", |site| {
        let mut count = 0;
        for (tensor, value) in (0..3).flat_map(|tensor| [f32::NAN, f32::INFINITY].map(|value| (tensor, value))) {
            for (block_shape, splits) in SHAPES.into_iter().flat_map(|s| [1, 3].map(|n| (s, Splits::Exact(n)))) {
                let lengths = Lengths::Device(vec![0, 300]);
                let case = Case { splits, block_shape, lengths, per_head: [true; 3], ..e4m3(2, 3, 300, 2, 1) };
                let mut tensors = Tensors::new(&case);
                let expected = tensors.expected(&case);
                tensors.descales[tensor][..case.kv_heads].fill(value);
                let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
                compare(&case, &expected, &bits.output(&case))
                    .unwrap_or_else(|error| panic!("{value} as a factor of tensor {tensor}: {error}\n{case}"));
                count += 1;
            }
        }
        count
    });
}

/// A query that is NaN, or whose scores a factor makes NaN, gives NaN, never the result of a row that sees no key.
#[test]
fn nan_does_not_get_lost() {
    suite("fp8::nan_does_not_get_lost", |site| {
        let mut count = 0;
        for format in [Format::E4m3, Format::Bf16, Format::F16] {
            for (block_shape, splits) in SHAPES.into_iter().flat_map(|s| [1, 3].map(|n| (s, Splits::Exact(n)))) {
                let case = Case { format, splits, block_shape, output: Format::F32, ..e4m3(1, 3, 300, 2, 1) };
                let mut tensors = Tensors::new(&case);
                let place = &tensors.places.q;
                let start = place.start(0, 1, 1) * format.size();
                // All bits set: NaN in every format.
                tensors.buffers[place.buffer][start..start + format.size()].fill(0xff);
                let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
                let output = bits.output(&case);
                let lse = output.lse.as_ref().expect("asked for");
                for ((row, o), index) in case.rows().iter().zip(&output.o).zip(case.lse_rows()) {
                    let is_nan = row == &[0, 1, 1];
                    assert!(o.iter().all(|o| o.is_nan() == is_nan), "row {row:?}: O {o:?}\n{case}");
                    assert_eq!(lse[index].is_nan(), is_nan, "row {row:?}: LSE {}\n{case}", lse[index]);
                }
                count += 1;
            }
        }
        count
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
