//! What reaches the driver, and what does not.

use kernels_gpu::abi::{AttentionArguments, CombineArguments, MERGE_LAST, NO_BOUND, Output, ScheduleArguments};

use super::recorder::Launched;
use super::{device, kernels, refused};
use crate::{
    AttentionOptions, Buffer, Catalogue, DType, Device, DeviceProps, Executor, Inputs, Kernels, KvLens, Merging,
    Options, Plan, Problem, Result, Splits, Target, Tensor, attention, plan,
};

/// Two sequences of up to 1000 tokens, three queries, two KV heads with groups of four.
fn problem() -> Problem {
    Problem::new(2, 8, 2, 3, 1000, 128, DType::Bf16)
}

fn make(problem: &Problem, splits: Splits) -> Plan {
    let options = Options { splits, ..Options::default() };
    plan(problem, &options, &DeviceProps::h200(), &Catalogue::of(Target::Sm90a)).unwrap()
}

/// Tensors that fit a problem.
struct Tensors {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Option<Tensor>,
    kv_lens: Option<Tensor>,
}

impl Tensors {
    fn new(device: &Device, problem: &Problem) -> Self {
        let zeros = |dtype, shape: &[usize]| Tensor::zeros(device, dtype, shape).unwrap();
        Self {
            q: zeros(problem.dtype, &problem.q_shape()),
            k: zeros(problem.dtype, &problem.k_shape()),
            v: zeros(problem.dtype, &problem.v_shape()),
            o: zeros(problem.o_dtype, &problem.o_shape()),
            lse: problem.lse.then(|| zeros(DType::F32, &problem.lse_shape())),
            kv_lens: (problem.kv_lens == KvLens::Device).then(|| zeros(DType::I32, &[problem.batch])),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let Self { q, k, v, o, lse, kv_lens } = self;
        Inputs { lse: lse.as_ref(), kv_lens: kv_lens.as_ref(), ..Inputs::new(q, k, v, o) }
    }
}

/// The arguments of a launch by name.
fn argument(launched: &Launched, names: &[&str], name: &str) -> u64 {
    assert_eq!(launched.arguments.len(), names.len());
    launched.arguments[names.iter().position(|&known| known == name).unwrap()]
}

#[test]
fn a_split_plan_launches_attention_and_combine_with_the_tables_arguments() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let mut problem = problem().causal(true).lse(true).o_dtype(DType::F32).kv_lens(KvLens::Host(vec![7, 1000]));
    // No kernel has this head dim: it is padded in the kernel, and in no memory.
    problem.head_dim_v = 104;
    // Too many for the last block of each row block to merge.
    let plan = make(&problem, Splits::Exact(33));
    let tensors = Tensors::new(&device, &problem);
    let stream = device.stream().unwrap();
    let workspace = Buffer::new(&device, plan.workspace_bytes()).unwrap();
    let mut executor = Executor::with_workspace(&device, &kernels, &plan, workspace.clone()).unwrap();
    executor.run(&stream, &tensors.inputs()).unwrap();

