//! A GPU as a worker's device.

use std::cell::RefCell;

use flashcore::{DeviceTensors, KernelId};
use flashcore_bench::gpu::{GpuStopwatch, GpuTools, KernelSubject, Launching, TensorSet};
use flashcore_bench::micro::{device, rates};
use flashcore_bench::planted::{Conduct, GpuPlanted, InFinals};
use flashcore_bench::{BenchError, DeviceIdentity, HostInputs, Subject, Trouble};
use flashcore_cuda::{Context, CudaError, DeviceBuffer, DeviceSlice, Function, ModuleOptions, Stream};
use flashcore_ir::Chip;
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_problem::{Problem, Tensor};

use super::devices::{Bed, Bench, Device, Workbench, failed};
use super::protocol::Failed;
use crate::trial::Verdict;

/// Pause put ahead of a kernel that may not wait for the stream, µs.
const PAUSE_US: f64 = 3_000.0;
/// Rate that chains of graphs are sized by, operations a microsecond: a guess within some times of any card's.
const USUAL_RATE: f64 = 3e8;
/// Length that a chain should have, µs.
const CHAIN_US: f64 = 200.0;
/// Longest chain.
const MAX_CHAIN: f64 = 64.0;

/// Kernels kept at most, beside those of the plan at hand.
const KEPT_KERNELS: usize = 64;

/// A GPU that a worker has taken.
pub(super) struct Gpu {
    context: Context,
    stream: Stream,
    tools: GpuTools,
    chip: Chip,
    /// Of late: a candidate is opened for several shapes, and the best beside each candidate.
    kernels: KernelCache,
}

impl Gpu {
    pub(super) fn take(context: Context) -> Result<Gpu, BenchError> {
        let stream = Stream::new(&context)?;
        Ok(Gpu {
            tools: GpuTools::new(&stream)?,
            chip: context.info().chip(),
            kernels: KernelCache::default(),
            stream,
            context,
        })
    }

    /// The plan of an id; of a planted one, that of the kernel it is made from.
    fn plan(&self, problem: &Problem, id: &str) -> Result<Plan, Failed> {
        self.kernels.forget_beyond(KEPT_KERNELS);
        if let Some(conduct) = Conduct::of_id(id) {
            conduct
                .build()
                .map_err(|reason| failed(Verdict::BuildFailed, Some(id), reason))?;
            let choice = select(problem, self.chip, 16, &self.kernels);
            return choice
                .map(|choice| choice.plan)
                .map_err(|error| failed(Verdict::Refused, Some(id), error));
        }
        match id.parse() {
            Ok(KernelId::Gpu(config)) => Plan::with_cache(problem, &config, self.chip, &self.kernels)
                .map_err(|refusal| failed(Verdict::Refused, Some(id), refusal)),
            Ok(KernelId::Cpu(_)) => Err(failed(Verdict::Refused, Some(id), "it runs on the CPU")),
            Err(error) => Err(failed(Verdict::Refused, Some(id), error)),
        }
    }
}

/// What an error of the driver makes of a candidate.
fn of_cuda(id: &str, error: &CudaError) -> Failed {
    let verdict = match error {
        CudaError::Compile(_) | CudaError::Module(_) | CudaError::NoSuchKernel { .. } => Verdict::BuildFailed,
        _ => Verdict::LaunchFailed,
    };
    Failed {
        fatal: matches!(error, CudaError::Fault(_)),
        ..failed(verdict, Some(id), error)
    }
}

fn of_bench(id: &str, error: &BenchError) -> Failed {
    match error {
        BenchError::Flashcore(inner) => match &**inner {
            flashcore::Error::Cuda(cuda) => of_cuda(id, cuda),
            _ => failed(Verdict::Refused, Some(id), error),
        },
        BenchError::Attributes { .. } => failed(Verdict::BuildFailed, Some(id), error),
        _ => failed(Verdict::LaunchFailed, Some(id), error),
    }
}

/// Tensors at both places.
struct GpuPlaces<'a> {
    gpu: &'a Gpu,
    problem: &'a Problem,
    sets: &'a [TensorSet; 2],
    kept: DeviceBuffer,
    /// Where outputs that are shown are copied to: fresh memory of that size takes longer than the copy.
    shown: RefCell<Option<Tensor>>,
}

impl<'a> GpuPlaces<'a> {
    fn tensors(&self, place: usize) -> DeviceTensors<'a> {
        self.sets[place % 2].tensors()
    }

    fn output(&self, place: usize, snapshot: bool) -> DeviceSlice<'_> {
        match snapshot {
            true => self.kept.as_slice(),
            false => self.tensors(place).out,
        }
    }
}

