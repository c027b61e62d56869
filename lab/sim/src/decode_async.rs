//! Decodes asynchronous and cluster instructions: mbarriers, bulk copies, warpgroup products. Also
//! finds the registers that products use.

use std::collections::HashMap;

use flashcore_ir::inst::{Address, BulkInst, ClusterInst, Descriptor, Inst, MbarInst, Scope, Space, WgmmaA, WgmmaInst};
use flashcore_ir::{Operand, Reg};

use crate::lower::Lowering;
use crate::program::{At, BoxCopy, Op, Product, ProductA, SharedOperand};
use crate::report::Class;

impl Lowering<'_> {
    /// Numbers the fragments: the registers of one accumulator or of one operand A.
    pub(crate) fn find_fragments(&mut self) {
        let mut runs: Vec<(Reg, u32)> = Vec::new();
        self.kernel.for_each_inst(&mut |inst, _| {
            if let Inst::Wgmma(WgmmaInst::Mma { n, d, a, .. }) = inst {
                runs.push((*d, n / 2));
                if let WgmmaA::Regs(first) = a {
                    runs.push((*first, 4));
                }
            }
        });
        // Merge overlapping runs into one fragment. In sorted order a run overlaps its predecessor
        // or nothing.
        runs.sort_by_key(|(reg, count)| (reg.class, reg.index, *count));
        runs.dedup();
        let mut merged: Vec<(Reg, u32)> = Vec::new();
        for (reg, count) in runs {
            match merged.last_mut() {
                Some((first, n)) if first.class == reg.class && reg.index < first.index + *n => {
                    *n = (*n).max(reg.index + count - first.index);
                }
                _ => merged.push((reg, count)),
            }
        }
        let mut fragments = HashMap::new();
        for (number, (first, count)) in merged.iter().enumerate() {
            let name = self.kernel.reg_name(*first).unwrap_or("operand A");
            self.program.fragments.push(name.to_string());
            fragments.extend((0..*count).map(|i| (first.plus(i), number as u16)));
        }
        self.fragments = fragments;
    }

    /// The operation and class of an asynchronous instruction.
    pub(crate) fn asynchronous(&mut self, inst: &Inst) -> Option<(Op, Class)> {
        Some(match inst {
            Inst::Elect { dst } => (Op::Elect { d: self.reg(*dst) }, Class::Exchange),
            Inst::TrapIf { pred } => (Op::TrapIf { pred: self.reg(*pred) }, Class::Control),
            Inst::SetMaxRegs { regs, raise } => {
                let (regs, raise) = (*regs as u16, *raise);
                (Op::SetMaxRegs { regs, raise }, Class::Sync)
            }
            Inst::DependencyWait => (Op::DependencyWait, Class::Sync),
            // Only one launch is simulated at a time, so the trigger has no effect.
            Inst::DependencyTrigger => (Op::Nothing, Class::Sync),
            Inst::FenceProxyAsync => (Op::FenceProxyAsync, Class::Sync),
            Inst::FenceMbarrierInit => (Op::FenceMbarrierInit, Class::Sync),
            Inst::StMatrix {
                src,
                count,
                transposed,
                addr,
            } => {
                let op = Op::StMatrix {
                    s: self.regs(*src, *count),
                    count: *count as u8,
                    transposed: *transposed,
                    at: self.at(addr, Space::Shared),
                };
                (op, Class::StoreShared)
            }
            Inst::Cluster(inst) => match inst {
                ClusterInst::Mapa { dst, addr, rank } => {
                    let (d, addr, rank) = (self.reg(*dst), self.bits32(*addr), self.bits32(*rank));
                    (Op::Mapa { d, addr, rank }, Class::Alu)
                }
                ClusterInst::Arrive { release, aligned } => {
                    let (release, aligned) = (*release, *aligned);
                    (Op::ClusterArrive { release, aligned }, Class::Sync)
                }
                ClusterInst::Wait { aligned } => (Op::ClusterWait { aligned: *aligned }, Class::Sync),
            },
            Inst::Mbar(inst) => (self.mbar(inst), Class::Sync),
            Inst::Bulk(inst) => self.bulk(inst),
            Inst::Wgmma(inst) => self.product(inst)?,
            _ => return None,
        })
    }

    fn mbar(&mut self, inst: &MbarInst) -> Op {
        match inst {
            MbarInst::Init { addr, arrivals } => Op::MbarInit {
                at: self.at(addr, Space::Shared),
                arrivals: *arrivals,
            },
            MbarInst::Arrive {
                addr,
                remote,
                scope,
                tx,
            } => Op::MbarArrive {
                at: self.at(addr, if *remote { Space::Cluster } else { Space::Shared }),
                cluster: *scope == Scope::Cluster,
                tx: tx.map(|tx| self.bits32(tx)),
            },
            MbarInst::ExpectTx { addr, tx } => Op::MbarExpect {
                at: self.at(addr, Space::Shared),
                tx: self.bits32(*tx),
            },
            MbarInst::Test {
                dst,
                addr,
                parity,
                blocking,
                ..
            } => Op::MbarTest {
                d: self.reg(*dst),
                at: self.at(addr, Space::Shared),
                parity: self.bits32(*parity),
                blocking: *blocking,
            },
        }
    }

    fn bulk(&mut self, inst: &BulkInst) -> (Op, Class) {
        let copy = self.program.copies.len() as u32;
        match inst {
            BulkInst::Load {
                dst,
                map,
                at,
                bar,
                multicast,
                ..
            } => {
                let multicast = multicast.map(|mask| self.bits32(mask));
                let mbarrier = Some(self.at(bar, Space::Shared));
                self.box_copy(map, at, dst, mbarrier, multicast);
                (Op::BulkLoad { copy }, Class::CopyAsync)
            }
            BulkInst::Store { map, at, src } => {
                self.box_copy(map, at, src, None, None);
                (Op::BulkStore { copy }, Class::CopyAsync)
            }
            BulkInst::Prefetch { .. } => (Op::Nothing, Class::CopyAsync),
            BulkInst::Commit => (Op::BulkCommit, Class::Sync),
            BulkInst::Wait { pending, read } => {
                let (pending, read) = (*pending, *read);
                (Op::BulkWait { pending, read }, Class::Sync)
            }
        }
    }

    fn box_copy(
        &mut self,
        map: &Address,
        at: &[Operand],
        shared: &Address,
        mbarrier: Option<At>,
        multicast: Option<crate::program::Row>,
    ) {
        let at = at.iter().map(|&x| self.bits32(x)).collect();
        let copy = BoxCopy {
            map: At::object_of(map.object),
            map_base: self.bits64(map.base),
            map_offset: map.offset,
            at,
            shared: self.at(shared, Space::Shared),
            mbarrier,
            multicast,
        };
        self.program.copies.push(copy);
    }

    fn product(&mut self, inst: &WgmmaInst) -> Option<(Op, Class)> {
        Some(match inst {
            WgmmaInst::Fence => (Op::WgmmaFence, Class::Sync),
            WgmmaInst::Commit => (Op::WgmmaCommit, Class::Sync),
            WgmmaInst::Wait { pending } => (Op::WgmmaWait { pending: *pending }, Class::Sync),
            WgmmaInst::Mma {
                input,
                n,
                d,
                a,
                b,
                accumulate,
            } => {
                let a = match a {
                    WgmmaA::Shared(descriptor) => ProductA::Shared(self.shared_operand(descriptor)),
                    WgmmaA::Regs(first) => ProductA::Regs {
                        rows: self.regs(*first, 4),
                        fragment: *self.fragments.get(first)?,
                    },
                };
                let product = Product {
                    input: *input,
                    n: *n,
                    d: (0..n / 2).map(|i| self.reg(d.plus(i))).collect(),
                    d_fragment: *self.fragments.get(d)?,
                    a,
                    b: self.shared_operand(b),
                    accumulate: self.pred(*accumulate),
                };
                self.program.products.push(product);
                let product = self.program.products.len() as u32 - 1;
                (Op::Wgmma { product }, Class::Tensor)
            }
        })
    }

    fn shared_operand(&mut self, descriptor: &Descriptor) -> SharedOperand {
        SharedOperand {
            bits: self.bits64(descriptor.bits),
            buffer: descriptor.buffer.0 as u16,
            major: descriptor.major,
        }
    }
}
