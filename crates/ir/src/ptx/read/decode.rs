//! Instructions without memory: what the writer spells, and what compilers spell the same things as.

use crate::inst::{BinOp, Cmp, Cvt, Inst, MmaAcc, MmaInput, Object, Operand, Scope, ShflMode, Special, UnOp, VoteMode};
use crate::kernel::ParamKind;
use crate::types::{RegClass, ScalarType};

use super::PtxError;
use super::operands::{Reader, wrong};
use super::statement::{Written, WrittenInst};

/// The type of a suffix, where the language has it.
pub(super) fn scalar(name: &str) -> Option<ScalarType> {
    use ScalarType as T;
    const ALL: [ScalarType; 13] = [
        T::Pred,
        T::B16,
        T::B32,
        T::B64,
        T::U32,
        T::S32,
        T::U64,
        T::S64,
        T::F32,
        T::F16,
        T::BF16,
        T::F16x2,
        T::BF16x2,
    ];
    ALL.into_iter().find(|ty| ty.ptx() == name)
}

const NO_SUCH: &str = "the kernel language has no such instruction; known are those that `explain --ptx` prints";

impl Reader<'_> {
    /// Reads an instruction that is no jump into `out` and `after`.
    pub(super) fn decode(&mut self, inst: &WrittenInst) -> Result<(), PtxError> {
        let parts: Vec<&str> = inst.opcode.split('.').collect();
        let decoded = match parts.as_slice() {
            ["mov", ty] => return self.mov(inst, ty),
            ["ld", "param", _] => return self.param(inst),
            ["cvta", "to", "global", "u64"] => {
                let (dst, src) = (self.reg(inst, 0)?, self.reg(inst, 1)?);
                // A parameter so used is a pointer, even if nothing is accessed through it.
                if let Some(Object::Param(index)) = self.bases.get(&src)
                    && let Some(param) = self.params.get_mut(*index as usize)
                    && matches!(param.kind, ParamKind::Value(_))
                {
                    param.kind = ParamKind::Pointer {
                        element: ScalarType::B32,
                        writable: false,
                    };
                }
                if dst == src {
                    return Ok(());
                }
                let src = Operand::Reg(src);
                Inst::Mov { dst, src }
            }
            ["ld" | "st" | "atom" | "red" | "ldmatrix" | "stmatrix", ..] | ["cp", "async", ..] => {
                return self.memory(inst, &parts);
            }
            ["fma", "rn", ty] | ["mad", "lo", ty] => {
                let ty = self.ty(inst, ty)?;
                let is_float = ty == ScalarType::F32 || ty.is_half();
                if is_float != (parts[0] == "fma") {
                    return Err(wrong(inst, NO_SUCH));
                }
                Inst::Fma {
                    ty,
                    dst: self.reg(inst, 0)?,
                    a: self.value(inst, 1, ty)?,
                    b: self.value(inst, 2, ty)?,
                    c: self.value(inst, 3, ty)?,
                }
            }
            ["mad", "wide", ty] => {
                let ty = self.ty(inst, ty)?;
                Inst::MadWide {
                    ty,
                    dst: self.reg(inst, 0)?,
                    a: self.value(inst, 1, ty)?,
                    b: self.value(inst, 2, ty)?,
                    c: self.value(inst, 3, ScalarType::U64)?,
                }
            }
            ["cvt", rest @ ..] => self.convert(inst, rest)?,
            ["lop3", "b32"] => Inst::Lop3 {
                dst: self.reg(inst, 0)?,
                a: self.value(inst, 1, ScalarType::B32)?,
                b: self.value(inst, 2, ScalarType::B32)?,
                c: self.value(inst, 3, ScalarType::B32)?,
                table: self.number(inst, 4)? as u8,
            },
            ["prmt", "b32"] => Inst::Prmt {
                dst: self.reg(inst, 0)?,
                a: self.value(inst, 1, ScalarType::B32)?,
                b: self.value(inst, 2, ScalarType::B32)?,
                selector: self.value(inst, 3, ScalarType::B32)?,
            },
            ["setp", cmp, ty] => self.compare(inst, cmp, ty)?,
            ["selp", ty] => {
                let ty = self.ty(inst, ty)?;
                Inst::Selp {
                    ty,
                    dst: self.reg(inst, 0)?,
                    cond: self.reg(inst, 3)?,
                    a: self.value(inst, 1, ty)?,
                    b: self.value(inst, 2, ty)?,
                }
            }
            [
                "mma",
                "sync",
                "aligned",
                "m16n8k16",
                "row",
                "col",
                acc,
                input,
                same,
                out,
            ] if input == same && acc == out => {
                let input = match *input {
                    "f16" => MmaInput::F16,
                    "bf16" => MmaInput::BF16,
                    _ => return Err(wrong(inst, "products of f16 and bf16 are known")),
                };
                let acc = match *acc {
                    "f32" => MmaAcc::F32,
                    "f16" => MmaAcc::F16,
                    _ => return Err(wrong(inst, "products of f16 and bf16 are known")),
                };
                Inst::Mma {
                    input,
                    acc,
                    d: self.results(inst, 0)?.0,
                    a: self.sources(inst, 1)?.0,
                    b: self.sources(inst, 2)?.0,
                    c: self.sources(inst, 3)?.0,
                }
            }
            ["shfl", "sync", mode, "b32"] => self.shuffle(inst, mode)?,
            ["vote", "sync", mode, "pred" | "b32"] => Inst::Vote {
                mode: match *mode {
                    "all" => VoteMode::All,
                    "any" => VoteMode::Any,
                    "ballot" => VoteMode::Ballot,
                    _ => return Err(wrong(inst, NO_SUCH)),
                },
                dst: self.reg(inst, 0)?,
                pred: self.reg(inst, 1)?,
                members: self.number(inst, 2)?,
            },
            ["redux", "sync", op, ty] => {
                let ty = self.ty(inst, ty)?;
                let op = binary(op)
                    .filter(|op| *op != BinOp::Sub)
                    .ok_or_else(|| wrong(inst, NO_SUCH))?;
                Inst::Redux {
                    op,
                    ty,
                    dst: self.reg(inst, 0)?,
                    src: self.value(inst, 1, ty)?,
                    members: self.number(inst, 2)?,
                }
            }
            ["bar" | "barrier", "sync"] | ["bar", "cta", "sync"] => Inst::BarSync {
                id: self.value(inst, 0, ScalarType::U32)?,
                threads: match inst.operands.len() {
                    1 => None,
                    _ => Some(self.number(inst, 1)?),
                },
            },
            ["bar", "arrive"] => Inst::BarArrive {
                id: self.value(inst, 0, ScalarType::U32)?,
                threads: self.number(inst, 1)?,
            },
            ["bar", "warp", "sync"] => Inst::BarWarp {
                members: self.number(inst, 0)?,
            },
            ["fence", "acq_rel", scope] | ["membar", scope] => Inst::Fence {
                scope: match *scope {
                    "cta" => Scope::Block,
                    "cluster" => Scope::Cluster,
                    "gpu" | "gl" => Scope::Device,
                    _ => return Err(wrong(inst, NO_SUCH)),
                },
            },
            ["elect", "sync"] => match inst.operands.first() {
                Some(Written::Pair(_, pred)) => Inst::Elect {
                    dst: self.reg_of(inst, pred)?,
                },
                _ => return Err(wrong(inst, NO_SUCH)),
            },
            ["griddepcontrol", "wait"] => Inst::DependencyWait,
            ["griddepcontrol", "launch_dependents"] => Inst::DependencyTrigger,
            _ => self.arithmetic(inst, &parts)?,
        };
        self.out.push(decoded);
        Ok(())
    }

    pub(super) fn ty(&self, inst: &WrittenInst, name: &str) -> Result<ScalarType, PtxError> {
        scalar(name).ok_or_else(|| wrong(inst, &format!("values of type {name} are not in the kernel language")))
    }

    fn mov(&mut self, inst: &WrittenInst, ty: &str) -> Result<(), PtxError> {
        let operands = (inst.operands.first(), inst.operands.get(1));
        if let (Some(Written::List(halves)), Some(_)) = operands {
            let [lo, hi] = halves.as_slice() else {
                return Err(wrong(inst, "registers are split in two"));
            };
            let (lo, hi) = (self.reg_of(inst, lo)?, self.reg_of(inst, hi)?);
            let whole = if lo.class == RegClass::B16 {
                ScalarType::B32
            } else {
                ScalarType::B64
            };
            let src = self.value(inst, 1, whole)?;
            self.out.push(Inst::Unpack { lo, hi, src });
            return Ok(());
        }
        let dst = self.reg(inst, 0)?;
        if let (_, Some(Written::List(halves))) = operands {
            let [lo, hi] = halves.as_slice() else {
                return Err(wrong(inst, "registers are joined from two"));
            };
            let half = if dst.class == RegClass::B64 {
                ScalarType::B32
            } else {
                ScalarType::B16
            };
            let one = |written: &Written| {
                let only = WrittenInst {
                    operands: vec![written.clone()],
                    ..inst.clone()
                };
                self.value(&only, 0, half)
            };
            let (lo, hi) = (one(lo)?, one(hi)?);
            self.out.push(Inst::Pack { dst, lo, hi });
            return Ok(());
        }
        let (name, offset) = match operands.1 {
            Some(Written::Name(name)) => (Some(name.as_str()), 0),
            Some(Written::Address(base, offset)) => match &**base {
                Written::Name(name) => (Some(name.as_str()), *offset),
                _ => (None, 0),
            },
            _ => (None, 0),
        };
        if let Some(which) = name.and_then(special) {
            self.out.push(Inst::Special { dst, which });
            return Ok(());
        }
        if let Some((object, start)) = name.and_then(|name| self.symbol(name)) {
            if dst.class != RegClass::B32 {
                return Err(wrong(inst, "shared symbols are known as 32-bit addresses (mov.u32)"));
            }
            self.out.push(Inst::SharedBase { dst });
            self.bases.insert(dst, object);
            let start = i64::from(start) + offset;
            if start != 0 {
                self.out.push(Inst::Bin {
                    op: BinOp::Add,
                    ty: ScalarType::U32,
                    dst,
                    a: Operand::Reg(dst),
                    b: Operand::Imm(start as u32 as u64),
                });
            }
            return Ok(());
        }
        let ty = self.ty(inst, ty)?;
        let src = self.value(inst, 1, ty)?;
        self.out.push(Inst::Mov { dst, src });
        Ok(())
    }

    fn param(&mut self, inst: &WrittenInst) -> Result<(), PtxError> {
        let dst = self.reg(inst, 0)?;
        let name = match inst.operands.get(1) {
            Some(Written::Address(base, 0)) => match &**base {
                Written::Name(name) => name,
                _ => return Err(wrong(inst, "parameters are read by their name")),
            },
            _ => return Err(wrong(inst, "parameters are read whole, by their name")),
        };
        let index = self.param_names.iter().position(|known| known == name);
        let index = index.ok_or_else(|| wrong(inst, &format!("there is no parameter `{name}`")))? as u32;
        if dst.class == RegClass::B64 {
            self.bases.insert(dst, Object::Param(index));
        }
        self.out.push(Inst::Param { dst, index });
        Ok(())
    }

    fn compare(&mut self, inst: &WrittenInst, cmp: &str, ty: &str) -> Result<Inst, PtxError> {
        let ty = self.ty(inst, ty)?;
        let cmp = match (cmp, ty) {
            ("neu", ScalarType::F32) => Cmp::Ne,
            ("ne", ScalarType::F32) => return Err(wrong(inst, "of floats, neu is known: it holds on NaN")),
            ("eq", _) => Cmp::Eq,
            ("ne", _) => Cmp::Ne,
            ("lt", _) => Cmp::Lt,
            ("le", _) => Cmp::Le,
            ("gt", _) => Cmp::Gt,
            ("ge", _) => Cmp::Ge,
            _ => return Err(wrong(inst, NO_SUCH)),
        };
        Ok(Inst::Setp {
            cmp,
            ty,
            dst: self.reg(inst, 0)?,
            a: self.value(inst, 1, ty)?,
            b: self.value(inst, 2, ty)?,
        })
    }

    fn shuffle(&mut self, inst: &WrittenInst, mode: &str) -> Result<Inst, PtxError> {
        let (mode, clamp) = match mode {
            "bfly" => (ShflMode::Bfly, 31),
            "down" => (ShflMode::Down, 31),
            "up" => (ShflMode::Up, 0),
            "idx" => (ShflMode::Idx, 31),
            _ => return Err(wrong(inst, NO_SUCH)),
        };
        if self.number(inst, 3)? != clamp {
            return Err(wrong(inst, "shuffles among all 32 lanes are known"));
        }
        let dst = match inst.operands.first() {
            Some(Written::Pair(dst, pred)) if matches!(mode, ShflMode::Bfly | ShflMode::Idx) => {
                // Among all lanes such a source is always in range.
                let pred = self.reg_of(inst, pred)?;
                self.after.push(Inst::Mov {
                    dst: pred,
                    src: Operand::Imm(1),
                });
                self.reg_of(inst, dst)?
            }
            _ => self.reg(inst, 0)?,
        };
        let ty = if dst.class == RegClass::F32 {
            ScalarType::F32
        } else {
            ScalarType::B32
        };
        Ok(Inst::Shfl {
            mode,
            dst,
            src: self.value(inst, 1, ty)?,
            lane: self.value(inst, 2, ScalarType::U32)?,
            members: self.number(inst, 4)?,
        })
    }

    fn convert(&mut self, inst: &WrittenInst, rest: &[&str]) -> Result<Inst, PtxError> {
        let dst = self.reg(inst, 0)?;
        let packed = match rest {
            ["rn", "f16x2", "f32"] => Some(ScalarType::F16x2),
            ["rn", "bf16x2", "f32"] => Some(ScalarType::BF16x2),
            ["rn", "satfinite", "e4m3x2", "f32"] => Some(ScalarType::E4M3x2),
            _ => None,
        };
        if let Some(ty) = packed {
            return Ok(Inst::CvtPack {
                ty,
                dst,
                hi: self.value(inst, 1, ScalarType::F32)?,
                lo: self.value(inst, 2, ScalarType::F32)?,
            });
        }
        let (op, from) = match rest {
            ["f32", "f16"] => (Cvt::F32FromF16, ScalarType::F16),
            ["rn", "f16", "f32"] => (Cvt::F16FromF32, ScalarType::F32),
            ["rn", "bf16", "f32"] => (Cvt::BF16FromF32, ScalarType::F32),
            ["rn", "f32", "u32"] => (Cvt::F32FromU32, ScalarType::U32),
            ["rn", "f32", "s32"] => (Cvt::F32FromS32, ScalarType::S32),
            ["rzi", "s32", "f32"] => (Cvt::S32FromF32, ScalarType::F32),
            ["rzi", "u32", "f32"] => (Cvt::U32FromF32, ScalarType::F32),
            ["u64", "u32"] => (Cvt::U64FromU32, ScalarType::U32),
            ["s64", "s32"] => (Cvt::S64FromS32, ScalarType::S32),
            ["u32", "u64"] => (Cvt::U32FromU64, ScalarType::U64),
            ["rn", "f16x2", "e4m3x2"] => (Cvt::F16x2FromE4M3x2, ScalarType::B16),
            _ => return Err(wrong(inst, NO_SUCH)),
        };
        let src = self.value(inst, 1, from)?;
        Ok(Inst::Cvt { op, dst, src })
    }

    fn arithmetic(&mut self, inst: &WrittenInst, parts: &[&str]) -> Result<Inst, PtxError> {
        let unary = match parts {
            ["neg", _] => Some(UnOp::Neg),
            ["abs", _] => Some(UnOp::Abs),
            ["not", _] => Some(UnOp::Not),
            ["ex2", "approx", "ftz", "f32"] => Some(UnOp::Ex2),
            ["lg2", "approx", "ftz", "f32"] => Some(UnOp::Lg2),
            ["rcp", "approx", "ftz", "f32"] => Some(UnOp::Rcp),
            ["popc", "b32"] => Some(UnOp::Popc),
            ["clz", "b32"] => Some(UnOp::Clz),
            _ => None,
        };
        let last = parts.last().copied().unwrap_or_default();
        if let Some(op) = unary {
            let ty = self.ty(inst, last)?;
            return Ok(Inst::Un {
                op,
                ty,
                dst: self.reg(inst, 0)?,
                a: self.value(inst, 1, ty)?,
            });
        }
        let ty = self.ty(inst, last)?;
        let is_float = ty == ScalarType::F32 || ty.is_half();
        let op = match parts {
            ["mul", "lo", _] if !is_float => Some(BinOp::Mul),
            ["mul", "hi", _] if !is_float => Some(BinOp::MulHi),
            ["mul", "wide", _] if !is_float => Some(BinOp::MulWide),
            // Without `.rn` compilers may contract; the rounding is the same.
            ["mul", _] | ["mul", "rn", _] if is_float => Some(BinOp::Mul),
            ["add" | "sub", "rn", _] if is_float => binary(parts[0]),
            [op, _] if *op != "mul" && !(is_float && matches!(*op, "div" | "rem")) => binary(op),
            _ => None,
        };
        let op = op.ok_or_else(|| wrong(inst, NO_SUCH))?;
        let b_ty = if matches!(op, BinOp::Shl | BinOp::Shr) {
            ScalarType::U32
        } else {
            ty
        };
        Ok(Inst::Bin {
            op,
            ty,
            dst: self.reg(inst, 0)?,
            a: self.value(inst, 1, ty)?,
            b: self.value(inst, 2, b_ty)?,
        })
    }
}

fn binary(name: &str) -> Option<BinOp> {
    Some(match name {
        "add" => BinOp::Add,
        "sub" => BinOp::Sub,
        "min" => BinOp::Min,
        "max" => BinOp::Max,
        "div" => BinOp::Div,
        "rem" => BinOp::Rem,
        "and" => BinOp::And,
        "or" => BinOp::Or,
        "xor" => BinOp::Xor,
        "shl" => BinOp::Shl,
        "shr" => BinOp::Shr,
        _ => return None,
    })
}

fn special(name: &str) -> Option<Special> {
    let (register, dim) = name.split_once('.').unwrap_or((name, ""));
    let dim = match dim {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    Some(match (register, dim) {
        ("%tid", Some(dim)) => Special::Tid(dim),
        ("%ntid", Some(dim)) => Special::Ntid(dim),
        ("%ctaid", Some(dim)) => Special::Ctaid(dim),
        ("%nctaid", Some(dim)) => Special::Nctaid(dim),
        ("%laneid", None) => Special::LaneId,
        ("%nwarpid", None) => Special::MaxWarps,
        ("%cluster_ctarank", None) => Special::ClusterRank,
        ("%cluster_nctarank", None) => Special::ClusterBlocks,
        _ => return None,
    })
}
