"""Calls of plain tensors go round PyTorch's dispatcher; what anything else could see or must resolve does not."""

import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flashcore_attn  # noqa: E402
import flashcore_attn.torch as fc  # noqa: E402
import ops  # noqa: E402
from flashcore_attn import _native, _operators  # noqa: E402
from flashcore_attn.flash_attn_interface import flash_attn_func  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available() or not flashcore_attn.devices(), reason="there is no GPU"
))]  # fmt: skip
fwd = torch.ops.flashcore.fwd.default


@pytest.fixture(params=DEVICES)
def tensors(request):
    torch.manual_seed(0)
    return [torch.randn(2, n, h, 64, device=request.param, dtype=torch.bfloat16) for n, h in ((9, 4), (17, 2), (17, 2))]


class Counted:
    def __init__(self, monkeypatch):
        self.calls = 0

        def counting(*args, **kwargs):
            self.calls += 1
            return fwd(*args, **kwargs)

        monkeypatch.setattr(_operators, "_fwd", counting)


def test_it_is_what_the_operator_computes(monkeypatch, tensors):
    q, k, v = tensors
    for options, numbers in (
        ({}, (0.125, False, -1, -1, 0.0)),
        ({"causal": True, "softmax_scale": 0.3}, (0.3, True, -1, -1, 0.0)),
        ({"window_size": (4, 2), "softcap": 7.0}, (0.125, False, 4, 2, 7.0)),
    ):
        want = ops.call("fwd", q, k, v, numbers=numbers)
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            got = flash_attn_func(q, k, v, return_attn_probs=True, **options)
            assert counted.calls == 0
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, atol=0, rtol=0)
            assert a.stride() == b.stride() and a.dtype == b.dtype and a.device == b.device
    with torch.inference_mode():
        assert flash_attn_func(*tensors).is_inference()


def test_gradients_are_recorded(monkeypatch, tensors):
    grads = []
    for direct in (True, False):
        inputs = [x.clone().requires_grad_() for x in tensors]
        with monkeypatch.context() as patch:
            if not direct:
                patch.setattr(_operators, "is_observed", lambda: True)
            out, lse = flash_attn_func(*inputs, causal=True, return_attn_probs=True)
        assert out.requires_grad and lse.requires_grad
        out.backward(torch.ones_like(out))
        grads.append([x.grad for x in inputs])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, atol=0.05, rtol=0.02)
    with torch.no_grad():
        assert not flash_attn_func(*inputs).requires_grad
    with pytest.raises(NotImplementedError, match="a gradient of lse"):
        flash_attn_func(*inputs, return_attn_probs=True)[1].sum().backward()


class Seen:
    def __init__(self):
        self.names = []


class Dispatch(Seen, TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class Function(Seen, TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Dispatch, Function])
def test_modes_see_the_operator(mode, tensors):
    want = flash_attn_func(*tensors)
    with mode() as seen:
        got = flash_attn_func(*tensors)
    assert any("flashcore.fwd" in name for name in seen.names), seen.names
    torch.testing.assert_close(got, want, atol=0, rtol=0)


def test_the_profiler_lists_the_operator(tensors):
    with torch.profiler.profile() as profile:
        flash_attn_func(*tensors)
    assert any(event.key == "flashcore::fwd" for event in profile.key_averages())


class Derived(torch.Tensor):
    pass


def test_what_is_not_plain_goes_to_the_operator(monkeypatch, tensors):
    q, k, v = tensors
    want = flash_attn_func(q, k, v)
    counted = Counted(monkeypatch)
    negated = torch._neg_view(-q)
    assert negated.is_neg()
    torch.testing.assert_close(flash_attn_func(negated, k, v), want, atol=0, rtol=0)
    assert counted.calls == 1
    got = flash_attn_func(q.as_subclass(Derived), k, v)
    assert counted.calls == 2 and isinstance(got, Derived)
    spread = torch.empty(*q.shape[:3], 128, dtype=q.dtype, device=q.device)[..., ::2].copy_(q)
    torch.testing.assert_close(flash_attn_func(spread, k, v), want, atol=0, rtol=0)
    for wrong in ((q[0], k, v), (q, k.float(), v), (q, k[:1], v), (q[..., :60], k[..., :60], v)):
        assert _native.call(wrong, ()) is None
        with pytest.raises(RuntimeError):
            flash_attn_func(*wrong)
    for numbers in ((None, 1.5), ("0.3",), (None, False, 0.5), (None, False, -1, -1, 0.0, 0, 1), (None, *(False,) * 13)):
        assert _native.call((q, k, v), numbers) is None, numbers
    assert _native.call((q, k, [1]), ()) is None and _native.call((q, k), ()) is None
    torch.testing.assert_close(_native.call((q, k, v), ())[0], want, atol=0, rtol=0)


def test_sdpa(tensors):
    q, k, v = (x.transpose(1, 2) for x in tensors)
    with torch.no_grad(), fc.activated(strict=True):
        for query in (q, q.contiguous()):
            out = torch.nn.functional.scaled_dot_product_attention(query, k, v, enable_gqa=True)
            want = flash_attn_func(*tensors)
            torch.testing.assert_close(out.transpose(1, 2), want, atol=0, rtol=0)
            assert out.stride() == torch.empty_like(query).stride()


