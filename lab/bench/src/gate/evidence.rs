//! Times of the set, from the evidence store.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::compare::{Entry, Side, named};
use crate::{BenchError, Case, DeviceIdentity, Mode, PROTOCOL_VERSION, Result};

/// Samples that a time has at least: the protocol makes three rounds, whatever the budget.
const LEAST_SAMPLES: usize = 3;

/// The times of a build, and what is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The commit of the build that was timed; of several, the last.
    pub revision: String,
    /// Where.
    pub device: DeviceIdentity,
    /// Version of the protocol.
    pub protocol: u32,
    /// Whether each run has its closing line.
    pub finished: bool,
    /// Problems without a time of ours that can be believed, and why.
    pub missing: Vec<String>,
    /// The times.
    pub(super) times: Vec<Entry>,
}

impl Evidence {
    /// The times of problems in the runs of a name: an export, a folder of runs, a key or revision in the store, or
    /// `latest`.
    ///
    /// # Errors
    /// There are no such runs, or they cannot be read.
    pub fn read(name: &str, store: &Path, cases: &[Case]) -> Result<Evidence> {
        let (store, selector) = named(name, store)?;
        let runs = store.runs(&selector)?;
        let side = Side::of_store(&store, &selector, name)?;
        let Some(last) = runs.last() else {
            return Err(BenchError::Nothing(format!("{name} has no run")));
        };
        let mut missing = Vec::new();
        let mut times = Vec::new();
        for case in cases {
            let problem = case.problem.to_string();
            let mut ours = side
                .entries
                .iter()
                .filter(|entry| entry.problem == problem && entry.ours);
            let Some(entry) = ours.find(|entry| entry.mode == Mode::Hot && entry.caches == 1) else {
                missing.push(format!(
                    "{}: no kernel of ours was timed in mode hot without --caches",
                    case.name
                ));
                continue;
            };
            let (label, count) = (&entry.label, entry.times.len());
            let wrong = match &entry.trouble {
                _ if !entry.inspected => format!("{label} was timed and not inspected"),
                Some(trouble) => format!("{label} failed while it was timed: {trouble}"),
                None if count < LEAST_SAMPLES => {
                    format!("{label} has {count} samples of at least {LEAST_SAMPLES}")
                }
                None => {
                    times.push(entry.clone());
                    continue;
                }
            };
            missing.push(format!("{}: {wrong}", case.name));
        }
        Ok(Evidence {
            revision: last.identity.revision.clone(),
            device: last.identity.device.clone(),
            protocol: last.identity.protocol,
            finished: runs.iter().all(|run| run.finished),
            missing,
            times,
        })
    }

    /// What makes it incomplete as evidence of a build, one sentence each.
    pub(super) fn faults(&self, revision: &str) -> Vec<String> {
        let mut faults = self.missing.clone();
        if self.revision != revision {
            let theirs = &self.revision;
            faults.push(format!(
                "it is of revision {theirs}; this build is {revision}: run `flashcore bench acceptance`"
            ));
        }
        if !self.finished {
            faults.push("a run has no closing line: it was cut off or still goes on".to_string());
        }
        if self.protocol != PROTOCOL_VERSION {
            let theirs = self.protocol;
            faults.push(format!(
                "it was taken by protocol {theirs}; this build has {PROTOCOL_VERSION}"
            ));
        }
        faults
    }

    pub(super) fn side(&self, name: &str) -> Side {
        Side {
            name: name.to_string(),
            entries: self.times.clone(),
        }
    }
}
