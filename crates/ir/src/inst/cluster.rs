//! Instructions between the blocks of a cluster (PTX ISA, `mapa`, `barrier.cluster`).

use super::Operand;
use crate::types::Reg;

/// An instruction between the blocks of a cluster.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum ClusterInst {
    /// The address of the same place in the shared memory of the block of a rank.
    Mapa { dst: Reg, addr: Operand, rank: Operand },
    /// Come to the cluster's barrier without waiting; `release` orders earlier accesses before what
    /// others do after they have waited. `aligned` ones are executed by whole warps.
    Arrive { release: bool, aligned: bool },
    /// Wait until every thread of the cluster that has not ended has come.
    Wait { aligned: bool },
}
