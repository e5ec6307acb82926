//! Runs a case on a device, with guards around all memory, and everything that is to be written poisoned.

use splitkv::{
    BlockShape, Buffer, DType, Descale, Executor, Graph, Inputs, KvLens, Offsets, Options, PageTable, Plan, Problem,
    Status, Stream, Tensor, plan,
};

use crate::case::{Case, Known, Kv, Layout, Lengths, Queries, Splits, starts};
use crate::compare::Output;
use crate::data::Tensors;
use crate::numeric::Format;
use crate::pages::{Pages, pages};
use crate::places::Place;
use crate::site::Site;

/// Why a case failed: an error of the library, or what a check found.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes before and behind each buffer that must stay as they are.
const GUARD: usize = 256;
/// What guards, gaps, outputs and workspace are filled with at first: NaN in every format.
const POISON: u8 = 0xff;

impl From<Format> for DType {
    fn from(format: Format) -> Self {
        match format {
            Format::Bf16 => Self::Bf16,
            Format::F16 => Self::F16,
            Format::F32 => Self::F32,
            Format::E4m3 => Self::E4m3,
        }
    }
}

/// The problem of a case.
pub fn problem(case: &Case) -> Problem {
    let kv_lens = match &case.lengths {
        Lengths::Full => KvLens::Full,
        Lengths::Host(lengths) => KvLens::Host(lengths.clone()),
        Lengths::Device(_) => KvLens::Device,
    };
    let [q, k, v] = case.per_head.map(|per_head| if per_head { Descale::PerHead } else { Descale::PerTensor });
    let dtype = case.format.into();
    let mut problem = Problem::new(case.batch, case.heads(), case.kv_heads, case.sq, case.sk, case.head_dim_qk, dtype)
        .head_dim_v(case.head_dim_v)
        .o_dtype(case.output.into())
        .causal(case.causal)
        .kv_lens(kv_lens)
        .sink(case.sink.is_some())
        .descales(q, k, v)
        .lse(case.lse);
    if let Some(scale) = case.scale {
        problem = problem.scale(scale);
    }
    if let Some(window) = case.window {
        problem = problem.window(splitkv::Window { left: window.left, right: window.right });
    }
    if let Some(cap) = case.softcap {
        problem = problem.softcap(cap);
    }
    if let Queries::Packed { known, .. } = case.queries {
        let (offsets, total) = offsets(&case.query_lengths());
        problem = problem.packed_queries(total, known_offsets(offsets, known));
    }
    match case.kv {
        Kv::Dense => problem,
        Kv::Packed { known, .. } => {
            let (offsets, total) = offsets(&case.room());
            problem.packed_kv(total, known_offsets(offsets, known))
        }
        Kv::Paged { page_size, known, .. } => {
            let Pages { pages, width, table } = pages(case);
            let table = match known {
                Known::Host => PageTable::Host { width, pages: table.iter().map(|page| *page as u32).collect() },
                Known::Device => PageTable::Device { width },
            };
            problem.paged(pages, page_size, table)
        }
    }
}

/// Where sequences of these lengths begin, and at last where all of them end.
fn offsets(lengths: &[usize]) -> (Vec<u32>, usize) {
    let (starts, total) = starts(lengths);
    (starts.iter().chain([&total]).map(|start| *start as u32).collect(), total)
}

fn known_offsets(offsets: Vec<u32>, known: Known) -> Offsets {
    match known {
        Known::Host => Offsets::Host(offsets),
        Known::Device => Offsets::Device,
    }
}

/// The options of a case.
pub fn options(case: &Case) -> Options {
    let splits = match case.splits {
        Splits::Auto => splitkv::Splits::Auto,
        Splits::Exact(n) => splitkv::Splits::Exact(n),
        Splits::Tokens(n) => splitkv::Splits::Tokens(n),
    };
    let block_shape = case.block_shape.map(BlockShape::from);
    Options { splits, q_tiles: case.q_tiles, block_shape, ..Options::default() }
}

