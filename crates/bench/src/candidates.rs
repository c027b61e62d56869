//! Which kernels a bench times, and what peers are told of the tensors.

use flashcore::KernelId;
use flashcore_cpu::{CpuConfig, default_config};
use flashcore_ir::Target;
use flashcore_kernels::{KernelCache, Plan, select};
use flashcore_problem::Problem;

use crate::peers::{Absent, PeerPlace, PeerTensor, PeerTensors};
use crate::session::Request;

/// The plans to time on a GPU, and the kernels that have none.
pub(crate) fn plans(
    request: &Request,
    problem: &Problem,
    target: Target,
    kernels: &KernelCache,
) -> (Vec<Plan>, Vec<Absent>) {
    let (mut plans, mut absent) = (Vec::new(), Vec::new());
    let mut leave_out = |label: &str, reason: String| {
        absent.push(Absent {
            label: label.to_string(),
            reason,
        });
    };
    if request.kernels.is_empty() {
        // Allocations of the bench itself begin at multiples of 256 bytes.
        match select(problem, target, 16, kernels) {
            Ok(choice) => plans.push(choice.plan),
            Err(error) => leave_out("default", error.to_string()),
        }
    }
    for id in &request.kernels {
        let config = match id.parse() {
            Ok(KernelId::Gpu(config)) => config,
            Ok(KernelId::Cpu(_)) => {
                leave_out(id, "it runs on the CPU; ask for the device cpu".to_string());
                continue;
            }
            Err(error) => {
                leave_out(id, error.to_string());
                continue;
            }
        };
        match Plan::with_cache(problem, &config, target, kernels) {
            Ok(plan) => plans.push(plan),
            Err(refusal) => leave_out(id, refusal.to_string()),
        }
    }
    (plans, absent)
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
    let (mut configs, mut absent) = (Vec::new(), Vec::new());
    for id in &request.kernels {
        let reason = match id.parse() {
            Ok(KernelId::Cpu(config)) => {
                configs.push(config);
                continue;
            }
            Ok(KernelId::Gpu(_)) => "it runs on a GPU; ask for a CUDA device".to_string(),
            Err(error) => error.to_string(),
        };
        absent.push(Absent {
            label: id.clone(),
            reason,
        });
    }
    (configs, absent)
}

pub(crate) fn peer_tensors(place: PeerPlace, problem: &Problem, addresses: [(u64, usize); 4]) -> PeerTensors {
    let layouts = [
        problem.q_layout(),
        problem.k_layout(),
        problem.v_layout(),
        problem.o_layout(),
    ];
    let tensor = |index: usize| PeerTensor {
        address: addresses[index].0,
        bytes: addresses[index].1,
        dtype: problem.dtype(),
        layout: *layouts[index],
    };
    PeerTensors {
        place,
        q: tensor(0),
        k: tensor(1),
        v: tensor(2),
        out: tensor(3),
    }
}
