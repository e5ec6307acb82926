//! Plans of 16-bit problems on a device with warpgroups' products: when their kernels are taken, and with how many splits.

use splitkv::{
    BlockShape, Catalogue, DType, DeviceProps, Merging, Options, PageTable, Plan, Problem, Reason, Splits, Target,
    Window, plan,
};

fn make(problem: &Problem, options: &Options) -> Plan {
    plan(problem, options, &DeviceProps::h200(), &Catalogue::of(Target::Sm90a))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn auto(problem: &Problem) -> Plan {
    make(problem, &Options::default())
}

/// 70 queries of 12 heads over a cached prefix, head dims 192/128.
fn short_queries(sk: usize, dtype: DType) -> Problem {
    Problem::new(1, 12, 12, 70, sk, 192, dtype).head_dim_v(128).lse(true)
}

/// Pinned: KV tokens, and the splits. From 4096 tokens on all multiprocessors have a block.
#[test]
fn short_queries_are_split_over_warpgroups() {
    let names =
        [(DType::Bf16, "attention_bf16_d192x128_warpgroups_q1"), (DType::F16, "attention_f16_d192x128_warpgroups_q1")];
    for (dtype, name) in names {
        for (sk, splits) in [(4096, 11), (11_008, 11), (16_384, 11)] {
            let plan = auto(&short_queries(sk, dtype));
            assert_eq!((plan.num_splits(), plan.reason()), (splits, Reason::SplitIsCheapest), "{plan}");
            assert_eq!((plan.kernel().name, plan.m_blocks()), (name, 1), "{plan}");
            assert_eq!(plan.attention().grid, 12 * splits, "{plan}");
            assert_eq!(plan.merging(), Merging::Blocks, "{plan}");
        }
        // A tile has 64 tokens.
        let tokens = Options { splits: Splits::Tokens(64 * 24), ..Options::default() };
        assert_eq!(make(&short_queries(16_384, dtype), &tokens).num_splits(), 11);
    }
}

/// Masks, a softcap, pages and other head dims are the portable kernels'; so are few rows, which fit a smaller tile.
#[test]
fn portable_kernels_take_the_rest() {
    let problem = short_queries(16_384, DType::Bf16);
    let window = Window { left: Some(100), right: None };
    let dims = |qk, v| Problem::new(1, 12, 12, 70, 16_384, qk, DType::Bf16).head_dim_v(v);
    let others = [
        problem.clone().causal(true),
        problem.clone().window(window),
        problem.clone().softcap(30.0),
        problem.clone().paged(1024, 16, PageTable::Device { width: 1024 }),
        dims(128, 128),
        dims(192, 192),
        Problem::new(1, 12, 12, 16, 16_384, 192, DType::Bf16).head_dim_v(128),
    ];
    for other in others {
        let plan = auto(&other);
        assert_ne!(plan.block_shape(), BlockShape::Warpgroups, "{plan}");
    }
    for taken in [dims(184, 96), Problem::new(1, 72, 1, 1, 16_384, 192, DType::Bf16).head_dim_v(128)] {
        let plan = auto(&taken);
        assert_eq!(plan.block_shape(), BlockShape::Warpgroups, "{plan}");
    }
}
