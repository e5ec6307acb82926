//! Ways to make a right problem or its tensors wrong, one at a time, with the argument that a refusal must name.

use splitkv::{
    Buffer, DType, Descale, KvLayout, KvLens, Offsets, Options, PageTable, Problem, Queries, Splits, Tensor,
};

use crate::case::{self, Case, Known, Kv, Lengths};
use crate::launch::Given;
use crate::numeric::Format;

/// A way to be wrong.
#[derive(Clone, Copy, Debug)]
pub struct Wrong<Change> {
    /// The argument that is refused.
    pub argument: &'static str,
    /// Part of what the refusal says was given.
    pub given: &'static str,
    /// Part of what it says is allowed.
    pub allowed: &'static str,
    /// The cases that it can be done to.
    pub applies: fn(&Case) -> bool,
    /// Makes it wrong.
    pub change: Change,
}

/// Changes a problem, or how it is to be planned.
pub type ProblemChange = fn(&mut Problem, &mut Options);
/// Changes the tensors of a run.
pub type TensorChange = fn(&mut Given) -> splitkv::Result<()>;

const fn wrong<Change: Copy>(
    argument: &'static str,
    given: &'static str,
    allowed: &'static str,
    applies: fn(&Case) -> bool,
    change: Change,
) -> Wrong<Change> {
    Wrong { argument, given, allowed, applies, change }
}

const HUGE: usize = 1 << 31;
const MOST: &str = "at most 2147483647";

fn any(_: &Case) -> bool {
    true
}

fn is_e4m3(case: &Case) -> bool {
    case.format == Format::E4m3
}

fn is_16_bit(case: &Case) -> bool {
    !is_e4m3(case)
}

fn is_dense(case: &Case) -> bool {
    case.queries == case::Queries::Dense && case.kv == Kv::Dense
}

fn host_queries(case: &Case) -> bool {
    matches!(case.queries, case::Queries::Packed { known: Known::Host, .. })
}

fn device_queries(case: &Case) -> bool {
    matches!(case.queries, case::Queries::Packed { known: Known::Device, .. })
}

fn host_kv(case: &Case) -> bool {
    matches!(case.kv, Kv::Packed { known: Known::Host, .. })
}

fn device_kv(case: &Case) -> bool {
    matches!(case.kv, Kv::Packed { known: Known::Device, .. })
}

fn is_paged(case: &Case) -> bool {
    matches!(case.kv, Kv::Paged { .. })
}

fn host_table(case: &Case) -> bool {
    matches!(case.kv, Kv::Paged { known: Known::Host, .. })
}

fn device_table(case: &Case) -> bool {
    matches!(case.kv, Kv::Paged { known: Known::Device, .. })
}

fn has_keys(case: &Case) -> bool {
    case.lengths().iter().any(|length| *length > 0)
}

fn offsets(offsets: &mut Offsets) -> &mut Vec<u32> {
    match offsets {
        Offsets::Host(offsets) => offsets,
        _ => unreachable!("offsets that the host knows"),
    }
}

fn query_offsets(problem: &mut Problem) -> &mut Vec<u32> {
    match &mut problem.queries {
        Queries::Packed { cu_seqlens, .. } => offsets(cu_seqlens),
        _ => unreachable!("packed queries"),
    }
}

fn kv_offsets(problem: &mut Problem) -> &mut Vec<u32> {
    match &mut problem.kv {
        KvLayout::Packed { cu_seqlens, .. } => offsets(cu_seqlens),
        _ => unreachable!("packed KV"),
    }
}

fn paged(problem: &mut Problem) -> (&mut usize, &mut usize, &mut PageTable) {
    match &mut problem.kv {
        KvLayout::Paged { pages, page_size, table } => (pages, page_size, table),
        _ => unreachable!("paged KV"),
    }
}

fn table(problem: &mut Problem) -> (&mut usize, &mut Vec<u32>) {
    match paged(problem).2 {
        PageTable::Host { width, pages } => (width, pages),
        _ => unreachable!("a table that the host knows"),
    }
}

