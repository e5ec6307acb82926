//! Single instructions against what an H200 made of them.

use splitkv::{Device, Target};
use splitkv_tests::instructions::{PROBES, Recording};
use splitkv_tests::site::{Site, say, suite};

/// The results of an H200.
const RECORDED: &[u8] = include_bytes!("../recorded/instructions.bin");
/// A file to which the results of the first device of that architecture are written.
const RECORD: &str = "SPLITKV_RECORD";

/// Each instruction on each device of compute capability 9.0, emulated or not.
#[test]
fn recorded_on_an_h200() {
    suite("instructions", |site| {
        if site.device.props().target != Target::Sm90a {
            return 0;
        }
        let got = Recording::new(&site.device).unwrap_or_else(|error| panic!("{}: {error}", site.device));
        if let Ok(path) = std::env::var(RECORD) {
            std::fs::write(&path, got.to_bytes()).unwrap_or_else(|error| panic!("{RECORD}={path}: {error}"));
            say(&format!("recorded on {} in {path}", got.device));
            return PROBES.len();
        }
        compare(site, &got, &Recording::from_bytes(RECORDED).expect("the recording"))
    });
}

fn compare(site: &Site, got: &Recording, want: &Recording) -> usize {
    let mut failures = Vec::new();
    let mut count = 0;
    for (probe, (got, want)) in PROBES.iter().zip(got.probes.iter().zip(&want.probes)) {
        assert_eq!(got.operands, want.operands, "{}: recorded with other operands; record it again", probe.name);
        assert_eq!(got.words.len(), want.words.len(), "{}", probe.name);
        let (loaded, stored) = probe.words();
        let (mut equal, mut most, mut wrong) = (0, 0, Vec::new());
        for (index, (&got, &want)) in got.words.iter().zip(&want.words).enumerate() {
            let (allowed, ulps) = probe.kind.allows(got, want);
            equal += usize::from(got == want);
            most = most.max(ulps);
            if !allowed {
                wrong.push((index, got, want));
            }
        }
        count += want.words.len();
        say(&format!(
            "{} on {}: {equal} of {} bit-equal, most {most} ulp, {} wrong",
            probe.name,
            site.device.name(),
            want.words.len(),
            wrong.len()
        ));
        if let Some((index, got, want)) = wrong.first() {
            let thread = index / stored;
            let operands = probe.operands();
            let operands = &operands[thread * loaded..(thread + 1) * loaded];
            failures.push(format!(
                "{}: {} of {} wrong; thread {thread}, result {}: got {got:#010x}, recorded {want:#010x}, operands \
                 {operands:x?}",
                probe.name,
                wrong.len(),
                equal + wrong.len(),
                index % stored
            ));
        }
    }
    assert!(failures.is_empty(), "{} on {}:\n{}", failures.len(), site.device, failures.join("\n"));
    count
}

/// All of ex2 and lg2 from 1 to 2, as differences of neighbouring results, one 32-bit word each: what a model of their
/// tables is made from.
#[test]
#[ignore = "writes 64 MB to the folder SPLITKV_SWEEP"]
fn sweep() {
    let folder = std::path::PathBuf::from(std::env::var("SPLITKV_SWEEP").expect("SPLITKV_SWEEP names a folder"));
    let device = Device::open("cuda:0").expect("a GPU");
    let operands: Vec<u32> = (0..1 << 23).map(|mantissa| 1f32.to_bits() | mantissa).collect();
    for probe in PROBES.iter().filter(|probe| matches!(probe.name, "ex2" | "lg2")) {
        let results = probe.run(&device, &operands).expect("it runs");
        let before = std::iter::once(0).chain(results.iter().copied());
        let differences = results.iter().zip(before).flat_map(|(now, before)| now.wrapping_sub(before).to_le_bytes());
        std::fs::write(folder.join(probe.name), differences.collect::<Vec<u8>>())
            .expect("the folder can be written to");
    }
}
