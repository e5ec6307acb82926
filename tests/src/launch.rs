//! Runs a case on a device, with guards around all memory, and everything that is to be written poisoned.

use splitkv::{
    BlockShape, Buffer, DType, Executor, Graph, Inputs, KvLens, Options, Plan, Problem, Stream, Tensor, plan,
};

use crate::case::{Case, Lengths, Place, Shape, Splits};
use crate::compare::Output;
use crate::data::Tensors;
use crate::numeric::Format;
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
    let dtype = case.format.into();
    let problem = Problem::new(case.batch, case.heads(), case.kv_heads, case.sq, case.sk, case.head_dim_qk, dtype)
        .head_dim_v(case.head_dim_v)
        .o_dtype(case.output.into())
        .causal(case.causal)
        .kv_lens(kv_lens)
        .lse(case.lse);
    match case.scale {
        Some(scale) => problem.scale(scale),
        None => problem,
    }
}

/// The options of a case.
pub fn options(case: &Case) -> Options {
    let splits = match case.splits {
        Splits::Auto => splitkv::Splits::Auto,
        Splits::Exact(n) => splitkv::Splits::Exact(n),
        Splits::Tokens(n) => splitkv::Splits::Tokens(n),
    };
    let block_shape = case.block_shape.map(|shape| match shape {
        Shape::SplitKv => BlockShape::SplitKv,
        Shape::SharedKv => BlockShape::SharedKv,
    });
    Options { splits, q_tiles: case.q_tiles, block_shape }
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
    /// O `[batch, sq, heads, head_dim_v]`.
    pub o: Vec<u8>,
    /// LSE `[batch, heads, sq]`; empty if it was not asked for.
    pub lse: Vec<u8>,
}

impl Bits {
    /// The values.
    pub fn output(&self, case: &Case) -> Output {
        let o = case.output.decode(&self.o);
        let o = o.chunks_exact(case.head_dim_v).map(<[f64]>::to_vec).collect();
        Output { o, lse: case.lse.then(|| Format::F32.decode(&self.lse)) }
    }

    /// The bits of one sequence of `case`.
    pub fn sequence(&self, case: &Case, index: usize) -> Self {
        let part = |bytes: &[u8]| {
            let size = bytes.len() / case.batch;
            bytes[index * size..(index + 1) * size].to_vec()
        };
        Self { o: part(&self.o), lse: part(&self.lse) }
    }
}

/// A case on a device, ready to be launched any number of times.
pub struct Launch {
    // First, so that they are dropped before the memory that they use.
    executor: Executor,
    stream: Stream,
    case: Case,
    plan: Plan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lens: Option<Tensor>,
    o_tensor: Tensor,
    lse_tensor: Option<Tensor>,
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
        let device = &site.device;
        let plan = plan_case(site, case)?;
        let inputs: Vec<Guarded> =
            tensors.buffers.iter().map(|bytes| Guarded::new(site, bytes)).collect::<Result<_, _>>()?;
        let input = |place: &Place| inputs[place.buffer].tensor(case.format, place);
        let kv_lens = match &case.lengths {
            Lengths::Device(lengths) => {
                let lengths: Vec<i32> = lengths.iter().map(|length| *length as i32).collect();
                Some(Tensor::from_host(device, &lengths, &[case.batch])?)
            }
            _ => None,
        };
        let o_place = case.output_place();
        let o = Guarded::new(site, &vec![POISON; o_place.end() * case.output.size()])?;
        let lse_shape = [case.batch, case.heads(), case.sq];
        let lse_bytes = if case.lse { lse_shape.iter().product::<usize>() * 4 } else { 0 };
        let lse = Guarded::new(site, &vec![POISON; lse_bytes])?;
        let lse_strides = [case.heads() * case.sq, case.sq, 1];
        let lse_tensor = case
            .lse
            .then(|| Tensor::new(lse.buffer.clone(), GUARD, DType::F32, &lse_shape, &lse_strides))
            .transpose()?;
        let workspace = Guarded::new(site, &vec![POISON; plan.workspace_bytes()])?;
        // SAFETY: the range lies in `workspace.buffer`, which is dropped after the executor and the stream, and the
        // stream waits for its work when it is dropped.
        let inner =
            unsafe { Buffer::from_raw(device, workspace.buffer.address() + GUARD as u64, plan.workspace_bytes()) };
        let executor = Executor::with_workspace(device, &site.kernels, &plan, inner)?;
        Ok(Self {
            q: input(&tensors.places.q)?,
            k: input(&tensors.places.k)?,
            v: input(&tensors.places.v)?,
            kv_lens,
            o_tensor: o.tensor(case.output, &o_place)?,
            o,
            lse,
            lse_tensor,
            workspace,
            stream: device.stream()?,
            executor,
            plan,
            inputs,
            case: case.clone(),
        })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Q, K and V.
    pub fn inputs(&self) -> (&Tensor, &Tensor, &Tensor) {
        (&self.q, &self.k, &self.v)
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
        self.enqueue()?;
        Ok(self.stream.synchronize()?)
    }

    /// Captures one launch as a graph.
    ///
    /// # Errors
    /// The library's.
    pub fn capture(&mut self) -> Result<Graph, Failure> {
        let stream = self.stream.clone();
        Ok(stream.capture(|| self.enqueue())?)
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
        let tensor = self.kv_lens.as_ref().expect("lengths on the device");
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
        Ok(tensor.buffer().write(tensor.offset(), &bytes)?)
    }

    fn enqueue(&mut self) -> splitkv::Result<()> {
        let inputs = Inputs {
            lse: self.lse_tensor.as_ref(),
            kv_lens: self.kv_lens.as_ref(),
            ..Inputs::new(&self.q, &self.k, &self.v, &self.o_tensor)
        };
        self.executor.run(&self.stream, &inputs)
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
        let o = take_rows(&mut written, &self.case.output_place(), self.case.output, filling);
        if let Some(at) = written.iter().position(|byte| *byte != filling) {
            return Err(format!("byte {at} of O's buffer was written to, which lies in a gap").into());
        }
        Ok(Bits { o, lse })
    }
}

/// Takes the rows out of a buffer, which is left with `filling` in their place.
fn take_rows(buffer: &mut [u8], place: &Place, format: Format, filling: u8) -> Vec<u8> {
    let [batch, seq, heads, dim] = place.shape;
    let mut rows = Vec::with_capacity(batch * seq * heads * dim * format.size());
    for row in 0..batch * seq * heads {
        let start = place.start(row / heads / seq, row / heads % seq, row % heads) * format.size();
        let row = &mut buffer[start..start + dim * format.size()];
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
        let strides = [place.strides[0], place.strides[1], place.strides[2], 1];
        let offset = GUARD + place.offset * format.size();
        Tensor::new(self.buffer.clone(), offset, format.into(), &place.shape, &strides)
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
