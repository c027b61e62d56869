"""`flashcore_attn.ray` with spaces in the paths of the command and of Python. Ray and the command are stand-ins."""

import os
import stat
import subprocess
import sys

import pytest

RAY = """
class exceptions:
    RayError = RuntimeError
class Actor:
    options = remote = lambda self, *words, **named: print("actor", words) if words else self
init = lambda **named: None
cluster_resources = lambda: {}
remote = lambda cls: Actor()
kill = lambda actor: None
"""
# What `flashcore tune` does with --workers: it splits it at spaces.
COMMAND = """#!{python}
import subprocess, sys
workers = sys.argv[sys.argv.index("--workers") + 1].split()
sys.exit(subprocess.run(workers, stdin=subprocess.DEVNULL).returncode)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither sh nor the sockets")
@pytest.mark.parametrize("named", [False, True])
def test_paths_may_have_spaces(tmp_path, named):
    folder, temporary = tmp_path / "a folder", tmp_path / "another one"
    folder.mkdir()
    temporary.mkdir()
    (folder / "ray.py").write_text(RAY)
    python, command = folder / "my python", folder / "flashcore"
    python.symlink_to(sys.executable)
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    paths = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(temporary)}
    paths["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    words = ["--flashcore", f"'{command}'"] if named else []
    ran = subprocess.run(
        [python, "-m", "flashcore_attn.ray", "--workers", "1", *words, "tune", "small"],
        env={**os.environ, **paths}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert f"actor (['{command}'],)" in ran.stderr
