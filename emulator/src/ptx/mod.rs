//! PTX: parsed, decoded once, and executed a warp at a time.
//!
//! A warp's lanes run together as long as they are at the same instruction. Where they part, those furthest
//! behind go first, so that the others are met again; instructions that need lanes together (`.sync`) wait for
//! them.

//!
//! What works while a warp goes on:
//!
//! - `mbarrier` are barriers in shared memory; `units` does the asynchronous work, as late as it may;
//! - `bulk` copies pieces and boxes; `descriptor` finds matrices in shared memory and multiplies them;
//! - `wgmma` are the products of a warpgroup; `tcgen05` are those whose accumulators are in tensor memory (`tensor`).
//!
//! Not there: clusters of more than one block, products of a pair of blocks, sparse and block-scaled products,
//! accumulators of f16, copies that reduce or gather, and the proxies of constants and tensor maps. A map that a
//! kernel changes, or global memory that it writes and then copies, needs fences that are not asked for here. Lanes of
//! a warp count as one where they leave something for others: one that arrives after its siblings' accesses speaks
//! for them.

#![allow(clippy::needless_range_loop, reason = "a lane is an index into several arrays at once")]

mod access;
mod allocate;
mod alu;
mod bits;
mod bulk;
mod convert;
mod decode;
mod descriptor;
mod float;
mod instructions;
mod kinds;
mod lanes;
mod lexer;
mod matrix;
mod mbarrier;
mod ops;
mod parser;
mod registers;
mod special;
mod tcgen05;
mod tensor;
mod unit_ops;
mod units;
mod warp;
mod wgmma;

use crate::engine::AnyProgram;
use crate::{Arch, Error};
use std::sync::Arc;

/// Decodes all kernels of a module.
pub(crate) fn load(arch: Arch, image: &[u8]) -> Result<Vec<Box<dyn AnyProgram>>, Error> {
    let image = image.strip_suffix(&[0]).unwrap_or(image);
    let text = std::str::from_utf8(image)
        .map_err(|e| Error::Load { place: format!("byte {}", e.valid_up_to()), reason: "not PTX text".into() })?;
    let module = parser::parse(text)?;
    let number = |name: &str| name.strip_prefix("sm_")?.trim_end_matches(['a', 'f']).parse::<u32>().ok();
    let found = number(module.target).ok_or_else(|| {
        let reason = format!("{:?} names no architecture", module.target);
        Error::Load { place: "the .target line".into(), reason }
    })?;
    // Code for one architecture, for a family, or for whatever comes later too.
    let runs = |device: u32| match module.target.as_bytes().last() {
        Some(b'a') => found == device,
        Some(b'f') => found <= device && found / 10 == device / 10,
        _ => found <= device,
    };
    if !number(arch.name()).is_some_and(runs) {
        return Err(Error::OtherArch { found: module.target.into(), arch: arch.name() });
    }
    let lines: Arc<[String]> = text.lines().map(|line| line.trim().to_owned()).collect();
    let mut kernels: Vec<Box<dyn AnyProgram>> = Vec::new();
    for kernel in &module.kernels {
        kernels.push(Box::new(decode::decode(&module, kernel, lines.clone())?));
    }
    Ok(kernels)
}
