//! Decodes an instruction of the IR: which operation, which rows, which class it is counted in.

use flashcore_ir::inst::{BinOp, Cvt, Inst, MmaAcc, MmaInput, Space, StoreSource, UnOp};
use flashcore_ir::{Operand, Reg, RegClass, ScalarType};

use crate::lower::Lowering;
use crate::program::{At, Bin32, Bin64, Number, Op, PredOp, TraceFile, Tri32, Un32, Un64, Width};
use crate::report::Class;
use crate::rows::{File, file_of};

impl Lowering<'_> {
    /// The operation an instruction is; `None` if no machine has it.
    pub(crate) fn decode(&mut self, inst: &Inst) -> Option<(Op, Class)> {
        Some(match inst {
            Inst::Mov { dst, src } => (self.mov(*dst, *src), Class::Alu),
            Inst::Bin { op, ty, dst, a, b } => return self.bin(*op, *ty, *dst, *a, *b),
            Inst::Un { op, ty, dst, a } => return self.un(*op, *ty, *dst, *a),
            Inst::Fma { ty, dst, a, b, c } => return self.fma(*ty, *dst, *a, *b, *c),
            Inst::MadWide { ty, dst, a, b, c } => {
                let (d, signed) = (self.reg(*dst), *ty == ScalarType::S32);
                let (a, b, c) = (self.bits32(*a), self.bits32(*b), self.bits64(*c));
                (Op::MadWide { signed, d, a, b, c }, Class::Alu)
            }
            Inst::Cvt { op, dst, src } => (self.cvt(*op, *dst, *src), Class::Convert),
            Inst::CvtPack { ty, dst, lo, hi } => {
                let f = match ty {
                    ScalarType::F16x2 => Bin32::PackF16,
                    ScalarType::BF16x2 => Bin32::PackBF16,
                    _ => return None,
                };
                (self.bin32(f, *dst, *lo, *hi), Class::Convert)
            }
            Inst::Pack { dst, lo, hi } if dst.class == RegClass::B64 => {
                let (d, lo, hi) = (self.reg(*dst), self.bits32(*lo), self.bits32(*hi));
                (Op::Pack64 { d, lo, hi }, Class::Alu)
            }
            Inst::Pack { dst, lo, hi } => (self.bin32(Bin32::Pack16, *dst, *lo, *hi), Class::Alu),
            Inst::Unpack { lo, hi, src } if lo.class == RegClass::B16 => {
                let (lo, hi, a) = (self.reg(*lo), self.reg(*hi), self.bits32(*src));
                (Op::Unpack16 { lo, hi, a }, Class::Alu)
            }
            Inst::Unpack { lo, hi, src } => {
                let (lo, hi, a) = (self.reg(*lo), self.reg(*hi), self.bits64(*src));
                (Op::Unpack64 { lo, hi, a }, Class::Alu)
            }
            Inst::Lop3 { dst, a, b, c, table } => {
                let d = self.reg(*dst);
                let (a, b, c) = (self.bits32(*a), self.bits32(*b), self.bits32(*c));
                let table = *table;
                (Op::Lop3 { d, a, b, c, table }, Class::Alu)
            }
            Inst::Prmt { dst, a, b, selector } => (self.tri32(Tri32::Prmt, *dst, *a, *b, *selector), Class::Alu),
            Inst::Setp { cmp, ty, dst, a, b } => {
                let (cmp, number, d) = (*cmp, number(*ty)?, self.reg(*dst));
                let op = if ty.bytes() == 8 {
                    let (a, b) = (self.bits64(*a), self.bits64(*b));
                    Op::Setp64 { cmp, number, d, a, b }
                } else {
                    let (a, b) = (self.bits32(*a), self.bits32(*b));
                    Op::Setp32 { cmp, number, d, a, b }
                };
                (op, Class::Alu)
            }
            Inst::Selp { ty, dst, cond, a, b } => {
                let (d, cond) = (self.reg(*dst), self.reg(*cond));
                let op = if ty.bytes() == 8 {
                    let (a, b) = (self.bits64(*a), self.bits64(*b));
                    Op::Selp64 { d, cond, a, b }
                } else {
                    let (a, b) = (self.bits32(*a), self.bits32(*b));
                    Op::Selp32 { d, cond, a, b }
                };
                (op, Class::Alu)
            }
            Inst::Special { dst, which } => {
                let (d, which) = (self.reg(*dst), *which);
                (Op::Special { d, which }, Class::Alu)
            }
            Inst::Param { dst, index } => {
                let (d, index) = (self.reg(*dst), *index as u16);
                match file_of(dst.class) {
                    File::Bits64 => (Op::Param64 { d, index }, Class::Alu),
                    _ => (Op::Param32 { d, index }, Class::Alu),
                }
            }
            Inst::SharedBase { dst } => {
                let base = Operand::Imm(u64::from(self.shared_base));
                (self.mov(*dst, base), Class::Alu)
            }
            Inst::Ld { .. } | Inst::St { .. } | Inst::CpAsync { .. } | Inst::LdMatrix { .. } | Inst::Atom { .. } => {
                return self.memory(inst);
            }
            Inst::CpAsyncCommit => (Op::CpAsyncCommit, Class::Sync),
            Inst::CpAsyncWait { pending } => (Op::CpAsyncWait { pending: *pending }, Class::Sync),
            Inst::Mma { input, acc, d, a, b, c } => {
                let (ra, rb) = (self.regs(*a, 4), self.regs(*b, 2));
                let bf16 = *input == MmaInput::BF16;
                let op = match acc {
                    MmaAcc::F32 => Op::Mma {
                        bf16,
                        d: self.regs(*d, 4),
                        a: ra,
                        b: rb,
                        c: self.regs(*c, 4),
                    },
                    // bf16 products have no f16 accumulator.
                    MmaAcc::F16 if bf16 => return None,
                    MmaAcc::F16 => Op::MmaF16 {
                        d: self.regs(*d, 2),
                        a: ra,
                        b: rb,
                        c: self.regs(*c, 2),
                    },
                };
                (op, Class::Tensor)
            }
            Inst::Shfl {
                mode,
                dst,
                src,
                lane,
                members,
            } => {
                let (mode, members, d) = (*mode, *members, self.reg(*dst));
                let (src, lane) = (self.bits32(*src), self.bits32(*lane));
                let op = Op::Shfl {
                    mode,
                    d,
                    src,
                    lane,
                    members,
                };
                (op, Class::Exchange)
            }
            Inst::Vote {
                mode,
                dst,
                pred,
                members,
            } => {
                let (mode, members, d, pred) = (*mode, *members, self.reg(*dst), self.reg(*pred));
                let op = Op::Vote { mode, d, pred, members };
                (op, Class::Exchange)
            }
            Inst::Redux {
                op,
                ty,
                dst,
                src,
                members,
            } => {
                let f = int32(*op, *ty == ScalarType::S32)?;
                let (d, src, members) = (self.reg(*dst), self.bits32(*src), *members);
                (Op::Redux { f, d, src, members }, Class::Exchange)
            }
            Inst::BarSync { id, threads } => {
                let (id, threads) = (*id as u8, threads.unwrap_or(self.kernel.threads()));
                (Op::BarSync { id, threads }, Class::Sync)
            }
            Inst::BarArrive { id, threads } => {
                let (id, threads) = (*id as u8, *threads);
                (Op::BarArrive { id, threads }, Class::Sync)
            }
            Inst::BarWarp { members } => (Op::BarWarp { members: *members }, Class::Sync),
            Inst::Fence { .. } => (Op::Fence, Class::Sync),
            Inst::Trace { label, src } => {
                let file = match src.class {
                    RegClass::Pred => TraceFile::Pred,
                    RegClass::F32 => TraceFile::Float,
                    RegClass::B16 | RegClass::B32 => TraceFile::Bits32,
                    RegClass::B64 => TraceFile::Bits64,
                };
                let (label, src) = (*label, self.reg(*src));
                (Op::Trace { label, file, src }, Class::Structure)
            }
        })
    }

    fn memory(&mut self, inst: &Inst) -> Option<(Op, Class)> {
        Some(match inst {
            Inst::Ld {
                space,
                dst,
                count,
                addr,
                cache,
            } => {
                let (d, width) = (self.regs(*dst, *count), width(dst.class.bytes(), *count)?);
                let at = self.at(addr, *space);
                match space {
                    Space::Shared => (Op::LdShared { d, width, at }, Class::LoadShared),
                    Space::Global => {
                        let cache = *cache;
                        (Op::LdGlobal { d, width, at, cache }, Class::LoadGlobal)
                    }
                }
            }
            Inst::St {
                space,
                src,
                count,
                addr,
                ..
            } => {
                let width = width(src.bytes(), *count)?;
                let s = match src {
                    StoreSource::Regs(reg) => self.regs(*reg, *count),
                    StoreSource::Imm(ty, bits) if ty.bytes() == 8 => [self.bits64(Operand::Imm(*bits)); 4],
                    StoreSource::Imm(_, bits) => [self.bits32(Operand::Imm(*bits)); 4],
                };
                let at = self.at(addr, *space);
                match space {
                    Space::Shared => (Op::StShared { s, width, at }, Class::StoreShared),
                    Space::Global => (Op::StGlobal { s, width, at }, Class::StoreGlobal),
                }
            }
            Inst::CpAsync {
                dst,
                src,
                bytes,
                src_bytes,
                ..
            } => {
                let (dst, src) = (self.at(dst, Space::Shared), self.at(src, Space::Global));
                let src_bytes = src_bytes.map(|operand| self.bits32(operand));
                let op = Op::CpAsync {
                    dst,
                    src,
                    bytes: *bytes as u8,
                    src_bytes,
                };
                (op, Class::CopyAsync)
            }
            Inst::LdMatrix {
                dst,
                count,
                transposed,
                addr,
            } => {
                let op = Op::LdMatrix {
                    d: self.regs(*dst, *count),
                    count: *count as u8,
                    transposed: *transposed,
                    at: self.at(addr, Space::Shared),
                };
                (op, Class::LoadShared)
            }
            Inst::Atom {
                op,
                ty,
                space,
                dst,
                addr,
                value,
            } => {
                if ty.bytes() != 4 {
                    return None;
                }
                let (op, ty, d) = (*op, *ty, dst.map(|reg| self.reg(reg)));
                let (at, value) = (self.at(addr, *space), self.bits32(*value));
                let op = match space {
                    Space::Shared => Op::AtomShared { op, ty, d, at, value },
                    Space::Global => Op::AtomGlobal { op, ty, d, at, value },
                };
                (op, Class::Atomic)
            }
            _ => return None,
        })
    }

    fn at(&mut self, addr: &flashcore_ir::inst::Address, space: Space) -> At {
        At {
            base: match space {
                Space::Global => self.bits64(addr.base),
                Space::Shared => self.bits32(addr.base),
            },
            object: At::object_of(addr.object),
            offset: addr.offset,
        }
    }

    fn mov(&mut self, dst: Reg, src: Operand) -> Op {
        let d = self.reg(dst);
        match file_of(dst.class) {
            File::Pred => Op::PredMov { d, a: self.pred(src) },
            File::Bits64 => Op::Un64 {
                f: Un64::Mov,
                d,
                a: self.bits64(src),
            },
            File::Bits32 => Op::Un32 {
                f: Un32::Mov,
                d,
                a: self.bits32(src),
            },
        }
    }

    fn bin32(&mut self, f: Bin32, dst: Reg, a: Operand, b: Operand) -> Op {
        Op::Bin32 {
            f,
            d: self.reg(dst),
            a: self.bits32(a),
            b: self.bits32(b),
        }
    }

    fn tri32(&mut self, f: Tri32, dst: Reg, a: Operand, b: Operand, c: Operand) -> Op {
        Op::Tri32 {
            f,
            d: self.reg(dst),
            a: self.bits32(a),
            b: self.bits32(b),
            c: self.bits32(c),
        }
    }

    fn bin(&mut self, op: BinOp, ty: ScalarType, dst: Reg, a: Operand, b: Operand) -> Option<(Op, Class)> {
        use ScalarType as T;
        let class = match ty {
            T::F32 if !matches!(op, BinOp::Min | BinOp::Max) => Class::Fma,
            T::F16x2 | T::BF16x2 => Class::Half,
            _ => Class::Alu,
        };
        let signed = matches!(ty, T::S32 | T::S64);
        let op = match ty {
            T::Pred => {
                let f = match op {
                    BinOp::And => PredOp::And,
                    BinOp::Or => PredOp::Or,
                    BinOp::Xor => PredOp::Xor,
                    _ => return None,
                };
                Op::Pred {
                    f,
                    d: self.reg(dst),
                    a: self.pred(a),
                    b: self.pred(b),
                }
            }
            T::B32 | T::U32 | T::S32 if op == BinOp::MulWide => Op::MulWide {
                signed,
                d: self.reg(dst),
                a: self.bits32(a),
                b: self.bits32(b),
            },
            T::B16 | T::B32 | T::U32 | T::S32 => self.bin32(int32(op, signed)?, dst, a, b),
            T::F32 => self.bin32(
                float(op, [Bin32::AddF, Bin32::SubF, Bin32::MulF, Bin32::MinF, Bin32::MaxF])?,
                dst,
                a,
                b,
            ),
            T::F16x2 => {
                let table = [
                    Bin32::AddF16x2,
                    Bin32::SubF16x2,
                    Bin32::MulF16x2,
                    Bin32::MinF16x2,
                    Bin32::MaxF16x2,
                ];
                self.bin32(float(op, table)?, dst, a, b)
            }
            T::BF16x2 => {
                let table = [
                    Bin32::AddBF16x2,
                    Bin32::SubBF16x2,
                    Bin32::MulBF16x2,
                    Bin32::MinBF16x2,
                    Bin32::MaxBF16x2,
                ];
                self.bin32(float(op, table)?, dst, a, b)
            }
            T::B64 | T::U64 | T::S64 => {
                let d = self.reg(dst);
                let a = self.bits64(a);
                match op {
                    BinOp::Shl | BinOp::Shr => Op::Shift64 {
                        left: op == BinOp::Shl,
                        signed,
                        d,
                        a,
                        b: self.bits32(b),
                    },
                    _ => Op::Bin64 {
                        f: int64(op, signed)?,
                        d,
                        a,
                        b: self.bits64(b),
                    },
                }
            }
            T::F16 | T::BF16 => return None,
        };
        Some((op, class))
    }

    fn un(&mut self, op: UnOp, ty: ScalarType, dst: Reg, a: Operand) -> Option<(Op, Class)> {
        use ScalarType as T;
        let d = self.reg(dst);
        let class = match (op, ty) {
            (UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp, _) => Class::Mufu,
            (_, T::F16x2 | T::BF16x2) => Class::Half,
            _ => Class::Alu,
        };
        if ty == T::Pred {
            let a = self.pred(a);
            return (op == UnOp::Not).then_some((Op::PredNot { d, a }, class));
        }
        if ty.bytes() == 8 {
            let f = match op {
                UnOp::Neg => Un64::Neg,
                UnOp::Abs if ty == T::S64 => Un64::AbsS,
                UnOp::Abs => Un64::Mov,
                UnOp::Not => Un64::Not,
                _ => return None,
            };
            let a = self.bits64(a);
            return Some((Op::Un64 { f, d, a }, class));
        }
        let f = match (op, ty) {
            (UnOp::Neg, T::F32) => Un32::NegF,
            (UnOp::Neg, T::F16x2 | T::BF16x2) => Un32::NegHalves,
            (UnOp::Neg, _) => Un32::NegI,
            (UnOp::Abs, T::F32) => Un32::AbsF,
            (UnOp::Abs, T::F16x2 | T::BF16x2) => Un32::AbsHalves,
            (UnOp::Abs, T::S32) => Un32::AbsS,
            (UnOp::Abs, _) => Un32::Mov,
            (UnOp::Not, _) => Un32::Not,
            (UnOp::Ex2, T::F32) => Un32::Ex2,
            (UnOp::Lg2, T::F32) => Un32::Lg2,
            (UnOp::Rcp, T::F32) => Un32::Rcp,
            (UnOp::Popc, _) => Un32::Popc,
            (UnOp::Clz, _) => Un32::Clz,
            _ => return None,
        };
        let a = self.bits32(a);
        Some((Op::Un32 { f, d, a }, class))
    }

    fn fma(&mut self, ty: ScalarType, dst: Reg, a: Operand, b: Operand, c: Operand) -> Option<(Op, Class)> {
        use ScalarType as T;
        Some(match ty {
            T::F32 => (self.tri32(Tri32::FmaF, dst, a, b, c), Class::Fma),
            T::F16x2 => (self.tri32(Tri32::FmaF16x2, dst, a, b, c), Class::Half),
            T::BF16x2 => (self.tri32(Tri32::FmaBF16x2, dst, a, b, c), Class::Half),
            T::U32 | T::S32 | T::B32 => (self.tri32(Tri32::MadI, dst, a, b, c), Class::Alu),
            T::U64 | T::S64 | T::B64 => {
                let d = self.reg(dst);
                let (a, b, c) = (self.bits64(a), self.bits64(b), self.bits64(c));
                (Op::Mad64 { d, a, b, c }, Class::Alu)
            }
            T::Pred | T::B16 | T::F16 | T::BF16 => return None,
        })
    }

    fn cvt(&mut self, op: Cvt, dst: Reg, src: Operand) -> Op {
        let d = self.reg(dst);
        let f = match op {
            Cvt::U64FromU32 | Cvt::S64FromS32 => {
                let signed = op == Cvt::S64FromS32;
                let a = self.bits32(src);
                return Op::Widen { signed, d, a };
            }
            Cvt::U32FromU64 => {
                let a = self.bits64(src);
                return Op::Narrow { d, a };
            }
            Cvt::F32FromF16 => Un32::F32FromF16,
            Cvt::F16FromF32 => Un32::F16FromF32,
            Cvt::BF16FromF32 => Un32::BF16FromF32,
            Cvt::F32FromU32 => Un32::F32FromU32,
            Cvt::F32FromS32 => Un32::F32FromS32,
            Cvt::S32FromF32 => Un32::S32FromF32,
            Cvt::U32FromF32 => Un32::U32FromF32,
        };
        let a = self.bits32(src);
        Op::Un32 { f, d, a }
    }
}

