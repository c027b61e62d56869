//! Device memory that knows which streams use it: it is freed after their work, and dropping it waits for nothing
//! where the device has memory pools.
//!
//! `cuMemFree` may wait for the work that uses the memory, but no manual promises it, so freeing does not lean on that.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::context::{Home, lock};
use crate::error::CudaError;
use crate::heap::{Block, Heap};
use crate::raw::{CallResult, Driver, Handle};
use crate::stream::{Stream, StreamHandle};
use crate::sys::{CUdeviceptr, CUevent_st, CUstream, event_flag};

/// Streams that an allocation lists before it looks for those that are idle and gone.
const MANY_STREAMS: usize = 8;

/// A block of device memory, freed after the work of the streams that used it. Its owners keep the context, too.
pub(crate) struct Allocation {
    block: Block,
    uses: Mutex<Uses>,
    heap: Arc<Heap>,
}

impl Allocation {
    /// So many bytes, more than 0, at a multiple of 256.
    pub(crate) fn new(heap: &Arc<Heap>, bytes: usize) -> CallResult<Arc<Allocation>> {
        heap.free_what_waits();
        Ok(Arc::new(Allocation {
            block: heap.allocate(bytes)?,
            uses: Mutex::default(),
            heap: heap.clone(),
        }))
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.block.address
    }

    /// The streams that use it. No use is put into a stream meanwhile ([`Stream::put`]).
    pub(crate) fn uses(&self) -> MutexGuard<'_, Uses> {
        lock(&self.uses)
    }
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Allocation(at {:#x})", self.block.address)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let uses = std::mem::take(&mut *lock(&self.uses));
        self.heap.free(self.block, uses);
    }
}

/// The streams that something was used in.
#[derive(Default)]
pub(crate) struct Uses {
    /// They exist as long as they are here.
    own: Vec<Arc<StreamHandle>>,
    /// Streams of others may be gone when memory is freed, so their last use is marked at once.
    foreign: Vec<(usize, Arc<Marker>)>,
}

impl Uses {
    /// Work that was put into the stream so far uses it.
    pub(crate) fn add(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let handle = &stream.shared;
        if handle.is_own {
            if !self.own.iter().any(|known| Arc::ptr_eq(known, handle)) {
                if self.own.len() >= MANY_STREAMS {
                    // No more work comes into a stream that is only here.
                    self.own
                        .retain(|known| Arc::strong_count(known) > 1 || !known.is_idle());
                }
                self.own.push(handle.clone());
            }
            return Ok(());
        }
        // A graph of another library: who captures it keeps what it uses (`Stream::from_raw`).
        if stream.is_captured()? {
            return Ok(());
        }
        let known = self.foreign.iter().find(|(raw, _)| *raw == stream.as_raw());
        let marker = match known {
            Some((_, marker)) => marker.clone(),
            None => {
                let marker = Arc::new(stream.context().call(|driver| Marker::new(driver, handle.home))?);
                self.foreign.push((stream.as_raw(), marker.clone()));
                marker
            }
        };
        stream
            .context()
            .call(|driver| driver.cuEventRecord(marker.event.0, stream.handle()))
    }

    /// All work in the stream has ended.
    pub(crate) fn remove(&mut self, stream: &Stream) {
        self.own.retain(|known| !Arc::ptr_eq(known, &stream.shared));
        self.foreign.retain(|(raw, _)| *raw != stream.as_raw());
    }

    /// What the stream does from now on, or this thread if there is none, comes after all uses. `false`: a stream that
    /// used it is captured now.
    pub(crate) fn end_before(&self, driver: &'static Driver, next: Option<CUstream>) -> CallResult<bool> {
        for stream in &self.own {
            // One that waits for itself does nothing, and says whether it is captured.
            if !stream.mark(driver, next.unwrap_or(stream.raw()))? {
                return Ok(false);
            }
            if next.is_none() {
                driver.cuStreamSynchronize(stream.raw())?;
            }
        }
        for (_, marker) in &self.foreign {
            match next {
                Some(next) => driver.cuStreamWaitEvent(next, marker.event.0, 0)?,
                None => driver.cuEventSynchronize(marker.event.0)?,
            }
        }
        Ok(true)
    }

    /// Work that is put into the stream from now on waits for what the others did, and then stands for them.
    pub(crate) fn wait_in(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let (this, context) = (&stream.shared, stream.context());
        for other in self.own.iter().filter(|other| !Arc::ptr_eq(other, this)) {
            let is_marked = context.call(|driver| other.mark(driver, stream.handle()))?;
            if !is_marked {
                return Err(CudaError::UsedInCapture);
            }
        }
        for (_, marker) in self.foreign.iter().filter(|(raw, _)| *raw != stream.as_raw()) {
            context.call(|driver| driver.cuStreamWaitEvent(stream.handle(), marker.event.0, 0))?;
        }
        self.own.retain(|other| Arc::ptr_eq(other, this));
        self.foreign.retain(|(raw, _)| *raw == stream.as_raw());
        Ok(())
    }
}

