"""Every contract error: its type, and that it says what was given, what is allowed and what to do."""

import flashcore_attn
import numpy as np
import pytest
import reference


def zeros(*shape, dtype=np.float16):
    return np.zeros(shape, dtype)


Q, K, V = zeros(1, 16, 4, 64), zeros(1, 32, 2, 64), zeros(1, 32, 2, 64)


class OnDevice:
    """A tensor that says it is elsewhere."""

    def __init__(self, kind, index):
        self.device = (kind, index)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        raise AssertionError("never asked for")


CASES = [
    # what is wrong, arguments, keyword arguments, exception, what the message says
    ("no tensor", ([1.0], K, V), {}, TypeError, ["q is a list", "__dlpack__"]),
    ("a capsule", (Q.__dlpack__(), K, V), {}, TypeError, ["q is a PyCapsule", "__dlpack_device__"]),
    ("float64", (Q.astype(np.float64), K, V), {}, TypeError, ["q holds float64", "float16, bfloat16, float32 and float8_e4m3fn"]),
    ("integers", (Q, K, V.astype(np.int32)), {}, TypeError, ["v holds int32"]),
    ("byte order", (Q.astype(">f2"), K, V), {}, ValueError, ["q (numpy.ndarray)", "byte order"]),
    ("mixed dtypes", (Q, K.astype(np.float32), V), {}, TypeError, ["k holds f32", "q fp16", "convert"]),
    ("a masked array", (np.ma.masked_array(Q), K, V), {}, TypeError, ["q is a masked array", "filled"]),
    ("dimensions", (Q[0], K, V), {}, ValueError, ["q has 3 dimensions", "[batch, seq, heads, head_dim]"]),
    ("batches", (Q, zeros(2, 32, 2, 64), V), {}, ValueError, ["k has shape [2, 32, 2, 64]", "[1, 32, 2, 64]"]),
    ("k and v", (Q, K, zeros(1, 31, 2, 64)), {}, ValueError, ["v has shape [1, 31, 2, 64]", "[1, 32, 2, 64]"]),
    ("head_dims", (Q, zeros(1, 32, 2, 32), V), {}, ValueError, ["k has shape [1, 32, 2, 32]"]),
    ("heads", (Q, zeros(1, 32, 3, 64), zeros(1, 32, 3, 64)), {}, ValueError, ["4 query heads", "3 K/V heads"]),
    ("head_dim 7", (zeros(1, 16, 4, 7), zeros(1, 32, 2, 7), V), {}, ValueError, ["head_dim is 7", "multiples of 8"]),
    ("head_dim 264", (zeros(1, 1, 1, 264),) * 3, {}, ValueError, ["head_dim is 264", "256"]),
    ("zero size", (Q[:0], K[:0], V[:0]), {}, ValueError, ["batch is 0", "at least 1"]),
    ("last stride", (zeros(1, 16, 4, 128)[..., ::2], K, V), {}, ValueError, ["q has stride 2", ".contiguous()"]),
    ("negative stride", (Q, K[:, ::-1], V), {}, ValueError, ["k has strides", "negative stride", "copy"]),
    ("window -1", (Q, K, V), {"window": (-1, 0)}, ValueError, ["left side is -1", "None for no limit"]),
    ("window 5", (Q, K, V), {"window": 5}, TypeError, ["window is 5", "(left, right)"]),
    ("window 1.5", (Q, K, V), {"window": (0, 1.5)}, TypeError, ["right side is 1.5"]),
    ("softcap 0", (Q, K, V), {"softcap": 0.0}, ValueError, ["softcap is 0", "leave it out"]),
    ("scale NaN", (Q, K, V), {"scale": float("nan")}, ValueError, ["scale is NaN", "finite"]),
    ("scale 1e7", (Q, K, V), {"scale": 1e7}, ValueError, ["scale is 10000000", "at most 1e5"]),
    ("layout", (Q, K, V), {"layout": "bsh3d"}, ValueError, ['layout is "bsh3d"', '"bhsd"']),
    ("kernel", (Q, K, V), {"kernel": "turbo"}, ValueError, ["`turbo`", "ids look like", "cpu/m128n128"]),
    ("GPU kernel", (Q, K, V), {"kernel": "scalar/naive-t128-v16"}, ValueError, ["does not run on cpu", "leave"]),
    ("stream", (Q, K, V), {"stream": 0}, ValueError, ["stream was given", "CPU"]),
    ("out's shape", (Q, K, V), {"out": zeros(1, 16, 4, 32)}, ValueError, ["out has shape [1, 16, 4, 32]"]),
    ("out's dtype", (Q, K, V), {"out": zeros(1, 16, 4, 64, dtype=np.float32)}, TypeError, ["out holds f32"]),
    ("out is q", (Q, K, V), {"out": Q}, ValueError, ["out shares memory with q"]),
    (
        "out overlaps itself",
        (Q, K, V),
        {"out": np.lib.stride_tricks.as_strided(zeros(1, 16, 1, 64), (1, 16, 4, 64), (2048, 128, 0, 2))},
        ValueError,
        ["out has strides", "overlap"],
    ),
    ("another kind of device", (OnDevice(10, 0), K, V), {}, ValueError, ["q is on device 0 of DLPack's kind 10"]),
    ("mixed devices", (Q, OnDevice(2, 1), V), {}, ValueError, ["k is on cuda:1 and q on cpu", "one device"]),
]


@pytest.mark.parametrize("args, kwargs, kind, says", [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_contract(args, kwargs, kind, says):
    with pytest.raises(kind) as raised:
        flashcore_attn.attention(*args, **kwargs)
    for words in says:
        assert words in str(raised.value), f"{words!r} not in {str(raised.value)!r}"


@pytest.mark.skipif(flashcore_attn.why_not_cuda() is None, reason="there is a CUDA device")
def test_cuda_tensors_without_cuda():
    with pytest.raises(RuntimeError, match="no NVIDIA driver|no device"):
        flashcore_attn.attention(OnDevice(2, 0), OnDevice(2, 0), OnDevice(2, 0))


@reference.exports_read_only
def test_out_must_be_writable():
    out = zeros(1, 16, 4, 64)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only.*in place"):
        flashcore_attn.attention(Q, K, V, out=out)


def test_nothing_is_written_when_refused():
    out = np.full((1, 16, 4, 64), 3.0, np.float16)
    with pytest.raises(ValueError):
        flashcore_attn.attention(Q, K, zeros(1, 31, 2, 64), out=out)
    assert (out == 3.0).all()


def test_plan_refuses_as_attention_does():
    with pytest.raises(ValueError, match="head_dim is 7"):
        flashcore_attn.plan(zeros(1, 16, 4, 7), zeros(1, 32, 2, 7), V)
    with pytest.raises(TypeError, match="q holds float64"):
        flashcore_attn.explain(Q.astype(np.float64), K, V)
