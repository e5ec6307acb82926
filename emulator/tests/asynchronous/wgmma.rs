//! Products of a warpgroup.

use super::layout::{Element, Image, Layout, fill, image, value};
use super::support::Kernel;
use splitkv_emulator::FaultKind;

/// Where B lies behind A in shared memory.
const B: usize = 32 * 1024;

/// Registers of the accumulator, as a list.
fn list(first: usize, count: usize) -> String {
    let names: Vec<String> = (first..first + count).map(|i| format!("%f{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

fn descriptor(register: &str, offset: usize, image: &Image, span: usize) -> String {
    let mode = [0usize, 32, 64, 128].iter().position(|&s| s == span).map_or(0, |i| [0u64, 3, 2, 1][i]);
    let high = (image.leading as u64 >> 4 << 16) | (image.stride as u64 >> 4 << 32) | mode << 62;
    format!(
        "add.u32 %r9, %r3, {offset}; shr.u32 %r9, %r9, 4; cvt.u64.u32 {register}, %r9; or.b64 {register}, {register}, {high:#x};"
    )
}

/// Stores the accumulator of `n` columns to the buffer, row by row.
fn store(n: usize) -> String {
    let mut text = format!(
        "and.b32 %r10, %r1, 31; and.b32 %r12, %r10, 3; shr.u32 %r11, %r10, 2; mad.lo.u32 %r11, %r2, 16, %r11;
         mul.lo.u32 %r11, %r11, {n}; mad.lo.u32 %r11, %r12, 2, %r11; mul.wide.u32 %d10, %r11, 4; add.u64 %d10, %d10, %d1;"
    );
    for i in 0..n / 2 {
        let at = 4 * (i / 4 * 8 + i % 2 + i / 2 % 2 * 8 * n);
        text += &format!("st.global.f32 [%d10+{at}], %f{i};\n");
    }
    text
}

struct Case {
    element: Element,
    n: usize,
    a: Layout,
    b: Layout,
}

impl Case {
    fn images(&self) -> [Image; 2] {
        let k = self.element.k();
        let of = |layout, count, seed| image(self.element, layout, count, k, |mn, k| value(seed, mn, k));
        [of(self.a, 64, 0), of(self.b, self.n, 3)]
    }

    fn input(&self) -> Vec<u8> {
        let [a, b] = self.images();
        let mut input = a.bytes;
        assert!(input.len() <= B);
        input.resize(B, 0);
        [input, b.bytes].concat()
    }

    /// The product with its descriptors; `rest` are its operands behind them.
    fn mma(&self, accumulate: &str, signs: &str) -> String {
        let (n, k, name) = (self.n, self.element.k(), self.element.name());
        let transposed = |layout: Layout| if layout.k_major { 0 } else { 1 };
        let transposed = match self.element {
            Element::E4m3 => String::new(),
            _ => format!(", {}, {}", transposed(self.a), transposed(self.b)),
        };
        format!(
            "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{name}.{name} {}, %d4, %d5, {accumulate}, {signs}{transposed};",
            list(0, n / 2)
        )
    }

    /// Everything up to the product.
    fn before(&self) -> String {
        let [a, b] = self.images();
        let (a, b) = (descriptor("%d4", 0, &a, self.a.span), descriptor("%d5", B, &b, self.b.span));
        format!("{} {a} {b} setp.ne.u32 %p5, 0, 0; setp.eq.u32 %p6, 0, 0;", fill(0, self.input().len()))
    }

    fn kernel(&self, body: &str) -> Kernel {
        Kernel::new("sm_90a", 128, &format!("{} {body}", self.before())).input(&self.input())
    }

    fn expected(&self, times: f32) -> Vec<f32> {
        let k = self.element.k();
        let sum = |m: usize, n: usize| (0..k).map(|k| value(0, m, k) * value(3, n, k)).sum::<i32>() as f32;
        (0..64 * self.n).map(|i| times * sum(i / self.n, i % self.n)).collect()
    }
}

const K128: Layout = Layout { k_major: true, span: 128 };
const SIMPLE: Case = Case { element: Element::Bf16, n: 16, a: K128, b: K128 };
const END: &str = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";
const FENCE: &str = "wgmma.fence.sync.aligned;";

#[test]
fn all_layouts_and_types() {
    let spans = [0, 32, 64, 128];
    for element in [Element::Bf16, Element::F16, Element::E4m3] {
        for (a_span, b_span) in spans.into_iter().flat_map(|a| spans.map(|b| (a, b))) {
            for (a_major, b_major) in [(true, true), (true, false), (false, true), (false, false)] {
                if element == Element::E4m3 && !(a_major && b_major) {
                    continue;
                }
                let a = Layout { k_major: a_major, span: a_span };
                let b = Layout { k_major: b_major, span: b_span };
                for n in if a_span == b_span { vec![8, 72, 256] } else { vec![24] } {
                    let case = Case { element, n, a, b };
                    let body = format!("{FENCE} {} {END} {}", case.mma("%p5", "1, 1"), store(n));
                    let floats = case.kernel(&body).floats(64 * n);
                    assert_eq!(floats, case.expected(1.0), "{element:?} {n} {a:?} {b:?}");
                }
            }
        }
    }
}

#[test]
fn products_add_up() {
    let mma = |accumulate, signs| SIMPLE.mma(accumulate, signs);
    let body = format!(
        "{FENCE} {} {} {} {} {END} {}",
        mma("%p5", "-1, 1"),
        mma("%p6", "1, 1"),
        mma("%p6", "-1, -1"),
        mma("%p6", "1, 1"),
        store(16)
    );
    let kernel = SIMPLE.kernel(&body);
    assert_eq!(kernel.floats(64 * 16), SIMPLE.expected(2.0));
    let counters = kernel.sound();
    assert_eq!((counters.matrix_instructions, counters.matrix_macs), (16, 4 * 64 * 16 * 16));
}

#[test]
fn a_from_registers() {
    for element in [Element::Bf16, Element::E4m3] {
        let case = Case { element, ..SIMPLE };
        let (k, per) = (element.k(), 4 / element.bytes());
        // A as words in lane order: register, then lane, for each warp.
        let word = |warp: usize, register: usize, lane: usize| {
            let (row, first) = (16 * warp + lane / 4 + register % 2 * 8, register / 2 * k / 2 + lane % 4 * per);
            (0..per).fold(0, |word, e| word | element.bits(value(0, row, first + e)) << (32 / per * e))
        };
        let words: Vec<u32> = (0..512).map(|i| word(i / 128, i / 32 % 4, i % 32)).collect();
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let load: String = (0..4).map(|i| format!("ld.global.u32 %r{}, [%d11+{}];", 30 + i, 128 * i)).collect();
        let mma = case.mma("%p5", "1, 1").replace("%d4", "{%r30, %r31, %r32, %r33}");
        let mma = if element == Element::Bf16 { mma.replace(", 0, 0;", ", 0;") } else { mma };
        let body = |after: &str, fence: &str| {
            format!(
                "and.b32 %r10, %r1, 31; mad.lo.u32 %r10, %r2, 128, %r10; mul.wide.u32 %d11, %r10, 4; add.u64 %d11, %d11, %d3;
                 {load} {fence} {mma} {after} {END} {}",
                store(16)
            )
        };
        let run = |after: &str, fence| case.kernel(&body(after, fence)).more(|_| words.clone());
        assert_eq!(run("", FENCE).floats(64 * 16), case.expected(1.0), "{element:?}");
        let fault = run("mov.u32 %r31, 0;", FENCE).fault("mov.u32 %r31");
        assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
        let fault = run("", "").fault("wgmma.mma_async");
        assert!(matches!(fault.kind, FaultKind::MissingFence { fence: "wgmma.fence", .. }), "{fault}");
    }
}

#[test]
fn what_is_in_flight_must_not_be_touched() {
    let mma = SIMPLE.mma("%p5", "1, 1");
    let fault = |body: &str, at: &str| match SIMPLE.kernel(body).fault(at).kind {
        FaultKind::UsedBeforeWait { what } => what,
        kind => panic!("{kind}"),
    };
    let commit = "wgmma.commit_group.sync.aligned;";
    // The accumulator is read; without a wait, or with one for fewer groups.
    let read = "st.global.f32 [%d1], %f3;";
    assert!(fault(&format!("{FENCE} {mma} {commit} {read} {END}"), "st.global").contains("accumulator"));
    let wait = "wgmma.wait_group.sync.aligned 1;";
    assert!(fault(&format!("{FENCE} {mma} {commit} {wait} {read} {END}"), "st.global").contains("accumulator"));
    assert!(
        fault(&format!("{FENCE} {mma} wgmma.wait_group.sync.aligned 0; {read} {END}"), "st.").contains("accumulator")
    );
    SIMPLE.kernel(&format!("{FENCE} {mma} {commit} {commit} {wait} {read} {END}")).sound();
    // It is written.
    assert!(fault(&format!("{FENCE} {mma} mov.f32 %f0, 0f00000000; {END}"), "mov.f32").contains("accumulator"));
    // An operand is overwritten, by this warpgroup or by a copy.
    let write = format!("bar.sync 0; @%p1 st.shared.u32 [%r3+{B}], 0;");
    SIMPLE.kernel(&format!("{FENCE} {mma} {END} {write}")).sound();
    let what = fault(&format!("{FENCE} {mma} {write} {END}"), "st.shared");
    assert!(what.contains("overwritten while"), "{what}");
    // The lanes of a warp have waited together, and may all write what only their warp has read: its rows of A.
    let own = "and.b32 %r10, %r1, 31; setp.eq.u32 %p2, %r10, 9; mul.lo.u32 %r11, %r2, 2048; add.u32 %r11, %r11, %r3;
               @%p2 st.shared.u32 [%r11], 0;";
    SIMPLE.kernel(&format!("{FENCE} {mma} {END} {own}")).sound();
    // Another warp waits for itself, but not for this one.
    let kind =
        SIMPLE.kernel(&format!("{FENCE} {mma} {END} {}", write.replace("bar.sync 0;", ""))).fault("st.shared").kind;
    assert!(matches!(kind, FaultKind::UsedBeforeWait { .. } | FaultKind::SharedRace { .. }), "{kind}");
    // Nobody waits.
    assert!(fault(&format!("{FENCE} {mma} {commit}"), "ret").contains("the warp ends"));
}

#[test]
fn fences_of_registers_and_memory() {
    let mma = SIMPLE.mma("%p6", "1, 1");
    let zero: String = (0..8).map(|i| format!("mov.f32 %f{i}, 0f00000000;")).collect();
    SIMPLE.kernel(&format!("{zero} {FENCE} {mma} {END} {}", store(16))).sound();
    for body in [format!("{zero} {mma} {END}"), format!("{FENCE} {zero} {mma} {END}"), format!("{mma} {END}")] {
        let fault = SIMPLE.kernel(&body).fault("wgmma.mma_async");
        assert!(matches!(fault.kind, FaultKind::MissingFence { fence: "wgmma.fence", .. }), "{fault}");
    }
    // Reading the accumulator between two products needs none.
    SIMPLE.kernel(&format!("{zero} {FENCE} {mma} {END} {} {mma} {END}", store(16))).sound();
    let body = format!("{} {FENCE} {mma} {END}", SIMPLE.before()).replace("fence.proxy.async.shared::cta;", "");
    let kernel = Kernel::new("sm_90a", 128, &format!("{zero} {body}")).input(&SIMPLE.input());
    let fault = kernel.fault("wgmma.mma_async");
    assert!(matches!(fault.kind, FaultKind::MissingFence { fence: "fence.proxy.async", .. }), "{fault}");
}

#[test]
fn undefined_operands_stay_in_their_rows_and_columns() {
    // Shared memory is filled but for column 3 of B.
    let kernel = |stored: &str| {
        let mma = SIMPLE.mma("%p5", "1, 1");
        let body = format!("{FENCE} {mma} {END} {stored}");
        let before = SIMPLE.before().replace(
            "st.shared.u32 [o+0], v;",
            &format!(
                "setp.ge.u32 p, i, {}; @p setp.lt.u32 p, i, {}; @!p st.shared.u32 [o+0], v;",
                B + 3 * 128,
                B + 4 * 128
            ),
        );
        Kernel::new("sm_90a", 128, &format!("{before} {body}")).input(&SIMPLE.input())
    };
    // Lane 1 has columns 2 and 3.
    kernel("setp.eq.u32 %p2, %r1, 1; @%p2 st.global.f32 [%d1], %f0;").sound();
    let fault = kernel("setp.eq.u32 %p2, %r1, 1; @%p2 st.global.f32 [%d1], %f1;").fault("st.global");
    assert!(matches!(fault.kind, FaultKind::Undefined { .. }), "{fault}");
}

#[test]
fn products_that_are_not_allowed() {
    let mma = SIMPLE.mma("%p5", "1, 1");
    let refusal = |text: &str| Kernel::new("sm_90a", 128, text).refusal();
    assert!(refusal(&mma.replace("n16", "n12")).contains("m64n12k16"));
    assert!(refusal(&mma.replace("k16", "k32")).contains("m64n16k32"));
    assert!(refusal(&mma.replace("%f0, ", "")).contains("expected 8 registers, found 7"));
    assert!(refusal(&mma.replace("1, 1,", "1, 2,")).contains("neither 1 nor -1"));
    assert!(Kernel::new("sm_90", 128, &mma).refusal().contains("needs .target sm_90a"));
    let fault = SIMPLE.kernel(&format!("{FENCE} or.b64 %d4, %d4, 0x4000; {mma} {END}")).fault("wgmma.mma_async");
    assert!(matches!(&fault.kind, FaultKind::Illegal { what } if what.contains("bits 14 to 15")), "{fault}");
    let half =
        Kernel::new("sm_90a", 64, &format!("mov.u64 %d4, 0; mov.u64 %d5, 0; {FENCE} setp.ne.u32 %p5, 0, 0; {mma}"));
    assert!(matches!(&half.fault("wgmma.mma").kind, FaultKind::Illegal { what } if what.contains("four warps")));
}
