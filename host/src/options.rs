//! What a caller may ask of the planner.

use std::fmt;

use kernels_gpu::abi::BlockShape;

/// Into how many parts each sequence's KV is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Splits {
    /// The planner chooses.
    #[default]
    Auto,
    /// This many, 1 to 256. Each sequence's KV tiles are shared out evenly; with more splits than tiles, some
    /// stay empty.
    Exact(u32),
    /// This many tokens each, a multiple of the kernel's KV tile (128 is one of every kernel's). The boundaries then
    /// depend on nothing but the position in a sequence, and the kernel on nothing but the problem's types, heads, head dims
    /// and [`sq`](crate::Problem::sq), so that a sequence has the same bits whatever else is in the batch. Of packed
    /// queries, `sq` is the most that a sequence may have: give it to all plans alike.
    Tokens(u32),
}

impl fmt::Display for Splits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Exact(n) => write!(f, "exactly {n}"),
            Self::Tokens(n) => write!(f, "{n} tokens each"),
        }
    }
}

/// How a plan is to be made. What is given is done or refused, never changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// The splits of the KV.
    pub splits: Splits,
    /// Query tiles that a block owns, 1 or (where such a kernel was compiled) 2; `None`: the planner chooses.
    pub q_tiles: Option<u32>,
    /// How the warps of a block share the work; `None`: the planner chooses.
    pub block_shape: Option<BlockShape>,
    /// Most bytes that the workspace may have; `None`: any number. [`Splits::Auto`] keeps to it with fewer splits; splits
    /// that were asked for and need more are refused.
    pub max_workspace_bytes: Option<usize>,
}
