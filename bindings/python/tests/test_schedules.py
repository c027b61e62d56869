"""Schedules that are made once for the layers of a step: `get_scheduler_metadata` and `scheduler_metadata=`."""

import copy
import gc
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flashcore_attn  # noqa: E402
import ops  # noqa: E402
from flashcore_attn import _native  # noqa: E402
from flashcore_attn.flash_attn_interface import flash_attn_with_kvcache, get_scheduler_metadata  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available() or not flashcore_attn.devices(), reason="there is no GPU"
))]  # fmt: skip
CUDA = DEVICES[1]
BATCH, CAPACITY, PAGE, HEADS, KV_HEADS, DIM = 5, 640, 16, 8, 2, 64


class Step:
    """A step of decoding, or with `rows` several queries of each sequence, packed."""

    def __init__(self, device, paged, rows=None, dtype=torch.bfloat16, batch=BATCH, capacity=CAPACITY, seed=0):
        draw = torch.Generator().manual_seed(seed)
        randn = lambda *shape: torch.randn(*shape, generator=draw).to(dtype).to(device)
        self.batch, self.capacity, self.dtype = batch, capacity, dtype
        self.q = randn(batch, 1, HEADS, DIM) if rows is None else randn(batch * rows, HEADS, DIM)
        pages = batch * capacity // PAGE
        cache = (pages, PAGE) if paged else (batch, capacity)
        self.layers = [[randn(*cache, KV_HEADS, DIM) for _ in "kv"] for _ in range(3)]
        self.lengths = torch.randint(1, capacity + 1, (batch,), generator=draw, dtype=torch.int32).to(device)
        table = torch.randperm(pages, generator=draw, dtype=torch.int32).view(batch, -1).to(device)
        self.options = {"cache_seqlens": self.lengths, "page_table": table if paged else None, "causal": True}
        self.made = {"cache_seqlens": self.lengths, "qkv_dtype": dtype, "causal": True, "page_size": PAGE if paged else None}
        self.rows = 1 if rows is None else rows
        if rows is not None:
            starts = torch.arange(batch + 1, dtype=torch.int32, device=device) * rows
            self.options |= {"cu_seqlens_q": starts, "max_seqlen_q": rows}
            self.made |= {"cu_seqlens_q": starts, "total_q": batch * rows}

    def metadata(self, **changed):
        sizes = {"max_seqlen_q": self.rows, "max_seqlen_k": self.capacity, "num_heads_q": HEADS}
        sizes |= {"batch_size": self.batch, "num_heads_kv": KV_HEADS, "headdim": DIM}
        return get_scheduler_metadata(**{**sizes, **self.made, **changed})

    def run(self, metadata=None, **changed):
        options = {**self.options, **changed}
        return [flash_attn_with_kvcache(self.q, *kv, scheduler_metadata=metadata, **options) for kv in self.layers]


def assert_same(got, want):
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, atol=0, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("inference", [False, True])
def test_layers_share_one(device, paged, rows, inference):
    with torch.inference_mode(inference):
        step = Step(device, paged, rows)
        metadata = step.metadata()
        assert metadata.dtype == torch.int32 and metadata.device.type == device and metadata.numel() > 0
        assert_same(step.run(metadata), step.run())


@pytest.mark.parametrize("device", DEVICES)
def test_what_it_was_not_made_for_is_refused_by_name(device):
    step = Step(device, True)
    metadata = step.metadata()
    step.run(metadata)
    refused = {
        "causal and window_size": {"causal": False},
        "causal and window_size left": {"window_size": (40, 0)},
        "sm_margin": {"sm_margin": 2} if device == "cuda" else None,
        "batch_invariant": {"batch_invariant": 512},
    }
    for name, changed in refused.items():
        if changed is not None:
            with pytest.raises(RuntimeError, match=f"^scheduler_metadata was made with {name.removesuffix(' left')} "):
                step.run(metadata, **changed)
    made_for = {
        "batch_size": {"cache_seqlens": step.lengths[:-1], "batch_size": BATCH - 1},
        "max_seqlen_q": {"max_seqlen_q": 2},
        "max_seqlen_k": {"max_seqlen_k": CAPACITY + PAGE},
        "num_heads_q": {"num_heads_q": 16},
        "num_heads_kv": {"num_heads_kv": 4},
        "headdim": {"headdim": 128},
        "headdim_v": {"headdim_v": 128},
        "qkv_dtype": {"qkv_dtype": torch.float16},
        "page_size": {"page_size": 32},
    }
    for name, changed in made_for.items():
        other = step.metadata(**changed)
        with pytest.raises(RuntimeError, match=f"^scheduler_metadata was made with {name} "):
            step.run(other)
    with pytest.raises(RuntimeError, match="^out was made for another problem"):
        step.metadata(out=metadata, causal=False)
    assert_same(step.run(metadata), step.run())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paged", [False, True])
