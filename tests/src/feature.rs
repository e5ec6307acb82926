//! What cases may have that a kernel has to know of.

use crate::case::{Case, Kv, Queries};

/// A part of a case that it can be had without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Packed queries.
    PackedQueries,
    /// Packed KV.
    PackedKv,
    /// Paged KV.
    PagedKv,
    /// A local window.
    Window,
    /// Capped scores.
    Softcap,
    /// A sink.
    Sink,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::PackedQueries, Self::PackedKv, Self::PagedKv, Self::Window, Self::Softcap, Self::Sink];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PackedQueries => "packed queries",
            Self::PackedKv => "packed KV",
            Self::PagedKv => "paged KV",
            Self::Window => "window",
            Self::Softcap => "softcap",
            Self::Sink => "sink",
        }
    }

    /// Whether `case` has it.
    pub fn is_in(self, case: &Case) -> bool {
        match self {
            Self::PackedQueries => case.queries != Queries::Dense,
            Self::PackedKv => matches!(case.kv, Kv::Packed { .. }),
            Self::PagedKv => matches!(case.kv, Kv::Paged { .. }),
            Self::Window => case.window.is_some(),
            Self::Softcap => case.softcap.is_some(),
            Self::Sink => case.sink.is_some(),
        }
    }
}
