//! [`Attention`]: computes attention on a device. Its calls are in `call.rs`; from there the way to the driver is by
//! `queue.rs`, `cuda/mod.rs` and `cuda/launch.rs`, then in crate cuda `plan.rs` (arguments of a launch), `function.rs`
//! and `raw/launch.rs`.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "cpu")]
use flashcore_cpu::CpuConfig;
use flashcore_kernels::Config;
use flashcore_problem::Problem;

#[cfg(feature = "cuda")]
use crate::cuda::CudaAttention;
#[cfg(feature = "cpu")]
use crate::plans::CpuChoice;
use crate::plans::{PlanSummary, PlanTarget, Plans};
use crate::{Device, Error};

/// A kernel by id, on the CPU (`cpu/m128n128`) or a GPU (`scalar/tiled-m32n32-w4-v16`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelId {
    /// A config of the CPU.
    #[cfg(feature = "cpu")]
    Cpu(CpuConfig),
    /// A config of a GPU family.
    Gpu(Config),
}

impl FromStr for KernelId {
    type Err = Error;

    fn from_str(id: &str) -> Result<KernelId, Error> {
        if id.starts_with("cpu/") {
            #[cfg(feature = "cpu")]
            return Ok(KernelId::Cpu(id.parse()?));
            #[cfg(not(feature = "cpu"))]
            return Err(Error::without_feature(id, "cpu"));
        }
        Ok(KernelId::Gpu(id.parse()?))
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "cpu")]
            KernelId::Cpu(config) => config.fmt(f),
            KernelId::Gpu(config) => config.fmt(f),
        }
    }
}

/// Computes attention on a device. `Send + Sync`: one value serves all threads.
///
/// The first call for a new kernel compiles it (0.1–0.5 s, or under a millisecond from the driver's
/// disk cache); [`prepare`](Attention::prepare) does that ahead of time. Problems that differ only in
/// strides or scale share a kernel, and those that differ in lengths do where the same config is
/// chosen for them ([`Prepared::kernel`](crate::Prepared::kernel) says which). A new problem for a compiled
/// kernel costs its plan and, for family `wgmma`, a copy of the scheduler's work list to the device (32 B per
/// tile of rows). Both are kept for about 1,024 tasks, those used most; a new one does not stall the calls of others.
#[derive(Debug)]
pub struct Attention {
    pub(crate) backend: Backend,
    pub(crate) plans: Plans,
    /// Which one it is, of all that there ever were.
    pub(crate) number: u64,
}

/// What an [`Attention`] does in another way than [`Attention::new`]: [`Attention::with`] takes it, or one of its
/// fields.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// One kernel for everything. Problems that it does not serve are refused, and no table is read.
    pub kernel: Option<KernelId>,
    /// These plan tables, whatever the environment says.
    pub plans: Option<Plans>,
    /// Multiprocessors of the GPU that are left to other work, such as communication (FlashAttention-3's `sm_margin`).
    ///
    /// Kernels whose blocks are persistent have as many fewer of them: family `wgmma`, and kernels with a schedule.
    /// Other kernels are chosen, and their keys split, for as many fewer multiprocessors, but their blocks run wherever
    /// there is room.
    pub sm_margin: u32,
    /// Whether the values that are on the GPU are checked before each call reads them: lengths, offsets, pages and
    /// bounds of attention, and of appends slots, parts of the cache, padding and positions, too. By default they are
    /// where the environment has `FLASHCORE_CHECK=1`.
    ///
    /// A call whose values contradict its problem or append fails with [`Error::Problem`], which names the argument,
    /// the sequence and the value, as it does for values in host memory, which are always checked. Nothing of the call
    /// is enqueued then. The check is one more launch, and the call waits for what is in its stream, so it is for
    /// finding mistakes. A call that is captured into a graph does not wait: the graph checks at each launch, and what
    /// it finds is the error of the next call of the device, of any `Attention` that checks, outside of a capture
    /// ([`Error::Captured`]).
    pub checks: Option<bool>,
}

impl From<KernelId> for Options {
    fn from(kernel: KernelId) -> Options {
        Options {
            kernel: Some(kernel),
            ..Options::default()
        }
    }
}

impl From<Plans> for Options {
    fn from(plans: Plans) -> Options {
        Options {
            plans: Some(plans),
            ..Options::default()
        }
    }
}

#[derive(Debug)]
pub(crate) enum Backend {
    #[cfg(feature = "cpu")]
    Cpu(Option<CpuConfig>),
    #[cfg(feature = "cuda")]
    Cuda(Box<CudaAttention>),
}

impl Attention {
    /// Attention on a device, with kernels chosen for each problem: by the plan tables for the
    /// device ([`Plans::load`]), and by heuristics where they have no row. Tables are read here, once.
    ///
    /// # Errors
    /// [`Error::Plans`] where `FLASHCORE_PLANS` names a file that cannot be used.
    pub fn new(device: Device) -> Result<Attention, Error> {
        Attention::with(device, Options::default())
    }

