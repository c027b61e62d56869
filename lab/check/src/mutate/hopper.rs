//! Changes of mbarrier, bulk, product and cluster instructions.

use flashcore_ir::inst::{BinOp, BulkInst, ClusterInst, FlagInst, Major, MbarInst, Scope, WgmmaA, WgmmaInst};
use flashcore_ir::{Inst, Operand, Reg, RegClass};

use super::Operator as O;
use super::changes::{Changes, edit};

/// Columns that a tensor copy is off by: 16 bytes of 16-bit elements.
const COLUMNS: u64 = 8;

/// Bytes that an announcement is off by.
const BYTES: u64 = 16;

/// Registers of operand A of a step.
const A_REGISTERS: u32 = 4;

impl Changes<'_> {
    pub(super) fn mbarrier(&mut self, inst: &MbarInst) {
        match *inst {
            MbarInst::Init { .. } => {
                self.drop(O::DropInit);
                edit!(self, O::ExtraArrival, Inst::Mbar(MbarInst::Init { arrivals, .. }) => *arrivals += 1);
                edit!(self, O::MissingArrival, Inst::Mbar(MbarInst::Init { arrivals, .. }) => *arrivals -= 1);
            }
            MbarInst::Arrive { tx, .. } => {
                self.drop(O::DropArrive);
                if let Some(tx) = tx {
                    self.bytes(tx);
                }
                self.narrow();
            }
            MbarInst::ExpectTx { tx, .. } => {
                self.drop(O::DropArrive);
                self.bytes(tx);
            }
            MbarInst::Test { dst, parity, .. } => {
                if let Operand::Reg(_) = parity {
                    let zero = Operand::Imm(0);
                    edit!(self, O::FixedParity, Inst::Mbar(MbarInst::Test { parity, .. }) => *parity = zero);
                }
                edit!(self, O::FlipParity, parity (BinOp::Xor, 1), Inst::Mbar(MbarInst::Test { parity, .. }) => parity);
                let src = Operand::Imm(1);
                self.put(O::DropPhaseWait, Inst::Mov { dst, src });
                self.narrow();
            }
        }
    }

    /// Announces other bytes.
    fn bytes(&mut self, tx: Operand) {
        let replace = |inst: &mut Inst, value| {
            if let Inst::Mbar(MbarInst::Arrive { tx: Some(tx), .. } | MbarInst::ExpectTx { tx, .. }) = inst {
                *tx = value;
            }
        };
        self.with_operand(O::ExtraBytes, tx, (BinOp::Add, BYTES), replace);
        if let Operand::Imm(bytes) = tx {
            self.edit(O::HalfBytes, |inst| replace(inst, Operand::Imm(bytes / 2)));
        }
    }

    fn narrow(&mut self) {
        edit!(self, O::NarrowScope, Inst::Mbar(MbarInst::Arrive { scope, .. } | MbarInst::Test { scope, .. }) => {
            *scope = Scope::Block
        });
    }

    pub(super) fn flag(&mut self, inst: &FlagInst) {
        match inst {
            FlagInst::LoadAcquire { .. } => {}
            FlagInst::StoreRelease { .. } | FlagInst::Add { .. } => self.drop(O::DropStore),
        }
    }

    pub(super) fn bulk(&mut self, inst: &BulkInst) {
        match inst {
            BulkInst::Load { at, .. } => {
                self.drop(O::DropCopy);
                self.coordinates(at);
                edit!(self, O::WrongMbarrier, Inst::Bulk(BulkInst::Load { bar, .. }) => bar.offset += 8);
                edit!(self, O::DropMulticast, Inst::Bulk(BulkInst::Load { multicast, .. }) => *multicast = None);
            }
            BulkInst::Store { at, .. } => {
                self.drop(O::DropCopy);
                self.coordinates(at);
            }
            BulkInst::LoadBytes { .. } => {
                self.drop(O::DropCopy);
                edit!(self, O::WrongMbarrier, Inst::Bulk(BulkInst::LoadBytes { bar, .. }) => bar.offset += 8);
            }
            BulkInst::StoreBytes { .. } | BulkInst::Reduce { .. } => self.drop(O::DropCopy),
            // A prefetch changes no results.
            BulkInst::Prefetch { .. } => {}
            BulkInst::Commit => self.drop(O::DropCommit),
            BulkInst::Wait { .. } => {
                self.drop(O::DropAsyncWait);
                edit!(self, O::WeakenAsyncWait, Inst::Bulk(BulkInst::Wait { pending, .. }) => *pending += 1);
                edit!(self, O::OnlyRead, Inst::Bulk(BulkInst::Wait { read, .. }) => *read = true);
            }
        }
    }

    /// Coordinates are (column, row, head, batch).
    fn coordinates(&mut self, at: &[Operand]) {
        let off = [(O::ColumnOff, COLUMNS), (O::RowOff, 1), (O::HeadOff, 1)];
        for (index, ((operator, by), &operand)) in off.into_iter().zip(at).enumerate() {
            edit!(self, operator, operand (BinOp::Add, by),
                Inst::Bulk(BulkInst::Load { at, .. } | BulkInst::Store { at, .. }) => &mut at[index]);
        }
        if at.len() > 2 {
            edit!(self, O::SwapCoordinates, Inst::Bulk(BulkInst::Load { at, .. } | BulkInst::Store { at, .. }) => {
                at.swap(1, 2)
            });
        }
    }

    pub(super) fn product(&mut self, inst: &WgmmaInst) {
        match *inst {
            WgmmaInst::Mma { a, accumulate, .. } => {
                self.drop(O::DropProduct);
                let flipped = match accumulate {
                    Operand::Imm(0) | Operand::Reg(_) => Operand::Imm(1),
                    Operand::Imm(_) => Operand::Imm(0),
                };
                edit!(self, O::FlipAccumulate, Inst::Wgmma(WgmmaInst::Mma { accumulate, .. }) => *accumulate = flipped);
                edit!(self, O::FlipTranspose, Inst::Wgmma(WgmmaInst::Mma { b, .. }) => b.major = match b.major {
                    Major::K => Major::Mn,
                    Major::Mn => Major::K,
                });
                if let WgmmaA::Regs(first) = a
                    && self.exists(first, 2 * A_REGISTERS)
                {
                    let next = WgmmaA::Regs(first.plus(A_REGISTERS));
                    edit!(self, O::NextFragment, Inst::Wgmma(WgmmaInst::Mma { a, .. }) => *a = next);
                }
            }
            WgmmaInst::Fence => self.drop(O::DropFence),
            WgmmaInst::Commit => self.drop(O::DropCommit),
            WgmmaInst::Wait { .. } => {
                self.drop(O::DropAsyncWait);
                edit!(self, O::WeakenAsyncWait, Inst::Wgmma(WgmmaInst::Wait { pending }) => *pending += 1);
            }
        }
    }

    /// Changes of two words that are joined to a matrix descriptor (PTX ISA, "Matrix Descriptor
    /// Format"): the lower one has start and leading offset, the upper one stride and swizzle.
    pub(super) fn descriptor(&mut self, dst: Reg, lo: Operand, hi: Operand) {
        let Operand::Imm(high) = hi else { return };
        let mode = high >> 30;
        if dst.class != RegClass::B64 || mode == 0 {
            return;
        }
        let swizzled = high & 0x3fff_ffff | (mode % 3 + 1) << 30;
        edit!(self, O::DescriptorStride, Inst::Pack { hi, .. } => *hi = Operand::Imm(high + 1));
        edit!(self, O::DescriptorSwizzle, Inst::Pack { hi, .. } => *hi = Operand::Imm(swizzled));
        edit!(self, O::DescriptorStart, lo (BinOp::Add, 1), Inst::Pack { lo, .. } => lo);
        edit!(self, O::DescriptorLeading, lo (BinOp::Add, 1 << 16), Inst::Pack { lo, .. } => lo);
    }

    pub(super) fn cluster(&mut self, inst: &ClusterInst) {
        match *inst {
            ClusterInst::Mapa { dst, addr, .. } => self.put(O::OwnBlock, Inst::Mov { dst, src: addr }),
            ClusterInst::Arrive { .. } => {
                self.drop(O::DropArrive);
                edit!(self, O::RelaxArrive, Inst::Cluster(ClusterInst::Arrive { release, .. }) => *release = false);
            }
            ClusterInst::Wait { .. } => self.drop(O::DropClusterWait),
        }
    }
}