/// Wrong problems and options.
pub const PROBLEMS: &[Wrong<ProblemChange>] = &[
    wrong("batch", "2147483648", MOST, any, |problem, _| problem.batch = HUGE),
    wrong("sq", "2147483648", MOST, any, |problem, _| problem.sq = HUGE),
    wrong("sk", "2147483648", MOST, any, |problem, _| problem.sk = HUGE),
    wrong("heads", "2147483648", MOST, any, |problem, _| problem.heads = HUGE),
    wrong("kv_heads", "2147483648", MOST, any, |problem, _| problem.kv_heads = HUGE),
    wrong("batch * heads * sq", "2000000000", MOST, is_dense, |problem, _| {
        (problem.batch, problem.heads, problem.kv_heads, problem.sq) = (2_000_000_000, 2, 2, 1);
        problem.kv_lens = KvLens::Full;
    }),
    wrong("heads", "7", "multiple of kv_heads (2)", any, |problem, _| (problem.heads, problem.kv_heads) = (7, 2)),
    wrong("heads", "8", "multiple of kv_heads (0)", any, |problem, _| (problem.heads, problem.kv_heads) = (8, 0)),
    wrong("head_dim_qk", "0", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_qk = 0),
    wrong("head_dim_qk", "4", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_qk = 4),
    wrong("head_dim_qk", "12", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_qk = 12),
    wrong("head_dim_qk", "255", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_qk = 255),
    wrong("head_dim_qk", "264", "at most 256", is_16_bit, |problem, _| problem.head_dim_qk = 264),
    wrong("head_dim_qk", "576", "at most 256", is_16_bit, |problem, _| problem.head_dim_qk = 576),
    wrong("head_dim_v", "0", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_v = 0),
    wrong("head_dim_v", "4", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_v = 4),
    wrong("head_dim_v", "12", "a multiple of 8", is_16_bit, |problem, _| problem.head_dim_v = 12),
    wrong("head_dim_v", "264", "at most 256", is_16_bit, |problem, _| problem.head_dim_v = 264),
    wrong("head_dim_qk", "24", "a multiple of 16", is_e4m3, |problem, _| problem.head_dim_qk = 24),
    wrong("head_dim_qk", "208", "at most 192", is_e4m3, |problem, _| problem.head_dim_qk = 208),
    wrong("head_dim_v", "8", "a multiple of 16", is_e4m3, |problem, _| problem.head_dim_v = 8),
    wrong("head_dim_v", "256", "at most 192", is_e4m3, |problem, _| problem.head_dim_v = 256),
    wrong("dtype", "f32", "bf16, f16 or e4m3", any, |problem, _| problem.dtype = DType::F32),
    wrong("dtype", "i32", "bf16, f16 or e4m3", any, |problem, _| problem.dtype = DType::I32),
    wrong("o_dtype", "i32", "f32", any, |problem, _| problem.o_dtype = DType::I32),
    wrong("o_dtype", "f16", "bf16 or f32", any, |problem, _| {
        (problem.dtype, problem.o_dtype) = (DType::Bf16, DType::F16);
    }),
    wrong("o_dtype", "bf16", "f16 or f32", any, |problem, _| {
        (problem.dtype, problem.o_dtype) = (DType::F16, DType::Bf16);
    }),
    wrong("o_dtype", "e4m3", "bf16, f16 or f32 with e4m3", is_e4m3, |problem, _| problem.o_dtype = DType::E4m3),
    wrong("q_descale", "per", "only e4m3", is_16_bit, |problem, _| problem.q_descale = Descale::PerHead),
    wrong("k_descale", "per", "only e4m3", is_16_bit, |problem, _| problem.k_descale = Descale::PerHead),
    wrong("v_descale", "per", "only e4m3", is_16_bit, |problem, _| problem.v_descale = Descale::PerHead),
    wrong("scale", "NaN", "finite", any, |problem, _| problem.scale = Some(f32::NAN)),
    wrong("scale", "inf", "finite", any, |problem, _| problem.scale = Some(f32::INFINITY)),
    wrong("scale", "-inf", "finite", any, |problem, _| problem.scale = Some(f32::NEG_INFINITY)),
    wrong("scale", "34028", "finite", any, |problem, _| problem.scale = Some(f32::MAX)),
    wrong("softcap", "0", "above 0", any, |problem, _| problem.softcap = Some(0.0)),
    wrong("softcap", "-15", "above 0", any, |problem, _| problem.softcap = Some(-15.0)),
    wrong("softcap", "inf", "finite", any, |problem, _| problem.softcap = Some(f32::INFINITY)),
    wrong("softcap", "NaN", "finite", any, |problem, _| problem.softcap = Some(f32::NAN)),
    wrong("kv_lens", "0 lengths", "one a sequence", any, |problem, _| problem.kv_lens = KvLens::Host(Vec::new())),
    wrong("kv_lens", "sequence 0", "at most", any, |problem, _| {
        problem.kv_lens = KvLens::Host(vec![problem.sk as u32 + 1; problem.batch]);
    }),
    wrong("kv_lens", "sequence", "at most", host_kv, |problem, _| {
        let ends = kv_offsets(problem);
        let room = ends[1] - ends[0];
        let mut lens = vec![0; problem.batch];
        lens[0] = room + 1;
        problem.kv_lens = KvLens::Host(lens);
    }),
    wrong("cu_seqlens_q", "0 offsets", "batch + 1", host_queries, |problem, _| query_offsets(problem).clear()),
    wrong("cu_seqlens_q", "offsets", "batch + 1", host_queries, |problem, _| query_offsets(problem).push(7)),
    wrong("cu_seqlens_q", "1", "0", host_queries, |problem, _| query_offsets(problem)[0] = 1),
    wrong("cu_seqlens_q", "", "", host_queries, |problem, _| {
        // As one that falls, or leaves the total.
        *query_offsets(problem).last_mut().expect("batch + 1") += 1;
    }),
    wrong("cu_seqlens_q", "", "", host_queries, |problem, _| {
        let batch = problem.batch;
        query_offsets(problem)[batch - 1] = u32::MAX;
    }),
    wrong("cu_seqlens_q", "", "at most sq", host_queries, |problem, _| {
        let more = problem.sq as u32 + 1;
        problem.queries = Queries::Packed {
            total: more as usize,
            cu_seqlens: Offsets::Host((0..=problem.batch).map(|b| if b == problem.batch { more } else { 0 }).collect()),
        };
    }),
    wrong("cu_seqlens_kv", "0 offsets", "batch + 1", host_kv, |problem, _| kv_offsets(problem).clear()),
    wrong("cu_seqlens_kv", "offsets", "batch + 1", host_kv, |problem, _| kv_offsets(problem).push(7)),
    wrong("cu_seqlens_kv", "1", "0", host_kv, |problem, _| kv_offsets(problem)[0] = 1),
    wrong("cu_seqlens_kv", "", "", host_kv, |problem, _| {
        *kv_offsets(problem).last_mut().expect("batch + 1") += 1;
    }),
    wrong("cu_seqlens_kv", "", "", host_kv, |problem, _| {
        let batch = problem.batch;
        kv_offsets(problem)[batch - 1] = u32::MAX;
    }),
    wrong("cu_seqlens_kv", "", "at most sk", host_kv, |problem, _| {
        let more = problem.sk as u32 + 1;
        problem.kv = KvLayout::Packed {
            total: more as usize,
            cu_seqlens: Offsets::Host((0..=problem.batch).map(|b| if b == problem.batch { more } else { 0 }).collect()),
        };
    }),
    wrong("page_size", "0", "1 to 512", is_paged, |problem, _| *paged(problem).1 = 0),
    wrong("page_size", "2147483648", "", is_paged, |problem, _| *paged(problem).1 = HUGE),
    wrong("pages", "2147483648", "", is_paged, |problem, _| *paged(problem).0 = HUGE),
    wrong("page_table", "", "", host_table, |problem, _| table(problem).1.push(0)),
    wrong("page_table", "tokens", "sk", is_paged, |problem, _| {
        problem.sk += 2000;
        let page_size = *paged(problem).1;
        *paged(problem).2 = PageTable::Device { width: (problem.sk - 1) / page_size };
    }),
    wrong(
        "page_table",
        "",
        "pages",
        |case| host_table(case) && has_keys(case),
        |problem, _| {
            // Of the first sequence that has a key, the first page.
            let (batch, pages) = (problem.batch, *paged(problem).0 as u32);
            let lens = match &problem.kv_lens {
                KvLens::Host(lens) => lens.clone(),
                _ => vec![1; batch],
            };
            let sequence = lens.iter().position(|len| *len > 0).expect("one has keys");
            let (width, table) = table(problem);
            table[sequence * *width] = pages;
        },
    ),
    wrong("splits", "0", "1 to 256", any, |_, options| options.splits = Splits::Exact(0)),
    wrong("splits", "257", "1 to 256", any, |_, options| options.splits = Splits::Exact(257)),
    wrong("splits", "4294967295", "1 to 256", any, |_, options| options.splits = Splits::Exact(u32::MAX)),
    wrong("splits", "0 tokens", "KV tile", any, |_, options| options.splits = Splits::Tokens(0)),
    wrong("splits", "100 tokens", "KV tile", any, |_, options| options.splits = Splits::Tokens(100)),
    wrong("splits", "makes 257 splits", "at most 256 splits", is_dense, |problem, options| {
        problem.sk = 128 * 256 + 1;
        problem.kv_lens = KvLens::Full;
        problem.window = splitkv::Window::default();
        options.splits = Splits::Tokens(128);
    }),
    wrong("q_tiles", "0", "of the kernels", any, |_, options| options.q_tiles = Some(0)),
    wrong("q_tiles", "3", "of the kernels", any, |_, options| options.q_tiles = Some(3)),
];

