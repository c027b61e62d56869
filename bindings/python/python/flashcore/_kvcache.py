"""What surrounds attention over a cache: writing new rows, rotary embeddings, left padding.

It is PyTorch's operations, a few dozen small kernels a call, and no kernel of FlashCore.

All values of lengths stay on the device: nothing here waits for it, and a CUDA graph can capture all of it.

A cache is ``[pages, page_size, kv_heads, head_dim]`` with a table int32 ``[batch, max_pages]``. A contiguous cache is
one whose pages hold a sequence each.
"""

from __future__ import annotations

import torch

__all__ = ["NewKeys", "first_rows", "pages_of_one_key", "row_pages", "table_of", "whole_sequences"]


def table_of(batch: int, page_table: torch.Tensor | None, batch_idx: torch.Tensor | None) -> torch.Tensor | None:
    """The table of a cache whose sequences `batch_idx` selects; None for a contiguous cache in its own order."""
    if batch_idx is None:
        return page_table
    if batch_idx.dtype != torch.int32 or batch_idx.shape != (batch,):
        raise ValueError(
            f"cache_batch_idx holds {batch_idx.dtype} of shape {tuple(batch_idx.shape)}; it must be int32 of shape "
            f"{(batch,)}"
        )
    return batch_idx[:, None] if page_table is None else page_table.index_select(0, batch_idx)


def whole_sequences(cache: torch.Tensor) -> torch.Tensor:
    """The table of a contiguous cache in its own order."""
    return torch.arange(cache.shape[0], dtype=torch.int32, device=cache.device)[:, None]


def first_rows(count: int, rows: int, device: torch.device) -> torch.Tensor:
    """The first row of each sequence that has this many, int32 ``[count, 1]``."""
    return torch.arange(count, dtype=torch.int32, device=device)[:, None] * rows


def row_pages(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int] | None:
    """Views of a cache as pages of one key, which overlap, and how many rows there are from a page to the next.

    Key `i` of page `p` of the cache is then page ``p * rows + i``. None where its pages are not a whole number of rows
    apart, the same in both.
    """
    pages, size, heads, _ = k.shape
    rows, rest = divmod(k.stride(0), k.stride(1))
    if rest or v.stride(0) != rows * v.stride(1):
        return None
    count = (pages - 1) * rows + size
    views = (
        x.as_strided((count, 1, heads, x.shape[3]), (x.stride(1), x.stride(1), x.stride(2), 1), x.storage_offset())
        for x in (k, v)
    )
    return (*views, rows)


