//! Errors of the adapter.

use flashcore::ProblemError;
use thiserror::Error;

/// Why a call was refused: what was given, what is allowed, and what to do.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// FlashCore refused the call, or its device failed.
    #[error(transparent)]
    Flashcore(flashcore::Error),
    /// An argument of candle-flash-attn that FlashCore does not serve.
    #[error("{argument} is not served by FlashCore: {instead}")]
    Unserved {
        /// Its name.
        argument: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// An argument whose value is not allowed.
    #[error("{argument} is {given}; {allowed}")]
    Argument {
        /// Its name.
        argument: &'static str,
        /// Its value.
        given: String,
        /// What is allowed.
        allowed: String,
    },
    /// A tensor whose dtype is not allowed.
    #[error("{tensor} holds {given:?}; {allowed}")]
    DType {
        /// Its name.
        tensor: &'static str,
        /// Its dtype.
        given: candle::DType,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A tensor with another number of dimensions.
    #[error("{tensor} has shape {given:?}; it must be {expected}")]
    Rank {
        /// Its name.
        tensor: &'static str,
        /// Its shape.
        given: Vec<usize>,
        /// The dimensions it must have.
        expected: &'static str,
    },
    /// A tensor that is not on the device of q.
    #[error("{tensor} is on {given:?} and q on {expected:?}; move it there with `.to_device()`")]
    Device {
        /// Its name.
        tensor: &'static str,
        /// Where it is.
        given: candle::DeviceLocation,
        /// Where q is.
        expected: candle::DeviceLocation,
    },
    /// A tensor of lengths with gaps between its elements.
    #[error("{tensor} is not contiguous; call `.contiguous()`")]
    Strided {
        /// Its name.
        tensor: &'static str,
    },
}

impl Error {
    pub(crate) fn argument(argument: &'static str, given: impl ToString, allowed: impl Into<String>) -> Error {
        let (given, allowed) = (given.to_string(), allowed.into());
        Error::Argument {
            argument,
            given,
            allowed,
        }
    }
}

impl From<flashcore::Error> for Error {
    fn from(error: flashcore::Error) -> Error {
        match error {
            flashcore::Error::Problem(error) => error.into(),
            flashcore::Error::Cpu(flashcore::CpuError::Problem(error)) => error.into(),
            error => Error::Flashcore(error),
        }
    }
}

/// Arrays of lengths have other names here.
impl From<ProblemError> for Error {
    fn from(error: ProblemError) -> Error {
        let error = match error {
            ProblemError::Lengths { argument, why } => ProblemError::Lengths {
                argument: match argument {
                    // Of keys in pages, whose numbers are the differences.
                    "seqused_k" => "a difference of seqlens_k",
                    other => other.strip_prefix("cu_").unwrap_or(other),
                },
                why,
            },
            other => other,
        };
        Error::Flashcore(error.into())
    }
}

impl From<Error> for candle::Error {
    fn from(error: Error) -> candle::Error {
        candle::Error::wrap(error)
    }
}
