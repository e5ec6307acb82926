//! What is to be computed.

use std::fmt;

use crate::{DType, Error, Result};

/// Largest value of a size that kernels hold in 32 bits.
const MAX_SIZE: usize = i32::MAX as usize;
/// Bytes of which a row is a multiple: rows are copied in such pieces.
const ROW_MULTIPLE: usize = 16;

/// An attention problem: shapes, types and mask. Plain data; [`Problem::validate`] and [`plan`](crate::plan())
/// say whether it can be done.
///
/// `O = softmax(mask(scale * Q K^T)) V` for each sequence and head, where query head `h` reads KV head
/// `h / (heads / kv_heads)`.
///
/// | tensor | shape | type |
/// |---|---|---|
/// | Q | `[batch, sq, heads, head_dim_qk]` | `dtype` |
/// | K | `[batch, sk, kv_heads, head_dim_qk]` | `dtype` |
/// | V | `[batch, sk, kv_heads, head_dim_v]` | `dtype` |
/// | O | `[batch, sq, heads, head_dim_v]` | `o_dtype` |
/// | LSE | `[batch, heads, sq]` | f32, natural log of the row's sum of exponentials |
///
/// With e4m3, what Q, K and V stand for are their elements times a factor each, which the kernel reads on the device
/// ([`Descale`]).
///
/// A row that sees no key has O = 0 and LSE = -inf.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Sequences.
    pub batch: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Queries of each sequence.
    pub sq: usize,
    /// KV tokens of each sequence, at most where `kv_lens` says so.
    pub sk: usize,
    /// Head dim of Q and K: a multiple of 8 (of 16 with e4m3), at most what there are kernels for (256; 192 with e4m3).
    pub head_dim_qk: usize,
    /// Head dim of V and O, likewise.
    pub head_dim_v: usize,
    /// Element type of Q, K and V: bf16, f16 or e4m3.
    pub dtype: DType,
    /// Element type of O: `dtype` or f32; with e4m3 bf16, f16 or f32.
    pub o_dtype: DType,
    /// Whether query `i` sees only the keys `j <= i + len - sq` (bottom-right aligned), where `len` is the
    /// sequence's KV length.
    pub causal: bool,
    /// Factor of the scores; `None`: `1 / sqrt(head_dim_qk)`.
    pub scale: Option<f32>,
    /// KV length of each sequence.
    pub kv_lens: KvLens,
    /// Whether LSE is wanted.
    pub lse: bool,
    /// With e4m3: how many factors Q has.
    pub q_descale: Descale,
    /// With e4m3: how many factors K has.
    pub k_descale: Descale,
    /// With e4m3: how many factors V has.
    pub v_descale: Descale,
}

/// The factors that e4m3 elements are to be multiplied by: an f32 tensor on the device for each of Q, K and V, which
/// the kernel reads at every launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Descale {
    /// One for the whole tensor: `[1]`.
    #[default]
    PerTensor,
    /// One for each sequence and KV head: `[batch, kv_heads]`. A query head has its KV head's.
    PerHead,
}

impl fmt::Display for Descale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PerTensor => "per tensor",
            Self::PerHead => "per head",
        })
    }
}

/// The KV lengths of a batch. Memory beyond a length is never looked at in a way that matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KvLens {
    /// `sk` for all.
    #[default]
    Full,
    /// Known when planning: one a sequence, each at most `sk`. The plan looks at them, and the executor brings
    /// them to the device.
    Host(Vec<u32>),
    /// Given at run time as an int32 tensor `[batch]` on the device, each from 0 to `sk`. A length outside is
    /// clamped by the kernel and reported by [`Executor::status`](crate::Executor::status).
    Device,
}

impl Problem {
    /// The problem with these shapes: one head dim, output of the input's type (bf16 with e4m3), no mask, default scale, full
    /// lengths, no LSE.
    pub fn new(
        batch: usize,
        heads: usize,
        kv_heads: usize,
        sq: usize,
        sk: usize,
        head_dim: usize,
        dtype: DType,
    ) -> Self {
        Self {
            batch,
            heads,
            kv_heads,
            sq,
            sk,
            head_dim_qk: head_dim,
            head_dim_v: head_dim,
            dtype,
            o_dtype: if dtype == DType::E4m3 { DType::Bf16 } else { dtype },
            causal: false,
            scale: None,
            kv_lens: KvLens::Full,
            lse: false,
            q_descale: Descale::PerTensor,
            k_descale: Descale::PerTensor,
            v_descale: Descale::PerTensor,
        }
    }

