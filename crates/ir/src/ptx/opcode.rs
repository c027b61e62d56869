//! The opcode of each instruction.

use crate::inst::{
    AtomOp, BinOp, BulkInst, Cache, ClusterInst, Cmp, FenceInst, FlagInst, Inst, L2Hint, MbarInst, Operand, Scope,
    StoreSource, UnOp, WgmmaInst,
};
use crate::types::{RegClass, ScalarType};

impl Inst {
    /// Whether every lane of the warp must execute it together (`.aligned` in PTX): such an
    /// instruction under a divergent condition does not build.
    pub fn is_aligned(&self) -> bool {
        let opcode = opcode(self);
        // `bar.sync` and `bar.arrive` are short for `barrier.….aligned`.
        opcode.contains(".aligned") || opcode == "bar.sync" || opcode == "bar.arrive"
    }
}

/// The instruction's opcode in PTX: `ld.global.v4.f32`.
pub fn opcode(inst: &Inst) -> String {
    match inst {
        Inst::Mov { dst, src } => match (dst.class, src) {
            (RegClass::Pred, Operand::Imm(_)) => "setp.ne.u32".to_string(),
            // Bits may come from a register of another class.
            (RegClass::F32, Operand::Reg(src)) if src.class != RegClass::F32 => "mov.b32".to_string(),
            (class, _) => format!("mov.{}", class.ptx()),
        },
        Inst::Bin { op, ty, .. } => binary(*op, *ty),
        Inst::Un { op, ty, .. } => unary(*op, *ty),
        Inst::Fma { ty, .. } if is_float(*ty) => format!("fma.rn.{}", ty.ptx()),
        Inst::Fma { ty, .. } => format!("mad.lo.{}", ty.ptx()),
        Inst::MadWide { ty, .. } => format!("mad.wide.{}", ty.ptx()),
        Inst::Cvt { op, .. } => format!("cvt.{}", op.ptx()),
        // e4m3 has no infinity: what does not fit becomes the largest number.
        Inst::CvtPack { ty, .. } if *ty == ScalarType::E4M3x2 => "cvt.rn.satfinite.e4m3x2.f32".to_string(),
        Inst::CvtPack { ty, .. } => format!("cvt.rn.{}.f32", ty.ptx()),
        Inst::Pack { dst, .. } => format!("mov.{}", dst.class.ptx()),
        Inst::Unpack { lo, .. } if lo.class == RegClass::B16 => "mov.b32".to_string(),
        Inst::Unpack { .. } => "mov.b64".to_string(),
        Inst::Lop3 { .. } => "lop3.b32".to_string(),
        Inst::Prmt { .. } => "prmt.b32".to_string(),
        // `ne` of floats is false on NaN; `neu` is true.
        Inst::Setp { cmp, ty, .. } if (*cmp, *ty) == (Cmp::Ne, ScalarType::F32) => "setp.neu.f32".to_string(),
        Inst::Setp { cmp, ty, .. } => format!("setp.{}.{}", cmp.ptx(), ty.ptx()),
        Inst::Selp { ty, .. } => format!("selp.{}", ty.class().ptx()),
        Inst::Special { .. } | Inst::SharedBase { .. } => "mov.u32".to_string(),
        Inst::Param { dst, .. } => match dst.class {
            RegClass::B64 => "ld.param.u64".to_string(),
            RegClass::Pred => "ld.param.b32".to_string(),
            RegClass::F32 | RegClass::B16 | RegClass::B32 => format!("ld.param.{}", dst.class.ptx()),
        },
        Inst::Ld {
            space,
            dst,
            count,
            cache,
            ..
        } => {
            let (space, cache) = (space.ptx(), cache.ptx());
            format!("ld.{space}{cache}{}.{}", vector(*count), dst.class.ptx())
        }
        Inst::St {
            space,
            src,
            count,
            cache,
            ..
        } => {
            let class = match src {
                StoreSource::Regs(first) => first.class,
                StoreSource::Imm(ty, _) => ty.class(),
            };
            let (space, cache) = (space.ptx(), cache.ptx());
            format!("st.{space}{cache}{}.{}", vector(*count), class.ptx())
        }
        Inst::CpAsync { cache: Cache::L2, .. } => "cp.async.cg.shared.global".to_string(),
        Inst::CpAsync {
            cache: Cache::Default | Cache::ReadOnly | Cache::Streaming,
            ..
        } => "cp.async.ca.shared.global".to_string(),
        Inst::CpAsyncCommit => "cp.async.commit_group".to_string(),
        Inst::CpAsyncWait { .. } => "cp.async.wait_group".to_string(),
        Inst::LdMatrix { count, transposed, .. } => matrices("ldmatrix", *count, *transposed),
        Inst::StMatrix { count, transposed, .. } => matrices("stmatrix", *count, *transposed),
        Inst::Mma { input, acc, .. } => {
            let (input, acc) = (input.ptx(), acc.ptx());
            format!("mma.sync.aligned.m16n8k16.row.col.{acc}.{input}.{input}.{acc}")
        }
        Inst::Shfl { mode, .. } => format!("shfl.sync.{}.b32", mode.ptx()),
        Inst::Vote { mode, .. } => format!("vote.sync.{}", mode.ptx()),
        Inst::Redux { op, ty, .. } => format!("redux.sync.{}.{}", op.ptx(), suffix(*op, *ty)),
        Inst::BarSync { .. } => "bar.sync".to_string(),
        Inst::BarArrive { .. } => "bar.arrive".to_string(),
        Inst::BarWarp { .. } => "bar.warp.sync".to_string(),
        Inst::Fence(FenceInst::Memory(scope)) => format!("fence.acq_rel.{}", scope.ptx()),
        Inst::Fence(FenceInst::ProxyAsync) => "fence.proxy.async.shared::cta".to_string(),
        Inst::Fence(FenceInst::ProxyAsyncGlobal) => "fence.proxy.async.global".to_string(),
        Inst::Fence(FenceInst::MbarrierInit) => "fence.mbarrier_init.release.cluster".to_string(),
        Inst::Elect { .. } => "elect.sync".to_string(),
        Inst::TrapIf { .. } => "trap".to_string(),
        Inst::SetMaxRegs { raise: true, .. } => "setmaxnreg.inc.sync.aligned.u32".to_string(),
        Inst::SetMaxRegs { raise: false, .. } => "setmaxnreg.dec.sync.aligned.u32".to_string(),
        Inst::DependencyWait => "griddepcontrol.wait".to_string(),
        Inst::DependencyTrigger => "griddepcontrol.launch_dependents".to_string(),
        Inst::Flag(inst) => flag(inst),
        Inst::Mbar(inst) => mbar(inst),
        Inst::Bulk(inst) => bulk(inst),
        Inst::Wgmma(inst) => wgmma(inst),
        Inst::Cluster(inst) => cluster(inst),
        Inst::Atom { op, ty, space, dst, .. } => {
            let name = if dst.is_some() { "atom" } else { "red" };
            // The only exchange there is, whatever the bits mean.
            let ty = if *op == AtomOp::Exch { "b32" } else { ty.ptx() };
            format!("{name}.{}.{}.{ty}", space.ptx(), op.ptx())
        }
        Inst::AddFour { .. } => "red.global.add.v4.f32".to_string(),
        Inst::Trace { .. } => "// trace".to_string(),
    }
}

