//! Decodes IR instructions into operations, rows and classes.

use flashcore_ir::inst::{Inst, MmaAcc, MmaInput, Scope, Space, StoreSource};
use flashcore_ir::{Operand, RegClass, ScalarType};

use crate::decode_arithmetic::{int32, number};
use crate::lower::Lowering;
use crate::program::{At, Bin32, Op, TraceFile, Tri32, Width};
use crate::report::Class;
use crate::rows::{File, file_of};

impl Lowering<'_> {
    /// The operation and class of an instruction; `None` if no such machine instruction exists.
    pub(crate) fn decode(&mut self, inst: &Inst) -> Option<(Op, Class)> {
        Some(match inst {
            Inst::Mov { dst, src } => (self.mov(*dst, *src), Class::Alu),
            Inst::Bin { op, ty, dst, a, b } => return self.bin(*op, *ty, *dst, *a, *b),
            Inst::Un { op, ty, dst, a } => return self.un(*op, *ty, *dst, *a),
            Inst::Fma { ty, dst, a, b, c } => return self.fma(*ty, *dst, *a, *b, *c),
            Inst::MadWide { ty, dst, a, b, c } => {
                let (d, signed) = (self.reg(*dst), *ty == ScalarType::S32);
                let (a, b, c) = (self.bits32(*a), self.bits32(*b), self.bits64(*c));
                (Op::MadWide { signed, d, a, b, c }, Class::Alu)
            }
            Inst::Cvt { op, dst, src } => (self.cvt(*op, *dst, *src), Class::Convert),
            Inst::CvtPack { ty, dst, lo, hi } => {
                let f = match ty {
                    ScalarType::F16x2 => Bin32::PackF16,
                    ScalarType::BF16x2 => Bin32::PackBF16,
                    ScalarType::E4M3x2 => Bin32::PackE4M3,
                    _ => return None,
                };
                (self.bin32(f, *dst, *lo, *hi), Class::Convert)
            }
            Inst::Pack { dst, lo, hi } if dst.class == RegClass::B64 => {
                let (d, lo, hi) = (self.reg(*dst), self.bits32(*lo), self.bits32(*hi));
                (Op::Pack64 { d, lo, hi }, Class::Alu)
            }
            Inst::Pack { dst, lo, hi } => (self.bin32(Bin32::Pack16, *dst, *lo, *hi), Class::Alu),
            Inst::Unpack { lo, hi, src } if lo.class == RegClass::B16 => {
                let (lo, hi, a) = (self.reg(*lo), self.reg(*hi), self.bits32(*src));
                (Op::Unpack16 { lo, hi, a }, Class::Alu)
            }
            Inst::Unpack { lo, hi, src } => {
                let (lo, hi, a) = (self.reg(*lo), self.reg(*hi), self.bits64(*src));
                (Op::Unpack64 { lo, hi, a }, Class::Alu)
            }
            Inst::Lop3 { dst, a, b, c, table } => {
                let d = self.reg(*dst);
                let (a, b, c) = (self.bits32(*a), self.bits32(*b), self.bits32(*c));
                let table = *table;
                (Op::Lop3 { d, a, b, c, table }, Class::Alu)
            }
            Inst::Prmt { dst, a, b, selector } => (self.tri32(Tri32::Prmt, *dst, *a, *b, *selector), Class::Alu),
            Inst::Setp { cmp, ty, dst, a, b } => {
                let (cmp, number, d) = (*cmp, number(*ty)?, self.reg(*dst));
                let op = if ty.bytes() == 8 {
                    let (a, b) = (self.bits64(*a), self.bits64(*b));
                    Op::Setp64 { cmp, number, d, a, b }
                } else {
                    let (a, b) = (self.bits32(*a), self.bits32(*b));
                    Op::Setp32 { cmp, number, d, a, b }
                };
                (op, Class::Alu)
            }
            Inst::Selp { ty, dst, cond, a, b } => {
                let (d, cond) = (self.reg(*dst), self.reg(*cond));
                let op = if ty.bytes() == 8 {
                    let (a, b) = (self.bits64(*a), self.bits64(*b));
                    Op::Selp64 { d, cond, a, b }
                } else {
                    let (a, b) = (self.bits32(*a), self.bits32(*b));
                    Op::Selp32 { d, cond, a, b }
                };
                (op, Class::Alu)
            }
            Inst::Special { dst, which } => {
                let (d, which) = (self.reg(*dst), *which);
                (Op::Special { d, which }, Class::Alu)
            }
            Inst::Param { dst, index } => {
                let (d, index) = (self.reg(*dst), *index as u16);
                match file_of(dst.class) {
                    File::Bits64 => (Op::Param64 { d, index }, Class::Alu),
                    _ => (Op::Param32 { d, index }, Class::Alu),
                }
            }
            Inst::SharedBase { dst } => (Op::SharedBase { d: self.reg(*dst) }, Class::Alu),
            Inst::Ld { .. } | Inst::St { .. } | Inst::CpAsync { .. } | Inst::LdMatrix { .. } | Inst::Atom { .. } => {
                return self.memory(inst);
            }
            Inst::CpAsyncCommit => (Op::CpAsyncCommit, Class::Sync),
            Inst::CpAsyncWait { pending } => (Op::CpAsyncWait { pending: *pending }, Class::Sync),
            Inst::Mma { input, acc, d, a, b, c } => {
                let (ra, rb) = (self.regs(*a, 4), self.regs(*b, 2));
                let bf16 = *input == MmaInput::BF16;
                let op = match acc {
                    MmaAcc::F32 => Op::Mma {
                        bf16,
                        d: self.regs(*d, 4),
                        a: ra,
                        b: rb,
                        c: self.regs(*c, 4),
                    },
                    // bf16 products have no f16 accumulator.
                    MmaAcc::F16 if bf16 => return None,
                    MmaAcc::F16 => Op::MmaF16 {
                        d: self.regs(*d, 2),
                        a: ra,
                        b: rb,
                        c: self.regs(*c, 2),
                    },
                };
                (op, Class::Tensor)
            }
            Inst::Shfl {
                mode,
                dst,
                src,
                lane,
                members,
            } => {
                let (mode, members, d) = (*mode, *members, self.reg(*dst));
                let (src, lane) = (self.bits32(*src), self.bits32(*lane));
                let op = Op::Shfl {
                    mode,
                    d,
                    src,
                    lane,
                    members,
                };
                (op, Class::Exchange)
            }
            Inst::Vote {
                mode,
                dst,
                pred,
                members,
            } => {
                let (mode, members, d, pred) = (*mode, *members, self.reg(*dst), self.reg(*pred));
                let op = Op::Vote { mode, d, pred, members };
                (op, Class::Exchange)
            }
            Inst::Redux {
                op,
                ty,
                dst,
                src,
                members,
            } => {
                let f = int32(*op, *ty == ScalarType::S32)?;
                let (d, src, members) = (self.reg(*dst), self.bits32(*src), *members);
                (Op::Redux { f, d, src, members }, Class::Exchange)
            }
            Inst::BarSync { id, threads } => {
                let (id, threads) = (self.bits32(*id), threads.unwrap_or(self.kernel.threads()));
                (Op::BarSync { id, threads }, Class::Sync)
            }
            Inst::BarArrive { id, threads } => {
                let (id, threads) = (self.bits32(*id), *threads);
                (Op::BarArrive { id, threads }, Class::Sync)
            }
            Inst::BarWarp { members } => (Op::BarWarp { members: *members }, Class::Sync),
            Inst::Fence { scope } => {
                let cluster = *scope != Scope::Block;
                (Op::Fence { cluster }, Class::Sync)
            }
            Inst::StMatrix { .. }
            | Inst::FenceProxyAsync
            | Inst::FenceMbarrierInit
            | Inst::Elect { .. }
            | Inst::TrapIf { .. }
            | Inst::SetMaxRegs { .. }
            | Inst::DependencyWait
            | Inst::DependencyTrigger
            | Inst::Mbar(_)
            | Inst::Bulk(_)
            | Inst::Wgmma(_)
            | Inst::Cluster(_) => self.asynchronous(inst)?,
            Inst::Trace { label, src } => {
                let file = match src.class {
                    RegClass::Pred => TraceFile::Pred,
                    RegClass::F32 => TraceFile::Float,
                    RegClass::B16 | RegClass::B32 => TraceFile::Bits32,
                    RegClass::B64 => TraceFile::Bits64,
                };
                let (label, src) = (*label, self.reg(*src));
                (Op::Trace { label, file, src }, Class::Structure)
            }
        })
    }

    fn memory(&mut self, inst: &Inst) -> Option<(Op, Class)> {
        Some(match inst {
            Inst::Ld {
                space,
                dst,
                count,
                addr,
                cache,
            } => {
                let (d, width) = (self.regs(*dst, *count), width(dst.class.bytes(), *count)?);
                let at = self.at(addr, *space);
                match space {
                    Space::Shared | Space::Cluster => (Op::LdShared { d, width, at }, Class::LoadShared),
                    Space::Global => {
                        let cache = *cache;
                        (Op::LdGlobal { d, width, at, cache }, Class::LoadGlobal)
                    }
                }
            }
            Inst::St {
                space,
                src,
                count,
                addr,
                ..
            } => {
                let width = width(src.bytes(), *count)?;
                let s = match src {
                    StoreSource::Regs(reg) => self.regs(*reg, *count),
                    StoreSource::Imm(ty, bits) if ty.bytes() == 8 => [self.bits64(Operand::Imm(*bits)); 4],
                    StoreSource::Imm(_, bits) => [self.bits32(Operand::Imm(*bits)); 4],
                };
                let at = self.at(addr, *space);
                match space {
                    Space::Shared | Space::Cluster => (Op::StShared { s, width, at }, Class::StoreShared),
                    Space::Global => (Op::StGlobal { s, width, at }, Class::StoreGlobal),
                }
            }
            Inst::CpAsync {
                dst,
                src,
                bytes,
                src_bytes,
                cache,
            } => {
                let (dst, src) = (self.at(dst, Space::Shared), self.at(src, Space::Global));
                let src_bytes = src_bytes.map(|operand| self.bits32(operand));
                let op = Op::CpAsync {
                    dst,
                    src,
                    bytes: *bytes as u8,
                    src_bytes,
                    past_l1: *cache == flashcore_ir::Cache::L2,
                };
                (op, Class::CopyAsync)
            }
            Inst::LdMatrix {
                dst,
                count,
                transposed,
                addr,
            } => {
                let op = Op::LdMatrix {
                    d: self.regs(*dst, *count),
                    count: *count as u8,
                    transposed: *transposed,
                    at: self.at(addr, Space::Shared),
                };
                (op, Class::LoadShared)
            }
            Inst::Atom {
                op,
                ty,
                space,
                dst,
                addr,
                value,
            } => {
                if ty.bytes() != 4 {
                    return None;
                }
                let (op, ty, d) = (*op, *ty, dst.map(|reg| self.reg(reg)));
                let (at, value) = (self.at(addr, *space), self.bits32(*value));
                let op = match space {
                    Space::Shared | Space::Cluster => Op::AtomShared { op, ty, d, at, value },
                    Space::Global => Op::AtomGlobal { op, ty, d, at, value },
                };
                (op, Class::Atomic)
            }
            _ => return None,
        })
    }

    pub(crate) fn at(&mut self, addr: &flashcore_ir::inst::Address, space: Space) -> At {
        At {
            base: match space {
                Space::Global => self.bits64(addr.base),
                Space::Shared | Space::Cluster => self.bits32(addr.base),
            },
            object: At::object_of(addr.object),
            offset: addr.offset,
            remote: space == Space::Cluster,
        }
    }
}

fn width(bytes: u32, count: u32) -> Option<Width> {
    // A memory access moves at most 16 bytes per lane.
    (matches!(bytes, 2 | 4 | 8) && matches!(count, 1 | 2 | 4) && bytes * count <= 16).then_some(Width {
        count: count as u8,
        log_bytes: bytes.trailing_zeros() as u8,
    })
}
