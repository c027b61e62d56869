"""The bench hook, with the host's clock: the protocol is Rust's and tested there, this is the way to it."""

import contextlib
import ctypes
import json
import subprocess
import sys

import flashcore_attn
import numpy as np
import pytest
import reference
from flashcore_attn import _bench, _native, peers

class Cache:
    def __init__(self, value):
        self.value = value

    def clone(self):
        return Cache(self.value)

    def copy_(self, other):
        self.value = other.value


def test_runs_take_turns_with_copies_of_caches():
    k, v, ran = Cache(1), Cache(2), []

    def function(k, v):
        def run():
            ran.append((k, v))
            return k, v

        return run

    runs = _bench._InTurn(function, k, v, 3)
    assert len(set(ran)) == len(ran) == 3  # before any run is captured
    runs.left = 4
    read = [runs.run() for _ in range(5)]
    assert len({id(cache) for caches in read for cache in caches}) == 6
    assert read[4] == (k, v) == read[1] and read[0] == read[3]  # the last run of a chain has the bench's own
    k.value = 3
    runs.refresh()
    assert all(caches[0].value == 3 and caches[1].value == 2 for caches in read)


@pytest.mark.parametrize(
    "us, caches, runs",
    [(34, 1, 6), (1, 1, 64), (500, 1, 1), (34, 8, 8), (200, 8, 8), (20, 8, 16), (1, 5, 65), (1, 100, 100)],
)
def test_a_chain_has_every_copy_as_often_as_the_others(us, caches, runs):
    assert _bench._chain(us, caches) == runs


class Torch:
    """What a peer in a graph needs of PyTorch; a run takes 34 us. Calls are captured by running them."""

    def __init__(self):
        self.cuda = self

    def current_stream(self):
        return self

    def synchronize(self):
        pass

    def Event(self, enable_timing):
        return self

    def record(self):
        pass

    def elapsed_time(self, ended):
        return 3 * 0.034

    def CUDAGraph(self):
        return self

    def replay(self):
        pass

    @contextlib.contextmanager
    def graph(self, graph, stream):
        yield


def test_a_graph_has_runs_on_every_copy():
    ran = []
    k, v = Cache(1), Cache(2)
    runs = _bench._InTurn(lambda k, v: lambda: ran.append(k), k, v, 8)
    peer = _bench._GraphPeer(Torch(), "a", runs, versions={})
    chain = ran[-8:]
    assert peer.runs_per_call == 8
    assert len(set(chain)) == 8 and chain[-1] is k


@pytest.mark.parametrize(
    "asked, says",
    [
        ({"request": {"cases": [], "colour": 1}}, "unknown field `colour`"),
        ({"request": {"cases": []}, "colour": 1, "shape": 2}, "colour, shape of the request is not known to flashcore"),
        ({"request": {"options": {"colour": 1}}}, "unknown field `colour`"),
    ],
    ids=["request", "job", "options"],
)
def test_what_a_request_has_and_this_package_does_not_know_is_an_error(asked, says):
    asked = {"device": "cpu", "peers": [], **asked}
    code, said = told(asked)
    assert code == 1 and says in said[-1]["failed"]


