//! Single instructions against values worked out from the CDNA3 and CDNA4 ISA manuals' descriptions.

mod cdna_support;

use cdna_support::Registers;

const ONE: u32 = 0x3f80_0000;
const TWO: u32 = 0x4000_0000;
const NAN: u32 = 0x7fc0_0000;
const INF: u32 = 0x7f80_0000;
const NEG: u32 = 0x8000_0000;

fn bits(x: f32) -> u32 {
    x.to_bits()
}

/// Sources v8, v9, v10 in the first lanes; v24 afterwards.
#[track_caller]
fn check(text: &str, rows: &[([u32; 3], u32)]) {
    let mut before = Registers::new().with(24, |_| 0xaaaa_5555);
    for (lane, (sources, _)) in rows.iter().enumerate() {
        for (i, source) in sources.iter().enumerate() {
            before.v[8 + i][lane] = *source;
        }
    }
    let after = before.execute(text);
    for (lane, (sources, expected)) in rows.iter().enumerate() {
        let got = after.v[24][lane];
        assert_eq!(got, *expected, "{text}: {sources:x?} gives {got:#x}, expected {expected:#x}");
    }
}

#[test]
fn fp32_arithmetic() {
    check("v_add_f32_e32 v24, v8, v9", &[([ONE, ONE, 0], TWO), ([INF, INF | NEG, 0], NAN)]);
    check("v_sub_f32_e32 v24, v8, v9", &[([TWO, ONE, 0], ONE)]);
    check("v_subrev_f32_e32 v24, v8, v9", &[([TWO, ONE, 0], ONE | NEG)]);
    check(
        "v_mul_f32_e64 v24, -|v8|, v9 clamp",
        &[([ONE, TWO | NEG, 0], ONE), ([TWO, bits(-0.125), 0], bits(0.25)), ([NAN, ONE, 0], 0)],
    );
    // Output factors count only where denormals are flushed.
    check("v_mul_f32_e64 v24, v8, v9 mul:2", &[([ONE, TWO, 0], TWO)]);
    check(
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\nv_mul_f32_e64 v24, v8, v9 mul:2",
        &[([ONE, TWO, 0], bits(4.0))],
    );
    // Denormals are kept: the descriptor says so.
    check("v_mul_f32_e32 v24, v8, v9", &[([1, ONE, 0], 1), ([0x0080_0000, bits(0.5), 0], 0x0040_0000)]);
    // One rounding: 1 + 2^-23 squared minus 1 - 2^-22 leaves 2^-46.
    check(
        "v_fma_f32 v24, v8, v9, v10",
        &[([0x3f80_0001, 0x3f80_0001, bits(-1.0 - 2.0 * f32::EPSILON)], bits(2f32.powi(-46)))],
    );
    check("v_fmac_f32_e32 v24, v8, v9\nv_mov_b32_e32 v24, v24", &[([0, 0, 0], 0xaaaa_5555)]);
    check("v_fmamk_f32 v24, v8, 0x41200000, v9", &[([TWO, ONE, 0], bits(21.0))]);
    check("v_fmaak_f32 v24, v8, v9, 0x41200000", &[([TWO, TWO, 0], bits(14.0))]);
    check(
        "v_min_f32_e32 v24, v8, v9",
        &[([NAN, ONE, 0], ONE), ([ONE, NAN, 0], ONE), ([NEG, 0, 0], NEG), ([0, NEG, 0], NEG)],
    );
    check("v_max_f32_e32 v24, v8, v9", &[([NAN, ONE, 0], ONE), ([NEG, 0, 0], 0), ([ONE, TWO, 0], TWO)]);
    check("v_max3_f32 v24, v8, v9, v10", &[([ONE, TWO, NAN], TWO), ([ONE, TWO, INF], INF)]);
    check("v_med3_f32 v24, v8, v9, v10", &[([ONE, TWO, 0], ONE), ([TWO, NAN, ONE], ONE), ([INF, ONE, TWO], TWO)]);
    check(
        "v_rndne_f32_e32 v24, v8",
        &[([bits(2.5), 0, 0], TWO), ([bits(-0.25), 0, 0], NEG), ([bits(3.5), 0, 0], bits(4.0))],
    );
    check("v_ldexp_f32 v24, v8, v9", &[([ONE, 3, 0], bits(8.0)), ([ONE, -149i32 as u32, 0], 1), ([ONE, 1000, 0], INF)]);
    check("v_fract_f32_e32 v24, v8", &[([bits(-0.25), 0, 0], bits(0.75)), ([NAN, 0, 0], NAN)]);
}

