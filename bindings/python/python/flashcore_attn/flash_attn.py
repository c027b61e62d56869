"""FlashAttention-2's interface: the functions of the package ``flash_attn``.

    >>> from flashcore_attn.flash_attn import flash_attn_func
    >>> out = flash_attn_func(q, k, v, 0.0, causal=True)  # the fourth argument is dropout_p

Signatures are FlashAttention-2's. What is computed is what `flashcore_attn.flash_attn_interface` computes, FlashAttention-3's
interface, which documents arguments, results and errors. Different here:

- `dropout_p` must be 0: dropout raises `NotImplementedError`, as other arguments do that are not served.
- `return_attn_probs` returns ``(out, softmax_lse, S_dmask)``; the last, which FlashAttention-2 has for dropout, is empty.
- `alibi_slopes` is float32 ``[heads]`` or ``[batch, heads]``. There are no gradients then.
- `block_table` is what FlashAttention-3 calls `page_table`. There are no gradients then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _extras

try:
    import torch
except ModuleNotFoundError as error:
    raise _extras.missing(error, "torch") from error

from . import _names
from . import flash_attn_interface as _fa3

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _Rest = ParamSpec("_Rest")

Results = Any  # the output, or a tuple that begins with it


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Results:
    """Attention of q ``[batch, seq_q, heads, head_dim]``, k and v ``[batch, seq_kv, kv_heads, head_dim]``."""
    return _results(
        _fa3.flash_attn_func(
            q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
            softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic,
            return_attn_probs=return_attn_probs,
        )  # fmt: skip
    )


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Results:
    """Attention of packed sequences: q ``[total_q, heads, head_dim]``, k and v ``[total_k, kv_heads, head_dim]``.

    With `block_table` k and v are ``[pages, page_size, kv_heads, head_dim]``, and `cu_seqlens_k` says how many keys each
    sequence has.
    """
    return _results(
        _fa3.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=dropout_p,
            softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
            alibi_slopes=alibi_slopes, deterministic=deterministic, return_attn_probs=return_attn_probs,
            block_table=block_table,
        )  # fmt: skip
    )


def _of_kv(
    name: str, attend: Callable[Concatenate[torch.Tensor, torch.Tensor, torch.Tensor, _Rest], Results], shape: str
) -> Callable[Concatenate[torch.Tensor, torch.Tensor, _Rest], Results]:
    """`attend` of keys and values that share a tensor of this shape."""

    def function(q: torch.Tensor, kv: torch.Tensor, *rest: Any, **options: Any) -> Results:
        return attend(q, *_parts("kv", kv, shape), *rest, **options)

    return _described(function, name, attend, 3, shape)


def _of_qkv(
    name: str, attend: Callable[Concatenate[torch.Tensor, torch.Tensor, torch.Tensor, _Rest], Results], shape: str
) -> Callable[Concatenate[torch.Tensor, _Rest], Results]:
    """`attend` of queries, keys and values that share a tensor of this shape."""

    def function(qkv: torch.Tensor, *rest: Any, **options: Any) -> Results:
        return attend(*_parts("qkv", qkv, shape), *rest, **options)

    return _described(function, name, attend, 3, shape)


def _described(function: Any, name: str, attend: Any, replaced: int, shape: str) -> Any:
    """The function with this name. Its own parameters are in the place of so many of `attend`'s, and then come the others.

    It refuses arguments that do not fit as a function with these parameters does, `block_table` too.
    """
    own = [x for x in inspect.signature(function).parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
    others = list(inspect.signature(attend).parameters.values())[replaced:]
    shown = inspect.Signature([*own, *(x for x in others if x.name != "block_table")])
    most = len(shown.parameters)

    def check(given: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            shown.bind(*given, **options)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; its parameters are {', '.join(shown.parameters)}") from None

    def call(*given: Any, **options: Any) -> Results:
        if len(given) > most or "block_table" in options:
            check(given, options)
        if torch.compiler.is_compiling():
            return function(*given, **options)
        try:
            return function(*given, **options)
        except TypeError:
            check(given, options)  # which takes as long as some calls: only where it has something to say
            raise

    call.__signature__ = shown  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    packed = next(x.name for x in own if x.name.endswith("kv"))
    call.__doc__ = f"`{attend.__name__}` of a tensor `{packed}` ``{shape}``, whose parts are not copied."
    return call


flash_attn_kvpacked_func = _of_kv("flash_attn_kvpacked_func", flash_attn_func, "[batch, seq_kv, 2, kv_heads, head_dim]")
flash_attn_qkvpacked_func = _of_qkv("flash_attn_qkvpacked_func", flash_attn_func, "[batch, seq, 3, heads, head_dim]")
flash_attn_varlen_kvpacked_func = _of_kv(
    "flash_attn_varlen_kvpacked_func", flash_attn_varlen_func, "[total_k, 2, kv_heads, head_dim]"
)


@_names.rename(cu_seqlens_q="cu_seqlens", cu_seqlens_k="cu_seqlens", max_seqlen_q="max_seqlen", max_seqlen_k="max_seqlen")
def _of_packed_qkv(qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *rest: Any, **options: Any) -> Results:
    of_both = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*_parts("qkv", qkv, "[total, 3, heads, head_dim]"), *of_both, *rest, **options)


flash_attn_varlen_qkvpacked_func: Callable[Concatenate[torch.Tensor, torch.Tensor, int, ...], Results] = _described(
    _of_packed_qkv, "flash_attn_varlen_qkvpacked_func", flash_attn_varlen_func, 7, "[total, 3, heads, head_dim]"
)


@_names.rename(page_table="block_table")
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Results:
    """Attention of q ``[batch, seq_q, heads, head_dim]`` over a cache, to which k and v are written first if given.

    Returns
    -------
    out, or ``(out, softmax_lse)`` with `return_softmax_lse`
    """
    results = _fa3.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, page_table=block_table,
        softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
        rotary_interleaved=rotary_interleaved, alibi_slopes=alibi_slopes, num_splits=num_splits,
        return_softmax_lse=return_softmax_lse,
    )  # fmt: skip
    return results[:2] if return_softmax_lse else results


def _results(given: Any) -> Results:
    """With an empty tensor in the place of FlashAttention-2's mask of dropout, where more than the output is asked for."""
    return (*given, given[0].new_empty(0)) if isinstance(given, tuple) else given


def _parts(name: str, packed: Any, shape: str) -> tuple[torch.Tensor, ...]:
    """The tensors that share one of this shape, which are not copied."""
    _names.check_tensor(name, packed)
    count = len(name)
    sizes = shape.strip("[]").split(", ")
    place = sizes.index(str(count))
    if packed.dim() != len(sizes) or packed.shape[place] != count:
        raise ValueError(f"{name} has shape {tuple(packed.shape)}; it must be {shape}")
    return packed.unbind(place)
