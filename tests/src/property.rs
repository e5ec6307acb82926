//! Checks a property on random cases: seeded, in parallel, shrunk to a small case when one fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use crate::case::Case;
use crate::launch::Failure;
use crate::site::{Site, say, suite};
use crate::strategy::{Budget, cases};

/// How many cases a property gets; default: a number for each kind of device.
const CASES: &str = "SPLITKV_CASES";
/// Seed of the random cases; default 1.
const SEED: &str = "SPLITKV_SEED";
/// A case as JSON: only this one runs.
const CASE: &str = "SPLITKV_CASE";

/// Sequences of cases that run side by side, whatever the number of cores, so that a seed means the same cases
/// everywhere.
const SHARDS: u64 = 16;
/// Cases tried to make a failing one smaller.
const SHRINKS: u32 = 200;

/// Checks `property` on random cases on each device. `name` is `file::test`, as cargo finds it.
///
/// # Panics
/// When the property fails, with a command that repeats the smallest failure found.
pub fn check(name: &str, property: impl Fn(&Site, &Case) -> Result<(), Failure> + Sync) {
    suite(name, |site| check_at(name, site, site.budget(), u64::from(site.usual_cases()), &property));
}

/// Checks `property` on one device: on as many random cases as the environment says, or else `usual`, each within
/// `budget`. Returns how many.
///
/// # Panics
/// As [`check`].
pub fn check_at(
    name: &str,
    site: &Site,
    budget: Budget,
    usual: u64,
    property: &(impl Fn(&Site, &Case) -> Result<(), Failure> + Sync),
) -> usize {
    if let Ok(text) = std::env::var(CASE) {
        let case = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{CASE}: {error}"));
        property(site, &case).unwrap_or_else(|failure| panic!("{}", describe(name, site, &case, &failure.to_string())));
        return 1;
    }
    let count = number(CASES).unwrap_or(usual);
    let seed = number(SEED).unwrap_or(1);
    let times = Mutex::new(Vec::new());
    let timed = |site: &Site, case: &Case| {
        let start = Instant::now();
        property(site, case)?;
        times.lock().unwrap_or_else(PoisonError::into_inner).push(start.elapsed());
        Ok(())
    };
    say(&format!("{name}: {count} cases of seed {seed} on {}", site.label()));
    let failures = in_threads(|shard| run_shard(name, site, budget, count, (seed, shard), &timed));
    if let Some(smallest) = failures.iter().min_by_key(|failure| failure.len()) {
        panic!("in {} of {SHARDS} shards; the smallest failure: {smallest}", failures.len());
    }
    let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    if let Some(median) = times.get(times.len() / 2) {
        say(&format!("{name}: median {median:.1?} a case on {}", site.label()));
    }
    count as usize
}

/// What `run` gives of each shard. Threads of their own: one that waits in rayon would begin another shard meanwhile,
/// which spoils times, and locks if the shard holds one.
fn in_threads(run: impl Fn(u64) -> Option<String> + Sync) -> Vec<String> {
    let next = AtomicU64::new(0);
    let worker = || {
        let shards = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        shards.take_while(|shard| *shard < SHARDS).filter_map(&run).collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(SHARDS as usize);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("the runner catches panics")).collect()
    })
}

fn run_shard(
    name: &str,
    site: &Site,
    budget: Budget,
    count: u64,
    (seed, shard): (u64, u64),
    property: &(impl Fn(&Site, &Case) -> Result<(), Failure> + Sync),
) -> Option<String> {
    let count = (count * (shard + 1) / SHARDS - count * shard / SHARDS) as u32;
    if count == 0 {
        return None;
    }
    let config = Config {
        cases: count,
        rng_seed: RngSeed::Fixed(seed.wrapping_mul(SHARDS) + shard),
        failure_persistence: None,
        max_shrink_iters: SHRINKS,
        ..Config::default()
    };
    let result = TestRunner::new(config)
        .run(&cases(budget), |case| property(site, &case).map_err(|failure| TestCaseError::fail(failure.to_string())));
    match result {
        Ok(()) => None,
        Err(TestError::Fail(reason, case)) => Some(describe(name, site, &case, reason.message())),
        Err(TestError::Abort(reason)) => Some(format!("{name}: {reason}")),
    }
}

fn describe(name: &str, site: &Site, case: &Case, reason: &str) -> String {
    let (file, test) = name.split_once("::").unwrap_or((name, ""));
    let device = site.device.name();
    format!(
        "{name} on {device}: {reason}\nrepeat with: SPLITKV_DEVICE={device} {CASE}='{case}' cargo test --release -p \
         splitkv-tests --test {file} {test}"
    )
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: not a number")))
}
