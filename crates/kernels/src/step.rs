//! One kernel and its launch, and a cache of kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use flashcore_ir::{BuildErrors, Kernel, Launch};

use crate::Refusal;

/// Kernels already written down, by name. A kernel's name says all that is baked into it, and problems
/// that differ only in lengths, strides, mask or scale share one.
#[derive(Debug, Default)]
pub struct KernelCache {
    by_name: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl KernelCache {
    /// Forgets them all where there are more than so many: for who meets one kernel after the other for hours. Plans keep
    /// what they have.
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

/// A kernel and everything it takes to run it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The kernel. Lengths and strides are launch arguments, so problems that differ only in those
    /// have the same kernel.
    pub kernel: Arc<Kernel>,
    /// Its launch. Buffers go by their names, `q`, `k`, `v`, `out`, `lse`, `workspace`, which mean the same
    /// memory in every step of a plan; each step lists those that it touches.
    pub launch: Launch,
}
