//! A warp's registers: one array of 32 lanes each, and a mask of the lanes whose value is undefined.

use super::ops::{AnyReg, PredSource, Reg};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// All lanes.
pub(super) const FULL: u32 = u32::MAX;

/// One bank: values and undefined lanes of each register.
#[derive(Clone, Debug)]
pub(super) struct Bank<T> {
    values: Box<[[T; LANES]]>,
    undefined: Box<[u32]>,
}

impl<T: Copy + Default> Bank<T> {
    fn new(initial: &[Option<T>]) -> Self {
        Self {
            values: initial.iter().map(|value| [value.unwrap_or_default(); LANES]).collect(),
            undefined: initial.iter().map(|value| if value.is_some() { 0 } else { FULL }).collect(),
        }
    }

    #[inline(always)]
    fn set(&mut self, reg: Reg, mask: u32, values: &[T; LANES], undefined: u32) {
        let to = &mut self.values[usize::from(reg)];
        if mask == FULL {
            *to = *values;
            self.undefined[usize::from(reg)] = undefined;
        } else {
            for lane in 0..LANES {
                if mask >> lane & 1 != 0 {
                    to[lane] = values[lane];
                }
            }
            let old = &mut self.undefined[usize::from(reg)];
            *old = *old & !mask | undefined & mask;
        }
    }
}

/// A type that has a bank.
pub(super) trait Lane: Copy + Default {
    fn bank(registers: &Registers) -> &Bank<Self>;
    fn bank_mut(registers: &mut Registers) -> &mut Bank<Self>;
}

impl Lane for u32 {
    #[inline(always)]
    fn bank(registers: &Registers) -> &Bank<Self> {
        &registers.r32
    }

    #[inline(always)]
    fn bank_mut(registers: &mut Registers) -> &mut Bank<Self> {
        &mut registers.r32
    }
}

impl Lane for u64 {
    #[inline(always)]
    fn bank(registers: &Registers) -> &Bank<Self> {
        &registers.r64
    }

    #[inline(always)]
    fn bank_mut(registers: &mut Registers) -> &mut Bank<Self> {
        &mut registers.r64
    }
}

/// Registers of a warp. Predicates are masks.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    r32: Bank<u32>,
    r64: Bank<u64>,
    predicates: Box<[u32]>,
    undefined_predicates: Box<[u32]>,
}

impl Registers {
    /// `None` is an undefined register.
    pub(super) fn new(initial32: &[Option<u32>], initial64: &[Option<u64>], predicates: usize) -> Self {
        Self {
            r32: Bank::new(initial32),
            r64: Bank::new(initial64),
            predicates: vec![0; predicates].into(),
            undefined_predicates: vec![FULL; predicates].into(),
        }
    }

    /// All lanes of a register.
    #[inline(always)]
    pub(super) fn get<T: Lane>(&self, reg: Reg) -> &[T; LANES] {
        &T::bank(self).values[usize::from(reg)]
    }

    /// Lanes in which a register is undefined.
    #[inline(always)]
    pub(super) fn undefined<T: Lane>(&self, reg: Reg) -> u32 {
        T::bank(self).undefined[usize::from(reg)]
    }

    /// Sets the lanes of `mask`.
    #[inline(always)]
    pub(super) fn set<T: Lane>(&mut self, reg: Reg, mask: u32, values: &[T; LANES], undefined: u32) {
        T::bank_mut(self).set(reg, mask, values, undefined);
    }

    /// Makes a register undefined in these lanes.
    pub(super) fn set_undefined<T: Lane>(&mut self, reg: Reg, lanes: u32) {
        T::bank_mut(self).undefined[usize::from(reg)] |= lanes;
    }

    /// Sets one lane.
    #[inline(always)]
    pub(super) fn set_lane<T: Lane>(&mut self, reg: Reg, lane: usize, value: T, undefined: bool) {
        let bank = T::bank_mut(self);
        bank.values[usize::from(reg)][lane] = value;
        let mask = &mut bank.undefined[usize::from(reg)];
        *mask = *mask & !(1 << lane) | u32::from(undefined) << lane;
    }

    /// A lane's value, zero-extended, and whether it is undefined.
    #[inline(always)]
    pub(super) fn any_lane(&self, reg: AnyReg, lane: usize) -> (u64, bool) {
        match reg {
            AnyReg::R32(reg) => (u64::from(self.get::<u32>(reg)[lane]), self.undefined::<u32>(reg) >> lane & 1 != 0),
            AnyReg::R64(reg) => (self.get::<u64>(reg)[lane], self.undefined::<u64>(reg) >> lane & 1 != 0),
        }
    }

