"""PyTorch's operators with arguments by name; a tensor that is not given is an empty one."""

import torch
from flashcore_attn import _native, _operators  # noqa: F401  (registers them)

OPERATORS = _native.operators()
BHSD, SCALES = _operators.GIVEN_BHSD, ("q_scale", "k_scale", "v_scale")


def arguments(name, *tensors, numbers=(), **named):
    """The arguments in the schema's order: first tensors, then those by name, and the same of numbers."""
    names, of_numbers = OPERATORS[name]
    none = torch.empty(0, dtype=torch.int32, device=tensors[0].device if tensors else "cpu")
    given = (*tensors, *(named.pop(other, none) for other in names[len(tensors) :]))
    defaults = {x.name: x.default_value for x in operator(name)._schema.arguments}
    numbers = (*numbers, *(named.pop(other, defaults[other]) for other in of_numbers[len(numbers) :]))
    assert not named, named
    return (*given, *numbers)


def operator(name):
    return getattr(torch.ops.flashcore, name).default


def call(name, *tensors, **named):
    return operator(name)(*arguments(name, *tensors, **named))
