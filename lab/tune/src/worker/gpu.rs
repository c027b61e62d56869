//! A GPU as a worker's device.

use flashcore::KernelId;
use flashcore_bench::gpu::{GpuBed, GpuStopwatch, GpuTools, KernelSubject, Launching};
use flashcore_bench::micro::{device, rates};
use flashcore_bench::planted::{Conduct, InFinals, Planted};
use flashcore_bench::{BenchError, DeviceIdentity, Failure, Subject, Workbench};
use flashcore_cuda::{Context, Function, ModuleOptions, Stream};
use flashcore_ir::Chip;
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_problem::Problem;

use super::devices::{Device, Open, buildable};
use super::protocol::Failed;
use crate::trial::Verdict;

/// Chooses the length of graph chains, operations per µs: a rough guess for any card.
const USUAL_RATE: f64 = 3e8;
const CHAIN_US: f64 = 200.0;
const MAX_CHAIN: f64 = 64.0;

/// Most kernels to keep, in addition to those of the current plan.
const KEPT_KERNELS: usize = 64;

pub(super) struct Gpu {
    context: Context,
    stream: Stream,
    tools: GpuTools,
    chip: Chip,
    /// Recent kernels: a candidate is opened for several shapes, and the best with each candidate.
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

    /// The plan of an id. A planted candidate has that of the kernel that it modifies.
    fn plan(&self, problem: &Problem, id: &str) -> Result<Plan, Failed> {
        let refused = |reason: String| Failed::new(Verdict::Refused, Some(id), reason);
        self.kernels.forget_beyond(KEPT_KERNELS);
        if let Some(conduct) = Conduct::of_id(id) {
            buildable(conduct, id)?;
            let choice = select(problem, self.chip, 16, &self.kernels);
            return choice
                .map(|choice| choice.plan)
                .map_err(|error| refused(error.to_string()));
        }
        match id.parse() {
            Ok(KernelId::Gpu(config)) => Plan::with_cache(problem, &config, self.chip, &self.kernels)
                .map_err(|refusal| refused(refusal.to_string())),
            Ok(_) => Err(refused("it runs on the CPU".to_string())),
            Err(error) => Err(refused(flashcore::Error::to_string(&error))),
        }
    }
}

fn of_bench(id: &str, error: &BenchError) -> Failed {
    let verdict = match Failure::of(error) {
        Failure::Refused => Verdict::Refused,
        Failure::BuildFailed => Verdict::BuildFailed,
        Failure::LaunchFailed => Verdict::LaunchFailed,
        Failure::Findings | Failure::Wrong => Verdict::Wrong,
    };
    Failed::new(verdict, Some(id), error).fatal(error.is_fault())
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
            // An error here occurs again when the kernel is opened, and is reported then.
            let Ok(plan) = self.plan(problem, id) else { continue };
            for step in plan.steps() {
                let _ = Function::load(&self.context, &step.kernel, &ModuleOptions::default());
            }
        }
    }

    fn open(&self, problem: &Problem, kernels: &[String], work: &mut dyn FnMut(Open<'_>)) -> Result<(), Failed> {
        let plans = kernels.iter().map(|id| self.plan(problem, id));
        let plans = plans.collect::<Result<Vec<_>, _>>()?;
        let workspace = plans.iter().map(Plan::workspace_bytes).max().unwrap_or(0);
        let bed = GpuBed::new(&self.stream, &self.tools, problem, workspace);
        let bed = bed.map_err(|error| of_bench("tensors", &error))?;
        let in_finals = InFinals::default();
        let chain = (CHAIN_US * USUAL_RATE / problem.flops()).ceil().clamp(1.0, MAX_CHAIN) as u32;
        let bind = |kernel: usize, place: usize| -> Result<Box<dyn Subject + '_>, Failed> {
            let id = kernels[kernel].as_str();
            let failed = |error: BenchError| of_bench(id, &error);
            let tensors = [bed.tensors(place), bed.tensors(1 - place)];
            let launching = Launching::GraphOf(chain);
            let honest = KernelSubject::new(&self.stream, &plans[kernel], &tensors, launching).map_err(failed)?;
            let Some(conduct) = Conduct::of_id(id) else {
                return Ok(Box::new(honest));
            };
            Ok(Box::new(Planted::new(conduct, honest, &bed, place, in_finals.clone())))
        };
        let bench = Workbench::new(&bed, GpuStopwatch::new(&self.tools, &self.stream));
        work(Open::bind(bench, kernels.len(), in_finals.clone(), bind)?);
        Ok(())
    }
}
