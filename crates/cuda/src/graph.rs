//! Graphs: a sequence of launches recorded once and replayed with one call, for a few microseconds
//! less each.

use std::sync::{Arc, Mutex};

use crate::context::{Context, lock};
use crate::error::{CudaError, coalesced};
use crate::raw::{CallResult, Driver, Handle};
use crate::stream::{Captured, Stream, StreamHandle};
use crate::sys::{CUgraph, CUgraphExec_st, capture_mode};

/// Work captured from a stream, ready to be replayed. Calls of attention are captured and launched by a queue:
/// `Queue::recording`, `Queue::finish`, `Queue::launch` of `flashcore`.
///
/// A graph keeps the [`DeviceBuffer`](crate::DeviceBuffer)s used inside, the modules of its kernels and the tables of
/// its launches. Memory of others ([`DeviceSlice::from_raw`](crate::DeviceSlice::from_raw)) is theirs to keep.
pub struct Graph {
    /// The driver does not synchronise calls on one executable graph; the lock does.
    exec: Mutex<Handle<CUgraphExec_st>>,
    label: Arc<str>,
    keeps: Captured,
    context: Context,
}

impl Graph {
    /// Captures what `work` puts into the stream it is given, without running it.
    ///
    /// Compile modules, allocate and copy before: none of that can be captured.
    ///
    /// # Errors
    /// [`CudaError::CaptureDefaultStream`] for the legacy default stream; the error of `work`, if
    /// it fails; otherwise what the driver says.
    pub fn capture<E: From<CudaError>>(
        stream: &Stream,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Self, E> {
        // Forbids unsafe calls to this thread only: others may go on allocating.
        let mode = capture_mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let recording = Recording::in_mode(stream, mode)?;
        // Its error says more than that of the invalid capture which follows from it.
        work(stream)?;
        Ok(recording.finish()?)
    }

    /// Puts the whole graph into a stream, after what other streams did with the memory that it keeps.
    ///
    /// # Errors
    /// [`CudaError::OtherDevice`] for a stream of another device; otherwise what the driver says.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.check_context(&self.context, "the graph")?;
        stream.put(&self.keeps.allocations, &self.keeps.tables, || {
            let exec = lock(&self.exec);
            self.context
                .call(|driver| driver.cuGraphLaunch(exec.0, stream.handle()))
        })?;
        // A graph in a graph: the outer one keeps what this one keeps.
        match stream.shared.capture().as_mut() {
            Some(captured) => captured.modules.extend_from_slice(&self.keeps.modules),
            None => self.context.enqueued(&self.label, stream.as_raw()),
        }
        Ok(())
    }

    /// Uploads the graph ahead of its first launch, which is quicker then.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.check_context(&self.context, "the graph")?;
        let exec = lock(&self.exec);
        self.context
            .call(|driver| driver.cuGraphUpload(exec.0, stream.handle()))
    }

    /// Names of the kernels captured, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.keeps.kernels.iter().map(|name| &**name)
    }
}

fn label(kernels: &[Arc<str>]) -> String {
    format!("graph of {}", coalesced(kernels))
}

/// What is put into a stream from its [begin](Recording::begin) on, which does not run. A recording that is dropped is
/// forgotten.
pub struct Recording {
    stream: Arc<StreamHandle>,
    context: Context,
    open: bool,
}

impl Recording {
    /// Begins. The thread that finishes may be another one.
    ///
    /// # Errors
    /// As [`Graph::capture`].
    pub fn begin(stream: &Stream) -> Result<Recording, CudaError> {
        Recording::in_mode(stream, capture_mode::CU_STREAM_CAPTURE_MODE_RELAXED)
    }

    fn in_mode(stream: &Stream, mode: u32) -> Result<Recording, CudaError> {
        if stream.is_legacy_default() {
            return Err(CudaError::CaptureDefaultStream);
        }
        let (shared, context) = (stream.shared.clone(), stream.context().clone());
        // Who holds this knows that no capture begins.
        let mut captured = shared.capture();
        context.call(|driver| driver.cuStreamBeginCapture_v2(stream.handle(), mode))?;
        *captured = Some(Captured::default());
        drop(captured);
        Ok(Recording {
            stream: shared,
            context,
            open: true,
        })
    }

    /// The graph of what was put in.
    ///
    /// # Errors
    /// What the driver says: something was put in that no graph can have.
    pub fn finish(mut self) -> Result<Graph, CudaError> {
        let (graph, captured) = self.end();
        let graph = graph?;
        let exec = self.context.call(|driver| {
            let exec = driver.cuGraphInstantiateWithFlags(graph, 0);
            let _ = destroy(driver, graph);
            exec
        })?;
        Ok(Graph {
            exec: Mutex::new(Handle(exec)),
            label: Arc::from(label(&captured.kernels)),
            keeps: captured,
            context: self.context.clone(),
        })
    }

    fn end(&mut self) -> (Result<CUgraph, CudaError>, Captured) {
        self.open = false;
        let mut captured = self.stream.capture();
        let graph = self.context.call(|driver| driver.capture_end(self.stream.raw()));
        (graph, captured.take().unwrap_or_default())
    }
}

/// It ends even if the work inside panics; the stream would be unusable otherwise.
impl Drop for Recording {
    fn drop(&mut self) {
        if self.open
            && let (Ok(graph), _) = self.end()
        {
            let _ = self.context.call(|driver| destroy(driver, graph));
        }
    }
}

/// Destroys what was captured, which is null where that was nothing valid. Nothing refers to it any more; a failure
/// would leave a few kilobytes behind.
fn destroy(driver: &Driver, graph: CUgraph) -> CallResult<()> {
    if graph.is_null() {
        return Ok(());
    }
    driver.cuGraphDestroy(graph)
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recording(on device {})", self.context.ordinal())
    }
}

/// A replay still running finishes; the driver frees the graph after it (`cuGraphExecDestroy`).
impl Drop for Graph {
    fn drop(&mut self) {
        let exec = lock(&self.exec).0;
        let _ = self.context.call(|driver| driver.cuGraphExecDestroy(exec));
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} on device {})", self.label, self.context.ordinal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_kernels_of_a_graph_are_named_once() {
        let of = |names: &[&str]| label(&names.iter().map(|name| Arc::from(*name)).collect::<Vec<_>>());
        assert_eq!(of(&["tiled"; 64]), "graph of 64 × tiled");
        assert_eq!(
            of(&["split", "combine", "combine", "split"]),
            "graph of split, 2 × combine, split"
        );
    }
}
