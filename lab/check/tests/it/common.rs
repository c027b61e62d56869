//! What tests of several subjects share.

use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_kernels::Plan;
use flashcore_problem::InputKind;

/// The number in an environment variable: `FLASHCORE_SEED` draws other problems, `FLASHCORE_PROBLEMS` more or fewer.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {text}; write a whole number")),
        Err(_) => default,
    }
}

/// What tensors have in a problem of a seed: in every fourth, data that is meant to break kernels.
pub(crate) fn inputs_of(seed: u64) -> InputKind {
    match seed % 4 {
        0 => InputKind::ALL[seed as usize / 4 % InputKind::ALL.len()],
        _ => InputKind::Normal,
    }
}

/// Options whose data and first schedule a seed draws.
pub(crate) fn seeded(seed: u64, inputs: InputKind) -> CheckOptions {
    CheckOptions {
        inputs,
        seed,
        first_schedule: seed,
        ..CheckOptions::default()
    }
}

/// Checks a plan, and panics unless it is clean.
pub(crate) fn assert_clean(plan: &Plan, seed: u64, inputs: InputKind) -> CheckReport {
    let report = check_plan(plan, &seeded(seed, inputs)).unwrap();
    let (problem, config) = (&plan.problem, &plan.config);
    assert_eq!(
        report.verdict,
        Verdict::Clean,
        "seed {seed}: {problem} by {config}, {inputs}\n{report}"
    );
    report
}

/// Checks a plan. Returns what to print unless it is clean.
pub(crate) fn failure(plan: &Plan, seed: u64, inputs: InputKind) -> Option<String> {
    let report = check_plan(plan, &seeded(seed, inputs)).unwrap();
    let (problem, config) = (&plan.problem, &plan.config);
    (report.verdict != Verdict::Clean).then(|| format!("seed {seed}: {problem} by {config}, {inputs}\n{report}"))
}

/// Panics with all failures, if there are any.
pub(crate) fn assert_none(failures: &[String]) {
    let count = failures.len();
    assert!(failures.is_empty(), "{count} failures\n{}", failures.join("\n"));
}
