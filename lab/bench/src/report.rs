//! What a bench found, as a value; [`table`](crate::table) prints it.

use serde::{Deserialize, Serialize};

use crate::defences::Inspection;
use crate::identity::RunIdentity;
use crate::measure::{Measured, Measurement};
use crate::options::{Mode, Options};
use crate::peers::Absent;
use crate::problems::{Case, least_bytes};
use crate::store::{Recorded, RunRow};

/// Everything of one bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where and with what build.
    pub run: RunIdentity,
    /// With which settings.
    pub options: Options,
    /// What an empty kernel takes, µs.
    pub floor_us: Option<f64>,
    /// What is missing or odd, one sentence each.
    pub notes: Vec<String>,
    /// One for each problem and mode.
    pub results: Vec<CaseResult>,
}

/// What was found of one problem in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The problem.
    pub case: Case,
    /// Floating-point operations of a run, over visible keys.
    pub flops: f64,
    /// Bytes a run must move at least.
    pub bytes: f64,
    /// What was measured.
    pub measurement: Measurement,
    /// What the inspection of each subject found.
    pub inspections: Vec<Option<Inspection>>,
    /// Subjects that were not timed: label and reason.
    pub absent: Vec<(String, String)>,
    /// What an empty kernel takes on the device, µs, to be shown beside short times.
    pub floor_us: Option<f64>,
}

impl CaseResult {
    /// A result.
    pub fn new(
        case: Case,
        measurement: Measurement,
        inspections: Vec<Option<Inspection>>,
        absent: Vec<Absent>,
        floor_us: Option<f64>,
    ) -> CaseResult {
        CaseResult {
            flops: case.problem.flops(),
            bytes: least_bytes(&case.problem),
            case,
            measurement,
            inspections,
            absent: absent.into_iter().map(|absent| (absent.label, absent.reason)).collect(),
            floor_us,
        }
    }

    /// Takes the number away from a subject that turned out to be wrong after timing.
    pub(crate) fn reject(&mut self, index: usize, found: &Inspection) {
        if let Some(subject) = self.measurement.subjects.get_mut(index) {
            subject.trouble = Some(found.to_string());
            subject.summary = None;
            subject.ratio = None;
            subject.verdict = None;
        }
        if let Some(inspection) = self.inspections.get_mut(index) {
            *inspection = Some(found.clone());
        }
        // Ratios to a number that is not there.
        if index == self.measurement.baseline {
            for subject in &mut self.measurement.subjects {
                subject.ratio = None;
                subject.verdict = None;
            }
        }
    }

    /// TFLOP/s of a time in µs.
    pub fn tflops(&self, us: f64) -> f64 {
        self.flops / us / 1e6
    }

    /// GB/s of a time in µs, counting only what must move.
    pub fn gbps(&self, us: f64) -> f64 {
        self.bytes / us / 1e3
    }

    /// Whether memory rather than arithmetic bounds it on any GPU: fewer than 64 operations a byte.
    pub fn is_memory_bound(&self) -> bool {
        self.flops / self.bytes < 64.0
    }

    /// The quickest of the subjects that `wanted` picks.
    pub fn quickest(&self, wanted: impl Fn(&Measured) -> bool) -> Option<&Measured> {
        self.measurement
            .subjects
            .iter()
            .filter(|subject| subject.summary.is_some() && wanted(subject))
            .min_by(|a, b| median_us(a).total_cmp(&median_us(b)))
    }
}

/// Median of a subject, µs; infinite if it was not timed.
fn median_us(subject: &Measured) -> f64 {
    subject.summary.map_or(f64::INFINITY, |summary| summary.p50)
}

/// Whether the seeds' rule holds: at least so much faster than PyTorch on so many shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeedsRule {
    /// Whether it does; `None` where fewer shapes were compared than it takes.
    pub passed: Option<bool>,
    /// Shapes that it takes.
    pub needed: usize,
    /// By how much, relative.
    pub gain: f64,
    /// The shapes compared.
    pub shapes: Vec<SeedsShape>,
}

/// One shape of [`SeedsRule`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeedsShape {
    /// The problem.
    pub case: String,
    /// Our quickest.
    pub ours: String,
    /// The quickest peer.
    pub peer: String,
    /// Peer's time over ours, less 1: 0.1 is 10 % faster.
    pub gain: f64,
    /// Whether it is enough, and the intervals of the two medians are that far apart as well.
    pub met: bool,
}

/// Gain of the seeds' rule.
pub const SEEDS_GAIN: f64 = 0.10;
/// Shapes of the seeds' rule.
pub const SEEDS_SHAPES: usize = 2;

impl Report {
    /// An empty report.
    pub fn new(run: RunIdentity, options: Options, floor_us: Option<f64>) -> Report {
        Report {
            run,
            options,
            floor_us,
            notes: Vec::new(),
            results: Vec::new(),
        }
    }

