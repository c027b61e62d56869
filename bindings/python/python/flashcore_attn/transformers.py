"""Hugging Face Transformers on FlashCore's kernels, as the attention implementation ``fc_attention``.

    >>> import flashcore_attn.transformers
    >>> flashcore_attn.transformers.register()
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="fc_attention")

It serves full and causal attention, sliding windows of one side and of both, soft caps, grouped heads, padded
batches, packed sequences that come with ``cu_seq_lens_q``, dynamic caches, static caches, whose length may be on the
device, and the paged caches of continuous batching (`generate_batch`). It serves training.
Custom masks and dropout go to Transformers' ``sdpa`` with one warning for each reason, or raise if strict; so does
training where FlashCore's kernel for gradients on a GPU uses no tensor cores (f32).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from . import _extras

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
except ModuleNotFoundError as error:
    raise _extras.missing(error, "transformers") from error

from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_overlay,
    sliding_window_causal_mask_function,
)

from . import _continuous, _padding
from ._operators import forward, forward_bhsd, slow_backward, unserved

__all__ = ["NAME", "register"]

NAME = "fc_attention"

_KEYWORDS = frozenset(("position_bias", "cache", "head_mask", "s_aux", "cu_seq_lens_q"))
_MASK_OF_COMPILED = (
    "a mask is needed, in a compiled model also for padding (give it no attention_mask, or do not compile it)"
)
_AND = sliding_window_causal_mask_function(1).__name__
_OF_BOTH_SIDES = sliding_window_bidirectional_overlay(8)
# What is divided by it to know how far a window of both sides sees: versions differ.
_SIDES = 8 // sum(bool(_OF_BOTH_SIDES(0, 0, 0, key)) for key in range(1, 9))
_strict = False
_warned: set[str] = set()


def register(*, strict: bool = False) -> None:
    """Makes ``attn_implementation="fc_attention"`` known to Transformers, its continuous batching included.

    Parameters
    ----------
    strict : bool
        Raise `NotImplementedError` for what is not served, in place of computing it with ``sdpa``.
    """
    global _strict
    _strict = strict
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
    _continuous.admit(NAME, attention)


@torch.compiler.assume_constant_result  # so that a compiled model warns when it is traced
def _fall_back(why: str) -> None:
    _tell(f"{why}: {NAME} does not serve it", f"{why}: Transformers' sdpa computes it, not {NAME}")


@torch.compiler.assume_constant_result
def _no_weights() -> None:
    why = f"output_attentions is given, and {NAME} computes no attention weights: use eager"
    _tell(why, why)


def _tell(refusal: str, warning: str) -> None:
    """Raises the refusal if strict, else warns once."""
    if _strict:
        raise NotImplementedError(refusal)
    if warning not in _warned:
        _warned.add(warning)
        warnings.warn(warning, stacklevel=4)


def _is_causal(
    mask_function: Callable[..., Any], local_size: int | None, q_length: int, options: dict[str, Any]
) -> bool:
    """Whether a mask is causal, with the sliding window `local_size` if that is given, and nothing else."""
    if local_size is None:
        return mask_function is causal_mask_function
    if torch.compiler.is_compiling():  # closures cannot be read
        config = options.get("config")
        window, chunk = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
        if not local_size == window != chunk:
            return False
        if options.get("allow_is_causal_skip", False):
            return True
        # That may not be skipped where another mask was added, nor in steps over a static cache. What is added by "and"
        # is computed with vmap, and what is added by "or" has that name. Windows of both sides have a word of their own.
        alone = options.get("use_vmap") is False and "allow_is_bidirectional_skip" not in options
        return q_length == 1 and alone and getattr(mask_function, "__name__", None) == _AND
    try:
        overlay, causal = _captured(mask_function)["mask_functions"]
        return causal is causal_mask_function and _captured(overlay)["sliding_window"] == local_size
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _side(mask_function: Callable[..., Any], local_size: int | None, options: dict[str, Any]) -> int | None:
    """How many keys before and after a query a mask shows, if it is a window of both sides and nothing else."""
    if local_size is None or not options.get("allow_is_bidirectional_skip", False):  # then something may be added
        return None
    if torch.compiler.is_compiling():  # closures cannot be read; causal masks do not have that word
        return local_size // _SIDES if getattr(options.get("config"), "sliding_window", None) == local_size else None
    try:
        overlay, full = _captured(mask_function)["mask_functions"]
        is_window = overlay.__code__ is _OF_BOTH_SIDES.__code__ and full is bidirectional_mask_function
        return local_size // _SIDES if is_window and _captured(overlay)["sliding_window"] == local_size else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _captured(function: Callable[..., Any]) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells)))


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    **options: Any,
) -> torch.Tensor | None:
    """Transformers' mask function: None for what `attention` serves, else a mask ``[batch, 1, seq_q, seq_kv]``.

    Where only the first keys of a static cache are in use, and the last query sees the last of them, it says how many
    keys `attention` takes. If the host knows, that is a mask ``[0, 1, seq_q, keys in use]``, which has no elements.
    Where `q_offset` is a tensor, or of one query, it is int32 ``[batch, 1, 1, 1]`` on the device: the same shape at each
    step, so that a compiled model runs as one graph. Of padded batches it is the part of `attention_mask` for the keys
    in use, bool ``[batch, keys in use]``; of a cache that has dropped its first positions, their columns come first.
    A window of `n` keys on both sides of each query is ``[0, 2, n, seq_kv]``, without elements, and with padding it is
    kept with the part of `attention_mask`.

    Parameters
    ----------
    q_offset, kv_offset : int
        Positions of the first query and of the first key.
    attention_mask : Tensor ``[batch, positions]``, optional
        bool, False at padding.
    local_size : int, optional
        The sliding window or chunk that `mask_function` has.
    """
    causal = _is_causal(mask_function, local_size, q_length, options)
    full = mask_function is bidirectional_mask_function and local_size is None
    if not options.get("allow_is_bidirectional_skip", True):  # the model computes with its mask
        full = False
    side = _side(mask_function, local_size, options)
    if side is not None and isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length:
        full = True
        side = None if side >= kv_length - 1 else side
    keys_in_use = None
    if isinstance(q_offset, torch.Tensor):
        if causal and local_size is None:
            keys_in_use = (q_offset + (q_length - kv_offset)).to(torch.int32).repeat(batch_size, 1, 1, 1)
            if attention_mask is None:
                return keys_in_use
        # A length on a GPU stays there, for reading it waits for all work before it; but so does looking for padding.
        if not torch.compiler.is_compiling() and (attention_mask is not None or q_offset.device.type == "cpu"):
            q_offset = int(q_offset)
    if (causal or full) and isinstance(q_offset, int):
        count = q_offset + q_length - kv_offset if causal else kv_length
        served, used = False, None
        # Models that compute with their mask do not allow to leave it out. Steps over a static cache do not either, but
        # have more columns than keys in use.
        computes = causal and q_length > 1 and count == kv_length and not options.get("allow_is_causal_skip", True)
        if count <= kv_length and not computes:
            served, used = _in_use(attention_mask, kv_offset, count, q_length, local_size)
        if served and used is None:
            if keys_in_use is not None:
                return keys_in_use
            if side is not None and full:
                return torch.empty((0, 2, side, kv_length), dtype=torch.bool, device=options.get("device"))
            if count == kv_length:
                return None
            if causal and q_length == 1:  # of the same shape at each step, too
                return torch.full((batch_size, 1, 1, 1), count, dtype=torch.int32, device=options.get("device"))
            return torch.empty((0, 1, q_length, count), dtype=torch.bool, device=options.get("device"))
        if served and (kv_offset == 0 or (count == kv_length and side is None)):
            _padding.keep_mask(used, causal, side)
            return _padding.with_earlier(attention_mask[:, : kv_offset + count].bool(), used) if kv_offset > 0 else used
    return sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,  # type: ignore[arg-type]  # Transformers passes tensors, too
        kv_offset,
        mask_function,
        attention_mask,
        local_size,
        **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )


def _in_use(
    attention_mask: torch.Tensor | None, kv_offset: int, count: int, q_length: int, local_size: int | None
) -> tuple[bool, torch.Tensor | None]:
    """Whether `count` keys are served, and which are in use, bool ``[batch, count]``; None where all are."""
    if attention_mask is None:
        return True, None
    if torch.compiler.is_compiling():  # values cannot be read
        return False, None
    used = attention_mask[:, kv_offset : kv_offset + count].bool()
    if used.shape[1] < count or bool(used.all()):  # waits for the device
        return used.shape[1] == count, None
    if q_length > 1 or local_size is not None:
        begins = used[:, 1:] & ~used[:, :-1]
        contiguous = int((used[:, 0].int() + begins.sum(1)).max()) <= 1
        if local_size is not None and not contiguous:  # positions count
            return False, None
        _padding.keep_contiguous(used, contiguous)
    return True, used


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' attention function.

    Parameters
    ----------
    query : Tensor ``[batch, heads, seq_q, head_dim]``
    key, value : Tensor ``[batch, kv_heads, seq_kv, head_dim]``
    attention_mask : what `mask` returned

    Returns
    -------
    out : Tensor ``[batch, seq_q, heads, head_dim]``
    None
        Attention weights are not computed.
    """
    if kwargs.get("output_attentions"):
        _no_weights()
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    side = None
    if attention_mask is not None and attention_mask.dim() == 2:
        causal, side = _padding.mask_of(attention_mask, causal)
        attention_mask = _padding.of_keys(attention_mask, key.shape[2])
    elif attention_mask is not None and attention_mask.shape[:2] == (0, 2):
        causal, side, attention_mask = False, attention_mask.shape[2], None
    window = (sliding_window - 1, 0) if causal and sliding_window is not None else (-1, -1)
    window = window if side is None else (side, side)
    if dropout == 0.0 and _KEYWORDS.isdisjoint(kwargs):
        rows = None
        if attention_mask is not None and attention_mask.dim() == 2 and query.shape[2] == 1:
            rows = _padding.rows_of(key, value, attention_mask)
        if attention_mask is None or rows is not None:
            out = forward_bhsd(query, key, value, scaling, causal, *window, softcap or 0.0, rows)
            if out is not None:
                return out, None
    if kwargs.get("cache") is not None and kwargs.get("write_index") is not None:
        key, value, kwargs = _continuous.of_paged(module, key, value, kwargs)
    for name in ("position_bias", "cache", "head_mask") if kwargs else ():  # no kernel serves them
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{name} is given; {NAME} does not serve it: use another attn_implementation")
    device = "cuda" if query.is_cuda else query.device.type  # the latter takes a microsecond
    if torch.is_autocast_enabled(device):  # positions are rotated in float32; sdpa is cast by PyTorch
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    keys_in_use = padding = None
    if attention_mask is not None:
        if attention_mask.dtype == torch.int32:
            keys_in_use, attention_mask = attention_mask, None
        elif attention_mask.shape[0] == 0:
            in_use = attention_mask.shape[3]
            key, value = key[:, :, :in_use], value[:, :, :in_use]
            attention_mask = None
        elif attention_mask.dim() == 2:
            padding, attention_mask = attention_mask, None
            key, value = key[:, :, : padding.shape[1]], value[:, :, : padding.shape[1]]
    sinks, packed = kwargs.get("s_aux"), kwargs.get("cu_seq_lens_q") is not None  # a mask says the same, then
    why = _unserved(query, key, value, None if packed else attention_mask, dropout)
    deterministic = torch.are_deterministic_algorithms_enabled()
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap or 0.0}
    trains = (q, k, v) if sinks is None else (q, k, v, sinks)
    if why is None and torch.is_grad_enabled() and any(x.requires_grad for x in trains):
        if sinks is not None:
            why = "a gradient is asked for with s_aux, sinks (to compute none, call the model under torch.no_grad())"
        elif keys_in_use is not None:
            why = "a gradient is asked for through a cache whose length is on the device"
        elif softcap is None and not (packed and attention_mask is None):  # sdpa could compute it
            how = {"packed": packed or padding is not None, "deterministic": deterministic}
            slow = slow_backward(q, k, v, **how, **options)
            why = None if slow is None else f"a gradient is asked for, and {slow}"
    if why is None:
        options["softmax_scale"] = scaling
        if sinks is not None:
            options["sinks"] = sinks.to(q.device)
        if keys_in_use is not None:
            lengths = keys_in_use.reshape(-1)
            return forward(q, k, v, seqused_k=lengths, max_seqlen_k=k.shape[1], **options)[0], None
        if packed and kwargs.get("block_table") is not None:
            return _continuous.step(query, key, value, kwargs, options), None
        options["deterministic"] = deterministic
        if packed:
            return _packed(q, k, v, kwargs, options), None
        if padding is not None:
            return _padding.attend(q, k, v, padding, **options), None
        return forward(q, k, v, **options)[0], None
    _fall_back(why)
    if sinks is not None:
        raise NotImplementedError(f"{why}, and s_aux is given, which sdpa does not serve: use eager")
    if softcap is not None:
        raise NotImplementedError(f"{why}, and softcap is given, which sdpa does not serve: use eager")
    if packed and attention_mask is None:
        instead = "leave it out, or use sdpa for continuous batching"
        raise NotImplementedError(f"{why}, and cu_seq_lens_q is given, which sdpa does not serve: {instead}")
    if attention_mask is None and (causal or side is not None):
        attention_mask = _bottom_right(query, key, causal, window, keys_in_use)
    if padding is not None:
        visible = padding[:, None, None]
        visible = visible if attention_mask is None else visible & attention_mask
        attention_mask = visible | ~visible.any(-1, keepdim=True)  # a row that sees nothing would not be a number
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=causal, **kwargs
    )


