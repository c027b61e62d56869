//! What a build is judged against: the errors and times of an earlier one, in a JSON file.

use std::path::Path;

use flashcore_ir::files;
use serde::{Deserialize, Serialize};

use super::{Error, Evidence, Row, State};
use crate::{BenchError, Result, json_file};

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
