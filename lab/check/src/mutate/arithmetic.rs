//! The same for arithmetic of two operands and for comparisons: indices, remainders, swizzles, bounds, thresholds.

use flashcore_ir::inst::{BinOp, Cmp};
use flashcore_ir::{Inst, Operand, Reg, ScalarType};

use super::Operator;
use super::changes::{Changes, is_integer};

/// What a bound is off by, where it is off by a tile.
const TILE: u64 = 64;

/// Bytes of a chunk that swizzles permute.
const CHUNK: u64 = 16;

impl Changes<'_> {
    pub(super) fn binary(&mut self, op: BinOp, ty: ScalarType, dst: Reg, a: Operand, b: Operand) {
        let in_place = a == Operand::Reg(dst);
        let constant = match b {
            Operand::Imm(bits) => Some(bits),
            Operand::Reg(_) => None,
        };
        let mask = if ty.bytes() == 4 { 0xffff_ffff } else { u64::MAX };
        let with = |op, b: u64| Inst::Bin {
            op,
            ty,
            dst,
            a,
            b: Operand::Imm(b & mask),
        };
        match op {
            BinOp::Add | BinOp::Sub => {
                let (other, swapped) = match op {
                    BinOp::Add => (BinOp::Sub, None),
                    _ => (
                        BinOp::Add,
                        Some(Inst::Bin {
                            op,
                            ty,
                            dst,
                            a: b,
                            b: a,
                        }),
                    ),
                };
                self.put(
                    Operator::OtherSign,
                    Inst::Bin {
                        op: other,
                        ty,
                        dst,
                        a,
                        b,
                    },
                );
                if let Some(swapped) = swapped {
                    self.put(Operator::SwapOperands, swapped);
                }
                match constant {
                    Some(by) if is_integer(ty) => self.put(Operator::OffsetOne, with(op, by.wrapping_add(1))),
                    _ => {}
                }
                match in_place {
                    true if is_integer(ty) => self.drop(Operator::DropStep),
                    true => self.drop(Operator::DropAddend),
                    false => self.copy(Operator::DropAddend, dst, a),
                }
            }
            BinOp::Mul | BinOp::MulHi | BinOp::MulWide if is_integer(ty) => {
                self.strides(b, |inst, factor| {
                    if let Inst::Bin { b, .. } = inst {
                        *b = factor;
                    }
                });
            }
            BinOp::Mul if in_place => self.drop(Operator::DropRescale),
            BinOp::Mul | BinOp::MulHi | BinOp::MulWide => self.copy(Operator::DropFactor, dst, a),
            BinOp::Min | BinOp::Max => {
                self.copy(Operator::Unclamp, dst, a);
                self.copy(Operator::OnlyBound, dst, b);
            }
            BinOp::Div => {
                if let Some(by) = constant {
                    self.put(Operator::DivisorOne, with(op, by + 1));
                }
            }
            BinOp::Rem => {
                self.copy(Operator::DropRemainder, dst, Operand::Imm(0));
                if let Some(by) = constant {
                    self.put(Operator::StageMore, with(op, by + 1));
                    self.put(Operator::StageFewer, with(op, by.saturating_sub(1).max(1)));
                }
            }
            BinOp::And | BinOp::Or => {
                let Some(bits) = constant else {
                    self.copy(Operator::DropTerm, dst, a);
                    return;
                };
                if op == BinOp::And && (bits + 1).is_power_of_two() && ty.bytes() == 4 {
                    self.copy(Operator::DropRemainder, dst, Operand::Imm(0));
                    self.put(Operator::StageMore, with(op, 2 * bits + 1));
                    self.put(Operator::StageFewer, with(op, bits >> 1));
                } else if op == BinOp::And && bits > 0xffff {
                    self.put(Operator::HalfMask, with(op, bits & 0xffff));
                } else {
                    self.copy(Operator::DropTerm, dst, a);
                }
            }
            BinOp::Xor => {
                self.copy(Operator::DropSwizzle, dst, a);
                if ty != ScalarType::Pred {
                    let more = Inst::Bin {
                        op,
                        ty,
                        dst,
                        a: Operand::Reg(dst),
                        b: Operand::Imm(CHUNK),
                    };
                    self.found.push((Operator::SwizzleTerm, vec![self.inst.clone(), more]));
                }
            }
            BinOp::Shl | BinOp::Shr => match constant {
                Some(by) => self.put(Operator::ShiftOne, with(op, by + 1)),
                None => self.put(
                    Operator::SwapOperands,
                    Inst::Bin {
                        op,
                        ty,
                        dst,
                        a: b,
                        b: a,
                    },
                ),
            },
        }
    }

    pub(super) fn comparison(&mut self, cmp: Cmp, ty: ScalarType, a: Operand, b: Operand) {
        let mut compare = |operator, other| {
            self.edit(operator, |inst| {
                if let Inst::Setp { cmp, .. } = inst {
                    *cmp = other;
                }
            });
        };
        let (neighbour, contrary) = match cmp {
            Cmp::Lt => (Cmp::Le, Cmp::Ge),
            Cmp::Le => (Cmp::Lt, Cmp::Gt),
            Cmp::Ge => (Cmp::Gt, Cmp::Lt),
            Cmp::Gt => (Cmp::Ge, Cmp::Le),
            Cmp::Eq => (Cmp::Eq, Cmp::Ne),
            Cmp::Ne => (Cmp::Ne, Cmp::Eq),
        };
        compare(Operator::InvertCompare, contrary);
        let ordered = !matches!(cmp, Cmp::Eq | Cmp::Ne);
        if is_integer(ty) && ordered {
            compare(Operator::BoundOne, neighbour);
        }
        if is_integer(ty) && ordered && ty.bytes() == 4 {
            // Whichever side is at hand: the bound may be a constant, or the index.
            let (operand, bound) = match (a, b) {
                (_, Operand::Reg(_)) | (Operand::Imm(_), _) => (b, true),
                _ => (a, false),
            };
            let upwards = matches!(cmp, Cmp::Lt | Cmp::Le) == bound;
            let (wide, narrow) = if upwards {
                (TILE, TILE.wrapping_neg())
            } else {
                (TILE.wrapping_neg(), TILE)
            };
            for (operator, by) in [(Operator::WideBound, wide), (Operator::NarrowBound, narrow)] {
                self.with_operand(operator, operand, (BinOp::Add, by), |inst, value| {
                    if let Inst::Setp { a, b, .. } = inst {
                        *(if bound { b } else { a }) = value;
                    }
                });
            }
        }
        if let (ScalarType::F32, Operand::Imm(bits)) = (ty, b) {
            let threshold = f32::from_bits(bits as u32);
            let higher = (64.0 * threshold + 64.0).to_bits();
            self.edit(Operator::RaiseThreshold, |inst| {
                if let Inst::Setp { b, .. } = inst {
                    *b = Operand::Imm(u64::from(higher));
                }
            });
        }
    }
}
