//! Registers, immediates, addresses and lists of registers of a body that is being read.

use std::cell::RefCell;
use std::collections::HashMap;

use flashcore_ir::inst::{Access, Address, Inst, Object, Operand, Slot, StoreSource};
use flashcore_ir::kernel::Param;
use flashcore_ir::types::{Reg, RegClass, ScalarType};

use super::PtxError;
use super::decode::special;
use super::objects::{Origin, join};
use super::scope::{numbered, split_renamed};
use super::statement::{Written, WrittenInst};

/// Addresses are given their objects when all is read.
pub(super) const UNKNOWN: Object = Object::Param(u32::MAX);

/// What reading a kernel's instructions needs to know and leaves behind.
pub(super) struct Reader<'a> {
    /// The registers that were declared: the first, and how many numbered ones there are.
    pub(super) registers: HashMap<String, (Reg, Option<u32>)>,
    /// Those that the text uses.
    pub(super) used: RefCell<HashMap<String, Reg>>,
    pub(super) num_regs: [u32; 5],
    /// Threads a block.
    pub(super) threads: u32,
    pub(super) params: Vec<Param>,
    /// Names of the parameters as the text has them.
    pub(super) param_names: HashMap<&'a str, u32>,
    /// Shared symbols: their buffers, and their first bytes.
    pub(super) symbols: HashMap<&'a str, (Object, u32)>,
    /// Instructions of the statement that is being read.
    pub(super) out: Vec<Inst>,
    /// Those that belong after it: moves of results.
    pub(super) after: Vec<Inst>,
    /// The object that a register was given the address of, anywhere in the text.
    pub(super) bases: HashMap<Reg, Origin>,
}

