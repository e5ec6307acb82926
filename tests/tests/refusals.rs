//! What is wrong is refused by an error that names the argument, what was given and what is allowed; nothing is
//! launched, changed or ignored.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use splitkv::{
    BlockShape, Buffer, Catalogue, DType, Descale, DeviceProps, Error, Executor, Inputs, KvLayout, KvLens, Offsets,
    Options, PageTable, Plan, Problem, Queries, Result, Splits, Stream, Target, Tensor, Window, plan,
};
use splitkv_tests::case::{Case, Lengths};
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Launch, run};
use splitkv_tests::site::{Site, suite};

fn problem() -> Problem {
    Problem::new(2, 8, 2, 3, 200, 128, DType::Bf16)
}

fn plan_h200(problem: &Problem, splits: Splits) -> Result<Plan> {
    let options = Options { splits, ..Options::default() };
    plan(problem, &options, &DeviceProps::h200(), &Catalogue::of(Target::Sm90a))
}

/// Asserts a refusal of `argument` whose words say what was given and what is allowed.
#[track_caller]
fn assert_refused<T>(result: Result<T>, argument: &str, given: &str, allowed: &str) {
    match result {
        Ok(_) => panic!("{argument} was not refused"),
        Err(Error::Argument { argument: named, given: said, allowed: may }) => {
            assert_eq!(named, argument, "given {said}; allowed: {may}");
            assert!(said.contains(given), "{argument}: `{said}` does not name {given}");
            assert!(may.contains(allowed), "{argument}: `{may}` does not name {allowed}");
        }
        Err(error) => panic!("{argument}: {error}"),
    }
}

/// A way to make a problem wrong.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    argument: &'static str,
    given: &'static str,
    allowed: &'static str,
    change: fn(&mut Problem, &mut Splits),
}

const fn wrong(
    argument: &'static str,
    given: &'static str,
    allowed: &'static str,
    change: fn(&mut Problem, &mut Splits),
) -> Wrong {
    Wrong { argument, given, allowed, change }
}

const HUGE: usize = 1 << 31;
const MOST: &str = "at most 2147483647";

