//! [`Queue`]: work on a GPU, in order, with the workspace that it needs; and calls in device memory.

use std::sync::Arc;

use flashcore_cuda::{Context, CudaError, DeviceBuffer, DeviceSlice, Graph, Stream};
use flashcore_problem::{Direction, Problem};

use crate::attention::Backend;
use crate::cuda::CudaAttention;
use crate::tensors::Steps;
use crate::{Attention, Device, DeviceTensors, Error};

/// Work on a GPU that runs in the order in which it is put in, and the workspace that its kernels need.
///
/// Kernels trust what their workspace holds, so it belongs to one queue, never leaves it and grows by itself: calls on
/// different queues may run at a time, and calls on one queue need `&mut`, so that two threads cannot use its workspace
/// at once:
///
/// ```compile_fail
/// use flashcore::{Attention, DeviceTensors, Problem, Queue};
/// fn both(attention: &Attention, queue: &mut Queue, problem: &Problem, tensors: &DeviceTensors<'_>) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| attention.forward_on(queue, problem, tensors));
///         scope.spawn(|| attention.forward_on(queue, problem, tensors));
///     });
/// }
/// ```
///
/// Memory of [`DeviceBuffer`]s may be used in any queue: a call waits, on the device, for what other queues did with it
/// before, and memory that is dropped is freed after the work that uses it.
///
/// ```no_run
/// use flashcore::cuda::DeviceBuffer;
/// use flashcore::{Attention, Device, DeviceTensors, Error, Problem, Queue, f16};
///
/// fn main() -> Result<(), Error> {
///     let (device, problem) = (Device::cuda(0)?, Problem::builder().heads(2, 2).seq_len(16).head_dim(64).build()?);
///     let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
///     let ones = DeviceBuffer::from_host(queue.stream(), &[f16::ONE; 16 * 2 * 64])?;
///     let out = DeviceBuffer::from_host(queue.stream(), &[f16::ZERO; 16 * 2 * 64])?;
///     let x = ones.as_slice();
///     attention.forward_on(&mut queue, &problem, &DeviceTensors::new(x, x, x, out.as_slice()))?;
///     assert_eq!(out.to_vec::<u16>(queue.stream())?, [f16::ONE.to_bits(); 16 * 2 * 64]);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Queue {
    workspace: Option<DeviceBuffer>,
    stream: Arc<Stream>,
}

impl Queue {
    /// A new queue of a GPU.
    ///
    /// # Errors
    /// [`Error::NotOnCuda`] on the CPU, or what the driver says.
    pub fn new(device: &Device) -> Result<Queue, Error> {
        let Some(context) = device.context() else {
            let device = device.to_string();
            return Err(Error::NotOnCuda { device });
        };
        Ok(Queue::of(Stream::new(context)?))
    }

    /// A queue that puts its work into another library's stream. 0 is the default stream.
    ///
    /// # Errors
    /// [`CudaError::ForeignStream`] for a stream of another context.
    ///
    /// # Safety
    /// As [`Stream::from_raw`]; and while another library captures the stream, no call needs a workspace
    /// ([`Attention::run_foreign`](crate::Attention::run_foreign) takes one that lives as long as the graph).
    #[allow(unsafe_code)] // a handle is a number
    pub unsafe fn from_raw(context: &Context, handle: usize) -> Result<Queue, CudaError> {
        // SAFETY: the caller's promise.
        Ok(Queue::of(unsafe { Stream::from_raw(context, handle) }?))
    }

    fn of(stream: Stream) -> Queue {
        let (workspace, stream) = (None, Arc::new(stream));
        Queue { workspace, stream }
    }

    /// The stream: to copy, to record events, and to launch [graphs](Graph).
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Waits until all work put in so far has ended.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel faulted.
    pub fn synchronize(&self) -> Result<(), Error> {
        Ok(self.stream.synchronize()?)
    }

    /// Captures what `work` puts in, without running it. The graph has a workspace for itself and keeps the
    /// [`DeviceBuffer`]s that it uses. Kernels should be [warm](crate::Attention::warmup): the driver cannot load some
    /// while a stream is captured.
    ///
    /// # Errors
    /// That of `work`, else as [`Graph::capture`].
    pub fn capture(&mut self, work: impl FnOnce(&mut Queue) -> Result<(), Error>) -> Result<Graph, Error> {
        let stream = self.stream.clone();
        let mut recording = Queue {
            workspace: None,
            stream: stream.clone(),
        };
        Graph::capture(&stream, |_| work(&mut recording))
    }

