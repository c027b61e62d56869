"""New rows of K and V into a cache, with the rotary embedding of K and Q: PyTorch's operator ``flashcore::append_kv``.

It is one launch of a kernel of FlashCore. All values of lengths stay on the device: nothing here waits for it, and a
CUDA graph can capture all of it.
"""

from __future__ import annotations

import torch

from . import _checks, _derivatives, _names, _operators  # noqa: F401  (the last registers the operator)

__all__ = ["append"]

_append_kv = torch.ops.flashcore.append_kv.default


@_names.rename(k="k_new", v="v_new")
def append(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    *,
    cache_seqlens: torch.Tensor,
    cu_seqlens_k_new: torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    seqlens_rotary: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    interleaved: bool = True,
    q_at_one_position: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes k and v into the cache behind `cache_seqlens` rows; arguments are those of `flash_attn_with_kvcache`.

    Rows past the capacity or on no page are not written on a GPU, and an error on the CPU.

    Returns
    -------
    q : rotated, if there are tables. Rows of no sequence hold anything then.
    seqused_k : int32 ``[batch]``
        Rows that each sequence has then, its padding included.
    """
    if k is None or v is None:
        raise ValueError(f"{'k' if k is None else 'v'} is not given, but the other of k and v is")
    if not torch.compiler.is_compiling() and v_cache.is_neg():  # PyTorch would end the process
        raise NotImplementedError("v_cache is a lazily negated view, which is not written: give v_cache.resolve_neg()")
    _check_rows("k", k, k_cache, k.shape[:-2], cache_seqlens, cu_seqlens_k_new)
    _check_rows("v", v, v_cache, k.shape[:-2], cache_seqlens, cu_seqlens_k_new)
    none = cache_seqlens.new_empty(0)
    given = lambda x: none if x is None else x.contiguous()
    seqused_k, q_out = cache_seqlens.new_empty(cache_seqlens.shape), q
    rotary = (none, none, none, cache_seqlens.new_empty(0), none, none)
    if rotary_cos is not None or rotary_sin is not None:
        capacity = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
        cos, sin = _tables(rotary_cos, rotary_sin, q, capacity)
        _checks.one_each(cache_seqlens.numel(), seqlens_rotary=seqlens_rotary)
        q = q if q.stride(-1) == 1 else q.contiguous()
        q_out = torch.empty_like(q)
        rotary = (cos.detach(), sin.detach(), q.detach(), q_out, given(cu_seqlens_q), given(seqlens_rotary))
    _derivatives.refuse_tangents((q, k, v, rotary_cos, rotary_sin))
    tables = () if rotary_cos is None or rotary_sin is None else (rotary_cos, rotary_sin)
    recorded = [x for x in (q, k, v, *tables) if x.requires_grad] if torch.is_grad_enabled() else []
    if recorded and not torch.compiler.is_compiling():
        of = torch._C._functorch
        if not q_out.requires_grad or any(
            of.is_gradtrackingtensor(x) or of.is_batchedtensor(x) for x in (q, k, v, *tables)
        ):
            _derivatives.refuse_transforms()
        if not q_out.requires_grad:
            q_out = q_out.detach().requires_grad_()  # so that the operator of attention refuses to compute gradients
    k, v = (x.detach() if x.stride(-1) == 1 else x.detach().contiguous() for x in (k, v))
    _append_kv(
        k_cache, v_cache, k, v, cache_seqlens.contiguous(), given(cu_seqlens_k_new), given(cache_batch_idx),
        given(page_table), seqused_k, *rotary, interleaved, q_at_one_position,
    )  # fmt: skip
    if not torch.compiler.is_compiling():  # PyTorch then notices a cache that a backward pass needs as it was
        torch._C._increment_version([x for x in (k_cache, v_cache) if not x.is_inference()])
    elif recorded:  # a sum of nothing that requires a gradient: the operator of attention refuses, too
        q_out = q_out + sum(x[..., :0].sum() for x in recorded).to(q_out.dtype)  # type: ignore[union-attr]
    return q_out, seqused_k


def _check_rows(
    name: str,
    new: torch.Tensor,
    cache: torch.Tensor,
    rows: torch.Size,
    cache_seqlens: torch.Tensor,
    starts: torch.Tensor | None,
) -> None:
    dims, shape = (3, rows) if starts is not None else (4, (cache_seqlens.shape[0], *rows[1:]))
    if new.dim() != dims:
        raise ValueError(f"{name} has shape {tuple(new.shape)}; it must have {dims} dimensions")
    if new.shape[:-2] != shape:
        raise ValueError(f"{name} has shape {tuple(new.shape)}; its rows must be {tuple(shape)}")
    if new.shape[-2:] != cache.shape[2:] or new.dtype != cache.dtype:
        raise ValueError(
            f"{name} holds {new.dtype} of shape {tuple(new.shape)}; for this cache it must hold {cache.dtype} with "
            f"kv_heads and head_dim {tuple(cache.shape[2:])}"
        )


def _tables(
    cos: torch.Tensor | None, sin: torch.Tensor | None, q: torch.Tensor, capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    if cos is None or sin is None:
        raise ValueError(f"rotary_{'cos' if cos is None else 'sin'} is not given, but the other table is")
    if cos.shape != sin.shape or cos.dim() != 2 or 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(
            f"rotary_cos has shape {tuple(cos.shape)} and rotary_sin {tuple(sin.shape)}; both must be [positions, "
            f"rotary_dim / 2], with a rotary_dim of at most {q.shape[-1]}"
        )
    if cos.shape[0] < capacity:
        raise ValueError(f"rotary_cos has {cos.shape[0]} positions; the cache has room for {capacity} keys")
    return cos.contiguous(), sin.contiguous()
