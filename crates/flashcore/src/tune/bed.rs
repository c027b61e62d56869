//! The tensors of a problem on a device, and kernels that are timed on them.

use std::time::{Duration, Instant};

use flashcore_problem::{InputKind, Inputs, POISON, Problem, Task, Tensor, TensorSpec};

use super::expected::Expected;
use super::search::{self, Bed, Unfit};
use super::{TuneProgress, TuneSearch};
use crate::attention::Backend;
use crate::plans::Plans;
use crate::{Attention, Device, Error, KernelId, Output};

/// Length of a timed batch, µs.
const BATCH_US: f64 = 2_000.0;
/// Most runs in a batch.
const MOST_RUNS: u32 = 200;
/// Seed of the inputs.
const SEED: u64 = 1;

/// Searches on the device of an `Attention`.
pub(super) fn search(
    attention: &Attention,
    problem: &Problem,
    default: KernelId,
    share: Duration,
    watch: &mut dyn FnMut(TuneProgress<'_>),
) -> Result<Option<TuneSearch>, Error> {
    let mut inputs = Inputs::before_forward(problem, InputKind::Normal, SEED);
    let expected = Expected::new(problem, &inputs)?;
    let began = Instant::now();
    let Inputs { q, k, v, saved, .. } = &mut inputs;
    if let Some(saved) = saved {
        // What a backward pass reads.
        let forward = Attention::with(attention.device(), Plans::none())?;
        let Output { out, lse } = forward.forward(&problem.forward(), &*q, &*k, &*v)?;
        saved.out = out;
        saved.lse = lse.map_or(Ok(Vec::new()), |lse| lse.as_slice().map(<[f32]>::to_vec))?;
    }
    let mut bed: Box<dyn Bed + '_> = match &attention.backend {
        #[cfg(feature = "cpu")]
        Backend::Cpu(_) => Box::new(host::HostBed {
            problem,
            inputs,
            expected,
            outs: host::poisoned(problem),
            began,
        }),
        #[cfg(feature = "cuda")]
        Backend::Cuda(cuda) => Box::new(gpu::GpuBed::new(cuda, problem, &inputs, expected, began)?),
    };
    search::search(&mut *bed, problem, default, share, watch)
}

/// The driver in the form of plan tables; empty for a host.
pub(super) fn driver(device: &Device) -> String {
    match device {
        #[cfg(feature = "cpu")]
        Device::Cpu => String::new(),
        #[cfg(feature = "cuda")]
        Device::Cuda(context) => {
            let info = context.info();
            let release = info.driver_release.as_deref().unwrap_or("unknown");
            format!("{release}/{}", info.cuda_version)
        }
    }
}

/// What an error says of the kernel that was opened. One of the device shows again in what comes next.
fn unfit(error: Error) -> Unfit {
    match error {
        Error::Refused { .. } | Error::NoPlan(_) => Unfit::Refused(error),
        #[cfg(feature = "cpu")]
        Error::Cpu(_) => Unfit::Refused(error),
        #[cfg(feature = "cuda")]
        Error::Cuda(_) => Unfit::Refused(error),
        _ => Unfit::Failed(error),
    }
}

/// Runs in a batch of kernels that take so long.
fn runs_of(us: f64) -> u32 {
    ((BATCH_US / us.max(1.0)).ceil() as u32).clamp(1, MOST_RUNS)
}

#[cfg(feature = "cpu")]
mod host {
    use flashcore_cpu::CpuConfig;

    use super::*;
    use crate::call::filled;

