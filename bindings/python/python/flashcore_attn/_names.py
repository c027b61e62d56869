"""Errors as PyTorch's callers know them: they name arguments as the called function does, and where a GPU is out of
memory they are `torch.OutOfMemoryError`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def rename(**names: str) -> Callable[[Function], Function]:
    """Decorates a function: in the messages of what it raises, each of these words becomes the other one."""
    words = re.compile(rf"\b({'|'.join(names)})\b")

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError, RuntimeError) as error:
                inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
                if inside and error.args and isinstance(error.args[0], str):
                    error.args = (words.sub(lambda word: names[word[0]], error.args[0]), *error.args[1:])
                raise

        return cast(Function, call)

    return decorate


def signature_with(name: str) -> Callable[[Function], Function]:
    """Decorates a function whose `_in_its_place` is where this keyword is in FlashAttention-3's signature, which it shows.

    It refuses what is given there by position: FlashAttention-2 has its dropout there. No call takes longer for it.
    """

    def decorate(function: Function) -> Function:
        shown = inspect.signature(function)
        parameters = [x for x in shown.parameters.values() if x.name != name]
        place = next(n for n, x in enumerate(parameters) if x.name == "_in_its_place")
        parameters[place] = shown.parameters[name].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        function.__signature__ = shown.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate


def refuse_number(function: str, place: int, name: str, given: Any) -> None:
    """Raises for what is in the place where FlashAttention-2 has dropout_p, and FlashAttention-3 something else."""
    raise TypeError(
        f"{function} has {given!r} as its positional argument {place}: that is {name} here, as in FlashAttention-3, and "
        f"dropout_p in FlashAttention-2. Write softmax_scale={given!r} or dropout_p={given!r}, or import {function} from "
        "flashcore_attn.flash_attn, which has FlashAttention-2's signatures"
    )


def check_tensors(q: object, k: object, v: object, /, **optional: object) -> None:
    """Raises for what is no dense tensor, and where q, k or v has no dimensions; optional ones may be None."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if check_tensor(name, x).dim() == 0:
            raise ValueError(f"{name} has no dimensions; it is [batch, seq, heads, head_dim], or packed without a batch")
    for name, x in optional.items():
        if x is not None:
            check_tensor(name, x)


def check_tensor(name: str, x: object) -> torch.Tensor:
    """Raises for what is no dense tensor."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a tensor")
    if x.is_nested:
        raise NotImplementedError(
            f"{name} is a nested tensor, which is not served: give x.values() and x.offsets() as int32 to "
            "flash_attn_varlen_func"
        )
    if x.layout != torch.strided:
        raise NotImplementedError(f"{name} has the layout {x.layout}, which is not served: give x.to_dense()")
    return x


def typed(operator: Any, *inputs: Any) -> Any:
    """An operator's results; its errors, which are `RuntimeError`, have PyTorch's type where a GPU is out of memory."""
    try:
        return operator(*inputs)
    except RuntimeError as error:
        if str(error).startswith("cannot allocate ") and "out of memory" in str(error):
            raise torch.OutOfMemoryError(str(error)) from None
        raise
