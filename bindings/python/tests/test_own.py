"""Functions of users in the bench: right, wrong, hanging, crashing. The command itself is run where it was built."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from flashcore_attn import _bench, _own
from test_bench import QUICK_RUN, request

ROOT = pathlib.Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "own-kernel"
COMMAND = pathlib.Path(os.environ.get("FLASHCORE_COMMAND", ROOT / "target" / "debug" / "flashcore"))


def own(path, function, sha256=None):
    import hashlib

    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    label = f"own/{pathlib.Path(path).stem}:{function}"
    return {"label": label, "file": str(path), "sha256": sha256 or digest, "code": {"python": function}}


def benched(*functions, **how):
    """Benches these functions with one of our kernels: results by label, and those that are absent."""
    labels = [function["label"] for function in functions]
    asked = request(kernels=["cpu/m16n128", *labels], own=list(functions), **how)
    result = _bench.run(asked, device="cpu", peers=[])["results"][0]
    subjects = {subject["info"]["label"]: subject for subject in result["measurement"]["subjects"]}
    return subjects, dict(result["absent"])


def write(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("causal", [False, True])
def test_the_example_is_inspected_and_timed(causal):
    subjects, absent = benched(own(EXAMPLES / "attention_numpy.py", "attention"), causal=causal)
    assert absent == {}
    ours = subjects["own/attention_numpy:attention"]
    assert ours["summary"]["p50"] > 0 and ours["trouble"] is None and ours["info"]["kernel"] is None
    assert "numpy" in ours["info"]["versions"] and ours["ratio"] is not None
    assert subjects["cpu/m16n128"]["ratio"] is None, "what is compared with is ours"


RIGHT = """
import numpy as np

def attention(q, k, v, out):
    q, k, v = (np.asarray(x, np.float32).transpose(0, 2, 1, 3) for x in (q, k, v))
    weights = np.exp(q @ k.swapaxes(2, 3) / q.shape[3] ** 0.5)
    out[...] = SCALE * (weights @ v / weights.sum(3, keepdims=True)).transpose(0, 2, 1, 3)
