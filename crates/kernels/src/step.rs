//! One kernel and its launch, and a cache of kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_ir::{BuildErrors, Kernel, Launch};

use crate::Refusal;

/// Kernels already built, by name. The name says all that is baked in: problems that differ only in lengths, strides,
/// mask or scale share one.
#[derive(Debug, Default)]
pub struct KernelCache {
    by_name: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl KernelCache {
    /// Empties the cache if it holds more than `most` kernels, so that long searches do not fill the
    /// memory. Plans keep theirs.
    ///
    /// ```
    /// use flashcore_ir::Target;
    /// use flashcore_kernels::{KernelCache, Plan};
    /// use flashcore_problem::Problem;
    /// use std::sync::Arc;
    /// let (kernels, config) = (KernelCache::default(), "scalar/tiled-m32n32-w4-v16".parse()?);
    /// let mission = Problem::named("mission")?;
    /// let plan = || Plan::with_cache(&mission, &config, Target::Sm89, &kernels);
    /// let (first, again) = (plan()?, plan()?);
    /// assert!(Arc::ptr_eq(&first.main.kernel, &again.main.kernel));
    /// kernels.forget_beyond(1);
    /// assert!(Arc::ptr_eq(&first.main.kernel, &plan()?.main.kernel));
    /// kernels.forget_beyond(0);
    /// assert!(!Arc::ptr_eq(&first.main.kernel, &plan()?.main.kernel));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget_beyond(&self, most: usize) {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if by_name.len() > most {
            by_name.clear();
        }
    }

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

/// A kernel and everything it takes to run it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Its launch, with the buffers that it uses. A buffer's name (`q`, `k`, `v`, `out`, `lse`,
    /// `workspace`) means the same memory in every step of a plan.
    pub launch: Launch,
}