#[test]
fn fp32_approximations() {
    check(
        "v_exp_f32_e32 v24, v8",
        &[
            ([bits(3.0), 0, 0], bits(8.0)),
            ([bits(-126.5), 0, 0], 0),
            ([INF | NEG, 0, 0], 0),
            ([bits(200.0), 0, 0], INF),
        ],
    );
    check(
        "v_log_f32_e32 v24, v8",
        &[([bits(8.0), 0, 0], bits(3.0)), ([0, 0, 0], INF | NEG), ([1, 0, 0], INF | NEG), ([INF, 0, 0], INF)],
    );
    check("v_rcp_f32_e32 v24, v8", &[([bits(4.0), 0, 0], bits(0.25)), ([NEG, 0, 0], INF | NEG), ([INF, 0, 0], 0)]);
    check("v_rsq_f32_e32 v24, v8", &[([bits(4.0), 0, 0], bits(0.5)), ([0, 0, 0], INF)]);
    check("v_sqrt_f32_e32 v24, v8", &[([bits(9.0), 0, 0], bits(3.0))]);
}

/// The sequence that LLVM makes of an fp32 division is exact, whatever the operands' ranges.
#[test]
fn fp32_division() {
    let values = [
        1.0f32,
        3.0,
        -7.5,
        1e-38,
        1e38,
        3e-45,
        1e-42,
        0.1,
        2f32.powi(126),
        f32::MAX,
        f32::MIN_POSITIVE,
        1.9e-39,
        0.0,
        f32::INFINITY,
    ];
    let pairs: Vec<_> = values.iter().flat_map(|&n| values.iter().map(move |&d| (n, d))).collect();
    for pairs in pairs.chunks(64) {
        let mut before = Registers::new().with(8, |_| ONE).with(9, |_| ONE);
        for (lane, (n, d)) in pairs.iter().enumerate() {
            (before.v[8][lane], before.v[9][lane]) = (bits(*n), bits(*d));
        }
        // v8 / v9, denominators and numerators scaled.
        let after = before.execute(
            "v_div_scale_f32 v10, s[16:17], v9, v9, v8
             v_div_scale_f32 v11, vcc, v8, v9, v8
             v_rcp_f32_e32 v12, v10
             v_fma_f32 v13, -v10, v12, 1.0
             v_fmac_f32_e32 v12, v13, v12
             v_mul_f32_e32 v14, v11, v12
             v_fma_f32 v15, -v10, v14, v11
             v_fmac_f32_e32 v14, v15, v12
             v_fma_f32 v10, -v10, v14, v11
             v_div_fmas_f32 v10, v10, v12, v14
             v_div_fixup_f32 v24, v10, v9, v8",
        );
        for (lane, (n, d)) in pairs.iter().enumerate() {
            let (got, expected) = (f32::from_bits(after.v[24][lane]), n / d);
            // The quotient may be denormal and then off by one step: it is rounded twice, as on the hardware.
            let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
            let near = expected.is_subnormal() && got.to_bits().abs_diff(expected.to_bits()) <= 1;
            assert!(same || near, "{n:e} / {d:e} = {got:e}, expected {expected:e}");
        }
    }
}

