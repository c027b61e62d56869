//! Which kernels a bench times, and what peers are told of the tensors.

use std::fmt::Display;

use flashcore::{Attention, Context, KernelId, PlanDevice, PlanTarget, Plans};
use flashcore_cpu::{CpuConfig, default_config};
use flashcore_cuda::{Function, ModuleOptions};
use flashcore_ir::Chip;
use flashcore_kernels::{Config, KernelCache, Plan, Step, Suggestion, near, select_among};
use flashcore_problem::Problem;
use rayon::prelude::*;

use crate::error::BenchError;
use crate::peers::{Absent, PeerPlace, PeerScales, PeerTensor, PeerTensors};
use crate::problems::Case;
use crate::session::Request;

/// Words that stand for kernels, problem by problem, and what for.
pub const KERNEL_WORDS: [(&str, &str); 3] = [
    (
        "default",
        "what the library uses: a row of a plan table, or what heuristics choose",
    ),
    ("heuristics", "what heuristics choose, whatever the plan tables say"),
    (
        "near",
        "what heuristics choose, and kernels that differ from it a little",
    ),
];

/// The plans to time on a GPU, and the kernels that have none; built on all cores.
pub(crate) fn plans(
    request: &Request,
    problem: &Problem,
    chip: Chip,
    tables: &Plans,
    kernels: &KernelCache,
) -> (Vec<Plan>, Vec<Absent>) {
    // Allocations of the bench itself begin at multiples of 256 bytes.
    let chosen = |word: &str, rows: &[Suggestion]| {
        let choice = select_among(problem, chip, 16, rows, kernels);
        choice
            .map(|choice| choice.plan.config)
            .map_err(|error| left_out(word, &error))
    };
    let configs = |word: &String| -> Vec<Result<Config, Absent>> {
        match word.as_str() {
            "default" => vec![chosen(word, &tables.suggestions(problem))],
            "heuristics" => vec![chosen(word, &[])],
            "near" => near(problem, chip, kernels).into_iter().map(Ok).collect(),
            id => vec![match id.parse() {
                Ok(KernelId::Gpu(config)) => Ok(config),
                Ok(KernelId::Cpu(_)) => Err(left_out(id, &"it runs on the CPU; ask for the device cpu")),
                Err(error) => Err(left_out(id, &error)),
            }],
        }
    };
    let (configs, mut absent) = apart(words(request, "default").iter().flat_map(configs).collect());
    let plan = |config: &Config| {
        let plan = Plan::with_cache(problem, config, chip, kernels);
        plan.map_err(|refusal| left_out(&config.to_string(), &refusal))
    };
    let (plans, refused) = apart(once_each(&configs).into_par_iter().map(plan).collect());
    absent.extend(refused);
    (plans, absent)
}

/// The kernels that a request times on a GPU, problem by problem, with what stands for kernels written out. For compiling
/// them beforehand.
///
/// # Errors
/// Plan tables that are named and cannot be read.
pub fn kernels_of(context: &Context, request: &Request) -> Result<Vec<(Problem, Vec<String>)>, BenchError> {
    let info = context.info();
    let chip = info.chip();
    let tables = Plans::load(&PlanTarget::Device(PlanDevice::cuda(info))).map_err(flashcore::Error::from)?;
    let kernels = KernelCache::default();
    let ids = |case: &Case| {
        let (plans, _) = plans(request, &case.problem, chip, &tables, &kernels);
        let ids = plans.iter().map(|plan| plan.config.to_string()).collect();
        (case.problem.clone(), ids)
    };
    Ok(request.cases.iter().map(ids).collect())
}

/// What the request names, or what is timed where it names nothing.
fn words(request: &Request, usual: &str) -> Vec<String> {
    match request.kernels.is_empty() {
        true => vec![usual.to_string()],
        false => request.kernels.clone(),
    }
}

