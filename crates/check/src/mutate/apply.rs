//! What each operator makes of an instruction.

use flashcore_ir::inst::{Address, BinOp, BulkInst, ClusterInst, Cmp, MbarInst, StoreSource, VoteMode, WgmmaInst};
use flashcore_ir::{Inst, Kernel, Operand, RegClass, ScalarType};

use super::Operator;

impl Operator {
    /// What becomes of an instruction: `None` where the operator does not apply, `Some(None)` where it
    /// goes away.
    pub(super) fn apply(self, inst: &Inst, kernel: &Kernel) -> Option<Option<Inst>> {
        let mut changed = inst.clone();
        match (self, &mut changed) {
            (Operator::DropBarrier, Inst::BarSync { .. })
            | (Operator::DropWarpBarrier, Inst::BarWarp { .. })
            | (Operator::DropWait, Inst::CpAsyncWait { .. })
            | (Operator::DropCommit, Inst::CpAsyncCommit)
            | (Operator::DropStore, Inst::St { .. }) => return Some(None),
            (Operator::CountBarrier, Inst::BarSync { threads, .. }) => {
                let fewer = threads.unwrap_or(kernel.threads()).checked_sub(32).filter(|&n| n > 0)?;
                *threads = Some(fewer);
            }
            (Operator::WeakenWait, Inst::CpAsyncWait { pending }) => *pending += 1,
            (Operator::NextAccess, inst) => {
                let (addr, bytes) = access(inst)?;
                addr.offset += bytes as i32;
            }
            (Operator::OffAccess, inst) => {
                let (addr, bytes) = access(inst)?;
                if bytes <= 2 {
                    return None;
                }
                addr.offset += 2;
            }
            (
                Operator::StrideOne,
                Inst::Fma { ty, b, .. }
                | Inst::Bin {
                    op: BinOp::Mul, ty, b, ..
                },
            ) => {
                grow(*ty, b, 1)?;
            }
            (
                Operator::StrideSixteen,
                Inst::Fma { ty, b, .. }
                | Inst::Bin {
                    op: BinOp::Mul, ty, b, ..
                },
            ) => {
                grow(*ty, b, 16)?;
            }
            (Operator::BoundOne, Inst::Setp { cmp, ty, .. }) if *ty != ScalarType::F32 => {
                *cmp = match cmp {
                    Cmp::Lt => Cmp::Le,
                    Cmp::Le => Cmp::Lt,
                    Cmp::Ge => Cmp::Gt,
                    Cmp::Gt => Cmp::Ge,
                    Cmp::Eq | Cmp::Ne => return None,
                };
            }
            (Operator::Unmask, Inst::Selp { dst, a, .. }) => changed = Inst::Mov { dst: *dst, src: *a },
            (
                Operator::Unclamp,
                Inst::Bin {
                    op: BinOp::Min,
                    ty: ScalarType::U32 | ScalarType::S32,
                    dst,
                    a,
                    ..
                },
            ) => changed = Inst::Mov { dst: *dst, src: *a },
            (
                Operator::DropStep,
                Inst::Bin {
                    op: BinOp::Add,
                    ty: ScalarType::U32 | ScalarType::S32,
                    dst,
                    a: Operand::Reg(a),
                    ..
                },
            ) if dst == a => return Some(None),
            (Operator::HalfWarp, Inst::Shfl { members, .. }) => *members &= 0xffff,
            (
                Operator::DropSwizzle,
                Inst::Bin {
                    op: BinOp::Xor, dst, a, ..
                },
            ) => changed = Inst::Mov { dst: *dst, src: *a },
            (
                Operator::DropRemainder,
                Inst::Bin {
                    op: op @ (BinOp::And | BinOp::Rem),
                    ty,
                    dst,
                    b: Operand::Imm(bits),
                    ..
                },
            ) if ty.bytes() == 4 && (*op == BinOp::Rem || (*bits + 1).is_power_of_two()) => {
                changed = Inst::Mov {
                    dst: *dst,
                    src: Operand::Imm(0),
                };
            }
            (Operator::FlipTranspose, Inst::LdMatrix { transposed, .. }) => *transposed = !*transposed,
            (Operator::NextColumns, Inst::Mma { d, c, .. }) => {
                let registers = kernel.num_regs(d.class);
                for acc in [d, c] {
                    acc.index += MMA_REGISTERS;
                    if acc.index + MMA_REGISTERS > registers {
                        return None;
                    }
                }
            }
            (
                Operator::DropRescale,
                Inst::Bin {
                    op: BinOp::Mul,
                    ty: ScalarType::F32,
                    dst,
                    a: Operand::Reg(a),
                    ..
                },
            ) if dst == a => return Some(None),
            (
                Operator::RaiseThreshold,
                Inst::Setp {
                    ty: ScalarType::F32,
                    b: Operand::Imm(bits),
                    ..
                },
            ) => *bits = u64::from((f32::from_bits(*bits as u32) + 64.0).to_bits()),
            (
                Operator::HalfMask,
                Inst::Bin {
                    op: BinOp::And,
                    b: Operand::Imm(bits),
                    ..
                },
            ) if *bits > 0xffff => *bits &= 0xffff,
            (Operator::VoteAll, Inst::Vote { mode, .. }) if *mode == VoteMode::Any => *mode = VoteMode::All,
            (Operator::DropExchange, Inst::Shfl { dst, src, .. }) => changed = Inst::Mov { dst: *dst, src: *src },
            (_, changed) => return self.apply_async(changed).map(|kept| kept.then(|| changed.clone())),
        }
        Some(Some(changed))
    }

