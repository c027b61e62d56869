"""What is said of arguments by their names before operators see them: types, and counts that are not there."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch

HEAD_DIMS = range(8, 257, 8)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
MOST_SCALE = 1e5  # the largest that is tested
MOST_SPLIT_KEYS = 2**28


def one_each(batch: int, **counts: torch.Tensor | None) -> None:
    """Raises for counts without elements where there are sequences: operators take them for none."""
    for name, x in counts.items():
        if x is not None and not is_given(x) and batch > 0:
            raise ValueError(f"{name} has shape (0,); it must be int32 of shape ({batch},)")


def split_keys(given: Any) -> None:
    """`batch_invariant`, where it is given."""
    if type(given) is int and 1 <= given <= MOST_SPLIT_KEYS:
        return
    if not isinstance(given, (Integral, torch.SymInt)):
        raise TypeError(f"batch_invariant is {given!r}; it must be an int")
    if not 1 <= given <= MOST_SPLIT_KEYS:
        raise ValueError(
            f"batch_invariant is {given}; a split has 1 key or more, at most {MOST_SPLIT_KEYS} (None where splits may "
            "follow the batch)"
        )


def is_given(x: torch.Tensor | None) -> bool:
    """A tensor of one dimension without elements stands for one that is not given."""
    return x is not None and not (x.ndim == 1 and x.shape[0] == 0)
