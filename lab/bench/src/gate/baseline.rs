//! What a build is judged against: the errors and times of an earlier one, in a JSON file.

use std::collections::BTreeSet;
use std::path::Path;

use flashcore_check::render;
use flashcore_ir::files;
use serde::{Deserialize, Serialize};

use super::{Error, Evidence, Row, State};
use crate::{BenchError, Case, Result, json_file};

/// What a baseline's file says it is.
const FORMAT: &str = "flashcore gate baseline";
/// Raised when a change makes old files unreadable.
const SCHEMA: u32 = 1;

/// Errors and times of a build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    format: String,
    schema: u32,
    /// The commit of the build.
    pub revision: String,
    /// Errors against float64.
    pub errors: Vec<Error>,
    /// Times, with every sample; `None` if none were read.
    pub speed: Option<Evidence>,
    /// What is predicted; `None` if nothing was.
    pub predicted: Option<Vec<Row>>,
}

impl Baseline {
    /// What was found, to judge later builds by.
    pub fn of(state: &State, mut evidence: Option<Evidence>) -> Baseline {
        let times = evidence.iter_mut().flat_map(|evidence| &mut evidence.times);
        for time in times.flat_map(|entry| &mut entry.times) {
            *time = rounded(*time);
        }
        Baseline {
            format: FORMAT.to_string(),
            schema: SCHEMA,
            revision: state.revision.clone(),
            errors: state.errors().cloned().collect(),
            speed: evidence,
            predicted: state.predicted.clone(),
        }
    }

    /// Reads a file that [`Baseline::write`] wrote.
    ///
    /// # Errors
    /// A file that cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Baseline> {
        let shown = path.display();
        let refused = |why: String| {
            BenchError::Given(format!(
                "{shown}: {why}; `flashcore gate --write FILE` writes a baseline"
            ))
        };
        let value = json_file::read::<serde_json::Value>(path, files::SMALL);
        let value = value.map_err(|error| refused(error.to_string()))?;
        if value["format"] != FORMAT {
            return Err(refused("it is no baseline".to_string()));
        }
        if value["schema"] != SCHEMA {
            let found = &value["schema"];
            return Err(refused(format!("it has schema {found}, and this build reads {SCHEMA}")));
        }
        serde_json::from_value(value).map_err(|error| refused(format!("it is no baseline: {error}")))
    }

    /// Refuses a baseline that has none of the problems that are asked for; with `cards`, which are predicted for, none
    /// of them on these.
    ///
    /// # Errors
    /// [`BenchError::Machine`] with what the file has.
    pub fn check_asked(&self, file: &Path, cases: &[Case], cards: Option<&[String]>) -> Result<()> {
        let asked: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        let errors = self.errors.iter().map(|error| error.case.as_str());
        let rows = self.predicted.as_deref().unwrap_or_default();
        let on_card = |row: &&Row| cards.is_none_or(|cards| cards.contains(&row.card));
        let predicted = |row: &Row| format!("{} on {}", row.case, row.card);
        let (has, wanted): (BTreeSet<String>, Vec<String>) = match (cards, &self.predicted) {
            (Some(cards), Some(_)) => {
                if rows.iter().filter(on_card).any(|row| asked.contains(row.case.as_str())) {
                    return Ok(());
                }
                let on = cards.join(", ");
                (
                    rows.iter().map(predicted).collect(),
                    asked.iter().map(|case| format!("{case} on {on}")).collect(),
                )
            }
            _ => {
                let has = errors.chain(rows.iter().map(|row| row.case.as_str()));
                let has: BTreeSet<String> = has.map(str::to_string).collect();
                if asked.iter().any(|case| has.contains(*case)) {
                    return Ok(());
                }
                (has, asked.iter().map(|case| (*case).to_string()).collect())
            }
        };
        let has = if has.is_empty() {
            "nothing".to_string()
        } else {
            render::few(&has.iter().collect::<Vec<_>>())
        };
        let (file, wanted) = (file.display(), render::few(&wanted));
        Err(BenchError::Machine(format!(
            "{file} has {has}; you asked for {wanted}: nothing could be compared"
        )))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn write(&self, path: &Path) -> Result<()> {
        json_file::write(path, self)
            .map_err(|error| BenchError::Failed(format!("cannot write {}: {error}", path.display())))
    }
}

/// A time to five digits: finer than any clock, and a third of the file.
pub(super) fn rounded(time: f64) -> f64 {
    format!("{time:.4e}").parse().unwrap_or(time)
}
