//! Kernels over tensor memory.

use splitkv_tests::case::{Case, Data, Kv, Known, Lengths, Queries, Shape, Splits, Window};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::Launch;
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{Site, suite};

fn check(site: &Site, case: &Case) {
    let start = std::time::Instant::now();
    let tensors = Tensors::new(case);
    let mut launch = Launch::new(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    launch.run().unwrap_or_else(|error| panic!("{error}\n{case}"));
    let bits = launch.read().unwrap_or_else(|error| panic!("{error}\n{case}"));
    let expected = tensors.expected(case);
    eprintln!("{:?} {}", start.elapsed(), launch.plan().kernel().name);
    compare(case, &expected, &bits.output(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
}

fn base(q_tiles: u32) -> Case {
    Case { block_shape: Some(Shape::Tcgen05), q_tiles: Some(q_tiles), splits: Splits::Exact(1), ..Case::new(1, 1, 500, 1, 4) }
}

#[test]
fn first() {
    suite("tcgen05::first", |site| {
        for q_tiles in [1, 2] {
            for format in [Format::Bf16, Format::F16] {
                for (qk, v) in [(64, 64), (128, 128), (192, 128), (120, 104)] {
                    check(site, &Case { head_dim_qk: qk, head_dim_v: v, format, output: format, ..base(q_tiles) });
                    check(site, &Case { head_dim_qk: qk, head_dim_v: v, format, output: format, kv: Kv::Paged { page_size: 16, shared: 0, spare: 0, known: Known::Device }, ..base(q_tiles) });
                }
            }
        }
        1
    });
}

#[test]
fn features() {
    suite("tcgen05::features", |site| {
        for q_tiles in [1, 2] {
            let base = base(q_tiles);
            check(site, &Case { sk: 1000, splits: Splits::Exact(3), ..base.clone() });
            check(site, &Case { sk: 1000, splits: Splits::Tokens(256), ..base.clone() });
            check(site, &Case { batch: 3, sk: 300, splits: Splits::Exact(5), lengths: Lengths::Device(vec![0, 1, 300]), ..base.clone() });
            check(site, &Case { sq: 50, sk: 400, group: 7, causal: true, ..base.clone() });
            check(site, &Case { sq: 50, sk: 400, group: 7, causal: true, splits: Splits::Exact(2), data: Data::Peaked, ..base.clone() });
            check(site, &Case { sq: 40, sk: 700, group: 2, window: Some(Window { left: Some(100), right: Some(0) }), softcap: Some(5.0), ..base.clone() });
            check(site, &Case { sq: 2, sk: 200, sink: Some(vec![Some(0.5), None]), ..base.clone() });
            check(site, &Case { batch: 3, sq: 60, sk: 300, kv_heads: 2, group: 3, queries: Queries::Packed { lengths: vec![60, 0, 7], known: Known::Device }, kv: Kv::Packed { room: vec![300, 5, 200], known: Known::Host }, causal: true, ..base.clone() });
        }
        1
    });
}

#[test]
fn e4m3() {
    suite("tcgen05::e4m3", |site| {
        let base = Case { format: Format::E4m3, output: Format::Bf16, head_dim_qk: 192, head_dim_v: 128, ..base(1) };
        check(site, &base);
        check(site, &Case { data: Data::Peaked, sq: 30, sk: 700, ..base.clone() });
        check(site, &Case { splits: Splits::Exact(3), per_head: [true; 3], kv: Kv::Paged { page_size: 16, shared: 0, spare: 0, known: Known::Device }, ..base.clone() });
        1
    });
}
