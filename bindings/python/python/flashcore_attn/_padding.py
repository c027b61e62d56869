"""Padded batches as packed sequences. The lengths stay on the device: nothing here waits for it.

What all layers of a step share is kept with their mask.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import _kvcache
from ._operators import GIVEN_BHSD, forward


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
        False at padding. With a causal mask or a window its last columns are those of the queries.
    options
        Those of `forward`. Masks are relative to the rows in use, as if there were no others.

    Returns
    -------
    out : ``[batch, rows, heads, head_dim_v]``
        With a causal mask or a window 0 at padding. Without one all queries are in use: in cross-attention `used` is of
        the keys.
    """
    batch, rows, heads, _ = q.shape
    # A step of decoding reads K and V where they are, row by row. Not all kernels serve single rows as pages, and pages
    # have no gradients: more rows are packed where they are, or gathered if there is padding between them.
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    bhsd = [x.transpose(1, 2) for x in (q, k, v)]
    in_place = rows_of(bhsd[1], bhsd[2], used) if rows == 1 and not recorded else None
    if in_place is not None:
        how = {"layout": GIVEN_BHSD, "max_seqlen_k": used.shape[1], **options}
        return forward(*bhsd, seqused_k=in_place[0], block_table=in_place[1], **how)[0]
    has_padding = options["causal"] or max(options.get("window", (-1, -1))) >= 0  # among its queries
    of = _packing(used, rows, has_padding)
    if of.order is not None:
        k, v = k.take_along_dim(of.order, 1), v.take_along_dim(of.order, 1)
    if of.order_q is not None:
        q = q.take_along_dim(of.order_q[0], 1)
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    out, _ = forward(q, k, v, **of.lengths, deterministic=deterministic, **options)
    out = out.view(batch, rows, heads, -1)
    if of.order_q is not None:
        out = out.take_along_dim(of.order_q[1], 1)
    return out if of.in_use is None else torch.where(of.in_use, out, 0.0)


def rows_of(key: torch.Tensor, value: torch.Tensor, used: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where a cache ``[batch, kv_heads, capacity, head_dim]`` has the keys in use, as `forward_bhsd` takes it.

    None where the sequences are not a whole number of rows apart, the same in both.
    """
    apart = _kvcache.rows_apart(key.transpose(1, 2), value.transpose(1, 2)) if key.shape[0] > 1 else 0
    return None if apart is None else _table(used, apart)


def _table(used: torch.Tensor, apart: int) -> tuple[torch.Tensor, torch.Tensor]:
    """How many keys each sequence has, and the row of each where sequences are so many rows `apart`."""
    kept = _kept(used)
    if ("table", apart) not in kept:
        first = _kvcache.first_rows(used.shape[0], apart, used.device)
        kept["table", apart] = used.sum(1, dtype=torch.int32), (first + _order(used)).int()
    return kept["table", apart]  # type: ignore[no-any-return]


class _Packing(NamedTuple):
    """How sequences with padding are packed."""

    order: torch.Tensor | None
    """Rows of K and V in the order of packing; None: they stay in place."""
    order_q: tuple[torch.Tensor, torch.Tensor] | None
    """The same of Q, and where its rows go back to."""
    in_use: torch.Tensor | None
    """Which rows of Q are in use, ``[batch, rows, 1, 1]``; None: all."""
    lengths: dict[str, Any]


def keep_contiguous(used: torch.Tensor, contiguous: bool) -> None:
    """Notes whether there is no padding between the rows of a sequence, for `attend`, which cannot see it."""
    _kept(used)["contiguous"] = contiguous


def keep_mask(used: torch.Tensor, causal: bool, side: int | None) -> None:
    """Notes whether the mask is causal, which some models' modules say wrongly: other implementations read the mask.

    `side`: how far a window sees on both sides of a query.
    """
    _kept(used)["mask"] = causal, side


def mask_of(used: torch.Tensor, says: bool) -> tuple[bool, int | None]:
    """What was noted of a mask; else whether it is causal is what the module `says`."""
    return _kept(used).get("mask", (says, None))  # type: ignore[no-any-return]


def with_earlier(attention_mask: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """A mask of all positions that stands for `used`, its columns in use.

    `generate` makes masks of static caches before the model does, and the model takes what it gets for its own
    `attention_mask`, whose columns are all positions.
    """
    kept = _kept(attention_mask)
    kept["of", used.shape[1]], kept["mask"] = used, _kept(used)["mask"]
    return attention_mask


def of_keys(used: torch.Tensor, keys: int) -> torch.Tensor:
    """The columns of so many last keys, the same tensor for all layers."""
    if used.shape[1] <= keys:
        return used
    return _kept(used).setdefault(("of", keys), used[:, -keys:])  # type: ignore[no-any-return]


def _packing(used: torch.Tensor, rows: int, has_padding: bool) -> _Packing:
    """Of so many queries a sequence: those of the last columns of `used` if they have padding, else all in use."""
    kept = _kept(used)
    if ("packing", rows, has_padding) not in kept:
        keys = used.shape[1]
        in_place = kept.get("contiguous", False)
        order = None if in_place else _columns(_order(used))
        # The CPU refuses a length above its bound, and in place padding makes a sequence up to twice as long.
        pieces = 2 if in_place and not used.is_cuda else 1
        order_q, in_use, bound_q, seqused_q = None, None, rows, None
        if has_padding:
            of_q = used[:, keys - rows :]
            if not in_place:
                first = _order(of_q)
                order_q = _columns(first), _columns(first.argsort(1))
            in_use, bound_q = _columns(of_q), pieces * rows
            cu_seqlens_q, seqused_q = _starts(of_q, in_place)
        else:
            cu_seqlens_q = _kvcache.first_rows(used.shape[0] + 1, rows, used.device).flatten()
            if in_place:  # the sequence that is before the first one has no queries
                cu_seqlens_q = torch.cat((cu_seqlens_q[:1], cu_seqlens_q))
        cu_seqlens_k, seqused_k = _starts(used, in_place)
        lengths = {"cu_seqlens_q": cu_seqlens_q, "seqused_q": seqused_q, "max_seqlen_q": bound_q}
        lengths |= {"cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k, "max_seqlen_k": pieces * keys}
        kept["packing", rows, has_padding] = _Packing(order, order_q, in_use, lengths)
    return kept["packing", rows, has_padding]  # type: ignore[no-any-return]


def _columns(of_rows: torch.Tensor) -> torch.Tensor:
    return of_rows[:, :, None, None]


def _starts(used: torch.Tensor, in_place: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each sequence starts, and how many rows it uses: the first ones.

    In place the padding before a sequence belongs to the one before, and that before the first to one that uses no row.
    A sequence then seems to have up to twice its rows.
    """
    batch, rows = used.shape
    starts = _kvcache.first_rows(batch + 1, rows, used.device).flatten()
    counts = used.sum(1, dtype=torch.int32)
    if not in_place:
        return starts, counts
    starts[:-1] += used.view(torch.uint8).argmax(1)
    zero = counts.new_zeros(1)
    return torch.cat((zero, starts)), torch.cat((zero, counts))


def _kept(used: torch.Tensor) -> dict[Any, Any]:
    if not hasattr(used, "_flashcore"):
        used._flashcore = {}  # type: ignore[attr-defined]
    return used._flashcore  # type: ignore[attr-defined, no-any-return]


def _order(used: torch.Tensor) -> torch.Tensor:
    """The rows of each sequence, those in use first."""
    return used.view(torch.uint8).argsort(dim=1, descending=True, stable=True)