def told(asked):
    """What the process says of a request, and its exit code."""
    command = [sys.executable, "-m", "flashcore_attn._bench"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_command_of_another_build_is_refused_before_anything_is_timed():
    ours = _bench.run(request(), device="cpu", peers=[])["run"]
    job = {"device": "cpu", "peers": [], "request": request()}
    code, said = told({**job, "build": {"revision": "another", "version": "0.0.1"}})
    assert code == 1 and len(said) == 1
    assert said[0]["failed"] == (
        f"the Python package flashcore_attn was built from revision {ours['revision']} (version {ours['version']}), this command "
        "from revision another (version 0.0.1), and the kernels timed with peers or Python functions are the package's: "
        "install the package of this command's source (in its clone, `pip install ./bindings/python`), or time neither peers "
        "(`--peers none`) nor Python functions"
    )
    code, said = told({**job, "build": {"revision": "unknown", "version": ours["version"]}})
    assert code == 0 and "the versions are the same" in said[0]["note"] and "report" in said[-1]
    if ours["revision"] != "unknown":
        code, said = told({**job, "build": {key: ours[key] for key in ("revision", "version")}})
        assert code == 0 and said[-1]["report"]["notes"] == [] and not any("note" in event for event in said)


def test_absent_peers_say_why():
    found, absent = peers.find("cuda")
    assert set(found) | set(absent) >= {"torch/flash", "torch/cudnn", "torch/efficient", "torch/math", "fa3"}
    assert not set(found) & set(absent)
    assert all(isinstance(why, str) and why for why in absent.values())


SIZES = {"batch": 1, "num_heads": 4, "num_kv_heads": 4, "seq_len_q": 128, "seq_len_kv": 128, "head_dim": 64}


def request(dtype="fp16", causal=False, direction="forward", **more):
    """A request for one problem, as flashcore-bench writes it."""
    shape = [1, 128, 4, 64]
    layout = {"shape": shape, "strides": [128 * 4 * 64, 4 * 64, 64, 1]}
    problem = {
        **SIZES,
        "head_dim_v": 64,
        "dtype": {"fp16": "f16"}.get(dtype, dtype),
        "mask": {"window_left": None, "window_right": 0 if causal else None, "align": "bottom_right"},
        "q_offset": 0,
        "kv_offset": 0,
        "softmax_scale": 0.125,
        "softcap": None,
        "return_lse": False,
        "direction": direction,
        **dict.fromkeys("qkvo", layout),
    }
    return {"cases": [{"name": "small", "problem": problem}], "options": QUICK_RUN, **more}


QUICK_RUN = {"budget_ms": 300.0, "warm_up_min_us": 1000.0, "sample_us": 200.0}


def test_run_benches_our_kernels():
    seen = []
    report = _bench.run(request(), device="cpu", watcher=lambda kind, what: seen.append((kind, json.loads(what))))
    subjects = report["results"][0]["measurement"]["subjects"]
    assert subjects[0]["info"]["kernel"].startswith("cpu/") and subjects[0]["summary"]["p50"] > 0
    assert {"case", "inspected", "sample", "result"} <= {kind for kind, _ in seen}
    json.dumps(report)


def test_run_benches_our_backward_pass():
    report = _bench.run(request(direction="backward", causal=True), device="cpu", peers=[])
    result = report["results"][0]
    assert result["case"]["problem"]["direction"] == "backward"
    subject = result["measurement"]["subjects"][0]
    assert subject["info"]["kernel"].startswith("cpu/") and subject["summary"]["p50"] > 0


def test_run_with_nothing_to_do():
    with pytest.raises(ValueError, match="nothing to measure"):
        _bench.run({"cases": []}, device="cpu")
    with pytest.raises(ValueError, match="the request is not what flashcore-bench reads"):
        _bench.run({"cases": 3}, device="cpu")


class Peers:
    """Peers that NumPy makes, right and wrong."""

    def __init__(self, *errors):
        self.errors = errors

    def absences(self):
        return ["a peer that is not here"]

    def peers(self, case, place, tensors):
        assert place is None and json.loads(case)["name"] == "small"

        def array(tensor):
            memory = (ctypes.c_ubyte * tensor["bytes"]).from_address(tensor["address"])
            return np.frombuffer(memory, {"f16": "float16"}[tensor["dtype"]]).reshape(tensor["shape"])

        tensors = {tensor["name"]: tensor for tensor in json.loads(tensors)}
        q, k, v = (array(tensors[name]) for name in "qkv")
        assert not _bench.Asked.of(json.loads(case)["problem"], q, k).causal  # peers serve it

        def peer(label, function):
            subject = _bench.Subject(label, lambda: setattr(subject, "last", function()), launch="host")
            subject.own_output = lambda: (subject.last,)
            subject.call()
            return subject

        def failing(error):
            first = iter([0])  # the call that the peer is made with

            def call():
                if next(first, None) is None:
                    raise error
                return right()

            return call

        right = lambda: reference.attention(q, k, v)[0].astype(np.float16)
        strided = lambda: right().transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
        made = [peer("right", right), peer("strided", strided), peer("wrong", lambda: right() * np.float16(1.1))]
        return [*made, *(peer(type(error).__name__, failing(error)) for error in self.errors), ("unable", "it cannot")]


def test_peers_are_inspected_and_timed():
    report = json.loads(_native.run_bench("cpu", json.dumps(request()), Peers(ValueError("not today"))))
    result = report["results"][0]
    by_label = {subject["info"]["label"]: subject for subject in result["measurement"]["subjects"]}
    for label in ("right", "strided"):
        assert by_label[label]["summary"]["p50"] > 0 and by_label[label]["trouble"] is None
    assert ["ValueError", "ValueError: not today"] in result["absent"]
    assert by_label["wrong"]["summary"] is None and by_label["wrong"]["trouble"]
    assert ["unable", "it cannot"] in result["absent"]
    assert "a peer that is not here" in report["notes"]


def test_an_interrupt_ends_the_bench():
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        _native.run_bench("cpu", json.dumps(request()), Peers(KeyboardInterrupt()))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": True},
        {"dtype": "bf16"},
        {"plain": True},
        {"direction": "backward"},
        {"direction": "backward", "dtype": "bf16", "causal": True},
        {"direction": "backward", "plain": True},
    ],
    ids=str,
)
def test_pytorch_beside_ours(device, how):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if device == "cuda" and flashcore_attn.why_not_cuda():
        pytest.skip(flashcore_attn.why_not_cuda())
    report = _bench.run(request(**how), device=device, peers=["torch/math", "torch/none"])
    assert any("torch/none" in note for note in report["notes"])
    subjects = report["results"][0]["measurement"]["subjects"]
    assert {subject["info"]["label"] for subject in subjects} >= {"torch/math"}
    assert all(subject["summary"] and not subject["trouble"] for subject in subjects), subjects


