"""PyTorch's operators: ``flashcore::fwd`` and ``::fwd.scaled``, which `forward` calls, ``::fwd.bhsd`` and
``::fwd_kvcache.rows``, which `forward_bhsd` calls, ``::fwd_varlen`` and ``::fwd_kvcache``, which `forward_varlen` and
`forward_kvcache` call, and the gradients of ``fwd`` and ``fwd_varlen``, ``::bwd`` and ``::bwd_varlen``.

The compiled half (``src/operators``) registers schemas and kernels; the formulas of autograd are here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd import profiler as autograd_profiler

from . import _arguments, _checks, _derivatives, _fakes, _flops, _names, _native

_DTYPES = _checks.FLOATS  # both FlashCore and PyTorch's SDPA serve them
_HEAD_DIMS = _checks.HEAD_DIMS
_MOST_SCALE = _checks.MOST_SCALE


def _register() -> None:
    folder = Path(torch.__file__).parent / "lib"
    file_name = {"darwin": "lib{}.dylib", "win32": "{}.dll"}.get(sys.platform, "lib{}.so").format
    cuda = folder / file_name("torch_cuda")
    _native.register_operators(str(folder / file_name("torch_cpu")), str(cuda) if cuda.exists() else None)


class _Differentiable(torch.autograd.Function):
    """An operator with gradients, on q, k, v, and lengths if there are any.

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
            operator = _bwd_varlen if lengths else _bwd
            scale, *numbers = ctx.numbers[: 9 if lengths else 8]  # all but split_keys
            numbers = (q.shape[-1] ** -0.5 if scale is None else scale, *numbers)
            gradients = _names.typed(operator, _arguments.readable(dout), q, k, v, out, lse, *lengths, *numbers)
        return (None, *gradients, *(None for _ in lengths))


_differentiable = super(torch.autograd.Function, _Differentiable).apply  # type: ignore[misc]


