//! Instructions on mbarriers: arrival counters in shared memory that also count the bytes of
//! asynchronous copies (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier").

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
    pub(super) fn visit_regs(&self, read: &mut dyn FnMut(&Operand), write: &mut dyn FnMut(Reg, u32)) {
        match self {
            MbarInst::Init { addr, .. } => read(&addr.base),
            MbarInst::Arrive { addr, tx, .. } => {
                read(&addr.base);
                if let Some(tx) = tx {
                    read(tx);
                }
            }
            MbarInst::ExpectTx { addr, tx } => {
                read(&addr.base);
                read(tx);
            }
            MbarInst::Test { dst, addr, parity, .. } => {
                read(&addr.base);
                read(parity);
                write(*dst, 1);
            }
        }
    }

    pub(super) fn impossible(&self) -> Option<String> {
        match self {
            // PTX ISA, `mbarrier.init`: the count is 1 to 2^20 - 1.
            MbarInst::Init { arrivals, .. } if !(1..1 << 20).contains(arrivals) => {
                Some(format!("an mbarrier of {arrivals} arrivals; 1 to 1048575 are possible"))
            }
            MbarInst::Arrive { scope, .. } | MbarInst::Test { scope, .. } if *scope == Scope::Device => {
                Some("an mbarrier orders threads of a block or of a cluster, not of the device".to_string())
            }
            _ => None,
        }
    }

    pub(super) fn requires(&self) -> Requirement {
        match self {
            MbarInst::Init { .. } => Requirement::new((7, 8), 90),
            MbarInst::Test {
                scope: Scope::Block, ..
            } => Requirement::new((7, 8), 90),
            MbarInst::Arrive {
                tx: None,
                remote: false,
                scope: Scope::Block,
                ..
            } => Requirement::new((7, 8), 90),
            MbarInst::Arrive { .. } | MbarInst::ExpectTx { .. } | MbarInst::Test { .. } => Requirement::new((8, 0), 90),
        }
    }
}