@pytest.mark.parametrize("label", ["torch/math", "torch/sdpa"])
def test_a_backward_pass_of_pytorch_is_of_the_inputs_that_are_there(label):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    found, _ = peers.find("cpu", [label])
    random = np.random.default_rng(3)
    shapes = {"q": (2, 33, 4, 16), "k": (2, 33, 4, 16), "v": (2, 33, 4, 16), "dout": (2, 33, 4, 16)}
    tensors = {name: torch.from_numpy(random.standard_normal(shape)) for name, shape in shapes.items()}
    made = found[label].backward(tensors, causal=True, window=None, softcap=None, scale=0.3, scales=None)

    def by_hand():
        q, k, v = (tensors[name].transpose(1, 2).clone().requires_grad_() for name in "qkv")
        scores = (q @ k.transpose(-1, -2)) * 0.3
        scores = scores.masked_fill(torch.ones(33, 33).triu(1).bool(), float("-inf"))
        (scores.softmax(-1) @ v).backward(tensors["dout"].transpose(1, 2))
        return [tensor.grad.transpose(1, 2) for tensor in (q, k, v)]

    for got, want in zip(made.run(), by_hand()):
        torch.testing.assert_close(got, want)
    before = made.run()[0].clone()
    for name, shape in shapes.items():
        tensors[name].copy_(torch.from_numpy(random.standard_normal(shape)))
    made.refresh()
    for got, want in zip(made.run(), by_hand()):
        torch.testing.assert_close(got, want)
    assert not torch.equal(before, made.run()[0])


def test_scores_beside_cublas():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if flashcore_attn.why_not_cuda():
        pytest.skip(flashcore_attn.why_not_cuda())
    subjects = _bench.run(request(scores=True))["results"][0]["measurement"]["subjects"]
    assert "torch/baddbmm" in {subject["info"]["label"] for subject in subjects}
    assert all(subject["summary"] and not subject["trouble"] for subject in subjects), subjects


def test_heads_as_matrices_share_memory_or_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    heads = torch.arange(2 * 3 * 5 * 4.0).reshape(2, 3, 5, 4)
    matrices = _bench._matrices(heads, "q")
    assert matrices.shape == (6, 5, 4) and matrices.data_ptr() == heads.data_ptr()
    with pytest.raises(peers.NotServed, match="q"):
        _bench._matrices(heads.permute(2, 1, 0, 3), "q")
