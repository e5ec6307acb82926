//! From a kernel as it is written to one that can be executed: registers get places in banks, constants
//! become registers, symbols become addresses.

mod operands;

use super::allocate::{Footprint, allocate};
use super::instructions;
use super::lexer::error;
use super::ops::{Address, Instruction, Op, PredSource, Reg, Space, TensorOp, Together, Ty};
use super::parser::{Kernel, Module, Statement, Variable};
use super::registers::Registers;
use crate::Error;
use crate::engine::{KernelInfo, Parameter};
use crate::shared::Agents;
use std::collections::{HashMap, HashSet};

/// Generic addresses of shared memory start here; offsets are below 2^32.
pub(super) const SHARED_WINDOW: u64 = 0x1000_0000_0000;
/// Generic addresses of local memory start here; offsets are below 2^32.
pub(super) const LOCAL_WINDOW: u64 = 0x2000_0000_0000;

/// A kernel that can be executed.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) info: KernelInfo,
    pub(super) code: Vec<Instruction>,
    /// Source text, for faults.
    pub(super) text: std::sync::Arc<[String]>,
    /// What each instruction does with registers that units use: place, and whether it writes it. Empty if none do.
    pub(super) touches: Vec<Box<[(Reg, bool)]>>,
    /// What the registers hold at the start.
    pub(super) registers: Registers,
    /// Local memory of a thread in bytes.
    pub(super) local_bytes: u32,
    pub(super) parameter_bytes: u32,
}

impl Program {
    /// The units that it uses.
    pub(super) fn agents(&self) -> Agents {
        self.info.agents
    }
}

/// Where a declared register lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    R32(Reg),
    R64(Reg),
    Pred(Reg),
}

/// State of decoding a kernel.
pub(super) struct Decoder<'a> {
    kernel: &'a Kernel<'a>,
    /// What `.target` names.
    target: &'a str,
    /// Number and place of each declared register.
    registers: HashMap<&'a str, (usize, Place)>,
    symbols: HashMap<&'a str, (Space, u64)>,
    initial32: Vec<Option<u32>>,
    initial64: Vec<Option<u64>>,
    constants32: HashMap<u32, Reg>,
    constants64: HashMap<u64, Reg>,
    predicates: usize,
    /// What the instruction being decoded does with registers.
    footprint: Footprint,
    /// Narrowest shared access so far, in bytes.
    pub(super) granule: u32,
    /// Whether the kernel uses units that work asynchronously.
    units: bool,
    /// Numbers of registers that units use while the warp goes on.
    pinned: HashSet<usize>,
    /// The instruction being decoded.
    pub(super) line: u32,
}

/// Threads that give work to the matrix unit, and barriers that copies signal, as far as they are told apart in a
/// block. A kernel that uses more of them has some that pass for one.
pub(super) const AGENTS: Agents = Agents { readers: 2, writers: 24 };

/// Rounds up to a multiple of `align`.
fn align_up(offset: u32, align: u32) -> u32 {
    offset.next_multiple_of(align.max(1))
}

/// Gives variables places one after the other; returns the end.
fn place_all<'a>(
    symbols: &mut HashMap<&'a str, (Space, u64)>,
    space: Space,
    variables: impl Iterator<Item = &'a Variable<'a>>,
    mut end: u32,
) -> u32 {
    for variable in variables {
        end = align_up(end, variable.align);
        symbols.insert(variable.name, (space, u64::from(end)));
        end += variable.bytes.unwrap_or(0);
    }
    end
}

