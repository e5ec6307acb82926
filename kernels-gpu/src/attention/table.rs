//! Makes the table of a ragged batch from lengths that only the device knows: one warp, before each attention kernel.

use super::parts::{Entry, Record, Table};
use super::sequence::{Sequence, Sequences};
use crate::abi::ScheduleArguments;
use crate::abi::schedule::{Rows, big_splits, split_tiles, splits};
use crate::gpu::warp;

/// Body of the schedule kernel: one warp. Each lane has every so-manyth sequence.
///
/// # Safety
/// The launch is as the ABI table says.
#[inline(always)]
pub(crate) unsafe fn schedule(a: ScheduleArguments) {
    let lane = warp::lane_id();
    let table = Table::new(a.schedule, a.batch);
    let rows =
        Rows { group: a.group, block_rows: a.block_rows, tile_n: a.tile_n, left: a.window_left, right: a.window_right };
    // KV tiles of each sequence; they stand where its first part will.
    let mut longest = 0;
    let mut sequence = lane;
    while sequence < a.batch {
        let all = Sequences {
            kv_lens: a.kv_lens,
            cu_seqlens_q: a.cu_seqlens_q,
            cu_seqlens_kv: a.cu_seqlens_kv,
            status: a.status,
            sq: a.sq,
            sk: a.sk,
            total_q: a.total_q,
            total_kv: a.total_kv,
        };
        // SAFETY: there is such a sequence; the caller's promise.
        let Sequence { first_query, queries, keys, .. } = unsafe { Sequence::new(all, sequence) };
        let first_query = if a.cu_seqlens_q.is_null() { sequence * a.sq } else { first_query };
        let tiles = rows.tiles(queries, keys);
        longest = tiles.max(longest);
        // SAFETY: the table has the sequence.
        unsafe { table.record(sequence).write(Record { first_part: tiles, splits: 0, first_query, queries }) };
        sequence += warp::SIZE;
    }
    // SAFETY: all lanes are here.
    let longest = unsafe { reduce(longest, u32::max) };
    let most = split_tiles(longest, a.wide, |most| {
        let (mut sequence, mut big) = (lane, 0);
        while sequence < a.batch {
            // SAFETY: this lane wrote it.
            big += big_splits(unsafe { (*table.record(sequence)).first_part }, most);
            sequence += warp::SIZE;
        }
        // SAFETY: all lanes are here.
        unsafe { reduce(big, |x, y| x + y) }
    });

    // Entries and rows of parts so far.
    let (mut entries, mut parts) = (0, 0);
    let mut first = 0;
    while first < a.batch {
        let sequence = first + lane;
        let exists = sequence < a.batch;
        let (mut count, mut rows) = (0, 0);
        if exists {
            // SAFETY: this lane wrote it.
            let record = unsafe { table.record(sequence).read() };
            count = splits(record.first_part, most);
            rows = if count > 1 { count * record.queries } else { 0 };
        }
        // SAFETY: all lanes are here.
        let (entries_end, parts_end) = unsafe { (scan(count), scan(rows)) };
        if exists {
            // SAFETY: the table has the sequence and its entries, which the host counted with the rule's bound.
            unsafe {
                let record = table.record(sequence);
                (*record).first_part = parts + parts_end - rows;
                (*record).splits = count;
                let begin = entries + entries_end - count;
                let mut split = 0;
                while split < count {
                    table.entry(begin + split).write(Entry { sequence, split });
                    split += 1;
                }
            }
        }
        // SAFETY: all lanes are here.
        let (chunk_entries, chunk_parts) =
            unsafe { (warp::warp_shuffle(entries_end, warp::SIZE - 1), warp::warp_shuffle(parts_end, warp::SIZE - 1)) };
        entries += chunk_entries;
        parts += chunk_parts;
        first += warp::SIZE;
    }
    if lane == 0 {
        // SAFETY: the table's first word.
        unsafe { table.entries().write(entries) };
    }
}

/// Combines a value of every lane.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
unsafe fn reduce(mut value: u32, combine: impl Fn(u32, u32) -> u32) -> u32 {
    let lane = warp::lane_id();
    let mut mask = warp::SIZE / 2;
    while mask > 0 {
        // SAFETY: the caller's promise.
        value = combine(value, unsafe { warp::warp_shuffle(value, lane ^ mask) });
        mask /= 2;
    }
    warp::uniform(value)
}

/// The sum of the values of this lane and those before it.
///
/// # Safety
/// Every lane of the warp reaches this call.
#[inline(always)]
unsafe fn scan(mut value: u32) -> u32 {
    let lane = warp::lane_id();
    let mut distance = 1;
    while distance < warp::SIZE {
        // SAFETY: the caller's promise; the lane is one of the warp's.
        let before = unsafe { warp::warp_shuffle(value, lane.max(distance) - distance) };
        value += if lane < distance { 0 } else { before };
        distance *= 2;
    }
    value
}
