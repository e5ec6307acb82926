//! From machine code to [`Inst`].

use super::inst::*;
use super::memory_ops::{Action, LdsOp, MemoryOp, ScalarMemory, Space};
use super::salu_ops::Salu;
use super::valu_ops::Valu;

/// Code that the decoder does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// The encoding and code, or what else is wrong.
    pub(crate) what: String,
    /// Byte offset in the code.
    pub(crate) offset: u32,
    /// The instruction's first word.
    pub(crate) word: u32,
}

/// `count` bits of `word` from bit `low`.
fn bits(word: u32, low: u32, count: u32) -> u32 {
    (word >> low) & ((1 << count) - 1)
}

fn bit(word: u32, index: u32) -> bool {
    word >> index & 1 != 0
}

/// Decodes the instruction at byte `offset` of `code`.
pub(crate) fn decode(code: &[u8], offset: u32) -> Result<Inst, Unknown> {
    Decoder { code, offset, word: 0, used: 0 }.run()
}

struct Decoder<'a> {
    code: &'a [u8],
    offset: u32,
    /// The first word.
    word: u32,
    /// Words taken so far.
    used: u32,
}

impl Decoder<'_> {
    fn unknown(&self, what: impl Into<String>) -> Unknown {
        Unknown { what: what.into(), offset: self.offset, word: self.word }
    }

    fn unknown_code(&self, encoding: Encoding, code: u32) -> Unknown {
        self.unknown(format!("unknown {encoding:?} code {code:#x}"))
    }

    /// The next word.
    fn take(&mut self) -> Result<u32, Unknown> {
        let at = self.offset as usize + self.used as usize * 4;
        let bytes = self.code.get(at..at + 4).ok_or_else(|| self.unknown("the code ends inside the instruction"))?;
        self.used += 1;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn run(mut self) -> Result<Inst, Unknown> {
        self.word = self.take()?;
        let word = self.word;
        let mut inst = match word >> 23 {
            0b1_0111_1101 => self.sop1(),
            0b1_0111_1110 => self.sopc(),
            0b1_0111_1111 => self.sopp(),
            0b1_0110_0000..=0b1_0111_1111 => self.sopk(),
            0b1_0000_0000..=0b1_0101_1111 => self.sop2(),
            _ => match word >> 26 {
                0b11_0000 => self.smem(),
                0b11_0100 if bits(word, 23, 3) == 0b111 => self.vop3p(),
                0b11_0100 => self.vop3(),
                0b11_0110 => self.ds(),
                0b11_0111 => self.flat(),
                0b11_1000 => self.mubuf(),
                _ if !bit(word, 31) => self.vop12c(),
                _ => Err(self.unknown("unknown encoding")),
            },
        }?;
        if matches!(
            inst.encoding,
            Encoding::Sop1 | Encoding::Sop2 | Encoding::Sopc | Encoding::Vop1 | Encoding::Vop2 | Encoding::Vopc
        ) && inst.src.contains(&Operand::LITERAL)
        {
            inst.literal = self.take()?;
        }
        inst.bytes = self.used * 4;
        inst.mods.ordered = inst.mods.cache & Mods::SC1 != 0;
        Ok(inst)
    }

    fn inst(&self, op: Op, encoding: Encoding) -> Inst {
        Inst {
            op,
            encoding,
            offset: self.offset,
            bytes: 0,
            dst: Operand::NONE,
            dst_width: 0,
            sdst: Operand::NONE,
            src: [Operand::NONE; 5],
            widths: [0; 5],
            literal: 0,
            imm: 0,
            mods: Mods::default(),
        }
    }

    /// An instruction with a row's destination and sources.
    fn with_row(&self, op: Op, encoding: Encoding, widths: &[u8], dst: Operand, src: &[Operand]) -> Inst {
        let mut inst = self.inst(op, encoding);
        if let Some((&width, sources)) = widths.split_first() {
            if width > 0 {
                (inst.dst, inst.dst_width) = (dst, width);
            }
            for (i, (&width, &operand)) in sources.iter().zip(src).enumerate() {
                (inst.src[i], inst.widths[i]) = (operand, width);
            }
        }
        inst
    }

    fn salu(&self, encoding: Encoding, code: u32, dst: u32, src: &[u32]) -> Result<Inst, Unknown> {
        let row = Salu::find(encoding, code).ok_or_else(|| self.unknown_code(encoding, code))?;
        let sources = [0, 1].map(|i| src.get(i).map_or(Operand::NONE, |&s| Operand(s as u16)));
        Ok(self.with_row(Op::Salu(row.op), encoding, row.widths, Operand(dst as u16), &sources))
    }

    fn sop2(&self) -> Result<Inst, Unknown> {
        let w = self.word;
        self.salu(Encoding::Sop2, bits(w, 23, 7), bits(w, 16, 7), &[bits(w, 0, 8), bits(w, 8, 8)])
    }

    fn sop1(&self) -> Result<Inst, Unknown> {
        let w = self.word;
        self.salu(Encoding::Sop1, bits(w, 8, 8), bits(w, 16, 7), &[bits(w, 0, 8)])
    }

    fn sopc(&self) -> Result<Inst, Unknown> {
        let w = self.word;
        self.salu(Encoding::Sopc, bits(w, 16, 7), 0, &[bits(w, 0, 8), bits(w, 8, 8)])
    }

    fn sopk(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let register = bits(w, 16, 7);
        let mut inst = self.salu(Encoding::Sopk, bits(w, 23, 5), register, &[register])?;
        inst.imm = i32::from(w as u16 as i16);
        if inst.op == Op::Salu(Salu::s_setreg_imm32_b32) {
            inst.literal = self.take()?;
        }
        Ok(inst)
    }

    fn sopp(&self) -> Result<Inst, Unknown> {
        let code = bits(self.word, 16, 7);
        let &(_, program, _) =
            Program::ROWS.iter().find(|row| row.0 == code).ok_or_else(|| self.unknown_code(Encoding::Sopp, code))?;
        let mut inst = self.inst(Op::Program(program), Encoding::Sopp);
        inst.imm = i32::from(self.word as u16 as i16);
        Ok(inst)
    }

    fn smem(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let second = self.take()?;
        let code = bits(w, 18, 8);
        let &(_, op, _) = ScalarMemory::ROWS
            .iter()
            .find(|row| row.0 == code)
            .ok_or_else(|| self.unknown_code(Encoding::Smem, code))?;
        let mut inst = self.inst(Op::ScalarMemory(op), Encoding::Smem);
        let (dst_width, base_width) = match op {
            ScalarMemory::Load(n) => (n, 2),
            ScalarMemory::BufferLoad(n) => (n, 4),
            ScalarMemory::Time | ScalarMemory::RealTime => (2, 0),
            ScalarMemory::CacheInvalidate | ScalarMemory::CacheWriteBack => (0, 0),
        };
        if dst_width > 0 {
            (inst.dst, inst.dst_width) = (Operand(bits(w, 6, 7) as u16), dst_width);
        }
        if base_width > 0 {
            (inst.src[0], inst.widths[0]) = (Operand(bits(w, 0, 6) as u16 * 2), base_width);
            let (soffset, immediate) = (bit(w, 14), bit(w, 17));
            if soffset || !immediate {
                let register = if soffset { bits(second, 25, 7) } else { bits(second, 0, 7) };
                (inst.src[1], inst.widths[1]) = (Operand(register as u16), 1);
            }
            if immediate {
                inst.imm = (bits(second, 0, 21) << 11) as i32 >> 11;
            }
        }
        inst.mods.cache = if bit(w, 16) { Mods::SC0 } else { 0 };
        Ok(inst)
    }

    fn vop12c(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let src0 = Operand(bits(w, 0, 9) as u16);
        let src1 = Operand::vgpr(bits(w, 9, 8));
        let code = bits(w, 25, 6);
        let mut inst = match code {
            0b11_1110 => {
                let code = bits(w, 17, 8);
                let compare = Compare::of_code(code).ok_or_else(|| self.unknown_code(Encoding::Vopc, code))?;
                self.compare(compare, Encoding::Vopc, Operand::VCC, [src0, src1])
            }
            0b11_1111 => {
                self.valu(Encoding::Vop1, bits(w, 9, 8), bits(w, 17, 8), [src0, Operand::NONE, Operand::NONE])?
            }
            _ => self.valu(Encoding::Vop2, code, bits(w, 17, 8), [src0, src1, Operand::VCC])?,
        };
        match src0.0 {
            0xf9 => self.sdwa(&mut inst)?,
            0xfa => self.dpp(&mut inst)?,
            _ => {}
        }
        match inst.op {
            // The literal is the factor or the addend of the short multiply-adds.
            Op::Valu(Valu::v_fmamk_f32) => inst.src = [src0, Operand::LITERAL, src1, Operand::NONE, Operand::NONE],
            Op::Valu(Valu::v_fmaak_f32) => inst.src[2] = Operand::LITERAL,
            _ => {}
        }
        Ok(inst)
    }

    fn compare(&self, compare: Compare, encoding: Encoding, dst: Operand, src: [Operand; 2]) -> Inst {
        let width = compare.width();
        let class = matches!(compare.ty, CompareType::ClassF32 | CompareType::ClassF16);
        self.with_row(Op::Compare(compare), encoding, &[2, width, if class { 1 } else { width }], dst, &src)
    }

    /// `code` is the encoding's own.
    fn valu(&self, encoding: Encoding, code: u32, dst: u32, src: [Operand; 3]) -> Result<Inst, Unknown> {
        let row = Valu::find(encoding, code).ok_or_else(|| self.unknown_code(encoding, code))?;
        let dst = if row.has(SGPR_DST) { Operand(dst as u16) } else { Operand::vector(dst, row.has(ACC_DST)) };
        let mut inst = self.with_row(Op::Valu(row.op), encoding, row.widths, dst, &src);
        if row.has(SDST) {
            inst.sdst = Operand::VCC;
        }
        if row.has(ACC_SRC) && inst.src[0].0 >= Operand::VGPR {
            inst.src[0].0 += Operand::AGPR - Operand::VGPR;
        }
        Ok(inst)
    }

    fn sdwa(&mut self, inst: &mut Inst) -> Result<(), Unknown> {
        let s = self.take()?;
        let scalar = bit(s, 23);
        inst.src[0] = if scalar { Operand(bits(s, 0, 8) as u16) } else { Operand::vgpr(bits(s, 0, 8)) };
        if bit(s, 31) {
            inst.src[1] = Operand(bits(self.word, 9, 8) as u16);
        }
        let compare = inst.encoding == Encoding::Vopc;
        inst.mods.sdwa = Some(Sdwa {
            dst: if compare { 6 } else { bits(s, 8, 3) as u8 },
            unused: if compare { 0 } else { bits(s, 11, 2) as u8 },
            src: [bits(s, 16, 3) as u8, bits(s, 24, 3) as u8],
            sext: [bit(s, 19), bit(s, 27)],
        });
        inst.mods.neg = u8::from(bit(s, 20)) | u8::from(bit(s, 28)) << 1;
        inst.mods.abs = u8::from(bit(s, 21)) | u8::from(bit(s, 29)) << 1;
        if compare {
            if bit(s, 15) {
                inst.dst = Operand(bits(s, 8, 7) as u16);
            }
        } else {
            inst.mods.clamp = bit(s, 13);
            inst.mods.omod = bits(s, 14, 2) as u8;
        }
        Ok(())
    }

    fn dpp(&mut self, inst: &mut Inst) -> Result<(), Unknown> {
        let s = self.take()?;
        let control = bits(s, 8, 9);
        if matches!(control, 0x100 | 0x110 | 0x120 | 0x144..=0x14f | 0x160..)
            || ((0x130..0x140).contains(&control) && !control.is_multiple_of(4))
        {
            return Err(self.unknown(format!("unknown DPP control {control:#x}")));
        }
        inst.src[0] = Operand::vgpr(bits(s, 0, 8));
        inst.mods.dpp = Some(Dpp {
            control: control as u16,
            bound_control: bit(s, 19),
            bank_mask: bits(s, 24, 4) as u8,
            row_mask: bits(s, 28, 4) as u8,
        });
        inst.mods.neg = u8::from(bit(s, 20)) | u8::from(bit(s, 22)) << 1;
        inst.mods.abs = u8::from(bit(s, 21)) | u8::from(bit(s, 23)) << 1;
        Ok(())
    }

    fn vop3(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let second = self.take()?;
        let code = bits(w, 16, 10);
        let src = [0, 9, 18].map(|low| Operand(bits(second, low, 9) as u16));
        let mut inst = match code {
            0..0x100 => {
                let compare = Compare::of_code(code).ok_or_else(|| self.unknown_code(Encoding::Vop3, code))?;
                self.compare(compare, Encoding::Vop3, Operand(bits(w, 0, 8) as u16), [src[0], src[1]])
            }
            0x100..0x140 => self.valu(Encoding::Vop2, code - 0x100, bits(w, 0, 8), src)?,
            0x140..0x1c0 => self.valu(Encoding::Vop1, code - 0x140, bits(w, 0, 8), src)?,
            _ => self.valu(Encoding::Vop3, code, bits(w, 0, 8), src)?,
        };
        inst.encoding = Encoding::Vop3;
        if inst.src.contains(&Operand::LITERAL) {
            return Err(self.unknown("VOP3 with a literal"));
        }
        if matches!(inst.op, Op::Valu(Valu::v_bitop3_b32 | Valu::v_bitop3_b16)) {
            inst.literal = bits(second, 27, 2) << 6 | bits(w, 8, 3) << 3 | bits(second, 29, 3);
            return Ok(inst);
        }
        if inst.sdst.is_none() {
            inst.mods.abs = bits(w, 8, 3) as u8;
            inst.mods.op_sel = bits(w, 11, 4) as u8;
        } else {
            inst.sdst = Operand(bits(w, 8, 7) as u16);
        }
        inst.mods.clamp = bit(w, 15);
        inst.mods.omod = bits(second, 27, 2) as u8;
        inst.mods.neg = bits(second, 29, 3) as u8;
        Ok(inst)
    }

    fn vop3p(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let second = self.take()?;
        let code = bits(w, 16, 7);
        if code == 0x2c {
            return self.scaled_mfma(w, second);
        }
        let src = [0, 9, 18].map(|low| Operand(bits(second, low, 9) as u16));
        if let Some(mfma) = Mfma::of_code(code) {
            return self.mfma(mfma, w, second);
        }
        let mut inst = self.valu(Encoding::Vop3P, code, bits(w, 0, 8), src)?;
        packed_selects(&mut inst.mods, w, second);
        Ok(inst)
    }

    fn mfma(&self, mut mfma: Mfma, w: u32, second: u32) -> Result<Inst, Unknown> {
        let mut mods = Mods {
            cbsz: bits(w, 8, 3) as u8,
            abid: bits(w, 11, 4) as u8,
            blgp: bits(second, 29, 3) as u8,
            ..Mods::default()
        };
        if mfma.mixed {
            let element =
                |format| Element::of_format(format).ok_or_else(|| self.unknown(format!("matrix format {format}")));
            (mfma.a, mfma.b) = (element(mods.cbsz)?, element(mods.blgp)?);
        }
        let acc_cd = bit(w, 15);
        let source = |low: u32, acc: bool| {
            let operand = Operand(bits(second, low, 9) as u16);
            match operand.vector_index() {
                Some(index) => Operand::vector(index as u32, acc),
                None => operand,
            }
        };
        let mut inst = self.inst(Op::Mfma(mfma), Encoding::Mai);
        (inst.dst, inst.dst_width) = (Operand::vector(bits(w, 0, 8), acc_cd), mfma.output_registers());
        inst.src[..3].copy_from_slice(&[source(0, bit(second, 27)), source(9, bit(second, 28)), source(18, acc_cd)]);
        inst.widths[..3].copy_from_slice(&[
            mfma.input_registers(mfma.a),
            mfma.input_registers(mfma.b),
            mfma.output_registers(),
        ]);
        if mfma.mixed {
            mods.abid = 0;
        }
        inst.mods = mods;
        Ok(inst)
    }

    /// The prefix with the scales, then the matrix instruction itself.
    fn scaled_mfma(&mut self, scale: u32, scale_second: u32) -> Result<Inst, Unknown> {
        let w = self.take()?;
        let second = self.take()?;
        let code = bits(w, 16, 7);
        let mfma = Mfma::of_code(code)
            .filter(|mfma| mfma.mixed && w >> 23 == self.word >> 23)
            .ok_or_else(|| self.unknown("scales without an f8f6f4 matrix instruction"))?;
        let mut inst = self.mfma(Mfma { scaled: true, ..mfma }, w, second)?;
        for i in 0..2 {
            inst.src[3 + i] = Operand(bits(scale_second, 9 * i as u32, 9) as u16);
            inst.widths[3 + i] = 1;
        }
        packed_selects(&mut inst.mods, scale, scale_second);
        (inst.mods.neg, inst.mods.abs, inst.mods.clamp) = (0, 0, false);
        Ok(inst)
    }

    fn ds(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let second = self.take()?;
        let code = bits(w, 17, 8);
        let op = LdsOp::of_code(code).ok_or_else(|| self.unknown_code(Encoding::Ds, code))?;
        if bit(w, 16) {
            return Err(self.unknown("global data share"));
        }
        let mut inst = self.inst(Op::Lds(op), Encoding::Ds);
        let acc = bit(w, 25);
        let [dst, data0, data1] = op.registers();
        if dst > 0 {
            (inst.dst, inst.dst_width) = (Operand::vector(bits(second, 24, 8), acc), dst);
        }
        (inst.src[0], inst.widths[0]) = (Operand::vgpr(bits(second, 0, 8)), 1);
        for (i, (registers, low)) in [(data0, 8), (data1, 16)].into_iter().enumerate() {
            if registers > 0 {
                (inst.src[1 + i], inst.widths[1 + i]) = (Operand::vector(bits(second, low, 8), acc), registers);
            }
        }
        // A 16-bit offset, or two of 8 bits with the first in the low byte.
        inst.imm = bits(w, 0, 16) as i32;
        Ok(inst)
    }

    fn flat(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let second = self.take()?;
        let space = match bits(w, 14, 2) {
            0 => Space::Flat,
            1 => Space::Scratch,
            2 => Space::Global,
            _ => return Err(self.unknown("unknown segment")),
        };
        let mut inst = self.vector_memory(space, bits(w, 18, 7), Encoding::Flat)?;
        let acc = bit(second, 23);
        inst.mods.cache = bits(w, 16, 2) as u8 | if bit(w, 25) { Mods::SC1 } else { 0 };
        let saddr = bits(second, 16, 7);
        let base = if space == Space::Flat || saddr == 0x7f { Operand::NONE } else { Operand(saddr as u16) };
        let address = Operand::vgpr(bits(second, 0, 8));
        match space {
            Space::Scratch => {
                if bit(w, 13) {
                    (inst.src[0], inst.widths[0]) = (address, 1);
                }
                (inst.src[3], inst.widths[3]) = (base, 1);
            }
            _ => {
                (inst.src[0], inst.widths[0]) = (address, if base.is_none() { 2 } else { 1 });
                (inst.src[3], inst.widths[3]) = (base, 2);
            }
        }
        inst.imm = if space == Space::Flat { bits(w, 0, 12) as i32 } else { (bits(w, 0, 13) << 19) as i32 >> 19 };
        set_data(&mut inst, Operand::vector(bits(second, 24, 8), acc), Operand::vector(bits(second, 8, 8), acc));
        Ok(inst)
    }

    fn mubuf(&mut self) -> Result<Inst, Unknown> {
        let w = self.word;
        let second = self.take()?;
        let mut inst = self.vector_memory(Space::Buffer, bits(w, 18, 7), Encoding::Mubuf)?;
        inst.mods.cache = bits(w, 14, 1) as u8 | (bits(w, 17, 1) as u8 * Mods::NT) | (bits(w, 15, 1) as u8 * Mods::SC1);
        let Op::Memory(op) = inst.op else { unreachable!("vector_memory makes memory instructions") };
        if matches!(op.action, Action::CacheWriteBack | Action::CacheInvalidate) {
            return Ok(inst);
        }
        (inst.mods.offen, inst.mods.idxen, inst.mods.lds) = (bit(w, 12), bit(w, 13), bit(w, 16));
        let address_registers = u8::from(inst.mods.offen) + u8::from(inst.mods.idxen);
        if address_registers > 0 {
            (inst.src[0], inst.widths[0]) = (Operand::vgpr(bits(second, 0, 8)), address_registers);
        }
        let data = Operand::vector(bits(second, 8, 8), bit(second, 23));
        if inst.mods.lds {
            let Action::Load(unit) = op.action else { return Err(self.unknown("`lds` on what is no load")) };
            inst.op = Op::Memory(MemoryOp { action: Action::LoadLds(unit), ..op });
        } else {
            set_data(&mut inst, data, data);
        }
        (inst.src[2], inst.widths[2]) = (Operand(bits(second, 24, 8) as u16), 1);
        (inst.src[3], inst.widths[3]) = (Operand(bits(second, 16, 5) as u16 * 4), 4);
        inst.imm = bits(w, 0, 12) as i32;
        Ok(inst)
    }

    fn vector_memory(&self, space: Space, code: u32, encoding: Encoding) -> Result<Inst, Unknown> {
        let op = MemoryOp::of_code(space, code)
            .ok_or_else(|| self.unknown(format!("unknown {encoding:?} code {code:#x} ({space:?})")))?;
        Ok(self.inst(Op::Memory(op), encoding))
    }
}

