//! The algorithm, once for both vendors.
//!
//! [`forward`] computes attention over a part of the KV: it walks the units of [`schedule`], keeps
//! [`softmax`]'s running state over the chunks of KV, [`merge`]s the block's warps and writes through
//! [`output`]; 8-bit values have a [`descale`]. [`combine`] merges the parts.

mod combine;
mod descale;
mod forward;
mod merge;
mod output;
mod schedule;
mod softmax;

pub(crate) use combine::combine;
pub(crate) use forward::forward;