fn is_float(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::F32 | ScalarType::F16x2 | ScalarType::BF16x2)
}

/// The type suffix of an operation: of bitwise ones the class.
fn suffix(op: BinOp, ty: ScalarType) -> &'static str {
    use BinOp::{Add, And, Div, Max, Min, Mul, MulHi, MulWide, Or, Rem, Shl, Shr, Sub, Xor};
    match op {
        And | Or | Xor | Shl => ty.class().ptx(),
        Add | Sub | Mul | MulHi | MulWide | Min | Max | Div | Rem | Shr => ty.ptx(),
    }
}

fn binary(op: BinOp, ty: ScalarType) -> String {
    use BinOp::{Add, And, Div, Max, Min, Mul, MulHi, MulWide, Or, Rem, Shl, Shr, Sub, Xor};
    let variant = match op {
        // Explicit rounding keeps ptxas from contracting a product and a sum into one FMA, so that
        // the simulator's result is the hardware's.
        Add | Sub | Mul if is_float(ty) => ".rn",
        Mul => ".lo",
        Add | Sub | MulHi | MulWide | Min | Max | Div | Rem | And | Or | Xor | Shl | Shr => "",
    };
    format!("{}{variant}.{}", op.ptx(), suffix(op, ty))
}

fn unary(op: UnOp, ty: ScalarType) -> String {
    let suffix = match (op, ty) {
        // Negating an unsigned integer is negating its bits as a signed one.
        (UnOp::Neg | UnOp::Abs, ScalarType::U32) => "s32",
        (UnOp::Neg | UnOp::Abs, ScalarType::U64) => "s64",
        (UnOp::Neg | UnOp::Abs | UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp, _) => ty.ptx(),
        (UnOp::Not | UnOp::Popc | UnOp::Clz, _) => ty.class().ptx(),
    };
    format!("{}.{suffix}", op.ptx())
}

