#!/usr/bin/env python3
"""Runs PyTorch's own tests of SDPA without FlashCore and with it, and leaves the counts.

usage: torch_tests.py FOLDER OUT.json [--most N] [--seed S] [--processes P] [--seconds T]

FOLDER has files of PyTorch's `test` folder; nothing of them is kept in this repository. Needs the
Python of an environment with flashcore, PyTorch, expecttest, and pytest with xdist and timeout, of
which this file is a plugin, too. What `pytest -k sdpa test_transformers.py` selects runs twice,
without and with `flashcore_attn.torch.activate()`. `--most` draws at most so many of the variants of
a test. A test whose process dies has failed. Exit code: 1 if a test ended in another way with
FlashCore, or ran in one of the two only, if FlashCore computed nothing, or if pytest itself failed.
"""

import argparse
import collections
import inspect
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import types
import xml.etree.ElementTree as ElementTree

NO_TIME = "no time is left"
calls = collections.Counter()  # what FlashCore computed in this process


def told():
    """What the process that starts pytest asks of it; None in other runs of pytest."""
    return json.loads(os.environ["FLASHCORE_TORCH_TESTS"])


def pytest_configure():
    # Only the tests of a backend that is built from C++ use it; they are not drawn.
    module = types.ModuleType("test_cpp_extensions_open_device_registration")
    module.generate_faked_module = None
    sys.modules[module.__name__] = module
    if not told()["active"]:
        return
    import flashcore_attn.torch

    for name in ("_direct", "_attend", "_differentiate"):

        def counted(*given, inner=getattr(flashcore_attn.torch, name), name=name, **options):
            results = inner(*given, **options)
            calls[name] += results is not None
            return results

        setattr(flashcore_attn.torch, name, counted)
    flashcore_attn.torch.activate()


def pytest_collection_modifyitems(items):
    """Leaves the tests that are drawn, mixed, so that what the time does not reach is of all kinds."""
    most, seed = told()["most"], told()["seed"]
    families = collections.defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        if "sdpa" in item.name.lower() and "PrivateUse1" not in item.nodeid:
            families[inspect.unwrap(item.obj).__name__].append(item)
    draw = lambda family, every: random.Random(f"{seed} {family}").sample(every, min(most or len(every), len(every)))
    items[:] = [item for family, every in families.items() for item in draw(family, every)]
    random.Random(seed).shuffle(items)


def pytest_runtest_setup():
    import pytest

    if time.time() > told()["ends"]:
        pytest.skip(NO_TIME)


def pytest_runtest_teardown(item):
    item.user_properties += calls.items()
    calls.clear()


def pytest_runtest_makereport(call):
    if call.excinfo and any(word in str(call.excinfo.value) for word in ("CUDA error", "CUDA_ERROR")):
        os._exit(3)  # the context is lost: another process goes on


def run_all(options, active):
    """How each test ended and what it said, and the calls that FlashCore computed."""
    asked = {"active": active, "most": options.most, "seed": options.seed, "ends": time.time() + options.seconds}
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    environment = os.environ | {"FLASHCORE_TORCH_TESTS": json.dumps(asked), "OMP_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "torch_tests", "-p", "no:cacheprovider", "test_transformers.py"]
        command += [f"--numprocesses={options.processes}", "--max-worker-restart=1000", "--timeout=600", "--timeout-method=thread"]
        command += [f"--junitxml={scratch}/ran.xml"]
        ended = subprocess.run(command, cwd=options.folder, env=environment, stdout=sys.stderr, check=False).returncode
        if ended not in (0, 1):  # all passed, or some failed
            sys.exit(f"pytest ended with {ended}")
        ran = ElementTree.parse(f"{scratch}/ran.xml")
    lines, counted = {}, collections.Counter()
    for case in ran.iter("testcase"):
        ends = [(end.tag, end.get("message") or "") for end in case if end.tag in ("failure", "error", "skipped")]
        outcome, says = ends[0] if ends else ("passed", "")
        outcome = "not_reached" if NO_TIME in says else "failed" if outcome in ("failure", "error") else outcome
        lines[f"{case.get('classname')}.{case.get('name')}"] = (outcome, says[:400])
        for of in case.iter("property"):
            counted[of.get("name")] += int(of.get("value"))
    return lines, counted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=0, help="of the variants of a test; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=540, help="for each pass over the tests")
    options = parser.parse_args()
    import flashcore_attn
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    report = {"device": device, "torch": torch.__version__, "flashcore": flashcore_attn.__version__, "seed": options.seed}
    started, results = time.monotonic(), {}
    for word in ("without", "with"):
        lines, counted = run_all(options, word == "with")
        results[word] = lines
        counts = dict(collections.Counter(outcome for outcome, _ in lines.values()))
        counts |= {"drawn": len(lines), "computed_by_flashcore": dict(counted)}
        counts["failures"] = {name: says for name, (outcome, says) in sorted(lines.items()) if outcome == "failed"}
        report[word] = counts
    every = sorted(results["without"].keys() | results["with"].keys())
    other = {name: [results[word].get(name, ("missing", "")) for word in results] for name in every}
    ran = {name: ends for name, ends in other.items() if all(outcome != "not_reached" for outcome, _ in ends)}
    other = {name: ends for name, ends in ran.items() if ends[0][0] != ends[1][0]}
    report |= {"same_outcome": len(ran) - len(other), "other_outcome": other, "seconds": round(time.monotonic() - started)}
    options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    return int(bool(other) or not report["with"]["computed_by_flashcore"])


if __name__ == "__main__":
    sys.exit(main())
