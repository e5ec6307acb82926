//! mbarriers, and the block's barriers with arrivals and questions.

use super::support::Kernel;
use splitkv_emulator::FaultKind;

/// Makes an mbarrier at `%r3` for so many arrivals, and lets all see it.
fn init(count: u32) -> String {
    format!("@%p1 mbarrier.init.shared::cta.b64 [%r3], {count}; fence.mbarrier_init.release.cluster; bar.sync 0;")
}

/// Waits for a phase of the barrier at `%r3`.
fn wait(parity: u32) -> String {
    format!(
        "{{ .reg .pred p; $W{parity}: mbarrier.try_wait.parity.shared::cta.b64 p, [%r3], {parity}; @!p bra $W{parity}; }}"
    )
}

/// Warp 0 writes a word and arrives; warp 1 waits, reads it and stores it.
fn message(arrive: &str, wait: &str) -> String {
    format!(
        "{} setp.eq.u32 %p2, %r2, 0; @!%p2 bra $L1;
         @%p1 st.shared.u32 [%r3+64], 77; bar.warp.sync 0xffffffff; @%p1 {arrive} bra $L2;
         $L1: {wait} ld.shared.u32 %r5, [%r3+64]; st.global.u32 [%d1], %r5;
         $L2: ret;",
        init(1)
    )
}

#[test]
fn a_phase_orders_threads() {
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];";
    assert_eq!(Kernel::new("sm_90", 64, &message(arrive, &wait(0))).words(1), [77]);
    let token = "mbarrier.arrive.b64 %d5, [%d4];";
    let generic = format!("cvt.u64.u32 %d4, %r3; cvta.shared.u64 %d4, %d4; {}", message(token, &wait(0)));
    assert_eq!(Kernel::new("sm_90", 64, &generic).words(1), [77]);
    let fault = Kernel::new("sm_90", 64, &message(arrive, "")).fault("ld.shared");
    assert!(matches!(fault.kind, FaultKind::SharedRace { other: 0, .. }), "{fault}");
    // The phase before the first one counts as complete, but here that is over.
    let fault = Kernel::new("sm_90", 64, &message(arrive, &wait(1))).fault("try_wait");
    assert!(matches!(fault.kind, FaultKind::Deadlock { .. }), "{fault}");
    let relaxed = arrive.replace("arrive", "arrive.relaxed.cta");
    let fault = Kernel::new("sm_90", 64, &message(&relaxed, &wait(0))).fault("ld.shared");
    assert!(matches!(fault.kind, FaultKind::SharedRace { other: 0, .. }), "{fault}");
}

#[test]
fn waiting_for_ever_names_who_waits_for_what() {
    let deadlock = |body: &str, at: &str, parts: &[&str]| {
        let fault = Kernel::new("sm_90", 64, body).fault(at);
        let FaultKind::Deadlock { waits } = &fault.kind else { panic!("{fault}") };
        parts.iter().for_each(|part| assert!(waits.contains(part), "{waits}"));
    };
    deadlock(
        &message("", &wait(0)),
        "try_wait",
        &["warp 1 waits for parity 0 of the mbarrier at 0x0 (phase 0: 1 of 1 arrivals and 0 bytes missing)"],
    );
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];";
    // Bytes that nobody brings.
    let expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 64;";
    deadlock(&message(expect, &wait(0)), "try_wait", &["0 of 1 arrivals and 64 bytes missing"]);
    // The wrong phase: the second one never comes.
    let twice = format!("{} {}", wait(0), wait(1));
    deadlock(&message(arrive, &twice), "try_wait", &["warp 1 waits for parity 1", "phase 1: 1 of 1 arrivals"]);
    // One warp waits for the other, which waits at a barrier.
    let crossed = format!("{} setp.eq.u32 %p2, %r2, 0; @%p2 bar.sync 1; {} bar.sync 1;", init(1), wait(0));
    deadlock(
        &crossed,
        "try_wait",
        &["warp 0 waits at barrier 1 (32 of 64 threads arrived)", "warp 1 waits for parity 0"],
    );
    // Looking again and again.
    let spin = wait(0).replace("try_wait", "test_wait");
    let fault = Kernel::new("sm_90", 64, &message("", &spin)).fault("");
    assert!(matches!(fault.kind, FaultKind::WaitsForEver { .. }), "{fault}");
    Kernel::new("sm_90", 64, &message(arrive, &spin)).sound();
}

