//! The public face: a device, its memory, its modules and launches.

use crate::engine::{AnyProgram, KernelInfo, Launch};
use crate::memory::{Memory, Purpose};
use crate::{Arch, Counters, Error, TraceEvent};

/// Most threads of a block on every device.
const MAX_THREADS: u32 = 1024;

/// Kernels that were loaded together.
pub struct Module {
    arch: Arch,
    kernels: Vec<Box<dyn AnyProgram>>,
}

impl Module {
    pub(crate) fn new(arch: Arch, kernels: Vec<Box<dyn AnyProgram>>) -> Self {
        Self { arch, kernels }
    }

    /// Names of the kernels, in the artefact's order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|k| k.info().name.as_str())
    }

    /// Sizes in bytes of a kernel's arguments, in order.
    pub fn argument_sizes(&self, kernel: &str) -> Result<Vec<u32>, Error> {
        Ok(self.find(kernel)?.info().parameters.iter().map(|p| p.bytes).collect())
    }

    /// Shared memory that the kernel declares itself, in bytes.
    pub fn static_shared_bytes(&self, kernel: &str) -> Result<u32, Error> {
        Ok(self.find(kernel)?.info().static_shared)
    }

    /// Most threads of a block that the kernel and every device allow.
    pub fn max_threads(&self, kernel: &str) -> Result<u32, Error> {
        Ok(self.find(kernel)?.info().max_threads.min(MAX_THREADS))
    }

    fn find(&self, name: &str) -> Result<&dyn AnyProgram, Error> {
        self.kernels.iter().map(|k| &**k).find(|k| k.info().name == name).ok_or_else(|| Error::UnknownKernel {
            name: name.to_owned(),
            known: self.kernels().collect::<Vec<_>>().join(", "),
        })
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("arch", &self.arch)
            .field("kernels", &self.kernels().collect::<Vec<_>>())
            .finish()
    }
}

/// One emulated device: its memory, and what can be launched on it. All methods take `&self` and may be called
/// from several threads; a launch returns when the kernel has ended.
pub struct Machine {
    arch: Arch,
    memory: Memory,
}

impl Machine {
    /// A device of this architecture with the memory of the real one.
    pub fn new(arch: Arch) -> Self {
        Self::with_memory(arch, arch.memory_bytes())
    }

    /// A device with `bytes` of global memory. The host backs what is used of them, and about half as much again
    /// for the checks.
    pub fn with_memory(arch: Arch, bytes: u64) -> Self {
        Self { arch, memory: Memory::new(bytes) }
    }

    /// The architecture.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Bytes that are allocated.
    pub fn memory_used(&self) -> u64 {
        self.memory.used()
    }

    /// Allocates global memory, 256-byte aligned, undefined until it is written. Kernels must store defined data
    /// only: somebody will read it.
    pub fn alloc(&self, bytes: u64) -> Result<u64, Error> {
        self.memory.alloc(bytes, Purpose::Buffer)
    }

    /// Allocates scratch between kernels: as [`alloc`](Self::alloc), but undefined data may be stored in it and
    /// stays undefined.
    pub fn alloc_workspace(&self, bytes: u64) -> Result<u64, Error> {
        self.memory.alloc(bytes, Purpose::Workspace)
    }

    /// Frees an allocation by its address. Addresses are not used again.
    pub fn free(&self, address: u64) -> Result<(), Error> {
        self.memory.free(address)
    }

