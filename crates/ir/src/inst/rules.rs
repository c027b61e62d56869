//! Which instructions there are: combinations of fields that PTX does not have, and what each
//! instruction requires of a target.

use super::{AtomOp, BinOp, Cache, ClusterInst, Cvt, FenceInst, Inst, MmaAcc, MmaInput, Operand, Scope, ShflMode};
use super::{Space, Special, WgmmaInst};
use crate::target::Requirement;
use crate::types::ScalarType;

/// The lowest PTX version and architecture that have an instruction, and why PTX has no such
/// instruction, if it has none.
pub(super) type Rules = (Requirement, Option<String>);

const EVERYWHERE: Rules = (Requirement::BASE, None);
/// The first PTX version for sm_90.
const HOPPER: Requirement = Requirement::new((7, 8), 90);
/// The PTX version that completed sm_90.
pub(super) const HOPPER_8_0: Requirement = Requirement::new((8, 0), 90);
/// What later architectures do not have.
pub(super) const HOPPER_ALONE: Requirement = Requirement::arch_specific((8, 0), 90);

impl Inst {
    /// Why PTX has no such instruction, if it has none: combinations of fields that a type cannot
    /// rule out. Such an instruction does not build.
    pub fn impossible(&self) -> Option<String> {
        self.rules().1
    }

    /// As [`impossible`](Self::impossible), and why the instruction cannot stand in a block of `threads` threads.
    pub fn impossible_among(&self, threads: u32) -> Option<String> {
        self.impossible().or_else(|| match self {
            Inst::BarSync {
                id,
                threads: Some(count),
            }
            | Inst::BarArrive { id, threads: count }
                if *count > threads =>
            {
                let barrier = barrier(*id);
                Some(format!("{barrier} of {count} threads; the block has {threads}"))
            }
            Inst::Wgmma(WgmmaInst::Mma { .. }) => impossible_warpgroups(threads),
            _ => None,
        })
    }

    /// The lowest PTX version and architecture that have the instruction.
    pub fn requires(&self) -> Requirement {
        self.rules().0
    }

