"""Attention: the forward pass, its gradients, decoding over split keys."""

import numpy as np
import triton
import triton.language as tl
from cases import case, cdiv, f64, uniform
from flashcore_attn import Uninit

HEADS, LENGTH, WIDTH = 2, 80, 32
SCALE = WIDTH**-0.5
q, k, v, do = (uniform(seed, HEADS, LENGTH, WIDTH, dtype=np.float16) for seed in range(4))

scores = np.where(np.tri(LENGTH, dtype=bool), np.einsum("hqd,hkd->hqk", f64(q), f64(k)) * SCALE, -np.inf)
lse = np.log(np.exp(scores).sum(-1))
chances = np.exp(scores - lse[..., None])
out = chances @ f64(v)
delta = (f64(do) * out).sum(-1)
of_scores = chances * (f64(do) @ f64(v).transpose(0, 2, 1) - delta[..., None])
dq, dk, dv = of_scores @ f64(k) * SCALE, of_scores.transpose(0, 2, 1) @ f64(q) * SCALE, chances.transpose(0, 2, 1) @ f64(do)

CONFIGS = [{"ROWS": 32, "KEYS": 32, "D": WIDTH}, {"ROWS": 64, "KEYS": 16, "D": WIDTH, "num_warps": 8, "num_stages": 2}]