#[test]
fn conversions() {
    check(
        "v_cvt_u32_f32_e32 v24, v8",
        &[([bits(3.9), 0, 0], 3), ([bits(-1.0), 0, 0], 0), ([NAN, 0, 0], 0), ([INF, 0, 0], u32::MAX)],
    );
    check("v_cvt_i32_f32_e32 v24, v8", &[([bits(-3.9), 0, 0], -3i32 as u32), ([bits(3e9), 0, 0], i32::MAX as u32)]);
    check(
        "v_cvt_f32_u32_e32 v24, v8",
        &[([0xffff_ffff, 0, 0], bits(4294967296.0)), ([16777217, 0, 0], bits(16777216.0))],
    );
    check("v_cvt_f32_i32_e32 v24, v8", &[([u32::MAX, 0, 0], ONE | NEG)]);
    check("v_cvt_f32_ubyte2_e32 v24, v8", &[([0x12ff_3456, 0, 0], bits(255.0))]);
    check(
        "v_cvt_f16_f32_e32 v24, v8",
        &[([ONE, 0, 0], 0x3c00), ([bits(65520.0), 0, 0], 0x7c00), ([bits(65519.0), 0, 0], 0x7bff)],
    );
    check("v_cvt_f32_f16_e32 v24, v8", &[([0xffff_3c00, 0, 0], ONE), ([1, 0, 0], bits(2f32.powi(-24)))]);
    // Ties to even; the first source in the low half.
    check(
        "v_cvt_pk_bf16_f32 v24, v8, v9",
        &[([0x3f80_8000, 0x3f81_8000, 0], 0x3f82_3f80), ([ONE, NAN, 0], 0x7fc0_3f80)],
    );
    check("v_cvt_pk_f16_f32 v24, v8, v9", &[([ONE, TWO, 0], 0x4000_3c00)]);
    check("v_cvt_pkrtz_f16_f32 v24, v8, v9", &[([bits(65535.0), bits(-1.9999), 0], 0xbfff_7bff)]);
    // e4m3: 1.0 is 0x38, 448 is 0x7e; the other half stays.
    check(
        "v_cvt_pk_fp8_f32 v24, v8, v9",
        &[([ONE, bits(448.0), 0], 0xaaaa_7e38), ([bits(1e9), bits(-0.5), 0], 0xaaaa_b07f)],
    );
    check("v_cvt_pk_fp8_f32 v24, v8, v9 op_sel:[0,0,1]", &[([ONE, bits(448.0), 0], 0x7e38_5555)]);
    check("v_cvt_scalef32_pk_fp8_f32 v24, v8, v9, v10", &[([TWO, bits(8.0), bits(4.0)], 0xaaaa_4030)]);
    check("v_cvt_scalef32_pk_fp8_bf16 v24, v8, v9", &[([0x4000_3f80, TWO, 0], 0xaaaa_3830)]);
    check("v_cvt_scalef32_pk_bf8_f16 v24, v8, v9 op_sel:[0,0,1]", &[([0x4000_3c00, ONE, 0], 0x403c_5555)]);
    check("v_cvt_scalef32_pk_f16_fp8 v24, v8, v9", &[([0x4038, TWO, 0], 0x4400_4000)]);
    check("v_cvt_scalef32_pk_bf16_fp8 v24, v8, v9 op_sel:[1,0,0]", &[([0x4038_0000, ONE, 0], 0x4000_3f80)]);
    check("v_cvt_scalef32_pk_f32_fp8 v[24:25], v8, v9\nv_mov_b32_e32 v24, v25", &[([0x4038, bits(4.0), 0], bits(8.0))]);
    check("v_cvt_f32_fp8_e32 v24, v8", &[([0x38, 0, 0], ONE), ([0xb8, 0, 0], ONE | NEG)]);
    check("v_cvt_f32_fp8_sdwa v24, v8 src0_sel:BYTE_1", &[([0x3800, 0, 0], ONE)]);
    check("v_pack_b32_f16 v24, v8, v9", &[([0x1111_2222, 0x3333_4444, 0], 0x4444_2222)]);
}

