//! Bulk copies of tensor boxes between global and shared memory: the Tensor Memory Accelerator (PTX ISA,
//! "Data Movement and Conversion Instructions: Tensor copy").

use super::{Address, Operand};
use crate::target::Requirement;
use crate::types::Reg;

/// What the L2 cache is told of the lines that a bulk copy reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum L2Hint {
    /// Nothing.
    #[default]
    None,
    /// They will not be read again soon: the queries of attention.
    EvictFirst,
    /// They will be read again soon: keys and values.
    EvictLast,
}

/// A bulk copy or what belongs to one. `map` addresses a tensor map, `at` are coordinates of the box's
/// first element, innermost first.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum BulkInst {
    /// Start copying a box from a tensor to `dst` and complete its bytes at `bar`; with `multicast` to
    /// the same places in each block of the cluster whose rank is a set bit.
    Load {
        dst: Address,
        map: Address,
        at: Vec<Operand>,
        bar: Address,
        multicast: Option<Operand>,
        hint: L2Hint,
    },
    /// Start copying a box from `src` to a tensor, as part of this thread's bulk group.
    Store {
        map: Address,
        at: Vec<Operand>,
        src: Address,
    },
    /// Bring a tensor map into the cache of the unit that copies.
    Prefetch { map: Address },
    /// Close the group of this thread's bulk stores.
    Commit,
    /// Wait until at most `pending` of this thread's newest groups are unfinished, or with `read` until
    /// they have at least read their sources.
    Wait { pending: u32, read: bool },
}

impl BulkInst {
    pub(super) fn visit_regs(&self, read: &mut dyn FnMut(&Operand), _write: &mut dyn FnMut(Reg, u32)) {
        match self {
            BulkInst::Load {
                dst,
                map,
                at,
                bar,
                multicast,
                ..
            } => {
                [dst, map, bar].iter().for_each(|address| read(&address.base));
                at.iter().for_each(&mut *read);
                if let Some(mask) = multicast {
                    read(mask);
                }
            }
            BulkInst::Store { map, at, src } => {
                [map, src].iter().for_each(|address| read(&address.base));
                at.iter().for_each(read);
            }
            BulkInst::Prefetch { map } => read(&map.base),
            BulkInst::Commit | BulkInst::Wait { .. } => {}
        }
    }

    pub(super) fn impossible(&self) -> Option<String> {
        match self {
            BulkInst::Load { at, .. } | BulkInst::Store { at, .. } if !(1..=5).contains(&at.len()) => Some(format!(
                "a box at {} coordinates; a tensor map has 1 to 5 dimensions",
                at.len()
            )),
            _ => None,
        }
    }

    pub(super) fn requires(&self) -> Requirement {
        match self {
            // ptxas advises against it where later architectures might have to run it.
            BulkInst::Load { multicast: Some(_), .. } => Requirement::arch_specific((8, 0), 90),
            _ => Requirement::new((8, 0), 90),
        }
    }
}