    /// The report of a run in the evidence store.
    pub fn of_evidence(run: &RunRow, recorded: Vec<Recorded>) -> Report {
        let mut report = Report::new(run.identity.clone(), run.options.clone(), run.floor_us);
        report.notes = run.notes();
        report.results = recorded
            .into_iter()
            .map(|recorded| {
                let found = recorded.inspections.clone();
                let mut result = CaseResult::new(
                    recorded.case,
                    recorded.measurement,
                    recorded.inspections,
                    Vec::new(),
                    run.floor_us,
                );
                // The samples of one that was rejected after timing are kept; its number is not.
                for (index, found) in found.iter().enumerate() {
                    if let Some(found) = found.as_ref().filter(|found| !found.passed()) {
                        result.reject(index, found);
                    }
                }
                result
            })
            .collect();
        report
    }

    /// The seeds' rule: at least `gain` faster than the quickest SDPA backend of PyTorch (label `torch/…`; where
    /// there is none, than the quickest peer) on `needed` shapes or more, in the hot mode.
    pub fn seeds_rule(&self, gain: f64, needed: usize) -> SeedsRule {
        let shapes: Vec<SeedsShape> = self
            .results
            .iter()
            .filter(|result| result.measurement.mode == Mode::Hot)
            .filter_map(|result| {
                let ours = result.quickest(|subject| subject.info.is_ours())?;
                let peer = result
                    .quickest(|subject| subject.info.label.starts_with("torch/"))
                    .or_else(|| result.quickest(|subject| !subject.info.is_ours()))?;
                let (o, p) = (ours.summary?, peer.summary?);
                let apart = p.interval.lo >= o.interval.hi;
                Some(SeedsShape {
                    case: result.case.name.clone(),
                    ours: ours.info.label.clone(),
                    peer: peer.info.label.clone(),
                    gain: p.p50 / o.p50 - 1.0,
                    met: p.p50 / o.p50 - 1.0 >= gain && apart,
                })
            })
            .collect();
        let met = shapes.iter().filter(|shape| shape.met).count();
        SeedsRule {
            passed: (shapes.len() >= needed).then_some(met >= needed),
            needed,
            gain,
            shapes,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::identity::{DeviceIdentity, LaunchMode, SubjectInfo};
    use crate::options::Turns;
    use crate::problems::cases;
    use crate::protocol::Stop;
    use crate::stats::{Ratio, Summary};
    use crate::verdict::Verdict;

    /// A report of times in µs by label, the first being the baseline, for the first problems of `mission`.
    pub(crate) fn report(shapes: &[&[(&str, f64)]]) -> Report {
        report_on(cases("mission", None).unwrap(), shapes)
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
    fn the_seeds_rule_counts_shapes_that_beat_the_best_of_pytorch() {
        let shapes: [&[(&str, f64)]; 3] = [
            &[
                ("torch/flash", 10.0),
                ("torch/cudnn", 9.0),
                ("fa3", 5.0),
                ("mma/a", 8.0),
            ],
            &[("torch/flash", 10.0), ("mma/a", 8.5), ("mma/b", 12.0)],
            &[("torch/flash", 10.0), ("mma/a", 9.5)],
        ];
        let rule = report(&shapes).seeds_rule(SEEDS_GAIN, SEEDS_SHAPES);
        assert_eq!(rule.passed, Some(true), "{rule:?}");
        assert_eq!(
            rule.shapes.iter().map(|shape| shape.met).collect::<Vec<_>>(),
            [true, true, false]
        );
        assert_eq!(
            (rule.shapes[0].peer.as_str(), rule.shapes[1].ours.as_str()),
            ("torch/cudnn", "mma/a")
        );
        assert_eq!(
            report(&shapes[1..]).seeds_rule(SEEDS_GAIN, SEEDS_SHAPES).passed,
            Some(false)
        );
        // Without peers, or on fewer shapes than the rule takes, it cannot be judged.
        assert_eq!(report(&[&[("mma/a", 1.0)]]).seeds_rule(0.1, 1).passed, None);
        assert_eq!(report(&shapes[..1]).seeds_rule(SEEDS_GAIN, SEEDS_SHAPES).passed, None);
    }

    #[test]
    fn a_baseline_rejected_after_timing_takes_its_ratios_along() {
        let mut report = report(&[&[("torch/flash", 10.0), ("mma/a", 8.0)]]);
        let found = Inspection {
            rejected: Some(crate::defences::Reason::Cached),
            detail: "stale".to_string(),
            max_abs: 0.0,
            skipped: Vec::new(),
        };
        report.results[0].reject(0, &found);
        let subjects = &report.results[0].measurement.subjects;
        assert!(subjects[0].summary.is_none() && subjects[0].trouble.as_deref().unwrap().contains("cached"));
        assert!(subjects[1].ratio.is_none() && subjects[1].summary.is_some());
    }
}
