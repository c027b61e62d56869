//! Changes of arithmetic and comparisons: indices, remainders, swizzles, bounds, thresholds.

use flashcore_ir::inst::{BinOp, Cmp, FlagInst, Space, StoreSource};
use flashcore_ir::{Cache, Inst, Operand, Reg, ScalarType};

use super::Operator as O;
use super::changes::{Changes, edit};

/// What a bound is off by if it is off by a tile.
const TILE: u64 = 64;

pub(super) fn is_integer(ty: ScalarType) -> bool {
    use ScalarType::{B32, B64, S32, S64, U32, U64};
    matches!(ty, B32 | B64 | S32 | S64 | U32 | U64)
}

impl Changes<'_> {
    /// The flags that order what blocks do, without the order.
    pub(super) fn flag(&mut self, flag: &FlagInst) {
        let relaxed = match *flag {
            FlagInst::LoadAcquire { dst, addr } => Inst::Ld {
                space: Space::Global,
                dst,
                count: 1,
                addr,
                cache: Cache::Default,
            },
            FlagInst::StoreRelease { ty, addr, value } => Inst::St {
                space: Space::Global,
                src: match value {
                    Operand::Reg(reg) => StoreSource::Regs(reg),
                    Operand::Imm(bits) => StoreSource::Imm(ty, bits),
                },
                count: 1,
                addr,
                cache: Cache::Default,
            },
            FlagInst::Add { .. } => {
                return edit!(self, O::RelaxFlag, Inst::Flag(FlagInst::Add { release, .. }) => *release = false);
            }
        };
        self.put(O::RelaxFlag, relaxed);
    }

    pub(super) fn binary(&mut self, op: BinOp, ty: ScalarType, dst: Reg, a: Operand, b: Operand) {
        let in_place = a == Operand::Reg(dst);
        let constant = match b {
            Operand::Imm(bits) => Some(bits),
            Operand::Reg(_) => None,
        };
        let mask = if ty.bytes() == 4 { 0xffff_ffff } else { u64::MAX };
        match op {
            BinOp::Add | BinOp::Sub => {
                let other = if op == BinOp::Add { BinOp::Sub } else { BinOp::Add };
                edit!(self, O::OtherSign, Inst::Bin { op, .. } => *op = other);
                if op == BinOp::Sub {
                    self.swap(O::SwapOperands, 0);
                }
                if let Some(by) = constant.filter(|_| is_integer(ty)) {
                    self.set(O::OffsetOne, 1, by.wrapping_add(1) & mask);
                }
                if !in_place {
                    self.copy(O::DropAddend, dst, a);
                } else if is_integer(ty) {
                    self.drop(O::DropStep);
                } else {
                    self.drop(O::DropAddend);
                }
            }
            BinOp::Mul | BinOp::MulHi | BinOp::MulWide if is_integer(ty) => self.strides(b),
            BinOp::Mul if in_place => self.drop(O::DropRescale),
            BinOp::Mul | BinOp::MulHi | BinOp::MulWide => self.copy(O::DropFactor, dst, a),
            BinOp::Min | BinOp::Max => {
                self.copy(O::Unclamp, dst, a);
                self.copy(O::OnlyBound, dst, b);
            }
            BinOp::Div => {
                if let Some(by) = constant {
                    self.set(O::DivisorOne, 1, (by + 1) & mask);
                }
            }
            BinOp::Rem => {
                self.copy(O::DropRemainder, dst, Operand::Imm(0));
                if let Some(by) = constant {
                    self.set(O::StageMore, 1, (by + 1) & mask);
                    self.set(O::StageFewer, 1, by.saturating_sub(1).max(1) & mask);
                }
            }
            BinOp::And | BinOp::Or => match constant {
                Some(bits) if op == BinOp::And && (bits + 1).is_power_of_two() && ty.bytes() == 4 => {
                    self.copy(O::DropRemainder, dst, Operand::Imm(0));
                    self.set(O::StageMore, 1, (2 * bits + 1) & mask);
                    self.set(O::StageFewer, 1, (bits >> 1) & mask);
                }
                Some(bits) if op == BinOp::And && bits > 0xffff => self.set(O::HalfMask, 1, (bits & 0xffff) & mask),
                _ => self.copy(O::DropTerm, dst, a),
            },
            BinOp::Xor => {
                self.copy(O::DropSwizzle, dst, a);
                if ty != ScalarType::Pred {
                    // Swizzles permute chunks of 16 bytes.
                    let (a, b) = (Operand::Reg(dst), Operand::Imm(16));
                    let more = Inst::Bin { op, ty, dst, a, b };
                    self.found.push((O::SwizzleTerm, vec![self.inst.clone(), more]));
                }
            }
            BinOp::Shl | BinOp::Shr => match constant {
                Some(by) => self.set(O::ShiftOne, 1, (by + 1) & mask),
                None => self.swap(O::SwapOperands, 0),
            },
        }
    }

    pub(super) fn comparison(&mut self, cmp: Cmp, ty: ScalarType, a: Operand, b: Operand) {
        let (neighbour, contrary) = match cmp {
            Cmp::Lt => (Cmp::Le, Cmp::Ge),
            Cmp::Le => (Cmp::Lt, Cmp::Gt),
            Cmp::Ge => (Cmp::Gt, Cmp::Lt),
            Cmp::Gt => (Cmp::Ge, Cmp::Le),
            Cmp::Eq => (Cmp::Eq, Cmp::Ne),
            Cmp::Ne => (Cmp::Ne, Cmp::Eq),
        };
        edit!(self, O::InvertCompare, Inst::Setp { cmp, .. } => *cmp = contrary);
        if is_integer(ty) {
            edit!(self, O::BoundOne, Inst::Setp { cmp, .. } => *cmp = neighbour);
        }
        if is_integer(ty) && !matches!(cmp, Cmp::Eq | Cmp::Ne) && ty.bytes() == 4 {
            // Raises or lowers the bound, or the index if that is the constant or the only
            // register.
            let bound = matches!((a, b), (_, Operand::Reg(_)) | (Operand::Imm(_), _));
            let upwards = matches!(cmp, Cmp::Lt | Cmp::Le) == bound;
            let wide = if upwards { TILE } else { TILE.wrapping_neg() };
            for (operator, by) in [(O::WideBound, wide), (O::NarrowBound, wide.wrapping_neg())] {
                self.change(operator, usize::from(bound), (BinOp::Add, by));
            }
        }
        if let (ScalarType::F32, Operand::Imm(bits)) = (ty, b) {
            let higher = (64.0 * f32::from_bits(bits as u32) + 64.0).to_bits();
            self.set(O::RaiseThreshold, 1, u64::from(higher));
        }
    }
}
