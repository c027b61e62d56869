//! Errors as Python has them: what the caller got wrong is a `ValueError` or `TypeError`, what the
//! machine got wrong a `RuntimeError`.

use flashcore::{Error, ProblemError};
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};

/// The exception for an error of the library. Its message is the library's own.
pub(crate) fn raise(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Problem(ProblemError::DType { .. }) => PyTypeError::new_err(message),
        Error::Problem(_)
        | Error::Cpu(_)
        | Error::NoPlan(_)
        | Error::Refused { .. }
        | Error::UnknownKernel(_)
        | Error::UnknownDevice { .. }
        | Error::KernelOfOtherDevice { .. } => PyValueError::new_err(message),
        _ => PyRuntimeError::new_err(message),
    }
}

pub(crate) fn value(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

pub(crate) fn type_(message: impl Into<String>) -> PyErr {
    PyTypeError::new_err(message.into())
}