    let launches = std::mem::take(&mut recorder.log().launches);
    let [first, second] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!(first.kernel, plan.kernel().name);
    assert_eq!((first.grid, first.block), (plan.attention().grid, plan.attention().block));
    assert_eq!(first.shared_bytes, plan.attention().shared_bytes);
    let value = |name| argument(first, AttentionArguments::NAMES, name);
    assert_eq!(value("q"), tensors.q.address());
    assert_eq!(value("k"), tensors.k.address());
    assert_eq!(value("v"), tensors.v.address());
    assert_eq!(value("o"), tensors.o.address());
    assert_eq!(value("lse"), tensors.lse.as_ref().unwrap().address());
    let rows = 2 * 8 * 3;
    assert_eq!(value("partial_o"), workspace.address());
    assert_eq!(value("partial_lse"), workspace.address() + 33 * rows * 104 * 4);
    assert_eq!(workspace.size() as u64, 33 * rows * 105 * 4);
    assert_eq!(value("flags"), 0);
    assert_eq!((value("q_stride_batch"), value("q_stride_seq"), value("q_stride_head")), (3 * 8 * 128, 8 * 128, 128));
    assert_eq!((value("k_stride_batch"), value("k_stride_seq"), value("k_stride_head")), (256_000, 256, 128));
    assert_eq!((value("v_stride_batch"), value("v_stride_seq"), value("v_stride_head")), (208_000, 208, 104));
    assert_eq!((value("batch"), value("sq"), value("sk")), (2, 3, 1000));
    assert_eq!((value("head_dim_qk"), value("head_dim_v")), (128, 104));
    assert_eq!((value("kv_heads"), value("group")), (2, 4));
    assert_eq!((value("num_splits"), value("split_tokens")), (33, 0));
    assert_eq!((value("window_left"), value("window_right"), value("softcap_log2")), (u64::from(NO_BOUND), 0, 0));
    assert_eq!(value("o_dtype"), Output::F32 as u64);
    let scale = f32::from_bits(value("scale_log2") as u32);
    assert!((scale - 0.127_517_43).abs() < 1e-7, "{scale}: log2(e) / sqrt(128)");
    // The lengths were brought to the device.
    // SAFETY: the executor owns the lengths.
    let lens = unsafe { Buffer::from_raw(&device, value("kv_lens"), 8) };
    let mut bytes = [0; 8];
    lens.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 0, 0, 0, 232, 3, 0, 0]);

    assert_eq!((second.kernel.as_str(), second.grid, second.block), ("combine", rows as u32, 32));
    let value = |name| argument(second, CombineArguments::NAMES, name);
    assert_eq!(value("partial_o"), workspace.address());
    assert_eq!((value("rows"), value("sq"), value("heads")), (rows, 3, 8));
    assert_eq!((value("head_dim_v"), value("num_splits")), (104, 33));
    assert_eq!(value("o"), tensors.o.address());
}

/// A table of splits, whose words the executor brought to the device or has room for there.
fn table(device: &Device, address: u64, words: usize) -> Vec<u32> {
    // SAFETY: the executor owns the table.
    let table = unsafe { Buffer::from_raw(device, address, words * 4) };
    let mut bytes = vec![0; words * 4];
    table.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn ragged_plans_bring_their_table_or_launch_the_kernel_that_makes_it() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let stream = device.stream().unwrap();
    let run = |problem: &Problem| {
        let (plan, tensors) = (make(problem, Splits::Auto), Tensors::new(&device, problem));
        let mut executor = Executor::new(&device, &kernels, &plan).unwrap();
        executor.run(&stream, &tensors.inputs()).unwrap();
        (plan, executor, std::mem::take(&mut recorder.log().launches))
    };
    let mut lens = vec![64; 40];
    lens[1] = 65_536;
    // Rows and splits enough for a combine kernel.
    let known = Problem::new(40, 64, 2, 1, 65_536, 64, DType::Bf16).kv_lens(KvLens::Host(lens));
    let (plan, _executor, launches) = run(&known);
    let [attention, combine] = &launches[..] else { panic!("{launches:?}") };
    let splits = plan.ragged().unwrap().known().unwrap()[1];
    assert!(splits > 1);
    let address = argument(attention, AttentionArguments::NAMES, "schedule");
    assert_eq!(argument(combine, CombineArguments::NAMES, "schedule"), address);
    let words = table(&device, address, 4 + 40 * 4 + 2 * (39 + splits as usize));
    assert_eq!(words[0], 39 + splits);
    // First part, splits, first query, queries: of sequences 0 to 2.
    assert_eq!(words[4..16], [0, 1, 0, 1, 0, splits, 1, 1, splits, 1, 2, 1]);
    // Sequence and split.
    assert_eq!(words[4 + 40 * 4..][..6], [0, 0, 1, 0, 1, 1]);
    assert_eq!(words[words.len() - 2..], [39, 0]);

    let (plan, _executor, launches) = run(&known.clone().kv_lens(KvLens::Device));
    let [schedule, attention, combine] = &launches[..] else { panic!("{launches:?}") };
    assert_eq!((schedule.kernel.as_str(), schedule.grid, schedule.block), ("schedule", 1, 32));
    let value = |name| argument(schedule, ScheduleArguments::NAMES, name);
    assert_ne!(value("schedule"), 0);
    assert_eq!(argument(attention, AttentionArguments::NAMES, "schedule"), value("schedule"));
    assert_eq!(argument(combine, CombineArguments::NAMES, "schedule"), value("schedule"));
    assert_eq!(value("kv_lens"), argument(attention, AttentionArguments::NAMES, "kv_lens"));
    assert_eq!((value("batch"), value("sq"), value("sk"), value("group")), (40, 1, 65_536, 32));
    let rows = u64::from(plan.geometry().tile_m * plan.q_tiles());
    assert_eq!((value("block_rows"), value("tile_n")), (rows, u64::from(plan.geometry().tile_n)));
    assert_eq!(value("wide"), u64::from(plan.ragged().unwrap().wide()));
    assert_eq!((value("window_left"), value("window_right")), (u64::from(NO_BOUND), u64::from(NO_BOUND)));
}

