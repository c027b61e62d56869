"""FlashAttention-3's interface: the functions of its ``flash_attn_interface.py``.

    >>> from flashcore_attn.flash_attn_interface import flash_attn_func
    >>> out = flash_attn_func(q, k, v, causal=True)

Signatures are FlashAttention-3's. After them, by name, are `batch_invariant` and what FlashAttention-2 and vLLM have:
`dropout_p`, which must be 0, `alibi_slopes` and `block_table`. FlashAttention-2 has its dropout where this interface has
`softmax_scale`, so a number in that place raises `TypeError`: its signatures are in `flashcore_attn.flash_attn`. An argument
that is not served raises `NotImplementedError` with its name; wishes about the schedule (`num_splits`, `pack_gqa`,
`scheduler_metadata`) change no result. Masks are aligned bottom-right: the last query of a sequence sees its last key.
Lengths are int32 tensors that stay on the device: nothing waits for it, and rows past a sequence's end are never used.

`flash_attn_func`, `flash_attn_qkvpacked_func` and, with `cu_seqlens_q` or `seqused_q` and `cu_seqlens_k`,
`flash_attn_varlen_func` are differentiable in q, k and v: float16, bfloat16 and float32, all masks, soft caps, grouped
heads. The last bits of dq may differ from run to run on GPUs, unless `deterministic` is given. Asking for a gradient
of the log-sum-exp, of float8 tensors or through a cache raises, and so do second derivatives.
"""

from __future__ import annotations

import numbers
from typing import Any

from . import _extras

try:
    import torch
except ModuleNotFoundError as error:
    raise _extras.missing(error, "torch") from error

from . import _kvcache, _lengths, _names, _schedule
from ._combine import flash_attn_combine
from ._inner import (
    _flash_attn_backward,
    _flash_attn_forward,
    check,
    common_options,
    forward_cached,
    get_scheduler_metadata,
)
from ._operators import _FAR, direct

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


_attend_by_offsets = _names.rename(seqused_k="cu_seqlens_k.diff()")(_lengths.attend)


def _is_usual(window: Any, num_splits: Any, batch_invariant: Any) -> bool:
    """Whether these need no closer look."""
    return (
        type(window) is tuple
        and len(window) == 2
        and type(num_splits) is int
        and num_splits >= 0
        and (batch_invariant is None or (type(batch_invariant) is int and batch_invariant >= 1))
    )


