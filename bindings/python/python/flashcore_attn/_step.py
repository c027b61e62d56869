"""A step of decoding with the least work of the host: new keys into the cache, then attention (``src/operators/step.rs``)."""

from __future__ import annotations

from typing import Any

import torch

from . import _kvcache, _lengths, _names, _native, _operators, _schedule

__all__ = ["check", "direct"]

_traced = _operators._is_traced
_observed = _operators._is_observed


def direct(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    rotary: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, bool],
    cache_seqlens: Any,
    page_table: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int | None,
    options: tuple[Any, ...],
    settings: tuple[Any, ...],
    with_lse: bool,
) -> tuple[torch.Tensor, ...] | None:
    """The results of `flash_attn_with_kvcache` for plain tensors; None where that must look closer.

    Parameters
    ----------
    rotary : rotary_cos, rotary_sin, rotary_seqlens and whether pairs are interleaved
    options : softmax_scale, causal, window_size and softcap
    settings : scheduler_metadata, num_splits, sm_margin and batch_invariant
    """
    softmax_scale, causal, window, softcap = options
    metadata, num_splits, sm_margin, batch_invariant = settings
    if (
        _traced()
        or _observed()
        or cache_seqlens is None
        or type(window) is not tuple
        or len(window) != 2
        or (max_seqlen_q is not None if cu_seqlens_q is None else type(max_seqlen_q) is not int)
        or type(num_splits) is not int
        or num_splits < 0
        or (batch_invariant is not None and (type(batch_invariant) is not int or batch_invariant < 1))
    ):
        return None
    cos, sin, positions, interleaved = rotary
    numbers = (
        softmax_scale, causal, *window, softcap, max_seqlen_q or 0, sm_margin, batch_invariant or 0, interleaved,
    )  # fmt: skip
    tensors = (q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, k, v, cos, sin, positions)
    schedule = None if metadata is None else _schedule.given(metadata)
    results = _names.typed(_native.direct_step, tensors, numbers, schedule, bool(with_lse))
    if results is None or not with_lse:
        return results  # type: ignore[no-any-return]
    return (*results, *(q.new_empty(0, dtype=torch.float32) for _ in range(2)))


def check(
    schedule: int | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seqused_k: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None,
    table: torch.Tensor | None,
    leftpad: torch.Tensor | None,
    max_seqlen_q: int | None,
    softmax_scale: float | None,
    causal: bool,
    window: tuple[int, int],
    softcap: float,
    sm_margin: int,
    batch_invariant: int | None,
    **_: Any,
) -> None:
    """Raises for a schedule of another call, or multiprocessors that are not there, as the call would after its writes."""
    if leftpad is not None:
        capacity = k.shape[1] * (1 if table is None else table.shape[1])
        table = seqused_k.new_empty((seqused_k.shape[0], capacity))  # of the shape that the call's table has
        k, v, _rows = _kvcache.row_views(k, v)
    bound = 0 if cu_seqlens_q is None else int(_lengths.bound("max_seqlen_q", max_seqlen_q))
    numbers = (
        softmax_scale, bool(causal), *(int(side) for side in window), float(softcap), bound, int(sm_margin),
        batch_invariant or 0, False,
    )  # fmt: skip
    tensors = (q, k, v, cu_seqlens_q, seqused_k, table, None, None, None, None, None)
    _names.typed(_native.check_step, tensors, numbers, schedule)
