//! A case: a problem, its memory layout, its data and how it is to be split, as plain data.

use std::fmt;

use serde::{Deserialize, Serialize};
use splitkv::BlockShape;

use crate::numeric::Format;
use crate::pages;
use crate::places::{Place, Places, Rows};
use crate::reference::Mask;

/// Everything that a run depends on. It prints as one line of JSON, and parses from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Sequences.
    pub batch: usize,
    /// Queries of each sequence; with packed queries the most of a sequence.
    pub sq: usize,
    /// KV tokens that each sequence has room for; with packed KV the most.
    pub sk: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Query heads of a KV head.
    pub group: usize,
    /// Head dim of Q and K.
    pub head_dim_qk: usize,
    /// Head dim of V and O.
    pub head_dim_v: usize,
    /// Format of Q, K and V.
    pub format: Format,
    /// Format of O.
    pub output: Format,
    /// With e4m3: whether Q, K and V have a factor for each sequence and KV head, in place of one.
    #[serde(default)]
    pub per_head: [bool; 3],
    /// Causal mask.
    pub causal: bool,
    /// Softmax scale; `None`: `1 / sqrt(head_dim_qk)`.
    pub scale: Option<f32>,
    /// How far a query sees to both sides of its own key.
    #[serde(default)]
    pub window: Option<Window>,
    /// Cap of the scores.
    #[serde(default)]
    pub softcap: Option<f32>,
    /// Logits of the sinks: those of the query heads in turn, over and over; `None` among them: that head has none,
    /// which is a logit of -inf.
    #[serde(default)]
    pub sink: Option<Vec<Option<f32>>>,
    /// How queries lie together.
    #[serde(default)]
    pub queries: Queries,
    /// How KV tokens lie together.
    #[serde(default)]
    pub kv: Kv,
    /// KV lengths.
    pub lengths: Lengths,
    /// Whether the LSE is asked for.
    pub lse: bool,
    /// How the KV is to be split.
    pub splits: Splits,
    /// How warps are to share a block's work; `None`: the planner chooses.
    #[serde(default)]
    pub block_shape: Option<Shape>,
    /// Query tiles that a block is to own; `None`: the planner chooses.
    #[serde(default)]
    pub q_tiles: Option<u32>,
    /// Where the tensors lie.
    pub layout: Layout,
    /// What they hold.
    pub data: Data,
    /// Seed of the random part of the data.
    pub seed: u64,
}

/// A local window; `None`: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Keys before the row's own.
    pub left: Option<u32>,
    /// Keys behind it.
    pub right: Option<u32>,
}

/// Who knows a value before the device does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Known {
    /// The planner.
    Host,
    /// Nobody.
    Device,
}

/// How the sequences' queries lie together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Queries {
    /// `sq` of each sequence.
    #[default]
    Dense,
    /// One sequence behind another.
    Packed {
        /// Queries of each sequence, at most `sq`.
        lengths: Vec<u32>,
        /// Who knows where they begin.
        known: Known,
    },
}

/// How the sequences' KV tokens lie together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Kv {
    /// Room for `sk` tokens in each sequence.
    #[default]
    Dense,
    /// One sequence behind another.
    Packed {
        /// Tokens that each sequence has room for, at most `sk`.
        room: Vec<u32>,
        /// Who knows where they begin.
        known: Known,
    },
    /// Pages in any order in a pool three times as large as is needed.
    Paged {
        /// Tokens of a page.
        page_size: usize,
        /// Pages at the beginning that all sequences have in common.
        #[serde(default)]
        shared: usize,
        /// Columns of the table beyond those that `sk` tokens need.
        #[serde(default)]
        spare: usize,
        /// Who knows the table.
        known: Known,
    },
}

/// KV lengths of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Lengths {
    /// All the tokens that a sequence has room for.
    Full,
    /// One length for each sequence, known to the planner.
    Host(Vec<u32>),
    /// One length for each sequence, which only the device knows.
    Device(Vec<u32>),
}

/// How the KV is to be split; the library's choice by the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Splits {
    /// The planner chooses.
    Auto,
    /// This many.
    Exact(u32),
    /// One for each so many tokens.
    Tokens(u32),
}

/// How warps share a block's work; the library's choice by the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Each has other KV tokens.
    SplitKv,
    /// Each has other query rows.
    SharedKv,
    /// Warpgroups read other KV tokens.
    Warpgroups,
    /// Each has a role, over tensor memory.
    Tcgen05,
}

