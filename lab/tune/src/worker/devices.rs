//! A worker's devices. Each opens kernels on a [`Workbench`], or as times that were measured once or are predicted.

use flashcore::unstable::cuda::{Context, CudaError};
use flashcore::{Error, KernelId};
use flashcore_bench::gpu::Launching;
use flashcore_bench::micro::{device, rates};
use flashcore_bench::planted::{Conduct, InFinals};
use flashcore_bench::{
    BenchError, Built, DeviceIdentity, Interval, Measurement, Mode, Options, Stand, SubjectInfo, Trouble, Workbench,
};
use flashcore_check::own::Declared;
use flashcore_cuda::{Function, ModuleOptions};
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_problem::Problem;

use super::own::Kernels;
use super::protocol::{Failed, Opened};
use super::replayed::{self, Replayed, summary};
use crate::own::Bad;
use crate::trial::Verdict;

pub(super) trait Device {
    fn identity(&self) -> DeviceIdentity;

    /// Whether kernels run on it; if not, it is [told](Device::told) their times.
    fn computes(&self) -> bool {
        false
    }

    /// The time of a kernel in µs with its interval, and the error that the simulator saw of one of the user's.
    fn told(&self, _problem: &Problem, _id: &str, _own: (&[Declared], u64)) -> Result<Told, Bad> {
        Err((Verdict::Refused, "its times are not known".to_string()))
    }

    fn compile(&self, _problem: &Problem, _kernels: &[String]) {}

    fn rates(&self) -> Result<(), String> {
        Err("only GPUs are measured".to_string())
    }

    /// What simulates kernels of the user.
    fn own(&self) -> Option<&Kernels> {
        None
    }

    /// Opens kernels, of which `own` are the user's, with the seed of the inputs that these are simulated on, and
    /// passes them to `work`. They are closed when it returns.
    fn open(
        &self,
        problem: &Problem,
        kernels: &[String],
        own: (&[Declared], u64),
        work: &mut dyn FnMut(Open<'_>),
    ) -> Result<(), Failed> {
        let row = |id: &String| match self.told(problem, id, own) {
            Ok((us, interval, error)) => Ok(((id.clone(), summary(us, interval)), error)),
            Err((verdict, reason)) => Err(Failed::new(verdict, Some(id), reason)),
        };
        let rows: Vec<_> = kernels.iter().map(row).collect::<Result<_, _>>()?;
        let (rows, errors) = rows.into_iter().unzip();
        work(Open::Replayed(rows, errors));
        Ok(())
    }
}

pub(super) type Told = (f64, Interval, Option<f64>);

pub(super) enum Open<'a> {
    /// The flag is set when the kernels are timed as finalists, for planted candidates. The labels are of kernels whose
    /// plans declare that last bits may differ between runs.
    Bench(Workbench<'a>, InFinals, Vec<String>),
    /// The errors are those that the simulator saw, of kernels of the user.
    Replayed(Replayed, Vec<Option<f64>>),
}

impl<'a> Open<'a> {
    pub(super) fn opened(&self) -> Vec<Opened> {
        match self {
            Open::Bench(bench, _, differing) => {
                let infos = bench.subjects.iter().map(|subject| subject.info());
                let opened = |info: &SubjectInfo| Opened {
                    reproducible: !differing.contains(&info.label),
                    ..Opened::new(&info.label, info.module.clone(), info.attributes)
                };
                infos.map(opened).collect()
            }
            Open::Replayed(rows, errors) => {
                let opened = |((id, _), error): (&(String, _), &Option<f64>)| Opened {
                    error: *error,
                    ..Opened::new(id, None, None)
                };
                rows.iter().zip(errors).map(opened).collect()
            }
        }
    }

    pub(super) fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, BenchError> {
        match self {
            Open::Bench(bench, in_finals, _) => {
                // Candidates are screened; finalists are timed in other modes.
                in_finals.set(in_finals.get() || mode != Mode::Screen);
                bench.time(options, mode, baseline, None, &mut ())
            }
            Open::Replayed(rows, _) => replayed::time(rows, baseline, mode, options),
        }
    }

    pub(super) fn bench(&mut self) -> Result<&mut Workbench<'a>, Trouble> {
        match self {
            Open::Bench(bench, ..) => Ok(bench),
            Open::Replayed(..) => Err(Trouble::new("there are times and no outputs")),
        }
    }
}

/// Chooses the length of graph chains, operations per µs: a rough guess for any card.
const USUAL_RATE: f64 = 3e8;
const CHAIN_US: f64 = 200.0;
const MAX_CHAIN: f64 = 64.0;

/// The host or a GPU.
pub(super) struct Real {
    stand: Stand,
    /// Recent kernels: a candidate is opened for several shapes, and the best with each candidate.
    kernels: KernelCache,
    /// Kernels of the user.
    own: Kernels,
}

impl Real {
    pub(super) fn take(device: &flashcore::Device) -> Result<Real, BenchError> {
        let stand = Stand::new(device)?;
        let chip = stand.gpu.as_ref().map(|(stream, _)| stream.context().info().chip());
        Ok(Real {
            stand,
            kernels: KernelCache::default(),
            own: Kernels::new(chip),
        })
    }

    fn gpu(&self) -> Option<&Context> {
        self.stand.gpu.as_ref().map(|(stream, _)| stream.context())
    }

