"""Runs tests of others by pytest in several processes: for torch_tests.py and fa3_tests.py, which are plugins of it, too.

Needs pytest with xdist and timeout. A test whose process dies has failed.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

NO_TIME = "no time is left"


def told():
    """What the process that starts pytest asks of its plugins."""
    return json.loads(os.environ["FLASHCORE_TESTS_OF_OTHERS"])


def pytest_runtest_setup():
    import pytest

    if time.time() > told()["ends"]:
        pytest.skip(NO_TIME)


def pytest_runtest_makereport(call):
    if call.excinfo and any(word in str(call.excinfo.value) for word in ("CUDA error", "CUDA_ERROR")):
        os._exit(3)  # the context is lost: another process goes on


def run_all(plugin, folder, files, options, asked, more_paths=(), **variables):
    """By name of a test how it ended, what it said, and what the plugin noted of it. `options` are those of `add_options`."""
    asked = asked | {"seed": options.seed, "ends": time.time() + options.seconds}
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    paths = [str(path) for path in (pathlib.Path(__file__).parent, *more_paths)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables, "FLASHCORE_TESTS_OF_OTHERS": json.dumps(asked)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_runs", "-p", plugin, "-p", "no:cacheprovider", *files]
        command += [f"--numprocesses={options.processes}", "--max-worker-restart=1000", "--timeout=600", "--timeout-method=thread"]
        command += [f"--junitxml={scratch}/ran.xml"]
        ended = subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=False).returncode
        if ended not in (0, 1):  # all passed, or some failed
            sys.exit(f"pytest ended with {ended}")
        ran = ElementTree.parse(f"{scratch}/ran.xml")
    lines = {}
    for case in ran.iter("testcase"):
        ends = [(end.tag, end.get("message") or "") for end in case if end.tag in ("failure", "error", "skipped")]
        outcome, says = ends[0] if ends else ("passed", "")
        outcome = "not_reached" if NO_TIME in says else "failed" if outcome in ("failure", "error") else outcome
        noted = {of.get("name"): of.get("value") for of in case.iter("property")}
        lines[f"{case.get('classname')}.{case.get('name')}"] = (outcome, says[:400], noted)
    return lines


def versions():
    import flashcore_attn
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    return {"device": device, "torch": torch.__version__, "flashcore": flashcore_attn.__version__}


def add_options(parser, processes):
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=processes)
    parser.add_argument("--seconds", type=float, default=540, help="for each pass over the tests")
