//! The driver's functions as fallible Rust: one method a call, each failure a [`CallError`] that carries
//! the call, its arguments and its meaning.
//!
//! All of this crate's foreign calls are made here and in `raw/`, so that there is one place to read for
//! soundness. Two rules make these methods safe to call from the owning types, and they are what each
//! `SAFETY` comment leans on:
//!
//! 1. **Live handles.** A context, stream, event, module, function or graph handle reaches this module only
//!    from the owning type that made it and destroys it in `drop`, or from an `unsafe` constructor whose
//!    caller vouched for it. Device addresses are numbers to the driver, checked there.
//! 2. **Pointers outlive the call.** Every pointer handed over is to a local or to a slice borrowed for the
//!    call, and the driver keeps none of them. Copies to and from host memory wait for their end.

#![allow(unsafe_code)]

mod capture;
mod jit;
mod launch;
mod stream;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;
use std::{fmt, ptr};

use crate::error::{CallError, CudaError};
use crate::status;
use crate::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUgraph, CUgraphExec, CUresult, CUstream, Table};

pub(crate) use jit::{JitOutcome, JitRequest};
pub(crate) use launch::{LaunchCall, TensorMapCall};

type CallResult<T> = Result<T, CallError>;

/// A driver handle that may be kept in types that are shared between threads.
#[derive(Debug)]
pub(crate) struct Handle<T>(pub(crate) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: a handle is an opaque number to us, never dereferenced here. The driver's functions may be called
// from any thread (CUDA driver API, *Thread safety*); graphs are the exception, and `graph` locks them.
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
    table: Table,
    /// `cuDriverGetVersion`: the newest CUDA version it supports, 13000 for 13.0.
    pub(crate) cuda_version: u32,
    // Declared last and never dropped (the driver lives in a static): the table points into it.
    _library: libloading::Library,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("cuda_version", &self.cuda_version)
            .finish_non_exhaustive()
    }
}

/// The process's driver. The first call loads and initialises it; a failure is remembered, because the
/// driver does not recover from one within a process.
pub(crate) fn driver() -> Result<&'static Driver, CudaError> {
    static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
}

/// What it means that none of [`LIBRARIES`] could be loaded, by what the loader said of each: that there is none, unless it
/// said something else of one.
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

/// Whether the loader says that it found no such library. Where it names another one, that is what this one needs.
fn is_missing(name: &str, detail: &str) -> bool {
    if cfg!(windows) {
        // It does not say which one is missing.
        return true;
    }
    detail.contains(name) && detail.to_lowercase().contains("no such file")
}

