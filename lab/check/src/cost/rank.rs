//! [`rank`]: configs in the order of their predicted times.

use flashcore_ir::{Kernel, Profile};
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;

use super::observe::Observation;
use super::predict::Prediction;

/// A config and its predicted time.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The config.
    pub config: Config,
    /// What is predicted of it.
    pub prediction: Prediction,
}

/// A config without a prediction.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// The config.
    pub config: Config,
    /// Why: its refusal, or why its cost cannot be told.
    pub why: String,
}

/// Configs by predicted time.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    /// Fastest first; equals in the order given.
    pub ranked: Vec<Ranked>,
    /// Those without a prediction, in the order given.
    pub skipped: Vec<Skipped>,
}

/// Orders configs by the time predicted for a problem on a card. `registers` says what the compiler gives a
/// kernel's thread, where somebody knows; see [`Observation::predict`] for what is assumed otherwise.
///
/// ```
/// use flashcore_check::cost::rank;
/// use flashcore_ir::Profile;
/// use flashcore_kernels::KernelCache;
/// use flashcore_problem::Problem;
/// let configs = ["scalar/naive-t128-v16", "scalar/tiled-m16n16-w4-v16"].map(|id| id.parse().unwrap());
/// let l4 = Profile::named("l4").unwrap();
/// let ranking = rank(&Problem::named("tiny")?, &configs, l4, &|_| None, &KernelCache::default());
/// assert_eq!(ranking.ranked.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn rank(
    problem: &Problem,
    configs: &[Config],
    profile: &Profile,
    registers: &dyn Fn(&Kernel) -> Option<u32>,
    kernels: &KernelCache,
) -> Ranking {
    let mut ranking = Ranking::default();
    for &config in configs {
        let outcome = Plan::with_cache(problem, &config, profile.target, kernels)
            .map_err(|refusal| refusal.to_string())
            .and_then(|plan| {
                let observed = Observation::with_cache(&plan, kernels).map_err(|error| error.to_string())?;
                let registers: Vec<_> = plan.steps().map(|step| registers(&step.kernel)).collect();
                Ok(observed.predict(profile, &registers))
            });
        match outcome {
            Ok(prediction) => match prediction.does_not_fit() {
                None => ranking.ranked.push(Ranked { config, prediction }),
                Some(limit) => ranking.skipped.push(Skipped {
                    config,
                    why: format!("no block fits on an SM of {}: {limit}", profile.name),
                }),
            },
            Err(why) => ranking.skipped.push(Skipped { config, why }),
        }
    }
    ranking
        .ranked
        .sort_by(|a, b| a.prediction.micros.total_cmp(&b.prediction.micros));
    ranking
}
