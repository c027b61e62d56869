"""What the operators' results are like, for tracing: shapes and dtypes without values.

The compiled half checks what it would check of a call, by the sizes that are known: those of an example where they are
symbols. PyTorch calls fakes too where one of the tensors is on the device meta.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _native

_OPERATORS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = _native.operators()
TENSORS = {name: tensors for name, (tensors, _) in _OPERATORS.items()}


def completed(operator: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of an operator with its defaults, which PyTorch leaves out."""
    return (*inputs, *_defaults(operator)[len(inputs) :])


@functools.cache
def _defaults(operator: Any) -> tuple[Any, ...]:
    """To ask the schema for them takes longer than the rest of a call."""
    return tuple(argument.default_value for argument in operator._schema.arguments)


def check(name: str, tensors: Any, numbers: Any, asks_device: bool = False) -> None:
    """Raises what an operator would raise, as far as the host knows it; with `asks_device` as far as its plan does."""
    described = [None if x is None else _described(x) for x in tensors]
    numbers = tuple(_known(x) for x in numbers)
    if None in numbers or any(x is not None and None in (*x[3], *x[4]) for x in described):
        return  # of symbols that no example has
    _native.check_operator(name, described, numbers, asks_device)


def _described(x: torch.Tensor) -> tuple[Any, ...]:
    sizes = ([_known(n) for n in x.shape], [_known(n) for n in x.stride()])
    address = x.data_ptr() if type(x) is torch.Tensor and x.device.type != "meta" and not _is_wrapped() else 0
    return str(x.dtype).removeprefix("torch."), x.device.type, x.device.index, *sizes, address


def _is_wrapped() -> bool:
    """Whether tensors may have no memory to be seen."""
    return bool(torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())


def _known(x: Any) -> Any:
    """A number, or that of the example that a symbol was made of; None where there is none."""
    return x.node.hint if isinstance(x, (torch.SymInt, torch.SymFloat)) else x


def register() -> None:
    """Gives the operators, which are registered, kernels for tensors without values."""
    for name, make in (("fwd", _forward), ("fwd_lengths", _forward), ("bwd", _backward), ("append_kv", _append)):
        torch.library.register_fake(f"flashcore::{name}", _fake(name, make))
    torch.library.register_fake("flashcore::make_schedule", lambda used_k, *rest: used_k.new_empty(0))  # calls make theirs


def _fake(name: str, make: Any) -> Any:
    operator = getattr(torch.ops.flashcore, name).default
    names, of_numbers = _OPERATORS[name]

    def fake(*inputs: Any) -> Any:
        inputs = completed(operator, inputs)
        tensors, numbers = inputs[: len(names)], inputs[len(names) :]
        check(name, tensors, numbers)
        return make(dict(zip(names, tensors)), dict(zip(of_numbers, numbers)))

    return fake


def _forward(tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    q, v, layout = tensors["q"], tensors["v"], numbers["layout"]
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    if q.dim() == 3:
        rows, heads, _ = q.shape
        out, of_lse = q.new_empty((rows, heads, v.shape[-1]), dtype=dtype), (heads, rows)
    else:
        batch, rows, heads, _ = (q.transpose(1, 2) if layout & 1 else q).shape
        out, of_lse = _dense(q, (batch, rows, heads, v.shape[-1]), layout, dtype), (batch, heads, rows)
        out = out.transpose(1, 2) if layout & 2 else out
    return out, q.new_empty(of_lse if numbers["return_lse"] else 0, dtype=torch.float32)


def _backward(tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    return tuple(_dense(x, x.shape, numbers["layout"], x.dtype) for x in (tensors["q"], tensors["k"], tensors["v"]))


def _dense(like: torch.Tensor, shape: Any, layout: int, dtype: torch.dtype) -> torch.Tensor:
    if layout & 4 == 0 or len(shape) == 3:
        return like.new_empty(shape, dtype=dtype)
    batch, rows, heads, columns = shape
    return like.new_empty((batch, heads, rows, columns), dtype=dtype).transpose(1, 2)


def _append(tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
    """It writes its arguments and returns nothing."""
