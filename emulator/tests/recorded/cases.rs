//! The kernels: each loads words, executes a few instructions, and stores words.

/// How closely the emulator must agree.
#[derive(Clone, Copy)]
pub(crate) enum Expect {
    /// The same bits.
    Bits,
    /// Within so many units in the last place, or within this absolute error.
    Within(u32, f32),
}

/// What the input words are.
#[derive(Clone, Copy)]
pub(crate) enum Values {
    /// f32 of all sizes, with zeros, infinities, NaN and subnormals among them.
    Floats,
    /// f32 between -16 and 16.
    Moderate,
    /// Any bits.
    Integers,
    /// Pairs of bf16 with exponents within 2^n of each other; f32 likewise from word 6 of 10 on.
    Bf16 { spread: u32 },
    /// Pairs of f16, likewise.
    F16 { spread: u32 },
    /// Four e4m3 each, and f32.
    E4m3,
}

/// A generator that is simple to write down anywhere (the constants are Knuth's MMIX).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }
}

const SPECIAL: [u32; 16] = [
    0,
    0x8000_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0x3f80_0000,
    0xbf80_0000,
    0x3f00_0000,
    0x4b80_0001,
    0x477f_f000,
    0x3380_0000,
];

impl Values {
    pub(crate) fn words(self, count: usize) -> Vec<u32> {
        let mut random = Random(1);
        (0..count).map(|i| self.word(i, &mut random)).collect()
    }

    fn word(self, index: usize, random: &mut Random) -> u32 {
        let x = random.next();
        // A sign, an exponent within `spread` around `bias`, and a mantissa of so many bits.
        let float = |x: u32, mantissa: u32, bias: u32, spread: u32| {
            let sign = if mantissa == 23 { x >> 31 << 31 } else { x >> 31 << 15 };
            let exponent = bias - spread / 2 + (x >> 8 & 0xff) % spread;
            sign | exponent << mantissa | scramble(x) & ((1 << mantissa) - 1)
        };
        match self {
            Self::Integers => x,
            Self::Floats if x & 3 == 0 => SPECIAL[(x >> 4) as usize % 16],
            Self::Floats => x ^ x << 7,
            Self::Moderate => ((x as i32 as f32) / (1u32 << 27) as f32).to_bits(),
            Self::Bf16 { spread } | Self::F16 { spread } if index % 10 >= 6 => float(x, 23, 127, spread),
            Self::Bf16 { spread } => float(x, 7, 127, spread) | float(random.next(), 7, 127, spread) << 16,
            Self::F16 { spread } => float(x, 10, 15, spread) | float(random.next(), 10, 15, spread) << 16,
            Self::E4m3 if index % 10 >= 6 => float(x, 23, 127, 8),
            Self::E4m3 => x & 0xbfbf_bfbf,
        }
    }
}

fn scramble(x: u32) -> u32 {
    x.wrapping_mul(0x9e37_79b9) >> 3
}

/// A kernel and its input.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) expect: Expect,
    pub(crate) warps: u32,
    values: Values,
    /// Words that a thread loads, into %r1 and on.
    loads: usize,
    /// Words that it stores, from %r20 on.
    stores: usize,
    body: String,
}

impl Case {
    pub(crate) fn input(&self) -> Vec<u32> {
        self.values.words(self.warps as usize * 32 * self.loads)
    }

    pub(crate) fn output_words(&self) -> usize {
        self.warps as usize * 32 * self.stores
    }

    /// `k(u64 from, u64 to)`.
    pub(crate) fn ptx(&self) -> String {
        let load = |i: usize| format!("ld.global.u32 %r{}, [%d1+{}];\n", i + 1, 4 * i);
        let store = |i: usize| format!("st.global.u32 [%d2+{}], %r{};\n", 4 * i, i + 20);
        let loads: String = (0..self.loads).map(load).collect();
        let stores: String = (0..self.stores).map(store).collect();
        format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n\
             .visible .entry k(.param .u64 k_0, .param .u64 k_1)\n{{\n\
             .reg .pred %p<4>;\n.reg .b16 %h<4>;\n.reg .b32 %r<40>;\n.reg .b64 %d<8>;\n\
             .shared .align 128 .b8 tile[2048];\n\
             ld.param.u64 %d1, [k_0];\nld.param.u64 %d2, [k_1];\n\
             mov.u32 %r30, %tid.x;\nmov.u32 %r31, %ctaid.x;\nmad.lo.u32 %r32, %r31, 32, %r30;\n\
             mad.wide.u32 %d1, %r32, {}, %d1;\nmad.wide.u32 %d2, %r32, {}, %d2;\n\
             {loads}{}\n{stores}ret;\n}}\n",
            4 * self.loads,
            4 * self.stores,
            self.body
        )
    }
}

fn simple(values: Values, expect: Expect, warps: u32, instruction: &str) -> Case {
    let name = format!(
        "{instruction} of {}",
        match values {
            Values::Floats => "floats",
            Values::Moderate => "moderate floats",
            _ => "integers",
        }
    );
    Case { name, expect, warps, values, loads: 3, stores: 1, body: instruction.to_owned() }
}

