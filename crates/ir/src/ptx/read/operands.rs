//! Registers, immediates, addresses and lists of registers of a body that is being read.

use std::collections::HashMap;

use crate::inst::{Address, Inst, Object, Operand};
use crate::kernel::Param;
use crate::shared::Ledger;
use crate::types::{Reg, RegClass, ScalarType};

use super::PtxError;
use super::statement::{Written, WrittenInst};

/// Addresses are given their objects when all is read.
pub(super) const UNKNOWN: Object = Object::Param(u32::MAX);

/// What reading a kernel's instructions needs to know and leaves behind.
pub(super) struct Reader<'a> {
    pub(super) registers: HashMap<String, Reg>,
    pub(super) num_regs: [u32; 5],
    pub(super) params: Vec<Param>,
    /// Names of the parameters as the text has them.
    pub(super) param_names: Vec<String>,
    pub(super) ledger: &'a Ledger,
    /// Instructions of the statement that is being read.
    pub(super) out: Vec<Inst>,
    /// Those that belong after it: moves of results.
    pub(super) after: Vec<Inst>,
    /// The buffer that a register was given the address of.
    pub(super) bases: HashMap<Reg, Object>,
}

impl Reader<'_> {
    pub(super) fn fresh(&mut self, class: RegClass, count: u32) -> Reg {
        let index = self.num_regs[class as usize];
        self.num_regs[class as usize] += count;
        Reg { class, index }
    }

    pub(super) fn reg(&self, inst: &WrittenInst, at: usize) -> Result<Reg, PtxError> {
        match inst.operands.get(at) {
            Some(written) => self.reg_of(inst, written),
            None => Err(wrong(inst, &format!("it has no operand number {}", at + 1))),
        }
    }

    pub(super) fn reg_of(&self, inst: &WrittenInst, written: &Written) -> Result<Reg, PtxError> {
        let Written::Name(name) = written else {
            return Err(wrong(inst, "a register must stand where something else does"));
        };
        let found = self.registers.get(name).copied();
        found.ok_or_else(|| {
            wrong(
                inst,
                &format!("`{name}` is no register of a known type (f64 and 8-bit ones are not)"),
            )
        })
    }

    /// A register or an immediate of a type.
    pub(super) fn value(&self, inst: &WrittenInst, at: usize, ty: ScalarType) -> Result<Operand, PtxError> {
        let Some(written) = inst.operands.get(at) else {
            return Err(wrong(inst, &format!("it has no operand number {}", at + 1)));
        };
        Ok(match written {
            Written::Number(bits) => Operand::Imm(narrowed(*bits, ty)),
            Written::Float { bits, width: 32 } => Operand::Imm(*bits),
            Written::Float { bits, .. } if ty == ScalarType::F32 => {
                Operand::Imm(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            _ => Operand::Reg(self.reg_of(inst, written)?),
        })
    }

    /// A whole number.
    pub(super) fn number(&self, inst: &WrittenInst, at: usize) -> Result<u32, PtxError> {
        match inst.operands.get(at) {
            Some(Written::Number(bits)) => Ok(*bits as u32),
            _ => Err(wrong(inst, "a number must stand where a register does, or nothing")),
        }
    }

    /// An address in brackets; a symbol's gets a register of its own.
    pub(super) fn address(&mut self, inst: &WrittenInst, at: usize) -> Result<Address, PtxError> {
        let Some(Written::Address(base, offset)) = inst.operands.get(at) else {
            return Err(wrong(inst, "it has no address where one must stand"));
        };
        let offset = i32::try_from(*offset).map_err(|_| wrong(inst, "its offset does not fit into 32 bits"))?;
        let address = |base, offset, object| Address { base, offset, object };
        match &**base {
            Written::Name(name) => {
                if let Some((object, start)) = self.symbol(name) {
                    let reg = self.fresh(RegClass::B32, 1);
                    self.out.push(Inst::SharedBase { dst: reg });
                    return Ok(address(Operand::Reg(reg), offset + start as i32, object));
                }
                let reg = self.reg_of(inst, base)?;
                Ok(address(Operand::Reg(reg), offset, UNKNOWN))
            }
            _ => Err(wrong(inst, "its address is neither a register nor a shared symbol")),
        }
    }

    /// The shared buffer of a symbol, and its first byte.
    pub(super) fn symbol(&self, name: &str) -> Option<(Object, u32)> {
        let buffers = (0u32..).zip(&self.ledger.buffers);
        let mut found = buffers.filter(|(_, buffer)| buffer.name == name);
        let (id, buffer) = found.next()?;
        Some((Object::Shared(crate::shared::BufferId(id)), buffer.offset))
    }

    /// Registers that are read, contiguous: copied where they are not so already.
    pub(super) fn sources(&mut self, inst: &WrittenInst, at: usize) -> Result<(Reg, u32), PtxError> {
        let regs = self.list(inst, at)?;
        if let Some(first) = contiguous(&regs) {
            return Ok((first, regs.len() as u32));
        }
        let first = self.fresh(regs[0].class, regs.len() as u32);
        for (i, &reg) in (0u32..).zip(&regs) {
            self.out.push(Inst::Mov {
                dst: first.plus(i),
                src: Operand::Reg(reg),
            });
        }
        Ok((first, regs.len() as u32))
    }

    /// Registers that are written, contiguous: copied out of others where they are not so already.
    pub(super) fn results(&mut self, inst: &WrittenInst, at: usize) -> Result<(Reg, u32), PtxError> {
        let regs = self.list(inst, at)?;
        if let Some(first) = contiguous(&regs) {
            return Ok((first, regs.len() as u32));
        }
        let first = self.fresh(regs[0].class, regs.len() as u32);
        for (i, &reg) in (0u32..).zip(&regs) {
            self.after.push(Inst::Mov {
                dst: reg,
                src: Operand::Reg(first.plus(i)),
            });
        }
        Ok((first, regs.len() as u32))
    }

    fn list(&self, inst: &WrittenInst, at: usize) -> Result<Vec<Reg>, PtxError> {
        let regs = match inst.operands.get(at) {
            Some(Written::List(list)) => list
                .iter()
                .map(|written| self.reg_of(inst, written))
                .collect::<Result<Vec<Reg>, PtxError>>()?,
            _ => vec![self.reg(inst, at)?],
        };
        match regs.first() {
            Some(first) if regs.iter().all(|reg| reg.class == first.class) => Ok(regs),
            _ => Err(wrong(inst, "its list has registers of different kinds, or none")),
        }
    }
}

fn contiguous(regs: &[Reg]) -> Option<Reg> {
    let first = *regs.first()?;
    (0u32..)
        .zip(regs)
        .all(|(i, reg)| *reg == first.plus(i))
        .then_some(first)
}

/// Bits of a number in a type.
fn narrowed(bits: u64, ty: ScalarType) -> u64 {
    match ty.bytes() {
        1 => bits & 1,
        2 => bits & 0xffff,
        4 => bits & 0xffff_ffff,
        _ => bits,
    }
}

/// That an instruction is not understood.
pub(super) fn wrong(inst: &WrittenInst, why: &str) -> PtxError {
    PtxError::NotUnderstood {
        what: format!("`{}`", inst.opcode),
        why: why.to_string(),
        line: inst.line,
    }
}
