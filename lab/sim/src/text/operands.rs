//! Operands of a text as those of instructions.

use std::collections::HashSet;

use flashcore_ir::inst::{Access, Address, Cvt, Descriptor, Inst, Major, Object, Operand, Slot, WgmmaA};
use flashcore_ir::inst::{Space, WgmmaInst};
use flashcore_ir::ptx::read::PtxError;
use flashcore_ir::shared::BufferId;
use flashcore_ir::types::{Reg, RegClass, ScalarType};
use flashcore_ptx::Operand as Written;

use super::numbers::Ty;
use super::{Reader, UNKNOWN};

/// Why an instruction is not read, without its line.
pub(super) type Filled<T> = Result<T, String>;

impl Reader<'_> {
    /// Gives the registers of each warpgroup product consecutive places. Else they would be copied before it and after
    /// it, while it uses them.
    pub(super) fn place_products(&mut self) {
        let mut placed = HashSet::new();
        for inst in &self.function.instructions {
            let is_product = matches!(&self.module.forms()[inst.form as usize], Ok(form) if form.has("mma_async"));
            for operand in inst.operands.iter().filter(|_| is_product) {
                let Written::List(list) = operand else { continue };
                let numbers = list.iter().filter_map(|item| match item {
                    Written::Register(register) => Some(register.0 as usize),
                    _ => None,
                });
                let numbers: Vec<usize> = numbers.collect();
                let is_known = |number: &usize| placed.contains(number) || self.registers[*number].is_none();
                if numbers.len() < list.len() || numbers.iter().any(is_known) {
                    continue;
                }
                let first = numbers.first().and_then(|&number| self.registers[number]);
                let Some(class) = first.map(|reg| reg.class) else {
                    continue;
                };
                let first = self.fresh(class, numbers.len() as u32);
                for (number, i) in numbers.into_iter().zip(0..) {
                    self.registers[number] = Some(first.plus(i));
                    placed.insert(number);
                }
            }
        }
    }

    /// Fills an instruction's operands with those of the text.
    pub(super) fn fill(&mut self, form: &Inst, operands: &[Written]) -> Filled<Inst> {
        let mut inst = form.clone();
        let slots = inst.slots();
        if slots.len() != operands.len() {
            let (given, needed) = (operands.len(), slots.len());
            return Err(format!("it has {given} operands; {needed} are needed"));
        }
        for (slot, written) in slots.into_iter().zip(operands) {
            self.slot(slot, written)?;
        }
        if let Inst::Wgmma(WgmmaInst::Mma { a, b, .. }) = &mut inst {
            // Of other compilers all of shared memory, which is the last of the buffers.
            let whole = BufferId((self.symbols.len() as u32).saturating_sub(1));
            let is_foreign = self.places.is_some();
            let mut buffer = |descriptor: &mut Descriptor| match self.object() {
                Object::Shared(buffer) => {
                    descriptor.buffer = buffer;
                    Ok(())
                }
                Object::Param(_) if is_foreign => {
                    descriptor.buffer = whole;
                    Ok(())
                }
                Object::Param(_) => Err("which buffer its descriptor is of is not known".to_string()),
            };
            if let WgmmaA::Shared(a) = a {
                buffer(a)?;
            }
            buffer(b)?;
        }
        Ok(inst)
    }

    /// The object of the next address, as the notes have it.
    pub(super) fn object(&mut self) -> Object {
        self.objects.next().unwrap_or(UNKNOWN)
    }

    fn slot(&mut self, slot: Slot<'_>, written: &Written) -> Filled<()> {
        match (slot, written) {
            (Slot::Regs(_, 1, _), Written::List(_)) => return Err("a list in place of one register".to_string()),
            (Slot::Regs(first, count, access) | Slot::Matrices(first, count, access), _) => {
                *first = self.run(written, first.class, count, access)?;
            }
            (Slot::Value(value, ty), _) => *value = self.value(written, ty)?,
            (Slot::Memory(addr, space, _), Written::Memory(base, offset)) => {
                *addr = self.address(base, *offset, space)?;
            }
            (Slot::TensorBox(map, at, _), Written::Tensor(parts)) => {
                let [Written::Memory(base, offset), Written::List(coordinates)] = &parts[..] else {
                    return Err("a tensor with its coordinates is needed".to_string());
                };
                *map = self.address(base, *offset, Space::Global)?;
                if at.len() != coordinates.len() {
                    return Err(format!("{} coordinates; {} are needed", coordinates.len(), at.len()));
                }
                for (place, written) in at.iter_mut().zip(coordinates) {
                    *place = self.value(written, ScalarType::S32)?;
                }
            }
            (Slot::Number(number), Written::Integer(bits)) => *number = small(*bits, u32::MAX)?,
            // Masks are written as negative numbers, too.
            (Slot::Mask(mask), Written::Integer(bits)) => match i32::try_from(*bits as i64) {
                Ok(signed) => *mask = signed as u32,
                Err(_) => *mask = small(*bits, u32::MAX)?,
            },
            (Slot::Transposed(major), Written::Integer(bits)) => {
                *major = if small(*bits, 1)? == 1 { Major::Mn } else { Major::K };
            }
            (Slot::Fixed(expected), Written::Integer(bits))
                if *bits == expected || *bits as u32 == expected as u32 && expected <= u64::from(u32::MAX) => {}
            (Slot::Fixed(expected), _) => {
                return Err(format!("only {expected:#x} is read in place of another operand"));
            }
            (Slot::Unused, Written::Sink) => {}
            (Slot::Elected(pred), Written::Pair(both)) => *pred = self.reg(&both[1], pred.class)?,
            _ => return Err("a number or a list is needed in place of another operand".to_string()),
        }
        Ok(())
    }

    /// The register of an operand, of the size of a class.
    pub(super) fn reg(&self, written: &Written, class: RegClass) -> Filled<Reg> {
        self.of_width(written, class.bytes())
    }

    /// The register of an operand, of so many bytes.
    pub(super) fn of_width(&self, written: &Written, bytes: u32) -> Filled<Reg> {
        let Written::Register(register) = written else {
            return Err("a register is needed in place of another operand".to_string());
        };
        let reg = self.registers[register.0 as usize].ok_or("registers of this type are not read")?;
        let given = reg.class.bytes();
        let why = || format!("a register of {given} B where the instruction takes {bytes} B");
        (given == bytes).then_some(reg).ok_or_else(why)
    }

    pub(super) fn value(&mut self, written: &Written, ty: ScalarType) -> Filled<Operand> {
        match written {
            Written::Integer(_) | Written::Float { .. } => self.operand(written, Ty::Int(8 * ty.bytes(), false)),
            _ => Ok(Operand::Reg(self.reg(written, ty.class())?)),
        }
    }

    /// An address in brackets; a symbol's is read into a new register.
    pub(super) fn address(&mut self, base: &Written, offset: i64, space: Space) -> Filled<Address> {
        let offset = i32::try_from(offset).map_err(|_| "its offset does not fit into 32 bits".to_string())?;
        if let Written::Symbol(name, _) = base {
            let Some(&(object, start)) = self.symbols.get(name) else {
                return Err(format!("`{name}` is no shared variable"));
            };
            let dst = self.fresh(RegClass::B32, 1);
            self.inst(Inst::SharedBase { dst });
            self.base(dst, object);
            let offset = offset
                .checked_add_unsigned(start)
                .ok_or("its offset does not fit into 32 bits")?;
            let base = Operand::Reg(dst);
            return Ok(Address { base, offset, object });
        }
        let ty = if space == Space::Global {
            ScalarType::B64
        } else {
            ScalarType::B32
        };
        let wide = self.reg(base, RegClass::B64).ok().filter(|_| space != Space::Global);
        let base = match wide {
            None => self.value(base, ty)?,
            Some(wide) => {
                let dst = self.fresh(RegClass::B32, 1);
                self.convert(Cvt::U32FromU64, dst, Operand::Reg(wide));
                Operand::Reg(dst)
            }
        };
        let object = self.object();
        Ok(Address { base, offset, object })
    }

    pub(super) fn fresh(&mut self, class: RegClass, count: u32) -> Reg {
        let index = self.num_regs[class as usize];
        self.num_regs[class as usize] += count;
        Reg { class, index }
    }

    /// Contiguous registers: those of the text, or fresh ones that are copied from or to them.
    fn run(&mut self, written: &Written, class: RegClass, count: u32, access: Access) -> Filled<Reg> {
        let items = items(written);
        if items.len() != count as usize {
            return Err(format!("{} registers; {count} are needed", items.len()));
        }
        let regs = items.iter().map(|item| self.reg(item, class));
        let regs = regs.collect::<Filled<Vec<Reg>>>()?;
        if (0u32..).zip(&regs).all(|(i, reg)| *reg == regs[0].plus(i)) {
            return Ok(regs[0]);
        }
        let first = self.fresh(class, count);
        for (i, &reg) in (0u32..).zip(&regs) {
            if access.reads() {
                self.mov(first.plus(i), Operand::Reg(reg));
            }
            if access.writes() {
                self.after.push((reg, first.plus(i)));
            }
        }
        Ok(first)
    }
}