def test_one_for_other_new_keys_is_not_used(device, paged):
    """FlashAttention-3's tests say how many keys are new also where a call has none: its lengths are then others."""
    step = Step(device, paged)
    step.lengths.sub_(9).clamp_(min=1)
    starts = torch.arange(BATCH + 1, dtype=torch.int32, device=device) * 9
    made = [{"max_seqlen_k_new": 9}, {"cu_seqlens_k_new": starts}]
    for metadata in (step.metadata(**new) for new in made):
        with pytest.warns(UserWarning, match="^scheduler_metadata was made for new keys: .* the call has 0;"):
            got = step.run(metadata)
        assert_same(got, step.run())
    new = [x.new_ones(BATCH, 9, KV_HEADS, DIM) for x in step.layers[0]]
    with pytest.warns(UserWarning, match="^scheduler_metadata was made for new keys: 0, and the call has 9;"):
        got = step.run(step.metadata(), k=new[0], v=new[1])
    assert_same(step.run(step.metadata(max_seqlen_k_new=9), k=new[0], v=new[1]), got)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("paged", [False, True])
def test_one_for_lengths_that_were_written_again_is_not_used(device, paged):
    step = Step(device, paged)
    metadata = step.metadata()
    step.lengths[:2].sub_(1).clamp_(min=1)
    with pytest.warns(UserWarning, match="^scheduler_metadata was made before cache_seqlens was written again"):
        got = step.run(metadata)
    assert_same(got, step.run())
    assert step.metadata(out=metadata) is metadata
    assert_same(step.run(metadata), got)
    assert_same(step.run(metadata, cache_seqlens=step.lengths.clone()), got)


@pytest.mark.parametrize("device", DEVICES)
def test_one_without_pages_is_not_used_for_places_in_the_batch(device):
    step = Step(device, False)
    places = torch.arange(BATCH, dtype=torch.int32, device=device).flip(0)
    want = step.run(cache_batch_idx=places)
    with pytest.warns(UserWarning, match="^scheduler_metadata was made without page_size, which is the cache's capacity"):
        assert_same(step.run(step.metadata(), cache_batch_idx=places), want)
    assert_same(step.run(step.metadata(page_size=CAPACITY), cache_batch_idx=places), want)


@pytest.mark.parametrize("device", DEVICES)
def test_copies_and_parts_are_refused(device):
    step = Step(device, False)
    metadata = step.metadata()
    file = io.BytesIO()
    torch.save(metadata, file)
    file.seek(0)
    others = [metadata.clone(), metadata[:], metadata.detach(), torch.zeros_like(metadata), copy.deepcopy(metadata)]
    others += [pickle.loads(pickle.dumps(metadata)), torch.load(file)]
    for other in others:
        with pytest.raises(NotImplementedError, match="^scheduler_metadata is given; only that of"):
            step.run(other)
        with pytest.raises(NotImplementedError, match="^out is given; only that of"):
            step.metadata(out=other)
    assert_same(step.run(copy.copy(metadata)), step.run())  # another name of the same one
    number = metadata._flashcore_schedule.schedule.number
    del metadata, other, others
    gc.collect()
    with pytest.raises(RuntimeError, match="^scheduler_metadata is given; only that of"):
        scheduled(step, number)


def scheduled(step, number):
    table = step.options["page_table"]
    lengths = {"seqused_k": step.lengths, **({} if table is None else {"block_table": table})}
    numbers = {"numbers": (DIM**-0.5, True), "max_seqlen_k": step.capacity, "schedule": number}
    return ops.call("fwd_lengths", step.q, *step.layers[0], **lengths, **numbers)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_that_is_handed_out_is_the_schedule(device):
    step = Step(device, True)
    metadata = step.metadata()
    want = step.run()
    assert metadata.numel() == 1
    metadata.data.add_(1 << 20)
    metadata.untyped_storage().fill_(255)
    metadata.fill_(-1)
    assert_same(step.run(metadata), want)
    metadata.resize_(1000).fill_(77)
    assert_same(step.run(metadata), want)
    assert_same(scheduled(step, metadata._flashcore_schedule.schedule.number)[:1], want)
    with pytest.raises(RuntimeError, match="^scheduler_metadata is given; only that of"):
        scheduled(step, 1 << 40)


