//! Operands: registers, constants, addresses, lists.

use super::{Decoder, Place};
use crate::Error;
use crate::ptx::ops::{Address, AnyReg, PredSource, Reg, Space, Ty, Vector};
use crate::ptx::parser::{Operand, integer};

impl Decoder<'_> {
    /// 32-bit registers of a list, with their numbers.
    fn registers32(&self, operand: &Operand<'_>, count: usize) -> Result<Vec<(usize, Reg)>, Error> {
        let parts = Self::elements(operand);
        if parts.len() != count {
            return Err(self.error(format!("expected {count} registers, found {}", parts.len())));
        }
        let of = |part: &Operand<'_>| {
            let Operand::Register(name) = part else { return Err(self.error(format!("{part:?} is not a register"))) };
            match self.find(name)? {
                (number, Place::R32(reg)) => Ok((number, reg)),
                _ => Err(self.error(format!("{name} must have 32 bits"))),
            }
        };
        parts.iter().map(of).collect()
    }

    /// Registers of a list that are read.
    pub(in crate::ptx) fn list32(&mut self, operand: &Operand<'_>, count: usize) -> Result<Box<[Reg]>, Error> {
        let registers = self.registers32(operand, count)?;
        self.footprint.reads.extend(registers.iter().map(|register| register.0));
        Ok(registers.into_iter().map(|register| register.1).collect())
    }

    /// Registers of a list that a unit reads while the warp goes on.
    pub(in crate::ptx) fn unit_sources(&mut self, operand: &Operand<'_>, count: usize) -> Result<Box<[Reg]>, Error> {
        let numbers = self.registers32(operand, count)?.into_iter().map(|register| register.0);
        self.pinned.extend(numbers);
        self.list32(operand, count)
    }

    /// Registers of a list that a unit writes while the warp goes on.
    pub(in crate::ptx) fn unit_results(&mut self, operand: &Operand<'_>, count: usize) -> Result<Box<[Reg]>, Error> {
        let registers = self.registers32(operand, count)?;
        let numbers = || registers.iter().map(|register| register.0);
        self.pinned.extend(numbers());
        self.footprint.writes.extend(numbers());
        Ok(registers.iter().map(|register| register.1).collect())
    }

    /// A register that holds the constant.
    pub(in crate::ptx) fn constant32(&mut self, value: u32) -> Result<Reg, Error> {
        if let Some(&reg) = self.constants32.get(&value) {
            return Ok(reg);
        }
        self.initial32.push(Some(value));
        let reg = self.index(self.initial32.len() - 1)?;
        self.constants32.insert(value, reg);
        Ok(reg)
    }

    /// A register that holds the constant.
    pub(in crate::ptx) fn constant64(&mut self, value: u64) -> Result<Reg, Error> {
        if let Some(&reg) = self.constants64.get(&value) {
            return Ok(reg);
        }
        self.initial64.push(Some(value));
        let reg = self.index(self.initial64.len() - 1)?;
        self.constants64.insert(value, reg);
        Ok(reg)
    }

    /// Bits of a literal as a value of type `ty`.
    fn literal(&self, text: &str, ty: Ty) -> Result<u64, Error> {
        let wrong = || self.error(format!("{text} is not a value of type {ty:?}"));
        let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let float = match (digits.get(..2), digits.get(2..)) {
            (Some("0f" | "0F"), Some(hex)) => {
                let bits = u32::from_str_radix(hex, 16).map_err(|_| wrong())?;
                if ty.bytes() == 4 {
                    return Ok(u64::from(bits ^ if negative { 1 << 31 } else { 0 }));
                }
                Some(f64::from(f32::from_bits(bits)))
            }
            (Some("0d" | "0D"), Some(hex)) => Some(f64::from_bits(u64::from_str_radix(hex, 16).map_err(|_| wrong())?)),
            _ if digits.contains('.') => Some(digits.parse().map_err(|_| wrong())?),
            _ => None,
        };
        if let Some(value) = float {
            let value = if negative { -value } else { value };
            return match ty.bytes() {
                4 => Ok(u64::from((value as f32).to_bits())),
                8 => Ok(value.to_bits()),
                _ => Err(wrong()),
            };
        }
        let value = integer(text).ok_or_else(wrong)?;
        let bits = ty.bytes() * 8;
        if bits == 0 || value < -(1i128 << (bits - 1)) || value >= 1i128 << bits {
            return Err(wrong());
        }
        Ok(value as u64 & (u64::MAX >> (64 - bits)))
    }

    /// A source operand of `ty`.
    pub(in crate::ptx) fn source(&mut self, operand: &Operand<'_>, ty: Ty) -> Result<AnyReg, Error> {
        let wide = ty.bytes() == 8;
        let constant = match operand {
            Operand::Register(name) => {
                return match self.read(name)? {
                    Place::R32(reg) if !wide => Ok(AnyReg::R32(reg)),
                    Place::R64(reg) if wide => Ok(AnyReg::R64(reg)),
                    _ => Err(self.error(format!("{name} cannot hold a value of type {ty:?}"))),
                };
            }
            Operand::Number(text) => self.literal(text, ty)?,
            Operand::Symbol(name) => {
                self.symbols.get(name).ok_or_else(|| self.error(format!("symbol {name} is not declared")))?.1
            }
            other => return Err(self.error(format!("{other:?} is not a scalar operand"))),
        };
        Ok(if wide { AnyReg::R64(self.constant64(constant)?) } else { AnyReg::R32(self.constant32(constant as u32)?) })
    }

    pub(in crate::ptx) fn source32(&mut self, operand: &Operand<'_>, ty: Ty) -> Result<Reg, Error> {
        match self.source(operand, ty)? {
            AnyReg::R32(reg) => Ok(reg),
            AnyReg::R64(_) => Err(self.error(format!("{operand:?} must have at most 32 bits"))),
        }
    }

    pub(in crate::ptx) fn source64(&mut self, operand: &Operand<'_>, ty: Ty) -> Result<Reg, Error> {
        match self.source(operand, ty)? {
            AnyReg::R64(reg) => Ok(reg),
            AnyReg::R32(_) => Err(self.error(format!("{operand:?} must have 64 bits"))),
        }
    }

    pub(in crate::ptx) fn source_predicate(&mut self, operand: &Operand<'_>) -> Result<PredSource, Error> {
        match operand {
            Operand::Register(name) => Ok(PredSource { reg: self.predicate(name)?, negate: false }),
            Operand::Not(name) => Ok(PredSource { reg: self.predicate(name)?, negate: true }),
            other => Err(self.error(format!("{other:?} is not a predicate"))),
        }
    }

    /// The value of an operand that must be known when the kernel is loaded.
    pub(in crate::ptx) fn immediate(&self, operand: &Operand<'_>) -> Result<u32, Error> {
        match operand {
            Operand::Number(text) => integer(text).and_then(|v| u32::try_from(v).ok()),
            _ => None,
        }
        .ok_or_else(|| self.error(format!("{operand:?} must be a number")))
    }

    /// The register that is written.
    pub(in crate::ptx) fn destination(&mut self, operand: &Operand<'_>) -> Result<AnyReg, Error> {
        let Operand::Register(name) = operand else {
            return Err(self.error(format!("{operand:?} is not a register")));
        };
        match self.write(name)? {
            Place::R32(reg) => Ok(AnyReg::R32(reg)),
            Place::R64(reg) => Ok(AnyReg::R64(reg)),
            Place::Pred(_) => Err(self.error(format!("{name} is a predicate"))),
        }
    }

    /// As [`destination`](Self::destination), or `None` for `_`.
    pub(in crate::ptx) fn maybe_destination(&mut self, operand: &Operand<'_>) -> Result<Option<AnyReg>, Error> {
        match operand {
            Operand::Register(name) if name == "_" => Ok(None),
            _ => self.destination(operand).map(Some),
        }
    }

    pub(in crate::ptx) fn destination32(&mut self, operand: &Operand<'_>) -> Result<Reg, Error> {
        match self.destination(operand)? {
            AnyReg::R32(reg) => Ok(reg),
            AnyReg::R64(_) => Err(self.error(format!("{operand:?} must have 32 bits"))),
        }
    }

    pub(in crate::ptx) fn destination64(&mut self, operand: &Operand<'_>) -> Result<Reg, Error> {
        match self.destination(operand)? {
            AnyReg::R64(reg) => Ok(reg),
            AnyReg::R32(_) => Err(self.error(format!("{operand:?} must have 64 bits"))),
        }
    }

    /// A predicate that is written.
    pub(in crate::ptx) fn destination_predicate(&mut self, name: &str) -> Result<Reg, Error> {
        match self.write(name)? {
            Place::Pred(reg) => Ok(reg),
            _ => Err(self.error(format!("{name} is not a predicate"))),
        }
    }

    /// The elements of a vector operand, or the operand itself.
    fn elements<'b>(operand: &'b Operand<'b>) -> &'b [Operand<'b>] {
        match operand {
            Operand::Vector(parts) => parts,
            other => std::slice::from_ref(other),
        }
    }

    fn vector(
        &mut self,
        operand: &Operand<'_>,
        count: u8,
        mut element: impl FnMut(&mut Self, &Operand<'_>) -> Result<Option<AnyReg>, Error>,
    ) -> Result<Vector, Error> {
        let parts = Self::elements(operand);
        if parts.len() != usize::from(count) {
            return Err(self.error(format!("expected {count} elements, found {}", parts.len())));
        }
        let mut vector = Vector::default();
        for (to, part) in vector.iter_mut().zip(parts) {
            *to = element(self, part)?;
        }
        Ok(vector)
    }

    pub(in crate::ptx) fn source_vector(&mut self, operand: &Operand<'_>, count: u8, ty: Ty) -> Result<Vector, Error> {
        self.vector(operand, count, |decoder, part| decoder.source(part, ty).map(Some))
    }

    pub(in crate::ptx) fn destination_vector(&mut self, operand: &Operand<'_>, count: u8) -> Result<Vector, Error> {
        self.vector(operand, count, Self::maybe_destination)
    }

    /// Exactly `N` 32-bit sources in a vector operand.
    pub(in crate::ptx) fn sources32<const N: usize>(
        &mut self,
        operand: &Operand<'_>,
        count: u8,
    ) -> Result<[Reg; N], Error> {
        let vector = self.source_vector(operand, count, Ty::B32)?;
        Ok(std::array::from_fn(|i| match vector.get(i) {
            Some(Some(AnyReg::R32(reg))) => *reg,
            _ => 0,
        }))
    }

    /// Exactly `N` 32-bit destinations in a vector operand.
    pub(in crate::ptx) fn destinations32<const N: usize>(
        &mut self,
        operand: &Operand<'_>,
        count: u8,
    ) -> Result<[Reg; N], Error> {
        let vector =
            self.vector(operand, count, |decoder, part| decoder.destination32(part).map(AnyReg::R32).map(Some))?;
        Ok(std::array::from_fn(|i| match vector.get(i) {
            Some(Some(AnyReg::R32(reg))) => *reg,
            _ => 0,
        }))
    }

    /// A memory operand in `space`.
    pub(in crate::ptx) fn address(&mut self, operand: &Operand<'_>, space: Space) -> Result<Address, Error> {
        let Operand::Address(base, offset) = operand else {
            return Err(self.error(format!("{operand:?} is not an address")));
        };
        let base = match &**base {
            Operand::Register(name) => match self.read(name)? {
                Place::R32(reg) => AnyReg::R32(reg),
                Place::R64(reg) => AnyReg::R64(reg),
                Place::Pred(_) => return Err(self.error(format!("{name} is not an address"))),
            },
            Operand::Symbol(name) => {
                let known = self.symbols.get(name).copied();
                let (home, value) = known.ok_or_else(|| self.error(format!("symbol {name} is not declared")))?;
                if home != space {
                    return Err(self.error(format!("symbol {name} is in {home:?}, not in {space:?}")));
                }
                AnyReg::R64(self.constant64(value)?)
            }
            number => self.source(number, Ty::U64)?,
        };
        Ok(Address { space, base, offset: *offset })
    }
}
