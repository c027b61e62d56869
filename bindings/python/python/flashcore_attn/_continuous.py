"""Continuous batching of Transformers, `generate_batch`, whose caches are paged.

Transformers packs the queries of all requests. Their keys are gathered from the pages, or where a step has a query of
each request and no layer a sliding window, they are read where they are, by a table of pages.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from . import _append, flash_attn_interface
from ._operators import forward

_PREFIX = "paged|"


def admit(name: str, attention: Callable[..., Any]) -> None:
    """Makes continuous batching take the attention implementation `name`, as one that needs no masks.

    It takes some names, and those with ``flash`` in them, for which it loads a library. There is no list to add to: the
    question in its modules is answered for this name, too. Elsewhere Transformers asks as before.
    """
    names = (name, _PREFIX + name)
    for module_name in ("continuous_api", "initialization", "cache"):
        try:
            module = importlib.import_module(f"transformers.generation.continuous_batching.{module_name}")
        except ImportError:  # this version has none, or another one
            continue
        asks: Any = getattr(module, "is_flash_attention_requested", None)
        if asks is not None and not hasattr(asks, "flashcore"):
            module.is_flash_attention_requested = _answering(asks, names)  # type: ignore[attr-defined]
        for loads, functions in (
            ("lazy_import_flash_attention", lambda *of_flash: ((*of_flash, None, None), (None, None))),
            ("lazy_import_paged_flash_attention", lambda func, varlen, kvcache: (varlen, kvcache)),
        ):
            load: Any = getattr(module, loads, None)
            if load is not None and not hasattr(load, "flashcore"):
                setattr(module, loads, _loading(load, names, functions))
                if loads == "lazy_import_paged_flash_attention":  # this version asks for another name
                    from transformers import AttentionInterface

                    AttentionInterface.register(_PREFIX + name, attention)


def _answering(asks: Callable[..., bool], names: tuple[str, ...]) -> Callable[..., bool]:
    def is_flash_attention_requested(
        config: Any = None, requested_attention_implementation: str | None = None, *more: Any, **others: Any
    ) -> bool:
        asked = requested_attention_implementation if config is None else config._attn_implementation
        return asked in names or asks(config, requested_attention_implementation, *more, **others)

    is_flash_attention_requested.flashcore = True  # type: ignore[attr-defined]
    return is_flash_attention_requested


def _loading(load: Callable[..., Any], names: tuple[str, ...], functions: Callable[..., Any]) -> Callable[..., Any]:
    def lazy_import(implementation: str | None, *rest: Any, **options: Any) -> Any:
        if implementation not in names:
            return load(implementation, *rest, **options)
        ours = flash_attn_interface
        return functions(ours.flash_attn_func, ours.flash_attn_varlen_func, ours.flash_attn_with_kvcache)

    lazy_import.flashcore = True  # type: ignore[attr-defined]
    return lazy_import


def of_paged(
    module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Keys, values and keywords as newer versions have them, for those where attention itself updates the cache."""
    kwargs = dict(kwargs)
    cache, layer = kwargs.pop("cache"), module.layer_idx
    kind = "sliding_attention" if getattr(module, "sliding_window", None) else "full_attention"
    for name, of_kinds in (("cu_seq_lens_k", "cu_seq_lens_k"), ("max_length_k", "max_seqlen_k")):
        given = kwargs.pop(of_kinds)
        kwargs[name] = given[kind] if isinstance(given, dict) else given
    kwargs["max_length_q"] = kwargs.pop("max_seqlen_q")
    read_index, write_index, table = (kwargs.pop(name, None) for name in ("read_index", "write_index", "block_table"))
    if table is None:
        key, value = cache.update(
            key_states=key, value_states=value, layer_idx=layer, read_index=read_index, write_index=write_index
        )
        return key.transpose(0, 1).unsqueeze(0), value.transpose(0, 1).unsqueeze(0), kwargs
    group, layer_of_group = cache.layer_index_to_group_indices[layer]
    pages = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
    kwargs["block_table"] = table[group]
    kwargs["k_cache"] = cache.key_cache[layer_of_group].view(pages)
    kwargs["v_cache"] = cache.value_cache[layer_of_group].view(pages)
    return key, value, kwargs


def step(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, kwargs: dict[str, Any], options: dict[str, Any]
) -> torch.Tensor:
    """A query and a new key of each request, ``[1, heads, requests, head_dim]``: writes the key to the pages first.

    Requests that fill the batch up have no keys, and pages -1: nothing is written for them, and their output is 0.
    """
    q, k, v = (x.permute(2, 0, 1, 3) for x in (query, key, value))
    k_cache, v_cache, table = kwargs["k_cache"], kwargs["v_cache"], kwargs["block_table"]
    requests = q.shape[0]
    starts = kwargs["cu_seq_lens_k"][: requests + 1].int()
    lengths = starts[1:] - starts[:-1]
    table = table[:requests].int()
    _append.append(q, k_cache, v_cache, k, v, cache_seqlens=(lengths - 1).clamp_(min=0), page_table=table)
    keys = table.shape[1] * k_cache.shape[1]
    out, _ = forward(
        q, k_cache, v_cache, seqused_k=lengths, max_seqlen_k=keys, block_table=table.contiguous(), **options
    )
    return out.transpose(0, 1)
