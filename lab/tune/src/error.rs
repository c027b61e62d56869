//! Errors of a search. A candidate that fails has a verdict instead.

use std::path::Path;

use thiserror::Error;

/// Why a search cannot begin or continue. Each message says what was given and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// An option outside its range.
    #[error("{option} is {given}; allowed: {allowed}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// The given value.
        given: String,
        /// The allowed values.
        allowed: String,
    },
    /// There is nothing to search.
    #[error("nothing to search: {what}")]
    Nothing {
        /// What is missing.
        what: String,
    },
    /// A file that cannot be read, written or parsed.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A run that cannot be resumed.
    #[error("{path} cannot be resumed: {what} was {then} and is {now} here; begin a new run")]
    Resume {
        /// The run's folder.
        path: String,
        /// What differs.
        what: &'static str,
        /// The earlier value.
        then: String,
        /// The value now.
        now: String,
    },
    /// A worker cannot be started, or does not speak the protocol.
    #[error("worker for {device}: {reason}")]
    Worker {
        /// The device.
        device: String,
        /// What happened.
        reason: String,
    },
    /// An outside proposer that has ended or sent a line that is no answer.
    #[error("proposer `{command}`: {reason}")]
    Proposer {
        /// The command that started it.
        command: String,
        /// What happened.
        reason: String,
    },
    /// An error of the bench.
    #[error(transparent)]
    Bench(#[from] flashcore_bench::BenchError),
}

impl TuneError {
    /// Whether the machine is to blame, and not the request.
    pub fn is_environment(&self) -> bool {
        match self {
            TuneError::Worker { .. } | TuneError::File { .. } => true,
            TuneError::Bench(error) => error.is_environment(),
            _ => false,
        }
    }

    pub(crate) fn bad(option: &'static str, given: impl ToString, allowed: impl Into<String>) -> TuneError {
        TuneError::BadOption {
            option,
            given: given.to_string(),
            allowed: allowed.into(),
        }
    }

    /// [`TuneError::Nothing`].
    pub fn nothing(what: impl Into<String>) -> TuneError {
        TuneError::Nothing { what: what.into() }
    }

    pub(crate) fn resume(path: &Path, what: &'static str, then: String, now: String) -> TuneError {
        let path = path.display().to_string();
        TuneError::Resume { path, what, then, now }
    }

    pub(crate) fn file(path: &Path, reason: impl ToString) -> TuneError {
        TuneError::File {
            path: path.display().to_string(),
            reason: reason.to_string(),
        }
    }
}

impl From<flashcore::Error> for TuneError {
    fn from(error: flashcore::Error) -> TuneError {
        TuneError::Bench(error.into())
    }
}
