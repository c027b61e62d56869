"""FlashCore on many GPUs: rules for PyTorch's DTensor, and its context parallelism.

    >>> import flashcore_attn.distributed
    >>> flashcore_attn.distributed.register()

Communication is PyTorch's: nothing here sends a byte. `register` tells DTensor how FlashCore's operators may be split,
so that the functions of `flashcore_attn.flash_attn_interface` take tensors that are split by heads (tensor parallelism) or by
batches.

``torch.distributed.tensor.experimental.context_parallel`` calls PyTorch's flash kernel for each piece of K and V. After
`flashcore_attn.torch.activate` that is FlashCore's, on CUDA devices also without `register`. On the CPU PyTorch has no
context parallelism; `register` adds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from . import _extras

try:
    import torch
except ModuleNotFoundError as error:
    raise _extras.missing(error, "torch") from error

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from . import _checks, _operators  # noqa: F401  (the latter registers the operators)

__all__ = ["register"]

# Dimensions of a tensor: of the batch, if it can be split by it, and of the heads.
_Split = tuple["int | None", int]
_BSHD, _BHSD, _BHS, _SHD, _HS, _BH = (0, 2), (0, 1), (0, 1), (None, 1), (None, 0), (0, 1)

# For each operator: of its results, and of its tensors that have heads, which come first. Every device has the others.
_SPLITS: dict[str, tuple[Sequence[_Split], Sequence[_Split]]] = {
    "flashcore::fwd": ((_BSHD, _BHS), (_BSHD,) * 3),
    "flashcore::fwd of scales": ((_BSHD, _BHS), (*(_BSHD,) * 3, *(_BH,) * 3)),
    "flashcore::bwd": ((_BSHD,) * 3, (*(_BSHD,) * 5, _BHS)),
    "flashcore::fwd_lengths": ((_SHD, _HS), (_SHD,) * 3),
    "flashcore::bwd of packed rows": ((_SHD,) * 3, (*(_SHD,) * 5, _HS)),
    # PyTorch has rules for the operators that its scaled_dot_product_attention calls on CUDA devices only.
    "aten::_scaled_dot_product_flash_attention_for_cpu": ((_BHSD, _BHS), (_BHSD,) * 3),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": ((_BHSD,) * 3, (*(_BHSD,) * 5, _BHS)),
}
_SEQ = 2  # the dimension of tokens in context parallelism

_is_registered = False


def register() -> None:
    """Makes FlashCore's operators known to DTensor, and the CPU to PyTorch's context parallelism; once is enough.

    Heads are split where each device gets whole groups: the number of K/V heads is a multiple of the devices, or 1.
    What is split in another way, such as by tokens, PyTorch gathers first, so that every device computes all of it:
    ``redistribute`` it to one of these placements.
    """
    global _is_registered
    if _is_registered:
        return
    rules = {name: _rule(*splits, gradient="bwd" in name or "backward" in name) for name, splits in _SPLITS.items()}
    by = lambda kinds: lambda *arguments, **options: rules[kinds(*arguments)](*arguments, **options)
    rules["flashcore::fwd_lengths of a cache"] = _cache_rule
    kinds = {
        "flashcore::fwd": lambda *x: "flashcore::fwd of scales" if _checks.is_given(x[3]) else "flashcore::fwd",
        "flashcore::bwd": lambda *x: "flashcore::bwd of packed rows" if _checks.is_given(x[6]) else "flashcore::bwd",
        "flashcore::fwd_lengths": lambda *x: "flashcore::fwd_lengths" + ("" if _checks.is_given(x[5]) else " of a cache"),
    }
    for name in _SPLITS:
        if " of " not in name:
            register_sharding(_operator(name))(by(kinds[name]) if name in kinds else rules[name])
    _add_ring_of_the_cpu()
    _is_registered = True


def _operator(name: str) -> torch._ops.OpOverload:
    namespace, rest = name.split("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _rule(results: Sequence[_Split], tensors: Sequence[_Split], gradient: bool) -> Callable[..., Any]:
    """What DTensor may choose for one dimension of a mesh: placements of the results and of the arguments."""
    of_q = 1 if gradient else 0  # dout comes first
    of_kv = slice(2, 4) if gradient else slice(1, None)  # scales too
    has_batch = tensors[0][0] is not None

    def rule(*arguments: Any, **options: Any) -> list[Any]:
        q, k = arguments[of_q], arguments[of_q + 1]
        choices = [([Replicate()] * len(results), [Replicate()] * len(tensors))]
        if has_batch:
            choices.append(tuple([Shard(batch) for batch, _ in splits] for splits in (results, tensors)))
        q_heads, kv_heads = (x.shape[tensors[of_q][1]] for x in (q, k))
        of_results, of_tensors = ([Shard(heads) for _, heads in splits] for splits in (results, tensors))
        if kv_heads == 1 < q_heads:  # every device has it, and adds to its gradient
            of_tensors[of_kv] = [Replicate()] * len(of_tensors[of_kv])
            of_results[1:] = [Partial()] * 2 if gradient else of_results[1:]
        if kv_heads == 1 < q_heads or kv_heads % _devices(q, has_batch) == 0:
            choices.append((of_results, of_tensors))
        return [(to, _of_all(placed, arguments)) for to, placed in choices]

    return rule


def _cache_rule(q: Any, k: Any, v: Any, *arguments: Any) -> list[Any]:
    """`_rule` of ``flashcore::fwd_lengths`` over a cache, whose q may be packed; by heads only."""
    by_heads = [Shard(q.ndim - 2), Shard(0 if q.ndim == 3 else 1)]
    choices = [([Replicate()] * 2, [Replicate()] * 3)]
    if k.shape[2] == 1 < q.shape[-2]:
        choices.append((by_heads, [by_heads[0], Replicate(), Replicate()]))
    elif k.shape[2] % _devices(q, has_batch=False) == 0:
        choices.append((by_heads, [by_heads[0], Shard(2), Shard(2)]))
    return [(to, _of_all(placed, (q, k, v, *arguments))) for to, placed in choices]


def _of_all(placed: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Placements of all arguments from those of the first tensors: every device has the rest; None for numbers."""
    first = iter(placed)
    return [next(first, Replicate()) if hasattr(x, "placements") else None for x in arguments]