impl From<Shape> for BlockShape {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::SplitKv => Self::SplitKv,
            Shape::SharedKv => Self::SharedKv,
            Shape::Warpgroups => Self::Warpgroups,
            Shape::Tcgen05 => Self::Tcgen05,
        }
    }
}

impl From<BlockShape> for Shape {
    fn from(shape: BlockShape) -> Self {
        match shape {
            BlockShape::SplitKv => Self::SplitKv,
            BlockShape::SharedKv => Self::SharedKv,
            BlockShape::Warpgroups => Self::Warpgroups,
            BlockShape::Tcgen05 => Self::Tcgen05,
            _ => unreachable!("the library grew a block shape that the suites do not know"),
        }
    }
}

/// How tensors lie in their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// `[batch, seq, heads, dim]`, `[total, heads, dim]` or `[pages, page_size, heads, dim]` without gaps.
    Contiguous,
    /// The same with gaps after heads, positions and sequences or pages, and before the tensor.
    Padded,
    /// K and V in one buffer: of a position side by side, `[batch, seq, 2, heads, dim]`, or as halves of a page,
    /// `[pages, 2, page_size, heads, dim]`; Q and O without gaps.
    Interleaved,
    /// Memory order `[batch, heads, seq, dim]`, and likewise in pages.
    HeadsFirst,
}

/// What tensors hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Data {
    /// Mean 0, deviation 1, bell-shaped.
    Normal,
    /// The same with Q six times as large: few keys carry a row.
    Peaked,
    /// One value in each of Q, K, V: O is V's.
    Constant,
    /// K around 4 and V around 64.
    Offset,
    /// V is 1, the others are normal: O is 1 whatever the scores are.
    Ones,
    /// Q = 0, so that every visible key weighs the same, and V marks positions ([`crate::data::mark`]).
    Positions,
    /// Keys are 0, but one in each sequence and KV head is not: at `positions[(batch * kv_heads + kv_head) %
    /// positions.len()]`. V is normal.
    Needles(Vec<usize>),
}

