//! A case: a problem, its memory layout, its data and how it is to be split, as plain data.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::numeric::Format;

/// Everything that a run depends on. It prints as one line of JSON, and parses from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Sequences.
    pub batch: usize,
    /// Queries of each sequence.
    pub sq: usize,
    /// KV tokens that each sequence has room for.
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
    /// Causal mask.
    pub causal: bool,
    /// Softmax scale; `None`: `1 / sqrt(head_dim_qk)`.
    pub scale: Option<f32>,
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

/// KV lengths of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Lengths {
    /// All sequences have `sk` tokens.
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
}

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// `[batch, seq, heads, dim]` without gaps.
    Contiguous,
    /// The same with gaps after heads, positions and sequences, and before the tensor.
    Padded,
    /// K and V of a position side by side in one buffer, `[batch, seq, 2, heads, dim]`; Q and O without gaps.
    Interleaved,
    /// Memory order `[batch, heads, seq, dim]`.
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
    /// Q = 0, so that every visible key weighs the same, and V marks positions ([`crate::data::mark`]).
    Positions,
    /// Keys are 0, but one in each sequence and KV head is not: at `positions[(batch * kv_heads + kv_head) %
    /// positions.len()]`. V is normal.
    Needles(Vec<usize>),
}

/// A tensor `[batch, seq, heads, dim]` in one of the case's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: usize,
    /// Batch, sequence positions, heads, head dim.
    pub shape: [usize; 4],
    /// Element of the buffer at which the tensor begins.
    pub offset: usize,
    /// Distances in elements of batches, positions and heads.
    pub strides: [usize; 3],
}

impl Place {
    /// Element of the buffer at which a vector begins.
    pub fn start(&self, batch: usize, position: usize, head: usize) -> usize {
        self.offset + batch * self.strides[0] + position * self.strides[1] + head * self.strides[2]
    }

    /// Elements that the buffer needs for this tensor.
    pub fn end(&self) -> usize {
        let [batch, seq, heads, dim] = self.shape;
        if batch * seq * heads * dim == 0 { self.offset } else { self.start(batch - 1, seq - 1, heads - 1) + dim }
    }
}

/// The inputs' places. Q is in buffer 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Q.
    pub q: Place,
    /// K.
    pub k: Place,
    /// V; in K's buffer or in one of its own.
    pub v: Place,
}

impl Places {
    /// Elements of each buffer.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        let places = [self.q, self.k, self.v];
        (0..=self.v.buffer)
            .map(move |buffer| places.iter().filter(|place| place.buffer == buffer).map(Place::end).max().unwrap_or(0))
    }
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
            causal: false,
            scale: None,
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

    /// KV length of each sequence.
    pub fn lengths(&self) -> Vec<usize> {
        match &self.lengths {
            Lengths::Full => vec![self.sk; self.batch],
            Lengths::Host(lengths) | Lengths::Device(lengths) => {
                lengths.iter().map(|length| *length as usize).collect()
            }
        }
    }

    /// The scale in f64: the caller's fp32 value, or the default.
    pub fn scale(&self) -> f64 {
        self.scale.map_or_else(|| 1.0 / (self.head_dim_qk as f64).sqrt(), f64::from)
    }

    /// Where the inputs lie.
    pub fn places(&self) -> Places {
        let k_shape = [self.batch, self.sk, self.kv_heads, self.head_dim_qk];
        let v_shape = [self.batch, self.sk, self.kv_heads, self.head_dim_v];
        let q = self.place(0, [self.batch, self.sq, self.heads(), self.head_dim_qk]);
        if self.layout != Layout::Interleaved {
            return Places { q, k: self.place(1, k_shape), v: self.place(2, v_shape) };
        }
        let (k_row, v_row) = (self.kv_heads * self.head_dim_qk, self.kv_heads * self.head_dim_v);
        let (batch, seq) = (self.sk * (k_row + v_row), k_row + v_row);
        let k = Place { buffer: 1, shape: k_shape, offset: 0, strides: [batch, seq, self.head_dim_qk] };
        let v = Place { buffer: 1, shape: v_shape, offset: k_row, strides: [batch, seq, self.head_dim_v] };
        Places { q, k, v }
    }

    /// Where the output lies, in a buffer of its own.
    pub fn output_place(&self) -> Place {
        self.place(0, [self.batch, self.sq, self.heads(), self.head_dim_v])
    }

    fn place(&self, buffer: usize, shape: [usize; 4]) -> Place {
        let [_, seq, heads, dim] = shape;
        let (offset, strides) = match self.layout {
            Layout::Contiguous | Layout::Interleaved => (0, [seq * heads * dim, heads * dim, dim]),
            Layout::Padded => {
                let head = dim + 8;
                let position = heads * head + 16;
                (8, [seq * position + 24, position, head])
            }
            Layout::HeadsFirst => (0, [heads * seq * dim, dim, seq * dim]),
        };
        Place { buffer, shape, offset, strides }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}
