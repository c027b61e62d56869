"""Schedules that are made once for the layers of a step: `get_scheduler_metadata` and what its result is checked for.

The operator ``flashcore::make_schedule`` makes one, and ``::fwd_lengths`` uses it (``src/schedule.rs``).
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch

from . import (
    _names,
    _native,
    _operators,  # noqa: F401  (registers the operator)
)

_make = torch.ops.flashcore.make_schedule.default
_DTYPES = {torch.float16: 5, torch.bfloat16: 15, torch.float32: 6}  # PyTorch's numbers
_FOREIGN = "scheduler_metadata is given; only that of flashcore's get_scheduler_metadata is served, itself and not a copy"


class MadeOf(NamedTuple):
    """The lengths of a schedule: the caller's tensor, as it was `written` last, and the new keys of each sequence, None for
    those of `cu_seqlens_k_new`. And the keys of a page."""

    lengths: tuple[int, int] | None
    new_keys: int | None
    page_size: int


def written(lengths: Any) -> tuple[int, int] | None:
    """Where a tensor is and how often it was written. None where PyTorch does not say."""
    if not isinstance(lengths, torch.Tensor) or _operators.is_observed() or lengths.is_inference():
        return None
    return lengths.data_ptr(), lengths._version


class _Kept:
    """What the token of a schedule has: the schedule's number, which lives as long as this, and what it was made of."""

    def __init__(self, schedule: Any, made_of: MadeOf) -> None:
        self.schedule, self.made_of = schedule, made_of

    def __reduce__(self) -> Any:
        return set, ()  # a copy, or what is read from a file, has nothing of it


def make(
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    out: torch.Tensor | None,
    dtype: torch.dtype,
    made_of: MadeOf,
    numbers: tuple[Any, ...],
    *sizes: int,
) -> torch.Tensor:
    """The token of a schedule for lengths as they are when it runs, new keys among them; numbers are those of attention, and
    sizes those of the operator from `heads` on."""
    if dtype == torch.float8_e4m3fn and out is None:
        return seqused_k.new_empty(0)  # none: calls make their own
    if dtype not in _DTYPES:
        raise ValueError(f"qkv_dtype is {dtype}; schedules are made for float16, bfloat16 and float32")
    if out is not None and _names.check_tensor("out", out).numel() == 0:
        raise ValueError("out has no schedule to be made again: the calls that it was made for have none. Leave it out")
    number = 0 if out is None else _number(out, "out")
    starts = seqused_k.new_empty(0) if cu_seqlens_q is None else cu_seqlens_q.contiguous()
    token = _names.typed(_make, seqused_k.contiguous(), starts, *numbers, number, _DTYPES[dtype], *sizes)
    if out is not None:
        out._flashcore_schedule.made_of = made_of  # type: ignore[attr-defined]
        return out
    if token.numel() > 0:
        token._flashcore_schedule = _Kept(_native.last_schedule(), made_of)
    return token  # type: ignore[no-any-return]


def made_for(metadata: torch.Tensor, lengths: Any, new_keys: int | None, has_batch_idx: bool) -> torch.Tensor | None:
    """The metadata of a call with these lengths and so many new keys each. None, with a warning, where it was made for
    other ones, which would be wrong results; or for no pages where the call has `cache_batch_idx`, which makes pages."""
    kept = getattr(metadata, "_flashcore_schedule", None)
    if not isinstance(kept, _Kept):
        return metadata
    made, now = kept.made_of, written(lengths)
    if made.new_keys != new_keys:
        given, has = ("those of cu_seqlens_k_new" if keys is None else keys for keys in (made.new_keys, new_keys))
        why = f"was made for new keys: {given}, and the call has {has}; give get_scheduler_metadata max_seqlen_k_new or "
        why += "cu_seqlens_k_new as the call's k has them"
    elif made.lengths is not None and now is not None and made.lengths[0] == now[0] and made.lengths != now:
        why = "was made before cache_seqlens was written again; get_scheduler_metadata with out= makes it anew"
    elif has_batch_idx and made.page_size == 0:
        why = "was made without page_size, which is the cache's capacity for calls with cache_batch_idx; give it"
    else:
        return metadata
    warnings.warn(f"scheduler_metadata {why}. This call makes its own schedule", stacklevel=3)
    return None


def given(metadata: torch.Tensor | None) -> int | None:
    """The number of the schedule that a caller gives; None for none."""
    if metadata is None or _names.check_tensor("scheduler_metadata", metadata).numel() == 0:
        return None
    if torch.compiler.is_compiling():
        raise NotImplementedError("scheduler_metadata is given in a compiled function, which makes its own: leave it out")
    return _number(metadata, "scheduler_metadata")


def _number(token: torch.Tensor, name: str) -> int:
    kept = getattr(token, "_flashcore_schedule", None)
    if not isinstance(kept, _Kept):
        raise NotImplementedError(_FOREIGN.replace("scheduler_metadata", name, 1))
    return kept.schedule.number  # type: ignore[no-any-return]
