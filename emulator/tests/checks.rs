//! Each check finds the fault of a small faulty kernel, and leaves its sound twin alone.

use splitkv_emulator::{Arch, Counters, Error, Fault, FaultKind, Machine};

/// A kernel `k(u64 p, u64 q, u32 n)` with these instructions and the usual registers; 64 bytes of static shared
/// memory, and dynamic shared memory behind it.
fn ptx(body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n\
         .visible .entry k(.param .u64 k_p, .param .u64 k_q, .param .u32 k_n)\n{{\n\
         .reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .b64 %d<16>;\n\
         .shared .align 16 .b8 fixed[64];\n.local .align 8 .b8 depot[16];\n\
         ld.param.u64 %d1, [k_p];\nld.param.u64 %d2, [k_q];\nld.param.u32 %r1, [k_n];\n\
         mov.u32 %r2, %tid.x;\nmul.wide.u32 %d3, %r2, 4;\nadd.u64 %d4, %d1, %d3;\n{body}\nret;\n}}\n"
    )
}

struct Run {
    machine: Machine,
    p: u64,
    q: u64,
}

/// `p`: 256 bytes of zeros; `q`: 4096 bytes of undefined workspace.
fn setup() -> Run {
    let machine = Machine::with_memory(Arch::Sm90, 1 << 24);
    let p = machine.alloc(256).unwrap();
    machine.fill(p, 0, 256).unwrap();
    let q = machine.alloc_workspace(4096).unwrap();
    Run { machine, p, q }
}

impl Run {
    fn launch(&self, body: &str, blocks: u32, threads: u32, n: u32) -> Result<Counters, Error> {
        let module = self.machine.load(ptx(body).as_bytes()).unwrap();
        let arguments = [self.p, self.q, n.into()];
        self.machine.launch(&module, "k", [blocks, 1, 1], [threads, 1, 1], 256, &arguments)
    }