@_names.signature_with("softmax_scale")
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    _in_its_place: None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    softmax_scale: float | None = None,
    batch_invariant: int | None = None,
    dropout_p: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries, keys and values.

    Parameters
    ----------
    q : Tensor ``[batch, seq_q, heads, head_dim]``
        float16, bfloat16, float32 or float8_e4m3fn.
    k : Tensor ``[batch, seq_kv, kv_heads, head_dim]``
        ``kv_heads`` divides ``heads``.
    v : Tensor ``[batch, seq_kv, kv_heads, head_dim_v]``
    softmax_scale : float, optional
        The factor on ``q @ k.T``; ``head_dim ** -0.5`` unless given.
    causal : bool
        Query i sees keys up to ``i + seq_kv - seq_q``.
    q_descale, k_descale, v_descale : Tensor ``[batch, kv_heads]``, optional
        float32, for float8_e4m3fn only: an element stands for itself times the scale of its batch and K/V head.
    window_size : (left, right), or a tensor of the two
        How many keys before and after the diagonal are visible; -1 for all.
    softcap : float
        Scaled scores s become ``softcap * tanh(s / softcap)``; 0 for none.
    num_splits : int
        A wish about the schedule, which never changes what is computed: the plan chooses it.
    pack_gqa : bool, optional
        As `num_splits`.
    deterministic : bool
        Gradients are the same bits in every run. Without it kernels may add to them in an order that depends on timing;
        with it they may be slower, and a warning says so. The output is the same bits in every run.
    sm_margin : int
        Multiprocessors of the GPU that are left to other work, such as communication: kernels of persistent blocks have
        as many fewer of them, others are chosen for as many fewer. The CPU has none, and refuses it.
    return_attn_probs : bool
        Return ``(out, softmax_lse)``.
    batch_invariant : int, optional
        Keys of a split: the bits of an output do not depend on the other sequences of the batch, nor on how many there
        are, as long as head sizes, masks, dtypes and bounds of lengths are the same. None: splits follow the batch. It
        is FlashCore's, and has no part in gradients.
    alibi_slopes : float32 Tensor ``[heads]`` or ``[batch, heads]``, optional
        Query i's score of key j is lowered by ``slope * |i + seq_kv - seq_q - j|``. There are no gradients then.
    qv, attention_chunk, dropout_p
        Not served: anything but the default raises.

    Returns
    -------
    out : Tensor ``[batch, seq_q, heads, head_dim_v]``
        Of q's dtype, bfloat16 for float8_e4m3fn. Rows without a visible key are 0. Batches and sequences may be empty,
        but not in a compiled model.
    softmax_lse : Tensor ``[batch, heads, seq_q]``, only with `return_attn_probs`
        float32, natural logarithm of each row's sum of exponentials; -inf for rows without a visible key.

    Raises
    ------
    NotImplementedError
        An argument is not served.
    RuntimeError
        Shapes, dtypes or devices do not fit, or the device failed.
    """
    if _in_its_place is not None:
        _names.refuse_number("flash_attn_func", 4, "softmax_scale", _in_its_place)
    plain = q_descale is k_descale is v_descale is qv is alibi_slopes is None and attention_chunk == 0 == dropout_p
    if plain and _is_usual(window_size, num_splits, batch_invariant):
        first = (softmax_scale, causal, *window_size, softcap, 0)
        results = direct((q, k, v), first, return_attn_probs, (deterministic, sm_margin, batch_invariant or 0))
        if results is not None:
            return tuple(results) if return_attn_probs else results[0]
    _names.check_tensors(q, k, v, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    check(qv, attention_chunk, num_splits, dropout_p)
    options = common_options(softmax_scale, causal, window_size, softcap, sm_margin, alibi_slopes)
    options |= {"deterministic": deterministic, "batch_invariant": batch_invariant}
    out, lse = _lengths.attend(q, k, v, scales=(q_descale, k_descale, v_descale), **options)
    return (out, lse) if return_attn_probs else out


@_names.signature_with("softmax_scale")
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    _in_its_place: None = None,
    causal: bool = False,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries, keys and values that share a tensor, which is not copied.

    Parameters
    ----------
    qkv : Tensor ``[batch, seq, 3, heads, head_dim]`` or ``[batch, seq, heads + 2 * kv_heads, head_dim]``
        The second form needs `num_heads_q`.
    num_heads_q : int, optional
        The number of query heads, ``heads``, in the second form.

    The other parameters, the results and the errors are those of `flash_attn_func`.
    """
    if _in_its_place is not None:
        _names.refuse_number("flash_attn_qkvpacked_func", 2, "softmax_scale", _in_its_place)
    if not isinstance(qkv, torch.Tensor):
        raise TypeError(f"qkv is a {type(qkv).__name__}; it must be a tensor")
    if num_heads_q is not None and not isinstance(num_heads_q, (numbers.Integral, torch.SymInt)):
        raise TypeError(f"num_heads_q is {num_heads_q!r}; it must be an int")
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        q, k, v = qkv.unbind(2)
    elif qkv.dim() == 4 and num_heads_q is not None:
        both = qkv.shape[2] - num_heads_q
        kv_heads, rest = both // 2, both % 2
        if num_heads_q < 1 or kv_heads < 1 or rest:
            raise ValueError(f"num_heads_q is {num_heads_q} of {qkv.shape[2]}; as many heads of k as of v must remain")
        q, k, v = qkv.split([num_heads_q, kv_heads, kv_heads], dim=2)
    else:
        raise ValueError(
            f"qkv has shape {tuple(qkv.shape)}; allowed are [batch, seq, 3, heads, head_dim], and with num_heads_q "
            "[batch, seq, heads + 2 * kv_heads, head_dim]"
        )
    check(None, attention_chunk, 1, dropout_p)
    options = common_options(softmax_scale, causal, window_size, softcap, sm_margin, alibi_slopes)
    scales = (q_descale, k_descale, v_descale)
    out, lse = _lengths.attend(q, k, v, scales=scales, deterministic=deterministic, **options)
    return (out, lse) if return_attn_probs else out