impl Bed for GpuPlaces<'_> {
    fn load(&self, place: usize, inputs: &HostInputs) -> Result<(), Trouble> {
        Ok(self.sets[place % 2].upload(&self.gpu.stream, inputs)?)
    }

    fn poison(&self, place: usize) -> Result<(), Trouble> {
        Ok(self.sets[place % 2].poison(&self.gpu.stream)?)
    }

    fn pause(&self) -> Result<(), Trouble> {
        Ok(self.gpu.tools.spin(&self.gpu.stream, PAUSE_US)?)
    }

    fn snapshot(&self, place: usize) -> Result<(), Trouble> {
        let out = self.tensors(place).out;
        Ok(self.kept.as_slice().copy_from(&self.gpu.stream, out)?)
    }

    fn finish(&self) -> Result<(), Trouble> {
        Ok(self.gpu.context.synchronize()?)
    }

    fn see(&self, place: usize, snapshot: bool, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        let mut shown = self.shown.borrow_mut();
        let out = shown.get_or_insert_with(|| Tensor::poisoned(self.problem.out_dtype(), *self.problem.o_layout()));
        self.output(place, snapshot)
            .copy_to_host(&self.gpu.stream, out.bytes_mut())?;
        look(out);
        Ok(())
    }

    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        Ok(self.sets[place % 2].read_lse(&self.gpu.stream)?)
    }

    fn outside(&self) -> Result<Option<String>, Trouble> {
        for set in self.sets {
            if let Some(outside) = set.outside(&self.gpu.stream)? {
                return Ok(Some(outside));
            }
        }
        Ok(None)
    }
}

impl Device for Gpu {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity::cuda(self.context.info())
    }

    fn rates(&self) -> Result<(), String> {
        let path = rates::path(&self.identity());
        let path = path.ok_or("there is no place for the rates: neither XDG_DATA_HOME nor HOME is set")?;
        let measured = device::measured(&self.context, &[]).map_err(|error| error.to_string())?;
        measured.write(&path).map_err(|error| error.to_string())
    }

    fn compile(&self, problem: &Problem, kernels: &[String]) {
        for id in kernels {
            // What fails here fails again, with its reason, when it is opened.
            let Ok(plan) = self.plan(problem, id) else { continue };
            for step in plan.steps() {
                let _ = Function::load(&self.context, &step.kernel, &ModuleOptions::default());
            }
        }
    }

    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Result<&mut dyn Bench, Failed>)) {
        let plans = kernels
            .iter()
            .map(|id| self.plan(problem, id))
            .collect::<Result<Vec<_>, _>>();
        let plans = match plans {
            Ok(plans) => plans,
            Err(failed) => return work(Err(failed)),
        };
        let workspace = plans.iter().map(Plan::workspace_bytes).max().unwrap_or(0);
        let allocate = || -> Result<([TensorSet; 2], DeviceBuffer), BenchError> {
            let set = || TensorSet::new(&self.stream, problem, workspace);
            let bytes = problem.o_layout().span() * problem.out_dtype().size_bytes();
            Ok(([set()?, set()?], DeviceBuffer::new(&self.context, bytes)?))
        };
        let (sets, kept) = match allocate() {
            Ok(allocated) => allocated,
            Err(error) => return work(Err(of_bench("tensors", &error))),
        };
        let places = GpuPlaces {
            gpu: self,
            problem,
            sets: &sets,
            kept,
            shown: RefCell::default(),
        };
        let in_finals = InFinals::default();
        let chain = (CHAIN_US * USUAL_RATE / problem.flops()).ceil().clamp(1.0, MAX_CHAIN) as u32;
        let subject = |plan: &Plan, id: &String, place: usize| -> Result<Box<dyn Subject + '_>, Failed> {
            let tensors = [places.tensors(place), places.tensors(1 - place)];
            let bound = KernelSubject::new(&self.stream, plan, &tensors, Launching::GraphOf(chain));
            let honest = bound.map_err(|error| of_bench(id, &error))?;
            match Conduct::of_id(id) {
                None => Ok(Box::new(honest)),
                Some(conduct) => {
                    let planted = GpuPlanted::new(
                        conduct,
                        &self.stream,
                        problem,
                        honest,
                        tensors[0],
                        None,
                        in_finals.clone(),
                    );
                    Ok(Box::new(planted.map_err(|error| of_bench(id, &error))?))
                }
            }
        };
        let at = |place: usize| {
            let pairs = plans.iter().zip(kernels);
            pairs
                .map(|(plan, id)| subject(plan, id, place))
                .collect::<Result<Vec<_>, _>>()
        };
        match at(0).and_then(|first| Ok([first, at(1)?])) {
            Ok(subjects) => work(Ok(&mut Workbench {
                bed: &places,
                subjects,
                stopwatch: Box::new(GpuStopwatch::new(&self.tools, &self.stream)),
                in_finals: in_finals.clone(),
            })),
            Err(failed) => work(Err(failed)),
        }
    }
}
