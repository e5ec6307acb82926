//! The assembly text of an instruction, as LLVM's disassembler writes it.

use std::fmt::{self, Write};

use super::inst::*;
use super::memory_ops::{Action, LdsAction, ScalarMemory, Space};
use super::salu_ops::Salu;
use super::valu_ops::Valu;

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.op {
            Op::Salu(op) => self.salu(op),
            Op::Program(op) => self.program(op),
            Op::ScalarMemory(op) => self.scalar_memory(op),
            Op::Valu(op) => self.valu(op),
            Op::Compare(op) => self.vector(op.name(), true),
            Op::Mfma(op) => self.mfma(op),
            Op::Memory(op) if op.space == Space::Buffer => self.buffer(op.name(), op.action),
            Op::Memory(op) => self.flat(op.name(), op.space, op.action),
            Op::Lds(op) => self.lds(op.name(), op.action),
        };
        f.write_str(&text)
    }
}

/// A name and its operands.
fn line(name: &str, operands: &[String]) -> String {
    if operands.is_empty() { name.to_string() } else { format!("{name} {}", operands.join(", ")) }
}

/// `[1,0,...]` of the low `count` bits.
fn bit_list(bits: u8, count: usize) -> String {
    let list: Vec<_> = (0..count).map(|i| (bits >> i & 1).to_string()).collect();
    format!("[{}]", list.join(","))
}

/// A register, a range of registers or a constant.
fn operand(operand: Operand, width: u8, literal: u32) -> String {
    let number = u32::from(operand.0);
    let range = |prefix: &str, first: u32| match width {
        0 | 1 => format!("{prefix}{first}"),
        _ => format!("{prefix}[{first}:{}]", first + u32::from(width) - 1),
    };
    let pair = |name: &str, first: u32| match (width, number - first) {
        (2, _) => name.to_string(),
        (_, 0) => format!("{name}_lo"),
        _ => format!("{name}_hi"),
    };
    let name = match number {
        0..=101 => return range("s", number),
        102 | 103 => return pair("flat_scratch", 102),
        104 | 105 => return pair("xnack_mask", 104),
        106 | 107 => return pair("vcc", 106),
        108..=123 => return range("ttmp", number - 108),
        124 => "m0",
        126 | 127 => return pair("exec", 126),
        128..=192 => return (number - 128).to_string(),
        193..=208 => return (192 - i64::from(number)).to_string(),
        235 => "src_shared_base",
        236 => "src_shared_limit",
        237 => "src_private_base",
        238 => "src_private_limit",
        239 => "src_pops_exiting_wave_id",
        240 => "0.5",
        241 => "-0.5",
        242 => "1.0",
        243 => "-1.0",
        244 => "2.0",
        245 => "-2.0",
        246 => "4.0",
        247 => "-4.0",
        248 if width == 2 => "0.15915494309189532",
        248 => "0.15915494",
        251 => "src_vccz",
        252 => "src_execz",
        253 => "src_scc",
        254 => "src_lds_direct",
        // A literal that an inline constant could have said.
        255 if inlinable(literal) => return format!("lit({literal:#x})"),
        255 => return format!("{literal:#x}"),
        256..=511 => return range("v", number - 256),
        512..=767 => return range("a", number - 512),
        _ => "?",
    };
    name.to_string()
}

/// Whether a 32-bit operand has an inline constant for these bits.
fn inlinable(bits: u32) -> bool {
    const FLOATS: [u32; 5] = [0x3e22_f983, 0x3f00_0000, 0x3f80_0000, 0x4000_0000, 0x4080_0000];
    let negated = bits & 0x7fff_ffff;
    (-16..=64).contains(&(bits as i32)) || FLOATS.contains(&bits) || FLOATS[1..].contains(&negated)
}

/// `0x10`, `-0x8`.
fn signed_hex(value: i32) -> String {
    if value < 0 { format!("-{:#x}", value.unsigned_abs()) } else { format!("{value:#x}") }
}

