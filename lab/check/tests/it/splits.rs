//! What the tests of split keys have in common, whatever the family.

use std::sync::Arc;

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_kernels::Plan;
use flashcore_sim::FindingKind;

pub(crate) fn check(plan: &Plan, schedules: u32) -> CheckReport {
    let options = CheckOptions {
        schedules,
        ..CheckOptions::default()
    };
    check_plan(plan, &options).unwrap()
}

#[track_caller]
pub(crate) fn assert_plan_clean(plan: &Plan) {
    let report = check(plan, 1);
    assert_eq!(report.verdict, Verdict::Clean, "{}\n{report}", plan.problem);
}

/// A part, or the sum that goes with it, that nobody stores is found where `combine` reads it.
#[track_caller]
pub(crate) fn assert_missing_partials_are_found(whole: &Plan) {
    for buffer in ["split_partials", "split_sums"] {
        let of = |m: &Mutation| m.operator == Operator::DropStore && m.object.as_deref() == Some(buffer);
        let dropped = mutations(&whole.main.kernel).into_iter().find(of).unwrap();
        let mut broken = whole.clone();
        broken.main.kernel = Arc::new(dropped.apply(&whole.main.kernel));
        let report = check(&broken, 1);
        assert_eq!(report.verdict, Verdict::Findings, "{report}");
        let finding = &report.findings[0].finding;
        assert_eq!(
            (finding.kind, finding.object.as_deref()),
            (FindingKind::NeverWritten, Some(buffer)),
            "{report}"
        );
        assert!(finding.line().unwrap().file.ends_with("combine.rs"), "{report}");
    }
}
