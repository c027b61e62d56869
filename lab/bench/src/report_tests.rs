//! Reports made by hand, for the tests of this crate.

use super::*;
use crate::problems::cases;
use crate::{DeviceIdentity, LaunchMode, Mode, Ratio, Stop, SubjectInfo, Summary, Turns, Verdict};

/// A report of times in µs by label, the first being the baseline, for the first problems of `small-set`.
pub(crate) fn report(shapes: &[&[(&str, f64)]]) -> Report {
    report_on(cases("small-set", None).unwrap(), shapes)
}

/// The same for other problems.
pub(crate) fn report_on(cases: Vec<Case>, shapes: &[&[(&str, f64)]]) -> Report {
    let mut report = Report::new(RunIdentity::now(DeviceIdentity::cpu()), Options::default(), Some(0.74));
    for (case, subjects) in cases.into_iter().zip(shapes) {
        let times = |us: f64| -> Vec<f64> { (0..12).map(|i| us * (1.0 + 0.001 * f64::from(i % 3))).collect() };
        let baseline = times(subjects[0].1);
        let subjects: Vec<Measured> = subjects
            .iter()
            .enumerate()
            .map(|(index, (label, us))| {
                let kernel = (!label.starts_with("torch/") && *label != "fa3").then(|| label.to_string());
                let ratio = Ratio::paired(&times(*us), &baseline, 0.99, 200).filter(|_| index > 0);
                Measured {
                    info: SubjectInfo {
                        kernel,
                        ..SubjectInfo::new(*label, LaunchMode::Graph(8))
                    },
                    summary: Summary::of(&times(*us), 0.99),
                    ratio,
                    verdict: ratio.map(|ratio| Verdict::of(&ratio, 0.01)),
                    settled: true,
                    trouble: None,
                }
            })
            .collect();
        let inspections = vec![None; subjects.len()];
        let measurement = Measurement {
            mode: Mode::Hot,
            turns: Some(Turns::Short),
            baseline: 0,
            subjects,
            stop: Stop::Narrow,
            rounds: 12,
            readings: Vec::new(),
        };
        report
            .results
            .push(CaseResult::new(case, measurement, inspections, Vec::new(), Some(0.74)));
    }
    report
}

#[test]
fn a_subject_without_a_time_says_why() {
    let mut result = report(&[&[("torch/flash", 10.0), ("own/mine", 20.0)]])
        .results
        .remove(0);
    assert_eq!(result.why_not("own/mine"), None);
    result.measurement.subjects[1].reject("REJECTED (wrong)".to_string());
    result.absent.push(("own/other".to_string(), "HUNG".to_string()));
    let why = |label: &str| result.why_not(label).unwrap();
    assert_eq!(
        (why("own/mine"), why("own/other")),
        ("REJECTED (wrong)".to_string(), "HUNG".to_string())
    );
    assert!(why("own/third").contains("not there"));
}

#[test]
fn a_baseline_rejected_after_timing_takes_its_ratios_along() {
    let mut report = report(&[&[("torch/flash", 10.0), ("mma/a", 8.0)]]);
    let found = Inspection {
        rejected: Some(crate::defences::Reason::Cached),
        detail: "stale".to_string(),
        max_abs: 0.0,
        frobenius: 0.0,
        skipped: Vec::new(),
    };
    report.results[0].reject(0, &found);
    let subjects = &report.results[0].measurement.subjects;
    assert!(subjects[0].summary.is_none() && subjects[0].trouble.as_deref().unwrap().contains("cached"));
    assert!(subjects[1].ratio.is_none() && subjects[1].summary.is_some());
}
