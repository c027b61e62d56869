//! Fused attention for NVIDIA GPUs, in Rust, and on the CPU where there is no GPU.
//!
//! ```
//! use flashcore::{Attention, Device, Problem, Tensor, f16};
//!
//! let q = Tensor::from_slice([1, 64, 8, 64], &vec![f16::ONE; 64 * 8 * 64])?; // [batch, seq, heads, head_dim]
//! let k = Tensor::from_slice([1, 64, 2, 64], &vec![f16::ONE; 64 * 2 * 64])?;
//! let problem = Problem::of(&q, &k, &k).causal().build()?;
//!
//! let attention = Attention::new(Device::best())?;
//! let output = attention.forward(&problem, &q, &k, &k)?;
//! assert_eq!(output.out.as_slice::<f16>()?[0], f16::ONE);
//! # Ok::<(), flashcore::Error>(())
//! ```
//!
//! One verb, [`Attention::run`], runs a [task](Task) on [`Operands`]: tensors by their [names](Name), in host memory. A
//! task is a [`Problem`] (attention, or its gradients), an [`Append`] of new rows to a cache, or a [`Combine`] of
//! attention over parts of the keys; [`Task::tensors`] lists its operands. [`Attention::run_on`] does the same in
//! device memory and a [`Queue`]; it waits for nothing, and a queue that [records](Queue::recording) gives a [`Graph`].
//! [`Attention::prepare`] chooses and compiles the kernel ahead. [`Attention::forward`], [`Attention::backward`],
//! [`Attention::forward_on`] and [`Attention::backward_on`] allocate what they return. [`Attention::run_foreign`] is
//! for streams and memory of other libraries. [`Attention`] is `Send + Sync`. The numbered programs in the folder
//! `examples` of the crate's sources teach each of them in turn.
//!
//! Kernels are chosen by plan tables and heuristics; [`Attention::tune`] measures faster ones on the device at hand.
//! [`unstable`] has what these are made of: the kernel language, for kernels of your own, the driver, plan tables, and
//! inputs, the float64 reference and the comparison with it. The library has no database, opens no network connection
//! and prints nothing.
//!
//! # fp8
//!
//! Q, K and V of [`DType::E4M3`] come with a scale for each batch and K/V head
//! ([`TensorView::with_scales`], or the operands [`Name::QScale`] and so on); the output is bf16. [`quantise()`]
//! makes such tensors.
//!
//! ```
//! use flashcore::{Attention, DType, Device, Layout, Problem, Tensor, absmax_scales, bf16, quantise};
//!
//! let problem = Problem::builder().heads(4, 2).seq_len(64).head_dim(64).dtype(DType::E4M3).build()?;
//! let fp8 = |name, layout: &Layout| {
//!     let wide = Tensor::from_fn(DType::F32, *layout, |_, s, h, d| ((s + 3 * h + 7 * d) % 13) as f32 - 6.0);
//!     quantise(name, &wide.view(), absmax_scales(&wide.view(), problem.num_kv_heads()))
//! };
//! let (q, k, v) = (fp8("q", problem.q_layout())?, fp8("k", problem.k_layout())?, fp8("v", problem.v_layout())?);
//! let output = Attention::new(Device::cpu())?.forward(&problem, &q, &k, &v)?;
//! assert!(output.out.as_slice::<bf16>()?.iter().all(|x| x.is_finite()));
//! # Ok::<(), flashcore::Error>(())
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `cpu` (default) | `Device::Cpu`, [`Device::best`] |
//! | `cuda` (default) | `Device::Cuda`, [`Queue`], [`unstable::cuda`]; needs no toolkit, only a driver at run time |
//! | `cudarc` | `flashcore::cudarc`: slices and streams of cudarc, in the version that you use |

// Tests read what they wrote, and what lies in the repository.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(not(any(feature = "cpu", feature = "cuda")))]
compile_error!("flashcore needs one of its features `cpu` and `cuda`: enable one, or use the default features");

mod attention;
mod call;
#[cfg(feature = "cuda")]
#[doc(hidden)] // its place is `unstable`
pub mod cuda;
#[cfg(feature = "cudarc")]
pub mod cudarc;
mod device;
mod error;
#[doc(hidden)] // its place is `unstable`
pub mod files;
#[cfg(feature = "cuda")]
mod kept;
#[cfg(feature = "cuda")]
mod memory;
#[doc(hidden)] // its place is `unstable`
pub mod plans;
mod prepared;
#[cfg(feature = "cuda")]
mod queue;
#[cfg(feature = "cuda")]
mod schedule;
mod tune;

pub use attention::{Attention, KernelId, Options};
pub use call::Output;
pub use device::Device;
pub use error::Error;
#[cfg(feature = "cpu")]
pub use flashcore_cpu::CpuError;
#[cfg(feature = "cuda")]
pub use flashcore_cuda::Graph;
#[doc(hidden)] // its place is `unstable`
pub use flashcore_ir as kernel;
pub use flashcore_problem::{
    Access, Alibi, Append, AppendPlace, AppendValues, CausalAlign, Combine, DType, Direction, Element, ElementType,
    GradientLayouts, Gradients, Host, KvLengths, Layout, Lengths, Mask, Memory, Name, Operands, Problem,
    ProblemBuilder, ProblemError, QLengths, Rotary, Scalar, Sequence, SlotMapping, Task, Tensor, TensorSpec,
    TensorView, View, ViewMut, absmax_scales, bf16, f16, quantise,
};
#[cfg(feature = "cuda")]
pub use memory::{Cuda, CudaTensor, DeviceSliceMut};
pub use plans::Plans;
pub use prepared::Prepared;
#[cfg(feature = "cuda")]
pub use queue::Queue;
#[cfg(feature = "cuda")]
pub use schedule::Schedule;
pub use tune::{TuneProgress, TuneSearch, Tuned};

/// Inputs, the float64 reference of a problem, and the comparison of an output with it.
///
/// ```
/// use flashcore::unstable::testing::{InputKind, Inputs, Tolerance, compare, reference};
/// use flashcore::{Attention, Device, Problem};
///
/// let problem = Problem::builder().heads(4, 2).seq_len(33).head_dim(64).build()?;
/// let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
/// let output = Attention::new(Device::cpu())?.forward(&problem, &q, &k, &v)?;
/// let want = reference(&problem, &q.view(), &k.view(), &v.view())?;
/// assert!(compare(&problem, &output.out.view(), &want, Tolerance::of(problem.dtype()))?.passed);
/// # Ok::<(), flashcore::Error>(())
/// ```
#[doc(hidden)] // its place is `unstable`
pub mod testing {
    pub use flashcore_problem::{
        Comparison, GradientRow, InputKind, Inputs, ReferenceRow, Saved, Slack, Tolerance, compare, compare_gradient,
        compare_lse, reference, reference_gradients, reference_rows,
    };
}

/// What may change in any release: the kernel language, the driver, plans and their tables, and what tests are made of.
///
/// Everything else at the root of this crate changes with a version alone, and is listed in `public-items.txt`.
pub mod unstable {
    #[cfg(feature = "cuda")]
    #[doc(inline)]
    pub use crate::cuda;
    #[doc(inline)]
    pub use crate::{files, plans, testing};
    /// The kernel language: a kernel as a Rust value that prints itself as PTX.
    #[doc(inline)]
    pub use flashcore_ir as kernel;
}

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