    fn built(&self, problem: &Problem, id: &str) -> Result<Built, Failed> {
        let refused = |reason: String| Failed::new(Verdict::Refused, Some(id), reason);
        if let Some(conduct) = Conduct::of_id(id) {
            let built = conduct.build();
            built.map_err(|reason| Failed::new(Verdict::BuildFailed, Some(id), reason))?;
            let honest = self.usual(problem).map_err(refused)?;
            return Ok(Built::Planted(conduct, Box::new(honest)));
        }
        match (id.parse(), self.gpu()) {
            (Ok(KernelId::Cpu(config)), None) => Ok(Built::Cpu(config)),
            (Ok(KernelId::Gpu(config)), Some(gpu)) => {
                let plan = Plan::with_cache(problem, &config, gpu.info().chip(), &self.kernels);
                plan.map(|plan| Built::Gpu(Box::new(plan)))
                    .map_err(|refusal| refused(refusal.to_string()))
            }
            (Ok(_), None) => Err(refused("it runs on a GPU".to_string())),
            (Ok(_), Some(_)) => Err(refused("it runs on the CPU".to_string())),
            (Err(error), _) => Err(refused(Error::to_string(&error))),
        }
    }

    /// The kernel that planted candidates modify.
    fn usual(&self, problem: &Problem) -> Result<Built, String> {
        let Some(gpu) = self.gpu() else {
            let config = flashcore_cpu::default_config(problem, rayon::current_num_threads());
            return Ok(Built::Cpu(config));
        };
        let choice = select(problem, gpu.info().chip(), 16, &self.kernels);
        let choice = choice.map_err(|error| error.to_string())?;
        Ok(Built::Gpu(Box::new(choice.plan)))
    }
}

fn of_bench(id: &str, error: &BenchError) -> Failed {
    let verdict = match error {
        BenchError::Machine(_) | BenchError::Store { .. } => Verdict::EnvironmentFailed,
        BenchError::Attributes(_) => Verdict::BuildFailed,
        BenchError::Nothing(_) => Verdict::Refused,
        BenchError::Flashcore(error) => match &**error {
            Error::Cuda(CudaError::Compile(_) | CudaError::Module(_) | CudaError::NoSuchKernel { .. }) => {
                Verdict::BuildFailed
            }
            Error::Cuda(_) => Verdict::LaunchFailed,
            _ => Verdict::Refused,
        },
        _ => Verdict::LaunchFailed,
    };
    Failed::new(verdict, Some(id), error).fatal(error.is_fault())
}

impl Device for Real {
    fn identity(&self) -> DeviceIdentity {
        self.stand.identity()
    }

    fn computes(&self) -> bool {
        true
    }

    fn rates(&self) -> Result<(), String> {
        let gpu = self.gpu().ok_or("only GPUs are measured")?;
        let path = rates::path(&self.identity());
        let path = path.ok_or("there is no place for the rates: neither XDG_DATA_HOME nor HOME is set")?;
        let measured = device::measured(gpu, &[]).map_err(|error| error.to_string())?;
        measured.write(&path).map_err(|error| error.to_string())
    }

    fn own(&self) -> Option<&Kernels> {
        Some(&self.own)
    }

    fn compile(&self, problem: &Problem, kernels: &[String]) {
        let Some(gpu) = self.gpu() else { return };
        for id in kernels {
            // An error here occurs again when the kernel is opened, and is reported then.
            let Ok(built) = self.built(problem, id) else { continue };
            for step in built.plan().iter().flat_map(|plan| plan.steps()) {
                let _ = Function::load(gpu, &step.kernel, &ModuleOptions::default());
            }
        }
    }

    fn open(
        &self,
        problem: &Problem,
        kernels: &[String],
        (own, seed): (&[Declared], u64),
        work: &mut dyn FnMut(Open<'_>),
    ) -> Result<(), Failed> {
        let looked = own
            .iter()
            .try_for_each(|own| self.own.look(own, problem, seed).map(drop));
        looked?;
        let own_of = |id: &String| own.iter().find(|own| own.label == *id);
        let ours: Vec<&String> = kernels.iter().filter(|id| own_of(id).is_none()).collect();
        let built = ours.iter().map(|id| self.built(problem, id));
        let built = built.collect::<Result<Vec<_>, _>>()?;
        let chain = (CHAIN_US * USUAL_RATE / problem.flops()).ceil().clamp(1.0, MAX_CHAIN) as u32;
        let in_finals = InFinals::default();
        let opened = self.stand.open(
            problem,
            &built,
            Launching::GraphOf(chain),
            &in_finals,
            |mut bench, failed| {
                if let Some((kernel, error)) = failed.first() {
                    return Err(of_bench(ours[*kernel], error));
                }
                let bed = bench.bed;
                for (place, id) in kernels.iter().enumerate() {
                    let Some(own) = own_of(id) else { continue };
                    let opened = bed.declared(own, Launching::GraphOf(chain));
                    bench.insert(place, opened.map_err(|error| of_bench(id, &error))?);
                }
                let differs = |built: &&Built| built.plan().is_some_and(|plan| !plan.reproducible);
                let differing = built.iter().filter(differs).map(Built::id).collect();
                work(Open::Bench(bench, in_finals.clone(), differing));
                Ok(())
            },
        );
        opened.unwrap_or_else(|error| Err(of_bench("tensors", &error)))
    }
}
