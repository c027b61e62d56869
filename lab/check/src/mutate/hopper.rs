//! The same for mbarriers, bulk copies, products of warpgroups, and what goes between blocks.

use flashcore_ir::inst::{BinOp, BulkInst, ClusterInst, Major, MbarInst, Scope, WgmmaA, WgmmaInst};
use flashcore_ir::{Inst, Operand, Reg, RegClass};

use super::Operator;
use super::changes::Changes;

/// Columns that a tensor copy is off by: 16 bytes of 16-bit elements.
const COLUMNS: u64 = 8;

/// Bytes that an announcement is off by.
const BYTES: u64 = 16;

/// Registers of operand A of a step.
const A_REGISTERS: u32 = 4;

impl Changes<'_> {
    pub(super) fn mbarrier(&mut self, inst: &MbarInst) {
        match *inst {
            MbarInst::Init { arrivals, .. } => {
                self.drop(Operator::DropInit);
                for (operator, count) in [
                    (Operator::ExtraArrival, arrivals + 1),
                    (Operator::MissingArrival, arrivals - 1),
                ] {
                    self.edit(operator, |inst| {
                        if let Inst::Mbar(MbarInst::Init { arrivals, .. }) = inst {
                            *arrivals = count;
                        }
                    });
                }
            }
            MbarInst::Arrive { tx, scope, .. } => {
                self.drop(Operator::DropArrive);
                if let Some(tx) = tx {
                    self.bytes(tx);
                }
                self.narrow(scope);
            }
            MbarInst::ExpectTx { tx, .. } => {
                self.drop(Operator::DropArrive);
                self.bytes(tx);
            }
            MbarInst::Test { dst, parity, scope, .. } => {
                let replace = |inst: &mut Inst, value| {
                    if let Inst::Mbar(MbarInst::Test { parity, .. }) = inst {
                        *parity = value;
                    }
                };
                if let Operand::Reg(_) = parity {
                    self.edit(Operator::FixedParity, |inst| replace(inst, Operand::Imm(0)));
                }
                self.with_operand(Operator::FlipParity, parity, (BinOp::Xor, 1), replace);
                let src = Operand::Imm(1);
                self.put(Operator::DropPhaseWait, Inst::Mov { dst, src });
                self.narrow(scope);
            }
        }
    }

    /// Other bytes are announced.
    fn bytes(&mut self, tx: Operand) {
        let replace = |inst: &mut Inst, value| match inst {
            Inst::Mbar(MbarInst::Arrive { tx, .. }) => *tx = Some(value),
            Inst::Mbar(MbarInst::ExpectTx { tx, .. }) => *tx = value,
            _ => {}
        };
        self.with_operand(Operator::ExtraBytes, tx, (BinOp::Add, BYTES), replace);
        if let Operand::Imm(bytes) = tx {
            self.edit(Operator::HalfBytes, |inst| replace(inst, Operand::Imm(bytes / 2)));
        }
    }

    fn narrow(&mut self, scope: Scope) {
        if scope == Scope::Block {
            return;
        }
        self.edit(Operator::NarrowScope, |inst| {
            if let Inst::Mbar(MbarInst::Arrive { scope, .. } | MbarInst::Test { scope, .. }) = inst {
                *scope = Scope::Block;
            }
        });
    }

    pub(super) fn bulk(&mut self, inst: &BulkInst) {
        match inst {
            BulkInst::Load { at, multicast, .. } => {
                self.drop(Operator::DropCopy);
                self.coordinates(at);
                self.edit(Operator::WrongMbarrier, |inst| {
                    if let Inst::Bulk(BulkInst::Load { bar, .. }) = inst {
                        bar.offset += 8;
                    }
                });
                if multicast.is_some() {
                    self.edit(Operator::DropMulticast, |inst| {
                        if let Inst::Bulk(BulkInst::Load { multicast, .. }) = inst {
                            *multicast = None;
                        }
                    });
                }
            }
            BulkInst::Store { at, .. } => {
                self.drop(Operator::DropCopy);
                self.coordinates(at);
            }
            // It makes copies faster, not other ones.
            BulkInst::Prefetch { .. } => {}
            BulkInst::Commit => self.drop(Operator::DropCommit),
            &BulkInst::Wait { pending, read } => {
                self.drop(Operator::DropAsyncWait);
                let pending = pending + 1;
                self.put(Operator::WeakenAsyncWait, Inst::Bulk(BulkInst::Wait { pending, read }));
                if !read {
                    self.edit(Operator::OnlyRead, |inst| {
                        if let Inst::Bulk(BulkInst::Wait { read, .. }) = inst {
                            *read = true;
                        }
                    });
                }
            }
        }
    }

    /// Coordinates are (column, row, head, batch).
    fn coordinates(&mut self, at: &[Operand]) {
        let coordinate = |inst: &mut Inst, index: usize, value| {
            if let Inst::Bulk(BulkInst::Load { at, .. } | BulkInst::Store { at, .. }) = inst {
                at[index] = value;
            }
        };
        let off = [
            (Operator::ColumnOff, COLUMNS),
            (Operator::RowOff, 1),
            (Operator::HeadOff, 1),
        ];
        for (index, ((operator, by), &operand)) in off.into_iter().zip(at).enumerate() {
            self.with_operand(operator, operand, (BinOp::Add, by), |inst, value| {
                coordinate(inst, index, value);
            });
        }
        if let [_, row, head, ..] = at {
            self.edit(Operator::SwapCoordinates, |inst| {
                coordinate(inst, 1, *head);
                coordinate(inst, 2, *row);
            });
        }
    }

    pub(super) fn product(&mut self, inst: &WgmmaInst) {
        match *inst {
            WgmmaInst::Mma { a, accumulate, .. } => {
                self.drop(Operator::DropProduct);
                let flipped = match accumulate {
                    Operand::Imm(0) | Operand::Reg(_) => Operand::Imm(1),
                    Operand::Imm(_) => Operand::Imm(0),
                };
                self.edit(Operator::FlipAccumulate, |inst| {
                    if let Inst::Wgmma(WgmmaInst::Mma { accumulate, .. }) = inst {
                        *accumulate = flipped;
                    }
                });
                self.edit(Operator::FlipTranspose, |inst| {
                    if let Inst::Wgmma(WgmmaInst::Mma { b, .. }) = inst {
                        b.major = match b.major {
                            Major::K => Major::Mn,
                            Major::Mn => Major::K,
                        };
                    }
                });
                if let WgmmaA::Regs(first) = a
                    && self.exists(first, 2 * A_REGISTERS)
                {
                    let next = first.plus(A_REGISTERS);
                    self.edit(Operator::NextFragment, |inst| {
                        if let Inst::Wgmma(WgmmaInst::Mma { a, .. }) = inst {
                            *a = WgmmaA::Regs(next);
                        }
                    });
                }
            }
            WgmmaInst::Fence => self.drop(Operator::DropFence),
            WgmmaInst::Commit => self.drop(Operator::DropCommit),
            WgmmaInst::Wait { pending } => {
                self.drop(Operator::DropAsyncWait);
                let pending = pending + 1;
                self.put(Operator::WeakenAsyncWait, Inst::Wgmma(WgmmaInst::Wait { pending }));
            }
        }
    }

    /// Of two words joined to a matrix descriptor (PTX ISA, "Matrix Descriptor Format"): start and leading offset are in the
    /// lower one, stride and swizzle in the upper.
    pub(super) fn descriptor(&mut self, dst: Reg, lo: Operand, hi: Operand) {
        let Operand::Imm(high) = hi else { return };
        let mode = high >> 30;
        if dst.class != RegClass::B64 || mode == 0 {
            return;
        }
        let with_high = |high| Inst::Pack {
            dst,
            lo,
            hi: Operand::Imm(high),
        };
        self.put(Operator::DescriptorStride, with_high(high + 1));
        let stride = high & 0x3fff_ffff;
        self.put(Operator::DescriptorSwizzle, with_high(stride | (mode % 3 + 1) << 30));
        let replace = |inst: &mut Inst, value| {
            if let Inst::Pack { lo, .. } = inst {
                *lo = value;
            }
        };
        self.with_operand(Operator::DescriptorStart, lo, (BinOp::Add, 1), replace);
        self.with_operand(Operator::DescriptorLeading, lo, (BinOp::Add, 1 << 16), replace);
    }

    pub(super) fn cluster(&mut self, inst: &ClusterInst) {
        match *inst {
            ClusterInst::Mapa { dst, addr, .. } => self.put(Operator::OwnBlock, Inst::Mov { dst, src: addr }),
            ClusterInst::Arrive { release, .. } => {
                self.drop(Operator::DropArrive);
                if release {
                    self.edit(Operator::RelaxArrive, |inst| {
                        if let Inst::Cluster(ClusterInst::Arrive { release, .. }) = inst {
                            *release = false;
                        }
                    });
                }
            }
            ClusterInst::Wait { .. } => self.drop(Operator::DropClusterWait),
        }
    }
}
