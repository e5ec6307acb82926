//! Copies of whole pieces and boxes between global and shared memory.

use super::support::Kernel;
use splitkv_emulator::{FaultKind, Swizzle, TensorMap};

const WAIT: &str = "{ .reg .pred p; $W: mbarrier.try_wait.parity.shared::cta.b64 p, [%r3], 0; @!p bra $W; }";

/// Makes a barrier at `%r3`, and lets thread 0 expect `bytes` bytes and issue `copies`. Data goes to `%r4`, 1 KiB on.
fn load(bytes: u32, copies: &str) -> String {
    format!(
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
         add.u32 %r4, %r3, 1024; @!%p1 bra $I;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {bytes};
         {copies}
         $I: bar.warp.sync 0xffffffff;"
    )
}

/// Stores `bytes` bytes of shared memory, from `%r4` on, to the buffer.
fn dump(bytes: u32) -> String {
    format!(
        "mov.u32 %r20, %r1; mov.u32 %r21, %ntid.x;
         $D: shl.b32 %r22, %r20, 2; add.u32 %r23, %r22, %r4; ld.shared.u32 %r24, [%r23]; cvt.u64.u32 %d20, %r22;
         add.u64 %d20, %d20, %d1; st.global.u32 [%d20], %r24; add.u32 %r20, %r20, %r21;
         setp.lt.u32 %p9, %r20, {}; @%p9 bra $D;",
        bytes / 4
    )
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 256 * 11) as u8).collect()
}

fn to_words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

const PLAIN: &str = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d2], 512, [%r3];";

#[test]
fn plain_copies_arrive_when_they_are_waited_for() {
    let run = |body: &str| Kernel::new("sm_90", 64, body).input(&bytes(512));
    assert_eq!(run(&format!("{} {WAIT} {}", load(512, PLAIN), dump(512))).words(128), to_words(&bytes(512)));
    let fault = run(&format!("{} {}", load(512, PLAIN), dump(512))).fault("ld.shared");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    // Only one of the warps waits.
    let one = format!("{} setp.ne.u32 %p3, %r2, 0; @%p3 bra $S; {WAIT} $S: {}", load(512, PLAIN), dump(512));
    assert!(matches!(run(&one).fault("ld.shared").kind, FaultKind::UsedBeforeWait { .. }));
    let late = one.replace("$S: ", "ld.shared.u32 %r9, [%r4]; bar.sync 1; bra $E; $S: bar.sync 1; $E: ");
    run(&late).sound();
    // The data has come, for a warp that waited; another one that has not been told knows nothing of it.
    let untold = one.replace(
        "$S: ",
        "bar.arrive 1, 64; bra $E; $S: bar.sync 2, 32; ld.shared.u32 %r9, [%r4]; bar.sync 1, 64; $E: ",
    );
    let fault = run(&untold).fault("ld.shared.u32 %r9");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    // Expecting and arriving apart.
    let apart = load(512, PLAIN).replace(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], 512; mbarrier.arrive.release.cta.shared::cta.b64 _, [%r3];",
    );
    run(&format!("{apart} {WAIT} {}", dump(512))).sound();
    // Too few and too many bytes are expected.
    for expected in [496, 528] {
        let fault = run(&format!("{} {WAIT}", load(expected, PLAIN))).fault("try_wait");
        assert!(matches!(fault.kind, FaultKind::Deadlock { .. }), "{fault}");
    }
    let fault = run(&load(512, PLAIN)).fault("cp.async.bulk");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "nobody waits before the end: {fault}");
    let counters = run(&format!("{} {WAIT}", load(512, PLAIN))).sound();
    assert_eq!((counters.global_load_bytes, counters.global_load_sectors, counters.shared_store_bytes), (512, 16, 512));
}

#[test]
fn plain_copies_that_are_not_allowed() {
    let run = |copy: &str| Kernel::new("sm_90", 32, &load(512, copy)).input(&bytes(512)).fault("cp.async.bulk");
    assert_eq!(run(&PLAIN.replace("[%r4]", "[%r4+8]")).kind, FaultKind::Misaligned { align: 16 });
    assert_eq!(run(&PLAIN.replace("[%d2]", "[%d2+8]")).kind, FaultKind::Misaligned { align: 16 });
    assert!(matches!(run(&PLAIN.replace("512,", "520,")).kind, FaultKind::Illegal { .. }));
    assert!(matches!(run(&PLAIN.replace("[%r3]", "[%r3+8]")).kind, FaultKind::Illegal { .. }));
    let far = PLAIN.replace("[%d2]", "[%d2+16]");
    let fault =
        Kernel::new("sm_90", 32, &format!("{} {WAIT}", load(512, &far))).input(&bytes(512)).fault("cp.async.bulk");
    assert!(matches!(fault.kind, FaultKind::GlobalOutOfBounds { .. }), "{fault}");
    let refusal = Kernel::new("sm_90", 32, &PLAIN.replace("shared::cluster", "shared::other")).refusal();
    assert!(refusal.contains("is not supported"), "{refusal}");
}

