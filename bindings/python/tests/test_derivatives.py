"""Derivatives that are not computed are refused by name: none is silently missing or 0."""

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from flashcore_attn import _operators  # noqa: E402  (needs PyTorch)
from flashcore_attn.flash_attn_interface import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from torch.autograd import forward_ad  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

I32 = lambda *values: torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator)
    return draw(2, 3, 4, 16), draw(2, 8, 2, 16), draw(2, 8, 2, 16)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_keeps_gradients(tensors):
    q, k, v = (torch.stack((x, x + 1)).requires_grad_() for x in tensors)
    out = torch.vmap(flash_attn_func)(q, k, v)
    gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    for n in range(2):
        one = [x[n].detach().requires_grad_() for x in (q, k, v)]
        want = flash_attn_func(*one)
        torch.testing.assert_close(out[n], want)
        for a, b in zip(gradients, torch.autograd.grad(want, one, torch.ones_like(want))):
            torch.testing.assert_close(a[n], b)
    out = torch.vmap(lambda q: flash_attn_with_kvcache(q, *tensors[1:], cache_seqlens=5))(q)
    with pytest.raises(NotImplementedError, match="flashcore::fwd_lengths has no backward pass"):
        out.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_something_else_change_nothing(tensors):
    q, k, v = tensors
    used, padding = I32(6, 7), I32(1, 2)
    padded = lambda used, padding: flash_attn_with_kvcache(q, k, v, cache_seqlens=used, cache_leftpad=padding)
    out = torch.vmap(padded)(used.expand(3, 2), padding.expand(3, 2))
    torch.testing.assert_close(out, padded(used, padding).expand(3, *q.shape))
    parameter = torch.nn.Parameter(q)
    cache = lambda: torch.zeros(2, 16, 2, 16)
    appends = lambda: flash_attn_with_kvcache(parameter, cache(), cache(), k, v, cache_seqlens=used)
    weighed = torch.vmap(lambda weight: appends() * weight)(torch.ones(2, 1))
    torch.testing.assert_close(weighed, appends().expand(2, *q.shape))


def test_numbers_that_a_compiled_function_computes(tensors):
    q, k, v = tensors
    call = lambda used: flash_attn_with_kvcache(q, k, v, cache_seqlens=used.max().item())
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for used in (I32(5, 6), I32(3, 8)):
            torch.testing.assert_close(compiled(used), call(used))
    call = lambda qkv: flash_attn_func(*qkv.split([4, 2, 2], dim=2), sm_margin=torch.tensor(0))
    torch.testing.assert_close(call(torch.cat((k, k, k, v), dim=2)), flash_attn_func(torch.cat((k, k), dim=2), k, v))


def test_what_is_not_q_k_or_v_has_no_gradient(tensors):
    q, k, v = tensors
    values = torch.zeros(4, requires_grad=True)
    starts = {"cu_seqlens_q": I32(0, 3, 6), "cu_seqlens_k": I32(0, 8, 16), "max_seqlen_q": 3, "max_seqlen_k": 8}
    rows = [x.flatten(0, 1) for x in tensors]
    scale = torch.ones(2, 2, requires_grad=True)
    fp8 = [x.to(torch.float8_e4m3fn) for x in tensors]
    cos, sin = torch.rand(8, 4, requires_grad=True), torch.rand(8, 4)
    new = {"k": k[:, :1], "v": v[:, :1], "cache_seqlens": 3, "rotary_cos": cos, "rotary_sin": sin}
    for call, name in (
        (lambda: _operators.forward(q, k, v, sinks=values)[0], "fwd"),
        (lambda: _operators.forward(q, k, v, alibi_slopes=values)[0], "fwd"),
        (lambda: _operators.forward(*rows, sinks=values, **starts)[0], "fwd_lengths"),
        (
            lambda: _operators.forward(q, k, v, seqused_k=I32(3, 5), max_seqlen_k=8, sinks=values)[0],
            "fwd_lengths",
        ),
        (lambda: flash_attn_func(*fp8, q_descale=scale), "fwd"),
        (lambda: flash_attn_with_kvcache(q, k.clone(), v.clone(), **new), "fwd_lengths"),
    ):
        with pytest.raises(NotImplementedError, match=f"flashcore::{name} has no backward pass"):
            call().sum().backward()
        with torch.no_grad():
            assert not call().requires_grad


