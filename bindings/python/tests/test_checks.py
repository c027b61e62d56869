"""Wrong lengths, offsets, pages and bounds are errors that name the argument and the value: on the CPU always, on a GPU
with FLASHCORE_CHECK=1, which a child process has."""

import os
import subprocess
import sys

import flashcore_attn
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import ops  # noqa: E402  (needs PyTorch)
import ragged  # noqa: E402
from flashcore_attn.flash_attn_interface import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
)

NO_CUDA = flashcore_attn.why_not_cuda() or (None if torch.cuda.is_available() else "this PyTorch sees no CUDA device")
CHECKS = os.environ.get("FLASHCORE_CHECK", "") not in ("", "0")
ON_GPU = pytest.mark.skipif(
    NO_CUDA is not None or not CHECKS, reason=NO_CUDA or "a child process has FLASHCORE_CHECK=1"
)
WITH_GPU = pytest.mark.skipif(NO_CUDA is not None, reason=str(NO_CUDA))
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]
BATCH, CAPACITY, PAGE, PAGES, MAX_PAGES = 3, 48, 16, 12, 3


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def draw(device, *shape):
    return torch.randn(shape, dtype=torch.float32 if device == "cpu" else torch.bfloat16, device=device)


def varlen(device, starts_q=(0, 4, 6, 9), starts_k=(0, 7, 7, 12), max_q=4, max_k=7, grad=False):
    q, k = draw(device, 9, 4, 64).requires_grad_(grad), draw(device, 12, 2, 64)
    arrays = (ragged.int32(starts, device) for starts in (starts_q, starts_k))
    return flash_attn_varlen_func(q, k, k, *arrays, max_q, max_k, causal=True)


def varlen_used(device, used):
    q, k, v = (draw(device, BATCH, 5, heads, 64) for heads in (4, 2, 2))
    starts = torch.arange(BATCH + 1, dtype=torch.int32, device=device) * 5
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return flash_attn_varlen_func(q, k, v, starts, starts, 5, 5, seqused_k=ragged.int32(used, device))


def cached(device, lengths=(48, 0, 17), page=None, new=0, **given):
    """A step over a contiguous cache, or over pages, of which entry 1 of sequence 2 is `page`."""
    q = draw(device, BATCH, max(new, 1), 4, 64)
    shape = (BATCH + 1, CAPACITY) if page is None and "cache_batch_idx" in given else (BATCH, CAPACITY)
    if page is not None:
        shape = (PAGES, PAGE)
        table = torch.arange(BATCH * MAX_PAGES, dtype=torch.int32).view(BATCH, MAX_PAGES)
        table[2, 1] = page
        given["page_table"] = table.to(device)
    caches = [draw(device, *shape, 2, 64) for _ in "kv"]
    rows = [draw(device, BATCH, new, 2, 64) for _ in "kv"] if new else []
    given = {name: ragged.int32(x, device) if isinstance(x, (tuple, list)) else x for name, x in given.items()}
    lengths = lengths if isinstance(lengths, int) else ragged.int32(lengths, device)
    return flash_attn_with_kvcache(q, *caches, *rows, cache_seqlens=lengths, causal=True, **given)


def rotated(device, first):
    tables = [torch.ones(64, 16, dtype=draw(device, 1).dtype, device=device) for _ in range(2)]
    return cached(device, (3, 0, 17), new=2, rotary_cos=tables[0], rotary_sin=tables[1], rotary_seqlens=first)


# A call, its right values, the wrong ones, and what is said of them.
CASES = {
    "falling offsets": (varlen, {}, {"starts_q": (0, 4, 3, 7)}, "cu_seqlens_q (decreases from 4 to 3|has 3 in entry 2)"),
    "offsets past the end": (varlen, {}, {"starts_k": (0, 7, 7, 13)}, "cu_seqlens_k has 13 in entry 3"),
    "negative offsets": (varlen, {}, {"starts_q": (-1, 3, 6, 9)}, r"cu_seqlens_q (starts at -1|has -1 in entry 0)"),
    "a bound of rows": (varlen, {}, {"max_q": 3}, "cu_seqlens_q gives sequence 0 4 rows"),
    "a bound of keys": (varlen, {}, {"max_k": 6}, "cu_seqlens_k gives sequence 0 7 rows"),
    "with gradients": (varlen, {"grad": True}, {"max_q": 3}, "cu_seqlens_q gives sequence 0 4 rows"),
    "too many used": (varlen_used, {"used": (5, 0, 3)}, {"used": (5, 6, 3)}, "seqused_k has 6 for sequence 1"),
    "a negative length": (cached, {}, {"lengths": (48, -2, 17)}, "cache_seqlens has -2 for sequence 1"),
    "a length above the cache": (cached, {}, {"lengths": (49, 0, 17)}, "cache_seqlens has 49 for sequence 0"),
    "a page beyond the pool": (cached, {"page": 7}, {"page": PAGES}, "has 12 in entry 1 of sequence 2"),
    "no page": (cached, {"page": 7}, {"page": -1}, "has -1 in entry 1 of sequence 2"),
    "no room": (cached, {"lengths": (46, 0, 17), "new": 2}, {"lengths": (47, 0, 17)}, "cache_seqlens has 47"),
    "no page for new keys": (
        cached,
        {"page": 7, "new": 1, "lengths": (47, 0, 17)},
        {"page": 13},
        "has 13 in entry 1 of sequence 2",
    ),
    "no such part": (
        cached,
        {"cache_batch_idx": (3, 0, 1), "new": 1, "lengths": (3, 4, 5)},
        {"cache_batch_idx": (3, 0, 4)},
        "cache_batch_idx has 4 for sequence 2",
    ),
    "no such part, without new keys": (
        cached,
        {"cache_batch_idx": (3, 0, 1)},
        {"cache_batch_idx": (3, -1, 1)},
        "cache_batch_idx has -1 for sequence 1",
    ),
    "too much padding": (cached, {"cache_leftpad": (3, 0, 17)}, {"cache_leftpad": (3, 0, 49)}, "cache_leftpad has 49"),
    "a negative position": (rotated, {"first": (5, 0, 62)}, {"first": (5, -1, 62)}, "rotary_seqlens has -1"),
    "a position past the tables": (rotated, {"first": (5, 0, 62)}, {"first": (5, 0, 63)}, "rotary_cos has 64 positions"),
}