def _packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kwargs: dict[str, Any], options: dict[str, Any]
) -> torch.Tensor:
    """Attention of sequences that follow each other in tensors ``[1, total, heads, head_dim]``."""
    if q.shape[0] != 1:
        raise ValueError(f"cu_seq_lens_q is given for a batch of {q.shape[0]}; packed sequences are a batch of 1")
    bounds = {}
    for name, x, given in (("max_seqlen_q", q, "max_length_q"), ("max_seqlen_k", k, "max_length_k")):
        bound = kwargs.get(given)
        # Of a bound that is on the device the host knows only this.
        bounds[name] = bound if isinstance(bound, int) else x.shape[1]
    starts_q = kwargs["cu_seq_lens_q"].int()
    starts_k = kwargs.get("cu_seq_lens_k")
    starts_k = starts_q if starts_k is None else starts_k.int()
    q, k, v = (x.squeeze(0) for x in (q, k, v))
    return forward(q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, **bounds, **options)[0].unsqueeze(0)


def _unserved(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
) -> str | None:
    """Why ``sdpa`` must compute it; None if FlashCore does."""
    if attention_mask is not None:
        return _MASK_OF_COMPILED if torch.compiler.is_compiling() else "a mask is needed"
    if dropout != 0.0:
        return "dropout is not 0"
    return unserved(query, value)


def _bottom_right(
    query: torch.Tensor, key: torch.Tensor, causal: bool, window: tuple[int, int], keys_in_use: torch.Tensor | None
) -> torch.Tensor:
    """The mask that None, or the keys in use, stand for: bool ``[1 or batch, 1, seq_q, seq_kv]``."""
    seq_q, seq_kv = query.shape[2], key.shape[2]
    in_use = seq_kv if keys_in_use is None else keys_in_use
    rows = torch.arange(seq_q, device=query.device)[None, None, :, None] + in_use - seq_q
    keys = torch.arange(seq_kv, device=query.device)
    left, right = window
    visible = keys <= rows + (0 if causal else right)
    if left >= 0:
        visible &= keys >= rows - left
    return visible
