"""A step of decoding with plain tensors is one crossing from Python; anything else goes to the operators, alike."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flashcore_attn  # noqa: E402
from flashcore_attn import _append, _native, _operators, flash_attn_interface  # noqa: E402
from flashcore_attn.flash_attn_interface import flash_attn_with_kvcache, get_scheduler_metadata  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available() or not flashcore_attn.devices(), reason="there is no GPU"
))]  # fmt: skip
BATCH, CAPACITY, DIM = 3, 24, 64


class Step:
    def __init__(self, device, paged=False, packed=False):
        draw = torch.Generator().manual_seed(0)
        self.randn = lambda *shape: torch.randn(*shape, generator=draw).to(device, torch.bfloat16)
        self.device, self.q = device, self.randn(*((BATCH * 2,) if packed else (BATCH, 2)), 4, DIM)
        rows = (BATCH * 3, 8) if paged else (BATCH, CAPACITY)
        self.cache = [self.randn(*rows, 2, DIM) for _ in "kv"]
        self.new = {name: self.randn(BATCH, 2, 2, DIM) for name in "kv"}
        angle = torch.rand(CAPACITY, 16, generator=draw)
        self.rotary = {"rotary_cos": angle.cos(), "rotary_sin": angle.sin()}
        self.rotary = {name: x.to(device, torch.bfloat16) for name, x in self.rotary.items()}
        self.options = {"cache_seqlens": self.int32(5, 20, 0), "causal": True}
        if paged:
            self.options["page_table"] = torch.randperm(BATCH * 3, generator=draw, dtype=torch.int32).view(BATCH, 3).to(device)
        if packed:
            self.options |= {"cu_seqlens_q": self.int32(0, 2, 4, 6), "max_seqlen_q": 2}

    def int32(self, *values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def run(self, q=None, cache=None, **changed):
        """All results, and the cache then."""
        cache = [x.clone() for x in self.cache] if cache is None else cache
        options = {**self.options, **changed}
        results = flash_attn_with_kvcache(self.q if q is None else q, *cache, return_softmax_lse=True, **options)
        return [*results, *cache]


@pytest.fixture
def counted(monkeypatch):
    """The names of operators that were called."""
    calls = []
    for module, name in ((_append, "_append_kv"), (_operators, "_fwd_lengths")):
        operator = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, run=operator, name=name: calls.append(name) or run(*args))
    return calls


def plain_is_unusual(patch):
    for module in (flash_attn_interface, _operators):
        patch.setattr(module, "direct", lambda *args: None)


def same(got, want):
    assert len(got) == len(want)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, atol=0, rtol=0, equal_nan=True)
        assert a.dtype == b.dtype and a.device == b.device and a.stride() == b.stride()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paged", [False, True], ids=["", "paged"])
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_it_is_what_the_operators_compute(device, paged, packed, monkeypatch, counted):
    step = Step(device, paged, packed)
    turned = {**step.new, **step.rotary}
    changes = [
        {}, step.new, turned, {**turned, "rotary_interleaved": False}, {**turned, "causal": False},
        {**turned, "rotary_seqlens": step.int32(1, 2, 3)}, {"window_size": (4, 0)}, {"softcap": 5.0},
        {"softmax_scale": 0.3, "num_splits": 3}, {"batch_invariant": 8},
    ]  # fmt: skip
    for change in changes:
        got = step.run(**change)
        assert counted == [], change
        with monkeypatch.context() as patch:
            plain_is_unusual(patch)
            want = step.run(**change)
        assert counted, "the operators were called"
        counted.clear()
        same(got, want)
    alone = flash_attn_with_kvcache(step.q, *step.cache, **step.options)
    same([alone], step.run()[:1])
    with torch.inference_mode():
        assert step.run()[0].is_inference()
        step.run(**step.new)
    assert counted == []


class Decoding(Step):
    """Sizes whose plan has a schedule, too."""

    def __init__(self, device):
        super().__init__(device)
        lengths = torch.randint(1, 640, (5,), generator=torch.Generator().manual_seed(0), dtype=torch.int32).to(device)
        table = torch.randperm(200, dtype=torch.int32).view(5, 40).to(device)
        self.q, self.cache = self.randn(5, 1, 8, DIM), [self.randn(200, 16, 2, DIM) for _ in "kv"]
        self.new = {name: self.randn(5, 1, 2, DIM) for name in "kv"}
        self.options = {"cache_seqlens": lengths, "page_table": table, "causal": True}
        sizes = {"batch_size": 5, "max_seqlen_q": 1, "max_seqlen_k": 640, "num_heads_q": 8, "num_heads_kv": 2, "headdim": DIM}
        made = {"page_size": 16, "cache_seqlens": lengths, "max_seqlen_k_new": 1}
        self.metadata = lambda **options: get_scheduler_metadata(**sizes, **made, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_schedules(device, counted):
    step = Decoding(device)
    made = step.metadata(causal=True)
    assert made.numel() > 0
    for rotary in ({}, {name: x.repeat(640 // CAPACITY + 1, 1) for name, x in step.rotary.items()}):
        same(step.run(scheduler_metadata=made, **step.new, **rotary), step.run(**step.new, **rotary))
    assert counted == []
    with pytest.raises(NotImplementedError, match="scheduler_metadata is given; only that of flashcore's"):
        step.run(scheduler_metadata=made.clone())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_a_wrong_schedule_is_refused_before_keys_are_written(device, plain, padded, monkeypatch):
    step = Decoding(device)
    padding = {"cache_leftpad": step.int32(0, 1, 0, 1, 0)} if padded else {}
    made = step.metadata(**padding)
    if padded and made.numel() == 0:
        pytest.skip("pages of one key have no schedule here")
    if not plain:
        plain_is_unusual(monkeypatch)
    cache = [x.clone() for x in step.cache]
    with pytest.raises(RuntimeError, match="was made with causal and window_size"):
        step.run(cache=cache, scheduler_metadata=made, **step.new, **padding)
    if device == "cuda":  # of the same problem, in another stream
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), pytest.raises(RuntimeError, match="was made in another stream"):
            step.run(cache=cache, causal=False, scheduler_metadata=made, **step.new, **padding)
        torch.cuda.current_stream().wait_stream(stream)
    same(cache, step.cache)
    assert [x._version for x in cache] == [0, 0]
    options = {"causal": False, **step.new, **padding}
    same(step.run(scheduler_metadata=made, **options), step.run(**options))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_unusual_goes_to_the_operators(device, counted):
    step = Step(device)
    q, lengths = step.q, step.options["cache_seqlens"]
    new = {**step.new, **step.rotary}
    want = step.run(**new)

    class Derived(torch.Tensor):
        pass

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    spread = torch.empty(*lengths.shape, 2, dtype=torch.int32, device=device)[:, 0].copy_(lengths)
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    for change in (
        {"q": torch._neg_view(-q)},
        {"k": torch._neg_view(-step.new["k"])},
        {"cache_seqlens": torch._neg_view(-lengths)},
        {"q": q.as_subclass(Derived)},
        {"cache_seqlens": spread},
        {"q": heads_first},
        {"causal": 1},
        {"rotary_cos": torch.stack((step.rotary["rotary_cos"],) * 2, dim=-1)[..., 0]},
    ):
        got = step.run(**{**new, **change})
        assert counted.count("_append_kv") == 1, change  # what q is then may be plain
        counted.clear()
        same([x.as_subclass(torch.Tensor) for x in got], want)
    with Seen():
        same(step.run(**new), want)
    assert len(counted) == 2
    with torch.profiler.profile() as profile:
        step.run(**new)
    assert {"flashcore::append_kv", "flashcore::fwd_lengths"} <= {event.key for event in profile.key_averages()}
    for name in ("q", *new):
        counted.clear()
        tensor = (q if name == "q" else new[name]).clone().requires_grad_()
        assert step.run(**{**new, name: tensor})[0].requires_grad and len(counted) == 2, name
    for n in range(2):
        counted.clear()
        cache = [x.clone().requires_grad_(n == which) for which, x in enumerate(step.cache)]
        assert step.run(cache=cache)[0].requires_grad and counted == ["_fwd_lengths"]


@pytest.mark.parametrize("device", DEVICES)
def test_errors_are_those_of_the_operators(device, monkeypatch):
    step = Step(device, paged=True)
    table, new, rotary = step.options["page_table"], step.new, step.rotary
    wrong = [
        {"q": step.q[..., :60]}, {"q": step.q.float()}, {"q": step.q[:2]}, {"cache_seqlens": torch.zeros(BATCH).to(device)},
        {"cache_seqlens": step.int32(1, 2)}, {"page_table": table[0]}, {"page_table": step.int32()}, {"page_table": table[:2]},
        {"softmax_scale": 0.0}, {"softcap": -1.0}, {"window_size": (1, 2, 3)}, {"num_splits": -1}, {"batch_invariant": 0},
        {"max_seqlen_q": 1}, {"k": new["k"]}, {**new, "v": new["v"][:, :1]}, {**new, "k": new["k"].float()}, rotary,
        {**new, "rotary_cos": rotary["rotary_cos"]}, {**new, **{name: x[:4] for name, x in rotary.items()}},
        {**new, "k": new["k"][..., :32]}, {**new, "sm_margin": 1_000}, {**new, "softcap": -1.0}, {"cache_seqlens": "4"},
        {**new, "cu_seqlens_q": step.int32(0, 2, 4, 6)}, {"max_seqlen_q": torch.tensor([1, 2])},
    ]  # fmt: skip
    packed = {"q": step.q.flatten(0, 1), "cu_seqlens_q": step.int32(0, 2, 4, 6)}
    wrong += [{**packed, "max_seqlen_q": bound} for bound in (None, -1, 2.5, torch.tensor([1, 2]))]
    if device == "cuda":
        wrong.append({**packed, "max_seqlen_q": torch.tensor(2, device=device)})
    if device == "cpu":
        wrong += [{"cache_seqlens": step.int32(1, 2, 25)}, {**new, "cache_seqlens": step.int32(1, 2, 23)}]
    for change in wrong:
        raised = []
        for plain in (True, False):
            with monkeypatch.context() as patch:
                if not plain:
                    plain_is_unusual(patch)
                cache = [x.clone() for x in step.cache]
                with pytest.raises(Exception) as error:
                    step.run(cache=cache, **change)
                raised.append((error.type, str(error.value)))
                same(cache, step.cache)
        assert raised[0] == raised[1], change


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_a_cache_that_is_a_negated_view(name):
    step = Step("cpu")
    cache = dict(zip(("k_cache", "v_cache"), step.cache))
    cache[name] = torch._neg_view(-cache[name])
    with pytest.raises(NotImplementedError, match=f"^{name} is a lazily negated view"):
        step.run(cache=list(cache.values()), **step.new)


@pytest.mark.parametrize("device", DEVICES)
def test_writes_are_counted(device):
    step = Step(device)
    cache = [x.clone() for x in step.cache]
    step.run(cache=cache)
    assert [x._version for x in cache] == [0, 0]
    step.run(cache=cache, **step.new)
    assert [x._version for x in cache] == [1, 1]
    with torch.inference_mode():
        step.run(cache=cache, **step.new)
        kept = [x.clone() for x in cache]
    step.run(cache=kept, **step.new)  # of inference mode, outside of it
    assert [x._version for x in cache] == [2, 2]


def test_numbers_of_another_type_are_looked_at_closer():
    step = Step("cpu")
    tensors = (step.q, *step.cache, None, None, None, step.options["cache_seqlens"])
    numbers = (None, True, -1, -1, 0.0, 0, False, False, 0, 0, 0, 0, 0)
    assert len(_native.call(tensors, numbers)) == 1 and len(_native.call(tensors, ())) == 2
    for n, other in ((0, "a"), (1, 1), (2, 0.5), (4, "0"), (8, 1.5), (6, None)):
        assert _native.call(tensors, (*numbers[:n], other, *numbers[n + 1 :])) is None
    assert _native.call(tensors, (*numbers, 0)) is None
    assert _native.call((3, *tensors[1:]), numbers) is None
    assert _native.call((*tensors, *(None,) * 12), numbers) is None
    tensors = (*tensors, *(None,) * 6, *step.new.values())
    assert _native.call(tensors, numbers) is None and _native.call(tensors, numbers, 1) is None
    assert _native.call(tensors, numbers, True) is not None
    with pytest.raises(TypeError):
        _native.call(list(tensors), numbers)


@pytest.mark.parametrize("which, rotary", [*((x, y) for x in "qkv" for y in (False, True)), ("rotary_cos", True)])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_call_with_new_keys_says_that_it_has_no_gradients(which, rotary, backend):
    step = Step("cpu")
    tensors = {"q": step.q, **step.new, **(step.rotary if rotary else {})}
    tensors[which] = tensors[which].clone().requires_grad_()

    def run(tensors):
        rest = dict(tensors)
        cache = [x.clone() for x in step.cache]
        return flash_attn_with_kvcache(rest.pop("q"), *cache, **step.options, **rest)

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend=backend)
    with pytest.raises(Exception, match="gradients through a cache are not computed"):
        compiled(tensors).float().sum().backward()
    with torch.no_grad():
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(run, fullgraph=True, backend=backend)(tensors), run(tensors))
