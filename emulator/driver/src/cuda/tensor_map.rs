//! Tensor maps: `cuTensorMapEncodeTiled`, whose object has the emulator's format.

use splitkv_emulator::{Swizzle, TensorMap};

use crate::boundary::{In, Out, exports};
use crate::code::Code;
use crate::runtime::Result;

/// What the object's address is a multiple of.
const ALIGN: usize = 64;
/// Most dimensions.
const RANK: u32 = 5;

/// Bytes of an element, by the number of its `CUtensorMapDataType`.
fn element_bytes(number: u32) -> Result<u32> {
    match number {
        // u8
        0 => Ok(1),
        // u16, f16, bf16
        1 | 6 | 9 => Ok(2),
        // u32, i32, f32
        2 | 3 | 7 => Ok(4),
        // u64, i64, f64
        4 | 5 | 8 => Ok(8),
        // f32 without subnormals, tf32, packed 4- and 6-bit elements
        10..=15 => Err(Code::NotSupported),
        _ => Err(Code::InvalidValue),
    }
}

/// By the number of a `CUtensorMapSwizzle`.
fn swizzle(number: u32) -> Result<Swizzle> {
    match number {
        0 => Ok(Swizzle::None),
        1 => Ok(Swizzle::Span32),
        2 => Ok(Swizzle::Span64),
        3 => Ok(Swizzle::Span128),
        // Other atoms within 128 bytes.
        4..=6 => Err(Code::NotSupported),
        _ => Err(Code::InvalidValue),
    }
}

/// A number of which 0 is supported, and those up to `last` are known.
fn only_zero(number: u32, last: u32) -> Result<()> {
    match number {
        0 => Ok(()),
        _ if number <= last => Err(Code::NotSupported),
        _ => Err(Code::InvalidValue),
    }
}

exports! {
    fn cuTensorMapEncodeTiled(
        map: Out<[u8; 128]>, data_type: u32, rank: u32, address: u64, dims: In<u64>, strides: In<u64>,
        box_dims: In<u32>, element_strides: In<u32>, interleave: u32, swizzle_mode: u32, promotion: u32, fill: u32,
    ) {
        if !(1..=RANK).contains(&rank) || !map.is_aligned(ALIGN) || promotion > 3 {
            return Err(Code::InvalidValue);
        }
        // Interleaved layouts, and NaN in place of zeros outside.
        only_zero(interleave, 2)?;
        only_zero(fill, 1)?;
        let rank = rank as usize;
        let steps = element_strides.slice(rank)?;
        if steps.iter().any(|&step| step != 1) {
            let allowed = steps.iter().all(|step| (1..=8).contains(step));
            return Err(if allowed { Code::NotSupported } else { Code::InvalidValue });
        }
        map.put(|| {
            let map = TensorMap {
                address,
                element_bytes: element_bytes(data_type)?,
                dims: dims.slice(rank)?.to_vec(),
                strides: strides.slice(rank - 1)?.to_vec(),
                box_dims: box_dims.slice(rank)?.to_vec(),
                swizzle: swizzle(swizzle_mode)?,
            };
            map.encode().map_err(crate::runtime::code)
        })
    }
}
