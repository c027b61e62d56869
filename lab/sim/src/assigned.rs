//! Definite-assignment analysis of registers declared without an initial value. Operands are read, and so are the
//! conditions of branches and of leaving a loop.
//!
//! A read that follows a write on every path needs no check at run time. A lane that reaches an
//! instruction has executed all its dominators, so the analysis holds for each lane, however the
//! warp diverges.

use flashcore_ir::inst::Inst;
use flashcore_ir::{Kernel, Node, Reg};
use rustc_hash::FxHashSet;

/// The registers that an instruction reads, and those that it writes.
pub(crate) fn accessed(inst: &Inst) -> [Vec<Reg>; 2] {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let run = |first: Reg, count: u32| (0..count).map(move |i| first.plus(i));
    inst.visit_regs(
        |first, n| reads.extend(run(first, n)),
        |first, n| writes.extend(run(first, n)),
    );
    [reads, writes]
}

/// The registers with at least one read that may precede the first write.
pub(crate) fn unproven(kernel: &Kernel) -> FxHashSet<Reg> {
    let suspects: FxHashSet<Reg> = kernel.maybe_unwritten().collect();
    let mut pass = Pass {
        suspects,
        unproven: FxHashSet::default(),
    };
    if !pass.suspects.is_empty() {
        pass.nodes(kernel.body(), &mut FxHashSet::default());
    }
    pass.unproven
}

struct Pass {
    suspects: FxHashSet<Reg>,
    unproven: FxHashSet<Reg>,
}

impl Pass {
    fn nodes(&mut self, nodes: &[Node], written: &mut FxHashSet<Reg>) {
        for node in nodes {
            match node {
                Node::Inst { inst, .. } => {
                    let [reads, writes] = accessed(inst);
                    self.reads(&reads, written);
                    written.extend(writes.into_iter().filter(|reg| self.suspects.contains(reg)));
                }
                Node::If {
                    condition,
                    then,
                    otherwise,
                    ..
                } => {
                    self.reads(&[condition.pred], written);
                    let mut by_then = written.clone();
                    let mut by_otherwise = written.clone();
                    self.nodes(then, &mut by_then);
                    self.nodes(otherwise, &mut by_otherwise);
                    *written = by_then.intersection(&by_otherwise).copied().collect();
                }
                Node::Loop { body, .. } => {
                    // Every lane executes the body up to the first break at least once.
                    let first_break = body
                        .iter()
                        .position(|node| matches!(node, Node::BreakIf { .. }))
                        .unwrap_or(body.len());
                    let (head, rest) = body.split_at(first_break);
                    self.nodes(head, written);
                    self.nodes(rest, &mut written.clone());
                }
                Node::BreakIf { condition, .. } => self.reads(&[condition.pred], written),
            }
        }
    }

    fn reads(&mut self, regs: &[Reg], written: &FxHashSet<Reg>) {
        let unproven = |reg: &&Reg| self.suspects.contains(*reg) && !written.contains(*reg);
        self.unproven.extend(regs.iter().filter(unproven));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unproven_of(body: impl FnOnce(&flashcore_ir::KernelBuilder)) -> usize {
        unproven(&Kernel::build("test", 32, body).unwrap()).len()
    }

    #[test]
    fn writes_on_every_path_are_proved() {
        let both = unproven_of(|k| {
            let x = k.var_unwritten::<u32>("x");
            k.if_else(k.lane().lt(5).divergent(), || x.set(1), || x.set(2));
            k.trace("x", x.get());
        });
        let one = unproven_of(|k| {
            let x = k.var_unwritten::<u32>("x");
            k.if_(k.lane().lt(5).divergent(), || x.set(1));
            k.trace("x", x.get());
        });
        let in_loop = unproven_of(|k| {
            let x = k.var_unwritten::<u32>("x");
            k.for_uniform(0u32, 4, 1, |i| x.set(i));
            k.trace("x", x.get());
        });
        assert_eq!((both, one, in_loop), (0, 1, 1));
        // Accumulators are declared unwritten and then zeroed, so no check remains.
        assert_eq!(unproven_of(|k| k.trace("acc", k.acc("acc", 4).var(3).get())), 0);
    }
}
