//! [`Plan`]: a kernel and its launch, resolved for a problem on a target.

use std::sync::Arc;

use flashcore_ir::{Kernel, Launch, Target};
use flashcore_problem::Problem;

use crate::{Config, Refusal};

/// A kernel and its launch, resolved for problem, config and target. It exists only if nothing refuses.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is asked.
    pub problem: Problem,
    /// How it is computed.
    pub config: Config,
    /// The architecture it was resolved for.
    pub target: Target,
    /// The kernel. Lengths and strides are launch arguments, so problems that differ only in those
    /// have the same kernel.
    pub kernel: Arc<Kernel>,
    /// Everything it takes to run it. Buffers are `q`, `k`, `v`, `out`, then `lse` if asked for.
    pub launch: Launch,
}

impl Plan {
    /// Resolves a config for a problem on a target.
    ///
    /// ```
    /// use flashcore_ir::Target;
    /// use flashcore_kernels::{Config, Plan};
    /// use flashcore_problem::Problem;
    /// let config: Config = "scalar/tiled-m32n32-w4-v16".parse()?;
    /// let plan = Plan::new(&Problem::named("mission")?, &config, Target::Sm89)?;
    /// assert_eq!(plan.launch.grid, [8 * 512 / 32, 1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The [`Refusal`] that says why it cannot.
    pub fn new(problem: &Problem, config: &Config, target: Target) -> Result<Plan, Refusal> {
        if !target.is_supported() {
            return Err(Refusal::Target { target });
        }
        let (kernel, launch) = match config {
            Config::Scalar(config) => crate::scalar::plan(problem, config, target)?,
        };
        check_shared_memory(&kernel, target, config)?;
        Ok(Plan {
            problem: problem.clone(),
            config: *config,
            target,
            kernel: Arc::new(kernel),
            launch,
        })
    }
}

/// The last word on shared memory, whatever a family estimated before it built the kernel.
fn check_shared_memory(kernel: &Kernel, target: Target, config: &Config) -> Result<(), Refusal> {
    let (needed, limits) = (kernel.ledger().total_bytes(), target.limits());
    let is_static = kernel.ledger().is_static;
    let allowed = if is_static {
        limits.static_shared_per_block
    } else {
        limits.shared_per_block
    };
    if needed <= allowed {
        return Ok(());
    }
    Err(Refusal::SharedMemory {
        needed,
        kind: if is_static { "static" } else { "dynamic" },
        target,
        allowed,
        static_limit: is_static.then_some(limits.shared_per_block),
        remedy: config.remedy_for_shared_memory(),
    })
}
