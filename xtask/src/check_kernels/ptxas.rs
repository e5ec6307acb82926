//! NVIDIA's assembler: its report on a module, and the machine code that it makes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kernels_gpu::abi::{Target, Vendor};

use super::tools;
use crate::workspace::output;

/// A ptxas that knows all targets.
pub(crate) struct Ptxas(PathBuf);

/// What ptxas says about a module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) registers: u32,
    pub(crate) spill_bytes: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) dynamic_stack: bool,
    pub(crate) static_shared_bytes: u32,
    /// Lines that are neither part of the report nor known to be harmless.
    pub(crate) remarks: Vec<String>,
}

impl Ptxas {
    /// The one on PATH if it knows all targets; else the one from PyPI.
    pub(crate) fn find() -> Result<Self> {
        let found = Self(tools::find("ptxas", "nvidia-cuda-nvcc", |path| Self(path.into()).knows_targets())?);
        ensure!(found.knows_targets(), "{} does not run here", found.0.display());
        Ok(found)
    }

    fn knows_targets(&self) -> bool {
        let Ok(help) = output(Command::new(&self.0).arg("--help")) else { return false };
        let mut nvidia = Target::ALL.into_iter().filter(|target| target.vendor() == Vendor::Nvidia);
        nvidia.all(|target| help.contains(&format!("'{}'", target.name())))
    }

    /// Assembles the file for `target` into the file `cubin`.
    pub(crate) fn assemble(&self, ptx: &Path, target: &str, cubin: &Path) -> Result<Usage> {
        let mut command = Command::new(&self.0);
        command.arg("-v").arg(format!("-arch={target}")).arg(ptx).arg("-o").arg(cubin);
        let result = command.output().with_context(|| format!("cannot run {}", self.0.display()))?;
        // ptxas reports to either stream, depending on its version.
        let report = [result.stdout, result.stderr].concat();
        let report = String::from_utf8_lossy(&report);
        if !result.status.success() {
            bail!("ptxas refuses {}:\n{}", ptx.display(), report.trim());
        }
        parse(&report).with_context(|| format!("in ptxas's report on {}", ptx.display()))
    }
}

/// Reads the report of `ptxas -v` on a module with one kernel; functions that were not inlined are added up.
fn parse(report: &str) -> Result<Usage> {
    let mut usage = Usage::default();
    let mut found = false;
    for line in report.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.contains("bytes stack frame") {
            usage.stack_bytes += number_before(line, " bytes stack frame")?;
            usage.spill_bytes +=
                number_before(line, " bytes spill stores")? + number_before(line, " bytes spill loads")?;
        } else if line.contains("Used ") && line.contains(" registers") {
            found = true;
            usage.registers = usage.registers.max(number_before(line, " registers")?);
            if line.contains(" bytes smem") {
                usage.static_shared_bytes = number_before(line, " bytes smem")?;
            }
        } else if line.contains("cannot be statically determined") {
            usage.dynamic_stack = true;
        } else if !line.starts_with("ptxas info") {
            usage.remarks.push(line.into());
        }
    }
    ensure!(found, "no line that states the registers:\n{report}");
    Ok(usage)
}

/// The number that stands before `unit`.
fn number_before(line: &str, unit: &str) -> Result<u32> {
    let word = line.split(unit).next().and_then(|head| head.rsplit([' ', ',']).next());
    word.and_then(|word| word.parse().ok()).with_context(|| format!("no number before `{unit}`: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read() {
        let report = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90'
ptxas info    : Function properties for spill
    64 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 64 bytes cumulative stack size, 1024 bytes smem, 4 bytes cmem[2]
ptxas info    : Compile time = 2.058 ms
";
        let usage =
            Usage { registers: 168, spill_bytes: 28, stack_bytes: 64, static_shared_bytes: 1024, ..Usage::default() };
        assert_eq!(parse(report).unwrap(), usage);
        let recursive =
            format!("{report}ptxas warning : Stack size for entry function 'k' cannot be statically determined\n");
        assert!(parse(&recursive).unwrap().dynamic_stack);
        let remark = "ptxas warning : Potential Performance Loss: 'setmaxnreg' ignored";
        assert_eq!(parse(&format!("{report}{remark}\n")).unwrap().remarks, [remark]);
        assert!(parse("").is_err());
    }
}
