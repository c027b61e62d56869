"""`conftest.py` in runs of pytest over made-up tests: what FLASHCORE_REQUIRE_TORCH changes."""

import os
import pathlib
import subprocess
import sys

import pytest

MADE_UP = {
    "test_module.py": """
import pytest
pytest.importorskip("torch_that_is_missing", reason="PyTorch is not installed")
def test_nothing(): pass
""",
    "test_function.py": """
import pytest
def test_missing(): pytest.importorskip("missing", minversion="5.0", reason="Transformers 5 is not installed")
def test_gpu(): pytest.skip("no GPU here")
@pytest.mark.skipif(True, reason="no GPU here")
def test_marked(): pass
def test_passes(): pass
""",
}


@pytest.mark.parametrize("required", [False, True])
def test_missing_packages_fail_where_they_are_required(tmp_path, required):
    for name, text in MADE_UP.items():
        tmp_path.joinpath(name).write_text(text)
    conftest = pathlib.Path(__file__).with_name("conftest.py")
    tmp_path.joinpath("conftest.py").write_text(conftest.read_text(encoding="utf-8"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FLASHCORE_REQUIRE", "PYTEST"))}
    if required:
        environment["FLASHCORE_REQUIRE_TORCH"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    # With an error in a module, pytest runs no test.
    again = subprocess.run([*command, "--continue-on-collection-errors"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    said = "NOT CHECKED: 2 Python tests: no GPU here"
    if required:
        assert done.returncode == 2 and again.returncode == 1, done.stdout
        assert "1 failed, 1 passed, 2 skipped, 1 error" in again.stdout and said in again.stdout.splitlines(), again.stdout
        assert "and a test was skipped: PyTorch is not installed" in again.stdout
    else:
        assert done.returncode == 0 and "1 passed, 4 skipped" in done.stdout and said not in done.stdout, done.stdout
