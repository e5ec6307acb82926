//! What kernels find wrong with values that only the device knows.

use std::fmt;

use kernels_gpu::abi::{STATUS_BAD_LENGTH, STATUS_BAD_LSE, STATUS_BAD_OFFSETS, STATUS_BAD_PAGE};

use crate::{Buffer, Result};

/// What the kernels found wrong with values that only the device knew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// A length was negative or beyond `sk`; 0 or `sk` was taken.
    pub bad_length: bool,
    /// Offsets of packed sequences fell, left the tensor, or made a sequence longer than `sq` or `sk`; they were clamped.
    pub bad_offsets: bool,
    /// A needed entry of the page table was no page; page 0 was taken.
    pub bad_page: bool,
    /// An LSE that was to be merged was plus infinity or NaN; the row's result is NaN.
    pub bad_lse: bool,
}

impl Status {
    /// Reads a status word and sets it back. Waits for all work on the device.
    pub(crate) fn take(word: &Buffer) -> Result<Self> {
        let mut bits = [0; size_of::<u32>()];
        word.read(0, &mut bits)?;
        let bits = u32::from_le_bytes(bits);
        if bits != 0 {
            word.fill(0)?;
        }
        Ok(Self {
            bad_length: bits & STATUS_BAD_LENGTH != 0,
            bad_offsets: bits & STATUS_BAD_OFFSETS != 0,
            bad_page: bits & STATUS_BAD_PAGE != 0,
            bad_lse: bits & STATUS_BAD_LSE != 0,
        })
    }

    /// Whether nothing was wrong.
    pub fn is_ok(self) -> bool {
        self == Self::default()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = [
            (self.bad_length, "kv_lens: a length was negative or beyond sk"),
            (self.bad_offsets, "cu_seqlens: offsets fell, left the tensor, or made a sequence too long"),
            (self.bad_page, "page_table: an entry that was needed is no page"),
            (self.bad_lse, "partials: an LSE was plus infinity or NaN"),
        ];
        let found: Vec<_> = found.iter().filter(|(found, _)| *found).map(|(_, text)| *text).collect();
        f.write_str(if found.is_empty() { "ok".into() } else { found.join("; ") }.as_str())
    }
}
