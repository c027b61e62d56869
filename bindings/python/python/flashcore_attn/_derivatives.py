"""Derivatives that are refused by name: in forward mode, by transforms of `torch.func`, and of what has no backward pass."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from . import _checks

_INSTEAD = "use torch.autograd.grad, or PyTorch's scaled_dot_product_attention with SDPBackend.MATH"


def refuse_tangents(inputs: tuple[Any, ...]) -> None:
    """Raises where one of the tensors among these inputs has a derivative in forward mode."""
    if forward_ad._current_level < 0:
        return
    if any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in inputs):
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


def refusal(name: str, tensors: tuple[torch.Tensor, ...], numbers: tuple[Any, ...]) -> str | None:
    """Why an operator has no gradients with these tensors; None if it has."""
    *lengths, _q_scale, _k_scale, _v_scale, sinks, slopes = tensors[3:] if name != "bwd" else (None,) * 5
    why = None
    if name == "bwd":
        why = "second derivatives are not computed. Call it without create_graph=True, or use PyTorch's "
        why += "scaled_dot_product_attention with SDPBackend.MATH"
    elif tensors[0].dtype == torch.float8_e4m3fn:
        why = "gradients of float8_e4m3fn tensors are not computed. Call it under torch.no_grad(), or train with "
        why += "bfloat16 tensors"
    elif lengths and not _checks.is_given(lengths[2]):
        why = "gradients through a cache are not computed. Call it under torch.no_grad(), or train with tensors of equal "
        why += "lengths or packed sequences (cu_seqlens_q and cu_seqlens_k)"
    elif _checks.is_given(sinks) or _checks.is_given(slopes):
        why = "gradients with sinks or ALiBi slopes are not computed. Call it under torch.no_grad(), or train without them"
    elif numbers[5] & 3:
        why = "gradients of this layout are not computed. Call it under torch.no_grad(), or give tensors [batch, seq, "
        why += "heads, head_dim]"
    return None if why is None else f"flashcore::{name} has no backward pass: {why}"


class WithoutBackward(torch.autograd.Function):
    """An operator whose results require a gradient, so that asking for it says why there is none."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, str], *inputs: Any) -> Any:
        run, ctx.says = call
        with torch._C._AutoDispatchBelowAutograd():
            return run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> NoReturn:
        raise NotImplementedError(ctx.says)
