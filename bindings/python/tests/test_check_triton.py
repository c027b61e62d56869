"""`flashcore_attn.check` with Triton: the kernels of lab/check/corpus/triton are clean and compute what float64 does."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

# A kernel that was compiled in another folder names that folder's files.
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
pytest.importorskip("triton")
np = pytest.importorskip("numpy")
import flashcore_attn as fa  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from flashcore_attn.__main__ import command  # noqa: E402
from test_check import ROOT  # noqa: E402

CORPUS = ROOT / "lab" / "check" / "corpus" / "triton"
sys.path.insert(0, str(CORPUS))
FILES = sorted(path.stem for path in CORPUS.glob("*.py") if path.stem != "cases")
for name in FILES:
    __import__(name)
from cases import CASES  # noqa: E402


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case.name}-{place}" for place, case in enumerate(CASES)])
def test_the_corpus_is_clean_and_right(case, target):
    result = fa.check(case.kernel, case.grid, case.args, constexprs=case.constexprs, options=case.options, target=target)
    assert result.raise_if_bad().understood == 1
    for place, expected in case.expected.items():
        np.testing.assert_allclose(result.outputs[place].astype(np.float64), expected, rtol=case.rtol, atol=case.atol)


def test_the_corpus_has_many_kernels_in_several_configurations():
    configurations = {}
    for case in CASES:
        configurations.setdefault(case.kernel.__name__, []).append(case)
    assert len(configurations) >= 20 and min(len(all) for all in configurations.values()) >= 2


@triton.jit
def shift(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at + 1), at < n)  # the load has no mask


@triton.jit
def in_place(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at + tl.program_id(0), tl.load(x + at) + 1)


@triton.jit
def constants(out, one, nothing, wide, flag, rate, BLOCK: tl.constexpr = 32):
    if nothing is None:
        tl.store(out + tl.arange(0, BLOCK) * one, (wide >> 32).to(tl.float32) + flag + rate)


X, ROW = np.arange(100, dtype=np.float32), np.zeros(128, np.float32)


def line_of(text):
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_findings_name_the_line_of_the_python_file():
    result = fa.check(shift, 1, [X, fa.Uninit(100), 100], constexprs={"BLOCK": 128})
    line = result.findings[0]["lines"][0]
    assert (result.findings[0]["kind"], line["line"]) == ("out-of-bounds", line_of("the load has no mask"))
    assert line["file"] == __file__
    with pytest.raises(fa.CheckFailed, match=r"(?s)x.*test_check_triton.py.*tl.load\(x \+ at \+ 1\)"):
        result.raise_if_bad()


def test_races_between_blocks_are_found():
    result = fa.check(in_place, 2, [np.zeros(129, np.float32)], constexprs={"BLOCK": 128})
    assert "block-race" in {finding["kind"] for finding in result.findings}


def test_numbers_none_and_defaults_are_passed_as_at_a_launch():
    result = fa.check(constants, 1, [fa.Uninit(32), 1, None, 5 << 32, True, 0.5]).raise_if_bad()
    assert (result.outputs[0] == 6.5).all() and result.outputs[1:] == [None] * 5


@triton.jit
def copied(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    out.store([at, 0], x.load([at, 0]))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tensor_descriptors_of_the_host(target):
    descriptors = pytest.importorskip("triton.tools.tensor_descriptor")
    torch = pytest.importorskip("torch")
    if not hasattr(tl, "tensor_descriptor"):
        pytest.skip("Triton has no tensor descriptors")
    x, out = torch.arange(2048.0).reshape(64, 32), torch.zeros(64, 32)
    given = [descriptors.TensorDescriptor.from_tensor(tensor, [32, 32]) for tensor in (x, out)]
    result = fa.check(copied, 2, given, constexprs={"BLOCK": 32}, target=target)
    # Triton makes the mbarriers of its copies without a fence for them.
    assert {finding["kind"] for finding in result.findings} <= {"missing-fence"}, str(result)
    assert result.understood == 1 and torch.equal(result.outputs[1], x)


def test_functions_that_are_tuned_are_unwrapped():
    try:
        tuned = triton.autotune([triton.Config({"BLOCK": 128})], key=[])(in_place)
    except RuntimeError as error:  # before Triton 3.4
        pytest.skip(f"triton.autotune needs a GPU: {error}")
    assert (fa.check(tuned, 1, [ROW], constexprs={"BLOCK": 128}).raise_if_bad().outputs[0] == 1).all()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"args": [X, 100]}, r"shift takes 3 arguments \(x, out, n\), and 2 are given"),
        ({"constexprs": {}}, r"shift needs constexprs=\{...\} for BLOCK"),
        ({"constexprs": {"BLOCK": 128, "ROWS": 1}}, "shift has no constexpr ROWS; its parameters are x, out, n, BLOCK"),
        ({"options": {"num_warp": 4}}, "shift has no option num_warp"),
        ({"target": "h200"}, "target is 'h200'; allowed for Triton: an architecture"),
        ({"block": 128}, "`block` and `smem` are Triton's choice"),
        ({"args": [X, fa.Uninit(100), 2**64]}, "`n` is 18446744073709551616; allowed: whole numbers of 64 bits"),
    ],
)
def test_what_is_not_valid_is_said(changes, why):
    call = {"args": [X, fa.Uninit(100), 100], "constexprs": {"BLOCK": 128}, **changes}
    with pytest.raises(ValueError, match=why):
        fa.check(shift, 1, call.pop("args"), **call)


def test_the_command_runs_a_file_that_is_trusted(tmp_path):
    file = tmp_path / "shifted.py"
    lines = pathlib.Path(__file__).read_text().splitlines()
    first = line_of("def shift(") - 2
    imports = ["import triton", "import triton.language as tl", "print('a file may print')", "NUMBER = 1"]
    file.write_text("\n".join([*imports, *lines[first : first + 4]]))
    environment = {**os.environ, "FLASHCORE_PYTHON": sys.executable, "FLASHCORE_CACHE_DIR": str(tmp_path)}
    launch = "--launch grid=1 --arg buf:512 --arg buf:400:unwritten --arg 100".split()

    def said(function, *flags):
        line = [os.environ.get("FLASHCORE_COMMAND") or command(), "check", f"{file}:{function}", *launch, *flags, "--", "-DBLOCK=128", "-Dnum_warps=2"]
        ran = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    code, text = said("shift")
    assert code == 2 and "shifted:shift is not trusted" in text and "a file may print" not in text
    code, text = said("shift", "--trust")
    assert code == 1 and "out-of-bounds" in text and "shifted.py:8" in text, text
    assert said("shift")[0] == 1  # its content is trusted
    code, text = said("NUMBER")
    assert code == 2 and "has no function NUMBER; it has shift" in text


ROWS = '''
import flashcore_attn
import triton
import triton.language as tl


@flashcore_attn.declared(
    dtype=["fp16"],
    args=["q", "k", "v", "out", "q_seq_stride", "q_head_stride", "scale", "seq_q"],
    grid=["seq_q", "heads"],
    requires=["head_dim == D", "head_dim_v == D"],
    parameters={"D": [64], "FACTOR": [1, 2], "num_warps": [1], "N": [16, 24]},
)
@triton.jit
def attend(Q, K, V, O, of_row, of_head, scale, rows, D: tl.constexpr, N: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.program_id(1) * of_head + tl.arange(0, D)
    q = tl.load(Q + tl.program_id(0) * of_row + at).to(tl.float32) * scale * FACTOR
    most, total, sums = -1e30, 0.0, tl.zeros([D], tl.float32)
    for first in range(0, rows, N):
        keys = first + tl.arange(0, N)
        there, place = (keys < rows)[:, None], keys[:, None] * of_row + at
        scores = tl.sum(tl.load(K + place, mask=there, other=0.0) * q, 1)
        scores = tl.where(keys < rows, scores, -1e30)
        higher = tl.maximum(most, tl.max(scores, 0))
        weights, rescale = tl.exp(scores - higher), tl.exp(most - higher)
        sums = sums * rescale + tl.sum(weights[:, None] * tl.load(V + place, mask=there, other=0.0), 0)
        most, total = higher, total * rescale + tl.sum(weights, 0)
    tl.store(O + tl.program_id(0) * of_row + at, (sums / total).to(tl.float16))


@triton.jit
def plain(X):
    pass
'''


def test_the_search_takes_a_function_with_its_parameters(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(ROWS)
    environment = {**os.environ, "FLASHCORE_PYTHON": sys.executable, "FLASHCORE_CACHE_DIR": str(tmp_path)}

    def tuned(function, *flags):
        line = [os.environ.get("FLASHCORE_COMMAND") or command(), "tune", f"{file}:{function}", *flags]
        line += ["--device", "predict:l4", "--strategy", "exhaustive", "--trials", "5", "--folder", str(tmp_path / "run")]
        ran = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split())

    code, text = tuned("plain")
    if "this system lacks" in text:
        pytest.skip("NOT CHECKED: this system has no sandbox")
    assert code == 2 and "mine.py: " in text and "plain has no declaration (@flashcore_attn.declared)" in text, text
    code, text = tuned("attend")
    assert code == 0, text
    trials = [json.loads(line) for line in (tmp_path / "run" / "trials.jsonl").read_text().splitlines()]
    found = {trial["id"]: trial for trial in trials}
    right, wrong = (found[f"own/attend-D64-FACTOR{factor}-N16-num_warps1"] for factor in (1, 2))
    assert right["verdict"] == "SLOWER" and right["timed"]["error"] < 1e-3, right
    assert wrong["verdict"] == "WRONG", wrong
    # Triton's arange takes powers of 2.
    refused = found["own/attend-D64-FACTOR1-N24-num_warps1"]
    assert refused["verdict"] == "BUILD_FAILED" and "mine.py" in refused["reason"], refused