/// The plan of a case.
///
/// # Errors
/// The library's.
pub fn plan_case(site: &Site, case: &Case) -> splitkv::Result<Plan> {
    plan(&problem(case), &options(case), site.device.props(), site.kernels.catalogue())
}

/// The bits of an output, in the order of the tensors' shapes whatever their strides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bits {
    /// O `[batch, sq, heads, head_dim_v]` or `[total, heads, head_dim_v]`.
    pub o: Vec<u8>,
    /// LSE `[batch, heads, sq]` or `[heads, total]`; empty if it was not asked for.
    pub lse: Vec<u8>,
}

impl Bits {
    /// The values.
    pub fn output(&self, case: &Case) -> Output {
        let o = case.output.decode(&self.o);
        let o = o.chunks_exact(case.head_dim_v).map(<[f64]>::to_vec).collect();
        Output { o, lse: case.lse.then(|| Format::F32.decode(&self.lse)) }
    }

    /// The bits of one sequence of `case`, as if it were alone.
    pub fn sequence(&self, case: &Case, index: usize) -> Self {
        let queries = case.query_lengths();
        let (start, heads) = (starts(&queries).0[index], case.heads());
        let row = heads * case.head_dim_v * case.output.size();
        let o = self.o[start * row..][..queries[index] * row].to_vec();
        if !case.lse {
            return Self { o, lse: Vec::new() };
        }
        let rows = case.rows().into_iter().zip(case.lse_rows()).filter(|([sequence, ..], _)| *sequence == index);
        let mut lse = vec![0; queries[index] * heads * 4];
        for ([_, query, head], from) in rows {
            lse[(head * queries[index] + query) * 4..][..4].copy_from_slice(&self.lse[from * 4..][..4]);
        }
        Self { o, lse }
    }
}

/// The tensors of a run.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of the library")]
pub struct Given {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub o: Tensor,
    pub lse: Option<Tensor>,
    pub kv_lens: Option<Tensor>,
    pub cu_seqlens_q: Option<Tensor>,
    pub cu_seqlens_kv: Option<Tensor>,
    pub page_table: Option<Tensor>,
    pub sink: Option<Tensor>,
    /// Factors of Q, K and V; with e4m3.
    pub descales: Option<[Tensor; 3]>,
}

impl Given {
    /// As the library takes them.
    pub fn inputs(&self) -> Inputs<'_> {
        let [q_descale, k_descale, v_descale] =
            self.descales.as_ref().map_or([None; 3], |all| all.each_ref().map(Some));
        Inputs {
            lse: self.lse.as_ref(),
            kv_lens: self.kv_lens.as_ref(),
            cu_seqlens_q: self.cu_seqlens_q.as_ref(),
            cu_seqlens_kv: self.cu_seqlens_kv.as_ref(),
            page_table: self.page_table.as_ref(),
            sink: self.sink.as_ref(),
            q_descale,
            k_descale,
            v_descale,
            ..Inputs::new(&self.q, &self.k, &self.v, &self.o)
        }
    }
}

/// A case on a device, ready to be launched any number of times.
pub struct Launch {
    // First, so that they are dropped before the memory that they use.
    executor: Executor,
    stream: Stream,
    case: Case,
    plan: Plan,
    given: Given,
    inputs: Vec<Guarded>,
    o: Guarded,
    lse: Guarded,
    workspace: Guarded,
}

impl Launch {
    /// Plans `case` and brings `tensors` to the device.
    ///
    /// # Errors
    /// The library's.
    pub fn new(site: &Site, case: &Case, tensors: &Tensors) -> Result<Self, Failure> {
        Self::planned(site, case, tensors, plan_case(site, case)?)
    }