/// Warps hand 8 words to each other through a buffer of one, with one barrier for full and one for empty.
#[test]
fn a_ring_of_phases() {
    let ring = |first: u32| {
        format!(
            "@%p1 mbarrier.init.shared::cta.b64 [%r3], 32; @%p1 mbarrier.init.shared::cta.b64 [%r3+8], 1; bar.sync 0;
             mov.u32 %r10, 0; and.b32 %r4, %r1, 31; shl.b32 %r5, %r4, 2; add.u32 %r5, %r5, %r3;
             setp.eq.u32 %p2, %r2, 0; @!%p2 bra $L2;
             $L1: and.b32 %r11, %r10, 1; xor.b32 %r12, %r11, {first};
             $W1: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3+8], %r12; @!%p3 bra $W1;
             mad.lo.u32 %r13, %r10, 100, %r4; st.shared.u32 [%r5+64], %r13; mbarrier.arrive.shared::cta.b64 _, [%r3];
             add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 8; @%p4 bra $L1; ret;
             $L2: and.b32 %r11, %r10, 1;
             $W2: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], %r11; @!%p3 bra $W2;
             ld.shared.u32 %r13, [%r5+64]; mad.lo.u32 %r14, %r10, 32, %r4; mul.wide.u32 %d5, %r14, 4;
             add.u64 %d5, %d5, %d1; st.global.u32 [%d5], %r13; bar.warp.sync 0xffffffff;
             setp.eq.u32 %p5, %r4, 0; @%p5 mbarrier.arrive.shared::cta.b64 _, [%r3+8];
             add.u32 %r10, %r10, 1; setp.lt.u32 %p4, %r10, 8; @%p4 bra $L2; ret;"
        )
    };
    let words: Vec<u32> = (0..8).flat_map(|i| (0..32).map(move |lane| 100 * i + lane)).collect();
    assert_eq!(Kernel::new("sm_90", 64, &ring(1)).words(256), words);
    // A producer that starts with the wrong parity waits for ever, as does its consumer.
    let fault = Kernel::new("sm_90", 64, &ring(0)).fault("try_wait");
    let FaultKind::Deadlock { waits } = &fault.kind else { panic!("{fault}") };
    assert!(waits.starts_with("warp 0 waits for parity 0 of the mbarrier at 0x8"), "{waits}");
    assert!(waits.contains("; warp 1 waits for parity 0 of the mbarrier at 0x0"), "{waits}");
}

#[test]
fn misuse_of_an_mbarrier() {
    let rule = |body: &str, at: &str, part: &str| {
        let fault = Kernel::new("sm_90", 32, body).fault(at);
        assert!(matches!(&fault.kind, FaultKind::Illegal { what } if what.contains(part)), "{fault}");
    };
    rule("mbarrier.arrive.shared::cta.b64 _, [%r3];", "arrive", "was not initialised");
    rule(&format!("{} st.shared.u32 [%r3+4], 1;", init(1)), "st.shared", "ordinary access to an mbarrier");
    rule(&format!("{} mbarrier.arrive.shared::cta.b64 _, [%r3], 33;", init(32)), "arrive", "33 arrivals");
    rule("mbarrier.init.shared::cta.b64 [%r3], 0;", "init", "an mbarrier for 0 arrivals");
    let inval = |end: &str| format!("{} @%p1 {end} bar.sync 0; @%p1 st.shared.u32 [%r3], 1;", init(1));
    Kernel::new("sm_90", 32, &inval("mbarrier.inval.shared::cta.b64 [%r3];")).sound();
    rule(&inval("mov.u32 %r4, 0;"), "st.shared", "ordinary access to an mbarrier");
    // Threads that do not know that it has been made.
    let fault = Kernel::new("sm_90", 64, &init(64).replace("bar.sync 0;", "mbarrier.arrive.shared.b64 _, [%r3];"));
    assert!(matches!(fault.fault("arrive").kind, FaultKind::SharedRace { other: 0, .. }));
}