    fn rules(&self) -> Rules {
        use ScalarType::{BF16x2, E4M3x2};
        match self {
            Inst::Ld {
                space,
                dst,
                cache,
                count,
                ..
            } => {
                let impossible = impossible_access(*space, *cache, *count, dst.class.bytes());
                (of_space(*space), impossible)
            }
            Inst::St {
                space,
                src,
                cache,
                count,
                ..
            } => {
                let impossible = match cache {
                    Cache::ReadOnly => Some("a store cannot take the read-only path".to_string()),
                    Cache::Default | Cache::L2 | Cache::Streaming => {
                        impossible_access(*space, *cache, *count, src.bytes())
                    }
                };
                (of_space(*space), impossible)
            }
            Inst::LdMatrix { count, .. } => (Requirement::BASE, impossible_count(*count)),
            Inst::StMatrix { count, .. } => (HOPPER, impossible_count(*count)),
            Inst::CpAsync { bytes, cache, .. } => (Requirement::BASE, impossible_copy(*bytes, *cache)),
            Inst::Atom { op, ty, dst, space, .. } => (of_space(*space), impossible_atomic(*op, *ty, dst.is_some())),
            // PTX ISA, `red`: vectors of f32.
            Inst::AddFour { .. } => (Requirement::new((8, 1), 90), None),
            Inst::Redux { op, ty, .. } => match (op, ty) {
                (BinOp::Add | BinOp::Min | BinOp::Max, ScalarType::U32 | ScalarType::S32)
                | (BinOp::And | BinOp::Or | BinOp::Xor, ScalarType::U32 | ScalarType::S32 | ScalarType::B32) => {
                    EVERYWHERE
                }
                (op, ty) => impossible(format!("redux has no {op:?} of {}", ty.ptx())),
            },
            Inst::Mma { input, acc, .. } => match (input, acc) {
                (MmaInput::BF16, MmaAcc::F16) => {
                    impossible("mma.sync has no fp16 accumulators for bf16; f32 ones are possible")
                }
                (MmaInput::F16, MmaAcc::F16 | MmaAcc::F32) | (MmaInput::BF16, MmaAcc::F32) => EVERYWHERE,
            },
            // PTX ISA, `setmaxnreg`.
            Inst::SetMaxRegs { regs, .. } => {
                let is_possible = regs.is_multiple_of(8) && (24..=256).contains(regs);
                let why = || format!("{regs} registers a thread; multiples of 8 from 24 to 256 are possible");
                (HOPPER_ALONE, (!is_possible).then(why))
            }
            Inst::Flag(inst) => inst.rules(),
            Inst::Mbar(inst) => (inst.requires(), inst.impossible()),
            Inst::Bulk(inst) => inst.rules(),
            Inst::Wgmma(inst) => inst.rules(),
            // The barrier is of 7.8; `.release`, `.acquire` and `.relaxed` came later.
            Inst::Cluster(ClusterInst::Arrive { .. } | ClusterInst::Wait { .. })
            | Inst::Fence(FenceInst::ProxyAsync | FenceInst::ProxyAsyncGlobal | FenceInst::MbarrierInit)
            | Inst::Elect { .. } => (HOPPER_8_0, None),
            Inst::Cluster(ClusterInst::Mapa { .. }) | Inst::DependencyWait | Inst::DependencyTrigger => (HOPPER, None),
            // On sm_89 from PTX 8.1 on.
            Inst::CvtPack { ty, .. } => (on_hopper(*ty == E4M3x2), None),
            Inst::Cvt { op, .. } => (on_hopper(*op == Cvt::F16x2FromE4M3x2), None),
            Inst::Fence(FenceInst::Memory(scope)) => (on_hopper(*scope == Scope::Cluster), None),
            Inst::Lop3 { a, b, c, .. } => {
                let is_repeated = a == b || a == c || b == c;
                let why = "lop3 of a repeated value, which ptxas 12.0 to 13.0 may compile wrongly; write it with &, | \
                           and ^";
                (Requirement::BASE, is_repeated.then(|| why.to_string()))
            }
            Inst::Shfl { mode, lane, .. } => match (mode, lane) {
                (ShflMode::Bfly | ShflMode::Down | ShflMode::Up, Operand::Imm(lane @ 32..)) => {
                    impossible(format!("a lane distance of {lane}; a warp has lanes 0 to 31"))
                }
                (ShflMode::Bfly | ShflMode::Down | ShflMode::Up | ShflMode::Idx, _) => EVERYWHERE,
            },
            Inst::BarSync { id, threads } => (Requirement::BASE, impossible_barrier(*id, *threads)),
            Inst::BarArrive { id, threads } => (Requirement::BASE, impossible_barrier(*id, Some(*threads))),
            Inst::Special { which, .. } => match which {
                Special::Tid(dim @ 3..)
                | Special::Ntid(dim @ 3..)
                | Special::Ctaid(dim @ 3..)
                | Special::Nctaid(dim @ 3..) => {
                    impossible(format!("dimension {dim}; a grid and a block have 0, 1 and 2"))
                }
                Special::ClusterRank | Special::ClusterBlocks => (HOPPER, None),
                Special::Tid(_)
                | Special::Ntid(_)
                | Special::Ctaid(_)
                | Special::Nctaid(_)
                | Special::LaneId
                | Special::MaxWarps => EVERYWHERE,
            },
            Inst::Bin { op, ty, .. } => {
                let is_late = *ty == BF16x2 && matches!(op, BinOp::Add | BinOp::Sub | BinOp::Mul);
                (on_hopper(is_late), None)
            }
            Inst::Mov { .. }
            | Inst::Un { .. }
            | Inst::Fma { .. }
            | Inst::MadWide { .. }
            | Inst::Pack { .. }
            | Inst::Unpack { .. }
            | Inst::Prmt { .. }
            | Inst::Setp { .. }
            | Inst::Selp { .. }
            | Inst::Param { .. }
            | Inst::SharedBase { .. }
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::Vote { .. }
            | Inst::BarWarp { .. }
            | Inst::TrapIf { .. }
            | Inst::Trace { .. } => EVERYWHERE,
        }
    }
}

