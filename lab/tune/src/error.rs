//! What can go wrong with a search itself. What goes wrong with a candidate is its verdict.

use thiserror::Error;

/// Why a search cannot begin or go on. Each message says what was given and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TuneError {
    /// An option outside its range.
    #[error("{option} is {given}; allowed: {allowed}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// What was given.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// There is nothing to search.
    #[error("nothing to search: {what}")]
    Nothing {
        /// What is missing.
        what: String,
    },
    /// A file that cannot be read, written or understood.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A run that cannot be taken up again.
    #[error("{path} cannot be resumed: {what} was {then} and is {now} here; begin a new run")]
    Resume {
        /// The run's folder.
        path: String,
        /// What differs.
        what: &'static str,
        /// What it was.
        then: String,
        /// What it is.
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
    /// An outside proposer that is gone, or says what cannot be understood.
    #[error("proposer `{command}`: {reason}")]
    Proposer {
        /// How it was started.
        command: String,
        /// What happened.
        reason: String,
    },
    /// Measuring failed as a whole.
    #[error(transparent)]
    Bench(#[from] flashcore_bench::BenchError),
}

impl TuneError {
    /// Whether the machine is at fault rather than the question.
    pub fn is_environment(&self) -> bool {
        match self {
            TuneError::Worker { .. } | TuneError::File { .. } => true,
            TuneError::Bench(error) => error.is_environment(),
            _ => false,
        }
    }

    pub(crate) fn file(path: &std::path::Path, reason: impl ToString) -> TuneError {
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
