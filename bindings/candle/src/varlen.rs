//! Attention of packed sequences, whose lengths are tensors on their device.

use candle::{CpuStorage, CudaStorage, CustomOp3, Layout, Result, Shape, Tensor};

use crate::FlashAttn;
use crate::backward::{Found, gradients};
use crate::dense::{causal_window, cuda_forward};
use crate::problem::Lengths;

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

struct FlashAttnVarlen {
    options: FlashAttn,
    lengths: Varlen,
}

impl CustomOp3 for FlashAttnVarlen {
    fn name(&self) -> &'static str {
        "flash-attn-varlen"
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
        let lengths = Lengths::Varlen(&self.lengths);
        crate::cpu::forward(&self.options, lengths, [(q, q_layout), (k, k_layout), (v, v_layout)])
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
        let lengths = Lengths::Varlen(&self.lengths);
        cuda_forward(&self.options, lengths, [(q, q_layout), (k, k_layout), (v, v_layout)])
    }

    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, _out: &Tensor, gradient: &Tensor) -> Result<Found> {
        let lengths = Lengths::Varlen(&self.lengths);
        gradients(&self.options, lengths, [q, k, v], gradient)
    }
}

/// Packed sequences.
fn packed(
    options: FlashAttn,
    [q, k, v]: [&Tensor; 3],
    [seqlens_q, seqlens_k]: [&Tensor; 2],
    [max_seqlen_q, max_seqlen_k]: [usize; 2],
) -> Result<Tensor> {
    let lengths = Varlen {
        seqlens_q: seqlens_q.clone(),
        max_seqlen_q,
        keys: Keys::Packed(seqlens_k.clone()),
        max_seqlen_k,
    };
    q.apply_op3(k, v, FlashAttnVarlen { options, lengths })
}

/// Attention of packed sequences, causal or not.
///
/// * `q`: `[total_q, num_heads, head_dim]`, the rows of all sequences one after the other
/// * `k`, `v`: `[total_kv, num_heads_kv, head_dim]`
/// * `seqlens_q`, `seqlens_k`: where each sequence begins, and where the last one ends:
///   `[batch + 1]` of `U32`, from 0, contiguous, on the device of q. Sequences may be empty.
/// * `max_seqlen_q`, `max_seqlen_k`: at least as many as the rows and keys of any sequence. On CUDA
///   lengths stay on the device, and longer sequences are cut to this.
///
/// Rows of q after the last sequence give 0.
///
/// # Errors
/// Those of the [crate]. Values of lengths are checked on the CPU only.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let options = FlashAttn::new(softmax_scale, causal_window(causal));
    packed(options, [q, k, v], [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// [`flash_attn_varlen`] with a window: `None` and `Some(0)` are causal.
///
/// # Errors
/// Those of [`flash_attn_varlen`].
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let options = FlashAttn::new(softmax_scale, [window_size_left, window_size_right]);
    packed(options, [q, k, v], [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// [`flash_attn_varlen_windowed`] with K and V in pages, and a soft cap.
///
/// * `k`, `v`: `[pages, page_block_size, num_heads_kv, head_dim]`
/// * `seqlens_k`: as for [`flash_attn_varlen`], although keys are in pages: a sequence has as many
///   keys as its two entries are apart
/// * `block_table`: the pages of each sequence, `[batch, max_pages]` of `U32` or `I32`, contiguous.
///   Entries after a sequence's last key are not read.
/// * `mm_prefix_ranges`: must be `None`
///
/// # Errors
/// Those of [`flash_attn_varlen`].
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if mm_prefix_ranges.is_some() {
        let instead = "leave it out; masks are bands around the diagonal";
        let argument = "mm_prefix_ranges";
        return Err(crate::Error::Unserved { argument, instead }.into());
    }
    if k.rank() == 4 && k.dim(1)? != page_block_size {
        return Err(crate::Error::Argument {
            argument: "page_block_size",
            given: page_block_size.to_string(),
            allowed: format!("the pages of k have {} keys", k.dim(1)?),
        }
        .into());
    }
    let lengths = Varlen {
        seqlens_q: seqlens_q.clone(),
        max_seqlen_q,
        keys: Keys::Paged {
            seqlens_k: seqlens_k.clone(),
            block_table: block_table.clone(),
        },
        max_seqlen_k,
    };
    let options = FlashAttn::new(softmax_scale, [window_size_left, window_size_right]).softcap(softcap);
    q.apply_op3(k, v, FlashAttnVarlen { options, lengths })
}

/// [`flash_attn_varlen`] with ALiBi: `slope·|i − j|` is subtracted from the score of a row at position `i` and a
/// key at position `j`. `alibi_slopes` are F32 `[num_heads]`, at least 0.
///
/// # Errors
/// Those of the [crate].
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    let options = FlashAttn::new(softmax_scale, causal_window(causal)).alibi(Some(alibi_slopes));
    packed(options, [q, k, v], [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// [`flash_attn_varlen_windowed`] with ALiBi, as [`flash_attn_varlen_alibi`].
///
/// # Errors
/// Those of the [crate].
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let options = FlashAttn::new(softmax_scale, [window_size_left, window_size_right]).alibi(Some(alibi_slopes));
    packed(options, [q, k, v], [seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])
}

/// [`flash_attn_varlen_windowed`] with a soft cap of the scores, and perhaps ALiBi, which is subtracted
/// after it.
///
/// # Errors
/// Those of [`flash_attn_varlen`].
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let options = FlashAttn::new(softmax_scale, [window_size_left, window_size_right]);
    packed(
        options.alibi(alibi_slopes).softcap(Some(softcap)),
        [q, k, v],
        [seqlens_q, seqlens_k],
        [max_seqlen_q, max_seqlen_k],
    )
}
