//! Attention of sequences of equal lengths.

use candle::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::backward::{Found, gradients};
use crate::problem::Lengths;

/// Attention of sequences of equal lengths, as an operation for [`Tensor::apply_op3`] on q, k and
/// v. The functions of this crate are the usual way to it.
#[derive(Clone, Debug)]
pub struct FlashAttn {
    /// Factor on `q·kᵀ`.
    pub softmax_scale: f32,
    /// ALiBi's slopes, F32 `[num_heads]`, at least 0.
    pub alibi_slopes: Option<Tensor>,
    /// Keys that a row sees before its own position; `None`: all.
    pub window_size_left: Option<usize>,
    /// Keys that a row sees after its own position; `None`: all; `Some(0)`: causal.
    pub window_size_right: Option<usize>,
    /// Soft cap of the scores; `None` or 0: none.
    pub softcap: Option<f32>,
}

/// The two sides of a window that is only causal or not.
pub(crate) fn causal_window(causal: bool) -> [Option<usize>; 2] {
    [None, causal.then_some(0)]
}

impl FlashAttn {
    pub(crate) fn new(softmax_scale: f32, [window_size_left, window_size_right]: [Option<usize>; 2]) -> FlashAttn {
        FlashAttn {
            softmax_scale,
            alibi_slopes: None,
            window_size_left,
            window_size_right,
            softcap: None,
        }
    }

    pub(crate) fn alibi(mut self, slopes: Option<&Tensor>) -> FlashAttn {
        self.alibi_slopes = slopes.cloned();
        self
    }

    pub(crate) fn softcap(mut self, softcap: Option<f32>) -> FlashAttn {
        self.softcap = softcap;
        self
    }
}

impl CustomOp3 for FlashAttn {
    fn name(&self) -> &'static str {
        "flash-attn"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        crate::cpu::forward(self, Lengths::Equal, [(q, q_layout), (k, k_layout), (v, v_layout)])
    }

    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_layout: &Layout,
        k: &CudaStorage,
        k_layout: &Layout,
        v: &CudaStorage,
        v_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda_forward(self, Lengths::Equal, [(q, q_layout), (k, k_layout), (v, v_layout)])
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, _out: &Tensor, gradient: &Tensor) -> Result<Found> {
        gradients(self, Lengths::Equal, [q, k, v], gradient)
    }
}

#[cfg(feature = "cuda")]
pub(crate) use crate::cuda::forward as cuda_forward;

/// candle may have CUDA where this crate has not.
#[cfg(not(feature = "cuda"))]
pub(crate) fn cuda_forward(
    _: &FlashAttn,
    _: Lengths<'_>,
    _: [(&CudaStorage, &Layout); 3],
) -> Result<(CudaStorage, Shape)> {
    Err(crate::Error::Argument {
        argument: "q",
        given: "a CUDA tensor".to_string(),
        allowed: "this build has only the CPU: enable the feature `cuda` of flashcore-candle".to_string(),
    }
    .into())
}

/// Attention, causal or not.
///
/// * `q`: `[batch, seq_len_q, num_heads, head_dim]`
/// * `k`, `v`: `[batch, seq_len_kv, num_heads_kv, head_dim]`
///
/// # Errors
/// Those of the [crate].
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    q.apply_op3(k, v, FlashAttn::new(softmax_scale, causal_window(causal)))
}

/// [`flash_attn`] with a window: `None` and `Some(0)` are causal.
///
/// # Errors
/// Those of the [crate].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let window = [window_size_left, window_size_right];
    q.apply_op3(k, v, FlashAttn::new(softmax_scale, window))
}

/// [`flash_attn`] with ALiBi: `slope·|i − j|` is subtracted from the score of a row at position `i` and a
/// key at position `j`. `alibi_slopes` are F32 `[num_heads]`, at least 0.
///
/// # Errors
/// Those of the [crate].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let op = FlashAttn::new(softmax_scale, causal_window(causal)).alibi(Some(alibi_slopes));
    q.apply_op3(k, v, op)
}

/// [`flash_attn_windowed`] with ALiBi, as [`flash_attn_alibi`].
///
/// # Errors
/// Those of the [crate].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let op = FlashAttn::new(softmax_scale, [window_size_left, window_size_right]).alibi(Some(alibi_slopes));
    q.apply_op3(k, v, op)
}

/// [`flash_attn_windowed`] with a soft cap of the scores, and perhaps ALiBi, which is subtracted
/// after it.
///
/// # Errors
/// Those of the [crate].
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let op = FlashAttn::new(softmax_scale, [window_size_left, window_size_right]);
    q.apply_op3(k, v, op.alibi(alibi_slopes).softcap(Some(softcap)))
}
