"""FlashAttention-3's inner function `_flash_attn_backward`."""

from __future__ import annotations

import torch

from . import _lengths, _names
from ._forward import common_options
from ._operators import backward

__all__: list[str] = []


@_names.rename(lse="softmax_lse", seqused_k="sequed_k", seqused_q="sequed_q")
def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    sequed_q: torch.Tensor | None = None,
    sequed_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: torch.Tensor | None = None,
    dk: torch.Tensor | None = None,
    dv: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> torch.Tensor:
    """FlashAttention-3's inner function: what Transformer Engine calls.

    Parameters
    ----------
    dout : Tensor, as out
        Its gradient. It is copied if rows are not dense, or if elements share addresses.
    out, softmax_lse : what `_flash_attn_forward` returned
    sequed_q, sequed_k : int32 Tensor ``[batch]``, optional
        `seqused_q` and `seqused_k` of the forward pass; FlashAttention-3 writes them so. With `cu_seqlens_q` and
        `cu_seqlens_k` only.
    dq, dk, dv : Tensor, as q, k and v
        Written: all of them, zeros where a row is of no sequence. They must be given.
    deterministic : bool
        Gradients are the same bits in every run; kernels may then be slower, and a warning says so.
    sm_margin : int
        As of `flash_attn_func`.

    Returns
    -------
    softmax_d : an empty tensor; the sums of ``dout * out`` are not kept
    """
    options = common_options(softmax_scale, is_causal, (window_size_left, window_size_right), softcap, sm_margin)
    options |= {"deterministic": deterministic}
    results = {"dq": dq, "dk": dk, "dv": dv}
    for name, given in results.items():
        if given is None:
            raise ValueError(f"{name} was not given; gradients are written to dq, dk and dv: give all three")
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "sequed_q": sequed_q, "sequed_k": sequed_k}
    _names.check_tensors(q, k, v, **lengths)
    for name, given in {"dout": dout, "out": out, "softmax_lse": softmax_lse, **results}.items():
        _names.check_tensor(name, given)
    if softmax_lse.dtype != torch.float32:
        raise TypeError(f"softmax_lse holds {softmax_lse.dtype}; it must be float32, as _flash_attn_forward returns it")
    if k.numel() == 0 or q.numel() == 0:  # tensors without keys or queries are no problem's
        gradients = tuple(torch.zeros_like(x) for x in (q, k, v))
    elif cu_seqlens_q is not None and cu_seqlens_k is not None:
        packed = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        packed |= {"seqused_q": sequed_q, "seqused_k": sequed_k}
        packed |= {"max_seqlen_q": _lengths.bound("max_seqlen_q", max_seqlen_q)}
        packed |= {"max_seqlen_k": _lengths.bound("max_seqlen_k", max_seqlen_k)}
        gradients = backward(dout, q, k, v, out, softmax_lse, **packed, **options)
    else:
        for name, given in lengths.items():
            if given is not None:
                raise NotImplementedError(
                    f"{name} is given; gradients of sequences of different lengths are computed with both "
                    "cu_seqlens_q and cu_seqlens_k: give them"
                )
        gradients = backward(dout, q, k, v, out, softmax_lse, **options)
    for (name, given), gradient in zip(results.items(), gradients):
        if (given.shape, given.dtype, given.device) != (gradient.shape, gradient.dtype, gradient.device):
            raise ValueError(
                f"{name} holds {given.dtype} of shape {tuple(given.shape)} on {given.device}; it must hold "
                f"{gradient.dtype} of shape {tuple(gradient.shape)} on {gradient.device}"
            )
    for given, gradient in zip(results.values(), gradients):
        given.copy_(gradient)
    return softmax_lse.new_empty(0)
