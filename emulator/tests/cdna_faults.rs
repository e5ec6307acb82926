//! Each check finds its faulty kernel, names the instruction, and lets the sound twin pass.

mod cdna_support;

use cdna_support::Kernel;
use splitkv_emulator::{Arch, Error, FaultKind, Machine};

/// Arguments in s[4:7], 4 times the thread's index in v1.
const START: &str = "
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_lshlrev_b32_e32 v1, 2, v0
    s_waitcnt lgkmcnt(0)
";

fn kernel(body: &str) -> Kernel {
    Kernel::new(&format!("{START}{body}\ns_endpgm")).lds(1024)
}

/// `faulty` is caught at `instruction`; `sound` passes and stores `expected` from each thread.
#[track_caller]
fn twins(threads: u32, faulty: &str, instruction: &str, sound: &str, expected: impl Fn(u32) -> u32) -> FaultKind {
    let (words, _) = kernel(sound).run(threads).unwrap_or_else(|error| panic!("the sound twin: {error}"));
    for thread in 0..threads {
        assert_eq!(words[thread as usize], expected(thread), "thread {thread}");
    }
    let (kind, text) = kernel(faulty).fault(threads);
    assert_eq!(text, instruction, "{kind}");
    kind
}

#[test]
fn global_access_outside_an_allocation() {
    let sound = "
        global_load_dword v2, v1, s[4:5]
        s_waitcnt vmcnt(0)
        global_store_dword v1, v2, s[6:7]";
    let faulty = "
        v_add_u32_e32 v1, 0x4000, v1
        global_load_dword v2, v1, s[4:5]";
    let kind = twins(64, faulty, "global_load_dword v2, v1, s[4:5]", sound, |t| t);
    assert!(matches!(kind, FaultKind::GlobalOutOfBounds { bytes: 4, .. }), "{kind}");
}

#[test]
fn misaligned_global_access() {
    let faulty = "
        v_add_u32_e32 v1, 2, v1
        global_load_dwordx2 v[2:3], v1, s[4:5]";
    // Two neighbours of 16 bits may be read as one: the compiler does it.
    let sound = "
        v_add_u32_e32 v1, 2, v1
        global_load_dword v2, v1, s[4:5]
        v_lshlrev_b32_e32 v1, 2, v0
        s_waitcnt vmcnt(0)
        global_store_dword v1, v2, s[6:7]";
    let kind = twins(64, faulty, "global_load_dwordx2 v[2:3], v1, s[4:5]", sound, |t| (t + 1) << 16);
    assert_eq!(kind, FaultKind::Misaligned { align: 4 });
}

#[test]
fn lds_access_out_of_bounds_and_misaligned() {
    let sound = "
        ds_write_b32 v1, v0 offset:512
        ds_read_b32 v2, v1 offset:512
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v2, s[6:7]";
    let kind = twins(64, "ds_write_b32 v1, v0 offset:1020", "ds_write_b32 v1, v0 offset:1020", sound, |t| t);
    assert_eq!(kind, FaultKind::SharedOutOfBounds { bytes: 4, size: 1024 });
    let kind = twins(64, "ds_read_b64 v[2:3], v1", "ds_read_b64 v[2:3], v1", sound, |t| t);
    assert_eq!(kind, FaultKind::Misaligned { align: 8 });
}

/// All LDS words are defined.
const DEFINE: &str = "
    ds_write_b32 v1, v0
    s_waitcnt lgkmcnt(0)
    s_barrier
";
/// Each of two waves writes its LDS words and reads the other's.
const EXCHANGE_WRITE: &str = "
    ds_write_b32 v1, v0
    v_xor_b32_e32 v3, 0x100, v1
";
const EXCHANGE_READ: &str = "
    ds_read_b32 v2, v3
    s_waitcnt lgkmcnt(0)
    global_store_dword v1, v2, s[6:7]
";

#[test]
fn lds_race_between_waves() {
    let sound = format!("{EXCHANGE_WRITE} s_waitcnt lgkmcnt(0)\ns_barrier\n{EXCHANGE_READ}");
    let faulty = format!("{DEFINE}{EXCHANGE_WRITE} s_waitcnt lgkmcnt(0)\n{EXCHANGE_READ}");
    // The first wave reads what the second then writes.
    let kind = twins(128, &faulty, "ds_write_b32 v1, v0", &sound, |t| t ^ 64);
    assert!(matches!(kind, FaultKind::SharedRace { .. }), "{kind}");
}