const WRONGS: &[Wrong] = &[
    wrong("batch", "2147483648", MOST, |problem, _| problem.batch = HUGE),
    wrong("sq", "2147483648", MOST, |problem, _| problem.sq = HUGE),
    wrong("sk", "2147483648", MOST, |problem, _| problem.sk = HUGE),
    wrong("heads", "2147483648", MOST, |problem, _| problem.heads = HUGE),
    wrong("kv_heads", "2147483648", MOST, |problem, _| problem.kv_heads = HUGE),
    wrong("batch * heads * sq", "2000000000", MOST, |problem, _| {
        (problem.batch, problem.heads, problem.kv_heads, problem.sq) = (2_000_000_000, 2, 2, 1);
        problem.kv_lens = KvLens::Full;
    }),
    wrong("heads", "7", "multiple of kv_heads (2)", |problem, _| (problem.heads, problem.kv_heads) = (7, 2)),
    wrong("heads", "8", "multiple of kv_heads (0)", |problem, _| (problem.heads, problem.kv_heads) = (8, 0)),
    wrong("head_dim_qk", "0", "a multiple of 8", |problem, _| problem.head_dim_qk = 0),
    wrong("head_dim_qk", "4", "a multiple of 8", |problem, _| problem.head_dim_qk = 4),
    wrong("head_dim_qk", "12", "a multiple of 8", |problem, _| problem.head_dim_qk = 12),
    wrong("head_dim_qk", "255", "a multiple of 8", |problem, _| problem.head_dim_qk = 255),
    wrong("head_dim_qk", "264", "at most 256", |problem, _| problem.head_dim_qk = 264),
    wrong("head_dim_qk", "576", "at most 256", |problem, _| problem.head_dim_qk = 576),
    wrong("head_dim_v", "0", "a multiple of 8", |problem, _| problem.head_dim_v = 0),
    wrong("head_dim_v", "4", "a multiple of 8", |problem, _| problem.head_dim_v = 4),
    wrong("head_dim_v", "12", "a multiple of 8", |problem, _| problem.head_dim_v = 12),
    wrong("head_dim_v", "264", "at most 256", |problem, _| problem.head_dim_v = 264),
    wrong("dtype", "f32", "bf16, f16 or e4m3", |problem, _| problem.dtype = DType::F32),
    wrong("dtype", "i32", "bf16, f16 or e4m3", |problem, _| problem.dtype = DType::I32),
    wrong("o_dtype", "i32", "f32", |problem, _| problem.o_dtype = DType::I32),
    wrong("o_dtype", "f16", "bf16 or f32", |problem, _| (problem.dtype, problem.o_dtype) = (DType::Bf16, DType::F16)),
    wrong("o_dtype", "bf16", "f16 or f32", |problem, _| (problem.dtype, problem.o_dtype) = (DType::F16, DType::Bf16)),
    wrong("scale", "NaN", "finite", |problem, _| problem.scale = Some(f32::NAN)),
    wrong("scale", "inf", "finite", |problem, _| problem.scale = Some(f32::INFINITY)),
    wrong("scale", "-inf", "finite", |problem, _| problem.scale = Some(f32::NEG_INFINITY)),
    wrong("scale", "34028", "finite", |problem, _| problem.scale = Some(f32::MAX)),
    wrong("kv_lens", "0 lengths", "one a sequence", |problem, _| {
        problem.batch = problem.batch.max(1);
        problem.kv_lens = KvLens::Host(Vec::new());
    }),
    wrong("kv_lens", "sequence 0", "at most sk", |problem, _| {
        problem.batch = problem.batch.max(1);
        problem.kv_lens = KvLens::Host(vec![problem.sk as u32 + 1; problem.batch]);
    }),
    wrong("splits", "0", "1 to 256", |_, splits| *splits = Splits::Exact(0)),
    wrong("splits", "257", "1 to 256", |_, splits| *splits = Splits::Exact(257)),
    wrong("splits", "4294967295", "1 to 256", |_, splits| *splits = Splits::Exact(u32::MAX)),
    wrong("splits", "0 tokens", "KV tile", |_, splits| *splits = Splits::Tokens(0)),
    wrong("splits", "100 tokens", "KV tile", |_, splits| *splits = Splits::Tokens(100)),
    wrong("splits", "makes 257 splits", "256 tokens", |problem, splits| {
        problem.sk = 128 * 256 + 1;
        problem.kv_lens = KvLens::Full;
        *splits = Splits::Tokens(128);
    }),
];

#[test]
fn each_wrong_problem_is_refused() {
    for wrong in WRONGS {
        let (mut problem, mut splits) = (problem(), Splits::Auto);
        (wrong.change)(&mut problem, &mut splits);
        println!("{wrong:?}");
        assert_refused(plan_h200(&problem, splits), wrong.argument, wrong.given, wrong.allowed);
    }
}

