//! Kernels over tensor memory.

use splitkv_tests::case::{Case, Shape, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::Launch;
use splitkv_tests::site::suite;

#[test]
fn first() {
    suite("tcgen05::first", |site| {
        let case = Case { block_shape: Some(Shape::Tcgen05), q_tiles: Some(1), splits: Splits::Exact(1), ..Case::new(1, 1, 500, 1, 4) };
        let tensors = Tensors::new(&case);
        let mut launch = Launch::new(site, &case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
        launch.run().unwrap_or_else(|error| panic!("{error}\n{case}"));
        let bits = launch.read().unwrap_or_else(|error| panic!("{error}\n{case}"));
        let expected = tensors.expected(&case);
        compare(&case, &expected, &bits.output(&case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
        1
    });
}
