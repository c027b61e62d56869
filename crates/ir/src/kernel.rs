//! [`Kernel`]: a finished kernel, an immutable tree of instructions.

use std::collections::BTreeSet;
use std::fmt;

use crate::inst::Inst;
use crate::launch::TensorBox;
use crate::shared::Ledger;
use crate::site::{Frame, FrameId, Site, SiteId, SourceLine};
use crate::target::Requirement;
use crate::types::{Reg, RegClass, ScalarType};

/// The condition of an `if` or of leaving a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The predicate register.
    pub pred: Reg,
    /// Whether it was declared to be the same in every lane of a warp that gets here.
    pub uniform: bool,
}

/// A node of a kernel's body.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // `site` is where the node was written
pub enum Node {
    /// An instruction.
    Inst { inst: Inst, site: SiteId },
    /// Two-way branch, reconverging at its end.
    If {
        condition: Condition,
        then: Vec<Node>,
        otherwise: Vec<Node>,
        site: SiteId,
    },
    /// Repeats its body until every lane has left by a [`Node::BreakIf`].
    Loop { body: Vec<Node>, site: SiteId },
    /// Lanes where the condition holds leave the innermost loop.
    BreakIf { condition: Condition, site: SiteId },
}

impl Node {
    /// A [`Node::If`].
    pub fn branch(condition: Condition, then: Vec<Node>, otherwise: Vec<Node>, site: SiteId) -> Node {
        Node::If {
            condition,
            then,
            otherwise,
            site,
        }
    }
}

/// What a kernel parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A pointer to global memory holding elements of this type.
    Pointer {
        /// Element type in memory.
        element: ScalarType,
        /// Whether the kernel may write through it.
        writable: bool,
    },
    /// A number of this type.
    Value(ScalarType),
    /// A tensor map, by which boxes of a tensor are copied.
    TensorMap {
        /// The boxes.
        boxes: TensorBox,
        /// Whether the kernel may write through it.
        writable: bool,
    },
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name, in PTX and in messages.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
}

impl Param {
    /// The type of the argument that fits: of a pointer and of a tensor map, that of an address.
    pub fn scalar(&self) -> ScalarType {
        match self.kind {
            // A tensor map has no scalar type; its address is what a kernel works with.
            ParamKind::Pointer { .. } | ParamKind::TensorMap { .. } => ScalarType::U64,
            ParamKind::Value(ty) => ty,
        }
    }
}

/// What a kernel is made of: [`Kernel::build`] writes it down, and readers of other notations give it to
/// [`Kernel::of_parts`].
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)] // each is what the kernel's method of its name gives
pub struct KernelParts {
    pub name: String,
    pub params: Vec<Param>,
    pub threads: u32,
    pub min_blocks_per_sm: Option<u32>,
    pub max_registers: Option<u32>,
    pub cluster: Option<u32>,
    pub ledger: Ledger,
    pub body: Vec<Node>,
    pub num_regs: [u32; 5],
    pub maybe_unwritten: BTreeSet<(RegClass, u32)>,
    /// First register, number of registers and name of each variable.
    pub names: Vec<(Reg, u32, String)>,
    pub traces: Vec<String>,
    pub sites: Vec<Site>,
    pub frames: Vec<Frame>,
}

/// A finished kernel.
///
/// Made by [`Kernel::build`]; printed by [`Kernel::to_ptx`](crate::ptx); run by the driver or the
/// simulator together with a [`Launch`](crate::Launch).
#[derive(Clone, Debug)]
pub struct Kernel {
    parts: KernelParts,
    waits_for_launch_before: bool,
}

impl Kernel {
    /// The kernel of these parts. Nothing is checked.
    pub fn of_parts(parts: KernelParts) -> Kernel {
        let mut kernel = Kernel {
            parts,
            waits_for_launch_before: false,
        };
        // Kept, since each launch asks for it.
        let mut waits = false;
        kernel.for_each_inst(&mut |inst, _| waits |= matches!(inst, Inst::DependencyWait));
        kernel.waits_for_launch_before = waits;
        kernel
    }