impl Inst {
    fn dst_text(&self) -> String {
        operand(self.dst, self.dst_width, self.literal)
    }

    fn src_text(&self, index: usize) -> String {
        operand(self.src[index], self.widths[index], self.literal)
    }

    /// Destination and sources as they are.
    fn plain_operands(&self) -> Vec<String> {
        let dst = (!self.dst.is_none()).then(|| self.dst_text());
        dst.into_iter().chain(self.sources().map(|(source, width)| operand(source, width, self.literal))).collect()
    }

    fn salu(&self, op: Salu) -> String {
        let name = op.row().name;
        let simm = format!("{:#x}", self.imm as u16);
        let hardware = || {
            let imm = self.imm as u16;
            let (id, offset, size) = (imm & 63, imm >> 6 & 31, (imm >> 11) + 1);
            let name = match id {
                1 => "HW_REG_MODE".to_string(),
                2 => "HW_REG_STATUS".to_string(),
                3 => "HW_REG_TRAPSTS".to_string(),
                4 => "HW_REG_HW_ID".to_string(),
                5 => "HW_REG_GPR_ALLOC".to_string(),
                6 => "HW_REG_LDS_ALLOC".to_string(),
                7 => "HW_REG_IB_STS".to_string(),
                15 => "HW_REG_SH_MEM_BASES".to_string(),
                20 => "HW_REG_XCC_ID".to_string(),
                id => id.to_string(),
            };
            if (offset, size) == (0, 32) {
                format!("hwreg({name})")
            } else {
                format!("hwreg({name}, {offset}, {size})")
            }
        };
        let operands = match op {
            Salu::s_getreg_b32 => vec![self.dst_text(), hardware()],
            Salu::s_setreg_b32 => vec![hardware(), self.src_text(0)],
            Salu::s_setreg_imm32_b32 => vec![hardware(), self.literal.to_string()],
            _ if self.encoding == Encoding::Sopk && self.dst.is_none() => vec![self.src_text(0), simm],
            _ if self.encoding == Encoding::Sopk => vec![self.dst_text(), simm],
            _ => self.plain_operands(),
        };
        line(name, &operands)
    }

    fn program(&self, op: Program) -> String {
        let imm = self.imm as u16;
        let operands = match op {
            Program::End | Program::Barrier => String::new(),
            Program::Waitcnt => return waitcnt(imm),
            Program::SendMessage if imm == 1 => " sendmsg(MSG_INTERRUPT)".to_string(),
            _ => format!(" {imm}"),
        };
        format!("{}{operands}", op.name())
    }

    fn scalar_memory(&self, op: ScalarMemory) -> String {
        let mut operands = self.plain_operands();
        let mut tail = String::new();
        if matches!(op, ScalarMemory::Load(_) | ScalarMemory::BufferLoad(_)) {
            if self.src[1].is_none() {
                operands.push(signed_hex(self.imm));
            } else if self.imm != 0 {
                tail = format!(" offset:{}", signed_hex(self.imm));
            }
        }
        if self.mods.cache & Mods::SC0 != 0 {
            tail.push_str(" glc");
        }
        line(op.name(), &operands) + &tail
    }

    fn valu(&self, op: Valu) -> String {
        let row = op.row();
        let short = matches!(row.encoding, Encoding::Vop1 | Encoding::Vop2);
        if row.encoding == Encoding::Vop3P {
            return self.packed(row);
        }
        let suffixed = short && (!row.has(NO_SUFFIX) || self.encoding == Encoding::Vop3);
        match op {
            // These have one spelling whatever the encoding.
            Valu::v_readfirstlane_b32 | Valu::v_nop => line(row.name, &self.plain_operands()),
            _ => self.vector(row.name.to_string(), suffixed),
        }
    }

