"""Schedules that are made once for the layers of a step: `get_scheduler_metadata` and what its result is checked for.

The operator ``flashcore::make_schedule`` makes one, and ``::fwd_kvcache.scheduled`` uses it (``src/operators/schedule.rs``).
"""

from __future__ import annotations

from typing import Any

import torch

from . import (
    _names,
    _native,
    _operators,  # noqa: F401  (registers the operator)
)
from ._arguments import absent, dense

__all__ = ["given", "make"]

_make = torch.ops.flashcore.make_schedule.default
_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_FOREIGN = "scheduler_metadata is given; only that of flashcore's get_scheduler_metadata is served, itself and not a copy"


class _Kept:
    """What the token of a schedule has: the schedule's number, which lives as long as this."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def __reduce__(self) -> Any:
        return set, ()  # a copy, or what is read from a file, has nothing of it


def make(
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    out: torch.Tensor | None,
    dtype: torch.dtype,
    *numbers: Any,
) -> torch.Tensor:
    """The token of a schedule for lengths as they are when it runs; numbers are those of the operator from `heads` on."""
    if dtype == torch.float8_e4m3fn and out is None:
        return seqused_k.new_empty(0)  # none: calls make their own
    if dtype not in _DTYPES:
        raise ValueError(f"qkv_dtype is {dtype}; schedules are made for float16, bfloat16 and float32")
    if out is not None and out.numel() == 0:
        raise ValueError("out has no schedule to be made again: the calls that it was made for have none. Leave it out")
    number = 0 if out is None else _number(out, "out")
    arrays = (dense(seqused_k), dense(cu_seqlens_q, absent(seqused_k, cu_seqlens_q)))
    token = _names.typed(_make, *arrays, number, _DTYPES[dtype], *numbers)
    if out is not None:
        return out
    if token.numel() > 0:
        token._flashcore_schedule = _Kept(_native.last_schedule())
    return token  # type: ignore[no-any-return]


def given(metadata: torch.Tensor | None) -> int | None:
    """The number of the schedule that a caller gives; None for none."""
    if metadata is None or metadata.numel() == 0:
        return None
    if torch.compiler.is_compiling():
        raise NotImplementedError("scheduler_metadata is given in a compiled function, which makes its own: leave it out")
    return _number(metadata, "scheduler_metadata")


def _number(token: torch.Tensor, name: str) -> int:
    kept = getattr(token, "_flashcore_schedule", None)
    if not isinstance(kept, _Kept):
        raise NotImplementedError(_FOREIGN.replace("scheduler_metadata", name, 1))
    return kept.schedule.number  # type: ignore[no-any-return]
