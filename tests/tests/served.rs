//! What a server does with packed and paged sequences: short runs of queries over a split cache, one plan for many
//! lengths and tables, values on the device that are out of range, and batches beyond a grid's classic limits.

use std::sync::Mutex;

use splitkv::Status;
use splitkv_tests::case::{Case, Known, Kv, Layout, Lengths, Queries, Splits};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Bits, Failure, Launch, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::places::Rows;
use splitkv_tests::site::{Site, suite};

/// While a stream is captured, no other thread may wait for the device, as copies do.
static CAPTURE: Mutex<()> = Mutex::new(());

fn paged(page_size: usize) -> Kv {
    Kv::Paged { page_size, shared: 0, spare: 1, known: Known::Device }
}

/// Runs a case and compares it with the reference. One case.
#[track_caller]
fn right(site: &Site, case: &Case) -> usize {
    let tensors = Tensors::new(case);
    let (bits, _) = run(site, case, &tensors).unwrap_or_else(|error| panic!("{error}\n{case}"));
    compare(case, &tensors.expected(case), &bits.output(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    1
}

/// Speculative decoding: 2 to 16 queries, causal, over a split paged cache.
#[test]
fn speculative_decoding() {
    suite("served::speculative_decoding", |site| {
        let _alone = CAPTURE.lock();
        let mut cases = Vec::new();
        for sq in 2..=16 {
            for page_size in [1, 16, 64, 256] {
                for splits in [Splits::Auto, Splits::Exact(3), Splits::Tokens(256)] {
                    let format = [Format::Bf16, Format::F16][cases.len() / 3 % 2];
                    let layout = [Layout::Contiguous, Layout::Interleaved][cases.len() / 5 % 2];
                    let lengths = Lengths::Device(vec![700, sq as u32 - 1, 333]);
                    let (kv, group) = (paged(page_size), [4, 1, 8][cases.len() / 7 % 3]);
                    let plain = Case::new(3, sq, 700, 1, group);
                    cases.push(Case { causal: true, kv, splits, lengths, format, output: format, layout, ..plain });
                }
            }
        }
        // Prime to the number of values of each axis.
        let step = if site.is_emulated() { 11 } else { 1 };
        cases.iter().step_by(step).map(|case| right(site, case)).sum()
    });
}

/// One plan, captured once: replayed with other lengths, pages and numbers of queries, all of them changed on the
/// device alone, it gives what an eager run gives, and that is right.
#[test]
fn a_graph_follows_tables_and_offsets() {
    suite("served::a_graph_follows_tables_and_offsets", |site| {
        let _alone = CAPTURE.lock();
        let mut cases = 0;
        for splits in [Splits::Exact(1), Splits::Exact(3), Splits::Tokens(256), Splits::Auto] {
            // The same eight queries in all, shared out in other ways.
            let at = |queries: [u32; 3], lengths: [u32; 3], seed| Case {
                splits,
                seed,
                causal: true,
                kv: paged(16),
                queries: Queries::Packed { lengths: queries.to_vec(), known: Known::Device },
                lengths: Lengths::Device(lengths.to_vec()),
                ..Case::new(3, 8, 600, 2, 2)
            };
            // Room for all tokens: the same pool, whatever the lengths are.
            let full = at([3, 4, 1], [600; 3], 5);
            let tensors = Tensors::new(&full);
            let mut launch = Launch::new(site, &full, &tensors).expect("a valid case");
            let mut graph = None;
            let widths = 600usize.div_ceil(16) + 1;
            let table = |rotated: usize| {
                let Rows::Paged { table, .. } = &tensors.places.k.rows else { panic!("paged KV") };
                let mut rows: Vec<_> = table.chunks_exact(widths).map(<[i32]>::to_vec).collect();
                rows.rotate_left(rotated);
                rows.concat()
            };
            for (turn, (queries, lengths)) in [
                ([3, 4, 1], [9, 600, 1]),
                ([8, 0, 0], [600, 600, 600]),
                ([0, 1, 7], [0, 17, 300]),
                ([2, 2, 4], [1, 2, 3]),
            ]
            .into_iter()
            .enumerate()
            {
                let ends = queries.iter().scan(0, |end, queries| {
                    *end += *queries as i32;
                    Some(*end)
                });
                let offsets: Vec<i32> = std::iter::once(0).chain(ends).collect();
                launch.set_query_offsets(&offsets).expect("four offsets");
                launch.set_lengths(&lengths.map(|length| length as i32)).expect("three lengths");
                launch.set_table(&table(turn % 3)).expect("the table's own size");
                let graph = graph.get_or_insert_with(|| launch.capture().expect("a valid case"));
                launch.fill(0x00).expect("memory");
                launch.run().expect("a valid case");
                let eager = launch.read().expect("nothing wrong");
                launch.fill(0xff).expect("memory");
                launch.replay(graph).expect("a valid graph");
                let replayed = launch.read().expect("nothing wrong");
                assert!(eager == replayed, "{queries:?} queries, lengths {lengths:?}, {splits:?}");

                let now = at(queries, lengths, 5);
                let mut moved = tensors.clone();
                moved.places.q = now.places().q;
                for place in [&mut moved.places.k, &mut moved.places.v] {
                    let Rows::Paged { table: rows, .. } = &mut place.rows else { panic!("paged KV") };
                    *rows = table(turn % 3);
                }
                let expected = moved.expected(&now);
                compare(&now, &expected, &replayed.output(&now)).unwrap_or_else(|error| panic!("{error}\n{now}"));
                cases += 1;
            }
        }
        cases
    });
}

/// Lengths, offsets and tables that only the device knows, and that are wrong: reported once, by name; neither inputs nor
/// guards nor other sequences change.
#[test]
fn values_out_of_range_are_reported() {
    suite("served::values_out_of_range_are_reported", |site| {
        let _alone = CAPTURE.lock();
        let mut cases = 0;
        for splits in [Splits::Exact(1), Splits::Exact(3)] {
            let base = Case { splits, lengths: Lengths::Device(vec![200, 150, 90]), ..Case::new(3, 2, 200, 2, 2) };
            let offsets = || Queries::Packed { lengths: vec![2; 3], known: Known::Device };
            let packed = Case { queries: offsets(), ..base.clone() };
            let packed_kv = Kv::Packed { room: vec![200, 150, 90], known: Known::Device };
            let packed_kv = Case { kv: packed_kv, lengths: Lengths::Full, ..base.clone() };
            let pages = Case { kv: paged(64), ..base.clone() };

            let lengths: [&[i32]; 3] = [&[200, 201, 90], &[200, -1, 90], &[200, i32::MAX, 90]];
            for wrong in lengths {
                for case in [&base, &packed, &pages] {
                    reported(site, case, |launch| launch.set_lengths(wrong), |status| status.bad_length);
                    cases += 1;
                }
            }
            // Offsets that leave the tensor, or make a sequence longer than `sq`: the first two sequences, whose own are right,
            // have what they should.
            let (want, _) = run(site, &packed, &Tensors::new(&packed)).expect("a valid case");
            for last in [-5, 1 << 30, i32::MAX, i32::MIN] {
                let change = |launch: &Launch| launch.set_query_offsets(&[0, 2, 4, last]);
                let got = reported_anywhere(site, &packed, change, |status| status.bad_offsets);
                for sequence in [0, 1] {
                    let (got, want) = (got.sequence(&packed, sequence), want.sequence(&packed, sequence));
                    assert!(got == want, "sequence {sequence} with {last} as the last offset");
                }
                cases += 1;
            }
            let change = |launch: &Launch| launch.set_query_offsets(&[0, 3, 4, 6]);
            reported_anywhere(site, &packed, change, |status| status.bad_offsets);
            cases += 1;
            // Sequences that overlap: one of the offsets falls. Both write the same rows, which an emulator calls a race.
            let mut launch = Launch::new(site, &packed, &Tensors::new(&packed)).expect("a valid case");
            launch.set_query_offsets(&[0, 2, 1, 3]).expect("four offsets");
            match launch.run() {
                Ok(()) => assert!(launch.status().expect("a device").bad_offsets, "overlapping offsets"),
                Err(error) => assert!(site.is_emulated() && error.to_string().contains("race"), "{error}"),
            }
            cases += 1;
            for wrong in [[0, 200, -5, 440], [0, 200, 1 << 30, 440], [0, 200, 401, 440], [0, i32::MIN, i32::MAX, 440]] {
                reported_anywhere(
                    site,
                    &packed_kv,
                    |launch| launch.set_kv_offsets(&wrong),
                    |status| status.bad_offsets,
                );
                cases += 1;
            }
            // The second sequence's second page.
            let Rows::Paged { width, table } = pages.places().k.rows else { panic!("paged KV") };
            let pool = pages.places().k.shape[0] as i32;
            for wrong in [-1, pool, i32::MAX, i32::MIN] {
                let mut table = table.clone();
                table[width + 1] = wrong;
                reported(site, &pages, |launch| launch.set_table(&table), |status| status.bad_page);
                cases += 1;
            }
        }
        cases
    });
}

/// Offsets of queries that begin behind 0 or end before the total: what belongs to no sequence is not written.
#[test]
fn queries_of_no_sequence_are_left_alone() {
    suite("served::queries_of_no_sequence_are_left_alone", |site| {
        let _alone = CAPTURE.lock();
        let mut cases = 0;
        for splits in [Splits::Exact(1), Splits::Exact(3), Splits::Auto] {
            let queries = Queries::Packed { lengths: vec![2; 3], known: Known::Device };
            let lengths = Lengths::Device(vec![300, 20, 300]);
            let case = Case { splits, queries, lengths, output: Format::F32, ..Case::new(3, 2, 300, 1, 2) };
            let mut launch = Launch::new(site, &case, &Tensors::new(&case)).expect("a valid case");
            for offsets in [[2, 4, 6, 6], [0, 2, 4, 4], [1, 2, 3, 5], [3, 3, 3, 3]] {
                const FILLING: u8 = 0x3c;
                launch.set_query_offsets(&offsets).expect("four offsets");
                launch.fill(FILLING).expect("memory");
                launch.run().expect("a valid case");
                let Bits { o, lse } = launch.read().expect("nothing wrong");
                let rows = o.chunks_exact(case.head_dim_v * case.output.size());
                let lses: Vec<_> = lse.chunks_exact(size_of::<f32>()).collect();
                for ((row, o), index) in rows.enumerate().zip(case.lse_rows()) {
                    let is_computed = (offsets[0]..offsets[3]).contains(&((row / case.heads()) as i32));
                    for bytes in [o, lses[index]] {
                        let is_written = bytes.iter().any(|byte| *byte != FILLING);
                        assert_eq!(is_written, is_computed, "row {row} by {offsets:?}: {case}");
                    }
                }
                cases += 1;
            }
        }
        cases
    });
}

/// Runs `case` once `change` has made a value of its second sequence wrong: `is_reported`, once, and nothing else; all
/// other sequences are as without the change.
#[track_caller]
fn reported(
    site: &Site,
    case: &Case,
    change: impl Fn(&Launch) -> Result<(), Failure>,
    is_reported: impl Fn(&Status) -> bool,
) {
    let (want, _) = run(site, case, &Tensors::new(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    let got = reported_anywhere(site, case, change, is_reported);
    for sequence in [0, 2] {
        assert!(got.sequence(case, sequence) == want.sequence(case, sequence), "sequence {sequence} changed: {case}");
    }
}

/// The same without a look at the other sequences.
#[track_caller]
fn reported_anywhere(
    site: &Site,
    case: &Case,
    change: impl Fn(&Launch) -> Result<(), Failure>,
    is_reported: impl Fn(&Status) -> bool,
) -> Bits {
    let mut launch = Launch::new(site, case, &Tensors::new(case)).unwrap_or_else(|error| panic!("{error}\n{case}"));
    change(&launch).unwrap_or_else(|error| panic!("{error}\n{case}"));
    launch.run().unwrap_or_else(|error| panic!("{error}\n{case}"));
    let status = launch.status().unwrap_or_else(|error| panic!("{error}\n{case}"));
    assert!(is_reported(&status), "not reported: {status}\n{case}");
    // Once, and with guards, gaps and inputs as they were.
    launch.read().unwrap_or_else(|error| panic!("{error}\n{case}"))
}

/// More sequences, and more sequences and heads together, than 65,535.
#[test]
fn batches_beyond_16_bits() {
    suite("served::batches_beyond_16_bits", |site| {
        let _alone = CAPTURE.lock();
        let dims = |case: Case| Case { head_dim_qk: 64, head_dim_v: 64, ..case };
        let many_heads = dims(Case { splits: Splits::Exact(2), ..Case::new(4097, 1, 2, 1, 16) });
        // Where kernels are interpreted, few of the sequences have a key.
        let keys = if site.is_emulated() { 1000 } else { 1 };
        let batch = 65_537;
        let lengths = (0..batch as u32).map(|b| u32::from((batch as u32 - 1 - b).is_multiple_of(keys))).collect();
        let queries = Queries::Packed { lengths: vec![1; batch], known: Known::Host };
        let lengths = Lengths::Device(lengths);
        let wide = dims(Case { queries, lengths, kv: paged(1), lse: false, ..Case::new(batch, 1, 1, 1, 1) });
        [many_heads, wide].iter().map(|case| right(site, case)).sum()
    });
}
