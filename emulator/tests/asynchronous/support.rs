//! Small kernels, and what comes out of them.

use splitkv_emulator::{Arch, Counters, Error, Fault, Machine, TraceEvent};

/// Bytes of the buffer that kernels write.
const OUT: u64 = 1 << 18;
/// Dynamic shared memory of a kernel.
pub(crate) const SHARED: u32 = 96 * 1024;

/// A kernel of one block unless told otherwise, for `target`: `%d1` is a buffer of zeros that is returned, `%d2` the input, `%d3` the end of
/// the input's first part (where a tensor map may lie), `%r1` the thread, `%r2` its warp, `%r3` shared memory, which
/// starts at a multiple of 1024. `%p1` holds in thread 0.
pub(crate) struct Kernel {
    machine: Machine,
    text: String,
    threads: u32,
    blocks: u32,
    out: u64,
    arguments: [u64; 3],
}

impl Kernel {
    pub(crate) fn new(target: &str, threads: u32, body: &str) -> Self {
        let arch = if target.starts_with("sm_10") { Arch::Sm100 } else { Arch::Sm90 };
        let machine = Machine::with_memory(arch, 1 << 26);
        let text = format!(
            ".version 8.7\n.target {target}\n.address_size 64\n.extern .shared .align 1024 .b8 dyn[];\n\
             .visible .entry k(.param .u64 k_p, .param .u64 k_q, .param .u64 k_m)\n{{\n\
             .reg .pred %p<16>;\n.reg .f32 %f<300>;\n.reg .b32 %r<300>;\n.reg .b64 %d<32>;\n\
             ld.param.u64 %d1, [k_p];\nld.param.u64 %d2, [k_q];\nld.param.u64 %d3, [k_m];\n\
             mov.u32 %r1, %tid.x;\nshr.u32 %r2, %r1, 5;\nmov.u32 %r3, dyn;\nsetp.eq.u32 %p1, %r1, 0;\n{body}\nret;\n}}\n"
        );
        let out = machine.alloc(OUT).expect("there is room");
        machine.fill(out, 0, OUT).expect("it was just allocated");
        Self { machine, text, threads, blocks: 1, out, arguments: [out, 0, 0] }
    }

    /// Runs so many blocks.
    pub(crate) fn blocks(mut self, blocks: u32) -> Self {
        self.blocks = blocks;
        self
    }

    /// Gives it an input, whose address is `%d2`.
    pub(crate) fn input(mut self, bytes: &[u8]) -> Self {
        self.arguments[1] = self.put(bytes);
        self
    }

    /// Gives it something else, whose address is `%d3`.
    pub(crate) fn more(mut self, bytes: impl FnOnce(u64) -> Vec<u8>) -> Self {
        self.arguments[2] = self.put(&bytes(self.arguments[1]));
        self
    }

    fn put(&self, bytes: &[u8]) -> u64 {
        let address = self.machine.alloc(bytes.len() as u64).expect("there is room");
        self.machine.write(address, bytes).expect("it was just allocated");
        address
    }

    /// Address of the buffer.
    pub(crate) fn buffer(&self) -> u64 {
        self.out
    }

    fn run(&self) -> Result<Counters, Error> {
        let module = self.machine.load(self.text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        self.machine.launch(&module, "k", [self.blocks, 1, 1], [self.threads, 1, 1], SHARED, &self.arguments)
    }

    /// What the matrix unit and the warps do.
    pub(crate) fn trace(&self) -> Vec<TraceEvent> {
        let module = self.machine.load(self.text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let traced = self.machine.trace(&module, "k", [1, 1, 1], [self.threads, 1, 1], SHARED, &self.arguments, 0);
        traced.unwrap_or_else(|error| panic!("a sound kernel: {error}"))
    }

    /// The first `N` words of the buffer.
    pub(crate) fn words(&self, count: usize) -> Vec<u32> {
        self.run().unwrap_or_else(|error| panic!("a sound kernel: {error}"));
        let mut bytes = vec![0; 4 * count];
        self.machine.read(self.out, &mut bytes).expect("the buffer is large enough");
        bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// The same as f32.
    #[allow(dead_code, reason = "not all modules need it")]
    pub(crate) fn floats(&self, count: usize) -> Vec<f32> {
        self.words(count).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn sound(&self) -> Counters {
        self.run().unwrap_or_else(|error| panic!("a sound kernel: {error}"))
    }

    /// The fault; `at` is a part of the instruction's text.
    pub(crate) fn fault(&self, at: &str) -> Fault {
        match self.run() {
            Err(Error::Fault(fault)) => {
                assert!(fault.instruction.contains(at), "{fault}");
                *fault
            }
            other => panic!("expected a fault, got {other:?}"),
        }
    }

    /// The error of a kernel that cannot be loaded.
    pub(crate) fn refusal(&self) -> String {
        self.machine.load(self.text.as_bytes()).expect_err("it must not be loaded").to_string()
    }
}
