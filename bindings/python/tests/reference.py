"""Attention in float64, plainly enough to be checked by reading; and how far an answer may be from it."""

import numpy as np
import pytest

# As the project's own parity tests have it: outputs lie within atol + rtol * |reference|.
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}

exports_read_only = pytest.mark.skipif(
    tuple(map(int, np.__version__.split(".")[:2])) < (2, 1), reason="NumPy before 2.1 does not export read-only arrays"
)


def attention(q, k, v, *, causal=False, window=None, softcap=None, scale=None):
    """`q`, `k`, `v` are [batch, seq, heads, head_dim]. Returns the output and its log-sum-exp [batch, heads, seq]."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    left, right = window or (None, None)
    right = 0 if causal else right
    rows, keys = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])[None, :]
    from_diagonal = keys - (rows + k.shape[1] - q.shape[1])  # the last row's diagonal is the last key
    visible = np.ones_like(from_diagonal, dtype=bool)
    if left is not None:
        visible &= from_diagonal >= -left
    if right is not None:
        visible &= from_diagonal <= right
    scores = np.where(visible, scores, -np.inf)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0]) + np.where(np.isfinite(highest), highest, 0.0)[..., 0]
    return np.einsum("bhqk,bkhd->bqhd", weights, v), lse


def check(out, want, dtype):
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(np.asarray(out).astype(np.float64), want, atol=tolerance, rtol=tolerance)


def check_lse(lse, want):
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(np.asarray(lse)[finite], want[finite], atol=2e-5, rtol=2e-5)
