//! Family `scalar`: attention without tensor cores, a readable ladder that serves every problem.
//!
//! - [`naive`]: one thread a query row and slice of columns; every operand straight from memory.
//! - [`tiled`]: K/V tiles in shared memory, register-blocked products, warp reductions.
//!
//! Both compute in f32 and differ only in how work is shared out, so each is a check on the other.

pub mod naive;
pub mod tiled;

mod common;
mod space;

use flashcore_problem::{DType, Problem};
use serde::{Deserialize, Serialize};

use crate::Refusal;
use crate::attention::params::Shape;
use crate::ids::Parts;
use crate::stage::StopAfter;
use crate::step::{KernelCache, Step};
use common::Access;

pub use space::SPACE;

/// The family's name.
pub const NAME: &str = "scalar";

/// One choice of the family's levers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "rung", rename_all = "snake_case")]
pub enum Config {
    /// One thread a query row.
    Naive(naive::Levers),
    /// Tiles in shared memory.
    Tiled(tiled::Levers),
}

impl Config {
    /// The id within the family, such as `tiled-m32n32-w4-v16`.
    pub fn id(&self) -> String {
        match self {
            Config::Naive(levers) => format!("naive-t{}-v{}", levers.threads, levers.vector_bytes),
            Config::Tiled(levers) => {
                let tiled::Levers {
                    rows,
                    cols,
                    warps,
                    vector_bytes,
                } = levers;
                format!("tiled-m{rows}n{cols}-w{warps}-v{vector_bytes}")
            }
        }
    }

    /// The config of an id, if it is one. Whether its levers are allowed is [`Plan::new`](crate::Plan::new)'s to say.
    pub fn from_id(id: &str) -> Option<Config> {
        let (rung, levers) = id.split_once('-')?;
        let mut parts = Parts::new(levers);
        let config = match rung {
            "naive" => Config::Naive(naive::Levers {
                threads: parts.number("t")?,
                vector_bytes: parts.number("v")?,
            }),
            "tiled" => Config::Tiled(tiled::Levers {
                rows: parts.number("m")?,
                cols: parts.number("n")?,
                warps: parts.number("w")?,
                vector_bytes: parts.number("v")?,
            }),
            _ => return None,
        };
        (config.id() == id).then_some(config)
    }

    /// Bytes a memory access.
    pub fn vector_bytes(&self) -> u32 {
        match self {
            Config::Naive(levers) => levers.vector_bytes,
            Config::Tiled(levers) => levers.vector_bytes,
        }
    }

    /// The same levers with another access width.
    pub fn with_vector_bytes(mut self, bytes: u32) -> Config {
        match &mut self {
            Config::Naive(levers) => levers.vector_bytes = bytes,
            Config::Tiled(levers) => levers.vector_bytes = bytes,
        }
        self
    }

    pub(crate) fn remedy_for_shared_memory(&self) -> String {
        match self {
            Config::Naive(_) => "this kernel uses none".to_string(),
            Config::Tiled(levers) => levers.remedy_for_shared_memory(),
        }
    }
}

/// Every config of the family: what the tests run and the tuner will search.
pub fn configs() -> Vec<Config> {
    let mut configs = Vec::new();
    for vector_bytes in Access::WIDTHS {
        configs.extend(naive::THREADS.map(|threads| Config::Naive(naive::Levers { threads, vector_bytes })));
        for (rows, cols) in tiled::TILES {
            for warps in tiled::WARPS {
                configs.push(Config::Tiled(tiled::Levers {
                    rows,
                    cols,
                    warps,
                    vector_bytes,
                }));
            }
        }
    }
    configs
}

/// The configs used where nobody names one, in order of preference: what was fastest for such a problem,
/// then what needs less, with the widest accesses that the strides and `alignment` (bytes) allow. The last
/// one, [`naive`], is never refused.
pub fn preferred_configs(problem: &Problem, alignment: u32) -> Vec<Config> {
    let vector_bytes = Access::widest(problem).min(alignment);
    let tiled = tiled::preferred(problem).iter().map(|&(rows, cols, warps)| {
        Config::Tiled(tiled::Levers {
            rows,
            cols,
            warps,
            vector_bytes,
        })
    });
    let naive = Config::Naive(naive::Levers {
        threads: 128,
        vector_bytes,
    });
    tiled.chain([naive]).collect()
}

/// Bytes of the widest accesses that the strides of a problem's tensors allow.
pub fn widest(problem: &Problem) -> u32 {
    Access::widest(problem)
}

/// Kernel and launch for a problem, or why not.
pub(crate) fn plan(
    problem: &Problem,
    config: &Config,
    kernels: &KernelCache,
    stop_after: Option<StopAfter>,
) -> Result<Step, Refusal> {
    let unsupported = |what: &str, remedy| Refusal::Unsupported {
        family: NAME,
        what: what.to_string(),
        remedy,
    };
    if problem.dtype() == DType::E4M3 {
        return Err(unsupported("e4m3 tensors", "family wgmma does, on Hopper"));
    }
    if problem.var_len().is_some() {
        return Err(unsupported(
            "variable-length batches (cu_seqlens)",
            "no family serves it yet",
        ));
    }
    Access::check(problem, config)?;
    let shape = Shape::new(problem, config.vector_bytes(), stop_after);
    match config {
        Config::Naive(levers) => naive::plan(problem, levers, &shape, kernels),
        Config::Tiled(levers) => tiled::plan(problem, levers, &shape, kernels),
    }
}
