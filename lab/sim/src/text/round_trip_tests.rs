//! What own kernels print is read as it was: the same instructions, of the same registers.

use flashcore_ir::inst::Inst;
use flashcore_ir::ptx::mnemonic;
use flashcore_ir::types::Reg;

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
                    cold.class == Class::of(inst) && sorted(cold.accessed()) == sorted(accessed(inst))
                }
                _ => false,
            };
            let found = !is_plain(inst) || read.by_ref().any(is_same);
            assert!(found, "{}: {inst:?}", kernel.name());
        });
    }
}
