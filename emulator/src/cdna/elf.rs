//! Reads a gfx950 code object: an ELF file with kernel descriptors and MessagePack metadata.
//!
//! The formats are those of LLVM's "User Guide for AMDGPU Backend": code object v5 and v6, section "Kernel
//! Descriptor" for the 64 bytes of a `.kd` symbol, "Code Object Metadata" for the note.

use object::elf;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, Object, ObjectSegment, ObjectSymbol};

use crate::{Arch, Error};

/// Type of the ELF note that holds the metadata.
const NT_AMDGPU_METADATA: u32 = 32;
/// The machine field of an ELF header's flags: gfx950.
const EF_AMDGPU_MACH_GFX950: u32 = 0x4f;
const EF_AMDGPU_MACH: u32 = 0xff;

/// A code object.
#[derive(Debug)]
pub(crate) struct CodeObject {
    /// The loadable bytes, by their address in the file's address space.
    pub(crate) image: Vec<u8>,
    pub(crate) kernels: Vec<KernelImage>,
}

/// A kernel as the code object describes it.
#[derive(Debug)]
pub(crate) struct KernelImage {
    pub(crate) name: String,
    pub(crate) descriptor: Descriptor,
    /// Range of the code in [`CodeObject::image`].
    pub(crate) code: std::ops::Range<usize>,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) max_threads: u32,
    pub(crate) dynamic_stack: bool,
}

/// An argument in the kernarg segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    /// `value_kind` of the metadata; those that begin with `hidden_` are the runtime's.
    pub(crate) kind: String,
}

/// The kernel descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// LDS bytes that the kernel declares itself.
    pub(crate) lds_bytes: u32,
    /// Scratch bytes of a lane.
    pub(crate) scratch_bytes: u32,
    pub(crate) kernarg_bytes: u32,
    /// Vector registers of a lane, accumulation registers not counted.
    pub(crate) vgprs: u32,
    pub(crate) agprs: u32,
    /// Initial value of the MODE register: rounding (bits 0..4) and denormals (4..8).
    pub(crate) float_mode: u32,
    pub(crate) ieee: bool,
    pub(crate) dx10_clamp: bool,
    pub(crate) workgroup_id: [bool; 3],
    pub(crate) workgroup_info: bool,
    pub(crate) private_segment_buffer: bool,
    pub(crate) dispatch_ptr: bool,
    pub(crate) queue_ptr: bool,
    pub(crate) kernarg_segment_ptr: bool,
    pub(crate) dispatch_id: bool,
    pub(crate) flat_scratch_init: bool,
    pub(crate) private_segment_size: bool,
    /// Kernarg dwords that are in SGPRs at the start, and their offset in dwords.
    pub(crate) preload: (u32, u32),
}

impl Descriptor {
    /// Decodes the 64 bytes of a descriptor; also returns the distance from the descriptor to the code.
    fn parse(bytes: &[u8; 64]) -> (Self, i64) {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let entry = i64::from_le_bytes(bytes[16..24].try_into().expect("eight bytes"));
        let (rsrc3, rsrc1, rsrc2) = (word(44), word(48), word(52));
        let (properties, preload) = (word(56) & 0xffff, word(56) >> 16);
        let bit = |word: u32, index: u32| word >> index & 1 != 0;
        let registers = ((rsrc1 & 0x3f) + 1) * 8;
        let vgprs = ((rsrc3 & 0x3f) + 1) * 4;
        let descriptor = Self {
            lds_bytes: word(0),
            scratch_bytes: word(4),
            kernarg_bytes: word(8),
            vgprs: vgprs.min(registers),
            agprs: registers.saturating_sub(vgprs),
            float_mode: rsrc1 >> 12 & 0xff,
            ieee: bit(rsrc1, 23),
            dx10_clamp: bit(rsrc1, 21),
            workgroup_id: [bit(rsrc2, 7), bit(rsrc2, 8), bit(rsrc2, 9)],
            workgroup_info: bit(rsrc2, 10),
            private_segment_buffer: bit(properties, 0),
            dispatch_ptr: bit(properties, 1),
            queue_ptr: bit(properties, 2),
            kernarg_segment_ptr: bit(properties, 3),
            dispatch_id: bit(properties, 4),
            flat_scratch_init: bit(properties, 5),
            private_segment_size: bit(properties, 6),
            preload: (preload & 0x7f, preload >> 7),
        };
        (descriptor, entry)
    }
}

fn bad(reason: impl Into<String>) -> Error {
    Error::Load { place: "code object".into(), reason: reason.into() }
}

