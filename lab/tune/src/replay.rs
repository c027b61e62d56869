//! A space that was measured once, so that a search can run without the device.

use std::collections::HashMap;
use std::path::Path;

use flashcore_bench::sweep::{Ranking, rankings};
use flashcore_bench::{Case, CaseResult, Interval, Mode, Report};
use flashcore_ir::Profile;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::insight::Advisor;
use crate::journal::sha256;
use crate::space::{ALL, Space};
use crate::trial::Verdict;

/// Spaces measured on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Version of the file: 1.
    pub schema: u32,
    /// Device, time and program of the measurement.
    pub identity: flashcore_bench::RunIdentity,
    /// The space of each problem.
    pub tables: Vec<Table>,
}

/// A space measured on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The problem and its name.
    pub case: Case,
    /// Timed candidates.
    pub timed: Vec<Row>,
    /// Candidates that failed, by reason. They belong to the space and cost a search a trial.
    pub failed: Vec<Failed>,
}

/// A candidate's id, median time in µs, and the ends of its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row(pub String, pub f64, pub f64, pub f64);

/// Candidates that failed for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The verdict.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// Their ids.
    pub ids: Vec<String>,
}

/// A candidate's time, or why it has none.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// Median and interval, µs.
    Timed(f64, Interval),
    /// Verdict and reason.
    Failed(Verdict, String),
}

impl Measured {
    /// The spaces in this crate, measured on an H200.
    pub fn shipped() -> Result<Measured, TuneError> {
        Measured::read(include_str!("../data/h200-space.json"), "the shipped space")
    }

    /// Reads a file's text; `name` is for messages.
    pub fn read(text: &str, name: &str) -> Result<Measured, TuneError> {
        let bad = |reason: String| TuneError::file(Path::new(name), reason);
        let measured: Measured = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if measured.schema != SCHEMA {
            return Err(bad(format!("schema {}; this build reads {SCHEMA}", measured.schema)));
        }
        if measured.tables.iter().any(|table| table.timed.is_empty()) {
            return Err(bad("a table has no candidate that was timed".to_string()));
        }
        Ok(measured)
    }

    /// An advisor for a problem on the measured card; `None` if that card has no model.
    pub fn advisor(&self, problem: &Problem) -> Option<Advisor> {
        let device = &self.identity.device;
        let profile = Profile::of_device(&device.name, device.units)?;
        Some(Advisor::new(problem, profile))
    }

    /// The screened part of sweeps ([`flashcore_bench::sweep`]) on one device; an error without one.
    pub fn of_sweeps(reports: &[Report]) -> Result<Measured, TuneError> {
        let nothing = |what: &str| TuneError::nothing(what);
        let first = reports.first().ok_or_else(|| nothing("no report was given"))?;
        let tables: Vec<Table> = reports.iter().flat_map(tables).collect();
        if tables.is_empty() || tables.iter().any(|table| table.timed.is_empty()) {
            return Err(nothing("a report has no sweep, or nothing in it was timed"));
        }
        Ok(Measured {
            schema: SCHEMA,
            identity: first.run.clone(),
            tables,
        })
    }
}

const SCHEMA: u32 = 1;

fn tables(report: &Report) -> Vec<Table> {
    let results = report.results.iter();
    let screened = results.filter(|result| result.measurement.mode == Mode::Screen);
    let table = |(result, ranking): (&CaseResult, Ranking)| {
        let timed = result.measurement.subjects.iter().filter_map(|subject| {
            let summary = subject.summary?;
            let times = [summary.p50, summary.interval.lo, summary.interval.hi];
            let [us, lo, hi] = times.map(|us| (us * 1e3).round() / 1e3);
            Some(Row(subject.info.label.clone(), us, lo, hi))
        });
        let mut failed: Vec<Failed> = Vec::new();
        for (id, reason) in ranking.left_out {
            let verdict = match reason.starts_with("REJECTED") {
                true => Verdict::Wrong,
                false => Verdict::BuildFailed,
            };
            // Without the kernel's name many messages are equal.
            let words = reason.split_whitespace().filter(|word| !word.contains("_d"));
            let reason = words.collect::<Vec<_>>().join(" ");
            let mut groups = failed.iter_mut();
            match groups.find(|group| group.verdict == verdict && group.reason == reason) {
                Some(group) => group.ids.push(id),
                None => failed.push(Failed {
                    verdict,
                    reason,
                    ids: vec![id],
                }),
            }
        }
        Table {
            case: result.case.clone(),
            timed: timed.collect(),
            failed,
        }
    };
    screened.zip(rankings(report)).map(table).collect()
}

impl Table {
    /// The fastest.
    pub fn best(&self) -> Option<&Row> {
        self.timed.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The slowest that works.
    pub fn worst(&self) -> Option<&Row> {
        self.timed.iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Times and failures by id.
    pub fn by_id(&self) -> HashMap<String, Known> {
        let timed = self.timed.iter();
        let timed = timed.map(|&Row(ref id, us, lo, hi)| (id.clone(), Known::Timed(us, Interval { lo, hi })));
        let failed = self.failed.iter().flat_map(|group| {
            let known = Known::Failed(group.verdict, group.reason.clone());
            group.ids.iter().map(move |id| (id.clone(), known.clone()))
        });
        timed.chain(failed).collect()
    }

    pub(crate) fn digest(&self) -> String {
        sha256(&serde_json::to_string(self).unwrap_or_default())
    }

    /// The space of the measured configs.
    pub fn space(&self) -> Space {
        // In the order of the file, since hash maps have none.
        let timed = self.timed.iter().map(|row| row.0.clone());
        let failed = self.failed.iter().flat_map(|group| group.ids.iter().cloned());
        let ids: Vec<String> = timed.chain(failed).collect();
        let mut families = Vec::from(ALL);
        families.retain(|family| ids.iter().any(|id| family.owns(id)));
        Space::of_list(families, ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::valley;

    fn table() -> Table {
        let (space, score) = valley();
        let (mut timed, mut broken) = (Vec::new(), Vec::new());
        for id in space.configs() {
            match score(&id) {
                Some(us) => timed.push(Row(id, us, us, us)),
                None => broken.push(id),
            }
        }
        Table {
            case: Case::new("valley", flashcore_problem::Problem::named("mission").unwrap()),
            timed,
            failed: vec![Failed {
                verdict: Verdict::BuildFailed,
                reason: "too large".to_string(),
                ids: broken,
            }],
        }
    }

    #[test]
    fn files_round_trip_and_others_are_refused() {
        let measured = Measured {
            schema: SCHEMA,
            identity: flashcore_bench::RunIdentity::now(flashcore_bench::DeviceIdentity::cpu()),
            tables: vec![table()],
        };
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(Measured::read(&text, "x").unwrap(), measured);
        let other = text.replacen("\"schema\":1", "\"schema\":9", 1);
        assert!(
            Measured::read(&other, "x")
                .unwrap_err()
                .to_string()
                .contains("schema 9")
        );
    }
}
