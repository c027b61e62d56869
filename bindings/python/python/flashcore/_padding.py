"""Padded batches as packed sequences. The lengths stay on the device: nothing here waits for it."""

from __future__ import annotations

from typing import Any

import torch

from . import _kvcache
from ._operators import forward_kvcache, forward_varlen

__all__ = ["attend"]


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
    keys = k.shape[1]
    order, lengths, of_q, order_q = _rows_of(used, rows)
    # A step of decoding reads K and V where they are. A prompt is copied without its padding, since that is little
    # beside its attention, and not all kernels serve single rows as pages. Pages have no gradients.
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    views = _kvcache.row_pages(k, v) if rows == 1 and not recorded else None
    if views is not None:
        k, v, rows_a_page = views
        table = _kvcache.first_rows(batch, rows_a_page, k.device) + order.int()
        out, _ = forward_kvcache(q, k, v, seqused_k=lengths, max_seqlen_k=keys, block_table=table, **options)
        return out
    q, k, v = (_taken(x, index).flatten(0, 1) for x, index in ((q, order_q), (k, order), (v, order)))
    out, _ = forward_varlen(
        q,
        k,
        v,
        cu_seqlens_q=_kvcache.first_rows(batch + 1, rows, q.device).flatten(),
        cu_seqlens_k=_kvcache.first_rows(batch + 1, keys, q.device).flatten(),
        max_seqlen_q=rows,
        max_seqlen_k=keys,
        seqused_q=of_q.sum(1, dtype=torch.int32),
        seqused_k=lengths,
        deterministic=deterministic,
        **options,
    )
    out = _taken(out.view(batch, rows, heads, -1), order_q.argsort(1))
    return torch.where(of_q[:, :, None, None], out, 0.0)


def _rows_of(used: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The order and number of the keys, which queries are in use, and their order; kept with `used` for all layers."""
    if not hasattr(used, "_rows"):
        of_q = used[:, used.shape[1] - rows :]
        used._rows = (_order(used), used.sum(1, dtype=torch.int32), of_q, _order(of_q))  # type: ignore[attr-defined]
    return used._rows  # type: ignore[attr-defined, no-any-return]


def _order(used: torch.Tensor) -> torch.Tensor:
    """The rows of each sequence, those in use first."""
    return (~used).to(torch.uint8).argsort(dim=1, stable=True)


def _taken(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.take_along_dim(x, rows[:, :, None, None], 1)
