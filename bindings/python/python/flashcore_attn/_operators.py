"""PyTorch's operators: ``flashcore::fwd``, ``::fwd_lengths`` and their gradients ``::bwd``, which `forward` and `backward`
call for all that attention is given.

The compiled half (``src/table.rs``) has a record of each operator, from which it registers schemas and kernels; the fakes
and the formulas of autograd here follow it, too. Plain tensors of a program that runs as it is written go round the
dispatcher (`direct`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd import profiler as autograd_profiler

from . import _checks, _derivatives, _fakes, _flops, _names, _native

# What `layout` is the sum of: q, k and v are [batch, heads, seq, head_dim]; so is the output; and so is what is new in
# memory. For `direct` alone: in memory it is as `torch.empty_like(q)`; and three small tensors follow.
GIVEN_BHSD, OUT_BHSD, MEMORY_BHSD, MEMORY_OF_Q, MORE = 1, 2, 4, 8, 16
_FAR = 2**62  # a bound that bounds nothing
_Tensors = tuple["torch.Tensor | None", ...]


class _Differentiable(torch.autograd.Function):
    """An operator with gradients, on q, k, v and, where they are packed, four arrays of lengths.

    `torch.library.register_autograd` would complete the arguments of each call by its schema, which takes longer than
    the rest of the call. Each argument and result takes time, so the numbers are one, and lse is one where it is asked for.
    """

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, Any, bool], *tensors: torch.Tensor) -> Any:
        run, numbers, with_lse = call
        output = run if type(run) is tuple else _below_autograd(run, *tensors, *numbers)  # a tuple: computed already
        ctx.set_materialize_grads(False)  # so that a gradient of lse can be told from none
        ctx.save_for_backward(*tensors, *output)
        ctx.numbers = numbers
        return output if with_lse else output[0]

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None = None) -> tuple[Any, ...]:
        if dlse is not None:
            raise NotImplementedError(
                "a gradient of lse, the log-sum-exp, is asked for, which flashcore does not compute: return the output "
                "alone, or use lse.detach()"
            )
        q, k, v, *lengths, out, lse = ctx.saved_tensors
        gradients = (None, None, None)
        if dout is not None:
            gradients = _differentiate(dout, q, k, v, out, lse, lengths, ctx.numbers)
        return (None, *gradients, *(None for _ in lengths))


_differentiable = super(torch.autograd.Function, _Differentiable).apply  # type: ignore[misc]


def _recorded(name: str, run: Any, tensors: tuple[torch.Tensor, ...], numbers: tuple[Any, ...], given: Any) -> Any:
    """Results of an operator that has gradients with these tensors: autograd would keep each of the others, which are then
    not given. `given`: the first of the numbers, up to which they are not the defaults."""
    count = 3 if name == "fwd" else 7
    kept, rest = tensors[:count], tensors[count:]
    call = lambda *inputs: run(*inputs[:count], *rest, *given)
    return _differentiable((call, numbers, True), *kept)


def _below_autograd(run: Any, *args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return _names.typed(run, *args)


def _differentiate(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    lengths: Any, numbers: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients of q, k and v. Numbers are those of the forward pass."""
    given = _with_absent(q, (*lengths, *(None,) * (4 - len(lengths))))
    tensors = (_readable(dout), q, k, v, _readable(out), lse.contiguous(), *given)
    return _names.typed(_bwd, *tensors, _scale_of(q, numbers[0]), *numbers[1:])  # type: ignore[no-any-return]


def _readable(x: torch.Tensor) -> torch.Tensor:
    """A copy of a gradient whose elements share addresses, such as that of ``out.sum()``, or whose rows are not dense.

    Kernels need dense rows, and the fast ones no shared rows.
    """
    return x.contiguous() if x.stride(-1) != 1 or 0 in x.stride() else x


def _scale_of(q: torch.Tensor, scale: float | None) -> float:
    return (q.shape[-1] or 1) ** -0.5 if scale is None else scale  # the operator refuses a head_dim of 0


def _with_absent(q: torch.Tensor, tensors: _Tensors) -> tuple[torch.Tensor, ...]:
    """Tensors as operators take them: one of one dimension without elements stands for each that is not given."""
    if not any(x is None for x in tensors):
        return tensors  # type: ignore[return-value]
    none = q.new_empty(0, dtype=torch.int32)
    return tuple(none if x is None else x for x in tensors)


# To look these up takes as long as they do.
_is_compiling = torch.compiler.is_compiling
_tracing_state = torch._C._get_tracing_state
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_has_transforms = torch._C._are_functorch_transforms_active
_is_grad_enabled = torch.is_grad_enabled
_Tensor = torch.Tensor


