//! Faults planted by hand, and whether a report names them: shared by the tests of the families.

use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan, source};
use flashcore_ir::{Kernel, Launch, SourceLine};
use flashcore_kernels::{Plan, Step};
use flashcore_sim::{FindingKind, Line};

/// A fault, and what it must give.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) operator: Operator,
    /// Text of the line that it is planted in or of a verb on the way, and the memory accessed there if it matters.
    pub(crate) place: &'static str,
    pub(crate) object: &'static str,
    /// The finding; none where the answer is wrong and nothing else.
    pub(crate) found: Option<FindingKind>,
    /// Text of the line that the finding names or of a verb on the way, and what it names.
    pub(crate) at: &'static str,
    pub(crate) of: &'static str,
}

pub(crate) fn quoted(line: SourceLine) -> String {
    source::quote(line.file, line.line).unwrap_or_default()
}

/// Livelocks are found in a second rather than in a minute.
const MAX_INSTRUCTIONS: u64 = 1_000_000;

/// Checks a plan whose main step has another kernel and launch.
pub(crate) fn check_with(plan: &Plan, kernel: Kernel, launch: Launch, options: &CheckOptions) -> CheckReport {
    let mut mutant = plan.clone();
    (mutant.main.kernel, mutant.main.launch) = (Arc::new(kernel), launch);
    let mut options = options.clone();
    options.sim.max_instructions = MAX_INSTRUCTIONS;
    check_plan(&mutant, &options).unwrap()
}

/// A line as text with the verbs that it goes through.
pub(crate) fn through(lines: &[Line]) -> String {
    let quote = lines.first().and_then(|line| source::quote(line.file, line.line));
    let verbs: Vec<&str> = lines.iter().filter_map(|line| line.verb).collect();
    format!("{}; {}", quote.unwrap_or_default(), verbs.join(", "))
}

/// The same of the place where a fault is planted.
pub(crate) fn place(mutation: &Mutation, kernel: &Kernel) -> String {
    let backtrace = kernel.backtrace(mutation.site);
    let verbs: Vec<&str> = backtrace.iter().filter_map(|(_, verb)| *verb).collect();
    format!("{}; {}", quoted(mutation.line), verbs.join(", "))
}

/// Whether a report has what a fault must give.
pub(crate) fn is_found(report: &CheckReport, fault: &Fault) -> bool {
    let Some(kind) = fault.found else {
        return report.verdict == Verdict::Wrong;
    };
    report.findings.iter().any(|found| {
        let finding = &found.finding;
        let object = finding.object.as_deref().unwrap_or("");
        let of = if fault.of.starts_with('`') {
            object.starts_with(fault.of)
        } else {
            object == fault.of
        };
        finding.kind == kind && of && through(&finding.lines).contains(fault.at)
    })
}

/// Plants each fault at every place that it names, until one gives what it must.
pub(crate) fn find_all(plan: &Plan, faults: &[Fault]) {
    find_all_with(plan, faults, &CheckOptions::default());
}

pub(crate) fn find_all_with(plan: &Plan, faults: &[Fault], options: &CheckOptions) {
    find_all_in(plan, |plan| &mut plan.main, faults, options);
}

/// The same in another step of the plan.
pub(crate) fn find_all_in(plan: &Plan, step: fn(&mut Plan) -> &mut Step, faults: &[Fault], options: &CheckOptions) {
    assert!(!faults.is_empty());
    let mut options = options.clone();
    options.sim.max_instructions = MAX_INSTRUCTIONS;
    let kernel = step(&mut plan.clone()).kernel.clone();
    let all = mutations(&kernel);
    let mut missed = String::new();
    for fault in faults {
        let places: Vec<&Mutation> = all
            .iter()
            .filter(|m| m.operator == fault.operator && place(m, &kernel).contains(fault.place))
            .filter(|m| fault.object.is_empty() || m.object.as_deref() == Some(fault.object))
            .collect();
        assert!(!places.is_empty(), "{}: nowhere to plant it", fault.name);
        let mut seen = String::new();
        let found = places.iter().any(|mutation| {
            let mut mutant = plan.clone();
            step(&mut mutant).kernel = Arc::new(mutation.apply(&kernel));
            let report = check_plan(&mutant, &options).unwrap();
            seen.push_str(&format!("{mutation}\n{report}\n"));
            is_found(&report, fault)
        });
        if !found {
            missed.push_str(&format!("{}\n{seen}", fault.name));
        }
    }
    assert!(missed.is_empty(), "{missed}");
}
