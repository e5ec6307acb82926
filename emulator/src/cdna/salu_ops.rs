//! Scalar arithmetic opcodes.

use super::inst::*;

table! {
    /// Scalar arithmetic. A row: code, name, register widths (destination, then sources) and flags.
    Salu {
        Sop2 {
            0x000 s_add_u32 [1 1 1];
            0x001 s_sub_u32 [1 1 1];
            0x002 s_add_i32 [1 1 1];
            0x003 s_sub_i32 [1 1 1];
            0x004 s_addc_u32 [1 1 1];
            0x005 s_subb_u32 [1 1 1];
            0x006 s_min_i32 [1 1 1];
            0x007 s_min_u32 [1 1 1];
            0x008 s_max_i32 [1 1 1];
            0x009 s_max_u32 [1 1 1];
            0x00a s_cselect_b32 [1 1 1];
            0x00b s_cselect_b64 [2 2 2];
            0x00c s_and_b32 [1 1 1];
            0x00d s_and_b64 [2 2 2];
            0x00e s_or_b32 [1 1 1];
            0x00f s_or_b64 [2 2 2];
            0x010 s_xor_b32 [1 1 1];
            0x011 s_xor_b64 [2 2 2];
            0x012 s_andn2_b32 [1 1 1];
            0x013 s_andn2_b64 [2 2 2];
            0x014 s_orn2_b32 [1 1 1];
            0x015 s_orn2_b64 [2 2 2];
            0x016 s_nand_b32 [1 1 1];
            0x017 s_nand_b64 [2 2 2];
            0x018 s_nor_b32 [1 1 1];
            0x019 s_nor_b64 [2 2 2];
            0x01a s_xnor_b32 [1 1 1];
            0x01b s_xnor_b64 [2 2 2];
            0x01c s_lshl_b32 [1 1 1];
            0x01d s_lshl_b64 [2 2 1];
            0x01e s_lshr_b32 [1 1 1];
            0x01f s_lshr_b64 [2 2 1];
            0x020 s_ashr_i32 [1 1 1];
            0x021 s_ashr_i64 [2 2 1];
            0x022 s_bfm_b32 [1 1 1];
            0x023 s_bfm_b64 [2 1 1];
            0x024 s_mul_i32 [1 1 1];
            0x025 s_bfe_u32 [1 1 1];
            0x026 s_bfe_i32 [1 1 1];
            0x02a s_absdiff_i32 [1 1 1];
            0x02c s_mul_hi_u32 [1 1 1];
            0x02d s_mul_hi_i32 [1 1 1];
            0x02e s_lshl1_add_u32 [1 1 1];
            0x02f s_lshl2_add_u32 [1 1 1];
            0x030 s_lshl3_add_u32 [1 1 1];
            0x031 s_lshl4_add_u32 [1 1 1];
            0x032 s_pack_ll_b32_b16 [1 1 1];
            0x033 s_pack_lh_b32_b16 [1 1 1];
            0x034 s_pack_hh_b32_b16 [1 1 1];
        }
        Sopk {
            0x000 s_movk_i32 [1];
            0x001 s_cmovk_i32 [1] READS_DST;
            0x002 s_cmpk_eq_i32 [0 1];
            0x003 s_cmpk_lg_i32 [0 1];
            0x004 s_cmpk_gt_i32 [0 1];
            0x005 s_cmpk_ge_i32 [0 1];
            0x006 s_cmpk_lt_i32 [0 1];
            0x007 s_cmpk_le_i32 [0 1];
            0x008 s_cmpk_eq_u32 [0 1];
            0x009 s_cmpk_lg_u32 [0 1];
            0x00a s_cmpk_gt_u32 [0 1];
            0x00b s_cmpk_ge_u32 [0 1];
            0x00c s_cmpk_lt_u32 [0 1];
            0x00d s_cmpk_le_u32 [0 1];
            0x00e s_addk_i32 [1] READS_DST;
            0x00f s_mulk_i32 [1] READS_DST;
            0x011 s_getreg_b32 [1];
            0x012 s_setreg_b32 [0 1];
            0x014 s_setreg_imm32_b32 [0];
        }
        Sop1 {
            0x000 s_mov_b32 [1 1];
            0x001 s_mov_b64 [2 2];
            0x002 s_cmov_b32 [1 1] READS_DST;
            0x003 s_cmov_b64 [2 2] READS_DST;
            0x004 s_not_b32 [1 1];
            0x005 s_not_b64 [2 2];
            0x008 s_brev_b32 [1 1];
            0x009 s_brev_b64 [2 2];
            0x00c s_bcnt1_i32_b32 [1 1];
            0x00d s_bcnt1_i32_b64 [1 2];
            0x00e s_ff0_i32_b32 [1 1];
            0x00f s_ff0_i32_b64 [1 2];
            0x010 s_ff1_i32_b32 [1 1];
            0x011 s_ff1_i32_b64 [1 2];
            0x012 s_flbit_i32_b32 [1 1];
            0x013 s_flbit_i32_b64 [1 2];
            0x016 s_sext_i32_i8 [1 1];
            0x017 s_sext_i32_i16 [1 1];
            0x018 s_bitset0_b32 [1 1] READS_DST;
            0x019 s_bitset0_b64 [2 1] READS_DST;
            0x01a s_bitset1_b32 [1 1] READS_DST;
            0x01b s_bitset1_b64 [2 1] READS_DST;
            0x01c s_getpc_b64 [2];
            0x020 s_and_saveexec_b64 [2 2];
            0x021 s_or_saveexec_b64 [2 2];
            0x022 s_xor_saveexec_b64 [2 2];
            0x023 s_andn2_saveexec_b64 [2 2];
            0x024 s_orn2_saveexec_b64 [2 2];
            0x025 s_nand_saveexec_b64 [2 2];
            0x026 s_nor_saveexec_b64 [2 2];
            0x027 s_xnor_saveexec_b64 [2 2];
            0x030 s_abs_i32 [1 1];
            0x036 s_andn2_wrexec_b64 [2 2];
        }
        Sopc {
            0x000 s_cmp_eq_i32 [0 1 1];
            0x001 s_cmp_lg_i32 [0 1 1];
            0x002 s_cmp_gt_i32 [0 1 1];
            0x003 s_cmp_ge_i32 [0 1 1];
            0x004 s_cmp_lt_i32 [0 1 1];
            0x005 s_cmp_le_i32 [0 1 1];
            0x006 s_cmp_eq_u32 [0 1 1];
            0x007 s_cmp_lg_u32 [0 1 1];
            0x008 s_cmp_gt_u32 [0 1 1];
            0x009 s_cmp_ge_u32 [0 1 1];
            0x00a s_cmp_lt_u32 [0 1 1];
            0x00b s_cmp_le_u32 [0 1 1];
            0x00c s_bitcmp0_b32 [0 1 1];
            0x00d s_bitcmp1_b32 [0 1 1];
            0x00e s_bitcmp0_b64 [0 2 1];
            0x00f s_bitcmp1_b64 [0 2 1];
            0x012 s_cmp_eq_u64 [0 2 2];
            0x013 s_cmp_lg_u64 [0 2 2];
        }
    }
}
