//! The changes that each operator makes to an instruction.

use flashcore_ir::inst::{
    Address, AtomOp, BinOp, BulkInst, ClusterInst, FenceInst, Major, MbarInst, Scope, ShflMode, Slot, Special, UnOp,
    VoteMode, WgmmaA, WgmmaInst,
};
use flashcore_ir::{Inst, Kernel, Operand, Reg, RegClass, ScalarType};

use super::Operator as O;
use super::arithmetic::is_integer;
use super::removal::removed_by;

/// The changes of one instruction: for each operator, the instructions that replace it.
pub(super) struct Changes<'a> {
    pub(super) inst: &'a Inst,
    kernel: &'a Kernel,
    pub(super) found: Vec<(O, Vec<Inst>)>,
}

/// All changes of an instruction, each operator at most once. Changes to instructions that PTX does
/// not have are left out, since they would not build.
pub(super) fn changes(inst: &Inst, kernel: &Kernel) -> Vec<(O, Vec<Inst>)> {
    let mut changes = Changes {
        inst,
        kernel,
        found: Vec::new(),
    };
    if let (Some(operator), _) = removed_by(inst) {
        changes.drop(operator);
    }
    changes.fields();
    changes.values();
    changes.accesses();
    let mut found = changes.found;
    found.retain(|(_, insts)| insts.iter().all(|inst| inst.impossible().is_none()));
    found
}

/// The values that an instruction reads, in the order of PTX.
fn operands(inst: &mut Inst) -> Vec<&mut Operand> {
    let mut found = Vec::new();
    for slot in inst.slots() {
        match slot {
            Slot::Value(operand, _) => found.push(operand),
            Slot::Pair(lo, hi, _) => found.extend([lo, hi]),
            Slot::TensorBox(_, at, _) => found.extend(at),
            _ => {}
        }
    }
    found
}