/// Another tensor in place of one: of this type, shape and strides, some bytes into a buffer of its own.
fn replace(
    tensor: &mut Tensor,
    dtype: DType,
    offset: usize,
    shape: &[usize],
    strides: &[usize],
) -> splitkv::Result<()> {
    let extent: usize = shape.iter().zip(strides).map(|(size, stride)| size.saturating_sub(1) * stride).sum();
    let buffer = Buffer::new(tensor.buffer().device(), offset + (extent + 1) * dtype.size_of())?;
    *tensor = Tensor::new(buffer, offset, dtype, shape, strides)?;
    Ok(())
}

fn contiguous(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect()
}

/// The same tensor of another type.
fn retyped(tensor: &mut Tensor, dtype: DType) -> splitkv::Result<()> {
    let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
    replace(tensor, dtype, 0, &shape, &strides)
}

/// One more in dimension `dim`.
fn larger(tensor: &mut Tensor, dim: usize) -> splitkv::Result<()> {
    let mut shape = tensor.shape().to_vec();
    shape[dim] += 1;
    replace(tensor, tensor.dtype(), 0, &shape, &contiguous(&shape))
}

/// One dimension more.
fn deeper(tensor: &mut Tensor) -> splitkv::Result<()> {
    let shape = [&[1], tensor.shape()].concat();
    replace(tensor, tensor.dtype(), 0, &shape, &contiguous(&shape))
}