/// `[add, sub, mul, min, max]` of a float type.
fn float(op: BinOp, table: [Bin32; 5]) -> Option<Bin32> {
    let at = match op {
        BinOp::Add => 0,
        BinOp::Sub => 1,
        BinOp::Mul => 2,
        BinOp::Min => 3,
        BinOp::Max => 4,
        _ => return None,
    };
    Some(table[at])
}

fn int32(op: BinOp, signed: bool) -> Option<Bin32> {
    Some(match (op, signed) {
        (BinOp::Add, _) => Bin32::AddI,
        (BinOp::Sub, _) => Bin32::SubI,
        (BinOp::Mul, _) => Bin32::MulI,
        (BinOp::MulHi, false) => Bin32::MulHiU,
        (BinOp::MulHi, true) => Bin32::MulHiS,
        (BinOp::MulWide, _) => return None,
        (BinOp::Min, false) => Bin32::MinU,
        (BinOp::Min, true) => Bin32::MinS,
        (BinOp::Max, false) => Bin32::MaxU,
        (BinOp::Max, true) => Bin32::MaxS,
        (BinOp::Div, false) => Bin32::DivU,
        (BinOp::Div, true) => Bin32::DivS,
        (BinOp::Rem, false) => Bin32::RemU,
        (BinOp::Rem, true) => Bin32::RemS,
        (BinOp::And, _) => Bin32::And,
        (BinOp::Or, _) => Bin32::Or,
        (BinOp::Xor, _) => Bin32::Xor,
        (BinOp::Shl, _) => Bin32::Shl,
        (BinOp::Shr, false) => Bin32::ShrU,
        (BinOp::Shr, true) => Bin32::ShrS,
    })
}

