//! What small kernels count, against values worked out by hand.

mod cdna_support;

use cdna_support::Kernel;
use splitkv_emulator::{Arch, Counters, Machine};

/// Runs a PTX kernel on one block with 16 KiB of dynamic shared memory. `%d1` is a buffer of 16 KiB of zeros, `%r2` the
/// thread, `%r3` the shared memory's address. Beside `body`, a warp executes 3 integer instructions and `ret`.
fn ptx(threads: u32, body: &str) -> Counters {
    let text = format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n\
         .visible .entry k(.param .u64 k_p)\n{{\n\
         .reg .pred %p<4>;\n.reg .f32 %f<8>;\n.reg .b32 %r<32>;\n.reg .b64 %d<16>;\n\
         ld.param.u64 %d1, [k_p];\nmov.u32 %r2, %tid.x;\nmov.u32 %r3, dyn;\n{body}\nret;\n}}\n"
    );
    let machine = Machine::with_memory(Arch::Sm90, 1 << 24);
    let module = machine.load(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let p = machine.alloc(16384).expect("there is room");
    machine.fill(p, 0, 16384).expect("it was just allocated");
    machine.launch(&module, "k", [1, 1, 1], [threads, 1, 1], 16384, &[p]).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs gfx950 code on one block with 16 KiB of LDS. s[4:5] and s[6:7] are buffers of 16 KiB, v0 is the thread. Beside
/// `body`, a wave executes a scalar load of its arguments, a wait and `s_endpgm`.
fn gfx950(threads: u32, body: &str) -> Counters {
    let text = format!("s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\n{body}\ns_endpgm");
    let (_, counters) = Kernel::new(&text).lds(16384).run(threads).unwrap_or_else(|error| panic!("{error}"));
    counters
}

/// Bytes and sectors of global loads and of global stores.
fn global(counters: &Counters) -> [u64; 4] {
    let Counters { global_load_bytes, global_load_sectors, global_store_bytes, global_store_sectors, .. } = *counters;
    [global_load_bytes, global_load_sectors, global_store_bytes, global_store_sectors]
}

/// Bytes of shared loads and of shared stores, and bank conflicts.
fn shared(counters: &Counters) -> [u64; 3] {
    [counters.shared_load_bytes, counters.shared_store_bytes, counters.bank_conflicts]
}

/// Asserts that the classes add up.
fn assert_disjoint(c: &Counters) {
    let [a, b] = [
        [c.integer_instructions, c.float_instructions, c.special_instructions, c.control_instructions],
        [c.memory_instructions, c.shared_instructions, c.matrix_instructions, c.lane_instructions],
    ]
    .map(|classes| classes.iter().sum::<u64>());
    assert_eq!(c.instructions, a + b + c.atomic_instructions + c.sync_instructions);
}

#[test]
fn ptx_global_accesses() {
    let at = |stride: u32| format!("mul.wide.u32 %d2, %r2, {stride};\nadd.u64 %d3, %d1, %d2;\n");
    let wide = "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d3];\nst.global.v4.u32 [%d3], {%r4, %r5, %r6, %r7};";
    let coalesced = ptx(32, &(at(16) + wide));
    assert_eq!(global(&coalesced), [512, 16, 512, 16]);
    assert_eq!((coalesced.blocks, coalesced.instructions), (1, 8));
    assert_eq!((coalesced.integer_instructions, coalesced.memory_instructions), (5, 2));
    assert_eq!(coalesced.control_instructions, 1);
    // 16 bytes of every 64 are half a sector each; words 128 bytes apart are an eighth each.
    assert_eq!(global(&ptx(32, &(at(64) + wide))), [512, 32, 512, 32]);
    let word = "ld.global.u32 %r4, [%d3];\nst.global.u32 [%d3], %r4;";
    assert_eq!(global(&ptx(32, &(at(4) + word))), [128, 4, 128, 4]);
    assert_eq!(global(&ptx(32, &(at(128) + word))), [128, 32, 128, 32]);
    assert_eq!(global(&ptx(32, "ld.global.u32 %r4, [%d1];")), [128, 1, 0, 0], "one word for all lanes");
    // 40 threads are two warps, the second with 8 lanes.
    assert_eq!(global(&ptx(40, &(at(4) + word))), [160, 5, 160, 5]);
    let guarded = at(4) + "setp.lt.u32 %p1, %r2, 12;\n@%p1 ld.global.u32 %r4, [%d3];";
    assert_eq!(global(&ptx(32, &guarded)), [48, 2, 0, 0], "lanes that take part");
}

#[test]
fn ptx_shared_accesses() {
    let at = |stride: u32| format!("mad.lo.u32 %r8, %r2, {stride}, %r3;\n");
    let word = "st.shared.u32 [%r8], %r2;\nld.shared.u32 %r9, [%r8];";
    let counters = ptx(32, &(at(4) + word));
    assert_eq!(shared(&counters), [128, 128, 0]);
    assert_eq!((counters.shared_instructions, counters.integer_instructions), (2, 4));
    assert_eq!(shared(&ptx(32, &(at(8) + word))), [128, 128, 2], "2 words a bank: one pass more, twice");
    assert_eq!(shared(&ptx(32, &(at(128) + word))), [128, 128, 62], "32 words in one bank, twice");
    let pair = "st.shared.v2.u32 [%r8], {%r2, %r2};\nld.shared.v2.u32 {%r9, %r10}, [%r8];";
    assert_eq!(shared(&ptx(32, &(at(8) + pair))), [256, 256, 0]);
    assert_eq!(shared(&ptx(32, &(at(128) + pair))), [256, 256, 60], "halves of a warp: 2 * 15, twice");
    let wide = "st.shared.v4.u32 [%r8], {%r2, %r2, %r2, %r2};\nld.shared.v4.u32 {%r9, %r10, %r11, %r12}, [%r8];";
    assert_eq!(shared(&ptx(32, &(at(16) + wide))), [512, 512, 0]);
    assert_eq!(shared(&ptx(32, &(at(256) + wide))), [512, 512, 56], "quarters of a warp: 4 * 7, twice");
    let generic = "cvta.shared.u64 %d4, %d5;\nst.u32 [%d4], %r2;\nld.u32 %r9, [%d4];";
    let generic = format!("{}cvt.u64.u32 %d5, %r8;\n{generic}", at(128));
    let counters = ptx(32, &generic);
    assert_eq!((shared(&counters), global(&counters)), ([128, 128, 62], [0; 4]), "by generic addresses");
}

#[test]
fn ptx_copies() {
    let copy = |stride: u32, used: &str| {
        format!(
            "mul.wide.u32 %d2, %r2, 16;\nadd.u64 %d3, %d1, %d2;\nmad.lo.u32 %r8, %r2, {stride}, %r3;\n\
             setp.lt.u32 %p1, %r2, 8;\nselp.u32 %r9, 16, 4, %p1;\n\
             cp.async.cg.shared.global [%r8], [%d3], 16{used};\ncp.async.commit_group;\ncp.async.wait_group 0;"
        )
    };
    let counters = ptx(32, &copy(16, ""));
    assert_eq!((global(&counters), shared(&counters)), ([512, 16, 0, 0], [0, 512, 0]));
    assert_eq!((counters.memory_instructions, counters.sync_instructions), (1, 2));
    assert_eq!(shared(&ptx(32, &copy(128, ""))), [0, 512, 28], "rows of 128 bytes: 4 quarters of 8 lanes in 4 banks");
    // Lanes 0 to 7 read 16 bytes: 4 sectors. The others read 4, and two lanes share a sector: 12.
    let counters = ptx(32, &copy(16, ", %r9"));
    assert_eq!((global(&counters), shared(&counters)), ([8 * 16 + 24 * 4, 16, 0, 0], [0, 512, 0]));
}

#[test]
fn ptx_matrix_operations() {
    let load = |stride: u32, instruction: &str| format!("mad.lo.u32 %r8, %r2, {stride}, %r3;\n{instruction}");
    let four = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r9, %r10, %r11, %r12}, [%r8];";
    let counters = ptx(32, &load(16, four));
    assert_eq!((shared(&counters), counters.shared_instructions), ([512, 0, 0], 1));
    assert_eq!(shared(&ptx(32, &load(256, four))), [512, 0, 28], "8 rows in the same 4 banks, 4 times");
    assert_eq!(shared(&ptx(32, &load(272, four))), [512, 0, 0], "16 bytes of padding");
    let two = "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r9, %r10}, [%r8];";
    assert_eq!(shared(&ptx(32, &load(256, two))), [256, 0, 14], "the rows of lanes 0 to 15 only");
    let half = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7}, \
                {%r8, %r9}, {%f4, %f5, %f6, %f7};\n";
    let counters = ptx(64, &(half.to_owned() + half));
    assert_eq!((counters.matrix_instructions, counters.matrix_macs), (2 * 2, 2 * 2 * 16 * 8 * 16));
    let byte = half.replace("k16", "k32").replace("bf16.bf16", "e4m3.e4m3");
    assert_eq!(ptx(32, &byte).matrix_macs, 16 * 8 * 32);
}

