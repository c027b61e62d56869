"""What an operator demands of its tensors and numbers, as its kernels check it.

Fake kernels, which tensors without values have, call these, and so do calls that change a cache before attention. A
size may be a symbol: `torch._check` notes for later what is not known yet.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch

HEAD_DIMS = range(8, 257, 8)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FP8 = (torch.float8_e4m3fn,)
MOST_SCALE = 1e5  # the largest that is tested
MOST_SPLIT_KEYS = 2**28


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    dims: tuple[int, int] = (4, 4),
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    names: tuple[str, str, str] = ("q", "k", "v"),
) -> None:
    """q, k and v, with so many dimensions of q and of k and v: ``[..., heads, head_dim]``."""
    if type(q) is type(k) is type(v) is torch.Tensor and _fits(q, k, v, dims, dtypes):
        return
    for name, x, count in zip(names, (q, k, v), (dims[0], dims[1], dims[1])):
        _check(x.dim() == count, lambda: f"{name} has {x.dim()} dimensions; it must have {count}")
    on_one_device(q, names[0], **{names[1]: k, names[2]: v})
    _check(q.dtype in dtypes, lambda: f"{names[0]} holds {q.dtype}; allowed are {_listed(dtypes)}")
    for name, x in zip(names[1:], (k, v)):
        _check(x.dtype == q.dtype, lambda: _other_dtype(name, x.dtype, names[0], q.dtype))
    _has_shape(names[1], k, (*k.shape[:-1], q.shape[-1]))
    _has_shape(names[2], v, (*k.shape[:-1], v.shape[-1]))
    for head_dim in (q.shape[-1], v.shape[-1]):
        for holds in (head_dim >= 8, head_dim <= 256, head_dim % 8 == 0):
            _check(holds, lambda: f"head_dim is {head_dim}; allowed are multiples of 8 from 8 to 256")
    heads, kv_heads = q.shape[-2], k.shape[-2]
    _check(kv_heads >= 1, lambda: f"{names[1]} has shape {tuple(k.shape)}; it has 1 K/V head or more")
    _check(heads % kv_heads == 0, lambda: f"{heads} query heads are not a multiple of {kv_heads} K/V heads")


def _other_dtype(name: str, dtype: torch.dtype, of_q: str, q: torch.dtype) -> str:
    what = "convert one, so that all tensors hold the same"
    if dtype in FP8:
        what = (
            f"float8 keys and values with queries of another dtype are not served: convert {of_q} to float8_e4m3fn, too, "
            f"or keep keys and values in {of_q}'s dtype"
        )
    return f"{name} holds {dtype} and {of_q} {q}; {what}"


def _fits(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dims: tuple[int, int], dtypes: tuple[torch.dtype, ...]
) -> bool:
    """Whether `attention` would raise nothing, in few operations: an append is checked at each step of decoding."""
    if (len(of_q := q.shape), len(of_k := k.shape), len(of_v := v.shape)) != (*dims, dims[1]):
        return False
    heads, kv_heads, head_dim = of_q[-2], of_k[-2], of_q[-1]
    return (
        q.dtype is k.dtype is v.dtype
        and q.dtype in dtypes
        and q.device == k.device == v.device
        and of_k[:-1] == of_v[:-1]
        and head_dim == of_k[-1]
        and head_dim in HEAD_DIMS
        and of_v[-1] in HEAD_DIMS
        and kv_heads > 0
        and heads % kv_heads == 0
    )


def same_batch(q: torch.Tensor, k: torch.Tensor, name: str = "k") -> None:
    """The batch of k must be that of q."""
    _has_shape(name, k, (q.shape[0], *k.shape[1:]))


def cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
) -> None:
    """A cache and its lengths, as ``flashcore::fwd_kvcache`` takes them."""
    packed = is_given(cu_seqlens_q)
    attention(q, k, v, dims=(3 if packed else 4, 4), dtypes=dtypes)
    batch = _sequences("cu_seqlens_q", cu_seqlens_q, q) if packed else q.shape[0]
    counts(q, (batch,), seqused_q=seqused_q, seqused_k=seqused_k)
    if not is_given(block_table):
        _has_shape("k", k, (batch, *k.shape[1:]))
    elif block_table.dim() == 2:
        counts(q, (batch, block_table.shape[1]), block_table=block_table)
    else:
        _check(False, lambda: f"block_table has {block_table.dim()} dimensions; it must have 2")


def packed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    seqused_k: torch.Tensor,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
) -> None:
    """Packed tensors and their lengths."""
    attention(q, k, v, dims=(3, 3), dtypes=dtypes)
    batch = _sequences("cu_seqlens_q", cu_seqlens_q, q)
    counts(q, (batch + 1,), cu_seqlens_k=cu_seqlens_k)
    counts(q, (batch,), seqused_q=seqused_q, seqused_k=seqused_k)


def counts(q: torch.Tensor, shape: Sequence[int], /, **given: torch.Tensor) -> None:
    """int32 tensors of this shape on q's device, if they are given."""
    for name, x in given.items():
        if type(x) is torch.Tensor and x.dtype is torch.int32 and x.shape == shape and x.device == q.device:
            continue
        if is_given(x):
            of_dtype(q, shape, (torch.int32,), **{name: x})


