//! What can go wrong while measuring.

use std::fmt::Display;

use thiserror::Error;

/// Why something was not measured, stored or read. Each message says what was given and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// What was given cannot be used: an option, a file, two sides that have nothing in common. In a sentence.
    #[error("{0}")]
    Given(String),
    /// A name that is no problem, no set and no file.
    #[error("`{0}` is no problem, no set of problems and no readable file")]
    UnknownProblems(String),
    /// There is nothing to measure: what is missing.
    #[error("nothing to measure: {0}")]
    Nothing(String),
    /// A subject, a microbenchmark or a file of rates cannot be used: which, and why. Others go on without it.
    #[error("{0}")]
    Failed(String),
    /// What the driver loaded is not what the plan says.
    #[error("{0}; the module is not this plan's")]
    Attributes(String),
    /// The device's clock or queue failed, so that nothing more can be measured on it: what the driver said.
    #[error("the device cannot be timed any more: {0}")]
    Device(String),
    /// This machine lacks something: what.
    #[error("{0}")]
    Machine(String),
    /// The evidence store cannot be read or written, or has an invalid line or file.
    #[error("evidence store {path}: {reason}")]
    Store {
        /// The file or folder.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The library refused.
    #[error(transparent)]
    Flashcore(Box<flashcore::Error>),
}

/// A result of measuring.
pub type Result<T, E = BenchError> = std::result::Result<T, E>;

impl BenchError {
    /// An option outside its range.
    pub(crate) fn bad_option(option: &str, given: impl Display, allowed: impl Display) -> BenchError {
        BenchError::Given(format!("{option} is {given}; allowed: {allowed}"))
    }

    /// Whether a kernel faulted, so that the device's context is lost.
    pub fn is_fault(&self) -> bool {
        matches!(self, BenchError::Flashcore(error)
            if matches!(**error, flashcore::Error::Cuda(flashcore_cuda::CudaError::Fault(_))))
    }

    /// Whether the machine is at fault rather than the question.
    pub fn is_environment(&self) -> bool {
        match self {
            BenchError::Device(_) | BenchError::Machine(_) | BenchError::Store { .. } => true,
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
