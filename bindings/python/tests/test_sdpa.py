"""`scaled_dot_product_attention` on FlashCore: the same results as PyTorch's own, and nothing left behind."""

import concurrent.futures
import itertools
import threading
import warnings

import flashcore_attn
import pytest
import reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not hasattr(torch.library, "get_kernel"):
    pytest.skip("this PyTorch has no torch.library.get_kernel", allow_module_level=True)

import flashcore_attn.torch as fc  # noqa: E402  (needs PyTorch)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
cuda = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
ONES = torch.ones(5, 5, dtype=torch.bool)


def tensors(seq_q=33, seq_kv=33, heads=4, kv_heads=4, dim=16, dense=True, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)

    def draw(seq, heads):
        x = torch.randn(2, seq, heads, dim, generator=generator).to(device, dtype).transpose(1, 2)
        return x.contiguous() if dense else x

    return draw(seq_q, heads), draw(seq_kv, kv_heads), draw(seq_kv, kv_heads)


@pytest.fixture(autouse=True)
def fresh():
    fc._warned.clear()
    yield
    assert not fc.is_active()


class Counted:
    """Counts the calls that FlashCore's operator computes."""

    def __init__(self, monkeypatch):
        self.calls, forward, direct = 0, fc.forward, fc._direct

        def counting(*args, **kwargs):
            self.calls += 1
            return forward(*args, **kwargs)

        def counting_direct(*args):
            results = direct(*args)
            self.calls += results is not None
            return results

        monkeypatch.setattr(fc, "forward", counting)
        monkeypatch.setattr(fc, "_direct", counting_direct)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("seq_q, seq_kv", [(33, 33), (20, 33), (33, 20), (1, 33)])
def test_equals_pytorch(monkeypatch, seq_q, seq_kv, is_causal, kv_heads, dense):
    q, k, v = tensors(seq_q, seq_kv, kv_heads=kv_heads, dense=dense)
    options = {"is_causal": is_causal, "enable_gqa": kv_heads != 4, "scale": 0.3}
    want = sdpa(q, k, v, **options)
    counted = Counted(monkeypatch)
    with fc.activated(strict=True):
        out = sdpa(q, k, v, **options)
    assert counted.calls == 1
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
    strides = zip(out.shape, out.stride(), torch.empty_like(q).stride())
    assert all(size == 1 or ours == theirs for size, ours, theirs in strides)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_strides_are_pytorchs_whatever_the_order_of_dimensions(order):
    """Compiled code relies on them. `nn.MultiheadAttention` has the order (seq, batch, heads)."""
    in_memory = [*order, 3]
    drawn = [x.permute(in_memory).contiguous() for x in tensors(5, 7, heads=3, kv_heads=3)]
    q, k, v = (x.permute([in_memory.index(dim) for dim in range(4)]) for x in drawn)
    want = sdpa(q, k, v), *gradients_of(sdpa, q, k, v)
    with fc.activated(strict=True):
        got = sdpa(q, k, v), *gradients_of(sdpa, q, k, v)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert [x.stride() for x in got] == [x.stride() for x in want]
    assert got[0].permute(in_memory).is_contiguous()


EXPANDED = [dims for count in (1, 2, 3) for dims in itertools.combinations(range(3), count)]
ORDERS = list(itertools.permutations(range(3)))
DEVICES = [("cpu", torch.float32), pytest.param("cuda", torch.float16, marks=cuda)]


def expanded(order, dims, of_kv=True, device="cpu", dtype=torch.float32):
    """q whose dimensions `dims` have stride 0, and with `of_kv` also k and v; in memory dimensions are in this order."""
    in_memory = [*order, 3]
    drawn = tensors(6, 6, heads=3, kv_heads=3, dtype=dtype, device=device)
    drawn = [x.permute(in_memory).contiguous().permute([in_memory.index(dim) for dim in range(4)]) for x in drawn]
    first = tuple(slice(0, 1) if dim in dims else slice(None) for dim in range(4))
    return [x[first].expand(x.shape) if of_kv or n == 0 else x for n, x in enumerate(drawn)]