impl StreamHandle {
    /// Lets another stream wait for the work that is in this one; `false` where this one is captured: the event would
    /// be part of the capture.
    fn mark(&self, driver: &'static Driver, waiting: CUstream) -> CallResult<bool> {
        // No capture begins while this is held.
        let capture = self.capture();
        if capture.is_some() || driver.stream_is_captured(self.raw())? {
            return Ok(false);
        }
        let marker = Marker::new(driver, self.home)?;
        driver.cuEventRecord(marker.event.0, self.raw())?;
        driver.cuStreamWaitEvent(waiting, marker.event.0, 0)?;
        Ok(true)
    }
}

/// An event after a use of memory.
pub(crate) struct Marker {
    event: Handle<CUevent_st>,
    home: Home,
}

impl Marker {
    fn new(driver: &Driver, home: Home) -> CallResult<Marker> {
        let event = Handle(driver.cuEventCreate(event_flag::CU_EVENT_DISABLE_TIMING)?);
        Ok(Marker { event, home })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // A stream that waits for it goes on waiting (`cuEventDestroy`); a lost context has nothing left to destroy.
        let _ = self.home.call(|driver| driver.cuEventDestroy_v2(self.event.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::graph::Graph;
    use crate::memory::DeviceBuffer;
    use crate::sys::tests::noted;

    /// What dropping asks the driver for, without changes of the capture mode.
    fn asked_by<T>(dropped: T) -> Vec<&'static str> {
        noted();
        drop(dropped);
        let mode = "cuThreadExchangeStreamCaptureMode";
        noted()
            .into_iter()
            .filter(|name| *name != mode && *name != "cuCtxGetCurrent")
            .collect()
    }

    const MARKED: [&str; 5] = [
        "cuStreamIsCapturing",
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuEventDestroy_v2",
    ];

    #[test]
    fn memory_is_freed_after_the_streams_that_use_it() {
        let context = Context::recording();
        let (one, two) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let buffer = || DeviceBuffer::new(&context, 100).unwrap();
        assert_eq!(asked_by(buffer()), ["cuMemFreeAsync"]);
        let used = buffer();
        used.as_slice().fill(&one, 1).unwrap();
        used.as_slice().fill(&one, 2).unwrap();
        assert_eq!(asked_by(used), [&MARKED[..], &["cuMemFreeAsync"]].concat());
        // The second stream waits for the first, so it is enough to wait for the second.
        let copied = buffer();
        copied.as_slice().fill(&one, 1).unwrap();
        noted();
        buffer().as_slice().copy_from(&two, copied.as_slice()).unwrap();
        let asked = noted();
        let place = |name| asked.iter().position(|asked| *asked == name).unwrap();
        assert!(place("cuStreamWaitEvent") < place("cuMemcpyDtoDAsync_v2"), "{asked:?}");
        assert_eq!(asked_by(copied), [&MARKED[..], &["cuMemFreeAsync"]].concat());
    }

    /// Streams take turns with a buffer: each waits for the one before it, and for itself it does not.
    #[test]
    fn a_use_in_another_stream_waits_for_those_before() {
        let context = Context::recording();
        let streams = [Stream::new(&context).unwrap(), Stream::new(&context).unwrap()];
        let buffer = DeviceBuffer::new(&context, 100).unwrap();
        let waits = [0, 0, 1, 1, 0, 0, 1].map(|stream| {
            noted();
            buffer.as_slice().fill(&streams[stream], 1).unwrap();
            noted().iter().filter(|name| **name == "cuStreamWaitEvent").count()
        });
        assert_eq!(waits, [0, 0, 1, 0, 1, 0, 1]);
    }

    /// A stream lives while memory that it uses does, and not longer.
    #[test]
    fn streams_that_are_gone_are_waited_for() {
        let context = Context::recording();
        let destroyed = |asked: Vec<&str>| asked.iter().filter(|name| **name == "cuStreamDestroy_v2").count();
        let buffer = DeviceBuffer::new(&context, 100).unwrap();
        for n in 0..100 {
            let stream = Stream::new(&context).unwrap();
            buffer.as_slice().fill(&stream, n).unwrap();
            assert_eq!(destroyed(asked_by(stream)), 0);
        }
        assert_eq!(
            destroyed(asked_by(buffer)),
            1,
            "the last one stands for those before it"
        );
        // Tables are only read, so nothing waits: those that are idle and gone are let go.
        let memory = Allocation::new(context.heap(), 100).unwrap();
        for _ in 0..100 {
            memory.uses().add(&Stream::new(&context).unwrap()).unwrap();
        }
        assert!((1..=MANY_STREAMS).contains(&destroyed(asked_by(memory))));
    }

    /// Between a wait and the work that waits, no other use of the memory is put into a stream.
    #[test]
    fn uses_of_threads_are_in_one_order() {
        let context = Context::recording();
        let buffers = [8, 8].map(|bytes| DeviceBuffer::new(&context, bytes).unwrap());
        let [a, b] = buffers.each_ref().map(|buffer| buffer.as_slice().owner.unwrap());
        let at_work = std::sync::atomic::AtomicUsize::new(0);
        let work = |n: usize| {
            let stream = Stream::new(&context).unwrap();
            for _ in 0..200 {
                let memory = if n < 2 { [a, b] } else { [b, a] };
                let work = || {
                    assert_eq!(at_work.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    at_work.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    Ok(())
                };
                stream.put(memory, &[], work).unwrap();
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || work(n)))));
    }

    /// A copy to the host ends what is in its stream: nothing is waited for afterwards, also while that is captured.
    #[test]
    fn a_copy_to_the_host_ends_the_uses_of_its_stream() {
        let context = Context::recording();
        let (stream, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let buffer = DeviceBuffer::from_host(&stream, &[1u8; 100]).unwrap();
        let in_use = DeviceBuffer::from_host(&stream, &[1u8; 100]).unwrap();
        in_use.as_slice().fill(&stream, 2).unwrap();
        buffer.as_slice().fill(&stream, 2).unwrap();
        buffer.to_vec::<u8>(&stream).unwrap();
        let graph = Graph::capture(&stream, |_| {
            buffer.as_slice().fill(&other, 3)?;
            let refused = in_use.as_slice().fill(&other, 3);
            assert!(matches!(refused, Err(CudaError::UsedInCapture)), "{refused:?}");
            Ok::<_, CudaError>(())
        });
        graph.unwrap();
        assert_eq!(asked_by(buffer), [&MARKED[..], &["cuMemFreeAsync"]].concat());
    }

    #[test]
    fn the_use_by_a_stream_of_others_is_marked_at_once() {
        let context = Context::recording();
        let buffer = DeviceBuffer::new(&context, 100).unwrap();
        // SAFETY: the recording driver does nothing with it.
        #[allow(unsafe_code)]
        let theirs = unsafe { Stream::from_raw(&context, 1) }.unwrap();
        buffer.as_slice().fill(&theirs, 1).unwrap();
        drop(theirs);
        assert_eq!(
            asked_by(buffer),
            ["cuStreamWaitEvent", "cuMemFreeAsync", "cuEventDestroy_v2"]
        );
    }

    #[test]
    fn a_graph_keeps_the_memory_that_it_uses() {
        let context = Context::recording();
        let (stream, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let buffer = DeviceBuffer::new(&context, 100).unwrap();
        let graph = Graph::capture(&stream, |stream| buffer.as_slice().fill(stream, 1)).unwrap();
        graph.launch(&other).unwrap();
        assert!(asked_by(buffer).is_empty());
        let asked = asked_by(graph);
        assert_eq!(
            asked,
            [&["cuGraphExecDestroy"], &MARKED[..], &["cuMemFreeAsync"]].concat()
        );
    }

    /// An event that is recorded in a stream while it is captured would be part of the capture.
    #[test]
    fn memory_of_a_stream_that_is_captured_is_freed_later() {
        let context = Context::recording();
        let (stream, other) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
        let buffer = DeviceBuffer::new(&context, 100).unwrap();
        buffer.as_slice().fill(&stream, 1).unwrap();
        let mut buffer = Some(buffer);
        let graph = Graph::capture(&stream, |_| {
            assert!(asked_by(buffer.take()).is_empty());
            Ok::<_, CudaError>(())
        });
        noted();
        let later = DeviceBuffer::new(&context, 8).unwrap();
        assert!(noted().contains(&"cuMemFreeAsync"));
        later.as_slice().fill(&other, 1).unwrap();
        drop(graph);
    }

    /// Calls that may not be made while another thread captures are made in relaxed mode.
    #[test]
    fn calls_outside_of_captures_are_bracketed() {
        let mode = "cuThreadExchangeStreamCaptureMode";
        noted();
        let context = Context::recording();
        let stream = Stream::new(&context).unwrap();
        let buffer = DeviceBuffer::from_host(&stream, &[1u8; 100]).unwrap();
        buffer.to_vec::<u8>(&stream).unwrap();
        buffer.as_slice().fill(&stream, 1).unwrap();
        drop((buffer, stream, context));
        let noted = noted();
        let outside = [
            "cuDevicePrimaryCtxRetain",
            "cuStreamCreate",
            "cuMemAllocAsync",
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
            "cuStreamSynchronize",
            "cuMemFreeAsync",
            "cuStreamDestroy_v2",
            "cuDevicePrimaryCtxRelease_v2",
            "cuEventCreate",
            "cuEventDestroy_v2",
        ];
        for name in outside {
            assert!(noted.contains(&name), "{name}");
        }
        for (at, name) in noted.iter().enumerate().filter(|(_, name)| **name != mode) {
            let before = noted[..at].iter().filter(|name| **name == mode).count();
            assert_eq!(
                before % 2 == 1,
                outside.contains(name),
                "{name}, call {at} of {noted:?}"
            );
        }
    }
}
