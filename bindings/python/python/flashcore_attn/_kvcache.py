"""Tables of caches: of selected sequences, and after left padding.

It is PyTorch's operations, a few small kernels a call, and no kernel of FlashCore.

All values of lengths stay on the device: nothing here waits for it, and a CUDA graph can capture all of it.

A cache is ``[pages, page_size, kv_heads, head_dim]`` with a table int32 ``[batch, max_pages]``. A contiguous cache is
one whose pages hold a sequence each.
"""

from __future__ import annotations

import os

import torch


def table_of(
    batch: int, k: torch.Tensor, page_table: torch.Tensor | None, batch_idx: torch.Tensor | None
) -> torch.Tensor | None:
    """The table of a cache whose sequences `batch_idx` selects; None for a contiguous cache in its own order."""
    if page_table is not None:
        shape = tuple(page_table.shape)
        if len(shape) != 2 or shape[1] == 0 or (shape[0] == 0 and batch > 0):
            raise ValueError(f"page_table has shape {shape}; it must be int32 of shape (batch, max_pages), without 0")
        if 0 in k.shape[:2]:
            raise ValueError(f"k_cache has shape {tuple(k.shape)}; with page_table, pages and keys of a page are not 0")
    if batch_idx is None:
        return page_table
    check_int32("cache_batch_idx", batch_idx, (batch,), k.device)
    count = k.shape[0] if page_table is None else page_table.shape[0]
    is_there = (batch_idx >= 0) & (batch_idx < count)
    if are_known(batch_idx) and not is_there.all():
        b = int(is_there.int().argmin())
        raise ValueError(f"cache_batch_idx has {int(batch_idx[b])} for sequence {b}; the cache has {count} sequences")
    if page_table is None:
        return batch_idx[:, None]  # kernels look at no page outside the cache
    return torch.where(is_there[:, None], page_table.index_select(0, batch_idx.clamp(0, max(count - 1, 0))), -1)


def check_int32(name: str, given: object, shape: tuple[int, ...], device: torch.device) -> None:
    """Raises for anything but an int32 tensor of this shape and place."""
    expected = f"it must be an int32 tensor of shape {shape} on {device}"
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{name} is a {type(given).__name__}; {expected}")
    if given.dtype != torch.int32 or given.shape != shape or given.device != device:
        raise ValueError(f"{name} holds {given.dtype} of shape {tuple(given.shape)} on {given.device}; {expected}")


# As the library reads it. Kernels then check what they are given; what this module computes before is checked here.
_CHECKS = os.environ.get("FLASHCORE_CHECK", "") not in ("", "0")


def are_known(lengths: torch.Tensor) -> bool:
    """Whether the host can look at values: on the CPU, where no trace, mode or transform runs the program.

    With FLASHCORE_CHECK=1 also on a GPU, unless a CUDA graph is captured.
    """
    return not (
        type(lengths) is not torch.Tensor
        or (lengths.device.type != "cpu" and not (_CHECKS and _can_wait(lengths)))
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
    )


def _can_wait(lengths: torch.Tensor) -> bool:
    return lengths.is_cuda and not torch.cuda.is_current_stream_capturing()


def first_rows(count: int, rows: int, device: torch.device) -> torch.Tensor:
    """The first row of each sequence that has this many, int32 ``[count, 1]``."""
    return torch.arange(count, dtype=torch.int32, device=device)[:, None] * rows


def check_padded(
    k: torch.Tensor, leftpad: torch.Tensor, seqused_k: torch.Tensor, batch: int, table: torch.Tensor | None
) -> None:
    """Raises for lengths of a padded cache that do not fit it. Their values are known on the CPU only."""
    if table is None and k.shape[0] != batch:
        raise ValueError(f"k_cache has shape {tuple(k.shape)}; without page_table it holds the {batch} sequences of q")
    capacity = k.shape[1] * (1 if table is None else table.shape[1])
    for name, given in (("cache_seqlens", seqused_k), ("cache_leftpad", leftpad)):
        check_int32(name, given, (batch,), k.device)
        if are_known(given):
            outside = (given < 0) | (given > capacity)
            if outside.any():
                b = int(outside.int().argmax())
                raise ValueError(f"{name} has {int(given[b])} for sequence {b}; allowed are 0 to {capacity}")


def rows_apart(k: torch.Tensor, v: torch.Tensor) -> int | None:
    """How many rows there are from a page of a cache to the next. None where that is no whole number, or not the same in
    both."""
    if k.stride(1) == 0:
        return None
    rows, rest = k.stride(0) // k.stride(1), k.stride(0) % k.stride(1)  # also of SymInts
    return None if rest or v.stride(0) != rows * v.stride(1) else rows


def row_views(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Views of a padded cache as pages of one key, which overlap, and how many rows there are from a page to the next.

    Key `i` of page `p` of the cache is then page ``p * rows + i``.
    """
    rows = rows_apart(k, v)
    if rows is None:
        raise NotImplementedError(
            "cache_leftpad is given; it is served where the pages of k_cache and v_cache, or their sequences, are a "
            "whole number of rows apart, the same in both"
        )
    pages, size, heads, _ = k.shape
    count = (pages - 1) * rows + size
    view = lambda x: x.as_strided((count, 1, heads, x.shape[3]), (x.stride(1), x.stride(1), x.stride(2), 1))
    return view(k), view(v), rows


def pages_of_one_key(
    k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, leftpad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same cache with pages of one key, and a table that begins after the padding of each sequence.

    Nothing of the cache is copied. The table has an entry for each key.
    """
    pages, size = k.shape[:2]
    k, v, rows_a_page = row_views(k, v)
    capacity = table.shape[1] * size
    keys = leftpad[:, None] + torch.arange(capacity, dtype=torch.int32, device=k.device)
    page = table.gather(1, (keys // size).clamp(0, table.shape[1] - 1).long())
    row = page * rows_a_page + keys % size
    inside = (keys >= 0) & (keys < capacity) & (page >= 0) & (page < pages)
    return k, v, torch.where(inside, row, -1)
