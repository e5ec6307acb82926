//! Exchanges between lanes, LDS instructions and matrix instructions: who gets what from whom.

mod cdna_support;

use cdna_support::{Lanes, Registers};

/// v8 is 100 + the lane; v24 afterwards.
fn moved(text: &str) -> Lanes {
    Registers::new().with(8, |l| 100 + l).with(9, |l| 200 + l).with(24, |_| 7).execute(text).v[24]
}

#[track_caller]
fn check(text: &str, expected: impl Fn(usize) -> u32) {
    assert_eq!(moved(text), std::array::from_fn(expected), "{text}");
}

#[test]
fn dpp() {
    let from = |l: usize| 100 + l as u32;
    let all = "row_mask:0xf bank_mask:0xf";
    check(&format!("v_mov_b32_dpp v24, v8 quad_perm:[1,0,3,2] {all}"), |l| from(l ^ 1));
    check(&format!("v_mov_b32_dpp v24, v8 row_shl:1 {all}"), |l| if l % 16 == 15 { 7 } else { from(l + 1) });
    check(&format!("v_mov_b32_dpp v24, v8 row_shr:2 {all} bound_ctrl:1"), |l| if l % 16 < 2 { 0 } else { from(l - 2) });
    check(&format!("v_mov_b32_dpp v24, v8 row_ror:4 {all}"), |l| from((l & !15) | ((l + 12) % 16)));
    check(&format!("v_mov_b32_dpp v24, v8 row_mirror {all}"), |l| from(l ^ 15));
    check(&format!("v_mov_b32_dpp v24, v8 row_half_mirror {all}"), |l| from(l ^ 7));
    check(&format!("v_mov_b32_dpp v24, v8 row_newbcast:3 {all}"), |l| from(l & !15 | 3));
    check("v_mov_b32_dpp v24, v8 row_bcast:15 row_mask:0xa bank_mask:0xf", |l| {
        if l / 16 % 2 == 1 { from(l / 16 * 16 - 1) } else { 7 }
    });
    check("v_mov_b32_dpp v24, v8 row_bcast:31 row_mask:0xc bank_mask:0xf", |l| if l >= 32 { from(31) } else { 7 });
    check(&format!("v_add_u32_dpp v24, v8, v9 row_mirror {all}"), |l| from(l ^ 15) + 200 + l as u32);
}

#[test]
fn lane_reads_and_writes() {
    let mut before = Registers::new().with(8, |l| 100 + l);
    before.s[8..10].copy_from_slice(&[5, 77]);
    let after = before.execute("v_readlane_b32 s16, v8, s8\nv_readfirstlane_b32 s17, v8\nv_writelane_b32 v8, s9, 9");
    assert_eq!((after.s[16], after.s[17], after.v[8][9], after.v[8][10]), (105, 100, 77, 110));
    let text = "v_mbcnt_lo_u32_b32 v24, -1, 0\nv_mbcnt_hi_u32_b32 v24, -1, v24";
    check(text, |l| l as u32);
}

#[test]
fn permlane_swaps() {
    let before = Registers::new().with(8, |l| 100 + l).with(9, |l| 200 + l);
    let after = before.execute("v_permlane32_swap_b32_e32 v8, v9");
    for l in 0..32 {
        // The upper half of the first register against the lower half of the second.
        assert_eq!([after.v[8][l], after.v[8][l + 32]], [100 + l as u32, 200 + l as u32]);
        assert_eq!([after.v[9][l], after.v[9][l + 32]], [132 + l as u32, 232 + l as u32]);
    }
    let after = before.execute("v_permlane16_swap_b32_e32 v8, v9");
    for l in 0..64u32 {
        // Odd rows of the first register against even rows of the second.
        let (first, second) = (after.v[8][l as usize], after.v[9][l as usize]);
        let odd = l / 16 % 2 == 1;
        assert_eq!((first, second), if odd { (200 + l - 16, 200 + l) } else { (100 + l, 100 + l + 16) });
    }
}

