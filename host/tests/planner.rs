//! Properties of plans, on random problems for each kind of device.

use std::collections::{HashMap, HashSet};

use kernels_gpu::abi::{Operand, Role};
use proptest::prelude::*;
use splitkv::{
    BlockShape, Catalogue, DType, DeviceProps, Error, Kernel, KernelReason, KvLens, Launch, Lengths, Merging, Offsets,
    Options, Plan, Problem, Reason, Splits, Target, Unit, Window, plan,
};

/// A device of each target, one with few multiprocessors, and one with a small grid.
fn devices() -> impl Strategy<Value = DeviceProps> {
    let small = DeviceProps { multiprocessors: 3, ..DeviceProps::h200() };
    let narrow = DeviceProps { max_grid: 1 << 18, max_grid_threads: 1 << 28, ..DeviceProps::mi355x() };
    prop::sample::select(vec![DeviceProps::h200(), DeviceProps::b200(), DeviceProps::mi355x(), small, narrow])
}

/// A number of tokens that is a multiple of every kernel's KV tile.
const TOKENS: u32 = 128;

fn options() -> impl Strategy<Value = Options> {
    let splits = prop_oneof![
        Just(Splits::Auto),
        (1..=256_u32).prop_map(Splits::Exact),
        (1..=40_u32).prop_map(|tiles| Splits::Tokens(tiles * TOKENS)),
    ];
    let shape =
        prop_oneof![2 => Just(None), 1 => Just(Some(BlockShape::SplitKv)), 1 => Just(Some(BlockShape::SharedKv))];
    let q_tiles = prop_oneof![2 => Just(None), 1 => Just(Some(1)), 1 => Just(Some(2))];
    (splits, shape, q_tiles).prop_map(|(splits, block_shape, q_tiles)| Options {
        splits,
        q_tiles,
        block_shape,
        ..Options::default()
    })
}

/// Head dims: those of kernels, and others that are padded.
fn head_dims() -> impl Strategy<Value = (usize, usize)> {
    let compiled = prop::sample::select(vec![(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]);
    let padded = (1..=32_usize, 1..=32_usize).prop_map(|(qk, v)| (8 * qk, 8 * v));
    prop_oneof![3 => compiled, 1 => padded]
}

/// Head dims of the kernels that a problem is computed with, by the rule and not by the catalogue.
fn compiled_dims(problem: &Problem) -> (usize, usize) {
    let table = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)];
    *table.iter().find(|(qk, v)| problem.head_dim_qk <= *qk && problem.head_dim_v <= *v).expect("at most 256")
}

/// Problems with all corners: nothing to compute, no keys, causal with more queries than keys, odd groups.
fn problems() -> impl Strategy<Value = Problem> {
    let dims = (0..5_usize, 1..4_usize, prop::sample::select(vec![1, 2, 3, 5, 8, 12, 71_usize]));
    let lens = (prop_oneof![0..3_usize, 0..200_usize], prop_oneof![0..300_usize, 0..10_000_usize]);
    let kinds = (any::<bool>(), 0..3_usize, any::<bool>(), prop::collection::vec(0.0..=1.0_f64, 5));
    (dims, lens, kinds, head_dims()).prop_map(|((batch, kv_heads, group), (sq, sk), kinds, (qk, v))| {
        let (causal, lens, wide, fractions) = kinds;
        let problem = Problem::new(batch, kv_heads * group, kv_heads, sq, sk, qk, DType::Bf16).head_dim_v(v);
        let host = fractions[..batch].iter().map(|fraction| (fraction * sk as f64) as u32).collect();
        let lens = [KvLens::Full, KvLens::Device, KvLens::Host(host)][lens].clone();
        let o_dtype = if wide { DType::F32 } else { DType::Bf16 };
        problem.causal(causal).kv_lens(lens).o_dtype(o_dtype).lse(wide)
    })
}

fn make(problem: &Problem, splits: Splits, device: &DeviceProps) -> splitkv::Result<Plan> {
    make_with(problem, &Options { splits, ..Options::default() }, device)
}

fn make_with(problem: &Problem, options: &Options, device: &DeviceProps) -> splitkv::Result<Plan> {
    plan(problem, options, device, &Catalogue::of(device.target))
}

/// Plans a random problem; `None` where two query tiles were asked of kernels that have one, which is refused by name.
fn make_any(problem: &Problem, options: &Options, device: &DeviceProps) -> Option<Plan> {
    let two = match compiled_dims(problem) {
        (128, 128) | (192, 128) => true,
        (64, 64) => device.target == Target::Sm100f && options.block_shape.is_none(),
        _ => false,
    };
    match make_with(problem, options, device) {
        Ok(plan) => {
            assert!(two || options.q_tiles != Some(2), "{plan}");
            Some(plan)
        }
        Err(Error::Argument { argument: "q_tiles", .. }) if !two && options.q_tiles == Some(2) => None,
        Err(error) => panic!("{error}: {problem}, {options:?}"),
    }
}

/// `problem` with a change.
fn with(problem: &Problem, change: impl FnOnce(&mut Problem)) -> Problem {
    let mut problem = problem.clone();
    change(&mut problem);
    problem
}

