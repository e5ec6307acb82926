//! A GPU and the emulator of its architecture, on the same random problems with the same kernels.

use std::fs::File;
use std::io::Write;
use std::sync::Mutex;

use splitkv::Plan;
use splitkv_tests::agreement::{Agreement, compare};
use splitkv_tests::case::Case;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Bits, run};
use splitkv_tests::property::check_at;
use splitkv_tests::site::{Site, say, suite};
use splitkv_tests::strategy::Budget;

const NAME: &str = "agreement::with_the_emulator";
/// Random problems.
const CASES: u64 = 1000;
/// A file to which the GPU's outputs are written, a line of JSON a case.
const RECORD: &str = "SPLITKV_RECORD";

/// O and LSE agree within the rounding of the approximate instructions.
#[test]
fn with_the_emulator() {
    suite(NAME, |gpu| {
        if gpu.is_emulated() {
            say(&format!("{NAME}: skipped on {}, which is no GPU", gpu.device.name()));
            return 0;
        }
        let emulator = format!("emulator:{}", gpu.device.props().target.name());
        let emulator = Site::open(&emulator).unwrap_or_else(|error| panic!("{emulator}: {error}"));
        let record = std::env::var(RECORD)
            .ok()
            .map(|path| Mutex::new(File::create(&path).unwrap_or_else(|error| panic!("{RECORD}={path}: {error}"))));
        let (sum, failures) = (Mutex::new(Agreement::default()), Mutex::new(Vec::new()));
        let count = check_at(NAME, gpu, Budget::EMULATOR, CASES, &|gpu: &Site, case: &Case| {
            let tensors = Tensors::new(case);
            let (got, plan) = run(gpu, case, &tensors)?;
            if let Some(record) = &record {
                writeln!(record.lock().expect("no panic while it is held"), "{}", line(case, &got))?;
            }
            let (want, emulated_plan) = run(&emulator, case, &tensors)?;
            // The devices' names differ, what is launched must not.
            let launched = |plan: &Plan| (*plan.kernel(), plan.num_splits(), plan.split_tokens(), plan.attention());
            if launched(&plan) != launched(&emulated_plan) {
                return Err(format!("planned differently: {plan}\nand {emulated_plan}").into());
            }
            let (agreement, wrong) = compare(case, &tensors.expected(case), &got, &want);
            *sum.lock().expect("no panic while it is held") += agreement;
            let wrong = wrong.map(|wrong| format!("{wrong}: {case}"));
            failures.lock().expect("no panic while it is held").extend(wrong);
            Ok(())
        });
        let sum = sum.into_inner().expect("no panic while it is held");
        say(&format!("{NAME}: {} and {}\n{sum}", gpu.device, emulator.device));
        // All cases first: how many agree says more than the smallest that does not.
        let failures = failures.into_inner().expect("no panic while it is held");
        assert!(failures.is_empty(), "{} cases are too far apart:\n{}", failures.len(), failures.join("\n"));
        count
    });
}

/// A case with its outputs in hexadecimal.
fn line(case: &Case, bits: &Bits) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{{\"case\": {case}, \"o\": \"{}\", \"lse\": \"{}\"}}", hex(&bits.o), hex(&bits.lse))
}
