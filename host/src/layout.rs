//! How sequences lie in tensors, and which keys a query sees.

use std::ops::Range;

use crate::{Error, Result};

/// How the queries of the sequences lie in Q and O.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Queries {
    /// Q is `[batch, sq, heads, head_dim_qk]`.
    #[default]
    Dense,
    /// Q is `[total, heads, head_dim_qk]`: the sequences follow each other, each with as many queries as it has, at most
    /// `sq`. LSE is `[heads, total]`.
    Packed {
        /// Queries of all sequences.
        total: usize,
        /// Where each sequence begins.
        cu_seqlens: Offsets,
    },
}

/// How the keys and values of the sequences lie in K and V.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvLayout {
    /// K is `[batch, sk, kv_heads, head_dim_qk]`.
    #[default]
    Dense,
    /// K is `[total, kv_heads, head_dim_qk]`: the sequences follow each other, each with as many tokens as it has, at most
    /// `sk`.
    Packed {
        /// Tokens of all sequences.
        total: usize,
        /// Where each sequence begins.
        cu_seqlens: Offsets,
    },
    /// K is `[pages, page_size, kv_heads, head_dim_qk]`: token `t` of sequence `b` is token `t % page_size` of page
    /// `table[b, t / page_size]`. K and V have one table.
    Paged {
        /// Pages of K and V.
        pages: usize,
        /// Tokens of a page: 1 to 512.
        page_size: usize,
        /// The pages of each sequence.
        table: PageTable,
    },
}

/// Where sequences begin in a packed tensor: `cu_seqlens`, `batch + 1` offsets from 0 to the total, which do not fall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// Known when planning. The plan looks at them, and the executor brings them to the device.
    Host(Vec<u32>),
    /// Given at run time as an int32 tensor `[batch + 1]` on the device. Offsets that fall, leave the tensor, or make a
    /// sequence longer than `sq` or `sk`, are clamped by the kernel and reported by
    /// [`Executor::status`](crate::Executor::status). They may begin behind 0 and end before the total: queries that
    /// belong to no sequence are not computed, and their rows of O and LSE not written.
    Device,
}

/// The pages of each sequence, as indices into K and V: `[batch, width]`, `width * page_size` at least `sk`. Entries
/// beyond a sequence's length may hold anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageTable {
    /// Known when planning; the executor brings it to the device.
    Host {
        /// Entries of a sequence.
        width: usize,
        /// The sequences' entries, one sequence after the other.
        pages: Vec<u32>,
    },
    /// Given at run time as an int32 tensor `[batch, width]` on the device, whose last dimension has no gaps. An entry that
    /// is needed and is no page is not followed: page 0 is, and [`Executor::status`](crate::Executor::status) says so.
    Device {
        /// Entries of a sequence.
        width: usize,
    },
}

/// Largest page.
const MAX_PAGE_SIZE: usize = 512;

impl Offsets {
    /// The offsets, where they are known.
    pub(crate) fn on_host(&self) -> Option<&[u32]> {
        match self {
            Self::Host(offsets) => Some(offsets),
            Self::Device => None,
        }
    }

    /// Checks offsets of `batch` sequences, of at most `most` tokens each and `total` in all.
    pub(crate) fn validate(
        &self,
        name: &'static str,
        batch: usize,
        total: usize,
        longest: (&str, usize),
    ) -> Result<()> {
        let Some(offsets) = self.on_host() else { return Ok(()) };
        if offsets.len() != batch + 1 {
            let given = format!("{} offsets", offsets.len());
            return Err(Error::argument(name, given, format_args!("batch + 1: {}", batch + 1)));
        }
        if offsets[0] != 0 {
            return Err(Error::argument(name, format_args!("{} as the first offset", offsets[0]), "0"));
        }
        let (longest, most) = longest;
        for (index, pair) in offsets.windows(2).enumerate() {
            let given = || format!("{} and {} for sequence {index}", pair[0], pair[1]);
            if pair[1] < pair[0] {
                return Err(Error::argument(name, given(), "offsets that do not fall"));
            }
            if (pair[1] - pair[0]) as usize > most {
                let allowed = format!("sequences of at most {longest} ({most}) tokens");
                return Err(Error::argument(name, given(), allowed));
            }
        }
        if offsets[batch] as usize != total {
            let given = format!("{} as the last offset", offsets[batch]);
            return Err(Error::argument(name, given, format_args!("the total ({total})")));
        }
        Ok(())
    }
}

