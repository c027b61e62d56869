//! Streams and events.

use std::ptr;

use super::{CallResult, Driver};
use crate::sys::{self, CUcontext, CUevent, CUstream};

impl Driver {
    pub(crate) fn stream_create(&self, priority: i32) -> CallResult<CUstream> {
        let mut stream = ptr::null_mut();
        let flags = sys::stream_flag::CU_STREAM_NON_BLOCKING;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuStreamCreateWithPriority)(&mut stream, flags, priority) };
        self.check("cuStreamCreateWithPriority", code, || {
            format!("flags={flags}, priority={priority}")
        })?;
        Ok(stream)
    }

    pub(crate) fn stream_destroy(&self, stream: CUstream) -> CallResult<()> {
        // SAFETY: rule 1; called once, from the owner's drop.
        let code = unsafe { (self.table.cuStreamDestroy_v2)(stream) };
        self.check("cuStreamDestroy_v2", code, || format!("stream={stream:p}"))
    }

    pub(crate) fn stream_synchronize(&self, stream: CUstream) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuStreamSynchronize)(stream) };
        self.check("cuStreamSynchronize", code, || format!("stream={stream:p}"))
    }

    /// Whether all work in the stream is done.
    pub(crate) fn stream_is_done(&self, stream: CUstream) -> CallResult<bool> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuStreamQuery)(stream) };
        if code == sys::status::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.check("cuStreamQuery", code, || format!("stream={stream:p}"))
            .map(|()| true)
    }

    pub(crate) fn stream_wait_event(&self, stream: CUstream, event: CUevent) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuStreamWaitEvent)(stream, event, 0) };
        self.check("cuStreamWaitEvent", code, || {
            format!("stream={stream:p}, event={event:p}, flags=0")
        })
    }

    pub(crate) fn stream_context(&self, stream: CUstream) -> CallResult<CUcontext> {
        let mut context = ptr::null_mut();
        // SAFETY: rules 1 and 2.
        let code = unsafe { (self.table.cuStreamGetCtx)(stream, &mut context) };
        self.check("cuStreamGetCtx", code, || format!("stream={stream:p}"))?;
        Ok(context)
    }

    // Events.

    pub(crate) fn event_create(&self) -> CallResult<CUevent> {
        let mut event = ptr::null_mut();
        let flags = sys::event_flag::CU_EVENT_DEFAULT;
        // SAFETY: rule 2.
        let code = unsafe { (self.table.cuEventCreate)(&mut event, flags) };
        self.check("cuEventCreate", code, || format!("flags={flags}"))?;
        Ok(event)
    }

    pub(crate) fn event_destroy(&self, event: CUevent) -> CallResult<()> {
        // SAFETY: rule 1; called once, from the owner's drop.
        let code = unsafe { (self.table.cuEventDestroy_v2)(event) };
        self.check("cuEventDestroy_v2", code, || format!("event={event:p}"))
    }

    pub(crate) fn event_record(&self, event: CUevent, stream: CUstream) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuEventRecord)(event, stream) };
        self.check("cuEventRecord", code, || format!("event={event:p}, stream={stream:p}"))
    }

    pub(crate) fn event_synchronize(&self, event: CUevent) -> CallResult<()> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuEventSynchronize)(event) };
        self.check("cuEventSynchronize", code, || format!("event={event:p}"))
    }

    pub(crate) fn event_is_done(&self, event: CUevent) -> CallResult<bool> {
        // SAFETY: rule 1.
        let code = unsafe { (self.table.cuEventQuery)(event) };
        if code == sys::status::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.check("cuEventQuery", code, || format!("event={event:p}"))
            .map(|()| true)
    }

    /// Milliseconds between two recorded events, to about half a microsecond.
    pub(crate) fn event_elapsed(&self, start: CUevent, end: CUevent) -> CallResult<f32> {
        let mut milliseconds = 0.0;
        let arguments = || format!("start={start:p}, end={end:p}");
        // Loading made sure that there is one of the two; the newer is asked first.
        if let Some(call) = self.table.cuEventElapsedTime_v2 {
            // SAFETY: rules 1 and 2.
            let code = unsafe { call(&mut milliseconds, start, end) };
            self.check("cuEventElapsedTime_v2", code, arguments)?;
        } else if let Some(call) = self.table.cuEventElapsedTime {
            // SAFETY: rules 1 and 2.
            let code = unsafe { call(&mut milliseconds, start, end) };
            self.check("cuEventElapsedTime", code, arguments)?;
        }
        Ok(milliseconds)
    }
}