#[test]
fn integers() {
    check("v_add_u32_e32 v24, v8, v9", &[([u32::MAX, 2, 0], 1)]);
    check("v_add_u32_e64 v24, v8, v9 clamp", &[([u32::MAX, 2, 0], u32::MAX)]);
    check("v_subrev_u32_e32 v24, v8, v9", &[([1, 5, 0], 4)]);
    check("v_mul_lo_u32 v24, v8, v9", &[([0x10001, 0x10001, 0], 0x20001)]);
    check("v_mul_hi_u32 v24, v8, v9", &[([u32::MAX, u32::MAX, 0], 0xffff_fffe)]);
    check("v_mul_hi_i32 v24, v8, v9", &[([u32::MAX, 5, 0], u32::MAX)]);
    check("v_mul_u32_u24_e32 v24, v8, v9", &[([0xff00_0003, 5, 0], 15)]);
    check("v_mul_i32_i24_e32 v24, v8, v9", &[([0x00ff_ffff, 5, 0], -5i32 as u32)]);
    check("v_mad_u32_u24 v24, v8, v9, v10", &[([3, 5, 7], 22)]);
    check("v_add3_u32 v24, v8, v9, v10", &[([1, 2, 3], 6)]);
    check("v_lshl_add_u32 v24, v8, v9, v10", &[([3, 4, 1], 49)]);
    check("v_lshl_or_b32 v24, v8, v9, v10", &[([3, 4, 1], 49)]);
    check("v_and_or_b32 v24, v8, v9, v10", &[([0xff, 0x3c, 1], 0x3d)]);
    check("v_bfe_u32 v24, v8, v9, v10", &[([0xdead_beef, 8, 8], 0xbe), ([0xdead_beef, 8, 0], 0)]);
    check("v_bfe_i32 v24, v8, v9, v10", &[([0xdead_beef, 8, 8], 0xffff_ffbe), ([0x8000_0000, 31, 8], u32::MAX)]);
    check("v_bfi_b32 v24, v8, v9, v10", &[([0xff00, 0x1234, 0xabcd], 0x12cd)]);
    check("v_alignbit_b32 v24, v8, v9, v10", &[([0x1, 0x8000_0000, 31], 3)]);
    check(
        "v_perm_b32 v24, v8, v9, v10",
        &[([0x7766_5544, 0x3322_1100, 0x0c07_0400], 0x0077_4400), ([0x8000_0000, 0, 0x0d0b_0a08], 0xffff_0000)],
    );
    // The table's bit i belongs to i = 4 a + 2 b + c.
    check(
        "v_bitop3_b32 v24, v8, v9, v10 bitop3:0x96",
        &[([0xf0f0_f0f0, 0xcccc_cccc, 0xaaaa_aaaa], 0xf0f0_f0f0 ^ 0xcccc_cccc ^ 0xaaaa_aaaa)],
    );
    check("v_bitop3_b32 v24, v8, v9, v10 bitop3:0x6c", &[([0xf0f0_f0f0, 0xcccc_cccc, 0xaaaa_aaaa], 0x6c6c_6c6c)]);
    check("v_ffbh_u32_e32 v24, v8", &[([1, 0, 0], 31), ([0, 0, 0], u32::MAX)]);
    check("v_ashrrev_i32_e32 v24, v8, v9", &[([4, 0x8000_0000, 0], 0xf800_0000), ([36, 0x8000_0000, 0], 0xf800_0000)]);
    check("v_med3_i32 v24, v8, v9, v10", &[([-1i32 as u32, 5, 2], 2)]);
    check("v_cvt_pk_u16_u32 v24, v8, v9", &[([70000, 7, 0], 0x0007_ffff)]);
    check("v_mul_lo_u16_e32 v24, v8, v9", &[([0x1_0003, 0x8000, 0], 0x8000)]);
    check(
        "v_mov_b32_sdwa v24, v8 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_1",
        &[([0x1234, 0, 0], 0x0012_5555)],
    );
    check(
        "v_add_u32_sdwa v24, v8, sext(v9) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_0",
        &[([0x0005_0000, 0xff, 0], 4)],
    );
}

#[test]
fn halves() {
    let pair = |low: u32, high: u32| low | high << 16;
    check("v_add_f16_e32 v24, v8, v9", &[([0xffff_3c00, 0x3c00, 0], 0x4000)]);
    check("v_fma_f16 v24, v8, v9, v10 op_sel:[1,0,0,1]", &[([0x4000_0000, 0x4000, 0x3c00], 0x4500_5555)]);
    check("v_pk_add_f16 v24, v8, v9", &[([pair(0x3c00, 0x4000), pair(0x3c00, 0x3c00), 0], pair(0x4000, 0x4200))]);
    check(
        "v_pk_mul_f16 v24, v8, v9 op_sel:[1,0] op_sel_hi:[0,1]",
        &[([pair(0x4000, 0x4200), pair(0x4000, 0x3c00), 0], pair(0x4600, 0x4000))],
    );
    check(
        "v_pk_fma_f16 v24, v8, v9, v10 neg_lo:[0,0,1] neg_hi:[1,0,0]",
        &[([pair(0x4000, 0x4000), pair(0x4000, 0x4000), pair(0x3c00, 0x3c00)], pair(0x4200, 0xc200))],
    );
    check("v_fma_f16 v24, v8, v9, v10", &[([0x4000, 0x4000, 0x3c00], 0xaaaa_4500)]);
    check("v_mad_legacy_u16 v24, v8, v9, v10", &[([300, 300, 7], 0x0000_5f97)]);
    check("v_pk_add_u16 v24, v8, v9", &[([pair(0xffff, 1), pair(2, 3), 0], pair(1, 4))]);
    check(
        "v_fma_mix_f32 v24, v8, v9, v10 op_sel:[0,1,0] op_sel_hi:[0,1,0]",
        &[([TWO, pair(0, 0x4200), ONE], bits(7.0))],
    );
    check("v_fma_mixhi_f16 v24, v8, v9, v10", &[([TWO, TWO, ONE], 0x4500_5555)]);
    check("v_dot2_f32_bf16 v24, v8, v9, v10", &[([pair(0x3f80, 0x4000), pair(0x4040, 0x4080), ONE], bits(12.0))]);
}

