//! Tensor memory and its products.

use super::layout::{Element, Image, Layout, fill, image, value};
use super::support::Kernel;
use splitkv_emulator::{Fault, FaultKind, TraceKind};

/// Where matrices lie in shared memory: behind the barrier and the place of the allocation's address.
const A: usize = 1024;
const B: usize = A + 40 * 1024;

const BEFORE: &str = "tcgen05.fence::before_thread_sync;";
const AFTER: &str = "tcgen05.fence::after_thread_sync;";
const COMMIT: &str = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];";
const WAIT_LD: &str = "tcgen05.wait::ld.sync.aligned;";
const WAIT_ST: &str = "tcgen05.wait::st.sync.aligned;";

fn wait(parity: u32) -> String {
    format!(
        "{{ .reg .pred p; $W{parity}: mbarrier.try_wait.parity.shared::cta.b64 p, [%r3], {parity}; @!p bra $W{parity}; }}"
    )
}

/// Allocates columns, whose address goes to `%r4`, with the warp's own lanes to `%r5`, and makes a barrier.
fn begin(columns: u32) -> String {
    format!(
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1; setp.eq.u32 %p2, %r2, 0; @!%p2 bra $B;
         tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+16], {columns};
         $B: bar.sync 0; ld.shared.u32 %r4, [%r3+16]; shl.b32 %r5, %r2, 21; add.u32 %r5, %r5, %r4;
         setp.ne.u32 %p5, 0, 0; setp.eq.u32 %p6, 0, 0;"
    )
}

/// Frees them when all warps are done.
fn end(columns: u32) -> String {
    format!(
        "{BEFORE} bar.sync 0; {AFTER} @!%p2 bra $X; tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
         tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, {columns}; $X: ret;"
    )
}

/// Loads `count` columns of the accumulator into `%r100` and on, and stores them to the buffer, row by row.
fn store(columns: usize) -> String {
    let count = columns.min(32);
    let registers: Vec<String> = (0..count).map(|i| format!("%r{}", 100 + i)).collect();
    let mut text = format!("mul.lo.u32 %r20, %r1, {}; cvt.u64.u32 %d20, %r20; add.u64 %d20, %d20, %d1;", 4 * columns);
    for first in (0..columns).step_by(count) {
        text += &format!(
            "add.u32 %r21, %r5, {first}; tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{}}}, [%r21]; {WAIT_LD}\n",
            registers.join(", ")
        );
        for (i, register) in registers.iter().enumerate() {
            text += &format!("st.global.u32 [%d20+{}], {register};\n", 4 * (first + i));
        }
    }
    text
}

fn descriptor(register: &str, offset: usize, image: &Image, span: usize) -> String {
    let mode = match span {
        128 => 2u64,
        64 => 4,
        32 => 6,
        _ => 0,
    };
    let fields = (image.leading as u64 >> 4 << 16) | (image.stride as u64 >> 4 << 32) | 1 << 46 | mode << 61;
    format!(
        "add.u32 %r9, %r3, {offset}; shr.u32 %r9, %r9, 4; cvt.u64.u32 {register}, %r9; or.b64 {register}, {register}, {fields:#x};"
    )
}

struct Case {
    element: Element,
    m: usize,
    n: usize,
    a: Layout,
    b: Layout,
}

impl Case {
    fn images(&self) -> [Image; 2] {
        let of = |layout, count, seed| image(self.element, layout, count, self.element.k(), |mn, k| value(seed, mn, k));
        [of(self.a, self.m, 0), of(self.b, self.n, 3)]
    }

    fn input(&self) -> Vec<u8> {
        let [a, b] = self.images();
        let mut input = a.bytes;
        assert!(input.len() <= B - A);
        input.resize(B - A, 0);
        [input, b.bytes].concat()
    }

    fn instruction(&self) -> u32 {
        let ty = if self.element == Element::Bf16 { 1 } else { 0 };
        let major = |layout: Layout| u32::from(!layout.k_major);
        1 << 4
            | ty << 7
            | ty << 10
            | major(self.a) << 15
            | major(self.b) << 16
            | (self.n as u32 >> 3) << 17
            | (self.m as u32 >> 4) << 24
    }