fn vector(count: u32) -> &'static str {
    match count {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}

fn matrices(name: &str, count: u32, transposed: bool) -> String {
    let trans = if transposed { ".trans" } else { "" };
    format!("{name}.sync.aligned.m8n8.x{count}{trans}.shared.b16")
}

fn flag(inst: &FlagInst) -> String {
    match inst {
        FlagInst::LoadAcquire { dst, .. } => format!("ld.acquire.gpu.global.{}", dst.class.ptx()),
        FlagInst::StoreRelease { ty, .. } => format!("st.release.gpu.global.{}", ty.class().ptx()),
        FlagInst::Add { release, ty, .. } => {
            let order = if *release { "release" } else { "relaxed" };
            format!("red.{order}.gpu.global.add.{}", ty.ptx())
        }
    }
}

fn mbar(inst: &MbarInst) -> String {
    // A block's scope is the default; spelling it would need a later PTX version.
    let order = |name: &str, scope: Scope| match scope {
        Scope::Block => String::new(),
        Scope::Cluster | Scope::Device => format!(".{name}.{}", scope.ptx()),
    };
    match inst {
        MbarInst::Init { .. } => "mbarrier.init.shared::cta.b64".to_string(),
        MbarInst::Arrive { remote, scope, tx, .. } => {
            let expect = if tx.is_some() { ".expect_tx" } else { "" };
            let space = if *remote { "cluster" } else { "cta" };
            format!(
                "mbarrier.arrive{expect}{}.shared::{space}.b64",
                order("release", *scope)
            )
        }
        MbarInst::ExpectTx { .. } => "mbarrier.expect_tx.relaxed.cta.shared::cta.b64".to_string(),
        MbarInst::Test { blocking, scope, .. } => {
            let op = if *blocking { "try_wait" } else { "test_wait" };
            format!("mbarrier.{op}.parity{}.shared::cta.b64", order("acquire", *scope))
        }
    }
}

fn bulk(inst: &BulkInst) -> String {
    match inst {
        BulkInst::Load {
            at, multicast, hint, ..
        } => {
            let multicast = if multicast.is_some() { ".multicast::cluster" } else { "" };
            let hint = match hint {
                L2Hint::None => "",
                L2Hint::EvictFirst | L2Hint::EvictLast => ".L2::cache_hint",
            };
            let to = "shared::cluster.global.tile.mbarrier::complete_tx::bytes";
            format!("cp.async.bulk.tensor.{}d.{to}{multicast}{hint}", at.len())
        }
        BulkInst::Store { at, .. } => {
            format!("cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group", at.len())
        }
        BulkInst::LoadBytes { .. } => "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes".to_string(),
        BulkInst::StoreBytes { .. } => "cp.async.bulk.global.shared::cta.bulk_group".to_string(),
        BulkInst::Reduce { .. } => "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32".to_string(),
        BulkInst::Send { .. } => "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes".to_string(),
        BulkInst::Prefetch { .. } => "prefetch.tensormap".to_string(),
        BulkInst::Commit => "cp.async.bulk.commit_group".to_string(),
        BulkInst::Wait { read: true, .. } => "cp.async.bulk.wait_group.read".to_string(),
        BulkInst::Wait { read: false, .. } => "cp.async.bulk.wait_group".to_string(),
    }
}

fn cluster(inst: &ClusterInst) -> String {
    let aligned = |aligned: bool| if aligned { ".aligned" } else { "" };
    match inst {
        ClusterInst::Mapa { .. } => "mapa.shared::cluster.u32".to_string(),
        ClusterInst::Arrive { release, aligned: a } => {
            let order = if *release { "release" } else { "relaxed" };
            format!("barrier.cluster.arrive.{order}{}", aligned(*a))
        }
        ClusterInst::Wait { aligned: a } => format!("barrier.cluster.wait.acquire{}", aligned(*a)),
    }
}

fn wgmma(inst: &WgmmaInst) -> String {
    match inst {
        WgmmaInst::Mma { input, n, .. } => {
            let (k, ty) = (input.k(), input.ptx());
            format!("wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{ty}.{ty}")
        }
        WgmmaInst::Fence => "wgmma.fence.sync.aligned".to_string(),
        WgmmaInst::Commit => "wgmma.commit_group.sync.aligned".to_string(),
        WgmmaInst::Wait { .. } => "wgmma.wait_group.sync.aligned".to_string(),
    }
}