/// The same tensor, begun where no row may begin.
fn misaligned(tensor: &mut Tensor) -> splitkv::Result<()> {
    let shape = tensor.shape().to_vec();
    replace(tensor, tensor.dtype(), tensor.dtype().size_of(), &shape, &contiguous(&shape))
}

/// Elements of a head that do not lie side by side.
fn spread(tensor: &mut Tensor) -> splitkv::Result<()> {
    let shape = tensor.shape().to_vec();
    let strides: Vec<_> = contiguous(&shape).iter().map(|stride| 2 * stride).collect();
    replace(tensor, tensor.dtype(), 0, &shape, &strides)
}

/// Heads that do not begin at multiples of 16 bytes.
fn crooked(tensor: &mut Tensor) -> splitkv::Result<()> {
    let shape = tensor.shape().to_vec();
    let last = shape.len() - 1;
    let mut strides = contiguous(&shape);
    strides[..last].iter_mut().for_each(|stride| *stride += 2);
    replace(tensor, tensor.dtype(), 0, &shape, &strides)
}

fn other_half(dtype: DType) -> DType {
    if dtype == DType::Bf16 { DType::F16 } else { DType::Bf16 }
}

fn needed(tensor: &mut Option<Tensor>) -> &mut Tensor {
    tensor.as_mut().expect("the case has it")
}

