"""What an import does to a process, and what a process may not do after a fork."""

import subprocess
import sys

import flashcore_attn
import pytest


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys has no list of its modules")
def test_import_loads_nothing_else():
    known = "import sys; before = set(sys.modules); import flashcore_attn; print(*sorted(set(sys.modules) - before))"
    ran = run(known)
    assert ran.returncode == 0, ran.stderr
    others = {name.split(".")[0] for name in ran.stdout.split()} - {"flashcore_attn"} - sys.stdlib_module_names
    assert not others, f"`import flashcore_attn` imports {others}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc lists the libraries of a process")
def test_import_touches_no_gpu():
    libraries = "print(*(line.split()[-1] for line in open('/proc/self/maps') if '.so' in line))"
    ran = run(f"import flashcore_attn; {libraries}")
    assert "_native" in ran.stdout, ran.stderr
    assert "libcuda" not in ran.stdout
    if flashcore_attn.why_not_cuda() is None:  # where there is a driver, asking for devices opens it
        assert "libcuda" in run(f"import flashcore_attn; flashcore_attn.devices(); {libraries}").stdout


@pytest.mark.parametrize(
    "module, missing, extra",
    [
        *((module, "torch", "torch") for module in ("torch", "flash_attn", "flash_attn_interface", "distributed")),
        ("transformers", "torch", "transformers"),
        ("transformers", "transformers", "transformers"),
    ],
)
def test_a_module_names_the_extra_that_it_needs(module, missing, extra):
    ran = run(f"import sys; sys.modules[{missing!r}] = None; import flashcore_attn.{module}")
    last = ran.stderr.splitlines()[-1]
    if missing == "transformers" and "torch" in last:
        pytest.skip("PyTorch is not installed")
    assert last.startswith("ModuleNotFoundError: "), ran.stderr
    assert last.endswith(f": install it with pip install 'flashcore-attn[{extra}]'"), last


FORKED = """
import os
import numpy as np
import flashcore_attn

q = np.ones((1, 8, 2, 16), np.float32)
{before}
child = os.fork()
if child == 0:
    assert flashcore_attn.devices()[0] == {{"device": "cpu"}}
    try:
        flashcore_attn.attention(q, q, q)
        print("computed", flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
flashcore_attn.attention(q, q, q)
print("the parent goes on")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize(
    "before, says", [("flashcore_attn.attention(q, q, q)", "forked"), ("", "computed"), ("flashcore_attn.devices()", "computed")]
)
def test_a_fork_after_the_first_call_is_refused(before, says):
    ran = run(FORKED.format(before=before))
    first, second = ran.stdout.splitlines()
    assert says in first and second == "the parent goes on", ran
    if says == "forked":
        assert "spawn" in first, "it says what to do"