def _below_autograd(run: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        return _names.typed(run, *args)


def _records(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


# To look these up takes as long as they do.
_is_compiling = torch.compiler.is_compiling
_tracing_state = torch._C._get_tracing_state
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_has_transforms = torch._C._are_functorch_transforms_active
_Tensor = torch.Tensor


def _is_traced() -> bool:
    """Whether a program is not run as it is written, or has tangents."""
    return bool(_is_compiling() or _tracing_state() or forward_ad._current_level >= 0)


def _is_plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether nothing but a kernel would see a call of an operator with these tensors."""
    return (
        type(q) is type(k) is type(v) is _Tensor
        and not _is_observed()
        and not (q.is_neg() or k.is_neg() or v.is_neg())  # memory holds other values
    )


def _is_observed() -> bool:
    """Whether something sees calls of operators as such."""
    return bool(
        _dispatch_modes()
        or _has_function_mode()
        or _has_transforms()
        or autograd_profiler._is_profiler_enabled  # which lists operators
    )


def direct(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None,
    causal: bool,
    window: Any,
    softcap: float,
    deterministic: bool,
    sm_margin: int,
    batch_invariant: int | None,
    with_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """What `forward` returns for plain tensors, with the least work of the host; None where that must look closer.

    Without `with_lse` there may be no log-sum-exp.
    """
    if (
        _is_traced()
        or not _is_plain(q, k, v)
        or type(window) is not tuple
        or len(window) != 2
        or (batch_invariant is not None and (type(batch_invariant) is not int or batch_invariant < 1))
    ):
        return None
    numbers = (softmax_scale, causal, *window, softcap, False, deterministic, sm_margin, batch_invariant or 0)
    recorded = _records(q, k, v)
    results = _names.typed(_native.direct_forward, q, k, v, numbers, bool(with_lse or recorded))
    if recorded and results is not None:
        results = _differentiable((results, numbers, with_lse), q, k, v)
        return results if with_lse else (results, None)
    return results  # type: ignore[no-any-return]


def _call(operator: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
    """An operator's results. The dispatcher's way through Python is left out where it can be: it takes 5 us and more."""
    if _is_traced() or _has_transforms():  # a batched tensor does not say that it requires a gradient
        return operator(q, k, v, *rest)
    if not _records(q, k, v):
        if operator is _fwd and _is_plain(q, k, v):
            results = _names.typed(_native.direct_forward, q, k, v, rest, True)
            if results is not None:
                return results
        return _below_autograd(operator, q, k, v, *rest)
    lengths = 0 if operator is _fwd else 4 if operator is _fwd_varlen else None
    if lengths is None or not type(q) is type(k) is type(v) is torch.Tensor:
        return operator(q, k, v, *rest)
    return _differentiable((operator, rest[lengths:], True), q, k, v, *rest[:lengths])


def _call_with_values(operator: Any, *inputs: Any) -> Any:
    """`_call` of an operator that has sinks, slopes or scales: they may require a gradient, which it refuses."""
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs):
        return operator(*inputs)
    return _call(operator, *inputs)


def _autograd_of(operator: Any, count: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The kernel of an operator of so many tensors for the dispatcher's key Autograd."""

    def kernel(keys: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        _derivatives.refuse_tangents(inputs[:3])
        run = lambda *args: operator.redispatch(keys & torch._C._after_autograd_keyset, *args)
        if _records(*inputs[:3]):
            _derivatives.refuse_transforms()
            return _Differentiable.apply((run, inputs[count:], True), *inputs[:count])
        return _below_autograd(run, *inputs)

    return kernel


_register()
_fakes.register()
_WITHOUT_BACKWARD = {
    "fwd.scaled": "gradients of float8_e4m3fn tensors are not computed. Call it under torch.no_grad(), or train with "
    "bfloat16 tensors",
    "fwd_kvcache": "gradients through a cache are not computed. Call it under torch.no_grad(), or train with "
    "tensors of equal lengths or packed sequences (cu_seqlens_q and cu_seqlens_k)",
    "bwd": "second derivatives are not computed. Call it without create_graph=True, or use PyTorch's "
    "scaled_dot_product_attention with SDPBackend.MATH",
}
_WITHOUT_BACKWARD["bwd_varlen"] = _WITHOUT_BACKWARD["bwd"]
_WITHOUT_BACKWARD["fwd_kvcache.modified"] = _WITHOUT_BACKWARD["fwd_kvcache"]
_WITHOUT_BACKWARD["fwd_kvcache.scheduled"] = _WITHOUT_BACKWARD["fwd_kvcache"]
_WITHOUT_BACKWARD["fwd_varlen.scaled"] = _WITHOUT_BACKWARD["fwd_kvcache.scaled"] = _WITHOUT_BACKWARD["fwd.scaled"]
for _name in ("fwd.modified", "fwd_varlen.modified"):
    _WITHOUT_BACKWARD[_name] = (
        "gradients with sinks or ALiBi slopes are not computed. Call it under torch.no_grad(), or train without them"
    )

_fwd = torch.ops.flashcore.fwd.default
_fwd_scaled = torch.ops.flashcore.fwd.scaled
_fwd_bhsd = torch.ops.flashcore.fwd.bhsd
_fwd_varlen = torch.ops.flashcore.fwd_varlen.default
_fwd_kvcache = torch.ops.flashcore.fwd_kvcache.default
_fwd_kvcache_rows = torch.ops.flashcore.fwd_kvcache.rows
_fwd_modified = torch.ops.flashcore.fwd.modified
_fwd_varlen_scaled = torch.ops.flashcore.fwd_varlen.scaled
_fwd_kvcache_scaled = torch.ops.flashcore.fwd_kvcache.scaled
_fwd_varlen_modified = torch.ops.flashcore.fwd_varlen.modified
_fwd_kvcache_scheduled = torch.ops.flashcore.fwd_kvcache.scheduled
_fwd_kvcache_modified = torch.ops.flashcore.fwd_kvcache.modified
_bwd = torch.ops.flashcore.bwd.default
_bwd_varlen = torch.ops.flashcore.bwd_varlen.default

_flops.register(torch.ops.flashcore)
_library = torch.library.Library("flashcore", "IMPL")  # noqa: TOR901
for _name, _operator, _count in (("fwd", _fwd, 3), ("fwd_varlen", _fwd_varlen, 7)):
    _library.impl(_name, _autograd_of(_operator, _count), "Autograd", with_keyset=True)
for _name, _instead in _WITHOUT_BACKWARD.items():
    _packet, _, _overload = _name.partition(".")
    _operator = getattr(getattr(torch.ops.flashcore, _packet), _overload or "default")
    _kernel = _derivatives.refusing(_operator, f"flashcore::{_name} has no backward pass: {_instead}")
    _library.impl(_name, _kernel, "Autograd", with_keyset=True)
for _name in ("fwd.bhsd", "fwd_kvcache.rows", "make_schedule"):  # they raise where gradients are recorded, or have none
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    scales: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] = (None, None, None),
    out_bhsd: bool = False,
    deterministic: bool = False,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sm_margin: int = 0,
    batch_invariant: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of tensors ``[batch, seq, heads, head_dim]``, by the operator that serves their dtype.

    Parameters
    ----------
    window : (left, right)
        Visible keys before and after the diagonal, which ends at the last query and key; negative: all.
    scales : (q_scale, k_scale, v_scale)
        For float8_e4m3fn tensors, float32 ``[batch, kv_heads]``; 1 where None.
    out_bhsd : bool
        Whether ``out`` lies in memory as ``[batch, heads, seq, head_dim]``. Its shape is the same.
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

    Returns
    -------
    out : ``[batch, seq, heads, head_dim_v]``, of q's dtype (bfloat16 for float8_e4m3fn)
    lse : float32 ``[batch, heads, seq]``, natural logarithm
    """
    softmax_scale, q, k, v = _arguments.prepared(q, k, v, softmax_scale)
    options = (softmax_scale, causal, window[0], window[1], softcap, out_bhsd)
    settings = _arguments.settings(sm_margin, batch_invariant)
    given = _checks.scales(q, scales, lambda: (k.shape[0], k.shape[-2]), sinks, alibi_slopes)
    if given:
        return _call_with_values(_fwd_scaled, q, k, v, *given, *options, *settings)
    if sinks is not None or alibi_slopes is not None:
        values = _arguments.modifiers(q, sinks, alibi_slopes)
        return _call_with_values(_fwd_modified, q, k, v, *values, *options, *settings)
    return _call(_fwd, q, k, v, *options, deterministic, *settings)


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
        type(query) is not torch.Tensor
        or type(key) is not torch.Tensor
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or query.dtype not in _DTYPES
        or query.shape[-1] not in _HEAD_DIMS
        or value.shape[-1] not in _HEAD_DIMS
        or not query.stride()[-1] == key.stride()[-1] == value.stride()[-1] == 1
    ):
        return None
    if softmax_scale is None:
        softmax_scale = query.shape[-1] ** -0.5
    options = (softmax_scale, causal, window_left, window_right, softcap)
    if rows is None:
        plain = _is_plain(query, key, value)
        out = _names.typed(_native.direct_bhsd, query, key, value, options) if plain else None
        return _names.typed(_fwd_bhsd, query, key, value, *options) if out is None else out
    return _names.typed(_fwd_kvcache_rows, query, key, value, *rows, *options)


def forward_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    scales: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] = (None, None, None),
    deterministic: bool = False,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sm_margin: int = 0,
    batch_invariant: int | None = None,
    **lengths: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed sequences: q ``[total_q, heads, head_dim]``, k and v ``[total_k, kv_heads, head_dim]``.

    Parameters
    ----------
    lengths
        Those of `_arguments.packed`.
    deterministic : bool
        Whether gradients are the same bits in every run.
    scales, sinks, alibi_slopes, sm_margin, batch_invariant
        As of `forward`; an entry of the batch is a sequence.

    Returns
    -------
    out : ``[total_q, heads, head_dim_v]``. Rows that are of no sequence hold anything.
    lse : float32 ``[heads, total_q]``, natural logarithm
    """
    softmax_scale, q, k, v = _arguments.prepared(q, k, v, softmax_scale)
    arrays, bounds = _arguments.packed(q, **lengths)
    options = (softmax_scale, causal, window[0], window[1], softcap, *bounds)
    settings = _arguments.settings(sm_margin, batch_invariant)
    given = _checks.scales(q, scales, lambda: (lengths["cu_seqlens_q"].numel() - 1, k.shape[-2]), sinks, alibi_slopes)
    if given:
        return _call_with_values(_fwd_varlen_scaled, q, k, v, *arrays, *given, *options, *settings)
    if sinks is not None or alibi_slopes is not None:
        values = _arguments.modifiers(q, sinks, alibi_slopes)
        return _call_with_values(_fwd_varlen_modified, q, k, v, *arrays, *values, *options, *settings)
    return _call(_fwd_varlen, q, k, v, *arrays, *options, deterministic, *settings)


def forward_kvcache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    block_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    max_seqlen_q: int = 0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    scales: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None] = (None, None, None),
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sm_margin: int = 0,
    batch_invariant: int | None = None,
    schedule: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over a cache.

    Parameters
    ----------
    q : Tensor ``[batch, seq_q, heads, head_dim]``, or with `cu_seqlens_q` packed ``[total_q, heads, head_dim]``
    k, v : Tensor ``[batch, capacity, kv_heads, head_dim]``, or with `block_table` ``[pages, page_size, kv_heads, ...]``
    seqused_k : int32 ``[batch]``
        Keys of each sequence.
    block_table : int32 ``[batch, max_pages]``, optional
        The pages of each sequence; -1 for none, where no row sees its keys.
    scales, sinks, alibi_slopes, sm_margin, batch_invariant
        As of `forward_varlen`.
    schedule : int, optional
        The number of one that was made before (`_schedule.given`), for calls without scales, sinks and slopes.

    Returns
    -------
    out : as q, with the head_dim of v. Rows that are of no sequence hold anything.
    lse : float32 ``[batch, heads, seq_q]``; of packed queries ``[heads, total_q]``
    """
    softmax_scale, q, k, v = _arguments.prepared(q, k, v, softmax_scale)
    options = (softmax_scale, causal, window[0], window[1], softcap, max_seqlen_q, max_seqlen_k)
    settings = _arguments.settings(sm_margin, batch_invariant)
    _checks.one_each(seqused_k.numel(), seqused_q=seqused_q)
    absent = _arguments.absent(q, cu_seqlens_q, seqused_q, block_table)
    lengths = (
        _arguments.dense(cu_seqlens_q, absent),
        _arguments.dense(seqused_q, absent),
        _arguments.dense(seqused_k),
        _arguments.dense(block_table, absent),
    )
    given = _checks.scales(q, scales, lambda: (seqused_k.numel(), k.shape[-2]), sinks, alibi_slopes)
    if given:
        _checks.no_schedule(q, schedule)
        return _call_with_values(_fwd_kvcache_scaled, q, k, v, *lengths, *given, *options, *settings)
    if sinks is not None or alibi_slopes is not None:
        values = _arguments.modifiers(q, sinks, alibi_slopes)
        return _call_with_values(_fwd_kvcache_modified, q, k, v, *lengths, *values, *options, *settings)
    if schedule is not None:
        return _call(_fwd_kvcache_scheduled, q, k, v, *lengths, *options, *settings, schedule)
    return _call(_fwd_kvcache, q, k, v, *lengths, *options, *settings)


def unserved(query: torch.Tensor, value: torch.Tensor, scale: float | None = None) -> str | None:
    """Why a call that PyTorch's SDPA serves is not served, by its dtype, head_dim and scale; None if it is."""
    if query.dtype not in _DTYPES:
        return f"query holds {query.dtype}"
    for head_dim in (query.shape[-1], value.shape[-1]):
        if head_dim not in _HEAD_DIMS:
            return f"head_dim is {head_dim}, which is not a multiple of 8 up to 256"
    if scale is not None and not 0.0 < scale <= _MOST_SCALE:
        return f"scale is not above 0 and at most {_MOST_SCALE:g}"  # the same for each: it is warned of once
    return None
