//! The front end: a kernel's PTX as steps, from which `lower.rs` makes a [`Program`](crate::program::Program).
//!
//! A step is an instruction of the kernel language, a jump, or the end. What the text cannot say of our own kernels
//! comes from their [`Notes`].

mod barriers;
mod bulk;
pub(crate) mod cold;
mod convert;
mod fast;
mod foreign;
mod forms;
mod launch;
mod lower;
pub(crate) mod matrix;
mod memory;
pub(crate) mod numbers;
mod operands;
mod origins;
mod other;
mod polling;
#[cfg(test)]
mod round_trip_tests;
mod scalar;
mod simplify;
mod sites;
mod sums;
pub(crate) mod tensor_maps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use flashcore_ir::inst::{Inst, Object};
use flashcore_ir::ptx::{Notes, TraceNote};
use flashcore_ir::shared::BufferId;
use flashcore_ir::site::SiteId;
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ir::{Kernel, Operand};
use flashcore_ptx::PtxError;
use flashcore_ptx::{Flow, Function, Instruction, Module, Operand as Written, Register, Spelled};

use cold::{Cold, Unlike};
pub(crate) use foreign::Extra;
pub use foreign::PtxKernel;
pub use forms::executes;
pub use launch::{PtxArg, PtxBuffer, PtxLaunch};
pub(crate) use lower::lower;
use operands::error;
use origins::Origin;

/// Bytes of local memory of a thread (CUDA programming guide, "Technical Specifications per Compute Capability").
const MOST_LOCAL: u64 = 1 << 19;

/// Addresses that no note has an object for.
pub(crate) const UNKNOWN: Object = Object::Param(u32::MAX);

/// A kernel as steps.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) items: Vec<Item>,
    /// By instruction of the text: its first item, its labels included. One more for the end.
    pub(crate) begins: Vec<u32>,
    /// Labels: the instruction that each stands before.
    pub(crate) labels: Vec<u32>,
    /// Blocks of the text: instructions, and the blocks that may be next.
    pub(crate) flow: Vec<flashcore_ptx::Block>,
    pub(crate) num_regs: [u32; RegClass::ALL.len()],
    /// By register of the text; none for types that are not read.
    registers: Vec<Option<Reg>>,
    /// Objects that registers are given the addresses of.
    bases: HashMap<Reg, Origin>,
    /// Bytes of local variables.
    pub(crate) local: u32,
    /// Of kernels of other compilers.
    pub(crate) extra: Option<Extra>,
}

#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) step: Step,
    pub(crate) site: SiteId,
}

#[derive(Debug)]
pub(crate) enum Step {
    Inst(Inst),
    /// An instruction of the kernel language, but for what that has not.
    Like(Inst, Unlike),
    Cold(Cold),
    /// Of the active lanes those go on for which a predicate holds, or does not; up to the end of the guard.
    Guard(Reg, bool),
    GuardEnd,
    Label(u32),
    Jump(Jump),
    /// Lanes end: all, or those for which a predicate holds, or does not.
    Exit(Option<(Reg, bool)>),
}

impl Step {
    /// The instruction of the kernel language that it is, or is like.
    pub(crate) fn inst(&self) -> Option<&Inst> {
        match self {
            Step::Inst(inst) | Step::Like(inst, _) => Some(inst),
            _ => None,
        }
    }
}

/// A jump to an instruction of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    /// The predicate, and whether it jumps where that is false.
    pub(crate) guard: Option<(Reg, bool)>,
    pub(crate) uniform: bool,
    /// The label.
    pub(crate) label: u32,
    /// The instruction at which paths that part here meet.
    pub(crate) join: Option<u32>,
}

impl Code {
    /// An own kernel, as its text and its notes have it.
    pub(crate) fn of(kernel: &Kernel) -> Result<Code, PtxError> {
        let module = Module::read(&kernel.to_ptx())?;
        let (entry, function) = module
            .entries()
            .next()
            .ok_or_else(|| PtxError::not_understood(format!("`{}`", kernel.name()), "the text has no kernel", 1))?;
        let notes = kernel.notes();
        let params = entry.params.iter().map(|param| param.name.as_str()).zip(0..).collect();
        let mut symbols = HashMap::new();
        // Its objects come from the notes.
        symbols.insert("shared_memory".to_string(), (Object::Shared(BufferId(0)), 0));
        let mut code = Reader::new(&module, function, params, symbols).read(&notes)?;
        code.simplify();
        Ok(code)
    }
}