pub(super) fn error(opcode: &str, why: impl Into<String>, line: u32) -> PtxError {
    PtxError::not_understood(format!("`{opcode}`"), why, line)
}

/// Why no GPU executes an instruction of another compiler, such as a copy of a number of bytes that there is not.
pub(super) fn no_gpu_has(inst: &Inst) -> Option<String> {
    inst.impossible().filter(|_| matches!(inst, Inst::CpAsync { .. }))
}

/// What the first of some known words stands for that is one of an opcode's.
pub(super) fn named<T: Copy>(words: &[&str], known: &[(&str, T)]) -> Option<T> {
    let (_, meaning) = known.iter().find(|(word, _)| words.contains(word))?;
    Some(*meaning)
}

pub(super) fn small(bits: u64, most: u32) -> Filled<u32> {
    let small = u32::try_from(bits).ok().filter(|small| *small <= most);
    small.ok_or_else(|| format!("{bits} in place of a number from 0 to {most}"))
}

fn items(written: &Written) -> &[Written] {
    match written {
        Written::List(list) => list,
        one => std::slice::from_ref(one),
    }
}

/// The bits of a number in a width, which has them with or without a sign; none where they do not fit.
pub(super) fn narrowed(bits: u64, width: u32) -> Option<u64> {
    match width {
        64.. => Some(bits),
        _ => {
            let (mask, signed) = ((1 << width) - 1, bits as i64);
            let fits = bits <= mask || (-(1i64 << (width - 1))..0).contains(&signed);
            fits.then_some(bits & mask)
        }
    }
}
