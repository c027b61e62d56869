"""PyTorch's `scaled_dot_product_attention` on FlashCore's kernels.

    >>> import flashcore_attn.torch
    >>> flashcore_attn.torch.activate()  # until deactivate()
    >>> with flashcore_attn.torch.activated():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

What is replaced is PyTorch's flash kernel and its gradients, for CPU and CUDA tensors: the calls that PyTorch gives
to it are computed by FlashCore. For CUDA tensors this backend becomes the first in PyTorch's order while FlashCore is
active, since on H100 and H200 cuDNN's is the first. What PyTorch gives to another one neither warns nor raises: on
CUDA devices a call with a mask, for example, and on the CPU one with dropout, of tensors that do not have four
dimensions, or whose last dimension is not contiguous; while strict it raises. Importing this module changes nothing
but the list of implementations that `torch.nn.attention.activate_flash_attention_impl` knows.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import _extras

try:
    import torch
    import torch.nn.attention
except ModuleNotFoundError as error:
    raise _extras.missing(error, "torch") from error

from . import _native
from ._operators import (
    GIVEN_BHSD,
    MEMORY_BHSD,
    MEMORY_OF_Q,
    MORE,
    OUT_BHSD,
    backward,
    forward,
    records,
    slow_backward,
    unserved,
)

__all__ = ["activate", "activated", "deactivate", "is_active"]

_NAME = "flashcore"
_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_CUDA = "_scaled_dot_product_flash_attention"
# PyTorch's other backends, by their keys: what they get is not served.
_MATH = "_scaled_dot_product_attention_math"
_OTHERS = [("CPU", _MATH), ("AutogradCPU", _MATH)]
if torch.backends.cuda.is_built():
    _OTHERS += [("CUDA", f"_scaled_dot_product_{backend}_attention") for backend in ("efficient", "cudnn")]
    _OTHERS += [("CUDA", _MATH), ("AutogradCUDA", _MATH)]

_registry: Any = torch.nn.attention  # of implementations

_lock = threading.RLock()  # held while the state below changes
_strict = False
_active: _Replacement | None = None
_warned: set[str] = set()
_blocks: list[_Block] = []  # in the order in which they began


class _Replacement:
    """Kernels in the place of PyTorch's, which come back when `remove` is called."""

    def __init__(self) -> None:
        kernels = {("CPU", _CPU): self.cpu, ("CPU", f"{_CPU}_backward"): self.cpu_backward}
        if torch.backends.cuda.is_built():
            kernels |= {("CUDA", _CUDA): self.cuda, ("CUDA", f"{_CUDA}_backward"): self.cuda_backward}
        # Calling the operator from its own kernel would come back to that kernel: the previous ones are kept.
        self.previous = {name: torch.library.get_kernel(f"aten::{name}", key) for key, name in kernels}
        self.library: torch.library.Library | None = _overriding(kernels)
        self.others: torch.library.Library | None = None
        self.orders: tuple[list[int], list[int]] | None = None
        if torch.cuda.is_initialized():
            self.prefer()
        elif not _waits:
            _waits.append(True)
            torch.cuda._lazy_call(_prefer_later)

    def prefer(self) -> None:
        """Makes the flash backend the first in PyTorch's order."""
        if torch.cuda.is_available():  # the first choice on a GPU sets the order
            x = torch.empty(1, 1, 8, 8, dtype=torch.float16, device="cuda")
            torch._fused_sdp_choice(x, x, x)
        before = torch._C._get_sdp_priority_order()
        flash = int(torch.nn.attention.SDPBackend.FLASH_ATTENTION)
        self.orders = before, [flash, *(backend for backend in before if backend != flash)]
        torch._C._set_sdp_priority_order(self.orders[1])

    def refuse_others(self, strict: bool) -> None:
        """Whether what PyTorch gives to its other backends raises. Their kernels are replaced only then."""
        if self.others is not None and not strict:
            self.others._destroy()
            self.others = None
        if self.others is not None or not strict:
            return
        # All are asked for first: to replace the kernel of a device changes the one for its gradients.
        kernels = {where: torch.library.get_kernel(f"aten::{where[1]}", where[0]) for where in _OTHERS}
        self.others = _overriding({where: _refusing(kernel) for where, kernel in kernels.items()})

    def remove(self) -> None:
        global _active
        self.refuse_others(False)
        if self.library is not None:
            self.library._destroy()
        self.library = None
        if self.orders is not None and torch._C._get_sdp_priority_order() == self.orders[1]:  # not changed since
            torch._C._set_sdp_priority_order(self.orders[0])
        self.orders = None
        _active = None

    # What these are given is passed on as it came where PyTorch's kernel must compute it.

    def cpu(self, keys: Any, *given: Any, attn_mask: torch.Tensor | None = None, scale: float | None = None) -> Any:
        call = _call(given, scale)
        if attn_mask is None:
            results = _direct(call, False)
            if results is not None:
                return results[0], results[1].transpose(1, 2).contiguous().transpose(1, 2)
        if _refused(call, attn_mask):
            return self.previous[_CPU].call_boxed(keys, *given, attn_mask=attn_mask, scale=scale)
        out, lse = _attend(*_top_left(call))
        return out, lse.transpose(1, 2).contiguous().transpose(1, 2)  # strided as PyTorch's

    def cpu_backward(
        self, keys: Any, *given: Any, attn_mask: torch.Tensor | None = None, scale: float | None = None
    ) -> Any:
        grad_out, query, key, value, out, lse, dropout_p, is_causal = given
        call = (query, key, value, dropout_p, is_causal, scale)
        if _refused(call, attn_mask, gradient=True):
            return self.previous[f"{_CPU}_backward"].call_boxed(keys, *given, attn_mask=attn_mask, scale=scale)
        dq, dk, dv = _differentiate(grad_out, out, lse, *_top_left(call), bhsd=False)
        return dq, _padded(dk, key), _padded(dv, value)  # in memory [batch, seq, heads, head_dim], as PyTorch's

    def cuda(self, keys: Any, *given: Any, scale: float | None = None) -> Any:
        call = query, key, value, _, is_causal, _ = _call(given, scale)
        results = _direct(call, True)
        if results is not None:
            out, lse, *others = results
            return out, lse, None, None, query.shape[2], key.shape[2], *others
        if _refused(call):
            return self.previous[_CUDA].call_boxed(keys, *given, scale=scale)
        # This operator is aligned bottom-right; SDPA calls it for causal masks of equal lengths only.
        out, lse = _attend(query, key, value, is_causal, (-1, -1), scale)
        seed, offset = (query.new_empty(shape, dtype=torch.uint64) for shape in (2, ()))
        return out, lse, None, None, query.shape[2], key.shape[2], seed, offset, query.new_empty(0)

    def cuda_backward(self, keys: Any, *given: Any, scale: float | None = None) -> Any:
        grad_out, query, key, value, out, lse, _starts_q, _starts_k, _max_q, _max_k, dropout_p, is_causal, *_random = given
        if _refused((query, key, value, dropout_p, is_causal, scale), gradient=True):
            return self.previous[f"{_CUDA}_backward"].call_boxed(keys, *given, scale=scale)
        bhsd = query.stride(1) >= query.stride(2)
        call = (query, key, value, is_causal, (-1, -1), scale)
        gradients = _differentiate(grad_out, out, lse, *call, bhsd=bhsd)
        return tuple(_strided_as(x, like) for x, like in zip(gradients, (query, key, value)))


