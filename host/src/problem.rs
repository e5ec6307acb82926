//! What is to be computed.

mod validate;

use std::fmt;

use crate::{DType, KvLayout, Lengths, Offsets, PageTable, Queries, Window};

/// Bytes of which a row is a multiple: rows are copied in such pieces.
const ROW_MULTIPLE: usize = 16;

/// An attention problem: shapes, types and mask. Plain data; [`Problem::validate`] and [`plan`](crate::plan())
/// say whether it can be done.
///
/// `O = softmax(mask(softcap(scale * Q K^T))) V` for each sequence and head, where query head `h` reads KV head
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
/// [`Queries::Packed`] and [`KvLayout`] are other ways in which the sequences may lie.
///
/// With e4m3, what Q, K and V stand for are their elements times a factor each, which the kernel reads on the device
/// ([`Descale`]).
///
/// A row that sees no key has O = 0 and LSE = -inf; with a sink, LSE is the sink. NaN in a query, or in a key that it
/// sees, makes the row's O and LSE NaN.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Problem {
    /// Sequences.
    pub batch: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Queries of each sequence, at most where they are packed.
    pub sq: usize,
    /// KV tokens of each sequence, at most where `kv_lens` or packing says so.
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
    /// Further bounds of what a query sees.
    pub window: Window,
    /// `Some(cap)`: scores become `cap * tanh(score / cap)` before the mask, within `2^-21 * cap`: a cap far above the
    /// scores costs them their digits.
    pub softcap: Option<f32>,
    /// Whether each head has one more logit, without a value: it adds `exp(sink)` to the sum of exponentials.
    pub sink: bool,
    /// How the queries lie in Q and O.
    pub queries: Queries,
    /// How the tokens lie in K and V.
    pub kv: KvLayout,
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
///
/// Any number is one, also 0 and what is negative. NaN and infinity give rows that are NaN or infinite, except for those
/// that see no key, whose factors do not matter.
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
    /// All that there is: `sk`, or what packing says.
    #[default]
    Full,
    /// Known when planning: one a sequence, each at most `sk`, and at most what packing says. The plan looks at them, and
    /// the executor brings them to the device.
    Host(Vec<u32>),
    /// Given at run time as an int32 tensor `[batch]` on the device, each from 0 to `sk`, or what packing says. A length
    /// outside is clamped by the kernel and reported by [`Executor::status`](crate::Executor::status).
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
            window: Window::default(),
            softcap: None,
            sink: false,
            queries: Queries::Dense,
            kv: KvLayout::Dense,
            kv_lens: KvLens::Full,
            lse: false,
            q_descale: Descale::PerTensor,
            k_descale: Descale::PerTensor,
            v_descale: Descale::PerTensor,
        }
    }

    /// Sets the bounds of what a query sees; `causal` is one more.
    #[must_use]
    pub fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// Sets the softcap.
    #[must_use]
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.softcap = Some(softcap);
        self
    }

    /// Sets whether each head has a sink.
    #[must_use]
    pub fn sink(mut self, sink: bool) -> Self {
        self.sink = sink;
        self
    }

    /// Packs the queries, `total` in all.
    #[must_use]
    pub fn packed_queries(mut self, total: usize, cu_seqlens: Offsets) -> Self {
        self.queries = Queries::Packed { total, cu_seqlens };
        self
    }

    /// Packs the KV tokens, `total` in all.
    #[must_use]
    pub fn packed_kv(mut self, total: usize, cu_seqlens: Offsets) -> Self {
        self.kv = KvLayout::Packed { total, cu_seqlens };
        self
    }

    /// Puts K and V into `pages` pages of `page_size` tokens.
    #[must_use]
    pub fn paged(mut self, pages: usize, page_size: usize, table: PageTable) -> Self {
        self.kv = KvLayout::Paged { pages, page_size, table };
        self
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
    pub fn q_shape(&self) -> Vec<usize> {
        self.queries_shape(self.head_dim_qk)
    }

    /// Shape of K.
    pub fn k_shape(&self) -> Vec<usize> {
        self.kv_shape(self.head_dim_qk)
    }

    /// Shape of V.
    pub fn v_shape(&self) -> Vec<usize> {
        self.kv_shape(self.head_dim_v)
    }

    /// Shape of O.
    pub fn o_shape(&self) -> Vec<usize> {
        self.queries_shape(self.head_dim_v)
    }

    /// Shape of LSE.
    pub fn lse_shape(&self) -> Vec<usize> {
        match &self.queries {
            Queries::Dense => vec![self.batch, self.heads, self.sq],
            Queries::Packed { total, .. } => vec![self.heads, *total],
        }
    }

    fn queries_shape(&self, head_dim: usize) -> Vec<usize> {
        match &self.queries {
            Queries::Dense => vec![self.batch, self.sq, self.heads, head_dim],
            Queries::Packed { total, .. } => vec![*total, self.heads, head_dim],
        }
    }

    fn kv_shape(&self, head_dim: usize) -> Vec<usize> {
        match &self.kv {
            KvLayout::Dense => vec![self.batch, self.sk, self.kv_heads, head_dim],
            KvLayout::Packed { total, .. } => vec![*total, self.kv_heads, head_dim],
            KvLayout::Paged { pages, page_size, .. } => vec![*pages, *page_size, self.kv_heads, head_dim],
        }
    }

    /// Queries of all sequences.
    pub fn total_q(&self) -> usize {
        match &self.queries {
            Queries::Dense => self.batch * self.sq,
            Queries::Packed { total, .. } => *total,
        }
    }

    /// Whether there is no output to compute.
    pub fn is_empty(&self) -> bool {
        self.batch == 0 || self.sq == 0 || self.heads == 0 || self.total_q() == 0
    }

    /// Queries and keys of sequence `index`, as far as they are known: else the most that there may be.
    pub fn lengths(&self, index: usize) -> Lengths {
        let within =
            |offsets: &Offsets| offsets.on_host().map(|offsets| (offsets[index + 1] - offsets[index]) as usize);
        let queries = match &self.queries {
            Queries::Packed { cu_seqlens, .. } => within(cu_seqlens),
            Queries::Dense => None,
        };
        let keys = match (&self.kv_lens, &self.kv) {
            (KvLens::Host(lens), _) => Some(lens[index] as usize),
            (_, KvLayout::Packed { cu_seqlens, .. }) => within(cu_seqlens),
            _ => None,
        };
        Lengths { queries: queries.unwrap_or(self.sq), keys: keys.unwrap_or(self.sk) }
    }

    /// Whether all lengths are known when planning.
    pub(crate) fn lengths_known(&self) -> bool {
        let known = |offsets: &Offsets| offsets.on_host().is_some();
        let queries = match &self.queries {
            Queries::Packed { cu_seqlens, .. } => known(cu_seqlens),
            Queries::Dense => true,
        };
        let keys = match &self.kv {
            KvLayout::Packed { cu_seqlens, .. } => known(cu_seqlens),
            KvLayout::Dense | KvLayout::Paged { .. } => true,
        };
        queries && keys && self.kv_lens != KvLens::Device
    }

    /// Whether [`Problem::lengths`] are the same for every sequence, whatever they are.
    pub(crate) fn lengths_alike(&self) -> bool {
        let known = |offsets: &Offsets| offsets.on_host().is_some();
        !matches!(&self.queries, Queries::Packed { cu_seqlens, .. } if known(cu_seqlens))
            && !matches!(&self.kv, KvLayout::Packed { cu_seqlens, .. } if known(cu_seqlens))
            && !matches!(self.kv_lens, KvLens::Host(_))
    }

    /// All bounds of what a query sees, `causal` taken in. One query is its sequence's last: it sees no fewer keys for
    /// being causal.
    pub fn effective_window(&self) -> Window {
        let right = match self.window.right {
            _ if self.causal && self.sq > 1 => Some(0),
            right => right,
        };
        Window { left: self.window.left, right }
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

    /// What head dims are multiples of.
    pub(crate) fn dim_multiple(&self) -> usize {
        ROW_MULTIPLE / self.dtype.size_of()
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
        if self.window != Window::default() {
            let bound = |bound: Option<u32>| bound.map_or("..".into(), |bound| bound.to_string());
            write!(f, " window {}/{}", bound(self.window.left), bound(self.window.right))?;
        }
        if let Some(softcap) = self.softcap {
            write!(f, " softcap {softcap}")?;
        }
        if self.sink {
            f.write_str(" sink")?;
        }
        if let Queries::Packed { total, .. } = &self.queries {
            write!(f, " {total} packed queries")?;
        }
        match &self.kv {
            KvLayout::Dense => {}
            KvLayout::Packed { total, .. } => write!(f, " {total} packed tokens")?,
            KvLayout::Paged { pages, page_size, .. } => write!(f, " {pages} pages of {page_size}")?,
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