/// A tensor where none belongs.
fn surplus(given: &Given, dtype: DType) -> Option<Tensor> {
    Tensor::zeros(given.q.buffer().device(), dtype, &[1]).ok()
}

fn has_queries(case: &Case) -> bool {
    !case.rows().is_empty()
}

fn many_rows(case: &Case) -> bool {
    case.rows().len() > 1
}

fn room_for_keys(case: &Case) -> bool {
    case.room().iter().any(|room| *room > 0)
}

fn many_kv_rows(case: &Case) -> bool {
    case.room().iter().sum::<usize>() * case.kv_heads > 1 && room_for_keys(case)
}

/// Wrong tensors of Q, K, V and O.
macro_rules! rows {
    ($name:literal, $tensor:ident, $some:expr, $many:expr) => {
        [
            wrong($name, "i32", "", any, |given| retyped(&mut given.$tensor, DType::I32)),
            wrong($name, "shape", "shape", any, |given| larger(&mut given.$tensor, 0)),
            wrong($name, "shape", "shape", any, |given| larger(&mut given.$tensor, 1)),
            wrong($name, "shape", "shape", any, |given| larger(&mut given.$tensor, 2)),
            wrong($name, "shape", "shape", any, |given| deeper(&mut given.$tensor)),
            wrong($name, "address", "multiple of 16 bytes", $some, |given| misaligned(&mut given.$tensor)),
            wrong($name, "strides", "1 as the last stride", $some, |given| spread(&mut given.$tensor)),
            wrong($name, "strides", "strides", $many, |given| crooked(&mut given.$tensor)),
        ]
    };
}

/// Wrong tensors that a problem may ask for.
macro_rules! options {
    ($name:literal, $tensor:ident, $asked:expr, $unasked:expr, $dtype:expr, $other:expr) => {
        [
            wrong($name, "none", "as planned", $asked, |given| {
                given.$tensor = None;
                Ok(())
            }),
            wrong($name, "a tensor", "none, as planned", $unasked, |given| {
                given.$tensor = surplus(given, $dtype);
                Ok(())
            }),
            wrong($name, "", "", $asked, |given| retyped(needed(&mut given.$tensor), $other)),
            wrong($name, "shape", "shape", $asked, |given| larger(needed(&mut given.$tensor), 0)),
            wrong($name, "shape", "shape", $asked, |given| deeper(needed(&mut given.$tensor))),
        ]
    };
}

