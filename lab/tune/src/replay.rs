//! A space that was measured once, so that a search can run without the device.

use std::collections::HashMap;
use std::path::Path;

use flashcore_bench::{Case, Interval, RunIdentity};
use flashcore_check::own::sha256;
use flashcore_ir::Profile;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::insight::Advisor;
use crate::journal::{read_header, read_trials};
use crate::space::{ALL, Space};
use crate::trial::{Timed, Trial, Verdict};

/// Spaces measured on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Version of the file: 1.
    pub schema: u32,
    /// Device, time and program of the measurement.
    pub identity: RunIdentity,
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

/// A candidate's median and interval, µs, or the verdict and the reason why it has none.
pub type Known = Result<(f64, Interval), (Verdict, String)>;

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

    /// The space that a search has tried, by its folder, with the times that it measured.
    ///
    /// # Errors
    /// A folder that is no run's, or one in which nothing was timed.
    pub(crate) fn of_run(folder: &Path) -> Result<Measured, TuneError> {
        let (header, trials) = (read_header(folder)?, read_trials(folder)?);
        let nothing = || TuneError::file(folder, "nothing in it was timed");
        let device = header.devices.into_iter().next().ok_or_else(nothing)?;
        let (mut timed, mut failed) = (Vec::new(), Vec::<Failed>::new());
        for Trial {
            id,
            verdict,
            reason,
            timed: time,
            ..
        } in trials
        {
            match time {
                Some(Timed { us, interval, .. }) => timed.push(Row(id, us, interval.lo, interval.hi)),
                None => failed.push(Failed {
                    verdict,
                    reason,
                    ids: vec![id],
                }),
            }
        }
        if timed.is_empty() {
            return Err(nothing());
        }
        let case = Case::new(header.case, header.problem);
        Ok(Measured {
            schema: SCHEMA,
            identity: RunIdentity {
                revision: header.revision,
                started_at: header.started_at,
                ..RunIdentity::now(device)
            },
            tables: vec![Table { case, timed, failed }],
        })
    }
}

const SCHEMA: u32 = 1;

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
        let timed = timed.map(|&Row(ref id, us, lo, hi)| (id.clone(), Ok((us, Interval { lo, hi }))));
        let failed = self.failed.iter().flat_map(|group| {
            let known = Err((group.verdict, group.reason.clone()));
            group.ids.iter().map(move |id| (id.clone(), known.clone()))
        });
        timed.chain(failed).collect()
    }

    pub(crate) fn digest(&self) -> String {
        sha256(serde_json::to_string(self).unwrap_or_default())
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
            case: Case::new("valley", flashcore_problem::Problem::named("small").unwrap()),
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
            identity: RunIdentity::now(flashcore_bench::DeviceIdentity::cpu()),
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

    #[test]
    fn a_search_can_be_replayed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/src/files/seeds");
        let trials = read_trials(&folder).unwrap();
        let measured = Measured::of_run(&folder).unwrap();
        let [table] = &measured.tables[..] else {
            panic!("{measured:?}")
        };
        assert_eq!(table.by_id().len(), trials.len());
        let timed = trials.iter().filter(|trial| trial.timed.is_some());
        assert_eq!(table.timed.len(), timed.count());
        assert!(Measured::of_run(folder.parent().unwrap()).is_err());
    }
}