/// Copies of a whole warp into shared memory that another warp waits for.
#[test]
fn copies_arrive_at_an_mbarrier() {
    let body = |arrive: &str, wait: &str| {
        format!(
            "{} setp.eq.u32 %p2, %r2, 0; @!%p2 bra $L1; mul.wide.u32 %d4, %r1, 4; add.u64 %d4, %d4, %d2;
             shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3;
             cp.async.ca.shared.global [%r5+64], [%d4], 4; {arrive} cp.async.wait_all; ret;
             $L1: {wait} ld.shared.u32 %r5, [%r3+68]; st.global.u32 [%d1], %r5;",
            init(32)
        )
    };
    let arrive = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r3];";
    let input: Vec<u8> = (0..128).collect();
    let run = |arrive: &str, wait: &str| Kernel::new("sm_90", 64, &body(arrive, wait)).input(&input);
    assert_eq!(run(arrive, &wait(0)).words(1), [0x07060504]);
    assert!(matches!(run(arrive, "").fault("ld.shared").kind, FaultKind::SharedRace { .. }));
    // Without .noinc the arrivals are not among those that the barrier expects.
    let fault = run(&arrive.replace(".noinc", ""), &wait(0)).fault("try_wait");
    assert!(matches!(fault.kind, FaultKind::Deadlock { .. }), "{fault}");
    // An arrival that does not wait for the copies.
    let early = run(
        "mbarrier.arrive.shared::cta.b64 _, [%r3]; cp.async.wait_all; bar.sync 1;",
        &format!("{} bar.sync 1;", wait(0)),
    );
    early.sound();
    let early = run("mbarrier.arrive.shared::cta.b64 _, [%r3]; bar.sync 1, 32;", &wait(0));
    assert!(matches!(early.fault("ld.shared").kind, FaultKind::UsedBeforeWait { .. }));
}

#[test]
fn barriers_with_arrivals() {
    let body = |arrive: &str| {
        format!(
            "setp.eq.u32 %p2, %r2, 0; @!%p2 bra $L1; @%p1 st.shared.u32 [%r3], 5; {arrive} ret;
             $L1: bar.sync 1, 64; ld.shared.u32 %r5, [%r3]; st.global.u32 [%d1], %r5;"
        )
    };
    assert_eq!(Kernel::new("sm_90", 64, &body("bar.arrive 1, 64;")).words(1), [5]);
    let fault = Kernel::new("sm_90", 64, &body("bar.arrive 2, 64;")).fault("bar.sync");
    assert_eq!(fault.kind, FaultKind::BarrierMissed { barrier: 1, waiting: 32, expected: 64 });
    // Who only arrives knows nothing of the others.
    let reads = "bar.arrive 1, 64; bar.sync 2, 32; ld.shared.u32 %r5, [%r3+4];";
    let late = body(reads).replace("$L1: bar.sync 1, 64;", "$L1: st.shared.u32 [%r3+4], 1; bar.sync 1, 64;");
    let late = late.replace("st.shared.u32 [%r3+4], 1;", "setp.eq.u32 %p3, %r1, 32; @%p3 st.shared.u32 [%r3+4], 1;");
    let fault = Kernel::new("sm_90", 64, &late).fault("");
    assert!(matches!(fault.kind, FaultKind::SharedRace { .. }), "{fault}");
}

