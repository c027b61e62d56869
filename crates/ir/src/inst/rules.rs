//! Which instructions there are: combinations of fields that PTX has not, and what each requires of a target.

use super::{AtomOp, BinOp, Cache, Cvt, Inst, Scope, Space, Special};
use crate::target::Requirement;
use crate::types::ScalarType;

impl Inst {
    /// Why PTX has no such instruction, where it has none: combinations of fields that a type cannot
    /// rule out. Such an instruction does not build.
    pub fn impossible(&self) -> Option<String> {
        let problem = match self {
            Inst::Ld {
                space: Space::Shared | Space::Cluster,
                cache,
                ..
            }
            | Inst::St {
                space: Space::Shared | Space::Cluster,
                cache,
                ..
            } if *cache != Cache::Default => "shared memory is not cached; a cache hint is for global memory",
            Inst::St {
                cache: Cache::ReadOnly, ..
            } => "a store cannot take the read-only path",
            Inst::Ld { count, .. }
            | Inst::St { count, .. }
            | Inst::LdMatrix { count, .. }
            | Inst::StMatrix { count, .. }
                if !matches!(count, 1 | 2 | 4) =>
            {
                return Some(format!("an access of {count} words; 1, 2 or 4 are possible"));
            }
            Inst::CpAsync { bytes, cache, .. } => match (bytes, cache) {
                (16, Cache::L2) | (4 | 8 | 16, Cache::Default) => return None,
                (_, Cache::L2) => return Some(format!("cp.async.cg of {bytes} bytes; it copies 16")),
                (_, Cache::Default) => return Some(format!("cp.async.ca of {bytes} bytes; it copies 4, 8 or 16")),
                _ => "cp.async copies through L1 (`Cache::Default`) or L2 only",
            },
            Inst::Atom {
                op: AtomOp::Max | AtomOp::Min,
                ty: ScalarType::F32,
                ..
            } => "f32 has no atomic maximum or minimum; of non-negative numbers, compare the bits as u32",
            Inst::Atom {
                op: AtomOp::Exch,
                dst: None,
                ..
            } => "an exchange always gives the old value; use `atomic` and ignore it, or a plain store",
            Inst::Redux { op, ty, .. } => match (op, ty) {
                (BinOp::Add | BinOp::Min | BinOp::Max, ScalarType::U32 | ScalarType::S32)
                | (BinOp::And | BinOp::Or | BinOp::Xor, ScalarType::U32 | ScalarType::S32 | ScalarType::B32) => {
                    return None;
                }
                _ => return Some(format!("redux has no {op:?} of {}", ty.ptx())),
            },
            // PTX ISA, `setmaxnreg`.
            Inst::SetMaxRegs { regs, .. } if !regs.is_multiple_of(8) || !(24..=256).contains(regs) => {
                return Some(format!(
                    "{regs} registers a thread; multiples of 8 from 24 to 256 are possible"
                ));
            }
            Inst::Mbar(inst) => return inst.impossible(),
            Inst::Bulk(inst) => return inst.impossible(),
            Inst::Wgmma(inst) => return inst.impossible(),
            _ => return None,
        };
        Some(problem.to_string())
    }

    /// The lowest PTX version and architecture that have the instruction.
    pub fn requires(&self) -> Requirement {
        use ScalarType::{BF16x2, E4M3x2, F16x2};
        match self {
            Inst::Mbar(inst) => inst.requires(),
            Inst::Bulk(inst) => inst.requires(),
            Inst::Wgmma(inst) => inst.requires(),
            Inst::Cluster(inst) => inst.requires(),
            Inst::StMatrix { .. } => Requirement::new((7, 8), 90),
            Inst::DependencyWait | Inst::DependencyTrigger => Requirement::new((7, 8), 90),
            Inst::FenceProxyAsync | Inst::FenceMbarrierInit | Inst::Elect { .. } => Requirement::new((8, 0), 90),
            Inst::SetMaxRegs { .. } => Requirement::arch_specific((8, 0), 90),
            // On sm_89 from PTX 8.1 on.
            Inst::CvtPack { ty: E4M3x2, .. }
            | Inst::Cvt {
                op: Cvt::F16x2FromE4M3x2,
                ..
            } => Requirement::new((7, 8), 90),
            Inst::Ld {
                space: Space::Cluster, ..
            }
            | Inst::St {
                space: Space::Cluster, ..
            }
            | Inst::Atom {
                space: Space::Cluster, ..
            }
            | Inst::Fence { scope: Scope::Cluster } => Requirement::new((7, 8), 90),
            Inst::Special {
                which: Special::ClusterRank | Special::ClusterBlocks,
                ..
            } => Requirement::new((7, 8), 90),
            // Everything else that is here has been in PTX since sm_80's first version.
            Inst::Bin {
                ty: BF16x2,
                op: BinOp::Add | BinOp::Sub | BinOp::Mul,
                ..
            } => Requirement::new((7, 8), 90),
            Inst::Bin { ty: F16x2 | BF16x2, .. }
            | Inst::Un { ty: F16x2 | BF16x2, .. }
            | Inst::Fma { ty: F16x2 | BF16x2, .. }
            | Inst::Mov { .. }
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
            | Inst::Ld { .. }
            | Inst::St { .. }
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
            | Inst::Fence { .. }
            | Inst::Atom { .. }
            | Inst::TrapIf { .. }
            | Inst::Trace { .. } => Requirement::BASE,
        }
    }
}
