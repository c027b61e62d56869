//! Which config is used where nobody names one, and why.

use flashcore_ir::Target;
use flashcore_problem::Problem;

use crate::{Config, Plan, Refusal, scalar};

/// A config that was looked at, and what came of it.
#[derive(Clone, Debug)]
pub struct Considered {
    /// The config.
    pub config: Config,
    /// Why it was refused, if it was.
    pub refusal: Option<Refusal>,
}

/// The plan chosen for a problem, and how.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The plan.
    pub plan: Plan,
    /// Why this one, in a sentence.
    pub why: String,
    /// What was looked at, in order of preference; the last one was taken.
    pub considered: Vec<Considered>,
}

/// The plan for a problem on a target where nobody names a config.
///
/// # Errors
/// The refusals of every config in the order they were tried, where none serves.
pub fn select(problem: &Problem, target: Target) -> Result<Choice, Vec<Considered>> {
    let default = scalar::default_config(problem, target);
    let fallback = scalar::Config::Naive(scalar::naive::Levers {
        threads: 128,
        vector_bytes: default.vector_bytes(),
    });
    let mut considered = Vec::new();
    for config in [default, fallback].map(Config::Scalar) {
        match Plan::new(problem, &config, target) {
            Ok(plan) => {
                considered.push(Considered { config, refusal: None });
                return Ok(Choice {
                    plan,
                    why: format!(
                        "the scalar family serves every problem; this tile fits {target}'s shared memory and registers at \
                         head_dim {}, with the widest accesses the strides allow",
                        problem.head_dim()
                    ),
                    considered,
                });
            }
            Err(refusal) => considered.push(Considered {
                config,
                refusal: Some(refusal),
            }),
        }
    }
    Err(considered)
}
