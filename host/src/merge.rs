//! Merging partial results: attention of the same queries over disjoint sets of keys.
//!
//! With `O_i` normalised and `LSE_i` its log-sum-exp, the whole is `O = sum(w_i O_i) / sum(w_i)` with `w_i = exp(LSE_i -
//! max LSE)`, and its LSE `max LSE + ln sum(w_i)` (Dao et al., "Flash-Decoding"). The empty set of keys is `O = 0` with
//! LSE minus infinity. Sinks are no part of it: a sink that was taken into two parts would count twice.

use std::fmt;
use std::sync::Arc;

use kernels_gpu::abi::{MERGE_THREADS, MERGE_WORDS, MergeArguments};

use crate::driver::LaunchCall;
use crate::executor::{check_distinct, check_rows, overlap};
use crate::kernels::LoadedKernel;
use crate::stream::Held;
use crate::tensor::contiguous_strides;
use crate::{Buffer, DType, Device, Error, Kernels, Result, Status, Stream, Tensor};

/// The base of the logarithm that an LSE is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LseBase {
    /// Natural, as this library computes it.
    #[default]
    Natural,
    /// Base 2, as some other libraries do.
    Two,
}

impl LseBase {
    /// What an LSE grows by where the sum of exponentials doubles.
    fn per_octave(self) -> f64 {
        match self {
            Self::Natural => std::f64::consts::LN_2,
            Self::Two => 1.0,
        }
    }
}

impl fmt::Display for LseBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Natural => "natural",
            Self::Two => "base 2",
        })
    }
}

/// Attention over a part of the keys, on a device.
#[derive(Clone, Copy, Debug)]
pub struct Partial<'a> {
    /// Normalised: `[batch, sq, heads, head_dim]`, or packed `[total, heads, head_dim]`; bf16, f16 or f32.
    pub o: &'a Tensor,
    /// f32 `[batch, heads, sq]`, or `[heads, total]`; any strides.
    pub lse: &'a Tensor,
    /// The base of `lse`.
    pub base: LseBase,
}

/// Merges a fixed list of partial results into one tensor, as often as wanted.
///
/// ```no_run
/// # use splitkv::{Device, Kernels, LseBase, Merge, Partial, Tensor};
/// # fn example(device: Device, kernels: Kernels, prefix: [Tensor; 2], suffix: [Tensor; 2], o: Tensor)
/// # -> splitkv::Result<()> {
/// let parts = [&prefix, &suffix].map(|[o, lse]| Partial { o, lse, base: LseBase::Natural });
/// let mut merge = Merge::new(&device, &kernels, &parts, &o, None)?;
/// let stream = device.stream()?;
/// merge.run(&stream)?;
/// stream.synchronize()?;
/// # Ok(())
/// # }
/// ```
pub struct Merge {
    device: Device,
    kernel: Arc<LoadedKernel>,
    arguments: MergeArguments,
    grid: u32,
    status: Buffer,
    held: Vec<Held>,
}