@pytest.mark.parametrize("case", CASES)
def test_planted_values_are_refused_and_right_ones_are_not(device, case):
    call, right, wrong, says = CASES[case]
    for _ in range(2):
        call(device, **right)
    for _ in range(2):
        with pytest.raises((ValueError, RuntimeError), match=says):
            call(device, **{**right, **wrong})
    call(device, **right)
    if device == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("given", [{"lengths": 49}, {"lengths": 47, "new": 2}, {"lengths": 49, "page": 7}], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=WITH_GPU)])
def test_a_number_of_keys_that_the_host_knows_is_always_checked(device, given):
    cached(device, **{**given, "lengths": 46})
    appends = ", and k has 2 rows for each sequence" if "new" in given else ""
    with pytest.raises(ValueError, match=f"cache_seqlens is {given['lengths']}{appends}; the cache has room for 48 keys"):
        cached(device, **given)


@ON_GPU
def test_operators_are_checked():
    q, k = draw("cuda", 9, 4, 64), draw("cuda", 12, 2, 64)
    starts = [ragged.int32(x, "cuda") for x in ((0, 4, 6, 9), (0, 7, 7, 12))]
    lengths = {"cu_seqlens_q": starts[0], "cu_seqlens_k": starts[1], "max_seqlen_k": 7}
    call = lambda bound: ops.call("fwd_lengths", q, k, k, numbers=(0.125, True), max_seqlen_q=bound, **lengths)
    call(4)
    with pytest.raises(RuntimeError, match="cu_seqlens_q gives sequence 0 4 rows"):
        call(3)


@ON_GPU
def test_gradients_are_checked():
    q, k, v = (draw("cuda", n, heads, 64).requires_grad_() for n, heads in ((9, 4), (12, 2), (12, 2)))
    starts = [ragged.int32(x, "cuda") for x in ((0, 4, 6, 9), (0, 7, 7, 12))]
    out = flash_attn_varlen_func(q, k, v, *starts, 4, 7)
    starts[1].data[3] = 13  # as a kernel writes: PyTorch's counter does not see it
    with pytest.raises(RuntimeError, match="cu_seqlens_k has 13 in entry 3"):
        out.sum().backward()


@ON_GPU
def test_schedules_are_checked():
    lengths = ragged.int32((640, 64, 1, 0, 30), "cuda")
    make = lambda: get_scheduler_metadata(
        5, 1, 640, 8, 2, 64, lengths, qkv_dtype=torch.bfloat16, page_size=16, causal=True
    )
    assert make().numel() > 0
    lengths[1] = 641
    with pytest.raises(RuntimeError, match="has 641 for sequence 1"):
        make()


@ON_GPU
def test_what_a_graph_finds_is_the_error_of_the_next_call_outside():
    q, caches = draw("cuda", BATCH, 1, 4, 64), [draw("cuda", BATCH, CAPACITY, 2, 64) for _ in "kv"]
    lengths = ragged.int32((48, 0, 17), "cuda")
    step = lambda: flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths)
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    others = {
        "direct": lambda: cached("cuda"),
        "dispatcher": lambda: varlen("cuda", grad=True),
        "without lengths": lambda: flash_attn_func(*(draw("cuda", 1, 8, 2, 64) for _ in "qkv")),
    }
    for other in others.values():
        lengths.copy_(ragged.int32((48, 0, 17), "cuda"))
        graph.replay()
        other()
        lengths[2] = 50
        graph.replay()
        with pytest.raises(RuntimeError, match="has 50 for sequence 2.*captured into a CUDA graph"):
            other()
        other()
    torch.cuda.synchronize()


@pytest.mark.skipif(NO_CUDA is not None or CHECKS, reason=NO_CUDA or "this process has FLASHCORE_CHECK=1")
def test_on_a_gpu_in_a_child_process():
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "FLASHCORE_CHECK": "1"},
        capture_output=True,
        text=True,
    )
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
