//! Where steps run: a captured graph of a GPU, or calls of the CPU.

use std::time::Instant;

use flashcore::cuda::{Context, DeviceBuffer, Graph};
use flashcore::{
    Append, AppendTensors, Attention, DeviceAppend, DeviceRotary, DeviceTensors, Error, Lengths, Problem, Queue,
    RotaryTensors, Tensor,
};
use flashcore_problem::POISON;

use super::server::Step;
use super::{BATCH, MAX_PAGES};

pub(super) enum Engine<'a> {
    Gpu(Box<Gpu>),
    Host(Box<Host<'a>>),
}

/// Caches in host memory, and Q of the last step, rotated.
pub(super) struct Host<'a> {
    attention: &'a Attention,
    problem: Problem,
    append: Append,
    tables: &'a [Tensor; 2],
    pub(super) q: Tensor,
    pub(super) caches: [Tensor; 2],
}

pub(super) struct Gpu {
    queue: Queue,
    problem: Problem,
    /// Q and the new rows of K and V.
    new: [DeviceBuffer; 3],
    caches: [DeviceBuffer; 2],
    starts: DeviceBuffer,
    before: DeviceBuffer,
    after: DeviceBuffer,
    table: DeviceBuffer,
    out: DeviceBuffer,
    graph: Graph,
    /// What the graph's kernels use besides.
    _kept: Vec<DeviceBuffer>,
    launches: u32,
    launched_us: f64,
}

impl<'a> Engine<'a> {
    pub(super) fn new(
        attention: &'a Attention,
        problem: &Problem,
        append: &Append,
        tables: &'a [Tensor; 2],
    ) -> Result<Engine<'a>, Error> {
        match attention.device().context() {
            Some(context) => Ok(Engine::Gpu(Box::new(Gpu::new(
                attention, context, problem, append, tables,
            )?))),
            None => Ok(Engine::Host(Box::new(Host {
                attention,
                problem: problem.clone(),
                append: *append,
                tables,
                q: Tensor::poisoned(problem.dtype(), *problem.q_layout()),
                caches: [append.k_cache, append.v_cache].map(|layout| Tensor::poisoned(problem.dtype(), layout)),
            }))),
        }
    }

    /// Appends and attends: the output over poison, and the keys of each sequence.
    pub(super) fn step(&mut self, step: &Step, new: &[Tensor; 3]) -> Result<(Tensor, Vec<i32>), Error> {
        match self {
            Engine::Gpu(gpu) => gpu.step(step, new),
            Engine::Host(host) => {
                let after = host.append(step, new)?;
                let mut out = Tensor::poisoned(host.problem.out_dtype(), *host.problem.o_layout());
                let values = Lengths {
                    cu_seqlens_q: Some(&step.starts[..]),
                    seqused_k: Some(&after[..]),
                    block_table: Some(&step.table[..]),
                    ..Lengths::default()
                };
                let [k, v] = &host.caches;
                let inputs = [host.q.view(), k.view(), v.view()];
                host.attention
                    .forward_lengths(&host.problem, inputs, &values, &mut out, None)?;
                Ok((out, after))
            }
        }
    }

    /// Appends only, on the host.
    pub(super) fn append(&mut self, step: &Step, new: &[Tensor; 3]) -> Result<(), Error> {
        match self {
            Engine::Gpu(_) => Ok(()),
            Engine::Host(host) => host.append(step, new).map(drop),
        }
    }

    pub(super) fn caches(&self) -> Result<[Tensor; 2], Error> {
        match self {
            Engine::Host(host) => Ok(host.caches.clone()),
            Engine::Gpu(gpu) => {
                let mut caches =
                    [gpu.problem.k_layout(), gpu.problem.v_layout()].map(|l| Tensor::poisoned(gpu.problem.dtype(), *l));
                for (from, to) in gpu.caches.iter().zip(&mut caches) {
                    from.as_slice().copy_to_host(gpu.queue.stream(), to.bytes_mut())?;
                }
                Ok(caches)
            }
        }
    }

    /// Free memory of the device, after all work on it.
    pub(super) fn free_memory(&self) -> Result<Option<u64>, Error> {
        match self {
            Engine::Host(_) => Ok(None),
            Engine::Gpu(gpu) => {
                gpu.queue.synchronize()?;
                Ok(Some(gpu.queue.stream().context().memory()?.0))
            }
        }
    }

    /// What the host took for a launch of the graph on average, µs.
    pub(super) fn launch_us(&self) -> Option<f64> {
        match self {
            Engine::Gpu(gpu) if gpu.launches > 0 => Some(gpu.launched_us / f64::from(gpu.launches)),
            _ => None,
        }
    }
}