    /// A vector instruction outside the packed encoding; `suffixed`: it exists in several encodings.
    fn vector(&self, name: String, suffixed: bool) -> String {
        let suffix = match (self.mods.sdwa, self.mods.dpp, self.encoding) {
            (Some(_), ..) => "_sdwa",
            (_, Some(_), _) => "_dpp",
            (.., Encoding::Vop3) => "_e64",
            _ => "_e32",
        };
        let mut operands = vec![self.dst_text()];
        if !self.sdst.is_none() {
            operands.push(operand(self.sdst, 2, 0));
        }
        let count = self.sources().count();
        operands.extend((0..count).map(|i| self.modified_source(i)));
        let mut text = line(&format!("{name}{}", if suffixed { suffix } else { "" }), &operands);
        let swap = matches!(self.op, Op::Valu(Valu::v_permlane16_swap_b32 | Valu::v_permlane32_swap_b32));
        if let Op::Valu(Valu::v_bitop3_b32 | Valu::v_bitop3_b16) = self.op {
            if self.literal != 0 {
                let _ = write!(text, " bitop3:{:#x}", self.literal);
            }
        } else if swap {
            for (bit, name) in [(2, " bound_ctrl:1"), (1, " fi:1")] {
                text.push_str(if self.mods.op_sel & bit != 0 { name } else { "" });
            }
        } else if self.mods.op_sel != 0 {
            // The destination's bit is the last, after those of the sources.
            let sources = self.mods.op_sel & ((1 << count) - 1);
            let bits = sources | (self.mods.op_sel >> 3) << count;
            let _ = write!(text, " op_sel:{}", bit_list(bits, count + 1));
        }
        text.push_str(if self.mods.clamp { " clamp" } else { "" });
        text.push_str(["", " mul:2", " mul:4", " div:2"][usize::from(self.mods.omod)]);
        if let Some(sdwa) = self.mods.sdwa {
            let whole = self.encoding == Encoding::Vopc
                || matches!(
                    self.op,
                    Op::Valu(
                        Valu::v_cvt_f32_fp8 | Valu::v_cvt_f32_bf8 | Valu::v_cvt_pk_f32_fp8 | Valu::v_cvt_pk_f32_bf8
                    )
                );
            text.push_str(&sdwa_text(sdwa, whole, count));
        }
        if let Some(dpp) = self.mods.dpp {
            text.push_str(&dpp_text(dpp));
        }
        text
    }

    fn modified_source(&self, index: usize) -> String {
        let mut text = self.src_text(index);
        let (neg, abs) = (self.mods.neg >> index & 1 != 0, self.mods.abs >> index & 1 != 0);
        if abs {
            text = format!("|{text}|");
        }
        if self.mods.sdwa.is_some_and(|sdwa| index < 2 && sdwa.sext[index]) {
            text = format!("sext({text})");
        }
        match (neg, (128..=208).contains(&self.src[index].0) && !abs) {
            (true, true) => format!("neg({text})"),
            (true, false) => format!("-{text}"),
            _ => text,
        }
    }

    fn packed(&self, row: &Row<Valu>) -> String {
        let mix = matches!(row.op, Valu::v_fma_mix_f32 | Valu::v_fma_mixlo_f16 | Valu::v_fma_mixhi_f16);
        let count = self.sources().count();
        let accumulator = row.has(ACC_SRC) || row.has(ACC_DST);
        let mut operands = vec![self.dst_text()];
        operands.extend((0..count).map(|i| if mix { self.modified_source(i) } else { self.src_text(i) }));
        let mut text = line(row.name, &operands);
        if accumulator || row.has(NO_OP_SEL) {
            return text;
        }
        let mods = &self.mods;
        let all = (1u8 << count) - 1;
        let mut list = |name: &str, bits: u8, default: u8| {
            if bits & all != default {
                let _ = write!(text, " {name}:{}", bit_list(bits, count));
            }
        };
        list("op_sel", mods.op_sel, 0);
        list("op_sel_hi", mods.op_sel_hi, if mix { 0 } else { all });
        if !mix {
            list("neg_lo", mods.neg, 0);
            list("neg_hi", mods.abs, 0);
        }
        text.push_str(if mods.clamp { " clamp" } else { "" });
        text
    }

