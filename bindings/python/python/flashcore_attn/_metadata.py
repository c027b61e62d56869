"""FlashAttention-3's `get_scheduler_metadata`: the schedule of a step of decoding."""

from __future__ import annotations

import torch

from . import _checks, _lengths, _names, _schedule
from ._forward import check, common_options

__all__ = ["get_scheduler_metadata"]


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: torch.Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    *,
    total_q: int | None = None,
    batch_invariant: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The schedule of a step, which `flash_attn_with_kvcache` takes as `scheduler_metadata`: one launch for all layers.

    Lengths must have the same values when the calls run: whoever changes them makes a new schedule. A call that sees
    that `cache_seqlens` was written since warns and makes its own; one that gives other tensors, or those of inference
    mode, and a replay of a graph see nothing, and results are wrong. Calls that share one run one after another, in the
    stream that it was made in: their partial results are in it, too. A CUDA graph captures calls, and perhaps this
    function with `out`, which else makes it anew before a replay. Replays are in that stream too, or ordered after it
    (`Stream.wait_stream`): a kernel that reads a schedule while it is written reads and writes any memory. What a graph
    has captured is kept for the life of the process.

    Parameters
    ----------
    max_seqlen_k : int
        The capacity of the cache, in keys: of its part for a sequence, or of the pages in a row of the table.
    cache_seqlens : int32 Tensor ``[batch]``
        As the calls have it: before new keys are appended, whose number `max_seqlen_k_new` or `cu_seqlens_k_new` says.
    page_size : int, optional
        Keys of a page; of calls with `cache_batch_idx` and no pages the capacity.
    total_q : int, optional
        With `cu_seqlens_q`: rows of q. Without it there is no schedule then, and each call makes its own.
    batch_invariant : int, optional
        As the calls have it.
    out : Tensor, optional
        What an earlier call with the same arguments returned, with elements: its schedule is made anew.

    Returns
    -------
    scheduler_metadata : int32 Tensor
        A handle of one element. The schedule itself is in separate memory, which is freed with this object; the
        element's value means nothing, and calls refuse clones and slices. The tensor is empty, which calls accept,
        where calls make no schedule, in compiled functions, and without `out` while a graph is captured. On the CPU
        it is checked, but not needed.
    """
    check(None, attention_chunk, num_splits)
    _names.check_tensor("cache_seqlens", cache_seqlens)
    if cache_seqlens.shape != (batch_size,):
        raise ValueError(f"batch_size is {batch_size}; cache_seqlens has shape {tuple(cache_seqlens.shape)}")
    arrays = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new, "cache_leftpad": cache_leftpad}
    for name, given in arrays.items():
        if given is not None:
            _names.check_tensor(name, given)
            entries = batch_size + (name != "cache_leftpad")
            if given.shape != (entries,):
                raise ValueError(f"{name} has shape {tuple(given.shape)}; for this batch_size it is ({entries},)")
    if batch_invariant is not None:
        _checks.split_keys(batch_invariant)
    bounds = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "max_seqlen_k_new": max_seqlen_k_new}
    max_seqlen_q, max_seqlen_k, max_seqlen_k_new = (_lengths.bound(name, given) for name, given in bounds.items())
    unseen = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if unseen or batch_size == 0 or (cu_seqlens_q is not None and total_q in (None, 0)):
        if out is not None:
            raise ValueError(
                "out is given, but no schedule is made in a compiled or transformed function, for no sequences or rows, "
                "or for cu_seqlens_q without total_q"
            )
        return cache_seqlens.new_empty(0, dtype=torch.int32)
    lengths = cache_seqlens
    if cu_seqlens_k_new is not None:
        lengths = lengths + cu_seqlens_k_new.diff()
    elif max_seqlen_k_new > 0:
        lengths = lengths + max_seqlen_k_new
    if cache_leftpad is not None:  # calls then have pages of one key
        lengths, page_size = (lengths - cache_leftpad).clamp(min=0), 1
    options = common_options(None, causal, window_size, 0.0, sm_margin)
    new_keys = max_seqlen_k_new if cu_seqlens_k_new is None else None
    made_of = _schedule.MadeOf(cache_seqlens, new_keys, page_size or 0)
    numbers = (
        1.0, causal, *options["window"], float(has_softcap), 0, True, False, sm_margin, batch_invariant or 0, max_seqlen_q,
        max_seqlen_k,
    )  # fmt: skip
    sizes = (num_heads_q, num_heads_kv, headdim, headdim if headdim_v is None else headdim_v, page_size or 0)
    return _schedule.make(
        lengths, cu_seqlens_q, out, qkv_dtype, made_of, numbers, *sizes, -1 if total_q is None else total_q
    )
