//! What registers, operands, addresses and types are called in PTX.

use crate::inst::{Address, Operand, Space};
use crate::types::{Reg, RegClass, ScalarType};

/// Prefix of a class's registers and the type they are declared with.
pub(super) fn register_file(class: RegClass) -> (&'static str, &'static str) {
    match class {
        RegClass::Pred => ("p", "pred"),
        RegClass::B16 => ("h", "b16"),
        RegClass::B32 => ("r", "b32"),
        RegClass::B64 => ("rd", "b64"),
        RegClass::F32 => ("f", "f32"),
    }
}

/// The type of instructions that move bits without reading them as numbers.
pub(super) fn untyped(ty: ScalarType) -> &'static str {
    match ty.class() {
        RegClass::Pred => "pred",
        RegClass::B16 => "b16",
        RegClass::B32 => "b32",
        RegClass::B64 => "b64",
        RegClass::F32 => "f32",
    }
}

pub(super) fn param_type(ty: ScalarType) -> &'static str {
    match ty {
        ScalarType::F16x2 | ScalarType::BF16x2 | ScalarType::E4M3x4 | ScalarType::Pred => "b32",
        ScalarType::F16 | ScalarType::BF16 | ScalarType::E4M3x2 => "b16",
        ScalarType::E4M3 => "b8",
        _ => ty.ptx(),
    }
}

pub(super) fn reg_name(reg: Reg) -> String {
    format!("%{}{}", register_file(reg.class).0, reg.index)
}

pub(super) fn regs(first: Reg, count: u32) -> String {
    if count == 1 {
        return reg_name(first);
    }
    let list: Vec<String> = (0..count).map(|i| reg_name(first.plus(i))).collect();
    format!("{{{}}}", list.join(", "))
}

/// Registers of 8×8 matrices: in braces even where there is one.
pub(super) fn matrices(first: Reg, count: u32) -> String {
    let list: Vec<String> = (0..count).map(|i| reg_name(first.plus(i))).collect();
    format!("{{{}}}", list.join(", "))
}

pub(super) fn operand(operand: &Operand, ty: ScalarType) -> String {
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

pub(super) fn address(addr: &Address) -> String {
    let base = match addr.base {
        Operand::Reg(reg) => reg_name(reg),
        Operand::Imm(bits) => bits.to_string(),
    };
    match addr.offset {
        0 => format!("[{base}]"),
        offset => format!("[{base}+{offset}]"),
    }
}

pub(super) fn space_name(space: Space) -> &'static str {
    match space {
        Space::Global => "global",
        Space::Shared => "shared",
        Space::Cluster => "shared::cluster",
    }
}

pub(super) fn vector(count: u32) -> &'static str {
    match count {
        2 => ".v2",
        4 => ".v4",
        _ => "",
    }
}
