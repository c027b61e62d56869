//! How each instruction, register and operand is spelled.

use super::SHARED_SYMBOL;
use super::names::{address, matrices, operand, reg_name, register_file, regs, space_name, untyped, vector};
use super::spell_async::{bulk, cluster, mbar, wgmma};
use crate::inst::{
    AtomOp, BinOp, Cache, Cmp, Cvt, Inst, MmaAcc, MmaInput, Operand, Scope, ShflMode, Special, StoreSource, UnOp,
    VoteMode,
};
use crate::types::{Reg, RegClass, ScalarType};

/// An instruction as PTX; `param` names the kernel parameter of an index.
pub(super) fn spell(inst: &Inst, param: &dyn Fn(u32) -> String) -> String {
    match inst {
        Inst::Mov { dst, src } => mov(*dst, src),
        Inst::Bin { op, ty, dst, a, b } => {
            let b_ty = if matches!(op, BinOp::Shl | BinOp::Shr) {
                ScalarType::U32
            } else {
                *ty
            };
            format!(
                "{} {}, {}, {};",
                binary(*op, *ty),
                reg_name(*dst),
                operand(a, *ty),
                operand(b, b_ty)
            )
        }
        Inst::Un { op, ty, dst, a } => format!("{} {}, {};", unary(*op, *ty), reg_name(*dst), operand(a, *ty)),
        Inst::Fma { ty, dst, a, b, c } => {
            let op = match ty {
                ScalarType::F32 | ScalarType::F16x2 | ScalarType::BF16x2 => "fma.rn",
                _ => "mad.lo",
            };
            let [a, b, c] = [a, b, c].map(|x| operand(x, *ty));
            format!("{op}.{} {}, {a}, {b}, {c};", ty.ptx(), reg_name(*dst))
        }
        Inst::MadWide { ty, dst, a, b, c } => {
            let wide = if *ty == ScalarType::S32 {
                ScalarType::S64
            } else {
                ScalarType::U64
            };
            let (a, b, c) = (operand(a, *ty), operand(b, *ty), operand(c, wide));
            format!("mad.wide.{} {}, {a}, {b}, {c};", ty.ptx(), reg_name(*dst))
        }
        Inst::Cvt { op, dst, src } => {
            let (name, from) = conversion(*op);
            format!("{name} {}, {};", reg_name(*dst), operand(src, from))
        }
        Inst::CvtPack { ty, dst, lo, hi } => {
            let (lo, hi) = (operand(lo, ScalarType::F32), operand(hi, ScalarType::F32));
            // e4m3 has no infinity: what does not fit becomes the largest number.
            let saturates = if *ty == ScalarType::E4M3x2 { ".satfinite" } else { "" };
            format!("cvt.rn{saturates}.{}.f32 {}, {hi}, {lo};", ty.ptx(), reg_name(*dst))
        }
        Inst::Pack { dst, lo, hi } => {
            let (half, whole) = if dst.class == RegClass::B64 {
                (ScalarType::B32, "b64")
            } else {
                (ScalarType::B16, "b32")
            };
            format!(
                "mov.{whole} {}, {{{}, {}}};",
                reg_name(*dst),
                operand(lo, half),
                operand(hi, half)
            )
        }
        Inst::Unpack { lo, hi, src } => {
            let whole = if lo.class == RegClass::B16 {
                ScalarType::B32
            } else {
                ScalarType::B64
            };
            format!(
                "mov.{} {{{}, {}}}, {};",
                whole.ptx(),
                reg_name(*lo),
                reg_name(*hi),
                operand(src, whole)
            )
        }
        Inst::Lop3 { dst, a, b, c, table } => {
            let [a, b, c] = [a, b, c].map(|x| operand(x, ScalarType::B32));
            format!("lop3.b32 {}, {a}, {b}, {c}, {table:#04x};", reg_name(*dst))
        }
        Inst::Prmt { dst, a, b, selector } => {
            let [a, b, s] = [a, b, selector].map(|x| operand(x, ScalarType::B32));
            format!("prmt.b32 {}, {a}, {b}, {s};", reg_name(*dst))
        }
        Inst::Setp { cmp, ty, dst, a, b } => {
            let op = match (cmp, ty) {
                (Cmp::Ne, ScalarType::F32) => "neu",
                (Cmp::Eq, _) => "eq",
                (Cmp::Ne, _) => "ne",
                (Cmp::Lt, _) => "lt",
                (Cmp::Le, _) => "le",
                (Cmp::Gt, _) => "gt",
                (Cmp::Ge, _) => "ge",
            };
            format!(
                "setp.{op}.{} {}, {}, {};",
                ty.ptx(),
                reg_name(*dst),
                operand(a, *ty),
                operand(b, *ty)
            )
        }
        Inst::Selp { ty, dst, cond, a, b } => {
            let ptx = untyped(*ty);
            format!(
                "selp.{ptx} {}, {}, {}, {};",
                reg_name(*dst),
                operand(a, *ty),
                operand(b, *ty),
                reg_name(*cond)
            )
        }
        Inst::Special { dst, which } => format!("mov.u32 {}, {};", reg_name(*dst), special(*which)),
        Inst::Param { dst, index } => {
            let ty = match dst.class {
                RegClass::B64 => "u64",
                RegClass::F32 => "f32",
                RegClass::B16 => "b16",
                RegClass::B32 | RegClass::Pred => "b32",
            };
            format!("ld.param.{ty} {}, [param_{}];", reg_name(*dst), param(*index))
        }
        Inst::SharedBase { dst } => format!("mov.u32 {}, {SHARED_SYMBOL};", reg_name(*dst)),
        Inst::Ld {
            space,
            dst,
            count,
            addr,
            cache,
        } => {
            let hint = match cache {
                Cache::Default => "",
                Cache::ReadOnly => ".nc",
                Cache::L2 => ".cg",
                Cache::Streaming => ".cs",
            };
            let ty = register_file(dst.class).1;
            format!(
                "ld.{}{hint}{}.{ty} {}, {};",
                space_name(*space),
                vector(*count),
                regs(*dst, *count),
                address(addr)
            )
        }
        Inst::St {
            space,
            src,
            count,
            addr,
            cache,
        } => {
            let hint = match cache {
                Cache::Default | Cache::ReadOnly => "",
                Cache::L2 => ".cg",
                Cache::Streaming => ".cs",
            };
            let (ty, value) = match src {
                StoreSource::Regs(reg) => (register_file(reg.class).1, regs(*reg, *count)),
                StoreSource::Imm(ty, bits) => {
                    let value = operand(&Operand::Imm(*bits), *ty);
                    let all = vec![value; *count as usize].join(", ");
                    (untyped(*ty), if *count > 1 { format!("{{{all}}}") } else { all })
                }
            };
            format!(
                "st.{}{hint}{}.{ty} {}, {value};",
                space_name(*space),
                vector(*count),
                address(addr)
            )
        }
        Inst::CpAsync {
            dst,
            src,
            bytes,
            src_bytes,
            cache,
        } => {
            let level = if *cache == Cache::L2 { "cg" } else { "ca" };
            let partial = src_bytes.map_or(String::new(), |b| format!(", {}", operand(&b, ScalarType::U32)));
            format!(
                "cp.async.{level}.shared.global {}, {}, {bytes}{partial};",
                address(dst),
                address(src)
            )
        }
        Inst::CpAsyncCommit => "cp.async.commit_group;".to_string(),
        Inst::CpAsyncWait { pending } => format!("cp.async.wait_group {pending};"),
        Inst::LdMatrix {
            dst,
            count,
            transposed,
            addr,
        } => {
            let trans = if *transposed { ".trans" } else { "" };
            let list = matrices(*dst, *count);
            format!(
                "ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {list}, {};",
                address(addr)
            )
        }
        Inst::StMatrix {
            src,
            count,
            transposed,
            addr,
        } => {
            let trans = if *transposed { ".trans" } else { "" };
            let list = matrices(*src, *count);
            format!(
                "stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {}, {list};",
                address(addr)
            )
        }
        Inst::Mma { input, acc, d, a, b, c } => {
            let input = match input {
                MmaInput::F16 => "f16",
                MmaInput::BF16 => "bf16",
            };
            let (acc, n) = match acc {
                MmaAcc::F32 => ("f32", 4),
                MmaAcc::F16 => ("f16", 2),
            };
            let [d, a, b, c] = [(d, n), (a, 4), (b, 2), (c, n)].map(|(r, n)| regs(*r, n));
            format!("mma.sync.aligned.m16n8k16.row.col.{acc}.{input}.{input}.{acc} {d}, {a}, {b}, {c};")
        }
        Inst::Shfl {
            mode,
            dst,
            src,
            lane,
            members,
        } => {
            let (mode, clamp) = match mode {
                ShflMode::Bfly => ("bfly", 31),
                ShflMode::Down => ("down", 31),
                ShflMode::Up => ("up", 0),
                ShflMode::Idx => ("idx", 31),
            };
            let src_ty = if dst.class == RegClass::F32 {
                ScalarType::F32
            } else {
                ScalarType::B32
            };
            let (src, lane) = (operand(src, src_ty), operand(lane, ScalarType::U32));
            format!(
                "shfl.sync.{mode}.b32 {}, {src}, {lane}, {clamp}, {members:#x};",
                reg_name(*dst)
            )
        }
        Inst::Vote {
            mode,
            dst,
            pred,
            members,
        } => {
            let mode = match mode {
                VoteMode::All => "all.pred",
                VoteMode::Any => "any.pred",
                VoteMode::Ballot => "ballot.b32",
            };
            format!(
                "vote.sync.{mode} {}, {}, {members:#x};",
                reg_name(*dst),
                reg_name(*pred)
            )
        }
        Inst::Redux {
            op,
            ty,
            dst,
            src,
            members,
        } => {
            // The others do not build (`Inst::impossible`).
            let (op, ty_name) = match op {
                BinOp::Min => ("min", ty.ptx()),
                BinOp::Max => ("max", ty.ptx()),
                BinOp::And => ("and", "b32"),
                BinOp::Or => ("or", "b32"),
                BinOp::Xor => ("xor", "b32"),
                _ => ("add", ty.ptx()),
            };
            format!(
                "redux.sync.{op}.{ty_name} {}, {}, {members:#x};",
                reg_name(*dst),
                operand(src, *ty)
            )
        }
        Inst::BarSync { id, threads } => match threads {
            Some(threads) => format!("bar.sync {}, {threads};", operand(id, ScalarType::U32)),
            None => format!("bar.sync {};", operand(id, ScalarType::U32)),
        },
        Inst::BarArrive { id, threads } => format!("bar.arrive {}, {threads};", operand(id, ScalarType::U32)),
        Inst::BarWarp { members } => format!("bar.warp.sync {members:#x};"),
        Inst::Fence { scope } => match scope {
            Scope::Block => "fence.acq_rel.cta;".to_string(),
            Scope::Cluster => "fence.acq_rel.cluster;".to_string(),
            Scope::Device => "fence.acq_rel.gpu;".to_string(),
        },
        Inst::FenceProxyAsync => "fence.proxy.async.shared::cta;".to_string(),
        Inst::FenceMbarrierInit => "fence.mbarrier_init.release.cluster;".to_string(),
        Inst::Elect { dst } => format!("elect.sync _|{}, 0xffffffff;", reg_name(*dst)),
        Inst::TrapIf { pred } => format!("@{} trap;", reg_name(*pred)),
        Inst::SetMaxRegs { regs, raise } => {
            format!(
                "setmaxnreg.{}.sync.aligned.u32 {regs};",
                if *raise { "inc" } else { "dec" }
            )
        }
        Inst::DependencyWait => "griddepcontrol.wait;".to_string(),
        Inst::DependencyTrigger => "griddepcontrol.launch_dependents;".to_string(),
        Inst::Mbar(inst) => mbar(inst),
        Inst::Bulk(inst) => bulk(inst),
        Inst::Wgmma(inst) => wgmma(inst),
        Inst::Cluster(inst) => cluster(inst),
        Inst::Atom {
            op,
            ty,
            space,
            dst,
            addr,
            value,
        } => {
            let (op, ty_name) = match op {
                AtomOp::Add => ("add", ty.ptx()),
                AtomOp::Max => ("max", ty.ptx()),
                AtomOp::Min => ("min", ty.ptx()),
                // The only exchange there is, whatever the bits mean.
                AtomOp::Exch => ("exch", "b32"),
            };
            let (space, addr, value) = (space_name(*space), address(addr), operand(value, *ty));
            match dst {
                Some(dst) => format!("atom.{space}.{op}.{ty_name} {}, {addr}, {value};", reg_name(*dst)),
                None => format!("red.{space}.{op}.{ty_name} {addr}, {value};"),
            }
        }
        Inst::Trace { src, .. } => format!("// trace {}", reg_name(*src)),
    }
}

