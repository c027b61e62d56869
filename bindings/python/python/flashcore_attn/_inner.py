"""FlashAttention-3's inner functions and `get_scheduler_metadata`, and what its functions have in common."""

from __future__ import annotations

import operator
from numbers import Integral
from typing import Any

import torch

from . import _append, _checks, _kvcache, _lengths, _names, _schedule
from ._operators import _FAR, backward


def _refuse(name: str, given: object, allowed: str) -> None:
    raise NotImplementedError(f"{name} is {given if isinstance(given, (int, float)) else 'given'}; {allowed}")


def check(qv: object, attention_chunk: int, num_splits: int, dropout_p: float = 0.0) -> None:
    """Raises for arguments of all functions that are not served."""
    if dropout_p != 0.0:
        _refuse("dropout_p", dropout_p, "dropout is not served: leave it 0.0")
    if qv is not None:
        _refuse("qv", qv, "a second part of the queries is not served: leave it None")
    if attention_chunk != 0:
        _refuse("attention_chunk", attention_chunk, "chunked attention is not served: leave it 0")
    if type(num_splits) is not int and not isinstance(num_splits, (Integral, torch.SymInt)):
        raise TypeError(f"num_splits is {num_splits!r}; it must be an int")
    if num_splits < 0:
        raise ValueError(f"num_splits is {num_splits}; it is at least 0, where 0 leaves the choice to the library")


def sides(window_size: Any) -> Any:
    """`window_size` if it is a pair, or a tensor of two, as FlashAttention's tests give it."""
    if type(window_size) is tuple and len(window_size) == 2:
        return window_size
    is_tensor = isinstance(window_size, torch.Tensor) and window_size.dim() == 1 and not window_size.is_floating_point()
    if not (is_tensor or isinstance(window_size, (tuple, list))) or len(window_size) != 2:
        raise ValueError(
            f"window_size is {window_size}; it must be a pair (left, right), or an int tensor of two, of how many keys "
            "before and after the diagonal are visible, -1 for all"
        )
    return window_size


def _check_kinds(softmax_scale: Any, causal: Any, window: tuple[Any, Any], softcap: Any, sm_margin: Any) -> None:
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


def common_options(
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    softcap: float,
    sm_margin: int,
    alibi_slopes: torch.Tensor | None = None,
) -> dict[str, Any]:
    """The options that all operators have."""
    left, right = sides(window_size)
    if type(left) is not int or type(right) is not int:
        left, right = (int(side) if isinstance(side, torch.Tensor) else side for side in (left, right))
    usual = torch.compiler.is_compiling() or (
        type(causal) is bool
        and type(left) is type(right) is type(sm_margin) is int
        and type(softcap) is float
        and (softmax_scale is None or type(softmax_scale) is float)
        and -_FAR < left < _FAR
        and -_FAR < right < _FAR
        and -_FAR < sm_margin < _FAR
    )
    if not usual and not torch.compiler.is_compiling():
        _check_kinds(softmax_scale, causal, (left, right), softcap, sm_margin)
    options = {"softmax_scale": softmax_scale, "causal": causal, "window": (left, right), "softcap": softcap}
    if alibi_slopes is not None:
        _names.check_tensor("alibi_slopes", alibi_slopes)
        options |= {"alibi_slopes": alibi_slopes}
    return options | {"sm_margin": sm_margin}


