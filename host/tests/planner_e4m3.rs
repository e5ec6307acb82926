//! Plans of e4m3 problems.

use splitkv::{
    BlockShape, Catalogue, DType, Descale, DeviceProps, Error, Options, Plan, Problem, Reason, Splits, Window, plan,
};

fn make(problem: &Problem, splits: Splits, device: &DeviceProps) -> splitkv::Result<Plan> {
    plan(problem, &Options { splits, ..Options::default() }, device, &Catalogue::of(device.target))
}

/// The refused argument, and the error's text.
fn refused(result: splitkv::Result<Plan>) -> (&'static str, String) {
    match result {
        Err(error @ Error::Argument { argument, .. }) => (argument, error.to_string()),
        other => panic!("not refused: {other:?}"),
    }
}

fn with(problem: &Problem, change: impl FnOnce(&mut Problem)) -> Problem {
    let mut problem = problem.clone();
    change(&mut problem);
    problem
}

/// The FP8 benchmark's problem: 70 queries of 12 heads over a cached prefix, head dims 192/128.
fn short_queries(sk: usize) -> Problem {
    Problem::new(1, 12, 12, 70, sk, 192, DType::E4m3).head_dim_v(128).lse(true)
}

/// Pinned: KV tokens, and the splits on an H200, by warpgroups, and on a gfx950, by warps that share the KV. 70 rows fit
/// one block of either.
#[test]
fn auto_splits_e4m3_under_short_queries() {
    let table = [(1984, 8, 16), (1985, 8, 16), (3072, 8, 24), (4096, 11, 22), (11_008, 11, 35), (16_384, 11, 37)];
    for (sk, h200, gfx950) in table {
        let devices = [
            (DeviceProps::h200(), h200, BlockShape::Warpgroups),
            (DeviceProps::mi355x(), gfx950, BlockShape::SharedKv),
        ];
        for (device, splits, shape) in devices {
            let plan = make(&short_queries(sk), Splits::Auto, &device).unwrap();
            assert_eq!((plan.num_splits(), plan.reason()), (splits, Reason::SplitIsCheapest), "{plan}");
            assert_eq!((plan.block_shape(), plan.m_blocks()), (shape, 1), "{plan}");
            assert_eq!(plan.kernel_dims(), (192, 128), "{plan}");
        }
    }
}

/// e4m3 with a causal mask is not split below 384 queries: what asks for it is refused, and auto takes one.
#[test]
fn causal_e4m3_is_split_from_384_queries_on() {
    for device in [DeviceProps::h200(), DeviceProps::b200(), DeviceProps::mi355x()] {
        let causal = short_queries(16_384).causal(true);
        let plan = make(&causal, Splits::Auto, &device).unwrap();
        assert_eq!((plan.num_splits(), plan.reason()), (1, Reason::CausalE4m3), "{plan}");
        assert_eq!(make(&causal, Splits::Exact(1), &device).unwrap().num_splits(), 1);
        assert_eq!(make(&causal, Splits::Tokens(16_384), &device).unwrap().num_splits(), 1);
        let rule = "one split (auto, or exactly 1) with e4m3 and a causal mask over 2 to 383 queries (given: sq 70)";
        for (splits, given) in [(Splits::Exact(4), "exactly 4"), (Splits::Tokens(4096), "4096 tokens each")] {
            let want = ("splits", format!("splits: given {given}; allowed: {rule}"));
            assert_eq!(refused(make(&causal, splits, &device)), want);
            // The same mask in other words.
            let window = short_queries(16_384).window(Window { left: None, right: Some(0) });
            assert_eq!(refused(make(&window, splits, &device)), want);
            // What the rule does not concern.
            for free in [
                with(&causal, |p| p.sq = 1),
                with(&causal, |p| p.sq = 384),
                short_queries(16_384),
                with(&causal, |p| (p.dtype, p.o_dtype) = (DType::Bf16, DType::Bf16)),
            ] {
                assert_eq!(make(&free, splits, &device).unwrap().num_splits(), 4, "{free}");
            }
        }
        assert!(refused(make(&with(&causal, |p| p.sq = 2), Splits::Exact(2), &device)).1.contains("sq 2"));
        assert!(refused(make(&with(&causal, |p| p.sq = 383), Splits::Exact(2), &device)).1.contains("sq 383"));
    }
}

