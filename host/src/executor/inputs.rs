//! What a run is given, and what the plan knew of it.

use crate::{Buffer, Device, KvLayout, KvLens, Plan, Queries, Result, Tensor};
#[cfg(doc)]
use crate::{Offsets, PageTable};

/// The tensors of a run. Shapes and types are those of [`Problem`](crate::Problem); the last dimension is
/// contiguous, and every row starts at a multiple of 16 bytes. O and LSE overlap nothing else. [`Inputs::new`] makes one
/// with what every problem has:
///
/// ```
/// # use splitkv::{Inputs, Tensor};
/// # fn inputs<'a>(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor, o: &'a Tensor, lse: &'a Tensor) -> Inputs<'a> {
/// Inputs { lse: Some(lse), ..Inputs::new(q, k, v, o) }
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[batch, sq, heads, head_dim_qk]`, or as [`Queries`] says.
    pub q: &'a Tensor,
    /// `[batch, sk, kv_heads, head_dim_qk]`, or as [`KvLayout`] says.
    pub k: &'a Tensor,
    /// `[batch, sk, kv_heads, head_dim_v]`, or as [`KvLayout`] says.
    pub v: &'a Tensor,
    /// Written: `[batch, sq, heads, head_dim_v]`, or as [`Queries`] says.
    pub o: &'a Tensor,
    /// Written where the problem asks for it, and only then: f32 `[batch, heads, sq]`, or `[heads, total]` of packed
    /// queries, without gaps.
    pub lse: Option<&'a Tensor>,
    /// With [`KvLens::Device`], and only then: i32 `[batch]` without gaps.
    pub kv_lens: Option<&'a Tensor>,
    /// With packed queries and [`Offsets::Device`], and only then: i32 `[batch + 1]` without gaps.
    pub cu_seqlens_q: Option<&'a Tensor>,
    /// With packed KV and [`Offsets::Device`], and only then: i32 `[batch + 1]` without gaps.
    pub cu_seqlens_kv: Option<&'a Tensor>,
    /// With [`PageTable::Device`], and only then: i32 `[batch, width]`, the last dimension without gaps.
    pub page_table: Option<&'a Tensor>,
    /// With a sink, and only then: f32 `[heads]` without gaps, natural logits; minus infinity is none.
    pub sink: Option<&'a Tensor>,
    /// With e4m3, and only then: what Q's elements are to be multiplied by, f32 `[1]` or `[batch, kv_heads]` without
    /// gaps, as [`Problem::q_descale`](crate::Problem::q_descale) says.
    pub q_descale: Option<&'a Tensor>,
    /// The same of K.
    pub k_descale: Option<&'a Tensor>,
    /// The same of V.
    pub v_descale: Option<&'a Tensor>,
}

impl<'a> Inputs<'a> {
    /// These tensors, and none of those that only some problems have.
    pub fn new(q: &'a Tensor, k: &'a Tensor, v: &'a Tensor, o: &'a Tensor) -> Self {
        Self {
            q,
            k,
            v,
            o,
            lse: None,
            kv_lens: None,
            cu_seqlens_q: None,
            cu_seqlens_kv: None,
            page_table: None,
            sink: None,
            q_descale: None,
            k_descale: None,
            v_descale: None,
        }
    }

    /// Those that a kernel reads beside Q, K and V, by name.
    pub(super) fn read(&self) -> [(&'static str, Option<&'a Tensor>); 8] {
        [
            ("kv_lens", self.kv_lens),
            ("cu_seqlens_q", self.cu_seqlens_q),
            ("cu_seqlens_kv", self.cu_seqlens_kv),
            ("page_table", self.page_table),
            ("sink", self.sink),
            ("q_descale", self.q_descale),
            ("k_descale", self.k_descale),
            ("v_descale", self.v_descale),
        ]
    }
}

/// Lengths, offsets and pages that the plan knew, on the device.
pub(super) struct Known {
    pub(super) kv_lens: Option<Buffer>,
    pub(super) cu_seqlens_q: Option<Buffer>,
    pub(super) cu_seqlens_kv: Option<Buffer>,
    pub(super) page_table: Option<Buffer>,
    /// The table of a ragged batch. Where only the device knows the lengths, each run writes it.
    pub(super) schedule: Option<Buffer>,
}

impl Known {
    pub(super) fn new(device: &Device, plan: &Plan) -> Result<Self> {
        let problem = plan.problem();
        let upload = |values: Option<&[u32]>| -> Result<Option<Buffer>> {
            let Some(values) = values else { return Ok(None) };
            let buffer = Buffer::new(device, size_of_val(values))?;
            buffer.write(0, bytemuck::cast_slice(values))?;
            Ok(Some(buffer))
        };
        let kv_lens = match &problem.kv_lens {
            KvLens::Host(lens) => Some(lens.as_slice()),
            KvLens::Full | KvLens::Device => None,
        };
        let cu_seqlens_q = match &problem.queries {
            Queries::Packed { cu_seqlens, .. } => cu_seqlens.on_host(),
            Queries::Dense => None,
        };
        let (cu_seqlens_kv, page_table) = match &problem.kv {
            KvLayout::Dense => (None, None),
            KvLayout::Packed { cu_seqlens, .. } => (cu_seqlens.on_host(), None),
            KvLayout::Paged { table, .. } => (None, table.on_host()),
        };
        let schedule = match plan.ragged() {
            None => None,
            Some(ragged) => match ragged.table(problem) {
                Some(table) => upload(Some(&table))?,
                None => Some(Buffer::new(device, ragged.table_words(problem.batch) * size_of::<u32>())?),
            },
        };
        Ok(Self {
            schedule,
            kv_lens: upload(kv_lens)?,
            cu_seqlens_q: upload(cu_seqlens_q)?,
            cu_seqlens_kv: upload(cu_seqlens_kv)?,
            page_table: upload(page_table)?,
        })
    }

    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let all = [&self.kv_lens, &self.cu_seqlens_q, &self.cu_seqlens_kv, &self.page_table, &self.schedule];
        all.into_iter().flatten()
    }
}
