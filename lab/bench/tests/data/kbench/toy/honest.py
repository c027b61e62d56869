# Attention in one pass over the keys: honest, and what the other kernels here are made of.
import array
import math

ROWS = 3


def exp(x):
    # As in f32.
    return math.exp(x) if x < 88.7 else math.inf


def attention(q, k, v, scale, rescale=True):
    dim = len(q) // ROWS
    out = array.array("f")
    for first in range(0, len(q), dim):
        row = q[first : first + dim]
        most, total, sums = (-math.inf if rescale else 0.0), 0.0, [0.0] * dim
        for i in range(0, len(k), dim):
            score = scale * sum(x * y for x, y in zip(row, k[i : i + dim]))
            if rescale and score > most:
                factor = exp(most - score)
                most, total, sums = score, total * factor, [s * factor for s in sums]
            weight = exp(score - most)
            total += weight
            sums = [s + weight * y for s, y in zip(sums, v[i : i + dim])]
        out.extend(s / total for s in sums)
    return out


def forward(q, k, v, scale):
    return attention(q, k, v, scale)
