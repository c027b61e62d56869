//! The changes that each operator makes to an instruction.
//!
//! The match is exhaustive: a new instruction does not compile until its mistakes are listed.

use flashcore_ir::inst::{Address, BinOp, BulkInst, FlagInst, MbarInst, Scope, ShflMode, Special, UnOp, VoteMode};
use flashcore_ir::{Inst, Kernel, Operand, Reg, RegClass, ScalarType};

use super::Operator;

/// The changes of one instruction: for each operator, the instructions that replace it.
pub(super) struct Changes<'a> {
    pub(super) inst: &'a Inst,
    pub(super) kernel: &'a Kernel,
    pub(super) found: Vec<(Operator, Vec<Inst>)>,
}

/// All changes of an instruction, each operator at most once. Changes to instructions that PTX does
/// not have are left out, since they would not build.
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

/// `edit!(changes, Operator, pattern => change)`: the instruction with the fields that `pattern`
/// binds changed. `edit!(changes, Operator, operand (op, by), pattern => field)`: the instruction
/// while an operand is changed ([`Changes::with_operand`]), which `field` refers to.
macro_rules! edit {
    ($changes:ident, $operator:expr, $operand:ident ($op:expr, $by:expr), $pattern:pat => $field:expr) => {
        $changes.with_operand($operator, $operand, ($op, $by), |inst, value| {
            if let $pattern = inst {
                *$field = value;
            }
        })
    };
    ($changes:ident, $operator:expr, $pattern:pat => $change:expr) => {
        $changes.edit($operator, |inst| {
            if let $pattern = inst {
                $change;
            }
        })
    };
}
pub(super) use edit;

/// Registers of an accumulator of eight columns.
const MMA_REGISTERS: u32 = 4;