    fn words(&self) -> Vec<u32> {
        let mut bytes = [0; 256];
        self.machine.read(self.p, &mut bytes).unwrap();
        bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

fn sound(body: &str, blocks: u32, threads: u32) -> Vec<u32> {
    let run = setup();
    if let Err(error) = run.launch(body, blocks, threads, 5) {
        panic!("a sound kernel: {error}");
    }
    run.words()
}

/// The fault of a kernel; `at` is a part of the instruction's text.
fn faulty(body: &str, blocks: u32, threads: u32, at: &str) -> Fault {
    let run = setup();
    match run.launch(body, blocks, threads, 5) {
        Err(Error::Fault(fault)) => {
            assert!(fault.instruction.contains(at), "{fault}");
            let line: usize = fault.place.strip_prefix("line ").unwrap().parse().unwrap();
            assert_eq!(ptx(body).lines().nth(line - 1).unwrap().trim(), fault.instruction, "the place is the text's");
            assert_eq!(fault.kernel, "k");
            *fault
        }
        other => panic!("expected a fault, got {other:?}"),
    }
}

#[test]
fn access_outside_an_allocation() {
    sound("st.global.u32 [%d4], %r2;", 1, 64);
    let fault = faulty("st.global.u32 [%d4], %r2;", 1, 96, "st.global");
    assert!(matches!(fault.kind, FaultKind::GlobalOutOfBounds { bytes: 4, .. }), "{fault}");
    assert_eq!((fault.block, fault.thread), ([0; 3], Some([64, 0, 0])));
    let fault = faulty("ld.global.u32 %r3, [%d1+-4];", 1, 1, "ld.global");
    assert!(matches!(fault.kind, FaultKind::GlobalOutOfBounds { .. }));
    let fault = faulty("mov.u64 %d5, 0; ld.u32 %r3, [%d5];", 1, 1, "ld.u32");
    assert_eq!(fault.address, Some(0));
}

#[test]
fn access_after_free() {
    let run = setup();
    run.machine.free(run.p).unwrap();
    let Err(Error::Fault(fault)) = run.launch("ld.global.u32 %r3, [%d1];", 1, 1, 0) else { panic!("freed") };
    assert!(fault.to_string().contains("were freed"), "{fault}");
}

#[test]
fn access_outside_shared_memory() {
    sound("st.shared.u32 [dyn+252], %r2; st.shared.u32 [fixed], %r2;", 1, 1);
    let fault = faulty("st.shared.u32 [dyn+256], %r2;", 1, 1, "st.shared");
    assert_eq!(fault.kind, FaultKind::SharedOutOfBounds { bytes: 4, size: 320 });
    assert_eq!(fault.address, Some(320));
    let generic = |offset| {
        format!("mov.u64 %d5, dyn; cvta.shared.u64 %d5, %d5; st.u32 [%d5+{offset}], %r2; ld.u32 %r3, [%d5+{offset}];")
    };
    sound(&generic(252), 1, 1);
    assert_eq!(faulty(&generic(256), 1, 1, "st.u32").kind, FaultKind::SharedOutOfBounds { bytes: 4, size: 320 });
}

#[test]
fn access_outside_local_memory() {
    let body = |offset| {
        format!(
            "mov.u64 %d5, depot; cvta.local.u64 %d6, %d5; st.local.u32 [%d5+{offset}], %r2;
             ld.u32 %r3, [%d6+{offset}]; st.global.u32 [%d4], %r3;"
        )
    };
    assert_eq!(sound(&body(12), 1, 4)[..4], [0, 1, 2, 3]);
    assert_eq!(faulty(&body(16), 1, 4, "st.local").kind, FaultKind::LocalOutOfBounds { bytes: 4, size: 16 });
}

#[test]
fn misaligned_access() {
    let body = |offset| format!("ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%d1+{offset}];");
    sound(&body(16), 1, 32);
    let fault = faulty(&body(8), 1, 32, "ld.global.v4");
    assert_eq!(fault.kind, FaultKind::Misaligned { align: 16 });
    let copy = |from, to| format!("mov.u32 %r3, dyn; cp.async.ca.shared.global [%r3+{to}], [%d1+{from}], 8;");
    sound(&copy(8, 8), 1, 1);
    assert_eq!(faulty(&copy(4, 8), 1, 1, "cp.async").kind, FaultKind::Misaligned { align: 8 });
    assert_eq!(faulty(&copy(8, 4), 1, 1, "cp.async").kind, FaultKind::Misaligned { align: 8 });
}

/// Thread t writes word t, and reads word (t + 1) mod threads.
fn neighbour(between: &str, threads: u32) -> String {
    format!(
        "mov.u32 %r3, dyn; shl.b32 %r4, %r2, 2; add.u32 %r4, %r4, %r3; st.shared.u32 [%r4], %r2; {between}
         add.u32 %r5, %r2, 1; rem.u32 %r5, %r5, {threads}; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r3;
         ld.shared.u32 %r6, [%r5];
         st.global.u32 [%d4], %r6;"
    )
}

#[test]
fn shared_memory_races() {
    let rotated: Vec<u32> = (0..64).map(|t| (t + 1) % 64).collect();
    assert_eq!(sound(&neighbour("bar.sync 0;", 64), 1, 64), rotated);
    assert_eq!(
        sound(&neighbour("bar.warp.sync 0xffffffff;", 32), 1, 32)[..32],
        rotated.iter().map(|x| x % 32).collect::<Vec<_>>()[..32]
    );
    let fault = faulty(&neighbour("", 32), 1, 32, "ld.shared");
    assert_eq!(fault.kind, FaultKind::SharedRace { other: 1, what: "write, then read" });
    // A warp's barrier does not order it with another warp.
    let filled = neighbour("bar.warp.sync 0xffffffff;", 64)
        .replace("st.shared.u32 [%r4], %r2;", "st.shared.u32 [%r4], 0; bar.sync 0; st.shared.u32 [%r4], %r2;");
    let fault = faulty(&filled, 1, 64, "st.shared");
    assert_eq!(fault.kind, FaultKind::SharedRace { other: 31, what: "read, then write" });
    // Reading, then writing needs a barrier too.
    let ring = |between: &str| format!("{} {between} st.shared.u32 [%r4], %r6;", neighbour("bar.sync 0;", 64));
    sound(&ring("bar.sync 0;"), 1, 64);
    let fault = faulty(&ring(""), 1, 64, "st.shared.u32 [%r4], %r6");
    assert!(matches!(fault.kind, FaultKind::SharedRace { what: "read, then write", .. }), "{fault}");
    let both = faulty("st.shared.u32 [dyn], %r2;", 1, 2, "st.shared");
    assert_eq!(both.kind, FaultKind::SharedRace { other: 0, what: "write, then write" });
    sound("setp.eq.u32 %p1, %r2, 0; @%p1 st.shared.u32 [dyn], %r2;", 1, 64);
}

#[test]
fn narrow_shared_accesses_are_seen_byte_by_byte() {
    let body = |shift| {
        format!(
            "mov.u32 %r3, dyn; shl.b32 %r4, %r2, {shift}; add.u32 %r4, %r4, %r3; cvt.u16.u32 %h1, %r2;
             st.shared.u8 [%r4], %h1; ld.shared.u8 %r5, [%r4]; st.global.u32 [%d4], %r5;"
        )
    };
    assert_eq!(sound(&body(0), 1, 32)[..32], (0..32).collect::<Vec<u32>>()[..]);
    let half = body(0).replace("st.shared.u8 [%r4], %h1;", "st.shared.u16 [dyn], %h1;");
    assert!(matches!(faulty(&half, 1, 2, "st.shared.u16").kind, FaultKind::SharedRace { .. }));
}

#[test]
fn global_races_between_blocks() {
    let body = |stride| {
        format!(
            "mov.u32 %r3, %ctaid.x; mul.wide.u32 %d5, %r3, {stride}; add.u64 %d5, %d5, %d1;
             ld.global.u32 %r4, [%d5]; st.global.u32 [%d5], %r3;"
        )
    };
    sound(&body(4), 8, 1);
    let fault = faulty(&body(0), 8, 1, "st.global");
    assert_eq!(fault.kind, FaultKind::GlobalRace { other: Some(0) });
    assert_eq!((fault.block, fault.thread), ([1, 0, 0], Some([0; 3])));
    // A block reads what another one writes.
    let read = "mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 3; @%p1 st.global.u32 [%d1], %r3;
                setp.ne.u32 %p1, %r3, 3; @%p1 ld.global.u32 %r4, [%d1];";
    assert!(matches!(faulty(read, 8, 1, "st.global").kind, FaultKind::GlobalRace { .. }));
    // Atomics do not race with each other, but they do with plain accesses.
    let words = sound("red.global.add.u32 [%d1], 1; red.relaxed.gpu.global.max.u32 [%d1+4], %r2;", 8, 32);
    assert_eq!(words[..2], [256, 31]);
    let mixed = "red.global.add.u32 [%d1], 1; ld.global.u32 %r3, [%d1];";
    assert!(matches!(faulty(mixed, 2, 1, "").kind, FaultKind::GlobalRace { .. }));
}

/// Each block stores a row of partial results, and the last one to take a ticket adds them up.
fn tickets(stored: &str, ticket: &str, taken: &str) -> String {
    format!(
        "mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; mul.wide.u32 %d5, %r3, 256; add.u64 %d5, %d5, %d2;
         add.u64 %d5, %d5, %d3; add.u32 %r5, %r2, %r3; st.global.u32 [%d5], %r5;
         {stored}
         setp.ne.u32 %p1, %r2, 0; @%p1 bra $L1;
         {ticket} st.shared.u32 [fixed], %r6;
         $L1: bar.sync 0; ld.shared.u32 %r6, [fixed]; add.u32 %r6, %r6, 1; setp.ne.u32 %p2, %r6, %r4;
         @%p2 bra $L3;
         {taken}
         add.u64 %d6, %d2, %d3; mov.u32 %r7, 0; mov.u32 %r8, 0;
         $L2: ld.global.u32 %r9, [%d6]; add.u32 %r7, %r7, %r9; add.u64 %d6, %d6, 256; add.u32 %r8, %r8, 1;
         setp.lt.u32 %p3, %r8, %r4; @%p3 bra $L2;
         setp.gt.u32 %p3, %r2, 62; @%p3 bra $L3; st.global.u32 [%d4], %r7;
         $L3: ret;"
    )
}

#[test]
fn blocks_that_order_each_other_do_not_race() {
    let atomic = "atom.acq_rel.gpu.global.inc.u32 %r6, [%d1+252], 100;";
    let relaxed = "atom.relaxed.gpu.global.inc.u32 %r6, [%d1+252], 100;";
    let fenced = format!("fence.acq_rel.gpu; {relaxed} fence.acq_rel.gpu;");
    let (fence, barrier) = ("fence.acq_rel.gpu;", "bar.sync 0;");
    let sums: Vec<u32> = (0..63).map(|t| 5 * t + 10).collect();
    let sound_ones = [
        tickets(barrier, atomic, ""),
        tickets(barrier, &fenced, ""),
        tickets(&format!("{fence} {barrier}"), &format!("membar.gl; {relaxed} membar.gl;"), ""),
    ];
    for body in sound_ones {
        assert_eq!(sound(&body, 5, 64)[..63], sums[..]);
    }
    let faulty_ones = [
        ("no release and no acquire", tickets(barrier, relaxed, "")),
        ("no acquire", tickets(barrier, &format!("{fence} {relaxed}"), "")),
        ("no release", tickets(barrier, relaxed, fence)),
        ("the other warp's stores are not released", tickets("", atomic, "")),
        ("the block's scope", tickets(barrier, &atomic.replace(".gpu", ".cta"), "")),
    ];
    for (what, body) in faulty_ones {
        let fault = faulty(&body, 5, 64, "st.global.u32 [%d5]");
        assert!(matches!(fault.kind, FaultKind::GlobalRace { other: Some(_) }), "{what}: {fault}");
    }
}

#[test]
fn a_flag_is_waited_for() {
    let body = |store: &str, load: &str| {
        format!(
            "mov.u32 %r3, %ctaid.x; setp.eq.u32 %p1, %r3, 0; @!%p1 bra $L2;
             $L1: {load} setp.eq.u32 %p2, %r4, 0; @%p2 bra $L1; ld.global.u32 %r5, [%d1+4]; st.global.u32 [%d1+8], %r5;
             ret;
             $L2: setp.ne.u32 %p1, %r3, 7; @%p1 bra $L3; st.global.u32 [%d1+4], 99; {store}
             $L3: ret;"
        )
    };
    let (release, acquire) = ("st.release.gpu.global.u32 [%d1], 1;", "ld.acquire.gpu.global.u32 %r4, [%d1];");
    assert_eq!(sound(&body(release, acquire), 8, 1)[..3], [1, 99, 99]);
    let relaxed = "st.relaxed.gpu.global.u32 [%d1], 1;";
    let fault = faulty(&body(relaxed, acquire), 8, 1, "st.global.u32 [%d1+4], 99");
    assert_eq!((fault.kind, fault.block), (FaultKind::GlobalRace { other: Some(0) }, [7, 0, 0]));
    let fault = faulty(&body("", acquire), 8, 1, "");
    assert!(matches!(fault.kind, FaultKind::WaitsForEver { .. }), "{fault}");
}

#[test]
fn a_barrier_that_part_of_the_block_misses() {
    sound("bar.sync 0;", 2, 96);
    let body = "setp.lt.u32 %p1, %r2, 32; @%p1 bar.sync 0;";
    let fault = faulty(body, 1, 64, "bar.sync");
    assert_eq!(fault.kind, FaultKind::BarrierMissed { barrier: 0, waiting: 32, expected: 64 });
    // Half of a warp.
    let body = "setp.lt.u32 %p1, %r2, 16; @!%p1 bra $L1; bar.sync 0; $L1: ret;";
    let fault = faulty(body, 1, 32, "bar.sync");
    assert_eq!(fault.kind, FaultKind::BarrierMissed { barrier: 0, waiting: 16, expected: 32 });
    // Some of the warps, as asked for.
    sound("setp.lt.u32 %p1, %r2, 64; @!%p1 bra $L1; bar.sync 1, 64; $L1: ret;", 1, 128);
}

#[test]
fn lanes_that_are_needed_together() {
    // Both arms hold the shuffle: its lanes meet.
    let body = "and.b32 %r3, %r2, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra $L1;
                shfl.sync.bfly.b32 %r4, %r2, 1, 0x1f, 0xffffffff; bra $L2;
                $L1: shfl.sync.bfly.b32 %r4, %r2, 1, 0x1f, 0xffffffff;
                $L2: st.global.u32 [%d4], %r4;";
    assert_eq!(sound(body, 1, 32)[..32], (0..32).map(|t| t ^ 1).collect::<Vec<u32>>()[..]);
    let body = "and.b32 %r3, %r2, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra $L1;
                shfl.sync.bfly.b32 %r4, %r2, 1, 0x1f, 0xffffffff; bra $L2;
                $L1: shfl.sync.down.b32 %r4, %r2, 1, 0x1f, 0xffffffff;
                $L2: ret;";
    let fault = faulty(body, 1, 32, "shfl.sync");
    assert!(matches!(fault.kind, FaultKind::Divergent { needed: 0xffff_ffff, .. }), "{fault}");
    // A lane that is not in the mask.
    let fault = faulty("bar.warp.sync 0x7fffffff;", 1, 32, "bar.warp.sync");
    assert!(matches!(fault.kind, FaultKind::Illegal { .. }), "{fault}");
    // ldmatrix needs the whole warp.
    let matrix = "mov.u32 %r3, dyn; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3];";
    sound(&format!("setp.lt.u32 %p1, %r2, 0; {matrix}"), 1, 32);
    let fault = faulty(matrix, 1, 31, "ldmatrix");
    assert!(matches!(fault.kind, FaultKind::Divergent { active: 0x7fff_ffff, .. }), "{fault}");
}

#[test]
fn waiting_for_ever() {
    let spin = "$L1: ld.volatile.shared.u32 %r3, [fixed]; setp.eq.u32 %p1, %r3, 0; @%p1 bra $L1;";
    let body = |value: u32| {
        format!(
            "setp.ne.u32 %p1, %r2, 0; @%p1 bra $L0; st.shared.u32 [fixed], {value};
             $L0: bar.sync 0; setp.lt.u32 %p1, %r2, 32; @%p1 bra $L2; {spin} $L2: ret;"
        )
    };
    sound(&body(1), 1, 64);
    let fault = faulty(&body(0), 1, 64, "");
    assert!(matches!(fault.kind, FaultKind::WaitsForEver { .. }), "{fault}");
}

#[test]
fn data_of_a_copy_before_the_wait() {
    let body = |wait: &str| {
        format!(
            "mov.u32 %r3, dyn; shl.b32 %r4, %r2, 2; add.u32 %r4, %r4, %r3;
             cp.async.ca.shared.global [%r4], [%d4], 4; cp.async.commit_group;
             cp.async.ca.shared.global [%r4+128], [%d4], 4; cp.async.commit_group;
             {wait} ld.shared.u32 %r5, [%r4]; st.global.u32 [%d4], %r5;"
        )
    };
    sound(&body("cp.async.wait_group 1;"), 1, 32);
    sound(&body("cp.async.wait_all;"), 1, 32);
    for wait in ["", "cp.async.wait_group 2;", "bar.sync 0;"] {
        let fault = faulty(&body(wait), 1, 32, "ld.shared");
        assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    }
    // The wait is the thread's own: others need a barrier.
    let other = |barrier: &str| format!("{} {barrier} ld.shared.u32 %r5, [dyn];", body("cp.async.wait_all;"));
    sound(&other("bar.sync 0;"), 1, 32);
    assert!(matches!(faulty(&other(""), 1, 32, "ld.shared.u32 %r5, [dyn]").kind, FaultKind::SharedRace { .. }));
}

#[test]
fn undefined_values() {
    let sink = |body: &str, at: &str| match faulty(body, 1, 32, at).kind {
        FaultKind::Undefined { sink } => sink,
        kind => panic!("{kind}"),
    };
    // Registers.
    assert_eq!(sink("add.u32 %r3, %r4, 1; st.global.u32 [%d4], %r3;", "st.global"), "a store to a buffer");
    assert_eq!(sink("add.u64 %d5, %d1, %d6; ld.global.u32 %r3, [%d5];", "ld.global"), "an address");
    assert_eq!(sink("setp.eq.u32 %p1, %r3, 0; @%p1 bra $L1; $L1: ret;", "bra"), "a branch");
    sound("mov.u32 %r4, 1; add.u32 %r3, %r4, 1; st.global.u32 [%d4], %r3;", 1, 32);
    // Only the lanes and values that are used count.
    sound("setp.eq.u32 %p1, %r2, %r2; selp.b32 %r3, %r2, %r4, %p1; st.global.u32 [%d4], %r3;", 1, 32);
    let one_lane = "setp.eq.u32 %p1, %r2, 7; @!%p1 mov.u32 %r3, 1; st.global.u32 [%d4], %r3;";
    assert_eq!(faulty(one_lane, 1, 32, "st.global").thread, Some([7, 0, 0]));
    // Shared memory.
    let shared = "ld.shared.u32 %r3, [dyn]; st.global.u32 [%d4], %r3;";
    assert_eq!(sink(shared, "st.global"), "a store to a buffer");
    sound(&format!("st.shared.u32 [dyn], 3; {shared}"), 1, 1);
    // A workspace may hold undefined data; what is read from it is undefined.
    let workspace = "add.u64 %d5, %d2, %d3; st.global.u32 [%d5], %r4; ld.global.u32 %r3, [%d5];";
    sound(workspace, 1, 32);
    assert_eq!(sink(&format!("{workspace} st.global.u32 [%d4], %r3;"), "[%d4]"), "a store to a buffer");
    sound(&format!("mov.u32 %r4, 2; {workspace} st.global.u32 [%d4], %r3;"), 1, 32);
    // Local memory.
    let local = "ld.local.u32 %r3, [depot+8]; st.global.u32 [%d4], %r3;";
    assert_eq!(sink(local, "st.global"), "a store to a buffer");
    // Division by zero leaves the result open.
    assert_eq!(sink("div.u32 %r3, 5, %r2; st.global.u32 [%d4], %r3;", "st.global"), "a store to a buffer");
}

#[test]
fn undefined_rows_of_a_matrix_stay_in_their_rows() {
    // Row 9 of A is undefined: lanes 4..8 of the second and fourth register.
    let body = |store: &str| {
        format!(
            "mov.b32 %r3, 0; mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0;
             shr.u32 %r7, %r2, 2; setp.ne.u32 %p1, %r7, 1;
             @!%p1 mov.b32 %r4, %r20; @!%p1 mov.b32 %r6, %r20;
             mov.b32 %r8, 0x3f800000;
             mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%r10, %r11, %r12, %r13}}, {{%r3, %r4, %r5, %r6}},
             {{%r3, %r3}}, {{%r8, %r8, %r8, %r8}};
             {store}"
        )
    };
    let words = sound(&body("st.global.u32 [%d4], %r11; @%p1 st.global.u32 [%d4], %r13;"), 1, 32);
    assert_eq!(words[0], 0x3f80_0000);
    let fault = faulty(&body("st.global.u32 [%d4], %r13;"), 1, 32, "st.global");
    assert_eq!(fault.thread, Some([4, 0, 0]));
}

