//! Values of a line, and where numbers stop being numbers: found where they were planted.

use std::sync::Arc;

use flashcore_check::CheckOptions;
use flashcore_check::watch::{Watch, numerics, trace_line};
use flashcore_ir::inst::UnOp;
use flashcore_ir::{Inst, Kernel, Node, Operand, SourceLine, Target};
use flashcore_kernels::Plan;
use flashcore_problem::Problem;

const KERNELS: [&str; 2] = ["scalar/tiled-m16n16-w4-v16", "mma/m32n64-w2x1-s2-b1-qreg-xor-cond"];

fn plan(kernel: &str) -> Plan {
    Plan::new(&Problem::named("tiny").unwrap(), &kernel.parse().unwrap(), Target::Sm89).unwrap()
}

/// The line of the first instruction that a test holds for.
fn line_of(kernel: &Kernel, is: impl Fn(&Inst) -> bool) -> SourceLine {
    let mut found = None;
    kernel.for_each_inst(&mut |inst, site| {
        if found.is_none() && is(inst) {
            found = Some(kernel.kernel_line(site));
        }
    });
    found.unwrap()
}

fn is_un(inst: &Inst, op: UnOp) -> bool {
    matches!(inst, Inst::Un { op: it, .. } if *it == op)
}

#[test]
fn a_line_is_named_by_file_number_and_value() {
    let watch: Watch = "warp.rs:120:ex2".parse().unwrap();
    let (file, line, value) = (watch.file.as_deref(), watch.line, watch.value.as_deref());
    assert_eq!((file, line, value), (Some("warp.rs"), Some(120), Some("ex2")));
    assert_eq!("120".parse::<Watch>().unwrap().file, None);
    assert!("warp.rs".parse::<Watch>().is_err());
}

#[test]
fn any_value_of_any_lane_at_any_line() {
    for name in KERNELS {
        let plan = plan(name);
        let line = line_of(&plan.main.kernel, |inst| is_un(inst, UnOp::Ex2));
        let watch = Watch {
            file: Some(line.file.to_string()),
            line: Some(line.line),
            value: Some("ex2".to_string()),
        };
        let shown = |of| {
            trace_line(&plan, &watch, of, &CheckOptions::default())
                .unwrap()
                .unwrap()
        };
        let records = shown(([0, 0, 0], 1));
        assert!(!records.is_empty(), "{name}");
        for record in &records {
            assert_eq!((record.block, record.warp), ([0; 3], 1), "{name}");
            assert!(record.label.starts_with("ex2.approx"), "{}", record.label);
            for value in (0..32).filter_map(|lane| record.f32(lane)) {
                assert!((0.0..=1.001).contains(&value), "{name}: 2^x of x <= 0 is {value}");
            }
        }
        assert!(shown(([9, 9, 9], 0)).is_empty(), "{name}: there is no such block");
        let file: Watch = format!("{}:ex2", line.file).parse().unwrap();
        assert_eq!((&file.file, file.line, &file.value), (&watch.file, None, &watch.value));
        let elsewhere = Watch {
            file: Some("nowhere.rs".to_string()),
            ..watch.clone()
        };
        let options = CheckOptions::default();
        assert!(trace_line(&plan, &elsewhere, ([0; 3], 0), &options).unwrap().is_none());
    }
}

/// The kernel with each reciprocal taken of a constant.
fn with_reciprocals_of(nodes: &[Node], bits: u32) -> Vec<Node> {
    let planted = nodes.iter().cloned().map(|node| match node {
        Node::Inst {
            inst: Inst::Un {
                op: UnOp::Rcp, ty, dst, ..
            },
            site,
        } => Node::Inst {
            inst: Inst::Un {
                op: UnOp::Rcp,
                ty,
                dst,
                a: Operand::Imm(u64::from(bits)),
            },
            site,
        },
        Node::If {
            condition,
            then,
            otherwise,
            site,
        } => Node::If {
            condition,
            then: with_reciprocals_of(&then, bits),
            otherwise: with_reciprocals_of(&otherwise, bits),
            site,
        },
        Node::Loop { body, site } => Node::Loop {
            body: with_reciprocals_of(&body, bits),
            site,
        },
        other => other,
    });
    planted.collect()
}

#[test]
fn clean_kernels_have_neither_nan_nor_infinity_at_any_tap() {
    for name in KERNELS {
        let taps = numerics(&plan(name), &CheckOptions::default()).unwrap();
        let names: Vec<&str> = taps.iter().map(|tap| tap.tap).collect();
        assert_eq!(names, ["scores", "probabilities", "values", "output"], "{name}");
        for tap in &taps {
            assert!(tap.gate.passed(), "{name} {}: {}", tap.tap, tap.gate);
            assert_eq!(
                (&tap.first_nan, &tap.first_infinity),
                (&None, &None),
                "{name} {}",
                tap.tap
            );
        }
    }
}

#[test]
fn a_planted_nan_and_a_planted_infinity_are_found_at_their_line() {
    for name in KERNELS {
        for (bits, is_nan) in [(f32::NAN.to_bits(), true), (0, false)] {
            let mut plan = plan(name);
            let kernel = plan.main.kernel.clone();
            let line = line_of(&kernel, |inst| is_un(inst, UnOp::Rcp));
            plan.main.kernel = Arc::new(kernel.with_body(with_reciprocals_of(kernel.body(), bits)));
            let taps = numerics(&plan, &CheckOptions::default()).unwrap();
            let output = taps.last().unwrap();
            assert!(!output.gate.passed(), "{name}");
            let first = if is_nan {
                &output.first_nan
            } else {
                &output.first_infinity
            };
            let first = first.as_ref().unwrap();
            assert_eq!(first.at, line.to_string(), "{name}");
            assert!(first.instruction.starts_with("rcp.approx"), "{}", first.instruction);
            assert!(first.source.is_some(), "{name}");
        }
    }
}
