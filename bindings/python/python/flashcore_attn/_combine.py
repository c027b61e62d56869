"""FlashAttention-3's function `flash_attn_combine`."""

from __future__ import annotations

import torch


def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges attention over parts of the keys. PyTorch's operations compute it, in float32.

    Parameters
    ----------
    out_partial : float32 Tensor ``[parts, batch, seq, heads, head_dim]``
        What is in a row whose log-sum-exp is -inf does not matter.
    lse_partial : float32 Tensor ``[parts, batch, seq, heads]``
    out : Tensor ``[batch, seq, heads, head_dim]``, optional
        Written, if it is given.
    out_dtype : torch.dtype, optional
        Of the output; that of `out`, or else of `out_partial`, unless given.

    Returns
    -------
    out : Tensor ``[batch, seq, heads, head_dim]``
    softmax_lse : float32 Tensor ``[batch, seq, heads]``
    """
    for name, given in (("out_partial", out_partial), ("lse_partial", lse_partial), ("out", out)):
        if not isinstance(given, torch.Tensor) and (given is not None or name != "out"):
            raise TypeError(f"{name} is a {type(given).__name__}; it must be a tensor")
    for name, given in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        if given.dtype != torch.float32:
            raise TypeError(f"{name} holds {given.dtype}; it must be float32")
    if out_partial.shape[:-1] != lse_partial.shape:
        raise ValueError(
            f"lse_partial has shape {tuple(lse_partial.shape)}; for this out_partial it must be "
            f"{tuple(out_partial.shape[:-1])}"
        )
    for name, dtype in (("out", None if out is None else out.dtype), ("out_dtype", out_dtype)):
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(f"{name} is {dtype!r}; it must be a torch.dtype")
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"{name} {'holds' if name == 'out' else 'is'} {dtype}; it must be a floating-point dtype")
    empty = lse_partial == float("-inf")
    no_part = empty.all(0)  # such a row has a weight of 0; its gradients are numbers
    lse = torch.logsumexp(lse_partial.masked_fill(no_part, 0.0), dim=0)
    weight = torch.exp(lse_partial - lse).unsqueeze(-1)
    merged = (weight * torch.where(empty.unsqueeze(-1), 0.0, out_partial)).sum(0)
    lse = lse.masked_fill(no_part, float("-inf"))
    if out is None:
        return merged.to(out_partial.dtype if out_dtype is None else out_dtype), lse
    if out.shape != merged.shape or (out_dtype is not None and out.dtype != out_dtype):
        raise ValueError(
            f"out holds {out.dtype} of shape {tuple(out.shape)}; it must hold {out_dtype or out.dtype} of shape "
            f"{tuple(merged.shape)}"
        )
    return out.copy_(merged), lse
