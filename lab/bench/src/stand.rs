//! Devices that candidates are opened on, and the kernels that a bench opens there.

use std::fmt::Display;

use flashcore::unstable::plans::Plans;
use flashcore::{Attention, Device, KernelId};
use flashcore_check::check_host_memory;
use flashcore_cpu::{CpuConfig, default_config};
use flashcore_cuda::Stream;
use flashcore_ir::{Chip, Profile};
use flashcore_kernels::{Choice, KernelCache, NoPlan, Plan, near, select, select_among};
use flashcore_problem::Problem;
use rayon::iter::Either;
use rayon::prelude::*;

use crate::cpu::{CpuBed, CpuStopwatch, CpuSubject};
use crate::gpu::{GpuBed, GpuStopwatch, GpuTools, KernelSubject, Launching};
use crate::own::is_own;
use crate::planted::{Conduct, InFinals, Planted, Spoil};
use crate::report::add_new;
use crate::{Absent, BenchError, DeviceIdentity, Request, Result, Subject, Workbench};

/// Words that stand for kernels, problem by problem: what the library uses (a row of a plan table, or what heuristics
/// choose); what heuristics choose, whatever the plan tables say; the same, and kernels that differ from it a little.
pub const KERNEL_WORDS: [&str; 3] = ["default", "heuristics", "near"];

/// A kernel that was built for a problem.
#[derive(Clone, Debug)]
pub enum Built {
    /// For the host.
    Cpu(CpuConfig),
    /// For a GPU.
    Gpu(Box<Plan>),
    /// A planted candidate, made from this honest kernel.
    Planted(Conduct, Box<Built>),
}

impl Built {
    /// The kernel's id.
    pub fn id(&self) -> String {
        match self {
            Built::Cpu(config) => config.to_string(),
            Built::Gpu(plan) => plan.config.to_string(),
            Built::Planted(conduct, _) => conduct.to_string(),
        }
    }

    /// The plan of a kernel for a GPU.
    pub fn plan(&self) -> Option<&Plan> {
        match self {
            Built::Cpu(_) => None,
            Built::Gpu(plan) => Some(plan),
            Built::Planted(_, honest) => honest.plan(),
        }
    }

    fn config(&self) -> Option<CpuConfig> {
        match self {
            Built::Cpu(config) => Some(*config),
            Built::Gpu(_) => None,
            Built::Planted(_, honest) => honest.config(),
        }
    }

    /// The kernel bound to a place of a bed; `honest` is what it runs there.
    fn subject<'a>(
        &self,
        honest: impl Subject + 'a,
        bed: &'a dyn Spoil,
        place: usize,
        in_finals: &InFinals,
    ) -> Box<dyn Subject + 'a> {
        match self {
            Built::Planted(conduct, _) => Box::new(Planted::new(*conduct, honest, bed, place, in_finals.clone())),
            _ => Box::new(honest),
        }
    }
}

/// A device on which candidates are opened, judged and timed.
#[derive(Debug)]
pub struct Stand {
    /// The stream that all work goes into, and the bench's kernels; `None` on the host.
    pub gpu: Option<(Stream, GpuTools)>,
    /// [`Options::caches`](crate::Options::caches).
    pub caches: u32,
}

impl Stand {
    /// Takes a device.
    pub fn new(device: &Device) -> Result<Stand> {
        let Some(context) = device.context() else {
            return Ok(Stand { gpu: None, caches: 1 });
        };
        let stream = Stream::new(context)?;
        let tools = GpuTools::new(&stream)?;
        let gpu = Some((stream, tools));
        Ok(Stand { gpu, caches: 1 })
    }

    /// The device.
    pub fn identity(&self) -> DeviceIdentity {
        match &self.gpu {
            None => DeviceIdentity::cpu(),
            Some((stream, _)) => DeviceIdentity::cuda(stream.context().info()),
        }
    }

