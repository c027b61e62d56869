"""Gradients of what `_operators` computes, by the operators ``flashcore::bwd`` and ``::bwd_varlen``."""

from __future__ import annotations

from typing import Any

import torch

from . import _names, _native
from ._arguments import packed, prepared, readable
from ._operators import _bwd, _bwd_varlen

__all__ = ["backward", "slow_backward"]


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
    lengths: dict[str, Any] | None = None,
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
    lengths : dict, optional
        Of packed sequences, what `forward_varlen` took of them. Rows that are of no sequence have a gradient of 0.
    """
    softmax_scale, q, k, v = prepared(q, k, v, softmax_scale)
    tensors = (readable(dout), q, k, v, readable(out), lse.contiguous())
    options = (softmax_scale, causal, window[0], window[1], softcap)
    if lengths is None:
        return _names.typed(_bwd, *tensors, *options, bhsd, deterministic, sm_margin)  # type: ignore[no-any-return]
    arrays, bounds = packed(q, **lengths)
    return _names.typed(_bwd_varlen, *tensors, *arrays, *options, *bounds, deterministic, sm_margin)  # type: ignore[no-any-return]


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
