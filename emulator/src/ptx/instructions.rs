//! Opcodes and their modifiers. Every modifier is either understood or an error.

mod arithmetic;
mod bulk;
mod memory;
mod moves;
mod sync;
mod tcgen05;
mod warp;
mod wgmma;

use super::decode::Decoder;
use super::ops::*;
use super::parser::{Operand, Statement};
use crate::Error;
use crate::counters::Class;
use crate::races::Access;

type Decoded = (Op, Class, Together);

/// The parts of an opcode after its name.
struct Modifiers<'a> {
    parts: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Removes a part if it is there.
    fn flag(&mut self, name: &str) -> bool {
        let found = self.parts.iter().position(|part| *part == name);
        found.map(|index| self.parts.remove(index)).is_some()
    }

    /// Removes the first of these parts that is there.
    fn one_of(&mut self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.flag(name))
    }

    /// Removes the last part that names a type.
    fn ty(&mut self) -> Option<Ty> {
        let index = self.parts.iter().rposition(|part| Ty::parse(part).is_some())?;
        Ty::parse(self.parts.remove(index))
    }

    /// Removes the rounding of a float operation.
    fn float_mode(&mut self) -> FloatMode {
        let round = match self.one_of(&["rn", "rz", "rm", "rp"]) {
            Some("rz") => Round::Zero,
            Some("rm") => Round::Down,
            Some("rp") => Round::Up,
            _ => Round::Nearest,
        };
        FloatMode { round, ftz: self.flag("ftz"), sat: self.flag("sat") }
    }

    /// Removes the order and scope of a memory operation or fence: whether it is one that others may meet, and
    /// what it orders for other blocks.
    fn access(&mut self, plain: Access) -> (Access, Order) {
        let kind = self.one_of(&["volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio"]);
        let _weak = self.flag("weak");
        let inside = self.one_of(&["cta", "cluster", "gpu", "gl", "sys"]) == Some("cta");
        let of = |kinds: [&str; 3]| !inside && kind.is_some_and(|kind| kinds.contains(&kind));
        let order = Order { acquire: of(["acquire", "acq_rel", "sc"]), release: of(["release", "acq_rel", "sc"]) };
        (if kind.is_some() { Access::Atomic } else { plain }, order)
    }

    /// Removes hints that change no value.
    fn cache_hints(&mut self) {
        self.parts.retain(|part| {
            !part.starts_with("L1::")
                && !matches!(*part, "L2::64B" | "L2::128B" | "L2::256B" | "L2::evict_first" | "L2::evict_last")
                && !matches!(*part, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc")
        });
    }

    fn space(&mut self) -> Space {
        match self.one_of(&["global", "shared", "shared::cta", "local", "param", "param::entry"]) {
            Some("global") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some("param" | "param::entry") => Space::Param,
            _ => Space::Generic,
        }
    }

    fn vector_count(&mut self) -> u8 {
        match self.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some("v8") => 8,
            _ => 1,
        }
    }
}

fn any(op: Op, class: Class) -> Decoded {
    (op, class, Together::Any)
}