#[test]
fn wrong_options_devices_and_catalogues_are_refused() {
    let device = DeviceProps::h200();
    let catalogue = Catalogue::of(Target::Sm90a);
    let with = |device: &DeviceProps, catalogue: &Catalogue, splits| {
        plan(&problem(), &Options { splits, ..Options::default() }, device, catalogue)
    };
    for q_tiles in [0, 3, u32::MAX] {
        let options = Options { q_tiles: Some(q_tiles), ..Options::default() };
        let given = q_tiles.to_string();
        assert_refused(plan(&problem(), &options, &device, &catalogue), "q_tiles", &given, "1 or 2");
    }
    // Two query tiles were compiled for head dims 128 and 192/128 only, for both block shapes.
    for (qk, v, kernel) in [(64, 64, "64/64"), (80, 72, "96/96"), (256, 256, "256/256"), (136, 136, "256/256")] {
        for block_shape in [None, Some(BlockShape::SplitKv), Some(BlockShape::SharedKv)] {
            let options = Options { q_tiles: Some(2), block_shape, ..Options::default() };
            let problem = Problem::new(2, 8, 2, 3, 200, qk, DType::Bf16).head_dim_v(v);
            let result = plan(&problem, &options, &device, &catalogue);
            assert_refused(result, "q_tiles", "2", &format!("1 of the kernels for head dims {kernel}"));
        }
    }
    // Kernels of one block shape only.
    let split_kv = |kernel: &splitkv::Kernel| !kernel.name.contains("sharedkv");
    let split_kv = Catalogue::new(Target::Sm90a, catalogue.kernels().iter().copied().filter(split_kv).collect());
    let options = Options { block_shape: Some(BlockShape::SharedKv), ..Options::default() };
    assert_refused(plan(&problem(), &options, &device, &split_kv), "block_shape", "shared_kv", "split_kv");
    let foreign = Catalogue::of(Target::Gfx950);
    assert_refused(with(&device, &foreign, Splits::Auto), "catalogue", "gfx950", "sm_90");
    let empty = Catalogue::new(Target::Sm90a, Vec::new());
    assert_refused(with(&device, &empty, Splits::Auto), "dtype", "bf16", "none");
    let is_attention = |kernel: &splitkv::Kernel| kernel.name.starts_with("attention");
    let attention = catalogue.kernels().iter().copied().filter(is_attention).collect();
    let no_combine = Catalogue::new(Target::Sm90a, attention);
    assert!(with(&device, &no_combine, Splits::Exact(1)).is_ok());
    assert_refused(with(&device, &no_combine, Splits::Exact(2)), "catalogue", "no combine", "merge");

    let no_multiprocessor = DeviceProps { multiprocessors: 0, ..device.clone() };
    assert_refused(with(&no_multiprocessor, &catalogue, Splits::Auto), "device.multiprocessors", "0", "at least 1");
    let small = DeviceProps { shared_bytes_per_block: 48 * 1024, ..device.clone() };
    assert_refused(with(&small, &catalogue, Splits::Auto), "device.shared_bytes_per_block", "49152", "at least");
    let narrow = DeviceProps { threads_per_block: 32, ..device.clone() };
    assert_refused(with(&narrow, &catalogue, Splits::Auto), "device.threads_per_block", "32", "at least 128");
    let crowded = DeviceProps { shared_bytes_per_multiprocessor: 1024, ..device };
    assert_refused(
        with(&crowded, &catalogue, Splits::Auto),
        "device.shared_bytes_per_multiprocessor",
        "1024",
        "room for a block",
    );
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Config::default() })
}