#[test]
fn a_trap_is_a_fault() {
    let fault = faulty("setp.eq.u32 %p1, %r2, 3; @%p1 trap;", 1, 32, "trap");
    assert_eq!((fault.kind, fault.thread), (FaultKind::Trap, Some([3, 0, 0])));
    sound("setp.eq.u32 %p1, %r2, 33; @%p1 trap;", 1, 32);
}

#[test]
fn unknown_instructions_are_refused_when_the_module_is_loaded() {
    let machine = Machine::new(Arch::Sm90);
    for (body, part) in [
        ("frobnicate.b32 %r1, %r2;", "instruction frobnicate.b32 is unknown"),
        ("add.sat.s32 %r1, %r2, %r3;", ".sat is not supported"),
        ("add.f16x2 %r1, %r2, %r3;", "f16x2"),
        ("mov.b32 %r1, %nowhere;", "%nowhere is not declared"),
        ("bra $L9;", "label $L9 does not exist"),
        ("add.u32 %r1, %d1, 1;", "cannot hold a value of type U32"),
    ] {
        match machine.load(ptx(body).as_bytes()) {
            Err(Error::Load { place, reason }) => {
                assert_eq!(place, "line 19", "{reason}");
                assert!(reason.contains(part) || reason.contains("no type"), "{reason}");
            }
            other => panic!("{body}: {other:?}"),
        }
    }
    let text = ptx("").replace("sm_90", "sm_100");
    assert!(machine.load(text.as_bytes()).is_err());
    assert!(Machine::new(Arch::Sm100).load(text.as_bytes()).is_ok());
}

