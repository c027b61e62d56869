//! The CUDA stream a call runs on, and its order with the streams that filled the tensors.

use std::ffi::c_void;

use dlpark::ffi::DLDevice;
use dlpark::python::consumer::stream::cuda;
use dlpark::python::{DlpackStream, StreamArg};
use flashcore::cuda::{Context, Event, Stream};
use pyo3::prelude::*;

use crate::dlpack::type_name;
use crate::error::{raise, type_};
use crate::frameworks::python;

/// A CUDA stream that belongs to Python's side.
pub(crate) struct CallStream {
    pub(crate) stream: Stream,
}

impl CallStream {
    pub(crate) fn new(context: &Context, handle: usize) -> PyResult<CallStream> {
        // SAFETY: the handle is a framework's current stream, or one the caller named as `stream=`,
        // whose documentation asks that it exists and outlives the work put into it.
        let stream = unsafe { Stream::from_raw(context, handle) };
        Ok(CallStream {
            stream: stream.map_err(|error| raise(error.into()))?,
        })
    }
}

/// Whether handles mean one stream: 0 and 1 are both the legacy default stream.
pub(crate) fn is_same_stream(a: usize, b: usize) -> bool {
    a.max(1) == b.max(1)
}

// SAFETY: the stream is alive (see `new`), belongs to the device that all tensors of the call were
// found on, and is written as DLPack wants CUDA streams written.
unsafe impl DlpackStream for CallStream {
    fn as_python_arg(&self, _py: Python<'_>, _device: DLDevice) -> PyResult<StreamArg> {
        Ok(cuda(std::ptr::without_provenance_mut(self.stream.as_raw())))
    }

    unsafe fn wait_for_producer(&self, _device: DLDevice, producer: *mut c_void) -> PyResult<bool> {
        if is_same_stream(self.stream.as_raw(), producer.addr()) {
            return Ok(true);
        }
        let context = self.stream.context();
        let order = || {
            // SAFETY: the producer's current stream, alive by this method's contract.
            let producer = unsafe { Stream::from_raw(context, producer.addr()) }?;
            let event = Event::new(context)?;
            event.record(&producer)?;
            self.stream.wait_for(&event)
        };
        order().map_err(|error| raise(error.into()))?;
        Ok(true)
    }
}

/// The handle of what was given as `stream=`: a number, or a stream object of CUDA Python, PyTorch
/// or CuPy.
pub(crate) fn handle_of(stream: &Bound<'_, PyAny>) -> PyResult<usize> {
    let handle = python(stream.py(), "handle_of", (stream,)).and_then(|handle| handle.extract());
    handle.map_err(|_| {
        type_(format!(
            "stream is a {}; allowed are a cudaStream_t as an integer (0: the legacy default stream) and stream objects \
             of PyTorch, CuPy or CUDA Python",
            type_name(stream)
        ))
    })
}