def records(*tensors: Any) -> bool:
    return _is_grad_enabled() and any(isinstance(x, _Tensor) and x.requires_grad for x in tensors)


def is_traced() -> bool:
    """Whether a program is not run as it is written, or has tangents."""
    return bool(_is_compiling() or _tracing_state() or forward_ad._current_level >= 0)


def is_observed() -> bool:
    """Whether something sees calls of operators as such."""
    return bool(
        _dispatch_modes()
        or _has_function_mode()
        or _has_transforms()
        or autograd_profiler._is_profiler_enabled  # which lists operators
    )


def direct(
    tensors: _Tensors,
    first: tuple[Any, ...],
    with_lse: bool,
    more: tuple[Any, ...] = (),
    interleaved: Any = None,
) -> Any:
    """Results of attention for plain tensors, with the least work of the host; None where the operator must look closer.

    Parameters
    ----------
    tensors : those of the table (``src/table.rs``), from q on; after all of them perhaps what is written before: k, v,
        rotary_cos, rotary_sin, rotary_seqlens
    first, more : the numbers before and after `return_lse`
    interleaved : whether pairs of the rotary embedding are; None if nothing is written

    Returns
    -------
    out, lse : without `with_lse` the output alone, also as one of one
    """
    if is_traced() or is_observed():
        return None
    q, k, v = tensors[:3]
    if not type(q) is type(k) is type(v) is _Tensor or q.is_neg() or k.is_neg() or v.is_neg():  # memory has other values
        return None
    recorded = interleaved is None and _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if recorded and len(tensors) > 3:
        return None
    numbers = (*first, bool(with_lse or recorded), *more)
    results = _native.call(tensors, numbers, interleaved)
    if recorded and results is not None:
        results = _differentiable((tuple(results), numbers, with_lse), q, k, v)
        return results if with_lse else (results,)
    return results


def _attend(tensors: _Tensors, first: tuple[Any, ...], more: tuple[Any, ...] = (), with_lse: bool = True) -> Any:
    """The output and its log-sum-exp, by the way that costs the host least."""
    results = direct(tensors, first, with_lse, more)
    if results is not None:
        return results
    q, k, v = tensors[:3]
    others = (*tensors[3:], *(None,) * (len(_fakes.TENSORS["fwd_lengths"]) - len(tensors)))
    has_lengths = any(x is not None for x in others[:5])
    operator, name = (_fwd_lengths, "fwd_lengths") if has_lengths else (_fwd, "fwd")
    given = _with_absent(q, (q, k, v, *(others if has_lengths else others[5:])))
    numbers = (_scale_of(q, first[0]), *first[1:], with_lse, *more)
    if is_traced() or _has_transforms():  # a batched tensor does not say that it requires a gradient
        return operator(*given, *numbers)
    if not records(*given):
        return _below_autograd(operator, *given, *numbers)
    # The dispatcher's way through Python is left out where it can be: it takes 5 us and more.
    if not all(type(x) is _Tensor for x in given) or _derivatives.refusal(name, given, numbers) is not None:
        return operator(*given, *numbers)
    return _recorded(name, operator, given, numbers, numbers)


def _autograd_of(name: str, operator: Any) -> Callable[..., Any]:
    """The kernel of an operator for the dispatcher's key Autograd."""
    count = len(_fakes.TENSORS[name])

    def kernel(keys: Any, *inputs: Any) -> Any:
        tensors = inputs[:count]
        _derivatives.refuse_tangents(tensors)
        keys &= torch._C._after_autograd_keyset
        run = lambda *args: operator.redispatch(keys, *args)
        if not records(*tensors):
            return _below_autograd(run, *inputs)
        _derivatives.refuse_transforms()
        numbers = _fakes.completed(operator, inputs)[count:]
        says = _derivatives.refusal(name, tensors, numbers)
        if says is not None:
            return _derivatives.WithoutBackward.apply((run, says), *inputs)
        numbers = (*numbers[:6], True, *numbers[7:])
        return _recorded(name, run, tensors, numbers, numbers[: len(inputs) - count])

    return kernel


_native.register_operators()
_fwd = torch.ops.flashcore.fwd.default
_fwd_lengths = torch.ops.flashcore.fwd_lengths.default
_bwd = torch.ops.flashcore.bwd.default
_fakes.register()
_flops.register(torch.ops.flashcore)
_library = torch.library.Library("flashcore", "IMPL")  # noqa: TOR901
for _name, _operator in (("fwd", _fwd), ("fwd_lengths", _fwd_lengths), ("bwd", _bwd)):
    _library.impl(_name, _autograd_of(_name, _operator), "Autograd", with_keyset=True)