fn mov(dst: Reg, src: &Operand) -> String {
    let name = reg_name(dst);
    match (dst.class, src) {
        (RegClass::Pred, Operand::Reg(src)) => format!("mov.pred {name}, {};", reg_name(*src)),
        // PTX has no immediate predicates: compare instead.
        (RegClass::Pred, Operand::Imm(bit)) => format!("setp.ne.u32 {name}, {bit}, 0;"),
        (RegClass::F32, Operand::Imm(_)) => format!("mov.f32 {name}, {};", operand(src, ScalarType::F32)),
        (RegClass::B16, _) => format!("mov.b16 {name}, {};", operand(src, ScalarType::B16)),
        (RegClass::B64, _) => format!("mov.b64 {name}, {};", operand(src, ScalarType::B64)),
        (RegClass::F32, Operand::Reg(src)) if src.class == RegClass::F32 => {
            format!("mov.f32 {name}, {};", reg_name(*src))
        }
        (RegClass::B32 | RegClass::F32, _) => format!("mov.b32 {name}, {};", operand(src, ScalarType::B32)),
    }
}

fn binary(op: BinOp, ty: ScalarType) -> String {
    let float = matches!(ty, ScalarType::F32 | ScalarType::F16x2 | ScalarType::BF16x2);
    // Explicit rounding keeps ptxas from contracting a product and a sum into one FMA, so that the
    // simulator's answer is the hardware's.
    let rounding = if float { ".rn" } else { "" };
    let ptx = ty.ptx();
    match op {
        BinOp::Add => format!("add{rounding}.{ptx}"),
        BinOp::Sub => format!("sub{rounding}.{ptx}"),
        BinOp::Mul if float => format!("mul.rn.{ptx}"),
        BinOp::Mul => format!("mul.lo.{ptx}"),
        BinOp::MulHi => format!("mul.hi.{ptx}"),
        BinOp::MulWide => format!("mul.wide.{ptx}"),
        BinOp::Min => format!("min.{ptx}"),
        BinOp::Max => format!("max.{ptx}"),
        BinOp::Div => format!("div.{ptx}"),
        BinOp::Rem => format!("rem.{ptx}"),
        BinOp::And => format!("and.{}", untyped(ty)),
        BinOp::Or => format!("or.{}", untyped(ty)),
        BinOp::Xor => format!("xor.{}", untyped(ty)),
        BinOp::Shl => format!("shl.{}", untyped(ty)),
        BinOp::Shr => format!("shr.{ptx}"),
    }
}

