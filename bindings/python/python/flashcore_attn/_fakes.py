"""What the operators' results are like, for tracing: shapes and dtypes without values.

They check what kernels check. PyTorch calls them too where one of the tensors is on the device meta.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _checks

Pair = tuple[torch.Tensor, torch.Tensor]
_FP8 = _checks.FP8


def register() -> None:
    """Gives the operators, which are registered, kernels for tensors without values."""
    fakes = {
        "fwd": _fwd, "fwd.scaled": _scaled, "fwd.modified": _modified, "fwd.bhsd": _bhsd,
        "fwd_varlen": _varlen, "fwd_varlen.modified": _varlen_modified, "fwd_varlen.scaled": _varlen_scaled,
        "fwd_kvcache": _kvcache, "fwd_kvcache.modified": _kvcache_modified, "fwd_kvcache.rows": _rows,
        "fwd_kvcache.scaled": _kvcache_scaled, "fwd_kvcache.scheduled": _kvcache, "make_schedule": _make_schedule,
        "append_kv": _append, "bwd": _bwd, "bwd_varlen": _bwd_varlen,
    }  # fmt: skip
    for name, fake in fakes.items():
        torch.library.register_fake(f"flashcore::{name}", fake)


def _fwd(q: Any, k: Any, v: Any, scale: float, causal: bool, left: int, right: int, cap: float, *rest: Any) -> Pair:
    _checks.attention(q, k, v)
    return _equal(q, k, v, scale, cap, rest[0])


def _scaled(q: Any, k: Any, v: Any, q_scale: Any, k_scale: Any, v_scale: Any, scale: float, *rest: Any) -> Pair:
    _checks.attention(q, k, v, dtypes=_FP8)
    _check_scales(q, k, k.shape[0], q_scale, k_scale, v_scale)
    return _equal(q, k, v, scale, *rest[3:5])


def _check_scales(q: Any, k: Any, batch: int, q_scale: Any, k_scale: Any, v_scale: Any) -> None:
    scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    _checks.of_dtype(q, (batch, k.shape[-2]), (torch.float32,), **scales)


def _modified(q: Any, k: Any, v: Any, sinks: Any, slopes: Any, scale: float, *rest: Any) -> Pair:
    _checks.attention(q, k, v)
    _checks.head_values(q, q.shape[0], sinks, slopes)
    return _equal(q, k, v, scale, *rest[3:5])


def _equal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, cap: float, bhsd: bool) -> Pair:
    _checks.same_batch(q, k)
    _checks.numbers(scale, cap)
    batch, seq, heads, _ = q.shape
    dtype = torch.bfloat16 if q.dtype in _FP8 else q.dtype
    if bhsd:
        out = q.new_empty((batch, heads, seq, v.shape[3]), dtype=dtype).transpose(1, 2)
    else:
        out = q.new_empty((batch, seq, heads, v.shape[3]), dtype=dtype)
    return out, q.new_empty((batch, heads, seq), dtype=torch.float32)


def _bhsd(query: Any, key: Any, value: Any, scale: float, causal: bool, left: int, right: int, cap: float) -> Any:
    _check_bhsd("fwd.bhsd", "fwd", query, key, value, scale, cap)
    _checks.same_batch(query, key, "key")
    return _empty_bhsd(query, value)


def _rows(query: Any, key: Any, value: Any, counts: Any, rows: Any, scale: float, *rest: Any) -> Any:
    _check_bhsd("fwd_kvcache.rows", "fwd_varlen", query, key, value, scale, rest[3])
    _checks.counts(query, query.shape[:1], seqused_k=counts)
    _checks.counts(query, (query.shape[0], *rows.shape[1:2]), rows=rows)
    return _empty_bhsd(query, value)


def _check_bhsd(name: str, other: str, query: Any, key: Any, value: Any, scale: float, cap: float) -> None:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise NotImplementedError(f"flashcore::{name} has no gradients: call flashcore::{other}")
    swapped = (x.transpose(1, 2) if x.dim() == 4 else x for x in (query, key, value))
    _checks.attention(*swapped, names=("query", "key", "value"))
    _checks.numbers(scale, cap)


def _empty_bhsd(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    batch, heads, seq, _ = query.shape
    return query.new_empty((batch, seq, heads, value.shape[3]))


def _varlen(q: Any, k: Any, v: Any, starts_q: Any, used_q: Any, starts_k: Any, used_k: Any, *rest: Any) -> Pair:
    _checks.packed(q, k, v, starts_q, used_q, starts_k, used_k)
    return _empty_rows(q, v, rest[0], rest[4])


def _varlen_modified(
    q: Any, k: Any, v: Any, starts_q: Any, used_q: Any, starts_k: Any, used_k: Any, sinks: Any, slopes: Any, *rest: Any
) -> Pair:
    _checks.head_values(q, starts_q.shape[0] - 1, sinks, slopes)
    return _varlen(q, k, v, starts_q, used_q, starts_k, used_k, *rest)


def _varlen_scaled(
    q: Any, k: Any, v: Any, starts_q: Any, used_q: Any, starts_k: Any, used_k: Any, q_scale: Any, k_scale: Any,
    v_scale: Any, *rest: Any,
) -> Pair:  # fmt: skip
    _checks.packed(q, k, v, starts_q, used_q, starts_k, used_k, dtypes=_FP8)
    _check_scales(q, k, starts_q.shape[0] - 1, q_scale, k_scale, v_scale)
    return _empty_rows(q, v, rest[0], rest[4])


def _kvcache_scaled(
    q: Any, k: Any, v: Any, starts_q: Any, used_q: Any, used_k: Any, table: Any, q_scale: Any, k_scale: Any,
    v_scale: Any, *rest: Any,
) -> Pair:  # fmt: skip
    _checks.cache(q, k, v, starts_q, used_q, used_k, table, dtypes=_FP8)
    _check_scales(q, k, used_k.shape[0], q_scale, k_scale, v_scale)
    return _empty_rows(q, v, rest[0], rest[4])


def _kvcache(q: Any, k: Any, v: Any, starts_q: Any, used_q: Any, used_k: Any, table: Any, *rest: Any) -> Pair:
    _checks.cache(q, k, v, starts_q, used_q, used_k, table)
    return _empty_rows(q, v, rest[0], rest[4])


def _kvcache_modified(
    q: Any, k: Any, v: Any, starts_q: Any, used_q: Any, used_k: Any, table: Any, sinks: Any, slopes: Any, *rest: Any
) -> Pair:
    _checks.head_values(q, used_k.shape[0], sinks, slopes)
    return _kvcache(q, k, v, starts_q, used_q, used_k, table, *rest)


def _empty_rows(q: torch.Tensor, v: torch.Tensor, scale: float, cap: float) -> Pair:
    _checks.numbers(scale, cap)
    heads = q.shape[-2]
    shape = (heads, q.shape[0]) if q.dim() == 3 else (q.shape[0], heads, q.shape[1])
    dtype = torch.bfloat16 if q.dtype in _FP8 else q.dtype
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype), q.new_empty(shape, dtype=torch.float32)


def _make_schedule(used_k: Any, starts_q: Any, number: int, *rest: Any) -> torch.Tensor:
    return used_k.new_empty(0)  # none: calls make their own


def _append(k_cache: Any, v_cache: Any, k: Any, v: Any, *rest: Any) -> None:
    """It writes its arguments and returns nothing."""
    *arrays, _interleaved, _at_one_position = rest
    others = {"v_cache": v_cache, "k": k, "v": v, **dict(zip(_ARRAYS, arrays))}
    _checks.on_one_device(k_cache, "k_cache", **others)


_ARRAYS = (
    "cache_seqlens", "cu_seqlens_k_new", "cache_batch_idx", "block_table", "seqused_k", "rotary_cos", "rotary_sin",
    "q", "q_out", "cu_seqlens_q", "seqlens_rotary",
)  # fmt: skip


def _bwd(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, scale: float, *rest: Any) -> tuple[torch.Tensor, ...]:
    _check_outputs(dout, q, k, v, out, lse)
    _checks.same_batch(q, k)
    _checks.numbers(scale, rest[3])
    return tuple(_empty_gradient(x, rest[4]) for x in (q, k, v))


def _bwd_varlen(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, starts_q: Any, used_q: Any, starts_k: Any, used_k: Any,
    scale: float, *rest: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    _checks.packed(q, k, v, starts_q, used_q, starts_k, used_k)
    _check_outputs(dout, q, k, v, out, lse)
    _checks.numbers(scale, rest[3])
    return tuple(_empty_gradient(x, False) for x in (q, k, v))


def _check_outputs(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    _checks.attention(q, k, v, dims=(q.dim(), q.dim()))
    _checks.of_dtype(q, (*q.shape[:-1], v.shape[-1]), (q.dtype,), dout=dout, out=out)
    shape = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    _checks.of_dtype(q, shape, (torch.float32,), lse=lse)


def _empty_gradient(of: torch.Tensor, bhsd: bool) -> torch.Tensor:
    if not bhsd:
        return of.new_empty(of.shape)
    batch, seq, heads, head_dim = of.shape
    return of.new_empty((batch, heads, seq, head_dim)).transpose(1, 2)