def _overriding(kernels: dict[tuple[str, str], Any]) -> torch.library.Library:
    """A library that has kernels by their keys and names, in the place of others while it lives."""
    library = torch.library.Library("aten", "IMPL")  # noqa: TOR901
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verriding a previously registered kernel")
        for (key, name), kernel in kernels.items():
            library.impl(name, kernel, key, with_keyset=True, allow_override=True)
    return library


def _refusing(previous: Any) -> Any:
    """A kernel of another backend, which raises unless the program has switched the flash backend off."""

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **options: Any) -> Any:
        if torch.backends.cuda.flash_sdp_enabled():
            raise NotImplementedError(
                "PyTorch computes this call of scaled_dot_product_attention with another backend than the flash one, "
                "which flashcore replaces, for its dropout, mask, shapes, strides or dtype: flashcore does not serve it. "
                "Call it inside of torch.nn.attention.sdpa_kernel with the backend that is meant, or activate without "
                "strict=True"
            )
        return previous.call_boxed(keys, *args, **options)

    return kernel


@functools.lru_cache(256)
def _slow(
    device: torch.device, dtype: torch.dtype, of_q: torch.Size, of_k: torch.Size, causal: bool, deterministic: bool
) -> str | None:
    """`slow_backward` of shapes ``[batch, heads, seq, head_dim]``, which a training loop asks of a few."""
    q, k = (torch.empty(shape, dtype=dtype, device="meta").transpose(1, 2) for shape in (of_q, of_k))
    return slow_backward(q, k, k, device=device, causal=causal, deterministic=deterministic)


