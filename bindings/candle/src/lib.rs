//! FlashCore's fused attention for candle tensors, with the functions and signatures of
//! candle-flash-attn 0.11.
//!
//! ```
//! use candle::{DType, Device, Tensor};
//! use flashcore_candle::flash_attn;
//!
//! let q = Tensor::randn(0f32, 1., (1, 12, 8, 64), &Device::Cpu)?.to_dtype(DType::BF16)?;
//! let k = Tensor::randn(0f32, 1., (1, 12, 2, 64), &Device::Cpu)?.to_dtype(DType::BF16)?;
//! let out = flash_attn(&q, &k, &k, 1. / 8., true)?; // two K/V heads serve eight query heads
//! assert_eq!(out.dims(), [1, 12, 8, 64]);
//! # Ok::<(), candle::Error>(())
//! ```
//!
//! What all functions have in common:
//!
//! - Tensors are `[batch, seq, heads, head_dim]`, or `[total, heads, head_dim]` for the `varlen`
//!   functions, with any strides whose last one is 1. `head_dim` is a multiple of 8 up to 256. The
//!   number of query heads is a multiple of the number of K/V heads.
//! - q, k and v are all `F16`, all `BF16` or all `F32`, on the CPU or, with the feature `cuda`, on a
//!   CUDA device. Work is enqueued on the stream of candle's device.
//! - The result is contiguous, with the shape and dtype of q. A row that sees no key is 0.
//! - Masks are aligned to the bottom right, for each sequence: row `i` of `seq_len_q` is at key
//!   `i + seq_len_kv - seq_len_q`. A causal mask shows keys up to there. `window_size_left` and
//!   `window_size_right` show that many keys before and after; `None`, or more than there are keys,
//!   is no limit.
//! - Scores are `softmax_scale · q·kᵀ`, which functions with a cap bound ([`FlashAttn`]).
//! - q, k and v have gradients, except through pages, which is refused. On GPUs, the last bits
//!   of gradients may differ from run to run.
//! - ALiBi slopes have no gradients, and calls with them none either.
//!
//! # Errors
//!
//! [`candle::Error::Wrapped`] of an [`Error`], which names the argument; candle's own errors where
//! tensors are on different devices.

mod call;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod functions;
mod op;
mod problem;

pub use error::Error;
pub use functions::*;