#[test]
fn barrier_passed_by_an_lds_store() {
    let sound = format!("{EXCHANGE_WRITE} s_waitcnt lgkmcnt(0)\ns_barrier\n{EXCHANGE_READ}");
    let faulty = format!("{DEFINE}{EXCHANGE_WRITE} s_barrier\n{EXCHANGE_READ}");
    // Found when the second wave goes on: the first has read what is not certain to be stored.
    let (words, _) = kernel(&sound).run(128).unwrap();
    assert_eq!(words[127], 63);
    let (kind, _) = kernel(&faulty).fault(128);
    assert!(matches!(kind, FaultKind::UsedBeforeWait { .. }), "{kind}");
}

#[test]
fn vector_load_used_before_its_wait() {
    let loads = "
        global_load_dword v2, v1, s[4:5]
        global_load_dword v3, v1, s[4:5] offset:256
    ";
    let use_first = "v_add_u32_e32 v4, 1, v2\nglobal_store_dword v1, v4, s[6:7]";
    let use_second = "v_add_u32_e32 v4, 1, v3\nglobal_store_dword v1, v4, s[6:7]";
    let waited = |count: &str, rest: &str| format!("{loads} s_waitcnt vmcnt({count})\n{rest}");
    // Loads arrive in order: with one outstanding, the first is there.
    let kind = twins(64, &waited("1", use_second), "v_add_u32_e32 v4, 1, v3", &waited("1", use_first), |t| t + 1);
    assert!(matches!(kind, FaultKind::UsedBeforeWait { .. }), "{kind}");
    let kind =
        twins(64, &format!("{loads}{use_first}"), "v_add_u32_e32 v4, 1, v2", &waited("0", use_second), |t| t + 65);
    assert!(matches!(kind, FaultKind::UsedBeforeWait { .. }), "{kind}");
    // Overwriting the destination of a load is no better.
    let overwrite = "v_mov_b32_e32 v2, 7\nglobal_store_dword v1, v2, s[6:7]";
    let kind = twins(64, &format!("{loads}{overwrite}"), "v_mov_b32_e32 v2, 7", &waited("0", overwrite), |_| 7);
    assert!(matches!(kind, FaultKind::UsedBeforeWait { .. }), "{kind}");
}

#[test]
fn scalar_load_used_before_its_wait() {
    let load = "s_load_dword s8, s[4:5], 0x14\n";
    let rest = "v_mov_b32_e32 v2, s8\nglobal_store_dword v1, v2, s[6:7]";
    for count in ["", "s_waitcnt lgkmcnt(1)\n"] {
        let faulty = format!("{load}{count}{rest}");
        let sound = format!("{load}s_waitcnt lgkmcnt(0)\n{rest}");
        // Scalar loads arrive in any order: a count above 0 says nothing.
        let kind = twins(64, &faulty, "v_mov_b32_e32 v2, s8", &sound, |_| 5);
        assert!(matches!(kind, FaultKind::UsedBeforeWait { .. }), "{kind}");
    }
}

#[test]
fn lds_load_used_before_its_wait() {
    let load = "ds_write_b32 v1, v0\nds_read_b32 v2, v1\n";
    let rest = "global_store_dword v1, v2, s[6:7]";
    let faulty = format!("{load}s_waitcnt lgkmcnt(1)\n{rest}");
    let sound = format!("{load}s_waitcnt lgkmcnt(0)\n{rest}");
    let kind = twins(64, &faulty, rest, &sound, |t| t);
    assert!(matches!(kind, FaultKind::UsedBeforeWait { .. }), "{kind}");
}

