//! Which tokens a unit of work reads: the rule of the attention kernel, stated once more for tests and for print.

use std::ops::Range;

use super::Plan;

/// One unit of work: one split of the KV of one sequence, for one block of query rows of one KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// Part of the KV.
    pub split: u32,
    /// Sequence.
    pub batch: u32,
    /// Block of `q_tiles * tile_m` packed query rows.
    pub m_block: u32,
    /// KV head.
    pub kv_head: u32,
}

impl Plan {
    /// Unit `index` of [`Plan::units`]: the KV head runs fastest, then row block, sequence, split. `None` beyond
    /// the last one.
    pub fn unit(&self, index: u32) -> Option<Unit> {
        if index >= self.units() {
            return None;
        }
        let (kv_heads, batch) = (self.problem.kv_heads as u32, self.problem.batch as u32);
        let (rest, kv_head) = (index / kv_heads, index % kv_heads);
        let (rest, m_block) = (rest / self.m_blocks, rest % self.m_blocks);
        Some(Unit { split: rest / batch, batch: rest % batch, m_block, kv_head })
    }

    /// The packed query rows of row block `m_block`. Row `r` is query `r / group` of query head
    /// `kv_head * group + r % group`.
    pub fn rows(&self, m_block: u32) -> Range<usize> {
        let tile = (self.variant.q_tiles * self.variant.geometry.tile_m) as usize;
        let rows = self.problem.rows();
        (m_block as usize * tile).min(rows)..((m_block as usize + 1) * tile).min(rows)
    }

    /// End of the keys that row block `m_block` sees of a sequence with `len` keys: all, or with a causal mask the
    /// largest limit of its rows.
    pub fn kv_end(&self, m_block: u32, len: usize) -> usize {
        let rows = self.rows(m_block);
        if !self.causal() || rows.is_empty() {
            return len;
        }
        let last_query = (rows.end - 1) / self.problem.group();
        (last_query + 1 + len).saturating_sub(self.problem.sq)
    }

    /// The tokens that `unit` reads when its sequence has `len` keys. Empty splits are empty ranges.
    pub fn tokens(&self, unit: Unit, len: usize) -> Range<usize> {
        let end = self.kv_end(unit.m_block, len);
        let (split, splits) = (unit.split as usize, self.num_splits as usize);
        let (from, to) = if self.split_tokens > 0 {
            let size = self.split_tokens as usize;
            (split * size, (split + 1) * size)
        } else {
            let tile = self.variant.geometry.tile_n as usize;
            let tiles = end.div_ceil(tile);
            (split * tiles / splits * tile, (split + 1) * tiles / splits * tile)
        };
        from.min(end)..to.min(end)
    }
}