/// Decodes one kernel of a module.
pub(super) fn decode(
    module: &Module<'_>,
    kernel: &Kernel<'_>,
    text: std::sync::Arc<[String]>,
) -> Result<Program, Error> {
    let mut symbols = HashMap::new();
    let shared = || module.shared.iter().chain(&kernel.shared);
    let sized = place_all(&mut symbols, Space::Shared, shared().filter(|v| v.bytes.is_some()), 0);
    // All unsized variables start where the dynamic part does.
    let dynamic_align = shared().filter(|v| v.bytes.is_none()).map(|v| v.align).max().unwrap_or(1);
    let static_shared = align_up(sized, dynamic_align);
    for variable in shared().filter(|v| v.bytes.is_none()) {
        symbols.insert(variable.name, (Space::Shared, u64::from(static_shared)));
    }
    let local_bytes = place_all(&mut symbols, Space::Local, kernel.local.iter(), 0);
    let mut parameters = Vec::new();
    let mut parameter_bytes = 0;
    for parameter in &kernel.parameters {
        if parameter.bytes > 8 {
            let reason = format!("parameter {} has {} bytes; at most 8 are supported", parameter.name, parameter.bytes);
            return Err(error(kernel.line, reason));
        }
        let offset = align_up(parameter_bytes, parameter.align);
        symbols.insert(parameter.name, (Space::Param, u64::from(offset)));
        parameters.push(Parameter { name: parameter.name.to_owned(), offset, bytes: parameter.bytes });
        parameter_bytes = offset + parameter.bytes;
    }
    // First with a place for each register; then with places shared by those that are never live together.
    let (first, code, footprints) = Decoder::run(module.target, kernel, &symbols, &|number| number)?;
    let read: HashSet<usize> = footprints.iter().flat_map(|f| f.reads.iter().copied()).collect();
    let ordered = code.iter().zip(&footprints).any(|(i, f)| depends_on_order(&i.op, f, &read));
    let banks: Vec<u8> = kernel.registers.iter().map(|(_, ty)| bank(ty)).collect();
    let places = allocate(&footprints, &banks, &first.pinned);
    let touches = touches(&code, &footprints, &first.pinned, |number| (banks[number] == 0).then(|| places[number]));
    let (decoder, code, _) = Decoder::run(module.target, kernel, &symbols, &|number| places[number])?;
    Ok(Program {
        info: KernelInfo {
            name: kernel.name.to_owned(),
            parameters,
            static_shared,
            shared_granule: decoder.granule,
            agents: if decoder.units { AGENTS } else { Agents::NONE },
            max_threads: kernel.max_threads.unwrap_or(1024),
            ordered,
        },
        code,
        text,
        touches,
        registers: Registers::new(&decoder.initial32, &decoder.initial64, decoder.predicates),
        local_bytes,
        parameter_bytes,
    })
}

/// What the instructions but those of the units do with the registers that units use. `place` is that of a 32-bit
/// register.
fn touches(
    code: &[Instruction],
    footprints: &[Footprint],
    pinned: &HashSet<usize>,
    place: impl Fn(usize) -> Option<usize>,
) -> Vec<Box<[(Reg, bool)]>> {
    if pinned.is_empty() {
        return Vec::new();
    }
    let of = |(instruction, footprint): (&Instruction, &Footprint)| {
        let list = |numbers: &[usize], writes: bool| -> Vec<(Reg, bool)> {
            let places = numbers.iter().filter(|number| pinned.contains(number)).filter_map(|&number| place(number));
            places.map(|place| (place as Reg, writes)).collect()
        };
        let loads = |op: &Op| matches!(op, Op::Tensor(op) if matches!(**op, TensorOp::Load { .. }));
        if matches!(instruction.op, Op::Wgmma(_)) || loads(&instruction.op) {
            return Box::default();
        }
        [list(&footprint.reads, false), list(&footprint.writes, true)].concat().into()
    };
    code.iter().zip(footprints).map(of).collect()
}

/// Which registers a register shares places with: 64 bits, predicates, or all others.
fn bank(ty: &str) -> u8 {
    match Ty::parse(ty) {
        Some(Ty::Pred) => 2,
        Some(ty) if ty.bytes() == 8 => 1,
        _ => 0,
    }
}

/// Whether a block that executes this can see when other blocks run. `read` are all registers that are read.
fn depends_on_order(op: &Op, footprint: &Footprint, read: &HashSet<usize>) -> bool {
    let elsewhere = |address: &Address| matches!(address.space, Space::Global | Space::Generic);
    match op {
        Op::Atomic { address, op, .. } => {
            let used = footprint.writes.iter().any(|number| read.contains(number));
            elsewhere(address) && (used || !op.commutes())
        }
        Op::Load { address, access, .. } => elsewhere(address) && *access == crate::races::Access::Atomic,
        _ => false,
    }
}

/// Instructions that may follow instruction `index`.
fn next(instruction: &Instruction, index: usize) -> Vec<usize> {
    let mut next = match &instruction.op {
        Op::Branch { target } => vec![*target as usize],
        Op::BranchIndexed { targets, .. } => targets.iter().map(|&target| target as usize).collect(),
        Op::Exit | Op::Trap => vec![],
        _ => return vec![index + 1],
    };
    if instruction.guard.is_some() {
        next.push(index + 1);
    }
    next
}