/// The half selects, negations and clamp of the packed encoding.
fn packed_selects(mods: &mut Mods, w: u32, second: u32) {
    mods.op_sel = bits(w, 11, 3) as u8;
    mods.op_sel_hi = bits(second, 27, 2) as u8 | (bits(w, 14, 1) as u8 * 4);
    mods.neg = bits(second, 29, 3) as u8;
    mods.abs = bits(w, 8, 3) as u8;
    mods.clamp = bit(w, 15);
}

/// Sets what a vector memory instruction reads or writes in registers.
fn set_data(inst: &mut Inst, loaded: Operand, stored: Operand) {
    let Op::Memory(op) = inst.op else { return };
    let registers = op.data_registers();
    match op.action {
        Action::Load(_) => (inst.dst, inst.dst_width) = (loaded, registers),
        Action::Store(_) => (inst.src[1], inst.widths[1]) = (stored, registers),
        Action::Atomic(_, bytes) => {
            (inst.src[1], inst.widths[1]) = (stored, registers);
            // `sc0` of an atomic asks for the old value.
            if inst.mods.cache & Mods::SC0 != 0 {
                (inst.dst, inst.dst_width) = (loaded, bytes / 4);
            }
        }
        Action::LoadLds(_) | Action::CacheWriteBack | Action::CacheInvalidate => {}
    }
}