/// Wrong tensors.
pub fn tensors() -> Vec<Wrong<TensorChange>> {
    let mut all: Vec<Wrong<TensorChange>> = Vec::new();
    all.extend::<[Wrong<TensorChange>; 8]>(rows!("q", q, has_queries, many_rows));
    all.extend::<[Wrong<TensorChange>; 8]>(rows!("k", k, room_for_keys, many_kv_rows));
    all.extend::<[Wrong<TensorChange>; 8]>(rows!("v", v, room_for_keys, many_kv_rows));
    all.extend::<[Wrong<TensorChange>; 8]>(rows!("o", o, has_queries, many_rows));
    let with_lse = |case: &Case| case.lse;
    let device_lens: fn(&Case) -> bool = |case| matches!(case.lengths, Lengths::Device(_));
    let sink: fn(&Case) -> bool = |case| case.sink.is_some();
    type Five = [Wrong<TensorChange>; 5];
    all.extend::<Five>(options!("lse", lse, with_lse, |case| !case.lse, DType::F32, DType::I32));
    all.extend::<Five>(options!(
        "kv_lens",
        kv_lens,
        device_lens,
        |case| !matches!(case.lengths, Lengths::Device(_)),
        DType::I32,
        DType::F32
    ));
    all.extend::<Five>(options!(
        "cu_seqlens_q",
        cu_seqlens_q,
        device_queries,
        |case| !device_queries(case),
        DType::I32,
        DType::F32
    ));
    all.extend::<Five>(options!(
        "cu_seqlens_kv",
        cu_seqlens_kv,
        device_kv,
        |case| !device_kv(case),
        DType::I32,
        DType::F32
    ));
    all.extend::<Five>(options!(
        "page_table",
        page_table,
        device_table,
        |case| !device_table(case),
        DType::I32,
        DType::F32
    ));
    all.extend::<Five>(options!("sink", sink, sink, |case| case.sink.is_none(), DType::F32, DType::Bf16));
    all.extend::<[Wrong<TensorChange>; 5]>([
        wrong("q", "", "", any, |given| {
            let dtype = other_half(given.q.dtype());
            retyped(&mut given.q, dtype)
        }),
        wrong("k", "", "", any, |given| {
            let dtype = other_half(given.k.dtype());
            retyped(&mut given.k, dtype)
        }),
        wrong(
            "page_table",
            "strides",
            "",
            // A stride over one column leads nowhere.
            |case| matches!(case.kv, Kv::Paged { page_size, known: Known::Device, .. } if case.sk > page_size),
            |given| {
                // Columns apart.
                let table = needed(&mut given.page_table);
                let shape = [table.shape()[0] + 1, table.shape()[1] + 1];
                replace(table, DType::I32, 0, &[shape[0] - 1, shape[1] - 1], &[2 * shape[1], 2])
            },
        ),
        wrong(
            "o",
            "",
            "apart",
            |case| case.sq > 1 && is_dense(case) && case.heads() > 1,
            |given| {
                // All heads in one place.
                let (shape, mut strides) = (given.o.shape().to_vec(), contiguous(given.o.shape()));
                strides[2] = 0;
                let dtype = given.o.dtype();
                replace(&mut given.o, dtype, 0, &shape, &strides)
            },
        ),
        wrong(
            "lse",
            "strides",
            "no gaps",
            |case| case.lse && case.rows().len() > 1,
            |given| {
                let lse = needed(&mut given.lse);
                let shape = lse.shape().to_vec();
                let strides: Vec<_> = contiguous(&shape).iter().map(|stride| 2 * stride).collect();
                replace(lse, DType::F32, 0, &shape, &strides)
            },
        ),
    ]);
    // What is written lies over something else. Of two names the first that is written is named.
    all.extend::<[Wrong<TensorChange>; 3]>([
        wrong(
            "o",
            "",
            "q",
            |case| overlaps(case) && case.head_dim_qk == case.head_dim_v,
            |given| {
                given.o = given.q.clone();
                Ok(())
            },
        ),
        wrong("o", "", "lse", |case| case.lse && has_queries(case), |given| over(given, |given| &mut given.lse)),
        wrong(
            "o",
            "",
            "kv_lens",
            |case| matches!(case.lengths, Lengths::Device(_)) && has_queries(case),
            |given| over(given, |given| &mut given.kv_lens),
        ),
    ]);
    all
}

fn overlaps(case: &Case) -> bool {
    has_queries(case) && case.format == case.output
}

/// Puts a tensor into O's memory.
fn over(given: &mut Given, of: fn(&mut Given) -> &mut Option<Tensor>) -> splitkv::Result<()> {
    let (buffer, offset) = (given.o.buffer().clone(), given.o.offset());
    let tensor = needed(of(given));
    let (shape, strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
    *tensor = Tensor::new(buffer, offset, tensor.dtype(), &shape, &strides)?;
    Ok(())
}
