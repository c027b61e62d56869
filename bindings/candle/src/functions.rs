//! The functions of candle-flash-attn, and the options that they have.

use candle::{Result, Tensor};
use flashcore::{Alibi, Mask, ProblemBuilder};

use crate::op::{FlashAttnVarlen, Varlen};

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
    /// Soft cap c of the scores, which become `c·tanh(score / c)`; `None` or 0: none.
    pub softcap: Option<f32>,
}

impl FlashAttn {
    /// A problem of so many keys, with these options.
    pub(crate) fn of(&self, builder: ProblemBuilder, seq_len_kv: usize) -> ProblemBuilder {
        // As in candle-flash-attn, a side that reaches past all keys is none.
        let side = |size: Option<usize>| size.filter(|size| *size <= seq_len_kv).map(|size| size as u32);
        let [left, right] = [self.window_size_left, self.window_size_right].map(side);
        let builder = builder
            .softmax_scale(self.softmax_scale)
            .mask(Mask::window(left, right));
        let builder = match self.alibi_slopes {
            None => builder,
            Some(_) => builder.alibi(Alibi::Heads),
        };
        match self.softcap {
            None | Some(0.0) => builder,
            Some(cap) => builder.softcap(cap),
        }
    }
}

/// Functions of sequences of equal lengths, and of packed ones, that differ in nothing else. After their names come the
/// slopes that both take, and what follows the scale; then the window, slopes and cap that these say.
macro_rules! functions {
    ($($(#[$equal_about:meta])* $equal:ident, $(#[$packed_about:meta])* $packed:ident,
        ($($slopes:ident: $of_slopes:ty)?; $($option:ident: $kind:ty),+) => $window:expr, $alibi:expr, $softcap:expr;)+) => {
        $(
            $(#[$equal_about])*
            #[allow(clippy::too_many_arguments)] // candle-flash-attn's
            pub fn $equal(
                q: &Tensor,
                k: &Tensor,
                v: &Tensor,
                $($slopes: $of_slopes,)?
                softmax_scale: f32,
                $($option: $kind),+
            ) -> Result<Tensor> {
                q.apply_op3(k, v, options(softmax_scale, $window, $alibi, $softcap))
            }

            $(#[$packed_about])*
            #[allow(clippy::too_many_arguments)] // candle-flash-attn's
            pub fn $packed(
                q: &Tensor,
                k: &Tensor,
                v: &Tensor,
                $($slopes: $of_slopes,)?
                seqlens_q: &Tensor,
                seqlens_k: &Tensor,
                max_seqlen_q: usize,
                max_seqlen_k: usize,
                softmax_scale: f32,
                $($option: $kind),+
            ) -> Result<Tensor> {
                let [seqlens_q, seqlens_k] = [seqlens_q, seqlens_k].map(Tensor::clone);
                let lengths = Varlen { seqlens_q, seqlens_k, block_table: None, max_seqlen_q, max_seqlen_k };
                let options = options(softmax_scale, $window, $alibi, $softcap);
                q.apply_op3(k, v, FlashAttnVarlen { options, lengths })
            }
        )+
    };
}

functions! {
    /// Attention, causal or not.
    ///
    /// * `q`: `[batch, seq_len_q, num_heads, head_dim]`
    /// * `k`, `v`: `[batch, seq_len_kv, num_heads_kv, head_dim]`
    ///
    /// # Errors
    /// Those of the [crate].
    flash_attn,
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
    flash_attn_varlen,
    (; causal: bool) => [None, causal.then_some(0)], None, None;

    /// [`flash_attn`] with a window: `None` and `Some(0)` are causal.
    ///
    /// # Errors
    /// Those of the [crate].
    flash_attn_windowed,
    /// [`flash_attn_varlen`] with a window: `None` and `Some(0)` are causal.
    ///
    /// # Errors
    /// Those of [`flash_attn_varlen`].
    flash_attn_varlen_windowed,
    (; window_size_left: Option<usize>, window_size_right: Option<usize>) =>
        [window_size_left, window_size_right], None, None;

    /// [`flash_attn`] with ALiBi: `slope·|i − j|` is subtracted from the score of a row at position `i` and a
    /// key at position `j`. `alibi_slopes` are F32 `[num_heads]`, at least 0.
    ///
    /// # Errors
    /// Those of the [crate].
    flash_attn_alibi,
    /// [`flash_attn_varlen`] with ALiBi, as [`flash_attn_alibi`].
    ///
    /// # Errors
    /// Those of [`flash_attn_varlen`].
    flash_attn_varlen_alibi,
    (alibi_slopes: &Tensor; causal: bool) => [None, causal.then_some(0)], Some(alibi_slopes), None;

    /// [`flash_attn_windowed`] with ALiBi, as [`flash_attn_alibi`].
    ///
    /// # Errors
    /// Those of the [crate].
    flash_attn_alibi_windowed,
    /// [`flash_attn_varlen_windowed`] with ALiBi, as [`flash_attn_alibi`].
    ///
    /// # Errors
    /// Those of [`flash_attn_varlen`].
    flash_attn_varlen_alibi_windowed,
    (alibi_slopes: &Tensor; window_size_left: Option<usize>, window_size_right: Option<usize>) =>
        [window_size_left, window_size_right], Some(alibi_slopes), None;

    /// [`flash_attn_windowed`] with a soft cap of the scores, and perhaps ALiBi, which is subtracted
    /// after it.
    ///
    /// # Errors
    /// Those of the [crate].
    flash_attn_alibi_windowed_softcap,
    /// [`flash_attn_varlen_windowed`] with a soft cap of the scores, and perhaps ALiBi, which is subtracted
    /// after it.
    ///
    /// # Errors
    /// Those of [`flash_attn_varlen`].
    flash_attn_varlen_alibi_windowed_softcap,
    (alibi_slopes: Option<&Tensor>; window_size_left: Option<usize>, window_size_right: Option<usize>, softcap: f32) =>
        [window_size_left, window_size_right], alibi_slopes, Some(softcap);
}

fn options(
    softmax_scale: f32,
    [window_size_left, window_size_right]: [Option<usize>; 2],
    alibi_slopes: Option<&Tensor>,
    softcap: Option<f32>,
) -> FlashAttn {
    FlashAttn {
        softmax_scale,
        alibi_slopes: alibi_slopes.cloned(),
        window_size_left,
        window_size_right,
        softcap,
    }
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
        let allowed = format!("the pages of k have {} keys", k.dim(1)?);
        return Err(crate::Error::argument("page_block_size", page_block_size, allowed).into());
    }
    let lengths = Varlen {
        seqlens_q: seqlens_q.clone(),
        seqlens_k: seqlens_k.clone(),
        block_table: Some(block_table.clone()),
        max_seqlen_q,
        max_seqlen_k,
    };
    let options = options(softmax_scale, [window_size_left, window_size_right], None, softcap);
    q.apply_op3(k, v, FlashAttnVarlen { options, lengths })
}
