//! Definite-assignment analysis of registers declared without an initial value.
//!
//! A read that follows a write on every path needs no check at run time. A lane that reaches an
//! instruction has executed all its dominators, so the analysis holds for each lane, however the
//! warp diverges.

use std::collections::HashSet;

use flashcore_ir::{Kernel, Node, Reg};

/// The registers with at least one read that may precede the first write.
pub(crate) fn unproven(kernel: &Kernel) -> HashSet<Reg> {
    let suspects: HashSet<Reg> = kernel.maybe_unwritten().collect();
    let mut pass = Pass {
        suspects,
        unproven: HashSet::new(),
    };
    if !pass.suspects.is_empty() {
        pass.nodes(kernel.body(), &mut HashSet::new());
    }
    pass.unproven
}

struct Pass {
    suspects: HashSet<Reg>,
    unproven: HashSet<Reg>,
}

impl Pass {
    fn nodes(&mut self, nodes: &[Node], written: &mut HashSet<Reg>) {
        for node in nodes {
            match node {
                Node::Inst { inst, .. } => {
                    let mut reads = Vec::new();
                    let mut writes = Vec::new();
                    inst.visit_regs(|reg, n| reads.push((reg, n)), |reg, n| writes.push((reg, n)));
                    for (first, n) in reads {
                        for reg in (0..n).map(|i| first.plus(i)) {
                            if self.suspects.contains(&reg) && !written.contains(&reg) {
                                self.unproven.insert(reg);
                            }
                        }
                    }
                    for (first, n) in writes {
                        let regs = (0..n).map(|i| first.plus(i));
                        written.extend(regs.filter(|reg| self.suspects.contains(reg)));
                    }
                }
                Node::If { then, otherwise, .. } => {
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
                Node::BreakIf { .. } => {}
            }
        }
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
