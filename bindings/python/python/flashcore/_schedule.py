"""Schedules that are made once for the layers of a step: `get_scheduler_metadata` and what its result is checked for.

The operator ``flashcore::make_schedule`` makes one, and ``::fwd_kvcache.scheduled`` uses it (``src/operators/schedule.rs``).
"""

from __future__ import annotations

from typing import Any

import torch

from . import _names, _native
from ._operators import _absent, _dense

__all__ = ["given", "make"]

_make = torch.ops.flashcore.make_schedule.default
_DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_FOREIGN = "scheduler_metadata is given; only that of flashcore's get_scheduler_metadata is served, itself and not a copy"

_captured: list[torch.Tensor] = []  # graphs that use their memory may be replayed at any time


class _Kept:
    """What the object of a schedule has: its number, PyTorch's count of writes to it, and whether a graph has it."""

    def __init__(self, number: Any, version: int) -> None:
        self.number, self.version, self.captured = number, version, False


def make(
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    out: torch.Tensor | None,
    dtype: torch.dtype,
    *numbers: Any,
) -> torch.Tensor:
    """A schedule for lengths as they are when it runs; numbers are those of the operator from `heads` on."""
    if dtype not in _DTYPES:
        raise ValueError(f"qkv_dtype is {dtype}; schedules are made for float16, bfloat16 and float32")
    absent = _absent(seqused_k, cu_seqlens_q, out)
    number = 0
    if out is not None:
        number = _kept(out, "out").number.number
    arrays = (_dense(seqused_k), _dense(cu_seqlens_q, absent), absent if out is None else out)
    with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode do not count writes
        made = _names.typed(_make, *arrays, number, _DTYPES[dtype], *numbers)
    if out is not None:
        _keep_if_captured(out)
        return out
    if made.numel() > 0:
        made._flashcore_schedule = _Kept(_native.last_schedule(), made._version)  # type: ignore[attr-defined]
    return made


def given(metadata: torch.Tensor | None) -> tuple[torch.Tensor, int] | None:
    """The schedule that a caller gives and its number; None for none."""
    if metadata is None or metadata.numel() == 0:
        return None
    if torch.compiler.is_compiling():
        raise NotImplementedError("scheduler_metadata is given in a compiled function, which makes its own: leave it out")
    kept = _kept(metadata, "scheduler_metadata")
    _keep_if_captured(metadata)
    return metadata, kept.number.number


def _kept(metadata: torch.Tensor, name: str) -> _Kept:
    kept = getattr(metadata, "_flashcore_schedule", None)
    if not isinstance(kept, _Kept):
        raise NotImplementedError(_FOREIGN.replace("scheduler_metadata", name, 1))
    if metadata._version != kept.version:
        raise ValueError(f"{name} was written to since get_scheduler_metadata made it: make a new one")
    return kept


def _keep_if_captured(metadata: torch.Tensor) -> None:
    kept = _kept(metadata, "scheduler_metadata")
    if not kept.captured and metadata.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        kept.captured = True
        _captured.append(metadata)