/// What reading a kernel's instructions needs to know and leaves behind.
struct Reader<'a> {
    module: &'a Module,
    function: &'a Function,
    /// By register of the text; none for types that are not read.
    registers: Vec<Option<Reg>>,
    num_regs: [u32; RegClass::ALL.len()],
    /// Names of the parameters as the text has them.
    params: HashMap<&'a str, u32>,
    /// Shared symbols: their objects, and their first bytes.
    symbols: HashMap<String, (Object, u32)>,
    /// Objects of the instruction that is being read.
    objects: std::vec::IntoIter<Object>,
    /// What is copied to registers after the statement that is being read.
    after: Vec<(Reg, Reg)>,
    items: Vec<Item>,
    site: SiteId,
    /// Of kernels of other compilers: the first byte of each parameter; registers with the address of a byte of them;
    /// the buffers whose addresses begin at a byte of them; local variables.
    places: Option<HashMap<String, u32>>,
    parameter_addresses: HashMap<Register, u32>,
    pointers: HashMap<u32, u32>,
    locals: HashMap<String, u32>,
    local: u32,
    /// By the first byte of a tensor map, the parameter of the kernel that it is.
    maps: HashMap<u32, u32>,
    /// The buffers of variables in global memory.
    variables: HashMap<String, u32>,
    /// The object that a register was given the address of, anywhere in the text.
    bases: HashMap<Reg, Origin>,
    /// The condition code register, whose only flag is the carry.
    carry: Option<Reg>,
}

/// The class of registers of a type.
fn class_of(ty: &str) -> Option<RegClass> {
    Some(match ty {
        "pred" => RegClass::Pred,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => RegClass::B16,
        "b32" | "u32" | "s32" | "f16x2" | "bf16x2" => RegClass::B32,
        "b64" | "u64" | "s64" | "f64" => RegClass::B64,
        "f32" => RegClass::F32,
        _ => return None,
    })
}