/// The lengths of a batch to try: the planned ones, or with lengths on the device several, all alike and mixed.
fn lens(problem: &Problem) -> Vec<Vec<Lengths>> {
    let of = |keys: usize| Lengths { queries: problem.sq, keys };
    match &problem.kv_lens {
        KvLens::Full => vec![vec![of(problem.sk); problem.batch]],
        KvLens::Host(lens) => vec![lens.iter().map(|&len| of(len as usize)).collect()],
        KvLens::Device => {
            let each = [0, 1.min(problem.sk), problem.sk / 2, problem.sk];
            let alike = each.map(|keys| vec![of(keys); problem.batch]);
            let mixed = (0..4).map(|turn| (0..problem.batch).map(|index| of(each[(index + turn) % 4])).collect());
            alike.into_iter().chain(mixed).collect()
        }
    }
}

/// A sequence of `problem` with `keys` keys.
fn of(problem: &Problem, keys: usize) -> Lengths {
    Lengths { queries: problem.sq, keys }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_token_of_every_row_block_is_read_once(problem in problems(), options in options(), device in devices()) {
        let Some(plan) = make_any(&problem, &options, &device) else { return Ok(()) };
        for lens in lens(&problem) {
            let units = plan.units_of(&lens);
            prop_assert!(units.len() <= plan.units() as usize);
            if plan.schedule().is_none() {
                prop_assert_eq!(units.len(), plan.units() as usize);
            }
            // Splits so far, and the tokens that they end at, of each block of rows.
            let mut blocks = HashMap::new();
            for unit in units {
                let Unit { split, splits, batch, m_block, kv_head } = unit;
                prop_assert!(splits <= plan.num_splits());
                let (seen, next) = blocks.entry((batch, m_block, kv_head, splits)).or_insert((0, 0));
                prop_assert_eq!(split, *seen);
                *seen += 1;
                let tokens = plan.tokens(unit, lens[batch as usize]);
                if !tokens.is_empty() {
                    prop_assert_eq!(tokens.start, *next);
                    prop_assert!(tokens.start.is_multiple_of(plan.geometry().tile_n as usize));
                    *next = tokens.end;
                }
            }
            prop_assert_eq!(blocks.len(), problem.batch * problem.kv_heads * plan.m_blocks() as usize);
            for ((batch, m_block, _, splits), (seen, next)) in blocks {
                prop_assert_eq!(seen, splits);
                // The row block's end, from the mask's definition.
                let (rows, len) = (plan.rows(m_block, problem.sq), lens[batch as usize].keys);
                let end = |row: usize| {
                    let limit = (row / problem.group() + 1 + len).saturating_sub(problem.sq);
                    if problem.causal { limit } else { len }
                };
                prop_assert_eq!(Some(next), rows.map(end).max());
            }
        }
    }

    #[test]
    fn row_blocks_and_units_cover_the_output_once(problem in problems(), options in options(), device in devices()) {
        let Some(plan) = make_any(&problem, &options, &device) else { return Ok(()) };
        let mut next = 0;
        for m_block in 0..plan.m_blocks() {
            let rows = plan.rows(m_block, problem.sq);
            prop_assert_eq!(rows.start, next);
            next = rows.end;
        }
        prop_assert_eq!(next, problem.rows());
        for lens in lens(&problem) {
            let units: HashSet<_> = plan.units_of(&lens).into_iter().collect();
            let blocks = plan.m_blocks() as usize * problem.kv_heads;
            let entries = match plan.ragged() {
                None => plan.num_splits() as usize * problem.batch,
                Some(ragged) => ragged.splits(&lens).into_iter().sum::<u32>() as usize,
            };
            prop_assert_eq!(units.len(), entries * blocks);
        }
    }

    #[test]
    fn the_workspace_is_exact_and_limits_hold(problem in problems(), options in options(), device in devices()) {
        let Some(plan) = make_any(&problem, &options, &device) else { return Ok(()) };
        let rows = problem.batch * problem.heads * problem.sq;
        let splits = lens(&problem).into_iter().map(|lens| match plan.ragged() {
            None => vec![plan.num_splits(); problem.batch],
            Some(ragged) => ragged.splits(&lens),
        });
        let parts = splits.map(|splits| splits.into_iter().filter(|&n| n > 1).sum::<u32>() as usize);
        let expected = parts.max().unwrap() * problem.heads * problem.sq * (problem.head_dim_v + 1) * 4;
        if plan.schedule().is_some() {
            prop_assert!(plan.workspace_bytes() >= expected);
        } else {
            prop_assert_eq!(plan.workspace_bytes(), expected);
        }
        prop_assert!((1..=256).contains(&plan.num_splits()));

        let Launch { grid, block, shared_bytes } = plan.attention();
        prop_assert_eq!(grid == 0, rows == 0);
        prop_assert!(grid <= plan.units() && grid <= device.max_grid);
        prop_assert!(u64::from(grid) * u64::from(block) <= device.max_grid_threads);
        prop_assert!(block <= device.threads_per_block && shared_bytes <= device.shared_bytes_per_block);
        prop_assert_eq!(plan.num_splits() == 1, plan.merging() == Merging::None);
        match plan.merging() {
            Merging::None => {}
            Merging::LastBlock { counters } => prop_assert_eq!(counters == 0, rows == 0),
            Merging::Blocks => prop_assert!(u64::from(plan.units()) <= u64::from(device.multiprocessors)),
            Merging::Kernel(combine) => {
                prop_assert_eq!(combine.launch.grid as usize, rows);
                prop_assert!(combine.launch.grid <= device.max_grid);
            }
        }
    }

    #[test]
    fn what_was_asked_for_is_done(problem in problems(), options in options(), device in devices()) {
        let Some(plan) = make_any(&problem, &options, &device) else { return Ok(()) };
        prop_assert!(options.block_shape.is_none_or(|shape| shape == plan.block_shape()));
        prop_assert!(options.q_tiles.is_none_or(|q_tiles| q_tiles == plan.q_tiles()));
        prop_assert_eq!(plan.kernel_dims(), compiled_dims(&problem));
        let special = plan.kernel_reason() == KernelReason::Special;
        prop_assert_eq!(special, plan.block_shape() == BlockShape::Tcgen05);
        if options.block_shape.is_none() && problem.rows() <= 16 && !special {
            prop_assert_eq!(plan.block_shape(), BlockShape::SplitKv);
        }
        if options.q_tiles.is_none() && plan.q_tiles() > 1 {
            // Two query tiles, without being asked: unsplit, and more rows than a tile.
            prop_assert_eq!(plan.num_splits(), 1);
            prop_assert!(problem.rows() > plan.geometry().tile_m as usize);
        }
        match options.splits {
            Splits::Exact(n) => prop_assert_eq!((plan.num_splits(), plan.split_tokens()), (n, 0)),
            Splits::Tokens(n) => {
                prop_assert_eq!(plan.split_tokens(), n);
                prop_assert_eq!(plan.num_splits() as usize, problem.sk.div_ceil(n as usize).max(1));
            }
            _ => {
                let tiles = problem.sk.div_ceil(plan.geometry().tile_n as usize).max(1);
                prop_assert!(plan.num_splits() as usize <= tiles);
            }
        }
        prop_assert_eq!(plan, make_with(&problem, &options, &device).unwrap());
    }

    #[test]
    fn a_sequence_is_split_alone_as_in_a_batch(
        problem in problems(), shape in options(), tiles in 1..40_u32, others in 0..10_000_usize,
    ) {
        let options = Options { splits: Splits::Tokens(tiles * TOKENS), q_tiles: None, ..shape };
        prop_assume!(problem.batch > 0 && problem.sq > 0);
        let len = problem.sk;
        let device = DeviceProps::h200();
        let alone = with(&problem, |p| (p.batch, p.kv_lens) = (1, KvLens::Full));
        let batch = with(&problem, |p| (p.sk, p.kv_lens) = (len.max(others), KvLens::Device));
        let alone = make_with(&alone, &options, &device).unwrap();
        let batch = make_with(&batch, &options, &device).unwrap();
        prop_assert_eq!(alone.kernel(), batch.kernel());
        for unit in batch.units_of(&vec![of(&problem, len); problem.batch]) {
            if unit.split < alone.num_splits() {
                prop_assert_eq!(alone.tokens(unit, of(&problem, len)), batch.tokens(unit, of(&problem, len)));
            } else {
                // What the batch has beyond are empty splits.
                prop_assert!(batch.tokens(unit, of(&problem, len)).is_empty());
            }
        }
    }
}