/// Compiles plans, so that binding them finds them loaded: those that compile, and those that do not.
pub(crate) fn compiled(context: &Context, plans: Vec<Plan>) -> (Vec<Plan>, Vec<Absent>) {
    let compile = |plan: Plan| {
        let load = |step: &Step| Function::load(context, &step.kernel, &ModuleOptions::default()).map(drop);
        let loaded = plan.steps().try_for_each(load);
        match loaded {
            Ok(()) => Ok(plan),
            Err(error) => Err(left_out(&plan.config.to_string(), &error)),
        }
    };
    // By turns: the driver compiles one at a time in a process.
    apart(plans.into_iter().map(compile).collect())
}

fn left_out(label: &str, reason: &dyn Display) -> Absent {
    Absent {
        label: label.to_string(),
        reason: reason.to_string(),
    }
}

fn apart<T>(all: Vec<Result<T, Absent>>) -> (Vec<T>, Vec<Absent>) {
    let (mut there, mut absent) = (Vec::new(), Vec::new());
    for one in all {
        match one {
            Ok(one) => there.push(one),
            Err(missing) => absent.push(missing),
        }
    }
    (there, absent)
}

/// Labels are unique within a measurement.
fn once_each<T: PartialEq>(all: &[T]) -> Vec<&T> {
    let mut once: Vec<&T> = Vec::new();
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

/// The configs to time on the host: those asked for, or the default and its neighbours.
pub(crate) fn cpu_configs(
    request: &Request,
    problem: &Problem,
    attention: &Attention,
) -> (Vec<CpuConfig>, Vec<Absent>) {
    let heuristics = default_config(problem, rayon::current_num_threads());
    let chosen = || match attention.plan(problem).map(|plan| plan.kernel()) {
        Ok(KernelId::Cpu(config)) => Ok(config),
        Ok(KernelId::Gpu(_)) => Ok(heuristics),
        Err(error) => Err(left_out("default", &error)),
    };
    let configs = |word: &String| -> Vec<Result<CpuConfig, Absent>> {
        match word.as_str() {
            "default" => vec![chosen()],
            "heuristics" => vec![Ok(heuristics)],
            "near" => cpu_neighbours(heuristics).map(Ok).collect(),
            id => vec![match id.parse() {
                Ok(KernelId::Cpu(config)) => Ok(config),
                Ok(KernelId::Gpu(_)) => Err(left_out(id, &"it runs on a GPU; ask for a CUDA device")),
                Err(error) => Err(left_out(id, &error)),
            }],
        }
    };
    let (configs, absent) = apart(words(request, "near").iter().flat_map(configs).collect());
    (once_each(&configs).into_iter().copied().collect(), absent)
}

/// A config of the host, one with other rows, and one with fewer keys.
fn cpu_neighbours(config: CpuConfig) -> impl Iterator<Item = CpuConfig> {
    let rows = CpuConfig {
        tile_q: if config.tile_q >= 64 {
            config.tile_q / 2
        } else {
            config.tile_q * 2
        },
        ..config
    };
    let keys = CpuConfig {
        tile_kv: config.tile_kv / 2,
        ..config
    };
    [config, rows, keys].into_iter().filter(|config| config.check().is_ok())
}

/// The tensors of a problem as peers are told of them. `addresses` are those of q, k, v and out, with their bytes;
/// `scales` those of the scales of q, k and v.
pub(crate) fn peer_tensors(
    place: PeerPlace,
    problem: &Problem,
    addresses: [(u64, usize); 4],
    scales: Option<[u64; 3]>,
) -> PeerTensors {
    let layouts = [
        problem.q_layout(),
        problem.k_layout(),
        problem.v_layout(),
        problem.o_layout(),
    ];
    let tensor = |index: usize, dtype| PeerTensor {
        address: addresses[index].0,
        bytes: addresses[index].1,
        dtype,
        layout: *layouts[index],
    };
    PeerTensors {
        place,
        q: tensor(0, problem.dtype()),
        k: tensor(1, problem.dtype()),
        v: tensor(2, problem.dtype()),
        scales: scales.map(|[q, k, v]| PeerScales {
            shape: [problem.batch(), problem.num_kv_heads()],
            q,
            k,
            v,
        }),
        out: tensor(3, problem.out_dtype()),
    }
}
