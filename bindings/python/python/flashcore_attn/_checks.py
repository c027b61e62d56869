"""What is said of arguments by their names before operators see them: types, and counts that are not there."""

from __future__ import annotations

import operator
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


def kinds(softmax_scale: Any, causal: Any, window: tuple[Any, Any], softcap: Any, sm_margin: Any) -> None:
    """Types of the options that all functions have; an operator's error would print its schema."""
    if not (causal is None or hasattr(type(causal), "__bool__")):
        raise TypeError(f"causal is {causal!r}; it must be a bool")
    for name, given in (("left", window[0]), ("right", window[1])):
        if not (hasattr(type(given), "__index__") or isinstance(given, torch.SymInt)):
            raise TypeError(f"window_size has {given!r} on the {name}; both sides are ints")
        if not isinstance(given, torch.SymInt) and not -(2**63) <= operator.index(given) < 2**63:
            raise ValueError(f"window_size has {given} on the {name}; both sides are int64, and -1 is all keys")
    for name, given in (("softmax_scale", softmax_scale), ("softcap", softcap)):
        if not (hasattr(type(given), "__float__") or isinstance(given, (torch.SymFloat, torch.SymInt))):
            if given is not None or name == "softcap":
                raise TypeError(f"{name} is {given!r}; it must be a float{', 0 for no cap' * (name == 'softcap')}")
    if not (hasattr(type(sm_margin), "__index__") or isinstance(sm_margin, torch.SymInt)):
        raise TypeError(f"sm_margin is {sm_margin!r}; it must be an int")
    if not isinstance(sm_margin, torch.SymInt) and not -(2**63) <= operator.index(sm_margin) < 2**63:
        raise ValueError(f"sm_margin is {sm_margin}; it is a number of multiprocessors")


def is_given(x: torch.Tensor) -> bool:
    """A tensor of one dimension without elements stands for one that is not given."""
    return not (x.dim() == 1 and x.shape[0] == 0)
