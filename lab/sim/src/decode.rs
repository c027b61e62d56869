//! Decodes IR instructions into operations, rows and classes, and notes which features of the
//! simulator they need.

use flashcore_ir::inst::{
    Address, BulkInst, Cache, ClusterInst, Cvt, FlagInst, Inst, MmaAcc, MmaInput, Object, Scope, Space,
};
use flashcore_ir::inst::{StoreSource, WgmmaInput, WgmmaInst};
use flashcore_ir::{Operand, RegClass, ScalarType};

use crate::decode_arithmetic::number;
use crate::lower::Lowering;
use crate::program::{Access, At, Atom, CpAsync, Half, Matrix, Mma, Op, Row, Used, Width};
use crate::report::Class;

impl<'k> Lowering<'k> {
    /// The operation and class of an instruction; `None` if no such machine instruction exists.
    pub(crate) fn decode(&mut self, inst: &'k Inst) -> Option<(Op<'k>, Class)> {
        Some(match *inst {
            Inst::Mov { dst, src } => (self.mov(dst, src), Class::Alu),
            Inst::Bin { op, ty, dst, a, b } => return self.bin(op, ty, dst, a, b),
            Inst::Un { op, ty, dst, a } => return self.un(op, ty, dst, a),
            Inst::Fma { ty, dst, a, b, c } => return self.fma(ty, dst, [a, b, c]),
            Inst::MadWide { ty, dst, a, b, c } => {
                let rows = [self.reg(dst), self.bits32(a), self.bits32(b), self.bits64(c)];
                (Op::MadWide(ty == ScalarType::S32, rows), Class::Alu)
            }
            Inst::Cvt { op, dst, src } => {
                let a = if op == Cvt::U32FromU64 {
                    self.bits64(src)
                } else {
                    self.bits32(src)
                };
                (Op::Cvt(op, [self.reg(dst), a]), Class::Convert)
            }
            Inst::CvtPack { ty, dst, lo, hi } => {
                let to = match ty {
                    ScalarType::F16x2 => WgmmaInput::F16,
                    ScalarType::BF16x2 => WgmmaInput::BF16,
                    ScalarType::E4M3x2 => WgmmaInput::E4M3,
                    _ => return None,
                };
                let rows = [self.reg(dst), self.bits32(lo), self.bits32(hi)];
                (Op::CvtPack(to, rows), Class::Convert)
            }
            Inst::Pack { dst, lo, hi } => {
                let rows = [self.reg(dst), self.bits32(lo), self.bits32(hi)];
                match dst.class {
                    RegClass::B64 => (Op::Pack64(rows), Class::Alu),
                    _ => (Op::Pack16(rows), Class::Alu),
                }
            }
            Inst::Unpack { lo, hi, src } => {
                let to = [self.reg(lo), self.reg(hi)];
                match lo.class {
                    RegClass::B16 => (Op::Unpack16([to[0], to[1], self.bits32(src)]), Class::Alu),
                    _ => (Op::Unpack64([to[0], to[1], self.bits64(src)]), Class::Alu),
                }
            }
            Inst::Lop3 { dst, a, b, c, table } => {
                let rows = [self.reg(dst), self.bits32(a), self.bits32(b), self.bits32(c)];
                (Op::Lop3(table, rows), Class::Alu)
            }
            Inst::Prmt { dst, a, b, selector } => {
                let rows = [self.reg(dst), self.bits32(a), self.bits32(b), self.bits32(selector)];
                (Op::Prmt(rows), Class::Alu)
            }
            Inst::Setp { cmp, ty, dst, a, b } => {
                let (number, d) = (number(ty)?, self.reg(dst));
                let op = match ty.bytes() {
                    8 => Op::Setp64(cmp, number, [d, self.bits64(a), self.bits64(b)]),
                    _ => Op::Setp32(cmp, number, [d, self.bits32(a), self.bits32(b)]),
                };
                (op, Class::Alu)
            }
            Inst::Selp { ty, dst, cond, a, b } => {
                let (d, cond) = (self.reg(dst), self.reg(cond));
                let op = match ty.bytes() {
                    8 => Op::Selp64([d, cond, self.bits64(a), self.bits64(b)]),
                    _ => Op::Selp32([d, cond, self.bits32(a), self.bits32(b)]),
                };
                (op, Class::Alu)
            }
            Inst::Special { dst, which } => (Op::Special(which, self.reg(dst)), Class::Alu),
            Inst::Param { dst, index } => match dst.class {
                RegClass::B64 => (Op::Param64(index as u16, self.reg(dst)), Class::Alu),
                _ => (Op::Param32(index as u16, self.reg(dst)), Class::Alu),
            },
            Inst::SharedBase { dst } => (Op::SharedBase(self.reg(dst)), Class::Alu),
            Inst::Ld {
                space,
                dst,
                count,
                ref addr,
                cache,
            } => {
                let access = self.access(self.regs(dst, count), dst.class.bytes(), count, addr, space)?;
                match space {
                    Space::Shared | Space::Cluster => (Op::LdShared(access), Class::LoadShared),
                    Space::Global => {
                        self.note(addr, |used| used.loaded = true);
                        (Op::LdGlobal(access, cache), Class::LoadGlobal)
                    }
                }
            }
            Inst::St {
                space,
                src,
                count,
                ref addr,
                ..
            } => {
                let regs = match src {
                    StoreSource::Regs(reg) => self.regs(reg, count),
                    StoreSource::Imm(ty, bits) if ty.bytes() == 8 => [self.bits64(Operand::Imm(bits)); 4],
                    StoreSource::Imm(_, bits) => [self.bits32(Operand::Imm(bits)); 4],
                };
                let access = self.access(regs, src.bytes(), count, addr, space)?;
                match space {
                    Space::Shared | Space::Cluster => (Op::StShared(access), Class::StoreShared),
                    Space::Global => {
                        self.note(addr, |used| used.stored = true);
                        (Op::StGlobal(access), Class::StoreGlobal)
                    }
                }
            }
            Inst::CpAsync {
                ref dst,
                ref src,
                bytes,
                src_bytes,
                cache,
            } => {
                self.program.uses_cp_async = true;
                self.note(src, |used| used.loaded = true);
                let copy = CpAsync {
                    to: self.bits32(dst.base),
                    dst: At::of(dst, Space::Shared),
                    from: self.bits64(src.base),
                    src: At::of(src, Space::Global),
                    bytes,
                    src_bytes: src_bytes.map(|operand| self.bits32(operand)),
                    past_l1: cache == Cache::L2,
                };
                (Op::CpAsync(copy), Class::CopyAsync)
            }
            Inst::CpAsyncCommit => (Op::CpAsyncCommit, Class::Sync),
            Inst::CpAsyncWait { pending } => (Op::CpAsyncWait(pending), Class::Sync),
            Inst::LdMatrix {
                dst,
                count,
                transposed,
                ref addr,
            } => {
                let matrix = self.matrix(self.regs(dst, count), count, transposed, addr);
                (Op::LdMatrix(matrix), Class::LoadShared)
            }
            Inst::StMatrix {
                src,
                count,
                transposed,
                ref addr,
            } => {
                let matrix = self.matrix(self.regs(src, count), count, transposed, addr);
                (Op::StMatrix(matrix), Class::StoreShared)
            }
            Inst::Atom {
                op,
                ty,
                space,
                dst,
                ref addr,
                value,
            } => {
                if ty.bytes() != 4 {
                    return None;
                }
                let atom = Atom {
                    op,
                    ty,
                    d: dst.map(|reg| self.reg(reg)),
                    value: self.bits32(value),
                    base: self.base(addr, space),
                    at: At::of(addr, space),
                };
                match space {
                    Space::Shared | Space::Cluster => (Op::AtomShared(atom), Class::Atomic),
                    Space::Global => {
                        self.note(addr, |used| used.atomic = true);
                        self.program.returning_atomics |= dst.is_some();
                        (Op::AtomGlobal(atom), Class::Atomic)
                    }
                }
            }
            Inst::Mma { input, acc, d, a, b, c } => {
                let count = match acc {
                    MmaAcc::F32 => 4,
                    // bf16 products have no f16 accumulator.
                    MmaAcc::F16 if input == MmaInput::BF16 => return None,
                    MmaAcc::F16 => 2,
                };
                let mma = Mma {
                    input: match input {
                        MmaInput::F16 => Half::F16,
                        MmaInput::BF16 => Half::BF16,
                    },
                    f16_accumulators: acc == MmaAcc::F16,
                    d: self.regs(d, count),
                    a: self.regs(a, 4),
                    b: self.regs(b, 2),
                    c: self.regs(c, count),
                };
                (Op::Mma(mma), Class::Tensor)
            }
            Inst::Shfl {
                mode,
                dst,
                src,
                lane,
                members,
            } => {
                let rows = [self.reg(dst), self.bits32(src), self.bits32(lane)];
                (Op::Shfl(mode, rows, members), Class::Exchange)
            }
            Inst::Vote {
                mode,
                dst,
                pred,
                members,
            } => (
                Op::Vote(mode, [self.reg(dst), self.reg(pred)], members),
                Class::Exchange,
            ),
            Inst::Redux {
                op,
                ty,
                dst,
                src,
                members,
            } => {
                let rows = [self.reg(dst), self.bits32(src)];
                (Op::Redux(op, ty == ScalarType::S32, rows, members), Class::Exchange)
            }
            Inst::Elect { dst } => (Op::Elect(self.reg(dst)), Class::Exchange),
            Inst::BarSync { id, threads } => {
                let threads = threads.unwrap_or(self.kernel.threads());
                (Op::BarSync(self.bits32(id), threads), Class::Sync)
            }
            Inst::BarArrive { id, threads } => (Op::BarArrive(self.bits32(id), threads), Class::Sync),
            Inst::BarWarp { members } => (Op::BarWarp(members), Class::Sync),
            Inst::Fence { scope: Scope::Block } => (Op::Nothing, Class::Sync),
            Inst::Fence {
                scope: Scope::Cluster | Scope::Device,
            } => (Op::FenceCluster, Class::Sync),
            Inst::FenceProxyAsync => (Op::FenceProxyAsync, Class::Sync),
            Inst::FenceMbarrierInit => (Op::FenceMbarrierInit, Class::Sync),
            Inst::TrapIf { pred } => (Op::TrapIf(self.reg(pred)), Class::Control),
            Inst::SetMaxRegs { regs, raise } => (Op::SetMaxRegs(regs, raise), Class::Sync),
            Inst::DependencyWait => {
                self.program.uses_dependency = true;
                (Op::DependencyWait, Class::Sync)
            }
            // Only one launch is simulated at a time, so the trigger has no effect.
            Inst::DependencyTrigger => (Op::Nothing, Class::Sync),
            Inst::Flag(ref inst) => (Op::Flag(inst), self.flag(inst)),
            Inst::Mbar(ref inst) => (Op::Mbar(inst), Class::Sync),
            Inst::Bulk(ref inst) => (Op::Bulk(inst), self.bulk(inst)),
            Inst::Wgmma(ref inst) => {
                (self.program.uses_async_proxy, self.program.uses_products) = (true, true);
                match inst {
                    WgmmaInst::Mma { .. } => (Op::Wgmma(inst), Class::Tensor),
                    WgmmaInst::Fence | WgmmaInst::Commit | WgmmaInst::Wait { .. } => (Op::Wgmma(inst), Class::Sync),
                }
            }
            Inst::Cluster(ref inst) => match inst {
                ClusterInst::Mapa { .. } => (Op::Cluster(inst), Class::Alu),
                ClusterInst::Arrive { .. } | ClusterInst::Wait { .. } => (Op::Cluster(inst), Class::Sync),
            },
            Inst::Trace { label, src } => (Op::Trace(label, src.class, self.reg(src)), Class::Structure),
        })
    }

