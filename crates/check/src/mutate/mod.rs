//! Mistakes planted on purpose: ways of breaking a finished kernel, to see whether checking finds them.
//!
//! A [`Mutation`] is an [`Operator`] applied at one place. [`mutations`] lists every one that a kernel
//! allows, so that tests can pick some by hand and sample the rest by a seed.

mod apply;

use std::fmt;

use flashcore_ir::inst::{BulkInst, MbarInst, Object};
use flashcore_ir::ptx::mnemonic;
use flashcore_ir::{BufferId, Inst, Kernel, Node, SiteId, SourceLine};
use serde::Serialize;

/// A way of breaking a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operator {
    /// A block barrier is left out.
    DropBarrier,
    /// A block barrier waits for one warp fewer than there are.
    CountBarrier,
    /// A warp barrier is left out: a shuffle nearby is taken for a fence.
    DropWarpBarrier,
    /// Waiting for asynchronous copies is left out.
    DropWait,
    /// One group of asynchronous copies more may be unfinished.
    WeakenWait,
    /// A group of asynchronous copies is never closed.
    DropCommit,
    /// A store is left out.
    DropStore,
    /// A load or store goes one access too far.
    NextAccess,
    /// A load or store goes two bytes too far.
    OffAccess,
    /// The factor of an index is one too large.
    StrideOne,
    /// The factor of an index is 16 too large.
    StrideSixteen,
    /// A bound is off by one: `<` is `≤`, `≥` is `>`, and the other way round.
    BoundOne,
    /// A selection always takes its first choice: a mask is left out.
    Unmask,
    /// A minimum takes its first operand: a clamp is left out.
    Unclamp,
    /// A loop's counter is not advanced.
    DropStep,
    /// An exchange between lanes names the lower half of the warp only.
    HalfWarp,
    /// An arrival at an mbarrier is left out.
    DropArrive,
    /// An mbarrier is made for one arrival more.
    ExtraArrival,
    /// Sixteen bytes more are announced than copies bring.
    ExtraBytes,
    /// Half of the bytes that copies bring are announced.
    HalfBytes,
    /// A wait for an mbarrier takes parity 0 each time round.
    FixedParity,
    /// A wait for an mbarrier is left out: whatever the phase, it goes on.
    DropPhaseWait,
    /// A fence is left out: for the async proxy, after mbarriers are made, before products.
    DropFence,
    /// A wait for products or bulk stores is left out.
    DropAsyncWait,
    /// One group of products or bulk stores more may be unfinished.
    WeakenAsyncWait,
    /// A tensor copy is left out.
    DropCopy,
    /// Groups of 8 rows of an operand are taken to be 16 bytes further apart.
    DescriptorStride,
    /// A cluster barrier is not waited at.
    DropClusterWait,
    /// A shared buffer is declared a row too short.
    ShrinkBuffer,
    /// A swizzle is left out, where an address is made or moved.
    DropSwizzle,
    /// A remainder is always 0: a ring has one stage only.
    DropRemainder,
    /// Matrices come as they are stored where they should come transposed, or the other way round.
    FlipTranspose,
    /// A tensor-core product is added to the eight columns after its own.
    NextColumns,
    /// What was summed before is not brought to a new scale.
    DropRescale,
    /// A threshold is 64 too high.
    RaiseThreshold,
    /// Of a mask of bits only the lower half is looked at.
    HalfMask,
    /// A vote asks for all lanes in place of any.
    VoteAll,
    /// A lane keeps its own value in place of another's.
    DropExchange,
}

impl Operator {
    /// Every operator.
    pub const ALL: [Operator; 38] = [
        Operator::DropBarrier,
        Operator::CountBarrier,
        Operator::DropWarpBarrier,
        Operator::DropWait,
        Operator::WeakenWait,
        Operator::DropCommit,
        Operator::DropStore,
        Operator::NextAccess,
        Operator::OffAccess,
        Operator::StrideOne,
        Operator::StrideSixteen,
        Operator::BoundOne,
        Operator::Unmask,
        Operator::Unclamp,
        Operator::DropStep,
        Operator::HalfWarp,
        Operator::DropArrive,
        Operator::ExtraArrival,
        Operator::ExtraBytes,
        Operator::HalfBytes,
        Operator::FixedParity,
        Operator::DropPhaseWait,
        Operator::DropFence,
        Operator::DropAsyncWait,
        Operator::WeakenAsyncWait,
        Operator::DropCopy,
        Operator::DescriptorStride,
        Operator::DropClusterWait,
        Operator::ShrinkBuffer,
        Operator::DropSwizzle,
        Operator::DropRemainder,
        Operator::FlipTranspose,
        Operator::NextColumns,
        Operator::DropRescale,
        Operator::RaiseThreshold,
        Operator::HalfMask,
        Operator::VoteAll,
        Operator::DropExchange,
    ];

    /// The operator of a name, as it prints: `drop-barrier`.
    pub fn from_name(name: &str) -> Option<Operator> {
        Operator::ALL.into_iter().find(|operator| operator.to_string() == name)
    }
}

/// Where a mutation is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// An instruction, by its number in program order.
    Inst(usize),
    /// A shared buffer.
    Buffer(BufferId),
}

/// One planted mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// What is done.
    pub operator: Operator,
    /// The kernel's own line of the place where it is done.
    pub line: SourceLine,
    /// The place in the kernel's sites.
    pub site: SiteId,
    /// The instruction's mnemonic, or the buffer's name.
    pub what: String,
    /// The memory that the instruction accesses, if any: a shared buffer or a parameter, by name.
    pub object: Option<String>,
    place: Place,
}