fn unary(op: UnOp, ty: ScalarType) -> String {
    // Negating an unsigned integer is negating its bits as a signed one.
    let signed = match ty {
        ScalarType::U32 => "s32",
        ScalarType::U64 => "s64",
        _ => ty.ptx(),
    };
    match op {
        UnOp::Neg => format!("neg.{signed}"),
        UnOp::Abs => format!("abs.{signed}"),
        UnOp::Not => format!("not.{}", untyped(ty)),
        UnOp::Ex2 => "ex2.approx.ftz.f32".to_string(),
        UnOp::Lg2 => "lg2.approx.ftz.f32".to_string(),
        UnOp::Rcp => "rcp.approx.ftz.f32".to_string(),
        UnOp::Popc => "popc.b32".to_string(),
        UnOp::Clz => "clz.b32".to_string(),
    }
}

fn conversion(op: Cvt) -> (&'static str, ScalarType) {
    match op {
        Cvt::F32FromF16 => ("cvt.f32.f16", ScalarType::F16),
        Cvt::F16FromF32 => ("cvt.rn.f16.f32", ScalarType::F32),
        Cvt::BF16FromF32 => ("cvt.rn.bf16.f32", ScalarType::F32),
        Cvt::F32FromU32 => ("cvt.rn.f32.u32", ScalarType::U32),
        Cvt::F32FromS32 => ("cvt.rn.f32.s32", ScalarType::S32),
        Cvt::S32FromF32 => ("cvt.rzi.s32.f32", ScalarType::F32),
        Cvt::U32FromF32 => ("cvt.rzi.u32.f32", ScalarType::F32),
        Cvt::U64FromU32 => ("cvt.u64.u32", ScalarType::U32),
        Cvt::S64FromS32 => ("cvt.s64.s32", ScalarType::S32),
        Cvt::U32FromU64 => ("cvt.u32.u64", ScalarType::U64),
        Cvt::F16x2FromE4M3x2 => ("cvt.rn.f16x2.e4m3x2", ScalarType::B16),
    }
}

fn special(which: Special) -> String {
    let dim = |d: u8| ["x", "y", "z"][usize::from(d.min(2))];
    match which {
        Special::Tid(d) => format!("%tid.{}", dim(d)),
        Special::Ntid(d) => format!("%ntid.{}", dim(d)),
        Special::Ctaid(d) => format!("%ctaid.{}", dim(d)),
        Special::Nctaid(d) => format!("%nctaid.{}", dim(d)),
        Special::LaneId => "%laneid".to_string(),
        Special::MaxWarps => "%nwarpid".to_string(),
        Special::ClusterRank => "%cluster_ctarank".to_string(),
        Special::ClusterBlocks => "%cluster_nctarank".to_string(),
    }
}