    /// What it is made of.
    pub fn parts(&self) -> &KernelParts {
        &self.parts
    }
    /// Entry name in PTX.
    pub fn name(&self) -> &str {
        &self.parts.name
    }
    /// Parameters, in order.
    pub fn params(&self) -> &[Param] {
        &self.parts.params
    }
    /// Threads a block that it is made for.
    pub fn threads(&self) -> u32 {
        self.parts.threads
    }
    /// Blocks an SM that the compiler is asked to leave registers for, if stated.
    pub fn min_blocks_per_sm(&self) -> Option<u32> {
        self.parts.min_blocks_per_sm
    }
    /// Registers a thread that the compiler may use at most, if stated.
    pub fn max_registers(&self) -> Option<u32> {
        self.parts.max_registers
    }
    /// Blocks along x of the cluster that it must be launched in, if it is made for one.
    pub fn cluster(&self) -> Option<u32> {
        self.parts.cluster
    }
    /// Its shared memory.
    pub fn ledger(&self) -> &Ledger {
        &self.parts.ledger
    }
    /// The instruction tree.
    pub fn body(&self) -> &[Node] {
        &self.parts.body
    }
    /// Virtual registers of a class.
    pub fn num_regs(&self, class: RegClass) -> u32 {
        self.parts.num_regs[class as usize]
    }
    /// Registers declared without a first value, whose reads must be checked at run time.
    pub fn maybe_unwritten(&self) -> impl Iterator<Item = Reg> + '_ {
        self.parts
            .maybe_unwritten
            .iter()
            .map(|&(class, index)| Reg { class, index })
    }
    /// The name of the variable or fragment a register belongs to, if it has one.
    pub fn reg_name(&self, reg: Reg) -> Option<&str> {
        self.parts
            .names
            .iter()
            .find(|(first, count, _)| {
                first.class == reg.class && (first.index..first.index + count).contains(&reg.index)
            })
            .map(|(_, _, name)| name.as_str())
    }
    /// Labels of [`Inst::Trace`].
    pub fn traces(&self) -> &[String] {
        &self.parts.traces
    }
    /// Whether it waits for the launch before it ([`Inst::DependencyWait`]), so that it may begin earlier.
    pub fn waits_for_launch_before(&self) -> bool {
        self.waits_for_launch_before
    }
    /// Where an instruction was written.
    pub fn site(&self, id: SiteId) -> Site {
        self.parts.sites[id.0 as usize]
    }
    /// A verb on the way to an instruction.
    pub fn frame(&self, id: FrameId) -> Frame {
        self.parts.frames[id.0 as usize]
    }

    /// The lines that led to an instruction, outermost first: the kernel's own line, then each
    /// verb's. Each line comes with the verb that it is part of.
    pub fn backtrace(&self, id: SiteId) -> Vec<(SourceLine, Option<&'static str>)> {
        let site = self.site(id);
        let mut lines = Vec::new();
        let mut line = site.line;
        let mut frame = site.frame;
        while let Some(f) = frame.map(|id| self.frame(id)) {
            lines.push((line, Some(f.verb)));
            (line, frame) = (f.called_at, f.parent);
        }
        lines.push((line, None));
        lines.reverse();
        lines
    }

    /// The line of the kernel that an instruction stems from, verbs looked through.
    pub fn kernel_line(&self, id: SiteId) -> SourceLine {
        self.backtrace(id)[0].0
    }

    /// Calls `visit` for every node, in program order: a branch or a loop before what is in it.
    pub fn for_each_node<'k>(&'k self, visit: &mut impl FnMut(&'k Node)) {
        fn walk<'k>(nodes: &'k [Node], visit: &mut impl FnMut(&'k Node)) {
            for node in nodes {
                visit(node);
                match node {
                    Node::Inst { .. } | Node::BreakIf { .. } => {}
                    Node::If { then, otherwise, .. } => {
                        walk(then, visit);
                        walk(otherwise, visit);
                    }
                    Node::Loop { body, .. } => walk(body, visit),
                }
            }
        }
        walk(&self.parts.body, visit);
    }

    /// Calls `visit` for every instruction, in program order.
    pub fn for_each_inst(&self, visit: &mut impl FnMut(&Inst, SiteId)) {
        self.for_each_node(&mut |node| {
            if let Node::Inst { inst, site } = node {
                visit(inst, *site);
            }
        });
    }

    /// The same kernel with another body, for planting mistakes. Nothing is checked; all else, and
    /// whether it waits for the launch before it, stays that of this kernel.
    pub fn with_body(&self, body: Vec<Node>) -> Kernel {
        let parts = KernelParts {
            body,
            ..self.parts.clone()
        };
        Kernel { parts, ..*self }
    }

    /// The lowest PTX version and architecture that have all it uses.
    pub fn requires(&self) -> Requirement {
        let mut required = match self.parts.cluster {
            Some(_) => Requirement::new((7, 8), 90),
            None => Requirement::BASE,
        };
        self.for_each_inst(&mut |inst, _| required = required.max(inst.requires()));
        required
    }

    /// Instructions in the body, each counted once however often it runs.
    pub fn num_insts(&self) -> usize {
        let mut count = 0;
        self.for_each_inst(&mut |_, _| count += 1);
        count
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, threads) = (&self.parts.name, self.parts.threads);
        write!(f, "{name} ({} instructions, {threads} threads)", self.num_insts())
    }
}