impl Reader<'_> {
    pub(super) fn fresh(&mut self, class: RegClass, count: u32) -> Reg {
        let index = self.num_regs[class as usize];
        self.num_regs[class as usize] += count;
        Reg { class, index }
    }

    /// Notes that a register is given the address of an object.
    pub(super) fn base(&mut self, reg: Reg, object: Object) {
        let one = Origin::One(object);
        self.bases
            .entry(reg)
            .and_modify(|known| *known = join(*known, one))
            .or_insert(one);
    }

    /// The register of an operand, of the size of a class.
    pub(super) fn reg(&self, inst: &WrittenInst, at: usize, class: RegClass) -> Result<Reg, PtxError> {
        match inst.operands.get(at) {
            Some(written) => self.reg_like(inst, written, class),
            None => Err(error(inst, &format!("it has no operand number {}", at + 1))),
        }
    }

    pub(super) fn reg_of(&self, inst: &WrittenInst, written: &Written) -> Result<Reg, PtxError> {
        let Written::Name(name) = written else {
            return Err(error(inst, "a register is needed in place of another operand"));
        };
        let found = self.used.borrow().get(name).copied();
        let found = found.or_else(|| self.declared(name));
        if let Some(reg) = found {
            self.used.borrow_mut().insert(name.clone(), reg);
        }
        found.ok_or_else(|| {
            let why = format!("`{name}` is not a register of a supported type (f64 and 8-bit ones are not)");
            error(inst, &why)
        })
    }

    /// The register of a name: one by itself, or numbered.
    fn declared(&self, name: &str) -> Option<Reg> {
        if let Some((reg, None)) = self.registers.get(name) {
            return Some(*reg);
        }
        let (name, scope) = split_renamed(name);
        numbered(name).find_map(|(prefix, number)| {
            let (first, count) = self.registers.get(&format!("{prefix}{scope}"))?;
            (number < (*count)?).then(|| first.plus(number))
        })
    }

    pub(super) fn reg_like(&self, inst: &WrittenInst, written: &Written, class: RegClass) -> Result<Reg, PtxError> {
        let reg = self.reg_of(inst, written)?;
        if reg.class.bytes() == class.bytes() {
            return Ok(reg);
        }
        let why = format!(
            "a register of {} B where the instruction takes {} B",
            reg.class.bytes(),
            class.bytes()
        );
        Err(error(inst, &why))
    }

    /// Fills an operand of an instruction with what the text has in its place.
    pub(super) fn fill(&mut self, inst: &WrittenInst, slot: Slot<'_>, written: &Written) -> Result<(), PtxError> {
        match (slot, written) {
            (Slot::Regs(first, count, access) | Slot::Matrices(first, count, access), _) => {
                *first = self.run(inst, written, first.class, count, access)?;
            }
            (Slot::Stored(StoreSource::Regs(first), count), _)
                if is_all(written, |it| matches!(it, Written::Name(_))) =>
            {
                *first = self.run(inst, written, first.class, count, Access::Read)?;
            }
            (Slot::Stored(source, count), _) => *source = self.stored(inst, written, source, count)?,
            (Slot::Halves(lo, hi), Written::List(list)) if list.len() == 2 => {
                *lo = self.reg_like(inst, &list[0], lo.class)?;
                *hi = self.reg_like(inst, &list[1], hi.class)?;
            }
            (Slot::Pair(lo, hi, ty), Written::List(list)) if list.len() == 2 => {
                *lo = self.value(inst, &list[0], ty)?;
                *hi = self.value(inst, &list[1], ty)?;
            }
            (Slot::Value(value, ty), _) => *value = self.value(inst, written, ty)?,
            (Slot::Memory(addr, ..), _) => *addr = self.address(inst, written)?,
            (Slot::Number(number), Written::Number(bits)) => *number = small(inst, *bits, u32::MAX)?,
            // Masks are written as negative numbers, too.
            (Slot::Mask(mask), Written::Number(bits)) => match i32::try_from(*bits as i64) {
                Ok(signed) => *mask = signed as u32,
                Err(_) => *mask = small(inst, *bits, u32::MAX)?,
            },
            (Slot::Table(table), Written::Number(bits)) => *table = small(inst, *bits, u32::from(u8::MAX))? as u8,
            (Slot::Fixed(expected), Written::Number(bits)) if *bits as u32 == expected as u32 => {}
            (Slot::Fixed(expected), _) => {
                let why = format!("only {expected:#x} is supported in place of another operand");
                return Err(error(inst, &why));
            }
            (Slot::Elected(pred), Written::Pair(_, second)) => *pred = self.reg_like(inst, second, pred.class)?,
            (Slot::Special(which), Written::Name(name)) => {
                *which = special(name).ok_or_else(|| error(inst, &format!("`{name}` is not a special register")))?;
            }
            _ => return Err(error(inst, "a number or a list is needed in place of another operand")),
        }
        Ok(())
    }

    fn value(&self, inst: &WrittenInst, written: &Written, ty: ScalarType) -> Result<Operand, PtxError> {
        Ok(match written {
            Written::Number(bits) => {
                let narrow = narrowed(*bits, ty);
                narrow.map(Operand::Imm).ok_or_else(|| {
                    let (number, bytes) = (*bits as i64, ty.bytes());
                    error(inst, &format!("{number} does not fit into the {bytes} B of a number"))
                })?
            }
            Written::Float { bits, width: 32 } => Operand::Imm(*bits),
            Written::Float { bits, .. } if ty == ScalarType::F32 => {
                Operand::Imm(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            _ => Operand::Reg(self.reg_like(inst, written, ty.class())?),
        })
    }

    /// An address in brackets; a symbol's is read into a new register.
    fn address(&mut self, inst: &WrittenInst, written: &Written) -> Result<Address, PtxError> {
        let Written::Address(base, offset) = written else {
            return Err(error(inst, "an address is needed in place of another operand"));
        };
        let offset = i32::try_from(*offset).map_err(|_| error(inst, "its offset does not fit into 32 bits"))?;
        let Written::Name(name) = &**base else {
            return Err(error(inst, "its address is neither a register nor a shared symbol"));
        };
        let Some(&(object, start)) = self.symbols.get(name.as_str()) else {
            let (base, object) = (Operand::Reg(self.reg_of(inst, base)?), UNKNOWN);
            return Ok(Address { base, offset, object });
        };
        let dst = self.fresh(RegClass::B32, 1);
        self.out.push(Inst::SharedBase { dst });
        let offset = offset.checked_add_unsigned(start);
        let offset = offset.ok_or_else(|| error(inst, "its offset does not fit into 32 bits"))?;
        let base = Operand::Reg(dst);
        Ok(Address { base, offset, object })
    }

    /// Contiguous registers: those of the text, or fresh ones that are copied from or to them.
    fn run(
        &mut self,
        inst: &WrittenInst,
        written: &Written,
        class: RegClass,
        count: u32,
        access: Access,
    ) -> Result<Reg, PtxError> {
        let items = items(written);
        if items.len() != count as usize {
            return Err(error(inst, &format!("{} registers; {count} are needed", items.len())));
        }
        let regs = items.iter().map(|item| self.reg_like(inst, item, class));
        let regs = regs.collect::<Result<Vec<Reg>, PtxError>>()?;
        if regs.iter().any(|reg| reg.class != regs[0].class) {
            return Err(error(inst, "its list has registers of different types"));
        }
        if (0u32..).zip(&regs).all(|(i, reg)| *reg == regs[0].plus(i)) {
            return Ok(regs[0]);
        }
        let first = self.fresh(regs[0].class, count);
        for (i, &reg) in (0u32..).zip(&regs) {
            let mov = |dst, src| Inst::Mov {
                dst,
                src: Operand::Reg(src),
            };
            match access {
                Access::Read => self.out.push(mov(first.plus(i), reg)),
                Access::Write | Access::Update => self.after.push(mov(reg, first.plus(i))),
            }
        }
        Ok(first)
    }

    /// What a store writes where immediates are among it.
    fn stored(
        &mut self,
        inst: &WrittenInst,
        written: &Written,
        source: &StoreSource,
        count: u32,
    ) -> Result<StoreSource, PtxError> {
        let ty = match source {
            StoreSource::Regs(first) => first.class.scalar(),
            StoreSource::Imm(ty, _) => *ty,
        };
        let values = items(written).iter().map(|item| self.value(inst, item, ty));
        let values = values.collect::<Result<Vec<Operand>, PtxError>>()?;
        if values.len() != count as usize {
            return Err(error(inst, &format!("{} values; {count} are needed", values.len())));
        }
        if let Operand::Imm(bits) = values[0]
            && values.iter().all(|other| *other == values[0])
        {
            return Ok(StoreSource::Imm(ty, bits));
        }
        let first = self.fresh(ty.class(), count);
        for (i, &src) in (0u32..).zip(&values) {
            let dst = first.plus(i);
            self.out.push(Inst::Mov { dst, src });
        }
        Ok(StoreSource::Regs(first))
    }
}

fn small(inst: &WrittenInst, bits: u64, most: u32) -> Result<u32, PtxError> {
    let small = u32::try_from(bits).ok().filter(|small| *small <= most);
    small.ok_or_else(|| error(inst, &format!("{bits} in place of a number from 0 to {most}")))
}

fn items(written: &Written) -> &[Written] {
    match written {
        Written::List(list) => list,
        one => std::slice::from_ref(one),
    }
}

fn is_all(written: &Written, is: impl Fn(&Written) -> bool) -> bool {
    items(written).iter().all(is)
}

/// The bits of a number in the size of a type, which has them with or without a sign; none where they do not fit.
fn narrowed(bits: u64, ty: ScalarType) -> Option<u64> {
    let width = 8 * ty.bytes();
    match width {
        // Predicates: 0 and 1, and -1 for true.
        8 => Some(bits & 1),
        64.. => Some(bits),
        _ => {
            let (mask, signed) = ((1 << width) - 1, bits as i64);
            let fits = bits <= mask || (-(1i64 << (width - 1))..0).contains(&signed);
            fits.then_some(bits & mask)
        }
    }
}

pub(super) fn error(inst: &WrittenInst, why: &str) -> PtxError {
    PtxError::not_understood(format!("`{}`", inst.opcode), why, inst.line)
}