#[test]
fn barriers_that_answer_a_question() {
    let body = |limit: u32, what: &str| {
        let reduce = match what {
            "popc" => "bar.red.popc.u32 %r5, 1, 64, %p2;".to_owned(),
            what => format!("bar.red.{what}.pred %p3, 1, %p2; selp.u32 %r5, 1, 0, %p3;"),
        };
        format!(
            "setp.lt.u32 %p2, %r1, {limit}; {reduce} mul.wide.u32 %d4, %r1, 4; add.u64 %d4, %d4, %d1;
             st.global.u32 [%d4], %r5;"
        )
    };
    for (limit, what, answer) in
        [(0, "or", 0), (1, "or", 1), (63, "and", 0), (64, "and", 1), (37, "popc", 37), (0, "popc", 0)]
    {
        assert_eq!(Kernel::new("sm_90", 64, &body(limit, what)).words(64), [answer; 64], "{what} {limit}");
    }
}

#[test]
fn instructions_that_change_nothing_here() {
    let body = "setmaxnreg.dec.sync.aligned.u32 24; griddepcontrol.wait; griddepcontrol.launch_dependents;
                fence.proxy.async; fence.proxy.async.shared::cta; fence.proxy.async.global;";
    Kernel::new("sm_90a", 32, body).sound();
    let refusal = Kernel::new("sm_90a", 32, "setmaxnreg.dec.sync.aligned.u32 20;").refusal();
    assert!(refusal.contains("multiple of 8 from 24 to 256"), "{refusal}");
}

/// Each block's warp 0 stores its part, and warp 1 takes a ticket for it; the last block adds the parts up.
#[test]
fn what_a_phase_orders_can_be_released_to_other_blocks() {
    let body = |arrive: &str, wait: &str| {
        format!(
            "{} mov.u32 %r4, %ctaid.x; mul.wide.u32 %d4, %r4, 4; add.u64 %d4, %d4, %d1;
             setp.eq.u32 %p2, %r2, 0; @!%p2 bra $L1;
             add.u32 %r5, %r4, 10; @%p1 st.global.u32 [%d4+64], %r5; @%p1 {arrive} ret;
             $L1: {wait} setp.eq.u32 %p3, %r1, 32; @!%p3 ret; atom.acq_rel.gpu.global.add.u32 %r6, [%d1], 1;
             setp.ne.u32 %p4, %r6, 3; @%p4 ret;
             ld.global.u32 %r7, [%d1+64]; ld.global.u32 %r8, [%d1+68]; ld.global.u32 %r9, [%d1+72];
             ld.global.u32 %r10, [%d1+76]; add.u32 %r7, %r7, %r8; add.u32 %r7, %r7, %r9; add.u32 %r7, %r7, %r10;
             st.global.u32 [%d1+4], %r7;",
            init(1)
        )
    };
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];";
    let run = |arrive: &str, wait: &str| Kernel::new("sm_90", 64, &body(arrive, wait)).blocks(4);
    assert_eq!(run(arrive, &wait(0)).words(2), [4, 10 + 11 + 12 + 13]);
    let fault = run(arrive, "").fault("st.global.u32 [%d4+64]");
    assert!(matches!(fault.kind, FaultKind::GlobalRace { other: Some(_) }), "{fault}");
    let fault = run(&arrive.replace("arrive", "arrive.relaxed.cta"), &wait(0)).fault("st.global.u32 [%d4+64]");
    assert!(matches!(fault.kind, FaultKind::GlobalRace { other: Some(_) }), "{fault}");
}

/// Blocks run on several host threads, and what comes out is the same.
#[test]
fn the_number_of_host_threads_changes_nothing() {
    let arrive = "mbarrier.arrive.shared::cta.b64 _, [%r3];";
    let results = [1, 2, 5].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let body = message(arrive, &wait(0)).replace("st.global.u32 [%d1], %r5;", "red.global.add.u32 [%d1], %r5;");
        pool.install(|| {
            let kernel = Kernel::new("sm_90", 64, &body).blocks(40);
            (kernel.words(1), format!("{:?}", kernel.sound()))
        })
    });
    assert_eq!(results[0].0, [40 * 32 * 77]);
    assert!(results.iter().all(|result| *result == results[0]));
}