/// One thing wrong in an otherwise random problem is refused, by that name.
#[test]
fn a_random_problem_with_one_fault_is_refused() {
    let right = (1..5usize, 1..5usize, 1..9usize, 1..40usize, 0..100_000usize, any::<bool>(), any::<bool>());
    let strategy = (right, prop::sample::select(WRONGS));
    let result = runner(2000).run(&strategy, |((batch, kv_heads, group, sq, sk, causal, lse), wrong)| {
        let mut problem =
            Problem::new(batch, kv_heads * group, kv_heads, sq, sk, 128, DType::F16).causal(causal).lse(lse);
        let mut splits = Splits::Exact(3);
        prop_assert!(plan_h200(&problem, splits).is_ok(), "{}", problem);
        (wrong.change)(&mut problem, &mut splits);
        match plan_h200(&problem, splits) {
            Err(Error::Argument { argument, .. }) => prop_assert_eq!(argument, wrong.argument),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
            Ok(plan) => return Err(TestCaseError::fail(format!("{wrong:?} was planned:\n{plan}"))),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Whatever the numbers, planning neither panics nor fails with anything but a refusal.
#[test]
fn wild_problems_are_planned_or_refused() {
    let size = || {
        prop_oneof![
            4 => 0..4usize,
            4 => 0..5000usize,
            2 => prop::sample::select(vec![1 << 16, 1 << 30, i32::MAX as usize, HUGE, usize::MAX / 2, usize::MAX]),
        ]
    };
    let dim = || prop_oneof![4 => Just(128usize), 4 => (0..=33usize).prop_map(|n| 8 * n), 2 => size()];
    let shape = prop::sample::select(vec![None, None, Some(BlockShape::SplitKv), Some(BlockShape::SharedKv)]);
    let kernel = (shape, prop_oneof![4 => Just(None), 2 => (0..4u32).prop_map(Some)]);
    let dtype = || prop::sample::select(vec![DType::Bf16, DType::F16, DType::E4m3, DType::F32, DType::I32]);
    let lens = prop_oneof![
        2 => Just(KvLens::Full),
        1 => Just(KvLens::Device),
        1 => prop::collection::vec(0..5000u32, 0..5).prop_map(KvLens::Host),
    ];
    let number = prop_oneof![4 => 0..5u32, 2 => 0..1000u32, 1 => any::<u32>()];
    let splits = prop_oneof![
        Just(Splits::Auto),
        number.clone().prop_map(Splits::Exact),
        number.prop_map(|n| Splits::Tokens(n.wrapping_mul(128))),
    ];
    let bound = || prop::option::of(prop_oneof![0..4u32, any::<u32>()]);
    let window = (bound(), bound()).prop_map(|(left, right)| Window { left, right });
    let offsets = || prop_oneof![Just(Offsets::Device), prop::collection::vec(0..4u32, 0..5).prop_map(Offsets::Host)];
    let page_size = prop_oneof![4 => prop::sample::select(vec![1usize, 16, 256, 512]), 1 => size()];
    let table = prop_oneof![
        size().prop_map(|width| PageTable::Device { width }),
        (size(), prop::collection::vec(0..4u32, 0..5)).prop_map(|(width, pages)| PageTable::Host { width, pages }),
    ];
    let kv = prop_oneof![
        Just(KvLayout::Dense),
        (size(), offsets()).prop_map(|(total, cu_seqlens)| KvLayout::Packed { total, cu_seqlens }),
        (size(), page_size, table).prop_map(|(pages, page_size, table)| KvLayout::Paged { pages, page_size, table }),
    ];
    let queries = prop_oneof![
        3 => Just(Queries::Dense),
        1 => (size(), offsets()).prop_map(|(total, cu_seqlens)| Queries::Packed { total, cu_seqlens }),
    ];
    let descale = || prop_oneof![3 => Just(Descale::PerTensor), 1 => Just(Descale::PerHead)];
    let workspace = prop::option::of(prop_oneof![0..100_000usize, size()]);
    let served = (window, prop::option::of(any::<f32>()), queries, kv, [descale(), descale(), descale()], workspace);
    let strategy = (
        [size(), size(), size(), size(), size()],
        (dim(), dim(), dtype(), dtype()),
        (any::<bool>(), prop::option::of(any::<f32>()), lens, any::<bool>(), splits),
        kernel,
        served,
    );
    let result = runner(20_000).run(&strategy, |([batch, heads, kv_heads, sq, sk], types, rest, kernel, served)| {
        let (window, softcap, queries, kv, [q_descale, k_descale, v_descale], max_workspace_bytes) = served;
        let (head_dim_qk, head_dim_v, dtype, o_dtype) = types;
        let (causal, scale, kv_lens, lse, splits) = rest;
        let mut problem = Problem::new(batch, heads, kv_heads, sq, sk, head_dim_qk, dtype)
            .head_dim_v(head_dim_v)
            .o_dtype(o_dtype)
            .causal(causal)
            .kv_lens(kv_lens)
            .lse(lse)
            .window(window)
            .descales(q_descale, k_descale, v_descale);
        (problem.scale, problem.softcap) = (scale, softcap);
        (problem.queries, problem.kv) = (queries, kv);
        let (block_shape, q_tiles) = kernel;
        let options = Options { splits, q_tiles, block_shape, max_workspace_bytes };
        for target in Target::ALL {
            match plan(&problem, &options, &DeviceProps::of(target), &Catalogue::of(target)) {
                Ok(plan) => prop_assert!(max_workspace_bytes.is_none_or(|most| plan.workspace_bytes() <= most)),
                Err(Error::Argument { .. }) => {}
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// A run that is right in everything, for tests that make one thing wrong.
struct Setup {
    problem: Problem,
    executor: Executor,
    stream: Stream,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    kv_lens: Tensor,
}

impl Setup {
    fn new(site: &Site) -> Result<Self> {
        let problem = problem().lse(true).kv_lens(KvLens::Device);
        let options = Options { splits: Splits::Exact(2), ..Options::default() };
        let device = &site.device;
        let plan = plan(&problem, &options, device.props(), site.kernels.catalogue())?;
        Ok(Self {
            executor: Executor::new(device, &site.kernels, &plan)?,
            stream: device.stream()?,
            q: Tensor::zeros(device, DType::Bf16, &problem.q_shape())?,
            k: Tensor::zeros(device, DType::Bf16, &problem.k_shape())?,
            v: Tensor::zeros(device, DType::Bf16, &problem.v_shape())?,
            o: Tensor::zeros(device, DType::Bf16, &problem.o_shape())?,
            lse: Tensor::zeros(device, DType::F32, &problem.lse_shape())?,
            kv_lens: Tensor::from_host(device, &[200, 3], &[2])?,
            problem,
        })
    }

    /// Runs with one input replaced, or without it.
    fn with(&mut self, name: &str, tensor: Option<&Tensor>) -> Result<()> {
        let given = |this: &'static str, own| if this == name { tensor } else { Some(own) };
        let needed = |this, own| given(this, own).expect("only lse and kv_lens can be left out");
        let inputs = Inputs {
            lse: given("lse", &self.lse),
            kv_lens: given("kv_lens", &self.kv_lens),
            ..Inputs::new(needed("q", &self.q), needed("k", &self.k), needed("v", &self.v), needed("o", &self.o))
        };
        self.executor.run(&self.stream, &inputs)?;
        self.stream.synchronize()
    }

    /// A tensor like `name`'s with another offset (in bytes), shape or strides.
    fn view(&self, site: &Site, dtype: DType, offset: usize, shape: &[usize], strides: &[usize]) -> Result<Tensor> {
        let end: usize = shape.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1;
        let buffer = Buffer::new(&site.device, offset + end * dtype.size_of())?;
        buffer.fill(0)?;
        Tensor::new(buffer, offset, dtype, shape, strides)
    }
}

#[test]
fn wrong_tensors_are_refused() {
    suite("refusals::wrong_tensors_are_refused", |site| wrong_tensors(site).expect("everything else is right"));
}

fn wrong_tensors(site: &Site) -> Result<usize> {
    let mut setup = Setup::new(site)?;
    // Nothing is replaced.
    setup.with("", None)?;
    let mut count = 1;
    let tensors = [
        ("q", setup.problem.q_shape()),
        ("k", setup.problem.k_shape()),
        ("v", setup.problem.v_shape()),
        ("o", setup.problem.o_shape()),
    ];
    for (name, shape) in tensors {
        let shape: [usize; 4] = shape.try_into().expect("not packed");
        let [batch, seq, heads, dim] = shape;
        let strides = [seq * heads * dim, heads * dim, dim, 1];
        let mut refused = |dtype, offset, shape: &[usize], strides: &[usize], given: &str, allowed: &str| {
            let tensor = setup.view(site, dtype, offset, shape, strides)?;
            assert_refused(setup.with(name, Some(&tensor)), name, given, allowed);
            count += 1;
            Result::Ok(())
        };
        refused(DType::F16, 0, &shape, &strides, "f16", "bf16")?;
        refused(DType::Bf16, 0, &[batch, seq + 1, heads, dim], &strides, &(seq + 1).to_string(), &seq.to_string())?;
        refused(DType::Bf16, 0, &[batch * seq, heads, dim], &strides[1..], "shape", "shape")?;
        refused(DType::Bf16, 8, &shape, &strides, "address", "multiple of 16 bytes")?;
        refused(DType::Bf16, 0, &shape, &[strides[0], strides[1], dim + 4, 1], "strides", "multiples of 8")?;
        refused(DType::Bf16, 0, &shape, &[strides[0], 2 * strides[1] + 1, dim, 1], "strides", "multiples of 8")?;
        refused(DType::Bf16, 0, &shape, &[2 * strides[0], 2 * strides[1], 2 * dim, 2], "strides", "1 as the last")?;
    }
    // Inputs may share elements, as a broadcast does; outputs may not.
    let [batch, seq, heads, dim] = setup.problem.o_shape()[..] else { panic!("packed") };
    let broadcast = setup.view(site, DType::Bf16, 0, &[batch, seq, heads, dim], &[0, heads * dim, dim, 1])?;
    assert_refused(setup.with("o", Some(&broadcast)), "o", "strides", "apart");
    setup.with("q", Some(&broadcast))?;
    let shared = setup.q.clone();
    let overlap = setup.with("o", Some(&shared)).expect_err("O over Q").to_string();
    assert!(overlap.contains("o") && overlap.contains("q"), "{overlap}");

    assert_refused(setup.with("lse", None), "lse", "none", "as planned");
    assert_refused(setup.with("kv_lens", None), "kv_lens", "none", "as planned");
    let [batch, heads, sq] = setup.problem.lse_shape()[..] else { panic!("packed") };
    let lse = setup.view(site, DType::F32, 0, &[batch, heads, sq], &[1, batch, batch * heads])?;
    assert_refused(setup.with("lse", Some(&lse)), "lse", "strides", "no gaps");
    let lse = Tensor::zeros(&site.device, DType::Bf16, &[batch, heads, sq])?;
    assert_refused(setup.with("lse", Some(&lse)), "lse", "bf16", "f32");
    let lens = Tensor::zeros(&site.device, DType::I32, &[batch + 1])?;
    assert_refused(setup.with("kv_lens", Some(&lens)), "kv_lens", "3", "2");
    let lens = Tensor::zeros(&site.device, DType::F32, &[batch])?;
    assert_refused(setup.with("kv_lens", Some(&lens)), "kv_lens", "f32", "i32");
    // All of it left nothing behind.
    setup.with("", None)?;
    Ok(count + 11)
}

#[test]
fn wrong_executors_are_refused() {
    suite("refusals::wrong_executors_are_refused", |site| wrong_executors(site).expect("everything else is right"));
}

fn wrong_executors(site: &Site) -> Result<usize> {
    let (device, kernels) = (&site.device, &site.kernels);
    let options = Options { splits: Splits::Exact(4), ..Options::default() };
    let right = plan(&problem(), &options, device.props(), kernels.catalogue())?;
    let needed = right.workspace_bytes();
    assert_eq!(needed, 4 * (2 * 8 * 3) * (128 + 1) * 4);
    assert!(Executor::with_workspace(device, kernels, &right, Buffer::new(device, needed)?).is_ok());
    let small = Executor::with_workspace(device, kernels, &right, Buffer::new(device, needed - 1)?);
    assert_refused(small, "workspace", &(needed - 1).to_string(), &needed.to_string());
    let whole = Buffer::new(device, needed + 16)?;
    // SAFETY: the range lies in `whole`, which outlives every use: nothing is run with it.
    let crooked = unsafe { Buffer::from_raw(device, whole.address() + 8, needed) };
    assert_refused(Executor::with_workspace(device, kernels, &right, crooked), "workspace", "address", "16");

    let other = Target::ALL.into_iter().find(|target| *target != device.props().target).expect("three targets");
    let foreign = plan(&problem(), &options, &DeviceProps::of(other), &Catalogue::of(other))?;
    let target = device.props().target.name();
    assert_refused(Executor::new(device, kernels, &foreign), "plan", other.name(), target);
    Ok(4)
}

/// A length that only the device knows, and that is wrong: memory beyond the plan is not touched, and the status says
/// so once.
#[test]
fn wrong_lengths_on_the_device_are_reported() {
    suite("refusals::wrong_lengths_on_the_device_are_reported", |site| {
        let mut setup = Setup::new(site).expect("everything is right");
        for (lengths, bad) in [([200, 0], false), ([201, 0], true), ([5, -1], true), ([i32::MAX, i32::MIN], true)] {
            let kv_lens = Tensor::from_host(&site.device, &lengths, &[2]).expect("a valid tensor");
            setup.with("kv_lens", Some(&kv_lens)).expect("lengths are not looked at");
            assert_eq!(setup.executor.status().expect("the device works").bad_length, bad, "{lengths:?}");
            assert!(setup.executor.status().expect("the device works").is_ok(), "reported once");
        }
        // Clamped: what the kernel computes is right for the nearest lengths allowed.
        let at = |lengths: &[u32]| Case { lengths: Lengths::Device(lengths.to_vec()), ..Case::new(2, 1, 200, 1, 2) };
        let tensors = Tensors::new(&at(&[200, 0]));
        let (want, _) = run(site, &at(&[200, 0]), &tensors).expect("a valid case");
        let mut launch = Launch::new(site, &at(&[200, 0]), &tensors).expect("a valid case");
        launch.set_lengths(&[i32::MAX, -7]).expect("two lengths");
        launch.run().expect("lengths are not looked at");
        let got = launch.read();
        assert!(got.is_err_and(|error| error.to_string().contains("length")));
        assert_eq!(launch.read().expect("reported once"), want);
        5
    });
}