impl Driver {
    fn load() -> Result<Self, CudaError> {
        let mut found = None;
        let mut failed = Vec::new();
        for name in LIBRARIES {
            // SAFETY: loading runs the library's initialisers; NVIDIA's driver library is made for that.
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

        // SAFETY: the library was found under the driver's name, and is kept beside the table for as long.
        let table = unsafe { Table::load(&library) }.map_err(|missing| CudaError::DriverTooOld {
            found: crate::device::driver_release().unwrap_or_else(|| "version unknown".to_string()),
            symbol: missing.0,
        })?;
        if table.cuEventElapsedTime.or(table.cuEventElapsedTime_v2).is_none() {
            return Err(CudaError::DriverTooOld {
                found: crate::device::driver_release().unwrap_or_else(|| "version unknown".to_string()),
                symbol: "cuEventElapsedTime",
            });
        }

        let mut driver = Self {
            table,
            cuda_version: 0,
            _library: library,
        };
        // SAFETY: takes a number.
        let code = unsafe { (driver.table.cuInit)(0) };
        if code == sys::status::CUDA_ERROR_NO_DEVICE {
            return Err(CudaError::NoDevice {
                visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            });
        }
        driver.check("cuInit", code, || "flags=0".to_string())?;
        let mut version = 0;
        // SAFETY: rule 2.
        let code = unsafe { (driver.table.cuDriverGetVersion)(&mut version) };
        driver.check("cuDriverGetVersion", code, String::new)?;
        driver.cuda_version = version.unsigned_abs();
        Ok(driver)
    }

    /// Turns a status into a result.
    fn check(&self, call: &'static str, code: CUresult, arguments: impl FnOnce() -> String) -> CallResult<()> {
        if code == sys::status::CUDA_SUCCESS {
            return Ok(());
        }
        let name = match status::status(code) {
            Some(status) => status.name.to_string(),
            None => self.error_name(code),
        };
        Err(CallError {
            call,
            arguments: arguments(),
            code,
            name,
        })
    }

    /// The driver's own name and description of a status that our table does not have.
    fn error_name(&self, code: CUresult) -> String {
        let mut text: [*const c_char; 2] = [ptr::null(); 2];
        // SAFETY: rule 2; the driver writes pointers to its own static strings, or null.
        unsafe {
            (self.table.cuGetErrorName)(code, &mut text[0]);
            (self.table.cuGetErrorString)(code, &mut text[1]);
        }
        let [name, description] = text.map(|text| {
            // SAFETY: the driver's strings end in a zero byte and live as long as it does.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        });
        match (name, description) {
            (Some(name), Some(description)) => format!("{name}, {description}"),
            (Some(name), None) => name,
            _ => "a status that this driver does not name".to_string(),
        }
    }

    // Devices.

    pub(crate) fn device_count(&self) -> CallResult<u32> {
        let mut count = 0;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuDeviceGetCount)(&mut count) };
        self.check("cuDeviceGetCount", code, String::new)?;
        Ok(count.max(0).unsigned_abs())
    }

    pub(crate) fn device(&self, ordinal: u32) -> CallResult<CUdevice> {
        let mut device = 0;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuDeviceGet)(&mut device, ordinal as c_int) };
        self.check("cuDeviceGet", code, || format!("ordinal={ordinal}"))?;
        Ok(device)
    }

    pub(crate) fn device_name(&self, device: CUdevice) -> CallResult<String> {
        let mut name = [0u8; 256];
        // SAFETY: rule 2; the length is the buffer's, and the driver ends the name with a zero byte.
        let code = unsafe { (self.table.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, device) };
        self.check("cuDeviceGetName", code, || format!("device={device}"))?;
        Ok(jit::text(&name).0)
    }

    pub(crate) fn device_uuid(&self, device: CUdevice) -> CallResult<[u8; 16]> {
        let mut uuid = sys::CUuuid_st { bytes: [0; 16] };
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuDeviceGetUuid_v2)(&mut uuid, device) };
        self.check("cuDeviceGetUuid_v2", code, || format!("device={device}"))?;
        Ok(uuid.bytes.map(|byte| byte as u8))
    }

    pub(crate) fn device_attribute(&self, device: CUdevice, attribute: u32) -> CallResult<u32> {
        let mut value = 0;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuDeviceGetAttribute)(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code, || {
            format!("attribute={attribute}, device={device}")
        })?;
        Ok(value.max(0).unsigned_abs())
    }

    pub(crate) fn device_total_memory(&self, device: CUdevice) -> CallResult<u64> {
        let mut bytes = 0;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuDeviceTotalMem_v2)(&mut bytes, device) };
        self.check("cuDeviceTotalMem_v2", code, || format!("device={device}"))?;
        Ok(bytes as u64)
    }

    // Contexts.

    pub(crate) fn primary_context_retain(&self, device: CUdevice) -> CallResult<CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuDevicePrimaryCtxRetain)(&mut context, device) };
        self.check("cuDevicePrimaryCtxRetain", code, || format!("device={device}"))?;
        Ok(context)
    }

    pub(crate) fn primary_context_release(&self, device: CUdevice) -> CallResult<()> {
        // SAFETY: takes a number; the driver counts retains and releases.
        let code = unsafe { (self.table.cuDevicePrimaryCtxRelease_v2)(device) };
        self.check("cuDevicePrimaryCtxRelease_v2", code, || format!("device={device}"))
    }

    pub(crate) fn context_current(&self) -> CallResult<CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuCtxGetCurrent)(&mut context) };
        self.check("cuCtxGetCurrent", code, String::new)?;
        Ok(context)
    }

    pub(crate) fn context_push(&self, context: CUcontext) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuCtxPushCurrent_v2)(context) };
        self.check("cuCtxPushCurrent_v2", code, || format!("context={context:p}"))
    }

    pub(crate) fn context_pop(&self) -> CallResult<()> {
        let mut context = ptr::null_mut();
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuCtxPopCurrent_v2)(&mut context) };
        self.check("cuCtxPopCurrent_v2", code, String::new)
    }

    pub(crate) fn context_synchronize(&self) -> CallResult<()> {
        // SAFETY: takes nothing.
        let code = unsafe { (self.table.cuCtxSynchronize)() };
        self.check("cuCtxSynchronize", code, String::new)
    }

    // Memory.

    /// Free and total device memory, bytes.
    pub(crate) fn memory_info(&self) -> CallResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check("cuMemGetInfo_v2", code, String::new)?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn memory_alloc(&self, bytes: usize) -> CallResult<CUdeviceptr> {
        let mut pointer = 0;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuMemAlloc_v2)(&mut pointer, bytes) };
        self.check("cuMemAlloc_v2", code, || format!("bytes={bytes}"))?;
        Ok(pointer)
    }

    pub(crate) fn memory_free(&self, pointer: CUdeviceptr) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuMemFree_v2)(pointer) };
        self.check("cuMemFree_v2", code, || format!("pointer={pointer:#x}"))
    }

    /// Copies to device memory in stream order and waits until the copy is done.
    pub(crate) fn copy_to_device(&self, to: CUdeviceptr, from: &[u8], stream: CUstream) -> CallResult<()> {
        let bytes = from.len();
        // SAFETY: rules 1 and 2; `from` is borrowed until the wait below has ended.
        let code = unsafe { (self.table.cuMemcpyHtoDAsync_v2)(to, from.as_ptr().cast(), bytes, stream) };
        self.check("cuMemcpyHtoDAsync_v2", code, || {
            format!("to={to:#x}, bytes={bytes}, stream={stream:p}")
        })?;
        self.stream_synchronize(stream)
    }

    /// Copies from device memory in stream order and waits until the copy is done.
    pub(crate) fn copy_to_host(&self, to: &mut [u8], from: CUdeviceptr, stream: CUstream) -> CallResult<()> {
        let bytes = to.len();
        // SAFETY: rules 1 and 2; `to` is borrowed until the wait below has ended.
        let code = unsafe { (self.table.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), from, bytes, stream) };
        self.check("cuMemcpyDtoHAsync_v2", code, || {
            format!("from={from:#x}, bytes={bytes}, stream={stream:p}")
        })?;
        self.stream_synchronize(stream)
    }

    pub(crate) fn copy_on_device(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> CallResult<()> {
        // SAFETY: rule 1; both addresses are device memory and checked by the driver.
        let code = unsafe { (self.table.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync_v2", code, || {
            format!("to={to:#x}, from={from:#x}, bytes={bytes}, stream={stream:p}")
        })
    }

    pub(crate) fn fill(&self, to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuMemsetD8Async)(to, value, bytes, stream) };
        self.check("cuMemsetD8Async", code, || {
            format!("to={to:#x}, value={value:#x}, bytes={bytes}, stream={stream:p}")
        })
    }

    // Graphs.

    pub(crate) fn graph_instantiate(&self, graph: CUgraph) -> CallResult<CUgraphExec> {
        let mut exec = ptr::null_mut();
        // SAFETY: rules 1 and 2.
        let code = unsafe { (self.table.cuGraphInstantiateWithFlags)(&mut exec, graph, 0) };
        self.check("cuGraphInstantiateWithFlags", code, || {
            format!("graph={graph:p}, flags=0")
        })?;
        Ok(exec)
    }

    pub(crate) fn graph_upload(&self, exec: CUgraphExec, stream: CUstream) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuGraphUpload)(exec, stream) };
        self.check("cuGraphUpload", code, || format!("exec={exec:p}, stream={stream:p}"))
    }

    pub(crate) fn graph_launch(&self, exec: CUgraphExec, stream: CUstream) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuGraphLaunch)(exec, stream) };
        self.check("cuGraphLaunch", code, || format!("exec={exec:p}, stream={stream:p}"))
    }

    pub(crate) fn graph_exec_destroy(&self, exec: CUgraphExec) -> CallResult<()> {
        // SAFETY: rule 1; called once, from the owner's drop.
        let code = unsafe { (self.table.cuGraphExecDestroy)(exec) };
        self.check("cuGraphExecDestroy", code, || format!("exec={exec:p}"))
    }

    pub(crate) fn graph_destroy(&self, graph: CUgraph) -> CallResult<()> {
        // SAFETY: rule 1; called once, by who ended the capture.
        let code = unsafe { (self.table.cuGraphDestroy)(graph) };
        self.check("cuGraphDestroy", code, || format!("graph={graph:p}"))
    }
}

#[cfg(all(test, not(windows)))]
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