/// Instructions whose result is exact or rounded correctly.
pub(crate) fn arithmetic() -> Vec<Case> {
    let floats = [
        "add.rn.f32 %r20, %r1, %r2;",
        "add.ftz.f32 %r20, %r1, %r2;",
        "add.rz.f32 %r20, %r1, %r2;",
        "sub.rp.f32 %r20, %r1, %r2;",
        "mul.rn.f32 %r20, %r1, %r2;",
        "mul.rm.f32 %r20, %r1, %r2;",
        "fma.rn.f32 %r20, %r1, %r2, %r3;",
        "fma.rn.ftz.f32 %r20, %r1, %r2, %r3;",
        "fma.rz.f32 %r20, %r1, %r2, %r3;",
        "div.rn.f32 %r20, %r1, %r2;",
        "rcp.rn.f32 %r20, %r1;",
        "sqrt.rn.f32 %r20, %r1;",
        "max.f32 %r20, %r1, %r2;",
        "min.f32 %r20, %r1, %r2;",
        "max.NaN.f32 %r20, %r1, %r2;",
        "neg.f32 %r20, %r1;",
        "abs.f32 %r20, %r1;",
        "add.sat.f32 %r20, %r1, %r2;",
        "cvt.rn.bf16x2.f32 %r20, %r1, %r2;",
        "cvt.rz.bf16x2.f32 %r20, %r1, %r2;",
        "cvt.rn.relu.bf16x2.f32 %r20, %r1, %r2;",
        "cvt.rn.f16x2.f32 %r20, %r1, %r2;",
        "cvt.rz.f16x2.f32 %r20, %r1, %r2;",
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2; cvt.u32.u16 %r20, %h1;",
        "cvt.rn.satfinite.e5m2x2.f32 %h1, %r1, %r2; cvt.u32.u16 %r20, %h1;",
        "cvt.rni.s32.f32 %r20, %r1;",
        "cvt.rzi.u32.f32 %r20, %r1;",
        "cvt.rmi.f32.f32 %r20, %r1;",
        "cvt.rn.f16.f32 %h1, %r1; cvt.u32.u16 %r20, %h1;",
        "setp.lt.f32 %p1, %r1, %r2; selp.u32 %r20, 1, 2, %p1;",
        "setp.geu.f32 %p1, %r1, %r2; selp.u32 %r20, 1, 2, %p1;",
        "setp.ne.f32 %p1, %r1, %r2; selp.u32 %r20, 1, 2, %p1;",
    ];
    let integers = [
        "shl.b32 %r3, %r1, 3; and.b32 %r2, %r2, 63; shr.s32 %r20, %r3, %r2;",
        "and.b32 %r2, %r2, 63; shl.b32 %r20, %r1, %r2;",
        "mul.hi.s32 %r20, %r1, %r2;",
        "mul.hi.u32 %r20, %r1, %r2;",
        "mad.lo.s32 %r20, %r1, %r2, %r3;",
        "or.b32 %r2, %r2, 1; div.s32 %r20, %r1, %r2;",
        "or.b32 %r2, %r2, 1; rem.u32 %r20, %r1, %r2;",
        "min.s32 %r20, %r1, %r2;",
        "and.b32 %r2, %r2, 255; and.b32 %r3, %r3, 255; bfe.u32 %r20, %r1, %r2, %r3;",
        "and.b32 %r2, %r2, 31; and.b32 %r3, %r3, 63; bfe.s32 %r20, %r1, %r2, %r3;",
        "and.b32 %r4, %r2, 31; and.b32 %r5, %r3, 31; bfi.b32 %r20, %r1, %r3, %r4, %r5;",
        "prmt.b32 %r20, %r1, %r2, %r3;",
        "lop3.b32 %r20, %r1, %r2, %r3, 0x96;",
        "shf.l.wrap.b32 %r20, %r1, %r2, %r3;",
        "shf.r.clamp.b32 %r20, %r1, %r2, %r3;",
        "popc.b32 %r20, %r1;",
        "clz.b32 %r20, %r1;",
        "bfind.s32 %r20, %r1;",
        "brev.b32 %r20, %r1;",
        "cvt.rn.f32.s32 %r20, %r1;",
        "cvt.rz.f32.u32 %r20, %r1;",
        "cvt.u16.u32 %h1, %r1; cvt.f32.f16 %r20, %h1;",
        "cvt.u16.u32 %h1, %r1; cvt.rn.f16x2.e4m3x2 %r20, %h1;",
        "cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r20, %h1;",
    ];
    let floats = floats.into_iter().map(|text| simple(Values::Floats, Expect::Bits, 4, text));
    floats.chain(integers.into_iter().map(|text| simple(Values::Integers, Expect::Bits, 2, text))).collect()
}

