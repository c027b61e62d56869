//! Looks up the operands of operations, and notes which features of the simulator an instruction needs.

use flashcore_ir::inst::{Access, BulkInst, ClusterInst, Inst, Object, Slot, Space, StoreSource, WgmmaInst};
use flashcore_ir::{Operand, Reg};

use crate::lower::Lowering;
use crate::program::{OPERANDS, Op, Row};
use crate::report::Class;
use crate::text::cold::{Cold, Mbarrier, Memory, Strength, What};
use crate::text::numbers::Ty;

impl<'k> Lowering<'k> {
    /// An instruction as an operation, with its class; `None` if no machine instruction has its types.
    pub(crate) fn decode(&mut self, inst: &'k Inst) -> Option<(Op<'k>, Class)> {
        self.note_parameters(inst);
        match *inst {
            Inst::Ld { space, dst, count, .. } => self.note_access(space, dst.class.bytes(), count)?,
            Inst::St {
                space, ref src, count, ..
            } => self.note_access(space, src.bytes(), count)?,
            Inst::CpAsync { .. } => self.program.uses_cp_async = true,
            Inst::Wgmma(_) => (self.program.uses_async_proxy, self.program.uses_products) = (true, true),
            Inst::Bulk(ref bulk) => self.note_bulk(bulk),
            _ => {}
        }
        Some((Op::Inst(inst, self.operands(inst)), Class::of(inst)?))
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
                Slot::Value(operand, ty) => rows.push(self.value(*operand, ty.bytes())),
                Slot::Stored(StoreSource::Regs(first), count) => {
                    rows.extend(run(*first, count).map(|reg| self.reg(reg)));
                }
                Slot::Stored(StoreSource::Imm(ty, bits), count) => {
                    let row = self.value(Operand::Imm(*bits), ty.bytes());
                    rows.extend((0..count).map(|_| row));
                }
                Slot::Memory(addr, Space::Global, _) => rows.push(self.bits64(addr.base)),
                Slot::Memory(addr, Space::Shared | Space::Cluster, _) => rows.push(self.bits32(addr.base)),
                Slot::Elected(reg) | Slot::Guard(reg) | Slot::Traced(_, reg) => rows.push(self.reg(*reg)),
                // Boxes have operands that are looked up when a copy runs; the others have none, or are of arithmetic.
                _ => {}
            }
        }
        rows.resize(OPERANDS, 0);
        std::array::from_fn(|i| rows[i])
    }

    /// The row of an operand of so many bytes, of which a predicate has one.
    fn value(&mut self, operand: Operand, bytes: u32) -> Row {
        match bytes {
            1 => self.pred(operand),
            8 => self.bits64(operand),
            _ => self.bits32(operand),
        }
    }

    /// An operation of numbered operands as one of their rows.
    pub(crate) fn numbered(&mut self, mut op: Op<'static>, types: &[Ty], cold: &Cold) -> Op<'k> {
        let mut rows: Vec<Row> = cold.writes.iter().map(|reg| self.reg(*reg)).collect();
        for (read, ty) in cold.reads.iter().zip(types) {
            rows.push(self.value(*read, ty.bytes()));
        }
        for row in op.rows() {
            *row = rows[usize::from(*row)];
        }
        op
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

impl Class {
    /// The class of an instruction; none of those that are read as cold steps.
    pub(crate) fn of(inst: &Inst) -> Option<Class> {
        let memory = |space: Space, shared, global| if space == Space::Global { global } else { shared };
        Some(match inst {
            Inst::Special { .. } | Inst::Param { .. } | Inst::SharedBase { .. } => Class::Alu,
            Inst::Cluster(ClusterInst::Mapa { .. }) => Class::Alu,
            Inst::Ld { space, .. } => memory(*space, Class::LoadShared, Class::LoadGlobal),
            Inst::St { space, .. } => memory(*space, Class::StoreShared, Class::StoreGlobal),
            Inst::LdMatrix { .. } => Class::LoadShared,
            Inst::StMatrix { .. } => Class::StoreShared,
            Inst::AddFour { .. } => Class::Atomic,
            Inst::Mma { .. } | Inst::Wgmma(WgmmaInst::Mma { .. }) => Class::Tensor,
            Inst::Elect { .. } => Class::Exchange,
            Inst::TrapIf { .. } => Class::Control,
            Inst::Trace { .. } => Class::Structure,
            Inst::Bulk(BulkInst::Commit | BulkInst::Wait { .. })
            | Inst::Wgmma(WgmmaInst::Fence | WgmmaInst::Commit | WgmmaInst::Wait { .. })
            | Inst::Cluster(ClusterInst::Arrive { .. } | ClusterInst::Wait { .. })
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::Fence(_)
            | Inst::SetMaxRegs { .. }
            | Inst::DependencyWait
            | Inst::DependencyTrigger => Class::Sync,
            Inst::CpAsync { .. } | Inst::Bulk(_) => Class::CopyAsync,
            _ => return None,
        })
    }
}
