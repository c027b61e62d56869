"""NumPy tensors on the CPU against the float64 reference."""

import threading

import flashcore_attn
import numpy as np
import pytest
import reference

SHAPES = [  # batch, seq_q, seq_kv, heads, kv_heads, head_dim
    (1, 128, 128, 2, 2, 64),
    (2, 33, 97, 4, 2, 40),
    (1, 1, 300, 8, 1, 128),
    (3, 65, 17, 3, 3, 8),
]
OPTIONS = [
    {},
    {"causal": True},
    {"window": (16, 4)},
    {"window": (16, None)},
    {"window": [np.int64(16), 4]},
    {"causal": True, "window": (24, 99)},
    {"softcap": 5.0},
    {"scale": 0.3},
]


def tensors(shape, dtype="float32", seed=0):
    b, sq, sk, h, hk, d = shape
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)
    return draw(b, sq, h, d), draw(b, sk, hk, d), draw(b, sk, hk, d)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_equals_float64(shape, options, dtype):
    q, k, v = tensors(shape, dtype)
    out, lse = flashcore_attn.attention(q, k, v, return_lse=True, **options)
    want, want_lse = reference.attention(q, k, v, **options)
    assert out.shape == q.shape and out.dtype == q.dtype
    assert lse.shape == (shape[0], shape[3], shape[1]) and lse.dtype == np.float32
    reference.check(out, want, dtype)
    reference.check_lse(lse, want_lse)


