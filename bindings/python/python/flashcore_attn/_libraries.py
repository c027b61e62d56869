"""What `attention` asks of the library that q belongs to: PyTorch or CuPy, or NumPy for all others on the CPU."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def exported(name: str, x: Any, torch: Any) -> tuple[Any, bool]:
    """What DLPack can export of a tensor, and whether that is the bytes of float8_e4m3fn, which not every release exports.

    Raises for NumPy's masked arrays, and for tensors of PyTorch, which is given then, that ask for derivatives while those
    are recorded, or whose memory holds other values than they do. Of others it is an alias, which holds their memory,
    whatever `x.data` becomes.
    """
    if torch is None:
        if "numpy.ma" in sys.modules and isinstance(x, sys.modules["numpy.ma"].MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask attention would not see; give {name}.filled(...)")
        return x, False
    forward_ad = torch.autograd.forward_ad
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise NotImplementedError(
            f"{name} has a derivative in forward mode, which flashcore does not compute; give its primal, or use PyTorch's "
            "scaled_dot_product_attention with SDPBackend.MATH"
        )
    if x.is_neg():  # DLPack exports the memory and says nothing of the bit
        raise ValueError(
            f"{name} is a lazily negated view: its memory holds values of the other sign; give {name}.resolve_neg()"
        )
    if x.requires_grad and torch.is_grad_enabled():
        instead = "for gradients call flashcore_attn.flash_attn_interface.flash_attn_func, else call"
        if name in ("sinks", "alibi_slopes", "q_scale", "k_scale", "v_scale"):
            instead = "its gradient is not computed: call"
        raise ValueError(
            f"{name} requires a gradient, and flashcore_attn.attention computes the forward pass only; {instead} this under "
            f"torch.no_grad(), or give {name}.detach()"
        )
    is_fp8 = x.dtype == getattr(torch, "float8_e4m3fn", None)
    return (x.detach().view(torch.uint8) if is_fp8 else x.detach()), is_fp8


def current_stream(library: Any, ordinal: int) -> int:
    """The handle of the current stream of PyTorch or CuPy on a device."""
    if library.__name__ == "torch":
        return library.cuda.current_stream(ordinal).cuda_stream  # type: ignore[no-any-return]
    with library.cuda.Device(ordinal):
        return library.cuda.get_current_stream().ptr  # type: ignore[no-any-return]


def refused(name: str, kind: str, error: Exception, of_torch: bool) -> Exception:
    """What is raised where a producer refuses to give its memory: its own words, with the tensor's name before them."""
    says = f"{type(error).__qualname__}: {error}".splitlines()[0]  # PyTorch adds the frames of its C++
    if of_torch:
        says += "; flashcore_attn.flash_attn_interface.flash_attn_func takes PyTorch's traced and wrapped tensors"
    kind_of_error = TypeError if isinstance(error, TypeError) else ValueError
    raised = kind_of_error(f"{name} ({kind}) does not give its memory through DLPack: {says}")
    raised.__cause__ = error
    return raised


def handle_of(stream: Any) -> Any:
    """The handle of a stream object of CUDA Python, PyTorch or CuPy; what else was given."""
    if hasattr(stream, "__cuda_stream__"):
        _version, handle = stream.__cuda_stream__()
        return handle
    return getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))


def empty(
    library: Any, like: Any, ordinal: int | None, shape: tuple[int, ...], swapped: bool, dtype: str, stream: Any
) -> Any:
    """Uninitialised memory on the device of `like`, the CPU where `ordinal` is None.

    `library` is PyTorch, CuPy or None; `swapped`: dense with axes 1 and 2 swapped; `stream`: where it will be used, if not
    on the library's current stream.
    """
    device, within = {}, []
    if swapped:
        shape = shape[0], shape[2], shape[1], *shape[3:]
    if library is not None and library.__name__ == "torch":
        device = {"device": like.device}
        within = [] if stream is None else [library.cuda.stream(stream)]
    elif library is not None and ordinal is not None:
        within = [library.cuda.Device(ordinal)] + ([] if stream is None else [stream])
    elif ordinal is not None:
        raise ValueError(
            f"memory for the output on cuda:{ordinal} is allocated by PyTorch or CuPy, and q belongs to neither; give out=, "
            "and leave out return_lse"
        )
    else:
        try:
            import numpy as library
        except ImportError:
            raise ValueError(
                "memory for the output is allocated by PyTorch or NumPy on the CPU, and neither is here; install NumPy, or "
                "give out= and leave out return_lse"
            ) from None
    if not hasattr(library, dtype):
        raise ValueError(
            f"{library} has no {dtype} to allocate the output in; give out=, a tensor of a library that has it"
        )
    with contextlib.ExitStack() if within else contextlib.nullcontext() as stack:
        for guard in within:
            stack.enter_context(guard)
        made = library.empty(shape, dtype=getattr(library, dtype), **device)
    return made.swapaxes(1, 2) if swapped else made
