"""Kernels without sums: each element by itself, or moved."""

import numpy as np
import triton
import triton.language as tl
from cases import case, cdiv, f64, uniform, whole
from flashcore_attn import Uninit


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask) + tl.load(y + at, mask), mask)


x, y = uniform(1, 1000), uniform(2, 1000)
case(
    vector_add, lambda c: cdiv(1000, c["BLOCK"]), [x, y, Uninit(1000), 1000], {2: f64(x) + f64(y)},
    [{"BLOCK": 256}, {"BLOCK": 1024, "num_warps": 8}],
)  # fmt: skip


@triton.jit
def silu_mul(gate, up, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    g = tl.load(gate + at, mask, 0.0).to(tl.float32)
    tl.store(out + at, (g * tl.sigmoid(g) * tl.load(up + at, mask, 0.0)).to(tl.float16), mask)


g, u = uniform(3, 777, dtype=np.float16), uniform(4, 777, dtype=np.float16)
case(
    silu_mul, lambda c: cdiv(777, c["BLOCK"]), [g, u, Uninit(777, "float16"), 777],
    {2: f64(g) / (1 + np.exp(-f64(g))) * f64(u)}, [{"BLOCK": 128, "num_warps": 2}, {"BLOCK": 512}], rtol=1e-3, atol=1e-4,
)  # fmt: skip


@triton.jit
def transpose(x, out, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + row[:, None] * columns + column[None, :], (row < rows)[:, None] & (column < columns)[None, :])
    tl.store(out + column[:, None] * rows + row[None, :], tile.trans(), (column < columns)[:, None] & (row < rows)[None, :])


x = uniform(5, 50, 70)
case(
    transpose, lambda c: (cdiv(50, c["BLOCK"]), cdiv(70, c["BLOCK"])), [x, Uninit((70, 50)), 50, 70], {1: f64(x).T},
    [{"BLOCK": 32}, {"BLOCK": 64, "num_warps": 8}], rtol=0, atol=0,
)  # fmt: skip


@triton.jit
def rotary(x, cos, sin, out, heads, HALF: tl.constexpr, HEADS: tl.constexpr):
    position = tl.program_id(0)
    head, at = tl.arange(0, HEADS), tl.arange(0, HALF)
    base = (position * heads + head[:, None]) * 2 * HALF + at[None, :]
    mask = (head < heads)[:, None] & (at < HALF)[None, :]
    c, s = tl.load(cos + position * HALF + at)[None, :], tl.load(sin + position * HALF + at)[None, :]
    low, high = tl.load(x + base, mask, 0.0).to(tl.float32), tl.load(x + base + HALF, mask, 0.0).to(tl.float32)
    tl.store(out + base, (low * c - high * s).to(x.dtype.element_ty), mask)
    tl.store(out + base + HALF, (high * c + low * s).to(x.dtype.element_ty), mask)


x, angle = uniform(6, 5, 6, 64, dtype=np.float16), uniform(7, 5, 32)
cos, sin = np.cos(angle), np.sin(angle)
low, high = f64(x)[..., :32], f64(x)[..., 32:]
turned = np.concatenate(
    [low * f64(cos)[:, None] - high * f64(sin)[:, None], high * f64(cos)[:, None] + low * f64(sin)[:, None]], -1
)
case(
    rotary, 5, [x, cos, sin, Uninit((5, 6, 64), "float16"), 6], {3: turned},
    [{"HALF": 32, "HEADS": 8}, {"HALF": 32, "HEADS": 16, "num_warps": 2}], rtol=1e-3, atol=1e-3,
)  # fmt: skip


@triton.jit
def embedding(table, ids, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < columns
    tl.store(out + row * columns + at, tl.load(table + tl.load(ids + row) * columns + at, mask), mask)


table, ids = uniform(8, 40, 100), whole(9, 0, 40, 12, dtype=np.int64)
case(
    embedding, 12, [table, ids, Uninit((12, 100)), 100], {2: f64(table)[ids]},
    [{"BLOCK": 128}, {"BLOCK": 256, "num_warps": 1}], rtol=0, atol=0,
)  # fmt: skip


@triton.jit
def adam_step(p, g, m, v, rate, b1, b2, eps, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    grad = tl.load(g + at, mask, 0.0)
    mean = b1 * tl.load(m + at, mask, 0.0) + (1 - b1) * grad
    square = b2 * tl.load(v + at, mask, 0.0) + (1 - b2) * grad * grad
    tl.store(p + at, tl.load(p + at, mask, 0.0) - rate * mean / (tl.sqrt(square) + eps), mask)
    tl.store(m + at, mean, mask)
    tl.store(v + at, square, mask)


p, g, m, v = (uniform(10 + i, 500) for i in range(4))
v = np.abs(v)
mean, square = 0.9 * f64(m) + 0.1 * f64(g), 0.99 * f64(v) + 0.01 * f64(g) ** 2
case(
    adam_step, lambda c: cdiv(500, c["BLOCK"]), [p, g, m, v, 0.01, 0.9, 0.99, 1e-3, 500],
    {0: f64(p) - 0.01 * mean / (np.sqrt(square) + 1e-3), 2: mean, 3: square},
    [{"BLOCK": 128}, {"BLOCK": 512, "num_warps": 8}],
)  # fmt: skip


@triton.jit
def depthwise_conv(x, weight, out, length, channels, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    position, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channel < channels
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        at = position + tap - TAPS + 1
        taken = tl.load(x + at * channels + channel, mask & (at >= 0), 0.0)
        total += taken * tl.load(weight + tap * channels + channel, mask, 0.0)
    tl.store(out + position * channels + channel, total, mask)


x, w = uniform(14, 9, 80), uniform(15, 4, 80)
padded = np.concatenate([np.zeros((3, 80)), f64(x)])
case(
    depthwise_conv, lambda c: (9, cdiv(80, c["BLOCK"])), [x, w, Uninit((9, 80)), 9, 80],
    {2: sum(padded[tap : tap + 9] * f64(w)[tap] for tap in range(4))},
    [{"TAPS": 4, "BLOCK": 32, "num_warps": 1}, {"TAPS": 4, "BLOCK": 128}],
)  # fmt: skip
