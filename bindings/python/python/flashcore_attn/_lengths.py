"""From FlashAttention-3's arguments for lengths to an operator: which lengths are packed, which are a cache's."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from . import _checks, _kvcache, _names
from ._operators import forward

Results = tuple[torch.Tensor, torch.Tensor]


@_names.rename(q_scale="q_descale", k_scale="k_descale", v_scale="v_descale")
def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scales: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] = (None, None, None),
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    table: torch.Tensor | None = None,
    leftpad: torch.Tensor | None = None,
    deterministic: bool = False,
    schedule: int | None = None,
    only_check: bool = False,
    **options: Any,
) -> Results:
    """Attention by the operator that serves these lengths; arguments and results are those of FlashAttention-3.

    `deterministic` is for gradients, which a cache has none of. `table` is the page table, of a contiguous cache with
    pages of a sequence each. With `only_check` nothing is computed, and only what the host knows is looked at. `options`
    are those that all operators have.
    """
    if max_seqlen_q is not None and cu_seqlens_q is None:
        _check_bound_of_equal(q, max_seqlen_q)
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, table, leftpad)
    if schedule is not None and (cu_seqlens_k is not None or (seqused_k is None and table is None and leftpad is None)):
        raise ValueError("scheduler_metadata is given; it is for calls with cache_seqlens or page_table: leave it out")
    if all(given is None for given in lengths):
        if not torch.compiler.is_compiling() and (q.numel() == 0 or k.numel() == 0) and q.dim() == k.dim() == 4:
            if 0 in (q.shape[0], q.shape[1], k.shape[1]):
                return _no_rows(q, k, v, options.get("sinks"))  # no problem is empty; FlashAttention-3's calls may be
        return forward(q, k, v, scales=scales, deterministic=deterministic, **options)
    options |= {"scales": scales, "only_check": only_check}
    if cu_seqlens_k is not None and (table is not None or leftpad is not None):
        raise ValueError("cu_seqlens_k is given with page_table, cache_batch_idx or cache_leftpad; give one of them")

    for name, starts in (("q", cu_seqlens_q), ("k", cu_seqlens_k)):
        if starts is not None and not _checks.is_given(starts):
            raise ValueError(f"cu_seqlens_{name} has shape (0,); it must be int32 of shape (batch + 1,), from 0")
    unpack = None
    if cu_seqlens_q is None and (seqused_q is not None or cu_seqlens_k is not None):
        if q.dim() != 4:
            raise ValueError(f"q has shape {tuple(q.shape)}; without cu_seqlens_q it is [batch, seq, heads, head_dim]")
        batch, rows, heads, head_dim = q.shape
        cu_seqlens_q = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * rows
        q, max_seqlen_q = q.reshape(batch * rows, heads, head_dim), rows
        unpack = lambda out, lse: (
            out.view(batch, rows, *out.shape[1:]),
            lse.view(heads, batch, rows).transpose(0, 1).contiguous(),
        )
    for name, x in (("k", k), ("v", v)):
        if x.dim() != (4 if cu_seqlens_k is None else 3):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it has 3 dimensions with cu_seqlens_k, else 4")
    if k.shape[-3] == 0:  # no problem is without keys: one that no sequence has
        for name, counts in (("cu_seqlens_k", cu_seqlens_k), ("seqused_k", seqused_k)):
            if counts is not None and _kvcache.are_known(counts) and (counts > 0).any():
                raise ValueError(f"{name} has {int(counts.max())}, but k, of shape {tuple(k.shape)}, has no keys")
        if seqused_k is None and cu_seqlens_k is None:
            seqused_k = torch.zeros(k.shape[0], dtype=torch.int32, device=q.device)
        k, v = (_with_a_key(x) for x in (k, v))
    if cu_seqlens_k is not None:
        options |= {"max_seqlen_q": bound("max_seqlen_q", max_seqlen_q)}
        options |= {"max_seqlen_k": bound("max_seqlen_k", max_seqlen_k)}
        options |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "deterministic": deterministic}
        out, lse = forward(q, k, v, seqused_q=seqused_q, seqused_k=seqused_k, **options)
    else:
        batch = batch_of(q, cu_seqlens_q)
        if batch == 0 and cu_seqlens_q is None:
            return _no_rows(q, k[:0], v[:0], options.get("sinks"))
        if batch == 0:  # rows of q are of no sequence: as those of packed keys
            k, v = k.flatten(0, 1)[:0], v.flatten(0, 1)[:0]
            of_none = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
            results = attend(q, k, v, **of_none, max_seqlen_k=0, **options)
            return results if unpack is None else unpack(*results)
        capacity = k.shape[1] * (1 if table is None else table.shape[1])
        if seqused_k is None:
            seqused_k = torch.full((batch,), capacity, dtype=torch.int32, device=q.device)
        if (table is not None or leftpad is not None) and k.shape[:-1] != v.shape[:-1]:
            of_k = tuple(k.shape)
            raise ValueError(f"v_cache has shape {tuple(v.shape)}; all but its head_dim must be those of k_cache, {of_k}")
        if leftpad is not None:
            _kvcache.check_padded(k, leftpad, seqused_k, batch, table)
            if only_check:
                table = seqused_k.new_empty((batch, capacity))  # of the shape that the call's table has
                k, v, _rows = _kvcache.row_views(k, v)
            else:
                table = _kvcache.first_rows(k.shape[0], 1, k.device) if table is None else table
                k, v, table = _kvcache.pages_of_one_key(k, v, table, leftpad)
                seqused_k = (seqused_k - leftpad).clamp(min=0)
        if cu_seqlens_q is not None:
            options |= {"cu_seqlens_q": cu_seqlens_q, "seqused_q": seqused_q}
            options |= {"max_seqlen_q": bound("max_seqlen_q", max_seqlen_q)}
        bound_k = capacity if max_seqlen_k is None else bound("max_seqlen_k", max_seqlen_k)
        options |= {"seqused_k": seqused_k, "block_table": table, "max_seqlen_k": bound_k}
        out, lse = forward(q, k, v, schedule=schedule, **options)
    return (out, lse) if unpack is None or only_check else unpack(out, lse)


def _with_a_key(x: torch.Tensor) -> torch.Tensor:
    """K or V without keys, with one."""
    if x.dtype == torch.float8_e4m3fn:  # PyTorch has no arithmetic of it
        return x.new_zeros((*x.shape[:-3], 1, *x.shape[-2:]))
    return torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1))


def batch_of(q: torch.Tensor, cu_seqlens_q: torch.Tensor | None) -> int:
    """How many sequences q has."""
    if cu_seqlens_q is None:
        return q.shape[0]
    if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] == 0:
        raise ValueError(f"cu_seqlens_q has shape {tuple(cu_seqlens_q.shape)}; it must be int32 of shape (batch + 1,)")
    return cu_seqlens_q.shape[0] - 1


def bound(name: str, given: Any) -> int:
    """A bound of lengths, which the host must know."""
    if given is None:
        raise ValueError(f"{name} was not given; packed sequences need a bound of their lengths")
    if isinstance(given, torch.Tensor):
        if given.device.type != "cpu":
            raise TypeError(f"{name} is a tensor on {given.device}; give an int: reading it would wait for the device")
        if given.numel() != 1:
            raise TypeError(f"{name} is a tensor of shape {tuple(given.shape)}; give an int")
        given = int(given)
    if not isinstance(given, (numbers.Integral, torch.SymInt)):
        raise TypeError(f"{name} is a {type(given).__name__}; it must be an int")
    # Of a symbol that is computed from values a traced program cannot know it.
    if not torch.compiler.is_compiling() and given < 0:
        raise ValueError(f"{name} is {given}; it is a bound of lengths, at least 0")
    return given


def _check_bound_of_equal(q: torch.Tensor, max_seqlen_q: Any) -> None:
    """Raises for a bound that equal lengths do not fulfil; it has no other use."""
    if bound("max_seqlen_q", max_seqlen_q) < (q.shape[1] if q.dim() == 4 else 0):
        raise ValueError(f"max_seqlen_q is {max_seqlen_q}; q has {q.shape[1]} rows a sequence: leave it out")


def _no_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None) -> Results:
    """The results where there is no query or no key."""
    if q.dtype not in (*_checks.FLOATS, torch.float8_e4m3fn):
        raise ValueError(f"q holds {q.dtype}; allowed are float16, bfloat16, float32 and float8_e4m3fn")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"{name} holds {x.dtype} on {x.device}; q holds {q.dtype} on {q.device}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"v has shape {tuple(v.shape)}; all but its head_dim must be those of k, {tuple(k.shape)}")
    (batch, rows, heads, head_dim), kv_heads = q.shape, k.shape[2]
    if k.shape[0] != batch or k.shape[3] != head_dim or 0 in (heads, kv_heads, head_dim) or heads % kv_heads != 0:
        raise ValueError(
            f"k has shape {tuple(k.shape)}; its batch and head_dim must be those of q, {tuple(q.shape)}, and its heads "
            "divide q's"
        )
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = q.new_zeros((batch, rows, heads, v.shape[3]), dtype=dtype)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out = out + sum(x[..., :0].sum() for x in (q, k, v))  # sums of nothing: gradients of 0
    lse = q.new_full((batch, heads, rows), float("-inf"), dtype=torch.float32)
    return out, lse if sinks is None else lse.copy_(sinks.float().view(-1, 1).expand(lse.shape))
