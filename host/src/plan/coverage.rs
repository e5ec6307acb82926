//! Which tokens a unit of work reads: the rule of the attention kernel, stated once more for tests and for print.

use std::ops::Range;

use super::Plan;
use crate::Lengths;

/// One unit of work: one split of the KV of one sequence, for one block of query rows of one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Part of the KV.
    pub split: u32,
    /// Parts that the sequence has.
    pub splits: u32,
    /// Sequence.
    pub batch: u32,
    /// Block of `q_tiles * tile_m` packed query rows.
    pub m_block: u32,
    /// KV head.
    pub kv_head: u32,
}

impl Plan {
    /// The units of a run over sequences of these lengths, one for each of the batch, in order: the KV head runs fastest,
    /// then row block, then sequence and split. Where each sequence has splits of its own
    /// ([`Plan::ragged`]) a sequence's follow each other, else those of all sequences.
    pub fn units_of(&self, lengths: &[Lengths]) -> Vec<Unit> {
        let batch = 0..self.problem.batch as u32;
        let entries: Vec<_> = match &self.ragged {
            None => (0..self.num_splits)
                .flat_map(|split| batch.clone().map(move |batch| (batch, split, self.num_splits)))
                .collect(),
            Some(ragged) => {
                let splits = ragged.splits(lengths);
                batch.zip(splits).flat_map(|(batch, n)| (0..n).map(move |split| (batch, split, n))).collect()
            }
        };
        let blocks =
            (0..self.m_blocks).flat_map(|m_block| (0..self.problem.kv_heads as u32).map(move |h| (m_block, h)));
        let units = entries.into_iter().flat_map(|(batch, split, splits)| {
            blocks.clone().map(move |(m_block, kv_head)| Unit { split, splits, batch, m_block, kv_head })
        });
        units.collect()
    }

    /// The packed query rows of row block `m_block` of a sequence with `queries` queries. Row `r` is query `r / group` of
    /// query head `kv_head * group + r % group`.
    pub fn rows(&self, m_block: u32, queries: usize) -> Range<usize> {
        let tile = (self.variant.q_tiles * self.variant.geometry.tile_m) as usize;
        let rows = queries * self.problem.group();
        (m_block as usize * tile).min(rows)..((m_block as usize + 1) * tile).min(rows)
    }

    /// The keys that some row of row block `m_block` sees of a sequence: from the first one that its first row sees to the
    /// last one that its last row does.
    pub fn visible(&self, m_block: u32, Lengths { queries, keys }: Lengths) -> Range<usize> {
        let (rows, group) = (self.rows(m_block, queries), self.problem.group());
        if rows.is_empty() {
            return 0..0;
        }
        let keys_of = |row: usize| self.problem.effective_window().of(row / group, queries, keys);
        let end = keys_of(rows.end - 1).end;
        keys_of(rows.start).start.min(end)..end
    }

    /// The tokens that `unit` reads of a sequence of these lengths. Empty splits are empty ranges.
    pub fn tokens(&self, unit: Unit, lengths: Lengths) -> Range<usize> {
        let visible = self.visible(unit.m_block, lengths);
        let tile = self.variant.geometry.tile_n as usize;
        let first = visible.start / tile;
        let (split, splits) = (unit.split as usize, unit.splits as usize);
        let (from, to) = if self.split_tokens > 0 {
            let size = self.split_tokens as usize;
            ((split * size).max(first * tile), (split + 1) * size)
        } else {
            let tiles = visible.end.div_ceil(tile) - first;
            ((first + split * tiles / splits) * tile, (first + (split + 1) * tiles / splits) * tile)
        };
        let to = to.min(visible.end);
        from.min(to)..to
    }
}