#[test]
fn auto_takes_what_was_measured_best_on_an_h200() {
    // Batch, KV heads, tokens, splits: a sweep with 32 query heads, one query, d128.
    for (batch, kv_heads, sk, splits) in
        [(1, 32, 131_072, 4), (1, 8, 131_072, 16), (16, 8, 8192, 1), (64, 8, 4096, 1), (1, 8, 4096, 16)]
    {
        let problem = Problem::new(batch, 32, kv_heads, 1, sk, 128, DType::Bf16);
        let plan = make(&problem, Splits::Auto, &DeviceProps::h200()).unwrap();
        assert_eq!(plan.num_splits(), splits, "{plan}");
        assert_eq!(plan.attention().grid, 128, "{plan}");
    }
}

#[test]
fn lengths_on_the_device_are_planned_as_if_full() {
    let problem = Problem::new(1, 32, 8, 1, 131_072, 128, DType::Bf16);
    let full = make(&problem, Splits::Auto, &DeviceProps::h200()).unwrap();
    let device = make(&problem.kv_lens(KvLens::Device), Splits::Auto, &DeviceProps::h200()).unwrap();
    assert_eq!(device.num_splits(), full.num_splits());
    assert_eq!(device.attention().grid, device.units(), "a block a unit, since lengths may differ");
}

