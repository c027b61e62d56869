//! Instructions on mbarriers: arrival counters in shared memory that also count the bytes of
//! asynchronous copies (PTX ISA, "Parallel Synchronization and Communication Instructions:
//! mbarrier").

use super::{Address, Operand, Scope};
use crate::target::Requirement;
use crate::types::Reg;

/// An instruction on an mbarrier object, 8 bytes of shared memory.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // field names are the operands' names; the variants say what they do
pub enum MbarInst {
    /// Make an mbarrier whose phases take `arrivals` arrivals each; phase 0 begins.
    Init { addr: Address, arrivals: u32 },
    /// Arrive once for each active lane, announcing `tx` bytes of copies first where given. `scope`
    /// says who learns of this thread's earlier accesses; `remote` addresses are those of `mapa`.
    Arrive {
        addr: Address,
        remote: bool,
        scope: Scope,
        tx: Option<Operand>,
    },
    /// Announce `tx` bytes of copies to the phase, without arriving.
    ExpectTx { addr: Address, tx: Operand },
    /// Whether the phase of a parity is complete; `blocking` waits for a while first.
    Test {
        dst: Reg,
        addr: Address,
        parity: Operand,
        blocking: bool,
        scope: Scope,
    },
}

impl MbarInst {
    pub(super) fn impossible(&self) -> Option<String> {
        match self {
            // PTX ISA, `mbarrier.init`: the count is 1 to 2^20 - 1.
            MbarInst::Init { arrivals, .. } => (!(1..1 << 20).contains(arrivals))
                .then(|| format!("an mbarrier of {arrivals} arrivals; 1 to 1048575 are possible")),
            MbarInst::Arrive { scope, .. } | MbarInst::Test { scope, .. } => (*scope == Scope::Device)
                .then(|| "an mbarrier orders threads of a block or of a cluster, not of the device".to_string()),
            MbarInst::ExpectTx { .. } => None,
        }
    }

    pub(super) fn requires(&self) -> Requirement {
        let is_first = match self {
            MbarInst::Init { .. } => true,
            MbarInst::Test { scope, .. } => *scope == Scope::Block,
            MbarInst::Arrive { tx, remote, scope, .. } => tx.is_none() && !remote && *scope == Scope::Block,
            MbarInst::ExpectTx { .. } => false,
        };
        Requirement::new(if is_first { (7, 8) } else { (8, 0) }, 90)
    }
}
