//! Which instructions there are: combinations of fields that PTX does not have, and what each
//! instruction requires of a target.

use super::{AtomOp, BinOp, Cache, Cvt, Inst, Scope, Space, Special};
use crate::target::Requirement;
use crate::types::ScalarType;

impl Inst {
    /// Why PTX has no such instruction, if it has none: combinations of fields that a type cannot
    /// rule out. Such an instruction does not build.
    pub fn impossible(&self) -> Option<String> {
        match self {
            Inst::Ld {
                space, cache, count, ..
            } => impossible_access(*space, *cache, *count),
            Inst::St {
                cache: Cache::ReadOnly, ..
            } => Some("a store cannot take the read-only path".to_string()),
            Inst::St {
                space, cache, count, ..
            } => impossible_access(*space, *cache, *count),
            Inst::LdMatrix { count, .. } | Inst::StMatrix { count, .. } => impossible_count(*count),
            Inst::CpAsync { bytes, cache, .. } => match (bytes, cache) {
                (16, Cache::L2) | (4 | 8 | 16, Cache::Default) => None,
                (_, Cache::L2) => Some(format!("cp.async.cg of {bytes} bytes; it copies 16")),
                (_, Cache::Default) => Some(format!("cp.async.ca of {bytes} bytes; it copies 4, 8 or 16")),
                (_, Cache::ReadOnly | Cache::Streaming) => {
                    Some("cp.async copies through L1 (`Cache::Default`) or L2 only".to_string())
                }
            },
            Inst::Atom { ty, .. } if ty.bytes() != 4 => {
                Some(format!("an atomic on {}; 4 bytes are possible", ty.ptx()))
            }
            Inst::Atom { op, ty, dst, .. } => match (op, ty, dst) {
                (AtomOp::Max | AtomOp::Min, ScalarType::F32, _) => Some(
                    "f32 has no atomic maximum or minimum; of non-negative numbers, compare the bits as u32"
                        .to_string(),
                ),
                (AtomOp::Exch, _, None) => Some(
                    "an exchange always gives the old value; use `atomic` and ignore it, or a plain store".to_string(),
                ),
                (AtomOp::Add | AtomOp::Max | AtomOp::Min | AtomOp::Exch, _, _) => None,
            },
            Inst::Redux { op, ty, .. } => match (op, ty) {
                (BinOp::Add | BinOp::Min | BinOp::Max, ScalarType::U32 | ScalarType::S32)
                | (BinOp::And | BinOp::Or | BinOp::Xor, ScalarType::U32 | ScalarType::S32 | ScalarType::B32) => None,
                (op, ty) => Some(format!("redux has no {op:?} of {}", ty.ptx())),
            },
            // PTX ISA, `setmaxnreg`.
            Inst::SetMaxRegs { regs, .. } => {
                let is_possible = regs.is_multiple_of(8) && (24..=256).contains(regs);
                let why = || format!("{regs} registers a thread; multiples of 8 from 24 to 256 are possible");
                (!is_possible).then(why)
            }
            Inst::Flag(inst) => inst.impossible(),
            Inst::Mbar(inst) => inst.impossible(),
            Inst::Bulk(inst) => inst.impossible(),
            Inst::Wgmma(inst) => inst.impossible(),
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
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::Mma { .. }
            | Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::BarWarp { .. }
            | Inst::Fence { .. }
            | Inst::FenceProxyAsync
            | Inst::FenceMbarrierInit
            | Inst::Elect { .. }
            | Inst::TrapIf { .. }
            | Inst::DependencyWait
            | Inst::DependencyTrigger
            | Inst::Cluster(_)
            | Inst::Trace { .. } => None,
        }
    }

    /// The lowest PTX version and architecture that have the instruction.
    pub fn requires(&self) -> Requirement {
        use ScalarType::{BF16x2, E4M3x2};
        const BASE: Requirement = Requirement::BASE;
        match self {
            Inst::Mbar(inst) => inst.requires(),
            Inst::Bulk(inst) => inst.requires(),
            Inst::Wgmma(inst) => inst.requires(),
            Inst::Cluster(inst) => inst.requires(),
            Inst::StMatrix { .. } | Inst::DependencyWait | Inst::DependencyTrigger => HOPPER,
            Inst::FenceProxyAsync | Inst::FenceMbarrierInit | Inst::Elect { .. } => HOPPER_8_0,
            Inst::SetMaxRegs { .. } => Requirement::arch_specific((8, 0), 90),
            // On sm_89 from PTX 8.1 on.
            Inst::CvtPack { ty, .. } => on_hopper(*ty == E4M3x2),
            Inst::Cvt { op, .. } => on_hopper(*op == Cvt::F16x2FromE4M3x2),
            Inst::Ld { space, .. } | Inst::St { space, .. } | Inst::Atom { space, .. } => {
                on_hopper(*space == Space::Cluster)
            }
            Inst::Fence { scope } => on_hopper(*scope == Scope::Cluster),
            Inst::Special { which, .. } => match which {
                Special::ClusterRank | Special::ClusterBlocks => HOPPER,
                Special::Tid(_)
                | Special::Ntid(_)
                | Special::Ctaid(_)
                | Special::Nctaid(_)
                | Special::LaneId
                | Special::MaxWarps => BASE,
            },
            Inst::Bin { op, ty, .. } => on_hopper(*ty == BF16x2 && matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul)),
            // The rest has been in PTX since its first version for sm_80.
            Inst::Mov { .. }
            | Inst::Un { .. }
            | Inst::Fma { .. }
            | Inst::MadWide { .. }
            | Inst::Pack { .. }
            | Inst::Unpack { .. }
            | Inst::Lop3 { .. }
            | Inst::Prmt { .. }
            | Inst::Setp { .. }
            | Inst::Selp { .. }
            | Inst::Param { .. }
            | Inst::SharedBase { .. }
            | Inst::CpAsync { .. }
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::LdMatrix { .. }
            | Inst::Mma { .. }
            | Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::Redux { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::BarWarp { .. }
            | Inst::Flag(_)
            | Inst::TrapIf { .. }
            | Inst::Trace { .. } => BASE,
        }
    }
}

/// The first PTX version for sm_90.
const HOPPER: Requirement = Requirement::new((7, 8), 90);
/// The PTX version that completed sm_90.
const HOPPER_8_0: Requirement = Requirement::new((8, 0), 90);

fn on_hopper(is: bool) -> Requirement {
    if is { HOPPER } else { Requirement::BASE }
}

fn impossible_count(count: u32) -> Option<String> {
    let is_possible = matches!(count, 1 | 2 | 4);
    (!is_possible).then(|| format!("an access of {count} words; 1, 2 or 4 are possible"))
}

fn impossible_access(space: Space, cache: Cache, count: u32) -> Option<String> {
    if space != Space::Global && cache != Cache::Default {
        return Some("shared memory is not cached; a cache hint is for global memory".to_string());
    }
    impossible_count(count)
}