    /// Brings `tensors` to the device, for a plan of `case`.
    ///
    /// # Errors
    /// The library's.
    pub fn planned(site: &Site, case: &Case, tensors: &Tensors, plan: Plan) -> Result<Self, Failure> {
        let device = &site.device;
        let inputs: Vec<Guarded> =
            tensors.buffers.iter().map(|bytes| Guarded::new(site, bytes)).collect::<Result<_, _>>()?;
        let input = |place: &Place| inputs[place.buffer].tensor(case.format, place);
        let o_place = case.output_place();
        let o = Guarded::new(site, &vec![POISON; o_place.end() * case.output.size()])?;
        let queries: usize = case.query_lengths().iter().sum();
        let lse_bytes = if case.lse { queries * case.heads() * 4 } else { 0 };
        let lse = Guarded::new(site, &vec![POISON; lse_bytes])?;
        let (shape, strides) = match case.queries {
            Queries::Dense => (vec![case.batch, case.heads(), case.sq], vec![case.heads() * case.sq, case.sq, 1]),
            Queries::Packed { .. } => (vec![case.heads(), queries], vec![queries, 1]),
        };
        let lse_tensor =
            case.lse.then(|| Tensor::new(lse.buffer.clone(), GUARD, DType::F32, &shape, &strides)).transpose()?;
        let workspace = Guarded::new(site, &vec![POISON; plan.workspace_bytes()])?;
        // SAFETY: the range lies in `workspace.buffer`, which is dropped after the executor and the stream, and the
        // stream waits for its work when it is dropped.
        let inner =
            unsafe { Buffer::from_raw(device, workspace.buffer.address() + GUARD as u64, plan.workspace_bytes()) };
        let executor = Executor::with_workspace(device, &site.kernels, &plan, inner)?;
        let descale = |tensor: usize| {
            let shape: &[usize] = if case.per_head[tensor] { &[case.batch, case.kv_heads] } else { &[1] };
            Tensor::from_host(device, &tensors.descales[tensor], shape)
        };
        let given = Given {
            q: input(&tensors.places.q)?,
            k: input(&tensors.places.k)?,
            v: input(&tensors.places.v)?,
            o: o.tensor(case.output, &o_place)?,
            lse: lse_tensor,
            kv_lens: match &case.lengths {
                Lengths::Device(lengths) => Some(integers(site, lengths, &[case.batch])?),
                Lengths::Full | Lengths::Host(_) => None,
            },
            cu_seqlens_q: match case.queries {
                Queries::Packed { known: Known::Device, .. } => Some(cu_seqlens(site, &case.query_lengths())?),
                Queries::Packed { .. } | Queries::Dense => None,
            },
            cu_seqlens_kv: match case.kv {
                Kv::Packed { known: Known::Device, .. } => Some(cu_seqlens(site, &case.room())?),
                Kv::Packed { .. } | Kv::Paged { .. } | Kv::Dense => None,
            },
            page_table: match case.kv {
                Kv::Paged { known: Known::Device, .. } => Some(page_table(site, case)?),
                Kv::Paged { .. } | Kv::Packed { .. } | Kv::Dense => None,
            },
            sink: case.sinks().map(|sinks| Tensor::from_host(device, &sinks, &[sinks.len()])).transpose()?,
            descales: match case.format {
                Format::E4m3 => Some([descale(0)?, descale(1)?, descale(2)?]),
                Format::Bf16 | Format::F16 | Format::F32 => None,
            },
        };
        let stream = device.stream()?;
        Ok(Self { executor, stream, case: case.clone(), plan, given, inputs, o, lse, workspace })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The tensors.
    pub fn given(&self) -> &Given {
        &self.given
    }

    /// Gives the work to the stream with other tensors.
    ///
    /// # Errors
    /// The library's.
    pub fn enqueue(&mut self, given: &Given) -> splitkv::Result<()> {
        self.executor.run(&self.stream, &given.inputs())
    }

    /// What the runs so far found wrong.
    ///
    /// # Errors
    /// The library's.
    pub fn status(&mut self) -> splitkv::Result<Status> {
        self.executor.status()
    }

    /// Fills outputs, workspace and their guards with `byte`. They hold 0xff at first: NaN in every format.
    ///
    /// # Errors
    /// The library's.
    pub fn fill(&mut self, byte: u8) -> Result<(), Failure> {
        for guarded in [&mut self.o, &mut self.lse, &mut self.workspace] {
            guarded.buffer.fill(byte)?;
            guarded.filling = byte;
        }
        Ok(())
    }

    /// Launches once and waits.
    ///
    /// # Errors
    /// The library's.
    pub fn run(&mut self) -> Result<(), Failure> {
        self.executor.run(&self.stream, &self.given.inputs())?;
        Ok(self.stream.synchronize()?)
    }

    /// Captures one launch as a graph.
    ///
    /// # Errors
    /// The library's.
    pub fn capture(&mut self) -> Result<Graph, Failure> {
        Ok(self.stream.capture(|| self.executor.run(&self.stream, &self.given.inputs()))?)
    }

    /// Launches a graph and waits.
    ///
    /// # Errors
    /// The library's.
    pub fn replay(&self, graph: &Graph) -> Result<(), Failure> {
        graph.launch(&self.stream)?;
        Ok(self.stream.synchronize()?)
    }

    /// Gives the sequences other lengths; only where the device alone knows them.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If the case's lengths are not on the device.
    pub fn set_lengths(&self, lengths: &[i32]) -> Result<(), Failure> {
        overwrite(self.given.kv_lens.as_ref().expect("lengths on the device"), lengths)
    }

    /// Gives Q, K or V (`tensor` 0, 1 or 2) other factors.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If the case is not of e4m3.
    pub fn set_descales(&self, tensor: usize, factors: &[f32]) -> Result<(), Failure> {
        let tensor = &self.given.descales.as_ref().expect("factors")[tensor];
        let bytes: Vec<u8> = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        Ok(tensor.buffer().write(tensor.offset(), &bytes)?)
    }

    /// Gives the sequences other pages; only where the device alone knows them.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If the case's table is not on the device.
    pub fn set_table(&self, table: &[i32]) -> Result<(), Failure> {
        let tensor = self.given.page_table.as_ref().expect("a table on the device");
        overwrite(tensor, &rows_apart(table, tensor.shape()[1], tensor.strides()[0]))
    }

    /// Gives packed queries other places; only where the device alone knows them.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If the case's offsets are not on the device.
    pub fn set_query_offsets(&self, offsets: &[i32]) -> Result<(), Failure> {
        overwrite(self.given.cu_seqlens_q.as_ref().expect("offsets on the device"), offsets)
    }

    /// Gives packed KV other places; only where the device alone knows them.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Panics
    /// If the case's offsets are not on the device.
    pub fn set_kv_offsets(&self, offsets: &[i32]) -> Result<(), Failure> {
        overwrite(self.given.cu_seqlens_kv.as_ref().expect("offsets on the device"), offsets)
    }

    /// The outputs, once it is certain that nothing else was written: inputs, guards, and the gaps of O.
    ///
    /// # Errors
    /// The library's, a status, or what was written that should not have been.
    pub fn read(&mut self) -> Result<Bits, Failure> {
        let status = self.executor.status()?;
        if !status.is_ok() {
            return Err(format!("status: {status}").into());
        }
        for (index, guarded) in self.inputs.iter().enumerate() {
            if guarded.read(&format!("input {index}"))? != guarded.contents {
                return Err(format!("input buffer {index} was written to").into());
            }
        }
        self.workspace.read("workspace")?;
        let lse = self.lse.read("LSE")?;
        let mut written = self.o.read("O")?;
        let filling = self.o.filling;
        let o = take_rows(&mut written, &self.case, filling);
        if let Some(at) = written.iter().position(|byte| *byte != filling) {
            return Err(format!("byte {at} of O's buffer was written to, which lies in a gap").into());
        }
        Ok(Bits { o, lse })
    }
}

/// An int32 tensor without gaps.
fn integers(site: &Site, values: &[u32], shape: &[usize]) -> splitkv::Result<Tensor> {
    let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    Tensor::from_host(&site.device, &values, shape)
}

fn cu_seqlens(site: &Site, lengths: &[usize]) -> splitkv::Result<Tensor> {
    integers(site, &offsets(lengths).0, &[lengths.len() + 1])
}

/// The table of a case; where tensors have gaps, with gaps after its rows.
fn page_table(site: &Site, case: &Case) -> splitkv::Result<Tensor> {
    let Pages { width, table, .. } = pages(case);
    let stride = if case.layout == Layout::Padded { width + 3 } else { width };
    let values = rows_apart(&table, width, stride);
    let whole = Tensor::from_host(&site.device, &values, &[values.len()])?;
    Tensor::new(whole.buffer().clone(), whole.offset(), DType::I32, &[case.batch, width], &[stride, 1])
}

/// Rows of `width` values, `stride` apart, with nothing of use between.
fn rows_apart(values: &[i32], width: usize, stride: usize) -> Vec<i32> {
    let rows = values.chunks_exact(width.max(1));
    rows.flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(i32::MIN, stride - width))).collect()
}