    /// Allocates the tensors of a problem, compiles kernels and binds them to both places, and gives the workbench to
    /// `work`, with the kernels that could not be opened, by their place among all. GPU kernels are launched as
    /// `launching` says; planted candidates go by `in_finals`.
    ///
    /// # Errors
    /// Tensors that cannot be allocated, or a kernel of another device.
    pub fn open<T>(
        &self,
        problem: &Problem,
        kernels: &[Built],
        launching: Launching,
        in_finals: &InFinals,
        work: impl FnOnce(Workbench<'_>, Vec<(usize, BenchError)>) -> T,
    ) -> Result<T> {
        let mut failed = Vec::new();
        let Some((stream, tools)) = &self.gpu else {
            // Two places, inputs that are loaded, and a snapshot.
            check_host_memory(problem, 3, 3, 0)?;
            let bed = CpuBed::new(problem);
            let mut bench = Workbench::new(&bed, CpuStopwatch::default());
            for kernel in kernels {
                let config = kernel.config();
                let config = config.ok_or_else(|| other_device(kernel, "cpu", "a CUDA device"))?;
                let bound = |place| kernel.subject(CpuSubject::new(&bed, config, place), &bed, place, in_finals);
                bench.add(bound(0), Some(bound(1)));
            }
            return Ok(work(bench, failed));
        };
        let mut plans = Vec::new();
        for kernel in kernels {
            let plan = kernel.plan();
            plans.push(plan.ok_or_else(|| other_device(kernel, "cuda", "the device cpu"))?);
        }
        let bed = GpuBed::for_plans(stream, tools, problem, &plans, self.caches)?;
        let mut bench = Workbench::new(&bed, GpuStopwatch::new(tools, stream));
        // One after the other: the driver compiles one module at a time in a process.
        for (index, (kernel, plan)) in kernels.iter().zip(plans).enumerate() {
            let bound = |place| {
                let (in_turn, other) = (bed.in_turn(place, bed.tensors(place)), bed.tensors(1 - place));
                let honest = KernelSubject::new(stream, plan, &in_turn, &[other], launching)?;
                Ok(kernel.subject(honest, &bed, place, in_finals))
            };
            match bound(0).and_then(|subject| Ok((subject, bound(1)?))) {
                Ok((subject, elsewhere)) => bench.add(subject, Some(elsewhere)),
                Err(error) => failed.push((index, error)),
            }
        }
        Ok(work(bench, failed))
    }
}

fn other_device(kernel: &Built, device: &str, suggestion: &'static str) -> BenchError {
    BenchError::from(flashcore::Error::KernelOfOtherDevice {
        kernel: kernel.id(),
        device: device.to_string(),
        suggestion,
    })
}

/// What kernels are built for.
pub(crate) enum For<'a> {
    Here(&'a Attention),
    /// A card that need not be here, with its plan tables.
    Card(&'static Profile, &'a Plans),
}

impl For<'_> {
    /// `None`: the host.
    fn chip(&self) -> Option<Chip> {
        match self {
            For::Here(attention) => attention.device().context().map(|context| context.info().chip()),
            For::Card(profile, _) => Some(Chip::from(*profile)),
        }
    }
}

/// The library's choice for a card that need not be here, by its plan tables.
pub(crate) fn chosen_by(plans: &Plans, problem: &Problem, chip: Chip, cache: &KernelCache) -> Result<Choice, NoPlan> {
    select_among(problem, chip, 16, &plans.suggestions(problem), cache)
}

/// The kernels to time on a problem, each once, built on all cores; and those that cannot be built.
pub(crate) fn built(
    request: &Request,
    problem: &Problem,
    place: &For<'_>,
    cache: &KernelCache,
) -> (Vec<Built>, Vec<Absent>) {
    let words = match (place.chip(), request.kernels.as_slice()) {
        (None, []) => &["default".to_string(), "near".to_string()][..],
        (Some(_), []) => &["default".to_string()],
        (_, words) => words,
    };
    let mut ids: Vec<Result<KernelId, Absent>> = Vec::new();
    // Kernels of the user are opened on the workbench.
    for word in words.iter().filter(|word| !is_own(word)) {
        match ids_of(word, problem, place, cache) {
            // Labels are unique within a measurement.
            Ok(found) => found.into_iter().for_each(|id| add_new(&mut ids, Ok(id))),
            Err(reason) => ids.push(Err(left_out(word, &reason))),
        }
    }
    let build = |id: &Result<KernelId, Absent>| match (id, place.chip()) {
        (Err(missing), _) => Err(missing.clone()),
        (Ok(KernelId::Gpu(config)), Some(chip)) => {
            let plan = Plan::with_cache(problem, config, chip, cache);
            let plan = plan.map(|plan| Built::Gpu(Box::new(plan)));
            plan.map_err(|refusal| left_out(&config.to_string(), &refusal))
        }
        (Ok(KernelId::Cpu(config)), None) => Ok(Built::Cpu(*config)),
        (Ok(id @ KernelId::Cpu(_)), _) => Err(left_out(&id.to_string(), &"it runs on the CPU; ask for the device cpu")),
        (Ok(id), _) => Err(left_out(
            &id.to_string(),
            &"it runs on a GPU; ask for a CUDA device, or for predicted times of a card with --device predict:CARD",
        )),
    };
    let either = |one| match one {
        Ok(kernel) => Either::Left(kernel),
        Err(missing) => Either::Right(missing),
    };
    ids.par_iter().map(build).partition_map(either)
}

