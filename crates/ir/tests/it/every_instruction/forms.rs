//! The forms of instructions there are: variants with their operations and types.

use std::collections::BTreeSet;

use flashcore_ir::inst::{
    AtomOp, BinOp, BulkInst, ClusterInst, Cmp, Cvt, FenceInst, FlagInst, MbarInst, MmaAcc, MmaInput, Scope, ShflMode,
    Space, Special, UnOp, VoteMode, WgmmaA, WgmmaInput, WgmmaInst,
};
use flashcore_ir::sync::FULL_WARP;
use flashcore_ir::{Inst, Operand, ScalarType};

/// What an instruction is, without its operands: its variant, operation and type.
pub(crate) fn form(inst: &Inst) -> String {
    match inst {
        Inst::Mov { dst, src } => format!("Mov {:?} {}", dst.class, if is_imm(src) { "imm" } else { "reg" }),
        Inst::Bin { op, ty, .. } => format!("Bin {op:?} {ty:?}"),
        Inst::Un { op, ty, .. } => format!("Un {op:?} {ty:?}"),
        Inst::Fma { ty, .. } => format!("Fma {ty:?}"),
        Inst::MadWide { ty, .. } => format!("MadWide {ty:?}"),
        Inst::Cvt { op, .. } => format!("Cvt {op:?}"),
        Inst::CvtPack { ty, .. } => format!("CvtPack {ty:?}"),
        Inst::Pack { dst, .. } => format!("Pack {:?}", dst.class),
        Inst::Unpack { lo, .. } => format!("Unpack {:?}", lo.class),
        Inst::Lop3 { .. } => "Lop3".to_string(),
        Inst::Prmt { .. } => "Prmt".to_string(),
        Inst::Setp { cmp, ty, .. } => format!("Setp {cmp:?} {ty:?}"),
        Inst::Selp { ty, .. } => format!("Selp {ty:?}"),
        Inst::Special { which, .. } => format!("Special {which:?}"),
        Inst::Param { dst, .. } => format!("Param {:?}", dst.class),
        Inst::SharedBase { .. } => "SharedBase".to_string(),
        Inst::Ld {
            space,
            dst,
            count,
            cache,
            ..
        } => format!("Ld {space:?} {:?} {count} {cache:?}", dst.class),
        Inst::St {
            space, count, cache, ..
        } => format!("St {space:?} {count} {cache:?}"),
        Inst::CpAsync {
            bytes,
            src_bytes,
            cache,
            ..
        } => {
            format!(
                "CpAsync {bytes} {cache:?} {}",
                if src_bytes.is_some() { "partial" } else { "whole" }
            )
        }
        Inst::CpAsyncCommit => "CpAsyncCommit".to_string(),
        Inst::CpAsyncWait { .. } => "CpAsyncWait".to_string(),
        Inst::LdMatrix { count, transposed, .. } => format!("LdMatrix {count} {transposed}"),
        Inst::Mma { input, acc, .. } => format!("Mma {input:?} {acc:?}"),
        Inst::Shfl { mode, .. } => format!("Shfl {mode:?}"),
        Inst::Vote { mode, .. } => format!("Vote {mode:?}"),
        Inst::Redux { op, ty, .. } => format!("Redux {op:?} {ty:?}"),
        Inst::BarSync { threads, .. } => format!("BarSync {}", if threads.is_some() { "some" } else { "all" }),
        Inst::BarArrive { .. } => "BarArrive".to_string(),
        Inst::BarWarp { members } => format!("BarWarp {}", *members == FULL_WARP),
        Inst::Fence(FenceInst::Memory(scope)) => format!("Fence {scope:?}"),
        Inst::Atom { op, ty, space, dst, .. } => {
            format!("{} {op:?} {ty:?} {space:?}", if dst.is_some() { "Atom" } else { "Red" })
        }
        Inst::AddFour { .. } => "AddFour".to_string(),
        Inst::Trace { .. } => "Trace".to_string(),
        Inst::StMatrix { count, transposed, .. } => format!("StMatrix {count} {transposed}"),
        Inst::Fence(fence) => format!("Fence{fence:?}"),
        Inst::Elect { .. } => "Elect".to_string(),
        Inst::TrapIf { .. } => "TrapIf".to_string(),
        Inst::SetMaxRegs { raise, .. } => format!("SetMaxRegs {raise}"),
        Inst::DependencyWait => "DependencyWait".to_string(),
        Inst::DependencyTrigger => "DependencyTrigger".to_string(),
        Inst::Flag(inst) => match inst {
            FlagInst::LoadAcquire { dst, .. } => format!("LoadAcquire {:?}", dst.class),
            FlagInst::StoreRelease { ty, .. } => format!("StoreRelease {ty:?}"),
            FlagInst::Add { release, ty, .. } => format!("FlagAdd {release} {ty:?}"),
        },
        Inst::Mbar(inst) => mbar_form(inst),
        Inst::Bulk(inst) => bulk_form(inst),
        Inst::Wgmma(inst) => wgmma_form(inst),
        Inst::Cluster(inst) => match inst {
            ClusterInst::Mapa { rank, .. } => format!("Mapa {}", if is_imm(rank) { "imm" } else { "reg" }),
            ClusterInst::Arrive { release, aligned } => format!("ClusterArrive {release} {aligned}"),
            ClusterInst::Wait { aligned } => format!("ClusterWait {aligned}"),
        },
    }
}