fn overwrite(tensor: &Tensor, values: &[i32]) -> Result<(), Failure> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(tensor.buffer().write(tensor.offset(), &bytes)?)
}

/// Takes the rows out of a buffer, which is left with `filling` in their place.
fn take_rows(buffer: &mut [u8], case: &Case, filling: u8) -> Vec<u8> {
    let (place, size) = (case.output_place(), case.output.size());
    let mut rows = Vec::new();
    for [sequence, query, head] in case.rows() {
        let row = &mut buffer[place.start(sequence, query, head) * size..][..case.head_dim_v * size];
        rows.extend_from_slice(row);
        row.fill(filling);
    }
    rows
}

/// A buffer between guards.
struct Guarded {
    buffer: Buffer,
    contents: Vec<u8>,
    /// What the guards hold.
    filling: u8,
}

impl Guarded {
    fn new(site: &Site, contents: &[u8]) -> Result<Self, Failure> {
        let buffer = Buffer::new(&site.device, contents.len() + 2 * GUARD)?;
        let guard = [POISON; GUARD];
        buffer.write(0, &[&guard, contents, &guard].concat())?;
        Ok(Self { buffer, contents: contents.to_vec(), filling: POISON })
    }

    fn tensor(&self, format: Format, place: &Place) -> splitkv::Result<Tensor> {
        let (shape, strides) = place.tensor();
        let offset = GUARD + place.offset * format.size();
        Tensor::new(self.buffer.clone(), offset, format.into(), &shape, &strides)
    }

    /// The contents, if the guards are intact.
    fn read(&self, name: &str) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; self.buffer.size()];
        self.buffer.read(0, &mut bytes)?;
        let contents = bytes[GUARD..GUARD + self.contents.len()].to_vec();
        bytes.drain(GUARD..GUARD + self.contents.len());
        match bytes.iter().position(|byte| *byte != self.filling) {
            None => Ok(contents),
            Some(at) if at < GUARD => {
                Err(format!("{name}: {} bytes before the buffer were written to", GUARD - at).into())
            }
            Some(at) => Err(format!("{name}: byte {} behind the buffer was written to", at - GUARD).into()),
        }
    }
}

/// Runs a case once and reads its output.
///
/// # Errors
/// The library's, or what was written that should not have been.
pub fn run(site: &Site, case: &Case, tensors: &Tensors) -> Result<(Bits, Plan), Failure> {
    let mut launch = Launch::new(site, case, tensors)?;
    launch.run()?;
    Ok((launch.read()?, launch.plan.clone()))
}
