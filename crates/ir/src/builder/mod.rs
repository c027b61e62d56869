//! [`KernelBuilder`]: where a kernel is written down.
//!
//! Values carry a reference to the builder, which mutates behind it, so that arithmetic reads as
//! arithmetic and closures for control flow nest without borrow fights. Mistakes are collected and
//! reported together when the kernel is finished.

use std::cell::RefCell;

use rustc_hash::FxHashMap;

use crate::error::{BuildError, BuildErrorKind, BuildErrors};
use crate::inst::{Inst, Object, Operand, Slot, Special};
use crate::kernel::{Kernel, KernelParts, Node, ParamKind};
use crate::site::{Frame, FrameId, Site, SiteId, SourceLine};
use crate::types::{Assignable, Literal, Reg, RegClass, Scalar};

mod control;
mod params;
pub mod pointer;
mod roles;
pub mod value;

use control::check_aligned;
pub use control::{Cond, LoopScope};
pub use roles::Role;
use value::{Source, Val, Var};

/// Declares methods of [`KernelBuilder`] that append one instruction each.
macro_rules! instructions {
    ($($(#[$doc:meta])* $method:ident($($arg:ident: $ty:ty),*) = $inst:expr;)*) => {
        impl KernelBuilder {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, $($arg: $ty),*) {
                self.emit($inst);
            }
        )*}
    };
}
pub(crate) use instructions;

/// Notes an invalid use at the line of the caller, when it is one: `invalid_if!(k, when => "what {}", ...)`.
macro_rules! invalid_if {
    ($k:expr, $when:expr => $($what:tt)+) => {
        if $when {
            $k.invalid(format!($($what)+));
        }
    };
}
pub(crate) use invalid_if;

/// Where a kernel is written down. See [`Kernel::build`].
#[derive(Debug)]
pub struct KernelBuilder {
    pub(crate) state: RefCell<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// All of the kernel but its body.
    pub(crate) kernel: KernelParts,
    shared_base: Option<Reg>,
    /// The blocks that are being written, the innermost last.
    open: Vec<OpenBlock>,
    /// By block: the block around it. Block 0 is the kernel's body.
    block_parents: Vec<usize>,
    /// By class and index of a register: the block that made it, outside of which it has no value.
    defined_in: [Vec<usize>; 5],
    site_ids: FxHashMap<Site, SiteId>,
    frame_ids: FxHashMap<Frame, FrameId>,
    /// The verb that instructions are emitted under.
    frame: Option<FrameId>,
    errors: Vec<BuildError>,
}

/// A block of structured control flow: a branch, the body of a loop, or the kernel's body.
#[derive(Debug, Default)]
struct OpenBlock {
    id: usize,
    nodes: Vec<Node>,
}

impl Kernel {
    /// Writes a kernel down in `body` and finishes it.
    ///
    /// ```
    /// use flashcore_ir::Kernel;
    /// let kernel = Kernel::build("add_one", 128, |k| {
    ///     let data = k.param_ptr_mut::<f32>("data");
    ///     let len = k.param::<u32>("len");
    ///     let i = k.block_idx(0) * 128 + k.thread_idx();
    ///     k.if_(i.lt(len).divergent(), || {
    ///         let at = data.offset(i);
    ///         at.store(at.load() + 1.0);
    ///     });
    /// })?;
    /// assert!(kernel.to_ptx().contains("add.rn.f32"));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    ///
    /// # Errors
    /// Every mistake found, with the lines that made them.
    pub fn build(
        name: impl Into<String>,
        threads: u32,
        body: impl FnOnce(&KernelBuilder),
    ) -> Result<Kernel, BuildErrors> {
        let k = KernelBuilder::new(name.into(), threads);
        body(&k);
        k.finish()
    }
}

impl State {
    fn current_block(&self) -> usize {
        self.open.last().map_or(0, |block| block.id)
    }