impl<'a> Decoder<'a> {
    /// Decodes all instructions; `place` gives each register, by its number, a place in its bank.
    fn run(
        target: &'a str,
        kernel: &'a Kernel<'a>,
        symbols: &HashMap<&'a str, (Space, u64)>,
        place: &dyn Fn(usize) -> usize,
    ) -> Result<(Self, Vec<Instruction>, Vec<Footprint>), Error> {
        let mut decoder = Self {
            kernel,
            target,
            registers: HashMap::new(),
            symbols: symbols.clone(),
            initial32: Vec::new(),
            initial64: Vec::new(),
            constants32: HashMap::new(),
            constants64: HashMap::new(),
            predicates: 0,
            footprint: Footprint::default(),
            granule: 4,
            units: false,
            pinned: HashSet::new(),
            line: kernel.line,
        };
        decoder.place_registers(place)?;
        let (mut code, mut footprints) = (Vec::new(), Vec::new());
        for statement in &kernel.instructions {
            let instruction = decoder.instruction(statement)?;
            let footprint = std::mem::take(&mut decoder.footprint);
            let next = next(&instruction, code.len());
            footprints.push(Footprint { guarded: instruction.guard.is_some(), next, ..footprint });
            code.push(instruction);
        }
        // A label may stand behind the last instruction.
        let class = crate::counters::Class::Control;
        code.push(Instruction { guard: None, together: Together::Any, class, op: Op::Exit, line: decoder.line });
        footprints.push(Footprint::default());
        Ok((decoder, code, footprints))
    }

    fn place_registers(&mut self, place: &dyn Fn(usize) -> usize) -> Result<(), Error> {
        for (number, (name, ty)) in self.kernel.registers.iter().enumerate() {
            let index = place(number);
            let reg = self.index(index)?;
            let place = match Ty::parse(ty).map(|ty| (ty, ty.bytes())) {
                Some((Ty::Pred, _)) => {
                    self.predicates = self.predicates.max(index + 1);
                    Place::Pred(reg)
                }
                Some((_, 1..=4)) => {
                    self.initial32.resize(self.initial32.len().max(index + 1), None);
                    Place::R32(reg)
                }
                Some((_, 8)) => {
                    self.initial64.resize(self.initial64.len().max(index + 1), None);
                    Place::R64(reg)
                }
                _ => return Err(error(self.kernel.line, format!("registers of type .{ty} are not supported"))),
            };
            self.registers.insert(name, (number, place));
        }
        Ok(())
    }

    fn index(&self, index: usize) -> Result<Reg, Error> {
        Reg::try_from(index).map_err(|_| error(self.line, "the kernel has more than 65536 registers of a kind"))
    }

    /// The kernel has instructions whose work is done asynchronously.
    pub(super) fn uses_units(&mut self) {
        self.units = true;
    }

    /// An instruction of one architecture only, or of its family.
    pub(super) fn need_target(&self, targets: &[&str]) -> Result<(), Error> {
        if targets.contains(&self.target) {
            return Ok(());
        }
        Err(self.error(format!("the instruction needs .target {}, not {}", targets.join(" or "), self.target)))
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> Error {
        error(self.line, reason)
    }

    fn instruction(&mut self, statement: &Statement<'a>) -> Result<Instruction, Error> {
        self.line = statement.line;
        let guard = match &statement.guard {
            Some((name, negate)) => Some(PredSource { reg: self.predicate(name)?, negate: *negate }),
            None => None,
        };
        let (op, class, together) = instructions::decode(self, statement)?;
        Ok(Instruction { guard, together, class, op, line: statement.line })
    }

    /// The place of a declared register, and its number.
    fn find(&self, name: &str) -> Result<(usize, Place), Error> {
        self.registers.get(name).copied().ok_or_else(|| self.error(format!("register {name} is not declared")))
    }

    /// The bank and index of a declared register.
    pub(super) fn place(&self, name: &str) -> Result<Place, Error> {
        self.find(name).map(|found| found.1)
    }

    /// The same, for a register that the instruction reads.
    fn read(&mut self, name: &str) -> Result<Place, Error> {
        let (number, place) = self.find(name)?;
        self.footprint.reads.push(number);
        Ok(place)
    }

    /// The same, for a register that the instruction writes.
    fn write(&mut self, name: &str) -> Result<Place, Error> {
        let (number, place) = self.find(name)?;
        self.footprint.writes.push(number);
        Ok(place)
    }

    /// A predicate that is read.
    fn predicate(&mut self, name: &str) -> Result<Reg, Error> {
        match self.read(name)? {
            Place::Pred(reg) => Ok(reg),
            _ => Err(self.error(format!("{name} is not a predicate"))),
        }
    }

    pub(super) fn label(&self, name: &str) -> Result<u32, Error> {
        let index = self.kernel.labels.get(name).ok_or_else(|| self.error(format!("label {name} does not exist")))?;
        Ok(*index as u32)
    }

    pub(super) fn table(&self, name: &str) -> Result<Box<[u32]>, Error> {
        let labels = self.kernel.tables.get(name).ok_or_else(|| self.error(format!("table {name} does not exist")))?;
        labels.iter().map(|label| self.label(label)).collect()
    }
}