#[test]
fn where_the_last_block_merges_there_is_one_launch_and_a_counter_for_each_row_block() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let problem = problem();
    let plan = make(&problem, Splits::Exact(5));
    assert_eq!(plan.merging(), Merging::LastBlock { counters: 2 * 2 });
    let tensors = Tensors::new(&device, &problem);
    let stream = device.stream().unwrap();
    let mut executor = Executor::new(&device, &kernels, &plan).unwrap();
    executor.run(&stream, &tensors.inputs()).unwrap();
    let launches = std::mem::take(&mut recorder.log().launches);
    let [one] = &launches[..] else { panic!("{launches:?}") };
    let value = |name| argument(one, AttentionArguments::NAMES, name);
    assert_eq!(value("flags"), u64::from(MERGE_LAST));
    // SAFETY: the executor owns the status word, and the counters behind it.
    let tickets = unsafe { Buffer::from_raw(&device, value("status") + 4, 16) };
    let mut bytes = [1; 16];
    tickets.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
}

#[test]
fn an_unsplit_plan_launches_one_kernel_and_an_empty_one_none() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let stream = device.stream().unwrap();
    let run = |problem: &Problem, splits| {
        let tensors = Tensors::new(&device, problem);
        let mut executor = Executor::new(&device, &kernels, &make(problem, splits)).unwrap();
        executor.run(&stream, &tensors.inputs()).unwrap();
        std::mem::take(&mut recorder.log().launches)
    };
    let launches = run(&problem(), Splits::Exact(1));
    assert_eq!(launches.len(), 1);
    assert_eq!(argument(&launches[0], AttentionArguments::NAMES, "lse"), 0);
    assert_eq!(argument(&launches[0], AttentionArguments::NAMES, "kv_lens"), 0);
    let tokens = run(&problem(), Splits::Tokens(256));
    assert_eq!(argument(&tokens[0], AttentionArguments::NAMES, "split_tokens"), 256);
    assert_eq!(argument(&tokens[0], AttentionArguments::NAMES, "num_splits"), 4);
    // No keys: the kernel writes zeros. No rows: nothing to do.
    assert_eq!(run(&Problem { sk: 0, ..problem() }, Splits::Auto).len(), 1);
    for empty in [
        Problem { batch: 0, ..problem() },
        Problem { sq: 0, ..problem() },
        Problem { heads: 0, ..problem() },
        Problem { heads: 0, kv_heads: 0, ..problem() },
    ] {
        assert_eq!(run(&empty, Splits::Auto), []);
        assert_eq!(run(&empty, Splits::Exact(7)), []);
    }
}