impl Merge {
    /// A merge of `partials`, any number of them, into `o` and, where given, `lse` (in the partials' base). All have
    /// one shape and one base, and the partial O one type; `o` may have another. `lse` has no gaps. With no partials, the result is that
    /// of the empty set. The tensors are held until the merge is dropped.
    ///
    /// A partial whose LSE is minus infinity counts for nothing, whatever its O holds. One with plus infinity or NaN
    /// makes the row NaN, and [`Merge::status`] says so.
    ///
    /// # Errors
    /// [`Error::Argument`], which names the tensor and the partial; [`Error::Io`], [`Error::OutOfMemory`], or what the
    /// driver says.
    pub fn new(
        device: &Device,
        kernels: &Kernels,
        partials: &[Partial<'_>],
        o: &Tensor,
        lse: Option<&Tensor>,
    ) -> Result<Self> {
        kernels.check_target(device)?;
        let shape = Shape::of(o)?;
        let partial_dtype = partials.first().map_or(o.dtype(), |partial| partial.o.dtype());
        let base = partials.first().map_or(LseBase::Natural, |partial| partial.base);
        check(device, &shape, partials, o, lse)?;

        let mut table = Vec::with_capacity(partials.len() * MERGE_WORDS);
        for partial in partials {
            table.push(partial.o.address());
            table.extend(shape.strides(partial.o));
            table.push(partial.lse.address());
            table.extend(shape.lse_strides(partial.lse));
        }
        let partial_table = Buffer::new(device, size_of_val(table.as_slice()))?;
        partial_table.write(0, bytemuck::cast_slice(&table))?;
        let status = Buffer::new(device, size_of::<u32>())?;
        status.fill(0)?;

        let tensors = partials.iter().flat_map(|partial| [partial.o, partial.lse]).chain([o]).chain(lse);
        let mut held: Vec<Held> = tensors.map(|tensor| tensor.buffer().hold()).collect();
        held.extend([partial_table.hold(), status.hold()]);
        let vendor = kernels.target().vendor();
        let [o_stride_batch, o_stride_seq, o_stride_head] = shape.strides(o);
        let output = |dtype: DType| dtype.output().expect("checked above") as u32;
        Ok(Self {
            device: device.clone(),
            kernel: kernels.load(device, &kernels.catalogue().merge()?)?,
            grid: shape.rows.div_ceil(MERGE_THREADS / vendor.warp_size()),
            arguments: MergeArguments {
                partials: partial_table.address(),
                o: o.address(),
                lse: lse.map_or(0, Tensor::address),
                status: status.address(),
                o_stride_batch,
                o_stride_seq,
                o_stride_head,
                rows: shape.rows,
                sq: shape.sq as u32,
                heads: shape.heads as u32,
                head_dim_v: shape.head_dim as u32,
                count: partials.len() as u32,
                partial_dtype: output(partial_dtype),
                o_dtype: output(o.dtype()),
                lse_per_octave: base.per_octave() as f32,
            },
            status,
            held,
        })
    }

    /// Gives the work to `stream` and returns. Allocates nothing, so that it can be captured.
    ///
    /// # Errors
    /// [`Error::Argument`] for another device's stream, or what the driver says.
    pub fn run(&self, stream: &Stream) -> Result<()> {
        self.device.check_same("stream", stream.device())?;
        if self.grid == 0 {
            return Ok(());
        }
        stream.hold(self.held.iter().cloned().chain([Arc::clone(&self.kernel) as Held]))?;
        let call = LaunchCall {
            function: self.kernel.function,
            grid: self.grid,
            block: MERGE_THREADS,
            shared_bytes: 0,
            arguments: &self.arguments.cells(),
        };
        // SAFETY: the stream lives and is this device's; the function lives and takes these arguments. The tensors
        // behind them were checked, and the stream holds them until the work is done.
        unsafe { self.device.driver().launch(stream.handle(), &call) }
    }

    /// What the runs since the last call found wrong. Waits for all work on the device.
    ///
    /// # Errors
    /// What the driver says; faults of the runs come out here.
    pub fn status(&mut self) -> Result<Status> {
        Status::take(&self.status)
    }
}

impl fmt::Debug for Merge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MergeArguments { count, rows, .. } = self.arguments;
        write!(f, "Merge({count} partials of {rows} rows on {})", self.device.name())
    }
}

/// Sizes of an O, packed or not.
struct Shape {
    batch: usize,
    sq: usize,
    heads: usize,
    head_dim: usize,
    /// Of all sequences and heads.
    rows: u32,
    packed: bool,
}

