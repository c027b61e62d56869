"""The bench hook, with the host's clock: the protocol is Rust's and tested there, this is the way to it."""

import json
import time

import flashcore
import numpy as np
import pytest
from flashcore import _bench, peers

QUICK = {"budget_ms": 300.0, "warm_up_min_us": 1000.0, "lead_us": 0.0, "sample_us": 200.0}


def spin(us):
    def call():
        until = time.perf_counter_ns() + us * 1000
        while time.perf_counter_ns() < until:
            pass

    return call


def test_functions_are_told_apart():
    subjects = [_bench.Subject(f"spin {us}", spin(us), launch="host") for us in (50, 100)]
    seen = []
    measured = _bench.measure(
        subjects, _bench.HostStopwatch(), options=QUICK, observer=lambda kind, what: seen.append((kind, json.loads(what)))
    )
    base, other = measured["subjects"]
    assert base["info"]["label"] == "spin 50" and base["verdict"] is None
    assert other["verdict"] == "SLOWER" and 1.5 < other["ratio"]["value"] < 2.5
    assert {kind for kind, _ in seen} == {"sample", "round"}
    assert sum(kind == "sample" for kind, _ in seen) == base["summary"]["count"] + other["summary"]["count"]


def test_our_attention_on_numpy_tensors():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 64, 2, 32)).astype(np.float32)
    call = lambda: flashcore.attention(q, k, v)
    subjects = [_bench.Subject(label, call, launch="host", kernel="cpu/m16n128") for label in ("ours", "ours again")]
    measured = _bench.measure(subjects, _bench.HostStopwatch(), options=QUICK)
    assert all(subject["summary"]["min"] > 0 for subject in measured["subjects"])


def test_a_subject_that_raises_is_left_out():
    def fails():
        raise ValueError("not today")

    subjects = [_bench.Subject("good", spin(20), launch="host"), _bench.Subject("bad", fails, launch="host")]
    good, bad = _bench.measure(subjects, _bench.HostStopwatch(), options=QUICK)["subjects"]
    assert good["trouble"] is None and good["summary"] is not None
    assert "not today" in bad["trouble"] and bad["summary"] is None


def test_an_interrupt_ends_the_measurement():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        _bench.measure([_bench.Subject("a", interrupted, launch="host")], _bench.HostStopwatch(), options=QUICK)


def test_bad_requests():
    subject = _bench.Subject("a", spin(20), launch="host")
    with pytest.raises(ValueError, match="options.*unknown field"):
        _bench.measure([subject], _bench.HostStopwatch(), options={"rounds": 3})
    with pytest.raises(ValueError, match="mode is warm"):
        _bench.measure([subject], _bench.HostStopwatch(), mode="warm")
    with pytest.raises(ValueError, match="baseline is 1"):
        _bench.measure([subject], _bench.HostStopwatch(), baseline=1)
    with pytest.raises(ValueError, match="baseline is 0"):
        _bench.measure([], _bench.HostStopwatch())


def test_absent_peers_say_why():
    found, absent = peers.find("cuda")
    assert set(found) | set(absent) >= {"torch/flash", "torch/cudnn", "torch/efficient", "torch/math", "fa3"}
    assert not set(found) & set(absent)
    assert all(isinstance(why, str) and why for why in absent.values())


CASES = [{}, {"causal": True, "seq_q": 96, "kv_heads": 1}]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_compare_with_pytorch(device, options):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    if device == "cuda" and flashcore.why_not_cuda():
        pytest.skip(flashcore.why_not_cuda())
    sizes = {"batch": 1, "heads": 4, "kv_heads": 4, "seq_q": 128, "seq_kv": 128, "head_dim": 64, "dtype": "float16"}
    case = _bench.Case(**{**sizes, **options})
    for launch in ("plain", "graph"):
        report = _bench.compare(
            case, ["flashcore", "torch/math", "torch/none"], device=device, launch=launch, options=QUICK
        )
        assert "no peer has this name" in report["left_out"]["torch/none"]
        assert report["errors"]["flashcore"] <= 1
        timed = [subject["info"]["label"] for subject in report["measurement"]["subjects"]]
        assert timed == (["flashcore"] if options else ["flashcore", "torch/math"])
