//! The arguments of an attention kernel. They lie in constant memory, which instructions read in place.

use crate::abi::AttentionArguments;

/// The arguments.
#[derive(Clone, Copy)]
pub(crate) struct Arguments(AttentionArguments);

impl Arguments {
    #[inline(always)]
    pub(crate) fn new(a: AttentionArguments) -> Self {
        Self(a)
    }

    /// The arguments that each chunk of KV needs: what it is made of, pages, the status word, and the scale.
    #[inline(always)]
    pub(crate) fn hot(&self) -> &AttentionArguments {
        &self.0
    }

    /// All arguments, for what is done once a unit.
    #[inline(always)]
    pub(crate) fn all(&self) -> AttentionArguments {
        self.0
    }
}
