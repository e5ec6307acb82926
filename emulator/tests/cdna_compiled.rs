//! Compiled Rust (`cdna/arithmetic.rs`) against the host's results.

use half::f16;
use splitkv_emulator::{Arch, Machine};

/// The bytes of numbers.
trait Bytes: Copy {
    fn bytes(self) -> Vec<u8>;
}
macro_rules! bytes {
    ($($ty:ty)*) => { $(impl Bytes for $ty {
        fn bytes(self) -> Vec<u8> {
            self.to_le_bytes().to_vec()
        }
    })* };
}
bytes!(u8 u16 u32 u64 f32 f16);

fn all_bytes<T: Bytes>(numbers: &[T]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.bytes()).collect()
}

/// Runs a kernel with blocks of 64 threads; returns the last buffer.
fn run(kernel: &str, blocks: u32, inputs: &[Vec<u8>], output: usize, scalars: &[u64]) -> Vec<u8> {
    let machine = Machine::with_memory(Arch::Gfx950, 1 << 24);
    let module = machine.load(include_bytes!("cdna/arithmetic.elf")).unwrap();
    let mut arguments = Vec::new();
    for input in inputs {
        let address = machine.alloc(input.len() as u64).unwrap();
        machine.write(address, input).unwrap();
        arguments.push(address);
    }
    let address = machine.alloc(output as u64).unwrap();
    machine.fill(address, 0, output as u64).unwrap();
    arguments.push(address);
    arguments.extend(scalars);
    machine
        .launch(&module, kernel, [blocks, 1, 1], [64, 1, 1], 0, &arguments)
        .unwrap_or_else(|error| panic!("{kernel}: {error}"));
    let mut bytes = vec![0; output];
    machine.read(address, &mut bytes).unwrap();
    bytes
}

/// A sequence of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn integers() {
    let mut random = Random(88172645463325252);
    let a: Vec<u64> = (0..128).map(|i| random.next() >> (i % 60)).collect();
    let b: Vec<u64> = (0..128).map(|i| random.next() >> (i * 7 % 60) | 1).collect();
    let bytes = run("integers", 2, &[all_bytes(&a), all_bytes(&b)], 128 * 128, &[]);
    for (i, (&x, &y)) in a.iter().zip(&b).enumerate() {
        let expected = [
            x / y,
            x % y,
            (x as i64).wrapping_div(y as i64) as u64,
            u64::from(x as u32 / y as u32),
            x.leading_zeros().into(),
            x.count_ones().into(),
            x.rotate_left(y as u32 & 63),
            x.saturating_sub(y),
            (x as i64).max(y as i64) as u64,
            x.wrapping_mul(y),
            ((u128::from(x) * u128::from(y)) >> 64) as u64,
            x.swap_bytes(),
            (x as i32).abs_diff(y as i32).into(),
            (x as i64 >> (y & 63)) as u64,
            x.trailing_zeros().into(),
            u64::from(x as u16) * u64::from(y as u8),
        ];
        assert_eq!(bytes[i * 128..][..128], all_bytes(&expected), "{x:#x}, {y:#x}");
    }
}

