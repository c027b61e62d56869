"""Gradients of what `_operators` computes, by the operators ``flashcore::bwd`` and ``::bwd_varlen``."""

from __future__ import annotations

import torch

from . import _names, _native
from ._operators import _absent, _bwd, _bwd_varlen, _dense, _prepared, _readable

__all__ = ["backward", "backward_varlen", "slow_backward"]


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bhsd: bool = False,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of q, k and v, dense: what `forward` took, what it returned, and the gradient of `out`.

    Parameters
    ----------
    bhsd : bool
        Whether gradients lie in memory as ``[batch, heads, seq, head_dim]``. Their shapes are those of q, k and v.
    deterministic : bool
        Whether they are the same bits in every run.
    sm_margin : int
        Multiprocessors that are left to other work.
    """
    softmax_scale, q, k, v = _prepared(q, k, v, softmax_scale)
    options = (softmax_scale, causal, window[0], window[1], softcap, bhsd)
    options += (deterministic, sm_margin)
    return _names.typed(_bwd, _readable(dout), q, k, v, _readable(out), lse.contiguous(), *options)


def backward_varlen(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of `forward_varlen`. Rows that are of no sequence have a gradient of 0."""
    softmax_scale, q, k, v = _prepared(q, k, v, softmax_scale)
    options = (softmax_scale, causal, window[0], window[1], softcap, max_seqlen_q, max_seqlen_k)
    absent = _absent(q, seqused_q, seqused_k)
    lengths = (_dense(cu_seqlens_q), _dense(seqused_q, absent), _dense(cu_seqlens_k), _dense(seqused_k, absent))
    return _names.typed(
        _bwd_varlen, _readable(dout), q, k, v, _readable(out), lse.contiguous(), *lengths, *options, deterministic,
        sm_margin,
    )  # fmt: skip


def slow_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    packed: bool = False,
    deterministic: bool = False,
    device: torch.device | None = None,
) -> str | None:
    """Why gradients of tensors ``[batch, seq, heads, head_dim]`` are slow, by the kernel that is chosen for them.

    None on the CPU, where the kernel uses tensor cores, and while a model is traced. `device`: theirs, if they are only
    like the tensors that are meant.
    """
    device = q.device if device is None else device
    if device.type != "cuda" or torch.compiler.is_compiling():
        return None
    dtype = str(q.dtype).removeprefix("torch.")
    options = {"causal": causal, "window": window, "softcap": softcap, "packed": packed, "deterministic": deterministic}
    return _native.slow_backward(device.index, dtype, q.shape, k.shape, v.shape[3], **options)
