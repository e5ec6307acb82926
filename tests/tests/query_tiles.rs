//! What a block with one query tile saves where the rows fit it: half of the matrix instructions, counted where kernels
//! are emulated.

use kernels_gpu::abi::Target;
use splitkv_tests::case::{Case, Shape};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Bits, Launch};
use splitkv_tests::site::{Site, suite};

/// Runs a case; the matrix instructions, the tokens that a warp takes at once, and the output.
fn count(site: &Site, case: &Case, tensors: &Tensors) -> (u64, u32, Bits) {
    let mut launch = Launch::new(site, case, tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    site.device.count_launches().unwrap_or_else(|error| panic!("{error}"));
    launch.run().unwrap_or_else(|error| panic!("{error}\n{case}"));
    let counters = site.device.take_counters();
    let name = launch.plan().kernel().name;
    let matrix =
        counters.iter().filter(|launch| launch.kernel == name).map(|launch| launch.counters.matrix_instructions).sum();
    (matrix, launch.plan().geometry().chunk, launch.read().unwrap_or_else(|error| panic!("{error}\n{case}")))
}

#[test]
fn one_query_tile_halves_the_matrix_instructions() {
    suite("query_tiles::one_query_tile_halves_the_matrix_instructions", |site| {
        if !site.is_emulated() {
            return 0;
        }
        let mut cases = 0;
        for (head_dim_qk, head_dim_v) in [(128, 128), (192, 128)] {
            // Rows of a KV head: at most one tile of each shape.
            let mut shapes = vec![(Shape::SplitKv, 1, 4), (Shape::SplitKv, 4, 4), (Shape::SharedKv, 32, 4)];
            if site.device.props().target == Target::Sm100f {
                shapes.extend([(Shape::Tcgen05, 1, 4), (Shape::Tcgen05, 32, 4)]);
            }
            for (shape, sq, group) in shapes {
                let block_shape = Some(shape);
                let one =
                    Case { head_dim_qk, head_dim_v, block_shape, q_tiles: Some(1), ..Case::new(1, sq, 256, 1, group) };
                let two = Case { q_tiles: Some(2), ..one.clone() };
                let tensors = Tensors::new(&one);
                let (of_one, chunk, bits) = count(site, &one, &tensors);
                let (of_two, chunk_of_two, bits_of_two) = count(site, &two, &tensors);
                assert!(of_one > 0 && of_two == 2 * of_one, "{of_one} and {of_two} matrix instructions: {one}");
                let expected = tensors.expected(&one);
                for (case, bits) in [(&one, &bits), (&two, &bits_of_two)] {
                    compare(case, &expected, &bits.output(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
                }
                // The same bits where warps take the same tokens at once. Where two tiles leave room for fewer, the
                // running maximum grows at other tokens, and with it roundings differ; over tensor memory, one query
                // tile takes even and odd KV tiles apart.
                if chunk == chunk_of_two && shape != Shape::Tcgen05 {
                    assert_eq!(bits, bits_of_two, "{one}");
                }
                cases += 2;
            }
        }
        cases
    });
}