#[test]
fn pairs_of_registers() {
    let before = Registers::new()
        .with(8, |l| bits(l as f32))
        .with(9, |_| TWO)
        .with(10, |_| bits(3.0))
        .with(11, |_| bits(5.0))
        .with(12, |_| ONE)
        .with(13, |_| ONE);
    let after = before.execute(
        "v_pk_mul_f32 v[24:25], v[8:9], v[10:11]
         v_pk_fma_f32 v[26:27], v[8:9], v[10:11], v[12:13] op_sel_hi:[1,0,1] neg_lo:[1,0,0]
         v_pk_add_f32 v[28:29], v[8:9], v[10:11] op_sel:[1,0]
         v_pk_mov_b32 v[30:31], v[8:9], v[10:11] op_sel:[1,0]",
    );
    for l in 0..64 {
        let x = l as f32;
        let got: Vec<f32> = (24..32).map(|r| f32::from_bits(after.v[r][l])).collect();
        assert_eq!(got, [3.0 * x, 10.0, 1.0 - 3.0 * x, 7.0, 5.0, 7.0, 2.0, 3.0]);
    }
    let before = Registers::new().with(8, |l| l << 28).with(9, |l| l).with(10, |_| u32::MAX).with(11, |_| 1);
    let after = before.execute(
        "v_lshl_add_u64 v[24:25], v[8:9], 2, v[10:11]
         v_lshlrev_b64 v[26:27], 4, v[8:9]
         v_mad_u64_u32 v[28:29], s[16:17], v10, v10, v[8:9]
         v_add_co_u32_e32 v30, vcc, v8, v10
         v_addc_co_u32_e32 v31, vcc, 0, v9, vcc
         v_cmp_gt_u64_e64 s[16:17], v[8:9], v[10:11]",
    );
    for l in 0..64u64 {
        let wide = |r: usize| u64::from(after.v[r][l as usize]) | u64::from(after.v[r + 1][l as usize]) << 32;
        let a = (l << 28 & 0xffff_ffff) | l << 32;
        let b = 0x1_ffff_ffff;
        assert_eq!(wide(24), (a << 2).wrapping_add(b));
        assert_eq!(wide(26), a << 4);
        assert_eq!(wide(28), (0xffff_ffff * 0xffff_ffffu64).wrapping_add(a));
        assert_eq!(wide(30), a + 0xffff_ffff);
        let mask = u64::from(after.s[16]) | u64::from(after.s[17]) << 32;
        assert_eq!(mask >> l & 1 == 1, a > b);
    }
}

#[test]
fn comparisons_and_masks() {
    let before = Registers::new().with(8, |l| bits(l as f32 - 8.0)).with(9, |l| if l == 63 { NAN } else { 0 });
    let run = |text: &str| before.execute(text);
    assert_eq!(run("v_cmp_lt_f32_e32 vcc, v8, v9").vcc, 0xff);
    assert_eq!(run("v_cmp_nge_f32_e32 vcc, v8, v9").vcc, 0xff | 1 << 63);
    assert_eq!(run("v_cmp_u_f32_e32 vcc, v8, v9").vcc, 1 << 63);
    assert_eq!(run("v_cmp_class_f32_e64 vcc, v9, 3").vcc, 1 << 63, "NaN");
    assert_eq!(run("v_cmp_class_f32_e64 vcc, v8, 64").vcc, 1 << 8, "+0");
    assert_eq!(run("v_cmp_gt_i32_e32 vcc, 4, v0").vcc, 0xf);
    let after = run("v_cmp_gt_u32_e32 vcc, 4, v0\nv_cndmask_b32_e32 v24, v8, v0, vcc");
    assert_eq!(after.v[24][3..5], [3, bits(-4.0)]);
    // EXEC: lanes outside keep their values, masks get 0.
    let after = run(
        "v_cmp_gt_u32_e32 vcc, 4, v0\ns_and_saveexec_b64 s[16:17], vcc\nv_mov_b32_e32 v8, 7\nv_cmp_ne_u32_e32 vcc, 2, v0\ns_cmp_eq_u32 s0, s0",
    );
    assert_eq!(after.v[8][2..5], [7, 7, bits(-4.0)]);
    assert_eq!((after.vcc, after.s[16], after.s[17]), (0b1011, u32::MAX, u32::MAX));
}

