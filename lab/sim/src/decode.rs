//! Decodes arithmetic into operations, and notes which features of the simulator an instruction
//! needs. Other instructions run as they are in the kernel.

use flashcore_ir::inst::{
    Access, BinOp, BulkInst, ClusterInst, FlagInst, Inst, Object, Slot, Space, StoreSource, UnOp, WgmmaInst,
};
use flashcore_ir::{Operand, Reg, RegClass, ScalarType as T};

use crate::lower::Lowering;
use crate::program::{FloatOp, Half, Number, OPERANDS, Op, PRED_FALSE, PRED_TRUE, Row};
use crate::report::Class;
use crate::text::cold::{Cold, Mbarrier, Memory, Strength, What};

impl<'k> Lowering<'k> {
    /// The operation of an instruction; `None` if no machine instruction has its types. [`Inst::impossible`] does not
    /// look at most of them, because the typed builder cannot combine them otherwise.
    pub(crate) fn decode(&mut self, inst: &'k Inst) -> Option<Op<'k>> {
        self.note_parameters(inst);
        let rows = self.operands(inst);
        let [d, a, b, c, ..] = rows;
        let as_it_is = Op::Inst(inst, rows);
        Some(match *inst {
            // PTX compares an immediate to make a predicate.
            Inst::Mov { dst, src } => match dst.class {
                RegClass::Pred => Op::PredOr([d, self.pred(src), PRED_FALSE]),
                RegClass::B64 => Op::Mov64([d, a]),
                RegClass::B16 | RegClass::B32 | RegClass::F32 => Op::Mov32([d, a]),
            },
            Inst::Bin { op, ty, .. } => match ty {
                T::Pred => predicates(op, [d, a, b])?,
                T::F32 => Op::F32(FloatOp::of(op)?, [d, a, b]),
                T::F16x2 | T::BF16x2 => Op::Halves(FloatOp::of(op)?, half(ty), [d, a, b]),
                T::B16 | T::B64 | T::U64 | T::S64 if op == BinOp::MulWide => return None,
                T::B64 | T::U64 | T::S64 => Op::Int64(op, ty == T::S64, [d, a, b]),
                T::B16 | T::B32 | T::U32 | T::S32 => Op::Int32(op, ty == T::S32, [d, a, b]),
                T::F16 | T::BF16 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
            },
            Inst::Un { op, ty, .. } => self.un(op, ty, d, a)?,
            Inst::Fma { ty, .. } => match ty {
                T::F32 => Op::FmaF32([d, a, b, c]),
                T::F16x2 | T::BF16x2 => Op::FmaHalves(half(ty), [d, a, b, c]),
                T::B64 | T::U64 | T::S64 => Op::Mad64([d, a, b, c]),
                T::B32 | T::U32 | T::S32 => Op::Mad32([d, a, b, c]),
                T::Pred | T::B16 | T::F16 | T::BF16 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
            },
            Inst::MadWide { ty, .. } => Op::MadWide(ty == T::S32, [d, a, b, c]),
            Inst::Cvt { op, .. } => Op::Cvt(op, [d, a]),
            // PTX names the high half first.
            Inst::CvtPack { ty, .. } => match ty {
                T::F16x2 | T::BF16x2 => Op::CvtHalves(half(ty), [d, b, a]),
                T::E4M3x2 => Op::CvtE4m3([d, b, a]),
                T::Pred | T::B16 | T::B32 | T::B64 | T::U32 | T::S32 | T::U64 | T::S64 => return None,
                T::F32 | T::F16 | T::BF16 | T::E4M3 | T::E4M3x4 => return None,
            },
            Inst::Pack { dst, .. } if dst.class == RegClass::B64 => Op::Pack64([d, a, b]),
            Inst::Pack { .. } => Op::Pack16([d, a, b]),
            Inst::Unpack { lo, .. } if lo.class == RegClass::B16 => Op::Unpack16([d, a, b]),
            Inst::Unpack { .. } => Op::Unpack64([d, a, b]),
            Inst::Lop3 { table, .. } => Op::Lop3(table, [d, a, b, c]),
            Inst::Prmt { .. } => Op::Prmt([d, a, b, c]),
            Inst::Setp { cmp, ty, .. } => match ty {
                T::F32 => Op::Setp32(cmp, Number::Float, [d, a, b]),
                T::S32 => Op::Setp32(cmp, Number::Signed, [d, a, b]),
                T::U32 | T::B32 => Op::Setp32(cmp, Number::Unsigned, [d, a, b]),
                T::S64 => Op::Setp64(cmp, Number::Signed, [d, a, b]),
                T::U64 | T::B64 => Op::Setp64(cmp, Number::Unsigned, [d, a, b]),
                T::Pred | T::B16 | T::F16 | T::BF16 | T::F16x2 | T::BF16x2 => return None,
                T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
            },
            Inst::Selp { ty, .. } if ty.bytes() == 8 => Op::Selp64([d, c, a, b]),
            Inst::Selp { .. } => Op::Selp32([d, c, a, b]),
            // The others run as they are. Some are features that the simulator must be ready for.
            Inst::Ld { space, dst, count, .. } => {
                self.note_access(space, dst.class.bytes(), count)?;
                as_it_is
            }
            Inst::St {
                space, ref src, count, ..
            } => {
                self.note_access(space, src.bytes(), count)?;
                as_it_is
            }
            Inst::CpAsync { .. } => {
                self.program.uses_cp_async = true;
                as_it_is
            }
            Inst::Wgmma(_) => {
                (self.program.uses_async_proxy, self.program.uses_products) = (true, true);
                as_it_is
            }
            Inst::Bulk(ref bulk) => {
                self.note_bulk(bulk);
                as_it_is
            }
            Inst::LdMatrix { .. }
            | Inst::StMatrix { .. }
            | Inst::AddFour { .. }
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::Fence(_)
            | Inst::SharedBase { .. }
            | Inst::TrapIf { .. }
            | Inst::DependencyWait
            | Inst::DependencyTrigger
            | Inst::Trace { .. }
            | Inst::SetMaxRegs { .. }
            | Inst::Cluster(_)
            | Inst::Special { .. }
            | Inst::Param { .. }
            | Inst::Mma { .. }
            | Inst::Elect { .. } => as_it_is,
            // Read as cold steps.
            Inst::Shfl { .. }
            | Inst::Vote { .. }
            | Inst::Redux { .. }
            | Inst::BarWarp { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::Atom { .. }
            | Inst::Flag(_)
            | Inst::Mbar(_) => return None,
        })
    }

    /// Signs of floats, complements and negations are operations with a constant.
    fn un(&mut self, op: UnOp, ty: T, d: Row, a: Row) -> Option<Op<'k>> {
        let signs = match ty {
            T::F32 => Some(0x8000_0000),
            T::F16x2 | T::BF16x2 => Some(0x8000_8000),
            T::Pred | T::B16 | T::B32 | T::U32 | T::S32 | T::B64 | T::U64 | T::S64 => None,
            T::F16 | T::BF16 | T::E4M3 | T::E4M3x2 | T::E4M3x4 => return None,
        };
        let is_wide = ty.bytes() == 8;
        let mut with = |op, bits: u32| Op::Int32(op, false, [d, a, self.bits32(Operand::Imm(u64::from(bits)))]);
        Some(match op {
            UnOp::Not if ty == T::Pred => Op::PredXor([d, a, PRED_TRUE]),
            UnOp::Not if is_wide => Op::Int64(BinOp::Xor, false, [d, a, self.bits64(Operand::Imm(u64::MAX))]),
            UnOp::Not => with(BinOp::Xor, u32::MAX),
            UnOp::Neg | UnOp::Abs if ty == T::Pred => return None,
            UnOp::Neg => match signs {
                Some(signs) => with(BinOp::Xor, signs),
                None if is_wide => Op::Int64(BinOp::Sub, false, [d, self.bits64(Operand::Imm(0)), a]),
                None => Op::Un32(op, [d, a]),
            },
            UnOp::Abs => match signs {
                Some(signs) => with(BinOp::And, !signs),
                None if ty == T::S64 => Op::AbsS64([d, a]),
                None if ty == T::S32 => Op::Un32(op, [d, a]),
                None if is_wide => Op::Mov64([d, a]),
                None => Op::Mov32([d, a]),
            },
            UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp => (ty == T::F32).then_some(Op::Un32(op, [d, a]))?,
            UnOp::Popc | UnOp::Clz => (ty != T::Pred && !is_wide).then_some(Op::Un32(op, [d, a]))?,
        })
    }

    /// The rows of the operands in the order of [`Inst::slots`], as many as an operation holds.
    fn operands(&mut self, inst: &Inst) -> [Row; OPERANDS] {
        let mut rows = Vec::new();
        let run = |first: Reg, count: u32| (0..count).map(move |i| first.plus(i));
        for slot in inst.clone().slots() {
            match slot {
                Slot::Regs(first, count, _) | Slot::Matrices(first, count, _) => {
                    rows.extend(run(*first, count).map(|reg| self.reg(reg)));
                }
                Slot::Halves(lo, hi) => rows.extend([self.reg(*lo), self.reg(*hi)]),
                Slot::Value(operand, ty) => rows.push(self.value(*operand, ty)),
                Slot::Pair(lo, hi, ty) => rows.extend([self.value(*lo, ty), self.value(*hi, ty)]),
                Slot::Stored(StoreSource::Regs(first), count) => {
                    rows.extend(run(*first, count).map(|reg| self.reg(reg)));
                }
                Slot::Stored(StoreSource::Imm(ty, bits), count) => {
                    let row = self.value(Operand::Imm(*bits), *ty);
                    rows.extend((0..count).map(|_| row));
                }
                Slot::Memory(addr, Space::Global, _) => rows.push(self.bits64(addr.base)),
                Slot::Memory(addr, Space::Shared | Space::Cluster, _) => rows.push(self.bits32(addr.base)),
                Slot::Elected(reg) | Slot::Guard(reg) | Slot::Traced(_, reg) => rows.push(self.reg(*reg)),
                // Boxes have operands that are looked up when a copy runs; the others have none.
                Slot::TensorBox(..)
                | Slot::Number(_)
                | Slot::Mask(_)
                | Slot::Table(_)
                | Slot::Transposed(_)
                | Slot::Fixed(_)
                | Slot::Unused
                | Slot::Special(_)
                | Slot::Param(_)
                | Slot::SharedBase => {}
            }
        }
        rows.resize(OPERANDS, 0);
        std::array::from_fn(|i| rows[i])
    }

    fn value(&mut self, operand: Operand, ty: T) -> Row {
        match ty {
            T::Pred => self.pred(operand),
            _ if ty.bytes() == 8 => self.bits64(operand),
            _ => self.bits32(operand),
        }
    }

    /// Notes what a cold step needs.
    pub(crate) fn note_cold(&mut self, cold: &Cold) {
        let (access, is_atomic) = match &cold.what {
            What::Access(access) => (access, false),
            What::Atomic(atomic) => (&atomic.access, true),
            What::Move(movement) => (&movement.access, false),
            What::Mbarrier(Mbarrier::Arrive { releases: false, .. } | Mbarrier::Test { acquires: false, .. }, _) => {
                self.program.orders_here = true;
                return;
            }
            _ => return,
        };
        let program = &mut self.program;
        // In our own kernels it must acquire or release, or give the old value.
        let orders = if self.moves {
            is_atomic || access.strength != Strength::Weak
        } else {
            is_atomic && !cold.writes.is_empty() || matches!(access.strength, Strength::Acquire | Strength::Release)
        };
        if matches!(access.memory, Memory::Shared | Memory::Generic) {
            program.granule_shift = program.granule_shift.min(access.size.trailing_zeros());
            program.orders_here |= orders && self.moves;
        }
        if matches!(access.memory, Memory::Global | Memory::Generic) {
            program.bytewise |= access.size == 1;
            program.uses_flags |= orders;
            let object = access.object;
            let is_used = |slot: usize| object.is_none_or(|object| object == Object::Param(slot as u32));
            let used = program.used.iter_mut().enumerate().filter(|(slot, _)| is_used(*slot));
            for (_, used) in used {
                used.atomic |= is_atomic;
                used.stored |= access.writes && !is_atomic;
                used.loaded |= !access.writes;
            }
        }
    }

    /// Notes how an instruction accesses the memory of parameters.
    fn note_parameters(&mut self, inst: &Inst) {
        for slot in inst.clone().slots() {
            if let Slot::Memory(addr, _, access) | Slot::TensorBox(addr, _, access) = slot
                && let Object::Param(index) = addr.object
                && let Some(used) = self.program.used.get_mut(index as usize)
            {
                match access {
                    Access::Read => used.loaded = true,
                    Access::Write => used.stored = true,
                    Access::Update => used.atomic = true,
                }
            }
        }
    }

    /// Notes an access of `count` registers; `None` if there is none of that width. Those of two bytes to shared memory
    /// are tracked in cells of two bytes.
    fn note_access(&mut self, space: Space, bytes: u32, count: u32) -> Option<()> {
        if space != Space::Global && bytes == 2 {
            self.program.granule_shift = self.program.granule_shift.min(1);
        }
        (bytes > 1 && bytes * count <= 16).then_some(())
    }

    fn note_bulk(&mut self, bulk: &BulkInst) {
        let program = &mut self.program;
        match bulk {
            BulkInst::Load { .. } | BulkInst::LoadBytes { .. } => program.uses_async_proxy = true,
            BulkInst::Send { .. } => (program.uses_async_proxy, program.sends) = (true, true),
            BulkInst::Store { .. } | BulkInst::StoreBytes { .. } | BulkInst::Reduce { .. } => {
                (program.uses_async_proxy, program.uses_bulk_stores) = (true, true);
            }
            BulkInst::Commit | BulkInst::Wait { .. } => program.uses_bulk_stores = true,
            BulkInst::Prefetch { .. } => {}
        }
    }
}

fn half(ty: T) -> Half {
    if ty == T::BF16x2 { Half::BF16 } else { Half::F16 }
}

/// Logic of predicates.
fn predicates<'k>(op: BinOp, rows: [Row; 3]) -> Option<Op<'k>> {
    match op {
        BinOp::And => Some(Op::PredAnd(rows)),
        BinOp::Or => Some(Op::PredOr(rows)),
        BinOp::Xor => Some(Op::PredXor(rows)),
        BinOp::Add | BinOp::Sub | BinOp::Mul | BinOp::MulHi | BinOp::MulWide | BinOp::Min | BinOp::Max => None,
        BinOp::Div | BinOp::Rem | BinOp::Shl | BinOp::Shr => None,
    }
}

impl Class {
    /// Whether what its instructions write depends on what they read alone, in each lane.
    pub(crate) fn is_arithmetic(self) -> bool {
        matches!(
            self,
            Class::Fma | Class::Alu | Class::Half | Class::Convert | Class::Mufu
        )
    }