/// Narrower head dims of e4m3 are padded to those that kernels were compiled for.
#[test]
fn head_dims_of_e4m3() {
    let dims = [
        ((64, 64), (64, 64)),
        ((128, 128), (128, 128)),
        ((16, 80), (128, 128)),
        ((192, 64), (192, 128)),
        ((192, 96), (192, 128)),
        ((192, 128), (192, 128)),
        ((192, 160), (192, 192)),
        ((192, 192), (192, 192)),
    ];
    for ((qk, v), kernel) in dims {
        let problem = Problem::new(1, 12, 12, 1, 1000, qk, DType::E4m3).head_dim_v(v);
        for device in [DeviceProps::h200(), DeviceProps::b200(), DeviceProps::mi355x()] {
            assert_eq!(make(&problem, Splits::Auto, &device).unwrap().kernel_dims(), kernel, "{problem}");
        }
    }
    let device = DeviceProps::h200();
    let refusal = |qk| refused(make(&Problem::new(1, 1, 1, 1, 1, qk, DType::E4m3), Splits::Auto, &device)).1;
    assert_eq!(refusal(72), "head_dim_qk: given 72; allowed: a multiple of 16, at least 16");
    assert_eq!(refusal(208), "head_dim_qk: given 208; allowed: a multiple of 16, at most 192");
}

#[test]
fn types_and_factors_of_e4m3() {
    let problem = Problem::new(1, 2, 1, 1, 100, 128, DType::E4m3);
    assert_eq!(problem.o_dtype, DType::Bf16);
    for o_dtype in [DType::Bf16, DType::F16, DType::F32] {
        problem.clone().o_dtype(o_dtype).validate().unwrap();
    }
    let text = problem.clone().o_dtype(DType::E4m3).validate().unwrap_err().to_string();
    assert_eq!(text, "o_dtype: given e4m3; allowed: bf16, f16 or f32 with e4m3");
    let heads = problem.clone().descales(Descale::PerTensor, Descale::PerHead, Descale::PerHead);
    heads.validate().unwrap();
    assert_eq!((heads.descale_shape(heads.q_descale), heads.descale_shape(heads.k_descale)), (vec![1], vec![1, 1]));
    assert_eq!(heads.to_string(), "B1 Q1 K100 H2/1 d128 e4m3 k_descale per head v_descale per head -> bf16");
    let text = with(&heads, |p| (p.dtype, p.o_dtype) = (DType::F16, DType::F16)).validate().unwrap_err().to_string();
    assert_eq!(text, "k_descale: given per head; allowed: none with f16: only e4m3 has factors");

    for name in ["e4m3", "e4m3fn", "float8_e4m3fn"] {
        assert_eq!(name.parse::<DType>().unwrap(), DType::E4m3);
    }
    for (name, why) in [
        ("e5m2", "e5m2 has 2 mantissa bits"),
        ("float8_e5m2", "e5m2 has 2 mantissa bits"),
        ("e4m3fnuz", "another exponent bias"),
        ("float8_e4m3fnuz", "another exponent bias"),
        ("float8_e5m2fnuz", "another exponent bias"),
        ("fp8", "bf16, f16, f32, i32, e4m3"),
    ] {
        let text = name.parse::<DType>().unwrap_err().to_string();
        assert!(text.starts_with(&format!("dtype: given {name}; allowed: ")) && text.contains(why), "{text}");
    }
    for dtype in [DType::Bf16, DType::F16, DType::F32, DType::I32, DType::E4m3] {
        assert_eq!(dtype.to_string().parse::<DType>().unwrap(), dtype);
    }
}
