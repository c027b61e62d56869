"""What `attention` asks of the library that q belongs to: PyTorch or CuPy, or NumPy for all others on the CPU."""

from __future__ import annotations

import contextlib
from typing import Any

__all__ = ["current_stream", "empty"]


def current_stream(library: Any, ordinal: int) -> int:
    """The handle of the current stream of PyTorch or CuPy on a device."""
    if library.__name__ == "torch":
        return library.cuda.current_stream(ordinal).cuda_stream  # type: ignore[no-any-return]
    with library.cuda.Device(ordinal):
        return library.cuda.get_current_stream().ptr  # type: ignore[no-any-return]


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
