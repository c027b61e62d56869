//! The driver's functions as fallible Rust: one method a call, each failure a [`CallError`] that
//! carries the call, its arguments and its meaning.
//!
//! All of this crate's foreign calls are made here and in `raw/`, so that there is one place to
//! read for soundness. Two rules make these methods safe to call from the owning types, and they
//! are what each `SAFETY` comment leans on:
//!
//! 1. **Live handles.** A context, stream, event, module, function or graph handle reaches this
//!    module only from the owning type that made it and destroys it in `drop`, or from an `unsafe`
//!    constructor whose caller vouched for it. Device addresses are numbers to the driver, checked
//!    there.
//! 2. **Pointers outlive the call.** Every pointer handed over is to a local or to a slice borrowed
//!    for the call, and the driver keeps none of them. Copies to and from host memory wait for
//!    their end.

#![allow(unsafe_code)]

mod jit;
mod launch;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use crate::error::{CallError, CudaError};
use crate::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUresult, CUstream, Table};

pub(crate) type CallResult<T> = Result<T, CallError>;

/// Makes a driver call; what follows the call is its arguments, for the error.
macro_rules! call {
    ($driver:ident.$name:ident($($argument:expr),*), $($format:tt)*) => {{
        let code = $driver.in_mode($crate::sys::is_outside::$name, || ($driver.table.$name)($($argument),*));
        $driver.check(stringify!($name), code, || format!($($format)*))
    }};
}
use call;

