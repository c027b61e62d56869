"""`flashcore_attn.check` with PTX and CUDA C++: arguments, outputs, findings, what is not valid, and the fixture of pytest."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

np = pytest.importorskip("numpy")
import flashcore_attn as fa  # noqa: E402
from flashcore_attn.__main__ import command  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILT = ROOT / "target" / "debug" / "flashcore"
if "FLASHCORE_COMMAND" not in os.environ and command() is None:
    if not BUILT.is_file():
        pytest.skip(f"{BUILT} was not built; FLASHCORE_COMMAND names the command", allow_module_level=True)
    os.environ["FLASHCORE_COMMAND"] = str(BUILT)

# y[i] = a * x[i] + y[i] for i below n.
AXPY = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry axpy(.param .u64 x, .param .u64 y, .param .f32 a, .param .u32 n) .maxntid 64, 1, 1
{
    .reg .pred %p<2>; .reg .b32 %r<5>; .reg .f32 %f<5>; .reg .b64 %d<6>;
    ld.param.u64 %d1, [x];
    ld.param.u64 %d2, [y];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r2, 64, %r3;
    setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra END;
    mul.wide.u32 %d3, %r4, 4;
    add.u64 %d4, %d1, %d3;
    add.u64 %d5, %d2, %d3;
    ld.global.f32 %f2, [%d4];
    ld.global.f32 %f3, [%d5];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%d5], %f4;
END:
    ret;
}
"""
X, Y = np.arange(100, dtype=np.float32), np.ones(100, dtype=np.float32)


def test_outputs_are_what_the_kernel_leaves_and_arguments_stay():
    result = fa.check(AXPY, 2, [X, Y, 2.0, 100], target="sm_80")
    assert (result.verdict, result.findings, result.missing, result.understood) == ("clean", [], [], 1)
    x, y, a, n = result.outputs
    np.testing.assert_array_equal(y, 2 * X + 1)
    np.testing.assert_array_equal(x, X)
    assert (a, n) == (None, None) and (Y == 1).all()
    assert result.predicted_us > 0 and result.raise_if_bad() is result


def test_findings_name_the_line_and_are_raised_as_text():
    result = fa.check(AXPY, [2, 1, 1], [X, Y, 2.0, 128])
    assert result.verdict == "findings"
    assert {finding["kind"] for finding in result.findings} == {"out-of-bounds"}
    line = AXPY[: AXPY.index("ld.global.f32 %f2")].count("\n") + 1
    assert result.findings[0]["lines"][0]["line"] == line
    with pytest.raises(fa.CheckFailed, match=r"(?s)error\[out-of-bounds\].*ld\.global\.f32 %f2.*verdict: findings"):
        result.raise_if_bad()


def test_what_is_not_initialised_is_a_finding_if_it_is_read():
    result = fa.check(AXPY, 2, [X, fa.Uninit(100), 2.0, 100])
    assert [finding["kind"] for finding in result.findings] == ["never-written"]
    written = AXPY.replace("ld.global.f32 %f3, [%d5];", "mov.f32 %f3, 0f3F800000;")
    result = fa.check(written, 2, [X, fa.Uninit(100), 2.0, 100]).raise_if_bad()
    np.testing.assert_array_equal(result.outputs[1], 2 * X + 1)


def test_forms_that_are_missing_are_listed_and_raised():
    text = AXPY.replace("fma.rn.f32", "tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [t, {%f1}];\n    fma.rn.f32")
    result = fa.check(text, 2, [X, Y, 2.0, 100])
    assert result.verdict == "not_judged" and result.understood < 1 and result.outputs is None
    assert "tex.1d" in result.missing[0]["form"]
    with pytest.raises(fa.CheckFailed, match="missing: tex.1d"):
        result.raise_if_bad()


