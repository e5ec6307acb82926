//! The random cases are what they are said to be. Needs no device.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use splitkv::{Catalogue, DeviceProps, Target, plan};
use splitkv_tests::case::Case;
use splitkv_tests::histogram::Histogram;
use splitkv_tests::launch::{options, problem};
use splitkv_tests::strategy::{Budget, cases};

fn drawn(budget: Budget, seed: u64, count: usize) -> Vec<Case> {
    let mut runner = TestRunner::new(Config { rng_seed: RngSeed::Fixed(seed), ..Config::default() });
    let strategy = cases(budget);
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("nothing is filtered").current()).collect()
}

#[test]
fn enough_cases_split_are_causal_and_have_empty_splits() {
    for target in Target::ALL {
        for (name, budget) in [("GPU", Budget::GPU), ("emulator", Budget::EMULATOR)] {
            let (device, catalogue) = (DeviceProps::of(target), Catalogue::of(target));
            let mut histogram = Histogram::default();
            for case in drawn(budget, 7, 2000) {
                match plan(&problem(&case), &options(&case), &device, &catalogue) {
                    Ok(plan) => histogram.add(&case, &plan),
                    Err(error) => panic!("{error}: {case}"),
                }
            }
            println!("{} with the budget of a {name}: {histogram}", target.name());
            histogram.assert_composition();
        }
    }
}

#[test]
fn cases_are_within_their_budget_and_lengths_within_sk() {
    for budget in [Budget::EMULATOR, Budget::GPU] {
        let mut work: Vec<usize> = Vec::new();
        for case in drawn(budget, 3, 2000) {
            assert!(case.lengths().iter().all(|length| *length <= case.sk), "{case}");
            work.push(case.batch * case.kv_heads * (case.sq * case.group).div_ceil(16) * case.sk);
        }
        work.sort_unstable();
        // A tile may be begun beyond it.
        assert!(work[work.len() - 1] <= budget.most * 2, "{}", work[work.len() - 1]);
        assert!(work[work.len() / 2] <= budget.usual, "{}", work[work.len() / 2]);
        println!("median {}, 90 %: {}", work[work.len() / 2], work[work.len() * 9 / 10]);
    }
}

#[test]
fn a_case_survives_its_line_of_json() {
    for case in drawn(Budget::GPU, 5, 200) {
        let line = case.to_string();
        assert!(!line.contains('\n') && !line.contains('\''), "{line}");
        assert_eq!(serde_json::from_str::<Case>(&line).expect("its own JSON"), case);
    }
}

#[test]
fn a_seed_means_the_same_cases() {
    assert_eq!(drawn(Budget::GPU, 11, 20), drawn(Budget::GPU, 11, 20));
    assert_ne!(drawn(Budget::GPU, 11, 20), drawn(Budget::GPU, 12, 20));
}