impl fmt::Display for Mutation {
    /// `drop-barrier of bar.sync at crates/kernels/src/scalar/tiled.rs:194`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} at {}", self.operator, self.what, self.line)
    }
}

impl fmt::Display for Operator {
    /// The variant's name in kebab case, as it is serialised.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = String::new();
        for c in format!("{self:?}").chars() {
            if c.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(c.to_ascii_lowercase());
        }
        f.pad(&name)
    }
}

/// Every mutation that a kernel allows, by operator, then in program order.
///
/// ```
/// use flashcore_check::mutate::{Operator, mutations};
/// use flashcore_ir::{Kernel, TileShape};
/// let kernel = Kernel::build("swap", 64, |k| {
///     let tile = k.shared_tile::<u32>("tile", TileShape::new(1, 64));
///     let out = k.param_ptr_mut::<u32>("out");
///     let me = k.thread_idx();
///     tile.at(0, me).store(me);
///     k.barrier();
///     out.offset(me).store(tile.at(0, me ^ 32).load());
/// })?;
/// let barriers = mutations(&kernel).into_iter().filter(|m| m.operator == Operator::DropBarrier);
/// assert_eq!(barriers.count(), 1);
/// # Ok::<(), flashcore_ir::BuildErrors>(())
/// ```
pub fn mutations(kernel: &Kernel) -> Vec<Mutation> {
    let mut found = Vec::new();
    for operator in Operator::ALL {
        if operator == Operator::ShrinkBuffer {
            let buffers = kernel.ledger().buffers.iter().enumerate();
            found.extend(buffers.filter(|(_, b)| b.rows > 1).map(|(index, buffer)| Mutation {
                operator,
                line: kernel.kernel_line(buffer.declared_at),
                site: buffer.declared_at,
                what: buffer.name.clone(),
                object: Some(buffer.name.clone()),
                place: Place::Buffer(BufferId(index as u32)),
            }));
            continue;
        }
        let mut number = 0;
        kernel.for_each_inst(&mut |inst, site| {
            if operator.apply(inst, kernel).is_some() {
                found.push(Mutation {
                    operator,
                    line: kernel.kernel_line(site),
                    site,
                    what: mnemonic(inst),
                    object: object(inst, kernel),
                    place: Place::Inst(number),
                });
            }
            number += 1;
        });
    }
    found
}

/// The name of the memory that an instruction accesses.
pub fn object(inst: &Inst, kernel: &Kernel) -> Option<String> {
    let addr = match inst {
        Inst::Ld { addr, .. } | Inst::St { addr, .. } | Inst::LdMatrix { addr, .. } | Inst::Atom { addr, .. } => addr,
        Inst::CpAsync { dst, .. } | Inst::Bulk(BulkInst::Load { dst, .. }) => dst,
        Inst::StMatrix { addr, .. } | Inst::Bulk(BulkInst::Store { src: addr, .. }) => addr,
        Inst::Mbar(
            MbarInst::Init { addr, .. }
            | MbarInst::Arrive { addr, .. }
            | MbarInst::ExpectTx { addr, .. }
            | MbarInst::Test { addr, .. },
        ) => addr,
        _ => return None,
    };
    match addr.object {
        Object::Param(index) => kernel.params().get(index as usize).map(|param| param.name.clone()),
        Object::Shared(id) => kernel
            .ledger()
            .buffers
            .get(id.0 as usize)
            .map(|buffer| buffer.name.clone()),
    }
}

impl Mutation {
    /// The kernel with the mistake in it. It must be the kernel that the mutation was listed for.
    pub fn apply(&self, kernel: &Kernel) -> Kernel {
        match self.place {
            Place::Inst(number) => {
                let mut next = 0;
                kernel.with_body(rewrite(kernel.body(), kernel, self.operator, number, &mut next))
            }
            Place::Buffer(id) => {
                let mut ledger = kernel.ledger().clone();
                if let Some(buffer) = ledger.buffers.get_mut(id.0 as usize) {
                    buffer.rows -= 1;
                    buffer.bytes -= buffer.row_stride * buffer.element.bytes();
                }
                kernel.with_ledger(ledger)
            }
        }
    }
}

/// The nodes with instruction `number` changed; `next` is the number of the next one met.
fn rewrite(nodes: &[Node], kernel: &Kernel, operator: Operator, number: usize, next: &mut usize) -> Vec<Node> {
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node {
            Node::Inst { inst, site } => {
                let here = *next == number;
                *next += 1;
                match operator.apply(inst, kernel).filter(|_| here) {
                    Some(None) => {}
                    Some(Some(inst)) => out.push(Node::Inst { inst, site: *site }),
                    None => out.push(node.clone()),
                }
            }
            Node::If {
                condition,
                then,
                otherwise,
                site,
            } => {
                let then = rewrite(then, kernel, operator, number, next);
                let otherwise = rewrite(otherwise, kernel, operator, number, next);
                out.push(Node::If {
                    condition: *condition,
                    then,
                    otherwise,
                    site: *site,
                });
            }
            Node::Loop { body, site } => {
                let body = rewrite(body, kernel, operator, number, next);
                out.push(Node::Loop { body, site: *site });
            }
            Node::BreakIf { .. } => out.push(node.clone()),
        }
    }
    out
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
            assert!(kernel.num_insts() - mutant.num_insts() <= 1, "{mutation}");
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
        for operator in Operator::ALL {
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
