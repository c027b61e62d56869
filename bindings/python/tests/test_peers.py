"""How peers are found and called: PyTorch, FlashAttention-4 and FlashInfer are stand-ins made of NumPy, so that every
branch runs without a GPU and without their packages."""

import contextlib
import importlib.machinery
import pathlib
import sys
import types

import numpy as np
import pytest
import reference
from flashcore_attn import _bench, peers

FA4 = """
from stand_ins import attend, calls

def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(None, None), softcap=0.0):
    calls.append("flash_attn_func")
    return attend(q, k, v, causal=causal, window=window_size, softcap=softcap or None, scale=softmax_scale), None
"""

# The names, the order and the defaults of arguments are those of flashinfer-python 0.7.2.
FLASHINFER = """
import numpy as np
from stand_ins import attend, calls

def single_prefill_with_kv_cache(q, k, v, *, causal=False, sm_scale=None, window_left=-1, logits_soft_cap=None):
    calls.append("single_prefill")
    window = (None if window_left < 0 else window_left, None)
    out = attend(q[None], k[None], v[None], causal=causal, window=window, softcap=logits_soft_cap, scale=sm_scale)
    return out[0]

class Wrapper:
    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_tensor_cores=False):
        assert float_workspace_buffer.nbytes == 128 << 20 and kv_layout == "NHD"

    def attend(self, rows):
        how = self.how
        left = how.get("window_left", -1)
        scale, softcap = how.get("sm_scale"), how.get("logits_soft_cap")
        window = (None if left < 0 else left, None)
        outs = [
            attend(q[None], k[None], v[None], causal=how.get("causal", False), window=window, softcap=softcap,
                   scale=scale)[0]
            for q, k, v in rows
        ]
        return np.concatenate(outs).view(type(outs[0]))

class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    def plan(self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, *, causal=False,
             window_left=-1, logits_soft_cap=None, sm_scale=None, q_data_type="float16", kv_data_type=None):
        assert q_data_type == kv_data_type
        self.starts = qo_indptr, kv_indptr
        self.heads, self.sizes = (num_qo_heads, num_kv_heads), (head_dim_qk, head_dim_vo)
        self.how = dict(causal=causal, window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale)

    def run(self, q, k, v):
        calls.append("ragged")
        assert (q.shape[1], k.shape[1]) == self.heads and (q.shape[2], v.shape[2]) == self.sizes
        cut = lambda x, starts: [x[a:b] for a, b in zip(starts, starts[1:])]
        return self.attend(zip(cut(q, self.starts[0]), cut(k, self.starts[1]), cut(v, self.starts[1])))

class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, window_left=-1,
             logits_soft_cap=None, q_data_type="float16", kv_data_type=None, sm_scale=None):
        assert q_data_type == kv_data_type
        self.indptr, self.indices, self.last, self.page = indptr, indices, last_page_len, page_size
        self.how = dict(window_left=window_left, logits_soft_cap=logits_soft_cap, sm_scale=sm_scale)

    def run(self, q, paged_kv_cache):
        calls.append(f"decode, pages of {self.page}")
        k, v = paged_kv_cache
        assert k.shape[1] == v.shape[1] == self.page
        rows = []
        for row, (a, b) in enumerate(zip(self.indptr, self.indptr[1:])):
            pages = self.indices[a:b]
            keys = (len(pages) - 1) * self.page + self.last[row]
            rows.append((q[row][None], *(x[pages].reshape(-1, *x.shape[2:])[:keys] for x in (k, v))))
        return self.attend(rows)
"""