#[test]
fn scalars() {
    let mut before = Registers::new();
    before.s[8..16].copy_from_slice(&[0xffff_fff0, 0x20, 7, 0x0010_0004, 0x1234_5678, 0x9abc_def0, 0, 3]);
    let run = |text: &str| {
        let after = before.execute(text);
        (after.s[16], after.scc)
    };
    assert_eq!(run("s_add_u32 s16, s8, s9"), (0x10, true));
    assert_eq!(run("s_add_u32 s16, s8, s9\ns_addc_u32 s16, s10, 0"), (8, false));
    assert_eq!(run("s_sub_u32 s16, s10, s9"), (7u32.wrapping_sub(0x20), true));
    assert_eq!(run("s_add_i32 s16, s8, s9"), (0x10, false));
    assert_eq!(run("s_bfe_u32 s16, s12, s11"), (0x4567, true));
    assert_eq!(run("s_bfe_i32 s16, s13, 0x80008"), (0xffff_ffde, true));
    assert_eq!(run("s_lshl_b32 s16, s10, s15"), (56, true));
    assert_eq!(run("s_ashr_i32 s16, s8, 2"), (0xffff_fffc, true));
    assert_eq!(run("s_mul_hi_u32 s16, s8, s8").0, 0xffff_ffe0);
    assert_eq!(run("s_mul_i32 s16, s10, s10").0, 49);
    assert_eq!(run("s_ff1_i32_b32 s16, s9").0, 5);
    assert_eq!(run("s_flbit_i32_b32 s16, s9").0, 26);
    assert_eq!(run("s_flbit_i32_b32 s16, s14").0, u32::MAX);
    assert_eq!(run("s_bcnt1_i32_b64 s16, s[12:13]"), (32, true));
    assert_eq!(run("s_min_i32 s16, s8, s10"), (0xffff_fff0, true));
    assert_eq!(run("s_max_u32 s16, s8, s10"), (0xffff_fff0, true));
    assert_eq!(run("s_absdiff_i32 s16, s8, s10"), (23, true));
    assert_eq!(run("s_lshl2_add_u32 s16, s8, s10"), (0xffff_ffc7, true));
    assert_eq!(run("s_pack_ll_b32_b16 s16, s12, s13").0, 0xdef0_5678);
    assert_eq!(run("s_sext_i32_i16 s16, s13").0, 0xffff_def0);
    assert!(!run("s_cmp_gt_i32 s8, s10").1);
    assert!(run("s_cmp_gt_u32 s8, s10").1);
    assert!(run("s_cmpk_eq_i32 s8, 0xfff0").1);
    assert!(!run("s_cmpk_eq_u32 s8, 0xfff0").1);
    assert_eq!(run("s_movk_i32 s16, 0x8000").0, 0xffff_8000);
    assert_eq!(run("s_bitset1_b32 s16, s10").0, 0x80);
    assert!(run("s_bitcmp1_b32 s10, 1").1);
    assert_eq!(run("s_andn2_b64 s[16:17], s[8:9], s[12:13]"), (0xedcb_a980, true));
    assert_eq!(run("s_cmp_eq_u32 s8, s8\ns_cselect_b32 s16, s10, s9"), (7, true));
    assert_eq!(run("s_getreg_b32 s16, hwreg(HW_REG_MODE, 4, 4)").0, 15);
}

#[test]
fn denormal_mode() {
    let text = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\nv_mul_f32_e32 v24, v8, v9";
    check(text, &[([1, ONE, 0], 0), ([0x8000_0001, ONE, 0], NEG), ([0x0080_0000, bits(0.5), 0], 0)]);
}
