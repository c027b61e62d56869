//! What a bench found, as a value; [`table`](crate::table) prints it.

use serde::{Deserialize, Serialize};

use crate::defences::Inspection;
use crate::problems::Work;
use crate::store::{Recorded, RunRow};
use crate::{Absent, Case, Measured, Measurement, Options, RunIdentity};

/// Everything of one bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where and with what build.
    pub run: RunIdentity,
    /// With which settings.
    pub options: Options,
    /// Time of an empty kernel, µs.
    pub floor_us: Option<f64>,
    /// What is missing or odd, one sentence each.
    pub notes: Vec<String>,
    /// Kernels of the user that hung or crashed: label and how. They are also absent from the results since then.
    #[serde(default)]
    pub failed: Vec<Absent>,
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
    /// Bytes a run must move at least. Both are of the lengths that sequences have.
    pub bytes: f64,
    /// What was measured.
    pub measurement: Measurement,
    /// What the inspection of each subject found.
    pub inspections: Vec<Option<Inspection>>,
    /// Subjects that were not timed: label and reason.
    pub absent: Vec<Absent>,
    /// Time of an empty kernel on the device, µs, shown with short times.
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
        // Sequences that contradict the problem are not timed; a store may hold any.
        let work = case.work().unwrap_or(Work::of_bounds(&case.problem));
        CaseResult {
            flops: work.flops,
            bytes: work.bytes,
            case,
            measurement,
            inspections,
            absent,
            floor_us,
        }
    }

    /// Takes the number away from a subject that turned out to be wrong after timing.
    pub(crate) fn reject(&mut self, index: usize, found: &Inspection) {
        if let Some(subject) = self.measurement.subjects.get_mut(index) {
            subject.reject(found.to_string());
        }
        if let Some(inspection) = self.inspections.get_mut(index) {
            *inspection = Some(found.clone());
        }
        // Ratios to a number that is not there.
        if index == self.measurement.baseline {
            for subject in &mut self.measurement.subjects {
                (subject.ratio, subject.verdict) = (None, None);
            }
        }
    }

    /// The subject that the others are compared with.
    pub(crate) fn baseline(&self) -> Option<&Measured> {
        self.measurement.subjects.get(self.measurement.baseline)
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

    /// Why a subject has no time, if it has none.
    pub fn why_not(&self, label: &str) -> Option<String> {
        if let Some((_, reason)) = self.absent.iter().find(|(absent, _)| absent == label) {
            return Some(reason.clone());
        }
        let mut subjects = self.measurement.subjects.iter();
        match subjects.find(|subject| subject.info.label == label) {
            None => Some("it was not there".to_string()),
            Some(subject) if subject.summary.is_some() && subject.trouble.is_none() => None,
            Some(subject) => Some(subject.trouble.clone().unwrap_or("it was not timed".to_string())),
        }
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

impl Report {
    /// Whether nothing was inspected and nothing timed.
    pub fn is_empty(&self) -> bool {
        let mut results = self.results.iter();
        results.all(|result| result.measurement.subjects.is_empty())
    }

    /// That no subject has a label that begins like this, if none has: nothing was compared with it.
    pub fn lacks(&self, label: &str) -> Option<String> {
        let mut subjects = self.results.iter().flat_map(|result| &result.measurement.subjects);
        let is_there = subjects.any(|subject| subject.info.label.starts_with(label));
        (!is_there && !self.results.is_empty()).then(|| {
            format!("no subject's label begins with `{label}`, the baseline that was asked for; another was taken")
        })
    }

    /// An empty report.
    pub fn new(run: RunIdentity, options: Options, floor_us: Option<f64>) -> Report {
        Report {
            run,
            options,
            floor_us,
            notes: Vec::new(),
            failed: Vec::new(),
            results: Vec::new(),
        }
    }

    /// The report of a run in the evidence store.
    pub fn of_evidence(run: &RunRow, recorded: Vec<Recorded>) -> Report {
        let mut report = Report::new(run.identity.clone(), run.options.clone(), run.floor_us);
        report.notes = run.notes();
        for recorded in recorded {
            let (case, measurement, found) = (recorded.case, recorded.measurement, recorded.inspections);
            let mut result = CaseResult::new(case, measurement, found.clone(), Vec::new(), run.floor_us);
            // The samples of one that was rejected after timing are kept; its number is not.
            for (index, found) in found.iter().enumerate() {
                if let Some(found) = found.as_ref().filter(|found| !found.passed()) {
                    result.reject(index, found);
                }
            }
            report.results.push(result);
        }
        report
    }
}

/// Adds one that is not there yet.
pub(crate) fn add_new<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
pub(crate) mod tests;