# What an operator is given: query, key, value, dropout_p, is_causal and scale.
_Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float, bool, "float | None"]
# What is computed of it: query, key, value, is_causal, window and scale.
_Asked = tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool, tuple[int, int], "float | None"]


def _call(given: tuple[Any, ...], scale: float | None) -> _Given:
    """What an operator is given, with the defaults that PyTorch leaves out, of dropout_p and is_causal."""
    return (*given[:5], *(0.0, False)[len(given) - 3 :], scale)  # type: ignore[return-value]


def _direct(call: _Given, more: bool) -> list[torch.Tensor] | None:
    """The results of a usual call, with the least work of the host; None where the kernel must look closer."""
    query, key, value, dropout_p, is_causal, scale = call
    if dropout_p != 0.0 or query.is_neg() or key.is_neg() or value.is_neg():
        return None
    if records(query, key, value) and _slow(
        query.device, query.dtype, query.shape, key.shape, is_causal, _deterministic()
    ):
        return None
    layout = GIVEN_BHSD | OUT_BHSD | MEMORY_OF_Q | (MORE if more else 0)
    first = (scale, is_causal, -1, -1, 0.0, layout, True)
    return _native.call((query, key, value), first)  # type: ignore[no-any-return]


def _top_left(call: _Given) -> _Asked:
    """A call whose causal mask is aligned top-left, of the keys that are seen."""
    query, key, value, _, is_causal, scale = call
    seq_q, seq_kv = query.shape[2], key.shape[2]
    if is_causal and seq_q < seq_kv:  # keys after the last query are seen by none
        return query, key[:, :, :seq_q], value[:, :, :seq_q], True, (-1, -1), scale
    if is_causal and seq_q > seq_kv:
        return query, key, value, False, (-1, seq_q - seq_kv), scale
    return query, key, value, is_causal, (-1, -1), scale


