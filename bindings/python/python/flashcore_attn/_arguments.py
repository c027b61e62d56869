"""Arguments as operators take them."""

from __future__ import annotations

import torch

from . import _checks

__all__ = ["absent", "dense", "modifiers", "packed", "prepared", "readable", "settings"]


def readable(gradient: torch.Tensor) -> torch.Tensor:
    """A copy of a gradient whose elements share addresses, such as that of ``out.sum()``, or whose rows are not dense.

    Kernels need dense rows, and the fast ones no shared rows.
    """
    return gradient.contiguous() if gradient.stride(-1) != 1 or 0 in gradient.stride() else gradient


def prepared(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softmax_scale: float | None
) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    # The operator refuses a head_dim of 0.
    return (q.shape[-1] or 1) ** -0.5 if softmax_scale is None else softmax_scale, q, k, v


def packed(
    q: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
) -> tuple[tuple[torch.Tensor | None, ...], tuple[int, int]]:
    """The lengths of packed sequences as operators take them: int32 arrays, and bounds.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : int32 ``[batch + 1]``
        First row of each sequence, and the end of the last; from 0.
    seqused_q, seqused_k : int32 ``[batch]``, optional
        How many of its rows each sequence uses; all unless given.
    max_seqlen_q, max_seqlen_k : int
        Bounds of the rows of a sequence.
    """
    _checks.one_each(cu_seqlens_q.numel() - 1, seqused_q=seqused_q, seqused_k=seqused_k)
    none = absent(q, seqused_q, seqused_k)
    arrays = (dense(cu_seqlens_q), dense(seqused_q, none), dense(cu_seqlens_k), dense(seqused_k, none))
    return arrays, (max_seqlen_q, max_seqlen_k)


def settings(sm_margin: int, batch_invariant: int | None) -> tuple[int, int]:
    """What operators of the forward pass take last; splits of 0 keys stand for none."""
    if batch_invariant is not None:
        _checks.split_keys(batch_invariant)
    return sm_margin, batch_invariant or 0


def modifiers(
    q: torch.Tensor, sinks: torch.Tensor | None, alibi_slopes: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Sinks and slopes as operators take them."""
    none = q.new_empty(0, dtype=torch.float32) if sinks is None or alibi_slopes is None else None
    return dense(sinks, none), dense(alibi_slopes, none)


def absent(q: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor | None:
    """What stands for arrays that are not given, if any is not."""
    return q.new_empty(0, dtype=torch.int32) if any(x is None for x in given) else None


def dense(given: torch.Tensor | None, none: torch.Tensor | None = None) -> torch.Tensor | None:
    return none if given is None else given.contiguous()
