"""Scans, sorting and atomic operations."""

import numpy as np
import triton
import triton.language as tl
from cases import case, cdiv, f64, uniform, whole
from flashcore_attn import Uninit

ROWS, COLUMNS = 3, 256
x = uniform(1, ROWS, COLUMNS)
BOTH = [{"BLOCK": 256}, {"BLOCK": 256, "num_warps": 8}]


@triton.jit
def cumulative_sum(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row * columns + at, tl.cumsum(tl.load(x + row * columns + at, at < columns, 0.0), 0), at < columns)


case(
    cumulative_sum, ROWS, [x, Uninit((ROWS, COLUMNS)), COLUMNS], {1: f64(x).cumsum(1)}, BOTH, rtol=1e-4, atol=1e-4
)


@triton.jit
def after(gate_a, value_a, gate_b, value_b):
    return gate_a * gate_b, value_a * gate_b + value_b


@triton.jit
def linear_recurrence(gates, x, out, columns, BLOCK: tl.constexpr):
    """h = gate·h + x along a row, chunk by chunk."""
    row, state = tl.program_id(0), 0.0
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        gate, value = tl.load(gates + row * columns + at), tl.load(x + row * columns + at)
        product, sums = tl.associative_scan((gate, value), 0, after)
        states = sums + product * state
        tl.store(out + row * columns + at, states)
        state = tl.sum(tl.where(tl.arange(0, BLOCK) == BLOCK - 1, states, 0.0), 0)


gates = np.abs(uniform(2, ROWS, COLUMNS))
states = np.zeros((ROWS, COLUMNS))
for column in range(COLUMNS):
    states[:, column] = f64(gates)[:, column] * (states[:, column - 1] if column else 0) + f64(x)[:, column]
case(
    linear_recurrence, ROWS, [gates, x, Uninit((ROWS, COLUMNS)), COLUMNS], {2: states},
    [{"BLOCK": 64}, {"BLOCK": 128, "num_warps": 2}], rtol=1e-4,
)  # fmt: skip


@triton.jit
def sort_rows(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at)))


case(sort_rows, ROWS, [x, Uninit((ROWS, COLUMNS))], {1: np.sort(f64(x), 1)}, BOTH, rtol=0, atol=0)


@triton.jit
def histogram_block(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + at, at < n, 0), BINS, at < n)
    tl.atomic_add(out + tl.arange(0, BINS), counts)


drawn = whole(3, 0, 32, 900)
case(
    histogram_block, lambda c: cdiv(900, c["BLOCK"]), [drawn, np.zeros(32, np.int32), 900],
    {1: np.bincount(drawn, minlength=32)}, [{"BINS": 32, "BLOCK": 256}, {"BINS": 32, "BLOCK": 512, "num_warps": 8}],
)  # fmt: skip


@triton.jit
def scatter_add(values, places, out, n, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    to = out + tl.load(places + row) * columns + at
    tl.atomic_add(to, tl.load(values + row * columns + at, at < columns, 0.0), at < columns, sem="relaxed")


values, places = uniform(4, 20, 100), whole(5, 0, 6, 20)
added = np.zeros((6, 100))
np.add.at(added, places, f64(values))
case(
    scatter_add, 20, [values, places, np.zeros((6, 100), np.float32), 20, 100], {2: added},
    [{"BLOCK": 128}, {"BLOCK": 256, "num_warps": 2}],
)  # fmt: skip


@triton.jit
def atomic_extremes(x, top, bottom, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, at < n, 0)
    tl.atomic_max(top, tl.max(tl.where(at < n, values, -(2**31)), 0))
    tl.atomic_min(bottom, tl.min(tl.where(at < n, values, 2**31 - 1), 0))


numbers = whole(6, -1000, 1000, 700)
case(
    atomic_extremes, lambda c: cdiv(700, c["BLOCK"]),
    [numbers, np.full(1, -(2**31), np.int32), np.full(1, 2**31 - 1, np.int32), 700],
    {1: numbers.max(keepdims=True), 2: numbers.min(keepdims=True)}, [{"BLOCK": 128}, {"BLOCK": 256, "num_warps": 8}],
)  # fmt: skip


@triton.jit
def last_block_sum(x, parts, count, out, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The block that comes last adds the sums of all."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(parts + tl.program_id(0), tl.sum(tl.load(x + at, at < n, 0.0), 0))
    tl.debug_barrier()
    if tl.atomic_add(count, 1) == tl.num_programs(0) - 1:
        place = tl.arange(0, PARTS)
        tl.store(out, tl.sum(tl.load(parts + place, place < tl.num_programs(0), 0.0), 0))


numbers = uniform(7, 1000)
case(
    last_block_sum, lambda c: cdiv(1000, c["BLOCK"]), [numbers, Uninit(8), np.zeros(1, np.int32), Uninit(1), 1000],
    {3: f64(numbers).sum(keepdims=True)}, [{"PARTS": 8, "BLOCK": 128}, {"PARTS": 4, "BLOCK": 256, "num_warps": 8}],
    rtol=1e-4, atol=1e-4,
)  # fmt: skip
