//! What each operator makes of an instruction.
//!
//! The match is exhaustive: a new instruction does not compile until it is said how it can be got wrong.

use flashcore_ir::inst::{Address, BinOp, BulkInst, MbarInst, Scope, ShflMode, Special, StoreSource, UnOp, VoteMode};
use flashcore_ir::{Inst, Kernel, Operand, Reg, RegClass, ScalarType};

use super::Operator;

/// The changes of one instruction: by operator, what stands in its place, if anything.
pub(super) struct Changes<'a> {
    pub(super) inst: &'a Inst,
    pub(super) kernel: &'a Kernel,
    pub(super) found: Vec<(Operator, Vec<Inst>)>,
}

/// Everything that can be made of an instruction, each operator at most once. What PTX has no instruction for is left
/// out: it would not build.
pub(super) fn changes(inst: &Inst, kernel: &Kernel) -> Vec<(Operator, Vec<Inst>)> {
    let mut changes = Changes {
        inst,
        kernel,
        found: Vec::new(),
    };
    changes.list();
    changes.accesses();
    let mut found = changes.found;
    found.retain(|(_, insts)| insts.iter().all(|inst| inst.impossible().is_none()));
    found
}

/// Registers of an accumulator of eight columns.
const MMA_REGISTERS: u32 = 4;

