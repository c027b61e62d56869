"""FlashAttention-3's interface: the functions of its ``flash_attn_interface.py`` that FlashCore serves.

    >>> from flashcore.flash_attn_interface import flash_attn_func
    >>> out = flash_attn_func(q, k, v, causal=True)

Signatures are FlashAttention-3's. An argument that is not served raises `NotImplementedError` with its name. Functions
for packed lengths and for caches are not here yet. Masks are aligned bottom-right: the last query sees the last key.
There is no backward pass: asking for a gradient raises.
"""

from __future__ import annotations

import torch

from ._operators import forward

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func"]


def _refuse(name: str, given: object, allowed: str) -> None:
    raise NotImplementedError(f"{name} is {given if isinstance(given, (int, float)) else 'given'}; {allowed}")


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    descales: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
    window_size: tuple[int, int],
    attention_chunk: int,
    softcap: float,
    num_splits: int,
    sm_margin: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    if attention_chunk != 0:
        _refuse("attention_chunk", attention_chunk, "chunked attention is not served: leave it 0")
    if sm_margin != 0:
        _refuse("sm_margin", sm_margin, "kernels use all multiprocessors: leave it 0")
    if num_splits < 0:
        raise ValueError(f"num_splits is {num_splits}; it is at least 0, where 0 leaves the choice to the library")
    return forward(
        q, k, v, softmax_scale=softmax_scale, causal=causal, window=window_size, softcap=softcap, scales=descales
    )


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries, keys and values.

    Parameters
    ----------
    q : Tensor ``[batch, seq_q, heads, head_dim]``
        float16, bfloat16, float32 or float8_e4m3fn.
    k : Tensor ``[batch, seq_kv, kv_heads, head_dim]``
        ``kv_heads`` divides ``heads``.
    v : Tensor ``[batch, seq_kv, kv_heads, head_dim_v]``
    softmax_scale : float, optional
        The factor on ``q @ k.T``; ``head_dim ** -0.5`` unless given.
    causal : bool
        Query i sees keys up to ``i + seq_kv - seq_q``.
    q_descale, k_descale, v_descale : Tensor ``[batch, kv_heads]``, optional
        float32, for float8_e4m3fn only: an element stands for itself times the scale of its batch and K/V head.
    window_size : (left, right)
        How many keys before and after the diagonal are visible; -1 for all.
    softcap : float
        Scaled scores s become ``softcap * tanh(s / softcap)``; 0 for none.
    num_splits : int
        A wish about the schedule, which never changes what is computed: the plan chooses it.
    pack_gqa : bool, optional
        As `num_splits`.
    deterministic : bool
        About the backward pass. The forward pass always is.
    return_attn_probs : bool
        Return ``(out, softmax_lse)``.
    qv, attention_chunk, sm_margin
        Not served: anything but the default raises.

    Returns
    -------
    out : Tensor ``[batch, seq_q, heads, head_dim_v]``
        Of q's dtype, bfloat16 for float8_e4m3fn. Rows without a visible key are 0.
    softmax_lse : Tensor ``[batch, heads, seq_q]``, only with `return_attn_probs`
        float32, natural logarithm of each row's sum of exponentials; -inf for rows without a visible key.

    Raises
    ------
    NotImplementedError
        An argument is not served.
    RuntimeError
        Shapes, dtypes or devices do not fit, or the device failed.
    """
    if qv is not None:
        _refuse("qv", qv, "a second part of the queries is not served: leave it None")
    descales = (q_descale, k_descale, v_descale)
    out, lse = _attend(
        q, k, v, softmax_scale, causal, descales, window_size, attention_chunk, softcap, num_splits, sm_margin
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries, keys and values that share a tensor, which is not copied.

    Parameters
    ----------
    qkv : Tensor ``[batch, seq, 3, heads, head_dim]`` or ``[batch, seq, heads + 2 * kv_heads, head_dim]``
        The second form needs `num_heads_q`.
    num_heads_q : int, optional
        The number of query heads, ``heads``, in the second form.

    The other parameters, the results and the errors are those of `flash_attn_func`.
    """
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        q, k, v = qkv.unbind(2)
    elif qkv.dim() == 4 and num_heads_q is not None:
        kv_heads, rest = divmod(qkv.shape[2] - num_heads_q, 2)
        if kv_heads < 1 or rest:
            raise ValueError(f"num_heads_q is {num_heads_q} of {qkv.shape[2]}; as many heads of k as of v must remain")
        q, k, v = qkv.split([num_heads_q, kv_heads, kv_heads], dim=2)
    else:
        raise ValueError(
            f"qkv has shape {tuple(qkv.shape)}; allowed are [batch, seq, 3, heads, head_dim], and with num_heads_q "
            "[batch, seq, heads + 2 * kv_heads, head_dim]"
        )
    descales = (q_descale, k_descale, v_descale)
    out, lse = _attend(q, k, v, softmax_scale, causal, descales, window_size, attention_chunk, softcap, 1, sm_margin)
    return (out, lse) if return_attn_probs else out


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    out_: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: torch.Tensor | None = None,
    kv_batch_idx: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    seqlens_rotary: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlashAttention-3's inner function, for equal lengths: what Transformer Engine and PyTorch call.

    Returns
    -------
    out, softmax_lse : as of `flash_attn_func`
    out_accum, softmax_lse_accum : empty tensors; partial results are not kept
    """
    unserved = {
        "k_new": k_new, "v_new": v_new, "qv": qv, "out_": out_, "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k, "cu_seqlens_k_new": cu_seqlens_k_new, "seqused_q": seqused_q,
        "seqused_k": seqused_k, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "page_table": page_table,
        "kv_batch_idx": kv_batch_idx, "leftpad_k": leftpad_k, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin,
        "seqlens_rotary": seqlens_rotary, "scheduler_metadata": scheduler_metadata,
    }  # fmt: skip
    for name, given in unserved.items():
        if given is not None:
            _refuse(name, given, "it is not served yet: leave it None")
    if not rotary_interleaved:
        _refuse("rotary_interleaved", rotary_interleaved, "rotary embeddings are not served: leave it True")
    descales, window = (q_descale, k_descale, v_descale), (window_size_left, window_size_right)
    out, lse = _attend(
        q, k, v, softmax_scale, causal, descales, window, attention_chunk, softcap, num_splits, sm_margin
    )
    return out, lse, out.new_empty(0, dtype=torch.float32), out.new_empty(0, dtype=torch.float32)
