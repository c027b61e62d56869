"""Who keeps tensors, workspace and captured memory until the work has ended, and in which stream that is: a test for each
row of the table in docs/python.md. Memory that was given back too early would be written over before it is read."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import flashcore_attn  # noqa: E402
from flashcore_attn.flash_attn_interface import flash_attn_func  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or flashcore_attn.why_not_cuda() is not None, reason="there is no GPU"
)

HEADS, KV_HEADS, DIM, KEYS = 32, 8, 128, 4096
SLEEP = 200_000_000  # cycles: about a tenth of a second, in which the host does the rest of a test


def draw(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def decode():
    """A query over keys whose plan splits them: the call has a workspace."""
    return draw(1, 1, HEADS, DIM), draw(1, KEYS, KV_HEADS, DIM), draw(1, KEYS, KV_HEADS, DIM)


def write_over(tensors):
    """Takes the memory that was given back, if any was, and fills it in the current stream."""
    sizes = [x if isinstance(x, int) else x.untyped_storage().nbytes() for x in tensors]
    return [torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda") for size in 8 * sizes]


def side_stream():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    return side


class Array:
    """An array of a library that is none of those the package knows."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **how):
        return self.tensor.__dlpack__(**how)


def test_pytorch_a_stream_that_is_named_is_recorded():
    tensors = decode()
    want = flashcore_attn.attention(*tensors)
    sizes = [x.untyped_storage().nbytes() for x in tensors]
    side = side_stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
    got = flashcore_attn.attention(*tensors, stream=side.cuda_stream)
    del tensors
    others = write_over(sizes)
    side.synchronize()
    torch.testing.assert_close(got, want, atol=0, rtol=0)
    del others


@pytest.mark.parametrize("recorded", [True, False])
def test_pytorch_tensors_of_another_stream(recorded):
    """In a current stream that is not the tensors', they are recorded or kept, by the caller."""
    tensors = decode()
    want = flash_attn_func(*tensors)
    sizes = [x.untyped_storage().nbytes() for x in tensors]
    side, kept = side_stream(), []
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        got = flash_attn_func(*tensors)
        for x in tensors:
            x.record_stream(side) if recorded else kept.append(x)
    del tensors, x
    others = write_over(sizes)
    side.synchronize()
    torch.testing.assert_close(got, want, atol=0, rtol=0)
    del others, kept


def test_pytorch_private_pools_of_graphs_hold_workspaces():
    inputs = [decode() for _ in range(2)]
    wants = [flash_attn_func(*tensors).clone() for tensors in inputs]
    torch.cuda.synchronize()
    graphs = [torch.cuda.CUDAGraph() for _ in inputs]
    outs = []
    for graph, tensors in zip(graphs, inputs):
        with torch.cuda.graph(graph):  # each in a pool that is its alone
            outs.append(flash_attn_func(*tensors))
        write_over([KEYS * DIM])
    for _ in range(3):
        for graph, out, want in zip(graphs, outs, wants):
            out.zero_()
            others = write_over([1 << 20, KEYS * DIM])
            flash_attn_func(*decode())  # a workspace of the ordinary pool
            graph.replay()
            torch.testing.assert_close(out, want, atol=0, rtol=0)
            del others
    del graphs[0], outs[0]  # its pool goes, the other's stays
    write_over([1 << 24])
    outs[0].zero_()
    graphs[0].replay()
    torch.testing.assert_close(outs[0], wants[1], atol=0, rtol=0)


def test_other_libraries_arrays_may_be_dropped_after_the_call():
    tensors = decode()
    want = flashcore_attn.attention(*tensors)
    out = torch.empty_like(want)
    sizes = [x.untyped_storage().nbytes() for x in tensors]
    arrays = [Array(x) for x in (*tensors, out)]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        flashcore_attn.attention(*arrays[:3], out=arrays[3], stream=side.cuda_stream)
    assert side.query(), "the call returned before the work had ended"
    del arrays, tensors
    others = write_over(sizes)
    torch.testing.assert_close(out, want, atol=0, rtol=0)
    del others


def test_cupy_frees_in_the_order_of_its_stream():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    tensors = [x.float() for x in decode()]
    want = flashcore_attn.attention(*tensors)
    arrays = [cupy.array(cupy.from_dlpack(x)) for x in tensors]
    sizes = [array.nbytes for array in arrays]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        arrays = [cupy.array(x) for x in arrays]  # of the pool of this stream
        got = flashcore_attn.attention(*arrays)
        del arrays
        others = [cupy.full(size, 0x7F, dtype=cupy.uint8) for size in 8 * sizes]
        stream.synchronize()
    torch.testing.assert_close(torch.from_dlpack(got), want, atol=0, rtol=0)
    del others


def test_jax_arrays_may_be_dropped_after_the_call():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("JAX has no GPU")
    tensors = [x.float() for x in decode()]
    want = flashcore_attn.attention(*tensors)
    out = torch.empty_like(want)
    flashcore_attn.attention(*(jax.numpy.asarray(x.cpu().numpy()) for x in tensors), out=out)
    others = [jax.numpy.full(x.shape, float("nan")) for x in tensors]
    torch.testing.assert_close(out, want, atol=0, rtol=0)
    del others


def test_calls_return_before_the_work_has_ended():
    tensors, out = decode(), torch.empty(1, 1, HEADS, DIM, dtype=torch.bfloat16, device="cuda")
    for _ in range(3):
        flashcore_attn.attention(*tensors, out=out)
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * SLEEP)
    for _ in range(20):
        flashcore_attn.attention(*tensors, out=out)
        flash_attn_func(*tensors)
    assert not torch.cuda.current_stream().query(), "a call waited for the stream"


def test_streams_and_threads():
    failed = []

    def work(stream):
        with torch.cuda.stream(stream):
            inputs = [decode() for _ in range(2)]
            wants = [flash_attn_func(*tensors).clone() for tensors in inputs]
            for n in range(60):
                if not torch.equal(flash_attn_func(*inputs[n % 2]).clone(), wants[n % 2]):
                    failed.append(stream)

    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.default_stream(), torch.cuda.Stream()]
    threads = [threading.Thread(target=work, args=[stream]) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