@pytest.mark.parametrize("device, dtype", DEVICES)
@pytest.mark.parametrize("of_kv", [False, True])
@pytest.mark.parametrize("dims", EXPANDED)
def test_strides_where_dimensions_are_expanded(dims, of_kv, device, dtype):
    """`empty_like` has its own place for a dimension of stride 0. Models view the output, and compiled code checks it."""
    sdpa_kernel, backend = torch.nn.attention.sdpa_kernel, torch.nn.attention.SDPBackend.FLASH_ATTENTION
    name = "_scaled_dot_product_flash_attention" + "_for_cpu" * (device == "cpu")
    forward, backward = (getattr(torch.ops.aten, f"{name}{which}").default for which in ("", "_backward"))

    def both(dout, q, k, v):
        out, lse, *rest = forward(q, k, v)
        return out, lse, *backward(dout, q, k, v, out, lse, *rest[:4], 0.0, False, *rest[4:6])

    for order in ORDERS:
        given = expanded(order, dims, of_kv, device, dtype)
        with sdpa_kernel(backend):
            want = sdpa(*given), *gradients_of(sdpa, *given)
            with fc.activated(strict=True):
                got = sdpa(*given), *gradients_of(sdpa, *given)
        tolerance = 1e-5 if device == "cpu" else 4e-3
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)
        assert got[0].stride() == torch.empty_like(given[0]).stride(), order
        with fc.activated(strict=True):
            real = both(torch.ones_like(got[0]), *given)
            with FakeTensorMode() as mode:
                fake = both(*(mode.from_tensor(x) for x in (got[0], *given)))
        assert [x.stride() for x in real] == [x.stride() for x in fake], order
        if device == "cpu":  # there PyTorch's own kernel has the strides that it declares
            assert [x.stride() for x in got] == [x.stride() for x in want], order


@pytest.mark.parametrize("device, dtype", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_functions_of_expanded_dimensions(backend, device, dtype):
    """What the strides are is known while it is traced: a view is then of what the kernel returns."""
    torch._dynamo.reset()
    given = [expanded(order, dims, True, device, dtype)[0] for order in ORDERS[:2] for dims in EXPANDED[:3]]
    k, v = tensors(6, 6, heads=3, kv_heads=3, device=device, dtype=dtype)[1:]

    def call(k, v, *given):
        outs = [sdpa(q, k, v) for q in given]
        return [out.view(2, -1) if out.is_contiguous() else out.transpose(1, 2).flatten(1) for out in outs]

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    inputs = [x.detach().requires_grad_() for x in (k, v, *given)]
    want = torch.autograd.grad(sum(x.square().sum() for x in call(*inputs)), inputs)
    with fc.activated(strict=True):
        outs = compiled(*inputs)
        got = torch.autograd.grad(sum(x.square().sum() for x in outs), inputs)
    tolerance = 1e-4 if device == "cpu" else 2e-2
    torch.testing.assert_close(outs, call(*inputs), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_causal_is_aligned_top_left_as_sdpas_is():
    q, k, v = tensors(3, 5)
    with fc.activated(strict=True):
        out = sdpa(q, k, v, is_causal=True)
    torch.testing.assert_close(out[:, :, 0], v[:, :, 0])  # the first query sees the first key only


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_equals_float64(dtype):
    q, k, v = tensors(64, 100, dim=64, dtype=dtype)
    with fc.activated(strict=True):
        out = sdpa(q, k, v)
    want, _ = reference.attention(*(x.transpose(1, 2).double().numpy() for x in (q, k, v)))
    reference.check(out.transpose(1, 2).double().numpy(), want, str(dtype).removeprefix("torch."))


UNSERVED = [
    ("attn_mask is given", lambda: tensors(5, 5), {"attn_mask": ONES}),
    ("query holds torch.float64", lambda: tensors(5, 5, dtype=torch.float64), {}),
    ("head_dim is 12", lambda: tensors(5, 5, dim=12), {}),
    ("scale is not above 0", lambda: tensors(5, 5), {"scale": -0.5}),
]


@pytest.mark.parametrize("why, make, options", UNSERVED, ids=[case[0] for case in UNSERVED])
def test_pytorch_computes_what_is_not_served_with_one_warning(monkeypatch, why, make, options):
    q, k, v = make()
    want = sdpa(q, k, v, **options)
    counted = Counted(monkeypatch)
    with fc.activated():
        with pytest.warns(UserWarning, match=why):
            out = sdpa(q, k, v, **options)  # a fallback that called the operator again would never return
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sdpa(q, k, v, **options)
    assert counted.calls == 0
    torch.testing.assert_close(out, want, atol=0, rtol=0)
    with fc.activated(strict=True), pytest.raises(NotImplementedError, match=why):
        sdpa(q, k, v, **options)


def test_the_kept_kernel_is_not_reached_through_the_operator(monkeypatch):
    """The trap: a fallback by the operator's name comes back to the replacement, until the stack overflows."""
    q, k, v = tensors(5, 5)
    naive = lambda self, keys, query, key, value, dropout_p=0.0, is_causal=False, **rest: (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, **rest)
    )
    with monkeypatch.context() as patch:
        patch.setattr(fc._Replacement, "cpu", naive)
        with fc.activated(), pytest.raises(RecursionError):
            sdpa(q, k, v)
    with fc.activated(), pytest.warns(UserWarning, match="attn_mask"):
        sdpa(q, k, v, attn_mask=ONES)


def gradients_of(call, q, k, v):
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = call(*inputs)
    return torch.autograd.grad(out, inputs, torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape))