    fn kind(&self) -> &'static str {
        if self.element == Element::E4m3 { "f8f6f4" } else { "f16" }
    }

    /// The product, issued by thread 0.
    fn mma(&self, accumulate: &str) -> String {
        format!("@%p1 tcgen05.mma.cta_group::1.kind::{} [%r4], %d4, %d5, %r6, {accumulate};", self.kind())
    }

    /// Everything up to the product.
    fn before(&self) -> String {
        let [a, b] = self.images();
        let (a, b) = (descriptor("%d4", A, &a, self.a.span), descriptor("%d5", B, &b, self.b.span));
        format!("{} {} {a} {b} mov.u32 %r6, {:#x};", fill(A, self.input().len()), begin(256), self.instruction())
    }

    fn kernel(&self, body: &str) -> Kernel {
        Kernel::new("sm_100a", 128, &format!("{} {body}", self.before())).input(&self.input())
    }

    fn expected(&self, times: f32) -> Vec<f32> {
        let k = self.element.k();
        let sum = |m: usize, n: usize| (0..k).map(|k| value(0, m, k) * value(3, n, k)).sum::<i32>() as f32;
        (0..self.m * self.n).map(|i| times * sum(i / self.n, i % self.n)).collect()
    }

    /// The result, when a product is begun by `issue`, which signals the barrier.
    fn result(&self, issue: &str) -> Kernel {
        self.kernel(&format!("{issue} {} {AFTER} {} {}", wait(0), store(self.n), end(256)))
    }
}

const K128: Layout = Layout { k_major: true, span: 128 };
const SIMPLE: Case = Case { element: Element::Bf16, m: 128, n: 32, a: K128, b: K128 };

fn commit() -> String {
    format!("@%p1 {COMMIT}")
}

#[test]
fn all_layouts_and_types() {
    let spans = [0, 32, 64, 128];
    for element in [Element::Bf16, Element::F16, Element::E4m3] {
        for (a_span, b_span) in spans.into_iter().flat_map(|a| spans.map(|b| (a, b))) {
            for (a_major, b_major) in [(true, true), (true, false), (false, true), (false, false)] {
                let a = Layout { k_major: a_major, span: a_span };
                let b = Layout { k_major: b_major, span: b_span };
                for n in if a_span == b_span { vec![16, 128, 256] } else { vec![64] } {
                    let case = Case { element, m: 128, n, a, b };
                    let floats = case.result(&format!("{} {}", case.mma("%p5"), commit())).floats(128 * n);
                    assert_eq!(floats, case.expected(1.0), "{element:?} {n} {a:?} {b:?}");
                }
            }
        }
    }
}

#[test]
fn products_add_up_in_order() {
    let (first, more) = (SIMPLE.mma("%p5"), SIMPLE.mma("%p6"));
    let kernel = SIMPLE.result(&format!("{more} {first} {more} {more} {}", commit()));
    assert_eq!(kernel.floats(128 * 32), SIMPLE.expected(3.0));
    let counters = kernel.sound();
    assert_eq!(counters.matrix_macs, 4 * 128 * 32 * 16);
    // Adding to what nobody has written is undefined.
    let fault = SIMPLE.result(&format!("{more} {}", commit())).fault("st.global");
    assert!(matches!(fault.kind, FaultKind::Undefined { .. }), "{fault}");
    // Rows of a product of 64.
    let small = Case { m: 64, ..SIMPLE };
    let body = format!(
        "{} {} {} {AFTER} and.b32 %r30, %r1, 31; tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r31}}, [%r5]; {WAIT_LD}
         setp.lt.u32 %p7, %r30, 16; mad.lo.u32 %r32, %r2, 16, %r30; mul.wide.u32 %d20, %r32, 4; add.u64 %d20, %d20, %d1;
         @%p7 st.global.u32 [%d20], %r31; {}",
        small.mma("%p5"),
        commit(),
        wait(0),
        end(256)
    );
    let column: Vec<f32> = small.expected(1.0).into_iter().step_by(32).collect();
    assert_eq!(small.kernel(&body).floats(64), column);
}

