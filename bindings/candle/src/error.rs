//! Errors of the adapter.

use flashcore::ProblemError;
use thiserror::Error;

/// Why a call was refused: what was given, what is allowed, and what to do.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Error {
    /// FlashCore refused the call, or its device failed.
    #[error(transparent)]
    Flashcore(flashcore::Error),
    /// An argument of candle-flash-attn that FlashCore does not serve.
    #[error("{argument} is not served by FlashCore: {instead}")]
    Unserved {
        argument: &'static str,
        instead: &'static str,
    },
    /// An argument whose value is not allowed.
    #[error("{argument} is {given}; {allowed}")]
    Argument {
        argument: &'static str,
        given: String,
        allowed: String,
    },
    /// A tensor whose dtype is not allowed.
    #[error("{tensor} holds {given:?}; {allowed}")]
    DType {
        tensor: &'static str,
        given: candle::DType,
        allowed: &'static str,
    },
    /// A tensor with another number of dimensions.
    #[error("{tensor} has shape {given:?}; it must be {expected}")]
    Rank {
        tensor: &'static str,
        given: Vec<usize>,
        expected: &'static str,
    },
    /// A tensor that is not on the device of q.
    #[error("{tensor} is on {given:?} and q on {expected:?}; move it there with `.to_device()`")]
    Device {
        tensor: &'static str,
        given: candle::DeviceLocation,
        expected: candle::DeviceLocation,
    },
    /// A tensor of lengths with gaps between its elements.
    #[error("{tensor} is not contiguous; call `.contiguous()`")]
    Strided { tensor: &'static str },
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
                argument: argument.strip_prefix("cu_").unwrap_or(argument),
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