def _devices(q: Any, has_batch: bool) -> int:
    """How many devices may share the heads: those of the mesh's dimensions that do not share the batch."""
    by_batch = lambda n: has_batch and q.placements[n] == Shard(0) and q.shape[0] >= q.mesh.size()
    return math.prod(q.mesh.size(n) for n in range(q.mesh.ndim) if not by_batch(n))


def _add_ring_of_the_cpu() -> None:
    """Lets PyTorch's ring also call the flash kernel for CPU tensors."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as engine

    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    def ring(op: Any, args: Any, kwargs: Any) -> tuple[DTensor, ...]:
        names = [argument.name for argument in op._schema.arguments]
        given = {"dropout_p": 0.0, "is_causal": False, **dict(zip(names, args)), **kwargs}
        if given.pop("attn_mask", None) is not None:
            raise NotImplementedError("attn_mask is given: PyTorch's context parallelism serves causal and full masks")
        mesh, by_tokens = given["query"].device_mesh, (Shard(_SEQ),)
        for name, x in given.items():
            if isinstance(x, DTensor):
                if x.placements != by_tokens:
                    raise ValueError(f"{name} is placed {x.placements}; in context parallelism it must be {by_tokens}")
                given[name] = x._local_tensor
        if op is forward:
            results = engine._templated_ring_attention(mesh.get_group(), _SEQ, op, **given)
        else:
            given["grad_out_name"] = "grad_out"
            results = engine._templated_ring_attention_backward(mesh.get_group(), _SEQ, op, **given)
        return tuple(DTensor.from_local(x, mesh, by_tokens, run_check=False) for x in results)

    engine.custom_ops[forward] = engine.custom_ops[backward] = ring
