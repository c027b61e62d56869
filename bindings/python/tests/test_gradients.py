"""Gradients of FlashAttention-3's functions, on CPU tensors and, where there is one, on a CUDA device."""

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ops  # noqa: E402  (needs PyTorch)
import ragged  # noqa: E402
from flashcore_attn import flash_attn_interface as fa3  # noqa: E402
from flashcore_attn._operators import slow_backward  # noqa: E402
from flashcore_attn.flash_attn_interface import (  # noqa: E402
    flash_attn_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
cuda = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
DEVICES = ["cpu", pytest.param("cuda", marks=cuda)]
OPTIONS = [
    {"causal": True},
    {"window_size": (5, 3)},
    {"causal": True, "window_size": (5, -1)},
    {"softcap": 2.0},
    {"softmax_scale": 0.3},
]
# The rounding of inputs, P, dS and results; FlashCore's own tests have the tolerance of each element.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors(device="cpu", dtype=torch.float32, seq_q=33, seq_kv=50, heads=4, kv_heads=2, dim=16, dim_v=16):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(device, dtype)
    q, k, v = draw(2, seq_q, heads, dim), draw(2, seq_kv, kv_heads, dim), draw(2, seq_kv, kv_heads, dim_v)
    return *(x.requires_grad_() for x in (q, k, v)), draw(2, seq_q, heads, dim_v)


def want(q, k, v, dout, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None):
    """Gradients in float64, by PyTorch's autograd of attention in plain words."""
    wide = [x.detach().double().cpu().requires_grad_() for x in (q, k, v)]
    q, k, v = wide
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    from_diagonal = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - k.shape[1] + q.shape[1]
    left, right = window_size[0], 0 if causal else window_size[1]
    visible = torch.ones_like(from_diagonal, dtype=torch.bool)
    visible &= from_diagonal >= -left if left >= 0 else visible
    visible &= from_diagonal <= right if right >= 0 else visible
    weights = torch.softmax(scores.masked_fill(~visible, -1e300), dim=-1) * visible  # 0 where a row sees nothing
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    return torch.autograd.grad(out, wide, dout.double().cpu())


def check(gradients, expected, dtype):
    tolerance = TOLERANCE[dtype]
    for got, expected in zip(gradients, expected):
        torch.testing.assert_close(got.double().cpu(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "dtype, options",
    [(torch.float32, options) for options in OPTIONS] + [(torch.float16, {}), (torch.bfloat16, {"causal": True})],
    ids=str,
)
@pytest.mark.parametrize("device", DEVICES)
def test_equal_those_of_float64(device, dtype, options):
    q, k, v, dout = tensors(device, dtype)
    gradients = torch.autograd.grad(flash_attn_func(q, k, v, **options), (q, k, v), dout)
    assert all(x.dtype == dtype and x.is_contiguous() for x in gradients)
    check(gradients, want(q, k, v, dout, **options), dtype)
    again = torch.autograd.grad(flash_attn_func(q, k, v, deterministic=True, **options), (q, k, v), dout)
    assert all(torch.equal(*pair) for pair in zip(gradients, again))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_see_nothing_and_another_head_dim_of_v(device):
    q, k, v, dout = tensors(device, seq_q=40, seq_kv=20, dim_v=24)
    gradients = torch.autograd.grad(flash_attn_func(q, k, v, causal=True), (q, k, v), dout)
    assert torch.equal(gradients[0][:, :20], torch.zeros_like(q[:, :20]))
    check(gradients, want(q, k, v, dout, causal=True), q.dtype)


def expanded(dout):
    return torch.ones((), device=dout.device).expand_as(dout)


def with_shared_rows(dout):
    return dout[:, :1].expand_as(dout)


def transposed(dout):
    return dout.transpose(1, 3).contiguous().transpose(1, 3)


def sliced(dout):
    return torch.nn.functional.pad(dout, (3, 4))[..., 3:-4]


@pytest.mark.parametrize("change", [expanded, with_shared_rows, transposed, sliced])
@pytest.mark.parametrize("device", DEVICES)
def test_strides_of_the_incoming_gradient(device, change):
    q, k, v, dout = tensors(device)
    dout = change(dout)
    gradients = torch.autograd.grad(flash_attn_func(q, k, v), (q, k, v), dout)
    check(gradients, want(q, k, v, dout), q.dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_strides_of_inputs_and_only_some_gradients(device):
    _, _, _, dout = tensors(device, kv_heads=4)
    packed = torch.randn(2, 33, 12, 16, device=device, requires_grad=True)
    out = flash_attn_qkvpacked_func(packed, causal=True, num_heads_q=4)
    q, k, v = packed.split(4, dim=2)
    (gradient,) = torch.autograd.grad(out, packed, dout)
    check([gradient], [torch.cat(want(q, k, v, dout, causal=True), dim=2)], packed.dtype)
    q, k, v = (x.detach() for x in (q, k, v.transpose(2, 3).contiguous().transpose(2, 3)))
    (dv,) = torch.autograd.grad(flash_attn_func(q, k, v.requires_grad_()), v, dout)
    check([dv], want(q, k, v, dout)[2:], v.dtype)


@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (7, 9), "softcap": 3.0}], ids=str)
@pytest.mark.parametrize("unused", [0, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences(device, unused, options):
    """Rows of no sequence hold NaN, in dout, too: they have gradients of 0, and reach no other row."""
    parts = ragged.sequences(device=device)
    douts = [torch.randn_like(q) for q, _, _ in parts]
    q, k, v = (ragged.packed(x, unused, 5).requires_grad_() for x in zip(*parts))
    dout = ragged.packed(douts, unused, 5)
    lengths = [[len(part[i]) for part in parts] for i in (0, 1)]
    starts = [ragged.starts([n + unused for n in of], device) for of in lengths]
    used = [ragged.int32(of, device) if unused else None for of in lengths]
    out = flash_attn_varlen_func(q, k, v, *starts, 70 + unused, 129 + unused, *used, **options)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    rows = [0, 0]
    for part, d in zip(parts, douts):
        expected = [x[0] for x in want(*(x[None] for x in part), d[None], **options)]
        at = [slice(row, row + len(x)) for row, x in zip(rows, part)]
        check([gradients[0][at[0]], gradients[1][at[1]], gradients[2][at[1]]], expected, q.dtype)
        for i in (0, 1):
            after = slice(at[i].stop, at[i].stop + unused)
            assert not any(x[after].any() for x in (gradients[:1], gradients[1:])[i])
            rows[i] = after.stop
    assert not gradients[0][rows[0] :].any() and not gradients[1][rows[1] :].any()


@pytest.mark.parametrize("device", DEVICES)
def test_queries_of_equal_lengths_over_packed_keys(device):
    q, k, v, dout = tensors(device, seq_q=12, seq_kv=20)
    packed = [x.detach().flatten(0, 1).requires_grad_() for x in (k, v)]
    out = flash_attn_varlen_func(q, *packed, None, ragged.starts([20, 20], device), None, 20, causal=True)
    dq, dk, dv = torch.autograd.grad(out, (q, *packed), dout)
    gradients = dq, dk.unflatten(0, (2, 20)), dv.unflatten(0, (2, 20))
    check(gradients, want(q, k, v, dout, causal=True), q.dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_sequences_that_have_no_keys(device):
    q, k, v, dout = (x.detach() for x in tensors(device))
    q, dout = (x.flatten(0, 1).requires_grad_(x is q) for x in (q, dout))
    k, v = (x.flatten(0, 1)[:0].requires_grad_() for x in (k, v))
    starts, none = ragged.starts([33, 33], device), ragged.starts([0, 0], device)
    out, lse = flash_attn_varlen_func(q, k, v, starts, none, 33, 0, return_attn_probs=True)
    assert not out.any() and torch.isneginf(lse).all()
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    assert [x.shape for x in gradients] == [q.shape, k.shape, v.shape] and not gradients[0].any()
    given = [torch.ones_like(x) for x in (q, k, v)]
    with torch.no_grad():
        fa3._flash_attn_backward(dout, q, k, v, out, lse, starts, none, None, None, 33, 0, *given)
    assert not given[0].any()


def test_the_inner_function():
    q, k, v, dout = tensors(seq_kv=33)
    out, lse = flash_attn_func(q, k, v, causal=True, window_size=(9, -1), return_attn_probs=True)
    expected = torch.autograd.grad(out, (q, k, v), dout)
    given = [torch.empty_like(x).transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    tensors_of = (dout, q.detach(), k.detach(), v.detach(), out.detach(), lse.detach())
    options = {"is_causal": True, "window_size_left": 9, "deterministic": True}
    with torch.no_grad():
        softmax_d = fa3._flash_attn_backward(*tensors_of, None, None, None, None, None, None, *given, **options)
    assert softmax_d.numel() == 0 and all(torch.equal(*pair) for pair in zip(given, expected))

    rows = [x.flatten(0, 1) for x in tensors_of[:5]]
    packed = (*rows, lse.detach().transpose(0, 1).flatten(1))
    starts, given = ragged.starts([33, 33]), [torch.empty_like(x) for x in rows[1:4]]
    fa3._flash_attn_backward(*packed, starts, starts, None, None, 33, 33, *given, **options)
    check(given, [x.flatten(0, 1).double() for x in expected], q.dtype)


@pytest.mark.parametrize(
    "change, error, says",
    [
        ({"dk": None}, ValueError, "dk was not given"),
        ({"dq": torch.zeros(2, 9, 4, 16)}, ValueError, r"dq holds torch.float32 of shape \(2, 9, 4, 16\)"),
        ({"sm_margin": 4}, RuntimeError, "sm_margin is 4; the CPU has no multiprocessors"),
        ({"sequed_k": torch.zeros(2, dtype=torch.int32)}, NotImplementedError, "sequed_k is given"),
        ({"cu_seqlens_q": torch.zeros(3, dtype=torch.int32)}, NotImplementedError, "cu_seqlens_q is given"),
        ({"softmax_lse": torch.zeros(2, 4, 32)}, RuntimeError, r"softmax_lse has shape \[2, 4, 32\]; this call needs \[2, 4, 33\]"),
        ({"dout": torch.zeros(2, 33, 4, 8)}, RuntimeError, r"dout has shape \[2, 33, 4, 8\]"),
        ({"dout": None}, TypeError, "dout is a NoneType"),
        ({"dq": [1]}, TypeError, "dq is a list"),
        ({"softmax_lse": torch.zeros(2, 4, 33).double()}, TypeError, "softmax_lse holds torch.float64"),
        ({"out": torch.zeros(2, 33, 4, 16).half()}, RuntimeError, "out holds fp16 and q f32"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_the_inner_function_names_what_does_not_fit(change, error, says):
    q, k, v, dout = (x.detach() for x in tensors(seq_kv=33))
    given = {"dout": dout, "q": q, "k": k, "v": v, "out": q, "softmax_lse": torch.zeros(2, 4, 33)}
    given |= {"dq": torch.empty_like(q), "dk": torch.empty_like(k), "dv": torch.empty_like(v)}
    with pytest.raises(error, match=says):
        fa3._flash_attn_backward(**{**given, **change})


def test_what_has_no_gradient_raises_with_its_name():
    q, k, v, dout = tensors(dim=64, dim_v=64)
    fp8 = [x.detach().to(torch.float8_e4m3fn).requires_grad_() for x in (q, k, v)]
    with pytest.raises(NotImplementedError, match=r"flashcore::fwd has no backward pass: .*float8_e4m3fn"):
        flash_attn_func(*fp8).sum().backward()
    with pytest.raises(NotImplementedError, match="flashcore::fwd_lengths has no backward pass: .*cache"):
        flash_attn_with_kvcache(q, k, v, cache_seqlens=5).sum().backward()
    out, lse = flash_attn_func(q, k, v, return_attn_probs=True)
    with pytest.raises(NotImplementedError, match=r"a gradient of lse, .*lse\.detach\(\)"):
        (out.sum() + lse.sum()).backward()
    with pytest.raises(RuntimeError, match="dtype is e4m3; the backward pass takes f32, fp16 and bf16"):
        ops.call("bwd", dout, *fp8, dout, dout, numbers=(1.0,))


def test_second_derivatives_are_refused():
    q, k, v, dout = tensors(seq_kv=33)
    first = torch.autograd.grad(flash_attn_func(q, k, v), (q, k, v), dout, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"flashcore::bwd has no backward pass: second derivatives"):
        first[0].sum().backward()
    rows, starts = [x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v)], ragged.starts([33, 33])
    out = flash_attn_varlen_func(*rows, starts, starts, 33, 33)
    (first,) = torch.autograd.grad(out, rows[:1], torch.ones_like(out), create_graph=True)
    with pytest.raises(NotImplementedError, match=r"flashcore::bwd has no backward pass: second"):
        first.sum().backward()


def test_forward_mode_is_refused_by_name():
    q, k, v = (torch.randn(1, 5, 2, 16) for _ in range(3))
    with pytest.raises(NotImplementedError, match="a derivative in forward mode is asked for"):
        torch.func.jvp(lambda q: flash_attn_func(q, k, v), (q,), (torch.ones_like(q),))
    with pytest.raises(NotImplementedError, match="a gradient is asked for by a transform of torch.func"):
        torch.func.grad(lambda q: flash_attn_func(q, k, v).sum())(q)


def test_nothing_is_kept_where_no_gradient_is_recorded():
    q, k, v, _ = tensors()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape), lambda x: x):
        for mode in (torch.no_grad(), torch.inference_mode()):
            with mode:
                assert not flash_attn_func(q, k, v).requires_grad
        assert not flash_attn_func(*(x.detach() for x in (q, k, v))).requires_grad
        assert kept == []
        out, lse = flash_attn_func(q, k, v, return_attn_probs=True)
    assert kept == [x.shape for x in (q, k, v, out, lse)]


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    q, k, v, dout = (x.detach() for x in tensors(device, seq_kv=33))
    for numbers in [(0.25, True, -1, -1, 0.0, 0), (0.5, False, 4, 2, 3.0, 4)]:
        out, lse = ops.call("fwd", q, k, v, numbers=numbers)
        torch.library.opcheck(ops.operator("bwd"), ops.arguments("bwd", dout, q, k, v, out, lse, numbers=numbers))
    gradients = ops.call("bwd", dout, q, k, v, out, lse, numbers=numbers)
    assert all(x.transpose(1, 2).is_contiguous() for x in gradients)
    # The other checks ask for a gradient of lse, too.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    recorded = ops.arguments("fwd", q.clone().requires_grad_(), k, v, numbers=numbers)
    torch.library.opcheck(ops.operator("fwd"), recorded, test_utils=checks)

    dout, q, k, v = (x.flatten(0, 1) for x in (dout, q, k, v))
    starts, used = ragged.starts([30, 36], device), ragged.int32([30, 20], device)
    for given in ({}, {"seqused_q": used, "seqused_k": used}):
        given |= {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "numbers": (0.25, True)}
        given |= {"max_seqlen_q": 36, "max_seqlen_k": 36}
        out, lse = ops.call("fwd_lengths", q, k, v, **given)
        out, lse = out.nan_to_num(), lse.nan_to_num()
        torch.library.opcheck(ops.operator("bwd"), ops.arguments("bwd", dout, q, k, v, out, lse, **given))


def test_autograd_keeps_what_gradients_need():
    """Not the tensors of an operator that are not given: each would cost a call of it."""
    q, k, v = (x.detach().requires_grad_() for x in tensors()[:3])
    out, lse = ops.call("fwd", q, k, v, numbers=(0.25,))
    assert [x.shape for x in out.grad_fn.saved_tensors] == [x.shape for x in (q, k, v, out, lse)]
    bounds = {"max_seqlen_q": q.shape[1], "max_seqlen_k": k.shape[1]}
    starts = [ragged.starts([x.shape[1]] * x.shape[0]) for x in (q, k)]
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out, _ = ops.call("fwd_lengths", *packed, numbers=(0.25,), cu_seqlens_q=starts[0], cu_seqlens_k=starts[1], **bounds)
    assert len(out.grad_fn.saved_tensors) == 9  # and four arrays of lengths



class Block(torch.nn.Module):
    """A projection, attention and a residual, so that there is something to fuse around the operators."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 3 * 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).unbind(2)
        return x + torch.relu(flash_attn_func(q, k, v, causal=True)).flatten(2)


@pytest.mark.parametrize("device", DEVICES)
def test_training_compiles_without_graph_breaks_and_without_recompiling_for_lengths(device):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    block = Block().to(device)
    compiled = torch.compile(block, backend="inductor", fullgraph=True, dynamic=True)
    for length in (7, 64, 33):
        x = torch.randn(2, length, 64, device=device, requires_grad=True)
        parameters = (x, *block.parameters())
        expected = torch.autograd.grad(block(x).square().sum(), parameters)
        gradients = torch.autograd.grad(compiled(x).square().sum(), parameters)
        torch.testing.assert_close(gradients, expected, atol=1e-3, rtol=1e-4)
        assert counters["stats"]["unique_graphs"] == 1


def test_packed_sequences_compile():
    torch._dynamo.reset()
    q, k, v, dout = (x.detach().flatten(0, 1) for x in tensors(seq_kv=33))
    starts = ragged.starts([30, 36])
    call = lambda q, k, v: flash_attn_varlen_func(q * 2, k, v, starts, starts, 36, 36, causal=True)
    q.requires_grad_()
    (want,) = torch.autograd.grad(call(q, k, v), q, dout)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(q, k, v), q, dout)[0], want)


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_bounds_that_a_compiled_function_computes():
    torch._dynamo.reset()
    q, k, v, _ = (x.detach().flatten(0, 1) for x in tensors(seq_kv=33))

    def call(q, k, v, starts):
        longest = int((starts[1:] - starts[:-1]).max())
        return flash_attn_varlen_func(q, k, v, starts, starts, longest, longest, causal=True)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for lengths in ([30, 36], [60, 6]):
        starts = ragged.starts(lengths)
        torch.testing.assert_close(compiled(q, k, v, starts), call(q, k, v, starts))


@cuda
def test_a_kernel_without_tensor_cores_is_told_once():
    import subprocess
    import sys

    script = """
import warnings, torch
from flashcore_attn.flash_attn_interface import flash_attn_func
q = torch.randn(1, 64, 2, 64, device="cuda", requires_grad=True)  # float32: family scalar
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    for _ in range(3):
        flash_attn_func(q, q, q).sum().backward()
print([str(x.message) for x in told if "uses no tensor cores" in str(x.message)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout + done.stderr).count("uses no tensor cores") == 1
    q = torch.empty(1, 64, 2, 64, device="meta")
    assert slow_backward(q, q, q, device=torch.device("cuda", 0)).startswith("the backward")


@cuda
@pytest.mark.parametrize("head_dim", [64, 80, 96, 192, 256])
def test_tensor_cores_whatever_is_asked_for(head_dim):
    q = torch.empty(1, 512, 8, head_dim, dtype=torch.bfloat16, device="meta")
    for how in ({}, {"deterministic": True}, {"softcap": 20.0}, {"window": (100, 0)}, {"packed": True}):
        assert slow_backward(q, q, q, device=torch.device("cuda", 0), **how) is None, how


def test_whether_the_same_bits_are_asked_for_reaches_the_operators(monkeypatch):
    from flashcore_attn import _operators

    asked = []

    def spy(*given, operator=_operators._bwd):
        asked.append(given[10 + 7])  # after tensors and numbers
        return operator(*given)

    monkeypatch.setattr(_operators, "_bwd", spy)
    q, dout = (torch.randn(1, 8, 2, 16) for _ in range(2))
    q.requires_grad_()
    starts = torch.tensor([0, 8], dtype=torch.int32)
    for deterministic in (False, True):
        flash_attn_func(q, q, q, deterministic=deterministic).backward(dout)
        packed = [x[0] for x in (q, q, q)]
        flash_attn_varlen_func(*packed, starts, starts, 8, 8, deterministic=deterministic).backward(dout[0])
    assert asked == [False, False, True, True]