#[test]
fn a_place_is_free_again_when_its_readers_have_said_so() {
    let run = |body: &str| Kernel::new("sm_90", 64, body).input(&bytes(512));
    // A second copy to the same place.
    let fault = run(&load(1024, &format!("{PLAIN}\n{PLAIN}"))).fault("cp.async.bulk");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    // An ordinary store there.
    let fault = run(&format!("{} @%p1 st.shared.u32 [%r4+508], 1;", load(512, PLAIN))).fault("st.shared");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    // The other warp reads; then the next copy comes.
    let again = |between: &str| {
        format!(
            "{} {WAIT} ld.shared.u32 %r9, [%r4+256]; {between} @!%p1 bra $J;
             mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
             {PLAIN}
             $J: {}",
            load(512, PLAIN),
            WAIT.replace("$W", "$V").replace(", 0;", ", 1;")
        )
    };
    run(&again("bar.sync 0;")).sound();
    let fault = run(&again("")).fault("cp.async.bulk");
    assert!(matches!(fault.kind, FaultKind::SharedRace { what: "read, then write", .. }), "{fault}");
}

/// What a box of a tensor of 2-byte elements looks like in shared memory.
fn expected(input: &[u8], map: &TensorMap, start: [i64; 3]) -> Vec<u8> {
    let (size, row) = (map.box_bytes() as usize, map.box_dims[0] as usize);
    let mut out = vec![0; size];
    for i in 0..size / 2 {
        let (x, y, z) = (i % row, i / row % map.box_dims[1] as usize, i / row / map.box_dims[1] as usize);
        let at = [x, y, z].iter().zip(start).map(|(&i, start)| i as i64 + start).collect::<Vec<_>>();
        let inside = at.iter().zip(&map.dims).all(|(&at, &dim)| (0..dim as i64).contains(&at));
        if inside {
            let from = (at[0] * 2 + at[1] * map.strides[0] as i64 + at[2] * map.strides[1] as i64) as usize;
            let pieces = map.swizzle.bytes() as usize / 16;
            let to = (2 * i) ^ ((2 * i / 128 % pieces.max(1)) * 16);
            out[to..to + 2].copy_from_slice(&input[from..from + 2]);
        }
    }
    out
}

#[test]
fn boxes_of_tensors() {
    let map = TensorMap {
        address: 0,
        element_bytes: 2,
        dims: vec![72, 11, 4],
        strides: vec![160, 160 * 11],
        box_dims: vec![64, 8, 2],
        swizzle: Swizzle::None,
    };
    let input = bytes(160 * 11 * 4);
    let row = [(Swizzle::Span32, 16), (Swizzle::Span64, 32), (Swizzle::Span128, 64), (Swizzle::None, 64)];
    for ((swizzle, width), start) in
        row.into_iter().flat_map(|row| [[0, 0, 0], [8, 3, 1], [40, 6, 3], [-3, -2, -1]].map(|start| (row, start)))
    {
        let map = TensorMap { swizzle, box_dims: vec![width, 8, 2], ..map.clone() };
        let size = map.box_bytes();
        let [x, y, z] = start;
        let copy = format!(
            "mov.b32 %r10, {x}; mov.b32 %r11, {y};
             cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4],
             [%d3, {{%r10, %r11, {z}}}], [%r3];"
        );
        let body = format!("{} {WAIT} {}", load(size, &copy), dump(size));
        let at = |address| TensorMap { address, ..map.clone() }.encode().unwrap().to_vec();
        let words = Kernel::new("sm_90", 64, &body).input(&input).more(at).words(size as usize / 4);
        assert_eq!(words, to_words(&expected(&input, &map, start)), "{swizzle:?} {start:?}");
    }
}

#[test]
fn boxes_that_are_not_allowed() {
    let map = |address| TensorMap {
        address,
        element_bytes: 2,
        dims: vec![64, 8],
        strides: vec![128],
        box_dims: vec![64, 8],
        swizzle: Swizzle::Span128,
    };
    let copy =
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%d3, {0, 0}], [%r3];";
    let run = |copy: &str| {
        let object = |address| map(address).encode().unwrap().to_vec();
        Kernel::new("sm_90", 32, &format!("{} {WAIT}", load(1024, copy))).input(&bytes(1024)).more(object)
    };
    run(copy).sound();
    assert_eq!(run(&copy.replace("[%r4]", "[%r4+64]")).fault("tensor").kind, FaultKind::Misaligned { align: 128 });
    let rule = |copy: &str, part: &str| {
        let fault = run(copy).fault("tensor");
        assert!(matches!(&fault.kind, FaultKind::Illegal { what } if what.contains(part)), "{fault}");
    };
    rule(&copy.replace("%d3,", "%d2,"), "no tensor map");
    rule(&copy.replace("2d", "3d").replace("{0, 0}", "{0, 0, 0}"), "3 coordinates for a tensor of 2");
    let refusal = Kernel::new("sm_90", 32, &copy.replace("{0, 0}", "{0}")).refusal();
    assert!(refusal.contains("expected 2 coordinates, found 1"), "{refusal}");
    // Data that the tensor does not have.
    let short = |address| TensorMap { dims: vec![64, 9], box_dims: vec![64, 9], ..map(address) };
    let body = format!("{} {WAIT}", load(1152, copy));
    let kernel = Kernel::new("sm_90", 32, &body).input(&bytes(1024));
    let fault = kernel.more(|address| short(address).encode().unwrap().to_vec()).fault("tensor");
    assert!(matches!(fault.kind, FaultKind::GlobalOutOfBounds { .. }), "{fault}");
}

