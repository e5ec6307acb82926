//! Source of `arithmetic.elf`, which `cdna_compiled.rs` runs: what rustc's LLVM makes of everyday arithmetic.
//!
//! Compiled as a cdylib with fat LTO and one codegen unit:
//! `cargo build --release -Zbuild-std=core --target amdgcn-amd-amdhsa`, RUSTFLAGS `-Ctarget-cpu=gfx950`,
//! rustc 1.97.0-nightly (e50aa6fba 2026-05-19).

#![no_std]
#![feature(abi_gpu_kernel, f16, core_intrinsics, link_llvm_intrinsics, stdarch_amdgpu)]
#![allow(internal_features)]

use core::intrinsics;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

unsafe extern "C" {
    #[link_name = "llvm.amdgcn.workitem.id.x"]
    fn thread() -> u32;
    #[link_name = "llvm.amdgcn.workgroup.id.x"]
    fn block() -> u32;
}

fn index() -> usize {
    unsafe { (block() * 64 + thread()) as usize }
}

#[unsafe(no_mangle)]
pub unsafe extern "gpu-kernel" fn integers(a: *const u64, b: *const u64, out: *mut [u64; 16]) {
    let i = index();
    let (x, y) = unsafe { (*a.add(i), *b.add(i)) };
    let results = [
        x / y,
        x % y,
        (x as i64).wrapping_div(y as i64) as u64,
        u64::from((x as u32) / (y as u32)),
        u64::from(x.leading_zeros()),
        u64::from(x.count_ones()),
        x.rotate_left(y as u32 & 63),
        x.saturating_sub(y),
        (x as i64).max(y as i64) as u64,
        x.wrapping_mul(y),
        ((u128::from(x) * u128::from(y)) >> 64) as u64,
        x.swap_bytes(),
        u64::from((x as i32).abs_diff(y as i32)),
        (x as i64 >> (y & 63)) as u64,
        u64::from(x.trailing_zeros()),
        u64::from(x as u16) * u64::from(y as u8),
    ];
    unsafe { *out.add(i) = results };
}

#[unsafe(no_mangle)]
pub unsafe extern "gpu-kernel" fn floats(a: *const f32, b: *const f32, out: *mut [f32; 16]) {
    let i = index();
    let (x, y) = unsafe { (*a.add(i), *b.add(i)) };
    let results = [
        x / y,
        x.max(y),
        x.abs(),
        intrinsics::floorf32(x),
        intrinsics::sqrtf32(x),
        x as i32 as f32,
        (x as u64) as f32,
        (y as i64) as f32,
        intrinsics::exp2f32(x),
        intrinsics::log2f32(x),
        x.copysign(y),
        x.clamp(-1.0, 1.0),
        intrinsics::round_ties_even_f32(x),
        intrinsics::fmaf32(x, y, 1.0),
        (f64::from(x) * f64::from(y) + 3.0) as f32,
        if x.is_nan() { 0.0 } else { x % y },
    ];
    unsafe { *out.add(i) = results };
}

#[unsafe(no_mangle)]
pub unsafe extern "gpu-kernel" fn halves(a: *const f16, b: *const f16, out: *mut [f16; 8]) {
    let i = index();
    let (x, y) = unsafe { (*a.add(i), *b.add(i)) };
    let smaller = if x < y { x } else { y };
    unsafe { *out.add(i) = [x + y, x * y, x / y, (x as f32 * 3.0) as f16, smaller, x as i32 as f16, -x, x * y + x] };
}

/// A sort in scratch memory, and a table in the code object.
#[unsafe(no_mangle)]
pub unsafe extern "gpu-kernel" fn bytes(a: *const u8, out: *mut [u8; 32], n: u32) {
    let i = index();
    let mut sorted = [0; 32];
    for (k, byte) in sorted.iter_mut().enumerate() {
        *byte = unsafe { *a.add((i * 7 + k) % n as usize) };
    }
    sorted.sort_unstable();
    let table = [3u8, 1, 4, 1, 5, 9, 2, 6, 5, 3];
    for k in 0..32 {
        let value = sorted[(k * 5 + i) & 31] ^ table[(i + k) % 10];
        unsafe { (*out.add(i))[k] = value };
    }
}

/// Divergent branches and loops.
#[unsafe(no_mangle)]
pub unsafe extern "gpu-kernel" fn words(a: *const u16, out: *mut u16, n: u32) {
    let i = index();
    let (x, y) = unsafe { (*a.add(i), *a.add(i + 1)) };
    let mut value = match x % 7 {
        0 => x.wrapping_add(y),
        1 => x.wrapping_mul(y),
        2 => x >> (y & 15),
        3 => x.max(y),
        4 => (x as i16).min(y as i16) as u16,
        5 => x.saturating_sub(y),
        _ => x / (y | 1),
    };
    for k in 0..n {
        let word = unsafe { *a.add(k as usize) };
        if word % 5 == x % 5 {
            continue;
        }
        value = value.wrapping_mul(31).wrapping_add(word);
        if value > 60000 {
            break;
        }
    }
    unsafe { *out.add(i) = value };
}

/// A counter that all threads wait for, as a ticket between blocks does.
#[unsafe(no_mangle)]
pub unsafe extern "gpu-kernel" fn atomics(counters: *mut u32, out: *mut u32, all: u32) {
    let i = index();
    let counter = unsafe { AtomicU32::from_ptr(counters) };
    let largest = unsafe { AtomicU32::from_ptr(counters.add(1)) };
    let sum = unsafe { AtomicU64::from_ptr(counters.add(2).cast()) };
    sum.fetch_add(3 + i as u64, Ordering::Relaxed);
    largest.fetch_max(i as u32, Ordering::Relaxed);
    let ticket = counter.fetch_add(1, Ordering::AcqRel);
    while counter.load(Ordering::Acquire) < all {}
    unsafe { *out.add(ticket as usize) = largest.load(Ordering::Relaxed) };
}
