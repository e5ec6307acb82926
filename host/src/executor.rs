//! Running a plan.

mod inputs;
mod maps;
mod status;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use kernels_gpu::abi::schedule::Rows;
use kernels_gpu::abi::{
    AttentionArguments, CombineArguments, MERGE_LAST, NO_BOUND, PER_HEAD_K, PER_HEAD_Q, PER_HEAD_V, ScheduleArguments,
};

pub use self::inputs::Inputs;
use self::inputs::Known;
use self::maps::Maps;
pub use self::status::Status;

use crate::driver::{Handle, LaunchCall};
use crate::kernels::LoadedKernel;
use crate::stream::Held;
use crate::tensor::contiguous_strides;
use crate::{
    Buffer, DType, Descale, Device, Error, KernelLaunch, Kernels, KvLayout, KvLens, Launch, Merging, Offsets,
    PageTable, Plan, Queries, Result, Stream, Tensor,
};

/// Bytes at whose multiples rows of Q, K, V and O start.
const ALIGNMENT: usize = 16;

/// Runs a plan on a device as often as wanted. Owns what a run needs beside its tensors.
///
/// Runs are asynchronous and share the executor's workspace. Those on one stream follow each other, and a run on
/// another stream than the last one waits for that one. What a graph has captured is ordered by who launches it:
/// its launches and other runs of the same executor must not overlap.
pub struct Executor {
    device: Device,
    plan: Plan,
    attention: Arc<LoadedKernel>,
    schedule: Option<Arc<LoadedKernel>>,
    combine: Option<Arc<LoadedKernel>>,
    workspace: Buffer,
    /// What the plan knew.
    known: Known,
    /// The status word, and the counters by which a block learns that it is the last.
    status: Buffer,
    maps: Maps,
    /// Whether a failure may have left the counters behind the status word, or the words of the maps at which blocks meet,
    /// other than they are between runs.
    failed: bool,
    /// Where the last run went that was not captured.
    last: Option<Stream>,
}

impl Executor {
    /// An executor with a workspace of its own. Loads the kernels.
    ///
    /// # Errors
    /// [`Error::Argument`] where `kernels` or `plan` are for another target, or the plan needs a kernel that is not
    /// there; [`Error::Io`], [`Error::OutOfMemory`], or what the driver says.
    pub fn new(device: &Device, kernels: &Kernels, plan: &Plan) -> Result<Self> {
        check_plan(device, kernels, plan)?;
        Self::with_checked(device, kernels, plan, Buffer::workspace(device, plan.workspace_bytes())?)
    }

    /// An executor that works in `workspace`, of at least [`Plan::workspace_bytes`] bytes. What is in it does not
    /// matter. Several executors may share it, if the caller keeps their runs from overlapping.
    ///
    /// # Errors
    /// [`Error::Argument`] where the workspace is too small, misaligned or on another device; those of
    /// [`Executor::new`].
    pub fn with_workspace(device: &Device, kernels: &Kernels, plan: &Plan, workspace: Buffer) -> Result<Self> {
        check_plan(device, kernels, plan)?;
        device.check_same("workspace", workspace.device())?;
        let needed = plan.workspace_bytes();
        if workspace.size() < needed {
            let given = format!("{} bytes", workspace.size());
            return Err(Error::argument("workspace", given, format_args!("at least {needed} bytes")));
        }
        if !workspace.address().is_multiple_of(ALIGNMENT as u64) {
            let given = format!("address {:#x}", workspace.address());
            return Err(Error::argument("workspace", given, format_args!("a multiple of {ALIGNMENT} bytes")));
        }
        Self::with_checked(device, kernels, plan, workspace)
    }

