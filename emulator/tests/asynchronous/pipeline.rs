//! A step of attention on tensor memory: boxes are copied, scores and outputs are products, and the warps in between
//! turn scores into weights.

use super::support::Kernel;
use half::bf16;
use splitkv_emulator::{FaultKind, Swizzle, TensorMap};

const ROWS: usize = 128;
const KEYS: usize = 64;
const DIM: usize = 64;

/// Where Q, K and V lie in shared memory, and their barriers: full, scores, weights, outputs.
const Q: usize = 1024;
const K: usize = Q + ROWS * DIM * 2;
const V: usize = K + KEYS * DIM * 2;
const FULL: usize = 0;
const SCORES: usize = 8;
const WEIGHTS: usize = 16;
const OUTPUTS: usize = 24;

/// Columns of scores, of weights (two a column), and of outputs.
const P: usize = 64;
const O: usize = 128;

fn wait(barrier: usize) -> String {
    format!(
        "{{ .reg .pred p; $W{barrier}: mbarrier.try_wait.parity.shared::cta.b64 p, [%r3+{barrier}], 0; @!p bra $W{barrier}; }}"
    )
}

/// A descriptor of a matrix at `offset` with 128-byte rows and the swizzle of that span, in `register`.
fn descriptor(register: &str, offset: usize) -> String {
    let fields = (1024u64 >> 4 << 32) | 1 << 46 | 2 << 61;
    format!(
        "add.u32 %r9, %r3, {offset}; shr.u32 %r9, %r9, 4; cvt.u64.u32 {register}, %r9; or.b64 {register}, {register}, {fields:#x};"
    )
}

/// An instruction's descriptor: bf16, f32 sums, M 128, N 64; V is MN-major.
fn instruction(transposed: bool) -> u32 {
    1 << 4 | 1 << 7 | 1 << 10 | u32::from(transposed) << 16 | (64 >> 3) << 17 | (128 >> 4) << 24
}

/// The product of all of Q and K, or of the weights and V, 16 deep each.
fn products(values: bool) -> String {
    let (d, a) = if values { ("%r11", "[%r12]") } else { ("%r4", "%d4") };
    let mut text = format!("mov.u32 %r6, {:#x};", instruction(values));
    for step in 0..4 {
        let accumulate = if step == 0 { "%p5" } else { "%p6" };
        text += &format!("tcgen05.mma.cta_group::1.kind::f16 [{d}], {a}, %d5, %r6, {accumulate};\n");
        // 16 elements are 32 bytes along a row, and 16 rows are 2048 bytes.
        text += match values {
            true => "add.u32 %r12, %r12, 8; add.u64 %d5, %d5, 128;",
            false => "add.u64 %d4, %d4, 2; add.u64 %d5, %d5, 2;",
        };
    }
    text
}

fn commit(barrier: usize) -> String {
    format!(
        "add.u32 %r13, %r3, {barrier}; tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r13];"
    )
}

/// Thread 0 of warp 4 copies and multiplies; warps 0 to 3 do the rest, a row a thread. `arrive` tells that the weights
/// are there, `between` comes before it.
fn kernel(between: &str, waited: &str) -> String {
    let copy = |to: usize, map: usize| {
        format!(
            "add.u32 %r14, %r3, {to}; add.u64 %d6, %d3, {}; cp.async.bulk.tensor.2d.shared::cluster.global.tile\
             .mbarrier::complete_tx::bytes [%r14], [%d6, {{0, 0}}], [%r3];\n",
            128 * map
        )
    };
    let inits: String = [(FULL, 1), (SCORES, 1), (WEIGHTS, 128), (OUTPUTS, 1)]
        .map(|(at, count)| format!("@%p1 mbarrier.init.shared::cta.b64 [%r3+{at}], {count};"))
        .concat();
    let list =
        |first: usize, count: usize| (first..first + count).map(|i| format!("%r{i}")).collect::<Vec<_>>().join(", ");
    let mut weights = String::new();
    for i in 0..KEYS / 2 {
        let [low, high] = [100 + 2 * i, 101 + 2 * i];
        weights += &format!(
            "mul.f32 %f1, %r{low}, 0f3e000000; ex2.approx.ftz.f32 %f1, %f1; mul.f32 %f2, %r{high}, 0f3e000000;
             ex2.approx.ftz.f32 %f2, %f2; add.f32 %f3, %f3, %f1; add.f32 %f3, %f3, %f2;
             cvt.rn.bf16x2.f32 %r{}, %f2, %f1;\n",
            200 + i
        );
    }
    let stores: String = (0..DIM)
        .map(|i| format!("div.rn.f32 %f1, %r{}, %f3; st.global.f32 [%d20+{}], %f1;\n", 100 + i, 4 * i))
        .collect();
    format!(
        "{inits} fence.mbarrier_init.release.cluster; setp.eq.u32 %p2, %r2, 4; @!%p2 bra $B;
         tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+64], 256;
         $B: bar.sync 0; ld.shared.u32 %r4, [%r3+64]; add.u32 %r11, %r4, {O}; add.u32 %r12, %r4, {P};
         setp.ne.u32 %p5, 0, 0; setp.eq.u32 %p6, 0, 0; @!%p2 bra $S;
         elect.sync _|%p3, 0xffffffff; @!%p3 bra $E;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {};
         {} {} {}
         {} {} {} {} {}
         {} tcgen05.fence::after_thread_sync;
         {} {} {}
         bra $E;
         $S: shl.b32 %r5, %r2, 21; add.u32 %r5, %r5, %r4; {} {waited} mov.f32 %f3, 0f00000000;
         tcgen05.ld.sync.aligned.32x32b.x64.b32 {{{}}}, [%r5]; tcgen05.wait::ld.sync.aligned;
         {weights}
         add.u32 %r15, %r5, {P}; tcgen05.st.sync.aligned.32x32b.x32.b32 [%r15], {{{}}};
         {between} mbarrier.arrive.shared::cta.b64 _, [%r3+{WEIGHTS}];
         {} tcgen05.fence::after_thread_sync; add.u32 %r15, %r5, {O};
         tcgen05.ld.sync.aligned.32x32b.x64.b32 {{{}}}, [%r15]; tcgen05.wait::ld.sync.aligned;
         mul.lo.u32 %r16, %r1, {}; cvt.u64.u32 %d20, %r16; add.u64 %d20, %d20, %d1; {stores}
         tcgen05.fence::before_thread_sync;
         $E: bar.sync 0; @!%p2 ret; tcgen05.fence::after_thread_sync;
         tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 256;",
        (ROWS + 2 * KEYS) * DIM * 2,
        copy(Q, 0),
        copy(K, 1),
        copy(V, 2),
        wait(FULL),
        descriptor("%d4", Q),
        descriptor("%d5", K),
        products(false),
        commit(SCORES),
        wait(WEIGHTS),
        descriptor("%d5", V),
        products(true),
        commit(OUTPUTS),
        wait(SCORES),
        list(100, 64),
        list(200, 32),
        wait(OUTPUTS),
        list(100, 64),
        4 * DIM,
    )
}

