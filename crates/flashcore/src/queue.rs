//! [`Queue`]: work on a GPU, in order, with the workspace that it needs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flashcore_cuda::{Context, CudaError, DeviceBuffer, DeviceSlice, Event, Graph, Recording, Stream};
use flashcore_problem::{ElementType, Host, Operands, ProblemError, Scalar, Tensor, TensorSpec, View};

use crate::attention::Backend;
use crate::cuda::{CudaAttention, Ready, Steps};
use crate::{Attention, Cuda, CudaTensor, Device, Error, Schedule};

/// Work on a GPU that runs in the order in which it is put in, and the workspace that its kernels need.
///
/// Kernels trust what their workspace holds, so it belongs to one queue, never leaves it and grows by itself: calls on
/// different queues may run at a time, and calls on one queue need `&mut`, so that two threads cannot use its workspace
/// at once:
///
/// ```compile_fail,E0499
/// use flashcore::{Attention, CudaTensor, Operands, Problem, Queue};
/// fn both(attention: &Attention, queue: &mut Queue, problem: &Problem, x: &CudaTensor, outs: [&mut CudaTensor; 2]) {
///     let [one, two] = outs;
///     std::thread::scope(|scope| {
///         scope.spawn(|| attention.run_on(queue, problem, Operands::forward(x, x, x, one)));
///         scope.spawn(|| attention.run_on(queue, problem, Operands::forward(x, x, x, two)));
///     });
/// }
/// ```
///
/// A [`CudaTensor`] may be used in any queue of its device: a call waits, on the device, for what other queues did with
/// it before, and memory that is dropped is freed after the work that uses it. An output is not an input:
///
/// ```compile_fail,E0505
/// use flashcore::{Attention, CudaTensor, Operands, Problem, Queue};
/// fn in_place(attention: &Attention, queue: &mut Queue, problem: &Problem, x: &mut CudaTensor) {
///     let _ = attention.run_on(queue, problem, Operands::forward(&*x, &*x, &*x, x));
/// }
/// ```
///
/// Tensors in host memory have no place in a queue:
///
/// ```compile_fail,E0308
/// use flashcore::{Attention, Operands, Problem, Queue, Tensor};
/// fn host(attention: &Attention, queue: &mut Queue, problem: &Problem, x: &Tensor, out: &mut Tensor) {
///     let _ = attention.run_on(queue, problem, Operands::forward(x, x, x, out));
/// }
/// ```
#[derive(Debug)]
pub struct Queue {
    /// Of the largest call so far. It is freed when a call needs a larger one, and with the queue: after what
    /// runs on it, and after the graphs that recorded it.
    workspace: Option<DeviceBuffer>,
    recording: Option<Recording>,
    stream: Arc<Stream>,
    /// Which queue it is, of all that there ever were.
    pub(crate) number: u64,
    /// What a stream of another library lives by.
    keeps: Option<Box<dyn Any + Send>>,
}

impl Queue {
    /// A new queue of a GPU.
    ///
    /// # Errors
    /// [`Error::NotOnCuda`] on the CPU, or what the driver says.
    pub fn new(device: &Device) -> Result<Queue, Error> {
        Ok(Queue::of(Stream::new(device.on_cuda()?)?, None))
    }

