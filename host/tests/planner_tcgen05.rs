//! Plans on a device with tensor memory: when its kernels are taken, with how many query tiles, and what is said when
//! they are not.

use splitkv::{BlockShape, Catalogue, DType, DeviceProps, KernelReason, Options, Plan, Problem, Splits, Target, plan};

fn make(problem: &Problem, options: Options) -> Plan {
    plan(problem, &options, &DeviceProps::b200(), &Catalogue::of(Target::Sm100f))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn exactly(splits: u32) -> Options {
    Options { splits: Splits::Exact(splits), ..Options::default() }
}

#[test]
fn kernels_over_tensor_memory_are_taken_where_one_fits() {
    for dtype in [DType::Bf16, DType::F16] {
        for (qk, v, fits) in
            [(64, 64, true), (40, 64, true), (128, 128, true), (192, 128, true), (96, 96, false), (256, 256, false)]
        {
            for paged in [false, true] {
                let mut problem = Problem::new(2, 8, 2, 1, 4096, qk, dtype).head_dim_v(v);
                if paged {
                    problem = problem.paged(1024, 16, splitkv::PageTable::Device { width: 256 });
                }
                let plan = make(&problem, Options::default());
                let expected = if fits { KernelReason::Special } else { KernelReason::Portable };
                assert_eq!(plan.kernel_reason(), expected, "{plan}");
                assert_eq!(plan.block_shape() == BlockShape::Tcgen05, fits, "{plan}");
                assert_eq!(plan.kernel().targets.contains(&Target::Sm100f), fits, "{plan}");
                let words =
                    if fits { "(made for this architecture)" } else { "(portable: none made for this architecture" };
                assert!(plan.to_string().contains(words), "{plan}");
            }
        }
    }
    // e4m3 has one for 192/128 alone.
    let e4m3 = |qk: usize| make(&Problem::new(1, 8, 1, 1, 4096, qk, DType::E4m3).head_dim_v(128), Options::default());
    assert_eq!(e4m3(192).kernel().name, "attention_e4m3_d192x128_tcgen05_q1");
    assert_eq!(e4m3(128).kernel_reason(), KernelReason::Portable);
    // Elsewhere there are none.
    let problem = Problem::new(2, 8, 2, 1, 4096, 128, DType::Bf16);
    let h200 = plan(&problem, &Options::default(), &DeviceProps::h200(), &Catalogue::of(Target::Sm90a)).unwrap();
    assert_ne!(h200.block_shape(), BlockShape::Tcgen05, "{h200}");
}

#[test]
fn one_query_tile_for_few_rows_or_splits_and_two_for_many_rows() {
    for (sq, group, splits, q_tiles) in
        [(1, 8, 1, 1), (16, 8, 1, 1), (16, 8, 4, 1), (17, 8, 1, 2), (17, 8, 2, 1), (1000, 8, 1, 2), (1000, 8, 3, 1)]
    {
        let problem = Problem::new(1, 2 * group, 2, sq, 8192, 128, DType::Bf16).causal(true);
        let plan = make(&problem, exactly(splits));
        assert_eq!((plan.q_tiles(), plan.num_splits()), (q_tiles, splits), "{plan}");
        assert_eq!(plan.m_blocks() as usize, (sq * group).div_ceil(128 * q_tiles as usize), "{plan}");
        for asked in [1, 2] {
            let plan = make(&problem, Options { q_tiles: Some(asked), ..exactly(splits) });
            assert_eq!((plan.q_tiles(), plan.block_shape()), (asked, BlockShape::Tcgen05), "{plan}");
        }
    }
    // What is free follows the same rule: enough row blocks are not split, one is.
    let many = make(&Problem::new(4, 16, 2, 4096, 4096, 128, DType::Bf16), Options::default());
    assert_eq!((many.num_splits(), many.q_tiles()), (1, 2), "{many}");
    let one = make(&Problem::new(1, 16, 2, 1, 131_072, 128, DType::Bf16), Options::default());
    assert!(one.num_splits() > 32 && one.q_tiles() == 1, "{one}");
    // By tokens, a sequence has the same bits whatever is beside it: one tile always.
    let tokens = Options { splits: Splits::Tokens(4096), ..Options::default() };
    assert_eq!(make(&Problem::new(1, 16, 2, 500, 4096, 128, DType::Bf16), tokens).q_tiles(), 1);
}

#[test]
fn what_is_asked_for_is_done() {
    let problem = Problem::new(1, 16, 2, 1, 4096, 128, DType::Bf16);
    for shape in [BlockShape::SplitKv, BlockShape::SharedKv, BlockShape::Tcgen05] {
        let plan = make(&problem, Options { block_shape: Some(shape), ..Options::default() });
        assert_eq!(plan.block_shape(), shape, "{plan}");
        assert_ne!(plan.kernel_reason(), KernelReason::Portable, "{plan}");
    }
    // Where the shared memory does not hold a block, another kernel is taken, and the plan says so.
    let small = DeviceProps { shared_bytes_per_block: 160 << 10, ..DeviceProps::b200() };
    let portable = plan(&problem, &Options::default(), &small, &Catalogue::of(Target::Sm100f)).unwrap();
    assert_eq!(portable.kernel_reason(), KernelReason::Portable, "{portable}");
}
