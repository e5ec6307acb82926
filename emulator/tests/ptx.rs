//! Control flow, addressing and instructions that no recording covers: small kernels and what they store.

use splitkv_emulator::{Arch, Machine};

/// Runs `k(u64 p)` of one warp; thread t stores %r9 at word t of `p`, whose words hold 3 * index before.
fn run(arch: Arch, body: &str, threads: u32) -> Vec<u32> {
    let text = format!(
        ".version 8.6\n.target {}\n.address_size 64\n.visible .entry k(.param .u64 k_p)\n{{\n\
         .reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<32>;\n.reg .b64 %d<16>;\n.local .align 8 .b8 depot[32];\n\
         ld.param.u64 %d1, [k_p];\nmov.u32 %r2, %tid.x;\nmad.wide.u32 %d2, %r2, 4, %d1;\nmov.u32 %r9, 0;\n\
         {body}\nst.global.u32 [%d2], %r9;\nret;\n}}\n",
        arch.name()
    );
    let machine = Machine::new(arch);
    let module = machine.load(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let p = machine.alloc(4 * u64::from(threads)).unwrap();
    let before: Vec<u8> = (0..threads).flat_map(|i| (3 * i).to_le_bytes()).collect();
    machine.write(p, &before).unwrap();
    machine.launch(&module, "k", [1; 3], [threads, 1, 1], 0, &[p]).unwrap_or_else(|error| panic!("{error}"));
    let mut after = vec![0; before.len()];
    machine.read(p, &mut after).unwrap();
    after.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn expect(body: &str, value: impl Fn(u32) -> u32) {
    assert_eq!(run(Arch::Sm90, body, 32), (0..32).map(value).collect::<Vec<_>>(), "{body}");
}

#[test]
fn lanes_leave_a_loop_one_by_one() {
    // The sum of 0..=t, with a shuffle behind the loop that needs all lanes.
    let body = "mov.u32 %r3, 0; $L1: add.u32 %r9, %r9, %r3; add.u32 %r3, %r3, 1; setp.le.u32 %p1, %r3, %r2;
                @%p1 bra $L1; shfl.sync.idx.b32 %r9, %r9, 31, 0x1f, 0xffffffff;";
    expect(body, |_| 31 * 32 / 2);
    let body = body.replace("31, 0x1f", "%r2, 0x1f");
    expect(&body, |t| t * (t + 1) / 2);
}

#[test]
fn branches_nest_and_meet_again() {
    // The join stands before one of the arms.
    let body = "and.b32 %r3, %r2, 3; setp.eq.u32 %p1, %r3, 0; @%p1 bra $L1; setp.eq.u32 %p2, %r3, 1; @%p2 bra $L2;
                mov.u32 %r9, 30; bra $L3; $L1: mov.u32 %r9, 10; bra $L3;
                $L3: bar.warp.sync 0xffffffff; shfl.sync.bfly.b32 %r9, %r9, 1, 0x1f, 0xffffffff; bra $L4;
                $L2: mov.u32 %r9, 20; bra $L3; $L4: add.u32 %r9, %r9, 1;";
    expect(body, |t| [21, 11, 31, 31][t as usize % 4]);
}

#[test]
fn lanes_that_have_ended_are_not_waited_for() {
    let body = "setp.lt.u32 %p1, %r2, 8; @%p1 ret; shfl.sync.idx.b32 %r9, %r2, 9, 0x1f, 0xffffffff;";
    expect(body, |t| if t < 8 { 3 * t } else { 9 });
}

#[test]
fn a_table_of_branches() {
    let body = "and.b32 %r3, %r2, 3; $T: .branchtargets $A, $B, $C, $B; brx.idx %r3, $T;
                $A: mov.u32 %r9, 1; bra $E; $B: mov.u32 %r9, 2; bra $E; $C: mov.u32 %r9, 3; $E: add.u32 %r9, %r9, 10;";
    expect(body, |t| [11, 12, 13, 12][t as usize % 4]);
}

#[test]
fn guards_and_negated_predicates() {
    expect(
        "setp.lt.u32 %p1|%p2, %r2, 5; @%p1 add.u32 %r9, %r9, 1; @!%p1 add.u32 %r9, %r9, 2; @%p2 add.u32 %r9, %r9, 8;",
        |t| {
            if t < 5 { 1 } else { 10 }
        },
    );
    expect(
        "setp.gt.s32 %p1, %r2, 3; setp.lt.and.s32 %p2, %r2, 9, %p1; not.pred %p3, %p2; selp.u32 %r9, 7, 5, %p3;",
        |t| {
            if t > 3 && t < 9 { 5 } else { 7 }
        },
    );
}

#[test]
fn narrow_and_wide_values() {
    expect("ld.global.u8 %h1, [%d2]; cvt.u32.u16 %r9, %h1;", |t| (3 * t) & 0xff);
    expect("st.global.u32 [%d2], -2; ld.global.s8 %r9, [%d2+1];", |_| u32::MAX);
    expect("cvt.u16.u32 %h1, %r2; sub.s16 %h2, %h1, 5; cvt.s32.s16 %r9, %h2;", |t| t.wrapping_sub(5));
    expect("cvt.u64.u32 %d3, %r2; sub.s64 %d3, %d3, 7; shr.s64 %d4, %d3, 32; mov.b64 {%r3, %r9}, %d4;", |t| {
        if t < 7 { u32::MAX } else { 0 }
    });
    expect("mul.wide.s32 %d3, %r2, -3; mov.b64 {%r9, %r3}, %d3; add.u32 %r9, %r9, %r3;", |t| {
        if t == 0 { 0 } else { (-3 * t as i32 - 1) as u32 }
    });
    let body = "cvt.u16.u32 %h1, %r2; mov.b32 %r9, {%h1, %h1}; prmt.b32 %r9, %r9, 0, 0x3012;";
    expect(body, |t| t << 16 | t);
}

#[test]
fn local_and_generic_addresses() {
    let body = "mov.u64 %d3, depot; cvta.local.u64 %d4, %d3; shl.b32 %r3, %r2, 1; st.u32 [%d4+4], %r3;
                ld.local.u32 %r9, [%d3+4]; cvta.to.local.u64 %d5, %d4; ld.local.u32 %r4, [%d5+4]; add.u32 %r9, %r9, %r4;";
    expect(body, |t| 4 * t);
    expect("ld.u32 %r9, [%d2]; atom.add.u32 %r3, [%d2], 5; add.u32 %r9, %r9, %r3;", |t| 6 * t);
}

#[test]
fn vectors_may_skip_elements() {
    let body = "and.b32 %r3, %r2, 28; mad.wide.u32 %d3, %r3, 4, %d1; ld.global.v4.u32 {%r4, _, %r5, _}, [%d3];
                bar.warp.sync 0xffffffff; add.u32 %r9, %r4, %r5;";
    expect(body, |t| 3 * (t & 28) + 3 * ((t & 28) + 2));
}

#[test]
fn scopes_of_inline_assembly() {
    let body = "{ .reg .pred p; setp.lt.u32 p, %r2, 4; selp.u32 %r9, 1, 0, p; }
                { .reg .pred p; .reg .b32 t; setp.lt.u32 p, %r2, 8; selp.u32 t, 1, 0, p; add.u32 %r9, %r9, t; }";
    expect(body, |t| u32::from(t < 4) + u32::from(t < 8));
}

#[test]
fn pairs_of_floats_on_sm_100() {
    let body = "cvt.rn.f32.u32 %r3, %r2; mov.b64 %d3, {%r3, 0f40000000}; add.rn.f32x2 %d4, %d3, %d3;
                fma.rn.f32x2 %d4, %d3, %d4, %d3; mov.b64 {%r4, %r5}, %d4; add.rn.f32 %r4, %r4, %r5; cvt.rzi.u32.f32 %r9, %r4;";
    let values = run(Arch::Sm100, body, 32);
    assert_eq!(values, (0..32).map(|t| 2 * t * t + t + 10).collect::<Vec<_>>());
}

#[test]
fn the_largest_and_least_of_three_floats_on_sm_100() {
    let body = |name: &str| {
        format!(
            "cvt.rn.f32.u32 %r3, %r2; {name}.f32 %r4, 0f40A00000, 0f40400000, %r3; {name}.f32 %r5, %r3, 0f40A00000, 0f40400000;
             add.rn.f32 %r4, %r4, %r5; cvt.rzi.u32.f32 %r9, %r4;"
        )
    };
    assert_eq!(run(Arch::Sm100, &body("max"), 32), (0..32).map(|t| 2 * t.max(5)).collect::<Vec<_>>());
    assert_eq!(run(Arch::Sm100, &body("min"), 32), (0..32).map(|t| 2 * t.min(3)).collect::<Vec<_>>());
}
