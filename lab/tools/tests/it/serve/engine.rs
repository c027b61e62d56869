//! Where steps run: a captured graph of a GPU, or calls of the CPU.

use std::time::Instant;

use flashcore::{
    Append, Attention, CudaTensor, Error, Graph, Name, Operands, Problem, Queue, Task, Tensor, TensorSpec,
};
use flashcore_problem::POISON;

use super::BATCH;
use super::server::Step;

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
    /// Q and the new rows of K and V.
    new: [CudaTensor; 3],
    caches: [CudaTensor; 2],
    starts: CudaTensor,
    before: CudaTensor,
    after: CudaTensor,
    table: CudaTensor,
    out: CudaTensor,
    graph: Graph,
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
            Some(_) => Ok(Engine::Gpu(Box::new(Gpu::new(attention, problem, append, tables)?))),
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
                let [k, v] = &host.caches;
                let operands = Operands::forward(&host.q, k, v, &mut out)
                    .with(Name::CuSeqlensQ, &step.starts)
                    .with(Name::SequsedK, &after)
                    .with(Name::BlockTable, &step.table);
                host.attention.run(&host.problem, operands)?;
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

    pub(super) fn caches(&mut self) -> Result<[Tensor; 2], Error> {
        match self {
            Engine::Host(host) => Ok(host.caches.clone()),
            Engine::Gpu(gpu) => {
                let [k, v] = &gpu.caches;
                Ok([gpu.queue.download(k)?, gpu.queue.download(v)?])
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
        let ([k_cache, v_cache], [cos, sin]) = (&mut self.caches, self.tables);
        let operands = Operands::append(k, v, k_cache, v_cache)
            .with(Name::CuSeqlensKNew, &step.starts)
            .with(Name::CuSeqlensQ, &step.starts)
            .with(Name::CacheSeqlens, &step.before)
            .with(Name::BlockTable, &step.table)
            .with_mut(Name::SequsedK, &mut after)
            .with(Name::RotaryCos, cos)
            .with(Name::RotarySin, sin)
            .with_mut(Name::QOut, &mut self.q);
        self.attention.run(&self.append, operands)?;
        Ok(after)
    }
}

impl Gpu {
    fn new(attention: &Attention, problem: &Problem, append: &Append, tables: &[Tensor; 2]) -> Result<Gpu, Error> {
        // So that nothing is compiled in the capture.
        let (prepared, append_rows) = (attention.prepare(problem)?, attention.prepare(append)?);
        let device = attention.device();
        let mut queue = Queue::new(&device)?;
        let specs: Vec<TensorSpec> = problem.tensors().into_iter().chain(append.tensors()).collect();
        let mut poisoned = |name: Name| {
            let spec = specs.iter().find(|spec| spec.name == name);
            let tensor = queue.empty(spec.ok_or_else(|| Error::Operand {
                name,
                why: "is of neither task".to_string(),
            })?)?;
            tensor.as_slice().fill(queue.stream(), POISON)?;
            Ok::<CudaTensor, Error>(tensor)
        };
        let mut new = [poisoned(Name::Q)?, poisoned(Name::KNew)?, poisoned(Name::VNew)?];
        let mut caches = [poisoned(Name::KCache)?, poisoned(Name::VCache)?];
        let (starts, before) = (poisoned(Name::CuSeqlensQ)?, poisoned(Name::CacheSeqlens)?);
        let (mut after, table, mut out) = (
            poisoned(Name::SequsedK)?,
            poisoned(Name::BlockTable)?,
            poisoned(Name::Out)?,
        );
        let (cos, sin) = (queue.upload(&tables[0])?, queue.upload(&tables[1])?);
        let mut recording = Queue::recording(&device)?;
        let ([q, k, v], [k_cache, v_cache]) = (&mut new, &mut caches);
        let rows = Operands::append(&*k, &*v, &mut *k_cache, &mut *v_cache)
            .with(Name::CuSeqlensKNew, &starts)
            .with(Name::CuSeqlensQ, &starts)
            .with(Name::CacheSeqlens, &before)
            .with(Name::BlockTable, &table)
            .with_mut(Name::SequsedK, &mut after)
            .with(Name::RotaryCos, &cos)
            .with(Name::RotarySin, &sin)
            .with_mut(Name::QOut, &mut *q);
        attention.run_on(&mut recording, &append_rows, rows)?;
        let operands = Operands::forward(&*q, &*k_cache, &*v_cache, &mut out)
            .with(Name::CuSeqlensQ, &starts)
            .with(Name::SequsedK, &after)
            .with(Name::BlockTable, &table);
        attention.run_on(&mut recording, &prepared, operands)?;
        let graph = recording.finish()?;
        graph.upload(queue.stream())?;
        Ok(Gpu {
            queue,
            new,
            caches,
            starts,
            before,
            after,
            table,
            out,
            graph,
            launches: 0,
            launched_us: 0.0,
        })
    }

    fn step(&mut self, step: &Step, new: &[Tensor; 3]) -> Result<(Tensor, Vec<i32>), Error> {
        for (to, from) in self.new.iter().zip(new) {
            to.as_slice().copy_from_host(self.queue.stream(), from.bytes())?;
        }
        self.queue.write(&mut self.starts, &step.starts)?;
        self.queue.write(&mut self.before, &step.before)?;
        self.queue.write(&mut self.table, &step.table)?;
        self.out.as_slice().fill(self.queue.stream(), POISON)?;
        let began = Instant::now();
        self.queue.launch(&mut self.graph)?;
        self.launched_us += began.elapsed().as_secs_f64() * 1e6;
        self.launches += 1;
        Ok((self.queue.download(&self.out)?, self.queue.read(&self.after)?))
    }
}
