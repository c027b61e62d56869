//! Decodes arithmetic: maps each (operator, type) pair to an operation.

use flashcore_ir::inst::{BinOp, Cvt, UnOp};
use flashcore_ir::{Operand, Reg, ScalarType};

use crate::lower::Lowering;
use crate::program::{Bin32, Bin64, Number, Op, PredOp, Tri32, Un32, Un64};
use crate::report::Class;
use crate::rows::{File, file_of};

impl Lowering<'_> {
    pub(crate) fn mov(&mut self, dst: Reg, src: Operand) -> Op {
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

    pub(crate) fn bin32(&mut self, f: Bin32, dst: Reg, a: Operand, b: Operand) -> Op {
        Op::Bin32 {
            f,
            d: self.reg(dst),
            a: self.bits32(a),
            b: self.bits32(b),
        }
    }

    pub(crate) fn tri32(&mut self, f: Tri32, dst: Reg, a: Operand, b: Operand, c: Operand) -> Op {
        Op::Tri32 {
            f,
            d: self.reg(dst),
            a: self.bits32(a),
            b: self.bits32(b),
            c: self.bits32(c),
        }
    }

    pub(crate) fn bin(&mut self, op: BinOp, ty: ScalarType, dst: Reg, a: Operand, b: Operand) -> Option<(Op, Class)> {
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
            T::F16 | T::BF16 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
        };
        Some((op, class))
    }

    pub(crate) fn un(&mut self, op: UnOp, ty: ScalarType, dst: Reg, a: Operand) -> Option<(Op, Class)> {
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

    pub(crate) fn fma(&mut self, ty: ScalarType, dst: Reg, a: Operand, b: Operand, c: Operand) -> Option<(Op, Class)> {
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
            T::Pred | T::B16 | T::F16 | T::BF16 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
        })
    }

    pub(crate) fn cvt(&mut self, op: Cvt, dst: Reg, src: Operand) -> Op {
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
            Cvt::F16x2FromE4M3x2 => Un32::F16x2FromE4M3x2,
            Cvt::F32FromU32 => Un32::F32FromU32,
            Cvt::F32FromS32 => Un32::F32FromS32,
            Cvt::S32FromF32 => Un32::S32FromF32,
            Cvt::U32FromF32 => Un32::U32FromF32,
        };
        let a = self.bits32(src);
        Op::Un32 { f, d, a }
    }
}

/// Selects from `[add, sub, mul, min, max]` of a float type.
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

pub(crate) fn int32(op: BinOp, signed: bool) -> Option<Bin32> {
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

/// How a comparison interprets its operands.
pub(crate) fn number(ty: ScalarType) -> Option<Number> {
    use ScalarType as T;
    Some(match ty {
        T::F32 => Number::Float,
        T::S32 | T::S64 => Number::Signed,
        T::U32 | T::U64 | T::B32 | T::B64 => Number::Unsigned,
        T::Pred | T::B16 | T::F16 | T::BF16 | T::F16x2 | T::BF16x2 => return None,
        T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
    })
}
