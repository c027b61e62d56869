//! Decodes arithmetic: maps each (operator, type) pair to an operation.

use flashcore_ir::inst::{BinOp, UnOp};
use flashcore_ir::{Operand, Reg, RegClass, ScalarType as T};

use crate::lower::Lowering;
use crate::program::{FloatOp, Half, Number, Op, PRED_FALSE, PRED_TRUE};
use crate::report::Class;

impl Lowering<'_> {
    pub(crate) fn mov(&mut self, dst: Reg, src: Operand) -> Op<'static> {
        let d = self.reg(dst);
        match dst.class {
            RegClass::Pred => Op::PredOr([d, self.pred(src), PRED_FALSE]),
            RegClass::B64 => Op::Mov64([d, self.bits64(src)]),
            RegClass::B16 | RegClass::B32 | RegClass::F32 => Op::Mov32([d, self.bits32(src)]),
        }
    }

    pub(crate) fn bin(&mut self, op: BinOp, ty: T, dst: Reg, a: Operand, b: Operand) -> Option<(Op<'static>, Class)> {
        let d = self.reg(dst);
        let signed = matches!(ty, T::S32 | T::S64);
        Some(match ty {
            T::Pred => {
                let rows = [d, self.pred(a), self.pred(b)];
                let op = match op {
                    BinOp::And => Op::PredAnd(rows),
                    BinOp::Or => Op::PredOr(rows),
                    BinOp::Xor => Op::PredXor(rows),
                    _ => return None,
                };
                (op, Class::Alu)
            }
            T::B16 if op == BinOp::MulWide => return None,
            T::B16 | T::B32 | T::U32 | T::S32 => {
                let rows = [d, self.bits32(a), self.bits32(b)];
                (Op::Int32(op, signed, rows), Class::Alu)
            }
            T::B64 | T::U64 | T::S64 => {
                let b = match op {
                    BinOp::MulWide => return None,
                    BinOp::Shl | BinOp::Shr => self.bits32(b),
                    _ => self.bits64(b),
                };
                (Op::Int64(op, signed, [d, self.bits64(a), b]), Class::Alu)
            }
            T::F32 => {
                let class = match op {
                    BinOp::Min | BinOp::Max => Class::Alu,
                    _ => Class::Fma,
                };
                (Op::F32(float(op)?, [d, self.bits32(a), self.bits32(b)]), class)
            }
            T::F16x2 | T::BF16x2 => {
                let rows = [d, self.bits32(a), self.bits32(b)];
                (Op::Halves(float(op)?, half(ty), rows), Class::Half)
            }
            T::F16 | T::BF16 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
        })
    }

    /// Signs of floats, complements and negations are operations with a constant.
    pub(crate) fn un(&mut self, op: UnOp, ty: T, dst: Reg, a: Operand) -> Option<(Op<'static>, Class)> {
        let d = self.reg(dst);
        let class = match (op, ty) {
            (UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp, _) => Class::Mufu,
            (_, T::F16x2 | T::BF16x2) => Class::Half,
            _ => Class::Alu,
        };
        if ty == T::Pred {
            let a = self.pred(a);
            return (op == UnOp::Not).then_some((Op::PredXor([d, a, PRED_TRUE]), class));
        }
        if ty.bytes() == 8 {
            let a = self.bits64(a);
            let op = match op {
                UnOp::Neg => Op::Int64(BinOp::Sub, false, [d, self.bits64(Operand::Imm(0)), a]),
                UnOp::Abs if ty == T::S64 => Op::AbsS64([d, a]),
                UnOp::Abs => Op::Mov64([d, a]),
                UnOp::Not => Op::Int64(BinOp::Xor, false, [d, a, self.bits64(Operand::Imm(u64::MAX))]),
                UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp | UnOp::Popc | UnOp::Clz => return None,
            };
            return Some((op, class));
        }
        let a = self.bits32(a);
        let signs = match ty {
            T::F32 => Some(0x8000_0000),
            T::F16x2 | T::BF16x2 => Some(0x8000_8000),
            _ => None,
        };
        let mut with = |op, bits: u32| Op::Int32(op, false, [d, a, self.bits32(Operand::Imm(u64::from(bits)))]);
        let op = match (op, signs) {
            (UnOp::Neg, Some(signs)) => with(BinOp::Xor, signs),
            (UnOp::Abs, Some(signs)) => with(BinOp::And, !signs),
            (UnOp::Not, _) => with(BinOp::Xor, u32::MAX),
            (UnOp::Abs, None) if ty != T::S32 => Op::Mov32([d, a]),
            (UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp, _) if ty != T::F32 => return None,
            _ => Op::Un32(op, [d, a]),
        };
        Some((op, class))
    }

    pub(crate) fn fma(&mut self, ty: T, dst: Reg, abc: [Operand; 3]) -> Option<(Op<'static>, Class)> {
        let d = self.reg(dst);
        if ty.bytes() == 8 {
            let [a, b, c] = abc.map(|x| self.bits64(x));
            return Some((Op::Mad64([d, a, b, c]), Class::Alu));
        }
        let [a, b, c] = abc.map(|x| self.bits32(x));
        let rows = [d, a, b, c];
        Some(match ty {
            T::F32 => (Op::FmaF32(rows), Class::Fma),
            T::F16x2 | T::BF16x2 => (Op::FmaHalves(half(ty), rows), Class::Half),
            T::U32 | T::S32 | T::B32 => (Op::Mad32(rows), Class::Alu),
            _ => return None,
        })
    }
}

fn half(ty: T) -> Half {
    if ty == T::BF16x2 { Half::BF16 } else { Half::F16 }
}

fn float(op: BinOp) -> Option<FloatOp> {
    Some(match op {
        BinOp::Add => FloatOp::Add,
        BinOp::Sub => FloatOp::Sub,
        BinOp::Mul => FloatOp::Mul,
        BinOp::Min => FloatOp::Min,
        BinOp::Max => FloatOp::Max,
        _ => return None,
    })
}

/// How a comparison interprets its operands.
pub(crate) fn number(ty: T) -> Option<Number> {
    Some(match ty {
        T::F32 => Number::Float,
        T::S32 | T::S64 => Number::Signed,
        T::U32 | T::U64 | T::B32 | T::B64 => Number::Unsigned,
        T::Pred | T::B16 | T::F16 | T::BF16 | T::F16x2 | T::BF16x2 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
    })
}
