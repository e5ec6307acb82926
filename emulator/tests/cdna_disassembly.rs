//! The decoder's text against LLVM's, instruction by instruction.

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
