//! Planted mistakes: breaks a finished kernel to test whether checking finds it.
//!
//! A [`Mutation`] is an [`Operator`] applied at one place. [`mutations`] lists all that a kernel
//! allows, so that tests can pick some by hand and sample the others by a seed.

mod arithmetic;
mod changes;
mod operator;
mod removal;

use std::fmt;
use std::sync::Arc;

use flashcore_ir::inst::{BinOp, Object};
use flashcore_ir::kernel::KernelParts;
use flashcore_ir::ptx::mnemonic;
use flashcore_ir::{BufferId, Inst, Kernel, Node, Operand, ScalarType, SiteId, SourceLine};
use flashcore_kernels::Plan;

use changes::changes;
pub use operator::Operator;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// By its number in program order.
    Node(usize),
    Buffer(BufferId),
}

/// One planted mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// What is changed.
    pub operator: Operator,
    /// The kernel's own line of the place.
    pub line: SourceLine,
    /// The place in the kernel's sites.
    pub site: SiteId,
    /// The instruction's mnemonic, or the buffer's name.
    pub what: String,
    /// Name of the shared buffer or parameter that the instruction accesses, if any.
    pub object: Option<String>,
    place: Place,
}

impl fmt::Display for Mutation {
    /// `drop-barrier of bar.sync at crates/kernels/src/scalar/tiled.rs:126`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} at {}", self.operator, self.what, self.line)
    }
}

/// Every mutation that a kernel allows, by operator, then in program order.
pub fn mutations(kernel: &Kernel) -> Vec<Mutation> {
    let mut found = Vec::new();
    let buffers = kernel.ledger().buffers.iter().enumerate();
    found.extend(buffers.filter(|(_, b)| b.rows > 1).map(|(index, buffer)| Mutation {
        operator: Operator::ShrinkBuffer,
        line: kernel.kernel_line(buffer.declared_at),
        site: buffer.declared_at,
        what: buffer.name.clone(),
        object: Some(buffer.name.clone()),
        place: Place::Buffer(BufferId(index as u32)),
    }));
    let mut number = 0;
    kernel.for_each_node(&mut |node| {
        for (operator, _) in variants(node, kernel) {
            let (site, what, object) = match node {
                Node::Inst { inst, site } => (*site, mnemonic(inst), object(inst, kernel)),
                Node::If { site, .. } => (*site, "if".to_string(), None),
                Node::BreakIf { site, .. } | Node::Loop { site, .. } => (*site, "break".to_string(), None),
            };
            found.push(Mutation {
                operator,
                line: kernel.kernel_line(site),
                site,
                what,
                object,
                place: Place::Node(number),
            });
        }
        number += 1;
    });
    found.sort_by_key(|mutation| mutation.operator);
    found
}

/// What each operator puts in place of a node.
fn variants(node: &Node, kernel: &Kernel) -> Vec<(Operator, Vec<Node>)> {
    match node {
        Node::Inst { inst, site } => {
            let node = |inst| Node::Inst { inst, site: *site };
            let all = changes(inst, kernel).into_iter();
            all.map(|(operator, insts)| (operator, insts.into_iter().map(node).collect()))
                .collect()
        }
        Node::If {
            condition,
            then,
            otherwise,
            site,
        } => {
            let inverted = Node::If {
                condition: *condition,
                then: otherwise.clone(),
                otherwise: then.clone(),
                site: *site,
            };
            vec![
                (Operator::InvertCondition, vec![inverted]),
                (Operator::IgnoreCondition, then.clone()),
            ]
        }
        Node::BreakIf { condition, site } => {
            let not = Inst::Bin {
                op: BinOp::Xor,
                ty: ScalarType::Pred,
                dst: condition.pred,
                a: Operand::Reg(condition.pred),
                b: Operand::Imm(1),
            };
            // Inverted back after it, since the lanes that stay may read it again.
            let not = Node::Inst { inst: not, site: *site };
            vec![(Operator::InvertCondition, vec![not.clone(), node.clone(), not])]
        }
        Node::Loop { .. } => Vec::new(),
    }
}

/// The name of the memory that an instruction accesses.
pub fn object(inst: &Inst, kernel: &Kernel) -> Option<String> {
    match changes::access(&mut inst.clone())?.0.object {
        Object::Param(index) => kernel.params().get(index as usize).map(|param| param.name.clone()),
        Object::Shared(id) => {
            let buffer = kernel.ledger().buffers.get(id.0 as usize);
            buffer.map(|buffer| buffer.name.clone())
        }
    }
}

