//! Errors as Python has them: what the caller got wrong is a `ValueError` or `TypeError`, what the
//! machine got wrong a `RuntimeError`.

#[cfg(unix)]
use std::ffi::c_int;
use std::process;
#[cfg(unix)]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use flashcore::{Error, ProblemError};
use pyo3::PyErr;
use pyo3::exceptions::{PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError};

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
        | Error::KernelOfOtherDevice { .. }
        | Error::CannotTune { .. }
        | Error::UnwantedScales { .. }
        | Error::Unwanted { .. }
        | Error::SmMargin { .. }
        | Error::SharedMemory { .. }
        | Error::DeviceBuffer { .. } => PyValueError::new_err(message),
        Error::Cuda(_)
        | Error::Captured(_)
        | Error::Plans(_)
        | Error::WrongOutput { .. }
        | Error::WithoutFeature { .. }
        | Error::UnsupportedGpu { .. }
        | Error::NotOnCuda { .. } => PyRuntimeError::new_err(message),
        _ => PyRuntimeError::new_err(message), // the enum may grow
    }
}

pub(crate) fn value(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

pub(crate) fn unserved(message: impl Into<String>) -> PyErr {
    PyNotImplementedError::new_err(message.into())
}

pub(crate) fn type_(message: impl Into<String>) -> PyErr {
    PyTypeError::new_err(message.into())
}

/// The process that computed first: it has the threads and the CUDA context. 0: none has.
static COMPUTES: AtomicU32 = AtomicU32::new(0);

/// Whether this process is known to be that one: a call need not ask the system. A fork forgets it.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one that had computed.
pub(crate) fn is_forked() -> bool {
    ![0, process::id()].contains(&COMPUTES.load(Ordering::Relaxed))
}

/// Why this process cannot compute: it was forked from one that had computed. A call would wait for threads that a
/// fork does not copy, or use a CUDA context that it must not.
/// The process computes from now on, if it does not yet.
pub(crate) fn forked() -> Option<String> {
    match IS_KNOWN.load(Ordering::Relaxed) {
        true => None,
        false => looked_up(),
    }
}

#[cold]
fn looked_up() -> Option<String> {
    let here = process::id();
    match COMPUTES.compare_exchange(0, here, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != here => Some(format!(
            "process {here} was forked after flashcore had computed in process {first}, whose threads and CUDA context \
             it does not have; start it with spawn or forkserver (multiprocessing.set_start_method), or fork before \
             the first call"
        )),
        _ => {
            IS_KNOWN.store(forks_are_told(), Ordering::Relaxed);
            None
        }
    }
}

/// Whether the C library calls [`forget`] in the child of each fork from now on.
fn forks_are_told() -> bool {
    #[cfg(unix)]
    {
        unsafe extern "C" {
            fn pthread_atfork(
                prepare: Option<extern "C" fn()>,
                parent: Option<extern "C" fn()>,
                child: Option<extern "C" fn()>,
            ) -> c_int;
        }
        static TOLD: OnceLock<bool> = OnceLock::new();
        // SAFETY: a function of POSIX, with its type; `forget` may run in a child, for it only stores to an atomic.
        *TOLD.get_or_init(|| unsafe { pthread_atfork(None, None, Some(forget)) } == 0)
    }
    #[cfg(not(unix))]
    {
        true // there is no fork
    }
}

#[cfg(unix)]
extern "C" fn forget() {
    IS_KNOWN.store(false, Ordering::Relaxed);
}
