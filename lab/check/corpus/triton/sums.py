"""Reductions over rows and columns."""

import numpy as np
import triton
import triton.language as tl
from cases import case, cdiv, f64, uniform, whole
from flashcore_attn import Uninit

ROWS, COLUMNS = 7, 200
x, w, b, dy = uniform(1, ROWS, COLUMNS), uniform(2, COLUMNS), uniform(3, COLUMNS), uniform(4, ROWS, COLUMNS)
BOTH = [{"BLOCK": 256}, {"BLOCK": 256, "num_warps": 8}]


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * columns + at, mask, -float("inf"))
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, 0), mask)


powers = np.exp(f64(x))
case(softmax, ROWS, [x, Uninit((ROWS, COLUMNS)), COLUMNS], {1: powers / powers.sum(1, keepdims=True)}, BOTH)


@triton.jit
def layer_norm(x, weight, bias, out, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * columns + at, mask, 0.0)
    middle = tl.sum(values, 0) / columns
    centred = tl.where(mask, values - middle, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + eps)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)
    scaled = centred * scale * tl.load(weight + at, mask) + tl.load(bias + at, mask)
    tl.store(out + row * columns + at, scaled, mask)


middle, scale = f64(x).mean(1), 1 / np.sqrt(f64(x).var(1) + 1e-5)
normal = (f64(x) - middle[:, None]) * scale[:, None]
case(
    layer_norm, ROWS, [x, w, b, Uninit((ROWS, COLUMNS)), Uninit(ROWS), Uninit(ROWS), COLUMNS, 1e-5],
    {3: normal * f64(w) + f64(b), 4: middle, 5: scale}, BOTH, rtol=1e-4,
)  # fmt: skip


