//! What the compiled kernels need: registers, spills, stack, shared memory, hidden arguments.
//!
//! PTX is assembled by ptxas; code objects state it themselves. Kernels keep all they have in registers:
//! a spill, stack, scratch or dynamic stack fails the check, and so does an instruction that ptxas is known to get wrong.
//! Kernels over tensor memory must have its matrix instructions.

mod ptxas;
mod sass;
mod tools;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use kernels_gpu::abi::{Target, Vendor};
use rayon::prelude::*;
use serde::Serialize;
use splitkv::manifest::{KernelEntry, Manifest};

use crate::code_object;
use ptxas::Ptxas;
use sass::Disassembler;

/// What one kernel needs on one target.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    target: String,
    /// NVIDIA: registers of a thread. AMD: VGPRs of a lane.
    registers: u32,
    /// AMD only: accumulation VGPRs of a lane.
    agprs: Option<u32>,
    /// AMD only: SGPRs of a wavefront.
    sgprs: Option<u32>,
    /// NVIDIA: bytes that a thread stores and loads. AMD: VGPRs.
    spills: u32,
    /// AMD only: SGPRs that go to lanes of VGPRs, or to scratch.
    sgpr_spills: Option<u32>,
    /// NVIDIA: stack of a thread, AMD: scratch of a lane, in bytes.
    stack_bytes: u32,
    dynamic_stack: bool,
    static_shared_bytes: u32,
    dynamic_shared_bytes: u32,
    /// AMD only: arguments that the compiler added.
    hidden_arguments: Vec<String>,
    /// NVIDIA only: exponentials in the code, and those that stand between matrix instructions.
    exponentials: Option<[u32; 2]>,
    /// NVIDIA only: names of the matrix instructions in the code.
    matrix: Vec<String>,
    /// The matrix instruction that the kernel is made for, and must have.
    #[serde(skip)]
    wanted: Option<&'static str>,
    /// NVIDIA only: instructions that ptxas got wrong.
    illegal: Vec<String>,
    /// What else the assembler had to say.
    remarks: Vec<String>,
}

impl Report {
    /// Why the check fails, if it does.
    fn offence(&self) -> Option<String> {
        let mut reasons = Vec::new();
        if self.spills > 0 {
            reasons.push(format!("spills ({})", self.spills));
        }
        if let Some(spills @ 1..) = self.sgpr_spills {
            reasons.push(format!("SGPR spills ({spills})"));
        }
        if self.stack_bytes > 0 {
            reasons.push(format!("stack or scratch ({} bytes)", self.stack_bytes));
        }
        if self.dynamic_stack {
            reasons.push("a dynamic stack".into());
        }
        if let Some(wanted) = self.wanted
            && !self.matrix.iter().any(|name| name == wanted)
        {
            reasons.push(format!("no {wanted} (but {})", self.matrix.join(", ")));
        }
        if !self.illegal.is_empty() {
            reasons.push(format!("illegal instructions ({})", self.illegal.join("; ")));
        }
        (!reasons.is_empty()).then(|| format!("{} on {}: {}", self.name, self.target, reasons.join(", ")))
    }
}

/// Checks every kernel that the manifest in `folder` lists and prints a table, or JSON. An error names the
/// kernels that fail.
pub(crate) fn check(folder: &Path, json: bool) -> Result<()> {
    let text = fs::read_to_string(folder.join(Manifest::FILE)).context("cannot read the manifest")?;
    let manifest: Manifest = serde_json::from_str(&text).context("cannot read the manifest")?;
    let tools = Tools { ptxas: Ptxas::find()?, disassembler: Disassembler::find()? };
    let reports = manifest.kernels.par_iter().map(|entry| report(folder, entry, &tools)).collect::<Result<Vec<_>>>()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&reports)?);
    } else {
        println!("{}", table(&reports));
    }
    for report in &reports {
        for remark in &report.remarks {
            eprintln!("{} on {}: {remark}", report.name, report.target);
        }
    }
    let offences: Vec<_> = reports.iter().filter_map(Report::offence).collect();
    if !offences.is_empty() {
        bail!("kernels that do not pass:\n  {}", offences.join("\n  "));
    }
    Ok(())
}

struct Tools {
    ptxas: Ptxas,
    disassembler: Disassembler,
}