impl Host<'_> {
    fn append(&mut self, step: &Step, [q, k, v]: &[Tensor; 3]) -> Result<Vec<i32>, Error> {
        self.q = q.clone();
        let mut after = vec![0; BATCH];
        let [k_cache, v_cache] = &mut self.caches;
        let mut tensors = AppendTensors::new([k.view(), v.view()], [k_cache.view_mut(), v_cache.view_mut()]);
        tensors.values.cu_seqlens_k_new = Some(&step.starts);
        tensors.values.cu_seqlens_q = Some(&step.starts);
        tensors.values.cache_seqlens = Some(&step.before);
        tensors.values.block_table = Some(&step.table);
        tensors.seqused_k = Some(&mut after);
        let [cos, sin] = self.tables;
        tensors.rotary = Some(RotaryTensors::in_place(cos.view(), sin.view(), self.q.view_mut()));
        self.attention.append(&self.append, tensors)?;
        Ok(after)
    }
}

impl Gpu {
    fn new(
        attention: &Attention,
        context: &Context,
        problem: &Problem,
        append: &Append,
        tables: &[Tensor; 2],
    ) -> Result<Gpu, Error> {
        attention.warmup(std::slice::from_ref(problem))?; // so that nothing is compiled in the capture
        attention.warmup_append(std::slice::from_ref(append))?;
        let mut queue = Queue::new(&attention.device())?;
        let poisoned = |bytes: usize| -> Result<DeviceBuffer, Error> {
            let buffer = DeviceBuffer::new(context, bytes)?;
            buffer.as_slice().fill(queue.stream(), POISON)?;
            Ok(buffer)
        };
        let size = problem.dtype().size_bytes();
        let [q, k, v] = [problem.q_layout(), &append.k_new, &append.v_new].map(|layout| poisoned(layout.span() * size));
        let [k_cache, v_cache] = [append.k_cache, append.v_cache].map(|layout| poisoned(layout.span() * size));
        let (new, caches) = ([q?, k?, v?], [k_cache?, v_cache?]);
        let (starts, before, after) = (poisoned(4 * (BATCH + 1))?, poisoned(4 * BATCH)?, poisoned(4 * BATCH)?);
        let (table, out) = (
            poisoned(4 * BATCH * MAX_PAGES)?,
            poisoned(problem.o_layout().span() * size)?,
        );
        let [cos, sin] = tables
            .each_ref()
            .map(|table| DeviceBuffer::from_host(queue.stream(), table.bytes()));
        let (cos, sin) = (cos?, sin?);
        let [q, k, v] = new.each_ref().map(DeviceBuffer::as_slice);
        let [k_cache, v_cache] = caches.each_ref().map(DeviceBuffer::as_slice);
        let mut rows = DeviceAppend::new([k, v], [k_cache, v_cache]);
        rows.values.cu_seqlens_k_new = Some(starts.as_slice());
        rows.values.cu_seqlens_q = Some(starts.as_slice());
        rows.values.cache_seqlens = Some(before.as_slice());
        rows.values.block_table = Some(table.as_slice());
        rows.seqused_k = Some(after.as_slice());
        rows.rotary = Some(DeviceRotary::in_place(cos.as_slice(), sin.as_slice(), q));
        let mut tensors = DeviceTensors::new(q, k_cache, v_cache, out.as_slice());
        tensors.lengths = Lengths {
            cu_seqlens_q: Some(starts.as_slice()),
            seqused_k: Some(after.as_slice()),
            block_table: Some(table.as_slice()),
            ..Lengths::default()
        };
        let graph = queue.capture(|queue| {
            attention.append_on(queue, append, &rows)?;
            attention.forward_on(queue, problem, &tensors)
        })?;
        graph.upload(queue.stream())?;
        Ok(Gpu {
            queue,
            problem: problem.clone(),
            new,
            caches,
            starts,
            before,
            after,
            table,
            out,
            graph,
            _kept: vec![cos, sin],
            launches: 0,
            launched_us: 0.0,
        })
    }

    fn step(&mut self, step: &Step, new: &[Tensor; 3]) -> Result<(Tensor, Vec<i32>), Error> {
        for (to, from) in self.new.iter().zip(new) {
            to.as_slice().copy_from_host(self.queue.stream(), from.bytes())?;
        }
        let values = [&step.starts, &step.before, &step.table];
        for (to, from) in [&self.starts, &self.before, &self.table].into_iter().zip(values) {
            to.as_slice()
                .copy_from_host(self.queue.stream(), bytemuck::cast_slice(from))?;
        }
        self.out.as_slice().fill(self.queue.stream(), POISON)?;
        let began = Instant::now();
        self.graph.launch(self.queue.stream())?;
        self.launched_us += began.elapsed().as_secs_f64() * 1e6;
        self.launches += 1;
        let mut out = Tensor::poisoned(self.problem.out_dtype(), *self.problem.o_layout());
        self.out.as_slice().copy_to_host(self.queue.stream(), out.bytes_mut())?;
        Ok((out, self.after.to_vec::<i32>(self.queue.stream())?))
    }
}