    /// So many bytes at a multiple of 256, which only work in this queue uses.
    pub(crate) fn workspace<'q>(
        stream: &Stream,
        workspace: &'q mut Option<DeviceBuffer>,
        bytes: u64,
    ) -> Result<DeviceSlice<'q>, CudaError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let kept = workspace.take().filter(|kept| kept.len() >= bytes);
        let kept = kept.map_or_else(|| DeviceBuffer::new(stream.context(), bytes), Ok)?;
        Ok(workspace.insert(kept).as_slice())
    }

    pub(crate) fn parts(&mut self) -> (&Stream, &mut Option<DeviceBuffer>) {
        (&self.stream, &mut self.workspace)
    }
}

impl Attention {
    /// Puts attention on tensors in device memory into a queue, and returns at once.
    ///
    /// It waits for nothing (unless it [checks](crate::Options::checks)), and allocates only where the queue's
    /// workspace grows, so it may be [captured](Queue::capture) once the problem is [warm](Attention::warmup). A fault
    /// shows at the queue's next synchronisation.
    ///
    /// # Errors
    /// Buffers that are missing, too small or of another device, an output over what a launch reads, scales for
    /// tensors that have none, a workspace or a [schedule](DeviceTensors::make_schedule), which the queue has itself, a
    /// problem that no kernel serves, or a launch that cannot work.
    pub fn forward_on(&self, queue: &mut Queue, problem: &Problem, tensors: &DeviceTensors<'_>) -> Result<(), Error> {
        problem.check_direction(Direction::Forward)?;
        self.run_on(queue, problem, tensors)
    }

    /// A call of either direction in the workspace of the queue.
    pub(crate) fn run_on(
        &self,
        queue: &mut Queue,
        problem: &Problem,
        tensors: &DeviceTensors<'_>,
    ) -> Result<(), Error> {
        if tensors.workspace.is_some() {
            return Err(Error::Unwanted { tensor: "workspace" });
        }
        if tensors.steps != Steps::All {
            return Err(Error::Unwanted { tensor: "schedule" });
        }
        let (stream, workspace) = queue.parts();
        let mut allocated = Ok(());
        let ran = self.on_cuda()?.run_on(
            stream,
            problem,
            tensors,
            |bytes| {
                let memory = Queue::workspace(stream, workspace, bytes);
                memory.map_err(|error| allocated = Err(error)).ok()
            },
            &self.plans,
        );
        allocated?;
        ran
    }

    pub(crate) fn on_cuda(&self) -> Result<&CudaAttention, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Err(Error::NotOnCuda {
                device: Device::Cpu.to_string(),
            }),
            Backend::Cuda(cuda) => Ok(cuda),
        }
    }

    /// Enqueues a call of either direction, as the problem has it, on a stream and in memory that may be another
    /// library's. It allocates nothing and waits for nothing. `workspace` is asked for so many bytes if the plan needs
    /// any and [`DeviceTensors::workspace`] has none.
    ///
    /// ```no_run
    /// use flashcore::cuda::{DeviceSlice, Stream};
    /// use flashcore::{Attention, Device, DeviceTensors, Error, Problem};
    ///
    /// /// Enqueues attention on another library's tensors and stream, all of device 0. `allocate` takes bytes.
    /// fn enqueue(attention: &Attention, problem: &Problem, pointers: [u64; 4], stream: usize,
    ///     allocate: impl FnOnce(usize) -> Option<u64>) -> Result<(), Error>
    /// {
    ///     let Device::Cuda(context) = attention.device() else { return Ok(()) };
    ///     // SAFETY: the caller keeps tensors, workspace and stream until the work is done, and uses the workspace for
    ///     // nothing else.
    ///     unsafe {
    ///         let (stream, tensors) =
    ///             (Stream::from_raw(&context, stream)?, DeviceTensors::from_raw(&context, problem, pointers));
    ///         attention.run_foreign(&stream, problem, &tensors, |bytes| {
    ///             Some(DeviceSlice::from_raw(&context, allocate(bytes as usize)?, bytes as usize))
    ///         })
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward_on`].
    ///
    /// # Safety
    /// Until the work of this call has ended, and all launches of a graph that captures it have:
    /// - the tensors and the workspace stay allocated (those of a [`DeviceBuffer`](crate::cuda::DeviceBuffer) do,
    ///   unless another library captures the stream);
    /// - nothing but work of this stream, in its order, uses the workspace: kernels trust what they wrote there, and
    ///   else touch any memory, or never end.
    #[allow(unsafe_code)] // the promise is the caller's
    pub unsafe fn run_foreign<'a>(
        &self,
        stream: &Stream,
        problem: &Problem,
        tensors: &DeviceTensors<'a>,
        workspace: impl FnOnce(u64) -> Option<DeviceSlice<'a>>,
    ) -> Result<(), Error> {
        self.on_cuda()?.run_on(stream, problem, tensors, workspace, &self.plans)
    }
}