impl<'a> Reader<'a> {
    fn new(
        module: &'a Module,
        function: &'a Function,
        params: HashMap<&'a str, u32>,
        symbols: HashMap<String, (Object, u32)>,
    ) -> Reader<'a> {
        let mut reader = Reader {
            module,
            function,
            registers: Vec::new(),
            num_regs: [0; RegClass::ALL.len()],
            params,
            symbols,
            objects: Vec::new().into_iter(),
            after: Vec::new(),
            items: Vec::new(),
            site: SiteId(0),
            places: None,
            parameter_addresses: HashMap::new(),
            pointers: HashMap::new(),
            locals: HashMap::new(),
            local: 0,
            maps: HashMap::new(),
            variables: HashMap::new(),
            bases: HashMap::new(),
            carry: None,
        };
        for declared in &function.registers {
            let count = declared.count.unwrap_or(1);
            let first = class_of(&declared.ty).map(|class| reader.fresh(class, count));
            let run = (0..count).map(|i| first.map(|first| first.plus(i)));
            reader.registers.extend(run);
        }
        reader
    }

    fn read(mut self, notes: &Notes) -> Result<Code, PtxError> {
        let flow = match self.places {
            Some(_) => Flow::of_those_that_go_on(self.module, self.function),
            None => Flow::of(self.module, self.function),
        };
        let mut begins = Vec::new();
        let (mut objects, mut traces) = (notes.objects.iter().peekable(), notes.traces.iter().peekable());
        let mut order: Vec<u32> = (0..self.function.labels.len() as u32).collect();
        order.sort_by_key(|&label| self.function.labels[label as usize]);
        let (mut labels, mut passed) = (order.iter().peekable(), 0);
        let mut blocks = flow.blocks.iter().peekable();
        for (number, inst) in (0u32..).zip(&self.function.instructions) {
            let site = notes.sites.get(number as usize).copied().unwrap_or(SiteId(0));
            let first = self.items.len() as u32;
            let mut begin = None;
            loop {
                let label = labels
                    .peek()
                    .copied()
                    .copied()
                    .filter(|&label| self.function.labels[label as usize] == number);
                let trace =
                    |note: &&TraceNote| note.instructions == number && (note.labels == passed || label.is_none());
                if let Some(&TraceNote { label, src, .. }) = traces.next_if(trace) {
                    let step = Step::Inst(Inst::Trace { label, src });
                    self.items.push(Item { step, site });
                } else if let Some(label) = label {
                    begin = begin.or(Some(self.items.len() as u32));
                    let step = Step::Label(label);
                    self.items.push(Item { step, site });
                    labels.next();
                    passed += 1;
                } else {
                    break;
                }
            }
            begins.push(begin.unwrap_or(first));
            let known = objects.next_if(|(at, _)| *at == number);
            self.objects = known.map_or(Vec::new(), |(_, all)| all.clone()).into_iter();
            while blocks.next_if(|block| block.instructions.end <= number).is_some() {}
            let join = blocks.peek().and_then(|block| block.join);
            let join = join.map(|join| match flow.blocks.get(join as usize) {
                Some(block) => block.instructions.start,
                None => self.function.instructions.len() as u32,
            });
            self.step(inst, join, site)?;
        }
        begins.push(self.items.len() as u32);
        // The end may have labels.
        for label in labels {
            self.items.push(Item {
                step: Step::Label(*label),
                site: self.site,
            });
        }
        Ok(Code {
            items: self.items,
            begins,
            labels: self.function.labels.clone(),
            flow: flow.blocks,
            num_regs: self.num_regs,
            registers: self.registers,
            bases: self.bases,
            local: self.local,
            extra: None,
        })
    }

    fn step(&mut self, inst: &Instruction, join: Option<u32>, site: SiteId) -> Result<(), PtxError> {
        self.site = site;
        let form = match &self.module.forms()[inst.form as usize] {
            Ok(form) => form,
            Err(missing) => return Err(error(&missing.form, missing.why, inst.line)),
        };
        let wrong = |why: String| error(&flashcore_ptx::print(form), why, inst.line);
        let guard = match inst.guard {
            None => None,
            Some((register, negated)) => {
                let pred = self.reg(&Written::Register(register), RegClass::Pred).map_err(wrong)?;
                Some((pred, negated))
            }
        };
        let step = match (form.name(), inst.operands.first(), guard) {
            // A jump over nothing decides nothing.
            ("bra", Some(&Written::Label(label)), _) if self.places.is_some() && self.stands_after(label, inst) => {
                return Ok(());
            }
            ("bra", Some(&Written::Label(label)), _) if self.places.is_some() && self.returns(label) => {
                Step::Exit(guard)
            }
            ("bra", Some(Written::Label(label)), _) => Step::Jump(Jump {
                guard,
                uniform: form.has("uni"),
                label: *label,
                join,
            }),
            ("ret" | "exit", ..) => Step::Exit(guard),
            ("trap", _, Some((pred, false))) if self.places.is_none() => Step::Inst(Inst::TrapIf { pred }),
            _ => {
                if let Some((pred, negated)) = guard {
                    self.push(Step::Guard(pred, negated));
                }
                self.instruction(inst, form).map_err(wrong)?;
                for (dst, src) in std::mem::take(&mut self.after) {
                    self.mov(dst, Operand::Reg(src));
                }
                if guard.is_some() {
                    self.push(Step::GuardEnd);
                }
                return Ok(());
            }
        };
        self.push(step);
        Ok(())
    }

    /// Adds a step of the statement that is being read.
    fn push(&mut self, step: Step) {
        let site = self.site;
        self.items.push(Item { step, site });
    }

    fn inst(&mut self, inst: Inst) {
        self.push(Step::Inst(inst));
    }

    /// Whether a label stands after an instruction.
    fn stands_after(&self, label: u32, inst: &Instruction) -> bool {
        let before = (self.function.labels[label as usize] as usize).checked_sub(1);
        before.is_some_and(|before| std::ptr::eq(&self.function.instructions[before], inst))
    }

    /// Whether nothing but a return stands at a label.
    fn returns(&self, label: u32) -> bool {
        let inst = self
            .function
            .instructions
            .get(self.function.labels[label as usize] as usize);
        let form = inst
            .filter(|inst| inst.guard.is_none())
            .map(|inst| &self.module.forms()[inst.form as usize]);
        matches!(form, Some(Ok(form)) if ["ret", "exit"].contains(&form.name()))
    }

    /// Notes that a register is given the address of an object.
    fn base(&mut self, reg: Reg, object: Object) {
        let one = Origin::One(object);
        let known = self.bases.entry(reg).or_insert(one);
        *known = origins::join(*known, one);
    }

    /// Reads an instruction that is not a jump.
    fn instruction(&mut self, inst: &Instruction, form: &Spelled) -> Result<(), String> {
        // What a hint says is not needed.
        let is_hinted =
            form.name() == "cp" && form.has("L2::cache_hint") && (self.places.is_some() || !form.has("bulk"));
        let operands = &inst.operands[..inst.operands.len() - usize::from(is_hinted)];
        let is_foreign = self.places.is_some();
        if !is_foreign && self.own(form, operands)? {
            return Ok(());
        }
        let is_first = match (form.name(), operands) {
            ("mov", [d, Written::Symbol(name, offset)]) if is_foreign => return self.address_of(d, name, *offset),
            ("atom" | "red", _) => is_foreign || !form.has("v4"),
            ("prefetch" | "elect", _) => is_foreign,
            // What the kernel language has of these is an instruction of it.
            ("cp" | "fence" | "griddepcontrol" | "ldmatrix" | "mapa" | "mma" | "setmaxnreg", _) => false,
            ("stmatrix" | "wgmma", _) => false,
            _ => true,
        };
        if is_first && self.cold_step(form, operands)? {
            return Ok(());
        }
        let mut why = None;
        let (objects, first) = (self.objects.clone(), self.items.len());
        for candidate in forms::candidates(form).iter() {
            self.objects = objects.clone();
            match self.fill(candidate, operands) {
                Ok(inst) => {
                    let impossible = operands::no_gpu_has(&inst).filter(|_| self.places.is_some());
                    self.inst(inst);
                    return impossible.map_or(Ok(()), Err);
                }
                Err(reason) if candidate.clone().slots().len() == operands.len() => why = Some(reason),
                Err(reason) => why = why.or(Some(reason)),
            }
            self.items.truncate(first);
            self.after.clear();
        }
        if self.places.is_some() && self.cold_step(form, operands)? {
            return Ok(());
        }
        Err(why.unwrap_or("the simulator does not execute it yet".to_string()))
    }

    /// Reads what own kernels have by name.
    fn own(&mut self, form: &Spelled, operands: &[Written]) -> Result<bool, String> {
        match (form.name(), operands) {
            ("cvta", [d, a]) if d == a => {}
            ("ld", [d, Written::Memory(base, 0)]) if form.has("param") => {
                let Written::Symbol(name, _) = &**base else {
                    return Err("parameters are read by name".to_string());
                };
                self.param(d, name)?;
            }
            ("mov", [d, Written::Symbol(name, 0)]) if self.params.contains_key(name.as_str()) => self.param(d, name)?,
            ("mov", [d, Written::Symbol(name, 0)]) if self.symbols.contains_key(name.as_str()) => {
                let dst = self.reg(d, RegClass::B32)?;
                self.inst(Inst::SharedBase { dst });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Places the parameters of calls, in local memory, and the local variables.
    fn locals(&mut self, function: &Function) -> Result<(), PtxError> {
        let mut extents: BTreeMap<&str, u32> = BTreeMap::new();
        for inst in &function.instructions {
            let is_param = matches!(&self.module.forms()[inst.form as usize], Ok(form) if form.has("param"));
            let places = inst.operands.iter().filter_map(|operand| match operand {
                Written::Memory(base, offset) => Some((&**base, *offset)),
                _ => None,
            });
            for (base, offset) in places.filter(|_| is_param) {
                if let Written::Symbol(name, _) = base
                    && self.places.as_ref().is_some_and(|places| !places.contains_key(name))
                {
                    // The widest access has 16 bytes.
                    let end = extents.entry(name).or_default();
                    *end = (*end).max(u32::try_from(offset).unwrap_or(0).saturating_add(16));
                }
            }
        }
        for (name, end) in extents {
            PtxError::at_most("bytes of parameters of calls", end.into(), MOST_LOCAL, 1)?;
            self.locals.insert(name.to_string(), self.local);
            self.local = self.local.saturating_add(end.next_multiple_of(16));
        }
        for variable in &function.local {
            let at = self
                .local
                .checked_next_multiple_of(variable.align.max(1))
                .unwrap_or(u32::MAX);
            self.locals.insert(variable.name.clone(), at);
            self.local = at.saturating_add(u32::try_from(variable.bytes).unwrap_or(u32::MAX));
            PtxError::at_most("bytes of local memory", self.local.into(), MOST_LOCAL, variable.line)?;
        }
        Ok(())
    }

    fn param(&mut self, d: &Written, name: &str) -> Result<(), String> {
        let index = *self
            .params
            .get(name)
            .ok_or_else(|| format!("there is no parameter `{name}`"))?;
        let Written::Register(register) = d else {
            return Err("a register is needed".to_string());
        };
        let dst = self.registers[register.0 as usize].ok_or("registers of this type are not read")?;
        self.inst(Inst::Param { dst, index });
        Ok(())
    }
}