@triton.jit
def attention(q, k, v, out, lse, length, scale, ROWS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr):
    head, at_q, at_d = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    base = head * length * D
    place = base + at_q[:, None] * D + at_d[None, :]
    queries = tl.load(q + place, (at_q < length)[:, None], 0.0)
    top, total = tl.full([ROWS], -float("inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, D], tl.float32)
    for first in range(0, min(tl.program_id(0) * ROWS + ROWS, length), KEYS):
        at_k = first + tl.arange(0, KEYS)
        keys = tl.load(k + base + at_k[None, :] * D + at_d[:, None], (at_k < length)[None, :], 0.0)
        scores = tl.dot(queries, keys) * (scale * 1.44269504)
        scores = tl.where((at_k[None, :] <= at_q[:, None]) & (at_k < length)[None, :], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        powers, shrink = tl.math.exp2(scores - new[:, None]), tl.math.exp2(top - new)
        total = total * shrink + tl.sum(powers, 1)
        values = tl.load(v + base + at_k[:, None] * D + at_d[None, :], (at_k < length)[:, None], 0.0)
        sums = tl.dot(powers.to(tl.float16), values, sums * shrink[:, None])
        top = new
    tl.store(lse + head * length + at_q, (top + tl.math.log2(total)) * 0.69314718, at_q < length)
    tl.store(out + place, (sums / total[:, None]).to(tl.float16), (at_q < length)[:, None])


SHAPE = (HEADS, LENGTH, WIDTH)
case(
    attention, lambda c: (cdiv(LENGTH, c["ROWS"]), HEADS),
    [q, k, v, Uninit(SHAPE, "float16"), Uninit((HEADS, LENGTH)), LENGTH, SCALE], {3: out, 4: lse},
    [*CONFIGS, {"ROWS": 16, "KEYS": 64, "D": WIDTH, "num_warps": 1}], rtol=2e-3, atol=2e-3,
)  # fmt: skip


@triton.jit
def attention_delta(out, do, delta, length, ROWS: tl.constexpr, D: tl.constexpr):
    at_q, at_d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    place, mask = (tl.program_id(1) * length + at_q)[:, None] * D + at_d[None, :], (at_q < length)[:, None]
    product = tl.load(out + place, mask, 0.0).to(tl.float32) * tl.load(do + place, mask, 0.0).to(tl.float32)
    tl.store(delta + tl.program_id(1) * length + at_q, tl.sum(product, 1), at_q < length)


case(
    attention_delta, lambda c: (cdiv(LENGTH, c["ROWS"]), HEADS),
    [out.astype(np.float16), do, Uninit((HEADS, LENGTH)), LENGTH], {2: delta},
    [{"ROWS": 32, "D": WIDTH}, {"ROWS": 16, "D": WIDTH, "num_warps": 2}], rtol=1e-2, atol=2e-3,
)  # fmt: skip


@triton.jit
def attention_backward_keys(
    q, k, v, do, lse, delta, dk, dv, length, scale, ROWS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr
):
    head, first_key, at_d = tl.program_id(1), tl.program_id(0) * KEYS, tl.arange(0, D)
    at_k, base = first_key + tl.arange(0, KEYS), head * length * D
    place = base + at_k[:, None] * D + at_d[None, :]
    keys = tl.load(k + place, (at_k < length)[:, None], 0.0)
    values = tl.load(v + place, (at_k < length)[:, None], 0.0)
    sum_k, sum_v = tl.zeros([KEYS, D], tl.float32), tl.zeros([KEYS, D], tl.float32)
    for first in range(first_key // ROWS * ROWS, length, ROWS):
        at_q = first + tl.arange(0, ROWS)
        rows = base + at_q[:, None] * D + at_d[None, :]
        queries = tl.load(q + rows, (at_q < length)[:, None], 0.0)
        outer = tl.load(do + rows, (at_q < length)[:, None], 0.0)
        norm = tl.load(lse + head * length + at_q, at_q < length, float("inf"))
        inner = tl.load(delta + head * length + at_q, at_q < length, 0.0)
        chances = tl.exp(tl.dot(keys, queries.trans()) * scale - norm[None, :])
        chances = tl.where((at_k[:, None] <= at_q[None, :]) & (at_q < length)[None, :], chances, 0.0)
        sum_v = tl.dot(chances.to(tl.float16), outer, sum_v)
        of_scores = chances * (tl.dot(values, outer.trans()) - inner[None, :])
        sum_k = tl.dot(of_scores.to(tl.float16), queries, sum_k)
    tl.store(dk + place, sum_k * scale, (at_k < length)[:, None])
    tl.store(dv + place, sum_v, (at_k < length)[:, None])


GIVEN = [q, k, v, do, lse.astype(np.float32), delta.astype(np.float32)]
case(
    attention_backward_keys, lambda c: (cdiv(LENGTH, c["KEYS"]), HEADS),
    [*GIVEN, Uninit(SHAPE), Uninit(SHAPE), LENGTH, SCALE], {6: dk, 7: dv}, CONFIGS, rtol=5e-3, atol=5e-3,
)  # fmt: skip


@triton.jit
def attention_backward_queries(
    q, k, v, do, lse, delta, dq, length, scale, ROWS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr
):
    head, at_q, at_d = tl.program_id(1), tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    base = head * length * D
    place = base + at_q[:, None] * D + at_d[None, :]
    queries, outer = tl.load(q + place, (at_q < length)[:, None], 0.0), tl.load(do + place, (at_q < length)[:, None], 0.0)
    norm = tl.load(lse + head * length + at_q, at_q < length, float("inf"))
    inner = tl.load(delta + head * length + at_q, at_q < length, 0.0)
    total = tl.zeros([ROWS, D], tl.float32)
    for first in range(0, min(tl.program_id(0) * ROWS + ROWS, length), KEYS):
        at_k = first + tl.arange(0, KEYS)
        rows = base + at_k[:, None] * D + at_d[None, :]
        keys = tl.load(k + rows, (at_k < length)[:, None], 0.0)
        values = tl.load(v + rows, (at_k < length)[:, None], 0.0)
        chances = tl.exp(tl.dot(queries, keys.trans()) * scale - norm[:, None])
        chances = tl.where((at_k[None, :] <= at_q[:, None]) & (at_k < length)[None, :], chances, 0.0)
        of_scores = chances * (tl.dot(outer, values.trans()) - inner[:, None])
        total = tl.dot(of_scores.to(tl.float16), keys, total)
    tl.store(dq + place, total * scale, (at_q < length)[:, None])


case(
    attention_backward_queries, lambda c: (cdiv(LENGTH, c["ROWS"]), HEADS),
    [*GIVEN, Uninit(SHAPE), LENGTH, SCALE], {6: dq}, CONFIGS, rtol=5e-3, atol=5e-3,
)  # fmt: skip


@triton.jit
def decode_split(
    q, k, v, part, part_lse, length, scale, SPLITS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr
):
    """One query of a head over a part of its keys."""
    head, split, at_d = tl.program_id(0), tl.program_id(1), tl.arange(0, D)
    query = tl.load(q + head * D + at_d).to(tl.float32)
    each = tl.cdiv(length, SPLITS)
    end = min(split * each + each, length)
    top, total, sums = -float("inf"), 0.0, tl.zeros([D], tl.float32)
    for first in range(split * each, end, KEYS):
        at_k = first + tl.arange(0, KEYS)
        place, mask = (head * length + at_k)[:, None] * D + at_d[None, :], (at_k < end)[:, None]
        scores = tl.sum(tl.load(k + place, mask, 0.0).to(tl.float32) * query[None, :], 1) * scale
        scores = tl.where(at_k < end, scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 0))
        powers, shrink = tl.exp(scores - new), tl.exp(top - new)
        sums = sums * shrink + tl.sum(powers[:, None] * tl.load(v + place, mask, 0.0).to(tl.float32), 0)
        total, top = total * shrink + tl.sum(powers, 0), new
    tl.store(part + (head * SPLITS + split) * D + at_d, sums / total)
    tl.store(part_lse + head * SPLITS + split, top + tl.log(total))


@triton.jit
def decode_combine(part, part_lse, out, SPLITS: tl.constexpr, D: tl.constexpr):
    head, at, at_d = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, D)
    lse = tl.load(part_lse + head * SPLITS + at)
    weights = tl.exp(lse - tl.max(lse, 0))
    parts = tl.load(part + (head * SPLITS + at)[:, None] * D + at_d[None, :])
    tl.store(out + head * D + at_d, tl.sum(parts * (weights / tl.sum(weights, 0))[:, None], 0))


def split_keys(splits):
    query, each = f64(q)[:, 0], cdiv(LENGTH, splits)
    parts = []
    for first in range(0, LENGTH, each):
        keys = slice(first, first + each)
        scores = np.einsum("hd,hkd->hk", query, f64(k)[:, keys]) * SCALE
        lse = np.log(np.exp(scores).sum(1))
        parts.append((np.einsum("hk,hkd->hd", np.exp(scores - lse[:, None]), f64(v)[:, keys]), lse))
    return [np.stack(part, 1) for part in zip(*parts)]


for splits in (2, 4):
    part, part_lse = split_keys(splits)
    whole, _ = split_keys(1)
    args = [np.ascontiguousarray(q[:, 0]), k, v, Uninit((HEADS, splits, WIDTH)), Uninit((HEADS, splits)), LENGTH, SCALE]
    case(
        decode_split, (HEADS, splits), args, {3: part, 4: part_lse},
        [{"SPLITS": splits, "KEYS": 16, "D": WIDTH, "num_warps": splits}], rtol=1e-4, atol=1e-4,
    )  # fmt: skip
    case(
        decode_combine, HEADS, [part.astype(np.float32), part_lse.astype(np.float32), Uninit((HEADS, WIDTH))],
        {2: whole[:, 0]}, [{"SPLITS": splits, "D": WIDTH, "num_warps": splits}], rtol=1e-4, atol=1e-4,
    )  # fmt: skip