impl Case {
    /// A plain case to start from: bf16, one sequence, contiguous, not causal, one split.
    pub fn new(batch: usize, sq: usize, sk: usize, kv_heads: usize, group: usize) -> Self {
        Self {
            batch,
            sq,
            sk,
            kv_heads,
            group,
            head_dim_qk: 128,
            head_dim_v: 128,
            format: Format::Bf16,
            output: Format::Bf16,
            per_head: [false; 3],
            causal: false,
            scale: None,
            window: None,
            softcap: None,
            sink: None,
            queries: Queries::Dense,
            kv: Kv::Dense,
            lengths: Lengths::Full,
            lse: true,
            splits: Splits::Exact(1),
            block_shape: None,
            q_tiles: None,
            layout: Layout::Contiguous,
            data: Data::Normal,
            seed: 1,
        }
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Queries of each sequence.
    pub fn query_lengths(&self) -> Vec<usize> {
        match &self.queries {
            Queries::Dense => vec![self.sq; self.batch],
            Queries::Packed { lengths, .. } => sizes(lengths),
        }
    }

    /// KV tokens that each sequence has room for.
    pub fn room(&self) -> Vec<usize> {
        match &self.kv {
            Kv::Packed { room, .. } => sizes(room),
            Kv::Dense | Kv::Paged { .. } => vec![self.sk; self.batch],
        }
    }

    /// KV length of each sequence.
    pub fn lengths(&self) -> Vec<usize> {
        match &self.lengths {
            Lengths::Full => self.room(),
            Lengths::Host(lengths) | Lengths::Device(lengths) => sizes(lengths),
        }
    }

    /// Sequence, query and head of each row, in the order in which rows are counted.
    pub fn rows(&self) -> Vec<[usize; 3]> {
        let queries = self.query_lengths().into_iter().enumerate();
        let places = queries.flat_map(|(sequence, queries)| (0..queries).map(move |query| (sequence, query)));
        places.flat_map(|(sequence, query)| (0..self.heads()).map(move |head| [sequence, query, head])).collect()
    }

    /// Where LSE has each row of [`Case::rows`]: `[batch, heads, sq]`, or `[heads, total]` if queries are packed.
    pub fn lse_rows(&self) -> Vec<usize> {
        let queries = self.query_lengths();
        let (starts, total) = starts(&queries);
        let rows = self.rows().into_iter();
        match &self.queries {
            Queries::Dense => rows.map(|[b, query, head]| (b * self.heads() + head) * self.sq + query).collect(),
            Queries::Packed { .. } => rows.map(|[b, query, head]| head * total + starts[b] + query).collect(),
        }
    }

    /// Which keys queries see.
    pub fn mask(&self) -> Mask {
        let Window { left, right } = self.window.unwrap_or_default();
        let bound = |bound: Option<u32>| bound.map(|bound| bound as usize);
        Mask { causal: self.causal, left: bound(left), right: bound(right) }
    }

    /// Whether the library refuses to split it: e4m3, causal, 2 to 383 queries.
    pub fn is_causal_e4m3(&self) -> bool {
        let causal = self.causal || self.window.is_some_and(|window| window.right == Some(0));
        self.format == Format::E4m3 && causal && (2..384).contains(&self.sq)
    }

    /// The scale in f64: the caller's fp32 value, or the default.
    pub fn scale(&self) -> f64 {
        self.scale.map_or_else(|| 1.0 / (self.head_dim_qk as f64).sqrt(), f64::from)
    }

    /// The sink's logit of each query head.
    pub fn sinks(&self) -> Option<Vec<f32>> {
        let logits = self.sink.as_ref()?;
        let logits = logits.iter().map(|logit| logit.unwrap_or(f32::NEG_INFINITY)).cycle();
        Some(logits.take(self.heads()).collect())
    }

    /// Where the inputs lie.
    pub fn places(&self) -> Places {
        let q = self.place(0, self.query_rows(), self.heads(), self.head_dim_qk);
        let kv = self.kv_rows();
        if self.layout != Layout::Interleaved {
            let k = self.place(1, kv.clone(), self.kv_heads, self.head_dim_qk);
            return Places { q, k, v: self.place(2, kv, self.kv_heads, self.head_dim_v) };
        }
        let (k_row, v_row) = (self.kv_heads * self.head_dim_qk, self.kv_heads * self.head_dim_v);
        let ([outer, inner], rows) = kv;
        // Of a page, K's tokens lie before V's; else K and V alternate.
        let (position, behind) = match rows {
            Rows::Paged { .. } => ([k_row, v_row], inner * k_row),
            Rows::Dense | Rows::Packed { .. } => ([k_row + v_row; 2], k_row),
        };
        let half = |offset, position, dim| Place {
            buffer: 1,
            shape: [outer, inner, self.kv_heads, dim],
            offset,
            strides: [inner * (k_row + v_row), position, dim],
            rows: rows.clone(),
        };
        let (k, v) = (half(0, position[0], self.head_dim_qk), half(behind, position[1], self.head_dim_v));
        Places { q, k, v }
    }

    /// Where the output lies, in a buffer of its own.
    pub fn output_place(&self) -> Place {
        self.place(0, self.query_rows(), self.heads(), self.head_dim_v)
    }

    fn query_rows(&self) -> ([usize; 2], Rows) {
        match &self.queries {
            Queries::Dense => ([self.batch, self.sq], Rows::Dense),
            Queries::Packed { lengths, .. } => packed(lengths),
        }
    }

    fn kv_rows(&self) -> ([usize; 2], Rows) {
        match &self.kv {
            Kv::Dense => ([self.batch, self.sk], Rows::Dense),
            Kv::Packed { room, .. } => packed(room),
            Kv::Paged { page_size, .. } => {
                let pages::Pages { pages, width, table } = pages::pages(self);
                ([pages, *page_size], Rows::Paged { width, table })
            }
        }
    }

    fn place(&self, buffer: usize, ([outer, inner], rows): ([usize; 2], Rows), heads: usize, dim: usize) -> Place {
        // Vectors begin at multiples of 16 bytes.
        let gap = 16 / self.format.size();
        let (offset, strides) = match self.layout {
            Layout::Contiguous | Layout::Interleaved => (0, [inner * heads * dim, heads * dim, dim]),
            Layout::Padded => {
                let head = dim + gap;
                let position = heads * head + 2 * gap;
                (gap, [inner * position + 3 * gap, position, head])
            }
            Layout::HeadsFirst => (0, [heads * inner * dim, dim, inner * dim]),
        };
        Place { buffer, shape: [outer, inner, heads, dim], offset, strides, rows }
    }
}

fn sizes(numbers: &[u32]) -> Vec<usize> {
    numbers.iter().map(|number| *number as usize).collect()
}

/// Where sequences of these lengths begin, one behind another, and where the last one ends.
pub fn starts(lengths: &[usize]) -> (Vec<usize>, usize) {
    let mut end = 0;
    let starts = lengths.iter().map(|length| {
        end += length;
        end - length
    });
    (starts.collect(), end)
}

fn packed(lengths: &[u32]) -> ([usize; 2], Rows) {
    let (starts, total) = starts(&sizes(lengths));
    ([1, total], Rows::Packed { starts })
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}
