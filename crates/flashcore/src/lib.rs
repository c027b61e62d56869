//! Fused attention for NVIDIA GPUs, in Rust, and on the CPU where there is no GPU.
//!
//! ```
//! use flashcore::{Attention, Device, InputKind, Inputs, Problem, Tensor};
//!
//! let problem = Problem::builder().heads(8, 8).seq_len(64).head_dim(64).build()?;
//! let Inputs { q, k, v } = Inputs::generate(&problem, InputKind::Normal, 0);
//! let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
//!
//! let attention = Attention::new(Device::best());
//! attention.forward(&problem, q.view(), k.view(), v.view(), &mut out.view_mut(), None)?;
//! assert!(out.view().get(0, 0, 0, 0).is_finite());
//! # Ok::<(), flashcore::Error>(())
//! ```
//!
//! fp8: Q, K and V of [`DType::E4M3`] come with a scale for each batch and K/V head
//! ([`TensorView::with_scales`], [`DeviceScales`]); the output is bf16. [`quantise()`] makes such
//! tensors.
//!
//! ```
//! use flashcore::{Attention, DType, Device, Layout, Problem, Tensor, absmax_scales, quantise};
//!
//! let problem = Problem::builder().heads(4, 2).seq_len(64).head_dim(64).dtype(DType::E4M3).build()?;
//! let fp8 = |name, layout: &Layout| {
//!     let wide = Tensor::from_fn(DType::F32, *layout, |_, s, h, d| ((s + 3 * h + 7 * d) % 13) as f32 - 6.0);
//!     quantise(name, &wide.view(), absmax_scales(&wide.view(), problem.num_kv_heads()))
//! };
//! let (q, k, v) = (fp8("q", problem.q_layout())?, fp8("k", problem.k_layout())?, fp8("v", problem.v_layout())?);
//! let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout()); // bf16
//! let attention = Attention::new(Device::cpu());
//! attention.forward(&problem, q.view(), k.view(), v.view(), &mut out.view_mut(), None)?;
//! assert!(out.view().get(0, 0, 0, 0).is_finite());
//! # Ok::<(), flashcore::Error>(())
//! ```
//!
//! [`Attention::forward`] takes tensors in host memory; [`Attention::forward_on`] takes tensors in
//! device memory and the caller's own stream, allocates nothing and waits for nothing. Both are
//! `Send + Sync`. Kernels are chosen by [plan tables](Plans) and heuristics. The library has no
//! database, opens no network connection and prints nothing.

mod attention;
mod cuda;
mod device;
mod error;
mod plans;
mod tensors;

pub use attention::{Attention, CpuChoice, KernelId, PlanSummary};
pub use device::Device;
pub use error::Error;
pub use flashcore_cuda::{Context, DeviceBuffer, DeviceInfo, DeviceSlice, Event, Graph, Stream};
pub use flashcore_kernels::{Config, Plan, Step};
pub use flashcore_problem::{
    CausalAlign, Comparison, DType, InputKind, Inputs, Layout, Mask, Problem, ProblemError, ReferenceRow, Tensor,
    TensorView, TensorViewMut, Tolerance, absmax_scales, compare, compare_lse, quantise, reference, reference_rows,
};
pub use plans::{
    CPU_NAME_VARIABLE, FoundRow, NamedTable, PLAN_FORMAT, PLANS_VARIABLE, PlanClass, PlanDevice, PlanEntry, PlanError,
    PlanRow, PlanSetting, PlanTable, PlanTarget, Plans, cpu_name, read_table, shipped_tables, table_files,
    user_plans_folder,
};
pub use tensors::{DeviceScales, DeviceTensors, ScaleBuffers};

/// The README's Rust is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