    /// The same with [`Options`], or with one kernel, or with plan tables.
    ///
    /// ```
    /// use flashcore::unstable::plans::Plans;
    /// use flashcore::{Attention, Device, KernelId, Options};
    ///
    /// let kernel: KernelId = "cpu/m64n128".parse()?;
    /// let attention = Attention::with(Device::cpu(), kernel)?;
    /// assert!(Attention::with(Device::cpu(), Plans::none())?.plans().tables().is_empty());
    ///
    /// let checked = Options { checks: Some(true), ..Options::default() };
    /// let attention = Attention::with(Device::best(), checked)?;
    ///
    /// let of_a_gpu: KernelId = "mma/m64n64-w4x1-s2-b2-qreg-xor-cond".parse()?;
    /// assert!(Attention::with(Device::cpu(), of_a_gpu).is_err());
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::new`]; [`Error::KernelOfOtherDevice`]; [`Error::SmMargin`] where no multiprocessor would be
    /// left: the CPU has none.
    #[cfg_attr(not(feature = "cpu"), allow(unreachable_patterns))] // every kernel runs on the only device
    pub fn with(device: Device, options: impl Into<Options>) -> Result<Attention, Error> {
        let Options {
            kernel,
            plans,
            sm_margin,
            checks,
        } = options.into();
        let plans = match (plans, kernel) {
            (Some(plans), _) => plans,
            (None, Some(_)) => Plans::none(),
            (None, None) => Plans::load(&PlanTarget::from(&device))?,
        };
        let backend = match (device, kernel) {
            #[cfg(feature = "cpu")]
            (Device::Cpu, _) if sm_margin > 0 => {
                return Err(Error::SmMargin {
                    given: sm_margin,
                    sms: 0,
                });
            }
            #[cfg(feature = "cpu")]
            (Device::Cpu, None) => Backend::Cpu(None),
            #[cfg(feature = "cpu")]
            (Device::Cpu, Some(KernelId::Cpu(config))) => Backend::Cpu(Some(config)),
            #[cfg(feature = "cuda")]
            (Device::Cuda(context), None) => {
                Backend::Cuda(Box::new(CudaAttention::new(context, None, sm_margin, checks)?))
            }
            #[cfg(feature = "cuda")]
            (Device::Cuda(context), Some(KernelId::Gpu(config))) => {
                Backend::Cuda(Box::new(CudaAttention::new(context, Some(config), sm_margin, checks)?))
            }
            (device, Some(kernel)) => {
                return Err(Error::KernelOfOtherDevice {
                    kernel: kernel.to_string(),
                    device: device.to_string(),
                    suggestion: match kernel {
                        #[cfg(feature = "cpu")]
                        KernelId::Cpu(_) => "the device cpu",
                        KernelId::Gpu(_) => "a CUDA device",
                    },
                });
            }
        };
        #[cfg(not(feature = "cuda"))]
        let _ = checks; // values in host memory are always checked
        static MADE: AtomicU64 = AtomicU64::new(0);
        Ok(Attention {
            backend,
            plans,
            number: MADE.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The plan tables that it uses; none where it was made for one kernel.
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// The levers for a problem on the CPU, and the place of their row in [`Plans::rows`] if they are from one. A row
    /// applies only with the number of threads it was measured with.
    #[cfg(feature = "cpu")]
    pub(crate) fn cpu_levers(&self, problem: &Problem, fixed: Option<CpuConfig>) -> (CpuConfig, Option<usize>) {
        let threads = rayon::current_num_threads();
        let rows = if fixed.is_some() {
            Vec::new()
        } else {
            self.plans.rows(problem)
        };
        let of_row = rows
            .iter()
            .enumerate()
            .find_map(|(place, found)| match found.row.kernel {
                KernelId::Cpu(config) if found.device.units as usize == threads => Some((config, Some(place))),
                _ => None,
            });
        let otherwise = || fixed.unwrap_or_else(|| flashcore_cpu::default_config(problem, threads));
        of_row.unwrap_or_else(|| (otherwise(), None))
    }

    /// The same, and why. It tells of a build that is not optimised.
    #[cfg(feature = "cpu")]
    pub(crate) fn choose_cpu(&self, problem: &Problem, fixed: Option<CpuConfig>) -> CpuChoice {
        let (config, row) = self.cpu_levers(problem, fixed);
        let mut why = match row {
            Some(place) => self.plans.rows(problem)[place].why(),
            None if fixed.is_some() => "it was asked for by name".to_string(),
            None => "the default of the host: tiles that give every thread a few".to_string(),
        };
        if let Some(slow) = flashcore_cpu::SLOW_BUILD {
            why = format!("{why}; {slow}");
        }
        CpuChoice { config, why, row }
    }

    /// The device it runs on.
    pub fn device(&self) -> Device {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Device::Cpu,
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => Device::Cuda(cuda.context.clone()),
        }
    }

    /// How a problem would be computed, without computing it.
    ///
    /// ```
    /// use flashcore::{Attention, Device, Problem};
    /// let problem = Problem::builder().heads(8, 8).seq_len(512).head_dim(64).build()?;
    /// let plan = Attention::new(Device::best())?.plan(&problem)?;
    /// println!("{}: {}", plan.kernel(), plan.why());
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn plan(&self, problem: &Problem) -> Result<PlanSummary, Error> {
        let plan = self.prepare(problem)?.plan();
        Ok(plan.unwrap_or_else(|| unreachable!("every problem has a plan")))
    }
}