impl CodeObject {
    /// Reads `bytes`.
    ///
    /// # Errors
    /// [`Error::OtherArch`] for another architecture's, [`Error::Load`] for anything but a well-formed code object.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(|e| bad(format!("no 64-bit ELF file: {e}")))?;
        let header = file.elf_header();
        let (machine, flags) = (header.e_machine(Endianness::Little), header.e_flags(Endianness::Little));
        if machine != elf::EM_AMDGPU || flags & EF_AMDGPU_MACH != EF_AMDGPU_MACH_GFX950 {
            let found = format!("ELF machine {machine} with flags {flags:#x}");
            return Err(Error::OtherArch { found, arch: Arch::Gfx950.name() });
        }
        let end = file.segments().map(|s| s.address() + s.size()).max().unwrap_or(0);
        if end > 1 << 30 {
            return Err(bad(format!("its segments end at {end:#x}, beyond 1 GiB")));
        }
        let mut image = vec![0; end as usize];
        for segment in file.segments() {
            let data = segment.data().map_err(|e| bad(format!("segment at {:#x}: {e}", segment.address())))?;
            let at = segment.address() as usize;
            let length = data.len().min(segment.size() as usize);
            image[at..at + length].copy_from_slice(&data[..length]);
        }
        let metadata = Self::metadata(&file)?;
        let kernels = field(&metadata, "amdhsa.kernels").and_then(|k| k.as_array()).ok_or_else(|| bad("no kernels"))?;
        let kernels = kernels.iter().map(|kernel| Self::kernel(&file, &image, kernel)).collect::<Result<_, _>>()?;
        Ok(Self { image, kernels })
    }

    fn metadata(file: &ElfFile64<'_, Endianness>) -> Result<rmpv::Value, Error> {
        for section in file.elf_section_table().iter() {
            let notes = section.notes(Endianness::Little, file.data()).map_err(|e| bad(format!("notes: {e}")))?;
            let Some(mut notes) = notes else { continue };
            while let Some(note) = notes.next().map_err(|e| bad(format!("note: {e}")))? {
                if note.n_type(Endianness::Little) == NT_AMDGPU_METADATA && note.name() == b"AMDGPU" {
                    return rmpv::decode::read_value(&mut note.desc())
                        .map_err(|e| bad(format!("the metadata is no MessagePack: {e}")));
                }
            }
        }
        Err(bad("no AMDGPU metadata note"))
    }

    fn kernel(file: &ElfFile64<'_, Endianness>, image: &[u8], metadata: &rmpv::Value) -> Result<KernelImage, Error> {
        let text = |key| field(metadata, key).and_then(|v| v.as_str());
        let number = |value: &rmpv::Value, key| field(value, key).and_then(|v| v.as_u64());
        let name = text(".name").ok_or_else(|| bad("a kernel without a name"))?.to_string();
        let wrong = |what: &str| Error::Load { place: format!("kernel {name}"), reason: what.to_string() };
        let symbol_name = text(".symbol").ok_or_else(|| wrong("no descriptor symbol"))?;
        let descriptor = Self::symbol(file, symbol_name).ok_or_else(|| wrong("its descriptor symbol is missing"))?.0;
        let bytes = image
            .get(descriptor as usize..descriptor as usize + 64)
            .ok_or_else(|| wrong("its descriptor is outside the image"))?;
        let (parsed, entry) = Descriptor::parse(bytes.try_into().expect("64 bytes"));
        let start = descriptor.wrapping_add_signed(entry);
        let (address, size) = Self::symbol(file, &name).ok_or_else(|| wrong("its code symbol is missing"))?;
        let code = start as usize..(address + size) as usize;
        if address != start || code.end > image.len() || code.is_empty() {
            return Err(wrong("its descriptor does not point to its code"));
        }
        if number(metadata, ".wavefront_size") != Some(64) {
            return Err(wrong("its wavefront size is not 64"));
        }
        let arguments = field(metadata, ".args").and_then(|v| v.as_array()).map_or(&[][..], Vec::as_slice);
        let arguments = arguments.iter().enumerate().map(|(i, argument)| {
            let value = |key| number(argument, key).and_then(|v| u32::try_from(v).ok());
            let (offset, bytes) =
                value(".offset").zip(value(".size")).ok_or_else(|| wrong("an argument without place"))?;
            let text = |key| field(argument, key).and_then(|v| v.as_str()).map(str::to_string);
            let kind = text(".value_kind").ok_or_else(|| wrong("an argument without kind"))?;
            Ok(Argument { name: text(".name").unwrap_or_else(|| i.to_string()), offset, bytes, kind })
        });
        Ok(KernelImage {
            arguments: arguments.collect::<Result<_, Error>>()?,
            descriptor: parsed,
            code,
            max_threads: number(metadata, ".max_flat_workgroup_size").unwrap_or(1024) as u32,
            dynamic_stack: field(metadata, ".uses_dynamic_stack").and_then(|v| v.as_bool()).unwrap_or(false),
            name: name.clone(),
        })
    }

    /// Address and size of a symbol.
    fn symbol(file: &ElfFile64<'_, Endianness>, name: &str) -> Option<(u64, u64)> {
        let mut symbols = file.symbols().chain(file.dynamic_symbols());
        let symbol = symbols.find(|symbol| symbol.name() == Ok(name))?;
        Some((symbol.address(), symbol.size()))
    }
}

/// The value of a key of a map.
fn field<'a>(value: &'a rmpv::Value, key: &str) -> Option<&'a rmpv::Value> {
    value.as_map()?.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v)
}
