//! A GPU as a worker's device.

use flashcore::KernelId;
use flashcore_bench::gpu::{GpuBed, GpuStopwatch, GpuTools, KernelSubject, Launching};
use flashcore_bench::micro::{device, rates};
use flashcore_bench::planted::{Conduct, GpuPlanted, InFinals};
use flashcore_bench::{BenchError, DeviceIdentity, Failure, Subject, Workbench};
use flashcore_cuda::{Context, Function, ModuleOptions, Stream};
use flashcore_ir::Chip;
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_problem::Problem;

use super::devices::{Bench, Device, OnWorkbench, failed};
use super::protocol::Failed;
use crate::trial::Verdict;

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

/// What an error makes of a candidate.
fn of_bench(id: &str, error: &BenchError) -> Failed {
    let verdict = match Failure::of(error) {
        Failure::Refused => Verdict::Refused,
        Failure::BuildFailed => Verdict::BuildFailed,
        Failure::LaunchFailed => Verdict::LaunchFailed,
        Failure::Findings | Failure::Wrong => Verdict::Wrong,
    };
    Failed {
        fatal: error.is_fault(),
        ..failed(verdict, Some(id), error)
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
        let bed = match GpuBed::new(&self.stream, &self.tools, problem, workspace) {
            Ok(bed) => bed,
            Err(error) => return work(Err(of_bench("tensors", &error))),
        };
        let in_finals = InFinals::default();
        let chain = (CHAIN_US * USUAL_RATE / problem.flops()).ceil().clamp(1.0, MAX_CHAIN) as u32;
        let subject = |plan: &Plan, id: &String, place: usize| -> Result<Box<dyn Subject + '_>, Failed> {
            let tensors = [bed.tensors(place), bed.tensors(1 - place)];
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
        let mut bench = Workbench::new(&bed, GpuStopwatch::new(&self.tools, &self.stream));
        for (plan, id) in plans.iter().zip(kernels) {
            match subject(plan, id, 0).and_then(|first| Ok((first, subject(plan, id, 1)?))) {
                Ok((first, second)) => bench.add(first, Some(second)),
                Err(failed) => return work(Err(failed)),
            }
        }
        work(Ok(&mut OnWorkbench {
            bench,
            in_finals: in_finals.clone(),
        }));
    }
}
