//! The tensors of a problem on a device, and kernels that are timed on them.

use std::time::{Duration, Instant};

use flashcore_problem::{InputKind, Inputs, Problem, Tensor};

use super::expected::Expected;
use super::search::{self, Bed, Unfit};
use super::{TuneProgress, TuneSearch};
use crate::attention::Backend;
use crate::{Attention, Device, Error, KernelId};

/// Length of a timed batch, µs.
const BATCH_US: f64 = 2_000.0;
/// Most runs in a batch.
const MOST_RUNS: u32 = 200;
/// Seed of the inputs.
const SEED: u64 = 1;

/// Searches on the device of an `Attention`.
pub(super) fn search(
    backend: &Backend,
    problem: &Problem,
    default: KernelId,
    share: Duration,
    watch: &mut dyn FnMut(TuneProgress<'_>),
) -> Result<Option<TuneSearch>, Error> {
    // The beds compute what a backward pass reads by a forward pass.
    let inputs = Inputs::before_forward(problem, InputKind::Normal, SEED);
    let expected = Expected::new(problem, &inputs)?;
    let began = Instant::now();
    match backend {
        #[cfg(feature = "cpu")]
        Backend::Cpu(_) => search::search(
            &mut host::HostBed::new(problem, inputs, expected, began)?,
            problem,
            default,
            share,
            watch,
        ),
        #[cfg(feature = "cuda")]
        Backend::Cuda(cuda) => search::search(
            &mut gpu::GpuBed::new(cuda, problem, &inputs, expected, began)?,
            problem,
            default,
            share,
            watch,
        ),
    }
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

/// What a problem writes, before it is written.
fn poisoned(problem: &Problem) -> Vec<Tensor> {
    let outputs = problem.outputs().into_iter();
    outputs
        .map(|(_, dtype, layout)| Tensor::poisoned(dtype, layout))
        .collect()
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
    use flashcore_problem::{BackwardTensors, Gradients};

    use super::*;
    use crate::plans::Plans;

    pub(super) struct HostBed<'p> {
        problem: &'p Problem,
        inputs: Inputs,
        expected: Expected,
        outs: Vec<Tensor>,
        lse: Option<Vec<f32>>,
        opened: Vec<(KernelId, Attention)>,
        began: Instant,
    }

    impl<'p> HostBed<'p> {
        pub(super) fn new(
            problem: &'p Problem,
            mut inputs: Inputs,
            expected: Expected,
            began: Instant,
        ) -> Result<HostBed<'p>, Error> {
            let Inputs { q, k, v, saved, .. } = &mut inputs;
            if let Some(saved) = saved {
                let attention = Attention::with(Device::Cpu, Plans::none())?;
                let (forward, lse) = (problem.forward(), Some(&mut saved.lse[..]));
                attention.forward_into(&forward, &*q, &*k, &*v, &mut saved.out, lse)?;
            }
            Ok(HostBed {
                problem,
                inputs,
                expected,
                outs: poisoned(problem),
                lse: problem.writes_lse().then(|| vec![f32::NAN; problem.lse_len()]),
                opened: Vec::new(),
                began,
            })
        }

        fn run(&mut self, attention: &Attention) -> Result<(), Error> {
            let inputs = &self.inputs;
            match (&mut self.outs[..], &inputs.saved) {
                ([dq, dk, dv], Some(saved)) => {
                    let tensors = BackwardTensors::of(inputs, saved);
                    let gradients = Gradients::from([dq, dk, dv].map(Tensor::view_mut));
                    attention.backward_lengths(self.problem, &tensors, &inputs.lengths.as_slices(), gradients)
                }
                (outs, _) => {
                    let lse = self.lse.as_deref_mut();
                    let Inputs { q, k, v, .. } = inputs;
                    attention.forward_into(self.problem, q, k, v, &mut outs[0], lse)
                }
            }
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
            self.expected.check(self.problem, &self.outs, self.lse.as_deref())?;
            self.opened.push((kernel, attention));
            Ok(())
        }

        fn close(&mut self, kernel: KernelId) {
            self.opened.retain(|(opened, _)| *opened != kernel);
        }

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
    use flashcore_ir::Chip;
    use flashcore_kernels::{Config, KernelCache, Plan, near};
    use flashcore_problem::POISON;

    use super::*;
    use crate::cuda::{Context, CudaAttention, DeviceBuffer, Event, Graph, Stream};
    use crate::plans::Plans;
    use crate::{DeviceGradients, DeviceTensors, HeadValueBuffers, ScaleBuffers};

    /// A kernel, and a batch of its runs in a graph, so that the host does not limit it.
    struct Opened {
        kernel: KernelId,
        runs: u32,
        graph: Graph,
        /// What the graph launches and writes.
        _attention: Attention,
        _workspace: DeviceBuffer,
    }

    /// Enqueues a call in the bed's memory and workspace, which only its stream uses.
    fn enqueue(
        attention: &Attention,
        stream: &Stream,
        problem: &Problem,
        tensors: &DeviceTensors<'_>,
    ) -> Result<(), Error> {
        attention
            .on_cuda()?
            .run_on(stream, problem, tensors, |_| None, attention.plans())
    }

    pub(super) struct GpuBed<'p> {
        problem: &'p Problem,
        expected: Expected,
        context: Context,
        /// The device, without the multiprocessors that are left to others.
        chip: Chip,
        sm_margin: u32,
        stream: Stream,
        inputs: [DeviceBuffer; 3],
        scales: Option<ScaleBuffers>,
        head_values: HeadValueBuffers,
        /// O and dO, which a backward pass reads.
        saved: Option<[DeviceBuffer; 2]>,
        /// What the problem writes, in the order of [`Problem::outputs`].
        outs: Vec<DeviceBuffer>,
        /// Written, or read by a backward pass.
        lse: Option<DeviceBuffer>,
        events: [Event; 2],
        kernels: KernelCache,
        opened: Vec<Opened>,
        began: Instant,
    }

    impl<'p> GpuBed<'p> {
        pub(super) fn new(
            cuda: &CudaAttention,
            problem: &'p Problem,
            inputs: &Inputs,
            expected: Expected,
            began: Instant,
        ) -> Result<GpuBed<'p>, Error> {
            let context = cuda.context();
            let stream = Stream::new(context)?;
            let tensors = [&inputs.q, &inputs.k, &inputs.v];
            let [q, k, v] = tensors.map(|tensor| DeviceBuffer::from_host(&stream, tensor.bytes()));
            let views = tensors.map(Tensor::view);
            let scales = ScaleBuffers::upload(&stream, views.each_ref())?;
            let head_values = HeadValueBuffers::upload(&stream, problem, &views[0])?;
            let outs = problem.outputs().into_iter().map(|(_, dtype, layout)| {
                let bytes = layout.span() * dtype.size_bytes();
                DeviceBuffer::new(context, bytes)
            });
            let saved = inputs.saved.as_ref().map(|saved| {
                let dout = DeviceBuffer::from_host(&stream, saved.dout.bytes())?;
                let bytes = problem.o_layout().span() * problem.out_dtype().size_bytes();
                Ok::<_, Error>([DeviceBuffer::new(context, bytes)?, dout])
            });
            let lse = problem.return_lse().then_some(problem.lse_len() * size_of::<f32>());
            let bed = GpuBed {
                problem,
                expected,
                context: context.clone(),
                chip: cuda.chip(),
                sm_margin: cuda.sm_margin(),
                inputs: [q?, k?, v?],
                scales,
                head_values,
                saved: saved.transpose()?,
                outs: outs.collect::<Result<_, _>>()?,
                lse: lse.map(|bytes| DeviceBuffer::new(context, bytes)).transpose()?,
                events: [Event::new(context)?, Event::new(context)?],
                kernels: KernelCache::default(),
                opened: Vec::new(),
                began,
                stream,
            };
            if let Some([out, _]) = &bed.saved {
                // What a backward pass reads.
                let attention = Attention::with(Device::Cuda(context.clone()), Plans::none())?;
                let forward = problem.forward();
                let workspace = bed.workspace(&attention, &forward)?;
                enqueue(&attention, &bed.stream, &forward, &bed.tensors(out, &workspace))?;
                bed.stream.synchronize()?;
            }
            Ok(bed)
        }

        fn workspace(&self, attention: &Attention, problem: &Problem) -> Result<DeviceBuffer, Error> {
            let bytes = attention.workspace_bytes(problem, 16)?;
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            Ok(DeviceBuffer::new(&self.context, bytes)?)
        }

        /// All but gradients.
        fn tensors<'a>(&'a self, out: &'a DeviceBuffer, workspace: &'a DeviceBuffer) -> DeviceTensors<'a> {
            let [q, k, v] = self.inputs.each_ref().map(DeviceBuffer::as_slice);
            DeviceTensors {
                lse: self.lse.as_ref().map(DeviceBuffer::as_slice),
                scales: self.scales.as_ref().map(ScaleBuffers::as_slices),
                sinks: self.head_values.sinks(),
                alibi_slopes: self.head_values.alibi_slopes(),
                workspace: Some(workspace.as_slice()),
                ..DeviceTensors::new(q, k, v, out.as_slice())
            }
        }

        fn run(&self, attention: &Attention, workspace: &DeviceBuffer, stream: &Stream) -> Result<(), Error> {
            let (Some([out, dout]), [dq, dk, dv]) = (&self.saved, &self.outs[..]) else {
                return enqueue(attention, stream, self.problem, &self.tensors(&self.outs[0], workspace));
            };
            let tensors = DeviceTensors {
                gradients: Some(DeviceGradients {
                    dout: dout.as_slice(),
                    dq: dq.as_slice(),
                    dk: dk.as_slice(),
                    dv: dv.as_slice(),
                }),
                ..self.tensors(out, workspace)
            };
            enqueue(attention, stream, self.problem, &tensors)
        }

        fn us(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
            let [begin, end] = &self.events;
            begin.record(&self.stream)?;
            work()?;
            end.record(&self.stream)?;
            end.synchronize()?;
            Ok(f64::from(begin.elapsed_ms(end)?) * 1e3)
        }

        fn opened(&self, kernel: KernelId) -> Result<Opened, Error> {
            let options = crate::Options {
                sm_margin: self.sm_margin,
                ..kernel.into()
            };
            let attention = Attention::with(Device::Cuda(self.context.clone()), options)?;
            let workspace = self.workspace(&attention, self.problem)?;
            let run = |stream: &Stream| self.run(&attention, &workspace, stream);
            // The first run loads the code.
            run(&self.stream)?;
            let runs = runs_of(self.us(|| run(&self.stream))?);
            let graph = Graph::capture(&self.stream, |stream| (0..runs).try_for_each(|_| run(stream)))?;
            graph.upload(&self.stream)?;
            Ok(Opened {
                kernel,
                runs,
                graph,
                _attention: attention,
                _workspace: workspace,
            })
        }

        /// Runs a kernel over poison, and compares what it wrote.
        fn check(&self, opened: &Opened) -> Result<(), Unfit> {
            let mut outs = poisoned(self.problem);
            let written = self.lse.as_ref().filter(|_| self.problem.writes_lse());
            let mut read = || -> Result<Option<Vec<f32>>, Error> {
                for buffer in self.outs.iter().chain(written) {
                    buffer.as_slice().fill(&self.stream, POISON)?;
                }
                opened.graph.launch(&self.stream)?;
                for (buffer, out) in self.outs.iter().zip(&mut outs) {
                    buffer.as_slice().copy_to_host(&self.stream, out.bytes_mut())?;
                }
                let lse = written.map(|lse| lse.to_vec::<f32>(&self.stream)).transpose()?;
                self.stream.synchronize()?;
                Ok(lse)
            };
            let lse = read().map_err(Unfit::Failed)?;
            self.expected.check(self.problem, &outs, lse.as_deref())
        }
    }

    impl Bed for GpuBed<'_> {
        fn near(&self, kernel: KernelId) -> Vec<KernelId> {
            #[cfg_attr(not(feature = "cpu"), allow(irrefutable_let_patterns))]
            let KernelId::Gpu(config) = kernel else {
                return Vec::new();
            };
            let of_default = near(self.problem, self.chip, &self.kernels);
            let configs = if of_default.first() == Some(&config) {
                of_default
            } else {
                let (family, values) = config.levers();
                let varied = family.of_problem(self.problem).near(&values, 1).into_iter();
                let varied = varied.map(|values| Config::of(&family, values));
                let is_served =
                    |config: &Config| Plan::with_cache(self.problem, config, self.chip, &self.kernels).is_ok();
                varied.filter(is_served).collect()
            };
            configs.into_iter().map(KernelId::Gpu).collect()
        }

        fn open(&mut self, kernel: KernelId) -> Result<(), Unfit> {
            let opened = self.opened(kernel).map_err(unfit)?;
            self.check(&opened)?;
            self.opened.push(opened);
            Ok(())
        }

        fn close(&mut self, kernel: KernelId) {
            self.opened.retain(|opened| opened.kernel != kernel);
        }

        fn time(&mut self, kernel: KernelId) -> Result<f64, Error> {
            let Some(opened) = self.opened.iter().find(|opened| opened.kernel == kernel) else {
                return Ok(f64::INFINITY);
            };
            // After another kernel a batch reads low, so one of its own comes first, untimed.
            opened.graph.launch(&self.stream)?;
            let us = self.us(|| Ok(opened.graph.launch(&self.stream)?))?;
            Ok(us / f64::from(opened.runs))
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
        let missing = Error::DeviceBuffer {
            tensor: "sinks",
            needed: 64,
            given: None,
        };
        assert!(matches!(unfit(missing), Unfit::Failed(Error::DeviceBuffer { .. })));
    }
}
