//! Mistakes planted by hand, and whether a report names them: shared by the tests of the families.
#![allow(dead_code)] // each test takes what it needs

use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations, object};
use flashcore_check::{CheckOptions, CheckReport, check_plan, source};
use flashcore_ir::{Inst, Kernel, Launch, SourceLine};
use flashcore_kernels::Plan;
use flashcore_sim::FindingKind;

/// A mistake, and the finding it must give.
pub(crate) struct Planted {
    pub(crate) name: &'static str,
    pub(crate) operator: Operator,
    /// Text of the line that it is planted in, and the memory accessed there.
    pub(crate) line: &'static str,
    pub(crate) object: &'static str,
    /// What is found, and text of the line that the finding names: that of the access which goes wrong.
    pub(crate) found: FindingKind,
    pub(crate) at: &'static str,
    /// The memory that the finding names.
    pub(crate) of: &'static str,
}

pub(crate) fn quoted(line: SourceLine) -> String {
    source::quote(line.file, line.line).unwrap_or_default()
}

/// Checks a plan whose main step has another kernel and launch. Livelocks are found in a second rather than
/// in a minute.
pub(crate) fn check_with(plan: &Plan, kernel: Kernel, launch: Launch, options: &CheckOptions) -> CheckReport {
    let mut mutant = plan.clone();
    (mutant.main.kernel, mutant.main.launch) = (Arc::new(kernel), launch);
    let mut options = options.clone();
    options.sim.max_instructions = 1_000_000;
    check_plan(&mutant, &options).unwrap()
}

/// The kernel's own lines that access some memory: of an asynchronous copy, either end.
fn lines_of(kernel: &Kernel, memory: &str) -> Vec<SourceLine> {
    let mut lines = Vec::new();
    kernel.for_each_inst(&mut |inst: &Inst, site| {
        let mut other_end = inst.clone();
        if let Inst::CpAsync { dst, src, .. } = &mut other_end {
            std::mem::swap(dst, src);
        }
        if [inst, &other_end]
            .iter()
            .any(|inst| object(inst, kernel).as_deref() == Some(memory))
        {
            lines.push(kernel.kernel_line(site));
        }
    });
    lines
}

/// Whether a report has the finding that a planted mistake must give.
fn is_found(report: &CheckReport, kernel: &Kernel, planted: &Planted) -> bool {
    report.findings.iter().any(|found| {
        let Some(line) = found.finding.line() else { return false };
        let of = found.finding.object.as_deref().unwrap_or("");
        // The line is that of an instruction which accesses the memory named, and reads as it should.
        let accessed = planted.of.is_empty()
            || lines_of(kernel, planted.of)
                .iter()
                .any(|l| (l.file, l.line) == (line.file, line.line));
        let quote = source::quote(line.file, line.line).unwrap_or_default();
        found.finding.kind == planted.found && of == planted.of && accessed && quote.contains(planted.at)
    })
}

/// Plants each mistake at every place that it names, until one gives the finding it must.
pub(crate) fn assert_found(plan: &Plan, table: &[Planted], options: &CheckOptions) {
    let all = mutations(&plan.main.kernel);
    for planted in table {
        let candidates: Vec<&Mutation> = all
            .iter()
            .filter(|m| m.operator == planted.operator && quoted(m.line).contains(planted.line))
            .filter(|m| planted.object.is_empty() || m.object.as_deref() == Some(planted.object))
            .collect();
        assert!(!candidates.is_empty(), "{}: nowhere to plant it", planted.name);
        let mut seen = String::new();
        let found = candidates.iter().any(|mutation| {
            let kernel = mutation.apply(&plan.main.kernel);
            let report = check_with(plan, kernel, plan.main.launch.clone(), options);
            seen.push_str(&format!("{mutation}\n{report}\n"));
            is_found(&report, &plan.main.kernel, planted)
        });
        assert!(found, "{}\n{seen}", planted.name);
    }
}
