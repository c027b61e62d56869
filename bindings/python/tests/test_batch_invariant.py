"""`batch_invariant`: the bits of an output do not depend on the other sequences of the batch; and `sm_margin`."""

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ragged  # noqa: E402  (needs PyTorch)
from flashcore_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
cuda = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]
PAGE, PAGES, KEYS = 16, 320, 3000  # bounds, the same in every call
NEIGHBOURS = [[], [[1, 40]], [[1, 2900], [1, 1], [1, 900]], [[4, 2000]] * 40]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def draw(device, *shape, seed=1):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def decode(device, first, others, split):
    """The first of these sequences, `[rows, keys]` each, whose caches share pages."""
    sequences = [first, *others]
    dim = 32 if device == "cpu" else 128
    k, v = (draw(device, PAGES, PAGE, 2, dim, seed=seed) for seed in (2, 3))
    q = draw(device, sum(rows for rows, _ in sequences), 8, dim)
    tables = [(torch.arange(KEYS // PAGE + 1) + 17 * i) % PAGES for i in range(len(sequences))]
    out, lse, *_ = flash_attn_with_kvcache(
        q, k, v,
        cache_seqlens=ragged.int32([keys for _, keys in sequences], device),
        page_table=torch.stack(tables).int().to(device),
        cu_seqlens_q=ragged.starts([rows for rows, _ in sequences], device),
        max_seqlen_q=4 if first[0] <= 4 else 300,
        causal=True,
        return_softmax_lse=True,
        batch_invariant=split,
    )  # fmt: skip
    return out[: first[0]], lse[:, : first[0]]


@pytest.mark.parametrize("first", [[1, 2999], [4, 1500], [70, 2000]], ids=str)
def test_neighbours_change_no_bits(device, first):
    alone, *beside = (decode(device, first, others, 256) for others in [*NEIGHBOURS, [[4 if first[0] <= 4 else 300, 700]]])
    for out, lse in beside:
        assert torch.equal(out, alone[0]) and torch.equal(lse, alone[1])
    usual = decode(device, first, [], None)
    assert torch.allclose(alone[0].float(), usual[0].float(), atol=1e-2)


def test_without_it_they_do(device):
    answers = [decode(device, [1, 2999], others, None)[0] for others in NEIGHBOURS]
    assert not all(torch.equal(out, answers[0]) for out in answers)


def test_batches_of_equal_lengths(device):
    dim = 32 if device == "cpu" else 128
    q, k, v = (draw(device, 129, rows, heads, dim, seed=rows) for rows, heads in ((1, 8), (2000, 2), (2000, 2)))
    alone = flash_attn_func(q[:1], k[:1], v[:1], batch_invariant=512)
    assert torch.equal(flash_attn_func(q, k, v, batch_invariant=512)[:1], alone)
    assert not torch.equal(flash_attn_func(q, k, v)[:1], flash_attn_func(q[:1], k[:1], v[:1]))


def test_packed_keys(device):
    """The bounds are the same, and the tensors of one sequence smaller than they say."""
    dim = 32 if device == "cpu" else 128
    lengths = [(90, 90), (2, 700), (300, 1000)]
    parts = [tuple(draw(device, n, heads, dim, seed=n + i) for n, heads in ((q, 8), (k, 2), (k, 2)))
             for i, (q, k) in enumerate(lengths)]  # fmt: skip

    def call(parts):
        q, k, v = (torch.cat(x) for x in zip(*parts))
        starts = [ragged.starts([len(part[i]) for part in parts], device) for i in (0, 1)]
        return flash_attn_varlen_func(q, k, v, *starts, 300, 1000, causal=True, batch_invariant=128)

    together = call(parts).split([q for q, _ in lengths])
    for part, out in zip(parts, together):
        assert torch.equal(call([part]), out)


def test_it_leaves_gradients_alone(device):
    parts = ragged.sequences(device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16, dim=64)
    gradients = []
    for split in (None, 64):
        q, k, v = (ragged.packed(x, 0, 0).requires_grad_() for x in zip(*parts))
        starts_q, starts_k = (ragged.starts([len(part[i]) for part in parts], device) for i in (0, 1))
        out = flash_attn_varlen_func(
            q, k, v, starts_q, starts_k, 200, 200, deterministic=True, batch_invariant=split
        )
        out.float().square().sum().backward()
        gradients.append([x.grad for x in (q, k, v)])
    for with_it, without in zip(*gradients):
        assert torch.allclose(with_it.float(), without.float(), atol=2e-2)


@cuda
def test_sm_margin_leaves_results_alone():
    q, k, v = (draw("cuda", 2, 700, heads, 128, seed=heads) for heads in (8, 2, 2))
    for x in (q, k, v):
        x.requires_grad_()
    expected = flash_attn_func(q, k, v, causal=True)
    for margin in (1, 16, 100):
        out = flash_attn_func(q, k, v, causal=True, sm_margin=margin)
        assert torch.allclose(out.float(), expected.float(), atol=1e-2)
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))
    with pytest.raises(RuntimeError, match="sm_margin is 100000; the device has"):
        flash_attn_func(q, k, v, sm_margin=100_000)
