//! Which kernels a bench times, and what peers are told of the tensors.

use std::collections::BTreeSet;
use std::fmt::Display;

use flashcore::{Context, KernelId};
use flashcore_cpu::{CpuConfig, default_config};
use flashcore_cuda::{Function, ModuleOptions};
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, Plan, Step, select};
use flashcore_problem::Problem;
use rayon::prelude::*;

use crate::peers::{Absent, PeerPlace, PeerScales, PeerTensor, PeerTensors};
use crate::session::Request;

/// The plans to time on a GPU, and the kernels that have none; built on all cores.
pub(crate) fn plans(
    request: &Request,
    problem: &Problem,
    target: Target,
    kernels: &KernelCache,
) -> (Vec<Plan>, Vec<Absent>) {
    if request.kernels.is_empty() {
        // Allocations of the bench itself begin at multiples of 256 bytes.
        let choice = select(problem, target, 16, kernels).map_err(|error| left_out("default", &error));
        return apart(vec![choice.map(|choice| choice.plan)]);
    }
    let plan = |id: &&String| match id.parse() {
        Ok(KernelId::Gpu(config)) => {
            Plan::with_cache(problem, &config, target, kernels).map_err(|refusal| left_out(id, &refusal))
        }
        Ok(KernelId::Cpu(_)) => Err(left_out(id, &"it runs on the CPU; ask for the device cpu")),
        Err(error) => Err(left_out(id, &error)),
    };
    apart(once_each(&request.kernels).par_iter().map(plan).collect())
}

/// Compiles plans on all cores, so that binding them finds them loaded: those that compile, and those that do not.
pub(crate) fn compiled(context: &Context, plans: Vec<Plan>) -> (Vec<Plan>, Vec<Absent>) {
    let compile = |plan: Plan| {
        let load = |step: &Step| Function::load(context, &step.kernel, &ModuleOptions::default()).map(drop);
        let loaded = plan.steps().try_for_each(load);
        match loaded {
            Ok(()) => Ok(plan),
            Err(error) => Err(left_out(&plan.config.to_string(), &error)),
        }
    };
    apart(plans.into_par_iter().map(compile).collect())
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
fn once_each(ids: &[String]) -> Vec<&String> {
    let mut seen = BTreeSet::new();
    ids.iter().filter(|id| seen.insert(*id)).collect()
}

/// The configs to time on the host: those asked for, or the default and its neighbours.
pub(crate) fn cpu_configs(request: &Request, problem: &Problem) -> (Vec<CpuConfig>, Vec<Absent>) {
    if request.kernels.is_empty() {
        let default = default_config(problem, rayon::current_num_threads());
        let neighbours = [
            default,
            CpuConfig {
                tile_q: if default.tile_q >= 64 {
                    default.tile_q / 2
                } else {
                    default.tile_q * 2
                },
                ..default
            },
            CpuConfig {
                tile_kv: default.tile_kv / 2,
                ..default
            },
        ];
        return (
            neighbours.into_iter().filter(|config| config.check().is_ok()).collect(),
            Vec::new(),
        );
    }
    let config = |id: &String| match id.parse() {
        Ok(KernelId::Cpu(config)) => Ok(config),
        Ok(KernelId::Gpu(_)) => Err(left_out(id, &"it runs on a GPU; ask for a CUDA device")),
        Err(error) => Err(left_out(id, &error)),
    };
    apart(once_each(&request.kernels).into_iter().map(config).collect())
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
