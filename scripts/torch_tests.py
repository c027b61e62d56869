#!/usr/bin/env python3
"""Runs PyTorch's own tests of SDPA without FlashCore and with it, and leaves the counts.

usage: torch_tests.py FOLDER OUT.json [--most N] [--seed S] [--processes P] [--seconds T]

FOLDER has files of PyTorch's `test` folder; nothing of them is kept in this repository. Needs the
Python of an environment with flashcore, PyTorch and expecttest. What `pytest -k sdpa
test_transformers.py` selects runs twice, without and with `flashcore_attn.torch.activate()`.
`--most` draws at most so many of the variants of a test. Exit code: 1 if a test ended in another way
with FlashCore, or if FlashCore computed nothing.
"""

import argparse
import collections
import importlib
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
import unittest

POISONED = 3  # exit code of a worker whose CUDA context is lost
calls = collections.Counter()  # what FlashCore computed in this process


def activate():
    """FlashCore computes SDPA, and the calls that it computes are counted."""
    import flashcore_attn.torch

    for name in ("_direct", "_attend", "_differentiate"):

        def counted(*given, inner=getattr(flashcore_attn.torch, name), name=name, **options):
            results = inner(*given, **options)
            calls[name] += results is not None
            return results

        setattr(flashcore_attn.torch, name, counted)
    flashcore_attn.torch.activate()


def load(folder):
    """All tests by name."""
    sys.path.insert(0, str(folder))
    # Only the tests of a backend that is built from C++ use it; they are not among those with `sdpa` in the name
    # that are instantiated for devices.
    module = types.ModuleType("test_cpp_extensions_open_device_registration")
    module.generate_faked_module = None
    sys.modules[module.__name__] = module

    def walk(suite):
        for test in suite:
            yield from walk(test) if isinstance(test, unittest.TestSuite) else [test]

    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("test_transformers"))
    return {test.id(): test for test in walk(suite) if "sdpa" in test.id().lower() and "PrivateUse1" not in test.id()}


def drawn(options, tests):
    """The names of the tests to run, and how many there are of each test function: drawn, and in all."""
    families = collections.defaultdict(list)
    for name in sorted(tests):
        method = getattr(tests[name], name.rsplit(".", 1)[1])
        families[inspect.unwrap(method).__name__].append(name)
    few = {
        family: random.Random(f"{options.seed} {family}").sample(every, min(options.most or len(every), len(every)))
        for family, every in families.items()
    }
    names = [name for some in few.values() for name in some]
    random.Random(options.seed).shuffle(names)  # what the time does not reach is of all kinds
    return names, {family: [len(few[family]), len(families[family])] for family in few}


class Result(unittest.TestResult):
    def _exc_info_to_string(self, error, test):
        return f"{error[0].__name__}: {error[1]}"[:400]


def run_one(test):
    """How a test ends, with what its class prepares for it, and what it says."""
    result = Result()
    unittest.TestSuite([test]).run(result)
    if result.failures or result.errors or result.unexpectedSuccesses:
        says = [says for _, says in result.failures + result.errors]
        return "failed", says[0] if says else "passed, where a failure is expected"
    return ("skipped", result.skipped[0][1][:200]) if result.skipped else ("passed", "")


def work(options):
    """A worker: runs the tests of a file of names, and writes a line for each."""
    ends = time.monotonic() + options.seconds
    tests = load(options.folder)
    if options.active:
        activate()
    with open(options.out, "a") as out:
        for name in json.loads(options.worker.read_text()):
            if time.monotonic() > ends:
                break
            outcome, says = run_one(tests[name])
            print(json.dumps([name, outcome, says, calls]), file=out, flush=True)
            calls.clear()
            if "CUDA error" in says or "CUDA_ERROR" in says:
                os._exit(POISONED)


def run_all(options, names, active):
    """The last line of each test, and the calls that FlashCore computed. A worker that dies goes on with the next."""
    ends, lines, counted = time.monotonic() + options.seconds, {}, collections.Counter()
    threads = max(1, (os.cpu_count() or 1) // options.processes)
    with tempfile.TemporaryDirectory() as scratch:
        left = {n: names[n :: options.processes] for n in range(options.processes)}
        living = {}

        def start(n):
            names_of_it, out = (pathlib.Path(scratch) / f"{n}.{kind}" for kind in ("json", "jsonl"))
            names_of_it.write_text(json.dumps(left[n]))
            out.write_text("")
            command = [sys.executable, __file__, options.folder, out, "--worker", names_of_it]
            command += ["--seconds", ends - time.monotonic(), *(["--active"] if active else [])]
            log = open(pathlib.Path(scratch) / f"{n}.log", "w+")
            environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
            process = subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log)
            living[n] = process, out, log

        for n in [n for n in left if left[n]]:
            start(n)
        while living:
            time.sleep(0.2)
            for n, (process, out, log) in list(living.items()):
                if process.poll() is None and time.monotonic() < ends + 60:
                    continue
                process.kill()  # a test that does not end
                status = process.wait()
                del living[n]
                whole = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
                for name, outcome, says, count in map(json.loads, whole):
                    lines[name] = (outcome, says)
                    counted.update(count)
                left[n] = [name for name in left[n] if name not in lines]
                if status == 0 or not left[n] or time.monotonic() > ends:
                    continue
                if status != POISONED:
                    log.seek(0)
                    last = log.read().strip().splitlines()[-1:] or [""]
                    lines[left[n].pop(0)] = ("failed", f"the process ended with {status}: {last[0]}"[:400])
                if left[n]:
                    start(n)
    return lines, dict(counted)


def run(options):
    import flashcore_attn
    import torch

    names, sizes = drawn(options, load(options.folder))
    if not names:
        raise SystemExit(f"{options.folder} has no test of SDPA for this machine's devices")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    report = {"command": "sdpa", "device": device, "torch": torch.__version__, "flashcore": flashcore_attn.__version__}
    report |= {"seed": options.seed, "drawn": len(names), "drawn_of": sizes}
    started, results = time.monotonic(), {}
    for word in ("without", "with"):
        lines, counted = results[word] = run_all(options, names, word == "with")
        counts = dict(collections.Counter(outcome for outcome, _ in lines.values()))
        counts |= {"not_reached": len(names) - len(lines), "computed_by_flashcore": counted}
        counts["failures"] = {name: says for name, (outcome, says) in sorted(lines.items()) if outcome == "failed"}
        report[word] = counts
    before, after = results["without"][0], results["with"][0]
    both = before.keys() & after.keys()
    worse = {name: [before[name], after[name]] for name in sorted(both) if before[name][0] != after[name][0]}
    report |= {"same_outcome": len(both) - len(worse), "other_outcome": worse}
    report["seconds"] = round(time.monotonic() - started)
    options.out.write_text(json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    return bool(worse) or not report["with"]["computed_by_flashcore"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=0, help="of the variants of a test; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=540, help="for each pass over the tests")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--active", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    return work(options) if options.worker else int(run(options))


if __name__ == "__main__":
    sys.exit(main())
