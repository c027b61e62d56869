"""New rows of K and V into a cache, with the rotary embedding of K and Q: PyTorch's operator ``flashcore::append_kv``.

It is one launch of a kernel of FlashCore. All values of lengths stay on the device: nothing here waits for it, and a
CUDA graph can capture all of it.
"""

from __future__ import annotations

import torch

from . import _checks, _derivatives, _names, _operators  # noqa: F401  (the last registers the operator)

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
    if not torch.compiler.is_compiling():
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            if cache.is_neg():  # PyTorch ends the process where an operator writes one: 2.11 in some calls of many
                raise NotImplementedError(f"{name} is a lazily negated view, which is not written: give {name}.resolve_neg()")
    none = cache_seqlens.new_empty(0)
    given = lambda x: none if x is None else x.contiguous()
    seqused_k, q_out = cache_seqlens.new_empty(cache_seqlens.shape), q
    rotary = (none, none, none, cache_seqlens.new_empty(0), none, none)
    if rotary_cos is not None or rotary_sin is not None:
        if rotary_cos is None or rotary_sin is None:
            raise ValueError(f"rotary_{'cos' if rotary_cos is None else 'sin'} is not given, but the other table is")
        cos, sin = rotary_cos.contiguous(), rotary_sin.contiguous()
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

