//! Builds gfx950 code objects from assembly text, and runs them.
//!
//! There is no assembler here: `words.txt` has LLVM's encoding of every line that the tests use, and the decoder
//! must read each back as the same text.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::sync::LazyLock;

use splitkv_emulator::cdna::disassemble;
use splitkv_emulator::{Arch, Counters, Error, FaultKind, Machine};

static WORDS: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    let lines = include_str!("../cdna/words.txt").lines();
    lines.filter_map(|line| line.split_once("//")).map(|(text, words)| (text.trim(), words.trim())).collect()
});

/// The code of some lines of assembly. `;` begins a comment.
pub(crate) fn assemble(text: &str) -> Vec<u8> {
    let lines = text.lines().map(|line| line.split(';').next().unwrap_or("").trim()).filter(|line| !line.is_empty());
    let missing: Vec<_> = lines.clone().filter(|line| !WORDS.contains_key(line)).collect();
    assert!(missing.is_empty(), "words.txt lacks:\n{}\n", missing.join("\n"));
    let mut code = Vec::new();
    for line in lines {
        let bytes: Vec<u8> = WORDS[line]
            .split_whitespace()
            .flat_map(|word| u32::from_str_radix(word, 16).expect("hexadecimal words").to_le_bytes())
            .collect();
        let [(_, Ok(ours))] = &disassemble(&bytes)[..] else { panic!("`{line}` is not decoded") };
        assert_eq!(ours, line);
        code.extend(bytes);
    }
    code
}

/// A kernel in the making. It starts with the kernarg pointer in s[0:1], the block's index in s[2:4] and the thread's
/// in v0, and has 128 vector registers and 64 accumulation registers.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) code: Vec<u8>,
    pub(crate) lds_bytes: u32,
    pub(crate) scratch_bytes: u32,
    /// 64-bit arguments.
    pub(crate) arguments: u32,
}

impl Kernel {
    /// A kernel with two pointer arguments.
    pub(crate) fn new(text: &str) -> Self {
        Self { code: assemble(text), lds_bytes: 0, scratch_bytes: 0, arguments: 2 }
    }

    pub(crate) fn lds(self, bytes: u32) -> Self {
        Self { lds_bytes: bytes, ..self }
    }

    pub(crate) fn scratch(self, bytes: u32) -> Self {
        Self { scratch_bytes: bytes, ..self }
    }

