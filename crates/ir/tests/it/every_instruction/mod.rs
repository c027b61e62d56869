//! Every instruction of the language, with every operation and type it has, written through the
//! builder: spelled as the snapshots show, and taken by ptxas for every target.

mod forms;
mod hopper;
mod kernels;
use crate::support;

use std::collections::BTreeSet;

use flashcore_ir::inst::ClusterInst;
use flashcore_ir::ptx::mnemonic;
use flashcore_ir::{Inst, Kernel, Reg, RegClass};
use forms::{all_forms, form};
use support::assemble_everywhere;

fn kernels() -> Vec<Kernel> {
    kernels::kernels().into_iter().chain(hopper::kernels()).collect()
}

#[test]
fn spelling() {
    for kernel in &kernels() {
        insta::assert_snapshot!(kernel.name(), kernel.to_ptx());
    }
}

#[test]
fn ptxas_takes_them_all() {
    for kernel in &kernels() {
        assemble_everywhere(kernel);
    }
}

#[test]
fn each_needs_the_least_that_has_it() {
    for kernel in &kernels() {
        let required = kernel.requires();
        let expected = match kernel.name() {
            "packed_bf16_sm90" => ((7, 8), 90, false),
            "mbarriers" | "clusters" | "bulk_copies" => ((8, 0), 90, false),
            "tensor_copies" | "wgmma" | "wgmma_widths" | "fp8" | "small_things" => ((8, 0), 90, true),
            "vector_sums" => ((8, 1), 90, false),
            _ => ((7, 0), 80, false),
        };
        let found = (required.ptx, required.sm, required.arch_specific);
        assert_eq!(found, expected, "{kernel}");
    }
}

#[test]
fn nothing_is_missing() {
    let mut seen = BTreeSet::new();
    for kernel in &kernels() {
        kernel.for_each_inst(&mut |inst, _| {
            seen.insert(form(inst));
        });
    }
    let all = all_forms();
    let unlisted: Vec<_> = seen.difference(&all).collect();
    let unwritten: Vec<_> = all.difference(&seen).collect();
    assert!(
        unlisted.is_empty() && unwritten.is_empty(),
        "unlisted {unlisted:?}\nnot written {unwritten:?}"
    );
}

#[test]
fn each_carries_the_line_that_wrote_it() {
    for kernel in &kernels() {
        kernel.for_each_inst(&mut |inst, site| {
            let line = kernel.kernel_line(site);
            let ours = ["kernels.rs", "hopper.rs"].iter().any(|file| line.file.ends_with(file));
            assert!(ours, "{kernel}: {inst:?} at {line}");
        });
    }
}

/// Instructions as printed, one for each in the kernel; branches, labels and declarations left out.
fn printed(kernel: &Kernel) -> Vec<String> {
    let ptx = kernel.to_ptx();
    let body = ptx.split("{\n").nth(1).expect("a body");
    body.lines()
        .filter(|line| !line.starts_with('L') && !line.starts_with('}') && !line.contains("bra"))
        .filter(|line| !line.contains(".reg ") && !line.contains("cvta."))
        .map(|line| line.trim().to_string())
        .filter(|line| line != "ret;")
        .collect()
}

fn name(reg: Reg) -> String {
    let prefix = match reg.class {
        RegClass::Pred => "p",
        RegClass::B16 => "h",
        RegClass::B32 => "r",
        RegClass::B64 => "rd",
        RegClass::F32 => "f",
    };
    format!("%{prefix}{}", reg.index)
}

#[test]
fn registers_visited_are_those_printed() {
    for kernel in &kernels() {
        let lines = printed(kernel);
        assert_eq!(lines.len(), kernel.num_insts(), "{kernel}");
        let mut lines = lines.into_iter();
        kernel.for_each_inst(&mut |inst, _| {
            let line = lines.next().expect("as many lines as instructions");
            let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
            let all = |first: Reg, count: u32| (0..count).map(move |i| name(first.plus(i)));
            inst.visit_regs(|reg, n| read.extend(all(reg, n)), |reg, n| written.extend(all(reg, n)));
            let operands = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '%');
            let printed: BTreeSet<String> = operands
                .filter(|word| word.starts_with('%') && word.ends_with(|c: char| c.is_ascii_digit()))
                .map(str::to_string)
                .collect();
            assert_eq!(printed, &read | &written, "{line}");
            for reg in read.iter().chain(&written) {
                let count = kernel.num_regs(match reg.trim_start_matches('%').trim_end_matches(char::is_numeric) {
                    "p" => RegClass::Pred,
                    "h" => RegClass::B16,
                    "r" => RegClass::B32,
                    "rd" => RegClass::B64,
                    _ => RegClass::F32,
                });
                let index: u32 = reg
                    .trim_start_matches(|c: char| !c.is_ascii_digit())
                    .parse()
                    .expect("a number");
                assert!(index < count, "{reg} is declared");
            }
        });
    }
}

#[test]
fn parameters_are_declared_in_order() {
    let kernels = kernels();
    let control = kernels.iter().find(|k| k.name() == "control").expect("among them");
    let types: Vec<_> = control
        .params()
        .iter()
        .map(|p| (p.name.as_str(), p.scalar().ptx()))
        .collect();
    let expected = [
        ("out", "u64"),
        ("n", "u32"),
        ("scale", "f32"),
        ("i", "s32"),
        ("u", "u64"),
        ("l", "s64"),
    ];
    assert_eq!(types[..6], expected);
    assert_eq!((control.threads(), control.min_blocks_per_sm()), (128, Some(2)));
}

#[test]
fn aligned_instructions_are_known() {
    for kernel in &kernels() {
        kernel.for_each_inst(&mut |inst, _| {
            let (mnemonic, aligned) = (mnemonic(inst), inst.is_aligned());
            let expected = match inst {
                Inst::Mma { .. } | Inst::LdMatrix { .. } | Inst::StMatrix { .. } | Inst::Wgmma(_) => true,
                Inst::BarSync { .. } | Inst::BarArrive { .. } | Inst::SetMaxRegs { .. } => true,
                Inst::Cluster(ClusterInst::Arrive { aligned, .. } | ClusterInst::Wait { aligned }) => *aligned,
                _ => false,
            };
            assert_eq!(aligned, expected, "{mnemonic}");
            assert_eq!(inst.impossible(), None, "{mnemonic}");
        });
    }
}
