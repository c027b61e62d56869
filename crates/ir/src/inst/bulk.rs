//! Bulk copies between global and shared memory: of tensor boxes, by the Tensor Memory Accelerator,
//! and of contiguous bytes (PTX ISA, `cp.async.bulk.tensor`, `cp.async.bulk`,
//! `cp.reduce.async.bulk`); and from one block's shared memory to another's.

use super::rules::{HOPPER_8_0, HOPPER_ALONE, Rules};
use super::{Address, Operand};

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

impl L2Hint {
    /// The cache policy that `createpolicy` makes for all lines of a copy (CUTLASS,
    /// `TMA::CacheHintSm90`).
    pub(super) const fn policy(self) -> Option<u64> {
        match self {
            L2Hint::None => None,
            L2Hint::EvictFirst => Some(0x12f0_0000_0000_0000),
            L2Hint::EvictLast => Some(0x14f0_0000_0000_0000),
        }
    }
}

/// A bulk copy or what belongs to one. `map` addresses a tensor map, `at` are coordinates of the
/// box's first element, innermost first.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum BulkInst {
    /// Start copying a box from a tensor to `dst` and complete its bytes at `bar`; with `multicast`
    /// to the same places in each block of the cluster whose rank is a set bit.
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
    /// Start copying `bytes` from `src` in global memory to `dst` and complete them at `bar`.
    LoadBytes {
        dst: Address,
        src: Address,
        bytes: Operand,
        bar: Address,
    },
    /// Start copying `bytes` from shared memory to `dst` in global memory, as part of this thread's
    /// bulk group.
    StoreBytes { dst: Address, src: Address, bytes: Operand },
    /// Start adding `bytes` of f32 in shared memory to those at `dst` in global memory, each
    /// atomically and without order, as part of this thread's bulk group.
    Reduce { dst: Address, src: Address, bytes: Operand },
    /// Start copying `bytes` from shared memory to `dst` in the shared memory of a block of the cluster,
    /// and complete them at `bar`, which is in the same block as `dst`.
    Send {
        dst: Address,
        src: Address,
        bytes: Operand,
        bar: Address,
    },
    /// Bring a tensor map into the cache of the unit that copies.
    Prefetch { map: Address },
    /// Close the group of this thread's bulk stores.
    Commit,
    /// Wait until at most `pending` of this thread's newest groups are unfinished, or with `read`
    /// until they have at least read their sources.
    Wait { pending: u32, read: bool },
}

impl BulkInst {
    pub(super) fn rules(&self) -> Rules {
        let box_at = |at: &[Operand]| {
            let why = || format!("a box at {} coordinates; a tensor map has 1 to 5 dimensions", at.len());
            (!(1..=5).contains(&at.len())).then(why)
        };
        match self {
            // ptxas advises against it where later architectures might have to run it.
            BulkInst::Load {
                at, multicast: Some(_), ..
            } => (HOPPER_ALONE, box_at(at)),
            BulkInst::Load { at, .. } | BulkInst::Store { at, .. } => (HOPPER_8_0, box_at(at)),
            BulkInst::LoadBytes { bytes, .. }
            | BulkInst::StoreBytes { bytes, .. }
            | BulkInst::Reduce { bytes, .. }
            | BulkInst::Send { bytes, .. } => {
                let impossible = match bytes {
                    Operand::Imm(n) if *n == 0 || !n.is_multiple_of(16) => {
                        Some(format!("a bulk copy of {n} bytes; multiples of 16 are possible"))
                    }
                    Operand::Imm(_) | Operand::Reg(_) => None,
                };
                (HOPPER_8_0, impossible)
            }
            BulkInst::Prefetch { .. } | BulkInst::Commit | BulkInst::Wait { .. } => (HOPPER_8_0, None),
        }
    }
}