#[test]
fn auto_looks_at_the_real_lengths() {
    // One long sequence among short ones: at full length the batch alone would fill the device.
    let mut lens = vec![128; 64];
    lens[17] = 131_072;
    let problem = Problem::new(64, 32, 8, 1, 131_072, 128, DType::Bf16);
    let full = make(&problem, Splits::Auto, &DeviceProps::h200()).unwrap();
    assert_eq!((full.num_splits(), full.reason()), (1, Reason::UnsplitIsCheapest));
    let problem = problem.kv_lens(KvLens::Host(lens));
    let plan = make(&problem, Splits::Auto, &DeviceProps::h200()).unwrap();
    assert_eq!(plan.reason(), Reason::RaggedIsCheapest);
    // The long one fills the device: 16 splits of 8 heads on 132 multiprocessors. The short ones are not split.
    let mut splits = vec![1; 64];
    splits[17] = 16;
    assert_eq!(plan.ragged().unwrap().known(), Some(&*splits), "{plan}");
    assert_eq!((plan.num_splits(), plan.units(), plan.attention().grid), (16, (63 + 16) * 8, (63 + 16) * 8));
    assert_eq!(plan.workspace_bytes(), 16 * 32 * 129 * 4);
    let text = plan.to_string();
    let line = "  splits     1 to 16, 79 in all (cheapest with splits by length; asked: auto)\n";
    assert!(text.contains(line) && !text.contains("schedule"), "{text}");

    // What is as long is split alike, and batches that are alike have no splits of their own.
    for lens in [vec![131_072; 64], vec![131_072; 2]] {
        let problem = with(&problem, |p| (p.batch, p.kv_lens) = (lens.len(), KvLens::Host(lens)));
        assert_eq!(make(&problem, Splits::Auto, &DeviceProps::h200()).unwrap().ragged(), None);
    }
}

#[test]
fn auto_looks_at_what_windows_and_packing_leave() {
    let device = DeviceProps::h200();
    let mut lens = vec![128; 64];
    lens[17] = 131_072;
    let problem = Problem::new(64, 32, 8, 1, 131_072, 128, DType::Bf16).kv_lens(KvLens::Host(lens));
    // A window leaves the long sequence as little as the others.
    let narrow = make(&problem.clone().window(Window::last(128).unwrap()), Splits::Auto, &device).unwrap();
    assert_eq!((narrow.num_splits(), narrow.ragged()), (1, None), "{narrow}");
    // One that leaves it half: 16 splits of half the tiles.
    let half = make(&problem.clone().window(Window::last(65_536).unwrap()), Splits::Auto, &device).unwrap();
    assert_eq!(half.ragged().unwrap().known().unwrap()[17], 16, "{half}");
    let lens = half.problem().clone();
    let KvLens::Host(lens) = lens.kv_lens else { panic!() };
    let lens: Vec<_> = lens.iter().map(|&len| Lengths { queries: 1, keys: len as usize }).collect();
    for unit in half.units_of(&lens).into_iter().filter(|unit| unit.batch == 17) {
        let tokens = half.tokens(unit, lens[17]);
        assert!((32 * 128..=33 * 128).contains(&(tokens.end - tokens.start)), "{tokens:?}");
    }
    // Packed queries: parts have as many rows as their sequence has queries.
    let offsets = (0..=64).map(|index| if index <= 17 { index } else { index + 3 }).collect();
    let packed = with(&problem, |p| p.sq = 4).packed_queries(67, Offsets::Host(offsets));
    let packed = make(&packed, Splits::Auto, &device).unwrap();
    assert_eq!(packed.ragged().unwrap().known().unwrap()[17], 16, "{packed}");
    assert_eq!(packed.workspace_bytes(), 16 * 4 * 32 * 129 * 4);
}

#[test]
fn lengths_on_the_device_are_shared_out_there() {
    let device = DeviceProps::h200();
    let problem = Problem::new(64, 32, 8, 1, 131_072, 128, DType::Bf16).kv_lens(KvLens::Device);
    let plan = make(&problem, Splits::Auto, &device).unwrap();
    let ragged = plan.ragged().unwrap();
    assert_eq!((plan.reason(), ragged.known(), ragged.wide()), (Reason::LengthsOnDevice, None, 64));
    assert_eq!(plan.schedule().unwrap().launch, Launch { grid: 1, block: 32, shared_bytes: 0 });
    assert_eq!((ragged.entries(), plan.attention().grid), (127, 127 * 8));
    assert_eq!(plan.workspace_bytes(), 64 * 32 * 129 * 4);
    let text = plan.to_string();
    let line = "  splits     1 to 64, 127 in all at most (splits by lengths on the device; asked: auto)\n";
    assert!(text.contains(line) && text.contains("  schedule   1 block of 32 threads\n"), "{text}");
    // Any lengths stay below what is planned for; what is alike is split alike.
    let splits = |lens: &[usize]| {
        let lens: Vec<_> = lens.iter().map(|&keys| Lengths { queries: 1, keys }).collect();
        let splits = ragged.splits(&lens);
        assert!(splits.iter().sum::<u32>() <= 127);
        assert!(splits.iter().filter(|&&n| n > 1).sum::<u32>() <= 64);
        splits
    };
    let mut lens = vec![128; 64];
    lens[17] = 131_072;
    assert_eq!(splits(&lens)[17], 64);
    assert_eq!(splits(&[131_072; 64]), [1; 64]);
    assert_eq!(splits(&[0; 64]), [1; 64]);
    for long in 1..64 {
        let lens: Vec<_> = (0..64).map(|index| if index < long { 100_000 } else { 500 }).collect();
        // As many as whole tiles allow: 782 of them.
        let tiles = 782_u32.div_ceil(64 / long as u32);
        assert_eq!(splits(&lens)[..long], vec![782_u32.div_ceil(tiles); long], "{long}");
    }
    // The cap on the workspace is kept, down to no splits; one sequence, one tile and what is asked for need no table.
    let part = 32 * 129 * 4;
    for (most, wide) in [(64 * part, 64), (64 * part - 1, 63), (2 * part, 2)] {
        let options = Options { max_workspace_bytes: Some(most), ..Options::default() };
        let plan = make_with(&problem, &options, &device).unwrap();
        assert_eq!(plan.ragged().unwrap().wide(), wide as u32);
        assert!(plan.workspace_bytes() <= most);
    }
    let none = Options { max_workspace_bytes: Some(2 * part - 1), ..Options::default() };
    assert_eq!(make_with(&problem, &none, &device).unwrap().num_splits(), 1);
    for (problem, splits) in [
        (with(&problem, |p| p.batch = 1), Splits::Auto),
        (with(&problem, |p| p.sk = 100), Splits::Auto),
        (problem.clone(), Splits::Exact(5)),
        (problem.clone(), Splits::Tokens(1024)),
    ] {
        assert_eq!(make(&problem, splits, &device).unwrap().ragged(), None);
    }
}

