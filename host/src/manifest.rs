//! `manifest.json`: what a folder of compiled kernels holds, for the build that writes it and the host that reads it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use kernels_gpu::abi::{self, BlockShape, Kernel, Operand, Role, Target};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The contents of `manifest.json`, which lies beside the artefacts that it lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format: [`Manifest::FORMAT`].
    pub format: u32,
    /// Hash of the ABI table that the kernels were built with: [`Manifest::abi_hash`] of that build.
    pub abi_hash: String,
    /// Hash of the sources that the kernels were built from: [`source_hash`] at that time.
    pub source_hash: String,
    /// The compiler, as `rustc --version` names it.
    pub compiler: String,
    /// Every kernel for every target that was built.
    pub kernels: Vec<KernelEntry>,
}

/// One kernel for one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelEntry {
    /// Name of the entry point, the same as in the ABI table.
    pub name: String,
    /// [`Target::name`].
    pub target: String,
    /// The artefact (PTX text or ELF code object), relative to the manifest's folder. Kernels may share one.
    pub file: String,
    /// `attention`, `combine`, `merge` or `read`.
    pub role: String,
    /// What an attention kernel was compiled for; absent for other kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionEntry>,
    /// Threads of a block.
    pub threads: u32,
    /// Warps (wavefronts) of a block.
    pub warps: u32,
    /// Shared memory that the artefact reserves for a block, in bytes.
    pub static_shared_bytes: u32,
    /// Shared memory that a launch has to ask for, in bytes a block.
    pub dynamic_shared_bytes: u32,
}

/// Element type, head dims and tile sizes of an attention kernel; see [`abi::Geometry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionEntry {
    /// Element type of Q, K and V: `bf16`, `f16` or `e4m3`.
    pub dtype: String,
    /// Head dim of Q and K.
    pub head_dim_qk: u32,
    /// Head dim of V and O.
    pub head_dim_v: u32,
    /// How the warps of a block share the work: `split_kv`, `shared_kv`, `warpgroups` or `tcgen05`.
    pub block_shape: String,
    /// Query tiles that a block owns.
    pub q_tiles: u32,
    /// Whether K and V lie in pages.
    pub paged: bool,
    /// Packed query rows of one tile.
    pub tile_m: u32,
    /// KV tokens that a block takes in one step.
    pub tile_n: u32,
    /// KV tokens that a warp takes in one step.
    pub chunk: u32,
    /// Chunks in a ring.
    pub stages: u32,
}

impl Manifest {
    /// The format that this version of the library writes and reads.
    pub const FORMAT: u32 = 1;
    /// Name of the file.
    pub const FILE: &str = "manifest.json";

    /// This library's own ABI hash, in the manifest's spelling.
    pub fn abi_hash() -> String {
        format!("{:016x}", abi::HASH)
    }
}

impl KernelEntry {
    /// The entry of `kernel`, compiled for `target` into `file`. All but the last two come from the ABI table.
    pub fn new(kernel: &Kernel, target: Target, file: String, static_shared_bytes: u32) -> Self {
        let vendor = target.vendor();
        let (role, attention) = match kernel.role {
            Role::Attention { operand, head_dim_qk, head_dim_v, shape, q_tiles, paged } => {
                let geometry = abi::Geometry::of(vendor, operand, head_dim_qk, head_dim_v, shape, q_tiles);
                let entry = AttentionEntry {
                    dtype: operand_name(operand).into(),
                    head_dim_qk,
                    head_dim_v,
                    block_shape: shape_name(shape).into(),
                    q_tiles,
                    paged,
                    tile_m: geometry.tile_m,
                    tile_n: geometry.tile_n,
                    chunk: geometry.chunk,
                    stages: geometry.stages,
                };
                ("attention", Some(entry))
            }
            Role::Combine => ("combine", None),
            Role::Merge => ("merge", None),
            Role::Schedule => ("schedule", None),
            Role::Read { .. } => ("read", None),
        };
        Self {
            name: kernel.name.into(),
            target: target.name().into(),
            file,
            role: role.into(),
            attention,
            threads: kernel.threads(vendor),
            warps: kernel.threads(vendor) / vendor.warp_size(),
            static_shared_bytes,
            dynamic_shared_bytes: kernel.shared_bytes(vendor),
        }
    }
}