    /// The ELF file: one segment with descriptor and code, the metadata note, two symbols.
    pub(crate) fn code_object(&self) -> Vec<u8> {
        const DESCRIPTOR: usize = 0x40;
        const CODE: usize = 0x100;
        let mut image = vec![0; CODE];
        let mut set = |at: usize, value: u32| image[at..at + 4].copy_from_slice(&value.to_le_bytes());
        set(DESCRIPTOR, self.lds_bytes);
        set(DESCRIPTOR + 4, self.scratch_bytes);
        set(DESCRIPTOR + 8, self.arguments * 8);
        set(DESCRIPTOR + 16, (CODE - DESCRIPTOR) as u32);
        set(DESCRIPTOR + 44, 128 / 4 - 1);
        // 192 registers in all, denormals kept, NaN clamps to 0.
        set(DESCRIPTOR + 48, (192 / 8 - 1) | 0xf0 << 12 | 1 << 21);
        set(DESCRIPTOR + 52, 2 << 1 | 0b111 << 7);
        set(DESCRIPTOR + 56, 1 << 3);
        image.extend(&self.code);

        let note = self.note();
        let names = b"\0kernel\0kernel.kd\0";
        let symbol = |name: u32, kind: u8, address: usize, size: usize| {
            let mut entry = name.to_le_bytes().to_vec();
            entry.extend([0x10 | kind, 0, 1, 0]);
            entry.extend((address as u64).to_le_bytes());
            entry.extend((size as u64).to_le_bytes());
            entry
        };
        let symbols = [vec![0; 24], symbol(1, 2, CODE, self.code.len()), symbol(8, 1, DESCRIPTOR, 64)].concat();
        // Header, program header, image, note, symbols, names, section headers.
        let image_at = 64 + 56;
        let note_at = (image_at + image.len()).next_multiple_of(8);
        let symbols_at = (note_at + note.len()).next_multiple_of(8);
        let names_at = symbols_at + symbols.len();
        let sections_at = (names_at + names.len()).next_multiple_of(8);

        let mut file = b"\x7fELF\x02\x01\x01\x40\x04".to_vec();
        file.resize(16, 0);
        let half = |file: &mut Vec<u8>, values: &[u16]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
        let word = |file: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|v| file.extend(v.to_le_bytes()));
        let long =
            |file: &mut Vec<u8>, values: &[usize]| values.iter().for_each(|&v| file.extend((v as u64).to_le_bytes()));
        half(&mut file, &[3, 224]);
        word(&mut file, &[1]);
        long(&mut file, &[0, 64, sections_at]);
        word(&mut file, &[0x54f]);
        half(&mut file, &[64, 56, 1, 64, 4, 3]);
        word(&mut file, &[1, 5]);
        long(&mut file, &[image_at, 0, 0, image.len(), image.len(), 1]);
        file.extend(&image);
        file.resize(note_at, 0);
        file.extend(&note);
        file.resize(symbols_at, 0);
        file.extend(&symbols);
        file.extend(names);
        file.resize(sections_at, 0);
        let mut section = |kind: u32, at: usize, size: usize, link: u32, info: u32, align: usize, entry: usize| {
            word(&mut file, &[0, kind]);
            long(&mut file, &[0, 0, at, size]);
            word(&mut file, &[link, info]);
            long(&mut file, &[align, entry]);
        };
        section(0, 0, 0, 0, 0, 0, 0);
        section(7, note_at, note.len(), 0, 0, 4, 0);
        section(2, symbols_at, symbols.len(), 3, 1, 8, 24);
        section(3, names_at, names.len(), 0, 0, 1, 0);
        file
    }

    fn note(&self) -> Vec<u8> {
        use rmpv::Value;
        let map = |entries: Vec<(&str, Value)>| Value::Map(entries.into_iter().map(|(k, v)| (k.into(), v)).collect());
        let argument = |i: u32| {
            map(vec![(".offset", (i * 8).into()), (".size", 8.into()), (".value_kind", "global_buffer".into())])
        };
        let kernel = map(vec![
            (".name", "kernel".into()),
            (".symbol", "kernel.kd".into()),
            (".wavefront_size", 64.into()),
            (".max_flat_workgroup_size", 1024.into()),
            (".args", Value::Array((0..self.arguments).map(argument).collect())),
        ]);
        let mut metadata = Vec::new();
        rmpv::encode::write_value(&mut metadata, &map(vec![("amdhsa.kernels", Value::Array(vec![kernel]))]))
            .expect("a Vec takes all bytes");
        let mut note: Vec<u8> = [7u32, metadata.len() as u32, 32].iter().flat_map(|v| v.to_le_bytes()).collect();
        note.extend(b"AMDGPU\0\0");
        note.extend(metadata);
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    /// Runs one block on a machine with two buffers of 16 KiB: one that holds the numbers 0, 1, 2, ... as u32, and
    /// one of zeros. Returns the second buffer.
    pub(crate) fn run(&self, threads: u32) -> Result<(Vec<u32>, Counters), Error> {
        let numbers: Vec<u32> = (0..4096).collect();
        self.run_with(threads, &numbers)
    }

    /// The same with other contents of the first buffer.
    pub(crate) fn run_with(&self, threads: u32, input: &[u32]) -> Result<(Vec<u32>, Counters), Error> {
        let machine = Machine::with_memory(Arch::Gfx950, 1 << 24);
        let module = machine.load(&self.code_object())?;
        let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
        let from = machine.alloc(bytes.len() as u64)?;
        machine.write(from, &bytes)?;
        let to = machine.alloc(16384)?;
        machine.fill(to, 0, 16384)?;
        let counters = machine.launch(&module, "kernel", [1, 1, 1], [threads, 1, 1], 0, &[from, to])?;
        let mut bytes = vec![0; 16384];
        machine.read(to, &mut bytes)?;
        let words = bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect();
        Ok((words, counters))
    }

    /// Runs one block and returns the fault's kind and the instruction's text.
    pub(crate) fn fault(&self, threads: u32) -> (FaultKind, String) {
        match self.run(threads) {
            Err(Error::Fault(fault)) => {
                assert_eq!(fault.kernel, "kernel");
                (fault.kind.clone(), fault.instruction.clone())
            }
            Err(error) => panic!("expected a fault: {error}"),
            Ok(_) => panic!("expected a fault"),
        }
    }
}