@_names.rename(page_table="block_table")
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    batch_invariant: int | None = None,
    dropout_p: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of packed sequences of different lengths.

    Parameters
    ----------
    q : Tensor ``[total_q, heads, head_dim]``
        float16, bfloat16, float32 or float8_e4m3fn. Without `cu_seqlens_q` ``[batch, seq_q, heads, head_dim]``.
    k : Tensor ``[total_k, kv_heads, head_dim]``
        Without `cu_seqlens_k` ``[batch, seq_kv, kv_heads, head_dim]``.
    v : Tensor ``[total_k, kv_heads, head_dim_v]``
    cu_seqlens_q, cu_seqlens_k : int32 Tensor ``[batch + 1]``
        The first row of each sequence, and the end of the last. They begin with 0.
    max_seqlen_q, max_seqlen_k : int
        Bounds of the rows of a sequence. A longer one is cut on a GPU and an error on the CPU.
    seqused_q, seqused_k : int32 Tensor ``[batch]``, optional
        How many of its rows each sequence uses; all unless given.
    block_table : int32 Tensor ``[batch, max_pages]``, optional
        The pages of each sequence. k and v are then ``[pages, page_size, kv_heads, head_dim]``, and `seqused_k` or
        `cu_seqlens_k` says only how many keys each has. There are no gradients then.

    The other parameters and errors are those of `flash_attn_func`. Scales of float8_e4m3fn are of sequences.

    Returns
    -------
    out : Tensor ``[total_q, heads, head_dim_v]``
        Rows without a visible key are 0. Rows that are of no sequence are not written.
    softmax_lse : Tensor ``[heads, total_q]``, only with `return_attn_probs`
        float32, natural logarithm; without `cu_seqlens_q` ``[batch, heads, seq_q]``.
    """
    if isinstance(seqused_q, (float, int)):
        _names.refuse_number("flash_attn_varlen_func", 8, "seqused_q", seqused_q)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    lengths |= {"seqused_q": seqused_q, "seqused_k": seqused_k}
    _names.check_tensors(q, k, v, **lengths, block_table=block_table)
    check(qv, attention_chunk, num_splits, dropout_p)
    attend = _lengths.attend
    if block_table is not None:
        if (cu_seqlens_k is None) == (seqused_k is None):
            raise ValueError("block_table is given; give seqused_k or cu_seqlens_k, the keys of each sequence, and not both")
        if cu_seqlens_k is not None:
            lengths |= {"cu_seqlens_k": None, "seqused_k": cu_seqlens_k.diff()}
            attend = _attend_by_offsets
        block_table = _kvcache.table_of(_lengths.batch_of(q, cu_seqlens_q), k, block_table, None)
    out, lse = attend(
        q,
        k,
        v,
        scales=(q_descale, k_descale, v_descale),
        **lengths,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        table=block_table,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
        **common_options(softmax_scale, causal, window_size, softcap, sm_margin, alibi_slopes),
    )
    return (out, lse) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    *,
    batch_invariant: int | None = None,
    alibi_slopes: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Attention over a cache of keys and values, to which new ones are written first if they are given.

    docs/python.md has whole steps of decoding.

    Parameters
    ----------
    q : Tensor ``[batch, seq_q, heads, head_dim]``, or with `cu_seqlens_q` ``[total_q, heads, head_dim]``
    k_cache, v_cache : Tensor ``[cache_batch, capacity, kv_heads, head_dim]``
        With `page_table` ``[pages, page_size, kv_heads, head_dim]``, of any page size.
    k, v : Tensor ``[batch, seq_new, kv_heads, head_dim]``, optional
        Written into the cache, in place, behind the first `cache_seqlens` keys; with `cu_seqlens_k_new`
        ``[total_new, kv_heads, head_dim]``. Rows that do not fit are not written on a GPU, and an error on the CPU.
    rotary_cos, rotary_sin : Tensor ``[positions, rotary_dim / 2]`` of the dtype of q, optional
        With `k`: rotates it at `rotary_seqlens` (`cache_seqlens` unless given) and on, and q at the same positions if
        the mask is causal or has a window, else all of q at the first of them. Without tables, positions are ignored,
        as FlashAttention-3 does.
    cache_seqlens : int or int32 Tensor ``[batch]``, optional
        Keys of each sequence in the cache; all unless given.
    cache_batch_idx : int32 Tensor ``[batch]``, optional
        The sequence of the cache (the row of `page_table`) that each of the batch has.
    cache_leftpad : int32 Tensor ``[batch]``, optional
        The first key of each sequence in its part of the cache.
    page_table : int32 Tensor ``[batch, max_pages]``, optional
        The pages of each sequence. -1 is none, where no query sees its keys. `block_table` is the same.
    cu_seqlens_q, max_seqlen_q : int32 Tensor ``[batch + 1]`` and int
        For packed queries, as of `flash_attn_varlen_func`; of others the bound is checked.
    rotary_interleaved : bool
        Whether pairs are columns 0 and 1, 2 and 3, ..., or columns 0 and ``rotary_dim / 2``, ...
    scheduler_metadata : Tensor, optional
        What `get_scheduler_metadata` returned for lengths as they are when the call runs. Where it was made for another
        number of new keys, before `cache_seqlens` was written again (not seen of inference tensors), or without pages
        and `cache_batch_idx` is given, the call warns and makes its own.

    The other parameters and errors are those of `flash_attn_func`. Scales of float8_e4m3fn, which is served without
    `scheduler_metadata`, are of sequences; new rows have the same. On a GPU, such calls copy the keys in use where a
    page has no multiple of 8 keys (with `cache_leftpad` it has one, with `cache_batch_idx` all of a sequence), and the
    first one warns. Writing `k` and `v` with their rotary embedding is one launch before attention. `cache_leftpad` and
    `cache_batch_idx` run PyTorch's operations, several small kernels each.

    Returns
    -------
    out : Tensor, as q
    softmax_lse : Tensor ``[batch, heads, seq_q]`` or ``[heads, total_q]``, only with `return_softmax_lse`
        Two empty tensors follow it, in the place of FlashAttention-3's partial results.
    """
    if block_table is not None:
        if page_table is not None:
            raise ValueError("block_table and page_table are given, which are the same; give one of them")
        page_table = block_table
    if scheduler_metadata is not None and not torch.compiler.is_compiling():
        of_each = k.shape[1] if isinstance(k, torch.Tensor) and k.dim() == 4 else 0
        new_keys = of_each if cu_seqlens_k_new is None else None
        has_batch_idx = cache_batch_idx is not None and page_table is None
        scheduler_metadata = _schedule.made_for(scheduler_metadata, cache_seqlens, new_keys, has_batch_idx)
    plain = qv is q_descale is k_descale is v_descale is cache_batch_idx is cache_leftpad is cu_seqlens_k_new is None
    if plain and alibi_slopes is None and attention_chunk == 0:
        usual = cache_seqlens is not None and _is_usual(window_size, num_splits, batch_invariant)
        if usual and (max_seqlen_q is None if cu_seqlens_q is None else type(max_seqlen_q) is int):
            new = (k, v, rotary_cos, rotary_sin, rotary_seqlens)
            has_new = not (k is v is rotary_cos is rotary_sin is rotary_seqlens is None)
            schedule = None if scheduler_metadata is None else _schedule.given(scheduler_metadata)
            more = (False, sm_margin, batch_invariant or 0, max_seqlen_q or 0, _FAR, schedule or 0)
            tensors: tuple[Any, ...] = (q, k_cache, v_cache, cu_seqlens_q, None, None, cache_seqlens, page_table)
            if has_new:
                tensors = (*tensors, None, None, None, None, None, *new)
            first = (softmax_scale, causal, *window_size, softcap, 0)
            interleaved = rotary_interleaved if has_new else None
            results = direct(tensors, first, return_softmax_lse, more, interleaved)
            if results is not None:
                none = [q.new_empty(0, dtype=torch.float32) for _ in range(2 if return_softmax_lse else 0)]
                return (*results, *none) if return_softmax_lse else results[0]
    results = forward_cached(
        q, k_cache, v_cache, k, v, qv, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k_new=cu_seqlens_k_new,
        cache_seqlens=cache_seqlens, max_seqlen_q=max_seqlen_q, page_table=page_table, kv_batch_idx=cache_batch_idx,
        leftpad_k=cache_leftpad, rotary_cos=rotary_cos, rotary_sin=rotary_sin, seqlens_rotary=rotary_seqlens,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, attention_chunk=attention_chunk, softcap=softcap,
        rotary_interleaved=rotary_interleaved, scheduler_metadata=scheduler_metadata, num_splits=num_splits,
        pack_gqa=pack_gqa, sm_margin=sm_margin, batch_invariant=batch_invariant, alibi_slopes=alibi_slopes,
    )  # fmt: skip
    return results if return_softmax_lse else results[0]