impl Changes<'_> {
    // ---- Ways of changing an instruction --------------------------------------------------------------

    /// Nothing stands in its place.
    pub(super) fn drop(&mut self, operator: Operator) {
        self.found.push((operator, Vec::new()));
    }

    /// Another instruction does.
    pub(super) fn put(&mut self, operator: Operator, inst: Inst) {
        self.found.push((operator, vec![inst]));
    }

    /// The same does, with something else in it.
    pub(super) fn edit(&mut self, operator: Operator, change: impl FnOnce(&mut Inst)) {
        let mut inst = self.inst.clone();
        change(&mut inst);
        if inst != *self.inst {
            self.put(operator, inst);
        }
    }

    /// The same does, while one of its 32-bit operands is another value: an immediate is changed, a register before it and
    /// back again after it. `op` undoes itself with the other value.
    pub(super) fn with_operand(
        &mut self,
        operator: Operator,
        operand: Operand,
        (op, by): (BinOp, u64),
        replace: impl FnOnce(&mut Inst, Operand),
    ) {
        let by = by & 0xffff_ffff;
        match operand {
            Operand::Imm(bits) => {
                let bits = bits as u32;
                let changed = match op {
                    BinOp::Xor => bits ^ by as u32,
                    _ => bits.wrapping_add(by as u32),
                };
                self.edit(operator, |inst| replace(inst, Operand::Imm(u64::from(changed))));
            }
            Operand::Reg(reg) => {
                let back = if op == BinOp::Xor {
                    by
                } else {
                    by.wrapping_neg() & 0xffff_ffff
                };
                let change = |by| Inst::Bin {
                    op,
                    ty: ScalarType::U32,
                    dst: reg,
                    a: operand,
                    b: Operand::Imm(by),
                };
                self.found
                    .push((operator, vec![change(by), self.inst.clone(), change(back)]));
            }
        }
    }

    /// One of its operands is what it gives.
    pub(super) fn copy(&mut self, operator: Operator, dst: Reg, src: Operand) {
        let fits = match src {
            Operand::Reg(reg) => reg.class == dst.class,
            Operand::Imm(_) => true,
        };
        if fits {
            self.put(operator, Inst::Mov { dst, src });
        }
    }

    /// A constant factor is larger.
    pub(super) fn strides(&mut self, factor: Operand, replace: impl Fn(&mut Inst, Operand)) {
        if let Operand::Imm(factor) = factor {
            for (operator, by) in [(Operator::StrideOne, 1), (Operator::StrideSixteen, 16)] {
                self.edit(operator, |inst| replace(inst, Operand::Imm(factor + by)));
            }
        }
    }

    // ---- The instructions -----------------------------------------------------------------------------

    fn list(&mut self) {
        match *self.inst {
            Inst::Mov {
                dst,
                src: Operand::Imm(bits),
            } => match dst.class {
                RegClass::B32 => self.copy(Operator::ConstantOne, dst, Operand::Imm((bits + 1) & 0xffff_ffff)),
                RegClass::F32 => {
                    let bits = (f32::from_bits(bits as u32) + 1.0).to_bits();
                    self.edit(Operator::ConstantOne, |inst| {
                        *inst = Inst::Mov {
                            dst,
                            src: Operand::Imm(u64::from(bits)),
                        };
                    });
                }
                _ => {}
            },
            // A copy of a register has nothing of its own to be wrong.
            Inst::Mov { .. } => {}
            Inst::Bin { op, ty, dst, a, b } => self.binary(op, ty, dst, a, b),
            Inst::Un { op, ty, dst, a } => match op {
                UnOp::Not if ty == ScalarType::Pred => self.copy(Operator::InvertCompare, dst, a),
                _ => self.copy(Operator::DropFunction, dst, a),
            },
            Inst::Fma { ty, dst, a, b, .. } => {
                if is_integer(ty) {
                    self.strides(b, |inst, factor| {
                        if let Inst::Fma { b, .. } = inst {
                            *b = factor;
                        }
                    });
                }
                let op = BinOp::Mul;
                self.put(Operator::DropAddend, Inst::Bin { op, ty, dst, a, b });
            }
            Inst::MadWide { ty, dst, a, b, .. } => {
                self.strides(b, |inst, factor| {
                    if let Inst::MadWide { b, .. } = inst {
                        *b = factor;
                    }
                });
                let op = BinOp::MulWide;
                self.put(Operator::DropAddend, Inst::Bin { op, ty, dst, a, b });
            }
            // One operand, and another type: nothing to mistake.
            Inst::Cvt { .. } => {}
            Inst::CvtPack { .. } | Inst::Unpack { .. } | Inst::Prmt { .. } => {
                self.edit(Operator::SwapOperands, |inst| match inst {
                    Inst::CvtPack { lo, hi, .. } => std::mem::swap(lo, hi),
                    Inst::Unpack { lo, hi, .. } => std::mem::swap(lo, hi),
                    Inst::Prmt { a, b, .. } => std::mem::swap(a, b),
                    _ => {}
                });
            }
            Inst::Pack { dst, lo, hi } => {
                self.put(Operator::SwapOperands, Inst::Pack { dst, lo: hi, hi: lo });
                self.descriptor(dst, lo, hi);
            }
            Inst::Lop3 { dst, a, b, c, table } => {
                let table = !table;
                self.put(Operator::InvertTable, Inst::Lop3 { dst, a, b, c, table });
            }
            Inst::Setp { cmp, ty, a, b, .. } => self.comparison(cmp, ty, a, b),
            Inst::Selp { dst, a, b, .. } => {
                self.copy(Operator::Unmask, dst, a);
                self.copy(Operator::MaskAll, dst, b);
            }
            Inst::Special { dst, which } => {
                let which = match which {
                    Special::Tid(dim) => Special::Tid((dim + 1) % 3),
                    Special::Ctaid(dim) => Special::Ctaid((dim + 1) % 3),
                    Special::Ntid(dim) => Special::Tid(dim),
                    Special::Nctaid(dim) => Special::Ctaid(dim),
                    Special::LaneId => Special::Ctaid(0),
                    Special::ClusterRank => Special::Ctaid(0),
                    Special::ClusterBlocks => Special::ClusterRank,
                    // Stands for any number that compilers do not know.
                    Special::MaxWarps => return,
                };
                self.put(Operator::WrongSpecial, Inst::Special { dst, which });
            }
            Inst::Param { dst, index } => {
                let params = self.kernel.params();
                let kind = params.get(index as usize).map(|param| param.kind);
                let others = (index as usize + 1..params.len()).chain(0..index as usize);
                if let Some(other) = others.into_iter().find(|&other| Some(params[other].kind) == kind) {
                    let index = other as u32;
                    self.put(Operator::WrongParam, Inst::Param { dst, index });
                }
            }
            // The one address that it can be.
            Inst::SharedBase { .. } => {}
            Inst::Ld { .. } => self.drop(Operator::DropLoad),
            Inst::St { .. } => self.drop(Operator::DropStore),
            Inst::LdMatrix { .. } => {
                self.drop(Operator::DropLoad);
                self.flip_transpose();
            }
            Inst::StMatrix { .. } => {
                self.drop(Operator::DropStore);
                self.flip_transpose();
            }
            Inst::CpAsync { bytes, src_bytes, .. } => {
                self.drop(Operator::DropCopy);
                self.edit(Operator::NextSource, |inst| {
                    if let Inst::CpAsync { src, .. } = inst {
                        src.offset += bytes as i32;
                    }
                });
                let mut read = |operator, count| {
                    self.edit(operator, |inst| {
                        if let Inst::CpAsync { src_bytes, .. } = inst {
                            *src_bytes = count;
                        }
                    });
                };
                if src_bytes.is_some() {
                    read(Operator::FullCopy, None);
                }
                read(Operator::HalfCopy, Some(Operand::Imm(u64::from(bytes / 2))));
            }
            Inst::CpAsyncCommit => self.drop(Operator::DropCommit),
            Inst::CpAsyncWait { pending } => {
                self.drop(Operator::DropWait);
                let pending = pending + 1;
                self.put(Operator::WeakenWait, Inst::CpAsyncWait { pending });
            }
            Inst::Mma { d, b, c, .. } => {
                self.drop(Operator::DropProduct);
                if self.exists(d, 2 * MMA_REGISTERS) && self.exists(c, 2 * MMA_REGISTERS) {
                    self.edit(Operator::NextColumns, |inst| {
                        if let Inst::Mma { d, c, .. } = inst {
                            d.index += MMA_REGISTERS;
                            c.index += MMA_REGISTERS;
                        }
                    });
                }
                if self.exists(b, 4) {
                    self.edit(Operator::NextFragment, |inst| {
                        if let Inst::Mma { b, .. } = inst {
                            b.index += 2;
                        }
                    });
                }
            }
            Inst::Shfl {
                mode, dst, src, lane, ..
            } => {
                self.half_warp();
                self.copy(Operator::DropExchange, dst, src);
                // Of exchanges within a group of lanes, distances double from one to the next.
                let by = match (mode, lane) {
                    (ShflMode::Bfly, Operand::Imm(distance)) => distance,
                    _ => 1,
                };
                self.with_operand(Operator::OtherLane, lane, (BinOp::Add, by), |inst, value| {
                    if let Inst::Shfl { lane, .. } = inst {
                        *lane = value;
                    }
                });
            }
            Inst::Vote { mode, dst, pred, .. } => {
                self.half_warp();
                let (operator, other) = match mode {
                    VoteMode::Any => (Operator::VoteAll, VoteMode::All),
                    VoteMode::All => (Operator::VoteAny, VoteMode::Any),
                    VoteMode::Ballot => return,
                };
                self.edit(operator, |inst| {
                    if let Inst::Vote { mode, .. } = inst {
                        *mode = other;
                    }
                });
                self.copy(Operator::DropExchange, dst, Operand::Reg(pred));
            }
            Inst::Redux { dst, src, .. } => {
                self.half_warp();
                self.copy(Operator::DropExchange, dst, src);
            }
            Inst::BarSync { id, threads } => {
                self.drop(Operator::DropBarrier);
                self.barrier(id, threads.unwrap_or(self.kernel.threads()));
            }
            Inst::BarArrive { id, threads } => {
                self.drop(Operator::DropArrive);
                self.barrier(id, threads);
            }
            Inst::BarWarp { .. } => {
                self.drop(Operator::DropWarpBarrier);
                self.half_warp();
            }
            Inst::Fence { scope } => {
                self.drop(Operator::DropFence);
                if scope != Scope::Block {
                    self.put(Operator::NarrowScope, Inst::Fence { scope: Scope::Block });
                }
            }
            Inst::FenceProxyAsync | Inst::FenceMbarrierInit => self.drop(Operator::DropFence),
            Inst::Atom { .. } => self.drop(Operator::DropAtomic),
            Inst::Elect { dst } => self.copy(Operator::EveryLane, dst, Operand::Imm(1)),
            Inst::SetMaxRegs { regs, raise } => {
                self.drop(Operator::DropRegisters);
                for (operator, regs) in [
                    (Operator::MoreRegisters, regs + 8),
                    (Operator::FewerRegisters, regs.saturating_sub(8)),
                ] {
                    self.put(operator, Inst::SetMaxRegs { regs, raise });
                }
            }
            Inst::DependencyWait => self.drop(Operator::DropWait),
            // A trap is for what never happens, a trigger for the launch after, a trace for the reader.
            Inst::TrapIf { .. } | Inst::DependencyTrigger | Inst::Trace { .. } => {}
            Inst::Mbar(ref inst) => self.mbarrier(inst),
            Inst::Bulk(ref inst) => self.bulk(inst),
            Inst::Wgmma(ref inst) => self.product(inst),
            Inst::Cluster(ref inst) => self.cluster(inst),
        }
    }

    fn barrier(&mut self, id: Operand, threads: u32) {
        for (operator, threads) in [
            (Operator::CountBarrier, threads.saturating_sub(32)),
            (Operator::CountMore, threads + 32),
        ] {
            if threads > 0 {
                self.edit(operator, |inst| match inst {
                    Inst::BarSync { threads: count, .. } => *count = Some(threads),
                    Inst::BarArrive { threads: count, .. } => *count = threads,
                    _ => {}
                });
            }
        }
        if !self.has_named_barriers() {
            return;
        }
        self.with_operand(Operator::WrongBarrier, id, (BinOp::Xor, 1), |inst, value| {
            if let Inst::BarSync { id, .. } | Inst::BarArrive { id, .. } = inst {
                *id = value;
            }
        });
    }

    /// Whether there is another barrier than the block's to be mistaken for.
    fn has_named_barriers(&self) -> bool {
        let mut named = false;
        self.kernel.for_each_inst(&mut |inst, _| {
            if let Inst::BarSync { id, .. } | Inst::BarArrive { id, .. } = inst {
                named |= *id != Operand::Imm(0);
            }
        });
        named
    }

    fn half_warp(&mut self) {
        self.edit(Operator::HalfWarp, |inst| {
            if let Inst::Shfl { members, .. }
            | Inst::Vote { members, .. }
            | Inst::Redux { members, .. }
            | Inst::BarWarp { members } = inst
            {
                *members &= 0xffff;
            }
        });
    }

    fn flip_transpose(&mut self) {
        self.edit(Operator::FlipTranspose, |inst| {
            if let Inst::LdMatrix { transposed, .. } | Inst::StMatrix { transposed, .. } = inst {
                *transposed = !*transposed;
            }
        });
    }

    /// Whether there are `count` registers from this one on.
    pub(super) fn exists(&self, first: Reg, count: u32) -> bool {
        first.index + count <= self.kernel.num_regs(first.class)
    }

    // ---- Where it goes in memory ----------------------------------------------------------------------

    /// The address that it accesses is off.
    fn accesses(&mut self) {
        let mut inst = self.inst.clone();
        let Some((_, bytes)) = access(&mut inst) else { return };
        let mut off = |operator, by: i32| {
            self.edit(operator, |inst| {
                if let Some((addr, _)) = access(inst) {
                    addr.offset += by;
                }
            });
        };
        off(Operator::NextAccess, bytes as i32);
        off(Operator::PreviousAccess, -(bytes as i32));
        if bytes > 2 {
            off(Operator::OffAccess, 2);
        }
    }
}

