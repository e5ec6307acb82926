//! Checks what the compiler made against the ABI table, and puts it where the manifest says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use kernels_gpu::abi::{Target, Vendor};
use splitkv::manifest::KernelEntry;

use super::ptx;
use crate::code_object;
use crate::workspace::write_whole;

/// Replaces `out/TARGET/` by the kernels in `artefact`, PTX text or a code object; returns their entries.
pub(super) fn install(target: Target, artefact: &Path, out: &Path) -> Result<Vec<KernelEntry>> {
    let folder = out.join(target.name());
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    match target.vendor() {
        Vendor::Nvidia => install_ptx(target, artefact, &folder),
        Vendor::Amd => install_code_object(target, artefact, &folder),
    }
}

/// Cuts the PTX, checks it against the table, writes a file a kernel.
fn install_ptx(target: Target, ptx: &Path, folder: &Path) -> Result<Vec<KernelEntry>> {
    let mut modules = ptx::split(&fs::read_to_string(ptx)?)?;
    let mut entries = Vec::new();
    for kernel in target.kernels() {
        let Some(module) = modules.remove(kernel.name) else { bail!("the PTX has no kernel {}", kernel.name) };
        let bound = format!(".maxntid {}", kernel.threads(target.vendor()));
        ensure!(module.text.contains(&bound), "{} was compiled without its launch bound `{bound}`", kernel.name);
        let file = format!("{}.ptx", kernel.name);
        write_whole(&folder.join(&file), module.text.as_bytes())?;
        let file = format!("{}/{file}", target.name());
        entries.push(KernelEntry::new(kernel, target, file, module.static_shared_bytes));
    }
    let extra: Vec<_> = modules.into_keys().collect();
    ensure!(extra.is_empty(), "kernels that the ABI table does not list: {}", extra.join(", "));
    Ok(entries)
}

/// Checks the code object against the table and copies it.
fn install_code_object(target: Target, elf: &Path, folder: &Path) -> Result<Vec<KernelEntry>> {
    let elf = fs::read(elf)?;
    let mut found: BTreeMap<_, _> =
        code_object::kernels(&elf)?.into_iter().map(|kernel| (kernel.name.clone(), kernel)).collect();
    let mut entries = Vec::new();
    for kernel in target.kernels() {
        let Some(metadata) = found.remove(kernel.name) else { bail!("the code object has no kernel {}", kernel.name) };
        let (bound, threads) = (metadata.max_flat_workgroup_size, kernel.threads(target.vendor()));
        ensure!(bound == threads, "{} was compiled for {bound} threads, not {threads}", kernel.name);
        let file = format!("{}/kernels.elf", target.name());
        entries.push(KernelEntry::new(kernel, target, file, metadata.group_segment_fixed_size));
    }
    let extra: Vec<_> = found.into_keys().collect();
    ensure!(extra.is_empty(), "kernels that the ABI table does not list: {}", extra.join(", "));
    write_whole(&folder.join("kernels.elf"), &elf)?;
    Ok(entries)
}
