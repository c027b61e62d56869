//! The verbs of [`Attention`]: `prepare`, `run`, `run_on`, and those that allocate what they return.

#[cfg(feature = "cpu")]
use flashcore_problem::AnyTask;
use flashcore_problem::{
    Carried, DType, Direction, Gradients, Host, Name, Operands, Problem, ProblemError, Task, Tensor, TensorSpec,
    TensorView,
};
#[cfg(feature = "cuda")]
use flashcore_problem::{View, ViewMut};

use crate::attention::Backend;
use crate::prepared::By;
use crate::{Attention, Error, Prepared};
#[cfg(feature = "cuda")]
use crate::{Cuda, CudaTensor, Queue, memory::on_device};

/// What [`Attention::forward`] computes, and [`Attention::backward`] reads: tensors in host memory, or on a GPU.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output<T = Tensor> {
    /// `[batch, seq_len_q, num_heads, head_dim_v]` of [`Problem::out_dtype`], in the problem's
    /// layout of O.
    pub out: T,
    /// The log-sum-exp of each row, natural logarithm, f32 `[batch, num_heads, seq_len_q]` (of
    /// packed query rows `[num_heads, total]`), where the problem asks for it
    /// ([`ProblemBuilder::return_lse`](crate::ProblemBuilder::return_lse)). A tensor has four dimensions, so the first
    /// ones are 1: an element is `lse.view().get(0, batch, head, row)`.
    pub lse: Option<T>,
}

/// A tensor of a spec, all of its bytes `fill`.
pub(crate) fn filled(spec: &TensorSpec, fill: u8) -> Tensor {
    let dtype = spec.element.float().unwrap_or(DType::F32); // no task returns integers by these calls
    Tensor::filled(dtype, spec.layout, fill)
}

/// The spec of a tensor that a problem of its direction has.
fn spec(tensors: &[TensorSpec], name: Name) -> Result<&TensorSpec, Error> {
    let why = || "is no tensor of this problem".to_string();
    let found = tensors.iter().find(|spec| spec.name == name);
    found.ok_or_else(|| Error::Operand { name, why: why() })
}

/// What verbs of tensors that carry nothing give.
const GIVEN: [Name; 9] = {
    use Name::{Dk, Dout, Dq, Dv, K, Lse, Out, Q, V};
    [Q, K, V, Out, Lse, Dout, Dq, Dk, Dv]
};

/// Refuses an output without log-sum-exp.
fn lse_of<T>(output: &Output<T>) -> Result<&T, Error> {
    let call = ".return_lse(true)";
    let missing = ProblemError::Missing { field: "lse", call };
    Ok(output.lse.as_ref().ok_or(missing)?)
}

impl Attention {
    /// Chooses the kernel for a task, compiles it and copies its tables to the device, so that no later call waits for
    /// a compiler, and calls can be [recorded](crate::Queue::recording). The CPU has nothing to compile.
    ///
    /// ```
    /// use flashcore::{Attention, Device, Problem};
    /// let problem = Problem::builder().heads(8, 8).seq_len(512).head_dim(64).build()?;
    /// let prepared = Attention::new(Device::best())?.prepare(&problem)?;
    /// println!("{}: {}", prepared.kernel(), prepared.why());
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// A task that is invalid or that no kernel serves, and failures of the compiler.
    pub fn prepare(&self, task: &impl Task) -> Result<Prepared, Error> {
        self.prepare_aligned(task, 16)
    }

    /// The same for tensors of another library that start at multiples of so many bytes.
    ///
    /// # Errors
    /// As [`Attention::prepare`].
    #[doc(hidden)]
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub fn prepare_aligned(&self, task: &impl Task, alignment: u32) -> Result<Prepared, Error> {
        let task = task.kind();
        task.check()?;
        let by = match (&self.backend, task) {
            #[cfg(feature = "cpu")]
            (Backend::Cpu(config), AnyTask::Problem(problem)) => By::Cpu(Some(self.choose_cpu(problem, *config))),
            #[cfg(feature = "cpu")]
            (Backend::Cpu(_), AnyTask::Append(_) | AnyTask::Combine(_)) => By::Cpu(None),
            #[cfg(feature = "cuda")]
            (Backend::Cuda(cuda), _) => By::Cuda(cuda.ready(task, alignment, &self.plans)?),
        };
        Ok(Prepared {
            task: task.into(),
            made_by: self.number,
            by,
        })
    }