def one_each(batch: int, **counts: torch.Tensor | None) -> None:
    """Raises for counts without elements where there are sequences: operators take them for none."""
    for name, x in counts.items():
        if x is not None and not is_given(x) and batch > 0:
            raise ValueError(f"{name} has shape (0,); it must be int32 of shape ({batch},)")


def of_dtype(q: torch.Tensor, shape: Sequence[int], dtypes: tuple[torch.dtype, ...], /, **given: torch.Tensor) -> None:
    """Tensors of this shape on q's device, with one of these dtypes."""
    on_one_device(q, "q", **given)
    for name, x in given.items():
        _check(x.dtype in dtypes, lambda: f"{name} holds {x.dtype}; it must hold {_listed(dtypes)}")
        _has_shape(name, x, shape)


def head_values(q: torch.Tensor, batch: int, sinks: torch.Tensor, alibi_slopes: torch.Tensor) -> None:
    """Sinks and ALiBi slopes, if they are given."""
    heads = q.shape[-2]
    if is_given(sinks):
        of_dtype(q, (heads,), FLOATS, sinks=sinks)
    if is_given(alibi_slopes):
        shape = (heads,) if alibi_slopes.dim() == 1 else (batch, heads)
        of_dtype(q, shape, (torch.float32,), alibi_slopes=alibi_slopes)


def scales(
    q: torch.Tensor,
    given: tuple[torch.Tensor | None, ...],
    shape: Callable[[], tuple[int, ...]],
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """The scales of q, k and v of float8_e4m3fn, each ``[batch, kv_heads]``, 1 where None; nothing of other dtypes."""
    names = ("q_descale", "k_descale", "v_descale")
    if q.dtype not in FP8:
        for name, scale in zip(names, given):
            if scale is not None:
                raise ValueError(
                    f"{name} was given, but q holds {q.dtype}; only float8_e4m3fn has scales, and float8 keys and values "
                    "with queries of another dtype are not served: convert q to float8_e4m3fn, too"
                )
        return ()
    if sinks is not None or alibi_slopes is not None:
        raise NotImplementedError(
            "sinks and alibi_slopes of float8_e4m3fn tensors are served by flashcore_attn.attention, for equal lengths"
        )
    needed = shape()
    for name, scale in zip(names, given):
        if scale is not None and not isinstance(scale, torch.Tensor):
            raise TypeError(f"{name} is a {type(scale).__name__}; it must be a float32 tensor of shape {tuple(needed)}")
    return tuple(q.new_ones(needed, dtype=torch.float32) if x is None else x.contiguous() for x in given)


def no_schedule(q: torch.Tensor, schedule: int | None) -> None:
    """Calls with float8 make their own schedule."""
    if schedule is not None and q.dtype in FP8:
        raise NotImplementedError("scheduler_metadata is given; calls with float8_e4m3fn make their own: leave it out")


def numbers(softmax_scale: float, softcap: float) -> None:
    """The scale, and the soft cap, 0 for none."""
    for holds in (softmax_scale > 0.0, softmax_scale <= MOST_SCALE):
        says = f"it must be finite, above 0 and at most {MOST_SCALE:g}"
        _check(holds, lambda: f"softmax_scale is {softmax_scale}; {says}")
    if softcap != 0.0:
        for holds in (softcap >= 1e-5, softcap <= 1e3):
            _check(holds, lambda: f"softcap is {softcap}; it must be finite, from 1e-5 to 1e3, or 0 for no cap")


def settings(q: torch.Tensor, sm_margin: int, batch_invariant: int | None) -> None:
    """Options of a schedule."""
    _check(sm_margin >= 0, lambda: f"sm_margin is {sm_margin}; it is at least 0")
    on_cpu = q.device.type == "cpu"
    _check(sm_margin == 0 or not on_cpu, lambda: f"sm_margin is {sm_margin}; the CPU has no multiprocessors")
    if batch_invariant is not None:
        split_keys(batch_invariant)


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


def on_one_device(q: torch.Tensor, of_q: str, /, **others: torch.Tensor) -> None:
    """All tensors must be on q's device."""
    for name, x in others.items():
        says = lambda: f"{name} is on {x.device} and {of_q} on {q.device}; move all tensors to one device"
        _check(x.device == q.device, says)


def is_given(x: torch.Tensor) -> bool:
    """A tensor of one dimension without elements stands for one that is not given."""
    return not (x.dim() == 1 and x.shape[0] == 0)


def _sequences(name: str, starts: torch.Tensor, q: torch.Tensor) -> int:
    of_dtype(q, starts.shape[:1], (torch.int32,), **{name: starts})
    return starts.shape[0] - 1


def _has_shape(name: str, x: torch.Tensor, shape: Sequence[int]) -> None:
    _check(x.dim() == len(shape), lambda: f"{name} has {x.dim()} dimensions; it must have {len(shape)}")
    for given, needed in zip(x.shape, shape):
        _check(given == needed, lambda: f"{name} has shape {tuple(x.shape)}; this problem needs {tuple(shape)}")


def _listed(dtypes: tuple[torch.dtype, ...]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _check(holds: Any, says: Callable[[], str]) -> None:
    if holds is not True:
        torch._check(holds if isinstance(holds, (bool, torch.SymBool)) else bool(holds), says)  # numpy has its own bool