def test_causal_is_aligned_at_the_bottom_right():
    q, k, v = tensors((1, 2, 5, 1, 1, 8))
    k[:] = 0  # every visible key weighs the same
    out = flashcore_attn.attention(q, k, v, causal=True)
    np.testing.assert_allclose(out[0, 0, 0], v[0, :4, 0].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(out[0, 1, 0], v[0, :5, 0].mean(axis=0), rtol=1e-6)


def test_rows_without_keys_are_zero():
    q, k, v = tensors((1, 6, 2, 1, 1, 8))
    out, lse = flashcore_attn.attention(q, k, v, causal=True, return_lse=True)
    assert (out[0, :4] == 0).all() and np.isneginf(lse[0, 0, :4]).all()


def test_values_may_have_another_head_dim():
    q, k, _ = tensors((1, 20, 30, 4, 2, 64))
    v = np.random.default_rng(1).standard_normal((1, 30, 2, 32)).astype(np.float32)
    out = flashcore_attn.attention(q, k, v)
    assert out.shape == (1, 20, 4, 32)
    reference.check(out, reference.attention(q, k, v)[0], "float32")


def test_strides_of_slices_and_permutations():
    packed = np.random.default_rng(2).standard_normal((2, 40, 3, 4, 24)).astype(np.float16)
    q, k, v = packed[:, ::2, 0, :, :16], packed[:, :, 1, ::2, 8:], packed[:, :, 2, ::2, :16]
    reference.check(flashcore_attn.attention(q, k, v), reference.attention(q, k, v)[0], "float16")


@reference.exports_read_only
def test_broadcast_batches_and_heads():
    q, k, v = tensors((3, 20, 30, 4, 4, 16))
    k, v = (np.broadcast_to(x[:1, :, :1], x.shape) for x in (k, v))
    q = np.broadcast_to(q[:1], q.shape)
    reference.check(flashcore_attn.attention(q, k, v), reference.attention(q, k, v)[0], "float32")


def test_layout_bhsd():
    q, k, v = tensors((2, 20, 30, 4, 2, 16))
    want, want_lse = reference.attention(q, k, v)
    sdpa = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    out, lse = flashcore_attn.attention(*sdpa, layout="bhsd", return_lse=True)
    assert out.shape == (2, 4, 20, 16) and out.flags.c_contiguous
    reference.check(out.transpose(0, 2, 1, 3), want, "float32")
    reference.check_lse(lse, want_lse)


def test_out_is_in_the_order_of_q():
    q, k, v = tensors((2, 20, 30, 4, 2, 16))
    want = reference.attention(q, k, v)[0]
    q = np.ascontiguousarray(q.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    out = flashcore_attn.attention(q, k, v)
    assert out.strides == q.strides
    reference.check(out, want, "float32")


def test_out_given():
    q, k, v = tensors((2, 20, 30, 4, 2, 16))
    memory = np.full((2, 20, 7, 24), 9.0, np.float32)
    out = memory[:, :, 1:5, 4:20]
    assert flashcore_attn.attention(q, k, v, out=out) is out
    reference.check(out, reference.attention(q, k, v)[0], "float32")
    memory[:, :, 1:5, 4:20] = 9.0
    assert (memory == 9.0).all(), "what lies between the rows of out was written"


class Producer:
    """A tensor of some other library, as far as DLPack shows."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)


class OldProducer(Producer):
    """As libraries were before DLPack 1.0: `stream` is all they know."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("producer", [Producer, OldProducer])
def test_any_producer_serves(producer):
    q, k, v = tensors((1, 20, 30, 4, 2, 16))
    want = reference.attention(q, k, v)[0]
    out = flashcore_attn.attention(*map(producer, (q, k, v)))
    assert isinstance(out, np.ndarray)
    reference.check(out, want, "float32")
    out = producer(np.empty_like(q))
    assert flashcore_attn.attention(*map(producer, (q, k, v)), out=out) is out
    reference.check(out.array, want, "float32")


@reference.exports_read_only
def test_inputs_may_be_read_only():
    q, k, v = tensors((1, 20, 30, 4, 2, 16))
    want = reference.attention(q, k, v)[0]
    for x in (q, k, v):
        x.flags.writeable = False
    reference.check(flashcore_attn.attention(q, k, v), want, "float32")


def test_memory_is_given_back():
    released = []

    class Watched(np.ndarray):
        def __del__(self):
            released.append(True)

    q, k, v = tensors((1, 4, 4, 1, 1, 8))
    q = q.view(Watched)
    flashcore_attn.attention(q, k, v)
    released.clear()
    del q
    assert released == [True]


def test_threads_may_call_at_once():
    q, k, v = tensors((1, 200, 200, 4, 4, 32))
    want = flashcore_attn.attention(q, k, v)
    outs = [None] * 8

    def call(index):
        for _ in range(5):
            outs[index] = flashcore_attn.attention(q, k, v)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in outs:
        np.testing.assert_array_equal(out, want)


def test_kernel_by_id():
    q, k, v = tensors((1, 100, 100, 2, 2, 32))
    assert flashcore_attn.plan(q, k, v, kernel="cpu/m16n4")["kernel"] == "cpu/m16n4"
    out = flashcore_attn.attention(q, k, v, kernel="cpu/m16n4")
    reference.check(out, reference.attention(q, k, v)[0], "float32")


def test_more_kernels_than_are_kept():
    q = np.random.default_rng(0).standard_normal((1, 4, 1, 8), np.float32)
    want = flashcore_attn.attention(q, q, q)
    for _ in range(2):
        for rows in range(16, 16 * 41, 16):
            out = flashcore_attn.attention(q, q, q, kernel=f"cpu/m{rows}n4")
            np.testing.assert_allclose(out, want, atol=1e-6)


def test_plan_and_explain():
    q, k, v = tensors((1, 128, 128, 4, 2, 64), "float16")
    plan = flashcore_attn.plan(q, k, v, causal=True)
    assert plan["device"] == "cpu" and plan["kernel"].startswith("cpu/")
    assert plan["flops"] == 2 * (64 + 64) * 128 * 129 / 2 * 4
    # Of a plan table, if the machine has one with a row for this problem.
    assert plan["row"] is None or len(plan["row"]) == 2
    assert plan["why"] and isinstance(plan["notes"], list)
    text = flashcore_attn.explain(q, k, v, causal=True)
    assert plan["kernel"] in text and plan["why"] in text and plan["problem"] in text
    sinks, slopes = np.zeros(4, np.float32), np.zeros((1, 4), np.float32)
    assert "sinks" in flashcore_attn.plan(q, k, v, sinks=sinks)["problem"]
    assert flashcore_attn.plan(q, k, v, alibi_slopes=slopes)["problem"] != flashcore_attn.plan(q, k, v)["problem"]
    out = np.zeros_like(q)
    assert flashcore_attn.plan(q, k, v, out=out)["kernel"] == flashcore_attn.plan(q, k, v)["kernel"] and not out.any()
    for wrong, says in (
        ({"sinks": sinks[:3]}, "sinks has shape"),
        ({"out": q}, "out shares memory with q"),
        ({"q_scale": sinks[None]}, "q_scale"),
        ({"stream": 0}, "stream was given"),
    ):
        for function in (flashcore_attn.plan, flashcore_attn.explain, flashcore_attn.attention):
            with pytest.raises((TypeError, ValueError), match=f"^{says}"):
                function(q, k, v, **wrong)


def test_devices():
    devices = flashcore_attn.devices()
    assert devices[0] == {"device": "cpu"}
    assert (len(devices) == 1) == (flashcore_attn.why_not_cuda() is not None)


def test_version():
    from importlib.metadata import version

    assert flashcore_attn.__version__ == version("flashcore-attn")
