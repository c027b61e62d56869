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
//! [`Attention::forward`] takes tensors in host memory; [`Attention::forward_on`] takes tensors in
//! device memory and the caller's own stream, allocates nothing and waits for nothing. Both are
//! `Send + Sync`. The library holds no database, opens no network connection and prints nothing.

mod attention;
mod cuda;
mod device;
mod error;

pub use attention::{Attention, KernelId, PlanSummary};
pub use cuda::DeviceTensors;
pub use device::Device;
pub use error::Error;
pub use flashcore_cuda::{Context, DeviceBuffer, DeviceInfo, DeviceSlice, Event, Graph, Stream};
pub use flashcore_kernels::{Config, Plan};
pub use flashcore_problem::{
    CausalAlign, Comparison, DType, InputKind, Inputs, Layout, Mask, Problem, ProblemError, Reference, Tensor,
    TensorView, TensorViewMut, Tolerance, compare, compare_lse, reference, reference_rows,
};