/// A product, and a second one that is issued before or after the warps compute with the first one's result.
#[test]
fn a_trace_shows_what_is_in_flight_while_warps_compute() {
    let second = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r7], %d4, %d5, %r6, %p5;";
    let compute = "ex2.approx.ftz.f32 %f1, 0f3f800000; ex2.approx.ftz.f32 %f2, 0f3f800000;";
    let load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r31}, [%r5];";
    let store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {%r31};";
    let body = |early: &str, late: &str| {
        format!(
            "add.u32 %r7, %r4, 128; {} {} {early} {} {AFTER} {load} {WAIT_LD} {compute} {store} {WAIT_ST} {late} {} {}",
            SIMPLE.mma("%p5"),
            commit(),
            wait(0),
            wait(1),
            end(256)
        )
    };
    let issue = format!("{second} {}", commit());
    let of = |early: &str, late: &str| {
        let events = SIMPLE.kernel(&body(early, late)).trace();
        let place = |kind: TraceKind, warp: u32| {
            events.iter().position(|event| (event.kind, event.warp) == (kind, warp)).unwrap()
        };
        let computed: Vec<usize> = (0..4).map(|warp| place(TraceKind::Computed { special: 2 }, warp)).collect();
        let loaded: Vec<usize> = (0..4).map(|warp| place(TraceKind::Loaded { column: 0, columns: 1 }, warp)).collect();
        assert!(computed.iter().zip(&loaded).all(|(computed, loaded)| computed > loaded));
        let stored = place(TraceKind::Stored { column: 0, columns: 1 }, 3);
        assert_eq!(computed[3] + 1, stored);
        let done = |product| place(TraceKind::Done { product }, 0);
        assert!(done(0) < loaded[0] && done(0) < done(1));
        assert_eq!(place(TraceKind::Waited { barrier: 0, phases: 1 }, 3), loaded[3] - 1);
        let issued = place(TraceKind::Issued { product: 1, accumulator: 128 }, 0);
        assert_eq!(place(TraceKind::Committed { barrier: 0, last: 1 }, 0), issued + 1);
        assert!(done(1) > computed[0]);
        (0..4).filter(|&warp| issued < computed[warp] && computed[warp] < done(1)).count()
    };
    assert_eq!(of(&issue, ""), 4, "the second product is in flight while all warps compute");
    assert_eq!(of("", &issue), 3, "thread 0's warp has computed before it issues");
    assert_eq!(of("", &format!("bar.sync 0; {issue}")), 0);
}

/// Stores A to tensor memory from registers, behind the accumulator, as its operand.
#[test]
fn a_from_tensor_memory() {
    for element in [Element::Bf16, Element::E4m3] {
        let case = Case { element, ..SIMPLE };
        let (k, per) = (element.k(), 4 / element.bytes());
        let word = |row: usize, column: usize| {
            (0..per).fold(0, |word, e| word | element.bits(value(0, row, column * per + e)) << (32 / per * e))
        };
        assert_eq!(k / per, 8);
        let words: Vec<u8> = (0..128 * 8).flat_map(|i| word(i / 8, i % 8).to_le_bytes()).collect();
        let issue = |stored: &str, fences: [&str; 2]| {
            let mma = case.mma("%p5").replace("%d4", "[%r7]");
            format!(
                "add.u32 %r7, %r4, 32; add.u32 %r8, %r5, 32; mul.lo.u32 %r10, %r1, 32; cvt.u64.u32 %d10, %r10;
                 add.u64 %d10, %d10, %d3; ld.global.v4.u32 {{%r40, %r41, %r42, %r43}}, [%d10];
                 ld.global.v4.u32 {{%r44, %r45, %r46, %r47}}, [%d10+16];
                 tcgen05.st.sync.aligned.32x32b.x8.b32 [%r8], {{%r40, %r41, %r42, %r43, %r44, %r45, %r46, %r47}};
                 {stored} {} bar.sync 0; {} {mma} {}",
                fences[0],
                fences[1],
                commit()
            )
        };
        let run = |stored, fences| case.result(&issue(stored, fences)).more(|_| words.clone());
        assert_eq!(run(WAIT_ST, [BEFORE, AFTER]).floats(128 * 32), case.expected(1.0), "{element:?}");
        let fault = run("", [BEFORE, AFTER]).fault("tcgen05.mma");
        assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { what } if what.contains("tcgen05.st")), "{fault}");
        for fences in [["", AFTER], [BEFORE, ""]] {
            let fault = run(WAIT_ST, fences).fault("tcgen05.mma");
            assert!(matches!(fault.kind, FaultKind::MissingFence { .. }), "{fault}");
        }
    }
}

fn used_too_early(fault: &Fault) -> &'static str {
    match fault.kind {
        FaultKind::UsedBeforeWait { what } => what,
        _ => panic!("{fault}"),
    }
}

