"""Attention sinks and ALiBi slopes, on NumPy arrays and PyTorch's CPU tensors, against float64."""

import flashcore_attn
import numpy as np
import pytest
from reference import check, check_lse


def right(q, k, v, sinks, slopes, causal):
    """Output and log-sum-exp of `[batch, seq, heads, head_dim]`; slopes are `[batch, heads]`."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
    rows, keys = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], np.arange(k.shape[1])[None, :]
    scores -= np.asarray(slopes, np.float64)[..., None, None] * np.abs(rows - keys)
    if causal:
        scores = np.where(keys <= rows, scores, -np.inf)
    sink = np.broadcast_to(np.asarray(sinks, np.float64)[None, :, None, None], (*scores.shape[:3], 1))
    highest = np.maximum(scores.max(-1, keepdims=True), sink)
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - highest)
    return np.einsum("bhqk,bkhd->bqhd", weights / total, v), (np.log(total) + highest)[..., 0]


def tensors(rows=9, keys=14):
    rng = np.random.default_rng(rows)
    q = rng.standard_normal((2, rows, 4, 16)).astype(np.float32)
    k, v = (rng.standard_normal((2, keys, 2, 16)).astype(np.float32) for _ in range(2))
    sinks = np.array([0.5, -1.0, 30.0, 2.0], np.float32)
    slopes = np.array([[0.5, 0.25, 0.0, 1.0], [0.125, 0.75, 0.5, 0.0]], np.float32)
    return q, k, v, sinks, slopes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 9, 40])
def test_equal_lengths(rows, causal):
    q, k, v, sinks, slopes = tensors(rows, 40)
    for given in (slopes, slopes[0]):
        out, lse = flashcore_attn.attention(
            q, k, v, causal=causal, return_lse=True, sinks=sinks.astype(np.float16), alibi_slopes=given
        )
        want = right(q, k, v, sinks, np.broadcast_to(given, (2, 4)), causal)
        check(out, want[0], "float32")
        check_lse(lse, want[1])
    none = flashcore_attn.attention(q, k, v, causal=causal, sinks=np.full(4, -np.inf, np.float32))
    np.testing.assert_array_equal(none, flashcore_attn.attention(q, k, v, causal=causal))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"sinks": np.zeros(3, np.float32)}, ValueError, ["sinks has shape [3]", "[4]"]),
        ({"sinks": np.zeros((4, 1), np.float32)}, ValueError, ["sinks has shape [4, 1]", "[4]"]),
        ({"sinks": np.zeros(4)}, TypeError, ["sinks holds float64", "bfloat16"]),
        ({"sinks": np.full(4, np.nan, np.float32)}, ValueError, ["sinks has NaN at 0"]),
        ({"alibi_slopes": np.zeros((1, 4), np.float32)}, ValueError, ["alibi_slopes has shape [1, 4]", "[2, 4]"]),
        ({"alibi_slopes": np.zeros(4, np.float16)}, TypeError, ["alibi_slopes holds float16", "float32"]),
        ({"alibi_slopes": -np.ones(4, np.float32)}, ValueError, ["alibi_slopes has -1 at 0", "from 0"]),
        ({"alibi_slopes": np.zeros(8, np.float32)[::2]}, ValueError, ["alibi_slopes has strides", ".contiguous()"]),
    ],
    ids=str,
)
def test_what_does_not_fit(change, error, words):
    q, k, v, *_ = tensors()
    with pytest.raises(error) as raised:
        flashcore_attn.attention(q, k, v, **change)
    assert all(word in str(raised.value) for word in words), raised.value


def test_operators():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from flashcore_attn._operators import forward

    arrays = tensors()
    q, k, v, sinks, slopes = map(torch.from_numpy, arrays)
    want, want_lse = map(torch.from_numpy, right(*arrays, True))
    given = {"causal": True, "sinks": sinks, "alibi_slopes": slopes}
    out, lse = forward(q, k, v, **given)
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse.double(), want_lse, atol=2e-5, rtol=2e-5)
    starts = lambda n: torch.tensor([0, n, 2 * n], dtype=torch.int32)
    packed, _ = forward(
        *(x.flatten(0, 1) for x in (q, k, v)),
        cu_seqlens_q=starts(9), cu_seqlens_k=starts(14), max_seqlen_q=9, max_seqlen_k=14, **given,
    )  # fmt: skip
    torch.testing.assert_close(packed.view(q.shape), out)
    used = torch.full((2,), 14, dtype=torch.int32)
    cached, _ = forward(q, k, v, seqused_k=used, max_seqlen_k=14, **given)
    torch.testing.assert_close(cached, out)
    # Either alone, and in another dtype.
    half = torch.from_numpy(right(*arrays[:4], np.zeros((2, 4)), True)[0])
    torch.testing.assert_close(forward(q, k, v, causal=True, sinks=sinks.bfloat16())[0].double(), half, atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match=r"sinks has shape \[3\].*\[4\]"):
        forward(q, k, v, sinks=sinks[:3])
    with pytest.raises(NotImplementedError, match="sinks or ALiBi"):
        forward(q.requires_grad_(), k, v, **given)[0].sum().backward()


def test_transformers_sinks():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="Transformers is not installed")
    from flashcore_attn import transformers as fc

    q, k, v, sinks, _ = tensors()
    want, _ = right(q, k, v, sinks, np.zeros((2, 4)), True)
    q, k, v = (torch.from_numpy(x).transpose(1, 2) for x in (q, k, v))
    module = torch.nn.Module()
    out, _ = fc.attention(module, q, k, v, None, is_causal=True, s_aux=torch.from_numpy(sinks))
    torch.testing.assert_close(out.double(), torch.from_numpy(want), atol=1e-5, rtol=1e-5)
    with pytest.warns(UserWarning), pytest.raises(NotImplementedError, match="s_aux is given"):
        fc.attention(module, q, k, v, None, is_causal=True, dropout=0.5, s_aux=torch.from_numpy(sinks))
    trained = torch.nn.Parameter(torch.from_numpy(sinks))
    with pytest.warns(UserWarning), pytest.raises(NotImplementedError, match=r"s_aux, .* torch\.no_grad"):
        fc.attention(module, *(x.detach() for x in (q, k, v)), None, is_causal=True, s_aux=trained)
    with torch.no_grad():
        again, _ = fc.attention(module, q, k, v, None, is_causal=True, s_aux=trained)
    assert torch.equal(again, out)