#[test]
fn floats() {
    let mut random = Random(123456789);
    let mut number = || {
        let exponent = (random.next() % 40) as i32 - 20;
        let mantissa = 0.5 + (random.next() >> 40) as f32 / 2f32.powi(24);
        let sign = if random.next() & 1 == 1 { -1.0 } else { 1.0 };
        sign * mantissa * 2f32.powi(exponent)
    };
    let mut a: Vec<f32> = (0..128).map(|_| number()).collect();
    let b: Vec<f32> = (0..128).map(|_| number()).collect();
    a[..6].copy_from_slice(&[f32::NAN, f32::INFINITY, 0.0, -0.0, 1e-40, f32::MAX]);
    let bytes = run("floats", 2, &[all_bytes(&a), all_bytes(&b)], 128 * 64, &[]);
    for (i, (&x, &y)) in a.iter().zip(&b).enumerate() {
        let expected = [
            x / y,
            x.max(y),
            x.abs(),
            x.floor(),
            x.sqrt(),
            x as i32 as f32,
            x as u64 as f32,
            y as i64 as f32,
            f64::from(x).exp2() as f32,
            f64::from(x).log2() as f32,
            x.copysign(y),
            x.clamp(-1.0, 1.0),
            x.round_ties_even(),
            x.mul_add(y, 1.0),
            (f64::from(x) * f64::from(y) + 3.0) as f32,
            if x.is_nan() { 0.0 } else { x % y },
        ];
        for (k, expected) in expected.into_iter().enumerate() {
            let got = f32::from_le_bytes(bytes[i * 64 + k * 4..][..4].try_into().unwrap());
            // exp2 and log2 are approximations; the rest is exact.
            let tolerance = if k == 8 || k == 9 { expected.abs() * 3e-7 } else { 0.0 };
            let same = got == expected || (got.is_nan() && expected.is_nan());
            assert!(
                same || (got - expected).abs() <= tolerance,
                "result {k} of {x:e}, {y:e}: {got:e}, not {expected:e}"
            );
        }
    }
}

#[test]
fn halves() {
    let mut random = Random(42);
    let mut number = |_| f16::from_bits(random.next() as u16 & 0x83ff | ((8 + random.next() % 14) as u16) << 10);
    let a: Vec<f16> = (0..128).map(&mut number).collect();
    let b: Vec<f16> = (0..128).map(&mut number).collect();
    let bytes = run("halves", 2, &[all_bytes(&a), all_bytes(&b)], 128 * 16, &[]);
    for (i, (&x, &y)) in a.iter().zip(&b).enumerate() {
        let smaller = if x < y { x } else { y };
        let three_times = f16::from_f32(x.to_f32() * 3.0);
        let whole = f16::from_f32(x.to_f32().trunc() + 0.0);
        let expected = [x + y, x * y, x / y, three_times, smaller, whole, -x, x * y + x];
        assert_eq!(bytes[i * 16..][..16], all_bytes(&expected), "{x}, {y}");
    }
}

#[test]
fn sort_in_scratch_and_table_in_the_code_object() {
    let mut random = Random(7);
    let a: Vec<u8> = (0..300).map(|_| random.next() as u8).collect();
    let bytes = run("bytes", 1, std::slice::from_ref(&a), 64 * 32, &[300]);
    let table = [3u8, 1, 4, 1, 5, 9, 2, 6, 5, 3];
    for i in 0..64 {
        let mut sorted: Vec<u8> = (0..32).map(|k| a[(i * 7 + k) % 300]).collect();
        sorted.sort_unstable();
        let expected: Vec<u8> = (0..32).map(|k| sorted[(k * 5 + i) & 31] ^ table[(i + k) % 10]).collect();
        assert_eq!(bytes[i * 32..][..32], expected, "thread {i}");
    }
}

#[test]
fn divergent_branches_and_loops() {
    let mut random = Random(9);
    let a: Vec<u16> = (0..128).map(|_| random.next() as u16).collect();
    let bytes = run("words", 1, &[all_bytes(&a)], 128, &[100]);
    for i in 0..64 {
        let (x, y) = (a[i], a[i + 1]);
        let mut value = match x % 7 {
            0 => x.wrapping_add(y),
            1 => x.wrapping_mul(y),
            2 => x >> (y & 15),
            3 => x.max(y),
            4 => (x as i16).min(y as i16) as u16,
            5 => x.saturating_sub(y),
            _ => x / (y | 1),
        };
        for &word in a[..100].iter().filter(|&word| word % 5 != x % 5) {
            value = value.wrapping_mul(31).wrapping_add(word);
            if value > 60000 {
                break;
            }
        }
        assert_eq!(bytes[i * 2..][..2], value.to_le_bytes(), "thread {i}");
    }
}

/// Blocks wait for each other through a counter; the same run gives the same tickets.
#[test]
fn atomics_between_blocks() {
    let counters = vec![0; 16];
    let bytes = run("atomics", 4, &[counters], 256 * 4, &[256]);
    assert_eq!(bytes, all_bytes(&[255u32; 256]));
}