    /// The same of instructions that are asynchronous or between blocks: whether the instruction stays.
    fn apply_async(self, inst: &mut Inst) -> Option<bool> {
        match (self, inst) {
            (Operator::DropArrive, Inst::Mbar(MbarInst::Arrive { tx: None, .. }))
            | (Operator::DropFence, Inst::FenceProxyAsync | Inst::FenceMbarrierInit)
            | (Operator::DropFence, Inst::Wgmma(WgmmaInst::Fence))
            | (Operator::DropAsyncWait, Inst::Wgmma(WgmmaInst::Wait { .. }))
            | (Operator::DropAsyncWait, Inst::Bulk(BulkInst::Wait { .. }))
            | (Operator::DropCopy, Inst::Bulk(BulkInst::Load { .. } | BulkInst::Store { .. }))
            | (Operator::DropClusterWait, Inst::Cluster(ClusterInst::Wait { .. })) => return Some(false),
            (Operator::ExtraArrival, Inst::Mbar(MbarInst::Init { arrivals, .. })) => *arrivals += 1,
            (
                Operator::ExtraBytes,
                Inst::Mbar(MbarInst::Arrive {
                    tx: Some(Operand::Imm(bytes)),
                    ..
                }),
            ) => *bytes += 16,
            (
                Operator::HalfBytes,
                Inst::Mbar(MbarInst::Arrive {
                    tx: Some(Operand::Imm(bytes)),
                    ..
                }),
            ) => *bytes /= 2,
            (
                Operator::FixedParity,
                Inst::Mbar(MbarInst::Test {
                    parity: parity @ Operand::Reg(_),
                    ..
                }),
            ) => *parity = Operand::Imm(0),
            (Operator::DropPhaseWait, inst @ Inst::Mbar(MbarInst::Test { .. })) => {
                if let Inst::Mbar(MbarInst::Test { dst, .. }) = *inst {
                    *inst = Inst::Mov {
                        dst,
                        src: Operand::Imm(1),
                    };
                }
            }
            (Operator::WeakenAsyncWait, Inst::Wgmma(WgmmaInst::Wait { pending }))
            | (Operator::WeakenAsyncWait, Inst::Bulk(BulkInst::Wait { pending, .. })) => *pending += 1,
            // The upper word of a matrix descriptor, of which the lowest bits are this distance.
            (
                Operator::DescriptorStride,
                Inst::Pack {
                    dst,
                    hi: Operand::Imm(high),
                    ..
                },
            ) if dst.class == RegClass::B64 && *high >> 30 != 0 => *high += 1,
            _ => return None,
        }
        Some(true)
    }
}

/// Bytes of the row of a matrix that a lane addresses.
const LDMATRIX_BYTES: u32 = 16;

/// Registers of an accumulator of eight columns.
const MMA_REGISTERS: u32 = 4;

/// The address of an access to memory and the bytes a lane moves; of an asynchronous copy, where it goes to.
fn access(inst: &mut Inst) -> Option<(&mut Address, u32)> {
    match inst {
        Inst::Ld { addr, dst, count, .. } => Some((addr, dst.class.bytes() * *count)),
        Inst::St { addr, src, count, .. } => {
            let bytes = match src {
                StoreSource::Regs(reg) => reg.class.bytes(),
                StoreSource::Imm(ty, _) => ty.bytes(),
            };
            Some((addr, bytes * *count))
        }
        Inst::LdMatrix { addr, .. } => Some((addr, LDMATRIX_BYTES)),
        Inst::CpAsync { dst, bytes, .. } => Some((dst, *bytes)),
        _ => None,
    }
}

/// Makes the constant factor of an index larger.
fn grow(ty: ScalarType, factor: &mut Operand, by: u64) -> Option<()> {
    match (ty, factor) {
        (ScalarType::U32 | ScalarType::S32, Operand::Imm(factor)) => {
            *factor += by;
            Some(())
        }
        _ => None,
    }
}