fn int64(op: BinOp, signed: bool) -> Option<Bin64> {
    Some(match (op, signed) {
        (BinOp::Add, _) => Bin64::Add,
        (BinOp::Sub, _) => Bin64::Sub,
        (BinOp::Mul, _) => Bin64::Mul,
        (BinOp::MulHi, false) => Bin64::MulHiU,
        (BinOp::MulHi, true) => Bin64::MulHiS,
        (BinOp::Min, false) => Bin64::MinU,
        (BinOp::Min, true) => Bin64::MinS,
        (BinOp::Max, false) => Bin64::MaxU,
        (BinOp::Max, true) => Bin64::MaxS,
        (BinOp::Div, false) => Bin64::DivU,
        (BinOp::Div, true) => Bin64::DivS,
        (BinOp::Rem, false) => Bin64::RemU,
        (BinOp::Rem, true) => Bin64::RemS,
        (BinOp::And, _) => Bin64::And,
        (BinOp::Or, _) => Bin64::Or,
        (BinOp::Xor, _) => Bin64::Xor,
        (BinOp::MulWide | BinOp::Shl | BinOp::Shr, _) => return None,
    })
}

fn number(ty: ScalarType) -> Option<Number> {
    use ScalarType as T;
    Some(match ty {
        T::F32 => Number::Float,
        T::S32 | T::S64 => Number::Signed,
        T::U32 | T::U64 | T::B32 | T::B64 => Number::Unsigned,
        T::Pred | T::B16 | T::F16 | T::BF16 | T::F16x2 | T::BF16x2 => return None,
    })
}

fn width(bytes: u32, count: u32) -> Option<Width> {
    // A memory access moves at most 16 bytes a lane.
    (matches!(bytes, 2 | 4 | 8) && matches!(count, 1 | 2 | 4) && bytes * count <= 16).then_some(Width {
        count: count as u8,
        log_bytes: bytes.trailing_zeros() as u8,
    })
}