/// Decodes one instruction.
pub(super) fn decode(d: &mut Decoder<'_>, s: &Statement<'_>) -> Result<Decoded, Error> {
    let mut parts = s.opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let mut m = Modifiers { parts: parts.collect() };
    let o = Operands { list: &s.operands };
    let decoded = match name {
        "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" => {
            arithmetic::binary(d, name, &mut m, &o)?
        }
        "mad" | "fma" => arithmetic::mad(d, name, &mut m, &o)?,
        "shl" | "shr" => arithmetic::shift(d, name, &mut m, &o)?,
        "neg" | "abs" | "not" | "brev" => arithmetic::unary(d, name, &mut m, &o)?,
        "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => arithmetic::function(d, name, &mut m, &o)?,
        "popc" | "clz" | "bfind" => arithmetic::count(d, name, &mut m, &o)?,
        "bfe" | "bfi" | "prmt" | "lop3" | "shf" => arithmetic::bits(d, name, &mut m, &o)?,
        "mov" => moves::mov(d, &mut m, &o)?,
        "setp" => arithmetic::setp(d, &mut m, &o)?,
        "selp" => arithmetic::selp(d, &mut m, &o)?,
        "cvt" => moves::cvt(d, &mut m, &o)?,
        "cvta" => moves::cvta(d, &mut m, &o)?,
        "ld" | "ldu" => memory::load(d, &mut m, &o)?,
        "st" => memory::store(d, &mut m, &o)?,
        "atom" | "red" => memory::atomic(d, name, &mut m, &o)?,
        "cp" => memory::copy(d, &mut m, &o)?,
        "ldmatrix" | "stmatrix" => memory::matrix_access(d, name, &mut m, &o)?,
        "mma" => warp::mma(d, &mut m, &o)?,
        "tcgen05" => tcgen05::decode(d, &mut m, &o)?,
        "wgmma" => wgmma::decode(d, &mut m, &o)?,
        "shfl" | "vote" | "redux" | "elect" | "activemask" => warp::lanes(d, name, &mut m, &o)?,
        "bar" | "barrier" => sync::barrier(d, name, &mut m, &o)?,
        "fence" | "membar" => sync::fence(d, &mut m)?,
        "mbarrier" => sync::mbarrier(d, &mut m, &o, false)?,
        "setmaxnreg" => registers_wanted(d, &mut m, &o)?,
        "griddepcontrol" => {
            // No grid follows another one before its end.
            m.one_of(&["wait", "launch_dependents"]);
            any(Op::Nothing, Class::Sync)
        }
        "createpolicy" => {
            // A cache policy is an opaque value that only hints use.
            m.parts.clear();
            let a = d.constant64(0)?;
            any(Op::Mov64 { d: d.destination64(o.get(d, 0)?)?, a }, Class::Integer)
        }
        "prefetch" | "prefetchu" | "applypriority" | "discard" | "nanosleep" => {
            m.parts.clear();
            any(Op::Nothing, Class::Memory)
        }
        "bra" => {
            m.flag("uni");
            let Operand::Symbol(label) = o.get(d, 0)? else { return Err(d.error("expected a label")) };
            any(Op::Branch { target: d.label(label)? }, Class::Control)
        }
        "brx" => {
            m.flag("idx");
            m.flag("uni");
            let index = d.source32(o.get(d, 0)?, Ty::U32)?;
            let Operand::Symbol(table) = o.get(d, 1)? else { return Err(d.error("expected a table of labels")) };
            any(Op::BranchIndexed { index, targets: d.table(table)? }, Class::Control)
        }
        "ret" | "exit" => {
            m.flag("uni");
            any(Op::Exit, Class::Control)
        }
        "trap" => any(Op::Trap, Class::Control),
        _ => return Err(d.error(format!("instruction {} is unknown", s.opcode))),
    };
    if let Some(rest) = m.parts.first() {
        return Err(d.error(format!("instruction {} is unknown: .{rest} is not supported", s.opcode)));
    }
    Ok(decoded)
}

/// setmaxnreg: how many registers a warp has changes nothing here.
fn registers_wanted(d: &mut Decoder<'_>, m: &mut Modifiers<'_>, o: &Operands<'_>) -> Result<Decoded, Error> {
    d.need_target(&["sm_90a", "sm_100a", "sm_100f"])?;
    let form = m.one_of(&["inc", "dec"]).is_some() && m.flag("sync") && m.flag("aligned") && m.flag("u32");
    let count = d.immediate(o.get(d, 0)?)?;
    if !form || !(24..=256).contains(&count) || !count.is_multiple_of(8) {
        return Err(d.error("setmaxnreg takes a multiple of 8 from 24 to 256"));
    }
    Ok((Op::Nothing, Class::Sync, Together::All))
}

struct Operands<'a> {
    list: &'a [Operand<'a>],
}

impl<'a> Operands<'a> {
    fn get(&self, d: &Decoder<'_>, index: usize) -> Result<&'a Operand<'a>, Error> {
        self.list.get(index).ok_or_else(|| d.error(format!("operand {} is missing", index + 1)))
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

fn need_ty(d: &Decoder<'_>, m: &mut Modifiers<'_>) -> Result<Ty, Error> {
    m.ty().ok_or_else(|| d.error("the instruction has no type that is known"))
}

fn width(d: &Decoder<'_>, ty: Ty) -> Result<Width, Error> {
    match ty.bytes() {
        2 => Ok(Width::W16),
        4 => Ok(Width::W32),
        8 => Ok(Width::W64),
        _ => Err(d.error(format!("type {ty:?} is not supported here"))),
    }
}

fn reg(any: AnyReg) -> Reg {
    match any {
        AnyReg::R32(reg) | AnyReg::R64(reg) => reg,
    }
}

/// A destination that can hold `ty`.
fn typed_destination(d: &mut Decoder<'_>, operand: &Operand<'_>, ty: Ty) -> Result<Reg, Error> {
    if ty.bytes() == 8 { d.destination64(operand) } else { d.destination32(operand) }
}

fn typed_source(d: &mut Decoder<'_>, operand: &Operand<'_>, ty: Ty) -> Result<Reg, Error> {
    d.source(operand, ty).map(reg)
}