def pages_of_one_key(
    k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, leftpad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same cache with pages of one key, and a table that begins after the padding of each sequence.

    Nothing of the cache is copied. The table has an entry for each key.
    """
    pages, size = k.shape[:2]
    views = row_pages(k, v)
    if views is None:
        raise NotImplementedError(
            "cache_leftpad is given; it is served where the pages of k_cache and v_cache, or their sequences, are a "
            "whole number of rows apart, the same in both"
        )
    k, v, rows_a_page = views
    capacity = table.shape[1] * size
    keys = leftpad[:, None] + torch.arange(capacity, dtype=torch.int32, device=k.device)
    page = table.gather(1, (keys // size).clamp(0, table.shape[1] - 1).long())
    row = page * rows_a_page + keys % size
    inside = (keys >= 0) & (keys < capacity) & (page >= 0) & (page < pages)
    return k, v, torch.where(inside, row, -1)


class NewKeys:
    """Keys and values that a call writes into a cache: ``[batch, seq_new, kv_heads, head_dim]``, or packed."""

    def __init__(
        self,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        starts: torch.Tensor | None,
        seqlens: torch.Tensor | None,
        cu_seqlens_k: torch.Tensor | None,
    ) -> None:
        if k is None or v is None:
            raise ValueError(f"{'k' if k is None else 'v'} is not given, but the other of k and v is")
        if seqlens is None:
            raise ValueError("cache_seqlens is not given, but k is: it says where k goes")
        if cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k is given with k; packed sequences have no room for new keys")
        batch, device = seqlens.shape[0], seqlens.device
        if starts is None:
            _check_shape("k", k, (batch, *k.shape[1:]), 4)
            rows = torch.arange(batch * k.shape[1], dtype=torch.int32, device=device)
            self.sequence, place = rows // k.shape[1], rows % k.shape[1]
            self.valid = torch.ones_like(rows, dtype=torch.bool)
            self.seqused = seqlens + k.shape[1]
            k, v = k.flatten(0, 1), v.flatten(0, 1)
        else:
            _check_shape("k", k, k.shape, 3)
            self.sequence, place = _sequence_of_rows(k.shape[0], starts)
            counts = starts.diff()
            self.valid = place < counts.index_select(0, self.sequence)
            self.seqused = seqlens + counts
        self.k, self.v, self.seqlens, self.place = k, v, seqlens, place

    def rotate(
        self,
        q: torch.Tensor,
        cu_seqlens_q: torch.Tensor | None,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        seqlens: torch.Tensor | None,
        interleaved: bool,
        at_one_place: bool,
        capacity: int,
    ) -> torch.Tensor:
        """Rotates the keys, and returns q rotated: all of it `at_one_place`, or as the keys."""
        if cos is None or sin is None:
            raise ValueError(f"rotary_{'cos' if cos is None else 'sin'} is not given, but the other table is")
        if cos.shape != sin.shape or cos.dim() != 2 or 2 * cos.shape[1] > q.shape[-1]:
            raise ValueError(
                f"rotary_cos has shape {tuple(cos.shape)} and rotary_sin {tuple(sin.shape)}; both must be [positions, "
                f"rotary_dim / 2], with a rotary_dim of at most {q.shape[-1]}"
            )
        if cos.shape[0] < capacity:
            raise ValueError(f"rotary_cos has {cos.shape[0]} positions; the cache has room for {capacity} keys")
        first = self.seqlens if seqlens is None else seqlens
        at = lambda sequence, place: first.index_select(0, sequence) + place
        self.k = _rotate(self.k, cos, sin, at(self.sequence, self.place), interleaved)
        if cu_seqlens_q is not None:
            sequence, place = _sequence_of_rows(q.shape[0], cu_seqlens_q)
            return _rotate(q, cos, sin, at(sequence, 0 if at_one_place else place), interleaved)
        rows = torch.arange(q.shape[0] * q.shape[1], dtype=torch.int32, device=q.device)
        place = 0 if at_one_place else rows % q.shape[1]
        return _rotate(q.flatten(0, 1), cos, sin, at(rows // q.shape[1], place), interleaved).view(q.shape)

    def append(self, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
        """Writes them into the cache; returns how many keys each sequence has then."""
        for name, cache, new in (("k", k, self.k), ("v", v, self.v)):
            if new.shape != (self.k.shape[0], *cache.shape[2:]) or new.dtype != cache.dtype:
                raise ValueError(
                    f"{name} holds {new.dtype} of shape {tuple(new.shape)} (rows, kv_heads, head_dim); for this cache "
                    f"it must hold {cache.dtype} of shape {(self.k.shape[0], *cache.shape[2:])}"
                )
        table = whole_sequences(k) if table is None else table
        position = self.seqlens.index_select(0, self.sequence) + self.place
        _append((k, v), (self.k, self.v), table, self.sequence, position, self.valid)
        return self.seqused


def _check_shape(name: str, given: torch.Tensor, shape: tuple[int, ...], dims: int) -> None:
    if given.dim() != dims or given.shape != shape:
        raise ValueError(f"{name} has shape {tuple(given.shape)}; it must have {dims} dimensions: {shape}")


def _sequence_of_rows(total: int, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of `total` packed rows its sequence and its place there; rows after the last have the last sequence."""
    rows = torch.arange(total, dtype=torch.int32, device=starts.device)
    sequence = torch.searchsorted(starts[1:].contiguous(), rows, right=True).clamp(max=starts.shape[0] - 2)
    return sequence, rows - starts.index_select(0, sequence)


def _append(
    caches: tuple[torch.Tensor, torch.Tensor],
    new: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    sequence: torch.Tensor,
    position: torch.Tensor,
    valid: torch.Tensor,
) -> None:
    """Writes rows into a cache.

    Parameters
    ----------
    caches : K and V ``[pages, page_size, kv_heads, head_dim]``
    new : rows of K and V ``[rows, kv_heads, head_dim]``
    sequence, position : int ``[rows]``
        Where each row goes. A row past the capacity or on no page is not written.
    valid : bool ``[rows]``
        False for rows that are not written.
    """
    if new[0].shape[0] == 0:
        return
    pages, size = caches[0].shape[:2]
    slot = (position // size).clamp(0, table.shape[1] - 1)
    page = table[sequence, slot.long()]
    valid = valid & (position >= 0) & (position < table.shape[1] * size) & (page >= 0) & (page < pages)
    page, offset = page.clamp(0, pages - 1).long(), (position % size).long()
    # There is no write that skips rows. A row that is not to be written repeats what the first valid one writes, or
    # where there is none, writes what is there: all writes to a place are of the same values.
    first = valid.int().argmax(0, keepdim=True)
    page, offset = (torch.where(valid, x, x.index_select(0, first)) for x in (page, offset))
    for cache, rows in zip(caches, new):
        there = cache[page.index_select(0, first), offset.index_select(0, first)]
        repeated = torch.where(valid.any(), rows.index_select(0, first), there)
        cache.index_put_((page, offset), torch.where(valid[:, None, None], rows, repeated))


def _rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotary embedding of rows ``[rows, heads, head_dim]`` at positions int ``[rows]``, computed in float32.

    `cos` and `sin` are ``[positions, rotary_dim / 2]``; columns from ``rotary_dim`` on stay. Interleaved, the pairs are
    columns 0 and 1, 2 and 3, ...; else columns 0 and ``rotary_dim / 2``, ...
    """
    position = position.clamp(0, cos.shape[0] - 1)
    cos, sin = (table.index_select(0, position).float()[:, None] for table in (cos, sin))
    half = cos.shape[-1]
    head, tail = x[..., : 2 * half].float(), x[..., 2 * half :]
    if interleaved:
        a, b = head[..., 0::2], head[..., 1::2]
        head = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = head[..., :half], head[..., half:]
        head = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((head.to(x.dtype), tail), dim=-1)