    /// Sets a lane to the low bits of `value`.
    #[inline(always)]
    pub(super) fn set_any_lane(&mut self, reg: AnyReg, lane: usize, value: u64, undefined: bool) {
        match reg {
            AnyReg::R32(reg) => self.set_lane(reg, lane, value as u32, undefined),
            AnyReg::R64(reg) => self.set_lane(reg, lane, value, undefined),
        }
    }

    /// Lanes in which a register of either bank is undefined.
    #[inline(always)]
    pub(super) fn any_undefined(&self, reg: AnyReg) -> u32 {
        match reg {
            AnyReg::R32(reg) => self.undefined::<u32>(reg),
            AnyReg::R64(reg) => self.undefined::<u64>(reg),
        }
    }

    /// The lanes in which a predicate holds, and those in which it is undefined.
    #[inline(always)]
    pub(super) fn predicate(&self, source: PredSource) -> (u32, u32) {
        let value = self.predicates[usize::from(source.reg)];
        let undefined = self.undefined_predicates[usize::from(source.reg)];
        (if source.negate { !value } else { value }, undefined)
    }

    /// Sets the lanes of `mask`.
    #[inline(always)]
    pub(super) fn set_predicate(&mut self, reg: Reg, mask: u32, value: u32, undefined: u32) {
        let to = &mut self.predicates[usize::from(reg)];
        *to = *to & !mask | value & mask;
        let to = &mut self.undefined_predicates[usize::from(reg)];
        *to = *to & !mask | undefined & mask;
    }

    /// `d = f(a)` in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn map1<D: Lane, A: Lane>(&mut self, mask: u32, d: Reg, a: Reg, f: impl Fn(A) -> D) {
        let x = self.get::<A>(a);
        let mut values = [D::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(x[lane]);
        }
        self.set(d, mask, &values, self.undefined::<A>(a));
    }

    /// `d = f(a, b)` in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn map2<D: Lane, A: Lane, B: Lane>(
        &mut self,
        mask: u32,
        d: Reg,
        (a, b): (Reg, Reg),
        f: impl Fn(A, B) -> D,
    ) {
        let (x, y) = (self.get::<A>(a), self.get::<B>(b));
        let mut values = [D::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(x[lane], y[lane]);
        }
        self.set(d, mask, &values, self.undefined::<A>(a) | self.undefined::<B>(b));
    }

    /// `d = f(a, b, c)` in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn map3<D: Lane, A: Lane, B: Lane, C: Lane>(
        &mut self,
        mask: u32,
        d: Reg,
        (a, b, c): (Reg, Reg, Reg),
        f: impl Fn(A, B, C) -> D,
    ) {
        let (x, y, z) = (self.get::<A>(a), self.get::<B>(b), self.get::<C>(c));
        let mut values = [D::default(); LANES];
        for lane in 0..LANES {
            values[lane] = f(x[lane], y[lane], z[lane]);
        }
        let undefined = self.undefined::<A>(a) | self.undefined::<B>(b) | self.undefined::<C>(c);
        self.set(d, mask, &values, undefined);
    }

    /// The lanes in which `f(a, b)` holds, and those in which it is undefined.
    #[inline(always)]
    pub(super) fn test2<A: Lane>(&self, a: Reg, b: Reg, f: impl Fn(A, A) -> bool) -> (u32, u32) {
        let (x, y) = (self.get::<A>(a), self.get::<A>(b));
        let mut holds = 0;
        for lane in 0..LANES {
            holds |= u32::from(f(x[lane], y[lane])) << lane;
        }
        (holds, self.undefined::<A>(a) | self.undefined::<A>(b))
    }
}

/// A set of registers of one bank.
#[derive(Clone, Debug, Default)]
pub(super) struct RegisterSet(Vec<u64>);

impl RegisterSet {
    pub(super) fn insert(&mut self, reg: Reg) {
        let word = usize::from(reg) / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (reg % 64);
    }

    pub(super) fn extend(&mut self, registers: &[Reg]) {
        registers.iter().for_each(|&reg| self.insert(reg));
    }

    pub(super) fn contains(&self, reg: Reg) -> bool {
        self.0.get(usize::from(reg) / 64).is_some_and(|word| word >> (reg % 64) & 1 != 0)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
