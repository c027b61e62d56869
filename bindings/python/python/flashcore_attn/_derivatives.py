"""Derivatives that are refused by name: in forward mode, by transforms of `torch.func`, and of what has no backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

__all__ = ["below_autograd", "has_tangents", "refuse_tangents", "refuse_transforms", "refusing"]

_INSTEAD = "use torch.autograd.grad, or PyTorch's scaled_dot_product_attention with SDPBackend.MATH"


def has_tangents(inputs: tuple[Any, ...]) -> bool:
    """Whether one of the tensors among these inputs has a derivative in forward mode."""
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs)


def refuse_tangents(inputs: tuple[Any, ...]) -> None:
    """Raises for a derivative in forward mode."""
    if has_tangents(inputs):
        raise NotImplementedError(
            "a derivative in forward mode is asked for, such as by torch.func.jvp, which flashcore does not compute: "
            + _INSTEAD
        )


def refuse_transforms() -> None:
    """Raises for a gradient that a transform of `torch.func` records."""
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "a gradient is asked for by a transform of torch.func, such as grad or vmap, which flashcore does not "
            "serve: " + _INSTEAD
        )


def below_autograd(run: Any, *inputs: Any) -> Any:
    """Results of an operator that autograd does not see."""
    with torch._C._AutoDispatchBelowAutograd():
        return run(*inputs)


class _WithoutBackward(torch.autograd.Function):
    """An operator whose results require a gradient, so that asking for it says why there is none."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, str], *inputs: Any) -> Any:
        run, ctx.says = call
        return below_autograd(run, *inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> NoReturn:
        raise NotImplementedError(ctx.says)


def refusing(operator: Any, says: str) -> Callable[..., Any]:
    """The kernel of an operator without gradients for the dispatcher's key Autograd."""

    def kernel(keys: Any, *inputs: Any) -> Any:
        refuse_tangents(inputs)
        run = lambda *args: operator.redispatch(keys & torch._C._after_autograd_keyset, *args)
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
            refuse_transforms()
            return _WithoutBackward.apply((run, says), *inputs)
        return below_autograd(run, *inputs)

    return kernel