    fn with_checked(device: &Device, kernels: &Kernels, plan: &Plan, workspace: Buffer) -> Result<Self> {
        let counters = match plan.merging() {
            Merging::LastBlock { counters } => counters as usize,
            _ => 0,
        };
        let status = Buffer::new(device, (1 + counters) * size_of::<u32>())?;
        status.fill(0)?;
        let load = |planned: Option<KernelLaunch>| planned.map(|one| kernels.load(device, &one.kernel)).transpose();
        Ok(Self {
            device: device.clone(),
            plan: plan.clone(),
            attention: kernels.load(device, plan.kernel())?,
            schedule: load(plan.schedule())?,
            combine: load(plan.combine())?,
            workspace,
            known: Known::new(device, plan)?,
            status,
            maps: Maps::default(),
            failed: false,
            last: None,
        })
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Gives the work to `stream` and returns. It can be captured. It allocates nothing, but for a kernel that copies by
    /// tensor maps (of shape `Warpgroups`) the maps of tensors that it has not seen before.
    ///
    /// # Errors
    /// [`Error::Argument`], which names the tensor, before anything is done; or what the driver says.
    pub fn run(&mut self, stream: &Stream, inputs: &Inputs<'_>) -> Result<()> {
        self.device.check_same("stream", stream.device())?;
        self.check(inputs)?;
        if self.plan.attention().grid == 0 {
            return Ok(());
        }
        if !stream.is_capturing() {
            if let Some(last) = self.last.as_ref().filter(|last| !last.is_same(stream)) {
                stream.wait(&last.record()?)?;
            }
            self.last = Some(stream.clone());
        }
        if self.failed {
            self.status.write(size_of::<u32>(), &vec![0; self.status.size() - size_of::<u32>()])?;
            self.maps = Maps::default();
            self.failed = false;
        }
        let maps = self.maps.find(&self.device, &self.plan, inputs)?;
        let mut attention = self.attention_arguments(inputs);
        if let Some((address, _)) = maps {
            attention.page_table = address;
            attention.page_table_stride = u64::from(self.plan.merging() == Merging::Blocks);
        }
        stream.hold(self.held(inputs).chain(maps.map(|(_, held)| held)))?;
        let launched = self.launch_all(stream, &attention);
        self.failed = launched.is_err();
        launched
    }

    fn launch_all(&self, stream: &Stream, attention: &AttentionArguments) -> Result<()> {
        if let (Some(schedule), Some(planned)) = (&self.schedule, self.plan.schedule()) {
            let arguments = self.schedule_arguments(attention);
            self.launch(stream, schedule.function, planned.launch, &arguments.cells())?;
        }
        let launch = self.plan.attention();
        self.launch(stream, self.attention.function, launch, &attention.cells())?;
        if let (Some(combine), Some(planned)) = (&self.combine, self.plan.combine()) {
            let arguments = self.combine_arguments(attention);
            self.launch(stream, combine.function, planned.launch, &arguments.cells())?;
        }
        Ok(())
    }

    /// What the runs since the last call found wrong. Waits for all work on the device.
    ///
    /// # Errors
    /// What the driver says; faults of the runs come out here.
    pub fn status(&mut self) -> Result<Status> {
        let status = Status::take(&self.status);
        self.failed |= status.is_err();
        status
    }

    fn launch(&self, stream: &Stream, function: Handle, launch: Launch, arguments: &[u64]) -> Result<()> {
        let Launch { grid, block, shared_bytes } = launch;
        let call = LaunchCall { function, grid, block, shared_bytes, arguments };
        // SAFETY: the stream lives and is this device's. The function lives, its arguments are those of the ABI
        // table whose hash the kernels carry, and the tensors behind them were checked. The stream holds all of it
        // until the work is done.
        unsafe { self.device.driver().launch(stream.handle(), &call) }
    }

    fn held(&self, inputs: &Inputs<'_>) -> impl Iterator<Item = Held> {
        let tensors = [Some(inputs.q), Some(inputs.k), Some(inputs.v), Some(inputs.o), inputs.lse];
        let tensors = tensors.into_iter().chain(inputs.read().map(|(_, tensor)| tensor)).flatten();
        let buffers = [&self.workspace, &self.status].into_iter().chain(self.known.buffers());
        let kernels = [Some(&self.attention), self.schedule.as_ref(), self.combine.as_ref()];
        tensors
            .map(|tensor| tensor.buffer().hold())
            .chain(buffers.map(Buffer::hold))
            .chain(kernels.into_iter().flatten().map(|kernel| Arc::clone(kernel) as Held))
    }

    fn attention_arguments(&self, inputs: &Inputs<'_>) -> AttentionArguments {
        let (plan, problem) = (&self.plan, self.plan.problem());
        let address = |tensor: Option<&Tensor>| tensor.map_or(0, Tensor::address);
        let known_or = |known: &Option<Buffer>, given| known.as_ref().map_or_else(|| address(given), Buffer::address);
        let [q_stride_batch, q_stride_seq, q_stride_head] = strides(inputs.q);
        let [k_stride_batch, k_stride_seq, k_stride_head] = strides(inputs.k);
        let [v_stride_batch, v_stride_seq, v_stride_head] = strides(inputs.v);
        let [o_stride_batch, o_stride_seq, o_stride_head] = strides(inputs.o);
        let (page_size, pages, width) = match &problem.kv {
            KvLayout::Paged { page_size, pages, table } => (*page_size as u32, *pages as u32, table.width()),
            KvLayout::Dense | KvLayout::Packed { .. } => (0, 0, 0),
        };
        let total_kv = match &problem.kv {
            KvLayout::Packed { total, .. } => *total as u32,
            KvLayout::Dense | KvLayout::Paged { .. } => 0,
        };
        let per_head = |bit: u32, descale| if descale == Descale::PerHead { bit } else { 0 };
        let sight = problem.effective_window();
        let scale = problem.effective_scale();
        let log2_e = std::f32::consts::LOG2_E;
        let partial_o = self.workspace.address();
        // Partial O fills the workspace but for one float a row.
        let per_row = problem.head_dim_v + 1;
        let partial_lse = partial_o + (plan.workspace_bytes() / per_row * problem.head_dim_v) as u64;
        AttentionArguments {
            q: inputs.q.address(),
            k: inputs.k.address(),
            v: inputs.v.address(),
            o: inputs.o.address(),
            lse: address(inputs.lse),
            partial_o,
            partial_lse,
            kv_lens: known_or(&self.known.kv_lens, inputs.kv_lens),
            cu_seqlens_q: known_or(&self.known.cu_seqlens_q, inputs.cu_seqlens_q),
            cu_seqlens_kv: known_or(&self.known.cu_seqlens_kv, inputs.cu_seqlens_kv),
            page_table: known_or(&self.known.page_table, inputs.page_table),
            sink: address(inputs.sink),
            q_descale: address(inputs.q_descale),
            k_descale: address(inputs.k_descale),
            v_descale: address(inputs.v_descale),
            schedule: self.known.schedule.as_ref().map_or(0, Buffer::address),
            status: self.status.address(),
            q_stride_batch,
            q_stride_seq,
            q_stride_head,
            k_stride_batch,
            k_stride_seq,
            k_stride_head,
            v_stride_batch,
            v_stride_seq,
            v_stride_head,
            o_stride_batch,
            o_stride_seq,
            o_stride_head,
            page_table_stride: inputs.page_table.map_or(width, |table| table.strides()[0]) as u64,
            flags: per_head(PER_HEAD_Q, problem.q_descale)
                | per_head(PER_HEAD_K, problem.k_descale)
                | per_head(PER_HEAD_V, problem.v_descale)
                | if matches!(plan.merging(), Merging::LastBlock { .. }) { MERGE_LAST } else { 0 },
            // The plan is valid: sizes are below 2^31.
            batch: problem.batch as u32,
            sq: problem.sq as u32,
            sk: problem.sk as u32,
            total_q: problem.total_q() as u32,
            total_kv,
            page_size,
            pages,
            head_dim_qk: problem.head_dim_qk as u32,
            head_dim_v: problem.head_dim_v as u32,
            kv_heads: problem.kv_heads as u32,
            group: problem.group() as u32,
            num_splits: plan.num_splits(),
            split_tokens: plan.split_tokens(),
            // A bound that is further away than any key is none.
            window_left: sight.left.map_or(NO_BOUND, |left| left.min(NO_BOUND)),
            window_right: sight.right.map_or(NO_BOUND, |right| right.min(NO_BOUND)),
            o_dtype: self.output() as u32,
            scale_log2: problem.softcap.map_or(scale * log2_e, |cap| scale / cap * 2.0 * log2_e),
            softcap_log2: problem.softcap.map_or(0.0, |cap| cap * log2_e),
        }
    }

    fn schedule_arguments(&self, attention: &AttentionArguments) -> ScheduleArguments {
        let ragged = self.plan.ragged().expect("what the kernel is planned for");
        let &Rows { group, block_rows, tile_n, left, right } = ragged.rows();
        ScheduleArguments {
            schedule: attention.schedule,
            kv_lens: attention.kv_lens,
            cu_seqlens_q: attention.cu_seqlens_q,
            cu_seqlens_kv: attention.cu_seqlens_kv,
            status: attention.status,
            batch: attention.batch,
            sq: attention.sq,
            sk: attention.sk,
            total_q: attention.total_q,
            total_kv: attention.total_kv,
            group,
            window_left: left,
            window_right: right,
            block_rows,
            tile_n,
            wide: ragged.wide(),
        }
    }

    fn combine_arguments(&self, attention: &AttentionArguments) -> CombineArguments {
        let problem = self.plan.problem();
        CombineArguments {
            partial_o: attention.partial_o,
            partial_lse: attention.partial_lse,
            o: attention.o,
            lse: attention.lse,
            sink: attention.sink,
            o_stride_batch: attention.o_stride_batch,
            o_stride_seq: attention.o_stride_seq,
            o_stride_head: attention.o_stride_head,
            rows: attention.total_q * problem.heads as u32,
            cu_seqlens_q: attention.cu_seqlens_q,
            schedule: attention.schedule,
            batch: attention.batch,
            // Packed queries are one sequence's.
            sq: if problem.queries == Queries::Dense { attention.sq } else { attention.total_q },
            heads: problem.heads as u32,
            head_dim_v: problem.head_dim_v as u32,
            num_splits: attention.num_splits,
            o_dtype: attention.o_dtype,
        }
    }

    fn output(&self) -> kernels_gpu::abi::Output {
        self.plan.problem().o_dtype.output().expect("checked when the plan was made")
    }

    fn check(&self, inputs: &Inputs<'_>) -> Result<()> {
        let problem = self.plan.problem();
        let rows = [
            ("q", inputs.q, problem.dtype, problem.q_shape()),
            ("k", inputs.k, problem.dtype, problem.k_shape()),
            ("v", inputs.v, problem.dtype, problem.v_shape()),
            ("o", inputs.o, problem.o_dtype, problem.o_shape()),
        ];
        for (name, tensor, dtype, shape) in rows {
            self.check_tensor(name, tensor, dtype, &shape)?;
            check_rows(name, tensor)?;
        }
        check_distinct("o", inputs.o)?;
        self.check_optional("lse", inputs.lse, problem.lse, DType::F32, &problem.lse_shape())?;
        let lens_given = problem.kv_lens == KvLens::Device;
        self.check_optional("kv_lens", inputs.kv_lens, lens_given, DType::I32, &[problem.batch])?;
        let offsets = [problem.batch + 1];
        let q_given = matches!(problem.queries, Queries::Packed { cu_seqlens: Offsets::Device, .. });
        self.check_optional("cu_seqlens_q", inputs.cu_seqlens_q, q_given, DType::I32, &offsets)?;
        let kv_given = matches!(problem.kv, KvLayout::Packed { cu_seqlens: Offsets::Device, .. });
        self.check_optional("cu_seqlens_kv", inputs.cu_seqlens_kv, kv_given, DType::I32, &offsets)?;
        let width = match problem.kv {
            KvLayout::Paged { table: PageTable::Device { width }, .. } => Some(width),
            _ => None,
        };
        let shape = [problem.batch, width.unwrap_or(0)];
        self.check_presence("page_table", inputs.page_table, width.is_some(), DType::I32, &shape)?;
        if let Some(table) = inputs.page_table
            && table.elements() > 0
            && shape[1] > 1
            && table.strides()[1] != 1
        {
            let given = format!("strides {:?}", table.strides());
            return Err(Error::argument("page_table", given, "1 as the last stride"));
        }
        self.check_optional("sink", inputs.sink, problem.sink, DType::F32, &[problem.heads])?;
        let descales = [inputs.q_descale, inputs.k_descale, inputs.v_descale];
        for ((name, descale, given), tensor) in problem.descales_given().into_iter().zip(descales) {
            self.check_optional(name, tensor, given, DType::F32, &problem.descale_shape(descale))?;
        }
        self.check_overlap(inputs)
    }

    fn check_tensor(&self, name: &'static str, tensor: &Tensor, dtype: DType, shape: &[usize]) -> Result<()> {
        self.device.check_same(name, tensor.buffer().device())?;
        if tensor.dtype() != dtype {
            return Err(Error::argument(name, tensor.dtype(), dtype));
        }
        if tensor.shape() != shape {
            let given = format!("shape {:?}", tensor.shape());
            return Err(Error::argument(name, given, format_args!("shape {shape:?}")));
        }
        Ok(())
    }

    /// A tensor that only some problems have, without gaps.
    fn check_optional(
        &self,
        name: &'static str,
        tensor: Option<&Tensor>,
        wanted: bool,
        dtype: DType,
        shape: &[usize],
    ) -> Result<()> {
        self.check_presence(name, tensor, wanted, dtype, shape)?;
        match tensor {
            Some(tensor) if tensor.elements() > 0 && tensor.strides() != contiguous_strides(shape) => {
                let given = format!("strides {:?}", tensor.strides());
                let allowed = format!("strides {:?}: no gaps", contiguous_strides(shape));
                Err(Error::argument(name, given, allowed))
            }
            _ => Ok(()),
        }
    }

    fn check_presence(
        &self,
        name: &'static str,
        tensor: Option<&Tensor>,
        wanted: bool,
        dtype: DType,
        shape: &[usize],
    ) -> Result<()> {
        match tensor {
            None if !wanted => Ok(()),
            None => Err(Error::argument(name, "none", format_args!("a tensor {shape:?} of {dtype}, as planned"))),
            Some(_) if !wanted => Err(Error::argument(name, "a tensor", "none, as planned")),
            Some(tensor) => self.check_tensor(name, tensor, dtype, shape),
        }
    }

    /// What is written may overlap nothing else.
    fn check_overlap(&self, inputs: &Inputs<'_>) -> Result<()> {
        let workspace = self.workspace.address()..self.workspace.address() + self.plan.workspace_bytes() as u64;
        let mut spans = vec![
            ("o", Some(inputs.o.span())),
            ("lse", inputs.lse.map(Tensor::span)),
            ("workspace", Some(workspace)),
            ("q", Some(inputs.q.span())),
            ("k", Some(inputs.k.span())),
            ("v", Some(inputs.v.span())),
        ];
        spans.extend(inputs.read().map(|(name, tensor)| (name, tensor.map(Tensor::span))));
        for (index, (written, span)) in spans.iter().enumerate().take(3) {
            for (other, other_span) in &spans[index + 1..] {
                if let (Some(a), Some(b)) = (span, other_span)
                    && overlap(a, b)
                {
                    let allowed = format!("memory that {other} ({b:#x?}) has no part of");
                    return Err(Error::argument(written, format_args!("{a:#x?}"), allowed));
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executor({} on {})", self.plan.problem(), self.device.name())
    }
}

fn check_plan(device: &Device, kernels: &Kernels, plan: &Plan) -> Result<()> {
    kernels.check_target(device)?;
    let (given, needed) = (plan.device().target, device.props().target);
    if given != needed {
        let allowed = format!("one for {}, which {} is", needed.name(), device.name());
        return Err(Error::argument("plan", format_args!("one for {}", given.name()), allowed));
    }
    // A plan may have been made from another catalogue.
    let kernel = |planned: Option<KernelLaunch>| planned.map(|one| one.kernel);
    let planned = [Some(*plan.kernel()), kernel(plan.schedule()), kernel(plan.combine())];
    match planned.iter().flatten().find(|kernel| !kernels.catalogue().kernels().contains(kernel)) {
        None => Ok(()),
        Some(kernel) => Err(Error::argument("plan", format_args!("one for {}", kernel.name), kernels.allowed())),
    }
}

/// Strides of batches (or pages), positions and heads; packed tensors have no batches.
fn strides(tensor: &Tensor) -> [u64; 3] {
    let strides: Vec<_> = tensor.strides().iter().map(|&stride| stride as u64).collect();
    match strides[..] {
        [batch, seq, head, _] => [batch, seq, head],
        [seq, head, _] => [0, seq, head],
        _ => unreachable!("shapes were checked"),
    }
}

/// Rows without gaps that start at multiples of 16 bytes.
pub(crate) fn check_rows(name: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.elements() == 0 {
        return Ok(());
    }
    let (shape, strides) = (tensor.shape(), tensor.strides());
    let multiple = ALIGNMENT / tensor.dtype().size_of();
    let last = shape.len() - 1;
    let given = || format!("strides {strides:?}");
    if shape[last] > 1 && strides[last] != 1 {
        return Err(Error::argument(name, given(), "1 as the last stride"));
    }
    // The stride of a dimension of size 1 leads nowhere.
    if (0..last).any(|dim| shape[dim] > 1 && !strides[dim].is_multiple_of(multiple)) {
        let allowed = format!("multiples of {multiple} as strides: rows at multiples of {ALIGNMENT} bytes");
        return Err(Error::argument(name, given(), allowed));
    }
    if !tensor.address().is_multiple_of(ALIGNMENT as u64) {
        let given = format!("address {:#x}", tensor.address());
        return Err(Error::argument(name, given, format_args!("a multiple of {ALIGNMENT} bytes")));
    }
    Ok(())
}

/// Every element of a tensor that is written must have a place of its own.
pub(crate) fn check_distinct(name: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.elements() == 0 {
        return Ok(());
    }
    let mut dims: Vec<_> = tensor.strides().iter().zip(tensor.shape()).filter(|(_, size)| **size > 1).collect();
    dims.sort();
    let mut extent = 1;
    for (&stride, &size) in dims {
        if stride < extent {
            let given = format!("shape {:?} with strides {:?}", tensor.shape(), tensor.strides());
            return Err(Error::argument(name, given, "strides that keep its elements apart"));
        }
        extent += stride * (size - 1);
    }
    Ok(())
}

pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}