#[test]
fn reasons() {
    let problem = |sk| Problem::new(1, 8, 8, 1, sk, 128, DType::Bf16);
    let reason = |problem: &Problem, splits| make(problem, splits, &DeviceProps::h200()).unwrap().reason();
    assert_eq!(reason(&problem(100), Splits::Auto), Reason::OneTile);
    assert_eq!(reason(&problem(0), Splits::Auto), Reason::OneTile);
    assert_eq!(reason(&problem(100_000), Splits::Auto), Reason::SplitIsCheapest);
    assert_eq!(reason(&problem(100_000), Splits::Exact(1)), Reason::Asked);
    assert_eq!(reason(&with(&problem(100_000), |p| p.batch = 0), Splits::Exact(3)), Reason::NothingToCompute);
}

#[test]
fn two_query_tiles_are_for_many_rows_that_are_not_split() {
    let few = Problem::new(64, 32, 8, 1, 4096, 128, DType::Bf16);
    let many = with(&few, |p| p.sq = 8);
    let long = with(&many, |p| (p.batch, p.sk) = (1, 65_536));
    let tiles = |problem: &Problem, splits, q_tiles| {
        let options = Options { splits, q_tiles, block_shape: Some(BlockShape::SplitKv), ..Options::default() };
        let plan = make_with(problem, &options, &DeviceProps::h200()).unwrap();
        (plan.q_tiles(), plan.num_splits() > 1)
    };
    assert_eq!(tiles(&few, Splits::Auto, None), (1, false));
    assert_eq!(tiles(&few, Splits::Auto, Some(2)), (2, false));
    assert_eq!(tiles(&many, Splits::Auto, None), (2, false));
    assert_eq!(tiles(&many, Splits::Exact(1), None), (2, false));
    assert_eq!(tiles(&many, Splits::Exact(2), None), (1, true));
    assert_eq!(tiles(&many, Splits::Tokens(8192), None), (1, false));
    assert_eq!(tiles(&many, Splits::Auto, Some(1)), (1, false));
    assert_eq!(tiles(&long, Splits::Auto, None), (1, true));
    assert_eq!(tiles(&long, Splits::Auto, Some(2)), (2, true));
}

#[test]
fn few_rows_split_the_kv_over_warps_and_many_share_it() {
    let (split, shared) = (BlockShape::SplitKv, BlockShape::SharedKv);
    // Batch, query heads over 8 KV heads, queries, tokens.
    for (batch, heads, sq, sk, shape) in [
        (1, 32, 1, 131_072, split),
        (64, 32, 1, 4096, split),
        (16, 128, 1, 8192, split),
        (64, 32, 16, 4096, shared),
        (1, 32, 16, 131_072, shared),
        (4, 64, 128, 8192, shared),
    ] {
        let problem = Problem::new(batch, heads, 8, sq, sk, 128, DType::Bf16);
        for device in [DeviceProps::h200(), DeviceProps::mi355x()] {
            let plan = make(&problem, Splits::Auto, &device).unwrap();
            let reason = if shape == split { KernelReason::FewRows } else { KernelReason::Cheapest };
            assert_eq!((plan.block_shape(), plan.kernel_reason()), (shape, reason), "{plan}");
        }
    }
    // Under `Tokens` the rows alone decide.
    for (sq, shape, reason) in [(4, split, KernelReason::FewRows), (5, shared, KernelReason::ManyRows)] {
        let problem = Problem::new(3, 32, 8, sq, 5000, 128, DType::Bf16);
        let plan = make(&problem, Splits::Tokens(1024), &DeviceProps::h200()).unwrap();
        assert_eq!((plan.block_shape(), plan.kernel_reason(), plan.q_tiles()), (shape, reason, 1), "{plan}");
    }
}