    /// A queue that runs nothing and records what is put in, with a stream and a workspace for itself.
    /// [`Queue::finish`] gives the graph, which any queue can [launch](Queue::launch). Tensors that are used stay
    /// allocated as long as the graph does. Tasks should be [prepared](Attention::prepare): the driver cannot load some
    /// kernels while a stream is captured.
    ///
    /// ```no_run
    /// use flashcore::{Attention, CudaTensor, Device, Error, Operands, Problem, Queue};
    ///
    /// fn replay(attention: &Attention, device: &Device, problem: &Problem, q: &mut CudaTensor, k: &CudaTensor,
    ///     out: &mut CudaTensor) -> Result<(), Error>
    /// {
    ///     let prepared = attention.prepare(problem)?;
    ///     let mut recording = Queue::recording(device)?;
    ///     attention.run_on(&mut recording, &prepared, Operands::forward(&*q, k, k, &mut *out))?;
    ///     let (mut graph, mut queue) = (recording.finish()?, Queue::new(device)?);
    ///     queue.write(q, &vec![1f32; q.layout().span()])?; // what the graph reads next
    ///     queue.launch(&mut graph)?;
    ///     println!("{:?}", queue.download(out)?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// A queue that is finished is used no more:
    ///
    /// ```compile_fail,E0382
    /// use flashcore::{Attention, CudaTensor, Operands, Problem, Queue};
    /// fn after(attention: &Attention, mut queue: Queue, problem: &Problem, x: &CudaTensor, out: &mut CudaTensor) {
    ///     let graph = queue.finish();
    ///     let _ = attention.run_on(&mut queue, problem, Operands::forward(x, x, x, out));
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Queue::new`].
    pub fn recording(device: &Device) -> Result<Queue, Error> {
        let mut queue = Queue::new(device)?;
        queue.recording = Some(Recording::begin(&queue.stream)?);
        Ok(queue)
    }

    /// The graph of what was recorded.
    ///
    /// # Errors
    /// [`Error::Recording`] of a queue that does not record, or what the driver says.
    pub fn finish(mut self) -> Result<Graph, Error> {
        match self.recording.take() {
            Some(recording) => Ok(recording.finish()?),
            None => cannot("finish", "it does not record; make it by Queue::recording"),
        }
    }

    /// Puts a graph into the queue, after what other queues did with the memory that it uses. A graph runs in one queue
    /// at a time.
    ///
    /// # Errors
    /// A graph of another device, or what the driver says.
    pub fn launch(&mut self, graph: &mut Graph) -> Result<(), Error> {
        Ok(graph.launch(&self.stream)?)
    }

    /// A queue that puts its work into another library's stream. 0 is the default stream.
    ///
    /// # Errors
    /// [`CudaError::ForeignStream`] for a stream of another context.
    ///
    /// # Safety
    /// As [`Stream::from_raw`]; and while another library captures the stream, no call needs a workspace
    /// ([`Attention::run_foreign`] takes one that lives as long as the graph).
    #[allow(unsafe_code)] // a handle is a number
    pub unsafe fn from_raw(context: &Context, handle: usize) -> Result<Queue, CudaError> {
        // SAFETY: the caller's promise.
        Ok(Queue::of(unsafe { Stream::from_raw(context, handle) }?, None))
    }

    /// The queue of a stream, and what that lives by.
    pub(crate) fn of(stream: Stream, keeps: Option<Box<dyn Any + Send>>) -> Queue {
        static QUEUES: AtomicU64 = AtomicU64::new(0);
        Queue {
            workspace: None,
            recording: None,
            stream: Arc::new(stream),
            number: QUEUES.fetch_add(1, Ordering::Relaxed),
            keeps,
        }
    }

    /// The stream: to record events, and for kernels and copies of the program's own.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Lets the work put in from now on wait for an event recorded in any stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_for(&mut self, event: &Event) -> Result<(), Error> {
        Ok(self.stream.wait_for(event)?)
    }

    /// Waits until all work put in so far has ended.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel faulted; [`Error::Recording`] of a queue that records.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.runs("synchronize")?;
        Ok(self.stream.synchronize()?)
    }

    /// Refuses what a queue that records cannot do.
    fn runs(&self, what: &'static str) -> Result<(), Error> {
        match self.recording {
            None => Ok(()),
            Some(_) => cannot(what, "it records, and nothing of it has run; use another queue"),
        }
    }

    /// A tensor in device memory with the values of one in host memory: a [`Tensor`], or a slice, such as lengths, or
    /// the rows of a block table one after the other. Returns when it is copied.
    ///
    /// # Errors
    /// Host memory that is shorter than shape and strides; what the driver says; [`Error::Recording`] of a queue that
    /// records.
    pub fn upload<'h>(&mut self, tensor: impl Into<View<'h, Host>>) -> Result<CudaTensor, Error> {
        self.runs("upload")?;
        let view = tensor.into();
        let (element, layout) = (view.element(), *view.layout());
        layout.check_wide("the tensor")?;
        let needed = layout.span() * element.size_bytes();
        let Some(bytes) = view.memory().get(..needed) else {
            return Err(too_few(view.memory().len(), needed));
        };
        let memory = DeviceBuffer::from_host(&self.stream, bytes)?;
        Ok(CudaTensor::new(element, layout, memory))
    }

    /// A tensor in device memory, as [`Task::tensors`](crate::Task::tensors) describes it. Its values are not set.
    ///
    /// # Errors
    /// What the driver says: there is no such memory.
    pub fn empty(&mut self, spec: &TensorSpec) -> Result<CudaTensor, Error> {
        spec.layout.check_wide(spec.name.as_str())?;
        let bytes = usize::try_from(spec.bytes()).unwrap_or(usize::MAX);
        let memory = DeviceBuffer::new(self.stream.context(), bytes)?;
        Ok(CudaTensor::new(spec.element, spec.layout, memory))
    }

    /// Copies values to a tensor, all of it, gaps included, after the work in the queue. Returns when that is done.
    ///
    /// # Errors
    /// Values of another type, or another number of them; what the driver says; [`Error::Recording`] of a queue that
    /// records.
    pub fn write<T: Scalar>(&mut self, to: &mut CudaTensor, values: &[T]) -> Result<(), Error> {
        self.runs("write")?;
        to.element().check_is::<T>()?;
        let given = size_of_val(values);
        if given != to.as_slice().len() {
            return Err(too_few(given, to.as_slice().len()));
        }
        Ok(to
            .as_slice()
            .copy_from_host(&self.stream, bytemuck::cast_slice(values))?)
    }

    /// The values of a tensor of floating point, after the work in the queue.
    ///
    /// # Errors
    /// A tensor of integers, which [`Queue::read`] takes; [`CudaError::Fault`] if a kernel ahead faulted;
    /// [`Error::Recording`] of a queue that records.
    pub fn download(&mut self, tensor: &CudaTensor) -> Result<Tensor, Error> {
        self.runs("download")?;
        let ElementType::Float(dtype) = tensor.element() else {
            return Err(tensor_error(format!(
                "it holds {}; Queue::read takes that",
                tensor.element()
            )));
        };
        let mut host = Tensor::filled(dtype, *tensor.layout(), 0);
        tensor.as_slice().copy_to_host(&self.stream, host.bytes_mut())?;
        Ok(host)
    }

    /// All values of a tensor, gaps included, after the work in the queue.
    ///
    /// # Errors
    /// As [`Queue::download`], and a tensor that does not hold `T`.
    pub fn read<T: Scalar>(&mut self, tensor: &CudaTensor) -> Result<Vec<T>, Error> {
        self.runs("read")?;
        tensor.element().check_is::<T>()?;
        let mut values = vec![T::zeroed(); tensor.layout().span()];
        tensor
            .as_slice()
            .copy_to_host(&self.stream, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Refuses what is of another device, and in a recording memory that it cannot keep.
    pub(crate) fn check(&self, context: &Context, operands: &Operands<'_, Cuda>) -> Result<(), Error> {
        if self.stream.context() != context {
            return Err(Error::other_context("queue", context.ordinal()));
        }
        if self.recording.is_none() {
            // The stream of a queue that keeps something is another library's, and so would be the graph.
            if self.keeps.is_some() && self.stream.is_captured()? {
                let why =
                    "its stream is captured by another library, whose graph keeps nothing of it: use Queue::recording";
                return cannot("run a call", why);
            }
            return Ok(());
        }
        let foreign = |name| operands.get(name).is_some_and(|view| view.memory().is_foreign());
        match operands.names().find(|name| foreign(*name)) {
            None => Ok(()),
            Some(name) => {
                let why =
                    "is memory of another library, which a graph cannot keep: copy it to a CudaTensor".to_string();
                Err(Error::Operand { name, why })
            }
        }
    }

    /// Enqueues checked operands with the workspace of this queue, or that of a schedule.
    pub(crate) fn enqueue(
        &mut self,
        ready: &Arc<Ready>,
        operands: &Operands<'_, Cuda>,
        schedule: Option<&mut Schedule>,
    ) -> Result<(), Error> {
        if let Some(schedule) = schedule {
            let memory = schedule.memory(self, ready)?;
            return ready.enqueue_operands(&self.stream, Steps::AfterSchedule, operands, Some(memory));
        }
        let bytes = ready.workspace_bytes();
        let workspace = match bytes {
            0 => None,
            _ => Some(Queue::workspace(&self.stream, &mut self.workspace, bytes)?),
        };
        ready.enqueue_operands(&self.stream, Steps::All, operands, workspace)
    }

    /// So many bytes at a multiple of 256, which only work in this queue uses.
    fn workspace<'q>(
        stream: &Stream,
        workspace: &'q mut Option<DeviceBuffer>,
        bytes: u64,
    ) -> Result<DeviceSlice<'q>, CudaError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let kept = workspace.take().filter(|kept| kept.len() >= bytes);
        let kept = kept.map_or_else(|| DeviceBuffer::new(stream.context(), bytes), Ok)?;
        Ok(workspace.insert(kept).as_slice())
    }
}

fn cannot<T>(what: &'static str, why: &'static str) -> Result<T, Error> {
    Err(Error::Recording { what, why })
}

fn tensor_error(message: String) -> Error {
    let tensor = "the tensor";
    Error::Problem(ProblemError::Tensor { tensor, message })
}

fn too_few(given: usize, needed: usize) -> Error {
    tensor_error(format!(
        "{given} bytes were given; the tensor has {needed}, gaps included"
    ))
}

impl Attention {
    pub(crate) fn on_cuda(&self) -> Result<&CudaAttention, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Err(Error::NotOnCuda),
            Backend::Cuda(cuda) => Ok(cuda),
        }
    }
}