class Tensor(np.ndarray):
    """An array with the methods of tensors that peers are called with."""

    device = "cuda:0"

    def view(self, *shape):
        if not all(isinstance(size, int) for size in shape):
            return super().view(*shape)
        # PyTorch copies nothing here, and raises where it would have to.
        viewed = self.reshape(shape)
        if not np.shares_memory(viewed, self):
            raise RuntimeError("view size is not compatible with input tensor's size and stride")
        return viewed

    def to(self, dtype):
        return self.astype(dtype)

    def new_zeros(self, size):
        return tensor(np.zeros(size, self.dtype))

    def contiguous(self):
        return tensor(np.ascontiguousarray(self))

    def unsqueeze(self, dim):
        return np.expand_dims(self, dim)

    def unflatten(self, dim, sizes):
        assert dim == 0
        return self.reshape(*sizes, *self.shape[1:])


def tensor(array):
    return np.asarray(array).view(Tensor)


class FakeTorch(types.ModuleType):
    """As much of PyTorch as finding and calling peers needs."""

    def __init__(self, cuda="13.0", available=True):
        super().__init__("torch")
        self.__version__, self.version = "2.11.0", types.SimpleNamespace(cuda=cuda)
        self.cuda = types.SimpleNamespace(is_available=lambda: available)
        cudnn = types.SimpleNamespace(is_available=lambda: True, version=lambda: 91900)
        self.backends = types.SimpleNamespace(cudnn=cudnn)
        self.float16, self.bfloat16, self.uint8, self.int32 = (np.dtype(t) for t in ("f2", "V2", "u1", "i4"))
        self.empty = lambda size, dtype, device: tensor(np.empty(size, dtype))
        self.arange = lambda *bounds, dtype=None, device: tensor(np.arange(*bounds, dtype=dtype))
        self.full = lambda size, value, dtype, device: tensor(np.full(size, value, dtype))
        self.cat = lambda parts: tensor(np.concatenate(parts))
        self.where = lambda mask, a, b: tensor(np.where(mask, a, b))
        self.ops = types.SimpleNamespace(load_library=self.load_library)
        self.needs, self.loaded, self.called = {}, [], []

    def load_library(self, path):
        """Raises as PyTorch does while a library that `needs` names is not loaded."""
        for name in self.needs:
            if name not in self.loaded:
                cause = OSError(f"{name}: cannot open shared object file: No such file or directory")
                raise OSError(f"Could not load this library: {path}") from cause
        self.ops.flash_attn_3 = types.SimpleNamespace(
            fwd=lambda q, k, v, **options: (options, None), bwd=lambda *inputs, **how: self.called.append((inputs, how))
        )


@pytest.fixture
def torch(monkeypatch):
    fake = FakeTorch()
    attention, functional = types.ModuleType("torch.nn.attention"), types.ModuleType("torch.nn.functional")
    attention.SDPBackend, attention.sdpa_kernel = types.SimpleNamespace(), contextlib.nullcontext
    functional.scaled_dot_product_attention = None
    modules = {"torch": fake, "torch.nn": types.ModuleType("torch.nn")}
    modules.update({"torch.nn.attention": attention, "torch.nn.functional": functional})
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(peers.FA3_VARIABLE, raising=False)
    # What is installed where the tests run is not to be found.
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    forget()
    yield fake
    forget()


def forget():
    for name in ("flash_attn", "flash_attn.cute", "flashinfer"):
        sys.modules.pop(name, None)