#[test]
fn permutes_through_lds_hardware() {
    let before = Registers::new().with(8, |l| 4 * ((l + 5) % 64)).with(9, |l| 200 + l);
    let after = before.execute("ds_bpermute_b32 v24, v8, v9\nds_permute_b32 v25, v8, v9");
    for l in 0..64 {
        assert_eq!(after.v[24][l], 200 + (l as u32 + 5) % 64);
        assert_eq!(after.v[25][l], 200 + (l as u32 + 59) % 64);
    }
    // Lanes that do not execute give 0.
    let after = before.execute(
        "v_cmp_gt_u32_e32 vcc, 32, v0
         s_and_saveexec_b64 s[16:17], vcc
         ds_bpermute_b32 v24, v8, v9
         s_cmp_eq_u32 s0, s0",
    );
    assert_eq!(after.v[24][26..28], [231, 0]);
    check("ds_swizzle_b32 v24, v8 offset:swizzle(SWAP,16)", |l| 100 + (l ^ 16) as u32);
    check("ds_swizzle_b32 v24, v8 offset:swizzle(QUAD_PERM,3,2,1,0)", |l| 100 + (l ^ 3) as u32);
    check("ds_swizzle_b32 v24, v8 offset:swizzle(BROADCAST,8,2)", |l| 100 + (l & !7 | 2) as u32);
}

#[test]
fn lds_widths() {
    let before = Registers::new()
        .with(8, |l| 16 * l)
        .with(9, |l| 8 * l)
        .with(12, |l| 0x1000 + l)
        .with(13, |l| 0x2000 + l)
        .with(14, |l| 0x3000 + l)
        .with(15, |l| 0xabcd_0000 + l);
    let after = before.execute(
        "ds_write_b128 v8, v[12:15]
         ds_read_b96 v[24:26], v8
         ds_read_b64 v[28:29], v8 offset:8
         ds_read2_b32 v[30:31], v8 offset0:1 offset1:3
         ds_read_u16 v32, v8 offset:14
         ds_read_i16 v33, v8 offset:14
         ds_read_u8 v34, v8 offset:15
         ds_read_i8 v35, v8 offset:15
         s_waitcnt lgkmcnt(0)
         ds_read_u16_d16_hi v34, v8 offset:4
         ds_write2_b64 v8, v[12:13], v[14:15] offset0:1
         ds_write_b8_d16_hi v8, v15 offset:1
         ds_read_b128 v[36:39], v8",
    );
    for l in 0..64 {
        let n = l as u32;
        let got: Vec<u32> = (24..40).map(|r| after.v[r][l]).collect();
        let [a, b, c, d] = [0x1000 + n, 0x2000 + n, 0x3000 + n, 0xabcd_0000 + n];
        assert_eq!(got[..3], [a, b, c]);
        assert_eq!(got[4..12], [c, d, b, d, 0xabcd, 0xffff_abcd, 0xab | b << 16, 0xffff_ffab]);
        assert_eq!(got[12..], [c & 0xffff_00ff | 0xcd00, d, a, b]);
    }
}

/// The address register may be the first one that is written.
#[test]
fn a_pair_of_reads_over_their_address() {
    let before = Registers::new().with(8, |l| 16 * l).with(12, |l| 0x1000 + l).with(13, |l| 0x2000 + l);
    let after = before.execute(
        "ds_write_b64 v8, v[12:13]
         ds_read2_b32 v[8:9], v8 offset1:1",
    );
    for l in 0..64 {
        assert_eq!((after.v[8][l], after.v[9][l]), (0x1000 + l as u32, 0x2000 + l as u32));
    }
}

/// Rows of a row-major tile become columns: `rows` x 16 elements for each 16 lanes.
#[test]
fn transposing_reads() {
    // Halves: lane s of 16 points to row s / 4, columns 4 (s % 4)... Each half holds its own number.
    let before = Registers::new()
        .with(8, |l| 8 * l)
        .with(12, |l| (4 * l) | (4 * l + 1) << 16)
        .with(13, |l| (4 * l + 2) | (4 * l + 3) << 16);
    let after = before.execute("ds_write_b64 v8, v[12:13]\nds_read_b64_tr_b16 v[24:25], v8");
    for l in 0..64 {
        let (group, column) = (l / 16, l % 16);
        let number = |row: usize| (64 * group + 16 * row + column) as u32;
        assert_eq!(after.v[24][l], number(0) | number(1) << 16, "lane {l}");
        assert_eq!(after.v[25][l], number(2) | number(3) << 16, "lane {l}");
    }
    // Bytes: lane s of 16 points to row s / 2, columns 8 (s % 2)...; a byte is row + 16 * column.
    let byte = |row: u32, column: u32| row | column << 4;
    let four = |row: u32, column: u32| (0..4).fold(0, |all, i| all | byte(row, column + i) << (8 * i));
    let before = Registers::new()
        .with(8, |l| 8 * l)
        .with(12, |l| four(l % 16 / 2, l % 2 * 8))
        .with(13, |l| four(l % 16 / 2, l % 2 * 8 + 4));
    let after = before.execute("ds_write_b64 v8, v[12:13]\nds_read_b64_tr_b8 v[24:25], v8");
    for l in 0..64 {
        let rows = |first: u32| (0..4).fold(0, |all, i| all | byte(first + i, l as u32 % 16) << (8 * i));
        assert_eq!([after.v[24][l], after.v[25][l]], [rows(0), rows(4)], "lane {l}");
    }
}