@_names.rename(
    block_table="page_table",
    cache_batch_idx="kv_batch_idx",
    cache_leftpad="leftpad_k",
    cache_seqlens="seqused_k",
    k_cache="k",
    v_cache="v",
)
def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_new: torch.Tensor | None = None,
    v_new: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    out_: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: torch.Tensor | None = None,
    kv_batch_idx: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    seqlens_rotary: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    *,
    batch_invariant: int | None = None,
    alibi_slopes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """FlashAttention-3's inner function: what Transformer Engine and PyTorch call.

    `k` and `v` are the cache where there is one; `kv_batch_idx`, `leftpad_k` and `seqlens_rotary` are what
    `flash_attn_with_kvcache` calls `cache_batch_idx`, `cache_leftpad` and `rotary_seqlens`.

    Returns
    -------
    out, softmax_lse : as of the functions above
    out_accum, softmax_lse_accum : empty tensors; partial results are not kept
    """
    check(qv, attention_chunk, num_splits)
    if out_ is not None:
        _refuse("out_", out_, "the output is a new tensor: leave it None")
    schedule = _schedule.given(scheduler_metadata)
    window = (window_size_left, window_size_right)
    options = common_options(softmax_scale, causal, window, softcap, sm_margin, alibi_slopes)
    left, right = options["window"]
    options |= {"batch_invariant": batch_invariant}
    _names.check_tensors(
        q, k, v, k_new=k_new, v_new=v_new, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        cu_seqlens_k_new=cu_seqlens_k_new, seqused_q=seqused_q, seqused_k=seqused_k, page_table=page_table,
        kv_batch_idx=kv_batch_idx, leftpad_k=leftpad_k, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
        seqlens_rotary=seqlens_rotary,
    )  # fmt: skip
    table = _kvcache.table_of(_lengths.batch_of(q, cu_seqlens_q), k, page_table, kv_batch_idx)
    scales = (q_descale, k_descale, v_descale)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "seqused_q": seqused_q, "table": table, "leftpad": leftpad_k}
    lengths |= {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    if k_new is not None or v_new is not None:
        if cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k is given with k_new; packed sequences have no room for new keys")
        if seqused_k is None:
            raise ValueError("seqused_k is not given, but k_new is: it says where k_new goes")
        if not torch.compiler.is_compiling():  # then fake kernels check
            own = {"seqused_k": seqused_k, "scales": scales, "schedule": schedule}
            _lengths.attend(q, k, v, **own, **lengths, **options, only_check=True)
        q, seqused_k = _append.append(
            q, k, v, k_new, v_new, cache_seqlens=seqused_k, cu_seqlens_k_new=cu_seqlens_k_new,
            cache_batch_idx=kv_batch_idx, page_table=page_table, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
            seqlens_rotary=seqlens_rotary, cu_seqlens_q=cu_seqlens_q, interleaved=rotary_interleaved,
            q_at_one_position=not causal and left < 0 and right < 0,
        )  # fmt: skip
    else:
        needs_keys = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cu_seqlens_k_new": cu_seqlens_k_new}
        for name, given in needs_keys.items():
            if given is not None:
                raise ValueError(f"{name} is given without k_new and v_new, to which it applies")
    out, lse = _lengths.attend(
        q, k, v, scales=scales, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k, schedule=schedule, **lengths, **options
    )
    return out, lse, out.new_empty(0, dtype=torch.float32), out.new_empty(0, dtype=torch.float32)


@_names.rename(
    k="k_cache",
    k_new="k",
    kv_batch_idx="cache_batch_idx",
    leftpad_k="cache_leftpad",
    seqlens_rotary="rotary_seqlens",
    seqused_k="cache_seqlens",
    v="v_cache",
    v_new="v",
)
def forward_cached(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *new: torch.Tensor | None,
    window_size: Any,
    cache_seqlens: int | torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """The results of `flash_attn_with_kvcache`, for all that it serves; names are those of `_flash_attn_forward`."""
    left, right = sides(window_size)
    options["seqused_k"] = _on_device(cache_seqlens, (q, k, v), options["cu_seqlens_q"])
    of_new = new[0] if new and options.get("cu_seqlens_k_new") is None else None
    _check_room(cache_seqlens, k, options.get("page_table"), of_new)
    return _flash_attn_forward(q, k, v, *new, window_size_left=left, window_size_right=right, **options)  # type: ignore[misc,no-any-return]


def _check_room(cache_seqlens: Any, k: torch.Tensor, page_table: Any, k_new: Any) -> None:
    """Raises for a number of keys, known on the host, for which the cache has no room."""
    if not isinstance(cache_seqlens, Integral) or torch.compiler.is_compiling():
        return
    tensors = ((k, 4), (page_table, 2), (k_new, 4))
    if not all(x is None or (isinstance(x, torch.Tensor) and x.dim() == dims) for x, dims in tensors):
        return  # an error of others
    capacity = k.shape[1] * (1 if page_table is None else page_table.shape[1])
    rows = 0 if k_new is None else k_new.shape[1]
    if not 0 <= cache_seqlens <= capacity - rows:
        appends = f", and k_new has {rows} rows for each sequence" if rows else ""
        raise ValueError(f"seqused_k is {cache_seqlens}{appends}; the cache has room for {capacity} keys of each")


def _on_device(
    cache_seqlens: int | torch.Tensor | None,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    cu_seqlens_q: torch.Tensor | None,
) -> torch.Tensor | None:
    if cache_seqlens is None or isinstance(cache_seqlens, torch.Tensor):
        return cache_seqlens
    if not isinstance(cache_seqlens, (Integral, torch.SymInt)):
        given = type(cache_seqlens).__name__
        raise TypeError(f"seqused_k is a {given}; it must be an int or an int32 tensor of shape (batch,)")
    known = not (torch.compiler.is_compiling() or isinstance(cache_seqlens, torch.SymInt))
    if known and not 0 <= cache_seqlens < 2**31:
        raise ValueError(f"seqused_k is {cache_seqlens}; it is a number of keys, int32")
    _names.check_tensors(*tensors, cu_seqlens_q=cu_seqlens_q)
    batch = _lengths.batch_of(tensors[0], cu_seqlens_q)
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=tensors[0].device)


@_names.rename(lse="softmax_lse", seqused_k="sequed_k", seqused_q="sequed_q")
def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    sequed_q: torch.Tensor | None = None,
    sequed_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: torch.Tensor | None = None,
    dk: torch.Tensor | None = None,
    dv: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> torch.Tensor:
    """FlashAttention-3's inner function: what Transformer Engine calls.

    Parameters
    ----------
    dout : Tensor, as out
        Its gradient. It is copied if rows are not dense, or if elements share addresses.
    out, softmax_lse : what `_flash_attn_forward` returned
    sequed_q, sequed_k : int32 Tensor ``[batch]``, optional
        `seqused_q` and `seqused_k` of the forward pass; FlashAttention-3 writes them so. With `cu_seqlens_q` and
        `cu_seqlens_k` only.
    dq, dk, dv : Tensor, as q, k and v
        Written: all of them, zeros where a row is of no sequence. They must be given.
    deterministic : bool
        Gradients are the same bits in every run; kernels may then be slower, and a warning says so.
    sm_margin : int
        As of `flash_attn_func`.

    Returns
    -------
    softmax_d : an empty tensor; the sums of ``dout * out`` are not kept
    """
    options = common_options(softmax_scale, is_causal, (window_size_left, window_size_right), softcap, sm_margin)
    options |= {"deterministic": deterministic}
    results = {"dq": dq, "dk": dk, "dv": dv}
    for name, given in results.items():
        if given is None:
            raise ValueError(f"{name} was not given; gradients are written to dq, dk and dv: give all three")
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "sequed_q": sequed_q, "sequed_k": sequed_k}
    _names.check_tensors(q, k, v, **lengths)
    for name, given in {"dout": dout, "out": out, "softmax_lse": softmax_lse, **results}.items():
        _names.check_tensor(name, given)
    if softmax_lse.dtype != torch.float32:
        raise TypeError(f"softmax_lse holds {softmax_lse.dtype}; it must be float32, as _flash_attn_forward returns it")
    if k.numel() == 0 or q.numel() == 0:  # tensors without keys or queries are no problem's
        gradients = tuple(torch.zeros_like(x) for x in (q, k, v))
    elif cu_seqlens_q is not None and cu_seqlens_k is not None:
        packed = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        packed |= {"seqused_q": sequed_q, "seqused_k": sequed_k}
        packed |= {"max_seqlen_q": _lengths.bound("max_seqlen_q", max_seqlen_q)}
        packed |= {"max_seqlen_k": _lengths.bound("max_seqlen_k", max_seqlen_k)}
        gradients = backward(dout, q, k, v, out, softmax_lse, **packed, **options)
    else:
        for name, given in lengths.items():
            if given is not None:
                raise NotImplementedError(
                    f"{name} is given; gradients of sequences of different lengths are computed with both "
                    "cu_seqlens_q and cu_seqlens_k: give them"
                )
        gradients = backward(dout, q, k, v, out, softmax_lse, **options)
    for (name, given), gradient in zip(results.items(), gradients):
        if (given.shape, given.dtype, given.device) != (gradient.shape, gradient.dtype, gradient.device):
            raise ValueError(
                f"{name} holds {given.dtype} of shape {tuple(given.shape)} on {given.device}; it must hold "
                f"{gradient.dtype} of shape {tuple(gradient.shape)} on {gradient.device}"
            )
    for given, gradient in zip(results.values(), gradients):
        given.copy_(gradient)
    return softmax_lse.new_empty(0)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: torch.Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    *,
    total_q: int | None = None,
    batch_invariant: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The schedule of a step, which `flash_attn_with_kvcache` takes as `scheduler_metadata`: one launch for all layers.

    Lengths must have the same values when the calls run: whoever changes them makes a new schedule. A call that sees
    that `cache_seqlens` was written since warns and makes its own; one that gives other tensors, or those of inference
    mode, and a replay of a graph see nothing, and results are wrong. Calls that share one run one after another, in the
    stream that it was made in: their partial results are in it, too. A CUDA graph captures calls, and perhaps this
    function with `out`, which else makes it anew before a replay. Replays are in that stream too, or ordered after it
    (`Stream.wait_stream`): a kernel that reads a schedule while it is written reads and writes any memory. What a graph
    has captured is kept for the life of the process.

    Parameters
    ----------
    max_seqlen_k : int
        The capacity of the cache, in keys: of its part for a sequence, or of the pages in a row of the table.
    cache_seqlens : int32 Tensor ``[batch]``
        As the calls have it: before new keys are appended, whose number `max_seqlen_k_new` or `cu_seqlens_k_new` says.
    page_size : int, optional
        Keys of a page; of calls with `cache_batch_idx` and no pages the capacity.
    total_q : int, optional
        With `cu_seqlens_q`: rows of q. Without it there is no schedule then, and each call makes its own.
    batch_invariant : int, optional
        As the calls have it.
    out : Tensor, optional
        What an earlier call with the same arguments returned, with elements: its schedule is made anew.

    Returns
    -------
    scheduler_metadata : int32 Tensor
        A handle of one element. The schedule itself is in separate memory, which is freed with this object; the
        element's value means nothing, and calls refuse clones and slices. The tensor is empty, which calls accept,
        where calls make no schedule, in compiled functions, and without `out` while a graph is captured. On the CPU
        it is checked, but not needed.
    """
    check(None, attention_chunk, num_splits)
    _names.check_tensor("cache_seqlens", cache_seqlens)
    if cache_seqlens.shape != (batch_size,):
        raise ValueError(f"batch_size is {batch_size}; cache_seqlens has shape {tuple(cache_seqlens.shape)}")
    arrays = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k_new": cu_seqlens_k_new, "cache_leftpad": cache_leftpad}
    for name, given in arrays.items():
        if given is not None:
            _names.check_tensor(name, given)
            entries = batch_size + (name != "cache_leftpad")
            if given.shape != (entries,):
                raise ValueError(f"{name} has shape {tuple(given.shape)}; for this batch_size it is ({entries},)")
    if batch_invariant is not None:
        _checks.split_keys(batch_invariant)
    bounds = {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k, "max_seqlen_k_new": max_seqlen_k_new}
    max_seqlen_q, max_seqlen_k, max_seqlen_k_new = (_lengths.bound(name, given) for name, given in bounds.items())
    unseen = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if unseen or batch_size == 0 or (cu_seqlens_q is not None and total_q in (None, 0)):
        if out is not None:
            raise ValueError(
                "out is given, but no schedule is made in a compiled or transformed function, for no sequences or rows, "
                "or for cu_seqlens_q without total_q"
            )
        return cache_seqlens.new_empty(0, dtype=torch.int32)
    lengths = cache_seqlens
    if cu_seqlens_k_new is not None:
        lengths = lengths + cu_seqlens_k_new.diff()
    elif max_seqlen_k_new > 0:
        lengths = lengths + max_seqlen_k_new
    if cache_leftpad is not None:  # calls then have pages of one key
        lengths, page_size = (lengths - cache_leftpad).clamp(min=0), 1
    options = common_options(None, causal, window_size, 0.0, sm_margin)
    new_keys = max_seqlen_k_new if cu_seqlens_k_new is None else None
    made_of = _schedule.MadeOf(_schedule.written(cache_seqlens), new_keys, page_size or 0)
    numbers = (
        1.0, causal, *options["window"], float(has_softcap), 0, True, False, sm_margin, batch_invariant or 0, max_seqlen_q,
        max_seqlen_k,
    )  # fmt: skip
    sizes = (num_heads_q, num_heads_kv, headdim, headdim if headdim_v is None else headdim_v, page_size or 0)
    return _schedule.make(
        lengths, cu_seqlens_q, out, qkv_dtype, made_of, numbers, *sizes, -1 if total_q is None else total_q
    )