    /// Sets the head dim of V and O.
    #[must_use]
    pub fn head_dim_v(mut self, head_dim_v: usize) -> Self {
        self.head_dim_v = head_dim_v;
        self
    }

    /// Sets the element type of O.
    #[must_use]
    pub fn o_dtype(mut self, o_dtype: DType) -> Self {
        self.o_dtype = o_dtype;
        self
    }

    /// Sets whether the mask is causal.
    #[must_use]
    pub fn causal(mut self, causal: bool) -> Self {
        self.causal = causal;
        self
    }

    /// Sets the factor of the scores.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Sets the KV lengths.
    #[must_use]
    pub fn kv_lens(mut self, kv_lens: KvLens) -> Self {
        self.kv_lens = kv_lens;
        self
    }

    /// Sets whether LSE is wanted.
    #[must_use]
    pub fn lse(mut self, lse: bool) -> Self {
        self.lse = lse;
        self
    }

    /// Sets how many factors each of Q, K and V has.
    #[must_use]
    pub fn descales(mut self, q: Descale, k: Descale, v: Descale) -> Self {
        (self.q_descale, self.k_descale, self.v_descale) = (q, k, v);
        self
    }

    /// Shape of a tensor of factors.
    pub fn descale_shape(&self, descale: Descale) -> Vec<usize> {
        match descale {
            Descale::PerTensor => vec![1],
            Descale::PerHead => vec![self.batch, self.kv_heads],
        }
    }

    /// Shape of Q.
    pub fn q_shape(&self) -> [usize; 4] {
        [self.batch, self.sq, self.heads, self.head_dim_qk]
    }

    /// Shape of K.
    pub fn k_shape(&self) -> [usize; 4] {
        [self.batch, self.sk, self.kv_heads, self.head_dim_qk]
    }

    /// Shape of V.
    pub fn v_shape(&self) -> [usize; 4] {
        [self.batch, self.sk, self.kv_heads, self.head_dim_v]
    }

    /// Shape of O.
    pub fn o_shape(&self) -> [usize; 4] {
        [self.batch, self.sq, self.heads, self.head_dim_v]
    }

    /// Shape of LSE.
    pub fn lse_shape(&self) -> [usize; 3] {
        [self.batch, self.heads, self.sq]
    }

    /// Whether there is no output to compute.
    pub fn is_empty(&self) -> bool {
        self.batch == 0 || self.sq == 0 || self.heads == 0
    }