    fn new_reg(&mut self, class: RegClass) -> Reg {
        let index = self.kernel.num_regs[class as usize];
        self.kernel.num_regs[class as usize] += 1;
        let block = self.current_block();
        self.defined_in[class as usize].push(block);
        Reg { class, index }
    }

    fn is_within(&self, inner: usize, outer: usize) -> bool {
        let mut block = inner;
        loop {
            if block == outer {
                return true;
            }
            if block == 0 {
                return false;
            }
            block = self.block_parents[block];
        }
    }
}

impl KernelBuilder {
    fn new(name: String, threads: u32) -> KernelBuilder {
        let k = KernelBuilder {
            state: RefCell::new(State {
                kernel: KernelParts {
                    name: name.clone(),
                    threads,
                    ..KernelParts::default()
                },
                shared_base: None,
                open: vec![OpenBlock::default()],
                block_parents: vec![0],
                defined_in: Default::default(),
                site_ids: FxHashMap::default(),
                frame_ids: FxHashMap::default(),
                frame: None,
                errors: Vec::new(),
            }),
        };
        let has_valid_chars = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        invalid_if!(k, !has_valid_chars || !name.starts_with(|c: char| c.is_ascii_alphabetic()) =>
            "`{name}` is not a kernel name; use letters, digits and `_`, beginning with a letter");
        invalid_if!(k, threads == 0 || threads > 1024 || !threads.is_multiple_of(32) =>
            "{threads} threads a block; allowed are multiples of 32 from 32 to 1024");
        k
    }

    fn finish(self) -> Result<Kernel, BuildErrors> {
        let mut state = self.state.into_inner();
        let body = state.open.pop().map(|block| block.nodes).unwrap_or_default();
        check_aligned(&body, &state.kernel.sites, None, &mut state.errors);
        if !state.errors.is_empty() {
            let (kernel, errors) = (state.kernel.name, state.errors);
            return Err(BuildErrors { kernel, errors });
        }
        Ok(Kernel::of_parts(KernelParts { body, ..state.kernel }))
    }

    /// Threads a block.
    pub fn threads(&self) -> u32 {
        self.state.borrow().kernel.threads
    }

    /// Asks the compiler to leave room for this many blocks an SM (`.minnctapersm`).
    #[track_caller]
    pub fn min_blocks_per_sm(&self, blocks: u32) {
        invalid_if!(self, blocks == 0 => "0 blocks an SM; at least 1 must fit");
        self.state.borrow_mut().kernel.min_blocks_per_sm = Some(blocks);
    }

    /// Lets the compiler use this many registers a thread at most (`.maxnreg`); it spills what does not fit.
    #[track_caller]
    pub fn max_registers(&self, registers: u32) {
        invalid_if!(self, !(16..=255).contains(&registers) =>
            "{registers} registers a thread at most; 16 to 255 are possible");
        self.state.borrow_mut().kernel.max_registers = Some(registers);
    }