    /// The class of a bulk instruction.
    fn bulk(&mut self, inst: &BulkInst) -> Class {
        match inst {
            BulkInst::Load { map, .. } => {
                self.program.uses_async_proxy = true;
                self.note(map, |used| used.loaded = true);
                Class::CopyAsync
            }
            BulkInst::Store { map, .. } => {
                (self.program.uses_async_proxy, self.program.uses_bulk_stores) = (true, true);
                self.note(map, |used| used.stored = true);
                Class::CopyAsync
            }
            BulkInst::LoadBytes { src, .. } => {
                self.program.uses_async_proxy = true;
                self.note(src, |used| used.loaded = true);
                Class::CopyAsync
            }
            BulkInst::StoreBytes { dst, .. } => {
                (self.program.uses_async_proxy, self.program.uses_bulk_stores) = (true, true);
                self.note(dst, |used| used.stored = true);
                Class::CopyAsync
            }
            BulkInst::Reduce { dst, .. } => {
                (self.program.uses_async_proxy, self.program.uses_bulk_stores) = (true, true);
                self.note(dst, |used| used.atomic = true);
                Class::CopyAsync
            }
            BulkInst::Prefetch { .. } => Class::CopyAsync,
            BulkInst::Commit | BulkInst::Wait { .. } => {
                self.program.uses_bulk_stores = true;
                Class::Sync
            }
        }
    }

