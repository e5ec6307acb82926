//! The algorithm, once for both vendors.
//!
//! [`forward`] computes attention over a part of the KV: it walks the units of [`schedule`] over [`sequence`]s, keeps
//! [`softmax`]'s running state over the chunks of KV, [`merge`]s the block's warps and writes through
//! [`output`]; 8-bit values have a [`descale`]. [`combine`] merges the parts, and [`partials`] what a caller has.
//! [`parts`] says where the parts are; where each sequence has its own number of them, [`table`] shares them out.

mod combine;
mod descale;
mod forward;
#[cfg(splitkv_target = "sm_90a")]
mod hopper;
mod merge;
mod output;
mod partials;
mod parts;
mod schedule;
mod sequence;
mod softmax;
mod table;
#[cfg(splitkv_target = "sm_100f")]
mod tensor_memory;

pub(crate) use combine::combine;
pub(crate) use forward::forward;
#[cfg(splitkv_target = "sm_90a")]
pub(crate) use hopper::warpgroups;
pub(crate) use partials::merge_partials;
pub(crate) use table::schedule;
#[cfg(splitkv_target = "sm_100f")]
pub(crate) use tensor_memory::tensor_memory;
