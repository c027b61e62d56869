//! Instructions of a text as instructions of the kernel language.

use super::PtxError;
use super::forms::forms;
use super::objects::Origin;
use super::operands::{Reader, error};
use super::statement::{Written, WrittenInst};
use flashcore_ir::inst::{BinOp, Inst, Object, Operand, Slot, Special};
use flashcore_ir::kernel::ParamKind;
use flashcore_ir::types::{RegClass, ScalarType};

impl Reader<'_> {
    /// Reads an instruction that is not a jump into `out` and `after`.
    pub(super) fn decode(&mut self, inst: &WrittenInst) -> Result<(), PtxError> {
        let opcode = inst.opcode.as_str();
        match opcode {
            "cvta.to.global.u64" => return self.pointer(inst),
            "cp.async.wait_all" => {
                self.out.extend([Inst::CpAsyncCommit, Inst::CpAsyncWait { pending: 0 }]);
                return Ok(());
            }
            _ if opcode.starts_with("ld.param.") => return self.param(inst),
            _ if opcode.starts_with("mov.") && self.address_of_symbol(inst)? => return Ok(()),
            _ => {}
        }
        let operands = self.used_operands(inst)?;
        let candidates = forms(opcode);
        let form = candidates.iter().find(|form| suits(form, &operands));
        let Some(mut read) = form.or(candidates.first()).cloned() else {
            return Err(unknown(inst));
        };
        let slots = read.slots();
        if slots.len() != operands.len() {
            let why = format!("it has {} operands; {} are needed", operands.len(), slots.len());
            return Err(error(inst, &why));
        }
        for (slot, written) in slots.into_iter().zip(&operands) {
            self.fill(inst, slot, written)?;
        }
        self.out.push(read);
        Ok(())
    }

    /// The operands without the predicate of a shuffle among all lanes, which is always true: the
    /// source lane exists.
    fn used_operands(&mut self, inst: &WrittenInst) -> Result<Vec<Written>, PtxError> {
        let mut operands = inst.operands.clone();
        let is_total = ["shfl.sync.bfly.", "shfl.sync.idx."]
            .iter()
            .any(|name| inst.opcode.starts_with(name));
        if let (true, Some(Written::Pair(value, pred))) = (is_total, inst.operands.first()) {
            let (dst, src) = (self.reg_like(inst, pred, RegClass::Pred)?, Operand::Imm(1));
            self.after.push(Inst::Mov { dst, src });
            operands[0] = (**value).clone();
        }
        Ok(operands)
    }

    /// Reads a `mov` of a shared symbol's address; false for others.
    fn address_of_symbol(&mut self, inst: &WrittenInst) -> Result<bool, PtxError> {
        let (name, offset) = match inst.operands.get(1) {
            Some(Written::Name(name)) => (name, 0),
            Some(Written::Address(base, offset)) => match &**base {
                Written::Name(name) => (name, *offset),
                _ => return Ok(false),
            },
            _ => return Ok(false),
        };
        let Some(&(object, start)) = self.symbols.get(name.as_str()) else {
            return Ok(false);
        };
        if inst.opcode.ends_with("64") {
            let why = "shared symbols are supported as 32-bit addresses (mov.u32)";
            return Err(error(inst, why));
        }
        let dst = self.reg(inst, 0, RegClass::B32)?;
        self.out.push(Inst::SharedBase { dst });
        self.base(dst, object);
        let start = i64::from(start).wrapping_add(offset);
        if start != 0 {
            let (op, ty) = (BinOp::Add, ScalarType::U32);
            let (a, b) = (Operand::Reg(dst), Operand::Imm(u64::from(start as u32)));
            self.out.push(Inst::Bin { op, ty, dst, a, b });
        }
        Ok(true)
    }

    fn pointer(&mut self, inst: &WrittenInst) -> Result<(), PtxError> {
        let (dst, src) = (self.reg(inst, 0, RegClass::B64)?, self.reg(inst, 1, RegClass::B64)?);
        // A parameter so used is a pointer, even if nothing is accessed through it.
        if let Some(Origin::One(Object::Param(index))) = self.bases.get(&src)
            && let Some(param) = self.params.get_mut(*index as usize)
            && matches!(param.kind, ParamKind::Value(_))
        {
            let (element, writable) = (ScalarType::B32, false);
            param.kind = ParamKind::Pointer { element, writable };
        }
        if dst != src {
            let src = Operand::Reg(src);
            self.out.push(Inst::Mov { dst, src });
        }
        Ok(())
    }

    fn param(&mut self, inst: &WrittenInst) -> Result<(), PtxError> {
        let ty = inst.opcode.strip_prefix("ld.param.").and_then(|ty| match ty {
            "u16" | "s16" => Some(ScalarType::B16),
            _ => ScalarType::from_ptx(ty).filter(|ty| ty.bytes() > 1),
        });
        let ty = ty.ok_or_else(|| error(inst, "parameters are read as one number of 2, 4 or 8 bytes"))?;
        let dst = self.reg(inst, 0, ty.class())?;
        let name = match inst.operands.get(1) {
            Some(Written::Address(base, 0)) => match &**base {
                Written::Name(name) => name,
                _ => return Err(error(inst, "parameters are read by name")),
            },
            _ => return Err(error(inst, "parameters are read whole, by name")),
        };
        let index = self.param_names.get(name.as_str()).copied();
        let index = index.ok_or_else(|| error(inst, &format!("there is no parameter `{name}`")))?;
        let (declared, read) = (self.params[index as usize].scalar().bytes(), ty.bytes());
        if declared != read {
            let why =
                format!("parameter `{name}` has {declared} B, of which {read} B are read; parameters are read whole");
            return Err(error(inst, &why));
        }
        if dst.class == RegClass::B64 {
            self.base(dst, Object::Param(index));
        }
        self.out.push(Inst::Param { dst, index });
        Ok(())
    }
}

/// Whether operands are of the kinds that an instruction has: its number of operands, lists where
/// it splits or joins registers, names of special registers.
fn suits(form: &Inst, operands: &[Written]) -> bool {
    let mut form = form.clone();
    let slots = form.slots();
    let suits = |slot: &Slot<'_>, written: &Written| match slot {
        Slot::Halves(..) | Slot::Pair(..) => matches!(written, Written::List(_)),
        Slot::Special(_) => matches!(written, Written::Name(name) if special(name).is_some()),
        Slot::Regs(_, 1, _) | Slot::Value(..) => !matches!(written, Written::List(_)),
        _ => true,
    };
    slots.len() == operands.len() && slots.iter().zip(operands).all(|(slot, written)| suits(slot, written))
}

pub(super) fn special(name: &str) -> Option<Special> {
    Special::all().find(|special| special.ptx() == name)
}

fn unknown(inst: &WrittenInst) -> PtxError {
    let why = match inst.opcode.split('.').next() {
        Some("ld" | "st" | "atom" | "red" | "cp" | "ldmatrix" | "stmatrix") => {
            "supported are accesses of 2, 4 and 8 bytes to global and shared memory, with .nc, .cg, .cs, .v2 and \
             .v4, of at most 16 bytes together"
        }
        Some("setp") if inst.opcode == "setp.ne.f32" => "use setp.neu, which is true on NaN",
        _ => "the kernel language has no such instruction; it has those that `explain --ptx` prints",
    };
    error(inst, why)
}