/// Each thread writes a word, and thread 0 copies them all to the buffer, where `steps` are what is in between.
fn store(fence: &str, barrier: &str, after: &str) -> String {
    format!(
        "shl.b32 %r5, %r1, 2; add.u32 %r5, %r5, %r3; add.u32 %r6, %r1, 100; st.shared.u32 [%r5], %r6;
         {fence} {barrier} @!%p1 bra $E;
         cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 256; cp.async.bulk.commit_group;
         {after}
         $E: ret;"
    )
}

#[test]
fn copies_to_global_memory_need_fence_barrier_and_wait() {
    let (fence, barrier, wait) = ("fence.proxy.async.shared::cta;", "bar.sync 0;", "cp.async.bulk.wait_group.read 0;");
    let run = |body: &str| Kernel::new("sm_90", 64, body);
    let words: Vec<u32> = (100..164).collect();
    assert_eq!(run(&store(fence, barrier, wait)).words(64), words);
    // The thread that copies fences what it has learned of.
    assert_eq!(run(&store("", &format!("{barrier} {fence}"), wait)).words(64), words);
    let missing = |body: &str| match run(body).fault("cp.async.bulk.global").kind {
        FaultKind::MissingFence { fence, what } => (fence, what),
        kind => panic!("{kind}"),
    };
    let (name, what) = missing(&store("", barrier, wait));
    assert_eq!(name, "fence.proxy.async");
    assert!(what.contains("written by thread 0 "), "{what}");
    // Half of the writers fence; or they do so too early, or where nobody learns of it.
    assert!(
        missing(&store(&format!("setp.lt.u32 %p2, %r1, 32; @%p2 {fence}"), barrier, wait)).1.contains("thread 32 ")
    );
    missing(&format!("{fence} {}", store("", barrier, wait)));
    missing(&store(fence, barrier, wait).replace("@!%p1 bra $E;", "@%p1 st.shared.u32 [%r3+8], 1; @!%p1 bra $E;"));
    let fault = run(&store(fence, "", wait)).fault("cp.async.bulk.global");
    assert!(matches!(fault.kind, FaultKind::SharedRace { what: "write, then read", .. }), "{fault}");
    // Nobody waits; or the memory is used again before the wait.
    let fault = run(&store(fence, barrier, "")).fault("cp.async.bulk.global");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    let again = "st.shared.u32 [%r3+252], 0;";
    run(&store(fence, barrier, &format!("{wait} {again}"))).sound();
    let fault = run(&store(fence, barrier, &format!("{again} {wait}"))).fault("st.shared.u32 [%r3+252]");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
    let fault = run(&store(fence, barrier, &format!("cp.async.bulk.wait_group.read 1; {again}"))).fault("st.shared");
    assert!(matches!(fault.kind, FaultKind::UsedBeforeWait { .. }), "{fault}");
}

#[test]
fn boxes_to_global_memory_leave_out_what_is_outside() {
    // The buffer is a tensor of 10 rows of 24 words, of which the box covers the last ones.
    let body = "shl.b32 %r5, %r1, 4; add.u32 %r5, %r5, %r3; add.u32 %r6, %r1, 1;
                st.shared.v4.u32 [%r5], {%r6, %r6, %r6, %r6}; fence.proxy.async.shared::cta; bar.sync 0; @!%p1 bra $E;
                cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d3, {16, 7}], [%r3];
                cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
                $E: ret;";
    let kernel = Kernel::new("sm_90", 16, body);
    let map = TensorMap {
        address: kernel.buffer(),
        element_bytes: 4,
        dims: vec![22, 9],
        strides: vec![96],
        box_dims: vec![16, 4],
        swizzle: Swizzle::None,
    };
    let words = kernel.more(|_| map.encode().unwrap().to_vec()).words(240);
    for (i, word) in words.into_iter().enumerate() {
        let (x, y) = (i % 24, i / 24);
        let inside = (16..22).contains(&x) && (7..9).contains(&y);
        assert_eq!(word, if inside { ((y - 7) * 4 + (x - 16) / 4 + 1) as u32 } else { 0 }, "{x} {y}");
    }
}
