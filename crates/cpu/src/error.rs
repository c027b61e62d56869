//! Errors of attention on the CPU.

use flashcore_problem::ProblemError;
use thiserror::Error;

/// Why a call was refused. The output is unchanged.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum CpuError {
    /// A tensor does not match the problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// An invalid tile size.
    #[error("{field} is {given}; allowed are multiples of {step} from {step} to {limit}")]
    Config {
        field: &'static str,
        given: usize,
        step: usize,
        limit: usize,
    },
    /// An id that is not a CPU config.
    #[error("`{given}` is not a CPU config; ids look like `cpu/m128n64` (query rows and keys of a tile)")]
    ConfigId { given: String },
    /// The requested instruction set is not available on this machine.
    #[error("this machine does not support {asked}; it supports {available}")]
    Simd { asked: crate::SimdLevel, available: String },
}

flashcore_problem::debug_as_message!(CpuError);