pub(super) fn is_integer(ty: ScalarType) -> bool {
    use ScalarType::{B32, B64, S32, S64, U32, U64};
    matches!(ty, B32 | B64 | S32 | S64 | U32 | U64)
}

/// Bytes of the row of a matrix that a lane addresses, and those that a tensor copy's place is a multiple of.
const ROW_BYTES: u32 = 16;

/// Bytes of an mbarrier.
const MBARRIER_BYTES: u32 = 8;

/// The address of an access to memory and the bytes a lane moves; of a copy, where it is in shared memory.
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
        Inst::LdMatrix { addr, .. } | Inst::StMatrix { addr, .. } => Some((addr, ROW_BYTES)),
        Inst::CpAsync { dst, bytes, .. } => Some((dst, *bytes)),
        Inst::Atom { addr, ty, .. } => Some((addr, ty.bytes())),
        Inst::Mbar(
            MbarInst::Init { addr, .. }
            | MbarInst::Arrive { addr, .. }
            | MbarInst::ExpectTx { addr, .. }
            | MbarInst::Test { addr, .. },
        ) => Some((addr, MBARRIER_BYTES)),
        Inst::Bulk(BulkInst::Load { dst, .. }) => Some((dst, ROW_BYTES)),
        Inst::Bulk(BulkInst::Store { src, .. }) => Some((src, ROW_BYTES)),
        _ => None,
    }
}
