//! How instructions, registers and operands are printed.

use super::SHARED_SYMBOL;
use super::opcode::opcode;
use crate::inst::{Address, Inst, Major, Operand, Slot, StoreSource};
use crate::types::{Reg, ScalarType};

/// An instruction as PTX. `names` gives the name of a kernel parameter.
pub(super) fn spell(inst: &Inst, names: &dyn Fn(u32) -> String) -> String {
    let (mut guard, mut operands) = (String::new(), Vec::new());
    for slot in inst.clone().slots() {
        match slot {
            Slot::Guard(pred) => guard = format!("@{} ", reg_name(*pred)),
            slot => operands.push(printed(&slot, names)),
        }
    }
    let operands = operands.join(", ");
    let space = if operands.is_empty() { "" } else { " " };
    format!("{guard}{}{space}{operands};", opcode(inst))
}

fn printed(slot: &Slot<'_>, names: &dyn Fn(u32) -> String) -> String {
    match slot {
        Slot::Regs(reg, 1, _) | Slot::Guard(reg) | Slot::Traced(_, reg) => reg_name(**reg),
        Slot::Regs(first, count, _) | Slot::Matrices(first, count, _) => {
            list((0..*count).map(|i| reg_name(first.plus(i))))
        }
        Slot::Halves(lo, hi) => list([lo, hi].map(|reg| reg_name(**reg))),
        Slot::Value(value, ty) => operand(value, *ty),
        Slot::Pair(lo, hi, ty) => list([lo, hi].map(|value| operand(value, *ty))),
        Slot::Stored(StoreSource::Regs(reg), 1) => reg_name(*reg),
        Slot::Stored(StoreSource::Regs(first), count) => list((0..*count).map(|i| reg_name(first.plus(i)))),
        Slot::Stored(StoreSource::Imm(ty, bits), 1) => operand(&Operand::Imm(*bits), *ty),
        Slot::Stored(StoreSource::Imm(ty, bits), count) => {
            list((0..*count).map(|_| operand(&Operand::Imm(*bits), *ty)))
        }
        Slot::Memory(addr, ..) => format!("[{}]", place(addr)),
        Slot::TensorBox(map, at, _) => {
            let at = list(at.iter().map(|x| operand(x, ScalarType::S32)));
            format!("[{}, {at}]", place(map))
        }
        Slot::Number(number) => number.to_string(),
        Slot::Mask(mask) => format!("{mask:#x}"),
        Slot::Table(table) => format!("{table:#04x}"),
        Slot::Transposed(major) => u8::from(**major == Major::Mn).to_string(),
        Slot::Fixed(bits @ ..32) => bits.to_string(),
        Slot::Fixed(bits) => format!("{bits:#x}"),
        Slot::Unused => "_".to_string(),
        Slot::Elected(pred) => format!("_|{}", reg_name(**pred)),
        Slot::Special(which) => which.ptx(),
        Slot::Param(index) => format!("[param_{}]", names(**index)),
        Slot::SharedBase => SHARED_SYMBOL.to_string(),
    }
}

pub(super) fn reg_name(reg: Reg) -> String {
    format!("%{}{}", reg.class.prefix(), reg.index)
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("{{{}}}", items.into_iter().collect::<Vec<_>>().join(", "))
}

fn operand(operand: &Operand, ty: ScalarType) -> String {
    match operand {
        Operand::Reg(reg) => reg_name(*reg),
        Operand::Imm(bits) => match ty {
            ScalarType::F32 => format!("0f{:08X}", *bits as u32),
            ScalarType::S32 => (*bits as u32 as i32).to_string(),
            ScalarType::S64 => (*bits as i64).to_string(),
            _ => bits.to_string(),
        },
    }
}

fn place(addr: &Address) -> String {
    let base = operand(&addr.base, ScalarType::B64);
    match addr.offset {
        0 => base,
        offset => format!("{base}+{offset}"),
    }
}
