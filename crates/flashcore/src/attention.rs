//! [`Attention`]: computes attention on a device.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "cpu")]
use flashcore_cpu::CpuConfig;
use flashcore_kernels::Config;
use flashcore_problem::{Lengths, Problem, Tensor, TensorView, TensorViewMut};

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

/// What [`Attention::forward`] computes, and [`Attention::backward`] reads.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Output {
    /// `[batch, seq_len_q, num_heads, head_dim_v]` of [`Problem::out_dtype`], in the problem's
    /// layout of O.
    pub out: Tensor,
    /// The log-sum-exp of each row, natural logarithm, f32 `[batch, num_heads, seq_len_q]` (of
    /// packed query rows `[num_heads, total]`), where the problem asks for it
    /// ([`ProblemBuilder::return_lse`](crate::ProblemBuilder::return_lse)).
    pub lse: Option<Vec<f32>>,
}

/// Computes attention on a device. `Send + Sync`: one value serves all threads.
///
/// The first call for a new kernel compiles it (0.1–0.5 s, or under a millisecond from the driver's
/// disk cache); [`warmup`](Attention::warmup) does that ahead of time. Problems that differ only in
/// strides or scale share a kernel, and those that differ in lengths do where the same config is
/// chosen for them ([`plan`](Attention::plan) says which). A new problem for a compiled kernel
/// costs its plan and, for family `wgmma`, a copy of the scheduler's work list to the device (32 B per tile
/// of rows). Both are kept for the 64 problems used last.
#[derive(Debug)]
pub struct Attention {
    pub(crate) backend: Backend,
    pub(crate) plans: Plans,
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
    /// use flashcore::plans::Plans;
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
        Ok(Attention { backend, plans })
    }

    /// The plan tables that it uses; none where it was made for one kernel.
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    #[cfg(feature = "cpu")]
    pub(crate) fn cpu_options(
        &self,
        problem: &Problem,
        fixed: Option<CpuConfig>,
    ) -> Result<flashcore_cpu::Options<'static>, Error> {
        Ok(flashcore_cpu::Options {
            config: Some(self.choose_cpu(problem, fixed)?.config),
            ..flashcore_cpu::Options::default()
        })
    }

    /// The levers for a problem on the CPU. A row applies only with the number of threads it was
    /// measured with.
    #[cfg(feature = "cpu")]
    pub(crate) fn choose_cpu(&self, problem: &Problem, fixed: Option<CpuConfig>) -> Result<CpuChoice, Error> {
        let chosen = |config, why: &str, row| CpuChoice {
            config,
            why: why.to_string(),
            row,
        };
        if let Some(config) = fixed {
            return Ok(chosen(config, "it was asked for by name", None));
        }
        let threads = rayon::current_num_threads();
        for (place, found) in self.plans().rows(problem).iter().enumerate() {
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
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Device::Cpu,
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => Device::Cuda(cuda.context().clone()),
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
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(config) => {
                let mut choice = self.choose_cpu(problem, *config)?;
                if let Some(slow) = flashcore_cpu::SLOW_BUILD {
                    choice.why = format!("{}; {slow}", choice.why);
                }
                Ok(PlanSummary::Cpu(choice))
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(_) => self.plan_aligned(problem, 16),
        }
    }

    /// The same for tensors whose first elements are aligned to only `alignment` bytes, such as
    /// slices of other tensors ([`DeviceTensors::alignment`](crate::DeviceTensors::alignment)).
    ///
    /// # Errors
    /// As [`Attention::plan`].
    #[cfg(feature = "cuda")]
    pub fn plan_aligned(&self, problem: &Problem, alignment: u32) -> Result<PlanSummary, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => self.plan(problem),
            Backend::Cuda(cuda) => {
                let choice = cuda.choose(problem, alignment, &self.plans)?;
                Ok(PlanSummary::Gpu(Box::new(choice)))
            }
        }
    }

    /// Bytes of workspace that [`run_foreign`](Attention::run_foreign) needs for tensors of this
    /// [alignment](crate::DeviceTensors::alignment); 0 for most plans. Compiles the kernel at its first
    /// use.
    ///
    /// # Errors
    /// As [`Attention::plan`], and failures of the compiler.
    #[cfg(feature = "cuda")]
    pub fn workspace_bytes(&self, problem: &Problem, alignment: u32) -> Result<u64, Error> {
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(_) => Ok(0),
            Backend::Cuda(cuda) => cuda.workspace_bytes(problem, alignment, &self.plans),
        }
    }

    /// Compiles what these problems need and copies their tables to the device, so that no later
    /// call waits for a compiler, and calls can be captured. That is for tensors whose address is a
    /// multiple of 16 bytes, as allocations are; others, and [`Attention::combine`], compile at
    /// their first call. The CPU has nothing to compile.
    ///
    /// # Errors
    /// The first problem that cannot be computed, and why.
    pub fn warmup(&self, problems: &[Problem]) -> Result<(), Error> {
        for problem in problems {
            match &self.backend {
                #[cfg(feature = "cpu")]
                Backend::Cpu(config) => drop(self.choose_cpu(problem, *config)?),
                #[cfg(feature = "cuda")]
                Backend::Cuda(cuda) => drop(cuda.prepare(problem, 16, &self.plans)?),
            }
        }
        Ok(())
    }

    /// Computes attention on tensors in host memory, [`Tensor`]s or [`TensorView`]s, and returns
    /// the output.
    ///
    /// Tensors are `[batch, seq, heads, head_dim]` in the problem's layouts, of equal lengths (for
    /// others: [`Attention::forward_lengths`]). On a GPU this copies
    /// the inputs there and the output back; for tensors already there use
    /// [`Attention::forward_on`].
    ///
    /// ```
    /// use flashcore::{Attention, Device, Problem, Tensor, f16};
    ///
    /// let problem = Problem::builder().heads(2, 2).seq_len(16).head_dim(64).build()?;
    /// let ones = Tensor::from_slice([1, 16, 2, 64], &[f16::ONE; 16 * 2 * 64])?;
    /// let output = Attention::new(Device::cpu())?.forward(&problem, &ones, &ones, &ones)?;
    /// assert_eq!(output.out.as_slice::<f16>()?, ones.as_slice::<f16>()?); // a mean of ones
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// Tensors that are not the problem's, a problem that no kernel serves, or a failure of the
    /// device.
    pub fn forward<'a>(
        &self,
        problem: &Problem,
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
    ) -> Result<Output, Error> {
        let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), 0);
        let mut lse = problem.return_lse().then(|| vec![0.0; problem.lse_len()]);
        self.forward_into(problem, q, k, v, &mut out, lse.as_deref_mut())?;
        Ok(Output { out, lse })
    }

    /// As [`Attention::forward`], into the caller's memory. The gaps of `out` keep their bytes;
    /// `lse` is given exactly where the problem asks for it, f32 `[batch, num_heads, seq_len_q]`; of
    /// packed query rows `[num_heads, total]`.
    ///
    /// ```
    /// use flashcore::{Attention, Device, Problem, TensorView, TensorViewMut};
    ///
    /// let problem = Problem::builder().heads(1, 1).seq_len(8).head_dim(64);
    /// let problem = problem.dtype(flashcore::DType::F32).return_lse(true).build()?;
    /// let (ones, mut out, mut lse) = ([1f32; 8 * 64], [0f32; 8 * 64], [0f32; 8]);
    /// let q = TensorView::from_slice([1, 8, 1, 64], &ones)?;
    /// let out_view = TensorViewMut::from_slice([1, 8, 1, 64], &mut out)?;
    /// Attention::new(Device::cpu())?.forward_into(&problem, q, q, q, out_view, Some(&mut lse))?;
    /// assert_eq!(out, ones);
    /// assert!((lse[7] - (8.0 + 8f32.ln())).abs() < 1e-5); // eight scores of 64 / √64
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_into<'a, 'o>(
        &self,
        problem: &Problem,
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
        out: impl Into<TensorViewMut<'o>>,
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let tensors = [q.into(), k.into(), v.into()];
        self.forward_lengths(problem, tensors, &Lengths::default(), out, lse)
    }

    /// As [`Attention::forward_into`], with the values of lengths: packed sequences, contiguous and
    /// paged caches ([`QLengths`](crate::QLengths), [`KvLengths`](crate::KvLengths)). Rows of `out`
    /// and `lse` that are of no sequence keep their bytes.
    ///
    /// ```
    /// use flashcore::{Attention, DType, Device, KvLengths, Lengths, Mask, Problem, QLengths};
    /// use flashcore::{TensorView, TensorViewMut};
    ///
    /// // Sequence 0 has a prompt of 3 rows, sequence 1 decodes a row; K and V lie in pages of 4 keys.
    /// let problem = Problem::builder().batch(2).heads(2, 1).head_dim(64).dtype(DType::F32).mask(Mask::CAUSAL)
    ///     .seq_len_q(3).q_lengths(QLengths::Packed { total: 4, used: false })
    ///     .seq_len_kv(8).kv_lengths(KvLengths::Paged { page_size: 4, pages: 5, max_pages: 2 })
    ///     .build()?;
    /// let lengths = Lengths {
    ///     cu_seqlens_q: Some(&[0, 3, 4][..]),
    ///     seqused_k: Some(&[3, 7]),
    ///     block_table: Some(&[4, -1, 0, 2]), // [batch, max_pages]
    ///     ..Lengths::default()
    /// };
    /// let (q, cache, mut out) = ([1f32; 4 * 2 * 64], [1f32; 5 * 4 * 64], [0f32; 4 * 2 * 64]);
    /// let q = TensorView::from_slice([1, 4, 2, 64], &q)?; // [1, total, heads, head_dim]
    /// let cache = TensorView::from_slice([5, 4, 1, 64], &cache)?; // [pages, page_size, kv_heads, head_dim]
    /// let out_view = TensorViewMut::from_slice([1, 4, 2, 64], &mut out)?;
    /// Attention::new(Device::cpu())?.forward_lengths(&problem, [q, cache, cache], &lengths, out_view, None)?;
    /// assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6)); // means of ones
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`], and values that are missing or contradict the problem
    /// ([`Problem::sequences`]).
    pub fn forward_lengths<'o>(
        &self,
        problem: &Problem,
        [q, k, v]: [TensorView<'_>; 3],
        lengths: &Lengths<&[i32]>,
        out: impl Into<TensorViewMut<'o>>,
        lse: Option<&mut [f32]>,
    ) -> Result<(), Error> {
        let out = &mut out.into();
        problem.check_tensors(&q, &k, &v, out, lse.as_deref())?;
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(config) => {
                let options = self.cpu_options(problem, *config)?;
                Ok(flashcore_cpu::attention_with(
                    &options,
                    problem,
                    [q, k, v],
                    lengths,
                    out,
                    lse,
                )?)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.forward_host(problem, [q, k, v], lengths, out, lse, &self.plans),
        }
    }
}