    /// The class of an instruction.
    pub(crate) fn of(inst: &Inst) -> Class {
        let memory = |space: Space, shared, global| if space == Space::Global { global } else { shared };
        match inst {
            Inst::Bin {
                op: BinOp::Min | BinOp::Max,
                ty: T::F32,
                ..
            } => Class::Alu,
            Inst::Bin { ty: T::F32, .. } | Inst::Fma { ty: T::F32, .. } => Class::Fma,
            Inst::Un {
                op: UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp,
                ..
            } => Class::Mufu,
            Inst::Bin { ty, .. } | Inst::Un { ty, .. } | Inst::Fma { ty, .. } if matches!(ty, T::F16x2 | T::BF16x2) => {
                Class::Half
            }
            Inst::Bin { .. }
            | Inst::Un { .. }
            | Inst::Fma { .. }
            | Inst::Mov { .. }
            | Inst::MadWide { .. }
            | Inst::Pack { .. }
            | Inst::Unpack { .. }
            | Inst::Lop3 { .. }
            | Inst::Prmt { .. }
            | Inst::Setp { .. }
            | Inst::Selp { .. }
            | Inst::Special { .. }
            | Inst::Param { .. }
            | Inst::SharedBase { .. }
            | Inst::Cluster(ClusterInst::Mapa { .. }) => Class::Alu,
            Inst::Cvt { .. } | Inst::CvtPack { .. } => Class::Convert,
            Inst::Ld { space, .. } => memory(*space, Class::LoadShared, Class::LoadGlobal),
            Inst::St { space, .. } => memory(*space, Class::StoreShared, Class::StoreGlobal),
            Inst::LdMatrix { .. } => Class::LoadShared,
            Inst::StMatrix { .. } => Class::StoreShared,
            Inst::Flag(FlagInst::LoadAcquire { .. }) => Class::LoadGlobal,
            Inst::Flag(FlagInst::StoreRelease { .. }) => Class::StoreGlobal,
            Inst::Flag(FlagInst::Add { .. }) | Inst::Atom { .. } | Inst::AddFour { .. } => Class::Atomic,
            Inst::Mma { .. } | Inst::Wgmma(WgmmaInst::Mma { .. }) => Class::Tensor,
            Inst::Shfl { .. } | Inst::Vote { .. } | Inst::Redux { .. } | Inst::Elect { .. } => Class::Exchange,
            Inst::TrapIf { .. } => Class::Control,
            Inst::Trace { .. } => Class::Structure,
            Inst::Bulk(BulkInst::Commit | BulkInst::Wait { .. })
            | Inst::Wgmma(WgmmaInst::Fence | WgmmaInst::Commit | WgmmaInst::Wait { .. })
            | Inst::Cluster(ClusterInst::Arrive { .. } | ClusterInst::Wait { .. })
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::BarSync { .. }
            | Inst::BarArrive { .. }
            | Inst::BarWarp { .. }
            | Inst::Fence(_)
            | Inst::SetMaxRegs { .. }
            | Inst::DependencyWait
            | Inst::DependencyTrigger
            | Inst::Mbar(_) => Class::Sync,
            Inst::CpAsync { .. } | Inst::Bulk(_) => Class::CopyAsync,
        }
    }
}