def package(monkeypatch, folder, name, text):
    """A package on Python's path."""
    path = folder.joinpath(*name.split("."))
    path.mkdir(parents=True)
    (path / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def calls(torch, monkeypatch, tmp_path):
    """The stand-ins, and what was called of them."""
    stand_ins, made = types.ModuleType("stand_ins"), []

    def attend(q, k, v, **options):
        if options.get("window") == (None, None):
            options["window"] = None
        return tensor(reference.attention(q, k, v, **options)[0])

    stand_ins.attend, stand_ins.calls = attend, made
    monkeypatch.setitem(sys.modules, "stand_ins", stand_ins)
    package(monkeypatch, tmp_path, "flash_attn.cute", FA4)
    package(monkeypatch, tmp_path, "flashinfer", FLASHINFER)
    return made


def inputs(batch, seq_q, seq_kv, heads=4, kv_heads=2, head_dim=16, heads_first=False):
    random = np.random.default_rng(1)

    def one(seq, heads):
        shape = (batch, heads, seq, head_dim) if heads_first else (batch, seq, heads, head_dim)
        values = random.standard_normal(shape).astype(np.float16)
        return tensor(values.swapaxes(1, 2) if heads_first else values)

    return one(seq_q, heads), one(seq_kv, kv_heads), one(seq_kv, kv_heads)


OPTIONS = [{}, {"causal": True}, {"causal": True, "window": (5, None), "softcap": 3.0, "scale": 0.2}]
ONE_PROMPT, PROMPTS, DECODE, ODD = (1, 12, 20), (3, 12, 20), (3, 1, 192), (2, 1, 21)
EXPECTED = [
    ("fa4", PROMPTS, "flash_attn_func"),
    ("fa4", DECODE, "flash_attn_func"),
    ("flashinfer", ONE_PROMPT, "single_prefill"),
    ("flashinfer", PROMPTS, "ragged"),
    ("flashinfer", DECODE, "decode, pages of 64"),
    ("flashinfer", ODD, "decode, pages of 1"),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name, sizes, call", EXPECTED)
def test_a_peer_computes_what_is_asked(calls, name, sizes, call, options):
    found, absent = peers.find("cuda", [name])
    assert not absent and list(found) == [name]
    q, k, v = inputs(*sizes)
    out = found[name](q, k, v, **options)()
    expected = reference.attention(q, k, v, **options)[0]
    assert calls == [call]
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_windows_to_the_left_without_a_causal_mask(calls):
    found, _ = peers.find("cuda", ["fa4", "flashinfer"])
    q, k, v = inputs(*ONE_PROMPT)
    expected = reference.attention(q, k, v, window=(3, None))[0]
    for make in found.values():
        np.testing.assert_allclose(make(q, k, v, window=(3, None))(), expected, atol=1e-6)


@pytest.mark.parametrize(
    "name, change, why",
    [
        ("fa4", {"scales": (1, 1, 1)}, "no scales"),
        ("flashinfer", {"window": (None, 3)}, "no window to the right"),
        ("flashinfer", {"dtype": "f4"}, "fp16 and bf16 only"),
        ("flashinfer", {"heads_first": True}, "follow each other in memory"),
        ("flashinfer", {"head_dim_v": 8}, "one head_dim"),
    ],
)
def test_what_a_peer_does_not_serve(calls, name, change, why):
    found, _ = peers.find("cuda", [name])
    sizes = DECODE if "head_dim_v" in change else PROMPTS
    q, k, v = inputs(*sizes, heads_first=change.get("heads_first", False))
    if "dtype" in change:
        q = q.astype(change["dtype"])
    v = v[..., : change.get("head_dim_v", v.shape[3])]
    options = {key: change[key] for key in ("scales", "window") if key in change}
    with pytest.raises(peers.NotServed, match=why):
        found[name](q, k, v, **options)


def test_each_missing_peer_has_a_line_with_its_command(torch):
    source = _bench.PeerSource("cuda")
    missing = [name for name in peers.NAMES if not name.startswith("torch/")]
    lines = source.absences()
    assert [line.partition(":")[0] for line in lines] == missing == ["fa3", "fa4", "flashinfer"]
    assert all("pip install" in line and "\n" not in line for line in lines), lines
    assert "'flash-attn-4[cu13]'" in lines[1] and peers.FA3_VARIABLE in lines[0]
    torch.version.cuda = "12.8"
    assert "'flash-attn-4'" in peers.find("cuda", ["fa4"])[1]["fa4"]


def test_backward_passes_have_peers_of_their_own(calls):
    forward, backward = (_bench.PeerSource("cuda", backward=backward) for backward in (False, True))
    assert sorted(forward.wanted) == sorted(peers.NAMES)
    assert sorted(backward.wanted) == sorted(peers.BACKWARD_NAMES) and "fa3-deterministic" not in forward.wanted
    served = [name for name in forward.found if hasattr(forward.found[name], "backward")]
    assert "flashinfer" not in served and "fa4" in served and "torch/cudnn" in served


def test_only_wanted_peers_are_looked_for(calls):
    found, absent = peers.find("cuda", ["flashinfer", "none"])
    assert list(found) == ["flashinfer"] and not absent and "flash_attn" not in sys.modules
    (line,) = _bench.PeerSource("cuda", ["none"]).absences()
    assert "no peer has this name" in line and all(name in line for name in peers.NAMES)


def test_without_pytorch_or_a_device_one_line_names_all(torch, monkeypatch):
    torch.cuda.is_available = lambda: False
    (line,) = _bench.PeerSource("cuda").absences()
    assert line == f"{', '.join(peers.NAMES)}: PyTorch sees no CUDA device"
    monkeypatch.setitem(sys.modules, "torch", None)
    (line,) = _bench.PeerSource("cuda").absences()
    assert line.startswith(", ".join(peers.NAMES)) and line.endswith("pip install torch")
    assert peers.versions() == {}


@pytest.mark.parametrize(
    "text, why",
    [
        ("import cutlass_that_is_not_there", "installed without cutlass_that_is_not_there"),
        ("raise RuntimeError('no nvcc\\nmore')", r"cannot be imported \(no nvcc\)"),
    ],
)
def test_a_package_that_does_not_import_says_why(torch, monkeypatch, tmp_path, text, why):
    package(monkeypatch, tmp_path, "flashinfer", text)
    found, absent = peers.find("cuda", ["flashinfer"])
    assert not found and "pip install flashinfer-python" in absent["flashinfer"]
    with pytest.raises(OSError, match=why):
        raise OSError(absent["flashinfer"])


def test_flash_attention_2_alone_is_not_4(torch, monkeypatch, tmp_path):
    package(monkeypatch, tmp_path, "flash_attn", "")
    assert "FlashAttention-4 is not installed" in peers.find("cuda", ["fa4"])[1]["fa4"]


def fa3(folder, name="_C.abi3.so"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder / name


def test_flash_attention_3_names_the_missing_library(torch, monkeypatch, tmp_path):
    library = fa3(tmp_path / "fa3")
    torch.needs = {"libcudart.so.12"}
    opened = []

    def load(path, mode):
        opened.append(path)
        torch.loaded.append(pathlib.Path(path).name)

    monkeypatch.setattr(peers.ctypes, "CDLL", load)
    for named in (library, library.parent):
        monkeypatch.setenv(peers.FA3_VARIABLE, str(named))
        why = peers.find("cuda", ["fa3"])[1]["fa3"]
        assert f"{library} needs libcudart.so.12, which is missing: pip install nvidia-cuda-runtime-cu12" in why
    # In the folder, it is loaded first.
    (library.parent / "lib").mkdir()
    (library.parent / "lib" / "libcudart.so.12").touch()
    found, absent = peers.find("cuda", ["fa3"])
    assert not absent and opened == [str(library.parent / "lib" / "libcudart.so.12")]
    assert found["fa3"](1, 2, 3, causal=True, softcap=2.0, scale=0.5)() == {
        "is_causal": True, "window_size_left": -1, "window_size_right": 0, "softcap": 2.0, "softmax_scale": 0.5,
    }  # fmt: skip
    # Its backward pass writes the bench's gradients.
    found, absent = peers.find("cuda", ["fa3", "fa3-deterministic"])
    assert not absent and list(found) == ["fa3", "fa3-deterministic"]
    names = ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")
    for name, deterministic in (("fa3", False), ("fa3-deterministic", True)):
        assert found[name].backward({name: name for name in names}, causal=True, scale=0.5, scales=None)() is None
        assert torch.called.pop() == (("dout", "q", "k", "v", "out", "lse"), {
            "dq": "dq", "dk": "dk", "dv": "dv", "is_causal": True, "window_size_left": -1, "window_size_right": 0,
            "softmax_scale": 0.5, "deterministic": deterministic,
        })  # fmt: skip
    with pytest.raises(peers.NotServed, match="the forward pass is that of fa3"):
        found["fa3-deterministic"](1, 2, 3)
    # Any other library that is missing, and one that is there and of no use.
    torch.needs = {"libodd.so"}
    assert "needs libodd.so" in peers.find("cuda", ["fa3"])[1]["fa3"]
    (library.parent / "libodd.so").touch()
    monkeypatch.setattr(peers.ctypes, "CDLL", lambda path, mode: None)
    assert "cannot be loaded: libodd.so" in peers.find("cuda", ["fa3"])[1]["fa3"]


def test_flash_attention_3_of_xformers_with_nvidias_runtime(torch, monkeypatch, tmp_path):
    fa3(tmp_path / "xformers" / "flash_attn_3", "_C.so")
    runtime = tmp_path / "nvidia" / "cuda_runtime" / "lib" / "libcudart.so.12"
    runtime.parent.mkdir(parents=True)
    runtime.touch()

    def find_spec(name):
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(tmp_path / name)]
        return spec

    monkeypatch.setattr(peers.importlib.util, "find_spec", find_spec)
    torch.needs = {"libcudart.so.12"}
    monkeypatch.setattr(peers.ctypes, "CDLL", lambda path, mode: torch.loaded.append(pathlib.Path(path).name))
    found, absent = peers.find("cuda", ["fa3"])
    assert list(found) == ["fa3"] and not absent
    # A folder that is named, and empty, is a mistake, whatever is installed.
    monkeypatch.setenv(peers.FA3_VARIABLE, str(tmp_path / "nvidia"))
    assert "folder without a _C*.so" in peers.find("cuda", ["fa3"])[1]["fa3"]


def test_versions_of_a_peer(torch, monkeypatch):
    of_pytorch = {"torch": "2.11.0", "cuda": "13.0", "cudnn": "91900"}
    monkeypatch.setattr(peers.importlib.metadata, "version", lambda name: "4.0.0b36")
    assert peers.versions() == peers.versions("torch/flash") == of_pytorch
    assert peers.versions("fa4") == {**of_pytorch, "flash-attn-4": "4.0.0b36"}

    def absent(name):
        raise peers.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(peers.importlib.metadata, "version", absent)
    assert peers.versions("flashinfer") == of_pytorch


class FakeGraphs(types.SimpleNamespace):
    """CUDA graphs that repeat what was called while they were captured."""

    def __init__(self):
        self.captured = None
        super().__init__(cuda=self, current_stream=lambda: self, synchronize=lambda: None)

    def CUDAGraph(self):
        return types.SimpleNamespace(replay=lambda: None)

    def Event(self, enable_timing):
        event = types.SimpleNamespace(record=lambda: None, synchronize=lambda: None)
        event.elapsed_time = lambda end: 0.3  # ms for three runs
        return event

    @contextlib.contextmanager
    def graph(self, graph, stream):
        began = len(self.ran)
        yield
        calls = self.ran[began:]
        graph.replay = lambda: self.ran.extend(calls)


def test_graphs_of_a_pass_are_captured_again_when_inputs_change():
    torch = FakeGraphs()
    torch.ran = []

    class Pass:
        inputs = "first"

        def run(self):
            torch.ran.append(self.inputs)
            return ()

        def refresh(self):
            assert peer.call is None and peer.last is None, "what is freed is not used any more"
            self.inputs = "second"

    peer = _bench._GraphPeer(torch, "torch/cudnn", Pass(), versions={})
    assert peer.runs_per_call == 2 and set(torch.ran) == {"first"}
    peer.refresh()
    torch.ran.clear()
    peer.call()
    peer.run_once()
    assert torch.ran == ["second"] * 3
    # A function has nothing to repeat.
    assert not hasattr(_bench._GraphPeer(torch, "fa3", lambda: torch.ran.append("it"), versions={}), "refresh")
