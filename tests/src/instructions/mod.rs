//! Single instructions on a device, their operands, and what an H200 made of them.
//!
//! Each [`Probe`] becomes a kernel of a few lines: a thread loads its operands, executes the instruction, and stores
//! the results. `recorded/instructions.bin` has the results of an NVIDIA H200; the suite `instructions` compares.

mod inputs;

use serde::{Deserialize, Serialize};
use splitkv::{Buffer, Device};

use crate::launch::Failure;

/// Threads of a block: a warp.
pub const THREADS: usize = 32;

/// An instruction with its operands.
pub struct Probe {
    /// Name of its kernel.
    pub name: &'static str,
    /// How results may differ from the recorded ones.
    pub kind: Kind,
    /// Words of operands and of results of a thread.
    words: (usize, usize),
    /// What lies between loading `%i0`, .. and storing `%o0`, .. There are the scratch registers `%t0` to `%t4`, the
    /// pair `%h0`, `%h1` of 16 bits, the address `%from` of the thread's operands, and 512 bytes of shared memory,
    /// `tile`.
    body: &'static str,
    /// Operands of all threads, thread by thread.
    operands: fn() -> Vec<u32>,
}

/// How far another device may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Bit for bit.
    Exact,
    /// Relative to the result, or absolute: results that are not finite and zeros are exact.
    Approximate {
        /// Units in the last place.
        ulps: u32,
        /// Or this much, whatever the result.
        absolute: f32,
    },
}

/// All of them.
pub const PROBES: &[Probe] = &[
    Probe {
        name: "mma_bf16",
        kind: Kind::Exact,
        words: (10, 4),
        body: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%o0, %o1, %o2, %o3}, {%i0, %i1, %i2, %i3}, \
               {%i4, %i5}, {%i6, %i7, %i8, %i9};",
        operands: || inputs::matrices(inputs::Element::Bf16),
    },
    Probe {
        name: "mma_f16",
        kind: Kind::Exact,
        words: (10, 4),
        body: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%o0, %o1, %o2, %o3}, {%i0, %i1, %i2, %i3}, \
               {%i4, %i5}, {%i6, %i7, %i8, %i9};",
        operands: || inputs::matrices(inputs::Element::F16),
    },
    Probe {
        name: "mma_e4m3",
        kind: Kind::Exact,
        words: (10, 4),
        body: "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%o0, %o1, %o2, %o3}, {%i0, %i1, %i2, %i3}, \
               {%i4, %i5}, {%i6, %i7, %i8, %i9};",
        operands: || inputs::matrices(inputs::Element::E4m3),
    },
    Probe {
        name: "ldmatrix_x4",
        kind: Kind::Exact,
        words: (5, 4),
        body: "mov.u32 %t0, tile;
    mov.u32 %t1, %tid.x;
    shl.b32 %t1, %t1, 4;
    add.u32 %t1, %t0, %t1;
    st.shared.v4.b32 [%t1], {%i0, %i1, %i2, %i3};
    bar.warp.sync 0xffffffff;
    shl.b32 %t2, %i4, 4;
    add.u32 %t2, %t0, %t2;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%o0, %o1, %o2, %o3}, [%t2];",
        operands: inputs::rows,
    },
    Probe {
        name: "ldmatrix_x4_trans",
        kind: Kind::Exact,
        words: (5, 4),
        body: "mov.u32 %t0, tile;
    mov.u32 %t1, %tid.x;
    shl.b32 %t1, %t1, 4;
    add.u32 %t1, %t0, %t1;
    st.shared.v4.b32 [%t1], {%i0, %i1, %i2, %i3};
    bar.warp.sync 0xffffffff;
    shl.b32 %t2, %i4, 4;
    add.u32 %t2, %t0, %t2;
    ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%o0, %o1, %o2, %o3}, [%t2];",
        operands: inputs::rows,
    },
    Probe {
        name: "cp_async_zero_fill",
        kind: Kind::Exact,
        words: (8, 4),
        body: "mov.u32 %t0, tile;
    mov.u32 %t1, %tid.x;
    shl.b32 %t1, %t1, 4;
    add.u32 %t1, %t0, %t1;
    st.shared.v4.b32 [%t1], {%i5, %i5, %i5, %i5};
    cp.async.cg.shared.global [%t1], [%from], 16, %i4;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.v4.b32 {%o0, %o1, %o2, %o3}, [%t1];",
        operands: inputs::copies,
    },
    Probe {
        name: "shfl_bfly",
        kind: Kind::Exact,
        words: (2, 1),
        body: "shfl.sync.bfly.b32 %o0, %i0, %i1, 0x1f, 0xffffffff;",
        operands: inputs::shuffles,
    },
    Probe {
        name: "cvt_bf16x2",
        kind: Kind::Exact,
        words: (2, 1),
        body: "cvt.rn.bf16x2.f32 %o0, %i0, %i1;",
        operands: || inputs::narrowed(16),
    },
    Probe {
        name: "cvt_f16x2",
        kind: Kind::Exact,
        words: (2, 1),
        body: "cvt.rn.f16x2.f32 %o0, %i0, %i1;",
        operands: || inputs::narrowed(13),
    },
    Probe {
        name: "cvt_e4m3x2",
        kind: Kind::Exact,
        words: (2, 1),
        body: "cvt.rn.satfinite.e4m3x2.f32 %h0, %i0, %i1;
    cvt.u32.u16 %o0, %h0;",
        operands: || inputs::narrowed(20),
    },
    Probe {
        name: "cvt_from_e4m3x2",
        kind: Kind::Exact,
        words: (1, 1),
        body: "cvt.u16.u32 %h0, %i0;
    cvt.rn.f16x2.e4m3x2 %o0, %h0;",
        operands: inputs::all_bytes,
    },
    Probe {
        name: "ex2",
        kind: Kind::Approximate { ulps: 2, absolute: 0.0 },
        words: (1, 1),
        body: "ex2.approx.ftz.f32 %o0, %i0;",
        operands: inputs::exponents,
    },
    Probe {
        name: "lg2",
        // PTX ISA: absolute error 2^-22 for operands from 0.5 to 2, relative error 2^-22 elsewhere.
        kind: Kind::Approximate { ulps: 2, absolute: 2.4e-7 },
        words: (1, 1),
        body: "lg2.approx.ftz.f32 %o0, %i0;",
        operands: inputs::logarithms,
    },
    arithmetic("add", "add.rn.f32 %o0, %i0, %i1;"),
    arithmetic("sub", "sub.rn.f32 %o0, %i0, %i1;"),
    arithmetic("mul", "mul.rn.f32 %o0, %i0, %i1;"),
    arithmetic("fma", "fma.rn.f32 %o0, %i0, %i1, %i2;"),
    arithmetic("max", "max.f32 %o0, %i0, %i1;"),
    arithmetic("div", "div.rn.f32 %o0, %i0, %i1;"),
    arithmetic("rcp", "rcp.rn.f32 %o0, %i0;"),
];