#[test]
fn bad_tensors_are_refused_by_name_before_anything_is_launched() {
    let (device, recorder) = device(Target::Sm90a);
    let (other, _) = super::device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let stream = device.stream().unwrap();
    let problem = problem().lse(true).kv_lens(KvLens::Device);
    let good = Tensors::new(&device, &problem);
    let mut executor = Executor::new(&device, &kernels, &make(&problem, Splits::Exact(3))).unwrap();
    let mut check = |change: &dyn Fn(&mut Tensors), argument: &str, message: &str| {
        let mut tensors = Tensors::new(&device, &problem);
        change(&mut tensors);
        let (name, text) = refused(executor.run(&stream, &tensors.inputs()));
        assert_eq!(name, argument, "{text}");
        assert!(text.contains(message), "{text}");
    };
    let zeros = |dtype, shape: &[usize]| Tensor::zeros(&device, dtype, shape).unwrap();
    let raw = |bytes: usize| Buffer::new(&device, bytes).unwrap();
    let view = |dtype, offset, shape: &[usize], strides: &[usize]| {
        Tensor::new(raw(1 << 20), offset, dtype, shape, strides).unwrap()
    };
    let b16 = DType::Bf16;

    check(&|t| t.q = zeros(DType::F16, &[2, 3, 8, 128]), "q", "q: given f16; allowed: bf16");
    check(&|t| t.o = zeros(DType::F32, &[2, 3, 8, 128]), "o", "o: given f32; allowed: bf16");
    check(&|t| t.q = zeros(b16, &[2, 3, 7, 128]), "q", "given shape [2, 3, 7, 128]; allowed: shape [2, 3, 8, 128]");
    check(&|t| t.k = zeros(b16, &[2, 999, 2, 128]), "k", "given shape [2, 999, 2, 128]");
    check(&|t| t.v = zeros(b16, &[2, 1000, 2, 64]), "v", "given shape [2, 1000, 2, 64]");
    check(&|t| t.o = zeros(b16, &[2, 3, 1024]), "o", "given shape [2, 3, 1024]");
    check(
        &|t| t.q = view(b16, 0, &[2, 3, 8, 128], &[8000, 2000, 256, 2]),
        "q",
        "given strides [8000, 2000, 256, 2]; allowed: 1 as the last stride",
    );
    check(
        &|t| t.q = view(b16, 0, &[2, 3, 8, 128], &[8000, 2000, 132, 1]),
        "q",
        "given strides [8000, 2000, 132, 1]; allowed: multiples of 8 as strides",
    );
    check(&|t| t.q = view(b16, 8, &[2, 3, 8, 128], &[3072, 1024, 128, 1]), "q", "allowed: a multiple of 16 bytes");
    check(
        &|t| t.o = view(b16, 0, &[2, 3, 8, 128], &[3072, 1024, 0, 1]),
        "o",
        "given shape [2, 3, 8, 128] with strides [3072, 1024, 0, 1]; allowed: strides that keep its elements apart",
    );
    check(
        &|t| t.o = view(b16, 0, &[2, 3, 8, 128], &[1024, 1024, 128, 1]),
        "o",
        "allowed: strides that keep its elements apart",
    );
    check(&|t| t.lse = None, "lse", "lse: given none; allowed: a tensor [2, 8, 3] of f32, as planned");
    check(&|t| t.lse = Some(zeros(b16, &[2, 8, 3])), "lse", "given bf16; allowed: f32");
    check(&|t| t.lse = Some(zeros(DType::F32, &[2, 3, 8])), "lse", "given shape [2, 3, 8]");
    check(
        &|t| t.lse = Some(view(DType::F32, 0, &[2, 8, 3], &[24, 1, 8])),
        "lse",
        "given strides [24, 1, 8]; allowed: strides [24, 3, 1]: no gaps",
    );
    check(&|t| t.kv_lens = None, "kv_lens", "kv_lens: given none; allowed: a tensor [2] of i32, as planned");
    check(&|t| t.kv_lens = Some(zeros(DType::F32, &[2])), "kv_lens", "given f32; allowed: i32");
    check(&|t| t.kv_lens = Some(zeros(DType::I32, &[3])), "kv_lens", "given shape [3]; allowed: shape [2]");
    check(
        &|t| t.k = Tensor::zeros(&other, b16, &[2, 1000, 2, 128]).unwrap(),
        "k",
        "k: given one on recorder:0; allowed: one on recorder:0",
    );
    check(&|t| t.o = t.q.clone(), "o", "that q (");
    check(
        &|t| t.o = Tensor::new(t.k.buffer().clone(), 512, b16, &[2, 3, 8, 128], &[3072, 1024, 128, 1]).unwrap(),
        "o",
        "that k (",
    );
    let (name, _) = refused(executor.run(&other.stream().unwrap(), &good.inputs()));
    assert_eq!(name, "stream");
    assert_eq!(recorder.log().launches, []);

    // What looks odd and is right: broadcast keys, gaps, one KV head in another's cache.
    let mut tensors = Tensors::new(&device, &problem);
    tensors.k = view(b16, 0, &[2, 1000, 2, 128], &[0, 256, 128, 1]);
    tensors.q = view(b16, 16, &[2, 3, 8, 128], &[8192, 2048, 136, 1]);
    executor.run(&stream, &tensors.inputs()).unwrap();
    assert_eq!(recorder.log().launches.len(), 1);
}

