//! Streams and events: the order of work on a device, and its timing.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::allocation::{Allocation, Uses};
use crate::context::{Context, Home, lock};
use crate::error::CudaError;
use crate::module::LoadedModule;
use crate::raw::{CallResult, Driver, Handle};
use crate::sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUevent_st, CUstream, CUstream_st, event_flag, stream_flag};
use crate::table::DeviceTable;

/// A queue of work on a device: what is put in runs in order.
///
/// Streams made here do not synchronise with the legacy default stream. To work together with
/// another library, use the stream that it uses: [`Stream::from_raw`].
pub struct Stream {
    // Before the context, which destroying it needs.
    pub(crate) shared: Arc<StreamHandle>,
    context: Context,
}

/// The driver's stream. An own one lives while memory that it uses does.
pub(crate) struct StreamHandle {
    handle: Handle<CUstream_st>,
    /// Whether it was made here, and is destroyed here.
    pub(crate) is_own: bool,
    pub(crate) home: Home,
    /// While the stream is captured by a [`Graph`](crate::Graph).
    capture: Mutex<Option<Captured>>,
}

impl StreamHandle {
    /// A new stream, which does not wait for the legacy default stream.
    pub(crate) fn new(driver: &Driver, home: Home) -> CallResult<StreamHandle> {
        let handle = driver.cuStreamCreate(stream_flag::CU_STREAM_NON_BLOCKING)?;
        Ok(StreamHandle::wrap(handle, true, home))
    }

    fn wrap(handle: CUstream, is_own: bool, home: Home) -> StreamHandle {
        StreamHandle {
            handle: Handle(handle),
            is_own,
            home,
            capture: Mutex::default(),
        }
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.handle.0
    }

    /// What is captured; no capture begins or ends while this is held.
    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<Captured>> {
        lock(&self.capture)
    }

    /// Whether all its work has ended.
    pub(crate) fn is_idle(&self) -> bool {
        self.home
            .call(|driver| Ok(driver.stream_is_idle(self.handle.0)))
            .unwrap_or(true)
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        if self.is_own {
            // Work still in the stream finishes; a lost context has nothing left to destroy.
            let _ = self.home.call(|driver| driver.cuStreamDestroy_v2(self.handle.0));
        }
    }
}

/// What a capture has seen.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) kernels: Vec<Arc<str>>,
    pub(crate) modules: Vec<Arc<LoadedModule>>,
    pub(crate) tables: Vec<Arc<DeviceTable>>,
    pub(crate) allocations: Vec<Arc<Allocation>>,
}