class CountedBackward(Counted):
    """Counts the calls of either direction."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.backward_calls, backward = 0, fc.backward

        def counting(*args, **kwargs):
            self.backward_calls += 1
            return backward(*args, **kwargs)

        monkeypatch.setattr(fc, "backward", counting)


@pytest.mark.parametrize("kv_heads, dense", [(4, True), (2, False)])
@pytest.mark.parametrize("seq_q, seq_kv, is_causal", [(33, 33, True), (20, 33, True), (33, 20, True), (20, 33, False)])
def test_training_equals_pytorch(monkeypatch, seq_q, seq_kv, is_causal, kv_heads, dense):
    q, k, v = tensors(seq_q, seq_kv, kv_heads=kv_heads, dense=dense)
    call = lambda *x: sdpa(*x, is_causal=is_causal, enable_gqa=kv_heads != 4, scale=0.3)
    want = gradients_of(call, q, k, v)
    counted = CountedBackward(monkeypatch)
    with fc.activated(strict=True):
        got = gradients_of(call, q, k, v)
    assert (counted.calls, counted.backward_calls) == (1, 1)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert all(a.stride() == b.stride() for a, b in zip(got, want))


def test_training_goes_through_pytorch_where_gradients_would_be_slow(monkeypatch):
    q, k, v = tensors(5, 5)
    want = gradients_of(sdpa, q, k, v)
    counted = CountedBackward(monkeypatch)
    monkeypatch.setattr(fc, "_slow", fc._slow.__wrapped__)  # which remembers nothing
    monkeypatch.setattr(fc, "slow_backward", lambda *args, **options: "its kernel is slow")
    with fc.activated():
        with pytest.warns(UserWarning, match="a gradient is asked for, and its kernel is slow"):
            got = gradients_of(sdpa, q, k, v)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gradients_of(sdpa, q, k, v)
        assert (counted.calls, counted.backward_calls) == (0, 0)
        sdpa(q, k, v)  # without a gradient
    assert counted.calls == 1
    torch.testing.assert_close(got, want, atol=0, rtol=0)
    with fc.activated(strict=True), pytest.raises(NotImplementedError, match="its kernel is slow"):
        gradients_of(sdpa, q, k, v)


def test_a_compiled_function_follows(monkeypatch):
    torch._dynamo.reset()
    q, k, v = tensors()
    compiled = torch.compile(lambda q, k, v: sdpa(q * 2, k, v, is_causal=True) + 1, fullgraph=True)
    with torch.no_grad():
        want = compiled(q, k, v)
        counted = Counted(monkeypatch)
        with fc.activated(strict=True):
            out = compiled(q, k, v)
    assert counted.calls == 1
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)


def test_training_a_compiled_function(monkeypatch):
    """Both directions follow, and either takes what the other kernel computed: strides must be as declared."""
    torch._dynamo.reset()
    q, k, v = tensors(5, 5)
    call = lambda q, k, v: sdpa(q * 2, k, v, is_causal=True)
    want = gradients_of(call, q, k, v)
    compiled = torch.compile(call, fullgraph=True)
    counted = CountedBackward(monkeypatch)
    with fc.activated(strict=True):
        torch.testing.assert_close(gradients_of(compiled, q, k, v), want, atol=1e-4, rtol=1e-4)
        q.requires_grad_()
        out = compiled(q, k, v)
    assert (counted.calls, counted.backward_calls) == (2, 1)
    out.sum().backward()  # by PyTorch
    mixed, q.grad = q.grad, None
    out = compiled(q, k, v)  # by PyTorch
    with fc.activated(strict=True):
        out.sum().backward()
    assert (counted.calls, counted.backward_calls) == (2, 2)
    torch.testing.assert_close(q.grad, mixed, atol=1e-4, rtol=1e-4)


def kernels():
    return torch._C._dispatch_dump("aten::_scaled_dot_product_flash_attention_for_cpu")


def test_nothing_is_left_behind(monkeypatch):
    before, counted = kernels(), Counted(monkeypatch)
    q, k, v = tensors()
    sdpa(q, k, v)
    assert counted.calls == 0  # importing changed nothing
    for _ in range(3):
        fc.activate()
        fc.activate()
        assert fc.is_active() and kernels() != before
        sdpa(q, k, v)
        fc.deactivate()
        fc.deactivate()
        assert not fc.is_active() and kernels() == before
    assert counted.calls == 3


def test_the_context_manager_restores_what_was():
    with pytest.raises(KeyError), fc.activated():
        raise KeyError
    assert not fc.is_active()
    fc.activate()
    with fc.activated(strict=True):
        assert fc._strict
    assert fc.is_active() and not fc._strict
    with fc.activated():
        fc.deactivate()
    assert fc.is_active()
    fc.deactivate()


@pytest.mark.parametrize("active", [False, True])
def test_blocks_of_threads_that_overlap(active):
    """The first to begin ends first: the other goes on, and restores what was before both."""
    if active:
        fc.activate()
    before, inside, first_ended = kernels(), threading.Event(), threading.Event()

    def second():
        with fc.activated(strict=True):
            inside.set()
            assert first_ended.wait(60)
            return fc.is_active(), fc._strict

    with concurrent.futures.ThreadPoolExecutor() as pool:
        with fc.activated():
            other = pool.submit(second)
            assert inside.wait(60)
        first_ended.set()
        assert other.result() == (True, True)
    assert (fc.is_active(), fc._strict) == (active, False)
    assert kernels() == before
    fc.deactivate()


def test_activations_of_many_threads():
    before = kernels()

    def blocks(_):
        for _ in range(20):
            with fc.activated():
                assert fc.is_active()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(blocks, range(8)))
    assert not fc.is_active() and kernels() == before


@pytest.mark.skipif(not hasattr(torch._C, "_set_sdp_priority_order"), reason="this PyTorch has no order of backends")
@pytest.mark.parametrize("on_gpu", [False, pytest.param(True, marks=cuda)])
def test_the_flash_backend_is_the_first(monkeypatch, on_gpu):
    """On H100 and H200 PyTorch would choose cuDNN's."""
    flash, efficient, math, cudnn = 1, 2, 0, 3
    get, put = torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order
    later = []
    if on_gpu:
        q, k, v = tensors(dim=64, dtype=torch.float16, device="cuda")
        sdpa(q, k, v)
    else:
        monkeypatch.setattr(fc, "_waits", [])
        monkeypatch.setattr(torch.cuda, "_lazy_call", later.append)
        for asked in ("is_available", "is_initialized"):
            monkeypatch.setattr(torch.cuda, asked, lambda: False)
    own = get()
    rest = [x for x in own if x not in (flash, efficient, math, cudnn)]
    try:
        for before in ([cudnn, flash, efficient, math, *rest], [efficient, cudnn, math, flash, *rest]):
            put(before)
            with fc.activated(strict=True):
                for call in later:  # PyTorch begins to use a GPU
                    call()
                assert get() == [flash, *(x for x in before if x != flash)]
                if on_gpu:
                    counted = Counted(monkeypatch)
                    sdpa(q, k, v)
                    assert counted.calls == 1
            assert get() == before
        with fc.activated():
            for call in later:
                call()
            put([math, flash, *(x for x in own if x not in (math, flash))])
        assert get()[0] == math, "an order that was chosen meanwhile stays"
        for call in later:  # when it is not active any more
            call()
        assert get()[0] == math
        assert len(later) == (not on_gpu)
    finally:
        put(own)