/// The kernels that a word of [`KERNEL_WORDS`] or an id stands for.
fn ids_of(word: &str, problem: &Problem, place: &For<'_>, cache: &KernelCache) -> Result<Vec<KernelId>, String> {
    let of = |chosen: Result<Choice, _>| {
        let choice = chosen.map_err(|error: NoPlan| error.to_string())?;
        Ok(vec![KernelId::Gpu(choice.plan.config)])
    };
    match (word, place.chip()) {
        ("default", _) => match place {
            For::Here(attention) => {
                let plan = attention.plan(problem).map_err(|error| error.to_string())?;
                Ok(vec![plan.kernel()])
            }
            For::Card(profile, plans) => of(chosen_by(plans, problem, Chip::from(*profile), cache)),
        },
        // Allocations of the bench begin at multiples of 256 bytes, so an alignment of 16 holds.
        ("heuristics", Some(chip)) => of(select(problem, chip, 16, cache)),
        ("near", Some(chip)) => {
            let configs = near(problem, chip, cache);
            Ok(configs.into_iter().map(KernelId::Gpu).collect())
        }
        ("heuristics" | "near", None) => {
            let config = default_config(problem, rayon::current_num_threads());
            let mut configs = vec![config];
            if word == "near" {
                configs.extend(cpu_neighbours(config));
            }
            Ok(configs.into_iter().map(KernelId::Cpu).collect())
        }
        (id, _) => Ok(vec![id.parse().map_err(|error: flashcore::Error| error.to_string())?]),
    }
}

pub(crate) fn left_out(label: &str, reason: &dyn Display) -> Absent {
    (label.to_string(), reason.to_string())
}

/// A config of the host with other rows, and one with fewer keys.
fn cpu_neighbours(config: CpuConfig) -> impl Iterator<Item = CpuConfig> {
    let tile_q = match config.tile_q {
        64.. => config.tile_q / 2,
        _ => config.tile_q * 2,
    };
    let tile_kv = config.tile_kv / 2;
    let neighbours = [CpuConfig { tile_q, ..config }, CpuConfig { tile_kv, ..config }];
    neighbours.into_iter().filter(|config| config.check().is_ok())
}

#[cfg(test)]
mod tests {
    use flashcore::unstable::plans::{NamedTable, PlanClass, PlanDevice, PlanRow, PlanTable, Plans};

    use super::*;

    #[test]
    fn the_host_times_what_the_library_runs_and_its_neighbours() {
        const ROW: &str = "cpu/m48n36";
        let problem = Problem::named("tiny").unwrap();
        let mut table = PlanTable::new(PlanDevice::of(&Device::Cpu));
        table.put(PlanRow {
            problem: PlanClass::of(&problem).unwrap(),
            kernel: ROW.parse().unwrap(),
            against: "cpu/m16n128".to_string(),
            gain: 0.1,
            interval: [0.09, 0.11],
            revision: "1a2b".to_string(),
            driver: String::new(),
            date: "2026-11-21".to_string(),
        });
        let name = "mine.json".to_string();
        let plans = Plans::of_tables(vec![NamedTable { name, table }]);
        let attention = Attention::with(Device::cpu(), plans).unwrap();
        let place = For::Here(&attention);
        let (kernels, absent) = built(&Request::default(), &problem, &place, &KernelCache::default());
        let ids: Vec<String> = kernels.iter().map(Built::id).collect();
        assert_eq!((ids[0].as_str(), absent.len()), (ROW, 0), "{ids:?}");
        let chosen = default_config(&problem, rayon::current_num_threads()).to_string();
        assert!(ids.len() > 2 && ids[1] == chosen, "{ids:?}");
    }
}
