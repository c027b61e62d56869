//! [`Plan`]: a kernel and its launch, resolved for a problem on a target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_ir::{BuildErrors, Kernel, Launch, Target};
use flashcore_problem::Problem;

use crate::{Config, Refusal};

/// Kernels already written down, by name. A kernel's name says all that is baked into it, and problems
/// that differ only in lengths, strides, mask or scale share one.
#[derive(Debug, Default)]
pub struct KernelCache {
    by_name: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl KernelCache {
    /// The kernel of this name, built if it is the first time it is asked for.
    pub(crate) fn get_or_build(
        &self,
        name: &str,
        build: impl FnOnce(&str) -> Result<Kernel, BuildErrors>,
    ) -> Result<Arc<Kernel>, Refusal> {
        let lock = || self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = lock().get(name) {
            return Ok(kernel.clone());
        }
        let kernel = Arc::new(build(name)?);
        lock().insert(name.to_string(), kernel.clone());
        Ok(kernel)
    }
}

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
        Plan::with_cache(problem, config, target, &KernelCache::default())
    }

    /// The same, taking the kernel from a cache if it is there.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn with_cache(
        problem: &Problem,
        config: &Config,
        target: Target,
        kernels: &KernelCache,
    ) -> Result<Plan, Refusal> {
        if !target.is_supported() {
            return Err(Refusal::Target { target });
        }
        let (kernel, launch) = match config {
            Config::Mma(config) => crate::mma::plan(problem, config, target, kernels)?,
            Config::Scalar(config) => crate::scalar::plan(problem, config, kernels)?,
        };
        check_shared_memory(&kernel, target, config)?;
        Ok(Plan {
            problem: problem.clone(),
            config: *config,
            target,
            kernel,
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
