//! [`Attention`]: computes attention on a device.

use std::fmt;
use std::str::FromStr;

use flashcore_cpu::CpuConfig;
use flashcore_kernels::{Choice, Config};
use flashcore_problem::{Problem, TensorView, TensorViewMut};

use crate::cuda::CudaAttention;
use crate::{Device, DeviceTensors, Error, PlanError, PlanTarget, Plans, Stream};

/// A kernel by id, on the CPU (`cpu/m128n128`) or a GPU (`scalar/tiled-m32n32-w4-v16`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelId {
    /// A config of the CPU.
    Cpu(CpuConfig),
    /// A config of a GPU family.
    Gpu(Config),
}

impl FromStr for KernelId {
    type Err = Error;

    fn from_str(id: &str) -> Result<KernelId, Error> {
        if id.starts_with("cpu/") {
            return Ok(KernelId::Cpu(id.parse()?));
        }
        Ok(KernelId::Gpu(id.parse()?))
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelId::Cpu(config) => config.fmt(f),
            KernelId::Gpu(config) => config.fmt(f),
        }
    }
}

/// How a problem would be computed.
#[derive(Clone, Debug)]
pub enum PlanSummary {
    /// On the CPU, with these levers, chosen for this reason.
    Cpu(CpuChoice),
    /// On a GPU, with this plan, chosen for this reason.
    Gpu(Box<Choice>),
}

/// The levers chosen on the CPU, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuChoice {
    /// The levers.
    pub config: CpuConfig,
    /// Why these, in a sentence.
    pub why: String,
    /// Place of the row they are from in [`Plans::rows`], if they are from one.
    pub row: Option<usize>,
}

impl PlanSummary {
    /// The kernel's id.
    pub fn kernel(&self) -> KernelId {
        match self {
            PlanSummary::Cpu(choice) => KernelId::Cpu(choice.config),
            PlanSummary::Gpu(choice) => KernelId::Gpu(choice.plan.config),
        }
    }

    /// Why this kernel, in a sentence.
    pub fn why(&self) -> &str {
        match self {
            PlanSummary::Cpu(choice) => &choice.why,
            PlanSummary::Gpu(choice) => &choice.why,
        }
    }

    /// Place of the row it is from in [`Plans::rows`] of the problem, if it is from a plan table.
    pub fn row(&self) -> Option<usize> {
        match self {
            PlanSummary::Cpu(choice) => choice.row,
            PlanSummary::Gpu(choice) => choice.suggestion,
        }
    }
}

/// Computes attention on a device. `Send + Sync`: one value serves all threads.
///
/// The first call for a new kernel compiles it (0.1–0.5 s, or under a millisecond from the driver's
/// disk cache); [`warmup`](Attention::warmup) does that ahead of time. Problems that differ only in
/// lengths, strides, mask or scale share a kernel. A new problem for a compiled kernel costs its
/// plan and, for family `wgmma`, a copy of the scheduler's work list to the device (32 B per tile
/// of rows). Both are kept for the last 64 problems.
#[derive(Debug)]
pub struct Attention {
    backend: Backend,
    /// The plan tables, or why the file that `FLASHCORE_PLANS` names cannot be used.
    plans: Result<Plans, PlanError>,
}

#[derive(Debug)]
enum Backend {
    Cpu(Option<CpuConfig>),
    Cuda(Box<CudaAttention>),
}

impl Attention {
    /// Attention on a device, with kernels chosen for each problem: by the plan tables for the
    /// device ([`Plans::load`]), and by heuristics where they have no row.
    ///
    /// Tables are read here, once. Where `FLASHCORE_PLANS` names a file that cannot be used, this
    /// succeeds and every call that needs a kernel fails with [`Error::Plans`].
    pub fn new(device: Device) -> Attention {
        let plans = Plans::load(&PlanTarget::from(&device));
        Attention {
            plans,
            ..Attention::with_plans(device, Plans::none())
        }
    }

    /// The same with these tables, whatever the environment says.
    ///
    /// ```
    /// use flashcore::{Attention, Device, Plans};
    /// let attention = Attention::with_plans(Device::cpu(), Plans::none());
    /// assert!(attention.plans()?.tables().is_empty());
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    pub fn with_plans(device: Device, plans: Plans) -> Attention {
        let backend = match device {
            Device::Cpu => Backend::Cpu(None),
            Device::Cuda(context) => Backend::Cuda(Box::new(CudaAttention::new(context, None))),
        };
        Attention {
            backend,
            plans: Ok(plans),
        }
    }

    /// Attention on a device with one kernel for everything; problems it does not serve are
    /// refused.
    ///
    /// # Errors
    /// [`Error::KernelOfOtherDevice`].
    pub fn with_kernel(device: Device, kernel: KernelId) -> Result<Attention, Error> {
        let backend = match (device, kernel) {
            (Device::Cpu, KernelId::Cpu(config)) => Backend::Cpu(Some(config)),
            (Device::Cuda(context), KernelId::Gpu(config)) => {
                Backend::Cuda(Box::new(CudaAttention::new(context, Some(config))))
            }
            (device, kernel) => {
                return Err(Error::KernelOfOtherDevice {
                    kernel: kernel.to_string(),
                    device: device.to_string(),
                    suggestion: match kernel {
                        KernelId::Cpu(_) => "the device cpu",
                        KernelId::Gpu(_) => "a CUDA device",
                    },
                });
            }
        };
        Ok(Attention {
            backend,
            plans: Ok(Plans::none()),
        })
    }

