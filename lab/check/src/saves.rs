//! Finds configs that save a number of bytes of shared memory, and their predicted cost.

use flashcore_ir::Profile;
use flashcore_kernels::{Config, KernelCache, Plan, Step};
use flashcore_problem::Problem;
use flashcore_sim::occupancy;
use serde::Serialize;

use crate::cost::Observation;
use crate::levers::parts;

/// A config with less shared memory.
#[derive(Clone, Debug, Serialize)]
pub struct Saving {
    /// Its id.
    pub kernel: String,
    /// The levers that differ, such as `s3 to s2`.
    pub levers: Vec<String>,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// Saved bytes.
    pub saved: u32,
    /// Predicted time relative to that of the plan; `None` if it is unknown.
    pub slowdown: Option<f64>,
    /// Blocks per SM that shared memory allows.
    pub blocks_per_sm: u32,
}

/// Shared memory of the step of a plan that uses most.
pub fn shared_bytes(plan: &Plan) -> u32 {
    plan.steps().map(step_bytes).max().unwrap_or(0)
}

pub(crate) fn step_bytes(step: &Step) -> u32 {
    step.launch.dynamic_shared_bytes.max(step.kernel.ledger().total_bytes())
}

/// Configs that differ in one lever (or two, if one is not enough) and save at least `bytes` of a
/// block's shared memory, in order of predicted time.
pub fn savings(plan: &Plan, bytes: u32, profile: &Profile) -> Vec<Saving> {
    let kernels = KernelCache::default();
    let neighbours = |config: &Config| neighbours(config, &plan.problem);
    let near = neighbours(&plan.config);
    let mut found = those_that_save(plan, bytes, profile, &near, &kernels);
    if found.is_empty() {
        let mut further: Vec<Config> = near.iter().flat_map(neighbours).collect();
        further.retain(|config| *config != plan.config && !near.contains(config));
        further.sort_by_key(Config::to_string);
        further.dedup();
        found = those_that_save(plan, bytes, profile, &further, &kernels);
    }
    // Times are predicted for the twelve smallest savings.
    found.sort_by_key(|(saving, _)| saving.saved);
    let mine = micros(plan, profile);
    for (saving, plan) in found.iter_mut().take(12) {
        saving.slowdown = mine.zip(micros(plan, profile)).map(|(mine, theirs)| theirs / mine);
    }
    let slowdown = |saving: &Saving| saving.slowdown.unwrap_or(f64::INFINITY);
    let mut savings: Vec<Saving> = found.into_iter().map(|(saving, _)| saving).collect();
    savings.sort_by(|a, b| slowdown(a).total_cmp(&slowdown(b)));
    savings
}

fn those_that_save(
    plan: &Plan,
    bytes: u32,
    profile: &Profile,
    configs: &[Config],
    kernels: &KernelCache,
) -> Vec<(Saving, Plan)> {
    let now = shared_bytes(plan);
    let saving = |config: &Config| {
        let other = Plan::with_cache(&plan.problem, config, plan.target, kernels).ok()?;
        let shared = shared_bytes(&other);
        let saved = now.checked_sub(shared).filter(|&saved| saved >= bytes.max(1))?;
        let limits = profile.target.limits();
        let saving = Saving {
            kernel: config.to_string(),
            levers: levers(&plan.config, config),
            shared_bytes: shared,
            saved,
            slowdown: None,
            blocks_per_sm: occupancy(&limits, other.main.kernel.threads(), 0, shared).blocks_per_sm,
        };
        Some((saving, other))
    };
    configs.iter().filter_map(saving).collect()
}

fn micros(plan: &Plan, profile: &Profile) -> Option<f64> {
    let prediction = Observation::of(plan).ok()?.predict(profile, &[]);
    prediction.does_not_fit().is_none().then_some(prediction.micros)
}

/// Configs that differ in one lever.
fn neighbours(config: &Config, problem: &Problem) -> Vec<Config> {
    let (family, values) = config.levers();
    let near = family.of_problem(problem).neighbours(&values).into_iter();
    near.map(|values| Config::of(&family, values)).collect()
}

/// The levers that differ, as ids say them.
fn levers(from: &Config, to: &Config) -> Vec<String> {
    let ((family, from), (_, to)) = (from.levers(), to.levers());
    let part = |values, at| match parts(&family, values, at) {
        none if none.is_empty() => "nothing".to_string(),
        parts => parts.join("-"),
    };
    let differing = (0..family.levers.len()).filter(|&at| from[at] != to[at]);
    differing
        .map(|at| format!("{} to {}", part(&from, at), part(&to, at)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_problem::Problem;

    #[test]
    fn levers_are_told_apart() {
        let config = |id: &str| id.parse::<Config>().unwrap();
        let from = config("mma/m64n64-w4x1-s2-b1-qreg-xor-cond");
        assert_eq!(
            levers(&from, &config("mma/m64n32-w4x1-s2-b1-qreg-xor-cond")),
            ["n64 to n32"]
        );
        assert_eq!(
            levers(&from, &config("mma/m64n64-w4x1-s3-b2-qreg-xor-cond")),
            ["s2 to s3", "b1 to b2"]
        );
    }

    #[test]
    fn what_is_said_to_be_saved_is() {
        let l4 = Profile::named("l4").unwrap();
        let problem = Problem::named("small").unwrap();
        let plan = Plan::new(
            &problem,
            &"mma/m64n64-w4x1-s2-b1-qreg-xor-cond".parse().unwrap(),
            l4.target,
        )
        .unwrap();
        let found = savings(&plan, 8224, l4);
        assert!(!found.is_empty());
        for saving in &found {
            let other = Plan::new(&problem, &saving.kernel.parse().unwrap(), l4.target).unwrap();
            assert_eq!(shared_bytes(&other) + saving.saved, shared_bytes(&plan), "{saving:?}");
            assert!(saving.saved >= 8224 && saving.levers.len() == 1, "{saving:?}");
        }
        assert!(found[0].slowdown.is_some());
        // More than there is: nothing.
        assert!(savings(&plan, 10_000_000, l4).is_empty());
    }
}
