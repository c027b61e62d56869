"""What the operators' results are like, for tracing: shapes and dtypes without values."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


def register() -> None:
    """Gives the operators, which are registered, kernels for tensors without values."""
    torch.library.register_fake(
        "flashcore::fwd",
        lambda q, k, v, softmax_scale, causal, window_left, window_right, softcap, out_bhsd, *rest: (
            _empty_results(q, v, out_bhsd)
        ),
    )
    torch.library.register_fake(
        "flashcore::fwd.scaled",
        lambda q, k, v, q_scale, k_scale, v_scale, scale, causal, window_left, window_right, softcap, out_bhsd, *rest: (
            _empty_results(q, v, out_bhsd)
        ),
    )
    torch.library.register_fake(
        "flashcore::fwd.modified",
        lambda q, k, v, sinks, slopes, softmax_scale, causal, window_left, window_right, softcap, out_bhsd, *rest: (
            _empty_results(q, v, out_bhsd)
        ),
    )
    for name, other in (("fwd.bhsd", "fwd"), ("fwd_kvcache.rows", "fwd_varlen")):
        torch.library.register_fake(f"flashcore::{name}", partial(_empty_bhsd, name, other))
    for name in ("fwd_varlen", "fwd_varlen.modified", "fwd_kvcache", "fwd_kvcache.modified"):
        torch.library.register_fake(f"flashcore::{name}", lambda q, k, v, *rest: _empty_rows(q, v))
    torch.library.register_fake(
        "flashcore::bwd",
        lambda dout, q, k, v, out, lse, scale, causal, window_left, window_right, softcap, bhsd, *rest: tuple(
            _empty_gradient(x, bhsd) for x in (q, k, v)
        ),
    )
    torch.library.register_fake(
        "flashcore::bwd_varlen", lambda dout, q, k, v, *rest: tuple(_empty_gradient(x, False) for x in (q, k, v))
    )


def _empty_results(q: torch.Tensor, v: torch.Tensor, out_bhsd: bool) -> tuple[torch.Tensor, torch.Tensor]:
    batch, seq, heads, _ = q.shape
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    if out_bhsd:
        out = q.new_empty((batch, heads, seq, v.shape[3]), dtype=dtype).transpose(1, 2)
    else:
        out = q.new_empty((batch, seq, heads, v.shape[3]), dtype=dtype)
    return out, q.new_empty((batch, heads, seq), dtype=torch.float32)


def _empty_bhsd(
    name: str, other: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any
) -> torch.Tensor:
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise NotImplementedError(f"flashcore::{name} has no gradients: call flashcore::{other}")
    batch, heads, seq, _ = query.shape
    return query.new_empty((batch, seq, heads, value.shape[3]))


def _empty_gradient(of: torch.Tensor, bhsd: bool) -> torch.Tensor:
    if not bhsd:
        return of.new_empty(of.shape)
    batch, seq, heads, head_dim = of.shape
    return of.new_empty((batch, heads, seq, head_dim)).transpose(1, 2)


def _empty_rows(q: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    heads = q.shape[-2]
    shape = (heads, q.shape[0]) if q.dim() == 3 else (q.shape[0], heads, q.shape[1])
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(shape, dtype=torch.float32)
