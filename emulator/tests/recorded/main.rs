//! Single instructions give the values that an H200 gave.
//!
//! `h200.txt` holds what the kernels of [`cases`] stored there: one line a case, one hexadecimal word a store. The
//! ignored test `record` makes the file on a machine with a CUDA driver.

mod cases;
mod cuda;

use cases::{Case, Expect, Values};
use splitkv_emulator::{Arch, Machine};

const RECORDED: &str = include_str!("h200.txt");

/// What the emulator's kernel stores.
fn emulate(case: &Case) -> Vec<u32> {
    let machine = Machine::new(Arch::Sm90);
    let module = machine.load(case.ptx().as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let input: Vec<u8> = case.input().iter().flat_map(|word| word.to_le_bytes()).collect();
    let from = machine.alloc(input.len() as u64).unwrap();
    machine.write(from, &input).unwrap();
    let mut output = vec![0; case.output_words() * 4];
    let to = machine.alloc(output.len() as u64).unwrap();
    machine.fill(to, 0, output.len() as u64).unwrap();
    let (grid, block) = ([case.warps, 1, 1], [32, 1, 1]);
    machine.launch(&module, "k", grid, block, 0, &[from, to]).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    machine.read(to, &mut output).unwrap();
    output.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn recorded(name: &str) -> Vec<u32> {
    let line = RECORDED.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let line = line.unwrap_or_else(|| panic!("{name} is not recorded"));
    line.split(' ').map(|word| u32::from_str_radix(word, 16).unwrap()).collect()
}

/// Distance of two floats in units in the last place; NaN equals NaN.
fn ulps(a: u32, b: u32) -> u32 {
    let order = |bits: u32| if bits >> 31 != 0 { -((bits & 0x7fff_ffff) as i64) } else { bits as i64 };
    if f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan() { 0 } else { order(a).abs_diff(order(b)) as u32 }
}

fn check(cases: Vec<Case>) {
    for case in cases {
        let (ours, theirs) = (emulate(&case), recorded(&case.name));
        assert_eq!(ours.len(), theirs.len(), "{}", case.name);
        for (i, (&ours, &theirs)) in ours.iter().zip(&theirs).enumerate() {
            let near = match case.expect {
                Expect::Bits => ours == theirs,
                Expect::Within(most, error) => {
                    ulps(ours, theirs) <= most || (f32::from_bits(ours) - f32::from_bits(theirs)).abs() <= error
                }
            };
            assert!(near, "{} word {i}: {ours:#x}, H200: {theirs:#x}", case.name);
        }
    }
}

#[test]
fn arithmetic() {
    check(cases::arithmetic());
}

#[test]
fn approximate_functions() {
    check(cases::approximate());
}

#[test]
fn exchanges_between_lanes() {
    check(cases::lanes());
}

#[test]
fn matrix_loads() {
    check(cases::matrix_loads());
}

#[test]
fn matrix_products() {
    check(cases::matrix_products());
}

/// Writes `h200.txt` anew, to the path in `RECORD_TO`.
#[test]
#[ignore = "needs an NVIDIA GPU; writes the file that the other tests compare with"]
fn record() {
    let path = std::env::var("RECORD_TO").expect("RECORD_TO names the file to write");
    let device = cuda::Device::open();
    let all =
        [cases::arithmetic(), cases::approximate(), cases::lanes(), cases::matrix_loads(), cases::matrix_products()];
    let mut text = String::new();
    for case in all.into_iter().flatten() {
        let words = device.run(&case.ptx(), case.warps, &case.input(), case.output_words());
        let words: Vec<String> = words.iter().map(|word| format!("{word:x}")).collect();
        text += &format!("{}: {}\n", case.name, words.join(" "));
    }
    std::fs::write(path, text).unwrap();
}

#[test]
fn inputs_hold_special_values() {
    let words = Values::Floats.words(4096);
    for special in [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 1, 0x3f80_0000] {
        assert!(words.contains(&special), "{special:#x}");
    }
}
