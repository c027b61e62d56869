"""fp8 tensors and their scales: on the CPU through DLPack alone, with PyTorch where it is, on a CUDA device where there
is one that serves fp8."""

import ctypes
import json

import flashcore_attn
import numpy as np
import pytest
import reference
from flashcore_attn import _bench, peers
from flashcore_attn._native import run_bench

FLOAT8_E4M3FN, BFLOAT16 = (10, 8), (4, 16)  # DLPack's type codes and bits


class Typed:
    """A NumPy array whose elements DLPack is told to be something that NumPy does not have."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None):
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # DLTensor: data, device (2 int32), ndim (int32), dtype (uint8 code, uint8 bits, uint16 lanes), ...
        at = pointer(capsule, b"dltensor") + 8 + 8 + 4
        (ctypes.c_uint8 * 2).from_address(at)[:] = self.dtype
        return capsule


def all_values():
    """What each of the 256 bytes stands for."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    magnitude = np.where(exponent == 0, fraction / 512.0, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    return np.where((byte & 0x7F) == 0x7F, np.nan, np.where(byte & 0x80, -magnitude, magnitude))


VALUES = all_values()


def drawn(b=2, sq=40, sk=50, h=4, hk=2, d=64, seed=0):
    """Bytes of q, k and v, without NaNs and mostly not large; and scales."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: (rng.integers(0, 0x48, shape) | rng.integers(0, 2, shape) << 7).astype(np.uint8)
    tensors = draw(b, sq, h, d), draw(b, sk, hk, d), draw(b, sk, hk, d)
    return tensors, [(0.2 + rng.random((b, hk))).astype(np.float32) for _ in range(3)]


def right(tensors, scales, **options):
    heads = [x.shape[2] // scales[0].shape[1] for x in tensors]
    wide = [VALUES[x] * np.repeat(s, group, axis=1)[:, None, :, None] for x, s, group in zip(tensors, scales, heads)]
    return reference.attention(*wide, **options)


def named(scales):
    return dict(zip(("q_scale", "k_scale", "v_scale"), scales))


def bf16_out(tensors):
    b, sq, h, _ = tensors[0].shape
    return np.zeros((b, sq, h, tensors[2].shape[3]), np.uint16)


def widened(out):
    return (out.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=str)
def test_through_dlpack_alone(options):
    tensors, scales = drawn()
    out = bf16_out(tensors)
    q, k, v = (Typed(x, FLOAT8_E4M3FN) for x in tensors)
    flashcore_attn.attention(q, k, v, out=Typed(out, BFLOAT16), **named(scales), **options)
    np.testing.assert_allclose(widened(out), right(tensors, scales, **options)[0], atol=8e-3, rtol=8e-3)
    assert "e4m3" in flashcore_attn.explain(q, k, v, **options)


def test_scales_left_out_are_1():
    tensors, scales = drawn()
    ones = [np.ones_like(scale) for scale in scales]
    q, k, v = (Typed(x, FLOAT8_E4M3FN) for x in tensors)
    out, want = bf16_out(tensors), bf16_out(tensors)
    flashcore_attn.attention(q, k, v, v_scale=scales[2], out=Typed(out, BFLOAT16))
    flashcore_attn.attention(q, k, v, **named([*ones[:2], scales[2]]), out=Typed(want, BFLOAT16))
    assert (out == want).all()
    np.testing.assert_allclose(widened(out), right(tensors, [*ones[:2], scales[2]])[0], atol=8e-3, rtol=8e-3)


HALF = np.zeros((1, 16, 4, 64), np.float16)
SCALE = np.ones((2, 2), np.float32)
BAD = [
    ("of float16 tensors", {"q": HALF, "k": HALF, "v": HALF, "out": None, "q_scale": SCALE}, TypeError, ["q_scale", "fp16", "leave"]),
    ("float64", {"k_scale": SCALE.astype(np.float64)}, TypeError, ["k_scale holds float64", "float32"]),
    ("a number", {"k_scale": 1.0}, TypeError, ["k_scale is a float", "__dlpack__"]),
    ("shape", {"v_scale": SCALE[:1].copy()}, ValueError, ["v_scale has shape [1, 2]", "[2, 2]"]),
    ("dimensions", {"v_scale": SCALE[0].copy()}, ValueError, ["v_scale has shape [2]", "[2, 2]"]),
    ("strides", {"q_scale": np.ones((2, 4), np.float32)[:, ::2]}, ValueError, ["q_scale has strides [4, 2]", ".contiguous()"]),
    ("zero", {"q_scale": 0 * SCALE}, ValueError, ["scale 0 of q is 0", "above 0"]),
    ("NaN", {"k_scale": SCALE * np.nan}, ValueError, ["scale 0 of k is NaN", "finite"]),
    ("mixed tensors", {"k": HALF}, TypeError, ["k holds fp16 and q e4m3"]),
    ("out", {"out": np.zeros((2, 40, 4, 64), np.float16)}, TypeError, ["out holds fp16", "the output is bf16"]),
    ("no out", {"out": None}, ValueError, ["no bfloat16", "out="]),
]


@pytest.mark.parametrize("given, kind, says", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_contract(given, kind, says):
    tensors, _ = drawn()
    call = dict(zip("qkv", (Typed(x, FLOAT8_E4M3FN) for x in tensors)))
    call["out"] = Typed(bf16_out(tensors), BFLOAT16)
    call.update(given)
    with pytest.raises(kind) as raised:
        flashcore_attn.attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)
    for words in says:
        assert words in str(raised.value), f"{words!r} not in {str(raised.value)!r}"


def test_peers_that_have_no_fp8_say_so():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found, _ = peers.find("cpu")
    assert found
    for name in found.keys() - {"fa3"}:
        with pytest.raises(peers.NotServed, match="does not serve fp8"):
            found[name](None, None, None, scales=(1, 2, 3))


def test_flash_attention_3_is_given_its_descale_factors(tmp_path, monkeypatch):
    asked = {}

    class Ops:
        @staticmethod
        def load_library(path):
            asked["library"] = path

        class flash_attn_3:
            @staticmethod
            def fwd(*tensors, **options):
                asked.update(options, tensors=tensors)
                return ["out", "lse"]

    library = tmp_path / "_C.abi3.so"
    library.touch()
    monkeypatch.setenv(peers.FA3_VARIABLE, str(tmp_path))
    make = peers._fa3(type("Torch", (), {"ops": Ops}))
    assert make("q", "k", "v", causal=True, scale=0.5, scales=("qs", "ks", "vs"))() == "out"
    assert asked["library"] == str(library) and asked["tensors"] == ("q", "k", "v")
    assert [asked[f"{name}_descale"] for name in "qkv"] == ["qs", "ks", "vs"]
    make("q", "k", "v")
    asked.clear()
    make("q", "k", "v")()
    assert not any("descale" in name for name in asked)


def test_the_bench_gives_peers_scales():
    """e4m3 on the CPU: our kernels are measured, and a peer sees fp8 tensors, scales and a bf16 output."""
    shape, seen = [1, 32, 2, 64], {}
    layout = {"shape": shape, "strides": [32 * 2 * 64, 2 * 64, 64, 1]}
    problem = {
        **dict.fromkeys(("batch",), 1),
        **dict.fromkeys(("num_heads", "num_kv_heads"), 2),
        **dict.fromkeys(("seq_len_q", "seq_len_kv"), 32),
        **dict.fromkeys(("head_dim", "head_dim_v"), 64),
        "dtype": "e4m3",
        "mask": {"window_left": None, "window_right": None, "align": "bottom_right"},
        "q_offset": 0,
        "kv_offset": 0,
        "softmax_scale": 0.125,
        "softcap": None,
        "return_lse": False,
        **dict.fromkeys("qkvo", layout),
    }

    class Source:
        def absences(self):
            return []

        def peers(self, case, place, tensors):
            memory = lambda t: (ctypes.c_ubyte * t["bytes"]).from_address(t["address"])
            tensors = {tensor["name"]: tensor for tensor in json.loads(tensors)}
            seen.update(tensors)
            raw = [np.frombuffer(memory(tensors[name]), np.uint8).reshape(shape) for name in "qkv"]
            scales = [np.frombuffer(memory(tensors[f"{name}_scale"]), np.float32).reshape(1, 2) for name in "qkv"]

            def call():
                want = right(raw, scales)[0].astype(np.float32)
                subject.last = Typed((want.view(np.uint32) + 0x8000 >> 16).astype(np.uint16), BFLOAT16)

            subject = _bench.Subject("numpy", call, launch="host")
            subject.own_output = lambda: (subject.last,)
            call()
            return [subject]

    request = {
        "cases": [{"name": "small", "problem": problem}],
        "options": {"budget_ms": 300.0, "warm_up_min_us": 1000.0, "sample_us": 200.0},
    }
    report = json.loads(run_bench("cpu", json.dumps(request), Source()))
    assert seen["q"]["dtype"] == "e4m3" and seen["out"]["dtype"] == "bf16"
    assert (seen["v_scale"]["dtype"], seen["v_scale"]["shape"], seen["v_scale"]["strides"]) == ("f32", [1, 2], [2, 1])
    subjects = report["results"][0]["measurement"]["subjects"]
    assert [s["trouble"] for s in subjects] == [None] * len(subjects), subjects
    assert subjects[-1]["info"]["label"] == "numpy" and subjects[-1]["summary"] is not None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pytorch(device):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if device == "cuda" and (flashcore_attn.why_not_cuda() or not torch.cuda.is_available()):
        pytest.skip("no CUDA device")
    tensors, scales = drawn(sq=140, sk=200, d=128)
    q, k, v = (torch.from_numpy(x).to(device).view(torch.float8_e4m3fn) for x in tensors)
    on_device = named([torch.from_numpy(scale).to(device) for scale in scales])
    try:
        out, lse = flashcore_attn.attention(q, k, v, causal=True, return_lse=True, **on_device)
    except ValueError as error:
        if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
            pytest.skip(str(error))
        raise
    assert out.dtype == torch.bfloat16 and out.device == q.device
    want, want_lse = right(tensors, scales, causal=True)
    # P is rounded to fp8 on a GPU: some times the values' standard deviation.
    tolerance = 8e-3 if device == "cpu" else 0.06 * np.abs(want).max()
    np.testing.assert_allclose(out.float().cpu().numpy(), want, atol=tolerance, rtol=8e-3)
    np.testing.assert_allclose(lse.cpu().numpy(), want_lse, atol=1e-3 if device == "cpu" else 0.05)
    again = flashcore_attn.attention(q, k, v, causal=True, out=torch.empty_like(out), **on_device)
    assert (again == out).all()
    plain = flashcore_attn.attention(q, k, v)  # scales of 1, made once
    assert plain.dtype == torch.bfloat16 and plain.isfinite().all()