    /// A constant as a value.
    pub fn constant<T: Literal>(&self, value: T) -> Val<'_, T> {
        Val::from_operand(self, Operand::Imm(value.bits()))
    }

    /// A variable with a first value.
    #[track_caller]
    pub fn var<'k, T: Assignable>(&'k self, initial: impl Source<'k, T>) -> Var<'k, T> {
        let src = initial.operand();
        let dst = self.reg(T::TYPE.class());
        self.emit(Inst::Mov { dst, src });
        Var::from_reg(self, dst)
    }

    /// A named variable without a first value; the simulator finds reads before the first write.
    pub fn var_unwritten<T: Assignable>(&self, name: &str) -> Var<'_, T> {
        Var::from_reg(self, self.unwritten_regs(T::TYPE.class(), 1, name))
    }

    /// Index of this thread in its (one-dimensional) block.
    #[track_caller]
    pub fn thread_idx(&self) -> Val<'_, u32> {
        self.special(Special::Tid(0))
    }

    /// Index of this block in the grid along a dimension (0, 1, 2).
    #[track_caller]
    pub fn block_idx(&self, dim: u8) -> Val<'_, u32> {
        self.special(Special::Ctaid(dim))
    }

    /// Blocks in the grid along a dimension.
    #[track_caller]
    pub fn grid_dim(&self, dim: u8) -> Val<'_, u32> {
        self.special(Special::Nctaid(dim))
    }

    /// Threads of the block along a dimension, as launched.
    #[track_caller]
    pub fn block_dim(&self, dim: u8) -> Val<'_, u32> {
        self.special(Special::Ntid(dim))
    }

    /// Index of this lane in its warp, 0..32.
    #[track_caller]
    pub fn lane(&self) -> Val<'_, u32> {
        self.special(Special::LaneId)
    }

    /// Index of this warp in its block, which the compiler then knows to be the same in all lanes.
    #[track_caller]
    pub fn warp_idx(&self) -> Val<'_, u32> {
        (self.thread_idx() / 32).shfl_idx(0u32)
    }

    #[track_caller]
    pub(crate) fn special(&self, which: Special) -> Val<'_, u32> {
        self.result(|dst| Inst::Special { dst, which })
    }

    /// Shows a value in the simulator (`check --trace`) under a label; prints nothing on a GPU.
    #[track_caller]
    pub fn trace<T: Scalar>(&self, label: &str, value: Val<'_, T>) {
        let src = self.in_register(T::TYPE.class(), value.operand());
        let label = {
            let mut state = self.state.borrow_mut();
            state.kernel.traces.push(label.to_string());
            state.kernel.traces.len() as u32 - 1
        };
        self.emit(Inst::Trace { label, src });
    }

    fn block(&self, body: impl FnOnce(usize)) -> Vec<Node> {
        body(self.open_block());
        self.close_block()
    }

    fn open_block(&self) -> usize {
        let mut state = self.state.borrow_mut();
        let id = state.block_parents.len();
        let parent = state.current_block();
        state.block_parents.push(parent);
        state.open.push(OpenBlock { id, nodes: Vec::new() });
        id
    }

    fn close_block(&self) -> Vec<Node> {
        let block = self.state.borrow_mut().open.pop();
        block.map(|block| block.nodes).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn result<T: Scalar>(&self, inst: impl FnOnce(Reg) -> Inst) -> Val<'_, T> {
        let dst = self.reg(T::TYPE.class());
        self.emit(inst(dst));
        Val::from_reg(self, dst)
    }

    pub(crate) fn reg(&self, class: RegClass) -> Reg {
        self.state.borrow_mut().new_reg(class)
    }

    /// `count` fresh contiguous registers; the first is returned.
    pub(crate) fn regs(&self, class: RegClass, count: u32) -> Reg {
        let first = self.reg(class);
        for _ in 1..count {
            self.reg(class);
        }
        first
    }

    /// Contiguous registers whose reads before the first write the simulator must find.
    pub(crate) fn unwritten_regs(&self, class: RegClass, count: u32, name: &str) -> Reg {
        let first = self.regs(class, count);
        let mut state = self.state.borrow_mut();
        let regs = (0..count).map(|i| (class, first.index + i));
        state.kernel.maybe_unwritten.extend(regs);
        state.kernel.names.push((first, count, name.to_string()));
        first
    }

    /// The register of an operand; an immediate is moved into a fresh one.
    #[track_caller]
    pub(crate) fn in_register(&self, class: RegClass, operand: Operand) -> Reg {
        match operand {
            Operand::Reg(reg) => reg,
            Operand::Imm(_) => self.contiguous(class, &[operand]),
        }
    }

    /// Contiguous registers with these values: theirs if they are contiguous already, else copies.
    #[track_caller]
    pub(crate) fn contiguous(&self, class: RegClass, values: &[Operand]) -> Reg {
        if let Operand::Reg(first) = values[0]
            && (0u32..)
                .zip(values)
                .all(|(i, value)| *value == Operand::Reg(first.plus(i)))
        {
            return first;
        }
        let first = self.regs(class, values.len() as u32);
        for (i, &src) in (0u32..).zip(values) {
            let dst = first.plus(i);
            self.emit(Inst::Mov { dst, src });
        }
        first
    }

    /// The register that holds the address of shared memory's first byte, set once at the top.
    #[track_caller]
    pub(crate) fn shared_base(&self) -> Reg {
        if let Some(reg) = self.state.borrow().shared_base {
            return reg;
        }
        let site = self.site();
        let mut state = self.state.borrow_mut();
        let dst = state.new_reg(RegClass::B32);
        // The kernel's first instruction, whatever block asks first, so that all may use it.
        state.defined_in[RegClass::B32 as usize][dst.index as usize] = 0;
        let inst = Inst::SharedBase { dst };
        state.open[0].nodes.insert(0, Node::Inst { inst, site });
        state.shared_base = Some(dst);
        dst
    }

    #[track_caller]
    pub(crate) fn emit(&self, mut inst: Inst) {
        let mut in_scope = true;
        for slot in inst.slots() {
            slot.visit_regs(&mut |first, count, access| {
                in_scope &= !access.reads() || self.is_in_scope(first, count);
            });
            if let Slot::Memory(addr, _, access) | Slot::TensorBox(addr, _, access) = slot
                && let Object::Param(index) = addr.object
                && access.writes()
            {
                self.check_writable(index);
            }
        }
        if !in_scope {
            self.error(BuildErrorKind::OutOfScope);
        }
        if let Some(problem) = inst.impossible_among(self.threads()) {
            self.invalid(problem);
        }
        let site = self.site();
        self.push(Node::Inst { inst, site });
    }

    #[track_caller]
    fn check_writable(&self, index: u32) {
        let read_only = {
            let state = self.state.borrow();
            let param = &state.kernel.params[index as usize];
            let declare = match param.kind {
                ParamKind::Pointer { writable: false, .. } => Some("param_ptr_mut"),
                ParamKind::TensorMap { writable: false, .. } => Some("param_tensor_map_mut"),
                _ => None,
            };
            declare.map(|declare| (param.name.clone(), declare))
        };
        if let Some((name, declare)) = read_only {
            self.invalid(format!(
                "a write through parameter `{name}`, declared read-only; declare it with `{declare}`"
            ));
        }
    }

    /// Whether registers were made in the block that is open, or in one around it.
    fn is_in_scope(&self, first: Reg, count: u32) -> bool {
        let state = self.state.borrow();
        let block = state.current_block();
        let defined = &state.defined_in[first.class as usize][first.index as usize..][..count as usize];
        defined.iter().all(|&made_in| state.is_within(block, made_in))
    }

    fn push(&self, node: Node) {
        if let Some(block) = self.state.borrow_mut().open.last_mut() {
            block.nodes.push(node);
        }
    }

    #[track_caller]
    pub(crate) fn site(&self) -> SiteId {
        let mut state = self.state.borrow_mut();
        let (line, frame) = (SourceLine::caller(), state.frame);
        let site = Site { line, frame };
        let next = SiteId(state.kernel.sites.len() as u32);
        let id = *state.site_ids.entry(site).or_insert(next);
        if id == next {
            state.kernel.sites.push(site);
        }
        id
    }

    #[track_caller]
    pub(crate) fn invalid(&self, what: impl Into<String>) {
        self.error(BuildErrorKind::Invalid(what.into()));
    }

    #[track_caller]
    pub(super) fn error(&self, kind: BuildErrorKind) {
        let line = SourceLine::caller();
        let error = BuildError { kind, line };
        let mut state = self.state.borrow_mut();
        if !state.errors.contains(&error) {
            state.errors.push(error);
        }
    }
}