@triton.jit
def layer_norm_backward(dy, x, weight, mean, rstd, dx, dw, db, locks, columns, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Partial sums of the weights' gradients are in GROUPS rows, each with a lock and a count."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < columns
    scale = tl.load(rstd + row)
    normal = tl.where(mask, (tl.load(x + row * columns + at, mask, 0.0) - tl.load(mean + row)) * scale, 0.0)
    gradient = tl.load(dy + row * columns + at, mask, 0.0)
    scaled = gradient * tl.load(weight + at, mask, 0.0)
    a, c = tl.sum(normal * scaled, 0) / columns, tl.sum(scaled, 0) / columns
    tl.store(dx + row * columns + at, (scaled - (normal * a + c)) * scale, mask)
    group = row % GROUPS
    lock = locks + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    count = tl.load(locks + GROUPS + group)
    first = count == 0
    tl.debug_barrier()  # all warps have read the count
    tl.store(locks + GROUPS + group, 1)
    place = group * columns + at
    more_w = gradient * normal + tl.load(dw + place, mask & (first == 0), 0.0)
    more_b = gradient + tl.load(db + place, mask & (first == 0), 0.0)
    tl.store(dw + place, more_w, mask)
    tl.store(db + place, more_b, mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def of_groups(values, groups):
    return np.stack([values[group::groups].sum(0) for group in range(groups)])


scaled = f64(dy) * f64(w)
inner = normal * (normal * scaled).mean(1, keepdims=True) + scaled.mean(1, keepdims=True)
args = [dy, x, w, middle.astype(np.float32), scale.astype(np.float32), Uninit((ROWS, COLUMNS))]
case(
    layer_norm_backward, ROWS, [*args, Uninit((2, COLUMNS)), Uninit((2, COLUMNS)), np.zeros(4, np.int32), COLUMNS],
    {5: (scaled - inner) * scale[:, None], 6: of_groups(f64(dy) * normal, 2), 7: of_groups(f64(dy), 2)},
    [{"GROUPS": 2, **config} for config in BOTH], rtol=1e-4,
)  # fmt: skip


@triton.jit
def column_sums(x, out, rows, columns, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([STEP, BLOCK], tl.float32)
    for first in range(0, rows, STEP):
        row = first + tl.arange(0, STEP)
        total += tl.load(x + row[:, None] * columns + at[None, :], (row < rows)[:, None] & (at < columns)[None, :], 0.0)
    tl.store(out + at, tl.sum(total, 0), at < columns)


case(
    column_sums, lambda c: cdiv(COLUMNS, c["BLOCK"]), [x, Uninit(COLUMNS), ROWS, COLUMNS], {1: f64(x).sum(0)},
    [{"STEP": 4, "BLOCK": 64}, {"STEP": 8, "BLOCK": 32, "num_warps": 2}],
)  # fmt: skip


@triton.jit
def rms_norm(x, weight, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, at < columns, 0.0).to(tl.float32)
        total += values * values
    scale = 1 / tl.sqrt(tl.sum(total, 0) / columns + eps)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, at < columns, 0.0).to(tl.float32)
        tl.store(out + row * columns + at, values * scale * tl.load(weight + at, at < columns), at < columns)


half = uniform(5, ROWS, COLUMNS, dtype=np.float16)
case(
    rms_norm, ROWS, [half, w, Uninit((ROWS, COLUMNS)), COLUMNS, 1e-6],
    {2: f64(half) / np.sqrt((f64(half) ** 2).mean(1, keepdims=True) + 1e-6) * f64(w)},
    [{"BLOCK": 64, "num_warps": 2}, {"BLOCK": 128}], rtol=1e-4,
)  # fmt: skip


@triton.jit
def cross_entropy(logits, labels, loss, gradient, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    logits += row * columns
    top, total = -float("inf"), 0.0
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(logits + at, at < columns, -float("inf"))
        new = tl.maximum(top, tl.max(values, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(values - new), 0)
        top = new
    label = tl.load(labels + row)
    lse = top + tl.log(total)
    tl.store(loss + row, lse - tl.load(logits + label))
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        chance = tl.exp(tl.load(logits + at, at < columns, -float("inf")) - lse)
        tl.store(gradient + row * columns + at, tl.where(at == label, chance - 1, chance), at < columns)


labels = whole(6, 0, COLUMNS, ROWS)
lse = np.log(np.exp(f64(x)).sum(1))
chance = np.exp(f64(x) - lse[:, None])
chance[np.arange(ROWS), labels] -= 1
case(
    cross_entropy, ROWS, [x, labels, Uninit(ROWS), Uninit((ROWS, COLUMNS)), COLUMNS],
    {2: lse - f64(x)[np.arange(ROWS), labels], 3: chance}, [{"BLOCK": 64, "num_warps": 1}, {"BLOCK": 128}], rtol=1e-4,
)  # fmt: skip


@triton.jit
def argmax(x, best, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, -float("inf"))
    top, place = tl.max(values, 0, return_indices=True)
    tl.store(best + row, top)
    tl.store(out + row, place)


case(
    argmax, ROWS, [x, Uninit(ROWS), Uninit(ROWS, "int32"), COLUMNS], {1: f64(x).max(1), 2: f64(x).argmax(1)}, BOTH,
    rtol=0, atol=0,
)  # fmt: skip


@triton.jit
def merge(mean_a, square_a, count_a, mean_b, square_b, count_b):
    count = count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / count)
    away = mean_b - mean_a
    return mean_a + away * share, square_a + square_b + away * away * count_a * share, count


@triton.jit
def welford(x, mean, variance, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    mask = at < columns
    values = tl.load(x + row * columns + at, mask, 0.0)
    middle, square, count = tl.reduce((values, values * 0, mask.to(tl.float32)), 0, merge)
    tl.store(mean + row, middle)
    tl.store(variance + row, square / count)


case(welford, ROWS, [x, Uninit(ROWS), Uninit(ROWS), COLUMNS], {1: f64(x).mean(1), 2: f64(x).var(1)}, BOTH, rtol=1e-4)


@triton.jit
def quantise_rows(x, out, scales, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, at < columns, 0.0)
    scale = tl.max(tl.abs(values), 0) / 127
    tl.store(scales + row, scale)
    scaled = values / scale
    tl.store(out + row * columns + at, (scaled + tl.where(scaled < 0, -0.5, 0.5)).to(tl.int8), at < columns)


scales = np.abs(f64(x)).max(1) / 127
rounded = np.trunc(f64(x) / scales[:, None] + np.copysign(0.5, f64(x)))
case(
    quantise_rows, ROWS, [x, Uninit((ROWS, COLUMNS), "int8"), Uninit(ROWS), COLUMNS], {1: rounded, 2: scales}, BOTH,
)  # fmt: skip
