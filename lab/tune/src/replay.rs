//! Replay: a space that was measured once, as data, so that a search can run without the device.

use std::collections::HashMap;

use flashcore_bench::sweep::rankings;
use flashcore_bench::{Case, Interval, Mode, Report};
use flashcore_ir::Profile;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::insight::Advisor;
use crate::journal::sha256;
use crate::space::{Family, Space};
use crate::trial::Verdict;

/// Spaces measured on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Version of this file's form: 1.
    pub schema: u32,
    /// Where, when and with what it was measured.
    pub identity: flashcore_bench::RunIdentity,
    /// A space a problem.
    pub tables: Vec<Table>,
}

/// A space measured on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The problem, and its name.
    pub case: Case,
    /// Candidates that were timed.
    pub timed: Vec<Row>,
    /// Candidates that were not, by the reason: they are part of the space, and cost a search a trial.
    pub failed: Vec<Failed>,
}

/// A candidate's time: id, median of a run in µs, the ends of its interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row(pub String, pub f64, pub f64, pub f64);

/// Candidates that failed for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// What came of them.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// Their ids.
    pub ids: Vec<String>,
}

/// What is known of a candidate: its time, or why it has none.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// Median and interval, µs.
    Timed(f64, Interval),
    /// Verdict and reason.
    Failed(Verdict, String),
}

impl Measured {
    /// The spaces that this crate brings along: measured on an H200.
    ///
    /// # Errors
    /// Never, unless the file in the repository is broken.
    pub fn shipped() -> Result<Measured, TuneError> {
        Measured::read(include_str!("../data/h200-space.json"), "the shipped space")
    }

    /// Reads a file's text; `name` is for messages.
    ///
    /// # Errors
    /// [`TuneError::File`] where it is no such file, or of another schema.
    pub fn read(text: &str, name: &str) -> Result<Measured, TuneError> {
        let bad = |reason: String| TuneError::File {
            path: name.to_string(),
            reason,
        };
        let measured: Measured = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if measured.schema != SCHEMA {
            return Err(bad(format!("schema {}; this build reads {SCHEMA}", measured.schema)));
        }
        if measured.tables.iter().any(|table| table.timed.is_empty()) {
            return Err(bad("a table has no candidate that was timed".to_string()));
        }
        Ok(measured)
    }

    /// What looks at candidates of a problem on the card that was measured; `None` where nothing models that card.
    pub fn advisor(&self, problem: &Problem) -> Option<Advisor> {
        let device = &self.identity.device;
        let profile = Profile::of_device(&device.name, device.units)?;
        Some(Advisor::new(problem, profile))
    }

    /// The screened part of sweeps ([`flashcore_bench::sweep`]) on one device.
    ///
    /// # Errors
    /// [`TuneError::Nothing`] where there is no sweep, or no report.
    pub fn of_sweeps(reports: &[Report]) -> Result<Measured, TuneError> {
        let nothing = |what: &str| TuneError::Nothing { what: what.to_string() };
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

/// Version of the file's form.
const SCHEMA: u32 = 1;

/// Rounds a time to what is known of it.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

fn tables(report: &Report) -> Vec<Table> {
    let screened = report
        .results
        .iter()
        .filter(|result| result.measurement.mode == Mode::Screen);
    screened
        .zip(rankings(report))
        .map(|(result, ranking)| {
            let timed = result.measurement.subjects.iter().filter_map(|subject| {
                let summary = subject.summary?;
                let Interval { lo, hi } = summary.interval;
                Some(Row(
                    subject.info.label.clone(),
                    rounded(summary.p50),
                    rounded(lo),
                    rounded(hi),
                ))
            });
            let mut failed: Vec<Failed> = Vec::new();
            for (id, reason) in ranking.left_out {
                let verdict = if reason.starts_with("REJECTED") {
                    Verdict::Wrong
                } else {
                    Verdict::BuildFailed
                };
                // The kernel's name is in the message; without it many messages are one.
                let reason = reason
                    .split_whitespace()
                    .filter(|word| !word.contains("_d"))
                    .collect::<Vec<_>>()
                    .join(" ");
                match failed
                    .iter_mut()
                    .find(|group| (group.verdict, &group.reason) == (verdict, &reason))
                {
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
        })
        .collect()
}

impl Table {
    /// Candidates, timed or not.
    pub fn len(&self) -> usize {
        self.timed.len() + self.failed.iter().map(|group| group.ids.len()).sum::<usize>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The fastest.
    pub fn best(&self) -> Option<&Row> {
        self.timed.iter().min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The slowest that works.
    pub fn worst(&self) -> Option<&Row> {
        self.timed.iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What is known, by id.
    pub fn by_id(&self) -> HashMap<String, Known> {
        let timed = self
            .timed
            .iter()
            .map(|Row(id, us, lo, hi)| (id.clone(), Known::Timed(*us, Interval { lo: *lo, hi: *hi })));
        let failed = self.failed.iter().flat_map(|group| {
            let known = Known::Failed(group.verdict, group.reason.clone());
            group.ids.iter().map(move |id| (id.clone(), known.clone()))
        });
        timed.chain(failed).collect()
    }

    /// SHA-256 of all that was measured: ids, times, failures and their reasons.
    pub(crate) fn digest(&self) -> String {
        sha256(&serde_json::to_string(self).unwrap_or_default())
    }

    /// The space of what was measured.
    pub fn space(&self) -> Space {
        // In the order of the file: hash maps have none.
        let timed = self.timed.iter().map(|row| row.0.clone());
        let failed = self.failed.iter().flat_map(|group| group.ids.iter().cloned());
        let ids: Vec<String> = timed.chain(failed).collect();
        let families = [
            Family::mma(),
            Family::wgmma(),
            Family::scalar(),
            Family::ladder(),
            Family::cpu(),
        ];
        let there = families
            .into_iter()
            .filter(|family| ids.iter().any(|id| family.owns(id)));
        Space::of_list(there.collect(), ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::valley;

    fn table() -> Table {
        let (space, score) = valley();
        let (mut timed, mut broken) = (Vec::new(), Vec::new());
        for id in space.all() {
            match score(&id) {
                Some(us) => timed.push(Row(id, us, us, us)),
                None => broken.push(id),
            }
        }
        Table {
            case: Case {
                name: "valley".to_string(),
                problem: flashcore_problem::Problem::named("mission").unwrap(),
            },
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
