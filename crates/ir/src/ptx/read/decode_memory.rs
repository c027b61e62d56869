//! Instructions that touch memory.

use crate::inst::{AtomOp, Cache, Inst, Operand, Space, StoreSource};
use crate::types::{Reg, ScalarType};

use super::PtxError;
use super::decode::scalar;
use super::operands::{Reader, wrong};
use super::statement::{Written, WrittenInst};

const GLOBAL_OR_SHARED: &str = "accesses to global and shared memory are known, with .nc, .cg, .cs, .v2 and .v4";

impl Reader<'_> {
    pub(super) fn memory(&mut self, inst: &WrittenInst, parts: &[&str]) -> Result<(), PtxError> {
        let decoded = match parts {
            ["ld", space, options @ .., ty] => {
                let (space, cache) = (space_of(inst, space)?, cache_of(inst, options)?);
                let addr = self.address(inst, 1)?;
                let (dst, count) = self.results(inst, 0)?;
                self.fits(inst, ty, dst)?;
                Inst::Ld {
                    space,
                    dst,
                    count,
                    addr,
                    cache,
                }
            }
            ["st", space, options @ .., ty] => {
                let (space, cache) = (space_of(inst, space)?, cache_of(inst, options)?);
                let addr = self.address(inst, 0)?;
                let (src, count) = self.stored(inst, ty)?;
                Inst::St {
                    space,
                    src,
                    count,
                    addr,
                    cache,
                }
            }
            ["cp", "async", "commit_group"] => Inst::CpAsyncCommit,
            ["cp", "async", "wait_group"] => Inst::CpAsyncWait {
                pending: self.number(inst, 0)?,
            },
            ["cp", "async", "wait_all"] => {
                self.out.push(Inst::CpAsyncCommit);
                Inst::CpAsyncWait { pending: 0 }
            }
            ["cp", "async", level @ ("ca" | "cg"), "shared" | "shared::cta", "global"] => {
                let (dst, src) = (self.address(inst, 0)?, self.address(inst, 1)?);
                Inst::CpAsync {
                    dst,
                    src,
                    bytes: self.number(inst, 2)?,
                    src_bytes: match inst.operands.len() {
                        3 => None,
                        _ => Some(self.value(inst, 3, ScalarType::U32)?),
                    },
                    cache: if *level == "cg" { Cache::L2 } else { Cache::Default },
                }
            }
            [
                "ldmatrix",
                "sync",
                "aligned",
                "m8n8",
                _,
                options @ ..,
                "shared" | "shared::cta",
                "b16",
            ] => {
                let addr = self.address(inst, 1)?;
                let (dst, count) = self.results(inst, 0)?;
                Inst::LdMatrix {
                    dst,
                    count,
                    transposed: options.contains(&"trans"),
                    addr,
                }
            }
            [
                "stmatrix",
                "sync",
                "aligned",
                "m8n8",
                _,
                options @ ..,
                "shared" | "shared::cta",
                "b16",
            ] => {
                let addr = self.address(inst, 0)?;
                let (src, count) = self.sources(inst, 1)?;
                Inst::StMatrix {
                    src,
                    count,
                    transposed: options.contains(&"trans"),
                    addr,
                }
            }
            [kind @ ("atom" | "red"), space, op, ty] => self.atomic(inst, *kind == "atom", space, op, ty)?,
            _ => return Err(wrong(inst, GLOBAL_OR_SHARED)),
        };
        self.out.push(decoded);
        Ok(())
    }

    /// Whether a register is as wide as what is accessed.
    fn fits(&self, inst: &WrittenInst, ty: &str, reg: Reg) -> Result<(), PtxError> {
        let bytes = match ty {
            "b16" | "u16" | "s16" => Some(2),
            _ => scalar(ty).map(ScalarType::bytes),
        };
        match bytes {
            Some(bytes) if bytes == reg.class.bytes() => Ok(()),
            _ => Err(wrong(
                inst,
                "accesses of 2, 4 and 8 bytes by registers as wide are known",
            )),
        }
    }

    fn stored(&mut self, inst: &WrittenInst, ty: &str) -> Result<(StoreSource, u32), PtxError> {
        let values = match inst.operands.get(1) {
            Some(Written::List(list)) => list.clone(),
            Some(one) => vec![one.clone()],
            None => return Err(wrong(inst, "it stores nothing")),
        };
        let is_register = |written: &Written| matches!(written, Written::Name(_));
        if values.iter().all(is_register) {
            let (first, count) = self.sources(inst, 1)?;
            self.fits(inst, ty, first)?;
            return Ok((StoreSource::Regs(first), count));
        }
        let ty = match ty {
            "u16" | "s16" => ScalarType::B16,
            _ => self.ty(inst, ty)?,
        };
        let immediates = values.iter().map(|value| {
            let only = WrittenInst {
                operands: vec![value.clone()],
                ..inst.clone()
            };
            self.value(&only, 0, ty)
        });
        let immediates: Vec<Operand> = immediates.collect::<Result<_, _>>()?;
        if let Some(Operand::Imm(bits)) = immediates.first()
            && immediates.iter().all(|other| *other == Operand::Imm(*bits))
        {
            return Ok((StoreSource::Imm(ty, *bits), immediates.len() as u32));
        }
        let first = self.fresh(ty.class(), immediates.len() as u32);
        for (i, src) in (0u32..).zip(&immediates) {
            self.out.push(Inst::Mov {
                dst: first.plus(i),
                src: *src,
            });
        }
        Ok((StoreSource::Regs(first), immediates.len() as u32))
    }

    fn atomic(&mut self, inst: &WrittenInst, returns: bool, space: &str, op: &str, ty: &str) -> Result<Inst, PtxError> {
        let space = space_of(inst, space)?;
        let ty = self.ty(inst, ty)?;
        let op = match op {
            "add" => AtomOp::Add,
            "max" => AtomOp::Max,
            "min" => AtomOp::Min,
            "exch" => AtomOp::Exch,
            _ => return Err(wrong(inst, "add, max, min and exch are known")),
        };
        let first = usize::from(returns);
        let addr = self.address(inst, first)?;
        Ok(Inst::Atom {
            op,
            ty,
            space,
            dst: match returns {
                true => Some(self.reg(inst, 0)?),
                false => None,
            },
            addr,
            value: self.value(inst, first + 1, ty)?,
        })
    }
}

fn space_of(inst: &WrittenInst, name: &str) -> Result<Space, PtxError> {
    match name {
        "global" => Ok(Space::Global),
        "shared" | "shared::cta" => Ok(Space::Shared),
        _ => Err(wrong(inst, GLOBAL_OR_SHARED)),
    }
}

fn cache_of(inst: &WrittenInst, options: &[&str]) -> Result<Cache, PtxError> {
    let mut cache = Cache::Default;
    for option in options {
        cache = match *option {
            "v2" | "v4" => cache,
            "nc" => Cache::ReadOnly,
            "cg" => Cache::L2,
            "cs" => Cache::Streaming,
            _ => return Err(wrong(inst, GLOBAL_OR_SHARED)),
        };
    }
    Ok(cache)
}