#[test]
fn ptx_classes_and_barriers() {
    let counters = ptx(
        96,
        "bar.sync 0;
         mov.f32 %f0, 0f3f800000;
         add.f32 %f1, %f0, %f0;
         fma.rn.f32 %f1, %f1, %f0, %f0;
         ex2.approx.ftz.f32 %f2, %f1;
         shfl.sync.bfly.b32 %r4, %r2, 1, 31, -1;
         setp.eq.u32 %p1, %r2, 0;
         vote.sync.ballot.b32 %r5, %p1, -1;
         atom.global.add.u32 %r6, [%d1], 1;
         membar.gl;
         bar.warp.sync -1;
         @%p1 bra DONE;
         bra DONE;
         DONE:
         bar.sync 0;",
    );
    assert_disjoint(&counters);
    assert_eq!(counters.barriers, 2, "of the block, not of its warps");
    assert_eq!(counters.sync_instructions, 3 * 4);
    assert_eq!(counters.special_instructions, 3);
    assert_eq!(counters.lane_instructions, 3 * 2);
    assert_eq!(counters.atomic_instructions, 3);
    assert_eq!(counters.integer_instructions, 3 * 5, "three before the body, a move and a comparison");
    assert_eq!(counters.float_instructions, 3 * 2);
    assert_eq!(counters.control_instructions, 3 * 3, "two branches and the return: lane 0 jumps, the others come too");
}