    /// The class of a flag's access. Blocks that read flags may communicate.
    fn flag(&mut self, inst: &FlagInst) -> Class {
        match inst {
            FlagInst::LoadAcquire { addr, .. } => {
                self.program.returning_atomics = true;
                self.note(addr, |used| used.loaded = true);
                Class::LoadGlobal
            }
            FlagInst::StoreRelease { addr, .. } => {
                self.note(addr, |used| used.stored = true);
                Class::StoreGlobal
            }
            FlagInst::Add { addr, .. } => {
                self.note(addr, |used| used.atomic = true);
                Class::Atomic
            }
        }
    }

    /// Notes how the memory of a parameter is accessed.
    fn note(&mut self, addr: &Address, how: impl FnOnce(&mut Used)) {
        if let Object::Param(index) = addr.object {
            how(&mut self.program.used[index as usize]);
        }
    }

    fn base(&mut self, addr: &Address, space: Space) -> Row {
        match space {
            Space::Global => self.bits64(addr.base),
            Space::Shared | Space::Cluster => self.bits32(addr.base),
        }
    }

    fn access(&mut self, regs: [Row; 4], bytes: u32, count: u32, addr: &Address, space: Space) -> Option<Access> {
        // A memory access moves at most 16 bytes per lane.
        if !matches!(bytes, 2 | 4 | 8) || !matches!(count, 1 | 2 | 4) || bytes * count > 16 {
            return None;
        }
        if bytes == 2 && space != Space::Global {
            self.program.granule_shift = 1;
        }
        Some(Access {
            regs,
            width: Width {
                count: count as u8,
                log_bytes: bytes.trailing_zeros() as u8,
            },
            base: self.base(addr, space),
            at: At::of(addr, space),
        })
    }

    fn matrix(&mut self, regs: [Row; 4], count: u32, transposed: bool, addr: &Address) -> Matrix {
        Matrix {
            regs,
            count: count as u8,
            transposed,
            base: self.bits32(addr.base),
            at: At::of(addr, Space::Shared),
        }
    }
}
