"""Padded batches as packed sequences. The lengths stay on the device: nothing here waits for it.

What all layers of a step share is kept with their mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import _kvcache
from ._operators import forward_kvcache, forward_varlen

__all__ = ["attend", "rows_of"]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    used: torch.Tensor,
    *,
    deterministic: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Attention of tensors ``[batch, rows, heads, head_dim]`` of which some rows are padding.

    Parameters
    ----------
    used : bool Tensor ``[batch, keys]``
        False at padding. Its last columns are those of the queries.
    options
        Those of `forward_varlen`. Masks are relative to the rows in use, as if there were no others.

    Returns
    -------
    out : ``[batch, rows, heads, head_dim_v]``, 0 at padding
    """
    batch, rows, heads, _ = q.shape
    # A step of decoding reads K and V where they are. A prompt is copied without its padding, since that is little
    # beside its attention, and not all kernels serve single rows as pages. Pages have no gradients.
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    views = _kvcache.row_pages(k, v) if rows == 1 and not recorded else None
    if views is not None:
        k, v, rows_a_page = views
        lengths, table = _table(used, rows_a_page)
        keys = used.shape[1]
        out, _ = forward_kvcache(q, k, v, seqused_k=lengths, max_seqlen_k=keys, block_table=table, **options)
        return out
    of = _packing(used, rows)
    taken = ((q, of.order_q), (k, of.order), (v, of.order))
    q, k, v = (x.take_along_dim(order, 1).flatten(0, 1) for x, order in taken)
    out, _ = forward_varlen(q, k, v, **of.lengths, deterministic=deterministic, **options)
    out = out.view(batch, rows, heads, -1).take_along_dim(of.places_q, 1)
    return torch.where(of.in_use_q, out, 0.0)


def rows_of(
    key: torch.Tensor, value: torch.Tensor, used: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where a cache ``[batch, kv_heads, capacity, head_dim]`` has the keys in use, as `forward_bhsd` takes it.

    None where the sequences are not a whole number of rows apart, the same in both.
    """
    apart = 0
    if key.shape[0] > 1:
        apart, rest = divmod(key.stride(0), key.stride(2))
        if rest or value.stride(0) != apart * value.stride(2):
            return None
    return _table(used, apart)


def _table(used: torch.Tensor, apart: int) -> tuple[torch.Tensor, torch.Tensor]:
    """How many keys each sequence has, and the row of each where sequences are so many rows `apart`."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = _kept(used)
    if apart not in kept:
        first = _kvcache.first_rows(used.shape[0], apart, used.device)
        kept[apart] = used.sum(1, dtype=torch.int32), (first + _order(used)).int()
    return kept[apart]


class _Packing(NamedTuple):
    """The rows of K and V in use first, the same of Q, where these go back to, and which they are, all of them
    ``[batch, rows, 1, 1]``; and the lengths.
    """

    order: torch.Tensor
    order_q: torch.Tensor
    places_q: torch.Tensor
    in_use_q: torch.Tensor
    lengths: dict[str, Any]


def _packing(used: torch.Tensor, rows: int) -> _Packing:
    kept: dict[str, _Packing] = _kept(used)
    if "packing" not in kept:
        batch, keys = used.shape
        of_q = used[:, keys - rows :]
        order = _order(used)
        order_q = order if rows == keys else _order(of_q)
        lengths = {
            "cu_seqlens_q": _kvcache.first_rows(batch + 1, rows, used.device).flatten(),
            "cu_seqlens_k": _kvcache.first_rows(batch + 1, keys, used.device).flatten(),
            "max_seqlen_q": rows,
            "max_seqlen_k": keys,
            "seqused_q": of_q.sum(1, dtype=torch.int32),
            "seqused_k": used.sum(1, dtype=torch.int32),
        }
        of_rows = (x[:, :, None, None] for x in (order, order_q, order_q.argsort(1), of_q))
        kept["packing"] = _Packing(*of_rows, lengths)
    return kept["packing"]


def _kept(used: torch.Tensor) -> dict[Any, Any]:
    if not hasattr(used, "_flashcore"):
        used._flashcore = {}  # type: ignore[attr-defined]
    return used._flashcore  # type: ignore[attr-defined, no-any-return]


def _order(used: torch.Tensor) -> torch.Tensor:
    """The rows of each sequence, those in use first."""
    return used.view(torch.uint8).argsort(dim=1, descending=True, stable=True)
