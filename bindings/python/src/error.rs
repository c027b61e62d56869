//! Errors as Python has them: what the caller got wrong is a `ValueError` or `TypeError`, what the
//! machine got wrong a `RuntimeError`.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use flashcore::ProblemError;
use flashcore::cuda::CudaError;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Why a call is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A tensor has another dtype.
    #[error("{0}")]
    DType(String),
    #[error("{0}")]
    Value(String),
    /// Memory for a tensor was not there.
    #[error("{0}")]
    NoMemory(String),
    /// This process cannot compute.
    #[error("{0}")]
    Forked(String),
    #[error(transparent)]
    Library(#[from] flashcore::Error),
}

impl Error {
    /// Whether another way to the same call would fail, too: there was no memory, or the device or its driver failed.
    /// What a graph found is told once: another call would not know it.
    pub(crate) fn is_certain(&self) -> bool {
        use flashcore::Error::{Captured, Cuda};
        matches!(self, Error::NoMemory(_) | Error::Library(Cuda(_) | Captured(_)))
    }
}

impl From<String> for Error {
    fn from(says: String) -> Error {
        Error::Value(says)
    }
}

impl From<&str> for Error {
    fn from(says: &str) -> Error {
        Error::Value(says.to_string())
    }
}

impl From<ProblemError> for Error {
    fn from(error: ProblemError) -> Error {
        Error::Library(error.into())
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        Error::Library(error.into())
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        match error {
            Error::DType(says) => type_(says),
            Error::Value(says) => value(says),
            Error::NoMemory(says) => no_memory(says),
            Error::Forked(says) => PyRuntimeError::new_err(says),
            Error::Library(error) => raise(error),
        }
    }
}

/// What PyTorch's allocator raises: `torch.OutOfMemoryError` where a GPU is out of memory.
fn no_memory(says: String) -> PyErr {
    Python::attach(|py| {
        let class = py.import("torch").and_then(|torch| torch.getattr("OutOfMemoryError"));
        match class.map(Bound::cast_into::<PyType>) {
            Ok(Ok(class)) if says.contains("out of memory") => PyErr::from_type(class, says),
            _ => PyRuntimeError::new_err(says),
        }
    })
}

/// The exception for an error of the library. Its message is the library's own.
pub(crate) fn raise(error: flashcore::Error) -> PyErr {
    use flashcore::Error::{Captured, Cuda, NotOnCuda, Plans, Problem, UnsupportedGpu, WithoutFeature, WrongOutput};
    let message = error.to_string();
    match error {
        Problem(ProblemError::DType { .. }) => type_(message),
        Cuda(_) | Captured(_) | Plans(_) | WrongOutput { .. } | WithoutFeature { .. } => {
            PyRuntimeError::new_err(message)
        }
        UnsupportedGpu { .. } | NotOnCuda => PyRuntimeError::new_err(message),
        _ => value(message),
    }
}

pub(crate) fn value(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

pub(crate) fn type_(message: impl Into<String>) -> PyErr {
    PyTypeError::new_err(message.into())
}

/// The process that computed first: it has the threads and the CUDA context. 0: none has.
static COMPUTES: AtomicU32 = AtomicU32::new(0);

/// Whether this process was forked from one that had computed.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// What Python calls in the child of each fork that it makes. A fork by C code that does not tell Python is not seen.
#[pyfunction]
pub(crate) fn after_fork() {
    IS_FORKED.store(COMPUTES.load(Ordering::Relaxed) != 0, Ordering::Relaxed);
}

/// Why this process cannot compute: it was forked from one that had computed. A call would wait for threads that a
/// fork does not copy, or use a CUDA context that it must not.
pub(crate) fn forked() -> Option<String> {
    IS_FORKED.load(Ordering::Relaxed).then(|| {
        let (here, first) = (process::id(), COMPUTES.load(Ordering::Relaxed));
        format!(
            "process {here} was forked after flashcore had computed in process {first}, whose threads and CUDA context \
             it does not have; start it with spawn or forkserver (multiprocessing.set_start_method), or fork before \
             the first call"
        )
    })
}

/// The same before a call; where there is no reason, the process computes from now on.
pub(crate) fn may_compute() -> Result<(), Error> {
    if let Some(why) = forked() {
        return Err(Error::Forked(why));
    }
    if COMPUTES.load(Ordering::Relaxed) == 0 {
        COMPUTES.store(process::id(), Ordering::Relaxed);
    }
    Ok(())
}