    fn mfma(&self, op: Mfma) -> String {
        let mut text = line(&op.name(), &self.plain_operands());
        let mods = &self.mods;
        if op.scaled {
            for (name, bits, default) in [("op_sel", mods.op_sel, 0), ("op_sel_hi", mods.op_sel_hi, 7)] {
                if bits != default {
                    let _ = write!(text, " {name}:{}", bit_list(bits, 3));
                }
            }
        }
        for (name, value) in [("cbsz", mods.cbsz), ("abid", mods.abid), ("blgp", mods.blgp)] {
            if value != 0 {
                let _ = write!(text, " {name}:{value}");
            }
        }
        text
    }

    fn cache_text(&self) -> String {
        let names = [(Mods::SC0, " sc0"), (Mods::NT, " nt"), (Mods::SC1, " sc1")];
        names.iter().filter(|(bit, _)| self.mods.cache & bit != 0).map(|&(_, name)| name).collect()
    }

    fn flat(&self, name: String, space: Space, action: Action) -> String {
        let or_off = |i: usize| if self.src[i].is_none() { "off".to_string() } else { self.src_text(i) };
        let mut operands = Vec::new();
        if !self.dst.is_none() {
            operands.push(self.dst_text());
        }
        operands.push(or_off(0));
        if !self.src[1].is_none() {
            operands.push(self.src_text(1));
        }
        if space != Space::Flat {
            operands.push(or_off(3));
        }
        debug_assert!(!matches!(action, Action::CacheInvalidate | Action::CacheWriteBack));
        let mut text = line(&name, &operands);
        if self.imm != 0 {
            let _ = write!(text, " offset:{}", self.imm);
        }
        text + &self.cache_text()
    }

    fn buffer(&self, name: String, action: Action) -> String {
        if matches!(action, Action::CacheInvalidate | Action::CacheWriteBack) {
            return name + &self.cache_text();
        }
        let address = if self.src[0].is_none() { "off".to_string() } else { self.src_text(0) };
        let data = match action {
            Action::Load(_) => Some(self.dst_text()),
            Action::Store(_) | Action::Atomic(..) => Some(self.src_text(1)),
            _ => None,
        };
        let operands: Vec<_> = data.into_iter().chain([address, self.src_text(3), self.src_text(2)]).collect();
        let mut text = line(&name, &operands);
        text.push_str(if self.mods.idxen { " idxen" } else { "" });
        text.push_str(if self.mods.offen { " offen" } else { "" });
        if self.imm != 0 {
            let _ = write!(text, " offset:{}", self.imm);
        }
        text.push_str(&self.cache_text());
        text.push_str(if self.mods.lds { " lds" } else { "" });
        text
    }

    fn lds(&self, name: &str, action: LdsAction) -> String {
        let mut text = line(name, &self.plain_operands());
        let (first, second) = (self.imm & 0xff, self.imm >> 8);
        match action {
            LdsAction::Read2(..) | LdsAction::Write2(..) => {
                for (name, offset) in [("offset0", first), ("offset1", second)] {
                    if offset != 0 {
                        let _ = write!(text, " {name}:{offset}");
                    }
                }
            }
            LdsAction::Swizzle => {
                let _ = write!(text, " offset:{}", swizzle_text(self.imm as u32));
            }
            _ if self.imm != 0 => {
                let _ = write!(text, " offset:{}", self.imm);
            }
            _ => {}
        }
        text
    }
}

/// The three counters of `s_waitcnt`'s operand: vmcnt, expcnt, lgkmcnt.
pub(crate) fn wait_counts(imm: u16) -> (u32, u32, u32) {
    let imm = u32::from(imm);
    (imm & 0xf | (imm >> 14) << 4, imm >> 4 & 7, imm >> 8 & 0xf)
}

