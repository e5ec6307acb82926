//! Kernels of warpgroups over 16-bit types: what is asked of them beside the properties that all kernels have. (Those of
//! e4m3 are among what `fp8.rs` asks.)

use std::sync::Mutex;

use kernels_gpu::abi::{BlockShape, Target};
use splitkv_tests::case::{Case, Data, Known, Kv, Lengths, Queries, Shape, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Launch, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{self, Site};

const FORMATS: [Format; 2] = [Format::Bf16, Format::F16];

/// While a GPU's stream is captured, no other thread may wait for the device, as copies do: there, one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the body where there are such kernels.
fn suite(name: &str, body: impl Fn(&Site) -> usize) {
    let _alone = site::sites().iter().any(|site| !site.is_emulated()).then(|| ALONE.lock());
    site::suite(name, |site| if site.device.props().target == Target::Sm90a { body(site) } else { 0 });
}

/// A case for them, with LSE and an output of the format.
fn of(format: Format, batch: usize, sq: usize, sk: usize, kv_heads: usize, group: usize) -> Case {
    let case = Case::new(batch, sq, sk, kv_heads, group);
    let block_shape = Some(Shape::Warpgroups);
    Case { head_dim_qk: 192, head_dim_v: 128, format, output: format, lse: true, block_shape, ..case }
}

/// Runs cases in both formats and compares them with the reference.
fn all_right(site: &Site, cases: impl Fn(Format) -> Vec<Case>) -> usize {
    let cases: Vec<_> = FORMATS.into_iter().flat_map(cases).collect();
    for case in &cases {
        let tensors = Tensors::new(case);
        let (bits, plan) = run(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
        assert_eq!(plan.block_shape(), BlockShape::Warpgroups, "{case}");
        compare(case, &tensors.expected(case), &bits.output(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    }
    cases.len()
}

/// Rows and KV lengths at the edges of tiles and beside them.
#[test]
fn rows_and_lengths() {
    suite("warpgroups::rows_and_lengths", |site| {
        all_right(site, |format| {
            let rows = [1, 2, 7, 8, 9, 63, 70, 72, 73, 145];
            let keys = [1, 15, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 320, 449];
            let by_rows = rows.into_iter().enumerate().map(|(i, sq)| of(format, 1, sq, [200, 129][i % 2], 1, 1));
            let by_keys = keys.into_iter().enumerate().map(|(i, sk)| of(format, 1, [3, 70][i % 2], sk, 1, 1));
            by_rows.chain(by_keys).collect()
        })
    });
}

/// Splits: fewer and more than tiles, and those that the blocks do not merge.
#[test]
fn splits() {
    suite("warpgroups::splits", |site| {
        all_right(site, |format| {
            let numbers = [1, 2, 3, 4, 5, 11, 47, 48, 49].map(Splits::Exact);
            let all = numbers.into_iter().chain([Splits::Auto, Splits::Tokens(64), Splits::Tokens(192)]);
            all.map(|splits| Case { splits, ..of(format, 1, 70, 700, 2, 1) }).collect()
        })
    });
}

/// Heads that share KV heads, several sequences, and outputs of every type.
#[test]
fn heads_and_outputs() {
    suite("warpgroups::heads_and_outputs", |site| {
        all_right(site, |format| {
            let outputs = [Format::F32, format];
            let groups = [(1, 16), (2, 4), (1, 72), (1, 80), (3, 1)];
            let cases = groups.into_iter().zip(outputs.into_iter().cycle());
            let cases = cases.flat_map(|((kv_heads, group), output)| {
                [Splits::Exact(1), Splits::Exact(3)].map(|splits| Case {
                    output,
                    splits,
                    ..of(format, 2, 3, 300, kv_heads, group)
                })
            });
            cases.collect()
        })
    });
}

/// Head dims that are padded to the kernel's.
#[test]
fn head_dims() {
    suite("warpgroups::head_dims", |site| {
        all_right(site, |format| {
            let dims = [(136, 8), (144, 64), (160, 72), (184, 96), (192, 120), (192, 128)];
            dims.map(|(head_dim_qk, head_dim_v)| Case {
                head_dim_qk,
                head_dim_v,
                splits: Splits::Exact(2),
                ..of(format, 1, 9, 150, 2, 1)
            })
            .into()
        })
    });
}

/// Sequences of other lengths than their room, behind which there is NaN; none at all; packed ones.
#[test]
fn lengths() {
    suite("warpgroups::lengths", |site| {
        all_right(site, |format| {
            let lengths = vec![0, 1, 65, 299, 300];
            let lengths = [Lengths::Host(lengths.clone()), Lengths::Device(lengths)];
            let dense = lengths.into_iter().flat_map(|lengths| {
                [Splits::Auto, Splits::Exact(1), Splits::Exact(3)].map(|splits| Case {
                    splits,
                    lengths: lengths.clone(),
                    ..of(format, 5, 5, 300, 1, 2)
                })
            });
            let packed = [Known::Host, Known::Device].into_iter().flat_map(|known| {
                [Splits::Auto, Splits::Exact(3)].map(|splits| Case {
                    queries: Queries::Packed { lengths: vec![70, 0, 1, 33], known },
                    kv: Kv::Packed { room: vec![500, 300, 0, 129], known },
                    splits,
                    ..of(format, 4, 70, 500, 2, 1)
                })
            });
            let nothing = Case { splits: Splits::Exact(3), ..of(format, 2, 5, 0, 2, 1) };
            dense.chain(packed).chain([nothing]).collect()
        })
    });
}

/// Scores 200 times as large; values that are all the same; sinks.
#[test]
fn scores_and_values() {
    suite("warpgroups::scores_and_values", |site| {
        all_right(site, |format| {
            let case = Case { splits: Splits::Exact(2), output: Format::F32, ..of(format, 1, 70, 500, 2, 1) };
            let peaked = Some(200.0 / 192f32.sqrt());
            let scales = [peaked, Some(0.0), Some(-0.11), Some(1e-6)];
            let by_scale = scales.map(|scale| Case { scale, ..case.clone() });
            let sink = Some(vec![Some(1.5), None, Some(-3.0)]);
            by_scale
                .into_iter()
                .chain([Case { data: Data::Ones, ..case.clone() }, Case { sink, ..case.clone() }])
                .collect()
        })
    });
}

/// A query that is NaN gives NaN, and no other row does.
#[test]
fn nan_does_not_get_lost() {
    suite("warpgroups::nan_does_not_get_lost", |site| {
        let mut count = 0;
        for format in FORMATS {
            for splits in [1, 3].map(Splits::Exact) {
                let case = Case { splits, output: Format::F32, ..of(format, 1, 3, 300, 2, 1) };
                let mut tensors = Tensors::new(&case);
                let place = &tensors.places.q;
                let start = place.start(0, 1, 1) * format.size();
                tensors.buffers[place.buffer][start..start + format.size()].fill(0xff);
                let (bits, _) = run(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
                for (row, o) in case.rows().iter().zip(&bits.output(&case).o) {
                    assert!(o.iter().all(|o| o.is_nan() == (row == &[0, 1, 1])), "row {row:?}: {o:?}\n{case}");
                }
                count += 1;
            }
        }
        count
    });
}

/// The same call gives the same bits, launched or replayed, whatever outputs and workspace held before.
#[test]
fn the_same_call_again() {
    suite("warpgroups::the_same_call_again", |site| {
        for format in FORMATS {
            let case = Case { splits: Splits::Exact(5), ..of(format, 1, 70, 700, 2, 1) };
            let mut launch = Launch::new(site, &case, &Tensors::new(&case)).expect("a valid case");
            launch.run().expect("a launch");
            let first = launch.read().expect("a valid case");
            let graph = launch.capture().expect("a launch can be captured");
            for byte in [0x00, 0xff] {
                launch.fill(byte).expect("a write");
                launch.replay(&graph).expect("a launch");
                assert_eq!(launch.read().expect("a valid case"), first, "{case}");
            }
        }
        FORMATS.len()
    });
}
