//! Products of a warpgroup: wgmma.

use super::{Decoded, Modifiers, Operands};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::descriptor::Major;
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;

pub(super) fn decode(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    d.need_target(&["sm_90a"])?;
    d.uses_units();
    let kind = m.one_of(&["fence", "commit_group", "wait_group", "mma_async"]);
    if !m.flag("sync") || !m.flag("aligned") {
        return Err(d.error("wgmma needs .sync.aligned"));
    }
    let op = match kind {
        Some("fence") => Op::WgmmaFence,
        Some("commit_group") => Op::WgmmaCommit,
        Some("wait_group") => Op::WgmmaWait { pending: d.immediate(o.get(d, 0)?)? },
        Some("mma_async") => {
            let product = product(d, m, o)?;
            return Ok((Op::Wgmma(Box::new(product)), Class::Matrix, Together::All));
        }
        _ => return Err(d.error("wgmma of this form is not supported")),
    };
    Ok((op, Class::Sync, Together::All))
}

/// Rows, columns and depth of `m64n72k32`.
fn shape(text: &str) -> Option<(u32, u32)> {
    let (n, k) = text.strip_prefix("m64n")?.split_once('k')?;
    Some((n.parse().ok()?, k.parse().ok()?))
}

fn product(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Wgmma, Error> {
    let [shape_name, "f32", a_name, b_name] = m.parts[..] else {
        return Err(d.error("wgmma of this form is not supported"));
    };
    let (Some((n, k)), Some(a_ty), Some(b_ty)) = (shape(shape_name), MatrixTy::parse(a_name), MatrixTy::parse(b_name))
    else {
        return Err(d.error(format!("wgmma {shape_name} of {a_name} and {b_name} is not supported")));
    };
    let wide = a_ty.bytes() == 2;
    let types = a_ty.bytes() == b_ty.bytes() && (!wide || a_ty == b_ty);
    if !types || !(8..=256).contains(&n) || !n.is_multiple_of(8) || k != 32 / a_ty.bytes() {
        return Err(d.error(format!("wgmma {shape_name} of {a_name} and {b_name} is not supported")));
    }
    m.parts.clear();
    d.unit_sources(o.get(d, 0)?, n as usize / 2)?;
    let accumulator = d.unit_results(o.get(d, 0)?, n as usize / 2)?;
    let a = match o.get(d, 1)? {
        vector @ Operand::Vector(_) => {
            let registers = d.unit_sources(vector, 4)?;
            WgmmaA::Registers([0, 1, 2, 3].map(|i| registers[i]))
        }
        descriptor => WgmmaA::Shared(d.source64(descriptor, Ty::B64)?),
    };
    let b = d.source64(o.get(d, 2)?, Ty::B64)?;
    let accumulate = d.source_predicate(o.get(d, 3)?)?;
    let mut rest = (4..o.len()).map(|i| flag(d, o.get(d, i)?));
    let mut next = || rest.next().unwrap_or_else(|| Err(d.error("operands are missing")));
    let mut scale = || match next()? {
        1 => Ok(false),
        -1 => Ok(true),
        other => Err(d.error(format!("{other} is neither 1 nor -1"))),
    };
    let negate = [scale()?, scale()?];
    let mut transposed = || match next()? {
        0 => Ok(Major::K),
        1 => Ok(Major::Mn),
        other => Err(d.error(format!("{other} is neither 0 nor 1"))),
    };
    // Only 16-bit types can be transposed, and only operands in shared memory.
    let in_shared = matches!(a, WgmmaA::Shared(_));
    let a_major = if wide && in_shared { transposed()? } else { Major::K };
    let b_major = if wide { transposed()? } else { Major::K };
    if rest.next().is_some() {
        return Err(d.error("wgmma has too many operands"));
    }
    Ok(Wgmma { a_ty, b_ty, n, k, d: accumulator, a, b, accumulate, negate, major: [a_major, b_major] })
}

/// A number that is -1, 0 or 1.
fn flag(d: &Decoder<'_>, operand: &Operand<'_>) -> Result<i128, Error> {
    let number = match operand {
        Operand::Number(text) => crate::ptx::parser::integer(text),
        _ => None,
    };
    number.ok_or_else(|| d.error(format!("{operand:?} must be a number")))
}
