//! Which config is used where nobody names one, and why.

use std::convert::Infallible;
use std::fmt;

use flashcore_ir::Target;
use flashcore_problem::Problem;

use thiserror::Error;

use crate::{Config, KernelCache, Plan, Refusal, mma, scalar, wgmma};

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

/// No config serves a problem on a target.
#[derive(Clone, Debug, Error)]
#[error("no kernel serves this problem: {}", considered.iter().map(Considered::to_string).collect::<Vec<_>>().join("; "))]
pub struct NoPlan {
    /// What was tried, and why each was refused.
    pub considered: Vec<Considered>,
}

impl fmt::Display for Considered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            Some(refusal) => write!(f, "{}: {refusal}", self.config),
            None => write!(f, "{}: chosen", self.config),
        }
    }
}

/// The plan for a problem on a target where nobody names a config. `alignment` is what the address of every
/// tensor's first element is a multiple of, in bytes: 16 for memory of one's own, perhaps less for a slice
/// of somebody else's tensor.
///
/// # Errors
/// The refusals of every config in the order they were tried, where none serves.
pub fn select(problem: &Problem, target: Target, alignment: u32, kernels: &KernelCache) -> Result<Choice, NoPlan> {
    match select_with(problem, target, alignment, kernels, |_| Ok::<_, Infallible>(Ok(()))) {
        Ok(selected) => selected.map(|(choice, ())| choice),
        Err(never) => match never {},
    }
}

/// The same, where a further judge has a say on each plan: the compiler of a device, which may have to spill
/// what another one does not. A plan that it refuses is passed over, and the refusal kept.
///
/// # Errors
/// The inner one as for [`select()`]; the outer one where `judge` could not judge, which ends the search.
pub fn select_with<T, F>(
    problem: &Problem,
    target: Target,
    alignment: u32,
    kernels: &KernelCache,
    mut judge: impl FnMut(&Plan) -> Result<Result<T, Refusal>, F>,
) -> Result<Result<(Choice, T), NoPlan>, F> {
    let mut considered = Vec::new();
    for (config, why) in candidates(problem, target, alignment) {
        let judged = match Plan::with_cache(problem, &config, target, kernels) {
            Ok(plan) => judge(&plan)?.map(|verdict| (plan, verdict)),
            Err(refusal) => Err(refusal),
        };
        match judged {
            Ok((plan, verdict)) => {
                considered.push(Considered { config, refusal: None });
                return Ok(Ok((Choice { plan, why, considered }, verdict)));
            }
            Err(refusal) => considered.push(Considered {
                config,
                refusal: Some(refusal),
            }),
        }
    }
    Ok(Err(NoPlan { considered }))
}

/// What to try, best first, and why each would be chosen.
fn candidates(problem: &Problem, target: Target, alignment: u32) -> Vec<(Config, String)> {
    let mut candidates = Vec::new();
    // Copies of 16 bytes need tensors that start at multiples of 16.
    if alignment >= mma::ALIGNMENT {
        for proposal in wgmma::proposals(problem, target) {
            let why = format!(
                "the default of family wgmma for problems of head_dim {} and {} keys on {target}: {}",
                problem.head_dim(),
                problem.seq_len_kv(),
                proposal.why
            );
            candidates.push((Config::Wgmma(proposal.config), why));
        }
        for proposal in mma::proposals(problem, target) {
            let why = format!(
                "the default of family mma for {} problems of head_dim {} on {target}: {}",
                proposal.size,
                problem.head_dim(),
                proposal.why
            );
            candidates.push((Config::Mma(proposal.config), why));
        }
    }
    for config in scalar::preferred_configs(problem, alignment) {
        let why = format!(
            "the scalar family serves every problem, and of its tiles this was the fastest on such shapes that {target} has \
             room for at head_dim {}",
            problem.head_dim()
        );
        candidates.push((Config::Scalar(config), why));
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_compiler_refuses_is_passed_over_and_told() {
        let problem = Problem::named("mission").unwrap();
        let kernels = KernelCache::default();
        let first = select(&problem, Target::Sm90a, 16, &kernels).unwrap();
        let refusal = Refusal::Compiler {
            message: "it spills".to_string(),
        };
        let judge = |plan: &Plan| {
            let refused = plan.config == first.plan.config;
            Ok::<_, Infallible>(if refused { Err(refusal.clone()) } else { Ok(()) })
        };
        let Ok(selected) = select_with(&problem, Target::Sm90a, 16, &kernels, judge);
        let (choice, ()) = selected.unwrap();
        assert_ne!(choice.plan.config, first.plan.config);
        assert_eq!(choice.considered[0].refusal, Some(refusal));
    }

    #[test]
    fn tensors_that_start_anywhere_are_served_by_the_scalar_family() {
        let problem = Problem::named("mission").unwrap();
        let choice = select(&problem, Target::Sm90a, 2, &KernelCache::default()).unwrap();
        assert_eq!(choice.plan.config.family(), "scalar");
    }
}