impl Stream {
    /// A new stream.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let handle = context.call(|driver| StreamHandle::new(driver, context.home()))?;
        Ok(Self::of(context, handle))
    }

    /// Another library's stream, such as `torch.cuda.current_stream().cuda_stream`. It stays
    /// theirs: it is not destroyed here. `0` means the legacy default stream.
    ///
    /// # Errors
    /// [`CudaError::ForeignStream`] if it was made in another context than the device's primary
    /// one.
    ///
    /// # Safety
    /// `handle` is 0, 1, 2 or a `CUstream` (`cudaStream_t`) that exists and is not destroyed while
    /// this value lives.
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(context: &Context, handle: usize) -> Result<Self, CudaError> {
        let stream: CUstream = std::ptr::without_provenance_mut(handle);
        if handle > CU_STREAM_PER_THREAD {
            let owner = context.call(|driver| driver.stream_context(stream))?;
            if owner != context.handle() {
                return Err(CudaError::ForeignStream {
                    handle,
                    ordinal: context.ordinal(),
                });
            }
        }
        Ok(Self::of(context, StreamHandle::wrap(stream, false, context.home())))
    }

    fn of(context: &Context, handle: StreamHandle) -> Self {
        Self {
            shared: Arc::new(handle),
            context: context.clone(),
        }
    }

    /// The device's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The raw `CUstream`, for other libraries.
    pub fn as_raw(&self) -> usize {
        self.shared.handle.0.addr()
    }

    /// Waits until all work put in so far has ended.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel faulted.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context
            .call(|driver| driver.cuStreamSynchronize(self.shared.handle.0))?;
        self.finished();
        Ok(())
    }

    /// Lets the work put in from now on wait for an event recorded on any stream.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.context
            .call(|driver| driver.cuStreamWaitEvent(self.shared.handle.0, event.handle.0, 0))
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.shared.handle.0
    }

    pub(crate) fn check_context(&self, context: &Context, what: &'static str) -> Result<(), CudaError> {
        if self.context == *context {
            return Ok(());
        }
        Err(CudaError::OtherDevice {
            what,
            given: context.ordinal(),
            expected: self.context.ordinal(),
        })
    }

    /// Whether this is the legacy default stream, by either of its handles.
    pub(crate) fn is_legacy_default(&self) -> bool {
        self.as_raw() <= CU_STREAM_LEGACY
    }

    pub(crate) fn enqueued(&self, kernel: &Arc<str>, module: &Arc<LoadedModule>) {
        match self.shared.capture().as_mut() {
            // Captured work does not run now, so it is no suspect.
            Some(captured) => {
                captured.kernels.push(kernel.clone());
                if !captured.modules.iter().any(|known| Arc::ptr_eq(known, module)) {
                    captured.modules.push(module.clone());
                }
            }
            None => self.context.enqueued(kernel, self.as_raw()),
        }
    }

    /// Whether a graph is captured from it, by whomever.
    ///
    /// # Errors
    /// A call error.
    pub fn is_captured(&self) -> Result<bool, CudaError> {
        // The default stream cannot be captured, and asking it is an error while another one is.
        Ok(!self.is_legacy_default()
            && self
                .context
                .call(|driver| driver.stream_is_captured(self.shared.handle.0))?)
    }

    /// Puts work in that uses this memory and reads these tables: after what other streams did with the memory, and
    /// with no other use of it in between. They live until the work has ended, also where it fails halfway.
    ///
    /// A graph that is captured keeps them, and [`Graph::launch`](crate::Graph::launch) waits. One that another library
    /// captures gives no hold on it, so tables stay for good; memory is kept by who captures.
    pub(crate) fn put<'a, T>(
        &self,
        memory: impl IntoIterator<Item = &'a Arc<Allocation>>,
        tables: &[Arc<DeviceTable>],
        work: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let memory = once_each(memory);
        if memory.is_empty() && tables.is_empty() {
            return work();
        }
        let (mut uses, is_captured) = self.claim(&memory)?;
        let keep = |captured: &mut Captured| {
            captured.allocations.extend(memory.iter().copied().cloned());
            captured.tables.extend_from_slice(tables);
        };
        if is_captured {
            // Before the work, which another thread may end the capture after.
            match self.shared.capture().as_mut() {
                Some(captured) => keep(captured),
                None if self.shared.is_own => return Err(CudaError::JoinedCapture),
                None => self.context.tables().keep_for_good(tables),
            }
            return work();
        }
        let done = work();
        if let Some(captured) = self.shared.capture().as_mut() {
            keep(captured);
        } else {
            uses.iter_mut().try_for_each(|uses| uses.add(self))?;
            let slabs = once_each(tables.iter().map(|table| &table.slab));
            slabs.iter().try_for_each(|slab| slab.uses().add(self))?;
        }
        done
    }

    /// The same of work that has ended when it returns, and all before it in the stream: the stream uses the memory no
    /// more.
    pub(crate) fn put_and_wait<'a>(
        &self,
        memory: impl IntoIterator<Item = &'a Arc<Allocation>>,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let (mut uses, _) = self.claim(&once_each(memory))?;
        let done = work();
        match done {
            Ok(()) => uses.iter_mut().for_each(|uses| uses.remove(self)),
            Err(_) => uses.iter_mut().try_for_each(|uses| uses.add(self))?,
        }
        done
    }

    /// The uses of memory, which nothing adds to meanwhile, and whether the stream is captured. If it is not, it waits
    /// for those of others.
    fn claim<'a>(&self, memory: &[&'a Arc<Allocation>]) -> Result<(Vec<MutexGuard<'a, Uses>>, bool), CudaError> {
        let mut uses: Vec<_> = memory.iter().map(|memory| memory.uses()).collect();
        let is_captured = self.is_captured()?;
        if !is_captured {
            uses.iter_mut().try_for_each(|uses| uses.wait_in(self))?;
        }
        Ok((uses, is_captured))
    }

    /// All work put in so far is known to have ended well.
    pub(crate) fn finished(&self) {
        self.context.finished(self.as_raw());
    }
}

/// Each once, in one order for all threads, so that none waits for a lock that waits for its own.
fn once_each<'a>(memory: impl IntoIterator<Item = &'a Arc<Allocation>>) -> Vec<&'a Arc<Allocation>> {
    let mut memory: Vec<_> = memory.into_iter().collect();
    memory.sort_by_key(|memory| Arc::as_ptr(memory));
    memory.dedup_by(|a, b| Arc::ptr_eq(a, b));
    memory
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:#x} on device {})", self.as_raw(), self.context.ordinal())
    }
}

/// A point in a stream, for timing and for order between streams.
#[derive(Debug)]
pub struct Event {
    handle: Handle<CUevent_st>,
    context: Context,
}

impl Event {
    /// A new event, not yet recorded.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let handle = context.call(|driver| driver.cuEventCreate(event_flag::CU_EVENT_DEFAULT))?;
        Ok(Self {
            handle: Handle(handle),
            context: context.clone(),
        })
    }

    /// Puts the event into a stream: it happens when all work before it has ended.
    ///
    /// # Errors
    /// [`CudaError::OtherDevice`] for a stream of another device.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.check_context(&self.context, "the event")?;
        self.context
            .call(|driver| driver.cuEventRecord(self.handle.0, stream.handle()))
    }

    /// Waits until the event has happened.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel faulted.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.context.call(|driver| driver.cuEventSynchronize(self.handle.0))
    }

    /// Milliseconds from this event to `end`, to about half a microsecond. Both must have happened.
    ///
    /// # Errors
    /// A call error: `NOT_READY` if one has not happened yet, `INVALID_HANDLE` if one was never
    /// recorded.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f32, CudaError> {
        self.context
            .call(|driver| driver.event_elapsed(self.handle.0, end.handle.0))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // As for streams.
        let _ = self.context.call(|driver| driver.cuEventDestroy_v2(self.handle.0));
    }
}