/// A driver handle that may be kept in types that are shared between threads.
#[derive(Debug)]
pub(crate) struct Handle<T>(pub(crate) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: a handle is an opaque number to us, never dereferenced here. The driver's functions may
// be called from any thread (CUDA driver API, *Thread safety*); graphs are the exception, and
// `graph` locks them.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; sharing a handle shares a number.
unsafe impl<T> Sync for Handle<T> {}

/// Library names tried, in this order. Not `libcuda.so`: that is the toolkit's link stub.
#[cfg(not(windows))]
const LIBRARIES: &[&str] = &["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];
#[cfg(windows)]
const LIBRARIES: &[&str] = &["nvcuda.dll"];

/// The driver, loaded and initialised.
pub(crate) struct Driver {
    pub(crate) table: Table,
    /// `cuDriverGetVersion`: the newest CUDA version it supports, 13000 for 13.0.
    pub(crate) cuda_version: u32,
    // Declared last and never dropped (the driver lives in a static): the table points into it.
    _library: Option<libloading::Library>,
}

/// The process's driver, loaded by the first call. A failure is remembered: there is no recovery.
pub(crate) fn driver() -> Result<&'static Driver, CudaError> {
    static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
}

/// The error for a driver that did not load, from the loader's message for each of [`LIBRARIES`]:
/// the first message that is not "no such file" makes the driver broken; otherwise there is none.
fn not_loaded(failed: &[String]) -> CudaError {
    let looked_for = LIBRARIES.join(", ");
    let is_there = |(name, detail): &(&&str, &String)| !is_missing(name, detail);
    let broken = LIBRARIES.iter().zip(failed).find(is_there);
    match broken {
        Some((_, detail)) => CudaError::BrokenDriver {
            looked_for,
            detail: detail.clone(),
        },
        None => CudaError::NoDriver {
            looked_for,
            detail: failed.first().cloned().unwrap_or_default(),
        },
    }
}

/// Whether the loader's message says that this library does not exist. A message that names another
/// library means that this one needs it.
fn is_missing(name: &str, detail: &str) -> bool {
    if cfg!(windows) {
        // The message does not say which one is missing.
        return true;
    }
    detail.contains(name) && detail.to_lowercase().contains("no such file")
}

impl Driver {
    fn load() -> Result<Self, CudaError> {
        let mut found = None;
        let mut failed = Vec::new();
        for name in LIBRARIES {
            // SAFETY: loading runs the initialisers of NVIDIA's library, which is made for that.
            match unsafe { libloading::Library::new(*name) } {
                Ok(library) => {
                    found = Some(library);
                    break;
                }
                // The loader's own words are in the source.
                Err(error) => failed
                    .push(std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)),
            }
        }
        let Some(library) = found else {
            return Err(not_loaded(&failed));
        };

        let too_old = |symbol| CudaError::DriverTooOld {
            found: crate::device::driver_release().unwrap_or_else(|| "version unknown".to_string()),
            symbol,
        };
        // SAFETY: the library was found under the driver's name, and stays loaded as long as the
        // table is used.
        let table = unsafe { Table::load(&library) }.map_err(too_old)?;
        if table.cuEventElapsedTime.or(table.cuEventElapsedTime_v2).is_none() {
            return Err(too_old("cuEventElapsedTime"));
        }

        let mut driver = Self {
            table,
            cuda_version: 0,
            _library: Some(library),
        };
        // SAFETY: takes a number.
        let code = unsafe { (driver.table.cuInit)(0) };
        if code == sys::status::CUDA_ERROR_NO_DEVICE {
            return Err(CudaError::NoDevice {
                visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            });
        }
        driver.check("cuInit", code, || "flags=0".to_string())?;
        driver.cuda_version = driver.cuDriverGetVersion()?.unsigned_abs();
        Ok(driver)
    }

    #[cfg(test)]
    pub(crate) fn recording() -> Driver {
        Driver {
            table: Table::recording(),
            cuda_version: 13_000,
            _library: None,
        }
    }

    pub(crate) fn check(
        &self,
        call: &'static str,
        code: CUresult,
        arguments: impl FnOnce() -> String,
    ) -> CallResult<()> {
        if code == sys::status::CUDA_SUCCESS {
            return Ok(());
        }
        let [name, meaning] = self.words(code);
        Err(CallError {
            call,
            arguments: arguments(),
            code,
            name,
            meaning,
        })
    }

    /// Makes a call, and one that is `outside` of captures in relaxed mode: whichever thread captures whatever stream,
    /// the call goes through and the capture goes on.
    pub(crate) fn in_mode<T>(&self, outside: bool, call: impl FnOnce() -> T) -> T {
        if !outside {
            return call();
        }
        let mut mode = sys::capture_mode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // Refused only without a driver, which the call tells.
        // SAFETY: rule 2.
        let mut exchange = || unsafe { (self.table.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        exchange();
        let result = call();
        exchange();
        result
    }

    /// The driver's name and description of a status.
    fn words(&self, code: CUresult) -> [String; 2] {
        let mut text: [*const c_char; 2] = [ptr::null(); 2];
        // SAFETY: rule 2; the driver writes pointers to its own static strings, or null.
        unsafe {
            (self.table.cuGetErrorName)(code, &mut text[0]);
            (self.table.cuGetErrorString)(code, &mut text[1]);
        }
        let unknown = ["unknown status", "this driver does not know it"];
        std::array::from_fn(|at| {
            let text = text[at];
            if text.is_null() {
                return unknown[at].to_string();
            }
            // SAFETY: the driver's strings end in a zero byte and live as long as it does.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        })
    }

    pub(crate) fn device_name(&self, device: CUdevice) -> CallResult<String> {
        let mut name = [0u8; 256];
        let (text, len) = (name.as_mut_ptr().cast(), name.len() as c_int);
        // SAFETY: rule 2; the length is the buffer's.
        unsafe { call!(self.cuDeviceGetName(text, len, device), "device={device}")? };
        Ok(jit::text(&name).0)
    }

    /// Free and total device memory, bytes.
    pub(crate) fn memory_info(&self) -> CallResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: rule 2.
        unsafe { call!(self.cuMemGetInfo_v2(&mut free, &mut total), "")? };
        Ok((free as u64, total as u64))
    }

    /// Waits until the copy is done.
    pub(crate) fn copy_to_device(&self, to: CUdeviceptr, from: &[u8], stream: CUstream) -> CallResult<()> {
        let (bytes, from) = (from.len(), from.as_ptr().cast());
        let what = format_args!("to={to:#x}, bytes={bytes}, stream={stream:p}");
        // An empty buffer has no address.
        if bytes > 0 {
            // SAFETY: rules 1 and 2; `from` is borrowed until the wait below has ended.
            unsafe { call!(self.cuMemcpyHtoDAsync_v2(to, from, bytes, stream), "{what}")? };
        }
        self.cuStreamSynchronize(stream)
    }

    /// Waits until the copy is done.
    pub(crate) fn copy_to_host(&self, to: &mut [u8], from: CUdeviceptr, stream: CUstream) -> CallResult<()> {
        let (bytes, to) = (to.len(), to.as_mut_ptr().cast());
        let what = format_args!("from={from:#x}, bytes={bytes}, stream={stream:p}");
        if bytes > 0 {
            // SAFETY: rules 1 and 2; `to` is borrowed until the wait below has ended.
            unsafe { call!(self.cuMemcpyDtoHAsync_v2(to, from, bytes, stream), "{what}")? };
        }
        self.cuStreamSynchronize(stream)
    }

    pub(crate) fn stream_context(&self, stream: CUstream) -> CallResult<CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: rules 1 and 2.
        unsafe { call!(self.cuStreamGetCtx(stream, &mut context), "stream={stream:p}")? };
        Ok(context)
    }

    /// Whether the stream is being captured, by this library or by another.
    pub(crate) fn stream_is_captured(&self, stream: CUstream) -> CallResult<bool> {
        let mut status = sys::capture_status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: rules 1 and 2.
        unsafe { call!(self.cuStreamIsCapturing(stream, &mut status), "stream={stream:p}")? };
        Ok(status != sys::capture_status::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Whether all work put into a stream that is not captured has ended, well or not.
    pub(crate) fn stream_is_idle(&self, stream: CUstream) -> bool {
        let query = || unsafe { (self.table.cuStreamQuery)(stream) }; // SAFETY: rule 1.
        self.in_mode(sys::is_outside::cuStreamQuery, query) != sys::status::CUDA_ERROR_NOT_READY
    }

    pub(crate) fn capture_end(&self, stream: CUstream) -> CallResult<CUgraph> {
        let mut graph = ptr::null_mut();
        // SAFETY: rules 1 and 2.
        unsafe { call!(self.cuStreamEndCapture(stream, &mut graph), "stream={stream:p}")? };
        Ok(graph)
    }

    /// Milliseconds between two recorded events, to about half a microsecond.
    pub(crate) fn event_elapsed(&self, start: CUevent, end: CUevent) -> CallResult<f32> {
        // `load` made sure that the driver has one of the two.
        let (name, call) = match (self.table.cuEventElapsedTime_v2, self.table.cuEventElapsedTime) {
            (Some(call), _) => ("cuEventElapsedTime_v2", call),
            (None, Some(call)) => ("cuEventElapsedTime", call),
            (None, None) => return Ok(0.0),
        };
        let mut milliseconds = 0.0;
        // SAFETY: rules 1 and 2.
        let code = self.in_mode(true, || unsafe { call(&mut milliseconds, start, end) });
        self.check(name, code, || format!("start={start:p}, end={end:p}"))?;
        Ok(milliseconds)
    }
}

/// A count or size that the driver gives as a signed number.
pub(crate) fn unsigned(value: c_int) -> u32 {
    value.max(0).unsigned_abs()
}

#[cfg(not(windows))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_there_and_fails_is_not_called_absent() {
        let missing = |name: &str| format!("{name}: cannot open shared object file: No such file or directory");
        let none: Vec<String> = LIBRARIES.iter().map(|name| missing(name)).collect();
        assert!(matches!(not_loaded(&none), CudaError::NoDriver { detail, .. } if detail == none[0]));
        for what in [
            "/tmp/libcuda.so.1: invalid ELF header",
            "/tmp/libcuda.so.1: file too short",
            "libcuda.so.1: cannot open shared object file: Permission denied",
            // What it needs in turn.
            "libnvidia-ptxjitcompiler.so.1: cannot open shared object file: No such file or directory",
        ] {
            let mut failed = none.clone();
            failed[0] = what.to_string();
            let error = not_loaded(&failed);
            assert!(!error.is_absence() && error.is_environment(), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
        // The second one counts, too.
        let mut failed = none.clone();
        failed[1] = "/usr/lib/wsl/lib/libcuda.so.1: invalid ELF header".to_string();
        assert!(!not_loaded(&failed).is_absence());
    }
}