impl Shape {
    fn of(o: &Tensor) -> Result<Self> {
        let given = || format!("shape {:?}", o.shape());
        let (batch, sq, heads, head_dim) = match *o.shape() {
            [batch, sq, heads, head_dim] => (batch, sq, heads, head_dim),
            [total, heads, head_dim] => (1, total, heads, head_dim),
            _ => return Err(Error::argument("o", given(), "[batch, sq, heads, head_dim] or [total, heads, head_dim]")),
        };
        if head_dim == 0 || !head_dim.is_multiple_of(8) {
            return Err(Error::argument("o", given(), "a head dim that is a multiple of 8, at least 8"));
        }
        let rows = [batch, sq, heads].iter().try_fold(1_usize, |rows, &n| rows.checked_mul(n));
        match rows.filter(|&rows| rows.max(head_dim) <= i32::MAX as usize) {
            Some(rows) => Ok(Self { batch, sq, heads, head_dim, rows: rows as u32, packed: o.shape().len() == 3 }),
            None => Err(Error::argument("o", given(), format_args!("at most {} rows", i32::MAX))),
        }
    }

    fn o(&self) -> Vec<usize> {
        if self.packed {
            vec![self.sq, self.heads, self.head_dim]
        } else {
            vec![self.batch, self.sq, self.heads, self.head_dim]
        }
    }

    fn lse(&self) -> Vec<usize> {
        if self.packed { vec![self.heads, self.sq] } else { vec![self.batch, self.heads, self.sq] }
    }

    /// Strides of sequences, queries and heads.
    fn strides(&self, o: &Tensor) -> [u64; 3] {
        let strides: Vec<_> = o.strides().iter().map(|&stride| stride as u64).collect();
        if self.packed { [0, strides[0], strides[1]] } else { [strides[0], strides[1], strides[2]] }
    }

    /// The same of an LSE.
    fn lse_strides(&self, lse: &Tensor) -> [u64; 3] {
        let strides: Vec<_> = lse.strides().iter().map(|&stride| stride as u64).collect();
        if self.packed { [0, strides[1], strides[0]] } else { [strides[0], strides[2], strides[1]] }
    }
}

fn check(device: &Device, shape: &Shape, partials: &[Partial<'_>], o: &Tensor, lse: Option<&Tensor>) -> Result<()> {
    check_o(device, "o", o, shape, o.dtype())?;
    check_distinct("o", o)?;
    if let Some(lse) = lse {
        check_tensor(device, "lse", lse, &shape.lse(), DType::F32)?;
        if lse.elements() > 0 && lse.strides() != contiguous_strides(lse.shape()) {
            return Err(Error::argument("lse", format_args!("strides {:?}", lse.strides()), "no gaps"));
        }
    }
    if partials.len() > i32::MAX as usize {
        return Err(Error::argument("partials", partials.len(), format_args!("at most {}", i32::MAX)));
    }
    for (index, partial) in partials.iter().enumerate() {
        let first = &partials[0];
        let check = || {
            check_o(device, "partials.o", partial.o, shape, first.o.dtype())?;
            check_tensor(device, "partials.lse", partial.lse, &shape.lse(), DType::F32)?;
            if partial.base != first.base {
                let allowed = format!("{}, the first one's", first.base);
                return Err(Error::argument("partials.base", partial.base, allowed));
            }
            let outputs = [("o", Some(o)), ("lse", lse)];
            for (name, output) in outputs.into_iter().filter_map(|(name, output)| Some((name, output?))) {
                for part in [partial.o, partial.lse] {
                    if overlap(&output.span(), &part.span()) {
                        let allowed = format!("memory that no partial ({:#x?}) has part of", part.span());
                        return Err(Error::argument(name, format_args!("{:#x?}", output.span()), allowed));
                    }
                }
            }
            Ok(())
        };
        check().map_err(|error| match error {
            Error::Argument { argument, given, allowed } if argument.starts_with("partials") => {
                Error::Argument { argument, given: format!("{given} for partial {index}"), allowed }
            }
            error => error,
        })?;
    }
    match lse {
        Some(lse) if overlap(&o.span(), &lse.span()) => {
            let allowed = format!("memory that lse ({:#x?}) has no part of", lse.span());
            Err(Error::argument("o", format_args!("{:#x?}", o.span()), allowed))
        }
        _ => Ok(()),
    }
}

fn check_o(device: &Device, name: &'static str, o: &Tensor, shape: &Shape, dtype: DType) -> Result<()> {
    if o.dtype().output().is_none() {
        return Err(Error::argument(name, o.dtype(), "bf16, f16 or f32"));
    }
    check_tensor(device, name, o, &shape.o(), dtype)?;
    check_rows(name, o)
}

fn check_tensor(device: &Device, name: &'static str, tensor: &Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    device.check_same(name, tensor.buffer().device())?;
    if tensor.dtype() != dtype {
        return Err(Error::argument(name, tensor.dtype(), dtype));
    }
    if tensor.shape() != shape {
        return Err(Error::argument(name, format_args!("shape {:?}", tensor.shape()), format_args!("shape {shape:?}")));
    }
    Ok(())
}

/// Attention over a part of the keys, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostPartial<'a> {
    /// Normalised: `[rows, head_dim]`.
    pub o: &'a [f32],
    /// `[rows]`.
    pub lse: &'a [f32],
    /// The base of `lse`.
    pub base: LseBase,
}