/// Plants a mistake in a plan, at the `number`th place (from 1) that its kernels have for it, in their order.
///
/// # Errors
/// How many places there are, if they are fewer.
pub fn plant(plan: &mut Plan, operator: Operator, number: usize) -> Result<Mutation, usize> {
    let mut count = 0;
    for step in plan.steps_mut() {
        let places = mutations(&step.kernel).into_iter();
        for mutation in places.filter(|mutation| mutation.operator == operator) {
            count += 1;
            if count == number {
                step.kernel = Arc::new(mutation.apply(&step.kernel));
                return Ok(mutation);
            }
        }
    }
    Err(count)
}

/// The body with some nodes replaced. `replace` is called in the order of
/// [`Kernel::for_each_node`]; where it returns `None`, the node stays and the nodes
/// in it are next.
pub fn replaced(kernel: &Kernel, replace: &mut dyn FnMut(&Node) -> Option<Vec<Node>>) -> Vec<Node> {
    fn walk(nodes: &[Node], replace: &mut dyn FnMut(&Node) -> Option<Vec<Node>>) -> Vec<Node> {
        let mut out = Vec::with_capacity(nodes.len());
        for node in nodes {
            if let Some(others) = replace(node) {
                out.extend(others);
                continue;
            }
            let mut node = node.clone();
            match &mut node {
                Node::Inst { .. } | Node::BreakIf { .. } => {}
                Node::If { then, otherwise, .. } => {
                    (*then, *otherwise) = (walk(then, replace), walk(otherwise, replace));
                }
                Node::Loop { body, .. } => *body = walk(body, replace),
            }
            out.push(node);
        }
        out
    }
    walk(kernel.body(), replace)
}

impl Mutation {
    /// The kernel with the mistake. It must be the kernel that the mutation was listed for.
    pub fn apply(&self, kernel: &Kernel) -> Kernel {
        match self.place {
            Place::Node(number) => {
                let mut numbers = 0..;
                kernel.with_body(replaced(kernel, &mut |node| {
                    let is_here = numbers.next() == Some(number);
                    let mut all = is_here.then(|| variants(node, kernel))?.into_iter();
                    all.find_map(|(operator, nodes)| (operator == self.operator).then_some(nodes))
                }))
            }
            Place::Buffer(id) => {
                let mut ledger = kernel.ledger().clone();
                if let Some(buffer) = ledger.buffers.get_mut(id.0 as usize) {
                    buffer.rows -= 1;
                    buffer.bytes -= buffer.row_stride * buffer.element.bytes();
                }
                Kernel::of_parts(KernelParts {
                    ledger,
                    ..kernel.parts().clone()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::TileShape;

    fn kernel() -> Kernel {
        Kernel::build("copy", 64, |k| {
            let tile = k.shared_tile::<f32>("tile", TileShape::new(4, 64));
            let out = k.param_ptr_mut::<f32>("out");
            let me = k.thread_idx();
            k.for_uniform(0u32, 4u32, 1, |row| tile.at(row, me).store(1.0));
            k.barrier();
            k.if_(me.lt(32).divergent(), || out.offset(me).store(tile.at(0, me).load()));
        })
        .unwrap()
    }

    #[test]
    fn a_mutation_changes_one_thing() {
        let kernel = kernel();
        let all = mutations(&kernel);
        for mutation in &all {
            let mutant = mutation.apply(&kernel);
            let same_body = mutant.body() == kernel.body();
            assert_eq!(same_body, mutation.operator == Operator::ShrinkBuffer, "{mutation}");
            assert!(kernel.num_insts().abs_diff(mutant.num_insts()) <= 2, "{mutation}");
        }
        let of = |operator| all.iter().filter(|m| m.operator == operator).count();
        assert_eq!(of(Operator::DropBarrier), 1);
        assert_eq!(of(Operator::DropStore), 2);
        assert_eq!(of(Operator::BoundOne), 2);
        assert_eq!(of(Operator::DropStep), 1);
        assert_eq!(of(Operator::ShrinkBuffer), 1);
    }

    #[test]
    fn a_mutation_says_what_and_where() {
        let kernel = kernel();
        let all = mutations(&kernel);
        for &operator in Operator::ALL {
            assert_eq!(Operator::from_name(&operator.to_string()), Some(operator));
        }
        let barrier = all.iter().find(|m| m.operator == Operator::CountBarrier).unwrap();
        let text = barrier.to_string();
        assert!(
            text.starts_with("count-barrier of bar.sync at ") && text.contains("mutate/mod.rs:"),
            "{text}"
        );
        let store = all.iter().find(|m| m.operator == Operator::DropStore).unwrap();
        assert_eq!(store.object.as_deref(), Some("tile"));
    }
}