def test_pytorchs_own_switch():
    from torch.nn import attention

    assert "flashcore" in attention.list_flash_attention_impls()
    attention.activate_flash_attention_impl("flashcore")
    assert fc.is_active() and attention.current_flash_attention_impl() == "flashcore"
    attention.restore_flash_attention_impl()
    assert not fc.is_active()
    with fc.activated():
        assert attention.current_flash_attention_impl() == "flashcore"
    assert attention.current_flash_attention_impl() is None


@cuda
@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dense", [True, False])
def test_cuda_equals_pytorch(monkeypatch, dense, is_causal, kv_heads):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = tensors(256, 256, 8, kv_heads, 64, dense, torch.float16, "cuda")
    options = {"is_causal": is_causal, "enable_gqa": kv_heads != 8}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        want = sdpa(q, k, v, **options)
        counted = Counted(monkeypatch)
        with fc.activated(strict=True):
            out = sdpa(q, k, v, **options)
        with fc.activated(), pytest.warns(UserWarning, match="dropout"):
            sdpa(q, k, v, dropout_p=0.5, **options)
    assert counted.calls == 1 and out.stride() == want.stride()
    torch.testing.assert_close(out, want, atol=2e-3, rtol=2e-3)


@cuda
@pytest.mark.parametrize("dense", [True, False])
def test_cuda_training_equals_pytorch(dense):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = tensors(256, 256, 8, 8, 64, dense, torch.float16, "cuda")
    call = lambda *x: sdpa(*x, is_causal=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        want = gradients_of(call, q, k, v)
        with fc.activated():  # by FlashCore where its kernel uses tensor cores, else by PyTorch with a warning
            got = gradients_of(call, q, k, v)
    torch.testing.assert_close(got, want, atol=2e-3, rtol=2e-3)
    assert all(a.stride() == b.stride() for a, b in zip(got, want))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_strict_sees_what_pytorch_gives_to_other_backends(device, mode):
    """Dropout on the CPU, for example; not what the program itself gives to them."""
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v = tensors(5, 5, dtype=dtype, device=device)
    if mode is torch.enable_grad:
        q.requires_grad_()
    columns = q.transpose(2, 3).contiguous().transpose(2, 3)  # whose last dimension is not contiguous
    others = [(q, {"dropout_p": 0.5}), (columns, {}), (q, {"attn_mask": torch.rand(5, 5, device=device, dtype=dtype)})]
    before = torch._C._dispatch_dump("aten::_scaled_dot_product_attention_math")
    gradients = want = gradients_of(sdpa, q, k, v) if mode is torch.enable_grad else ()
    with mode(), fc.activated():
        for query, options in others[:2]:
            sdpa(query, query, query, **options)
        with fc.activated(strict=True):
            for query, options in others:
                with pytest.raises(NotImplementedError, match="does not serve"):
                    sdpa(query, query, query, **options)
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                out = sdpa(q, k, v)
                if mode is torch.enable_grad:
                    with warnings.catch_warnings():
                        warnings.simplefilter("error")
                        gradients = gradients_of(sdpa, q, k, v)
            torch.testing.assert_close(out, sdpa(q, k, v), atol=2e-3, rtol=2e-3)
        sdpa(q, q, q, dropout_p=0.5)
    torch.testing.assert_close(gradients, want, atol=4e-3, rtol=4e-3)
    assert torch._C._dispatch_dump("aten::_scaled_dot_product_attention_math") == before
