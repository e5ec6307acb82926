//! NVIDIA's machine code, disassembled: what ptxas made of a kernel.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::tools;
use crate::workspace::output;

/// NVIDIA's disassembler.
pub(crate) struct Disassembler(PathBuf);

/// What is read from a kernel's code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// Exponentials, in the order of the code.
    pub(crate) exponentials: u32,
    /// Those of them that stand between matrix instructions, with no branch between: both units work at the same time.
    pub(crate) under_matrix: u32,
    /// Names of the matrix instructions.
    pub(crate) matrix: BTreeSet<String>,
    /// Instructions that ptxas got wrong.
    pub(crate) illegal: Vec<String>,
}

impl Disassembler {
    pub(crate) fn find() -> Result<Self> {
        let runs = |path: &Path| output(Command::new(path).arg("--version")).is_ok();
        Ok(Self(tools::find("nvdisasm", "nvidia-cuda-nvdisasm", runs)?))
    }

    /// Reads the code of a module with one kernel.
    pub(crate) fn read(&self, cubin: &Path) -> Result<Code> {
        Ok(parse(&output(Command::new(&self.0).arg("-c").arg(cubin))?))
    }
}

fn parse(sass: &str) -> Code {
    let mut code = Code::default();
    // Exponentials since the last matrix instruction of this stretch of code, if there was one.
    let mut since_matrix = None;
    for line in sass.lines() {
        // "/*0a10*/  @P0 MUFU.EX2 R1, R2 ;", or a label.
        let Some((_, instruction)) = line.trim().strip_prefix("/*").and_then(|line| line.split_once("*/")) else {
            if line.trim_start().starts_with(".L_") {
                since_matrix = None;
            }
            continue;
        };
        let instruction = instruction.trim().trim_end_matches(';').trim();
        let mut words = instruction.split_whitespace().skip_while(|word| word.starts_with('@'));
        let opcode = words.next().unwrap_or("");
        let name = opcode.split('.').next().unwrap_or("");
        if is_matrix(name) {
            code.matrix.insert(name.into());
            code.under_matrix += since_matrix.unwrap_or(0);
            since_matrix = Some(0);
        } else if opcode == "MUFU.EX2" {
            code.exponentials += 1;
            since_matrix = since_matrix.map(|count| count + 1);
        } else if matches!(name, "BRA" | "BRX" | "EXIT" | "BSYNC") {
            since_matrix = None;
        }
        if has_odd_descriptor(instruction) {
            code.illegal.push(instruction.into());
        }
    }
    code
}

/// Matrix instructions from mma.sync (HMMA, and IMMA, QMMA), wgmma (HGMMA, QGMMA) and tcgen05 (UTCHMMA, UTCQMMA).
fn is_matrix(name: &str) -> bool {
    matches!(name, "HMMA" | "IMMA" | "QMMA" | "HGMMA" | "IGMMA" | "QGMMA" | "UTCHMMA" | "UTCQMMA")
}

/// Whether a memory access names a descriptor in an odd uniform register: descriptors are pairs. ptxas 13.0 and 13.5
/// make that of a predicated `cp.async` with a cache policy in a short loop; the GPU ends the launch with error 715.
fn has_odd_descriptor(instruction: &str) -> bool {
    let number = instruction.split_once("desc[UR").and_then(|(_, rest)| rest.split_once(']'));
    number.and_then(|(number, _)| number.parse::<u32>().ok()).is_some_and(|number| number % 2 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_between_matrix_instructions_are_counted() {
        let sass = "
.text.kernel:
        /*0000*/                   MUFU.EX2 R1, R2 ;
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/                   MUFU.EX2 R1, R2 ;
        /*0030*/              @!P0 MUFU.EX2 R3, R2 ;
        /*0040*/                   MUFU.LG2 R3, R2 ;
        /*0050*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0060*/                   MUFU.EX2 R3, R2 ;
        /*0070*/               @P1 BRA `(.L_x_1) ;
        /*0080*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0090*/                   MUFU.EX2 R3, R2 ;
.L_x_1:
        /*00a0*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
";
        let matrix = BTreeSet::from(["HMMA".to_owned()]);
        assert_eq!(parse(sass), Code { exponentials: 5, under_matrix: 2, matrix, illegal: vec![] });
    }

    #[test]
    fn odd_descriptors_are_illegal() {
        let sass = "
        /*2490*/                   LDGSTS.E.BYPASS.128 [R63], desc[UR28][R28.64] ;
        /*24e0*/              @!P1 LDGSTS.E.BYPASS.128 [R65+0x200], desc[UR31][R30.64] ;
";
        assert_eq!(parse(sass).illegal, ["@!P1 LDGSTS.E.BYPASS.128 [R65+0x200], desc[UR31][R30.64]"]);
    }
}