    pub(super) struct HostBed<'p> {
        pub(super) problem: &'p Problem,
        pub(super) inputs: Inputs,
        pub(super) expected: Expected,
        pub(super) outs: Vec<(TensorSpec, Tensor)>,
        pub(super) began: Instant,
    }

    /// What a problem writes, before it is written.
    pub(super) fn poisoned(problem: &Problem) -> Vec<(TensorSpec, Tensor)> {
        let written = problem.tensors().into_iter().filter(TensorSpec::is_written);
        written.map(|spec| (spec, filled(&spec, POISON))).collect()
    }

    impl HostBed<'_> {
        fn run(&mut self, attention: &Attention) -> Result<(), Error> {
            let carried = self.inputs.carried(self.problem)?;
            let mut operands = carried.operands();
            for (spec, out) in &mut self.outs {
                operands = operands.with_mut(spec.name, out);
            }
            attention.run(self.problem, operands)
        }
    }

    impl Bed for HostBed<'_> {
        fn near(&self, kernel: KernelId) -> Vec<KernelId> {
            let KernelId::Cpu(CpuConfig { tile_q, tile_kv }) = kernel else {
                return Vec::new();
            };
            let tiles = [
                (tile_q / 2, tile_kv),
                (tile_q * 2, tile_kv),
                (tile_q, tile_kv / 2),
                (tile_q, tile_kv * 2),
            ];
            let configs = tiles.map(|(tile_q, tile_kv)| CpuConfig { tile_q, tile_kv });
            let allowed = configs.into_iter().filter(|config| config.check().is_ok());
            allowed.map(KernelId::Cpu).collect()
        }

        fn open(&mut self, kernel: KernelId) -> Result<(), Unfit> {
            let attention = Attention::with(Device::Cpu, kernel).map_err(unfit)?;
            self.outs = poisoned(self.problem);
            self.run(&attention).map_err(unfit)?;
            self.expected.check(self.problem, &self.outs)
        }

        fn close(&mut self, _: KernelId) {}

        fn time(&mut self, kernel: KernelId) -> Result<f64, Error> {
            let attention = Attention::with(Device::Cpu, kernel)?;
            let mut timed = |runs: u32| {
                let began = Instant::now();
                (0..runs).try_for_each(|_| self.run(&attention))?;
                Ok::<_, Error>(began.elapsed().as_secs_f64() * 1e6 / f64::from(runs))
            };
            // The first run also warms the caches.
            let runs = runs_of(timed(1)?);
            timed(runs)
        }

        fn now(&self) -> Duration {
            self.began.elapsed()
        }
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use flashcore_kernels::{Config, KernelCache, Plan, near};
    use flashcore_problem::{Host, View};

    use super::*;
    use crate::cuda::{CudaAttention, Event, Graph};
    use crate::memory::on_device;
    use crate::{CudaTensor, Queue};

    /// A kernel, and a batch of its runs in a graph, so that the host does not limit it.
    struct Opened {
        kernel: KernelId,
        runs: u32,
        graph: Graph,
    }

    pub(super) struct GpuBed<'p> {
        cuda: &'p CudaAttention,
        problem: &'p Problem,
        expected: Expected,
        queue: Queue,
        /// The tensors of the problem, in the order of [`Task::tensors`].
        tensors: Vec<(TensorSpec, CudaTensor)>,
        events: [Event; 2],
        kernels: KernelCache,
        opened: Vec<Opened>,
        began: Instant,
    }

    impl<'p> GpuBed<'p> {
        pub(super) fn new(
            cuda: &'p CudaAttention,
            problem: &'p Problem,
            inputs: &Inputs,
            expected: Expected,
            began: Instant,
        ) -> Result<GpuBed<'p>, Error> {
            let context = &cuda.context;
            let mut queue = Queue::new(&Device::Cuda(context.clone()))?;
            let carried = inputs.carried(problem)?;
            let given = carried.operands();
            let mut tensors = Vec::new();
            for spec in problem.tensors() {
                let tensor = match given.get(spec.name) {
                    Some(view) => queue.upload(View::<Host>::new(spec.element, spec.layout, view.memory()))?,
                    None => queue.empty(&spec)?,
                };
                tensors.push((spec, tensor));
            }
            Ok(GpuBed {
                cuda,
                problem,
                expected,
                queue,
                tensors,
                events: [Event::new(context)?, Event::new(context)?],
                kernels: KernelCache::default(),
                opened: Vec::new(),
                began,
            })
        }

        fn us(&mut self, work: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<f64, Error> {
            self.events[0].record(self.queue.stream())?;
            work(self)?;
            let [begin, end] = &self.events;
            end.record(self.queue.stream())?;
            end.synchronize()?;
            Ok(f64::from(begin.elapsed_ms(end)?) * 1e3)
        }

        fn opened(&mut self, kernel: KernelId) -> Result<Opened, Error> {
            let options = crate::Options {
                sm_margin: self.cuda.sm_margin(),
                ..kernel.into()
            };
            let device = Device::Cuda(self.cuda.context.clone());
            let attention = Attention::with(device.clone(), options)?;
            let prepared = attention.prepare(self.problem)?;
            let run = |bed: &mut Self| attention.run_on(&mut bed.queue, &prepared, on_device(&mut bed.tensors));
            // The first run loads the code.
            run(self)?;
            let runs = runs_of(self.us(run)?);
            let mut recording = Queue::recording(&device)?;
            for _ in 0..runs {
                attention.run_on(&mut recording, &prepared, on_device(&mut self.tensors))?;
            }
            let graph = recording.finish()?;
            graph.upload(self.queue.stream())?;
            Ok(Opened { kernel, runs, graph })
        }

        /// Runs a kernel over poison, and compares what it wrote.
        fn check(&mut self, opened: &mut Opened) -> Result<(), Unfit> {
            let mut read = || -> Result<Vec<(TensorSpec, Tensor)>, Error> {
                let written = self.tensors.iter().filter(|(spec, _)| spec.is_written());
                for (_, tensor) in written.clone() {
                    tensor.as_slice().fill(self.queue.stream(), POISON)?;
                }
                self.queue.launch(&mut opened.graph)?;
                let read = |(spec, tensor): &(TensorSpec, _)| Ok((*spec, self.queue.download(tensor)?));
                written.map(read).collect()
            };
            let outs = read().map_err(Unfit::Failed)?;
            self.expected.check(self.problem, &outs)
        }
    }

    impl Bed for GpuBed<'_> {
        fn near(&self, kernel: KernelId) -> Vec<KernelId> {
            #[cfg_attr(not(feature = "cpu"), allow(irrefutable_let_patterns))]
            let KernelId::Gpu(config) = kernel else {
                return Vec::new();
            };
            let of_default = near(self.problem, self.cuda.chip, &self.kernels);
            let configs = if of_default.first() == Some(&config) {
                of_default
            } else {
                let (family, values) = config.levers();
                let varied = family.of_problem(self.problem).near(&values, 1).into_iter();
                let varied = varied.map(|values| Config::of(&family, values));
                let is_served =
                    |config: &Config| Plan::with_cache(self.problem, config, self.cuda.chip, &self.kernels).is_ok();
                varied.filter(is_served).collect()
            };
            configs.into_iter().map(KernelId::Gpu).collect()
        }

        fn open(&mut self, kernel: KernelId) -> Result<(), Unfit> {
            let mut opened = self.opened(kernel).map_err(unfit)?;
            self.check(&mut opened)?;
            self.opened.push(opened);
            Ok(())
        }

        fn close(&mut self, kernel: KernelId) {
            self.opened.retain(|opened| opened.kernel != kernel);
        }

        fn time(&mut self, kernel: KernelId) -> Result<f64, Error> {
            let Some(place) = self.opened.iter().position(|opened| opened.kernel == kernel) else {
                return Ok(f64::INFINITY);
            };
            let launch = |bed: &mut Self| bed.queue.launch(&mut bed.opened[place].graph);
            // After another kernel a batch reads low, so one of its own comes first, untimed.
            launch(self)?;
            Ok(self.us(launch)? / f64::from(self.opened[place].runs))
        }

        fn now(&self) -> Duration {
            self.began.elapsed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_of_a_kernel_ends_a_search() {
        let missing = Error::Operand {
            name: flashcore_problem::Name::Sinks,
            why: "was not given".to_string(),
        };
        assert!(matches!(unfit(missing), Unfit::Failed(Error::Operand { .. })));
    }
}
