//! Reads what an AMD code object says about its kernels.

use anyhow::{Context, Result, bail};
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use rmpv::Value;

/// ELF note type `NT_AMDGPU_METADATA`.
const NT_AMDGPU_METADATA: u32 = 32;

/// A kernel's metadata, under the names of the code object's `amdhsa.kernels`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelMetadata {
    pub(crate) name: String,
    pub(crate) vgpr_count: u32,
    pub(crate) agpr_count: u32,
    pub(crate) sgpr_count: u32,
    pub(crate) vgpr_spill_count: u32,
    pub(crate) sgpr_spill_count: u32,
    /// Scratch of a thread in bytes.
    pub(crate) private_segment_fixed_size: u32,
    pub(crate) uses_dynamic_stack: bool,
    /// LDS of a workgroup in bytes, without what the launch asks for.
    pub(crate) group_segment_fixed_size: u32,
    pub(crate) max_flat_workgroup_size: u32,
    /// Kinds of the arguments that the compiler added and a launch must supply.
    pub(crate) hidden_arguments: Vec<String>,
}

/// The metadata of every kernel in `elf`.
pub(crate) fn kernels(elf: &[u8]) -> Result<Vec<KernelMetadata>> {
    let note = metadata_note(elf)?;
    let root = rmpv::decode::read_value(&mut &note[..]).context("the metadata note is not MessagePack")?;
    let kernels = field(&root, "amdhsa.kernels").and_then(Value::as_array).context("no `amdhsa.kernels`")?;
    kernels.iter().map(kernel).collect()
}

/// The payload of the note that holds the metadata.
fn metadata_note(elf: &[u8]) -> Result<&[u8]> {
    let header = FileHeader64::<LittleEndian>::parse(elf).context("not a 64-bit ELF file")?;
    let endian: LittleEndian = header.endian()?;
    for section in header.section_headers(endian, elf)? {
        let Some(mut notes) = section.notes(endian, elf)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"AMDGPU" && note.n_type(endian) == NT_AMDGPU_METADATA {
                return Ok(note.desc());
            }
        }
    }
    bail!("no AMDGPU metadata note: not a code object")
}

fn kernel(value: &Value) -> Result<KernelMetadata> {
    let name = field(value, ".name").and_then(Value::as_str).context("a kernel without `.name`")?.to_owned();
    let number = |key| -> Result<u32> {
        let number = field(value, key).and_then(Value::as_u64).with_context(|| format!("{name} has no `{key}`"))?;
        u32::try_from(number).with_context(|| format!("{name}: `{key}` is {number}"))
    };
    let arguments = field(value, ".args").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let kinds = arguments.iter().filter_map(|argument| field(argument, ".value_kind").and_then(Value::as_str));
    Ok(KernelMetadata {
        vgpr_count: number(".vgpr_count")?,
        agpr_count: number(".agpr_count")?,
        sgpr_count: number(".sgpr_count")?,
        vgpr_spill_count: number(".vgpr_spill_count")?,
        sgpr_spill_count: number(".sgpr_spill_count")?,
        private_segment_fixed_size: number(".private_segment_fixed_size")?,
        uses_dynamic_stack: field(value, ".uses_dynamic_stack").and_then(Value::as_bool).unwrap_or(false),
        group_segment_fixed_size: number(".group_segment_fixed_size")?,
        max_flat_workgroup_size: number(".max_flat_workgroup_size")?,
        hidden_arguments: kinds.filter(|kind| kind.starts_with("hidden_")).map(str::to_owned).collect(),
        name,
    })
}

/// The value of `key` in a MessagePack map.
fn field<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.as_map()?.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// A kernel without `core`, which compiles in no time.
    const KERNEL: &str = r#"
        #![feature(no_core, lang_items, abi_gpu_kernel)]
        #![no_core]
        #[lang = "pointee_sized"] trait PointeeSized {}
        #[lang = "meta_sized"] trait MetaSized: PointeeSized {}
        #[lang = "sized"] trait Sized: MetaSized {}
        #[lang = "copy"] trait Copy {}
        impl Copy for u32 {}
        impl<T: PointeeSized> Copy for *mut T {}
        #[unsafe(no_mangle)]
        extern "gpu-kernel" fn store(at: *mut u32, value: u32) { unsafe { *at = value } }
    "#;

    #[test]
    fn a_code_object_is_read() {
        let folder = std::env::temp_dir().join(format!("splitkv-code-object-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("kernel.rs"), KERNEL).unwrap();
        fs::write(folder.join("bounds.csv"), "store,amdgpu-flat-work-group-size=192,192\n").unwrap();
        let mut rustc = Command::new("rustc");
        rustc.current_dir(&folder).args(["--edition=2024", "--crate-type=cdylib", "-O", "-Cpanic=abort"]);
        rustc.args(["--target=amdgcn-amd-amdhsa", "-Ctarget-cpu=gfx950", "-Ainternal_features"]);
        rustc.args(["-Cllvm-args=-forceattrs-csv-path=bounds.csv", "-o", "kernel.elf", "kernel.rs"]);
        assert!(rustc.status().unwrap().success());
        let kernels = kernels(&fs::read(folder.join("kernel.elf")).unwrap()).unwrap();
        assert_eq!(kernels.len(), 1);
        let kernel = &kernels[0];
        assert_eq!((kernel.name.as_str(), kernel.max_flat_workgroup_size), ("store", 192));
        assert!((1..=16).contains(&kernel.vgpr_count) && (1..=32).contains(&kernel.sgpr_count));
        let zeros = KernelMetadata {
            name: kernel.name.clone(),
            vgpr_count: kernel.vgpr_count,
            sgpr_count: kernel.sgpr_count,
            max_flat_workgroup_size: 192,
            ..KernelMetadata::default()
        };
        assert_eq!(*kernel, zeros);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_files_are_refused() {
        assert!(kernels(b"not an ELF file").is_err());
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(kernels(&own).unwrap_err().to_string().contains("not a code object"));
    }
}
