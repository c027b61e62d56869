//! What own kernels print is read as it was: the same instructions, of the same registers.

use flashcore_ir::inst::{BinOp, FlagInst, Inst, UnOp};
use flashcore_ir::ptx::mnemonic;
use flashcore_ir::types::{Reg, ScalarType};

use super::{Code, Step};
use crate::assigned::accessed;
use crate::report::Class;

#[path = "../../../../crates/ir/tests/it/every_instruction/kernels.rs"]
mod every_instruction;

/// Whether the text has an instruction as such: jumps, and what loops count, are read as what they print.
fn is_plain(inst: &Inst) -> bool {
    !matches!(inst, Inst::SharedBase { .. } | Inst::Param { .. } | Inst::TrapIf { .. })
}

/// The opcode with its modifiers. What a store writes are bits.
fn spelled(inst: &Inst) -> String {
    let text = mnemonic(inst);
    if text.starts_with("st.") {
        text.replace(".f32", ".b32")
    } else {
        text
    }
}

/// The class of the step that an instruction is read as.
fn class(inst: &Inst) -> Class {
    let ty = match inst {
        Inst::Bin { ty, .. } | Inst::Un { ty, .. } | Inst::Fma { ty, .. } => Some(*ty),
        _ => None,
    };
    match inst {
        Inst::Un {
            op: UnOp::Ex2 | UnOp::Lg2 | UnOp::Rcp,
            ..
        } => Class::Mufu,
        Inst::Bin {
            op: BinOp::Min | BinOp::Max,
            ty: ScalarType::F32,
            ..
        } => Class::Alu,
        Inst::Bin { .. } | Inst::Fma { .. } if ty == Some(ScalarType::F32) => Class::Fma,
        _ if matches!(ty, Some(ScalarType::F16x2 | ScalarType::BF16x2)) => Class::Half,
        Inst::Cvt { .. } | Inst::CvtPack { .. } => Class::Convert,
        Inst::Flag(FlagInst::LoadAcquire { .. }) => Class::LoadGlobal,
        Inst::Flag(FlagInst::StoreRelease { .. }) => Class::StoreGlobal,
        Inst::Flag(FlagInst::Add { .. }) | Inst::Atom { .. } => Class::Atomic,
        Inst::Shfl { .. } | Inst::Vote { .. } | Inst::Redux { .. } => Class::Exchange,
        Inst::BarSync { .. } | Inst::BarArrive { .. } | Inst::BarWarp { .. } | Inst::Mbar(_) => Class::Sync,
        _ => Class::of(inst).unwrap_or(Class::Alu),
    }
}

#[test]
fn every_instruction_reads_back() {
    for kernel in every_instruction::kernels() {
        let code = Code::of(&kernel).unwrap();
        let mut read = code.items.iter().map(|item| &item.step);
        kernel.for_each_inst(&mut |inst, _| {
            let is_same = |step: &Step| match step {
                // Types that print the same are one.
                Step::Inst(other) => (spelled(other), accessed(other)) == (spelled(inst), accessed(inst)),
                Step::Cold(cold) => {
                    let sorted = |all: [Vec<Reg>; 2]| {
                        all.map(|mut regs| {
                            regs.sort_unstable_by_key(|reg| (reg.class, reg.index));
                            regs
                        })
                    };
                    cold.class == class(inst) && sorted(cold.accessed()) == sorted(accessed(inst))
                }
                _ => false,
            };
            let found = !is_plain(inst) || read.by_ref().any(is_same);
            assert!(found, "{}: {inst:?}", kernel.name());
        });
    }
}
