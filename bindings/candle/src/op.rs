//! What candle calls: an operation of equal lengths, and one of packed sequences.

use candle::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::FlashAttn;
use crate::call::{Found, forward, gradients};

/// The lengths of a call's sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lengths<'a> {
    /// Those of the tensors' shapes.
    Equal,
    /// On their device.
    Varlen(&'a Varlen),
}

/// Where the sequences of a call are.
#[derive(Clone, Debug)]
pub(crate) struct Varlen {
    /// First row of each sequence in q, and the end of the last: `[batch + 1]`.
    pub(crate) seqlens_q: Tensor,
    pub(crate) max_seqlen_q: usize,
    pub(crate) keys: Keys,
    pub(crate) max_seqlen_k: usize,
}

/// Where their keys are.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    /// As the rows of q: `[batch + 1]`.
    Packed(Tensor),
    /// In pages, `[batch, max_pages]`. The differences of `seqlens_k` are their numbers.
    Paged { seqlens_k: Tensor, block_table: Tensor },
}

/// Attention of packed sequences, whose lengths are tensors on their device.
pub(crate) struct FlashAttnVarlen {
    pub(crate) options: FlashAttn,
    pub(crate) lengths: Varlen,
}

/// An operation on q, k and v with these options and lengths.
macro_rules! operation {
    ($of:ty, $name:literal, |$call:ident| $options:expr, $lengths:expr) => {
        impl CustomOp3 for $of {
            fn name(&self) -> &'static str {
                $name
            }

            fn cpu_fwd(
                &self,
                q: &CpuStorage,
                of_q: &Layout,
                k: &CpuStorage,
                of_k: &Layout,
                v: &CpuStorage,
                of_v: &Layout,
            ) -> Result<(CpuStorage, Shape)> {
                let $call = self;
                forward($options, $lengths, [(q, of_q), (k, of_k), (v, of_v)])
            }

            fn cuda_fwd(
                &self,
                q: &CudaStorage,
                of_q: &Layout,
                k: &CudaStorage,
                of_k: &Layout,
                v: &CudaStorage,
                of_v: &Layout,
            ) -> Result<(CudaStorage, Shape)> {
                let $call = self;
                cuda_forward($options, $lengths, [(q, of_q), (k, of_k), (v, of_v)])
            }

            fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, _out: &Tensor, gradient: &Tensor) -> Result<Found> {
                let $call = self;
                gradients($options, $lengths, [q, k, v], gradient)
            }
        }
    };
}

operation!(FlashAttn, "flash-attn", |call| call, Lengths::Equal);
operation!(
    FlashAttnVarlen,
    "flash-attn-varlen",
    |call| &call.options,
    Lengths::Varlen(&call.lengths)
);

#[cfg(feature = "cuda")]
use forward as cuda_forward;

/// candle may have CUDA where this crate has not.
#[cfg(not(feature = "cuda"))]
fn cuda_forward(_: &FlashAttn, _: Lengths<'_>, _: [(&CudaStorage, &Layout); 3]) -> Result<(CudaStorage, Shape)> {
    Err(crate::Error::Argument {
        argument: "q",
        given: "a CUDA tensor".to_string(),
        allowed: "this build has only the CPU: enable the feature `cuda` of flashcore-candle".to_string(),
    }
    .into())
}