fn mbar_form(inst: &MbarInst) -> String {
    match inst {
        MbarInst::Init { .. } => "MbarInit".to_string(),
        MbarInst::Arrive { remote, scope, tx, .. } => format!("MbarArrive {remote} {scope:?} {}", tx.is_some()),
        MbarInst::ExpectTx { .. } => "MbarExpectTx".to_string(),
        MbarInst::Test { blocking, scope, .. } => format!("MbarTest {blocking} {scope:?}"),
    }
}

fn bulk_form(inst: &BulkInst) -> String {
    match inst {
        BulkInst::Load {
            at, multicast, hint, ..
        } => format!("BulkLoad {} {} {hint:?}", at.len(), multicast.is_some()),
        BulkInst::Store { at, .. } => format!("BulkStore {}", at.len()),
        BulkInst::LoadBytes { .. } => "BulkLoadBytes".to_string(),
        BulkInst::StoreBytes { .. } => "BulkStoreBytes".to_string(),
        BulkInst::Reduce { .. } => "BulkReduce".to_string(),
        BulkInst::Send { .. } => "BulkSend".to_string(),
        BulkInst::Prefetch { .. } => "BulkPrefetch".to_string(),
        BulkInst::Commit => "BulkCommit".to_string(),
        BulkInst::Wait { read, .. } => format!("BulkWait {read}"),
    }
}

fn wgmma_form(inst: &WgmmaInst) -> String {
    match inst {
        WgmmaInst::Mma { input, a, b, .. } => {
            let a = match a {
                WgmmaA::Shared(descriptor) => format!("{:?}", descriptor.major),
                WgmmaA::Regs(_) => "regs".to_string(),
            };
            format!("Wgmma {input:?} {a} {:?}", b.major)
        }
        WgmmaInst::Fence => "WgmmaFence".to_string(),
        WgmmaInst::Commit => "WgmmaCommit".to_string(),
        WgmmaInst::Wait { .. } => "WgmmaWait".to_string(),
    }
}

fn is_imm(operand: &Operand) -> bool {
    matches!(operand, Operand::Imm(_))
}

