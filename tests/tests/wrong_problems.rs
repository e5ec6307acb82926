//! Random problems that are right but for one thing: each is refused by an error that names it, and nothing is launched,
//! not even a part.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastrand::Rng;
use splitkv::{Error, plan};
use splitkv_tests::case::Case;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Failure, Launch, options, problem};
use splitkv_tests::property::check_at;
use splitkv_tests::site::{Site, say, suite};
use splitkv_tests::strategy::Budget;
use splitkv_tests::wrong::{PROBLEMS, Wrong, tensors};

const NAME: &str = "wrong_problems::each_is_refused";
/// Random problems, each of which is made wrong in [`WRONGS`] ways.
const CASES: u64 = 160;
const WRONGS: usize = 8;
/// What matters is what is wrong.
const BUDGET: Budget = Budget { usual: 64, most: 256 };

/// Fails unless `result` is a refusal of what is wrong, in words that say so.
fn refused<T, Change>(result: splitkv::Result<T>, wrong: &Wrong<Change>) -> Result<(), Failure> {
    let words = format!("{} with {:?} for {:?}", wrong.argument, wrong.given, wrong.allowed);
    match result {
        Ok(_) => Err(format!("{words}: not refused").into()),
        Err(Error::Argument { argument, given, allowed })
            if argument == wrong.argument && given.contains(wrong.given) && allowed.contains(wrong.allowed) =>
        {
            Ok(())
        }
        Err(error) => Err(format!("{words}: {error}").into()),
    }
}

/// Makes a right case wrong in several ways, one after another.
fn each_is_refused(site: &Site, case: &Case, count: impl Fn(&'static str)) -> Result<(), Failure> {
    let mut rng = Rng::with_seed(case.seed);
    let mut launch = Launch::new(site, case, &Tensors::new(case))?;
    let problems: Vec<_> = PROBLEMS.iter().filter(|wrong| (wrong.applies)(case)).collect();
    let tensors: Vec<_> = tensors().into_iter().filter(|wrong| (wrong.applies)(case)).collect();
    for wrong in rng.choose_multiple(problems, WRONGS / 2) {
        let (mut problem, mut options) = (problem(case), options(case));
        (wrong.change)(&mut problem, &mut options);
        refused(plan(&problem, &options, site.device.props(), site.kernels.catalogue()), wrong)?;
        count(wrong.argument);
    }
    for wrong in rng.choose_multiple(tensors, WRONGS - WRONGS / 2) {
        let mut given = launch.given().clone();
        (wrong.change)(&mut given)?;
        refused(launch.enqueue(&given), &wrong)?;
        count(wrong.argument);
    }
    // Nothing was written, and what is right still runs.
    let before = launch.read()?;
    if before.o.iter().chain(&before.lse).any(|byte| *byte != 0xff) {
        return Err("a refused call wrote to the output".into());
    }
    launch.run()?;
    launch.read()?;
    Ok(())
}

#[test]
fn each_is_refused_by_name() {
    suite(NAME, |site| {
        let (tried, names) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        let count = |name| {
            tried.fetch_add(1, Ordering::Relaxed);
            *names.lock().expect("no panic while it is held").entry(name).or_insert(0) += 1;
        };
        check_at(NAME, site, BUDGET, CASES, &|site: &Site, case: &Case| each_is_refused(site, case, count));
        say(&format!("{NAME}: by argument: {:?}", names.into_inner().expect("no panic while it is held")));
        tried.into_inner()
    });
}
