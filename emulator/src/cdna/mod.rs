//! Executes gfx950 (CDNA4) code objects.

pub(crate) mod decode;
pub(crate) mod inst;
pub(crate) mod memory_ops;
pub(crate) mod salu_ops;
pub(crate) mod text;
pub(crate) mod valu_ops;

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