/// Every form there is: the language, listed.
pub(crate) fn all_forms() -> BTreeSet<String> {
    use ScalarType::*;
    let integers = [U32, S32, U64, S64];
    let mut forms: Vec<String> = Vec::new();
    let mut add = |text: String| forms.push(text);

    // Predicates are moved in PTX that was read only: none is a variable.
    for class in ["B16", "B32", "B64", "F32"] {
        add(format!("Mov {class} imm"));
        add(format!("Mov {class} reg"));
    }
    for ty in integers {
        use BinOp::*;
        for op in [Add, Sub, Mul, MulHi, Min, Max, Div, Rem, And, Or, Xor, Shl, Shr] {
            add(format!("Bin {op:?} {ty:?}"));
        }
        for op in [UnOp::Neg, UnOp::Not] {
            add(format!("Un {op:?} {ty:?}"));
        }
        add(format!("Fma {ty:?}"));
    }
    for ty in [F32, F16x2, BF16x2] {
        for op in [BinOp::Add, BinOp::Sub, BinOp::Mul, BinOp::Min, BinOp::Max] {
            add(format!("Bin {op:?} {ty:?}"));
        }
        add(format!("Un {:?} {ty:?}", UnOp::Neg));
        add(format!("Fma {ty:?}"));
    }
    for ty in [S32, S64, F32, F16x2, BF16x2] {
        add(format!("Un Abs {ty:?}"));
    }
    for op in [BinOp::And, BinOp::Or, BinOp::Xor] {
        add(format!("Bin {op:?} Pred"));
    }
    for form in [
        "Un Not Pred",
        "Un Ex2 F32",
        "Un Lg2 F32",
        "Un Rcp F32",
        "Un Popc U32",
        "Un Clz U32",
    ] {
        add(form.to_string());
    }
    for form in [
        "Bin MulWide U32",
        "Bin MulWide S32",
        "MadWide U32",
        "Lop3",
        "Prmt",
        "SharedBase",
        "Trace",
    ] {
        add(form.to_string());
    }
    {
        use Cvt::*;
        for op in [
            F32FromF16,
            F16FromF32,
            BF16FromF32,
            F32FromU32,
            F32FromS32,
            S32FromF32,
            U32FromF32,
        ] {
            add(format!("Cvt {op:?}"));
        }
        for op in [U64FromU32, S64FromS32, U32FromU64] {
            add(format!("Cvt {op:?}"));
        }
    }
    for ty in [F16x2, BF16x2] {
        add(format!("CvtPack {ty:?}"));
    }
    for form in ["Pack B32", "Pack B64", "Unpack B16", "Unpack B32"] {
        add(form.to_string());
    }
    for ty in [U32, S32, U64, S64, F32] {
        for cmp in [Cmp::Eq, Cmp::Ne, Cmp::Lt, Cmp::Le, Cmp::Gt, Cmp::Ge] {
            add(format!("Setp {cmp:?} {ty:?}"));
        }
    }
    for ty in [U32, S32, U64, S64, F32, F16, BF16, F16x2, BF16x2] {
        add(format!("Selp {ty:?}"));
    }
    add(format!("Special {:?}", Special::Tid(0)));
    add(format!("Special {:?}", Special::LaneId));
    for dim in 0..3 {
        for which in [Special::Ntid(dim), Special::Ctaid(dim), Special::Nctaid(dim)] {
            add(format!("Special {which:?}"));
        }
    }
    for class in ["B16", "B32", "B64", "F32"] {
        add(format!("Param {class}"));
    }
    for (class, counts) in [("B16", &[1][..]), ("B32", &[1, 2, 4]), ("F32", &[1, 2, 4])] {
        for count in counts {
            add(format!("Ld {:?} {class} {count} Default", Space::Shared));
        }
    }
    for class in ["B32", "F32"] {
        for (count, cache) in [
            (1, "Default"),
            (1, "ReadOnly"),
            (2, "L2"),
            (4, "Streaming"),
            (2, "Default"),
            (4, "Default"),
        ] {
            add(format!("Ld {:?} {class} {count} {cache}", Space::Global));
        }
    }
    add("Ld Global B16 1 Default".to_string());
    add("Ld Global B16 1 ReadOnly".to_string());
    for (count, cache) in [
        (1, "Default"),
        (2, "Default"),
        (4, "Default"),
        (2, "L2"),
        (4, "Streaming"),
    ] {
        add(format!("St Global {count} {cache}"));
    }
    for count in [1, 2, 4] {
        add(format!("St Shared {count} Default"));
    }
    for part in ["whole", "partial"] {
        add(format!("CpAsync 16 L2 {part}"));
        for bytes in [4, 8, 16] {
            add(format!("CpAsync {bytes} Default {part}"));
        }
    }
    for form in [
        "CpAsyncCommit",
        "CpAsyncWait",
        "BarSync all",
        "BarSync some",
        "BarArrive",
        "BarWarp true",
    ] {
        add(form.to_string());
    }
    for count in [1, 2, 4] {
        add(format!("LdMatrix {count} false"));
        add(format!("LdMatrix {count} true"));
    }
    for (input, acc) in [
        (MmaInput::F16, MmaAcc::F32),
        (MmaInput::F16, MmaAcc::F16),
        (MmaInput::BF16, MmaAcc::F32),
    ] {
        add(format!("Mma {input:?} {acc:?}"));
    }
    for mode in [ShflMode::Bfly, ShflMode::Down, ShflMode::Up, ShflMode::Idx] {
        add(format!("Shfl {mode:?}"));
    }
    for mode in [VoteMode::All, VoteMode::Any, VoteMode::Ballot] {
        add(format!("Vote {mode:?}"));
    }
    for op in [BinOp::Add, BinOp::Max, BinOp::Min] {
        add(format!("Redux {op:?} U32"));
        add(format!("Redux {op:?} S32"));
    }
    for op in [BinOp::And, BinOp::Or, BinOp::Xor] {
        add(format!("Redux {op:?} U32"));
    }
    add(format!("Fence {:?}", Scope::Block));
    add(format!("Fence {:?}", Scope::Device));
    for space in [Space::Global, Space::Shared] {
        for (op, ty) in [(AtomOp::Add, F32), (AtomOp::Exch, F32)] {
            add(format!("Atom {op:?} {ty:?} {space:?}"));
        }
        add(format!("Red Add F32 {space:?}"));
        for ty in [U32, S32] {
            for op in [AtomOp::Add, AtomOp::Max, AtomOp::Min, AtomOp::Exch] {
                add(format!("Atom {op:?} {ty:?} {space:?}"));
                if op != AtomOp::Exch {
                    add(format!("Red {op:?} {ty:?} {space:?}"));
                }
            }
        }
    }
    for (ty, class) in [(U32, "B32"), (S32, "B32"), (F32, "F32")] {
        add(format!("LoadAcquire {class}"));
        add(format!("StoreRelease {ty:?}"));
        add(format!("FlagAdd true {ty:?}"));
        add(format!("FlagAdd false {ty:?}"));
    }
    hopper_forms(&mut add);
    forms.into_iter().collect()
}