/// Two waves, each loads 256 bytes to LDS and reads what the other loaded.
#[test]
fn load_to_lds_read_before_it_arrives() {
    let load = "
        v_readfirstlane_b32 s8, v1
        s_mov_b32 m0, s8
        global_load_lds_dword v1, s[4:5]
        v_xor_b32_e32 v3, 0x100, v1
    ";
    let with = |middle: &str| kernel(&format!("{DEFINE}{load}{middle}{EXCHANGE_READ}"));
    let (words, _) = with("s_waitcnt vmcnt(0)\ns_barrier\n").run(128).unwrap();
    assert_eq!(words[..128], (0..128).map(|t| t ^ 64).collect::<Vec<_>>()[..]);
    for middle in ["", "s_barrier\n", "s_waitcnt vmcnt(1)\ns_barrier\n", "s_barrier\ns_waitcnt vmcnt(0)\n"] {
        let (kind, _) = with(middle).fault(128);
        assert!(matches!(kind, FaultKind::UsedBeforeWait { .. } | FaultKind::SharedRace { .. }), "{middle}: {kind}");
    }
}

#[test]
fn barrier_missed_by_a_wave() {
    let faulty = "
        v_cmp_gt_u32_e32 vcc, 64, v0
        s_cbranch_vccz 1
        s_barrier
        global_store_dword v1, v0, s[6:7]";
    let sound = "
        v_cmp_gt_u32_e32 vcc, 64, v0
        s_cbranch_vccz 0
        s_barrier
        global_store_dword v1, v0, s[6:7]";
    let kind = twins(128, faulty, "s_barrier", sound, |t| t);
    assert_eq!(kind, FaultKind::BarrierMissed { barrier: 0, waiting: 64, expected: 128 });
}

#[test]
fn waits_for_ever() {
    let sound = "
        s_mov_b32 s8, 0
        s_add_u32 s8, s8, 1
        s_cmp_lg_u32 s8, 0x64
        s_cbranch_scc1 65532
        global_store_dword v1, v0, s[6:7]";
    let faulty = "
        s_mov_b32 s8, 0
        s_cmp_lg_u32 s8, 0x64
        s_cbranch_scc1 65533
        global_store_dword v1, v0, s[6:7]";
    let (words, _) = kernel(sound).run(64).unwrap();
    assert_eq!(words[63], 63);
    let (kind, _) = kernel(faulty).fault(64);
    assert!(matches!(kind, FaultKind::WaitsForEver { .. }), "{kind}");
}

#[test]
fn undefined_registers_reach_nothing() {
    let sound = "global_store_dword v1, v0, s[6:7]";
    for (faulty, instruction, sink) in [
        ("global_load_dword v2, v9, s[4:5]", "global_load_dword v2, v9, s[4:5]", "an address"),
        ("ds_read_b32 v2, v9", "ds_read_b32 v2, v9", "an address"),
        ("s_cmp_lg_u32 s8, 0x64\ns_cbranch_scc1 0", "s_cbranch_scc1 0", "a branch"),
        ("v_cmp_gt_u32_e32 vcc, 64, v9\ns_cbranch_vccz 0", "s_cbranch_vccz 0", "a branch"),
        (
            "v_cmp_gt_u32_e32 vcc, 64, v9\ns_and_saveexec_b64 s[8:9], vcc",
            "s_and_saveexec_b64 s[8:9], vcc",
            "EXEC, which decides which lanes run",
        ),
        (
            "v_add_u32_e32 v2, v0, v9\nglobal_store_dword v1, v2, s[6:7]",
            "global_store_dword v1, v2, s[6:7]",
            "a store to a buffer",
        ),
        (
            "ds_read_b32 v2, v1\ns_waitcnt lgkmcnt(0)\nglobal_store_dword v1, v2, s[6:7]",
            "global_store_dword v1, v2, s[6:7]",
            "a store to a buffer",
        ),
        (
            "scratch_load_dword v2, off, off offset:8\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v2, s[6:7]",
            "global_store_dword v1, v2, s[6:7]",
            "a store to a buffer",
        ),
        ("global_load_lds_dword v1, s[4:5]", "global_load_lds_dword v1, s[4:5]", "an address (M0)"),
    ] {
        let (kind, text) = kernel(faulty).scratch(16).fault(64);
        assert_eq!((kind, &text[..]), (FaultKind::Undefined { sink }, instruction));
    }
    kernel(sound).run(64).unwrap();
}

