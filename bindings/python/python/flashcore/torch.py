"""PyTorch's `scaled_dot_product_attention` on FlashCore's kernels.

    >>> import flashcore.torch
    >>> flashcore.torch.activate()  # until deactivate()
    >>> with flashcore.torch.activated():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

What is replaced is PyTorch's flash kernel, for CPU and CUDA tensors: the calls that PyTorch gives to it are computed by
FlashCore. On CUDA devices PyTorch chooses among its backends as before; a call with a mask, for example, goes to
another one, which neither warns nor raises. ``torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`` makes it
choose this one. Importing this module changes nothing but the list of implementations that
`torch.nn.attention.activate_flash_attention_impl` knows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.attention

from ._operators import forward

__all__ = ["activate", "activated", "deactivate", "is_active"]

_NAME = "flashcore"
_CPU = "aten::_scaled_dot_product_flash_attention_for_cpu"
_CUDA = "aten::_scaled_dot_product_flash_attention"
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# Releases before 2.11 have no list of implementations.
_registry: Any = torch.nn.attention if hasattr(torch.nn.attention, "register_flash_attention_impl") else None

_strict = False
_active: _Replacement | None = None
_warned: set[str] = set()


class _Replacement:
    """Kernels in the place of PyTorch's, which come back when `remove` is called."""

    def __init__(self) -> None:
        # Calling the operator from its own kernel would come back to that kernel: the previous ones are kept.
        self.previous_cpu = torch.library.get_kernel(_CPU, "CPU")
        self.library: torch.library.Library | None = torch.library.Library("aten", "IMPL")  # noqa: TOR901
        replace = {"with_keyset": True, "allow_override": True}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*[Oo]verriding a previously registered kernel")
            self.library.impl(_CPU.partition("::")[2], self.cpu, "CPU", **replace)
            if torch.backends.cuda.is_built():
                self.previous_cuda = torch.library.get_kernel(_CUDA, "CUDA")
                self.library.impl(_CUDA.partition("::")[2], self.cuda, "CUDA", **replace)

    def remove(self) -> None:
        global _active
        if self.library is not None:
            self.library._destroy()
        self.library = None
        _active = None

    def cpu(
        self,
        keys: torch._C.DispatchKeySet,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        if _refused(query, key, value, dropout_p, attn_mask):
            rest = {"attn_mask": attn_mask, "scale": scale}
            return self.previous_cpu.call_boxed(keys, query, key, value, dropout_p, is_causal, **rest)
        window = (-1, -1)
        seq_q, seq_kv = query.shape[2], key.shape[2]
        if is_causal and seq_q < seq_kv:  # aligned top-left: keys after the last query are seen by none
            key, value = key[:, :, :seq_q], value[:, :, :seq_q]
        elif is_causal and seq_q > seq_kv:
            window, is_causal = (-1, seq_q - seq_kv), False
        out, lse = _attend(query, key, value, is_causal, window, scale)
        return out, lse.transpose(1, 2).contiguous().transpose(1, 2)  # strided as PyTorch's

    def cuda(
        self,
        keys: torch._C.DispatchKeySet,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> Any:
        if _refused(query, key, value, dropout_p, None):
            options = (dropout_p, is_causal, return_debug_mask)
            return self.previous_cuda.call_boxed(keys, query, key, value, *options, scale=scale)
        # This operator is aligned bottom-right; SDPA calls it for causal masks of equal lengths only.
        out, lse = _attend(query, key, value, is_causal, (-1, -1), scale)
        seed, offset = (query.new_empty(shape, dtype=torch.uint64) for shape in (2, ()))
        return out, lse, None, None, query.shape[2], key.shape[2], seed, offset, query.new_empty(0)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: tuple[int, int],
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of ``[batch, heads, seq, head_dim]``; the output is strided as ``torch.empty_like(query)``."""
    options: dict[str, Any] = {"softmax_scale": scale, "causal": is_causal, "window": window}
    out_bhsd = query.stride(1) >= query.stride(2)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, lse = forward(q, k, v, **options, out_bhsd=out_bhsd)
    return out.transpose(1, 2), lse


def _refused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    attn_mask: torch.Tensor | None,
) -> bool:
    """Whether PyTorch's kernel must compute it. Raises if strict, else warns once for each reason."""
    head_dim = query.shape[-1]
    if dropout_p != 0.0:
        why = "dropout_p is not 0"
    elif attn_mask is not None:
        why = "attn_mask is given"
    elif query.dtype not in _DTYPES:
        why = f"query holds {query.dtype}"
    elif value.shape[-1] != head_dim:
        why = "value has another head_dim than query"
    elif head_dim % 8 != 0 or head_dim > 256:
        why = f"head_dim is {head_dim}, which is not a multiple of 8 up to 256"
    elif query.numel() == 0 or key.numel() == 0:
        why = "a tensor has no elements"
    elif torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        why = "a gradient is asked for"
    else:
        return False
    if _strict:
        raise NotImplementedError(f"{why}: flashcore does not serve this call of scaled_dot_product_attention")
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"{why}: PyTorch computes such calls, not flashcore", stacklevel=3)
    return True


def _install() -> _Replacement:
    global _active
    _active = _Replacement()
    return _active


if _registry is not None:
    _registry.register_flash_attention_impl(_NAME, register_fn=_install)


def is_active() -> bool:
    """Whether `scaled_dot_product_attention` runs on FlashCore."""
    return _active is not None


def activate(*, strict: bool = False) -> None:
    """Computes `scaled_dot_product_attention` with FlashCore from now on, in all threads.

    Semantics are PyTorch's: ``is_causal`` is aligned top-left, and ``enable_gqa`` shares K/V heads. PyTorch's own
    kernel computes what FlashCore does not serve: dropout, masks, gradients, float64, head_dim that is not a multiple
    of 8 up to 256. The first call for each reason warns.

    Parameters
    ----------
    strict : bool
        Raise `NotImplementedError` for what is not served.
    """
    global _strict
    _strict = strict
    if _active is not None:
        return
    if _registry is not None:
        _registry.activate_flash_attention_impl(_NAME)
    else:
        _install()


def deactivate() -> None:
    """Gives `scaled_dot_product_attention` back to PyTorch; does nothing if it is not `activate`-d."""
    if _active is None:
        return
    if _registry is not None:
        _registry.restore_flash_attention_impl()
    else:
        _active.remove()


@contextmanager
def activated(*, strict: bool = False) -> Iterator[None]:
    """`activate` for the duration of a ``with`` block; afterwards all is as it was before."""
    global _strict
    before = (_active is not None, _strict, _registry and _registry.current_flash_attention_impl())
    activate(strict=strict)
    try:
        yield
    finally:
        was_active, _strict, implementation = before
        if not was_active:
            deactivate()
            if _registry is not None and implementation is not None:
                _registry.activate_flash_attention_impl(implementation)