#[test]
fn tensors_that_were_not_planned_are_refused() {
    let (device, _) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let stream = device.stream().unwrap();
    let mut executor = Executor::new(&device, &kernels, &make(&problem(), Splits::Auto)).unwrap();
    let tensors = Tensors::new(&device, &problem().lse(true).kv_lens(KvLens::Device));
    let (name, text) = refused(executor.run(&stream, &tensors.inputs()));
    assert_eq!((name, text.as_str()), ("lse", "lse: given a tensor; allowed: none, as planned"));
    let (name, _) = refused(executor.run(&stream, &Inputs { lse: None, ..tensors.inputs() }));
    assert_eq!(name, "kv_lens");
    executor.run(&stream, &Inputs { lse: None, kv_lens: None, ..tensors.inputs() }).unwrap();
}

#[test]
fn workspaces_are_checked() {
    let (device, _) = device(Target::Sm90a);
    let (other, _) = super::device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let plan = make(&problem(), Splits::Exact(3));
    let bytes = plan.workspace_bytes();
    let with = |buffer| Executor::with_workspace(&device, &kernels, &plan, buffer);
    let (name, text) = refused(with(Buffer::new(&device, bytes - 1).unwrap()));
    let expected = format!("workspace: given {} bytes; allowed: at least {bytes} bytes", bytes - 1);
    assert_eq!((name, text), ("workspace", expected));
    let (name, _) = refused(with(Buffer::new(&other, bytes).unwrap()));
    assert_eq!(name, "workspace");
    let large = Buffer::new(&device, bytes + 64).unwrap();
    // SAFETY: within `large`, which outlives it.
    let shifted = unsafe { Buffer::from_raw(&device, large.address() + 8, bytes) };
    assert!(refused(with(shifted)).1.contains("a multiple of 16 bytes"));
    let mut executor = with(large.clone()).unwrap();

    // O in the workspace is refused when it is run.
    let mut tensors = Tensors::new(&device, &problem());
    tensors.o = Tensor::new(large, 0, DType::Bf16, &problem().o_shape(), &[3072, 1024, 128, 1]).unwrap();
    let (name, text) = refused(executor.run(&device.stream().unwrap(), &tensors.inputs()));
    assert_eq!(name, "o");
    assert!(text.contains("that workspace ("), "{text}");
}