const fn arithmetic(name: &'static str, body: &'static str) -> Probe {
    Probe { name, kind: Kind::Exact, words: (3, 1), body, operands: inputs::floats }
}

/// Results of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// A number that changes with the operands.
    pub operands: u64,
    /// Results of all threads, thread by thread.
    pub words: Vec<u32>,
}

impl Probe {
    /// The operands of all threads, thread by thread.
    pub fn operands(&self) -> Vec<u32> {
        let operands = (self.operands)();
        assert_eq!(operands.len() % (self.words.0 * THREADS), 0, "{}: not a whole number of warps", self.name);
        operands
    }

    /// Words of operands, and of results, that a thread has.
    pub fn words(&self) -> (usize, usize) {
        self.words
    }

    /// The kernel, as a module of PTX.
    pub fn ptx(&self) -> String {
        let Self { name, words: (loaded, stored), body, .. } = self;
        let loads: String = (0..*loaded).map(|i| format!("    ld.global.b32 %i{i}, [%from+{}];\n", 4 * i)).collect();
        let stores: String = (0..*stored).map(|i| format!("    st.global.b32 [%to+{}], %o{i};\n", 4 * i)).collect();
        format!(
            ".version 8.4
.target sm_90
.address_size 64
.shared .align 16 .b8 tile[512];
.visible .entry {name}(.param .u64 operands, .param .u64 results)
{{
    .reg .b16 %h<2>;
    .reg .b32 %i<{loaded}>, %o<{stored}>, %t<5>;
    .reg .b64 %from, %to, %at;
    ld.param.u64 %from, [operands];
    ld.param.u64 %to, [results];
    mov.u32 %t0, %tid.x;
    mov.u32 %t1, %ctaid.x;
    mov.u32 %t2, %ntid.x;
    mad.lo.s32 %t0, %t1, %t2, %t0;
    mul.wide.u32 %at, %t0, {};
    add.s64 %from, %from, %at;
    mul.wide.u32 %at, %t0, {};
    add.s64 %to, %to, %at;
{loads}    {body}
{stores}    ret;
}}
",
            4 * loaded,
            4 * stored
        )
    }

