//! Runs the suites: builds and checks the kernels, then everything that cargo finds, on the devices there
//! are; or builds the test programs for another machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Deserialize;

use crate::build_kernels::KernelBuilder;
use crate::check_kernels;
use crate::cuda::{Cuda, Emulated};
use crate::workspace::{cargo, output, run, target_dir};

/// The library reads this variable when it is given no path.
pub(crate) const KERNELS_VARIABLE: &str = "SPLITKV_KERNELS";
/// Tests and tools run on these devices, a comma-separated list, instead of all that there are.
pub(crate) const DEVICE_VARIABLE: &str = "SPLITKV_DEVICE";
/// Suites append a [`Ran`] to this file.
const REPORT_VARIABLE: &str = "SPLITKV_TEST_REPORT";

/// Cases of a property that run through the drivers' files without a GPU, a number by the suites' variable.
const DRIVER_CASES: (&str, &str) = ("SPLITKV_CASES", "6");

/// What runs there.
const DRIVER_TESTS: [&str; 7] = [
    "--package=splitkv",
    "--package=splitkv-tests",
    "--example=own_cuda",
    "--test=cuda",
    "--test=drivers",
    "--test=graphs",
    "--test=properties",
];

/// The library's own tests of kernels that are in the program.
const EMBEDDED_TESTS: [&str; 4] = ["--lib", "--features=embed-kernels", "--", "embedded::"];

/// The packages whose tests are carried to another machine.
const CARRIED_PACKAGES: [&str; 3] = ["--package=splitkv", "--package=splitkv-tests", "--package=splitkv-bench"];

/// A line of the report: so many cases of a suite ran on a device.
#[derive(Deserialize)]
struct Ran {
    suite: String,
    device: String,
    cases: u64,
}

/// Runs everything. `device` and `arguments` (for cargo test) are passed on; with either, that is all, else what needs
/// the drivers' files runs on the emulator behind the drivers' functions as well.
pub(crate) fn test(device: Option<&str>, cuda: Cuda, arguments: &[String]) -> Result<()> {
    let kernels = KernelBuilder::new().build()?;
    check_kernels::check(&kernels, false)?;

    let report = target_dir().join("test-report.jsonl");
    fs::write(&report, "").with_context(|| format!("cannot write {}", report.display()))?;
    let command = |packages: &[&str]| {
        let mut command = cargo();
        command.args(["test", "--release", "--no-fail-fast"]).args(packages);
        command.env(KERNELS_VARIABLE, &kernels).env(REPORT_VARIABLE, &report);
        command
    };
    let mut all = command(&["--workspace"]);
    cuda.apply(&mut all)?;
    all.args(arguments);
    if let Some(device) = device {
        all.env(DEVICE_VARIABLE, device);
    }
    let mut result = run(&mut all);
    if device.is_none() && arguments.is_empty() {
        eprintln!("On {} of the emulator behind the drivers' functions:", Emulated::DEVICES);
        let mut drivers = command(&DRIVER_TESTS);
        Emulated::build()?.apply(&mut drivers)?;
        drivers.env(DEVICE_VARIABLE, Emulated::DEVICES).env(DRIVER_CASES.0, DRIVER_CASES.1);
        result = result.and(run(&mut drivers));
        eprintln!("With the kernels in the program:");
        result = result.and(run(command(&["--package=splitkv"]).args(EMBEDDED_TESTS)));
    }
    println!("{}", summary(&fs::read_to_string(&report)?)?);
    result
}

/// How many cases ran where: the sums of the report's lines by suite and device.
fn summary(report: &str) -> Result<String> {
    let mut sums = BTreeMap::new();
    for line in report.lines() {
        let ran: Ran = serde_json::from_str(line).with_context(|| format!("in the suites' report: {line}"))?;
        *sums.entry((ran.device, ran.suite)).or_insert(0) += ran.cases;
    }
    if sums.is_empty() {
        return Ok("No suite ran cases on a device.".into());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["device", "suite", "cases"]);
    for ((device, suite), cases) in sums {
        table.add_row([device, suite, cases.to_string()]);
    }
    table.column_mut(2).expect("the header has three columns").set_cell_alignment(CellAlignment::Right);
    Ok(table.to_string())
}

/// Builds kernels and test programs into `out`, to be run on a machine of the same kind without Rust:
/// `SPLITKV_KERNELS=out/kernels out/PROGRAM`.
pub(crate) fn build_tests(kernels: KernelBuilder, cuda: Cuda, out: &Path) -> Result<()> {
    kernels.out_dir(out.join("kernels")).build()?;
    let mut copied = Vec::new();
    for build in [&["test", "--no-run"][..], &["build", "--bins"]] {
        let mut command = cargo();
        command.args(build).args(["--release", "--message-format=json-render-diagnostics"]).args(CARRIED_PACKAGES);
        cuda.apply(&mut command)?;
        for program in programs(&output(command.stderr(Stdio::inherit()))?)? {
            let name = program.file_name().context("a program without a name")?.to_string_lossy();
            let name = without_hash(&name);
            fs::copy(&program, out.join(name)).with_context(|| format!("copying {}", program.display()))?;
            copied.push(name.to_owned());
        }
    }
    copied.sort();
    eprintln!("in {}: kernels/, {}", out.display(), copied.join(", "));
    Ok(())
}

/// Test programs are called NAME-HASH, with 16 hexadecimal digits; other programs NAME.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => name,
    }
}

/// The executables in cargo's JSON messages.
fn programs(messages: &str) -> Result<Vec<PathBuf>> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let messages = messages.lines().map(|line| serde_json::from_str::<Message>(line).context("cargo's message"));
    messages.filter_map(|message| message.map(|message| message.executable).transpose()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_added_up() {
        let report = r#"{"suite":"properties","device":"cuda:0","cases":2000}
{"suite":"reports","device":"cuda:0","cases":7}
{"suite":"properties","device":"cuda:0","cases":5}
{"suite":"properties","device":"emulator:sm_90a","cases":3}
"#;
        let lines: Vec<String> = summary(report).unwrap().lines().map(str::to_owned).collect();
        let words = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines.len(), 4);
        assert_eq!(words(&lines[1]), ["cuda:0", "properties", "2005"]);
        assert_eq!(words(&lines[2]), ["cuda:0", "reports", "7"]);
        assert_eq!(words(&lines[3]), ["emulator:sm_90a", "properties", "3"]);
        assert_eq!(summary("").unwrap(), "No suite ran cases on a device.");
        assert!(summary("{}").is_err());
    }

    #[test]
    fn programs_are_found_and_named() {
        let messages = r#"{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-artifact","executable":"/t/properties-0123456789abcdef"}
{"reason":"build-finished","success":true}
"#;
        let found = programs(messages).unwrap();
        assert_eq!(found, [PathBuf::from("/t/properties-0123456789abcdef")]);
        assert_eq!(without_hash("properties-0123456789abcdef"), "properties");
        assert_eq!(without_hash("decode-bench"), "decode-bench");
    }
}
