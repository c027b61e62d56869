//! Why the host cannot compute what is asked.

use flashcore_problem::ProblemError;
use thiserror::Error;

/// Why attention was refused. Nothing has been written to the output.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuError {
    /// The tensors are not the problem's.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The problem asks for something that is not computed on the host.
    #[error("{feature} is not supported on the CPU; {remedy}")]
    Unsupported {
        /// What is not supported.
        feature: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A tile size that the kernel cannot use.
    #[error("{field} is {given}; allowed are multiples of {step} from {step} to {limit}")]
    Config {
        /// `tile_q` or `tile_kv`.
        field: &'static str,
        /// The value given.
        given: usize,
        /// What it must be a multiple of.
        step: usize,
        /// The largest that is allowed.
        limit: usize,
    },
    /// A config id that names no config.
    #[error("`{given}` is no CPU config; ids look like `cpu/m128n64` (query rows and keys of a tile)")]
    ConfigId {
        /// The id given.
        given: String,
    },
    /// Vector instructions were asked for that this machine lacks.
    #[error("this machine has no {asked}; it has {available}")]
    Simd {
        /// The level asked for.
        asked: crate::SimdLevel,
        /// The levels there are, comma-separated.
        available: String,
    },
}