#[test]
fn an_accumulator_is_read_after_wait_and_fence() {
    let mma = SIMPLE.mma("%p5");
    let run = |issue: &str, waited: &str| SIMPLE.kernel(&format!("{issue} {waited} {} {}", store(32), end(256)));
    let issue = format!("{mma} {}", commit());
    run(&issue, &format!("{} {AFTER}", wait(0))).sound();
    // Nobody waits; or for the phase before.
    assert!(used_too_early(&run(&issue, AFTER).fault("tcgen05.ld")).contains("accumulator"));
    assert!(used_too_early(&run(&issue, &format!("{} {AFTER}", wait(1))).fault("tcgen05.ld")).contains("accumulator"));
    // A commit before the product, or by another thread, has nothing to do with it.
    for early in [format!("{} {mma}", commit()), format!("{mma} setp.eq.u32 %p8, %r1, 32; @%p8 {COMMIT}")] {
        assert!(
            used_too_early(&run(&early, &format!("{} {AFTER}", wait(0))).fault("tcgen05.ld")).contains("accumulator")
        );
    }
    // One warp waits, the others do not.
    let one = format!("setp.ne.u32 %p8, %r2, 1; @%p8 bra $S; {} $S: {AFTER}", wait(0));
    used_too_early(&run(&issue, &one).fault("tcgen05.ld"));
    // The fence behind the wait is missing.
    let fault = run(&issue, &wait(0)).fault("tcgen05.ld");
    assert!(
        matches!(&fault.kind, FaultKind::MissingFence { fence, .. } if fence.contains("after_thread_sync")),
        "{fault}"
    );
    // What is loaded is used before it has come.
    let body = store(32).replace(WAIT_LD, "");
    let fault = SIMPLE.kernel(&format!("{issue} {} {AFTER} {body} {}", wait(0), end(256))).fault("st.global");
    assert!(used_too_early(&fault).contains("registers of tcgen05.ld"));
}

#[test]
fn an_accumulator_is_overwritten_after_its_readers_have_said_so() {
    let issue = format!("{} {}", SIMPLE.mma("%p5"), commit());
    let again = |loaded: &str, sync: &str| {
        let load = store(32).replace(WAIT_LD, loaded);
        format!("{issue} {} {AFTER} {load} {sync} {issue} {} {}", wait(0), wait(1), end(256))
    };
    SIMPLE.kernel(&again(WAIT_LD, &format!("{BEFORE} bar.sync 0; {AFTER}"))).sound();
    for sync in ["bar.sync 0;".to_owned(), format!("{BEFORE} bar.sync 0;"), format!("bar.sync 0; {AFTER}")] {
        let fault = SIMPLE.kernel(&again(WAIT_LD, &sync)).fault("tcgen05.mma");
        assert!(matches!(fault.kind, FaultKind::MissingFence { .. }), "{sync} {fault}");
    }
    // The issuing warp does not wait for the others.
    let fault = SIMPLE.kernel(&again(WAIT_LD, &format!("{BEFORE} {AFTER}"))).fault("tcgen05.ld");
    assert!(used_too_early(&fault).contains("accumulator"));
    // The load has not come when the next product begins.
    let load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r31}, [%r5];";
    let body = format!("{issue} {} {AFTER} {load} {BEFORE} bar.sync 0; {AFTER} {issue} {}", wait(0), end(256));
    assert!(used_too_early(&SIMPLE.kernel(&body).fault("tcgen05.mma")).contains("tcgen05.ld reads overwritten"));
    // A store into an accumulator in flight.
    let body =
        format!("{issue} bar.sync 0; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5], {{%r1}}; {WAIT_ST} {}", end(256));
    assert!(used_too_early(&SIMPLE.kernel(&body).fault("tcgen05.st")).contains("accumulator"));
}

#[test]
fn operands_in_shared_memory() {
    let issue = format!("{} {}", SIMPLE.mma("%p5"), commit());
    let write = format!("bar.sync 0; @%p1 st.shared.u32 [%r3+{B}], 0;");
    SIMPLE.kernel(&format!("{issue} {} {write} {}", wait(0), end(256))).sound();
    let fault = SIMPLE.kernel(&format!("{issue} {write} {}", end(256))).fault("st.shared");
    assert!(used_too_early(&fault).contains("overwritten while"));
    // Another warp has waited, and the one that writes has not been told.
    let other = format!(
        "{issue} setp.eq.u32 %p8, %r2, 1; @%p8 bra $V; bar.sync 1, 96; setp.eq.u32 %p9, %r1, 64;
         @%p9 st.shared.u32 [%r3+{B}], 0; bra $U; $V: {} $U: {}",
        wait(0),
        end(256)
    );
    let fault = SIMPLE.kernel(&other).fault("st.shared");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. } | FaultKind::SharedRace { .. }), "{fault}");
    let missing = SIMPLE.before().replace("fence.proxy.async.shared::cta;", "");
    let kernel =
        Kernel::new("sm_100a", 128, &format!("{missing} {issue} {} {}", wait(0), end(256))).input(&SIMPLE.input());
    let fault = kernel.fault("tcgen05.mma");
    assert!(matches!(fault.kind, FaultKind::MissingFence { fence: "fence.proxy.async", .. }), "{fault}");
}

