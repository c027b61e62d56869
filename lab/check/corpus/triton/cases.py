"""What the kernels of this folder run on: a launch, its arguments, and what float64 says that it leaves."""

import dataclasses
import typing

import numpy as np

CASES = []


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel with one of its configurations."""

    name: str
    kernel: typing.Any
    grid: typing.Any
    args: typing.Sequence
    expected: typing.Mapping[int, np.ndarray]
    """By place in `args`."""
    constexprs: typing.Mapping
    options: typing.Mapping
    rtol: float
    atol: float


def case(kernel, grid, args, expected, configs, rtol=1e-5, atol=1e-5):
    """Adds a case for each of `configs`: dictionaries of constexprs, and options such as `num_warps`. `grid` may be a
    function of one."""
    options = {"num_warps", "num_stages", "maxnreg"}
    for number, config in enumerate(configs):
        CASES.append(
            Case(
                name=f"{kernel.__name__}-{number}",
                kernel=kernel,
                grid=grid(config) if callable(grid) else grid,
                args=args,
                expected=expected,
                constexprs={name: value for name, value in config.items() if name not in options},
                options={name: value for name, value in config.items() if name in options},
                rtol=rtol,
                atol=atol,
            )
        )


def uniform(seed, *shape, dtype=np.float32):
    """Numbers from -1 to 1."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def whole(seed, low, end, *shape, dtype=np.int32):
    """Whole numbers from `low`, below `end`."""
    return np.random.default_rng(seed).integers(low, end, shape).astype(dtype)


def f64(x):
    return np.asarray(x, dtype=np.float64)


def cdiv(a, b):
    return -(-a // b)