fn element(tensor: usize, row: usize, column: usize) -> bf16 {
    bf16::from_f32((((tensor * 31 + row * 7 + column * 13 + row * column) % 17) as f32 - 8.0) / 8.0)
}

fn run(between: &str, waited: &str) -> Kernel {
    let sizes = [ROWS, KEYS, KEYS];
    let bytes: Vec<u8> = (0..3)
        .flat_map(|t| (0..sizes[t] * DIM).flat_map(move |i| element(t, i / DIM, i % DIM).to_le_bytes()))
        .collect();
    let maps = |base: u64| {
        let map = |t: usize| TensorMap {
            address: base + (sizes[..t].iter().sum::<usize>() * DIM * 2) as u64,
            element_bytes: 2,
            dims: vec![DIM as u64, sizes[t] as u64],
            strides: vec![2 * DIM as u64],
            box_dims: vec![DIM as u32, sizes[t] as u32],
            swizzle: Swizzle::Span128,
        };
        (0..3).flat_map(|t| map(t).encode().unwrap()).collect()
    };
    Kernel::new("sm_100a", 160, &kernel(between, waited)).input(&bytes).more(maps)
}

const STORED: &str = "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;";
const AFTER: &str = "tcgen05.fence::after_thread_sync;";

#[test]
fn a_step_of_attention() {
    let kernel = run(STORED, AFTER);
    let floats = kernel.floats(ROWS * DIM);
    let of = |tensor, row, column| f64::from(element(tensor, row, column).to_f32());
    for row in 0..ROWS {
        let score = |key: usize| (0..DIM).map(|d| of(0, row, d) * of(1, key, d)).sum::<f64>() / 8.0;
        let weights: Vec<f64> = (0..KEYS).map(|key| score(key).exp2()).collect();
        let total: f64 = weights.iter().sum();
        for column in 0..DIM {
            let expected = (0..KEYS).map(|key| weights[key] * of(2, key, column)).sum::<f64>() / total;
            let found = f64::from(floats[row * DIM + column]);
            assert!((found - expected).abs() < 4e-3, "{row} {column}: {found} in place of {expected}");
        }
    }
    let counters = kernel.sound();
    assert_eq!(counters.matrix_macs as usize, 2 * ROWS * KEYS * DIM);
    assert_eq!(counters.global_load_bytes as usize, (ROWS + 2 * KEYS) * DIM * 2);
}

#[test]
fn each_wait_and_fence_of_the_step_is_needed() {
    let fault = run("tcgen05.fence::before_thread_sync;", AFTER).fault("tcgen05.mma");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { what } if what.contains("tcgen05.st")), "{fault}");
    let fault = run("tcgen05.wait::st.sync.aligned;", AFTER).fault("tcgen05.mma");
    assert!(matches!(fault.kind, FaultKind::MissingFence { .. }), "{fault}");
    let fault = run(STORED, "").fault("tcgen05.ld");
    assert!(matches!(fault.kind, FaultKind::MissingFence { .. }), "{fault}");
}
