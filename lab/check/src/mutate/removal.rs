//! Which instructions are removed, and by which operator.

use flashcore_ir::Inst;
use flashcore_ir::inst::{BulkInst, ClusterInst, FlagInst, MbarInst, WgmmaInst};

use super::Operator as O;

/// The operator that removes an instruction. The match is exhaustive: a new instruction does not
/// compile until its mistakes are listed.
pub(super) fn removed_by(inst: &Inst) -> Option<O> {
    Some(match inst {
        Inst::Ld { .. } | Inst::LdMatrix { .. } => O::DropLoad,
        Inst::St { .. }
        | Inst::StMatrix { .. }
        | Inst::Flag(FlagInst::StoreRelease { .. } | FlagInst::Add { .. }) => O::DropStore,
        Inst::CpAsync { .. }
        | Inst::Bulk(
            BulkInst::Load { .. }
            | BulkInst::Store { .. }
            | BulkInst::LoadBytes { .. }
            | BulkInst::StoreBytes { .. }
            | BulkInst::Reduce { .. }
            | BulkInst::Send { .. },
        ) => O::DropCopy,
        Inst::CpAsyncCommit | Inst::Bulk(BulkInst::Commit) | Inst::Wgmma(WgmmaInst::Commit) => O::DropCommit,
        Inst::CpAsyncWait { .. } | Inst::DependencyWait => O::DropWait,
        Inst::Bulk(BulkInst::Wait { .. }) | Inst::Wgmma(WgmmaInst::Wait { .. }) => O::DropAsyncWait,
        Inst::Mma { .. } | Inst::Wgmma(WgmmaInst::Mma { .. }) => O::DropProduct,
        Inst::BarSync { .. } => O::DropBarrier,
        Inst::BarWarp { .. } => O::DropWarpBarrier,
        Inst::BarArrive { .. }
        | Inst::Mbar(MbarInst::Arrive { .. } | MbarInst::ExpectTx { .. })
        | Inst::Cluster(ClusterInst::Arrive { .. }) => O::DropArrive,
        Inst::Fence(_) | Inst::Wgmma(WgmmaInst::Fence) => O::DropFence,
        Inst::Atom { .. } | Inst::AddFour { .. } => O::DropAtomic,
        Inst::SetMaxRegs { .. } => O::DropRegisters,
        Inst::Mbar(MbarInst::Init { .. }) => O::DropInit,
        Inst::Cluster(ClusterInst::Wait { .. }) => O::DropClusterWait,
        // Their results are changed instead.
        Inst::Mov { .. }
        | Inst::Bin { .. }
        | Inst::Un { .. }
        | Inst::Fma { .. }
        | Inst::MadWide { .. }
        | Inst::Cvt { .. }
        | Inst::CvtPack { .. }
        | Inst::Pack { .. }
        | Inst::Unpack { .. }
        | Inst::Lop3 { .. }
        | Inst::Prmt { .. }
        | Inst::Setp { .. }
        | Inst::Selp { .. }
        | Inst::Special { .. }
        | Inst::Param { .. }
        | Inst::SharedBase { .. }
        | Inst::Shfl { .. }
        | Inst::Vote { .. }
        | Inst::Redux { .. }
        | Inst::Elect { .. }
        | Inst::Flag(FlagInst::LoadAcquire { .. })
        | Inst::Mbar(MbarInst::Test { .. })
        | Inst::Cluster(ClusterInst::Mapa { .. })
        // A trap never runs, a trigger concerns the next launch, a trace the reader, and a prefetch
        // changes no results.
        | Inst::TrapIf { .. }
        | Inst::DependencyTrigger
        | Inst::Trace { .. }
        | Inst::Bulk(BulkInst::Prefetch { .. }) => return None,
    })
}