_library.impl("make_schedule", torch.library.fallthrough_kernel, "Autograd")  # it has no derivatives


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    scales: _Tensors = (None, None, None),
    layout: int = 0,
    deterministic: bool = False,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sm_margin: int = 0,
    batch_invariant: int | None = None,
    schedule: int | None = None,
    only_check: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of tensors ``[batch, seq, heads, head_dim]``, packed ones ``[total, heads, head_dim]``, or over a cache.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : int32 ``[batch + 1]``, optional
        Of packed rows: the first of each sequence, and the end of the last; from 0.
    seqused_q, seqused_k : int32 ``[batch]``, optional
        How many of its rows each sequence uses. Without `cu_seqlens_k`, k and v are a cache ``[batch, capacity, ...]``.
    block_table : int32 ``[batch, max_pages]``, optional
        Then the cache is ``[pages, page_size, kv_heads, head_dim]``; -1 is no page, where no row sees its keys.
    max_seqlen_q, max_seqlen_k : int
        Bounds of the rows of a sequence, for packed rows and pages.
    window : (left, right)
        Visible keys before and after the diagonal, which ends at the last query and key; negative: all.
    scales : (q_scale, k_scale, v_scale)
        For float8_e4m3fn tensors, float32 ``[batch, kv_heads]``; 1 where None.
    layout : int
        The sum of some constants above.
    deterministic : bool
        Whether gradients are the same bits in every run.
    sinks : ``[heads]``, optional
        float32, float16 or bfloat16: a logit of each head in the sum of the softmax. There are no gradients then.
    alibi_slopes : float32 ``[heads]`` or ``[batch, heads]``, optional
        Scores are lowered by ``slope * distance``. There are no gradients then.
    sm_margin : int
        Multiprocessors that are left to other work.
    batch_invariant : int, optional
        Keys of a split: the bits of a result do not depend on the batch (docs/serving.md).
    schedule : int, optional
        The number of one that was made before (`_schedule.given`).
    only_check : bool
        Raise what the call would raise, as far as the host knows it, and compute nothing.

    Returns
    -------
    out : as q, with the head_dim of v and q's dtype (bfloat16 for float8_e4m3fn). Rows of no sequence hold anything.
    lse : float32 ``[batch, heads, seq]``, of packed rows ``[heads, total]``, natural logarithm
    """
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    if batch_invariant is not None:
        _checks.split_keys(batch_invariant)
    lengths = (cu_seqlens_q, seqused_q, cu_seqlens_k, seqused_k, block_table)
    tensors: _Tensors = (q, k, v)
    if any(x is not None for x in lengths):
        starts = cu_seqlens_q if cu_seqlens_q is not None else cu_seqlens_k
        batch = seqused_k.numel() if seqused_k is not None and starts is None else q.shape[0]
        batch = batch if starts is None else starts.numel() - 1
        _checks.one_each(batch, seqused_q=seqused_q, seqused_k=seqused_k if cu_seqlens_k is not None else None)
        tensors = (q, k, v, *(None if x is None else x.contiguous() for x in lengths))
    else:
        batch = q.shape[0]
    if q.dtype == torch.float8_e4m3fn:
        if schedule is not None:
            raise NotImplementedError(
                "scheduler_metadata is given; calls with float8_e4m3fn make their own: leave it out"
            )
        ones = lambda: q.new_ones((batch, k.shape[-2]), dtype=torch.float32)
        scales = tuple(ones() if x is None else x for x in scales)
    values = (*scales, sinks, alibi_slopes)
    if any(x is not None for x in values):
        lengths = tensors[3:] or (None,) * 5
        tensors = (q, k, v, *lengths, *(None if x is None else x.contiguous() for x in values))
        schedule = schedule if sinks is None and alibi_slopes is None else None
    first = (softmax_scale, causal, window[0], window[1], softcap, layout)
    more: tuple[Any, ...] = (deterministic, sm_margin, batch_invariant or 0)
    if len(tensors) > 3:
        more = (*more, max_seqlen_q, max_seqlen_k, schedule or 0)
    if only_check:
        kinds = (float, bool, int, int, float, int, bool, bool, *(int,) * 5)  # what the dispatcher would convert
        numbers = (_scale_of(q, softmax_scale), *first[1:], True, *more)
        numbers = tuple(kind(x) for kind, x in zip(kinds, numbers))
        _fakes.check("fwd_lengths", tensors, numbers, asks_device=True)
        return q, q
    return tuple(_attend(tensors, first, more))  # type: ignore[return-value]


def forward_bhsd(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    rows: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor | None:
    """The output ``[batch, seq, heads, head_dim_v]`` of tensors ``[batch, heads, seq, head_dim]``, for inference.

    It costs the host least, which bounds a step of decoding.

    Parameters
    ----------
    rows : (counts, rows), optional
        How many keys each sequence has, int32 ``[batch]``, and where they are, int32 ``[batch, keys]``, counted in rows of
        `key` from its first one. All unless given.

    Returns
    -------
    out
        None where the caller must look closer: at gradients, casts, a trace, other kinds of tensors, or what `forward`
        copies or refuses.
    """
    if (
        type(query) is not _Tensor
        or type(key) is not _Tensor
        or _is_grad_enabled()
        or _is_compiling()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or query.dtype not in _checks.FLOATS
        or query.shape[-1] not in _checks.HEAD_DIMS
        or value.shape[-1] not in _checks.HEAD_DIMS
        or not query.stride()[-1] == key.stride()[-1] == value.stride()[-1] == 1
    ):
        return None
    first = (softmax_scale, causal, window_left, window_right, softcap, GIVEN_BHSD)
    if rows is None:
        return _attend((query, key, value), first, with_lse=False)[0]  # type: ignore[no-any-return]
    tensors = (query, key, value, None, None, None, *rows)
    return _attend(tensors, first, (False, 0, 0, 0, _FAR, 0), with_lse=False)[0]  # type: ignore[no-any-return]


def backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    layout: int = 0,
    deterministic: bool = False,
    sm_margin: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    **lengths: Any,
) -> tuple[torch.Tensor, ...]:
    """The gradients of q, k and v, dense: what `forward` took, what it returned, and the gradient of `out`.

    `lengths` are those of packed sequences. Rows that are of no sequence have a gradient of 0.
    """
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    arrays = [lengths.get(name) for name in ("cu_seqlens_q", "seqused_q", "cu_seqlens_k", "seqused_k")]
    arrays = [None if x is None else x.contiguous() for x in arrays]
    if arrays[0] is not None:
        _checks.one_each(arrays[0].numel() - 1, seqused_q=arrays[1], seqused_k=arrays[3])
    numbers = (softmax_scale, causal, *window, softcap, layout, True, deterministic, sm_margin, 0, max_seqlen_q, max_seqlen_k)
    return _differentiate(dout, q, k, v, out, lse, arrays, numbers)


def slow_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    packed: bool = False,
    deterministic: bool = False,
    device: torch.device | None = None,
) -> str | None:
    """Why gradients of tensors ``[batch, seq, heads, head_dim]`` are slow, by the kernel that is chosen for them.

    None on the CPU, where the kernel uses tensor cores, and while a model is traced. `device`: theirs, if they are only
    like the tensors that are meant.
    """
    device = q.device if device is None else device
    if device.type != "cuda" or _is_compiling():
        return None
    shapes = [(x.shape[0] * x.shape[1], *x.shape[2:]) if packed else x.shape for x in (q, k, v)]
    numbers: tuple[Any, ...] = (None, causal, *window, softcap, 0, True, deterministic)
    dtype = str(q.dtype).removeprefix("torch.")
    tensors: list[Any] = [(dtype, "cuda", device.index, shape, None, 0) for shape in shapes]
    if packed:
        starts = ("int32", "cuda", device.index, (q.shape[0] + 1,), None, 0)
        tensors += [starts, None, starts]
        numbers = (*numbers, 0, 0, q.shape[1], k.shape[1])
    return _native.slow_backward(tensors, numbers)


def unserved(query: torch.Tensor, value: torch.Tensor, scale: float | None = None) -> str | None:
    """Why a call that PyTorch's SDPA serves is not served, by its dtype, head_dim and scale; None if it is."""
    if query.dtype not in _checks.FLOATS:
        return f"query holds {query.dtype}"
    for head_dim in (query.shape[-1], value.shape[-1]):
        if head_dim not in _checks.HEAD_DIMS:
            return f"head_dim is {head_dim}, which is not a multiple of 8 up to 256"
    if scale is not None and not 0.0 < scale <= _checks.MOST_SCALE:
        return f"scale is not above 0 and at most {_checks.MOST_SCALE:g}"  # the same for each: it is warned of once
    return None
