//! What can go wrong while measuring.

use thiserror::Error;

/// Why something was not measured, stored or read. Each message says what was given and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A subject could not be run. The others go on without it.
    #[error("{subject}: {reason}")]
    Subject {
        /// The subject's label.
        subject: String,
        /// What it said.
        reason: String,
    },
    /// The device's clock or queue failed, so that nothing more can be measured on it: what the driver said.
    #[error("the device cannot be timed any more: {0}")]
    Device(String),
    /// There is nothing to measure: what is missing.
    #[error("nothing to measure: {0}")]
    Nothing(String),
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
    /// A name that is no problem, no set and no file.
    #[error("`{given}` is no problem set ({sets}), no problem and no readable file; named problems: {problems}")]
    UnknownProblems {
        /// What was given.
        given: String,
        /// Sets there are.
        sets: String,
        /// Problems there are.
        problems: String,
    },
    /// A problem file that cannot be understood.
    #[error("{path}: {reason}")]
    ProblemFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// What the driver loaded is not what the plan says.
    #[error("{kernel}: the plan says {expected}, the loaded function {found}; the module is not this plan's")]
    Attributes {
        /// The kernel's id.
        kernel: String,
        /// By the plan.
        expected: String,
        /// By the driver.
        found: String,
    },
    /// An evidence file of another schema.
    #[error(
        "{what} has evidence schema {found}; this build reads {supported}; `python3 scripts/convert_evidence.py` converts \
         exports of schema 1 and 2"
    )]
    Schema {
        /// The file.
        what: String,
        /// The version found, or what was found in its place.
        found: String,
        /// The version supported.
        supported: u32,
    },
    /// A file that holds no evidence.
    #[error("{path} is not an evidence file: its first line is not the header of a run")]
    NotEvidence {
        /// The file.
        path: String,
    },
    /// The evidence store of an earlier build.
    #[error(
        "{path} is the evidence store of an earlier build (SQLite); convert it once: \
         `python3 scripts/convert_evidence.py {path}` (in the repository)"
    )]
    OldStore {
        /// The file.
        path: String,
    },
    /// The evidence store cannot be read or written.
    #[error("evidence store {path}: {source}")]
    StoreAccess {
        /// The file or folder.
        path: String,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The evidence store has an invalid line or file.
    #[error("evidence store {path}: {reason}")]
    Store {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The numbers of a chart cannot be read.
    #[error("line {line}: {reason}")]
    Chart {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Two sides that have nothing in common to compare.
    #[error(
        "{a} and {b} have no problem in common to compare, in the same mode with the same turns; bench both on the same \
         problems with the same build first"
    )]
    NothingInCommon {
        /// One side.
        a: String,
        /// The other.
        b: String,
    },
    /// A microbenchmark whose result is wrong, or that cannot be what it says.
    #[error("microbenchmark {name}: {reason}")]
    Micro {
        /// Which.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Measured rates that do not hold here.
    #[error("{path}: {reason}; `flashcore device --measure` measures anew")]
    Rates {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The library refused.
    #[error(transparent)]
    Flashcore(Box<flashcore::Error>),
}

impl BenchError {
    /// An option outside its range.
    pub(crate) fn bad_option(option: &'static str, given: impl ToString, allowed: impl ToString) -> BenchError {
        BenchError::BadOption {
            option,
            given: given.to_string(),
            allowed: allowed.to_string(),
        }
    }

    /// Whether a kernel faulted, so that the device's context is lost.
    pub fn is_fault(&self) -> bool {
        matches!(self, BenchError::Flashcore(error)
            if matches!(**error, flashcore::Error::Cuda(flashcore_cuda::CudaError::Fault(_))))
    }

    /// Whether the machine is at fault rather than the question.
    pub fn is_environment(&self) -> bool {
        match self {
            BenchError::Device(_) | BenchError::Store { .. } | BenchError::StoreAccess { .. } => true,
            BenchError::Flashcore(error) => error.is_environment(),
            _ => false,
        }
    }
}

impl From<flashcore::Error> for BenchError {
    fn from(error: flashcore::Error) -> BenchError {
        BenchError::Flashcore(Box::new(error))
    }
}

impl From<flashcore_cuda::CudaError> for BenchError {
    fn from(error: flashcore_cuda::CudaError) -> BenchError {
        flashcore::Error::from(error).into()
    }
}

impl From<flashcore_problem::ProblemError> for BenchError {
    fn from(error: flashcore_problem::ProblemError) -> BenchError {
        flashcore::Error::from(error).into()
    }
}