#[test]
fn the_smallest_head_dims_that_hold_the_problems_are_taken() {
    for (qk, v, kernel) in [
        (64, 64, (64, 64)),
        (8, 8, (64, 64)),
        (80, 80, (96, 96)),
        (64, 72, (96, 96)),
        (104, 128, (128, 128)),
        (192, 128, (192, 128)),
        (136, 8, (192, 128)),
        (192, 192, (256, 256)),
        (200, 72, (256, 256)),
        (72, 200, (256, 256)),
        (256, 256, (256, 256)),
    ] {
        let problem = Problem::new(2, 8, 2, 3, 1000, qk, DType::F16).head_dim_v(v);
        for device in [DeviceProps::h200(), DeviceProps::b200(), DeviceProps::mi355x()] {
            let plan = make(&problem, Splits::Exact(3), &device).unwrap();
            assert_eq!(plan.kernel_dims(), kernel);
            assert_eq!(plan.workspace_bytes(), 3 * 2 * 8 * 3 * (v + 1) * 4);
            let fitting = Catalogue::of(device.target).fitting(&problem).unwrap();
            assert!(fitting.contains(plan.kernel()), "{fitting:?}");
            let portable = if [(128, 128), (192, 128)].contains(&kernel) { 4 } else { 2 };
            let special = match device.target {
                Target::Sm90a if kernel == (192, 128) => 1,
                Target::Sm100f if [(64, 64), (128, 128), (192, 128)].contains(&kernel) => 2,
                _ => 0,
            };
            assert_eq!(fitting.len(), portable + special);
        }
    }
}

#[test]
fn the_workspace_stays_below_its_limit() {
    // 16 splits of 32 rows, 129 floats each, are what Auto takes here.
    let (problem, device) = (Problem::new(1, 32, 8, 1, 131_072, 128, DType::Bf16), DeviceProps::h200());
    let split = 32 * 129 * 4;
    let auto = |max_workspace_bytes| {
        let options = Options { max_workspace_bytes, ..Options::default() };
        let plan = make_with(&problem, &options, &device).unwrap();
        (plan.num_splits(), plan.workspace_bytes())
    };
    assert_eq!(auto(None), (16, 16 * split));
    assert_eq!(auto(Some(16 * split)), (16, 16 * split));
    for most in [8 * split, 8 * split + 1, 9 * split - 1] {
        let (splits, bytes) = auto(Some(most));
        assert_eq!(splits, 8, "{most}");
        assert!(bytes <= most);
    }
    assert_eq!(auto(Some(2 * split - 1)), (1, 0));
    assert_eq!(auto(Some(0)), (1, 0));
    for splits in [Splits::Exact(4), Splits::Tokens(32_768)] {
        let options = Options { splits, max_workspace_bytes: Some(4 * split - 1), ..Options::default() };
        let error = make_with(&problem, &options, &device).unwrap_err().to_string();
        let expected = format!("max_workspace_bytes: given {}; allowed: at least {}", 4 * split - 1, 4 * split);
        assert!(error.starts_with(&expected), "{error}");
        let enough = Options { max_workspace_bytes: Some(4 * split), ..options };
        assert_eq!(make_with(&problem, &enough, &device).unwrap().num_splits(), 4);
    }
}

#[test]
fn the_last_block_merges_where_it_is_quickly_done() {
    let of = |heads, kv_heads, sq, dim, splits, device: &DeviceProps| {
        let problem = Problem::new(3, heads, kv_heads, sq, 65_536, dim, DType::Bf16);
        let plan = make(&problem, Splits::Exact(splits), device).unwrap();
        match plan.merging() {
            Merging::None => (0, false),
            Merging::LastBlock { counters } => (counters, false),
            Merging::Kernel(_) => (0, true),
            Merging::Blocks => panic!("{plan}"),
        }
    };
    let h200 = DeviceProps::h200();
    // Four warps, a row each, 16 splits at a time: up to four times.
    assert_eq!(of(8, 2, 1, 128, 1, &h200), (0, false));
    assert_eq!(of(8, 2, 1, 128, 2, &h200), (3 * 2, false));
    assert_eq!(of(8, 2, 1, 128, 64, &h200), (3 * 2, false));
    assert_eq!(of(8, 2, 1, 128, 65, &h200), (0, true));
    assert_eq!(of(16, 1, 1, 128, 16, &h200), (3, false));
    assert_eq!(of(16, 1, 1, 128, 17, &h200), (0, true));
    // Wide rows take two times as long.
    assert_eq!(of(8, 1, 1, 256, 16, &h200), (3, false));
    assert_eq!(of(16, 1, 1, 256, 16, &h200), (0, true));
    // Row blocks of their own; not on AMD.
    assert_eq!(of(8, 2, 1, 128, 2, &DeviceProps::mi355x()), (0, true));
}

#[test]
fn causal_with_one_query_is_no_mask() {
    let problem = Problem::new(2, 8, 2, 1, 1000, 128, DType::F16).causal(true);
    assert_eq!(problem.effective_window().right, None);
    assert_eq!(with(&problem, |p| p.sq = 2).effective_window().right, Some(0));
}