fn operand_name(operand: Operand) -> &'static str {
    match operand {
        Operand::Bf16 => "bf16",
        Operand::F16 => "f16",
        Operand::E4m3 => "e4m3",
        _ => unreachable!("the ABI table grew an operand that the manifest has no name for"),
    }
}

pub(crate) fn shape_name(shape: BlockShape) -> &'static str {
    match shape {
        BlockShape::SplitKv => "split_kv",
        BlockShape::SharedKv => "shared_kv",
        BlockShape::Warpgroups => "warpgroups",
        BlockShape::Tcgen05 => "tcgen05",
        _ => unreachable!("the ABI table grew a block shape that the manifest has no name for"),
    }
}

/// What the kernels of a checkout are built from, relative to the workspace: the device crate, the cargo
/// profile, the toolchain, and the compiler flags.
const SOURCES: [&str; 5] = [
    "Cargo.toml",
    "kernels-gpu/Cargo.toml",
    "kernels-gpu/src",
    "rust-toolchain.toml",
    "xtask/src/build_kernels/flags.rs",
];

/// Hash of everything in the checkout `workspace` that decides what its kernels compile to. Artefacts whose
/// manifest states another one are stale.
///
/// # Errors
/// A source cannot be read; the error names it.
pub fn source_hash(workspace: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for source in SOURCES {
        collect(workspace, Path::new(source), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new();
    for file in &files {
        let text = fs::read(workspace.join(file)).map_err(|error| name_file(file, &error))?;
        let name = file.to_string_lossy().replace('\\', "/");
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    Ok(hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Adds `path`, or every file below it, to `files`.
fn collect(workspace: &Path, path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !workspace.join(path).is_dir() {
        files.push(path.into());
        return Ok(());
    }
    for entry in fs::read_dir(workspace.join(path)).map_err(|error| name_file(path, &error))? {
        collect(workspace, &path.join(entry?.file_name()), files)?;
    }
    Ok(())
}

fn name_file(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_json_and_follow_the_table() {
        for target in Target::ALL {
            for kernel in target.kernels() {
                let entry = KernelEntry::new(kernel, target, "a.ptx".into(), 16);
                let text = serde_json::to_string(&entry).unwrap();
                assert_eq!(serde_json::from_str::<KernelEntry>(&text).unwrap(), entry);
                assert_eq!(entry.warps * target.vendor().warp_size(), entry.threads);
                assert_eq!(entry.attention.is_some(), kernel.geometry(target.vendor()).is_some());
            }
        }
    }

    #[test]
    fn the_source_hash_sees_contents_names_and_missing_files() {
        let folder = std::env::temp_dir().join(format!("splitkv-source-hash-{}", std::process::id()));
        for source in SOURCES {
            let path = folder.join(source);
            let path = if source.ends_with("src") { path.join("lib.rs") } else { path };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, source).unwrap();
        }
        let first = source_hash(&folder).unwrap();
        assert_eq!(first.len(), 32);
        assert_eq!(source_hash(&folder).unwrap(), first);
        fs::create_dir(folder.join("kernels-gpu/src/gpu")).unwrap();
        fs::rename(folder.join("kernels-gpu/src/lib.rs"), folder.join("kernels-gpu/src/gpu/lib.rs")).unwrap();
        let moved = source_hash(&folder).unwrap();
        assert_ne!(moved, first);
        fs::write(folder.join("kernels-gpu/src/gpu/lib.rs"), "x").unwrap();
        assert_ne!(source_hash(&folder).unwrap(), moved);
        fs::remove_file(folder.join("rust-toolchain.toml")).unwrap();
        assert!(source_hash(&folder).unwrap_err().to_string().contains("rust-toolchain.toml"));
        fs::remove_dir_all(folder).unwrap();
    }
}