def test_forward_mode_is_refused_by_name(tensors):
    q, k, v = tensors
    new = k[:, :1]
    scale = torch.ones(2, 2)
    fp8 = [x.to(torch.float8_e4m3fn) for x in tensors]
    append = lambda new: flash_attn_with_kvcache(q, k.clone(), v.clone(), new, new, cache_seqlens=3)
    rows = (k.flatten(0, 1), v.flatten(0, 1), I32(0, 3, 6), I32(0, 8, 16), 3, 8)
    for function, x in (
        (lambda q: flash_attn_func(q, k, v), q),
        (lambda q: flash_attn_varlen_func(q, *rows), q.flatten(0, 1)),
        (lambda q: flash_attn_with_kvcache(q, k, v, cache_seqlens=3), q),
        (append, new),
        (lambda scale: flash_attn_func(*fp8, k_descale=scale), scale),
        (lambda sinks: _operators.forward(q, k, v, sinks=sinks)[0], torch.zeros(4)),
    ):
        with pytest.raises(NotImplementedError, match="a derivative in forward mode is asked for"):
            torch.func.jvp(function, (x,), (torch.ones_like(x),))
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="in forward mode"):
            function(forward_ad.make_dual(x, torch.ones_like(x)))
        with forward_ad.dual_level():
            function(x)
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="^q has a derivative in forward mode"):
            flashcore_attn.attention(forward_ad.make_dual(q, q), k, v)
        flashcore_attn.attention(q, k, v)


def test_transforms_of_caches_are_refused_by_name(tensors):
    q, k, v = tensors
    append = lambda new: flash_attn_with_kvcache(q, k.clone(), v.clone(), new, new, cache_seqlens=3)
    for function, x in ((lambda q: flash_attn_with_kvcache(q, k, v, cache_seqlens=3), q), (append, k[:, :1])):
        with pytest.raises(NotImplementedError, match="a gradient is asked for by a transform of torch.func"):
            torch.func.grad(lambda x: function(x).sum())(x)


def test_attention_counts_its_write(tensors):
    q, k, v = tensors
    out = torch.empty_like(q)
    flashcore_attn.attention(q, k, v, out=out)
    assert out._version == 1
    with torch.inference_mode():
        flashcore_attn.attention(q, k, v, out=torch.empty_like(q))


def test_new_keys_count_as_a_write(tensors):
    q, k_cache, v_cache = tensors
    new = {"k": k_cache[:, :1].clone(), "v": v_cache[:, :1].clone(), "cache_seqlens": 3}
    before = k_cache._version, v_cache._version
    flash_attn_with_kvcache(q, k_cache, v_cache, **new)
    assert k_cache._version > before[0] and v_cache._version > before[1]
    product = torch.ones_like(k_cache, requires_grad=True) * k_cache  # needs the cache as it is
    flash_attn_with_kvcache(q, k_cache, v_cache, **new)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():  # its tensors count no writes
        flash_attn_with_kvcache(q, k_cache.clone(), v_cache.clone(), **new)


@pytest.mark.parametrize("no_grad", [True, False])
def test_operations_are_counted_as_pytorchs(tensors, no_grad):
    q, k, v = (x.requires_grad_(not no_grad) for x in tensors)
    with FlopCounterMode(display=False) as ours:
        out = flash_attn_func(q, k, v)
        if not no_grad:
            out.sum().backward()
    first = 2 * (2 * 4 * 3 * 8 * 16) * 2
    assert ours.get_total_flops() == (first if no_grad else first + first // 2 * 5)
    with FlopCounterMode(display=False) as short, torch.no_grad():
        _operators.forward_bhsd(*(x.transpose(1, 2) for x in (q, k, v)), None, False, -1, -1, 0.0)
    assert short.get_total_flops() == first