    /// Copies from the host. The bytes are defined afterwards.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write(address, bytes)
    }

    /// Copies to the host.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.memory.read(address, bytes)
    }

    /// Sets `bytes` bytes to `byte`. They are defined afterwards.
    pub fn fill(&self, address: u64, byte: u8, bytes: u64) -> Result<(), Error> {
        self.memory.fill(address, byte, bytes)
    }

    /// Address of the first byte of a range that nobody has defined, if there is one.
    pub fn undefined(&self, address: u64, bytes: u64) -> Result<Option<u64>, Error> {
        self.memory.undefined(address, bytes)
    }

    /// Decodes an artefact: PTX text (a trailing zero byte is allowed), or an ELF code object for gfx950.
    pub fn load(&self, image: &[u8]) -> Result<Module, Error> {
        let kernels = match self.arch {
            Arch::Sm90 | Arch::Sm100 => crate::ptx::load(self.arch, image)?,
            Arch::Gfx950 => crate::cdna::load(image)?,
        };
        Ok(Module::new(self.arch, kernels))
    }

    /// Runs a kernel to its end: `grid` blocks of `block` threads, each with `shared_bytes` of dynamic shared
    /// memory. `arguments` has one cell an argument, its bits zero-extended.
    ///
    /// # Errors
    /// [`Error::Fault`] when a check fails: always the fault of the lowest block that has one. Memory is then as
    /// the blocks left it.
    pub fn launch(
        &self,
        module: &Module,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u64],
    ) -> Result<Counters, Error> {
        let program = module.find(kernel)?;
        let launch = self.check_launch(module, program.info(), grid, block, shared_bytes, arguments)?;
        Ok(crate::engine::run(program, &launch, &self.memory)?.0)
    }

    /// As [`launch`](Self::launch), and notes what the matrix unit of one block, by its linear index in the grid, does
    /// and what the block's warps do meanwhile.
    #[allow(clippy::too_many_arguments, reason = "a launch, and which block of it")]
    pub fn trace(
        &self,
        module: &Module,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u64],
        traced: u64,
    ) -> Result<Vec<TraceEvent>, Error> {
        let program = module.find(kernel)?;
        let launch = self.check_launch(module, program.info(), grid, block, shared_bytes, arguments)?;
        Ok(crate::engine::run(program, &Launch { traced: Some(traced), ..launch }, &self.memory)?.1)
    }

    fn check_launch(
        &self,
        module: &Module,
        info: &KernelInfo,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u64],
    ) -> Result<Launch, Error> {
        let refuse = |argument: &str, given: String, allowed: String| {
            Err(Error::Launch { kernel: info.name.clone(), argument: argument.to_owned(), given, allowed })
        };
        if module.arch != self.arch {
            return refuse("the module's architecture", module.arch.name().into(), self.arch.name().into());
        }
        let blocks = grid.iter().try_fold(1u32, |product, &n| product.checked_mul(n));
        if blocks.is_none_or(|n| n == 0 || n > i32::MAX as u32) || grid[1] > 65535 || grid[2] > 65535 {
            let allowed = "1 to 2^31 - 1 blocks, at most 65535 in y and z";
            return refuse("the grid", format!("{grid:?}"), allowed.into());
        }
        let threads = block.iter().try_fold(1u32, |product, &n| product.checked_mul(n));
        let max_threads = info.max_threads.min(MAX_THREADS);
        if threads.is_none_or(|n| n == 0 || n > max_threads) {
            return refuse("the block", format!("{block:?}"), format!("1 to {max_threads} threads"));
        }
        let most = self.arch.max_shared_bytes().saturating_sub(info.static_shared);
        if shared_bytes > most {
            return refuse("dynamic shared memory", format!("{shared_bytes} bytes"), format!("at most {most}"));
        }
        if arguments.len() != info.parameters.len() {
            return refuse("the argument count", arguments.len().to_string(), info.parameters.len().to_string());
        }
        let size = info.parameters.iter().map(|p| p.offset + p.bytes).max().unwrap_or(0);
        let mut parameters = vec![0; size as usize];
        for (parameter, cell) in info.parameters.iter().zip(arguments) {
            let (bytes, rest) = (parameter.bytes as usize, 64 - parameter.bytes * 8);
            if *cell > u64::MAX >> rest {
                let argument = format!("argument {}", parameter.name);
                return refuse(&argument, format!("{cell:#x}"), format!("a value of {bytes} bytes"));
            }
            parameters[parameter.offset as usize..][..bytes].copy_from_slice(&cell.to_le_bytes()[..bytes]);
        }
        let (warp_size, resident) = (self.arch.warp_size(), self.arch.resident_blocks());
        Ok(Launch { grid, block, dynamic_shared: shared_bytes, parameters, warp_size, resident, traced: None })
    }
}
