//! Ragged batches: each sequence has splits by its length, which the host knows or only the device does.
//!
//! Planned for a device of a few multiprocessors, so that small problems are split as large ones are elsewhere.

use std::sync::Mutex;

use splitkv::{DeviceProps, Plan, plan};
use splitkv_tests::case::{Case, Known, Kv, Layout, Lengths, Queries, Splits, Window};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Bits, Launch, options, problem};
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{Site, suite};

/// While a stream is captured, no other thread may wait for the device, as copies do.
static CAPTURE: Mutex<()> = Mutex::new(());

/// The case's plan for so many multiprocessors.
fn planned(site: &Site, case: &Case, multiprocessors: u32) -> Plan {
    let device = DeviceProps { multiprocessors, ..site.device.props().clone() };
    let plan = plan(&problem(case), &options(case), &device, site.kernels.catalogue());
    plan.unwrap_or_else(|error| panic!("{error}\n{case}"))
}

/// Splits of each of the case's sequences.
#[track_caller]
fn splits(plan: &Plan, case: &Case) -> Vec<u32> {
    let lengths = case.query_lengths().into_iter().zip(case.lengths());
    let lengths: Vec<_> = lengths.map(|(queries, keys)| splitkv::Lengths { queries, keys }).collect();
    plan.ragged().unwrap_or_else(|| panic!("{plan}\n{case}")).splits(&lengths)
}

/// Runs a case by a plan, and compares it with the reference.
#[track_caller]
fn right(site: &Site, case: &Case, tensors: &Tensors, plan: Plan) -> Bits {
    let run = || {
        let mut launch = Launch::planned(site, case, tensors, plan.clone())?;
        launch.run()?;
        launch.read()
    };
    let bits = run().unwrap_or_else(|error| panic!("{error}\n{plan}\n{case}"));
    let same = compare(case, &tensors.expected(case), &bits.output(case));
    same.unwrap_or_else(|error| panic!("{error}\n{plan}\n{case}"));
    bits
}

/// The case with lengths that only the device knows.
fn on_device(case: &Case) -> Case {
    let lengths = Lengths::Device(case.lengths().iter().map(|length| *length as u32).collect());
    Case { lengths, ..case.clone() }
}

/// One long sequence among short ones, in every layout and with every mask: right with either table, and with the same
/// bits where both have the same splits and data.
#[test]
fn lengths_known_and_not_known_give_the_same_bits() {
    suite("ragged::lengths_known_and_not_known_give_the_same_bits", |site| {
        let _alone = CAPTURE.lock();
        let lens = |long: u32| Lengths::Host(vec![100, 0, long, 1]);
        let plain = Case { splits: Splits::Auto, lengths: lens(1500), ..Case::new(4, 1, 1500, 1, 4) };
        let queries = |known| Queries::Packed { lengths: vec![1, 3, 2, 0], known };
        let packed = Case { sq: 3, queries: queries(Known::Host), ..plain.clone() };
        let paged = |known| Kv::Paged { page_size: 48, shared: 0, spare: 1, known };
        let window = Window { left: Some(900), right: Some(0) };
        let cases = [
            plain.clone(),
            Case { format: Format::F16, output: Format::F32, lse: false, ..plain.clone() },
            Case { sq: 3, causal: true, kv: paged(Known::Host), layout: Layout::Interleaved, ..plain.clone() },
            Case { kv_heads: 2, sink: Some(vec![Some(1.0), None, Some(9.0)]), softcap: Some(30.0), ..plain.clone() },
            Case { sq: 2, window: Some(window), ..plain.clone() },
            Case { sq: 40, causal: true, group: 3, ..plain.clone() },
            packed.clone(),
            Case { causal: true, kv: paged(Known::Device), ..packed.clone() },
            Case { kv: Kv::Packed { room: vec![100, 7, 1500, 1], known: Known::Host }, ..packed.clone() },
            Case { format: Format::E4m3, per_head: [true, false, true], ..plain.clone() },
            Case { head_dim_qk: 192, group: 8, ..plain.clone() },
        ];
        let mut alike = 0;
        for case in &cases {
            let other = on_device(case);
            let (tensors, other_tensors) = (Tensors::new(case), Tensors::new(&other));
            let (known, unknown) = (planned(site, case, 4), planned(site, &other, 4));
            assert!(known.schedule().is_none() && unknown.schedule().is_some(), "{known}\n{unknown}");
            let (known_splits, unknown_splits) = (splits(&known, case), splits(&unknown, &other));
            for splits in [&known_splits, &unknown_splits] {
                assert!(splits[2] > 1 && splits[1] == 1 && splits[3] == 1, "{splits:?} {case}");
            }
            let bits = right(site, case, &tensors, known.clone());
            let device_bits = right(site, &other, &other_tensors, unknown.clone());
            // Where only the device knows the lengths, the pool has room for all tokens: other pages.
            if known_splits == unknown_splits && !matches!(case.kv, Kv::Paged { .. }) {
                assert!(bits == device_bits, "{known}\n{unknown}\n{known_splits:?}\n{case}");
                alike += 1;
            }
        }
        assert!(alike >= 3, "{alike} of {} have the same splits", cases.len());
        2 * cases.len()
    });
}

/// One plan, captured once: replayed with other lengths it splits other sequences, as an eager run does, and is right.
#[test]
fn a_graph_shares_splits_out_anew() {
    suite("ragged::a_graph_shares_splits_out_anew", |site| {
        let _alone = CAPTURE.lock();
        let mut cases = 0;
        for (sq, queries) in
            [(1, Queries::Dense), (2, Queries::Packed { lengths: vec![1, 2, 0, 2], known: Known::Device })]
        {
            let at = |lengths: &[u32; 4]| Case {
                splits: Splits::Auto,
                queries: queries.clone(),
                lengths: Lengths::Device(lengths.to_vec()),
                ..Case::new(4, sq, 1200, 1, 4)
            };
            let full = at(&[1200; 4]);
            let tensors = Tensors::new(&full);
            let plan = planned(site, &full, 4);
            let mut launch = Launch::planned(site, &full, &tensors, plan.clone()).expect("a valid case");
            let mut graph = None;
            let mut seen = Vec::new();
            for lengths in [[1200, 50, 0, 1], [50, 1200, 7, 1], [1200; 4], [0; 4], [600, 300, 90, 1200]] {
                let now = at(&lengths);
                launch.set_lengths(&lengths.map(|length| length as i32)).expect("four lengths");
                let graph = graph.get_or_insert_with(|| launch.capture().expect("a valid case"));
                launch.fill(0x00).expect("memory");
                launch.run().expect("a valid case");
                let eager = launch.read().expect("nothing wrong");
                launch.fill(0xff).expect("memory");
                launch.replay(graph).expect("a valid graph");
                let replayed = launch.read().expect("nothing wrong");
                assert!(eager == replayed, "lengths {lengths:?}");
                compare(&now, &tensors.expected(&now), &replayed.output(&now)).unwrap_or_else(|e| panic!("{e}\n{now}"));
                seen.push(splits(&plan, &now));
                cases += 1;
            }
            assert!(seen[0][0] > 1 && seen[0][1] == 1 && seen[1][1] > 1 && seen[3] == [1; 4], "{seen:?}");
        }
        cases
    });
}