def test_attention_refuses_by_name_what_memory_does_not_hold(tensors):
    q, k, v = tensors
    with pytest.raises(ValueError, match="^q is a lazily negated view"):
        flashcore_attn.attention(torch._neg_view(q), k, v)
    q.requires_grad_()
    with pytest.raises(ValueError, match="^q requires a gradient"):
        flashcore_attn.attention(q, k, v)
    with torch.no_grad():
        want = flash_attn_func(q, k, v)
        torch.testing.assert_close(flashcore_attn.attention(q, k, v), want, atol=0, rtol=0)
        out = torch.empty_like(want)
        assert flashcore_attn.attention(q, k, v, out=out) is out
        torch.testing.assert_close(out, want, atol=0, rtol=0)
        with pytest.raises(ValueError, match="^out shares memory with q"):
            flashcore_attn.attention(q, k, v, out=q)


def test_numbers_for_bools_are_served(monkeypatch, tensors):
    want = flash_attn_func(*tensors, causal=True, return_attn_probs=True)
    counted = Counted(monkeypatch)
    for causal in (True, 1):
        for a, b in zip(flash_attn_func(*tensors, causal=causal, return_attn_probs=2), want):
            torch.testing.assert_close(a, b, atol=0, rtol=0)
    assert counted.calls == 1  # causal=1
    q, k, v = (x.transpose(1, 2) for x in tensors)
    with torch.no_grad():
        out = _operators.forward_bhsd(q, k, v, None, True, -1, -1, 0.0)
        torch.testing.assert_close(out, want[0], atol=0, rtol=0)
        assert _native.call((q, k, v), (0.125, 1, -1, -1, 0.0, ops.BHSD, False)) is None
        torch.testing.assert_close(_operators.forward_bhsd(q, k, v, 0.125, 1, -1, -1, 0), want[0], atol=0, rtol=0)


def test_memory_that_another_thread_takes_away_is_held():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2048, 4, 64) for _ in range(3))
    call = {
        "flash_attn_func": lambda: flash_attn_func(q, k, v),
        "attention": lambda: flashcore_attn.attention(q, k, v),
        "bhsd": lambda: _operators.forward_bhsd(*(x.transpose(1, 2) for x in (q, k, v)), None, False, -1, -1, 0.0),
    }
    with torch.no_grad():
        for name, run in call.items():
            want, data = run(), k.data
            del data
            kept, stop = k.clone(), threading.Event()

            def replace():
                while not stop.is_set():
                    k.data = kept.clone()  # the same values, in other memory
                    junk = [torch.full_like(kept, float("nan")) for _ in range(2)]
                    del junk

            thread = threading.Thread(target=replace)
            thread.start()
            try:
                for _ in range(5):
                    torch.testing.assert_close(run(), want, atol=0, rtol=0, msg=name)
            finally:
                stop.set()
                thread.join()


@pytest.fixture
def no_memory(request):
    """No more than a GiB for what is new."""
    if request.param == "cuda":
        torch.cuda.set_per_process_memory_fraction(1e-3)
        yield "cuda"
        torch.cuda.set_per_process_memory_fraction(1.0)
        return
    resource = pytest.importorskip("resource", reason="limits of memory are those of Unix")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30), limits[1]))
    yield "cpu"
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.skipif(sys.platform != "linux", reason="reads how much memory a process has")
@pytest.mark.parametrize("no_memory", DEVICES, indirect=True)
def test_memory_that_there_is_not_is_asked_for_once(monkeypatch, no_memory):
    device = no_memory
    q, k, v = (torch.empty(1, 1, 1, 64, device=device, dtype=torch.bfloat16).expand(1, n, 1, 64) for n in (1 << 25, 1, 1))
    counted = Counted(monkeypatch)
    with pytest.raises(torch.OutOfMemoryError if device == "cuda" else RuntimeError, match="^cannot allocate"):
        flash_attn_func(q, k, v)
    assert counted.calls == 0
    if device == "cuda":  # PyTorch's own message would tell of a second time
        with pytest.raises(torch.OutOfMemoryError, match="^cannot allocate"):
            flashcore_attn.attention(q, k, v)


def test_all_that_attention_is_given_goes_round_the_dispatcher(tensors, monkeypatch):
    """Packed rows, caches, sinks and slopes too: the same bits as the operator's."""
    q, k, v = tensors
    device = q.device
    starts = {"cu_seqlens_q": torch.tensor([0, 9, 18]), "cu_seqlens_k": torch.tensor([0, 17, 34])}
    starts = {name: x.to(device, torch.int32) for name, x in starts.items()}
    packed = {**starts, "max_seqlen_q": 9, "max_seqlen_k": 17}
    rows = [x.flatten(0, 1) for x in tensors]
    used = {"seqused_k": torch.tensor([5, 17], dtype=torch.int32, device=device), "max_seqlen_k": 17}
    heads = {"sinks": torch.randn(4, device=device), "alibi_slopes": torch.rand(2, 4, device=device)}
    for given, more in ((tensors, heads), (rows, packed), (rows, {**packed, **heads}), (tensors, used)):
        with monkeypatch.context() as patch:
            for name in ("_fwd", "_fwd_lengths"):
                patch.setattr(_operators, name, None)
            got = _operators.forward(*given, causal=True, **more)
        with monkeypatch.context() as patch:
            patch.setattr(_operators, "direct", lambda *given: None)
            want = _operators.forward(*given, causal=True, **more)
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, atol=0, rtol=0)
            assert a.stride() == b.stride() and a.dtype == b.dtype


def test_schemas_are_what_the_table_says():
    """The number of operators, and that each takes what the table lists, in its order."""
    assert len(ops.OPERATORS) == 5
    for name, (tensors, numbers) in ops.OPERATORS.items():
        arguments = ops.operator(name)._schema.arguments
        assert [x.name for x in arguments] == [*tensors, *numbers], name
        assert [str(x.type) == "Tensor" for x in arguments] == [True] * len(tensors) + [False] * len(numbers)
        overloads = getattr(torch.ops.flashcore, name).overloads()
        assert overloads == ["default"], overloads