/// What does not depend on the undefined part passes.
#[test]
fn undefined_values_that_do_not_matter_pass() {
    let sound = "
        v_cmp_gt_u32_e32 vcc, 32, v0
        v_cndmask_b32_e32 v2, v0, v9, vcc    ; lanes 0..32 undefined
        v_cndmask_b32_e32 v2, v2, v0, vcc    ; and defined again
        v_cmp_eq_u32_e32 vcc, v9, v9         ; never looked at
        s_mov_b64 s[8:9], vcc
        s_and_b64 s[8:9], s[8:9], 0
        s_cbranch_scc1 0
        v_mov_b32_e32 v12, v0
        v_mad_u64_u32 v[10:11], s[10:11], v0, 1, v[12:13]
        v_add_u32_e32 v2, v2, v10
        global_store_dword v1, v2, s[6:7]";
    let (words, _) = kernel(sound).run(64).unwrap();
    assert_eq!(words[..64], (0..64).map(|t| 3 * t).collect::<Vec<_>>()[..]);
}

#[test]
fn undefined_memory_stays_undefined() {
    let kernel = Kernel::new(&format!(
        "{START} global_load_dword v2, v1, s[4:5]
         s_waitcnt vmcnt(0)
         global_store_dword v1, v2, s[6:7]
         s_endpgm"
    ));
    let machine = Machine::with_memory(Arch::Gfx950, 1 << 24);
    let module = machine.load(&kernel.code_object()).unwrap();
    let [from, buffer] = [0; 2].map(|_| machine.alloc(256).unwrap());
    let workspace = machine.alloc_workspace(256).unwrap();
    let launch = |to| machine.launch(&module, "kernel", [1, 1, 1], [64, 1, 1], 0, &[from, to]);
    let Err(Error::Fault(fault)) = launch(buffer) else { panic!("an undefined store") };
    assert_eq!(fault.kind, FaultKind::Undefined { sink: "a store to a buffer" });
    launch(workspace).unwrap();
    assert_eq!(machine.undefined(workspace, 256).unwrap(), Some(workspace));
    machine.fill(from, 1, 256).unwrap();
    launch(buffer).unwrap();
}

#[test]
fn scratch_out_of_bounds() {
    let store = "scratch_store_dword off, v0, off offset:8\n";
    let rest = "s_waitcnt vmcnt(0)\nscratch_load_dword v2, off, off offset:8\ns_waitcnt vmcnt(0)\n";
    let sound = kernel(&format!("{store}{rest}global_store_dword v1, v2, s[6:7]"));
    assert_eq!(sound.clone().scratch(12).run(64).unwrap().0[63], 63);
    let (kind, text) = sound.scratch(8).fault(64);
    assert_eq!(kind, FaultKind::LocalOutOfBounds { bytes: 4, size: 8 });
    assert_eq!(text, "scratch_store_dword off, v0, off offset:8");
}

#[test]
fn parameters_end_where_they_end() {
    let (kind, text) = kernel("s_load_dwordx2 s[8:9], s[0:1], 0x10").fault(64);
    assert_eq!(kind, FaultKind::ParameterOutOfBounds { bytes: 4, size: 16 });
    assert_eq!(text, "s_load_dwordx2 s[8:9], s[0:1], 0x10");
}

#[test]
fn what_cannot_be_executed_is_refused_by_name() {
    let machine = Machine::with_memory(Arch::Gfx950, 1 << 20);
    let refusal = |code: &[u32]| {
        let code = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        let kernel = Kernel { code, ..kernel("") };
        machine.load(&kernel.code_object()).unwrap_err().to_string()
    };
    // s_nop 0, then VOP1 code 0x7f.
    let text = refusal(&[0xbf80_0000, 0x7e00_fe00]);
    assert_eq!(text, "kernel kernel, offset 0x4: unknown Vop1 code 0x7f (word 0x7e00fe00)");
    // v_mov_b32 v130, v0 in a kernel of 128 registers.
    let text = refusal(&[0x7f04_0300]);
    assert_eq!(text, "kernel kernel, offset 0x0: `v_mov_b32_e32 v130, v0` uses a register beyond the 128 + 64");
    // s_branch 5 out of the code.
    let text = refusal(&[0xbf82_0005]);
    assert_eq!(text, "kernel kernel, offset 0x0: `s_branch 5` leaves the kernel's instructions");
    assert!(machine.load(b"no code object").is_err());
    let mut other = kernel("").code_object();
    other[48] = 0x4c;
    let text = machine.load(&other).unwrap_err().to_string();
    assert!(text.contains("does not run on gfx950"), "{text}");
}