fn report(folder: &Path, entry: &KernelEntry, tools: &Tools) -> Result<Report> {
    let target = Target::ALL.into_iter().find(|target| target.name() == entry.target);
    let target = target.with_context(|| format!("the manifest lists the unknown target {}", entry.target))?;
    let artefact = folder.join(&entry.file);
    let report = Report {
        name: entry.name.clone(),
        target: entry.target.clone(),
        registers: 0,
        agprs: None,
        sgprs: None,
        spills: 0,
        sgpr_spills: None,
        stack_bytes: 0,
        dynamic_stack: false,
        static_shared_bytes: 0,
        dynamic_shared_bytes: entry.dynamic_shared_bytes,
        hidden_arguments: Vec::new(),
        exponentials: None,
        matrix: Vec::new(),
        wanted: wanted(entry),
        illegal: Vec::new(),
        remarks: Vec::new(),
    };
    match target.vendor() {
        Vendor::Nvidia => {
            let cubin = tempfile::NamedTempFile::new().context("a file for machine code")?;
            let usage = tools.ptxas.assemble(&artefact, target.name(), cubin.path())?;
            let code = tools.disassembler.read(cubin.path())?;
            Ok(Report {
                registers: usage.registers,
                spills: usage.spill_bytes,
                stack_bytes: usage.stack_bytes,
                dynamic_stack: usage.dynamic_stack,
                static_shared_bytes: usage.static_shared_bytes,
                exponentials: Some([code.exponentials, code.under_matrix]),
                matrix: code.matrix.into_iter().collect(),
                illegal: code.illegal,
                remarks: usage.remarks,
                ..report
            })
        }
        Vendor::Amd => {
            let elf = fs::read(&artefact).with_context(|| format!("cannot read {}", artefact.display()))?;
            let kernels = code_object::kernels(&elf).with_context(|| format!("in {}", artefact.display()))?;
            let kernel = kernels.into_iter().find(|kernel| kernel.name == entry.name);
            let kernel = kernel.with_context(|| format!("{} has no kernel {}", artefact.display(), entry.name))?;
            Ok(Report {
                registers: kernel.vgpr_count,
                agprs: Some(kernel.agpr_count),
                sgprs: Some(kernel.sgpr_count),
                spills: kernel.vgpr_spill_count,
                sgpr_spills: Some(kernel.sgpr_spill_count),
                stack_bytes: kernel.private_segment_fixed_size,
                dynamic_stack: kernel.uses_dynamic_stack,
                static_shared_bytes: kernel.group_segment_fixed_size,
                hidden_arguments: kernel.hidden_arguments,
                ..report
            })
        }
    }
}

/// The matrix instruction that a kernel over tensor memory is made of.
fn wanted(entry: &KernelEntry) -> Option<&'static str> {
    let attention = entry.attention.as_ref().filter(|attention| attention.block_shape == "tcgen05")?;
    Some(if attention.dtype == "e4m3" { "UTCQMMA" } else { "UTCHMMA" })
}

fn table(reports: &[Report]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "kernel",
        "target",
        "registers",
        "AGPRs",
        "SGPRs",
        "spills",
        "SGPR spills",
        "stack/scratch",
        "shared/LDS",
        "exp under MMA",
        "hidden arguments",
    ]);
    for report in reports {
        let or_dash = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let hidden = if report.hidden_arguments.is_empty() { "-".into() } else { report.hidden_arguments.join(" ") };
        let stack = if report.dynamic_stack { "dynamic".into() } else { report.stack_bytes.to_string() };
        table.add_row([
            report.name.clone(),
            report.target.clone(),
            report.registers.to_string(),
            or_dash(report.agprs),
            or_dash(report.sgprs),
            report.spills.to_string(),
            or_dash(report.sgpr_spills),
            stack,
            (report.static_shared_bytes + report.dynamic_shared_bytes).to_string(),
            report.exponentials.map_or("-".to_owned(), |[all, under]| format!("{under} of {all}")),
            hidden,
        ]);
    }
    for column in 2..10 {
        table.column_mut(column).expect("the header has eleven columns").set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_out_of_registers_is_an_offence() {
        let clean = || Report {
            name: "k".into(),
            target: "gfx950".into(),
            registers: 255,
            agprs: None,
            sgprs: None,
            spills: 0,
            sgpr_spills: None,
            stack_bytes: 0,
            dynamic_stack: false,
            static_shared_bytes: 0,
            dynamic_shared_bytes: 0,
            hidden_arguments: vec!["hidden_dynamic_lds_size".into()],
            exponentials: None,
            matrix: Vec::new(),
            wanted: None,
            illegal: Vec::new(),
            remarks: Vec::new(),
        };
        assert_eq!(clean().offence(), None);
        assert_eq!(Report { spills: 3, ..clean() }.offence().unwrap(), "k on gfx950: spills (3)");
        assert_eq!(Report { sgpr_spills: Some(2), ..clean() }.offence().unwrap(), "k on gfx950: SGPR spills (2)");
        assert_eq!(Report { sgpr_spills: Some(0), ..clean() }.offence(), None);
        assert!(Report { stack_bytes: 16, ..clean() }.offence().unwrap().contains("16 bytes"));
        let illegal = vec!["LDGSTS".into(), "X".into()];
        assert_eq!(Report { illegal, ..clean() }.offence().unwrap(), "k on gfx950: illegal instructions (LDGSTS; X)");
        let portable = Report { wanted: Some("UTCHMMA"), matrix: vec!["HMMA".into()], ..clean() };
        assert_eq!(portable.offence().unwrap(), "k on gfx950: no UTCHMMA (but HMMA)");
        assert_eq!(Report { matrix: vec!["UTCHMMA".into()], ..portable }.offence(), None);
        assert!(Report { dynamic_stack: true, ..clean() }.offence().unwrap().contains("dynamic stack"));
    }
}