#[test]
fn gfx950_global_accesses() {
    let wide = "global_load_dwordx4 v[12:15], v8, s[4:5]\ns_waitcnt vmcnt(0)\n\
                global_store_dwordx4 v8, v[12:15], s[6:7]\n";
    let coalesced = gfx950(64, &format!("v_lshlrev_b32_e32 v8, 4, v0\n{wide}"));
    assert_eq!(global(&coalesced), [1024, 32, 1024, 32], "arguments are no global memory");
    assert_disjoint(&coalesced);
    assert_eq!((coalesced.instructions, coalesced.memory_instructions, coalesced.sync_instructions), (7, 3, 2));
    assert_eq!((coalesced.integer_instructions, coalesced.control_instructions), (1, 1));
    assert_eq!(global(&gfx950(64, &format!("v_lshlrev_b32_e32 v8, 8, v0\n{wide}"))), [1024, 64, 1024, 64]);
    let word = "global_load_dword v2, v8, s[4:5]\nglobal_store_dword v8, v0, s[6:7]\n";
    assert_eq!(global(&gfx950(64, &format!("v_lshlrev_b32_e32 v8, 2, v0\n{word}"))), [256, 8, 256, 8]);
    assert_eq!(global(&gfx950(64, &format!("v_lshlrev_b32_e32 v8, 8, v0\n{word}"))), [256, 64, 256, 64]);
    // 80 threads are two waves, the second with 16 lanes.
    assert_eq!(global(&gfx950(80, &format!("v_lshlrev_b32_e32 v8, 2, v0\n{word}"))), [320, 10, 320, 10]);
    let scalar = gfx950(64, "s_load_dwordx8 s[8:15], s[4:5], 0x2000\ns_waitcnt lgkmcnt(0)");
    assert_eq!(global(&scalar), [32, 1, 0, 0], "once a wave");
    let copy = gfx950(64, "v_lshlrev_b32_e32 v8, 2, v0\ns_mov_b32 m0, 0\nglobal_load_lds_dword v8, s[4:5]");
    assert_eq!((global(&copy), shared(&copy)), ([256, 8, 0, 0], [0, 256, 0]), "LDS is filled lane by lane");
}

#[test]
fn gfx950_lds_accesses() {
    let word = "ds_write_b32 v8, v0\nds_read_b32 v2, v8\n";
    let counters = gfx950(64, &format!("v_lshlrev_b32_e32 v8, 2, v0\n{word}"));
    assert_eq!((shared(&counters), counters.shared_instructions), ([256, 256, 0], 2));
    let one_bank = gfx950(64, &format!("v_lshlrev_b32_e32 v8, 8, v0\n{word}"));
    assert_eq!(shared(&one_bank), [256, 256, 2 * 31 + 63], "stores in halves of 32 banks, loads in 64");
    let wide = "global_load_dwordx4 v[12:15], v8, s[4:5]\ns_waitcnt vmcnt(0)\n\
                ds_write_b128 v8, v[12:15]\nds_read_b128 v[36:39], v8\n";
    let counters = gfx950(64, &format!("v_lshlrev_b32_e32 v8, 4, v0\n{wide}"));
    assert_eq!(shared(&counters), [1024, 1024, 0]);
    let rows = gfx950(64, &format!("v_lshlrev_b32_e32 v8, 8, v0\n{wide}"));
    assert_eq!(shared(&rows), [1024, 1024, 8 * 7 + 4 * 15], "8 phases of 8 lanes, and 4 of 16");
}

#[test]
fn gfx950_classes_matrix_operations_and_barriers() {
    let counters = gfx950(
        128,
        "s_barrier
         v_mfma_f32_16x16x32_bf16 v[24:27], v[8:11], v[12:15], v[16:19]
         v_mfma_f32_32x32x16_bf16 a[0:15], v[8:11], a[20:23], 0
         v_lshlrev_b32_e32 v8, 2, v0
         v_mul_f32_e32 v24, v8, v9
         v_sqrt_f32_e32 v24, v8
         v_permlane32_swap_b32_e32 v8, v9
         s_mov_b64 s[16:17], 0
         s_barrier",
    );
    assert_disjoint(&counters);
    assert_eq!(counters.barriers, 2);
    assert_eq!((counters.matrix_instructions, counters.matrix_macs), (2 * 2, 2 * (16 * 16 * 32 + 32 * 32 * 16)));
    assert_eq!((counters.float_instructions, counters.special_instructions, counters.lane_instructions), (2, 2, 2));
    assert_eq!((counters.integer_instructions, counters.sync_instructions), (2 * 2, 2 * 3));
}
