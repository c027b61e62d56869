//! Which instructions are removed, by which operator, and how many bytes of memory each lane accesses.

use flashcore_ir::Inst;
use flashcore_ir::inst::{BulkInst, ClusterInst, FlagInst, MbarInst, WgmmaInst};

use super::Operator as O;

/// The operator that removes an instruction, and the bytes per lane at the first address that it accesses; 0 if it
/// accesses no memory, or no other address that matters. The match is exhaustive: a new instruction does not compile
/// until its mistakes are listed.
pub(super) fn removed_by(inst: &Inst) -> (Option<O>, u32) {
    let (operator, bytes) = match inst {
        Inst::Ld { dst, count, .. } => (O::DropLoad, dst.class.bytes() * *count),
        // Matrices by rows. An access that is that far off is wrong.
        Inst::LdMatrix { .. } => (O::DropLoad, 16),
        Inst::St { src, count, .. } => (O::DropStore, src.bytes() * *count),
        Inst::StMatrix { .. } => (O::DropStore, 16),
        Inst::Flag(FlagInst::StoreRelease { .. } | FlagInst::Add { .. }) => (O::DropStore, 4),
        Inst::CpAsync { bytes, .. } => (O::DropCopy, *bytes),
        // The alignment of bulk copies.
        Inst::Bulk(
            BulkInst::Load { .. }
            | BulkInst::Store { .. }
            | BulkInst::LoadBytes { .. }
            | BulkInst::StoreBytes { .. }
            | BulkInst::Reduce { .. }
            | BulkInst::Send { .. },
        ) => (O::DropCopy, 16),
        Inst::CpAsyncCommit | Inst::Bulk(BulkInst::Commit) | Inst::Wgmma(WgmmaInst::Commit) => (O::DropCommit, 0),
        Inst::CpAsyncWait { .. } | Inst::DependencyWait => (O::DropWait, 0),
        Inst::Bulk(BulkInst::Wait { .. }) | Inst::Wgmma(WgmmaInst::Wait { .. }) => (O::DropAsyncWait, 0),
        Inst::Mma { .. } | Inst::Wgmma(WgmmaInst::Mma { .. }) => (O::DropProduct, 0),
        Inst::BarSync { .. } => (O::DropBarrier, 0),
        Inst::BarWarp { .. } => (O::DropWarpBarrier, 0),
        Inst::BarArrive { .. } | Inst::Cluster(ClusterInst::Arrive { .. }) => (O::DropArrive, 0),
        Inst::Mbar(MbarInst::Arrive { .. } | MbarInst::ExpectTx { .. }) => (O::DropArrive, 8),
        Inst::Mbar(MbarInst::Init { .. }) => (O::DropInit, 8),
        Inst::Fence(_) | Inst::Wgmma(WgmmaInst::Fence) => (O::DropFence, 0),
        Inst::Atom { ty, .. } => (O::DropAtomic, ty.bytes()),
        Inst::AddFour { .. } => (O::DropAtomic, 16),
        Inst::SetMaxRegs { .. } => (O::DropRegisters, 0),
        Inst::Cluster(ClusterInst::Wait { .. }) => (O::DropClusterWait, 0),
        // Their results are changed instead.
        Inst::Flag(FlagInst::LoadAcquire { .. }) => return (None, 4),
        Inst::Mbar(MbarInst::Test { .. }) => return (None, 8),
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
        | Inst::Cluster(ClusterInst::Mapa { .. })
        // A trap never runs, a trigger concerns the next launch, a trace the reader, and a prefetch
        // changes no results.
        | Inst::TrapIf { .. }
        | Inst::DependencyTrigger
        | Inst::Trace { .. }
        | Inst::Bulk(BulkInst::Prefetch { .. }) => return (None, 0),
    };
    (Some(operator), bytes)
}