def test_memory_of_strided_arrays_goes_with_its_gaps():
    y = np.zeros((50, 4), np.float32)[:, 1:3]  # 198 elements from the first to the last
    result = fa.check(AXPY, 4, [np.ones(198, np.float32), y, 3.0, 198]).raise_if_bad()
    assert result.outputs[1].shape == (50, 2) and (result.outputs[1] == 3).all()
    assert fa.check(AXPY, 4, [np.ones(199, np.float32), y, 3.0, 199]).verdict == "findings"


def test_arrays_that_overlap_are_one_buffer():
    memory = np.arange(100, dtype=np.float32)
    result = fa.check(AXPY, 1, [memory[64:96], memory[:64], 2.0, 32]).raise_if_bad()
    np.testing.assert_array_equal(result.outputs[1], [*(memory[:32] + 2 * memory[64:96]), *memory[32:64]])
    x = np.ones(64, np.float32)
    assert (fa.check(AXPY, 1, [x, x, 2.0, 64]).raise_if_bad().outputs[0] == 3).all()
    assert fa.check(AXPY, 1, [memory[1:65], memory[:64], 2.0, 64]).findings[0]["kind"] == "race"


def test_arrays_that_overlap_may_end_in_part_of_an_element():
    memory = np.zeros(130, np.uint8)
    result = fa.check(AXPY, 1, [memory[:128].view(np.float32), memory[2:130].view(np.float16), 2.0, 0])
    assert result.raise_if_bad().outputs[1].dtype == np.float16


@pytest.mark.parametrize(
    ("kernel", "changes", "why"),
    [
        (AXPY, {"options": ["-O3"]}, "`constexprs` and `options` are for Triton and CUDA C.*"),
        (AXPY, {"constexprs": {"N": 1}}, "`constexprs` and `options` are for Triton and CUDA C.*"),
        ("a.ptx", {"options": ["-O3"]}, "`constexprs` and `options` are for Triton and CUDA C.*"),
        ("a.cu", {"options": "--x"}, "`options` is '--x'; allowed for a .cu: a list"),
        ("a.cu", {"options": {"num_warps": 4}}, "`options` is {'num_warps': 4}; allowed for a .cu: a list"),
    ],
)
def test_options_fit_the_kernel(kernel, changes, why):
    with pytest.raises((TypeError, ValueError), match=why):
        fa.check(kernel, 1, [X, Y, 2.0, 100], **changes)


