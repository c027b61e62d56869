"""PyTorch's operators ``flashcore::fwd`` and ``flashcore::fwd.scaled``, and `forward`, which calls them.

Schemas and kernels are registered by the compiled half (``src/operators.rs``), so that a call does not come back to
Python. Shapes for tracing and the answer to autograd are here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import torch

from . import _native


def _register() -> None:
    folder = Path(torch.__file__).parent / "lib"
    file_name = {"darwin": "lib{}.dylib", "win32": "{}.dll"}.get(sys.platform, "lib{}.so").format
    cuda = folder / file_name("torch_cuda")
    _native.register_operators(str(folder / file_name("torch_cpu")), str(cuda) if cuda.exists() else None)


def _empty_results(q: torch.Tensor, v: torch.Tensor, out_bhsd: bool) -> tuple[torch.Tensor, torch.Tensor]:
    batch, seq, heads, _ = q.shape
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    if out_bhsd:
        out = q.new_empty((batch, heads, seq, v.shape[3]), dtype=dtype).transpose(1, 2)
    else:
        out = q.new_empty((batch, seq, heads, v.shape[3]), dtype=dtype)
    return out, q.new_empty((batch, heads, seq), dtype=torch.float32)


def _no_backward(ctx: Any, *grads: torch.Tensor) -> NoReturn:
    raise NotImplementedError(
        "flashcore::fwd has no backward pass: gradients of q, k and v cannot be computed. Call it under "
        "torch.no_grad(), or train with PyTorch's scaled_dot_product_attention"
    )


_register()
torch.library.register_fake(
    "flashcore::fwd",
    lambda q, k, v, softmax_scale, causal, window_left, window_right, softcap, out_bhsd: _empty_results(q, v, out_bhsd),
)
torch.library.register_fake(
    "flashcore::fwd.scaled",
    lambda q, k, v, q_scale, k_scale, v_scale, softmax_scale, causal, window_left, window_right, softcap, out_bhsd: (
        _empty_results(q, v, out_bhsd)
    ),
)
for _name in ("flashcore::fwd", "flashcore::fwd.scaled"):
    torch.library.register_autograd(_name, _no_backward)

_fwd = torch.ops.flashcore.fwd.default
_fwd_scaled = torch.ops.flashcore.fwd.scaled


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

    Returns
    -------
    out : ``[batch, seq, heads, head_dim_v]``, of q's dtype (bfloat16 for float8_e4m3fn)
    lse : float32 ``[batch, heads, seq]``, natural logarithm
    """
    if softmax_scale is None:
        softmax_scale = q.shape[-1] ** -0.5
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    options = (softmax_scale, causal, window[0], window[1], softcap, out_bhsd)
    if q.dtype != torch.float8_e4m3fn:
        for name, scale in zip(("q_descale", "k_descale", "v_descale"), scales):
            if scale is not None:
                raise ValueError(f"{name} was given, but q holds {q.dtype}; only float8_e4m3fn has scales")
        return _fwd(q, k, v, *options)
    shape = (k.shape[0], k.shape[2])
    given = (q.new_ones(shape, dtype=torch.float32) if x is None else x.contiguous() for x in scales)
    return _fwd_scaled(q, k, v, *given, *options)