/// What sm_90 has and older architectures have not.
fn hopper_forms(add: &mut dyn FnMut(String)) {
    for special in [Special::MaxWarps, Special::ClusterRank, Special::ClusterBlocks] {
        add(format!("Special {special:?}"));
    }
    for form in [
        "CvtPack E4M3x2",
        "Cvt F16x2FromE4M3x2",
        "FenceProxyAsync",
        "FenceProxyAsyncGlobal",
        "FenceMbarrierInit",
        "Elect",
        "TrapIf",
        "SetMaxRegs true",
        "SetMaxRegs false",
        "DependencyWait",
        "DependencyTrigger",
        "MbarInit",
        "MbarExpectTx",
        "BulkLoadBytes",
        "BulkStoreBytes",
        "BulkReduce",
        "BulkSend",
        "AddFour",
        "BulkPrefetch",
        "BulkCommit",
        "BulkWait true",
        "BulkWait false",
        "Mapa imm",
        "Mapa reg",
        "ClusterArrive true true",
        "ClusterArrive true false",
        "ClusterArrive false false",
        "ClusterWait true",
        "ClusterWait false",
        "WgmmaFence",
        "WgmmaCommit",
        "WgmmaWait",
        "Wgmma E4M3 K K",
        "Wgmma E4M3 regs K",
    ] {
        add(form.to_string());
    }
    for input in [WgmmaInput::F16, WgmmaInput::BF16] {
        for a in ["K", "Mn", "regs"] {
            for b in ["K", "Mn"] {
                add(format!("Wgmma {input:?} {a} {b}"));
            }
        }
    }
    add(format!("Fence {:?}", Scope::Cluster));
    for form in [
        "false Block false",
        "false Block true",
        "true Block false",
        "true Cluster false",
    ] {
        add(format!("MbarArrive {form}"));
    }
    for form in ["false Block", "true Block", "true Cluster"] {
        add(format!("MbarTest {form}"));
    }
    for rank in 2..=5 {
        add(format!("BulkLoad {rank} false None"));
        add(format!("BulkStore {rank}"));
    }
    for form in ["4 true EvictLast", "4 false EvictFirst"] {
        add(format!("BulkLoad {form}"));
    }
    for count in [1, 2, 4] {
        add(format!("StMatrix {count} false"));
        add(format!("StMatrix {count} true"));
    }
    for form in [
        "Ld Cluster B32 1 Default",
        "Ld Cluster F32 4 Default",
        "St Cluster 1 Default",
        "St Cluster 4 Default",
        "Atom Add U32 Cluster",
        "Red Add U32 Cluster",
    ] {
        add(form.to_string());
    }
}