    /// The plan tables that it uses; none where it was made for one kernel.
    ///
    /// # Errors
    /// [`Error::Plans`] where a file was named that cannot be used.
    pub fn plans(&self) -> Result<&Plans, Error> {
        self.plans.as_ref().map_err(|error| error.clone().into())
    }

    /// The levers for a problem on the CPU. A row applies only with the number of threads it was
    /// measured with.
    fn choose_cpu(&self, problem: &Problem, fixed: Option<CpuConfig>) -> Result<CpuChoice, Error> {
        let chosen = |config, why: &str, row| CpuChoice {
            config,
            why: why.to_string(),
            row,
        };
        if let Some(config) = fixed {
            return Ok(chosen(config, "it was asked for by name", None));
        }
        let threads = rayon::current_num_threads();
        for (place, found) in self.plans()?.rows(problem).iter().enumerate() {
            if let (KernelId::Cpu(config), true) = (found.row.kernel, found.device.units as usize == threads) {
                return Ok(chosen(config, &found.why(), Some(place)));
            }
        }
        let config = flashcore_cpu::default_config(problem, threads);
        let why = "the default of the host: tiles that give every thread a few";
        Ok(chosen(config, why, None))
    }

    /// The device it runs on.
    pub fn device(&self) -> Device {
        match &self.backend {
            Backend::Cpu(_) => Device::Cpu,
            Backend::Cuda(cuda) => Device::Cuda(cuda.context().clone()),
        }
    }

    /// How a problem would be computed, without computing it.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn plan(&self, problem: &Problem) -> Result<PlanSummary, Error> {
        self.plan_aligned(problem, 16)
    }

    /// The same for tensors whose first elements are aligned to only `alignment` bytes, such as
    /// slices of other tensors ([`DeviceTensors::alignment`]).
    ///
    /// # Errors
    /// As [`Attention::plan`].
    pub fn plan_aligned(&self, problem: &Problem, alignment: u32) -> Result<PlanSummary, Error> {
        match &self.backend {
            Backend::Cpu(config) => Ok(PlanSummary::Cpu(self.choose_cpu(problem, *config)?)),
            Backend::Cuda(cuda) => {
                let choice = cuda.choose(problem, alignment, self.plans()?)?;
                Ok(PlanSummary::Gpu(Box::new(choice)))
            }
        }
    }

    /// Bytes of workspace that [`forward_on`](Attention::forward_on) needs for tensors of this
    /// [alignment](DeviceTensors::alignment); 0 for most plans. Compiles the kernel at its first
    /// use.
    ///
    /// # Errors
    /// As [`Attention::plan`], and failures of the compiler.
    pub fn workspace_bytes(&self, problem: &Problem, alignment: u32) -> Result<u64, Error> {
        match &self.backend {
            Backend::Cpu(_) => Ok(0),
            Backend::Cuda(cuda) => cuda.workspace_bytes(problem, alignment, self.plans()?),
        }
    }

    /// Compiles what these problems need and copies their tables to the device, so that no later
    /// call waits for a compiler, and calls can be captured. Does nothing on the CPU.
    ///
    /// # Errors
    /// The first problem that cannot be computed, and why.
    pub fn warmup(&self, problems: &[Problem]) -> Result<(), Error> {
        for problem in problems {
            match &self.backend {
                Backend::Cpu(_) => {}
                Backend::Cuda(cuda) => drop(cuda.prepare(problem, 16, self.plans()?)?),
            }
        }
        Ok(())
    }

    /// Computes attention on tensors in host memory, and returns when the output is there.
    ///
    /// Tensors are `[batch, seq, heads, head_dim]` in the problem's layouts; `lse` is given exactly
    /// where the problem asks for it, `[batch, num_heads, seq_len_q]`. On a GPU this copies the
    /// inputs there and the output back; for tensors already there use [`Attention::forward_on`].
    ///
    /// # Errors
    /// Tensors that are not the problem's, a problem no kernel serves, or a failure of the device.
    pub fn forward(
        &self,
        problem: &Problem,
        q: TensorView<'_>,
        k: TensorView<'_>,
        v: TensorView<'_>,
        out: &mut TensorViewMut<'_>,
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        problem.check_tensors(&q, &k, &v, out, lse.as_deref())?;
        match &self.backend {
            Backend::Cpu(config) => {
                let options = flashcore_cpu::Options {
                    config: Some(self.choose_cpu(problem, *config)?.config),
                    ..flashcore_cpu::Options::default()
                };
                Ok(flashcore_cpu::attention_with(&options, problem, q, k, v, out, lse)?)
            }
            Backend::Cuda(cuda) => cuda.forward_host(problem, [q, k, v], out, lse, self.plans()?),
        }
    }

    /// Enqueues attention on tensors in device memory on the caller's stream, and returns at once.
    ///
    /// It allocates nothing and waits for nothing, so it may be captured into a graph once the
    /// problem is [warm](Attention::warmup). A fault shows at the stream's next synchronisation.
    ///
    /// # Errors
    /// Buffers that are missing, too small or of another device, scales for tensors that have none,
    /// a problem that no kernel serves, or a launch that cannot work.
    pub fn forward_on(&self, stream: &Stream, problem: &Problem, tensors: &DeviceTensors<'_>) -> Result<(), Error> {
        match &self.backend {
            Backend::Cpu(_) => Err(Error::NotOnCuda {
                device: Device::Cpu.to_string(),
            }),
            Backend::Cuda(cuda) => cuda.forward_on(stream, problem, tensors, self.plans()?),
        }
    }
}