#[test]
fn the_number_of_host_threads_changes_nothing() {
    let body = "mov.u32 %r3, %ctaid.x; mad.lo.u32 %r4, %r3, 32, %r2; and.b32 %r4, %r4, 63; mul.wide.u32 %d5, %r4, 4;
                add.u64 %d5, %d5, %d1; red.global.add.u32 [%d5], %r3;
                atom.global.inc.u32 %r5, [%d1+252], 1000; setp.ne.u32 %p1, %r5, 40; @%p1 bra $L1;
                st.global.u32 [%d1+248], %r3; $L1: ret;";
    let results: Vec<_> = [1, 2, 5]
        .map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let run = setup();
                let counters = run.launch(body, 40, 16, 0);
                (format!("{counters:?}"), run.words())
            })
        })
        .into();
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
fn packed_floats() {
    let two = |high: f32, low: f32| format!("0x{:08x}{:08x}", high.to_bits(), low.to_bits());
    let words = sound(
        &format!(
            "mov.b64 %d5, {};\nmov.b64 %d6, {};\nadd.rn.f32x2 %d7, %d5, %d6;\nst.global.u64 [%d1], %d7;\n\
             mul.rn.f32x2 %d7, %d5, %d6;\nst.global.u64 [%d1+8], %d7;\n\
             fma.rn.f32x2 %d7, %d5, %d6, %d5;\nst.global.u64 [%d1+16], %d7;",
            two(3.0, 0.5),
            two(-4.0, 2.0)
        ),
        1,
        1,
    );
    let values: Vec<f32> = words[..6].iter().map(|word| f32::from_bits(*word)).collect();
    assert_eq!(values, [2.5, -1.0, 1.0, -12.0, 1.5, -9.0]);
}