/// Merges partial results in host memory, any number of them: gives O `[rows, head_dim]` and LSE `[rows]` in their base.
/// Rows may be in any order, the same for all.
///
/// # Errors
/// [`Error::Argument`] for slices of other lengths, for LSE of several bases, and for one that is plus infinity or NaN.
pub fn merge_on_host(partials: &[HostPartial<'_>], rows: usize, head_dim: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let Some(size) = rows.checked_mul(head_dim) else {
        return Err(Error::argument("rows * head_dim", format_args!("{rows} * {head_dim}"), "below 2^64"));
    };
    let base = partials.first().map_or(LseBase::Natural, |partial| partial.base);
    for (index, partial) in partials.iter().enumerate() {
        let of = format!("of partial {index}");
        if partial.o.len() != size {
            let given = format!("{} elements {of}", partial.o.len());
            return Err(Error::argument("partials.o", given, format_args!("{size}: {rows} rows of {head_dim}")));
        }
        if partial.lse.len() != rows {
            let given = format!("{} elements {of}", partial.lse.len());
            return Err(Error::argument("partials.lse", given, format_args!("one a row: {rows}")));
        }
        if partial.base != base {
            let allowed = format!("{base}, the first one's");
            return Err(Error::argument("partials.base", format_args!("{} {of}", partial.base), allowed));
        }
        if let Some(row) = partial.lse.iter().position(|&lse| lse.is_nan() || lse == f32::INFINITY) {
            let given = format!("{} in row {row} {of}", partial.lse[row]);
            return Err(Error::argument("partials.lse", given, "finite, or minus infinity where no key was seen"));
        }
    }
    let (mut o, mut lse) = (vec![0.0; size], vec![f32::NEG_INFINITY; rows]);
    for row in 0..rows {
        let max = partials.iter().map(|partial| f64::from(partial.lse[row])).fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            continue;
        }
        let mut whole = vec![0.0; head_dim];
        let mut sum = 0.0;
        for partial in partials {
            let weight = ((f64::from(partial.lse[row]) - max) / base.per_octave()).exp2();
            sum += weight;
            // A part without weight may hold anything.
            if weight > 0.0 {
                for (x, &part) in whole.iter_mut().zip(&partial.o[row * head_dim..]) {
                    *x += weight * f64::from(part);
                }
            }
        }
        for (x, whole) in o[row * head_dim..].iter_mut().zip(whole) {
            *x = (whole / sum) as f32;
        }
        lse[row] = (max + sum.log2() * base.per_octave()) as f32;
    }
    Ok((o, lse))
}
