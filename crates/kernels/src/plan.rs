//! [`Plan`]: kernels and their launches, resolved for a problem on a target.

use flashcore_ir::{Chip, Target};
use flashcore_problem::{Direction, Problem};

use crate::attention::tap::{self, Tap};
use crate::step::{KernelCache, Step, Steps};
use crate::{Config, Refusal, refuse};

/// Kernels and their launches, resolved for problem, config and target. It exists only if nothing refuses.
///
/// Most plans are one step. All steps run in order on one stream, each after the one before has finished.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The problem.
    pub problem: Problem,
    /// How it is computed.
    pub config: Config,
    /// The architecture it was resolved for.
    pub target: Target,
    /// What runs before the main step: where lengths are on the device the one that makes a schedule of
    /// them; of e4m3 then the one that transposes V and may gather K. Of a backward pass the one that prepares
    /// statistics of rows.
    pub before: Vec<Step>,
    /// The main step.
    pub main: Step,
    /// What runs after it, such as `combine` where the keys are split across blocks, or the kernel of a gradient that
    /// the main step leaves out.
    pub then: Vec<Step>,
    /// What the build shows in addition to its output, or in its place ([`tap`]).
    pub tap: Option<Tap>,
    /// Whether all runs write the same bits. It is not so where blocks add to sums in the order in which they come to
    /// them. Searches and the simulator then compare runs within the tolerance.
    pub reproducible: bool,
}

/// What a config is resolved with: the GPU, the kernels that are there, and what the build shows.
#[derive(Clone, Copy)]
pub(crate) struct Resolver<'k> {
    pub chip: Chip,
    pub kernels: &'k KernelCache,
    pub tap: Option<Tap>,
}

impl Plan {
    /// Resolves a config for a problem on a GPU; a [`Target`] stands for its usual card.
    ///
    /// ```
    /// use flashcore_ir::Target;
    /// use flashcore_kernels::{Config, Plan};
    /// use flashcore_problem::Problem;
    /// let config: Config = "scalar/tiled-m32n32-w4-v16".parse()?;
    /// let plan = Plan::new(&Problem::named("small")?, &config, Target::Sm89)?;
    /// assert_eq!(plan.main.launch.grid, [8 * 512 / 32, 1, 1]);
    /// assert_eq!(plan.steps().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The [`Refusal`] that says why it cannot.
    pub fn new(problem: &Problem, config: &Config, chip: impl Into<Chip>) -> Result<Plan, Refusal> {
        Plan::with_cache(problem, config, chip, &KernelCache::default())
    }

    /// [`Plan::new`] with a cache of kernels.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn with_cache(
        problem: &Problem,
        config: &Config,
        chip: impl Into<Chip>,
        kernels: &KernelCache,
    ) -> Result<Plan, Refusal> {
        let (chip, tap) = (chip.into(), None);
        Plan::resolve(problem, config, Resolver { chip, kernels, tap })
    }

    /// The config built with a tap, which stores scores or probabilities, or launched so that all visible keys weigh
    /// the same: see [`tap`].
    ///
    /// ```
    /// use flashcore_ir::Target;
    /// use flashcore_kernels::{Plan, tap::Tap};
    /// use flashcore_problem::Problem;
    /// let (problem, config) = (Problem::named("small")?, "scalar/tiled-m32n32-w4-v16".parse()?);
    /// let plan = Plan::with_tap(&problem, &config, Target::Sm89, Tap::Scores)?;
    /// assert_eq!(plan.main.launch.buffers[4].name, "tap");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn with_tap(problem: &Problem, config: &Config, chip: impl Into<Chip>, tap: Tap) -> Result<Plan, Refusal> {
        let (chip, kernels) = (chip.into(), &KernelCache::default());
        let with = |tap| Resolver { chip, kernels, tap };
        if tap.is_stored() || problem.direction() == Direction::Backward {
            return Plan::resolve(problem, config, with(Some(tap)));
        }
        let plan = Plan::resolve(&tap::even(problem)?, config, with(None))?;
        Ok(Plan { tap: Some(tap), ..plan })
    }

    fn resolve(problem: &Problem, config: &Config, with: Resolver<'_>) -> Result<Plan, Refusal> {
        let Resolver { chip, tap, .. } = with;
        let target = chip.target;
        if !target.is_supported() {
            return Err(Refusal::Target { target });
        }
        let backward = problem.direction() == Direction::Backward;
        refuse!(backward && tap.is_some() => config.family(), "check its gradients", "taps of the backward pass");
        tap::check(problem, tap)?;
        let Steps { before, main, then } = match config {
            Config::Ladder(config) => Steps::alone(crate::ladder::plan(problem, config, with)?),
            Config::Mma(config) => crate::mma::plan(problem, config, with)?,
            Config::Scalar(config) => crate::scalar::plan(problem, config, with)?,
            Config::Wgmma(config) => crate::wgmma::plan(problem, config, with)?,
        };
        let plan = Plan {
            problem: problem.clone(),
            config: *config,
            target,
            before,
            main,
            then,
            tap,
            // Otherwise blocks of `mma` and `wgmma` add to dQ, to dK and dV of shared tiles, too, as they come.
            reproducible: !backward || problem.deterministic() || matches!(config, Config::Scalar(_)),
        };
        for step in plan.steps() {
            // The last word, whatever a family estimated before it built the kernel.
            Refusal::check_shared_memory(step.kernel.ledger().total_bytes(), chip.target, || {
                config.remedy_for_shared_memory(problem)
            })?;
        }
        Ok(plan)
    }

    /// All steps, in the order they run.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.before.iter().chain(std::iter::once(&self.main)).chain(&self.then)
    }

    /// [`Self::steps`], mutable.
    pub fn steps_mut(&mut self) -> impl Iterator<Item = &mut Step> {
        let before = self.before.iter_mut();
        before.chain(std::iter::once(&mut self.main)).chain(&mut self.then)
    }

    /// How many of the first steps depend on nothing but the lengths' values: the work lists that they leave in the
    /// workspace serve all calls with the same ones, such as those of a model's layers.
    pub fn schedule_steps(&self) -> usize {
        // Before a backward pass, statistics of rows are prepared; V is transposed after the schedule.
        match self.problem.direction() {
            Direction::Forward if self.problem.has_lengths() => self.before.len().min(1),
            _ => 0,
        }
    }

    /// Bytes of workspace that the caller must bring for all steps together; 0 for most plans.
    pub fn workspace_bytes(&self) -> u64 {
        let bytes = self.steps().map(|step| step.launch.workspace_bytes());
        bytes.max().unwrap_or(0)
    }
}