#[test]
fn plans_print_as_a_small_table() {
    let problem = Problem::new(1, 32, 8, 1, 131_072, 128, DType::Bf16).lse(true);
    let plan = make(&problem, Splits::Exact(16), &DeviceProps::h200()).unwrap();
    let shared = plan.attention().shared_bytes;
    let expected = format!(
        "\
B1 Q1 K131072 H32/8 d128 bf16 + lse on NVIDIA H200 (sm_90a)
  kernel     attention_bf16_d128_splitkv_q1 (few rows)
  tile       1 x 16 rows, 128 tokens, each warp other tokens
  splits     16 (as asked; asked: exactly 16)
  grid       128 blocks of 128 threads for 128 units
  waves      0.97 of 132 multiprocessors
  shared     {shared} bytes a block
  combine    by the last block of each of 8
  workspace  264192 bytes"
    );
    assert_eq!(plan.to_string(), expected);

    let padded = Problem::new(1, 8, 1, 1, 100, 80, DType::Bf16).head_dim_v(40);
    let options = Options { block_shape: Some(BlockShape::SharedKv), q_tiles: Some(1), ..Options::default() };
    let text = make_with(&padded, &options, &DeviceProps::h200()).unwrap().to_string();
    let lines = [
        "  kernel     attention_bf16_d96_sharedkv_q1 (as asked)",
        "  padded     to head dims 96/96",
        "  tile       1 x 128 rows, 32 tokens, each warp other rows",
    ];
    assert!(text.contains(&lines.join("\n")), "{text}");
}