/// A register in each lane.
pub(crate) type Lanes = [u32; 64];

/// Registers before and after some instructions.
#[derive(Clone)]
pub(crate) struct Registers {
    /// v0 to v39; those from v8 can be set and are read back.
    pub(crate) v: [Lanes; 40],
    /// s0 to s17; s8 to s15 can be set, s16 and s17 are read back.
    pub(crate) s: [u32; 18],
    /// Read back; 0 before.
    pub(crate) vcc: u64,
    /// Read back.
    pub(crate) scc: bool,
}

impl Registers {
    /// All zero.
    pub(crate) fn new() -> Self {
        Self { v: [[0; 64]; 40], s: [0; 18], vcc: 0, scc: false }
    }

    /// With a vector register set.
    pub(crate) fn with(mut self, register: usize, f: impl Fn(u32) -> u32) -> Self {
        self.v[register] = std::array::from_fn(|lane| f(lane as u32));
        self
    }

    /// Executes instructions on one wave with 4 KiB of LDS. v0 is the lane; v1 four times the lane.
    pub(crate) fn execute(&self, body: &str) -> Self {
        let vector = |text: &str, store: bool| -> String {
            let lines = (8..40).map(|r| {
                let (base, at) = if r < 24 { ("v1", (r - 8) * 256) } else { ("v2", (r - 24) * 256) };
                let offset = if at > 0 { format!(" offset:{at}") } else { String::new() };
                if store {
                    format!("{text} {base}, v{r}, s[6:7]{offset}")
                } else {
                    format!("{text} v{r}, {base}, s[4:5]{offset}")
                }
            });
            lines.collect::<Vec<_>>().join("\n")
        };
        let scalars = ["vcc_lo", "vcc_hi", "s16", "s17", "s18"].iter().enumerate().map(|(i, name)| {
            let offset = if i > 0 { format!(" offset:{}", i * 256) } else { String::new() };
            format!("v_mov_b32_e32 v4, {name}\nglobal_store_dword v3, v4, s[6:7]{offset}\n")
        });
        let text = format!(
            "s_load_dwordx4 s[4:7], s[0:1], 0x0
             v_lshlrev_b32_e32 v1, 2, v0
             v_add_u32_e32 v2, 0x1000, v1
             v_add_u32_e32 v3, 0x2000, v1
             s_waitcnt lgkmcnt(0)
             s_load_dwordx8 s[8:15], s[4:5], 0x2000
             {}
             s_mov_b64 vcc, 0
             s_mov_b64 s[16:17], 0
             s_cmp_lg_u32 s0, s0
             s_waitcnt vmcnt(0) lgkmcnt(0)
             {body}
             s_cselect_b32 s18, 1, 0
             s_waitcnt vmcnt(0) lgkmcnt(0)
             s_mov_b64 exec, -1
             {}
             {}
             s_endpgm",
            vector("global_load_dword", false),
            vector("global_store_dword", true),
            scalars.collect::<String>(),
        );
        let mut input = vec![0; 4096];
        for (r, lanes) in self.v[8..].iter().enumerate() {
            input[r * 64..][..64].copy_from_slice(lanes);
        }
        input[2048..2056].copy_from_slice(&self.s[8..16]);
        let (words, _) =
            Kernel::new(&text).lds(4096).run_with(64, &input).unwrap_or_else(|error| panic!("{body}: {error}"));
        let mut after = self.clone();
        for (r, lanes) in after.v[8..].iter_mut().enumerate() {
            lanes.copy_from_slice(&words[r * 64..][..64]);
        }
        let scalar = |i: usize| words[2048 + i * 64];
        after.vcc = u64::from(scalar(0)) | u64::from(scalar(1)) << 32;
        after.s[16..].copy_from_slice(&[scalar(2), scalar(3)]);
        after.scc = scalar(4) != 0;
        after
    }
}
