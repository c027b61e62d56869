"""Launches of calls, which are replayed as graphs after the first of them: results are those of plain launches, which a
captured call records."""

import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flashcore_attn  # noqa: E402
from flashcore_attn.flash_attn_interface import flash_attn_func, flash_attn_with_kvcache  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not flashcore_attn.devices(), reason="there is no GPU"
)

CALLS, HEADS, KV_HEADS, DIM, CAPACITY = 12, 32, 8, 128, 4096


def draw(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


class Cache:
    """Keys and values of one sequence, and a query."""

    def __init__(self):
        self.q = draw(1, 1, HEADS, DIM)
        self.k, self.v = (draw(1, CAPACITY, KV_HEADS, DIM) for _ in "kv")
        self.out = torch.empty_like(self.q)

    def step(self, keys, out=None):
        out = self.out if out is None else out
        return flashcore_attn.attention(self.q, self.k[:, :keys], self.v[:, :keys], out=out)

    def captured(self, keys):
        """The output of plain launches."""
        out = torch.empty_like(self.out)
        self.step(keys, out)  # makes the plan
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(keys, out)
        out.zero_()
        graph.replay()
        return out


def test_new_lengths_tensors_and_workspaces():
    caches = [Cache() for _ in range(3)]
    held = []
    for n in range(4 * CALLS):
        cache, keys = caches[n % 3], CAPACITY - 5 * n
        held.append(draw(1 + 1000 * n))  # another address for the workspace
        got = cache.step(keys).clone()
        if n % 5 == 0:
            held.clear()
        torch.testing.assert_close(got, cache.captured(keys), atol=0, rtol=0)


def test_one_launch_with_other_tensors():
    calls = []
    for n in range(3 * CALLS):
        q, k, v = (draw(1, 256, heads, 64) for heads in (8, 4, 4))
        calls.append((q, k, v, flash_attn_func(q, k, v)))
        calls = calls[-5:]  # what is freed is the next call's
        for *tensors, got in calls:
            graph, out = torch.cuda.CUDAGraph(), torch.empty_like(got)
            with torch.cuda.graph(graph):
                flashcore_attn.attention(*tensors, out=out)
            graph.replay()
            torch.testing.assert_close(got, out, atol=0, rtol=0)


def test_a_cache_that_grows():
    caches = [draw(1, 4 * CALLS, KV_HEADS, DIM) for _ in "kv"]
    q, rows = draw(1, 1, HEADS, DIM), [draw(1, 4 * CALLS, KV_HEADS, DIM) for _ in "kv"]
    for n in range(4 * CALLS):
        lengths = torch.full([1], n, dtype=torch.int32, device="cuda")
        got = flash_attn_with_kvcache(q, *caches, *(x[:, n : n + 1] for x in rows), cache_seqlens=lengths)
        want = flash_attn_with_kvcache(q, *rows, cache_seqlens=lengths + 1)
        torch.testing.assert_close(got, want, atol=0, rtol=0)


def test_streams_and_threads():
    failed = []

    def work(stream):
        with torch.cuda.stream(stream):
            cache = Cache()
            wants = [cache.step(keys).clone() for keys in (4000, 3000)]
            for n in range(6 * CALLS):
                if not torch.equal(cache.step((4000, 3000)[n % 2]).clone(), wants[n % 2]):
                    failed.append(stream)

    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.default_stream(), torch.cuda.Stream()]
    threads = [threading.Thread(target=work, args=[stream]) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_calls_return_before_the_work_is_done():
    caches = [Cache(), Cache()]
    for n in range(2 * CALLS):
        caches[n % 2].step(CAPACITY - n)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    for n in range(CALLS):
        caches[n % 2].step(CAPACITY - n)  # sets the arguments of launches that wait
    assert not torch.cuda.current_stream().query(), "a call waited for the stream"
    for n in (CALLS - 2, CALLS - 1):
        torch.testing.assert_close(caches[n % 2].out, caches[n % 2].captured(CAPACITY - n), atol=0, rtol=0)


def test_a_capture_between_replays():
    cache = Cache()
    for _ in range(CALLS):
        cache.step(CAPACITY)
    want = cache.out.clone()
    for _ in range(3):
        torch.testing.assert_close(cache.captured(CAPACITY), want, atol=0, rtol=0)
        torch.testing.assert_close(cache.step(CAPACITY), want, atol=0, rtol=0)


def test_backward_passes():
    q, k, v = (draw(2, 300, heads, 64).requires_grad_() for heads in (8, 4, 4))
    dout = draw(2, 300, 8, 64)
    first = None
    for _ in range(2 * CALLS):
        out = flash_attn_func(q, k, v, causal=True, deterministic=True)
        gradients = torch.autograd.grad(out, (q, k, v), dout)
        first = first or gradients
        for got, want in zip(gradients, first):
            torch.testing.assert_close(got, want, atol=0, rtol=0)


def profiled():
    """Graphs that are made before, during and after profiles are launched in each of them."""
    cache, streams = Cache(), [torch.cuda.Stream() for _ in range(3)]
    want = cache.step(CAPACITY - CALLS + 1).clone()

    def run(streams):
        torch.cuda.synchronize()
        for stream in streams:
            with torch.cuda.stream(stream):
                for n in range(CALLS):
                    got = cache.step(CAPACITY - n)
            stream.synchronize()
            torch.testing.assert_close(got, want, atol=0, rtol=0)

    run(streams[:1])
    for _ in range(2):
        with torch.profiler.profile():
            run(streams[:2])
        run(streams)


def test_the_profiler():
    # In a child process, which a fault of the profiler may end.
    ended = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr)


if __name__ == "__main__":
    profiled()