/// The name of the argument that is refused, and the message.
fn refused(result: splitkv::Result<Plan>) -> (&'static str, String) {
    match result {
        Err(error @ Error::Argument { argument, .. }) => (argument, error.to_string()),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn problems_that_cannot_be_done_are_refused_by_argument() {
    let good = Problem::new(2, 8, 2, 1, 1000, 128, DType::Bf16);
    let big = i32::MAX as usize + 1;
    let cases = [
        (with(&good, |p| p.heads = 7), "heads", "heads: given 7; allowed: a multiple of kv_heads (2)"),
        (with(&good, |p| p.kv_heads = 0), "heads", "heads: given 8; allowed: a multiple of kv_heads (0)"),
        (with(&good, |p| p.sk = big), "sk", "sk: given 2147483648; allowed: at most 2147483647"),
        (with(&good, |p| p.batch = big), "batch", "2147483648"),
        (with(&good, |p| p.sq = usize::MAX), "sq", "18446744073709551615"),
        (with(&good, |p| p.heads = big), "heads", "2147483648"),
        (with(&good, |p| p.kv_heads = big), "kv_heads", "2147483648"),
        (with(&good, |p| p.sq = 1 << 30), "batch * heads * sq", "2 * 8 * 1073741824"),
        (with(&good, |p| (p.batch, p.sq) = (0, 1 << 30)), "batch * heads * sq", "0 * 8 * 1073741824"),
        (with(&good, |p| p.head_dim_qk = 0), "head_dim_qk", "given 0; allowed: a multiple of 8, at least 8"),
        (with(&good, |p| p.head_dim_v = 0), "head_dim_v", "given 0; allowed: a multiple of 8, at least 8"),
        (with(&good, |p| p.head_dim_qk = 4), "head_dim_qk", "given 4; allowed: a multiple of 8, at least 8"),
        (with(&good, |p| p.head_dim_v = 12), "head_dim_v", "given 12; allowed: a multiple of 8, at least 8"),
        (with(&good, |p| p.head_dim_qk = 264), "head_dim_qk", "given 264; allowed: a multiple of 8, at most 256"),
        (with(&good, |p| p.head_dim_v = 264), "head_dim_v", "given 264; allowed: a multiple of 8, at most 256"),
        (with(&good, |p| p.dtype = DType::F32), "dtype", "dtype: given f32; allowed: bf16, f16 or e4m3"),
        (with(&good, |p| p.o_dtype = DType::F16), "o_dtype", "given f16; allowed: bf16 or f32"),
        (with(&good, |p| p.o_dtype = DType::I32), "o_dtype", "given i32; allowed: bf16 or f32"),
        (good.clone().scale(f32::NAN), "scale", "given NaN; allowed: finite"),
        (good.clone().scale(f32::NEG_INFINITY), "scale", "given -inf"),
        (good.clone().scale(f32::MAX), "scale", "finite, also when multiplied by log2(e)"),
        (good.clone().kv_lens(KvLens::Host(vec![1])), "kv_lens", "given 1 lengths; allowed: one a sequence: 2"),
        (
            good.clone().kv_lens(KvLens::Host(vec![5, 1001])),
            "kv_lens",
            "given 1001 for sequence 1; allowed: at most sk (1000)",
        ),
    ];
    for (problem, argument, message) in cases {
        let (name, text) = refused(make(&problem, Splits::Auto, &DeviceProps::h200()));
        assert_eq!(name, argument, "{text}");
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn options_that_cannot_be_done_are_refused_by_argument() {
    let h200 = DeviceProps::h200();
    let good = Problem::new(2, 8, 2, 1, 1000, 128, DType::Bf16);
    for (splits, message) in [
        (Splits::Exact(0), "splits: given 0; allowed: 1 to 256"),
        (Splits::Exact(257), "splits: given 257; allowed: 1 to 256"),
        (Splits::Tokens(0), "splits: given 0 tokens; allowed: a multiple of the kernel's KV tile (128)"),
        (Splits::Tokens(200), "splits: given 200 tokens; allowed: a multiple of the kernel's KV tile (128)"),
    ] {
        let (name, text) = refused(make(&good, splits, &h200));
        assert_eq!((name, text.as_str()), ("splits", message));
    }
    let long = with(&good, |p| p.sk = 100_000);
    let (name, text) = refused(make(&long, Splits::Tokens(128), &h200));
    let message = "128 tokens, which makes 782 splits; allowed: at most 256 splits: at least 512 tokens";
    assert_eq!(name, "splits");
    assert!(text.contains(message), "{text}");
    assert_eq!(make(&long, Splits::Tokens(512), &h200).unwrap().num_splits(), 196);

    let options = Options { q_tiles: Some(9), ..Options::default() };
    let (name, text) = refused(make_with(&good, &options, &h200));
    let message = "q_tiles: given 9; allowed: 1 or 2 of the kernels for head dims 128/128";
    assert_eq!((name, text.as_str()), ("q_tiles", message));
    let options = Options { q_tiles: Some(2), ..Options::default() };
    let (name, text) = refused(make_with(&with(&good, |p| p.head_dim_v = 136), &options, &h200));
    let message = "q_tiles: given 2; allowed: 1 of the kernels for head dims 256/256";
    assert_eq!((name, text.as_str()), ("q_tiles", message));

    let of_shape = |kernel: &Kernel| {
        !matches!(kernel.role, Role::Attention { shape: BlockShape::SharedKv, .. })
            && !matches!(kernel.role, Role::Attention { operand: Operand::F16, .. })
    };
    let part = Catalogue::new(
        Target::Sm90a,
        Catalogue::of(Target::Sm90a).kernels().iter().copied().filter(of_shape).collect(),
    );
    let options = Options { block_shape: Some(BlockShape::SharedKv), ..Options::default() };
    let (name, text) = refused(plan(&good, &options, &h200, &part));
    let message = "block_shape: given shared_kv; allowed: split_kv of the kernels for head dims 128/128";
    assert_eq!((name, text.as_str()), ("block_shape", message));
    let (name, text) =
        refused(plan(&with(&good, |p| (p.dtype, p.o_dtype) = (DType::F16, DType::F16)), &options, &h200, &part));
    assert_eq!((name, text.as_str()), ("dtype", "dtype: given f16; allowed: what sm_90a has kernels for: bf16, e4m3"));
    let (name, text) = refused(plan(&good, &Options::default(), &h200, &Catalogue::of(Target::Gfx950)));
    assert_eq!(
        (name, text.as_str()),
        ("catalogue", "catalogue: given kernels for gfx950; allowed: kernels for sm_90a")
    );
    let (name, text) = refused(plan(&good, &Options::default(), &h200, &Catalogue::new(Target::Sm90a, vec![])));
    assert_eq!((name, text.as_str()), ("dtype", "dtype: given bf16; allowed: what sm_90a has kernels for: none"));
}

#[test]
fn devices_that_cannot_hold_a_block_are_refused_by_property() {
    let problem = Problem::new(2, 8, 2, 1, 1000, 128, DType::Bf16);
    let h200 = DeviceProps::h200;
    for (device, argument) in [
        (DeviceProps { multiprocessors: 0, ..h200() }, "device.multiprocessors"),
        (DeviceProps { shared_bytes_per_block: 48 << 10, ..h200() }, "device.shared_bytes_per_block"),
        (DeviceProps { shared_bytes_per_multiprocessor: 99 << 10, ..h200() }, "device.shared_bytes_per_multiprocessor"),
        (DeviceProps { threads_per_block: 64, ..h200() }, "device.threads_per_block"),
    ] {
        assert_eq!(refused(make(&problem, Splits::Auto, &device)).0, argument);
    }
    let narrow = DeviceProps { max_grid: 10, ..h200() };
    assert_eq!(refused(make(&problem, Splits::Exact(2), &narrow)).0, "total_q * heads");
    assert_eq!(
        make(&problem, Splits::Auto, &narrow).unwrap().num_splits(),
        1,
        "auto does not split what has no combine"
    );
    // Without a combine, blocks step through the units.
    let many = with(&problem, |p| p.batch = 50);
    assert_eq!(make(&many, Splits::Exact(1), &narrow).unwrap().attention().grid, 10);
}

#[test]
fn huge_problems_are_planned_or_refused_without_overflow() {
    let top = i32::MAX as usize;
    for splits in [Splits::Auto, Splits::Exact(256), Splits::Tokens(1 << 23)] {
        for problem in [
            Problem::new(top, 1, 1, 1, top, 128, DType::Bf16),
            Problem::new(1, 1, 1, top, top, 128, DType::Bf16).causal(true),
            Problem::new(1, top, top, 1, top, 128, DType::Bf16),
            Problem::new(1, top, 1, 1, top, 128, DType::Bf16).kv_lens(KvLens::Host(vec![7])),
            Problem::new(0, top, 1, 1, top, 128, DType::Bf16),
            Problem::new(top, 0, 5, top, top, 128, DType::Bf16),
            Problem::new(top, 5, 5, 0, 0, 128, DType::Bf16),
        ] {
            for device in [DeviceProps::h200(), DeviceProps::mi355x()] {
                if let Err(error) = make(&problem, splits, &device) {
                    assert!(matches!(error, Error::Argument { .. }), "{error}");
                }
            }
        }
    }
}