    /// Executes it on a device of an architecture that has the instruction.
    ///
    /// # Errors
    /// The library's.
    pub fn run(&self, device: &Device, operands: &[u32]) -> Result<Vec<u32>, Failure> {
        let threads = operands.len() / self.words.0;
        let (from, to) = (Buffer::new(device, operands.len() * 4)?, Buffer::new(device, threads * self.words.1 * 4)?);
        from.write(0, &bytes(operands))?;
        // Results that nobody wrote are not taken for zeros.
        to.fill(0xa5)?;
        let (blocks, arguments) = ((threads / THREADS) as u32, [from.address(), to.address()]);
        // SAFETY: the kernel takes two addresses. Each of its threads reads its operands from the first and writes its
        // results to the second; there is memory for all threads, which nothing else uses.
        unsafe { device.run_image(self.ptx().as_bytes(), self.name, blocks, THREADS as u32, &arguments)? };
        let mut results = vec![0; to.size()];
        to.read(0, &mut results)?;
        Ok(words(&results))
    }

    /// Executes it with its own operands.
    ///
    /// # Errors
    /// The library's.
    pub fn results(&self, device: &Device) -> Result<Results, Failure> {
        let operands = self.operands();
        Ok(Results { operands: hash(&operands), words: self.run(device, &operands)? })
    }
}

/// FNV-1a.
fn hash(words: &[u32]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes(words).iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Results of all probes on one device: a line of JSON, then the words of one probe after the other, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The device's own name.
    pub device: String,
    /// Results in the order of [`PROBES`].
    pub probes: Vec<Results>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    device: String,
    probes: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    name: String,
    operands: u64,
    words: usize,
}

impl Recording {
    /// Executes all probes.
    ///
    /// # Errors
    /// The library's.
    pub fn new(device: &Device) -> Result<Self, Failure> {
        let probes = PROBES.iter().map(|probe| probe.results(device)).collect::<Result<_, _>>()?;
        Ok(Self { device: device.props().name.clone(), probes })
    }

    /// The file's contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        let entries = PROBES.iter().zip(&self.probes).map(|(probe, results)| Entry {
            name: probe.name.into(),
            operands: results.operands,
            words: results.words.len(),
        });
        let header = Header { device: self.device.clone(), probes: entries.collect() };
        let mut file = serde_json::to_vec(&header).expect("plain data");
        file.push(b'\n');
        self.probes.iter().for_each(|results| file.extend(bytes(&results.words)));
        file
    }

    /// Reads a file's contents.
    ///
    /// # Errors
    /// What is wrong with them, also where they are of other probes.
    pub fn from_bytes(file: &[u8]) -> Result<Self, Failure> {
        let end = file.iter().position(|byte| *byte == b'\n').ok_or("a recording begins with a line of JSON")?;
        let header: Header = serde_json::from_slice(&file[..end])?;
        let names: Vec<_> = PROBES.iter().map(|probe| probe.name).collect();
        if !header.probes.iter().map(|entry| entry.name.as_str()).eq(names.iter().copied()) {
            return Err(format!("the recording is not of the probes {names:?}; record it again").into());
        }
        let mut rest = &file[end + 1..];
        let mut probes = Vec::new();
        for Entry { name, operands, words: count } in header.probes {
            let (these, others) =
                rest.split_at_checked(count * 4).ok_or_else(|| format!("the recording ends within {name}"))?;
            probes.push(Results { operands, words: words(these) });
            rest = others;
        }
        Ok(Self { device: header.device, probes })
    }
}

impl Kind {
    /// Whether `got` will do in place of `want`, and how many units in the last place it is off.
    pub fn allows(self, got: u32, want: u32) -> (bool, u32) {
        if got == want {
            return (true, 0);
        }
        let (x, y) = (f32::from_bits(got), f32::from_bits(want));
        let ulps = ordered(got).abs_diff(ordered(want));
        match self {
            Self::Exact => (false, ulps),
            Self::Approximate { ulps: most, absolute } => {
                let finite = x.is_finite() && y.is_finite();
                (finite && (ulps <= most || (x - y).abs() <= absolute), ulps)
            }
        }
    }
}

/// Neighbouring floats become neighbouring integers; both zeros become 0.
fn ordered(bits: u32) -> i32 {
    let magnitude = (bits & 0x7fff_ffff) as i32;
    if bits >> 31 == 0 { magnitude } else { -magnitude }
}