    /// Query heads that share a KV head; 0 without heads.
    pub fn group(&self) -> usize {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Query rows of one KV head: `sq * group`.
    pub fn rows(&self) -> usize {
        self.sq * self.group()
    }

    /// The factor of the scores, the default one filled in.
    pub fn effective_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| (1.0 / (self.head_dim_qk as f64).sqrt()) as f32)
    }

    /// Whether the mask hides anything: one query is the last one and sees all keys.
    pub(crate) fn masks(&self) -> bool {
        self.causal && self.sq > 1
    }

    /// The factors' names, how many each of Q, K and V has, and whether they are given at all.
    pub(crate) fn descales_given(&self) -> [(&'static str, Descale, bool); 3] {
        let given = self.dtype == DType::E4m3;
        [
            ("q_descale", self.q_descale, given),
            ("k_descale", self.k_descale, given),
            ("v_descale", self.v_descale, given),
        ]
    }

    /// Checks what holds for every device and every set of kernels.
    ///
    /// # Errors
    /// [`Error::Argument`] with the field's name.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("sq", self.sq),
            ("sk", self.sk),
            ("head_dim_qk", self.head_dim_qk),
            ("head_dim_v", self.head_dim_v),
        ];
        for (name, size) in sizes {
            if size > MAX_SIZE {
                return Err(Error::argument(name, size, format_args!("at most {MAX_SIZE}")));
            }
        }
        for (name, dim) in [("head_dim_qk", self.head_dim_qk), ("head_dim_v", self.head_dim_v)] {
            let multiple = ROW_MULTIPLE / self.dtype.size_of();
            if dim == 0 || !dim.is_multiple_of(multiple) {
                return Err(Error::argument(
                    name,
                    dim,
                    format_args!("a multiple of {multiple} with {}, at least {multiple}", self.dtype),
                ));
            }
        }
        let divides = if self.kv_heads == 0 { self.heads == 0 } else { self.heads.is_multiple_of(self.kv_heads) };
        if !divides {
            let allowed = format!("a multiple of kv_heads ({})", self.kv_heads);
            return Err(Error::argument("heads", self.heads, allowed));
        }
        // Rows are counted in 32 bits by the kernels, all heads and sequences together (one sequence's also where there is none).
        let rows = [self.batch.max(1), self.heads, self.sq].iter().try_fold(1_usize, |rows, &n| rows.checked_mul(n));
        if rows.is_none_or(|rows| rows > MAX_SIZE) {
            let given = format!("{} * {} * {}", self.batch, self.heads, self.sq);
            return Err(Error::argument("batch * heads * sq", given, format_args!("at most {MAX_SIZE}")));
        }
        if self.dtype.operand().is_none() {
            return Err(Error::argument("dtype", self.dtype, "bf16, f16 or e4m3"));
        }
        if self.dtype == DType::E4m3 {
            if self.o_dtype.output().is_none() {
                return Err(Error::argument("o_dtype", self.o_dtype, "bf16, f16 or f32 with e4m3"));
            }
        } else {
            if self.o_dtype != self.dtype && self.o_dtype != DType::F32 {
                return Err(Error::argument("o_dtype", self.o_dtype, format_args!("{} or f32", self.dtype)));
            }
            for (name, descale, _) in self.descales_given() {
                if descale != Descale::PerTensor {
                    return Err(Error::argument(
                        name,
                        descale,
                        format_args!("none with {}: only e4m3 has factors", self.dtype),
                    ));
                }
            }
        }
        if let Some(scale) = self.scale
            && !(scale * std::f32::consts::LOG2_E).is_finite()
        {
            return Err(Error::argument("scale", scale, "finite, also when multiplied by log2(e)"));
        }
        self.validate_lens()
    }

    fn validate_lens(&self) -> Result<()> {
        let KvLens::Host(lens) = &self.kv_lens else { return Ok(()) };
        if lens.len() != self.batch {
            let given = format!("{} lengths", lens.len());
            return Err(Error::argument("kv_lens", given, format_args!("one a sequence: {}", self.batch)));
        }
        match lens.iter().position(|&len| len as usize > self.sk) {
            Some(index) => {
                let given = format!("{} for sequence {index}", lens[index]);
                Err(Error::argument("kv_lens", given, format_args!("at most sk ({})", self.sk)))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for Problem {
    /// One line: `B16 Q1 K8192 H32/8 d128 bf16 causal -> f32 + lse`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "B{} Q{} K{} H{}/{} d{}", self.batch, self.sq, self.sk, self.heads, self.kv_heads, self.head_dim_qk)?;
        if self.head_dim_v != self.head_dim_qk {
            write!(f, "/{}", self.head_dim_v)?;
        }
        write!(f, " {}", self.dtype)?;
        if self.causal {
            f.write_str(" causal")?;
        }
        if let Some(scale) = self.scale {
            write!(f, " scale {scale}")?;
        }
        match &self.kv_lens {
            KvLens::Full => {}
            KvLens::Host(lens) => {
                let (low, high) = (lens.iter().min().unwrap_or(&0), lens.iter().max().unwrap_or(&0));
                write!(f, " lens {low}..={high}")?;
            }
            KvLens::Device => f.write_str(" lens on device")?,
        }
        for (name, descale, given) in self.descales_given() {
            if given && descale != Descale::PerTensor {
                write!(f, " {name} {descale}")?;
            }
        }
        if self.o_dtype != self.dtype {
            write!(f, " -> {}", self.o_dtype)?;
        }
        if self.lse { f.write_str(" + lse") } else { Ok(()) }
    }
}