fn impossible(why: impl Into<String>) -> Rules {
    (Requirement::BASE, Some(why.into()))
}

fn on_hopper(is: bool) -> Requirement {
    if is { HOPPER } else { Requirement::BASE }
}

fn of_space(space: Space) -> Requirement {
    on_hopper(space == Space::Cluster)
}

fn impossible_count(count: u32) -> Option<String> {
    let is_possible = matches!(count, 1 | 2 | 4);
    (!is_possible).then(|| format!("an access of {count} words; 1, 2 or 4 are possible"))
}

/// PTX ISA, `ld`: what is accessed at once has at most 16 bytes.
fn impossible_access(space: Space, cache: Cache, count: u32, bytes: u32) -> Option<String> {
    if space != Space::Global && cache != Cache::Default {
        return Some("shared memory is not cached; a cache hint is for global memory".to_string());
    }
    if !(2..=8).contains(&bytes) {
        return Some(format!(
            "an access to elements of {bytes} bytes; 2, 4 and 8 are possible, and 8-bit elements as words of four"
        ));
    }
    let why = || format!("an access of {count} elements of {bytes} bytes; at most 16 bytes are possible");
    impossible_count(count).or_else(|| (count * bytes > 16).then(why))
}

fn barrier(id: Operand) -> String {
    match id {
        Operand::Imm(id) => format!("barrier {id}"),
        Operand::Reg(_) => "a barrier".to_string(),
    }
}

/// PTX ISA, `bar`: whole warps come to a barrier.
fn impossible_barrier(id: Operand, threads: Option<u32>) -> Option<String> {
    let barrier = barrier(id);
    let is_unknown = matches!(id, Operand::Imm(16..));
    match threads {
        _ if is_unknown => Some(format!("{barrier}; a block has barriers 0 to 15")),
        Some(threads) if threads == 0 || !threads.is_multiple_of(32) => Some(format!(
            "{barrier} of {threads} threads; multiples of 32 (a warp) are possible, from 32 on"
        )),
        _ => None,
    }
}

/// Why there are no products of warpgroups in a block of `threads` threads, if there are none.
pub(crate) fn impossible_warpgroups(threads: u32) -> Option<String> {
    let why = || {
        format!(
            "a warpgroup's product in a block of {threads} threads, which has warps that belong to no warpgroup of 4"
        )
    };
    (!threads.is_multiple_of(128)).then(why)
}

fn impossible_copy(bytes: u32, cache: Cache) -> Option<String> {
    match (bytes, cache) {
        (16, Cache::L2) | (4 | 8 | 16, Cache::Default) => None,
        (_, Cache::L2) => Some(format!("cp.async.cg of {bytes} bytes; it copies 16")),
        (_, Cache::Default) => Some(format!("cp.async.ca of {bytes} bytes; it copies 4, 8 or 16")),
        (_, Cache::ReadOnly | Cache::Streaming) => {
            Some("cp.async copies through L1 (`Cache::Default`) or L2 only".to_string())
        }
    }
}

fn impossible_atomic(op: AtomOp, ty: ScalarType, returns: bool) -> Option<String> {
    let why = match (op, ty, returns) {
        _ if ty.bytes() != 4 => return Some(format!("an atomic on {}; 4 bytes are possible", ty.ptx())),
        (AtomOp::Max | AtomOp::Min, ScalarType::F32, _) => {
            "f32 has no atomic maximum or minimum; of non-negative numbers, compare the bits as u32"
        }
        (AtomOp::Exch, _, false) => {
            "an exchange always gives the old value; use `atomic` and ignore it, or a plain store"
        }
        (AtomOp::Add | AtomOp::Max | AtomOp::Min | AtomOp::Exch, _, _) => return None,
    };
    Some(why.to_string())
}