/// `edit!(changes, Operator, pattern => change)`: the instruction with the fields that `pattern`
/// binds changed; nothing if it is another instruction.
macro_rules! edit {
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

/// Registers of operand A of a warpgroup product.
const A_REGISTERS: u32 = 4;

impl Changes<'_> {
    pub(super) fn drop(&mut self, operator: O) {
        self.found.push((operator, Vec::new()));
    }

    pub(super) fn put(&mut self, operator: O, inst: Inst) {
        self.found.push((operator, vec![inst]));
    }

    pub(super) fn edit(&mut self, operator: O, change: impl FnOnce(&mut Inst)) {
        let mut inst = self.inst.clone();
        change(&mut inst);
        if inst != *self.inst {
            self.put(operator, inst);
        }
    }

    pub(super) fn set(&mut self, operator: O, nth: usize, value: u64) {
        self.edit(operator, |inst| *operands(inst)[nth] = Operand::Imm(value));
    }

    /// Swaps an operand and the next one.
    pub(super) fn swap(&mut self, operator: O, nth: usize) {
        self.edit(operator, |inst| {
            let mut all = operands(inst);
            (*all[nth], *all[nth + 1]) = (*all[nth + 1], *all[nth]);
        });
    }

    /// Changes a 32-bit operand by `op` and `by`: an immediate in the instruction, a register
    /// before it, and back after it.
    pub(super) fn change(&mut self, operator: O, nth: usize, (op, by): (BinOp, u64)) {
        let by = by as u32;
        let operand = *operands(&mut self.inst.clone())[nth];
        match operand {
            Operand::Imm(bits) => {
                let changed = match op {
                    BinOp::Xor => bits as u32 ^ by,
                    _ => (bits as u32).wrapping_add(by),
                };
                self.set(operator, nth, u64::from(changed));
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
                let insts = vec![change(by), self.inst.clone(), change(back)];
                self.found.push((operator, insts));
            }
        }
    }

    /// The result is `src`.
    pub(super) fn copy(&mut self, operator: O, dst: Reg, src: Operand) {
        if !matches!(src, Operand::Reg(reg) if reg.class != dst.class) {
            self.put(operator, Inst::Mov { dst, src });
        }
    }

    /// A constant factor, the second operand, is larger.
    pub(super) fn strides(&mut self, factor: Operand) {
        if let Operand::Imm(factor) = factor {
            self.set(O::StrideOne, 1, factor + 1);
            self.set(O::StrideSixteen, 1, factor + 16);
        }
    }

    /// Changes of fields other than operands.
    fn fields(&mut self) {
        edit!(self, O::SwapOperands, Inst::Unpack { lo, hi, .. } => std::mem::swap(lo, hi));
        edit!(self, O::InvertTable, Inst::Lop3 { table, .. } => *table = !*table);
        edit!(self, O::FlipTranspose, Inst::LdMatrix { transposed, .. } | Inst::StMatrix { transposed, .. } => {
            *transposed = !*transposed
        });
        edit!(self, O::NextSource, Inst::CpAsync { src, bytes, .. } => src.offset += *bytes as i32);
        edit!(self, O::FullCopy, Inst::CpAsync { src_bytes, .. } => *src_bytes = None);
        edit!(self, O::HalfCopy, Inst::CpAsync { bytes, src_bytes, .. } => {
            *src_bytes = Some(Operand::Imm(u64::from(*bytes / 2)))
        });
        edit!(self, O::WeakenWait, Inst::CpAsyncWait { pending } => *pending += 1);
        edit!(self, O::WeakenAsyncWait, Inst::Bulk(BulkInst::Wait { pending, .. })
            | Inst::Wgmma(WgmmaInst::Wait { pending }) => *pending += 1);
        edit!(self, O::OnlyRead, Inst::Bulk(BulkInst::Wait { read, .. }) => *read = true);
        edit!(self, O::HalfWarp, Inst::Shfl { members, .. } | Inst::Vote { members, .. }
            | Inst::Redux { members, .. } | Inst::BarWarp { members } => *members &= 0xffff);
        edit!(self, O::NarrowScope, Inst::Fence(FenceInst::Memory(scope))
            | Inst::Mbar(MbarInst::Arrive { scope, .. } | MbarInst::Test { scope, .. }) => *scope = Scope::Block);
        edit!(self, O::MoreRegisters, Inst::SetMaxRegs { regs, .. } => *regs += 8);
        edit!(self, O::FewerRegisters, Inst::SetMaxRegs { regs, .. } => *regs = regs.saturating_sub(8));
        edit!(self, O::ExtraArrival, Inst::Mbar(MbarInst::Init { arrivals, .. }) => *arrivals += 1);
        edit!(self, O::MissingArrival, Inst::Mbar(MbarInst::Init { arrivals, .. }) => *arrivals -= 1);
        edit!(self, O::WrongMbarrier, Inst::Bulk(BulkInst::Load { bar, .. } | BulkInst::LoadBytes { bar, .. }
            | BulkInst::Send { bar, .. }) => {
            bar.offset += 8
        });
        edit!(self, O::DropMulticast, Inst::Bulk(BulkInst::Load { multicast, .. }) => *multicast = None);
        edit!(self, O::FlipTranspose, Inst::Wgmma(WgmmaInst::Mma { b, .. }) => b.major = match b.major {
            Major::K => Major::Mn,
            Major::Mn => Major::K,
        });
        edit!(self, O::FlipAccumulate, Inst::Wgmma(WgmmaInst::Mma { accumulate, .. }) => {
            *accumulate = match *accumulate {
                Operand::Imm(0) | Operand::Reg(_) => Operand::Imm(1),
                Operand::Imm(_) => Operand::Imm(0),
            }
        });
        edit!(self, O::RelaxArrive, Inst::Cluster(ClusterInst::Arrive { release, .. }) => *release = false);
    }

    /// Changes of operands and results.
    fn values(&mut self) {
        let inst = self.inst;
        match *inst {
            Inst::Mov {
                dst,
                src: Operand::Imm(bits),
            } => match dst.class {
                RegClass::B32 => self.set(O::ConstantOne, 0, (bits + 1) & 0xffff_ffff),
                RegClass::F32 => {
                    let more = f32::from_bits(bits as u32) + 1.0;
                    self.set(O::ConstantOne, 0, u64::from(more.to_bits()));
                }
                RegClass::Pred | RegClass::B16 | RegClass::B64 => {}
            },
            Inst::Bin { op, ty, dst, a, b } => self.binary(op, ty, dst, a, b),
            Inst::Un { op, ty, dst, a } => match op {
                UnOp::Not if ty == ScalarType::Pred => self.copy(O::InvertCompare, dst, a),
                _ => self.copy(O::DropFunction, dst, a),
            },
            Inst::Fma { ty, dst, a, b, .. } | Inst::MadWide { ty, dst, a, b, .. } => {
                if is_integer(ty) {
                    self.strides(b);
                }
                let op = match inst {
                    Inst::Fma { .. } => BinOp::Mul,
                    _ => BinOp::MulWide,
                };
                self.put(O::DropAddend, Inst::Bin { op, ty, dst, a, b });
            }
            Inst::CvtPack { .. } | Inst::Prmt { .. } => self.swap(O::SwapOperands, 0),
            Inst::Pack { dst, hi, .. } => {
                self.swap(O::SwapOperands, 0);
                self.descriptor(dst, hi);
            }
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
            Inst::Mma { d, b, c, .. } => {
                if self.exists(d, 2 * MMA_REGISTERS) && self.exists(c, 2 * MMA_REGISTERS) {
                    edit!(self, O::NextColumns, Inst::Mma { d, c, .. } => {
                        (d.index, c.index) = (d.index + MMA_REGISTERS, c.index + MMA_REGISTERS)
                    });
                }
                if self.exists(b, 4) {
                    edit!(self, O::NextFragment, Inst::Mma { b, .. } => b.index += 2);
                }
            }
            Inst::Wgmma(WgmmaInst::Mma {
                a: WgmmaA::Regs(first), ..
            }) if self.exists(first, 2 * A_REGISTERS) => {
                let next = WgmmaA::Regs(first.plus(A_REGISTERS));
                edit!(self, O::NextFragment, Inst::Wgmma(WgmmaInst::Mma { a, .. }) => *a = next);
            }
            Inst::Shfl {
                mode, dst, src, lane, ..
            } => {
                self.copy(O::DropExchange, dst, src);
                // The distances of exchanges within a group of lanes double each time.
                let by = match (mode, lane) {
                    (ShflMode::Bfly, Operand::Imm(distance)) => distance,
                    _ => 1,
                };
                self.change(O::OtherLane, 1, (BinOp::Add, by));
            }
            Inst::Vote { mode, dst, pred, .. } => {
                let (operator, other) = match mode {
                    VoteMode::Any => (O::VoteAll, VoteMode::All),
                    VoteMode::All => (O::VoteAny, VoteMode::Any),
                    VoteMode::Ballot => return,
                };
                edit!(self, operator, Inst::Vote { mode, .. } => *mode = other);
                self.copy(O::DropExchange, dst, Operand::Reg(pred));
            }
            Inst::Redux { dst, src, .. } => self.copy(O::DropExchange, dst, src),
            Inst::Elect { dst } => self.copy(O::EveryLane, dst, Operand::Imm(1)),
            Inst::BarSync { threads, .. } => self.barrier(threads.unwrap_or(self.kernel.threads())),
            Inst::BarArrive { threads, .. } => self.barrier(threads),
            Inst::Mbar(MbarInst::Arrive { tx: Some(tx), .. } | MbarInst::ExpectTx { tx, .. }) => {
                self.change(O::ExtraBytes, 0, (BinOp::Add, 16));
                if let Operand::Imm(bytes) = tx {
                    self.set(O::HalfBytes, 0, bytes / 2);
                }
            }
            Inst::Mbar(MbarInst::Test { dst, parity, .. }) => {
                if let Operand::Reg(_) = parity {
                    self.set(O::FixedParity, 0, 0);
                }
                self.change(O::FlipParity, 0, (BinOp::Xor, 1));
                self.copy(O::DropPhaseWait, dst, Operand::Imm(1));
            }
            Inst::Bulk(BulkInst::Load { ref at, .. } | BulkInst::Store { ref at, .. }) => {
                // Coordinates are (column, row, head, batch); eight columns are 16 bytes.
                let off = [(O::ColumnOff, 8), (O::RowOff, 1), (O::HeadOff, 1)];
                for (nth, (operator, by)) in off.into_iter().take(at.len()).enumerate() {
                    self.change(operator, nth, (BinOp::Add, by));
                }
                if at.len() > 2 {
                    self.swap(O::SwapCoordinates, 1);
                }
            }
            Inst::Cluster(ClusterInst::Mapa { dst, addr, .. }) => self.put(O::OwnBlock, Inst::Mov { dst, src: addr }),
            Inst::AddFour { .. }
            | Inst::Bulk(BulkInst::Reduce { .. })
            | Inst::Atom {
                op: AtomOp::Add,
                ty: ScalarType::F32,
                dst: None,
                ..
            } => self.found.push((O::AddTwice, vec![inst.clone(); 2])),
            Inst::Flag(ref flag) => self.flag(flag),
            // Other operators change these.
            // None more: [`removed_by`] lists every instruction.
            _ => {}
        }
    }

    /// Changes of two words that are joined to a matrix descriptor (PTX ISA, "Matrix Descriptor
    /// Format"): the lower one has start and leading offset, the upper one stride and swizzle.
    fn descriptor(&mut self, dst: Reg, hi: Operand) {
        let Operand::Imm(high) = hi else { return };
        let mode = high >> 30;
        if dst.class != RegClass::B64 || mode == 0 {
            return;
        }
        self.set(O::DescriptorStride, 1, high + 1);
        self.set(O::DescriptorSwizzle, 1, high & 0x3fff_ffff | (mode % 3 + 1) << 30);
        self.change(O::DescriptorStart, 0, (BinOp::Add, 1));
        self.change(O::DescriptorLeading, 0, (BinOp::Add, 1 << 16));
    }

    /// Changes the count of a barrier, and its number if the kernel has more than the block's.
    fn barrier(&mut self, threads: u32) {
        let fewer = threads.saturating_sub(32);
        let counts = [(O::CountBarrier, fewer), (O::CountMore, threads + 32)];
        for (operator, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            edit!(self, operator, Inst::BarSync { threads, .. } => *threads = Some(count));
            edit!(self, operator, Inst::BarArrive { threads, .. } => *threads = count);
        }
        let mut named = false;
        self.kernel.for_each_inst(&mut |inst, _| {
            if let Inst::BarSync { id, .. } | Inst::BarArrive { id, .. } = inst {
                named |= *id != Operand::Imm(0);
            }
        });
        if named {
            self.change(O::WrongBarrier, 0, (BinOp::Xor, 1));
        }
    }

    /// Whether `count` registers exist from this one on.
    fn exists(&self, first: Reg, count: u32) -> bool {
        first.index + count <= self.kernel.num_regs(first.class)
    }

    /// Changes the address of an access to memory.
    fn accesses(&mut self) {
        let Some((_, bytes)) = access(&mut self.inst.clone()) else {
            return;
        };
        let bytes = bytes as i32;
        let off = [(O::NextAccess, bytes), (O::PreviousAccess, -bytes), (O::OffAccess, 2)];
        for (operator, by) in off.into_iter().take(if bytes > 2 { 3 } else { 2 }) {
            self.edit(operator, |inst| {
                if let Some((addr, _)) = access(inst) {
                    addr.offset += by;
                }
            });
        }
    }
}

/// The first address that an instruction accesses (of a copy, its destination), and the bytes per
/// lane.
pub(super) fn access(inst: &mut Inst) -> Option<(&mut Address, u32)> {
    let (_, bytes @ 1..) = removed_by(inst) else {
        return None;
    };
    let addr = inst.slots().into_iter().find_map(|slot| match slot {
        Slot::Memory(addr, ..) => Some(addr),
        _ => None,
    });
    Some((addr?, bytes))
}