/// Instructions that PTX allows an error.
pub(crate) fn approximate() -> Vec<Case> {
    let functions = [
        ("ex2.approx.ftz.f32 %r20, %r1;", 2, 0.0),
        ("ex2.approx.f32 %r20, %r1;", 2, 0.0),
        // The error is absolute where the logarithm is small.
        ("lg2.approx.ftz.f32 %r20, %r1;", 4, 1.0 / (1 << 22) as f32),
        ("rcp.approx.ftz.f32 %r20, %r1;", 1, 0.0),
        ("sqrt.approx.f32 %r20, %r1;", 1, 0.0),
        ("rsqrt.approx.f32 %r20, %r1;", 2, 0.0),
        ("div.full.f32 %r20, %r1, %r2;", 2, 0.0),
    ];
    [Values::Floats, Values::Moderate]
        .into_iter()
        .flat_map(|values| functions.map(|(text, ulps, error)| simple(values, Expect::Within(ulps, error), 4, text)))
        .collect()
}

/// shfl, vote, redux.
pub(crate) fn lanes() -> Vec<Case> {
    [
        "shfl.sync.bfly.b32 %r20, %r1, 5, 0x1f, 0xffffffff;",
        "shfl.sync.up.b32 %r20|%p1, %r1, 3, 0, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "shfl.sync.down.b32 %r20|%p1, %r1, 3, 0x1f, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "shfl.sync.idx.b32 %r20|%p1, %r1, %r2, 0x1f, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "shfl.sync.bfly.b32 %r20|%p1, %r1, 5, 0x1803, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "shfl.sync.up.b32 %r20|%p1, %r1, 2, 0x1800, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "shfl.sync.down.b32 %r20|%p1, %r1, 2, 0x1c03, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "shfl.sync.idx.b32 %r20|%p1, %r1, %r2, 0x181f, 0xffffffff; @!%p1 add.u32 %r20, %r20, 1;",
        "setp.gt.s32 %p1, %r1, %r2; vote.sync.ballot.b32 %r20, %p1, 0xffffffff;",
        "setp.gt.s32 %p1, %r1, %r2; vote.sync.any.pred %p2, !%p1, 0xffffffff; selp.u32 %r20, 1, 0, %p2;",
        "redux.sync.add.s32 %r20, %r1, 0xffffffff;",
        "redux.sync.max.s32 %r20, %r1, 0xffffffff;",
        "redux.sync.min.u32 %r20, %r1, 0xffffffff;",
    ]
    .map(|text| simple(Values::Integers, Expect::Bits, 1, text))
    .into()
}

/// ldmatrix from a tile of 32 rows of 16 bytes.
pub(crate) fn matrix_loads() -> Vec<Case> {
    let case = |count: u8, transpose: &str| {
        let registers: Vec<String> = (0..count).map(|i| format!("%r{}", 20 + i)).collect();
        let name = format!("ldmatrix.x{count}{transpose}");
        let body = format!(
            "mov.u32 %r10, tile; shl.b32 %r11, %r30, 4; add.u32 %r10, %r10, %r11;\n\
             st.shared.v4.b32 [%r10], {{%r1, %r2, %r3, %r4}}; bar.sync 0;\n\
             ldmatrix.sync.aligned.m8n8.x{count}{transpose}.shared.b16 {{{}}}, [%r10];",
            registers.join(", ")
        );
        Case { name, expect: Expect::Bits, warps: 1, values: Values::Integers, loads: 4, stores: count.into(), body }
    };
    vec![case(1, ""), case(2, ""), case(4, ""), case(1, ".trans"), case(2, ".trans"), case(4, ".trans")]
}

/// mma.sync with f32 accumulators.
pub(crate) fn matrix_products() -> Vec<Case> {
    let case = |name: &str, values: Values, shape: &str, ty: &str, a: &str, b: &str| {
        let body = format!(
            "mma.sync.aligned.{shape}.row.col.f32.{ty}.{ty}.f32 {{%r20, %r21, %r22, %r23}}, {{{a}}}, {{{b}}}, \
             {{%r7, %r8, %r9, %r10}};"
        );
        Case {
            name: format!("mma {shape} {ty} {name}"),
            expect: Expect::Bits,
            warps: 4,
            values,
            loads: 10,
            stores: 4,
            body,
        }
    };
    let (a4, a2, b2, b1) = ("%r1, %r2, %r3, %r4", "%r1, %r2", "%r5, %r6", "%r5");
    let mut cases = Vec::new();
    for spread in [1, 4, 12, 28] {
        let name = format!("spread {spread}");
        let (bf16, f16) = (Values::Bf16 { spread }, Values::F16 { spread });
        cases.push(case(&name, bf16, "m16n8k16", "bf16", a4, b2));
        cases.push(case(&name, f16, "m16n8k16", "f16", a4, b2));
        cases.push(case(&name, bf16, "m16n8k8", "bf16", a2, b1));
        cases.push(case(&name, f16, "m16n8k8", "f16", a2, b1));
    }
    cases.push(case("spread 60", Values::Bf16 { spread: 60 }, "m16n8k16", "bf16", a4, b2));
    cases.push(case("spread 240", Values::Bf16 { spread: 240 }, "m16n8k16", "bf16", a4, b2));
    cases.push(case("any bits", Values::Integers, "m16n8k16", "f16", a4, b2));
    cases.push(case("any bits", Values::Integers, "m16n8k16", "bf16", a4, b2));
    cases.push(case("", Values::E4m3, "m16n8k32", "e4m3", a4, b2));
    cases
}