@pytest.mark.parametrize("device", DEVICES)
def test_out_that_cannot_be_made_is_refused(device):
    step = Step(device, False, 3)
    metadata = step.metadata()
    assert step.metadata(out=metadata) is metadata
    with pytest.raises(ValueError, match="^out is given, but no schedule is made"):
        step.metadata(total_q=None, out=metadata)
    with pytest.raises(ValueError, match="^out has no schedule to be made again"):
        step.metadata(out=step.metadata(total_q=None))
    with pytest.raises(Exception, match="out is given, but no schedule is made"):
        torch.compile(step.metadata, fullgraph=True, backend="eager")(out=metadata)
    with pytest.raises(ValueError, match="^batch_size is 4; cache_seqlens has shape"):
        step.metadata(batch_size=4)


def test_where_there_is_none_calls_make_their_own():
    step = Step("cpu", False, 3)
    assert step.metadata(total_q=None).numel() == 0  # rows of q are not known
    assert_same(step.run(step.metadata(total_q=None)), step.run())
    with pytest.raises(ValueError, match="^scheduler_metadata is given; it is for calls with cache_seqlens"):
        flat = Step("cpu", False)
        flash_attn_with_kvcache(flat.q, *flat.layers[0], scheduler_metadata=flat.metadata())
    with pytest.raises(RuntimeError, match="^cache_seqlens holds int64"):
        step.metadata(cache_seqlens=step.lengths.long())
    with pytest.raises(ValueError, match="^qkv_dtype is torch.float64"):
        step.metadata(qkv_dtype=torch.float64)


@pytest.mark.parametrize("device", DEVICES)
def test_new_keys_and_padding(device):
    step = Step(device, False)
    step.lengths.clamp_(max=CAPACITY - 2)
    k, v = (torch.randn(BATCH, 1, KV_HEADS, DIM, device=device, dtype=step.dtype) for _ in "kv")
    metadata = step.metadata(max_seqlen_k_new=1)
    assert_same(step.run(metadata, k=k, v=v), step.run(k=k, v=v))
    pad = (step.lengths // 2).int()
    metadata = step.metadata(cache_leftpad=pad)
    assert_same(step.run(metadata, cache_leftpad=pad), step.run(cache_leftpad=pad))


@pytest.mark.parametrize("device", [CUDA])
def test_it_is_of_one_stream(device):
    step = Step(device, True)
    metadata = step.metadata()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="^scheduler_metadata was made in another"):
        step.run(metadata)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("paged, rows", [(True, None), (False, None), (True, 3), (False, 150)])
def test_lengths_that_change_need_a_new_one_and_fault_nothing(device, paged, rows):
    step = Step(device, paged, rows, batch=9, capacity=4096)
    metadata = step.metadata()
    draw = torch.Generator().manual_seed(1)
    for lengths in (torch.zeros(9), torch.full((9,), 4096), *(torch.randint(0, 4097, (9,), generator=draw) for _ in range(4))):
        step.lengths.copy_(lengths)
        step.run(metadata)  # results are wrong, and no memory of others is read or written
        torch.cuda.synchronize()
        step.metadata(out=metadata)
        assert_same(step.run(metadata), step.run())


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("inside", [True, False])
def test_graphs(device, inside):
    step = Step(device, True, batch=7, capacity=2048)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step.run(step.metadata())  # compiles
        metadata = step.metadata()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            if inside:
                assert step.metadata().numel() == 0  # it would hold a schedule only once the graph has run
                step.metadata(out=metadata)
            out = step.run(metadata)
        again = None if inside else metadata
        del metadata
        for seed in range(4):
            step.lengths.copy_(torch.randint(0, 2049, (7,), generator=torch.Generator().manual_seed(seed)))
            if not inside:
                assert step.metadata(out=again) is again
            graph.replay()
            assert_same(out, step.run())
    torch.cuda.synchronize()


def test_compiled_functions_make_their_own():
    step = Step("cpu", False, dtype=torch.float32)
    metadata = step.metadata()
    call = lambda q, k, v, lengths, metadata: flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, scheduler_metadata=metadata)
    with pytest.raises(Exception, match="scheduler_metadata is given in a compiled function"):
        torch.compile(call, fullgraph=True, backend="eager")(step.q, *step.layers[0], step.lengths, metadata)


def test_one_that_nobody_takes_is_not_kept():
    """A trace calls the operator, not the function that takes its result."""
    lengths = torch.tensor([3, 5], dtype=torch.int32)
    make = lambda lengths: get_scheduler_metadata(2, 5, 16, 4, 2, 16, lengths, torch.float32)
    traced = torch.jit.trace(make, (lengths,), check_trace=False)
    run = lambda count: [traced(lengths) for _ in range(count)] and None
    run(2)
    gc.collect()  # those of other tests
    kept = _native.kept_schedules()
    run(20)
    assert _native.kept_schedules() == kept
