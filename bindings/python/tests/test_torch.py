"""PyTorch tensors, on the CPU and where there is one on a CUDA device. Skipped where there is no PyTorch."""

import flashcore_attn
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
cuda = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]
DTYPES = ["float16", "bfloat16", "float32"]


def tensors(device, dtype="float16", shape=(2, 130, 200, 4, 2, 64), seed=0):
    b, sq, sk, h, hk, d = shape
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))
    return draw(b, sq, h, d), draw(b, sk, hk, d), draw(b, sk, hk, d)


def check(out, q, k, v, **options):
    to_numpy = lambda x: x.detach().double().cpu().numpy()
    dtype = str(q.dtype).removeprefix("torch.")
    reference.check(to_numpy(out), reference.attention(*map(to_numpy, (q, k, v)), **options)[0], dtype)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (32, 0)}, {"softcap": 10.0}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_equals_float64(device, dtype, options):
    q, k, v = tensors(device, dtype)
    out = flashcore_attn.attention(q, k, v, **options)
    assert isinstance(out, torch.Tensor) and out.device == q.device and out.dtype == q.dtype
    check(out, q, k, v, **options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_equals_sdpa(device, causal):
    q, k, v = (x.transpose(1, 2).contiguous() for x in tensors(device, shape=(2, 128, 128, 4, 4, 64)))
    out, lse = flashcore_attn.attention(q, k, v, causal=causal, layout="bhsd", return_lse=True)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert out.stride() == want.contiguous().stride() and lse.shape == (2, 4, 128) and lse.dtype == torch.float32
    torch.testing.assert_close(out, want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_slices_of_packed_qkv(device):
    packed = torch.randn(2, 100, 3, 4, 64, device=device, dtype=torch.float16)
    q, k, v = packed.unbind(2)
    check(flashcore_attn.attention(q, k, v, causal=True), q, k, v, causal=True)
    odd = torch.randn(2, 100, 4, 67, device=device, dtype=torch.float16)[..., 3:]
    check(flashcore_attn.attention(odd, odd, odd), odd, odd, odd)


@pytest.mark.parametrize("device", DEVICES)
def test_a_negated_view_is_refused_and_not_read_with_the_other_sign(device):
    q, k, v = tensors(device)
    lazy = torch._neg_view(-q)
    with pytest.raises(ValueError, match=r"q is a lazily negated view.*q.resolve_neg\(\)"):
        flashcore_attn.attention(lazy, k, v)
    with pytest.raises(ValueError, match="out is a lazily negated view"):
        flashcore_attn.attention(q, k, v, out=torch._neg_view(torch.empty_like(q)))
    check(flashcore_attn.attention(lazy.resolve_neg(), k, v), q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_refused_or_not_asked_for(device):
    q, k, v = tensors(device)
    q.requires_grad_()
    with pytest.raises(ValueError, match=r"q requires a gradient.*torch.no_grad"):
        flashcore_attn.attention(q, k, v)
    with torch.no_grad():
        out = flashcore_attn.attention(q, k, v)
    assert not out.requires_grad
    check(out, q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_out_given(device):
    q, k, v = tensors(device)
    out = torch.empty_like(q)
    assert flashcore_attn.attention(q, k, v, out=out) is out
    check(out, q, k, v)


def test_mixed_libraries_on_the_cpu():
    q, k, v = tensors("cpu", "float32")
    out = flashcore_attn.attention(q, k.numpy(), v.numpy())
    assert isinstance(out, torch.Tensor)
    check(out, q, k, v)
    assert isinstance(flashcore_attn.attention(q.numpy(), k, v), np.ndarray)


@cuda
def test_mixed_devices():
    q, k, v = tensors("cuda")
    with pytest.raises(ValueError, match="k is on cpu and q on cuda:0"):
        flashcore_attn.attention(q, k.cpu(), v)


@cuda
def test_runs_on_the_current_stream():
    q, k, v = tensors("cuda", shape=(4, 2048, 2048, 8, 8, 64))
    want = flashcore_attn.attention(q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Work ahead in the same stream that the answer depends on: without order the old values are read.
        torch.cuda._sleep(50_000_000)
        doubled = v * 2
        out = flashcore_attn.attention(q, k, doubled)
    side.synchronize()
    torch.testing.assert_close(out, want * 2, atol=1e-3, rtol=1e-3)


@cuda
def test_a_stream_of_the_callers_choice_waits_for_the_current_one():
    q, k, v = tensors("cuda", shape=(1, 512, 512, 8, 8, 64))
    want = flashcore_attn.attention(q, k, v)
    side = torch.cuda.Stream()
    for stream in (side, side.cuda_stream):
        torch.cuda._sleep(50_000_000)
        doubled = v * 2
        out = flashcore_attn.attention(q, k, doubled, stream=stream)
        side.synchronize()
        torch.testing.assert_close(out, want * 2, atol=1e-3, rtol=1e-3)


@cuda
def test_calls_can_be_captured_into_a_graph():
    q, k, v = tensors("cuda")
    out = torch.empty_like(q)
    flashcore_attn.attention(q, k, v, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flashcore_attn.attention(q, k, v, out=out)
        allocated, lse = flashcore_attn.attention(q, k, v, return_lse=True)
    v.mul_(-1)
    out.zero_()
    graph.replay()
    check(out, q, k, v)
    check(allocated, q, k, v)


@cuda
def test_calls_return_before_the_work_is_done():
    q, k, v = tensors("cuda")
    flashcore_attn.attention(q, k, v)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    flashcore_attn.attention(q, k, v)
    assert not torch.cuda.current_stream().query(), "the call waited for the stream"
    torch.cuda.synchronize()


@cuda
def test_plan_tells_the_launch():
    q, k, v = tensors("cuda")
    plan = flashcore_attn.plan(q, k, v)
    assert plan["device"] == "cuda:0" and min(plan["grid"]) >= 1 and plan["target"].startswith("sm_")
    assert plan["kernel"] in flashcore_attn.explain(q, k, v)
    named = flashcore_attn.attention(q, k, v, kernel=plan["kernel"])
    torch.testing.assert_close(named, flashcore_attn.attention(q, k, v), atol=0, rtol=0)