fn waitcnt(imm: u16) -> String {
    let (vm, exp, lgkm) = wait_counts(imm);
    let all = vm == 63 && exp == 7 && lgkm == 15;
    let counts = [("vmcnt", vm, 63), ("expcnt", exp, 7), ("lgkmcnt", lgkm, 15)];
    let text: String = counts
        .iter()
        .filter(|(_, count, max)| all || count < max)
        .map(|(name, count, _)| format!(" {name}({count})"))
        .collect();
    format!("s_waitcnt{text}")
}

/// `whole`: the destination cannot be a part.
fn sdwa_text(sdwa: Sdwa, whole: bool, sources: usize) -> String {
    let part =
        |select: u8| ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD"][usize::from(select.min(6))];
    let mut text = String::new();
    if !whole {
        let unused = ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"][usize::from(sdwa.unused.min(2))];
        let _ = write!(text, " dst_sel:{} dst_unused:{unused}", part(sdwa.dst));
    }
    for (i, &select) in sdwa.src.iter().enumerate().take(sources) {
        let _ = write!(text, " src{i}_sel:{}", part(select));
    }
    text
}

fn dpp_text(dpp: Dpp) -> String {
    let control = dpp.control;
    let amount = control & 0xf;
    let move_ = match control {
        0..=0xff => {
            let lanes: Vec<_> = (0..4).map(|i| (control >> (2 * i) & 3).to_string()).collect();
            format!("quad_perm:[{}]", lanes.join(","))
        }
        0x100..=0x10f => format!("row_shl:{amount}"),
        0x110..=0x11f => format!("row_shr:{amount}"),
        0x120..=0x12f => format!("row_ror:{amount}"),
        0x130 => "wave_shl:1".into(),
        0x134 => "wave_rol:1".into(),
        0x138 => "wave_shr:1".into(),
        0x13c => "wave_ror:1".into(),
        0x140 => "row_mirror".into(),
        0x141 => "row_half_mirror".into(),
        0x142 => "row_bcast:15".into(),
        0x143 => "row_bcast:31".into(),
        0x150..=0x15f => format!("row_newbcast:{amount}"),
        _ => format!("dpp_ctrl:{control:#x}"),
    };
    let bound = if dpp.bound_control { " bound_ctrl:1" } else { "" };
    format!(" {move_} row_mask:{:#x} bank_mask:{:#x}{bound}", dpp.row_mask, dpp.bank_mask)
}

/// The pattern of `ds_swizzle_b32`.
fn swizzle_text(offset: u32) -> String {
    if offset & 0x8000 != 0 {
        let lanes: Vec<_> = (0..4).map(|i| (offset >> (2 * i) & 3).to_string()).collect();
        return format!("swizzle(QUAD_PERM,{})", lanes.join(","));
    }
    let (and, or, xor) = (offset & 31, offset >> 5 & 31, offset >> 10 & 31);
    match (and, or, xor) {
        (31, 0, x) if x.is_power_of_two() => return format!("swizzle(SWAP,{x})"),
        (31, 0, x) if x > 0 && (x + 1).is_power_of_two() => return format!("swizzle(REVERSE,{})", x + 1),
        (a, o, 0) if a > 0 && a < 31 && (32 - a).is_power_of_two() && o < 32 - a => {
            return format!("swizzle(BROADCAST,{},{o})", 32 - a);
        }
        _ => {}
    }
    let pattern: String = (0..5)
        .rev()
        .map(|i| match (and >> i & 1, or >> i & 1, xor >> i & 1) {
            (0, 0, 0) => '0',
            (0, 1, 0) => '1',
            (1, 0, 0) => 'p',
            (1, 0, 1) => 'i',
            (0, 0, 1) => '1',
            _ => '0',
        })
        .collect();
    format!("swizzle(BITMASK_PERM,\"{pattern}\")")
}
