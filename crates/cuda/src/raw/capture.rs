//! Captures of streams.

use std::ptr;

use super::{CallResult, Driver};
use crate::sys::{self, CUgraph, CUstream};

impl Driver {
    /// Begins a capture that forbids unsafe calls to this thread only, so that other threads of the
    /// process may go on allocating.
    pub(crate) fn capture_begin(&self, stream: CUstream) -> CallResult<()> {
        let mode = sys::capture_mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuStreamBeginCapture_v2)(stream, mode) };
        self.check("cuStreamBeginCapture_v2", code, || {
            format!("stream={stream:p}, mode=thread-local")
        })
    }

    pub(crate) fn capture_end(&self, stream: CUstream) -> CallResult<CUgraph> {
        let mut graph = ptr::null_mut();
        // SAFETY: rules 1 and 2.
        let code = unsafe { (self.table.cuStreamEndCapture)(stream, &mut graph) };
        self.check("cuStreamEndCapture", code, || format!("stream={stream:p}"))?;
        Ok(graph)
    }

    /// Whether someone captures the stream, be it this library or another.
    pub(crate) fn stream_is_captured(&self, stream: CUstream) -> CallResult<bool> {
        let mut status = sys::capture_status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: rules 1 and 2.
        let code = unsafe { (self.table.cuStreamIsCapturing)(stream, &mut status) };
        self.check("cuStreamIsCapturing", code, || format!("stream={stream:p}"))?;
        Ok(status != sys::capture_status::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}