impl Changes<'_> {
    /// Removes the instruction.
    pub(super) fn drop(&mut self, operator: Operator) {
        self.found.push((operator, Vec::new()));
    }

    /// Replaces the instruction.
    pub(super) fn put(&mut self, operator: Operator, inst: Inst) {
        self.found.push((operator, vec![inst]));
    }

    /// Changes fields of the instruction.
    pub(super) fn edit(&mut self, operator: Operator, change: impl FnOnce(&mut Inst)) {
        let mut inst = self.inst.clone();
        change(&mut inst);
        if inst != *self.inst {
            self.put(operator, inst);
        }
    }

    /// Changes a 32-bit operand by `op` and `by`: an immediate in the instruction, a register
    /// before it, and back after it.
    pub(super) fn with_operand(
        &mut self,
        operator: Operator,
        operand: Operand,
        (op, by): (BinOp, u64),
        replace: impl FnOnce(&mut Inst, Operand),
    ) {
        let by = by as u32;
        match operand {
            Operand::Imm(bits) => {
                let bits = bits as u32;
                let changed = if op == BinOp::Xor {
                    bits ^ by
                } else {
                    bits.wrapping_add(by)
                };
                self.edit(operator, |inst| replace(inst, Operand::Imm(u64::from(changed))));
            }
            Operand::Reg(reg) => {
                let back = if op == BinOp::Xor { by } else { by.wrapping_neg() };
                let change = |by: u32| Inst::Bin {
                    op,
                    ty: ScalarType::U32,
                    dst: reg,
                    a: operand,
                    b: Operand::Imm(u64::from(by)),
                };
                self.found
                    .push((operator, vec![change(by), self.inst.clone(), change(back)]));
            }
        }
    }

    /// The result is `src`.
    pub(super) fn copy(&mut self, operator: Operator, dst: Reg, src: Operand) {
        if !matches!(src, Operand::Reg(reg) if reg.class != dst.class) {
            self.put(operator, Inst::Mov { dst, src });
        }
    }

    /// A constant factor is larger.
    pub(super) fn strides(&mut self, factor: Operand) {
        let Operand::Imm(factor) = factor else { return };
        for (operator, by) in [(Operator::StrideOne, 1), (Operator::StrideSixteen, 16)] {
            edit!(self, operator, Inst::Bin { b, .. } | Inst::Fma { b, .. } | Inst::MadWide { b, .. } => {
                *b = Operand::Imm(factor + by)
            });
        }
    }

    fn list(&mut self) {
        use Operator as O;
        match *self.inst {
            // A copy of a register has nothing to get wrong.
            Inst::Mov {
                src: Operand::Reg(_), ..
            } => {}
            Inst::Mov {
                dst,
                src: Operand::Imm(bits),
            } => match dst.class {
                RegClass::B32 => self.copy(O::ConstantOne, dst, Operand::Imm((bits + 1) & 0xffff_ffff)),
                RegClass::F32 => {
                    let bits = (f32::from_bits(bits as u32) + 1.0).to_bits();
                    edit!(self, O::ConstantOne, Inst::Mov { src, .. } => *src = Operand::Imm(u64::from(bits)));
                }
                RegClass::Pred | RegClass::B16 | RegClass::B64 => {}
            },
            Inst::Bin { op, ty, dst, a, b } => self.binary(op, ty, dst, a, b),
            Inst::Un { op, ty, dst, a } => match op {
                UnOp::Not if ty == ScalarType::Pred => self.copy(O::InvertCompare, dst, a),
                _ => self.copy(O::DropFunction, dst, a),
            },
            Inst::Fma { ty, dst, a, b, .. } => {
                if is_integer(ty) {
                    self.strides(b);
                }
                let op = BinOp::Mul;
                self.put(O::DropAddend, Inst::Bin { op, ty, dst, a, b });
            }
            Inst::MadWide { ty, dst, a, b, .. } => {
                self.strides(b);
                let op = BinOp::MulWide;
                self.put(O::DropAddend, Inst::Bin { op, ty, dst, a, b });
            }
            // A conversion has one operand of another type: nothing to get wrong.
            Inst::Cvt { .. } => {}
            Inst::CvtPack { .. } => {
                edit!(self, O::SwapOperands, Inst::CvtPack { lo, hi, .. } => std::mem::swap(lo, hi));
            }
            Inst::Unpack { .. } => {
                edit!(self, O::SwapOperands, Inst::Unpack { lo, hi, .. } => std::mem::swap(lo, hi));
            }
            Inst::Prmt { .. } => edit!(self, O::SwapOperands, Inst::Prmt { a, b, .. } => std::mem::swap(a, b)),
            Inst::Pack { dst, lo, hi } => {
                self.put(O::SwapOperands, Inst::Pack { dst, lo: hi, hi: lo });
                self.descriptor(dst, lo, hi);
            }
            Inst::Lop3 { .. } => edit!(self, O::InvertTable, Inst::Lop3 { table, .. } => *table = !*table),
            Inst::Setp { cmp, ty, a, b, .. } => self.comparison(cmp, ty, a, b),
            Inst::Selp { dst, a, b, .. } => {
                self.copy(O::Unmask, dst, a);
                self.copy(O::MaskAll, dst, b);
            }
            Inst::Special { dst, which } => {
                let which = match which {
                    Special::Tid(dim) => Special::Tid((dim + 1) % 3),
                    Special::Ctaid(dim) => Special::Ctaid((dim + 1) % 3),
                    Special::Ntid(dim) => Special::Tid(dim),
                    Special::Nctaid(dim) => Special::Ctaid(dim),
                    Special::LaneId | Special::ClusterRank => Special::Ctaid(0),
                    Special::ClusterBlocks => Special::ClusterRank,
                    // Stands for any number that compilers do not know.
                    Special::MaxWarps => return,
                };
                self.put(O::WrongSpecial, Inst::Special { dst, which });
            }
            Inst::Param { dst, index } => {
                let params = self.kernel.params();
                let kind = params.get(index as usize).map(|param| param.kind);
                let mut others = (index as usize + 1..params.len()).chain(0..index as usize);
                if let Some(other) = others.find(|&other| Some(params[other].kind) == kind) {
                    let index = other as u32;
                    self.put(O::WrongParam, Inst::Param { dst, index });
                }
            }
            // There is only one such address.
            Inst::SharedBase { .. } => {}
            Inst::Ld { .. } => self.drop(O::DropLoad),
            Inst::St { .. } => self.drop(O::DropStore),
            Inst::LdMatrix { .. } => {
                self.drop(O::DropLoad);
                edit!(self, O::FlipTranspose, Inst::LdMatrix { transposed, .. } => *transposed = !*transposed);
            }
            Inst::StMatrix { .. } => {
                self.drop(O::DropStore);
                edit!(self, O::FlipTranspose, Inst::StMatrix { transposed, .. } => *transposed = !*transposed);
            }
            Inst::CpAsync { bytes, src_bytes, .. } => {
                self.drop(O::DropCopy);
                edit!(self, O::NextSource, Inst::CpAsync { src, .. } => src.offset += bytes as i32);
                if src_bytes.is_some() {
                    edit!(self, O::FullCopy, Inst::CpAsync { src_bytes, .. } => *src_bytes = None);
                }
                let half = Some(Operand::Imm(u64::from(bytes / 2)));
                edit!(self, O::HalfCopy, Inst::CpAsync { src_bytes, .. } => *src_bytes = half);
            }
            Inst::CpAsyncCommit => self.drop(O::DropCommit),
            Inst::CpAsyncWait { .. } => {
                self.drop(O::DropWait);
                edit!(self, O::WeakenWait, Inst::CpAsyncWait { pending } => *pending += 1);
            }
            Inst::Mma { d, b, c, .. } => {
                self.drop(O::DropProduct);
                if self.exists(d, 2 * MMA_REGISTERS) && self.exists(c, 2 * MMA_REGISTERS) {
                    edit!(self, O::NextColumns, Inst::Mma { d, c, .. } => {
                        (d.index, c.index) = (d.index + MMA_REGISTERS, c.index + MMA_REGISTERS)
                    });
                }
                if self.exists(b, 4) {
                    edit!(self, O::NextFragment, Inst::Mma { b, .. } => b.index += 2);
                }
            }
            Inst::Shfl {
                mode, dst, src, lane, ..
            } => {
                self.half_warp();
                self.copy(O::DropExchange, dst, src);
                // The distances of exchanges within a group of lanes double each time.
                let by = match (mode, lane) {
                    (ShflMode::Bfly, Operand::Imm(distance)) => distance,
                    _ => 1,
                };
                edit!(self, O::OtherLane, lane (BinOp::Add, by), Inst::Shfl { lane, .. } => lane);
            }
            Inst::Vote { mode, dst, pred, .. } => {
                self.half_warp();
                let (operator, other) = match mode {
                    VoteMode::Any => (O::VoteAll, VoteMode::All),
                    VoteMode::All => (O::VoteAny, VoteMode::Any),
                    VoteMode::Ballot => return,
                };
                edit!(self, operator, Inst::Vote { mode, .. } => *mode = other);
                self.copy(O::DropExchange, dst, Operand::Reg(pred));
            }
            Inst::Redux { dst, src, .. } => {
                self.half_warp();
                self.copy(O::DropExchange, dst, src);
            }
            Inst::BarSync { id, threads } => {
                self.drop(O::DropBarrier);
                let threads = threads.unwrap_or(self.kernel.threads());
                for (operator, count) in [
                    (O::CountBarrier, threads.saturating_sub(32)),
                    (O::CountMore, threads + 32),
                ] {
                    if count > 0 {
                        edit!(self, operator, Inst::BarSync { threads, .. } => *threads = Some(count));
                    }
                }
                self.other_barrier(id);
            }
            Inst::BarArrive { id, threads } => {
                self.drop(O::DropArrive);
                for (operator, count) in [
                    (O::CountBarrier, threads.saturating_sub(32)),
                    (O::CountMore, threads + 32),
                ] {
                    if count > 0 {
                        edit!(self, operator, Inst::BarArrive { threads, .. } => *threads = count);
                    }
                }
                self.other_barrier(id);
            }
            Inst::BarWarp { .. } => {
                self.drop(O::DropWarpBarrier);
                self.half_warp();
            }
            Inst::Fence { .. } => {
                self.drop(O::DropFence);
                edit!(self, O::NarrowScope, Inst::Fence { scope } => *scope = Scope::Block);
            }
            Inst::FenceProxyAsync | Inst::FenceMbarrierInit => self.drop(O::DropFence),
            Inst::Atom { .. } => self.drop(O::DropAtomic),
            Inst::Elect { dst } => self.copy(O::EveryLane, dst, Operand::Imm(1)),
            Inst::SetMaxRegs { .. } => {
                self.drop(O::DropRegisters);
                edit!(self, O::MoreRegisters, Inst::SetMaxRegs { regs, .. } => *regs += 8);
                edit!(self, O::FewerRegisters, Inst::SetMaxRegs { regs, .. } => *regs = regs.saturating_sub(8));
            }
            Inst::DependencyWait => self.drop(O::DropWait),
            // A trap never runs, a trigger concerns the next launch, and a trace the reader.
            Inst::TrapIf { .. } | Inst::DependencyTrigger | Inst::Trace { .. } => {}
            Inst::Flag(ref inst) => self.flag(inst),
            Inst::Mbar(ref inst) => self.mbarrier(inst),
            Inst::Bulk(ref inst) => self.bulk(inst),
            Inst::Wgmma(ref inst) => self.product(inst),
            Inst::Cluster(ref inst) => self.cluster(inst),
        }
    }

    /// Uses another barrier, if the kernel has more than the block's.
    fn other_barrier(&mut self, id: Operand) {
        let mut named = false;
        self.kernel.for_each_inst(&mut |inst, _| {
            if let Inst::BarSync { id, .. } | Inst::BarArrive { id, .. } = inst {
                named |= *id != Operand::Imm(0);
            }
        });
        if named {
            let pattern = (BinOp::Xor, 1);
            self.with_operand(Operator::WrongBarrier, id, pattern, |inst, value| {
                if let Inst::BarSync { id, .. } | Inst::BarArrive { id, .. } = inst {
                    *id = value;
                }
            });
        }
    }

    fn half_warp(&mut self) {
        edit!(self, Operator::HalfWarp, Inst::Shfl { members, .. } | Inst::Vote { members, .. }
            | Inst::Redux { members, .. } | Inst::BarWarp { members } => *members &= 0xffff);
    }

    /// Whether `count` registers exist from this one on.
    pub(super) fn exists(&self, first: Reg, count: u32) -> bool {
        first.index + count <= self.kernel.num_regs(first.class)
    }

    /// Changes the address of an access to memory; of a copy, that in shared memory.
    fn accesses(&mut self) {
        let Some((_, bytes)) = access(&mut self.inst.clone()) else {
            return;
        };
        let off = [
            (Operator::NextAccess, bytes as i32),
            (Operator::PreviousAccess, -(bytes as i32)),
            (Operator::OffAccess, 2),
        ];
        for (operator, by) in off.into_iter().take(if bytes > 2 { 3 } else { 2 }) {
            self.edit(operator, |inst| {
                if let Some((addr, _)) = access(inst) {
                    addr.offset += by;
                }
            });
        }
    }
}