#[test]
fn allocation_and_lanes() {
    let rule = |body: &str, at: &str, part: &str| {
        let fault = Kernel::new("sm_100a", 128, body).fault(at);
        assert!(matches!(&fault.kind, FaultKind::TensorMemory { what } if what.contains(part)), "{fault}");
    };
    let stored = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r5], {%r1, %r2};";
    let sound = format!("{} {stored} {WAIT_ST} {}", begin(32), end(32));
    Kernel::new("sm_100a", 128, &sound).sound();
    rule(&format!("{} {stored} {WAIT_ST}", begin(32)), "tcgen05.alloc", "32 columns of tensor memory were not freed");
    rule(&sound.replace("b32 %r4, 32", "b32 %r4, 64"), "dealloc", "64 columns from 0 on are freed");
    rule(&begin(48), "tcgen05.alloc", "an allocation of 48 columns");
    rule(
        &sound.replace("[%r5]", "[%r4]"),
        "tcgen05.st",
        "warp 1 reaches lanes 32 to 63 of tensor memory, and the address has lane 0",
    );
    rule(&sound.replace("[%r5]", "[%r5+31]"), "tcgen05.st", "column 32 of tensor memory is not allocated");
    let late = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;";
    let body = begin(32).replace("tcgen05.alloc", &format!("{late} tcgen05.alloc"));
    rule(&format!("{body} {}", end(32)), "tcgen05.alloc", "given up its right");
    // More than there is.
    let alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3+16], 512;";
    let fault = Kernel::new("sm_100a", 32, &format!("{alloc} {alloc}")).fault("tcgen05.alloc");
    assert!(matches!(&fault.kind, FaultKind::Deadlock { waits } if waits.contains("free columns")), "{fault}");
    // Two warps of the same quadrant.
    let body = format!("{} {stored} {WAIT_ST} {}", begin(32), end(32));
    let fault =
        Kernel::new("sm_100a", 256, &body.replace("shl.b32 %r5, %r2, 21", "and.b32 %r5, %r2, 3; shl.b32 %r5, %r5, 21"));
    assert!(matches!(fault.fault("tcgen05.st").kind, FaultKind::TensorRace { other: 0, .. }));
}

#[test]
fn products_that_are_not_allowed() {
    let rule = |change: &str, part: &str| {
        let body = format!("{change} {} {} {} {}", SIMPLE.mma("%p5"), commit(), wait(0), end(256));
        let fault = SIMPLE.kernel(&body).fault("tcgen05.mma");
        let (FaultKind::Illegal { what } | FaultKind::TensorMemory { what }) = &fault.kind else { panic!("{fault}") };
        assert!(what.contains(part), "{fault}");
    };
    rule("or.b32 %r6, %r6, 0x40;", "bits 6 to 6 of instruction descriptor");
    rule("xor.b32 %r6, %r6, 0x30;", "accumulator's type");
    rule("or.b64 %d4, %d4, 0x4000;", "bits 14 to 15 of descriptor");
    rule("xor.b64 %d5, %d5, 0x400000000000;", "bits 46 to 48 of descriptor");
    rule("add.u32 %r4, %r4, 240;", "column 256 of tensor memory is not allocated");
    rule("mov.u32 %r4, 0x200000;", "has lane 32, and must have 0");
    rule("setp.lt.u32 %p1, %r1, 2;", "2 threads issue it");
    let mma = SIMPLE.mma("%p5");
    assert!(Kernel::new("sm_100", 128, &mma).refusal().contains("needs .target sm_100a or sm_100f"));
    assert!(Kernel::new("sm_100a", 128, &mma.replace("kind::f16", "kind::i8")).refusal().contains("kind::f16"));
    assert!(Kernel::new("sm_100a", 128, &mma.replace("group::1", "group::2")).refusal().contains("cta_group::1 only"));
    assert!(Kernel::new("sm_100f", 128, &format!("{} {}", begin(32), end(32))).sound().blocks == 1);
    // Nobody waits for a product before the end.
    let body = format!("{} {mma} @!%p2 bra $X; ret; $X: ret;", begin(256));
    let kernel = format!("{} {body}", SIMPLE.before().replace(&begin(256), ""));
    let fault = Kernel::new("sm_100a", 128, &kernel).input(&SIMPLE.input()).fault("tcgen05.mma");
    assert!(used_too_early(&fault).contains("the block ends"));
}