"""


def test_a_function_that_writes_out_is_judged(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as where there is none: functions get NumPy's arrays
    subjects, _ = benched(own(write(tmp_path, RIGHT.replace("SCALE", "1.0")), "attention"))
    assert subjects["own/mine:attention"]["trouble"] is None and subjects["own/mine:attention"]["summary"]
    subjects, _ = benched(own(write(tmp_path, RIGHT.replace("SCALE", "1.1")), "attention"))
    assert "REJECTED (wrong)" in subjects["own/mine:attention"]["trouble"]
    subjects, _ = benched(own(write(tmp_path, "def f(q, k, v, out): pass"), "f"))
    assert "REJECTED (unwritten)" in subjects["own/mine:f"]["trouble"]


@pytest.mark.parametrize(
    "text, function, how, reason",
    [
        ("def f(q, k, v): return q", "g", {}, "has no function g; it has f"),
        ("def f(q, k, v): return q", "f", {"causal": True}, "a causal mask, and the function takes no causal="),
        ("def f(q, k, v): return None", "f", {}, "it returned None and takes no out="),
        ("def f(q, k, v): return 3", "f", {}, "it returned a int: return a tensor"),
        ("def f(q, k, v): return q[:, 1:]", "f", {}, "it returned a tensor of shape [1, 127, 4, 64]"),
        ("def f(q, k, v):\n    raise KeyError('no')", "f", {}, "KeyError: 'no' (mine.py:2)"),
        ("import nothing_of_this_name", "f", {}, "ModuleNotFoundError"),
        ("def f(", "f", {}, "SyntaxError"),
    ],
)
def test_what_does_not_serve_says_why(tmp_path, text, function, how, reason):
    mine = own(write(tmp_path, text), function)
    subjects, absent = benched(mine, **how)
    assert reason in absent[mine["label"]] and subjects["cpu/m16n128"]["summary"]


def test_a_file_that_has_changed_does_not_run(tmp_path):
    path = write(tmp_path, "raise SystemExit('it ran')")
    _, absent = benched(own(path, "f", sha256="0" * 64))
    assert "has changed since it was allowed to run" in absent["own/mine:f"]


def test_one_that_failed_before_is_left_out(tmp_path):
    mine = own(write(tmp_path, "raise SystemExit('it ran')"), "f")
    _, absent = benched(mine, failed=[[mine["label"], "HUNG"]])
    assert absent == {mine["label"]: "HUNG"}


def test_keywords_follow_the_signature():
    problem = {**request()["cases"][0]["problem"], "softmax_scale": 0.5}
    view = type("View", (), {"shape": (1, 128, 4, 64)})
    options = lambda function: _own.Function(function, "f")._options(problem, view, view)
    assert options(lambda q, k, v, causal, softmax_scale: None) == {"causal": False, "softmax_scale": 0.5}
    assert options(lambda q, k, v, **more: None) == {"causal": False, "softmax_scale": 0.5}
    with pytest.raises(_own.NotServed, match="takes no softmax_scale="):
        options(lambda q, k, v: None)
    problem["softcap"] = 30.0
    assert options(lambda q, k, v, softmax_scale, softcap: None)["softcap"] == 30.0


def flashcore(cache, *arguments):
    if not COMMAND.exists():
        pytest.skip(f"{COMMAND} was not built; FLASHCORE_COMMAND names the command")
    environment = {**os.environ, "FLASHCORE_PYTHON": sys.executable, "FLASHCORE_CACHE_DIR": str(cache)}
    done = subprocess.run([COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def test_a_hanging_a_crashing_and_a_wrong_one_cost_one_candidate_each(tmp_path):
    bad = EXAMPLES / "bad" / "bad.py"
    names = ["hangs", "aborts", "raises", "wrong", "hangs_when_timed"]
    kernels = ["cpu/m16n128", *(f"{bad}:{name}" for name in names), f"{EXAMPLES / 'attention_numpy.py'}:attention"]
    quick = ["--device", "cpu", "--peers", "none", "--store", "none", "--budget", "0.2", "--json"]
    bench = ["bench", "tiny", "--kernel", ",".join(kernels), "--deadline", "1", *quick]
    code, _, errors = flashcore(tmp_path, *bench)
    assert code == 2 and "is not trusted" in errors
    code, output, errors = flashcore(tmp_path, *bench, "--trust")
    assert code == 1, errors
    report = json.loads(output)["report"]
    failed = dict(report["failed"])
    assert failed.keys() == {"own/bad:hangs", "own/bad:aborts", "own/bad:hangs_when_timed"}, failed
    assert failed["own/bad:hangs"].startswith("HUNG: no answer while calling within")
    assert failed["own/bad:aborts"].startswith("CRASHED while calling: its process ended (signal: 6")
    assert failed["own/bad:hangs_when_timed"].startswith("HUNG: no answer while")
    result = report["results"][0]
    absent = dict(result["absent"])
    assert absent.keys() == {*failed, "own/bad:raises"} and "RuntimeError: not today" in absent["own/bad:raises"]
    subjects = {subject["info"]["label"]: subject for subject in result["measurement"]["subjects"]}
    assert "REJECTED (wrong)" in subjects["own/bad:wrong"]["trouble"]
    for good in ("cpu/m16n128", "own/attention_numpy:attention"):
        assert subjects[good]["summary"]["p50"] > 0 and subjects[good]["trouble"] is None, subjects[good]


def test_a_kernel_of_the_user_is_compared_with_ours(tmp_path):
    kernels = f"cpu/m16n128,{EXAMPLES / 'attention_numpy.py'}:attention"
    bench = ["bench", "tiny", "--kernel", kernels, "--baseline", "cpu/m16n128", "--peers", "none", "--device", "cpu"]
    code, output, errors = flashcore(tmp_path, *bench, "--store", "none", "--budget", "0.2", "--trust", "--json")
    assert code == 0, errors
    [result] = json.loads(output)["report"]["results"]
    subjects = {subject["info"]["label"]: subject for subject in result["measurement"]["subjects"]}
    assert subjects["own/attention_numpy:attention"]["ratio"]["value"] > 0
