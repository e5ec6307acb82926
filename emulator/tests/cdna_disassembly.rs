//! The decoder's text against LLVM's, instruction by instruction.

use std::path::{Path, PathBuf};
use std::process::Command;

use splitkv_emulator::cdna::disassemble;

/// Lines of `text // WORD WORD ...`, as llvm-objdump prints them.
fn compare(listing: &str) -> usize {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in listing.lines().filter(|line| !line.trim().is_empty()) {
        let (text, words) = line.split_once("//").expect("a listing's line has its words after //");
        let code: Vec<u8> = words
            .split_whitespace()
            .flat_map(|word| u32::from_str_radix(word, 16).expect("hexadecimal words").to_le_bytes())
            .collect();
        let ours: Vec<_> = disassemble(&code).into_iter().map(|(_, line)| line.unwrap_or_else(|error| error)).collect();
        if ours != [text.trim()] {
            wrong.push(format!("{}\n  ours: {ours:?}", line.trim()));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
    count
}

/// One instruction of each encoding and modifier, assembled and listed by LLVM 22.
#[test]
fn encodings() {
    assert!(compare(include_str!("cdna/encodings.txt")) >= 80);
}

/// Every line of the other tests.
#[test]
fn words() {
    assert!(compare(include_str!("cdna/words.txt")) >= 300);
}

/// llvm-objdump of the toolchain's component llvm-tools.
fn objdump() -> Option<PathBuf> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let tools = Path::new(std::str::from_utf8(&sysroot.stdout).ok()?.trim()).join("lib/rustlib");
    let tool = tools.join("x86_64-unknown-linux-gnu/bin/llvm-objdump");
    tool.exists().then_some(tool)
}

/// Every instruction of every kernel that `cargo xtask build-kernels` made.
#[test]
fn compiled_kernels() {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernels/gfx950");
    let files: Vec<_> = std::fs::read_dir(&kernels)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    let files: Vec<_> = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "elf")).collect();
    let Some(objdump) = objdump() else {
        println!("skipped: the toolchain has no llvm-objdump (rustup component llvm-tools)");
        return;
    };
    if files.is_empty() {
        println!("skipped: no code object in {} (cargo xtask build-kernels)", kernels.display());
        return;
    }
    for file in files {
        let output =
            Command::new(&objdump).args(["-d", "--mcpu=gfx950"]).arg(&file).output().expect("llvm-objdump runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // `text  // 000000002F00: BEDE0004 <symbol>`
        let listing: String = String::from_utf8(output.stdout)
            .expect("llvm-objdump writes UTF-8")
            .lines()
            .filter_map(|line| line.rsplit_once("//"))
            .map(|(text, rest)| (text, rest.split_once(": ").map_or("", |(_, words)| words)))
            .map(|(text, words)| format!("{text}// {}\n", words.split('<').next().unwrap_or("").trim()))
            .collect();
        println!("{}: {} instructions", file.display(), compare(&listing));
    }
}