impl PageTable {
    /// Entries of a sequence.
    pub fn width(&self) -> usize {
        match self {
            Self::Host { width, .. } | Self::Device { width } => *width,
        }
    }

    /// The entries, where they are known.
    pub(crate) fn on_host(&self) -> Option<&[u32]> {
        match self {
            Self::Host { pages, .. } => Some(pages),
            Self::Device { .. } => None,
        }
    }

    /// Checks the table of sequences that need so many `tokens` each.
    pub(crate) fn validate(
        &self,
        (pages, page_size): (usize, usize),
        sk: usize,
        tokens: impl ExactSizeIterator<Item = usize>,
    ) -> Result<()> {
        if page_size == 0 || page_size > MAX_PAGE_SIZE {
            return Err(Error::argument("page_size", page_size, format_args!("1 to {MAX_PAGE_SIZE}")));
        }
        let (width, batch) = (self.width(), tokens.len());
        if width.checked_mul(page_size).is_none_or(|room| room < sk) {
            let given = format!("{width} pages of {page_size}, {} tokens, a sequence", width.saturating_mul(page_size));
            return Err(Error::argument("page_table", given, format_args!("room for sk ({sk}) tokens")));
        }
        if pages == 0 && sk > 0 && batch > 0 {
            return Err(Error::argument("pages", 0, format_args!("at least 1 with sk ({sk}) above 0")));
        }
        let Some(entries) = self.on_host() else { return Ok(()) };
        if Some(entries.len()) != width.checked_mul(batch) {
            let given = format!("{} entries", entries.len());
            return Err(Error::argument("page_table", given, format_args!("batch * width: {batch} * {width}")));
        }
        for (sequence, tokens) in tokens.enumerate() {
            let needed = &entries[sequence * width..][..tokens.div_ceil(page_size)];
            if let Some(index) = needed.iter().position(|&page| page as usize >= pages) {
                let given = format!("{} as entry {index} of sequence {sequence}", needed[index]);
                return Err(Error::argument("page_table", given, format_args!("below pages ({pages})")));
            }
        }
        Ok(())
    }
}

/// How far a query sees: query `i` of `n` stands at position `i + len - n` of its sequence's `len` keys, the last one at
/// the last key. It sees the keys from `left` before its position to `right` behind it; `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// Keys before the query's own.
    pub left: Option<u32>,
    /// Keys behind the query's own.
    pub right: Option<u32>,
}

impl Window {
    /// The last `keys` keys up to the query's own, which is one of them.
    ///
    /// # Errors
    /// [`Error::Argument`] for 0.
    pub fn last(keys: u32) -> Result<Self> {
        match keys.checked_sub(1) {
            Some(left) => Ok(Self { left: Some(left), right: Some(0) }),
            None => Err(Error::argument("keys", 0, "at least 1: a query's own key is one of the window's")),
        }
    }

    /// The keys that query `query` of `queries` sees among `keys`.
    pub(crate) fn of(self, query: usize, queries: usize, keys: usize) -> Range<usize> {
        let position = (query + keys) as i64 - queries as i64;
        let clamp = |key: i64| key.clamp(0, keys as i64) as usize;
        let begin = self.left.map_or(0, |left| clamp(position - i64::from(left)));
        let end = self.right.map_or(keys, |right| clamp(position + 1 + i64::from(right)));
        begin.min(end)..end
    }
}

/// Queries and keys of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lengths {
    /// Queries.
    pub queries: usize,
    /// KV tokens.
    pub keys: usize,
}