def _padded(gradient: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """A gradient with zeros for the keys that are seen by none."""
    unseen = of.shape[2] - gradient.shape[2]
    if unseen == 0:
        return gradient
    return torch.nn.functional.pad(gradient.transpose(1, 2), (0, 0, 0, 0, 0, unseen)).transpose(1, 2)


def _strided_as(result: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """A result in the strides that PyTorch declares: those of ``torch.empty_like(tensor)``."""
    strides = _strides_like(tensor)
    if all(size == 1 or ours == theirs for size, ours, theirs in zip(tensor.shape, result.stride(), strides)):
        return result
    return torch.empty_like(tensor).copy_(result)


def _strides_like(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of ``torch.empty_like(tensor)``, which has its own order for strides that are 0 or equal."""
    return torch.empty_like(tensor, device="meta").stride()


_deterministic = torch.are_deterministic_algorithms_enabled


def _attend(*call: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of ``[batch, heads, seq, head_dim]``; the output is strided as ``torch.empty_like(query)``."""
    query, key, value, is_causal, window, scale = call
    _, of_head, of_row, _ = _strides_like(query)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options: dict[str, Any] = {"softmax_scale": scale, "causal": is_causal, "window": window}
    options |= {"layout": MEMORY_BHSD if of_head >= of_row else 0, "deterministic": _deterministic()}
    out, lse = forward(q, k, v, **options)
    return _strided_as(out.transpose(1, 2), query), lse


def _differentiate(
    grad_out: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, *call: Any, bhsd: bool
) -> tuple[torch.Tensor, ...]:
    """The gradients of `_attend`; `bhsd`: in memory as ``[batch, heads, seq, head_dim]``."""
    query, key, value, is_causal, window, scale = call
    options: dict[str, Any] = {"softmax_scale": scale, "causal": is_causal, "window": window}
    options |= {"layout": MEMORY_BHSD if bhsd else 0, "deterministic": _deterministic()}
    gradients = backward(*(x.transpose(1, 2) for x in (grad_out, query, key, value, out)), lse, **options)
    return tuple(x.transpose(1, 2) for x in gradients)


def _refused(call: _Given, attn_mask: torch.Tensor | None = None, gradient: bool = False) -> bool:
    """Whether PyTorch's kernel must compute it. Raises if strict, else warns once for each reason."""
    query, key, value, dropout_p, is_causal, scale = call
    why: str | None
    if dropout_p != 0.0:
        why = "dropout_p is not 0"
    elif attn_mask is not None:
        why = "attn_mask is given"
    elif value.shape[-1] != query.shape[-1]:
        why = "value has another head_dim than query"
    elif (why := unserved(query, value, scale)) is not None:
        pass
    elif query.numel() == 0 or key.numel() == 0:
        why = "a tensor has no elements"
    else:
        if not gradient and not records(query, key, value):
            return False
        slow = _slow(query.device, query.dtype, query.shape, key.shape, is_causal, _deterministic())
        if slow is None:
            return False
        why = f"a gradient is asked for, and {slow}"
    if _strict:
        raise NotImplementedError(f"{why}: flashcore does not serve this call of scaled_dot_product_attention")
    if why not in _warned:
        _warned.add(why)
        warnings.warn(f"{why}: PyTorch computes such calls, not flashcore", stacklevel=3)
    return True


_waits: list[bool] = []  # whether PyTorch calls `_prefer_later` once it begins to use GPUs


def _prefer_later() -> None:
    if _active is not None:
        _active.prefer()


def _install() -> _Replacement:
    global _active
    _active = _Replacement()
    return _active


_registry.register_flash_attention_impl(_NAME, register_fn=_install)


def is_active() -> bool:
    """Whether `scaled_dot_product_attention` runs on FlashCore."""
    return _active is not None


def activate(*, strict: bool = False) -> None:
    """Computes `scaled_dot_product_attention` with FlashCore from now on, in all threads.

    On GPUs PyTorch then tries its flash backend, which is FlashCore, before the others. Semantics are PyTorch's:
    ``is_causal`` is aligned top-left, and ``enable_gqa`` shares K/V heads. Gradients are computed too. PyTorch's own
    flash kernel computes what FlashCore does not serve: dropout, masks, float64, head_dim that is
    not a multiple of 8 up to 256, a scale that is not above 0 and at most 1e5, and training on a GPU where FlashCore's
    kernel for the gradients uses no tensor cores. The first call for each reason warns.

    Parameters
    ----------
    strict : bool
        Raise `NotImplementedError` for what is not served, also where PyTorch gives it to another backend, unless the
        program has switched the flash backend off (`torch.nn.attention.sdpa_kernel`).
    """
    with _lock:
        if _active is None:
            _registry.activate_flash_attention_impl(_NAME)
        _set_strict(strict)


def _set_strict(strict: bool) -> None:
    global _strict
    _strict = strict
    if _active is not None:
        _active.refuse_others(strict)


def deactivate() -> None:
    """Gives `scaled_dot_product_attention` back to PyTorch; does nothing if it is not `activate`-d."""
    with _lock:
        if _active is not None:
            _registry.restore_flash_attention_impl()


@contextmanager
def activated(*, strict: bool = False) -> Iterator[None]:
    """`activate` for the duration of a ``with`` block; afterwards all is as it was before.

    Where blocks of several threads overlap, the last to end restores what was before them, and ``strict`` is that of
    the last to begin.
    """
    with _lock:
        block = _Block(_active is not None, _strict, _registry.current_flash_attention_impl())
        activate(strict=strict)
        _blocks.append(block)
    try:
        yield
    finally:
        with _lock:
            place = _blocks.index(block)
            del _blocks[place]
            if place == len(_blocks):
                block.restore()
            else:  # the next to have begun runs still, and restores in its place
                _blocks[place].before = block.before


class _Block:
    """An `activated` block that runs: what was before it."""

    def __init__(self, *before: Any) -> None:
        self.before = before

    def restore(self) -> None:
        was_active, was_strict, implementation = self.before
        if was_active:
            activate()
        else:
            deactivate()
            if implementation is not None:
                _registry.activate_flash_attention_impl(implementation)
        _set_strict(was_strict)