    /// Runs a task on operands in host memory: attention, its gradients, an append, or a merge. [`Task::tensors`] lists
    /// the operands. What is written keeps its bytes in gaps and in rows of no sequence. On a GPU this copies the
    /// operands there and what is written back; for operands already there use [`Attention::run_on`].
    ///
    /// ```
    /// use flashcore::{Attention, DType, Device, KvLengths, Name, Operands, Problem, QLengths, View, ViewMut};
    ///
    /// // Sequence 0 has a prompt of 3 rows, sequence 1 decodes a row; K and V lie in pages of 4 keys.
    /// let problem = Problem::builder().batch(2).heads(2, 1).head_dim(64).dtype(DType::F32).causal()
    ///     .seq_len_q(3).q_lengths(QLengths::Packed { total: 4, used: false })
    ///     .seq_len_kv(8).kv_lengths(KvLengths::Paged { page_size: 4, pages: 5, max_pages: 2 })
    ///     .build()?;
    /// let (q, cache, mut out) = ([1f32; 4 * 2 * 64], [1f32; 5 * 4 * 64], [0f32; 4 * 2 * 64]);
    /// let q = View::from_slice([1, 4, 2, 64], &q); // [1, total, heads, head_dim]
    /// let cache = View::from_slice([5, 4, 1, 64], &cache); // [pages, page_size, kv_heads, head_dim]
    /// let operands = Operands::forward(q, cache, cache, ViewMut::from_slice([1, 4, 2, 64], &mut out))
    ///     .with(Name::CuSeqlensQ, &[0, 3, 4])
    ///     .with(Name::SequsedK, &[3, 7])
    ///     .with(Name::BlockTable, &[4, -1, 0, 2]); // [batch, max_pages]
    /// Attention::new(Device::cpu())?.run(&problem, operands)?;
    /// assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6)); // means of ones
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// An append writes new rows of K and V into a cache:
    ///
    /// ```
    /// use flashcore::{Append, Attention, DType, Device, Name, Operands, View, ViewMut};
    ///
    /// // Sequence 0 has 3 keys and gets one; sequence 1 has none. Pages of 2 keys: page 4 has keys 2 and 3.
    /// let (new, pages) = ([2, 1, 1, 64].into(), [5, 2, 1, 64].into());
    /// let append = Append { seqused_k: true, ..Append::to_pages(DType::F32, [new, new], [pages, pages], 2) };
    /// let (rows, mut k, mut v, mut keys) = ([1f32; 128], [0f32; 640], [0f32; 640], [0; 2]);
    /// let rows = View::from_slice(new, &rows);
    /// let caches = [ViewMut::from_slice(pages, &mut k), ViewMut::from_slice(pages, &mut v)];
    /// let [k_cache, v_cache] = caches;
    /// let operands = Operands::append(rows, rows, k_cache, v_cache)
    ///     .with(Name::CacheSeqlens, &[3, 0])
    ///     .with(Name::BlockTable, &[1, 4, 0, -1]) // [batch, max_pages]
    ///     .with_mut(Name::SequsedK, &mut keys);
    /// Attention::new(Device::cpu())?.run(&append, operands)?;
    /// assert_eq!((k[9 * 64], k[0], keys), (1.0, 1.0, [4, 1]));
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// Operands that are not the task's ([`Error::Operand`]), values that contradict it ([`Error::Problem`]), a task
    /// that no kernel serves, or a failure of the device. Nothing is written if operands or values are refused.
    pub fn run(&self, task: &impl Task, operands: Operands<'_, Host>) -> Result<(), Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(config) => {
                let options = flashcore_cpu::Options {
                    config: match (self.prepared_here(task).map(|prepared| &prepared.by), task.kind()) {
                        (Some(By::Cpu(Some(choice))), _) => Some(choice.config),
                        (_, AnyTask::Problem(problem)) => Some(self.cpu_levers(problem, *config).0),
                        (_, AnyTask::Append(_) | AnyTask::Combine(_)) => None,
                    },
                    ..flashcore_cpu::Options::default()
                };
                Ok(flashcore_cpu::run(&options, &task.kind(), operands)?)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => self.run_from_host(task, operands),
        }
    }

    /// What this `Attention` prepared, if the task is that.
    fn prepared_here<'t>(&self, task: &'t impl Task) -> Option<&'t Prepared> {
        let prepared = task.prepared()?.downcast_ref::<Prepared>()?;
        (prepared.made_by == self.number).then_some(prepared)
    }

    /// Computes attention on tensors in host memory, [`Tensor`]s or [`TensorView`]s, and returns the output. Scales,
    /// sinks and slopes that the tensors carry count. Lengths that differ have values, which [`Attention::run`] takes.
    ///
    /// ```
    /// use flashcore::{Attention, Device, Problem, Tensor, f16};
    ///
    /// let problem = Problem::builder().heads(2, 2).seq_len(16).head_dim(64).build()?;
    /// let ones = Tensor::from_slice([1, 16, 2, 64], &[f16::ONE; 16 * 2 * 64])?;
    /// let output = Attention::new(Device::cpu())?.forward(&problem, &ones, &ones, &ones)?;
    /// assert_eq!(output.out.as_slice::<f16>()?, ones.as_slice::<f16>()?); // a mean of ones
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::run`], and a backward problem.
    pub fn forward<'a>(
        &self,
        problem: &Problem,
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
    ) -> Result<Output, Error> {
        problem.check_direction(Direction::Forward)?;
        let carried = Carried::of(problem, [q.into(), k.into(), v.into()])?;
        let tensors = problem.tensors();
        let mut out = filled(spec(&tensors, Name::Out)?, 0);
        let mut lse = spec(&tensors, Name::Lse).ok().map(|spec| filled(spec, 0));
        let mut operands = carried.operands().with_mut(Name::Out, &mut out);
        if let Some(lse) = &mut lse {
            operands = operands.with_mut(Name::Lse, lse);
        }
        self.run(problem, operands).map_err(|error| {
            let given: Vec<Name> = carried.operands().names().chain(GIVEN).collect();
            error.of_verb(problem, &given, ["forward", "run"])
        })?;
        Ok(Output { out, lse })
    }

    /// The gradients of Q, K and V from that of O, on tensors in host memory of equal lengths (for others:
    /// [`Attention::run`]).
    ///
    /// `problem` and `output` are those of the forward pass, which returned the log-sum-exp
    /// ([`ProblemBuilder::return_lse`](crate::ProblemBuilder::return_lse)). Gradients have the dtype of
    /// Q, K and V, and their layouts unless [`Problem::gradient_layouts`] has others. Those of K and V
    /// are summed over the query heads that share a K/V head. The last bits of gradients may differ
    /// from run to run, unless the problem is
    /// [`deterministic`](crate::ProblemBuilder::deterministic).
    ///
    /// ```
    /// use flashcore::{Attention, DType, Device, Problem, Tensor};
    ///
    /// let problem = Problem::builder().heads(2, 1).seq_len(16).head_dim(64).dtype(DType::F32);
    /// let problem = problem.return_lse(true).build()?;
    /// let ones = |heads| Tensor::from_slice([1, 16, heads, 64], &vec![1f32; 16 * heads * 64]);
    /// let (q, k, dout) = (ones(2)?, ones(1)?, ones(2)?);
    /// let attention = Attention::new(Device::cpu())?;
    /// let output = attention.forward(&problem, &q, &k, &k)?;
    /// let gradients = attention.backward(&problem, &q, &k, &k, &output, &dout)?;
    /// // Each of 16 keys has a sixteenth of 16 rows of two heads.
    /// assert!(gradients.dv.as_slice::<f32>()?.iter().all(|x| (x - 2.0).abs() < 1e-5));
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::run`], an output without log-sum-exp, and a problem that has no backward pass
    /// ([`Problem::backward`]).
    pub fn backward<'a>(
        &self,
        problem: &Problem,
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
        output: &Output,
        dout: impl Into<TensorView<'a>>,
    ) -> Result<Gradients<Tensor>, Error> {
        let (problem, lse) = (problem.backward()?, lse_of(output)?);
        let tensors = problem.tensors();
        let written = |name| Ok::<_, Error>(filled(spec(&tensors, name)?, 0));
        let (mut dq, mut dk, mut dv) = (written(Name::Dq)?, written(Name::Dk)?, written(Name::Dv)?);
        let inputs: [TensorView<'_>; 3] = [q.into(), k.into(), v.into()];
        problem.check_head_values(&inputs[0])?;
        let inputs = inputs.map(Into::into);
        let gradients = [(&mut dq).into(), (&mut dk).into(), (&mut dv).into()];
        let operands = Operands::backward(inputs, [(&output.out).into(), lse.into()], dout.into(), gradients);
        self.run(&problem, operands)
            .map_err(|error| error.of_verb(&problem, &GIVEN, ["backward", "run"]))?;
        Ok(Gradients { dq, dk, dv })
    }
}

#[cfg(feature = "cuda")]
impl Attention {
    /// Puts a task on operands in device memory into a queue, and returns at once: attention, its gradients, an append,
    /// or a merge. [`Task::tensors`] lists the operands.
    ///
    /// It waits for nothing (unless it [checks](crate::Options::checks)), and allocates only where the queue's
    /// workspace grows. Values such as lengths are read when the work runs, so a graph takes what they hold at each
    /// launch; those above the task's bounds are cut to them, which leaves rows unwritten, and pages outside the cache
    /// count as zeros. Neither is an error unless [`Options::checks`](crate::Options::checks) asks for it. A fault
    /// shows at the queue's next synchronisation.
    ///
    /// ```no_run
    /// use flashcore::{Attention, Device, Error, KvLengths, Name, Operands, Problem, Queue, Tensor, View};
    ///
    /// fn main() -> Result<(), Error> {
    ///     let device = Device::cuda(0)?;
    ///     let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
    ///     let rows = |heads, rows| Tensor::from_fn(flashcore::DType::BF16, [2, rows, heads, 64].into(), |_, s, _, _| s as f32);
    ///     let (q, cache) = (queue.upload(&rows(8, 1))?, queue.upload(&rows(2, 512))?);
    ///     let problem = Problem::of(&q, &cache, &cache).kv_lengths(KvLengths::Cache).build()?;
    ///     let (mut out, keys) = (queue.upload(&rows(8, 1))?, queue.upload(&[512, 17])?);
    ///     let operands = Operands::forward(&q, &cache, &cache, &mut out).with(Name::SequsedK, &keys);
    ///     attention.run_on(&mut queue, &problem, operands)?;
    ///     println!("{:?}", queue.download(&out)?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Attention::run`], without values; a queue, a [schedule](Queue::schedule) or operands of another device; and
    /// memory of another library in a queue that [records](Queue::recording).
    pub fn run_on(&self, queue: &mut Queue, task: &impl Task, mut operands: Operands<'_, Cuda>) -> Result<(), Error> {
        let cuda = self.on_cuda()?;
        let ready = self.ready(task, &mut operands)?;
        let schedule = operands.take_schedule();
        queue.check(&cuda.context, &operands)?;
        queue.enqueue(&ready, &operands, schedule)
    }

    /// What a call of a task needs, whose operands are right.
    fn ready(
        &self,
        task: &impl Task,
        operands: &mut Operands<'_, Cuda>,
    ) -> Result<std::sync::Arc<crate::cuda::Ready>, Error> {
        let (cuda, alignment, kind) = (self.on_cuda()?, operands.alignment(), task.kind());
        let prepared = self.prepared_here(task).and_then(Prepared::ready);
        if let (Some(ready), 16) = (prepared, alignment) {
            operands.check(&ready.tensors)?;
            return Ok(ready.clone());
        }
        if let Some(ready) = cuda.found(kind, alignment) {
            operands.check(&ready.tensors)?;
            return Ok(ready);
        }
        kind.check()?;
        operands.check(&kind.tensors())?;
        cuda.ready(kind, alignment, &self.plans)
    }

    /// A task on operands in host memory: all travel there, and what is written back. Whole extents do, so that gaps
    /// and rows of no sequence come back as they were.
    fn run_from_host(&self, task: &impl Task, mut operands: Operands<'_, Host>) -> Result<(), Error> {
        let kind = task.kind();
        kind.check()?;
        let tensors = kind.tensors();
        operands.check(&tensors)?;
        kind.check_values(&operands)?;
        let mut queue = Queue::new(&self.device())?;
        let mut uploaded = Vec::with_capacity(tensors.len());
        for spec in &tensors {
            if let Some(view) = operands.get(spec.name) {
                uploaded.push((*spec, queue.upload(view)?));
            }
        }
        self.run_on(&mut queue, task, on_device(&mut uploaded))?;
        for (spec, tensor) in uploaded.iter().filter(|(spec, _)| spec.is_written()) {
            if let Some(to) = operands.take_mut(spec.name) {
                let to = &mut to.into_memory()[..spec.bytes() as usize];
                tensor.as_slice().copy_to_host(queue.stream(), to)?;
            }
        }
        queue.synchronize()
    }

    /// Puts attention on tensors in device memory into a queue, and returns what it will have written there, at once.
    /// Problems with scales, sinks, slopes or lengths have more operands, which [`Attention::run_on`] takes.
    ///
    /// ```no_run
    /// use flashcore::{Attention, DType, Device, Error, Problem, Queue, Tensor};
    ///
    /// fn main() -> Result<(), Error> {
    ///     let device = Device::cuda(0)?;
    ///     let (attention, mut queue) = (Attention::new(device.clone())?, Queue::new(&device)?);
    ///     let rows = |heads| Tensor::from_fn(DType::F16, [2, 512, heads, 64].into(), |b, s, h, d| ((b + s + h + d) as f32).sin());
    ///     let (q, k, v) = (queue.upload(&rows(8))?, queue.upload(&rows(2))?, queue.upload(&rows(2))?);
    ///     let problem = Problem::of(&q, &k, &v).causal().build()?;
    ///     let output = attention.forward_on(&mut queue, &problem, &q, &k, &v)?;
    ///     println!("{}", queue.download(&output.out)?.view().get(0, 0, 0, 0));
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Attention::run_on`], and a backward problem.
    pub fn forward_on<'a>(
        &self,
        queue: &mut Queue,
        problem: &Problem,
        q: impl Into<View<'a, Cuda>>,
        k: impl Into<View<'a, Cuda>>,
        v: impl Into<View<'a, Cuda>>,
    ) -> Result<Output<CudaTensor>, Error> {
        problem.check_direction(Direction::Forward)?;
        let tensors = problem.tensors();
        let mut out = queue.empty(spec(&tensors, Name::Out)?)?;
        let mut lse = spec(&tensors, Name::Lse)
            .ok()
            .map(|spec| queue.empty(spec))
            .transpose()?;
        let [q, k, v] = [q.into(), k.into(), v.into()];
        let mut operands = Operands::forward(q.reborrow(), k.reborrow(), v.reborrow(), &mut out);
        if let Some(lse) = &mut lse {
            operands = operands.with_mut(Name::Lse, lse);
        }
        self.run_on(queue, problem, operands)
            .map_err(|error| error.of_verb(problem, &GIVEN, ["forward_on", "run_on"]))?;
        Ok(Output { out, lse })
    }

    /// Puts a backward pass on tensors in device memory into a queue, and returns the gradients that it will have
    /// written there, at once. Else as [`Attention::backward`]; `problem` is the forward one, Q, K and V an array.
    ///
    /// # Errors
    /// As [`Attention::run_on`], an output without log-sum-exp, and a problem that has no backward pass.
    pub fn backward_on<'a>(
        &self,
        queue: &mut Queue,
        problem: &Problem,
        [q, k, v]: [&'a CudaTensor; 3],
        output: &'a Output<CudaTensor>,
        dout: &'a CudaTensor,
    ) -> Result<Gradients<CudaTensor>, Error> {
        let (problem, lse) = (problem.backward()?, lse_of(output)?);
        let tensors = problem.tensors();
        let mut empty = |name| queue.empty(spec(&tensors, name)?);
        let (mut dq, mut dk, mut dv) = (empty(Name::Dq)?, empty(Name::Dk)?, empty(Name::Dv)?);
        let gradients: [ViewMut<'_, Cuda>; 3] = [(&mut dq).into(), (&mut dk).into(), (&mut dv).into()];
        let read = [(&output.out).into(), lse.into()];
        let operands = Operands::backward([q.into(), k.into(), v.into()], read, dout, gradients);
        self.run_on(queue, &problem, operands)
            .map_err(|error| error.of_verb(&problem, &GIVEN, ["backward_on", "run_on"]))?;
        Ok(Gradients { dq, dk, dv })
    }

    /// Enqueues a task on a stream and operands that may be another library's
    /// ([`DeviceSlice::from_raw`](crate::cuda::DeviceSlice::from_raw)). It allocates nothing and waits for nothing:
    /// `allocate` is asked for the address of so many bytes if the plan needs a workspace.
    ///
    /// ```no_run
    /// use flashcore::unstable::cuda::{DeviceSlice, Stream};
    /// use flashcore::{Attention, Cuda, Device, DeviceSliceMut, Error, Operands, Problem, TensorSpec, Task, View, ViewMut};
    ///
    /// /// Enqueues attention on another library's tensors and stream, all of device 0. `allocate` takes bytes.
    /// fn enqueue(attention: &Attention, problem: &Problem, pointers: [u64; 4], stream: usize,
    ///     allocate: impl FnOnce(usize) -> Option<u64>) -> Result<(), Error>
    /// {
    ///     let Device::Cuda(context) = attention.device() else { return Ok(()) };
    ///     // SAFETY: the caller keeps tensors, workspace and stream until the work is done, and uses the workspace for
    ///     // nothing else.
    ///     unsafe {
    ///         let mut operands = Operands::<Cuda>::new();
    ///         for (TensorSpec { name, element, layout, .. }, pointer) in problem.tensors().into_iter().zip(pointers) {
    ///             let bytes = layout.span() * element.size_bytes();
    ///             let memory = DeviceSlice::from_raw(&context, pointer, bytes);
    ///             operands = match name {
    ///                 flashcore::Name::Out => operands.with_mut(name, ViewMut::new(element, layout, DeviceSliceMut::new(memory))),
    ///                 _ => operands.with(name, View::new(element, layout, memory)),
    ///             };
    ///         }
    ///         let stream = Stream::from_raw(&context, stream)?;
    ///         attention.run_foreign(&stream, problem, operands, allocate)
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Attention::run_on`]; a schedule of a queue; a workspace that is not there.
    ///
    /// # Safety
    /// Until the work of this call has ended, and all launches of a graph that captures it have:
    /// - the operands and the workspace stay allocated (those of a [`CudaTensor`] do, unless another library captures
    ///   the stream);
    /// - the workspace is memory of the context's device at a multiple of 16 bytes, and nothing but work of this
    ///   stream, in its order, uses it: kernels trust what they wrote there, and else touch any memory, or never end.
    #[allow(unsafe_code)] // the promise is the caller's
    pub unsafe fn run_foreign(
        &self,
        stream: &flashcore_cuda::Stream,
        task: &impl Task,
        mut operands: Operands<'_, Cuda>,
        allocate: impl FnOnce(usize) -> Option<u64>,
    ) -> Result<(), Error> {
        let ready = self.ready(task, &mut operands)?;
        if let Some(schedule) = operands.take_schedule() {
            let memory = schedule.foreign(&ready)?;
            return ready.enqueue_operands(stream, crate::cuda::Steps::AfterSchedule, &operands, Some(memory));
        }
        let bytes = ready.workspace_bytes();
        let mut workspace = None;
        if bytes > 0 {
            let taken = usize::try_from(bytes)
                .ok()
                .and_then(|bytes| Some((allocate(bytes)?, bytes)));
            let (address, bytes) = taken.ok_or(Error::NoWorkspace { bytes })?;
            // SAFETY: the caller's promise.
            workspace = Some(unsafe { flashcore_cuda::DeviceSlice::from_raw(stream.context(), address, bytes) });
        }
        ready.enqueue_operands(stream, crate::cuda::Steps::All, &operands, workspace)
    }
}
