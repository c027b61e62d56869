//! Errors of a search. A candidate that fails has a verdict instead.

use std::fmt::Display;
use std::path::Path;

use thiserror::Error;

/// Why a search cannot begin or continue. Each message says what was given and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// An option outside its range, or a run that cannot be resumed.
    #[error("{0}")]
    Usage(String),
    /// There is nothing to search.
    #[error("nothing to search: {0}")]
    Nothing(String),
    /// A file that cannot be read, written or parsed.
    #[error("{0}")]
    File(String),
    /// A worker cannot be started, or does not speak the protocol.
    #[error("{0}")]
    Worker(String),
    /// The machine failed while candidates were examined, and none of them is to blame.
    #[error("the environment failed, no candidate is to blame: {0}; mend that, then resume the run")]
    Environment(String),
    /// An outside proposer that has ended or sent a line that is no answer.
    #[error("{0}")]
    Proposer(String),
    /// An error of the bench.
    #[error(transparent)]
    Bench(#[from] flashcore_bench::BenchError),
}

impl TuneError {
    /// Whether the machine is to blame, and not the request.
    pub fn is_environment(&self) -> bool {
        match self {
            TuneError::Worker(_) | TuneError::File(_) | TuneError::Environment(_) => true,
            TuneError::Bench(error) => error.is_environment(),
            _ => false,
        }
    }

    pub(crate) fn bad(option: &str, given: impl Display, allowed: impl Display) -> TuneError {
        TuneError::Usage(format!("{option} is {given}; allowed: {allowed}"))
    }

    pub(crate) fn resume(run: &Path, what: &str, [then, now]: [&str; 2], remedy: &str) -> TuneError {
        let run = run.display();
        TuneError::Usage(format!(
            "{run} cannot be resumed: {what} was {then} and is {now} here; {remedy}begin a new run"
        ))
    }

    /// [`TuneError::Nothing`].
    pub fn nothing(what: impl Into<String>) -> TuneError {
        TuneError::Nothing(what.into())
    }

    pub(crate) fn file(path: &Path, reason: impl Display) -> TuneError {
        TuneError::File(format!("{}: {reason}", path.display()))
    }

    pub(crate) fn worker(device: &str, reason: impl Display) -> TuneError {
        TuneError::Worker(format!("worker for {device}: {reason}"))
    }

    pub(crate) fn proposer(command: &str, reason: impl Display) -> TuneError {
        TuneError::Proposer(format!("proposer `{command}`: {reason}"))
    }
}

impl From<flashcore::Error> for TuneError {
    fn from(error: flashcore::Error) -> TuneError {
        TuneError::Bench(error.into())
    }
}
