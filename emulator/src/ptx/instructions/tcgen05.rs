//! Tensor memory and its products: tcgen05.

use super::{Decoded, Modifiers, Operands, any};
use crate::Error;
use crate::counters::Class;
use crate::ptx::decode::Decoder;
use crate::ptx::ops::*;
use crate::ptx::parser::Operand;

pub(super) fn decode(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    d.need_target(&["sm_100a", "sm_100f"])?;
    d.uses_units();
    let fences =
        [("fence::before_thread_sync", TensorOp::FenceBefore), ("fence::after_thread_sync", TensorOp::FenceAfter)];
    for (name, op) in fences {
        if m.flag(name) {
            return Ok(any(Op::Tensor(Box::new(op)), Class::Sync));
        }
    }
    let names = ["alloc", "relinquish_alloc_permit", "dealloc", "mma", "commit", "ld", "st", "wait::ld", "wait::st"];
    let name = m.one_of(&names).ok_or_else(|| d.error("tcgen05 of this form is not supported"))?;
    let alone = matches!(name, "mma" | "commit");
    if !alone && !(m.flag("sync") && m.flag("aligned")) {
        return Err(d.error(format!("tcgen05.{name} needs .sync.aligned")));
    }
    if !name.starts_with("wait") && !matches!(name, "ld" | "st") && !m.flag("cta_group::1") {
        return Err(d.error(format!("tcgen05.{name} is supported with .cta_group::1 only")));
    }
    let (op, class) = match name {
        "alloc" => {
            let space = m.space();
            m.flag("b32");
            let to = d.address(o.get(d, 0)?, space)?;
            (TensorOp::Alloc { to, columns: d.source32(o.get(d, 1)?, Ty::U32)? }, Class::Sync)
        }
        "relinquish_alloc_permit" => (TensorOp::Relinquish, Class::Sync),
        "dealloc" => {
            m.flag("b32");
            let [address, columns] = [0, 1].map(|i| o.get(d, i).and_then(|x| d.source32(x, Ty::U32)));
            (TensorOp::Free { address: address?, columns: columns? }, Class::Sync)
        }
        "mma" => (TensorOp::Mma(product(d, m, o)?), Class::Matrix),
        "commit" => {
            let space = if m.flag("shared::cluster") { Space::Shared } else { Space::Generic };
            if !m.flag("mbarrier::arrive::one") || !m.flag("b64") {
                return Err(d.error("tcgen05.commit of this form is not supported"));
            }
            (TensorOp::Commit { barrier: d.address(o.get(d, 0)?, space)? }, Class::Sync)
        }
        "wait::ld" => (TensorOp::WaitLoads, Class::Sync),
        "wait::st" => (TensorOp::WaitStores, Class::Sync),
        _ => (access(d, name, m, o)?, Class::Memory),
    };
    let together = if alone { Together::Any } else { Together::All };
    Ok((Op::Tensor(Box::new(op)), class, together))
}

fn product(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<TensorMma, Error> {
    let bytes = match m.one_of(&["kind::f16", "kind::f8f6f4"]) {
        Some("kind::f16") => 2,
        Some(_) => 1,
        None => return Err(d.error("tcgen05.mma is supported with .kind::f16 and .kind::f8f6f4 only")),
    };
    // How long A is kept for the next product is a hint.
    m.parts.retain(|part| !part.starts_with("collector::a::"));
    let to = d.address(o.get(d, 0)?, Space::Tensor)?;
    let a = match o.get(d, 1)? {
        address @ Operand::Address(..) => TensorA::Tensor(d.address(address, Space::Tensor)?),
        descriptor => TensorA::Shared(d.source64(descriptor, Ty::B64)?),
    };
    let b = d.source64(o.get(d, 2)?, Ty::B64)?;
    let descriptor = d.source32(o.get(d, 3)?, Ty::B32)?;
    let accumulate = d.source_predicate(o.get(d, 4)?)?;
    if o.len() > 5 {
        return Err(d.error("tcgen05.mma with masks or scales is not supported"));
    }
    Ok(TensorMma { bytes, d: to, a, b, descriptor, accumulate })
}

/// tcgen05.ld and st.
fn access(d: &mut Decoder<'_>, name: &str, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<TensorOp, Error> {
    let counts = ["x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"];
    let count = m.one_of(&counts).and_then(|count| count[1..].parse().ok());
    let (true, Some(count), true) = (m.flag("32x32b"), count, m.flag("b32")) else {
        return Err(d.error(format!("tcgen05.{name} is supported with .32x32b only")));
    };
    if name == "ld" {
        let address = d.address(o.get(d, 1)?, Space::Tensor)?;
        return Ok(TensorOp::Load { address, d: d.unit_results(o.get(d, 0)?, count)? });
    }
    let address = d.address(o.get(d, 0)?, Space::Tensor)?;
    Ok(TensorOp::Store { address, a: d.list32(o.get(d, 1)?, count)? })
}
