//! Kernels over tensor memory: that each is right, and that the products of one KV tile are in flight while the softmax
//! of the one before is computed.

use kernels_gpu::abi::tcgen05::{COLUMNS, SCORES, STREAMS, SharedMap, TOKENS, barrier};
use kernels_gpu::abi::{AttentionArguments, KERNELS, NO_BOUND, Operand, Output, Role, Target, Vendor};
use splitkv::{BlockShape, KernelReason};
use splitkv_emulator::{Arch, Error, Machine, TraceEvent, TraceKind};
use splitkv_tests::case::{Case, Data, Known, Kv, Lengths, Queries, Shape, Splits, Window};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::Launch;
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{Site, suite};

/// Runs `cases` on each device that has tensor memory.
fn check(name: &str, cases: &[Case]) {
    suite(name, |site| {
        if site.device.props().target != Target::Sm100f {
            return 0;
        }
        for case in cases {
            run(site, case);
        }
        cases.len()
    });
}

/// Runs a case, whose output must be the reference's. The kernel's name.
fn run(site: &Site, case: &Case) -> &'static str {
    let tensors = Tensors::new(case);
    let mut launch = Launch::new(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    launch.run().unwrap_or_else(|error| panic!("{error}\n{case}"));
    assert_eq!(launch.plan().block_shape(), BlockShape::Tcgen05, "{case}");
    let bits = launch.read().unwrap_or_else(|error| panic!("{error}\n{case}"));
    compare(case, &tensors.expected(case), &bits.output(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    launch.plan().kernel().name
}

fn case(q_tiles: u32, sq: usize, sk: usize, group: usize) -> Case {
    let splits = Splits::Exact(1);
    Case { block_shape: Some(Shape::Tcgen05), q_tiles: Some(q_tiles), splits, ..Case::new(1, sq, sk, 1, group) }
}

fn paged(page_size: usize) -> Kv {
    Kv::Paged { page_size, shared: 0, spare: 0, known: Known::Device }
}

#[test]
fn each_kernel_gives_the_reference() {
    let mut cases = Vec::new();
    for kernel in Target::Sm100f.kernels() {
        let Role::Attention { operand, head_dim_qk, head_dim_v, q_tiles, paged: is_paged, .. } = kernel.role else {
            panic!("{} is no attention kernel", kernel.name);
        };
        let (format, output) = match operand {
            Operand::F16 => (Format::F16, Format::F16),
            Operand::E4m3 => (Format::E4m3, Format::Bf16),
            _ => (Format::Bf16, Format::Bf16),
        };
        let (head_dim_qk, head_dim_v) = (head_dim_qk as usize, head_dim_v as usize);
        let kv = if is_paged { paged(16) } else { Kv::Dense };
        let case = Case { head_dim_qk, head_dim_v, format, output, kv, ..case(q_tiles, 1, 500, 4) };
        // Rows of one KV tile, and of more query tiles than one, with head dims that are filled up.
        cases.push(Case { sk: 77, data: Data::Peaked, ..case.clone() });
        cases.push(Case {
            sq: 40,
            sk: 300,
            causal: true,
            output: Format::F32,
            head_dim_v: head_dim_v - 16,
            ..case.clone()
        });
        cases.push(case);
    }
    check("tcgen05::each_kernel_gives_the_reference", &cases);
}

#[test]
fn all_that_is_decided_at_run_time() {
    let mut cases = Vec::new();
    for q_tiles in [1, 2] {
        let case = case(q_tiles, 1, 1000, 4);
        cases.push(Case { splits: Splits::Exact(3), ..case.clone() });
        cases.push(Case { splits: Splits::Tokens(256), kv: paged(1), ..case.clone() });
        let lengths = Lengths::Device(vec![0, 1, 300]);
        cases.push(Case { batch: 3, sk: 300, splits: Splits::Exact(5), lengths, ..case.clone() });
        let wide = Case { sq: 50, sk: 400, group: 7, causal: true, ..case.clone() };
        cases.push(Case { splits: Splits::Exact(2), data: Data::Peaked, ..wide.clone() });
        cases.push(Case { sq: 150, group: 3, data: Data::Offset, ..wide });
        let window = Some(Window { left: Some(100), right: Some(0) });
        cases.push(Case { sq: 40, sk: 700, group: 2, window, softcap: Some(5.0), ..case.clone() });
        let sink = Some(vec![Some(0.5), None]);
        cases.push(Case { sq: 2, sk: 200, sink, ..case.clone() });
        let queries = Queries::Packed { lengths: vec![60, 0, 7], known: Known::Device };
        let kv = Kv::Packed { room: vec![300, 5, 200], known: Known::Host };
        cases.push(Case { batch: 3, sq: 60, sk: 300, kv_heads: 2, group: 3, queries, kv, causal: true, ..case });
    }
    let e4m3 = Case { format: Format::E4m3, output: Format::Bf16, head_dim_qk: 192, ..case(1, 30, 700, 4) };
    cases.push(Case { splits: Splits::Exact(3), per_head: [true; 3], kv: paged(64), ..e4m3 });
    check("tcgen05::all_that_is_decided_at_run_time", &cases);
}

/// A maximum that rises by more and by less than what is let pass, over many tiles.
#[test]
fn outputs_are_rescaled_when_the_maximum_rises() {
    let mut cases = Vec::new();
    for (q_tiles, scale) in [(1, 0.05), (1, 1.0), (1, 4.0), (2, 1.0)] {
        for format in [Format::Bf16, Format::F16] {
            cases.push(Case { scale: Some(scale), format, output: Format::F32, ..case(q_tiles, 20, 1500, 8) });
        }
    }
    let e4m3 = Case { format: Format::E4m3, output: Format::F32, head_dim_qk: 192, ..case(1, 20, 1500, 8) };
    cases.push(Case { scale: Some(0.3), ..e4m3 });
    check("tcgen05::outputs_are_rescaled_when_the_maximum_rises", &cases);
}

/// What the planner takes without being asked for a kernel.
#[test]
fn plans_take_these_kernels_by_themselves() {
    suite("tcgen05::plans_take_these_kernels_by_themselves", |site| {
        if site.device.props().target != Target::Sm100f {
            return 0;
        }
        let free = |case: Case| Case { block_shape: None, q_tiles: None, ..case };
        let few = run(site, &free(case(1, 1, 700, 4)));
        assert_eq!(few, "attention_bf16_d128_tcgen05_q1");
        let many = run(site, &free(case(1, 50, 300, 4)));
        assert_eq!(many, "attention_bf16_d128_tcgen05_q2");
        let split = Case { splits: Splits::Exact(2), ..case(1, 50, 300, 4) };
        assert_eq!(run(site, &free(split)), "attention_bf16_d128_tcgen05_q1");
        let other = free(Case { head_dim_qk: 96, head_dim_v: 96, ..case(1, 1, 700, 4) });
        let tensors = Tensors::new(&other);
        let launch = Launch::new(site, &other, &tensors).unwrap_or_else(|error| panic!("{error}\n{other}"));
        assert_eq!(launch.plan().kernel_reason(), KernelReason::Portable);
        4
    });
}

/// The trace of a block that computes one row's worth of `tiles` KV tiles, of zeros, with the kernel's text changed.
fn trace(site: &Site, name: &str, tiles: u32, change: impl Fn(&str) -> String) -> Result<Vec<TraceEvent>, Error> {
    let folder = site.kernels.folder().expect("kernels of tests are in a folder");
    let file = folder.join(Target::Sm100f.name()).join(format!("{name}.ptx"));
    let machine = Machine::new(Arch::Sm100);
    let text = change(&std::fs::read_to_string(&file).unwrap());
    let module = machine.load(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let kernel = KERNELS.iter().find(|kernel| kernel.name == name).unwrap();
    let zeros = |bytes: u64| {
        let address = machine.alloc(bytes).unwrap();
        machine.fill(address, 0, bytes).unwrap();
        address
    };
    let (dim, sk) = (128, tiles * TOKENS);
    let kv_bytes = u64::from(2 * sk * dim);
    let arguments = AttentionArguments {
        q: zeros(u64::from(2 * dim)),
        k: zeros(kv_bytes),
        v: zeros(kv_bytes),
        o: zeros(u64::from(2 * dim)),
        lse: 0,
        partial_o: 0,
        partial_lse: 0,
        kv_lens: 0,
        cu_seqlens_q: 0,
        cu_seqlens_kv: 0,
        page_table: 0,
        sink: 0,
        q_descale: 0,
        k_descale: 0,
        v_descale: 0,
        schedule: 0,
        status: zeros(4),
        q_stride_batch: 0,
        q_stride_seq: dim.into(),
        q_stride_head: dim.into(),
        k_stride_batch: 0,
        k_stride_seq: dim.into(),
        k_stride_head: dim.into(),
        v_stride_batch: 0,
        v_stride_seq: dim.into(),
        v_stride_head: dim.into(),
        o_stride_batch: 0,
        o_stride_seq: dim.into(),
        o_stride_head: dim.into(),
        page_table_stride: 0,
        flags: 0,
        batch: 1,
        sq: 1,
        sk,
        total_q: 1,
        total_kv: 0,
        page_size: 0,
        pages: 0,
        head_dim_qk: dim,
        head_dim_v: dim,
        kv_heads: 1,
        group: 1,
        num_splits: 1,
        split_tokens: 0,
        window_left: NO_BOUND,
        window_right: NO_BOUND,
        o_dtype: Output::Bf16 as u32,
        scale_log2: 0.1,
        softcap_log2: 0.0,
    };
    let (threads, shared) = (kernel.threads(Vendor::Nvidia), kernel.shared_bytes(Vendor::Nvidia));
    machine.trace(&module, name, [1; 3], [threads, 1, 1], shared, &arguments.cells(), 0)
}

/// The emulator misses each kind of wait and fence that is taken out of a kernel.
#[test]
fn each_wait_and_fence_is_needed() {
    const NEEDED: [&str; 5] = [
        "tcgen05.fence::before_thread_sync;",
        "tcgen05.fence::after_thread_sync;",
        "tcgen05.wait::ld.sync.aligned;",
        "tcgen05.wait::st.sync.aligned;",
        "fence.proxy.async.shared::cta;",
    ];
    suite("tcgen05::each_wait_and_fence_is_needed", |site| {
        if site.device.props().target != Target::Sm100f || !site.is_emulated() {
            return 0;
        }
        let name = "attention_bf16_d128_tcgen05_q1";
        for needed in NEEDED {
            let without = |text: &str| {
                assert!(text.contains(needed), "{needed}");
                text.replace(needed, "")
            };
            let fault = trace(site, name, 5, without);
            assert!(matches!(fault, Err(Error::Fault(_))), "without {needed}");
        }
        NEEDED.len()
    });
}

/// With one query tile, the products that make the scores of tile `i + 1` are issued before the softmax of tile `i`
/// begins, and are not done when it ends.
#[test]
fn scores_of_the_next_tile_are_in_flight_during_a_softmax() {
    const TILES: u32 = 7;
    suite("tcgen05::scores_of_the_next_tile_are_in_flight_during_a_softmax", |site| {
        if site.device.props().target != Target::Sm100f || !site.is_emulated() {
            return 0;
        }
        let events = trace(site, "attention_bf16_d128_tcgen05_q1", TILES, str::to_owned);
        let events = events.unwrap_or_else(|error| panic!("{error}"));
        let place = |wanted: TraceKind| events.iter().position(|event| event.kind == wanted);
        // The products into a stream's columns of scores, in the order of issue: eight a tile.
        let scores = |tile: u32| -> Vec<u32> {
            let column = SCORES[(tile % STREAMS) as usize];
            let into = |event: &TraceEvent| match event.kind {
                TraceKind::Issued { product, accumulator } if accumulator == column => Some(product),
                _ => None,
            };
            let products: Vec<u32> = events.iter().filter_map(into).collect();
            assert_eq!(products.len() as u32, 8 * (TILES - tile % STREAMS).div_ceil(STREAMS));
            products.chunks(8).nth((tile / STREAMS) as usize).unwrap().to_vec()
        };
        let map = SharedMap::of(Operand::Bf16, 128, 128, 1);
        for tile in 0..TILES - 1 {
            let (stream, turn) = (tile % STREAMS, (tile / STREAMS) as usize);
            let next = scores(tile + 1);
            let issued = events
                .iter()
                .position(|event| matches!(event.kind, TraceKind::Issued { product, .. } if product == next[0]));
            let (issued, done) = (issued.unwrap(), place(TraceKind::Done { product: next[7] }).unwrap());
            let full = map.barriers + 8 * (barrier::SCORES_FULL + stream);
            for warp in 4 * stream..4 * stream + 4 {
                // What the warp computes between this tile's scores and the next ones of its stream, or the end.
                let is_wait = |event: &TraceEvent| {
                    event.warp == warp && matches!(event.kind, TraceKind::Waited { barrier, .. } if barrier == full)
                };
                let waits: Vec<usize> = (0..events.len()).filter(|&i| is_wait(&events[i])).collect();
                let end = waits.get(turn + 1).copied().unwrap_or(events.len());
                let exponentials = |i: &usize| match events[*i].kind {
                    TraceKind::Computed { special } if events[*i].warp == warp => special,
                    _ => 0,
                };
                let computed: Vec<usize> = (waits[turn]..end).filter(|i| exponentials(i) > 0).collect();
                let total: u64 = computed.iter().map(exponentials).sum();
                assert!(total >= u64::from(TOKENS), "{total} exponentials of tile {tile} in warp {warp}");
                let (first, last) = (computed[0], *computed.last().unwrap());
                assert!(
                    issued < first && last < done,
                    "tile {tile}: warp {warp} computes from {first} to {last}, the next scores are in flight from {issued} to {done}"
                );
            }
        }
        const { assert!(SCORES[1] < COLUMNS) };
        1
    });
}