/// M0 + offset + 16 bytes a lane; the offset counts for the global address too.
#[test]
fn load_to_lds() {
    let mut before = Registers::new().with(8, |l| 256 * (l % 4)).with(9, |l| 16 * l);
    for r in 10..14 {
        before.v[r] = std::array::from_fn(|l| (1000 * r + l) as u32);
    }
    // The input buffer holds v8 first, 256 bytes a register: lane l reads 16 bytes of register 8 + l % 4 + 1.
    let after = before.execute(
        "s_movk_i32 m0, 0x400
         v_lshl_add_u32 v15, v0, 4, v8
         global_load_lds_dwordx4 v8, s[4:5] offset:512
         s_waitcnt vmcnt(0)
         ds_read_b128 v[24:27], v9 offset:1536",
    );
    for l in 0..64 {
        // Offset 512 is register 10; 256 (l % 4) goes on to register 10 + l % 4, lanes 0 to 3 of it.
        let expected: [u32; 4] = std::array::from_fn(|i| before.v[10 + l % 4][i]);
        assert_eq!(std::array::from_fn(|i| after.v[24 + i][l]), expected, "lane {l}");
    }
}

fn bf16(x: i32) -> u32 {
    (x as f32).to_bits() >> 16
}

/// Small integers, so that every order of summation is exact.
fn a(i: usize, k: usize) -> i32 {
    (i * 3 + k * 5) as i32 % 7 - 3
}

fn b(k: usize, j: usize) -> i32 {
    (k * 2 + j * 11) as i32 % 9 - 4
}

fn product(i: usize, j: usize, depth: usize) -> f32 {
    (0..depth).map(|k| a(i, k) * b(k, j)).sum::<i32>() as f32
}

/// A in v[8:11], B in v[12:15] as pairs of halves; `m` rows.
fn operands(m: usize, half: fn(i32) -> u32) -> Registers {
    let mut registers = Registers::new();
    for l in 0..64 {
        for e in 0..8 {
            let k = 8 * (l / m) + e;
            registers.v[8 + e / 2][l] |= half(a(l % m, k)) << (16 * (e % 2));
            registers.v[12 + e / 2][l] |= half(b(k, l % m)) << (16 * (e % 2));
        }
    }
    registers
}

#[test]
fn mfma_16x16x32() {
    let f16 = |x: i32| u32::from(half::f16::from_f32(x as f32).to_bits());
    for (name, half) in [("bf16", bf16 as fn(i32) -> u32), ("f16", f16)] {
        let mut before = operands(16, half);
        for r in 0..4 {
            before.v[16 + r] = [1000f32.to_bits(); 64];
        }
        let after = before.execute(&format!("v_mfma_f32_16x16x32_{name} v[24:27], v[8:11], v[12:15], v[16:19]"));
        for l in 0..64 {
            for r in 0..4 {
                let expected = 1000.0 + product(4 * (l / 16) + r, l % 16, 32);
                assert_eq!(f32::from_bits(after.v[24 + r][l]), expected, "{name}, lane {l}, register {r}");
            }
        }
    }
}

