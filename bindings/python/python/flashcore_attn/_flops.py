"""Counts of operations for PyTorch's `FlopCounterMode`, as it counts its own attention: masks are not considered."""

from __future__ import annotations

from typing import Any

from torch.utils import flop_counter


def register(operators: Any) -> None:
    """Gives the operators of equal lengths their formulas."""
    for packet, formula in ((operators.fwd, _forward), (operators.bwd, _backward)):
        if packet not in flop_counter.flop_registry:
            flop_counter.register_flop_formula(packet)(formula)


def _heads_first(shape: Any) -> tuple[int, ...]:
    batch, seq, heads, head_dim = shape
    return batch, heads, seq, head_dim


def _as_many(q: Any, *others: Any) -> tuple[Any, ...]:
    """Shapes ``[batch, heads, seq, head_dim]`` with the heads of q, as PyTorch 2.11 counts them."""
    return q, *((batch, q[1], *rest) for batch, _, *rest in others)


def _forward(q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    layout = options.get("layout", rest[10] if len(rest) > 10 else 0)  # after five tensors and five numbers
    shapes = (q, k, v) if layout & 1 else tuple(map(_heads_first, (q, k, v)))
    return flop_counter.sdpa_flop_count(*_as_many(*shapes))


def _backward(dout: Any, q: Any, k: Any, v: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return flop_counter.sdpa_backward_flop_count(*_as_many(*map(_heads_first, (dout, q, k, v))))
