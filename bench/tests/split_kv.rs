//! The program as a user calls it, on the emulator.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// The program: as cargo built it, or beside this one where both were carried to another machine.
fn program() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_splitkv-bench"));
    if built.exists() { built } else { env::current_exe().unwrap().with_file_name("splitkv-bench") }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(program()).args(arguments).output().unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    fs::remove_file(path).unwrap();
    text
}

#[test]
fn a_small_sweep_is_counted_and_written() {
    let folder = env::temp_dir();
    let file = |kind: &str| folder.join(format!("splitkv-bench-{}.{kind}", std::process::id()));
    let [csv, json, svg] = ["csv", "json", "svg"].map(file);
    let sweep = "split-kv --device emulator:sm_90a --k 160 --heads 4 --kv-heads 2 --dtype f16 --check all";
    let files = [("--csv", &csv), ("--json", &json), ("--plot", &svg)];
    let files = files.iter().flat_map(|(flag, path)| [*flag, path.to_str().unwrap()]);
    let output = run(&sweep.split(' ').chain(files).collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("B1 Q1 K160 H4/2 D128"), "{text}");

    let csv = read(&csv);
    let mut lines = csv.lines();
    let header =
        "benchmark_type,num_splits,B,Q,K,H,D,kvheads_per_group,arithmetic_intensity,avg_time,tflops,bw,correctness";
    assert!(lines.next().unwrap().starts_with(&format!("{header},blocks,instructions,")), "{csv}");
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let kinds: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(kinds, [&["auto"][..], &["standard"; 8], &["q_tiles2"]].concat());
    let splits: Vec<_> = rows[1..9].iter().map(|row| row[1]).collect();
    assert_eq!(splits, ["1", "2", "4", "8", "16", "32", "64", "128"]);
    for row in &rows {
        assert_eq!(row[2..8], ["1", "1", "160", "4", "128", "2"]);
        // 4 * 160 * 4 * 128 operations; 2 * (2 * 160 * 2 * 128 + 2 * 4 * 128) bytes.
        assert!((row[8].parse::<f64>().unwrap() - 327_680.0 / 165_888.0).abs() < 1e-12);
        assert_eq!(row[9..13], ["", "", "", "True"]);
        assert!(row[14].parse::<u64>().unwrap() > 0);
    }

    let json: serde_json::Value = serde_json::from_str(&read(&json)).unwrap();
    assert_eq!(json["problem"]["kv_heads"], 2);
    assert_eq!(json["problem"]["dtype"], "f16");
    assert_eq!(json["ceiling"], serde_json::Value::Null);
    let lines = json["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 10);
    assert_eq!(lines[2]["choice"]["num_splits"], 2);
    assert_eq!(lines[2]["launches"].as_array().unwrap().len(), 1, "the last block merges");
    assert_eq!(lines[8]["choice"]["num_splits"], 128);
    assert_eq!(lines[8]["launches"].as_array().unwrap().len(), 2, "attention and combine");
    assert_eq!(lines[9]["choice"]["q_tiles"], 2);
    assert!(lines.iter().all(|line| line["correct"] == true && line["micros"].is_null()));
    assert!(read(&svg).ends_with("</svg>\n"));
}

#[test]
fn what_there_is_no_kernel_for_is_named_and_the_rest_is_run() {
    let output =
        run(&"split-kv --device emulator:sm_90a --k 20 --heads 1 --dim 64 --check none".split(' ').collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("q_tiles2 1 refused: q_tiles: given 2; allowed: 1 of the kernels"), "{text}");
}

#[test]
fn a_decode_without_a_gpu_shows_plans_and_what_is_missing() {
    let output = run(&"decode --device emulator:sm_90a --peers --python no-such-python".split(' ').collect::<Vec<_>>());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("B1 Q70 K11008 H12/12 D192/128"), "{text}");
    for peer in ["cudnn", "flash", "fa3", "flashinfer"] {
        assert!(text.contains(&format!("{peer}: missing: starting no-such-python: ")), "{text}");
    }
    let random = |seed| run(&["decode", "--device", "emulator:sm_90a", "--random", "5", "--seed", seed]).stdout;
    assert_eq!(random("3"), random("3"));
    assert_ne!(random("3"), random("4"));
}

#[test]
fn refusals_name_flag_value_and_what_is_allowed() {
    let sweep = |rest: &[&str]| refused(&[&["split-kv", "--device", "emulator:sm_90a"], rest].concat());
    assert!(sweep(&["--k", "0"]).contains("invalid value '0' for '--k <K>': 0 is not in 1.."));
    assert_eq!(sweep(&["--dim", "7"]), "error: --dim: given 7; allowed: a multiple of 8, at least 8\n");
    assert_eq!(sweep(&["--dim", "264"]), "error: --dim: given 264; allowed: a multiple of 8, at most 256\n");
    let heads = sweep(&["--heads", "6", "--kv-heads", "4"]);
    assert_eq!(heads, "error: --heads: given 6; allowed: a multiple of --kv-heads (4)\n");
    assert!(sweep(&["--dtype", "f64"]).contains("[possible values: bf16, f16]"));
    assert!(sweep(&["--k", "2000000000"]).contains("allowed: at most 1099511627776"));
    assert!(refused(&["split-kv", "--device", "tpu:0"]).starts_with("error: no device tpu:0: devices are named "));
    assert!(refused(&["decode", "--shape", "1,1"]).contains("allowed: batch, queries, tokens"));
    assert!(refused(&["decode", "--random", "3", "--peers"]).contains("cannot be used with"));
    assert!(refused(&["decode", "--seed", "3"]).contains("--random <N>"));
}
