//! The counters of the gauge are those of its file.

use splitkv_tests::gauge::Gauge;
use splitkv_tests::site::suite;

/// Says what to do when something moved, which need not be a fault.
const ACCEPT: &str = "`cargo xtask counters` shows what moved, `cargo xtask counters --accept` takes it over into \
                      tests/counters.json, to be committed with the change that moved it";

#[test]
fn counters_are_those_of_the_file() {
    suite("counters", |site| {
        if !site.is_emulated() {
            return 0;
        }
        let device = site.device.name();
        let old = Gauge::committed().unwrap_or_else(|error| panic!("{error}: {ACCEPT}")).of_device(device);
        let new = Gauge::measure(&[site]).unwrap_or_else(|error| panic!("{device}: {error}"));
        let moves = old.moves(&new);
        assert!(moves.is_empty(), "{} counters moved on {device}, such as {:?}: {ACCEPT}", moves.len(), moves[0]);
        assert_eq!(old, new, "the description of the problems changed: {ACCEPT}");
        new.0.len()
    });
}
