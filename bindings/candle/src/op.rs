//! What candle calls: an operation of equal lengths, and one of packed sequences.

use candle::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::FlashAttn;
use crate::call::{Found, forward, gradients};

/// The lengths of a call's sequences; `None`: those of the tensors' shapes.
pub(crate) type Lengths<'a> = Option<&'a Varlen>;

/// Where the sequences of a call are, by tensors on their device.
#[derive(Clone, Debug)]
pub(crate) struct Varlen {
    /// First row of each sequence in q, and the end of the last: `[batch + 1]`.
    pub(crate) seqlens_q: Tensor,
    /// The same of its keys. Of pages only the differences count, which are numbers of keys.
    pub(crate) seqlens_k: Tensor,
    /// The pages of keys, `[batch, max_pages]`.
    pub(crate) block_table: Option<Tensor>,
    pub(crate) max_seqlen_q: usize,
    pub(crate) max_seqlen_k: usize,
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

operation!(FlashAttn, "flash-attn", |call| call, None);
operation!(
    FlashAttnVarlen,
    "flash-attn-varlen",
    |call| &call.options,
    Some(&call.lengths)
);

#[cfg(feature = "cuda")]
use forward as cuda_forward;

/// candle may have CUDA where this crate has not.
#[cfg(not(feature = "cuda"))]
fn cuda_forward(_: &FlashAttn, _: Lengths<'_>, _: [(&CudaStorage, &Layout); 3]) -> Result<(CudaStorage, Shape)> {
    let allowed = "this build has only the CPU: enable the feature `cuda` of flashcore-candle";
    Err(crate::Error::argument("q", "a CUDA tensor", allowed).into())
}