def test_paths_of_ptx_and_of_cuda(tmp_path):
    (tmp_path / "axpy.ptx").write_text(AXPY)
    fa.check(tmp_path / "axpy.ptx", 2, [X, Y, 2.0, 100]).raise_if_bad()
    fa.check(str(tmp_path / "axpy.ptx"), 2, [X, Y, 2.0, 100]).raise_if_bad()
    source = tmp_path / "sum.cu"
    source.write_text(
        textwrap.dedent("""\
        extern "C" __global__ void sum(const float* x, float* out) {
            extern __shared__ float part[];
            part[threadIdx.x] = x[threadIdx.x] * SCALE;
            BARRIER
            if (threadIdx.x == 0) {
                float sum = 0;
                for (int i = 0; i < blockDim.x; i++) sum += part[i];
                *out = sum;
            }
        }
        """)
    )
    args = {"args": [X, fa.Uninit(1)], "block": 100, "smem": 400}
    try:
        result = fa.check(source, 1, **args, constexprs={"SCALE": "2", "BARRIER": "__syncthreads();"})
    except RuntimeError as error:
        assert "pip install nvidia-cuda-nvcc" in str(error)
        pytest.skip("there is no compiler of CUDA C++")
    assert result.raise_if_bad().outputs[1] == 2 * X.sum()
    result = fa.check(source, 1, **args, options=["-DSCALE=1", "-DBARRIER="])
    assert (result.findings[0]["kind"], result.findings[0]["lines"][0]["line"]) == ("race", 7)
    assert "sum.cu:7" in result.findings[0]["rendered"]
    with pytest.raises(ValueError, match="SCALE"):
        fa.check(source, 1, **args)


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"grid": []}, ValueError, r"grid is \[\]; allowed: one to three whole numbers"),
        ({"grid": (1, 1, 1, 1)}, ValueError, "one to three whole numbers"),
        ({"grid": 0}, ValueError, "grid is 0"),
        ({"grid": 1.5}, ValueError, "grid is 1.5"),
        ({"block": "64"}, ValueError, "block is '64'"),
        ({"smem": -1}, ValueError, "smem is -1"),
        ({"args": [X, Y, 2.0]}, ValueError, "3 arguments; the kernel's parameters are"),
        ({"args": [X, Y, 2.0, [100]]}, TypeError, "argument 4 is of type list; allowed: NumPy arrays"),
        ({"args": [X, Y.astype(complex), 2.0, 100]}, TypeError, "argument 2 has the dtype complex128; allowed: float16"),
        ({"args": [X, Y[::-1], 2.0, 100]}, ValueError, "argument 2 has negative strides"),
        ({"args": [X, None, 2.0, 10]}, TypeError, "None is an argument for Triton functions alone"),
        ({"args": [X, Y, 2.0, 2**40]}, ValueError, "argument 4 is 1099511627776; `n` has 32 bits"),
        ({"target": "sm_12"}, ValueError, "sm_12.*known are"),
        ({"kernel": "no such file.ptx"}, ValueError, "no such file.ptx"),
        ({"kernel": len}, TypeError, r"a Triton function \(@triton.jit\), PTX text, the path of a .ptx or .cu file"),
        ({"entry": "other"}, ValueError, "no kernel is named `other`; there are axpy"),
        ({"schedules": 0}, ValueError, "schedules"),
    ],
)
def test_what_is_not_valid_is_said(changes, error, why):
    call = {"kernel": AXPY, "grid": 2, "args": [X, Y, 2.0, 100], **changes}
    with pytest.raises(error, match=f"(?s){why}"):
        fa.check(call.pop("kernel"), call.pop("grid"), call.pop("args"), **call)


def test_tensors_of_pytorch_are_arguments():
    torch = pytest.importorskip("torch")
    y = torch.ones(100)
    result = fa.check(AXPY, 2, [torch.arange(100.0), y, 2.0, 100]).raise_if_bad()
    assert torch.equal(result.outputs[1], 2 * torch.arange(100.0) + 1) and torch.equal(y, torch.ones(100))
    half = fa.check(AXPY, 2, [X, fa.Uninit((2, 100), torch.bfloat16), 2.0, 0]).raise_if_bad().outputs[1]
    assert (half.dtype, tuple(half.shape)) == (torch.bfloat16, (2, 100))
    with pytest.raises(ValueError, match="argument 2 is a tensor on meta"):
        fa.check(AXPY, 2, [X, y.to("meta"), 2.0, 100])


def test_neither_triton_nor_pytorch_nor_numpy_is_imported_with_the_package():
    program = "import sys, flashcore_attn; print({'torch', 'triton', 'numpy'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_without_the_command_that_is_said(monkeypatch):
    monkeypatch.delenv("FLASHCORE_COMMAND", raising=False)
    monkeypatch.setattr("flashcore_attn._check.command", lambda: None)
    with pytest.raises(RuntimeError, match="installed without the command"):
        fa.check(AXPY, 2, [X, Y, 2.0, 100])


def test_the_fixture_fails_tests_with_findings(tmp_path):
    (tmp_path / "axpy.ptx").write_text(AXPY)
    (tmp_path / "test_axpy.py").write_text(
        textwrap.dedent("""\
        import numpy as np

        X = np.ones(100, np.float32)

        def test_clean(flashcore_check):
            assert (flashcore_check("axpy.ptx", 2, [X, X.copy(), 2.0, 100]).outputs[1] == 3).all()

        def test_faulty(flashcore_check):
            flashcore_check("axpy.ptx", 2, [X, X.copy(), 2.0, 101])
        """)
    )
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]  # the entry point is installed
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1 and "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "error[out-of-bounds]" in ran.stdout
