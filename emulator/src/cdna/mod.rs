//! Executes gfx950 (CDNA4) code objects.

mod compare;
mod convert;
mod decode;
mod divide;
mod elf;
mod expansion;
mod float;
mod inst;
mod lanes;
mod lds;
mod memory_ops;
mod mfma;
mod operands;
mod packed;
mod program;
mod salu;
mod salu_ops;
mod smem;
mod text;
mod valu;
mod valu_ops;
mod vmem;
mod wait;
mod wave;

pub(crate) use program::load;

/// Disassembles `code`: the text of each instruction with its byte offset, or why there is none.
pub fn disassemble(code: &[u8]) -> Vec<(u32, Result<String, String>)> {
    let mut lines = Vec::new();
    let mut offset = 0;
    while (offset as usize) < code.len() {
        match decode::decode(code, offset) {
            Ok(inst) => {
                lines.push((offset, Ok(inst.to_string())));
                offset += inst.bytes;
            }
            Err(unknown) => {
                lines.push((offset, Err(format!("{} ({:#010x})", unknown.what, unknown.word))));
                offset += 4;
            }
        }
    }
    lines
}