#[test]
fn mfma_32x32x16_and_accumulation_registers() {
    let before = operands(32, bf16);
    let reads: String = (0..16).map(|r| format!("v_accvgpr_read_b32 v{}, a{r}\n", 24 + r)).collect();
    let after = before.execute(&format!(
        "v_accvgpr_write_b32 a20, v12
         v_accvgpr_write_b32 a21, v13
         v_accvgpr_write_b32 a22, v14
         v_accvgpr_write_b32 a23, v15
         v_mfma_f32_32x32x16_bf16 a[0:15], v[8:11], a[20:23], 0
         {reads}"
    ));
    for l in 0..64 {
        for r in 0..16 {
            let row = 8 * (r / 4) + 4 * (l / 32) + r % 4;
            assert_eq!(f32::from_bits(after.v[24 + r][l]), product(row, l % 32, 16), "lane {l}, register {r}");
        }
    }
}

/// e4m3 in A and e5m2 in B, with a scale of 2 on A and of 1/4 on B.
#[test]
fn mfma_scaled_16x16x128() {
    let e4m3 = |x: i32| [0x00, 0x38, 0x40, 0x44][x.unsigned_abs() as usize] | u32::from(x < 0) << 7;
    let e5m2 = |x: i32| [0x00, 0x3c, 0x40, 0x42, 0x44][x.unsigned_abs() as usize] | u32::from(x < 0) << 7;
    let mut before = Registers::new().with(24, |_| 128).with(25, |_| 125 << 8);
    for l in 0..64 {
        for e in 0..32 {
            let k = 32 * (l / 16) + e;
            before.v[8 + e / 4][l] |= e4m3(a(l % 16, k)) << (8 * (e % 4));
            before.v[16 + e / 4][l] |= e5m2(b(k, l % 16)) << (8 * (e % 4));
        }
    }
    let after = before.execute(
        "v_mfma_scale_f32_16x16x128_f8f6f4 v[28:31], v[8:15], v[16:23], 0, v24, v25 op_sel:[0,1,0] op_sel_hi:[0,0,0] blgp:1",
    );
    for l in 0..64 {
        for r in 0..4 {
            let expected = product(4 * (l / 16) + r, l % 16, 128) / 2.0;
            assert_eq!(f32::from_bits(after.v[28 + r][l]), expected, "lane {l}, register {r}");
        }
    }
}

#[test]
fn global_and_buffer_accesses() {
    let mut before = Registers::new().with(8, |l| 4 * l).with(9, |l| 0x1_0000 * (l + 1) + l).with(24, |_| 0xaaaa_5555);
    // A raw buffer over v8's first 128 bytes of the input: the base comes from s[4:5].
    before.s[8] = 128;
    before.s[9] = 0x0002_0000;
    let after = before.execute(
        "s_mov_b32 s12, s4
         s_mov_b32 s13, s5
         s_mov_b32 s14, s8
         s_mov_b32 s15, s9
         buffer_load_dword v25, v1, s[12:15], 0 offen
         buffer_load_dwordx2 v[26:27], v1, s[12:15], 4 offen offset:4
         global_load_short_d16_hi v24, v1, s[4:5] offset:256
         v_mov_b32_e32 v10, s4
         v_mov_b32_e32 v11, s5
         v_lshl_add_u64 v[10:11], v[10:11], 0, 4
         flat_load_dword v28, v[10:11] offset:4",
    );
    for l in 0..64u32 {
        let inside = |word: u32| if word < 32 { 4 * word } else { 0 };
        let lane = l as usize;
        assert_eq!(after.v[25][lane], inside(l), "lane {l}");
        assert_eq!([after.v[26][lane], after.v[27][lane]], [inside(l + 2), inside(l + 3)], "lane {l}");
        assert_eq!(after.v[24][lane], l << 16 | 0x5555);
        assert_eq!(after.v[28][lane], 8);
    }
}

#[test]
fn atomics() {
    let before =
        Registers::new().with(9, |_| 3).with(10, |l| if l == 5 { 1 } else { 999 }).with(12, |_| 64).with(8, |l| 4 * l);
    let after = before.execute(
        "ds_write_b32 v8, v0
         v_mov_b32_e32 v11, 0
         ds_add_rtn_u32 v24, v11, v9
         ds_max_rtn_i32 v25, v11, v12 offset:4
         s_waitcnt lgkmcnt(0)
         ds_read_b32 v26, v11",
    );
    // Lanes in order.
    assert_eq!(after.v[24], std::array::from_fn(|l| 3 * l as u32));
    assert_eq!((after.v[25][0], after.v[25][1]), (1, 64));
    assert_eq!(after.v[26][0], 192);
}
