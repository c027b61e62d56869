//! The operands of each instruction, in the order of PTX. The writer prints them, the reader fills
//! them in, and the registers and the memory that an instruction touches follow from them.

use super::{
    Address, BulkInst, ClusterInst, FlagInst, Inst, Major, MbarInst, MmaAcc, Operand, Space, Special, StoreSource,
};
use super::{BinOp, ShflMode, WgmmaA, WgmmaInput, WgmmaInst};
use crate::types::{Reg, RegClass, ScalarType};

/// What an instruction does with registers or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads them.
    Read,
    /// Writes them.
    Write,
    /// Reads and writes them.
    Update,
}

impl Access {
    /// Whether it reads.
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether it writes.
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// An operand of an instruction, to be printed, filled in or looked at.
#[derive(Debug)]
pub enum Slot<'a> {
    /// Contiguous registers: the first, their number, and what is done with them.
    Regs(&'a mut Reg, u32, Access),
    /// Contiguous registers of matrices, which PTX has in braces even where there is one.
    Matrices(&'a mut Reg, u32, Access),
    /// Two registers that are written, in braces.
    Halves(&'a mut Reg, &'a mut Reg),
    /// A register or an immediate of a type that is read.
    Value(&'a mut Operand, ScalarType),
    /// Two of them in braces.
    Pair(&'a mut Operand, &'a mut Operand, ScalarType),
    /// What a store writes, and how many of it.
    Stored(&'a mut StoreSource, u32),
    /// Memory in brackets, its space, and what is done there.
    Memory(&'a mut Address, Space, Access),
    /// A tensor map in global memory, coordinates in it, and what is done to the tensor.
    TensorBox(&'a mut Address, &'a mut Vec<Operand>, Access),
    /// A number of the instruction.
    Number(&'a mut u32),
    /// A number that is printed as a bit mask.
    Mask(&'a mut u32),
    /// The truth table of `lop3`.
    Table(&'a mut u8),
    /// 1 where an operand of a product is transposed.
    Transposed(&'a mut Major),
    /// A number that is always the same.
    Fixed(u64),
    /// `_`: a result that is not used.
    Unused,
    /// A predicate that is written, after an unused result: `_|p`.
    Elected(&'a mut Reg),
    /// A predicate before the opcode: `@p`.
    Guard(&'a mut Reg),
    /// A special register.
    Special(&'a mut Special),
    /// The kernel parameter of an index.
    Param(&'a mut u32),
    /// The symbol of shared memory.
    SharedBase,
    /// The label of a trace, and the register that is shown.
    Traced(u32, &'a mut Reg),
}

fn written(reg: &mut Reg) -> Slot<'_> {
    Slot::Regs(reg, 1, Access::Write)
}

fn read(reg: &mut Reg) -> Slot<'_> {
    Slot::Regs(reg, 1, Access::Read)
}

fn shared(addr: &mut Address, access: Access) -> Slot<'_> {
    Slot::Memory(addr, Space::Shared, access)
}

impl Inst {
    /// The operands, in the order of PTX.
    pub fn slots(&mut self) -> Vec<Slot<'_>> {
        use Access::{Read, Write};
        use ScalarType::{B16, B32, B64, F32, S64, U32, U64};
        use Slot::{Fixed, Mask, Matrices, Memory, Number, Regs, Value};
        match self {
            Inst::Mov { dst, src } => {
                // PTX has no immediate predicates: a comparison with 0 makes one.
                let is_compared = dst.class == RegClass::Pred && matches!(src, Operand::Imm(_));
                let ty = if is_compared { U32 } else { dst.class.scalar() };
                let mut slots = vec![written(dst), Value(src, ty)];
                slots.extend(is_compared.then_some(Fixed(0)));
                slots
            }
            Inst::Bin { op, ty, dst, a, b } => {
                let is_shift = matches!(op, BinOp::Shl | BinOp::Shr);
                vec![written(dst), Value(a, *ty), Value(b, if is_shift { U32 } else { *ty })]
            }
            Inst::Un { ty, dst, a, .. } => vec![written(dst), Value(a, *ty)],
            Inst::Fma { ty, dst, a, b, c } => vec![written(dst), Value(a, *ty), Value(b, *ty), Value(c, *ty)],
            Inst::MadWide { ty, dst, a, b, c } => {
                let wide = if *ty == ScalarType::S32 { S64 } else { U64 };
                vec![written(dst), Value(a, *ty), Value(b, *ty), Value(c, wide)]
            }
            Inst::Cvt { op, dst, src } => vec![written(dst), Value(src, op.source())],
            Inst::CvtPack { dst, lo, hi, .. } => vec![written(dst), Value(hi, F32), Value(lo, F32)],
            Inst::Pack { dst, lo, hi } => {
                let half = if dst.class == RegClass::B64 { B32 } else { B16 };
                vec![written(dst), Slot::Pair(lo, hi, half)]
            }
            Inst::Unpack { lo, hi, src } => {
                let whole = if lo.class == RegClass::B16 { B32 } else { B64 };
                vec![Slot::Halves(lo, hi), Value(src, whole)]
            }
            Inst::Lop3 { dst, a, b, c, table } => vec![
                written(dst),
                Value(a, B32),
                Value(b, B32),
                Value(c, B32),
                Slot::Table(table),
            ],
            Inst::Prmt { dst, a, b, selector } => {
                vec![written(dst), Value(a, B32), Value(b, B32), Value(selector, B32)]
            }
            Inst::Setp { ty, dst, a, b, .. } => vec![written(dst), Value(a, *ty), Value(b, *ty)],
            Inst::Selp { ty, dst, cond, a, b } => vec![written(dst), Value(a, *ty), Value(b, *ty), read(cond)],
            Inst::Special { dst, which } => vec![written(dst), Slot::Special(which)],
            Inst::Param { dst, index } => vec![written(dst), Slot::Param(index)],
            Inst::SharedBase { dst } => vec![written(dst), Slot::SharedBase],
            Inst::Ld {
                space,
                dst,
                count,
                addr,
                ..
            } => vec![Regs(dst, *count, Write), Memory(addr, *space, Read)],
            Inst::St {
                space,
                src,
                count,
                addr,
                ..
            } => vec![Memory(addr, *space, Write), Slot::Stored(src, *count)],
            Inst::CpAsync {
                dst,
                src,
                bytes,
                src_bytes,
                ..
            } => {
                let copied = [shared(dst, Write), Memory(src, Space::Global, Read), Number(bytes)];
                let partial = src_bytes.iter_mut().map(|bytes| Value(bytes, U32));
                copied.into_iter().chain(partial).collect()
            }
            Inst::CpAsyncWait { pending } => vec![Number(pending)],
            Inst::LdMatrix { dst, count, addr, .. } => vec![Matrices(dst, *count, Write), shared(addr, Read)],
            Inst::StMatrix { src, count, addr, .. } => vec![shared(addr, Write), Matrices(src, *count, Read)],
            Inst::Mma { acc, d, a, b, c, .. } => {
                let count = match acc {
                    MmaAcc::F32 => 4,
                    MmaAcc::F16 => 2,
                };
                vec![
                    Regs(d, count, Write),
                    Regs(a, 4, Read),
                    Regs(b, 2, Read),
                    Regs(c, count, Read),
                ]
            }
            Inst::Shfl {
                mode,
                dst,
                src,
                lane,
                members,
            } => {
                let (ty, clamp) = (dst.class.scalar(), u64::from(*mode != ShflMode::Up) * 31);
                vec![
                    written(dst),
                    Value(src, ty),
                    Value(lane, U32),
                    Fixed(clamp),
                    Mask(members),
                ]
            }
            Inst::Vote { dst, pred, members, .. } => vec![written(dst), read(pred), Mask(members)],
            Inst::Redux {
                ty, dst, src, members, ..
            } => vec![written(dst), Value(src, *ty), Mask(members)],
            Inst::BarSync { id, threads } => {
                let threads = threads.iter_mut().map(Number);
                std::iter::once(Value(id, U32)).chain(threads).collect()
            }
            Inst::BarArrive { id, threads } => vec![Value(id, U32), Number(threads)],
            Inst::BarWarp { members } => vec![Mask(members)],
            Inst::Atom {
                ty,
                space,
                dst,
                addr,
                value,
                ..
            } => {
                let changed = [Memory(addr, *space, Access::Update), Value(value, *ty)];
                dst.iter_mut().map(written).chain(changed).collect()
            }
            Inst::AddFour { addr, src } => vec![Memory(addr, Space::Global, Access::Update), Regs(src, 4, Read)],
            Inst::Elect { dst } => vec![Slot::Elected(dst), Fixed(0xffff_ffff)],
            Inst::TrapIf { pred } => vec![Slot::Guard(pred)],
            Inst::SetMaxRegs { regs, .. } => vec![Number(regs)],
            Inst::Trace { label, src } => vec![Slot::Traced(*label, src)],
            Inst::Flag(inst) => inst.slots(),
            Inst::Mbar(inst) => inst.slots(),
            Inst::Bulk(inst) => inst.slots(),
            Inst::Wgmma(inst) => inst.slots(),
            Inst::Cluster(ClusterInst::Mapa { dst, addr, rank }) => {
                vec![written(dst), Value(addr, U32), Value(rank, U32)]
            }
            Inst::Cluster(ClusterInst::Arrive { .. } | ClusterInst::Wait { .. })
            | Inst::CpAsyncCommit
            | Inst::Fence(_)
            | Inst::DependencyWait
            | Inst::DependencyTrigger => Vec::new(),
        }
    }

    /// Calls `reads` for every register the instruction reads and `writes` for every one it writes.
    /// Runs of registers are given as `(first, count)`.
    pub fn visit_regs(&self, mut reads: impl FnMut(Reg, u32), mut writes: impl FnMut(Reg, u32)) {
        for slot in self.clone().slots() {
            slot.visit_regs(&mut |first, count, access| {
                if access.reads() {
                    reads(first, count);
                }
                if access.writes() {
                    writes(first, count);
                }
            });
        }
    }
}

impl Slot<'_> {
    /// Calls `visit` for each run of registers: the first, their number, and what is done with them.
    pub(crate) fn visit_regs(&self, visit: &mut dyn FnMut(Reg, u32, Access)) {
        let mut read = |operand: &Operand| {
            if let Operand::Reg(reg) = operand {
                visit(*reg, 1, Access::Read);
            }
        };
        match self {
            Slot::Regs(first, count, access) | Slot::Matrices(first, count, access) => visit(**first, *count, *access),
            Slot::Halves(lo, hi) => {
                visit(**lo, 1, Access::Write);
                visit(**hi, 1, Access::Write);
            }
            Slot::Value(operand, _) => read(operand),
            Slot::Pair(lo, hi, _) => {
                read(lo);
                read(hi);
            }
            Slot::Memory(addr, ..) => read(&addr.base),
            Slot::TensorBox(map, at, _) => {
                read(&map.base);
                at.iter().for_each(read);
            }
            Slot::Stored(StoreSource::Regs(first), count) => visit(*first, *count, Access::Read),
            Slot::Elected(reg) => visit(**reg, 1, Access::Write),
            Slot::Guard(reg) | Slot::Traced(_, reg) => visit(**reg, 1, Access::Read),
            Slot::Stored(StoreSource::Imm(..), _)
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
}

impl FlagInst {
    fn slots(&mut self) -> Vec<Slot<'_>> {
        use Slot::{Memory, Value};
        match self {
            FlagInst::LoadAcquire { dst, addr } => vec![written(dst), Memory(addr, Space::Global, Access::Read)],
            FlagInst::StoreRelease { ty, addr, value } => {
                vec![Memory(addr, Space::Global, Access::Write), Value(value, *ty)]
            }
            FlagInst::Add { ty, addr, value, .. } => {
                vec![Memory(addr, Space::Global, Access::Update), Value(value, *ty)]
            }
        }
    }
}

impl MbarInst {
    fn slots(&mut self) -> Vec<Slot<'_>> {
        use Slot::{Memory, Number, Unused, Value};
        match self {
            MbarInst::Init { addr, arrivals } => vec![shared(addr, Access::Write), Number(arrivals)],
            MbarInst::Arrive { addr, remote, tx, .. } => {
                let space = if *remote { Space::Cluster } else { Space::Shared };
                let tx = tx.iter_mut().map(|tx| Value(tx, ScalarType::U32));
                [Unused, Memory(addr, space, Access::Update)]
                    .into_iter()
                    .chain(tx)
                    .collect()
            }
            MbarInst::ExpectTx { addr, tx } => vec![shared(addr, Access::Update), Value(tx, ScalarType::U32)],
            MbarInst::Test { dst, addr, parity, .. } => {
                vec![written(dst), shared(addr, Access::Read), Value(parity, ScalarType::U32)]
            }
        }
    }
}

impl BulkInst {
    fn slots(&mut self) -> Vec<Slot<'_>> {
        match self {
            BulkInst::Load {
                dst,
                map,
                at,
                bar,
                multicast,
                hint,
            } => {
                let copied = [
                    shared(dst, Access::Write),
                    Slot::TensorBox(map, at, Access::Read),
                    shared(bar, Access::Update),
                ];
                let mask = multicast.iter_mut().map(|mask| Slot::Value(mask, ScalarType::B16));
                let policy = hint.policy().into_iter().map(Slot::Fixed);
                copied.into_iter().chain(mask).chain(policy).collect()
            }
            BulkInst::Store { map, at, src } => {
                vec![Slot::TensorBox(map, at, Access::Write), shared(src, Access::Read)]
            }
            BulkInst::LoadBytes { dst, src, bytes, bar } => vec![
                shared(dst, Access::Write),
                Slot::Memory(src, Space::Global, Access::Read),
                Slot::Value(bytes, ScalarType::U32),
                shared(bar, Access::Update),
            ],
            BulkInst::StoreBytes { dst, src, bytes } => vec![
                Slot::Memory(dst, Space::Global, Access::Write),
                shared(src, Access::Read),
                Slot::Value(bytes, ScalarType::U32),
            ],
            BulkInst::Reduce { dst, src, bytes } => vec![
                Slot::Memory(dst, Space::Global, Access::Update),
                shared(src, Access::Read),
                Slot::Value(bytes, ScalarType::U32),
            ],
            BulkInst::Send { dst, src, bytes, bar } => vec![
                Slot::Memory(dst, Space::Cluster, Access::Write),
                shared(src, Access::Read),
                Slot::Value(bytes, ScalarType::U32),
                Slot::Memory(bar, Space::Cluster, Access::Update),
            ],
            BulkInst::Prefetch { map } => vec![Slot::Memory(map, Space::Global, Access::Read)],
            BulkInst::Commit => Vec::new(),
            BulkInst::Wait { pending, .. } => vec![Slot::Number(pending)],
        }
    }
}

impl WgmmaInst {
    fn slots(&mut self) -> Vec<Slot<'_>> {
        use Slot::{Fixed, Regs, Transposed, Value};
        match self {
            WgmmaInst::Mma {
                input,
                n,
                d,
                a,
                b,
                accumulate,
            } => {
                // Where nothing is accumulated the old contents do not matter.
                let is_overwritten = *accumulate == Operand::Imm(0);
                let access = if is_overwritten { Access::Write } else { Access::Update };
                let (a, a_major) = match a {
                    WgmmaA::Shared(a) => (Value(&mut a.bits, ScalarType::B64), Some(&mut a.major)),
                    WgmmaA::Regs(first) => (Regs(first, 4, Access::Read), None),
                };
                let mut slots = vec![Regs(d, *n / 2, access), a, Value(&mut b.bits, ScalarType::B64)];
                slots.extend([Value(accumulate, ScalarType::Pred), Fixed(1), Fixed(1)]);
                // 8-bit operands cannot be transposed, and the instruction has no operands for it.
                if *input != WgmmaInput::E4M3 {
                    slots.extend(a_major.into_iter().chain([&mut b.major]).map(Transposed));
                }
                slots
            }
            WgmmaInst::Fence | WgmmaInst::Commit => Vec::new(),
            WgmmaInst::Wait { pending } => vec![Slot::Number(pending)],
        }
    }
}