pub(super) fn is_integer(ty: ScalarType) -> bool {
    use ScalarType::{B32, B64, S32, S64, U32, U64};
    matches!(ty, B32 | B64 | S32 | S64 | U32 | U64)
}

/// Bytes of a matrix row that a lane addresses; tensor copies start at multiples of it.
const ROW_BYTES: u32 = 16;

/// Bytes of a flag.
const FLAG_BYTES: u32 = 4;
/// Bytes of an mbarrier.
const MBARRIER_BYTES: u32 = 8;

/// The address of an access to memory, and the bytes per lane; of a copy, its address in shared
/// memory.
pub(super) fn access(inst: &mut Inst) -> Option<(&mut Address, u32)> {
    Some(match inst {
        Inst::Ld { addr, dst, count, .. } => (addr, dst.class.bytes() * *count),
        Inst::St { addr, src, count, .. } => (addr, src.bytes() * *count),
        Inst::LdMatrix { addr, .. } | Inst::StMatrix { addr, .. } => (addr, ROW_BYTES),
        Inst::CpAsync { dst, bytes, .. } => (dst, *bytes),
        Inst::Atom { addr, ty, .. } => (addr, ty.bytes()),
        Inst::Mbar(
            MbarInst::Init { addr, .. }
            | MbarInst::Arrive { addr, .. }
            | MbarInst::ExpectTx { addr, .. }
            | MbarInst::Test { addr, .. },
        ) => (addr, MBARRIER_BYTES),
        Inst::Bulk(BulkInst::Load { dst: addr, .. } | BulkInst::Store { src: addr, .. }) => (addr, ROW_BYTES),
        Inst::Bulk(
            BulkInst::LoadBytes { dst: addr, .. }
            | BulkInst::StoreBytes { dst: addr, .. }
            | BulkInst::Reduce { dst: addr, .. },
        ) => (addr, ROW_BYTES),
        Inst::Flag(
            FlagInst::LoadAcquire { addr, .. } | FlagInst::StoreRelease { addr, .. } | FlagInst::Add { addr, .. },
        ) => (addr, FLAG_BYTES),
        Inst::Bulk(BulkInst::Prefetch { .. } | BulkInst::Commit | BulkInst::Wait { .. }) => return None,
        Inst::Mov { .. }
        | Inst::Bin { .. }
        | Inst::Un { .. }
        | Inst::Fma { .. }
        | Inst::MadWide { .. }
        | Inst::Cvt { .. }
        | Inst::CvtPack { .. }
        | Inst::Pack { .. }
        | Inst::Unpack { .. }
        | Inst::Lop3 { .. }
        | Inst::Prmt { .. }
        | Inst::Setp { .. }
        | Inst::Selp { .. }
        | Inst::Special { .. }
        | Inst::Param { .. }
        | Inst::SharedBase { .. }
        | Inst::CpAsyncCommit
        | Inst::CpAsyncWait { .. }
        | Inst::Mma { .. }
        | Inst::Shfl { .. }
        | Inst::Vote { .. }
        | Inst::Redux { .. }
        | Inst::BarSync { .. }
        | Inst::BarArrive { .. }
        | Inst::BarWarp { .. }
        | Inst::Fence { .. }
        | Inst::FenceProxyAsync
        | Inst::FenceMbarrierInit
        | Inst::Elect { .. }
        | Inst::TrapIf { .. }
        | Inst::SetMaxRegs { .. }
        | Inst::DependencyWait
        | Inst::DependencyTrigger
        | Inst::Wgmma(_)
        | Inst::Cluster(_)
        | Inst::Trace { .. } => return None,
    })
}