#[test]
fn plans_and_kernels_of_another_target_are_refused() {
    let (hopper, _) = device(Target::Sm90a);
    let (cdna, _) = device(Target::Gfx950);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let plan = make(&problem(), Splits::Exact(3));
    let (name, text) = refused(Executor::new(&cdna, &kernels, &plan));
    assert_eq!(name, "kernels");
    assert!(text.contains("given those for sm_90a; allowed: those for gfx950"), "{text}");

    let mi355x = DeviceProps::mi355x();
    let foreign = crate::plan(&problem(), &Options::default(), &mi355x, &Catalogue::of(Target::Gfx950)).unwrap();
    assert_eq!(refused(Executor::new(&hopper, &kernels, &foreign)).0, "plan");

    let renamed = kernels.catalogue().kernels().iter().map(|&kernel| crate::Kernel { name: "other", ..kernel });
    let catalogue = Catalogue::new(Target::Sm90a, renamed.collect());
    let renamed = crate::plan(&problem(), &Options::default(), &DeviceProps::h200(), &catalogue).unwrap();
    let (name, text) = refused(Executor::new(&hopper, &kernels, &renamed));
    assert_eq!(name, "plan");
    assert!(text.contains("given one for other"), "{text}");
}

#[test]
fn the_status_is_read_once() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let problem = problem().kv_lens(KvLens::Device);
    let tensors = Tensors::new(&device, &problem);
    let mut executor = Executor::new(&device, &kernels, &make(&problem, Splits::Exact(1))).unwrap();
    assert!(executor.status().unwrap().is_ok());
    executor.run(&device.stream().unwrap(), &tensors.inputs()).unwrap();
    let launched = recorder.log().launches[0].clone();
    assert_eq!(argument(&launched, AttentionArguments::NAMES, "kv_lens"), tensors.kv_lens.unwrap().address());
    // SAFETY: the executor owns the word.
    let word = unsafe { Buffer::from_raw(&device, argument(&launched, AttentionArguments::NAMES, "status"), 4) };
    word.write(0, &1_u32.to_le_bytes()).unwrap();
    let status = executor.status().unwrap();
    assert!(status.bad_length && !status.is_ok());
    assert_eq!(status.to_string(), "kv_lens: a length was negative or beyond sk");
    assert!(executor.status().unwrap().is_ok());
}

fn call(device: &Device, kernels: &Kernels, shapes: [&[usize]; 3]) -> Result<(Tensor, Option<Tensor>)> {
    let [q, k, v] = shapes.map(|shape| Tensor::zeros(device, DType::F16, shape).unwrap());
    let options = AttentionOptions { lse: true, o_dtype: Some(DType::F32), ..AttentionOptions::default() };
    attention(device, kernels, &q, &k, &v, &options)
}

#[test]
fn one_call_does_it_all() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, folder) = kernels(Target::Sm90a);
    let (o, lse) = call(&device, &kernels, [&[2, 3, 8, 128], &[2, 50, 4, 128], &[2, 50, 4, 128]]).unwrap();
    assert_eq!((o.shape(), o.dtype()), (&[2, 3, 8, 128][..], DType::F32));
    assert_eq!(lse.as_ref().unwrap().shape(), [2, 8, 3]);
    assert_eq!(recorder.log().launches.len(), 1);

    let (name, text) = refused(call(&device, &kernels, [&[2, 8, 128], &[2, 50, 4, 128], &[2, 50, 4, 128]]));
    assert_eq!(name, "q");
    assert!(text.contains("given shape [2, 8, 128]; allowed: four dimensions"), "{text}");
    let mixed = call(&device, &kernels, [&[2, 3, 8, 128], &[2, 50, 4, 128], &[2, 49, 4, 128]]);
    assert_eq!(refused(mixed).0, "v");
    let batches = call(&device, &kernels, [&[2, 3, 8, 128], &[3, 50, 4, 128], &[2, 50, 4, 128]]);
    assert_eq!(refused(batches).0, "k");

    // Nothing is left behind but what the caller and the kernels hold.
    drop((o, lse));
    assert_eq!(recorder.alive().0, 0);
    drop((kernels, folder));
    assert_eq!(recorder.log().launches.len(), 1);
}
